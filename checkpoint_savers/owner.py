"""The owner of a lease, and whether its process has certainly ended, so that a restart after SIGKILL need not wait.

A process is distinguished from a later one with the same pid by its start time, and from one of an earlier boot by the
boot id. In doubt a process counts as alive: a lease wrongly considered dead means two writers, one wrongly considered
alive only costs waiting until it expires.

The identity of the current process is read once, and again after `fork()`: a child's start time is not its parent's.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import NamedTuple

from .records import Owner


def this_process(run_id: str) -> Owner:
    """Return the owner for a run in this process.

    Args:
        run_id: unique among all runs.
    """
    pid = os.getpid()
    host, boot, started = _identity(pid)
    return Owner(host=host, boot=boot, pid=pid, started=started, run_id=run_id)


@lru_cache(maxsize=1)  # otherwise each run would read three files of /proc
def _identity(pid: int) -> tuple[str, str, str]:
    """Return this process's host, boot id, and start time with its pid namespace."""
    found = _process(pid)
    return _host(), _boot(), "" if found is None else f"{found.start}@{_namespace()}"


def _host() -> str:
    import socket  # imported late: slow, and unneeded in a program that never acquires a thread

    return socket.gethostname()


# The cache is keyed by pid, which is not enough: a child in another pid namespace may have the same pid as its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_identity.cache_clear)


def is_gone(owner: Owner) -> bool:
    """Return True if the owner's process has certainly ended.

    True on the owner's own host if it has rebooted since, if no process has the pid, if another process has it, or if
    the process is a zombie. False in all other cases: another host, another pid namespace, or a platform that does not
    provide this information. macOS shows only whether a process has the pid, and Windows not even that: there the lease
    of a killed process is held until it expires.

    Args:
        owner: the owner.
    """
    if owner.host != _host():
        return False
    boot = _boot()
    if owner.boot and boot and owner.boot != boot:
        return True
    start, _, namespace = owner.started.partition("@")
    if namespace and namespace != _namespace():
        # Its pids mean nothing here: another container with the same host name, or a Linux container that is looked at
        # from macOS or Windows, where no namespace is known.
        return False
    if not _exists(owner.pid):
        return True
    found = _process(owner.pid)
    return found is not None and (found.zombie or bool(start and start != found.start))


def is_live(owner: Owner, expires_at: float, *, now: float) -> bool:
    """Return True if a lease is live: it has not expired, and its process may exist.

    Args:
        owner: the lease's owner.
        expires_at: its expiry, in unix seconds.
        now: the current time, in unix seconds.
    """
    return now < expires_at and not is_gone(owner)


class _Process(NamedTuple):
    """What the system says about a process: its start time in clock ticks since boot, and whether it is a zombie."""

    start: str
    zombie: bool


def _process(pid: int) -> _Process | None:
    """Read /proc/<pid>/stat. Return None if it is unavailable (another system, or /proc mounted with hidepid)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The second field is the command's name in parentheses, which may itself hold spaces and parentheses: count
    # from its end, where field 3 (the state) follows.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    # A leader thread that has ended before its process shows as Z as well; only then are there more threads (field 20).
    zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return _Process(fields[19].decode(), zombie)


def _namespace() -> str:
    """Return the pid namespace of this process; "" if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    """Return True if a process with this pid may exist."""
    # By signal 0 and not by /proc, which may hide the processes of other users.
    if sys.platform == "win32" or pid <= 0:
        return True  # os.kill(pid, 0) would end the process on Windows; 0 and below name groups
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
