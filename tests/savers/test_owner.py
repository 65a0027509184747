"""P6: a lease expires at once when its process has certainly ended, and never by mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from checkpoint_savers import owner as module
from checkpoint_savers.owner import is_gone, is_live, this_process
from checkpoint_savers.records import Owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux shows when a process started")

CODE = (
    "import msgspec, sys; from checkpoint_savers.owner import this_process; "
    "print(msgspec.json.encode(this_process('r')).decode(), flush=True); sys.stdin.read()"
)


@contextmanager
def process(executable: str = sys.executable) -> Iterator[tuple[subprocess.Popen[bytes], Owner]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as started:
        assert started.stdout is not None
        try:
            yield started, msgspec.json.decode(started.stdout.readline(), type=Owner)
        finally:
            started.kill()


def but(owner: Owner, **changes: object) -> Owner:
    return msgspec.structs.replace(owner, **changes)


def test_a_running_process_is_not_gone() -> None:
    """P6: neither this process nor another running one counts as gone; runs of one process differ in their run id
    only."""
    mine = this_process("a")
    assert mine.pid == os.getpid()
    assert mine == but(this_process("b"), run_id="a")
    assert not is_gone(mine)
    with process() as (_, other):
        assert other.pid != mine.pid
        assert (other.host, other.boot) == (mine.host, mine.boot)
        assert not is_gone(other)


def test_a_killed_process_is_gone() -> None:
    """P6: after SIGKILL a process is gone, both as a zombie and after its parent has waited for it."""
    with process() as (started, other):
        started.kill()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        os.kill(started.pid, 0)  # it still has its pid
        assert is_gone(other)
        started.wait()
        assert is_gone(other)


def test_a_pid_that_was_used_again() -> None:
    """P6: a process with the same pid and another start time is another process."""
    mine = this_process("a")
    start, _, namespace = mine.started.partition("@")
    assert is_gone(but(mine, started=f"{int(start) - 1}@{namespace}"))
    assert is_gone(but(mine, started=f"{int(start) - 1}"))


def test_an_owner_of_an_earlier_boot_is_gone() -> None:
    """P6: every process of an earlier boot is gone."""
    assert is_gone(but(this_process("a"), boot="00000000-0000-0000-0000-000000000000"))


def test_an_owner_that_cannot_be_checked_is_not_gone() -> None:
    """P6: owners on another host, in a container with the same host name, or without a boot or start time do not
    count as gone."""
    dead = but(this_process("a"), pid=2**22 + 1)  # higher than any pid that Linux assigns
    assert is_gone(dead)
    assert not is_gone(but(dead, host="elsewhere"))
    assert not is_gone(but(dead, host="elsewhere", boot="another"))
    assert not is_gone(but(dead, started="1@pid:[1]"))
    with pytest.MonkeyPatch.context() as elsewhere:  # the owner is in a Linux container, and macOS looks at it
        elsewhere.setattr(module, "_namespace", lambda: "")
        assert not is_gone(but(dead, started="1@pid:[1]"))
    mine = this_process("a")
    assert not is_gone(but(mine, boot=""))
    assert not is_gone(but(mine, started=""))
    for strange in (0, -1, 2**70):
        assert not is_gone(but(mine, pid=strange))


def test_a_command_name_that_looks_like_fields(tmp_path: Path) -> None:
    """P6: the command name, which may be anything, is in the middle of the line that is parsed."""
    strange = tmp_path / "x) Z 1 1 ("
    strange.symlink_to(sys.executable)
    with process(str(strange)) as (started, other):
        assert b"(x) Z 1 1 ()" in Path(f"/proc/{started.pid}/stat").read_bytes()
        assert not is_gone(other)
        started.kill()
        started.wait()
        assert is_gone(other)


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: without /proc, a process that no longer exists still counts as gone, and no other does."""
    monkeypatch.setattr(module, "_process", lambda pid: None)
    monkeypatch.setattr(module, "_namespace", lambda: "")
    monkeypatch.setattr(module, "_boot", lambda: "")
    monkeypatch.setattr(module, "_identity", module._identity.__wrapped__)  # this process's identity is cached already
    with process() as (started, other):
        assert this_process("a").started == ""
        assert not is_gone(this_process("a"))
        other = but(other, started="", boot="")  # as it would have been made there
        assert not is_gone(other)
        started.kill()
        started.wait()
        assert is_gone(other)


def test_after_fork() -> None:
    """P6: a forked child is a process of its own, its parent is not gone, and the child does not reuse its parent's
    cached identity, even where both have the same pid (in pid namespaces of their own)."""
    code = """if True:
        import os
        from checkpoint_savers.owner import _identity, is_gone, this_process
        parent = this_process("a")
        child = os.fork()
        if child == 0:
            good = _identity.cache_info().currsize == 0
            mine = this_process("a")
            good = good and mine.started == _identity.__wrapped__(os.getpid())[2]
            good = good and mine.pid == os.getpid() != parent.pid and not is_gone(parent) and not is_gone(mine)
            os._exit(0 if good else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_when_a_lease_is_live() -> None:
    """P6: a lease is live before its expiry, not at it, and not after its process has ended."""
    mine = this_process("a")
    assert is_live(mine, 10.0, now=9.999)
    assert not is_live(mine, 10.0, now=10.0)
    assert not is_live(but(mine, pid=2**22 + 1), 10.0, now=9.0)
