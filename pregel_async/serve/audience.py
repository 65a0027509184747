"""Who reads along with a run that is cancelled when its readers have left.

A reader that loses its connection comes back before the service has noticed: its new connection joins the run that the
old one started. So a run is cancelled when the last reader has left, and not when the first has.
"""

from __future__ import annotations

import anyio


class Audience:
    """The readers of an endpoint's runs, by thread."""

    def __init__(self) -> None:
        self._readers: dict[str, int] = {}
        self._changed: dict[str, anyio.Event] = {}

    def seat(self, thread_id: str) -> Seat:
        return Seat(self, thread_id)

    def come(self, thread_id: str) -> None:
        self._readers[thread_id] = self._readers.get(thread_id, 0) + 1

    def go(self, thread_id: str) -> None:
        left = self._readers[thread_id] - 1
        if left:
            self._readers[thread_id] = left
            return
        del self._readers[thread_id]
        changed = self._changed.pop(thread_id, None)
        if changed is not None:
            changed.set()

    def has_readers(self, thread_id: str) -> bool:
        return thread_id in self._readers

    async def nobody(self, thread_id: str) -> None:
        """Wait until a thread has no reader."""
        while self.has_readers(thread_id):
            await self._changed.setdefault(thread_id, anyio.Event()).wait()


class Seat:
    """One reader's place. Leave it, whatever happens."""

    def __init__(self, audience: Audience, thread_id: str) -> None:
        self._audience = audience
        self._thread_id = thread_id
        self._taken = False
        self._left = False

    def take(self) -> None:
        """Sit down; not if the reader has left before the run began."""
        if not (self._taken or self._left):
            self._taken = True
            self._audience.come(self._thread_id)

    def leave(self) -> None:
        self._left = True
        if self._taken:
            self._taken = False
            self._audience.go(self._thread_id)

    @property
    def others(self) -> bool:
        """Whether anybody else has a seat, when this one was left."""
        return self._audience.has_readers(self._thread_id)

    async def nobody(self) -> None:
        """Wait until nobody else has a seat either."""
        await self._audience.nobody(self._thread_id)
