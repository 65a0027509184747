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
    """So many places, granted in the order in which they were asked for."""

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
        granted = anyio.Event()
        self._waiting.append(granted)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.release()
            else:
                self._waiting.remove(granted)
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

    __slots__ = ("_has_ended", "_is_held", "_is_reacquiring", "_lenders", "_limiter")

    is_limited = True

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter
        self._is_held = False
        self._lenders = 0
        self._is_reacquiring = False
        self._has_ended = False

    @property
    def is_held(self) -> bool:  # type: ignore[override]  # of the other it never changes
        """Whether the task has it now, and has not lent it."""
        return self._is_held

    async def acquire(self) -> bool:
        waited = await self._limiter.acquire()
        self._is_held = True
        return waited

    def lend(self) -> None:
        self._lenders += 1
        if self._is_held:
            self._is_held = False
            self._limiter.release()

    async def reacquire(self) -> None:
        self._lenders -= 1
        if self._lenders or self._is_held or self._is_reacquiring or self._has_ended:
            return
        self._is_reacquiring = True
        try:
            await self._limiter.acquire()
        except BaseException:
            self._limiter.borrow()
            raise
        finally:
            self._is_reacquiring = False
            self._keep_or_release()

    def borrow(self) -> None:
        self._lenders -= 1
        if not (self._lenders or self._is_held or self._is_reacquiring or self._has_ended):
            self._limiter.borrow()
            self._keep_or_release()

    def _keep_or_release(self) -> None:
        """It is the task's again, unless that has ended meanwhile, or waits again."""
        self._is_held = not (self._lenders or self._has_ended)
        if not self._is_held:
            self._limiter.release()

    def release(self) -> None:
        self._has_ended = True
        if self._is_held:
            self._is_held = False
            self._limiter.release()
