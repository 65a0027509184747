"""`Flights`: of many callers who want the same result at the same time, one computes it, and the others wait for it.

A *flight* is one computation under way. Who finds none for its key begins one, and leads it. When it lands with a
value, all who wait take that. When it lands without (the leader failed, was cancelled, or has nothing to share), all
who wait look again, and the first of them leads the next one. Handing the lead over to a certain waiter would save the
others that look; but that one may be cancelled meanwhile, or belong to an event loop that is busy, or will never run
again, and everybody would wait for it. So nobody is appointed, and nobody can be missed.

Callers may be in any threads and on any event loops. What they share is behind a lock, held for microseconds; each
waits for an event of its own loop, which the leader has set there.

Nobody waits for itself: a leader that asks, at whatever depth, for what waits for its own flight computes that alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Final

import anyio

from ..bridge import Waiter, here, tell

Compute = Callable[[], Awaitable[bytes | None]]
"""Makes a value; None if there is nothing to share."""


class _Flight:
    """A computation under way.

    Attributes:
        value: what it landed with.
        waiters: who is to be told of it, in the order in which they came.
        needs: flights for which something waits that is part of this computation.
    """

    __slots__ = ("needs", "value", "waiters")

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.waiters: dict[anyio.Event, Waiter] = {}
        self.needs: list[_Flight] = []


_LEADING: Final[ContextVar[tuple[_Flight, ...]]] = ContextVar("_LEADING", default=())
"""The flights that the running code is part of, the outermost first."""

_LOCK: Final = threading.Lock()
"""Around all flights of the process, since those of one cache may wait for those of another."""


class Flights:
    """The computations under way of one cache. `len` says how many they are."""

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Flight] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    async def share(self, key: Hashable, compute: Compute) -> tuple[bytes | None, bool]:
        """The value of a key, computed by one of those who ask for it at the same time.

            async def compute() -> bytes | None:
                found = await cache.aget([key])         # the flight before this one may have stored it
                if key not in found:
                    ...
                    await cache.aset({key: (value, ttl)})

            value, led = await cache.flights.share(key, compute)

        Look the key up inside `compute`, as here, whether or not it was looked up before: between a lookup outside and
        this call another flight may have landed, and it would be computed twice.

        What `compute` raises goes to its own caller alone; a caller that is cancelled while it waits has no effect on
        the others. Whoever waits should hold nothing that the leader may be waiting for (a place among a limited number
        of tasks, say): take it inside `compute`.

        Returns:
            The value, and whether this call led: ran its own `compute`. Only then the value may be None.
        """
        led = _LEADING.get()
        while True:
            with _LOCK:
                flight = self._under_way.get(key)
                if flight is None:
                    flight = self._under_way[key] = _Flight()
                    break
                if _would_deadlock(flight, led):
                    flight = None
                    break
                landed = anyio.Event()
                flight.waiters[landed] = Waiter(here(), landed.set)
                for mine in led:
                    mine.needs.append(flight)
            try:
                await landed.wait()
            finally:
                with _LOCK:
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
            with contextlib.suppress(ValueError):  # closed from elsewhere, because its loop is gone
                _LEADING.reset(before)
            with _LOCK:
                del self._under_way[key]
                waiters = list(flight.waiters.values())
            tell(waiters)


def _would_deadlock(flight: _Flight, led: tuple[_Flight, ...]) -> bool:
    """Whether a flight is one of those led, or waits, directly or through others, for one of them to land."""
    todo, seen = [flight], set[_Flight]()
    while todo:
        one = todo.pop()
        if one in led:
            return True
        if one not in seen:
            seen.add(one)
            todo.extend(one.needs)
    return False
