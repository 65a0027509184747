"""The process that uses a saver and is killed: its steps, and its crash point.

The process receives a pickled opener and performs the same steps each time. While a verb runs, a profile function
counts the calls of functions written in C. At the chosen call, the process dies: at once by SIGKILL, or after a short
delay by SIGALRM, which then interrupts that call or a later one. Python code alone does not change the storage, so that
calls of C functions are the only places at which a crash can matter.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from multiprocessing.connection import Connection
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

import anyio
from msgspec.structs import replace

from ...abc import BaseCheckpointSaver
from ...records import Lease
from .scenarios import CHANGE, MOVE, NEXT, WHOLE, fill_commits
from .suite import LATER, OpenSaver, commit, event, record, row, take

THREADS: Final = ("t", "u", "v")
"""The threads that the process writes."""

EFFECT_FREE: Final = frozenset(
    {
        *("builtins", "types", "collections", "functools", "itertools", "operator", "math", "time", "zlib", "select"),
        *("_abc", "_asyncio", "_collections", "_contextvars", "_functools", "_heapq", "_operator", "_queue", "_random"),
        *("_thread", "_weakref", "msgspec", "msgspec._core"),
    }
)
"""Modules, and modules of types, whose C functions change nothing outside of the process."""

Leases = dict[str, Lease]


class Step(NamedTuple):
    """One step of the process, with the verbs of `VERBS` that it needs."""

    act: Callable[[BaseCheckpointSaver, Leases], Awaitable[None]]
    needs: tuple[str, ...] = ()


def _acquire(thread: str) -> Step:
    """Return a step that acquires a thread's lease and keeps it for later steps."""

    async def act(saver: BaseCheckpointSaver, leases: Leases) -> None:
        leases[thread] = await take(saver, thread, f"run-{thread}")

    return Step(act)


def _do(thread: str, work: Callable[[BaseCheckpointSaver, Lease], Awaitable[None]], *needs: str) -> Step:
    """Return a step that calls a verb under the lease of a thread."""
    return Step(lambda saver, leases: work(saver, leases[thread]), needs)


STEPS: Final[tuple[Step, ...]] = (
    _acquire("t"),
    *(_do("t", work) for work in fill_commits()),
    _do("t", lambda saver, lease: saver.record(lease, [record(7, "x", 5), record(7, "y", 6)], expires_at=LATER)),
    _do("t", lambda saver, lease: saver.commit(lease, NEXT)),
    _do("t", lambda saver, lease: saver.rewrite(lease, CHANGE), "rewrite"),
    _do("t", lambda saver, lease: saver.release(lease)),
    _acquire("u"),
    _do("u", lambda saver, lease: saver.load(lease, WHOLE), "load"),
    _do("u", lambda saver, lease: saver.commit(lease, MOVE), "load"),
    _do("u", lambda saver, lease: saver.rewrite(lease, CHANGE), "load", "rewrite"),
    _do("u", lambda saver, lease: saver.load(lease, replace(WHOLE, replaces=True)), "load"),
    _do("u", lambda saver, lease: saver.erase(lease), "erase"),
    _acquire("v"),
    _do("v", lambda saver, lease: saver.commit(lease, commit(row(1), records=[record(1, "a")], events=[event(1)]))),
    _do("v", lambda saver, lease: saver.commit(lease, commit(row(2, 1, base=1), head=1, releases=True))),
    Step(lambda saver, leases: saver.adelete_thread("v")),
)
"""Steps that call every verb which writes."""


def steps(lacks: Collection[str]) -> list[Step]:
    """Return the steps that a saver can perform.

    Args:
        lacks: verbs that the saver lacks.
    """
    return [step for step in STEPS if not set(step.needs) & set(lacks)]


class CrashPoint(NamedTuple):
    """The place at which the process dies.

    Attributes:
        call: the number of the call of a C function, counted from 1; 0 if the process is not killed.
        after: the delay after that call, in seconds; None to die before the call.
    """

    call: int
    after: float | None


class _CrashInjector:
    """A profile function that counts calls of C functions in all threads, and kills the process at one of them."""

    def __init__(self, crash_point: CrashPoint) -> None:
        self._crash_point = crash_point
        self._numbers = itertools.count(1)  # needs no lock: next() is atomic in CPython
        self.active = False
        self.counted = 0

    def install(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, profile_event: str, function: Any) -> None:
        if not self.active or profile_event != "c_call" or _is_effect_free(function):
            return
        self.counted = number = next(self._numbers)
        if number != self._crash_point.call:
            return
        if self._crash_point.after is None:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        else:
            signal.setitimer(signal.ITIMER_REAL, self._crash_point.after)


def _is_effect_free(function: Any) -> bool:
    """Return True if a C function belongs to a module, or to a type of a module, of `EFFECT_FREE`."""
    owner = getattr(function, "__self__", None)
    module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    return module in EFFECT_FREE


def run_steps(
    opener: OpenSaver,
    backend: str,
    script: Callable[[], Sequence[Step]],
    crash_point: CrashPoint,
    progress: Connection,
) -> None:
    """Perform all steps with a saver, and send the number of calls counted so far after each step.

    Args:
        opener: opens the saver.
        backend: the event loop, "asyncio" or "trio".
        script: returns the steps. It is sent to the process by pickle.
        crash_point: where the process dies.
        progress: the connection to the parent process.
    """
    injector = _CrashInjector(crash_point)

    async def main() -> None:
        async with opener() as saver:
            leases: Leases = {}
            for step in script():
                injector.active = True
                await step.act(saver, leases)
                injector.active = False
                progress.send(injector.counted)

    # The default action of SIGALRM kills the process even within a C call; a handler in Python would run only after it.
    if crash_point.after is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Before the saver is opened: `threading.setprofile` only reaches threads that start later.
    injector.install()
    try:
        anyio.run(main, backend=backend)
    finally:
        sys.setprofile(None)
