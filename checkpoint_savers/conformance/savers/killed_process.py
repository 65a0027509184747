"""A process that uses a saver, and is killed in the midst of it: what it does, and how it dies.

It is started with an opener, which is pickled, and does the same things each time. Before each call of a function that
is written in C, while a verb is under way, it looks whether it is to die there: at once by SIGKILL, or a moment later,
inside of whatever it does then, by an alarm that nobody handles. In Python code alone nothing happens to storage.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from multiprocessing.connection import Connection
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

import anyio

from ...abc import BaseCheckpointSaver
from ...records import Claim
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
"""Modules, and modules of types, whose functions change nothing outside of the process."""

Claims = dict[str, Claim]


class Step(NamedTuple):
    """One thing that the process does, with the verbs of `VERBS` that it needs."""

    act: Callable[[BaseCheckpointSaver, Claims], Awaitable[None]]
    needs: tuple[str, ...] = ()


def _claim(thread: str) -> Step:
    async def act(saver: BaseCheckpointSaver, claims: Claims) -> None:
        claims[thread] = await take(saver, thread, f"run-{thread}")

    return Step(act)


def _do(thread: str, work: Callable[[BaseCheckpointSaver, Claim], Awaitable[None]], *needs: str) -> Step:
    return Step(lambda saver, claims: work(saver, claims[thread]), needs)


STEPS: Final[tuple[Step, ...]] = (
    _claim("t"),
    *(_do("t", work) for work in fill_commits()),
    _do("t", lambda saver, claim: saver.record(claim, [record(7, "x", 5), record(7, "y", 6)], expires_at=LATER)),
    _do("t", lambda saver, claim: saver.commit(claim, NEXT)),
    _do("t", lambda saver, claim: saver.rewrite(claim, CHANGE), "rewrite"),
    _do("t", lambda saver, claim: saver.release(claim)),
    _claim("u"),
    _do("u", lambda saver, claim: saver.load(claim, WHOLE), "load"),
    _do("u", lambda saver, claim: saver.commit(claim, MOVE), "load"),
    _do("u", lambda saver, claim: saver.rewrite(claim, CHANGE), "load", "rewrite"),
    _do("u", lambda saver, claim: saver.erase(claim), "erase"),
    _claim("v"),
    _do("v", lambda saver, claim: saver.commit(claim, commit(row(1), records=[record(1, "a")], events=[event(1)]))),
    _do("v", lambda saver, claim: saver.commit(claim, commit(row(2, 1, base=1), head=1, releases=True))),
    Step(lambda saver, claims: saver.adelete_thread("v")),
)
"""All verbs that write."""


def steps(lacks: Collection[str]) -> list[Step]:
    """Those that a saver can do."""
    return [step for step in STEPS if not set(step.needs) & set(lacks)]


class CrashPoint(NamedTuple):
    """Where the process dies.

    Attributes:
        call: at which call of a function in C, counted from 1; 0: nowhere.
        after: seconds; None for at once.
    """

    call: int
    after: float | None


class _CrashInjector:
    """Counts calls in all threads, while a verb is under way, and ends the process at one of them."""

    def __init__(self, crash_point: CrashPoint) -> None:
        self._crash_point = crash_point
        self._numbers = itertools.count(1)
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
    owner = getattr(function, "__self__", None)
    module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    return module in EFFECT_FREE


def run_steps(
    opener: OpenSaver, backend: str, lacks: Collection[str], crash_point: CrashPoint, progress: Connection
) -> None:
    """What the process does. It tells each step that is done, with the number of calls counted so far."""
    injector = _CrashInjector(crash_point)

    async def main() -> None:
        async with opener() as saver:
            claims: Claims = {}
            for step in steps(lacks):
                injector.active = True
                await step.act(saver, claims)
                injector.active = False
                progress.send(injector.counted)

    if crash_point.after is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    injector.install()
    try:
        anyio.run(main, backend=backend)
    finally:
        sys.setprofile(None)
