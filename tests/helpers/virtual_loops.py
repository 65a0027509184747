"""A virtual clock: when all tasks sleep, time jumps to the sleeper that is due first."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import anyio.lowlevel

from pregel_async._runtime.platform.environment import SystemEnvironment

HEARTBEAT = 10.0
"""Seconds between two renewals of a lease; nothing in the tests waits that long for another reason."""


class VirtualWorld(SystemEnvironment):
    """An environment in which time passes at once.

    Args:
        start: the initial time in unix seconds.
        jitter: the result of `jitter`.
        patience: the number of turns of the event loop that a sleeper waits for other tasks before time jumps.

    Attributes:
        time: seconds since the start.
        slept: the durations of all sleeps in seconds, in order, except those between a lease's heartbeats.
        held: called before each jump; time does not advance while it returns True.
    """

    def __init__(self, *, start: float = 4_000_000_000.0, jitter: float = 0.25, patience: int = 40) -> None:
        super().__init__()
        self.time = 0.0
        self.slept: list[float] = []
        self.held: Callable[[], bool] = lambda: False
        self._start = start
        self._jitter = jitter
        self._patience = patience
        self._due: list[float] = []
        self._random = random.Random(0)

    def now(self) -> float:
        return self._start + self.time

    def monotonic(self) -> float:
        return self.time

    def entropy(self) -> int:
        return self._random.getrandbits(62)

    def jitter(self) -> float:
        return self._jitter

    async def sleep(self, seconds: float) -> None:
        if seconds != HEARTBEAT:
            self.slept.append(seconds)
        due = self.time + seconds
        self._due.append(due)
        try:
            waited, since = 0, self.time
            while self.time < due:
                await anyio.lowlevel.checkpoint()
                waited = 0 if self.time != since or self.held() else waited + 1
                since = self.time
                if waited >= self._patience and due <= min(self._due):
                    self.time = due
        finally:
            self._due.remove(due)
        await anyio.lowlevel.checkpoint()
