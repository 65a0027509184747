"""SqliteSaver and other processes: killed ones, forked ones, and processes that write the same thread (P3, P4, P6)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import (
    SqliteSaver,
    StorageLockedError,
)
from checkpoint_savers.conformance.savers.suite import (
    cid,
    commit,
    event,
    head_of,
    record,
    row,
    take,
)
from tests.savers.sqlite_tools import ENV

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path) as saver:
        yield saver


KILLED = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.conformance.savers.suite import commit, event, record, row, take
    from checkpoint_savers.sqlite import writing

    whole = writing.commit

    def halfway(*args):
        whole(*args)
        print("all of it is written, and not committed", flush=True)
        sys.stdin.read()

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
            claim = await take(saver, run="run-killed")
            await saver.commit(claim, commit(row(1), records=[record(1, "a")], events=[event(1)]))
            writing.commit = halfway
            await saver.commit(
                claim,
                commit(
                    row(2, 1),
                    row(3, 2),
                    head=1,
                    records=[record(3, "b")],
                    clears=[record(1, "a")],
                    releases=True,
                    events=[event(1, 2, "tail"), event(3)],
                ),
            )

    anyio.run(main)
"""


async def test_killed_between_begin_and_commit(path: Path) -> None:
    """P3, P4, P6: nothing of the interrupted superstep is stored, everything before it is, and the next run starts
    at once."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV
    ) as process:
        assert process.stdout is not None
        assert b"not committed" in process.stdout.readline()
        async with SqliteSaver.from_conn_string(path, busy_timeout=0) as saver:
            assert await head_of(saver) == cid(1)
            with pytest.raises(StorageLockedError):
                await take(saver)
        process.send_signal(signal.SIGKILL)
    async with SqliteSaver.from_conn_string(path, busy_timeout=0) as saver:
        chain = await saver.read("t")
        assert chain is not None and chain.head == cid(1) and chain.records == (record(1, "a"),)
        assert len(await saver.scan(None, None)) == 1
        assert await saver.events("t") == (event(1),)
        lease = await take(saver)
        assert (lease.epoch, lease.newest) == (2, cid(1))
        await saver.commit(lease, commit(row(2, 1), head=1))


COUNTING = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver, ThreadBusyError
    from checkpoint_savers.conformance.savers.suite import commit, head_of, row, take

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1], synchronous="NORMAL", busy_timeout=60) as saver:
            print("ready", flush=True)
            sys.stdin.readline()
            done = 0
            while done < 50:
                try:
                    claim = await take(saver, run=f"run-{sys.argv[2]}-{done}")
                except ThreadBusyError:
                    continue
                head = await head_of(saver)
                last = 0 if head is None else int(head.split("-")[0])
                await saver.commit(claim, commit(row(last + 1, last or None, base=1), head=last or None, releases=True))
                done += 1

    anyio.run(main)
"""


def test_two_processes_count_on_one_thread(path: Path) -> None:
    """P6: every increment is either counted or refused."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COUNTING, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
        )
        for number in range(2)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline()
    for process in processes:
        process.communicate(b"\n")
    assert [process.returncode for process in processes] == [0, 0]

    async def count() -> int:
        async with SqliteSaver.from_conn_string(path) as saver:
            rows, _ = await saver.segment("t", "", cid(1))
            assert await head_of(saver) == cid(len(rows))
            return len(rows)

    assert anyio.run(count) == 100


def test_a_program_that_never_closes_ends(path: Path) -> None:
    """The saver's threads do not keep the interpreter alive, and acknowledged writes are stored."""
    code = """if True:
        import asyncio, sys
        from checkpoint_savers import SqliteSaver
        from checkpoint_savers.conformance.savers.suite import row, written

        async def main():
            global saver
            saver = await SqliteSaver.from_conn_string(sys.argv[1]).__aenter__()
            await written(saver, row(1))

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=ENV, timeout=60)

    async def head() -> object:
        async with SqliteSaver.from_conn_string(path) as saver:
            return await head_of(saver)

    assert anyio.run(head) == cid(1)


def test_after_fork(path: Path) -> None:
    """In a forked child no thread serves the saver: a call raises an error instead of waiting, and the parent's
    saver still works."""
    code = """if True:
        import asyncio, os, sys, warnings
        from checkpoint_savers import SaverClosedError, SqliteSaver
        from checkpoint_savers.conformance.savers.suite import head_of, row, written

        warnings.simplefilter("ignore")  # Python 3.12 and later warn of fork() in a process with threads, which this test is about
        saver = SqliteSaver.from_conn_string(sys.argv[1])

        async def use():
            try:
                await saver.read("t")
            except SaverClosedError:
                await saver.__aexit__(None, None, None)
                async with saver:
                    return await head_of(saver) is not None
            return False

        async def main():
            await saver.__aenter__()
            await written(saver, row(1))

        async def end():
            assert await head_of(saver) is not None
            await saver.__aexit__(None, None, None)

        asyncio.run(main())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if asyncio.run(use()) else 2
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asyncio.run(end())
        raise SystemExit(status)
    """
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=ENV, timeout=60)


def test_importing_the_savers_does_not_load_sqlite() -> None:
    """A program that uses another saver never imports SQLite."""
    code = """if True:
        import sys
        import checkpoint_savers
        assert not {"aiosqlite", "sqlite3", "pytest", "trio", "pregel_async"} & set(sys.modules)
        from checkpoint_savers import *
        assert SqliteSaver is checkpoint_savers.SqliteSaver
        assert "aiosqlite" in sys.modules and "pytest" not in sys.modules
        assert checkpoint_savers.__all__ == sorted(checkpoint_savers.__all__)
        try:
            checkpoint_savers.nothing
        except AttributeError:
            pass
    """
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=ENV)


RACE = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.conformance.savers.suite import commit, row, take

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1], busy_timeout=60) as saver:
            claim = await take(saver, sys.argv[2])
            await saver.commit(claim, commit(row(1), releases=True))

    print("ready", flush=True)
    sys.stdin.readline()
    anyio.run(main)
"""


def test_eight_processes_open_one_new_file(path: Path) -> None:
    """P13: eight processes open a new file at the same moment; one of them sets it up, and each stores its thread."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", RACE, str(path), f"t{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * 8

    async def stored() -> list[str]:
        async with SqliteSaver.from_conn_string(path) as saver:
            return [one.thread_id for one in await saver.scan(None, None)]

    assert anyio.run(stored) == [f"t{number}" for number in range(7, -1, -1)]
