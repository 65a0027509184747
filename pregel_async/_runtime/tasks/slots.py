"""Slots that limit how many tasks run at once, and how a waiting task lends its slot to others.

A task that waits for a called task lends its slot: otherwise `max_concurrency=1` would deadlock at the first call. A
cancelled task never waits for a slot, because the tasks that hold one may be waiting for its end. It borrows a slot
beyond the limit, and the next released slot pays it back.
"""

from __future__ import annotations

from collections import deque

import anyio
import anyio.lowlevel


class ConcurrencyLimiter:
    """A number of slots, granted in the order of the requests."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[anyio.Event] = deque()

    async def acquire(self) -> bool:
        """Acquire a slot. If cancelled, no slot is held.

        Returns:
            True if no slot was free at first.
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
            # The grant and the cancellation may come in the same turn of the loop: then the slot goes to the next task.
            if granted.is_set():
                self.release()
            else:
                self._waiting.remove(granted)
            raise
        return True

    def borrow(self) -> None:
        """Take a slot even if none is free."""
        self._free -= 1  # below zero, it is the number of slots that are owed

    def release(self) -> None:
        """Return a slot, and grant it to the task that has waited longest."""
        # Granted here, and not when that task wakes: otherwise a task that comes in between would overtake it.
        self._free += 1
        if self._free > 0 and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()


class Unlimited:
    """A task's slot if `max_concurrency` is not set: the task always has it."""

    __slots__ = ()

    is_limited = False
    is_held = True

    async def acquire(self) -> bool:
        """Acquire the slot before the task runs. Return True if none was free at first."""
        return False

    def lend(self) -> None:
        """Lend the slot, because a coroutine of the task begins to wait for another task."""

    async def reacquire(self) -> None:
        """Acquire a lent slot again, before such a coroutine continues. Only the last of them waits for the slot."""

    def borrow(self) -> None:
        """Take a lent slot back without waiting, because such a coroutine was cancelled."""

    def release(self) -> None:
        """Return the slot, because the task has ended."""


UNLIMITED = Unlimited()


class Slot(Unlimited):
    """A task's slot of a limiter. It is lent while at least one of the task's coroutines waits for another task."""

    __slots__ = ("_has_ended", "_is_held", "_is_reacquiring", "_lenders", "_limiter")

    is_limited = True

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter
        self._is_held = False
        self._lenders = 0
        self._is_reacquiring = False
        self._has_ended = False

    @property
    def is_held(self) -> bool:  # type: ignore[override]  # a constant in the base class
        """True if the task has its slot, and has not lent it."""
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
        # Other coroutines still wait, or one of them acquires the slot for all: the task runs on without waiting.
        if self._lenders or self._is_held or self._is_reacquiring or self._has_ended:
            return
        self._is_reacquiring = True
        try:
            await self._limiter.acquire()
        except BaseException:
            self._limiter.borrow()  # a cancelled task continues without a wait; see the module's docstring
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
        """Keep a slot that was just acquired, unless the task has ended meanwhile, or waits again."""
        self._is_held = not (self._lenders or self._has_ended)
        if not self._is_held:
            self._limiter.release()

    def release(self) -> None:
        self._has_ended = True
        if self._is_held:
            self._is_held = False
            self._limiter.release()
