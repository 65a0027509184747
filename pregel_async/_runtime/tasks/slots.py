"""Places for as many tasks as may run at once, and how a task lends its own while it waits for others.

A task that waits for one that it has called does not run meanwhile, so that its place is free for the other: without
that, `max_concurrency=1` would stop at the first call. Whoever is cancelled never waits for a place, since those that
hold one may be waiting for its end: it overdraws, and the next place that becomes free pays for it.
"""

from __future__ import annotations

from collections import deque

import anyio
import anyio.lowlevel


class ConcurrencyLimiter:
    """So many places, given in the order in which they were asked for."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[anyio.Event] = deque()

    async def acquire(self) -> bool:
        """Wait for a place. If the wait is cancelled, no place is held.

        Returns:
            True if none was free at first.
        """
        await anyio.lowlevel.checkpoint()
        if self._free > 0:
            self._free -= 1
            return False
        given = anyio.Event()
        self._waiting.append(given)
        try:
            await given.wait()
        except BaseException:
            if given.is_set():
                self.release()
            else:
                self._waiting.remove(given)
            raise
        return True

    def borrow(self) -> None:
        """Take a place whether or not one is free."""
        self._free -= 1

    def release(self) -> None:
        """Give a place to whoever waits longest."""
        self._free += 1
        if self._free > 0 and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()


class Unlimited:
    """A task's place where all tasks may run at once: it always has it."""

    __slots__ = ()

    is_limited = False
    is_held = True

    async def acquire(self) -> bool:
        """Wait for it, before the task runs. Return True if none was free at first."""
        return False

    def lend(self) -> None:
        """A coroutine of the task begins to wait for another task."""

    async def reacquire(self) -> None:
        """Such a coroutine continues. The last one waits to acquire the slot again; until then it stays lent."""

    def borrow(self) -> None:
        """Such a coroutine was cancelled."""

    def release(self) -> None:
        """The task has ended."""


UNLIMITED = Unlimited()


class Slot(Unlimited):
    """One task's place. Several of its coroutines may wait for others at once: it is lent while one of them does."""

    __slots__ = ("_holds", "_left", "_lenders", "_limiter", "_taking")

    is_limited = True

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter
        self._holds = False
        self._lenders = 0
        self._taking = False
        self._left = False

    @property
    def is_held(self) -> bool:  # type: ignore[override]  # of the other it never changes
        """Whether the task has it now, and has not lent it."""
        return self._holds

    async def acquire(self) -> bool:
        waited = await self._limiter.acquire()
        self._holds = True
        return waited

    def lend(self) -> None:
        self._lenders += 1
        if self._holds:
            self._holds = False
            self._limiter.release()

    async def reacquire(self) -> None:
        self._lenders -= 1
        if self._lenders or self._holds or self._taking or self._left:
            return
        self._taking = True
        try:
            await self._limiter.acquire()
        except BaseException:
            self._limiter.borrow()
            raise
        finally:
            self._taking = False
            self._keep()

    def borrow(self) -> None:
        self._lenders -= 1
        if not (self._lenders or self._holds or self._taking or self._left):
            self._limiter.borrow()
            self._keep()

    def _keep(self) -> None:
        """It is the task's again, unless that has ended meanwhile, or waits again."""
        self._holds = not (self._lenders or self._left)
        if not self._holds:
            self._limiter.release()

    def release(self) -> None:
        self._left = True
        if self._holds:
            self._holds = False
            self._limiter.release()
