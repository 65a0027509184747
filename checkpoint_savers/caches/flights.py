"""`Flights`: of several callers that want the same result at the same time, one computes it, and the others wait.

A *flight* is one running computation. A caller that finds none for its key starts one, and leads it. When it lands with
a value, all waiting callers take that value. When it lands without (the leader failed, was cancelled, or has nothing to
share), all of them look again, and the first leads the next flight. Handing the lead to a certain waiter would save the
others that look. But that waiter may be cancelled meanwhile, or belong to an event loop that is busy or will never run
again, and all others would wait for it. So no waiter is appointed, and the loss of one blocks no other.

Callers may be in any threads and on any event loops. Shared state is behind a lock that is held for microseconds; each
caller waits for an event of its own loop, which the leader has set there.

No caller waits for itself: a leader that requests, at whatever depth, what depends on its own flight computes it alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Final

import anyio

from ..bridge import Waiter, loop_scheduler, wake

Compute = Callable[[], Awaitable[bytes | None]]
"""Computes a value; returns None if there is nothing to share."""


class _Flight:
    """A running computation.

    Attributes:
        value: the value with which it landed.
        waiters: callers to wake, in the order in which they came.
        needs: flights for which a part of this computation waits.
    """

    __slots__ = ("needs", "value", "waiters")

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.waiters: dict[anyio.Event, Waiter] = {}
        self.needs: list[_Flight] = []


_LEADING: Final[ContextVar[tuple[_Flight, ...]]] = ContextVar("_LEADING", default=())
"""The flights that the running code is part of, outermost first."""

_LOCK: Final = threading.Lock()
"""Guards all flights of the process: a flight of one cache may wait for one of another cache, and the search for cycles
has to see both."""


class Flights:
    """The running computations of one cache. `len()` returns their number."""

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Flight] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    async def share(self, key: Hashable, compute: Compute) -> tuple[bytes | None, bool]:
        """Return the value of a key, computed once for all callers that request it at the same time.

            async def compute() -> bytes | None:
                found = await cache.aget([key])         # the flight before this one may have stored it
                if key not in found:
                    ...
                    await cache.aset({key: (value, ttl)})

            value, led = await cache.flights.share(key, compute)

        Look the key up inside `compute`, as here, whether or not it was looked up before: between a lookup outside and
        this call another flight may have landed, and the value would be computed twice.

        An exception of `compute` is raised to its own caller alone; a caller that is cancelled while it waits does not
        affect the others. Callers should hold nothing that the leader may wait for (a slot of a limiter, for example):
        acquire it inside `compute`.

        Args:
            key: identifies the result.
            compute: computes it, if this call leads.

        Returns:
            The value, and True if this call led, that is, ran its own `compute`. Only then may the value be None.

        Raises:
            Exception: what this call's own `compute` raises.
        """
        led = _LEADING.get()
        while True:
            with _LOCK:
                flight = self._under_way.get(key)
                if flight is None:
                    flight = self._under_way[key] = _Flight()
                    break
                # Checked under the same lock in which `needs` is extended: two flights that begin to wait for each
                # other cannot both pass the check.
                if _would_deadlock(flight, led):
                    flight = None
                    break
                landed = anyio.Event()
                flight.waiters[landed] = Waiter(loop_scheduler(), landed.set)
                for mine in led:
                    mine.needs.append(flight)
            try:
                await landed.wait()
            finally:
                with _LOCK:
                    # Also after a cancellation: a waiter that is gone must not be woken, and its flight no longer
                    # depends on this one.
                    flight.waiters.pop(landed, None)
                    for mine in led:
                        mine.needs.remove(flight)
            if flight.value is not None:
                return flight.value, False
        if flight is None:
            return await compute(), True
        return await self._lead(key, flight, compute), True

    async def _lead(self, key: Hashable, flight: _Flight, compute: Compute) -> bytes | None:
        before = _LEADING.set((*_LEADING.get(), flight))
        try:
            flight.value = await compute()
            return flight.value
        finally:
            with contextlib.suppress(ValueError):  # closed in another context, as its loop is gone
                _LEADING.reset(before)
            with _LOCK:
                # Removed before the waiters are woken: one that finds no value must find no flight either, to lead the
                # next.
                del self._under_way[key]
                waiters = list(flight.waiters.values())
            wake(waiters)


def _would_deadlock(flight: _Flight, led: tuple[_Flight, ...]) -> bool:
    """Return True if a flight is one of those led, or waits for one of them, directly or through others."""
    todo, seen = [flight], set[_Flight]()
    while todo:
        one = todo.pop()
        if one in led:
            return True
        if one not in seen:
            seen.add(one)
            todo.extend(one.needs)
    return False
