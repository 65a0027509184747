"""Who holds a lease, and whether that process is certainly gone, so that a restart after SIGKILL need not wait.

A process is told apart from a later one with the same pid by the time at which it started, and from one of an earlier
boot by the boot id. Whatever cannot be known for sure counts as alive: a lease that is wrongly believed dead means two
writers, one that is wrongly believed alive costs waiting until it expires.

What a process knows of itself it asks for once, and anew after `fork()`: its parent's start time is not its own.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import NamedTuple

from .records import Owner


def this_process(run_id: str) -> Owner:
    """The owner that a run in this process is.

    Args:
        run_id: unique among all runs.
    """
    pid = os.getpid()
    host, boot, started = _identity(pid)
    return Owner(host=host, boot=boot, pid=pid, started=started, run_id=run_id)


@lru_cache(maxsize=1)  # three files of /proc, for each run otherwise
def _identity(pid: int) -> tuple[str, str, str]:
    """Of this process: its host, boot, and when it started, in which pid namespace."""
    found = _process(pid)
    return _host(), _boot(), "" if found is None else f"{found.start}@{_namespace()}"


def _host() -> str:
    import socket  # it loads much, which a program that never claims a thread needs not

    return socket.gethostname()


if hasattr(os, "register_at_fork"):  # a child in another pid namespace may have its parent's number
    os.register_at_fork(after_in_child=_identity.cache_clear)


def is_gone(owner: Owner) -> bool:
    """Whether the owner's process has certainly ended.

    True on the owner's own host, when it has booted since, when no process has its pid, when another has, or when
    it is a zombie. False in all other cases: another host, another pid namespace, a platform that does not tell.
    """
    if owner.host != _host():
        return False
    boot = _boot()
    if owner.boot and boot and owner.boot != boot:
        return True
    start, _, namespace = owner.started.partition("@")
    here = _namespace()
    if namespace and here and namespace != here:
        return False  # a container beside this one, under the same host name: its pids mean nothing here
    if not _exists(owner.pid):
        return True
    found = _process(owner.pid)
    return found is not None and (found.zombie or bool(start and start != found.start))


def is_live(owner: Owner, expires_at: float, *, now: float) -> bool:
    """Whether a lease still stands: it has not lapsed at `now` (unix seconds), and its process may be there."""
    return now < expires_at and not is_gone(owner)


class _Process(NamedTuple):
    """What the system says about a process: when it started, in clock ticks since boot, and whether it has ended."""

    start: str
    zombie: bool


def _process(pid: int) -> _Process | None:
    """From /proc/<pid>/stat; None where that is not to be had (another system, or /proc mounted with hidepid)."""
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
    """The pid namespace, in which this process's pids have their meaning."""
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
    """Whether there may be a process with this pid. /proc is not asked: it may hide other users' processes."""
    if sys.platform == "win32" or pid <= 0:
        return True  # os.kill(pid, 0) would end the process on Windows; 0 and below name groups
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
