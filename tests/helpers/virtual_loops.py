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
        start: unix seconds at the beginning.
        jitter: what `jitter` gives.
        patience: for how many turns of the event loop a sleeper lets the others go on before the time jumps.

    Attributes:
        time: seconds since the beginning.
        slept: all times that were waited for, in seconds, in order; but for those between a lease's heartbeats.
        held: asked before each jump whether the time stands still.
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
