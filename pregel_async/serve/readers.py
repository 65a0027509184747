"""Who reads along with a run that is cancelled when its readers have left.

A reader that loses its connection comes back before the service has noticed: its new connection joins the run that the
old one started. So a run is cancelled when the last reader has left, and not when the first has.
"""

from __future__ import annotations

import anyio


class ReaderRegistry:
    """The readers of an endpoint's runs, by thread."""

    def __init__(self) -> None:
        self._readers: dict[str, int] = {}
        self._unread: dict[str, anyio.Event] = {}

    def new_registration(self, thread_id: str) -> ReaderRegistration:
        return ReaderRegistration(self, thread_id)

    def add(self, thread_id: str) -> None:
        self._readers[thread_id] = self._readers.get(thread_id, 0) + 1

    def remove(self, thread_id: str) -> None:
        remaining = self._readers[thread_id] - 1
        if remaining:
            self._readers[thread_id] = remaining
            return
        del self._readers[thread_id]
        unread = self._unread.pop(thread_id, None)
        if unread is not None:
            unread.set()

    def has_readers(self, thread_id: str) -> bool:
        return thread_id in self._readers

    async def wait_until_unread(self, thread_id: str) -> None:
        """Wait until a thread has no reader."""
        while self.has_readers(thread_id):
            await self._unread.setdefault(thread_id, anyio.Event()).wait()


class ReaderRegistration:
    """One reader's place. Leave it, whatever happens."""

    def __init__(self, registry: ReaderRegistry, thread_id: str) -> None:
        self._registry = registry
        self._thread_id = thread_id
        self._registered = False
        self._closed = False

    def register(self) -> None:
        """Sit down; not if the reader has left before the run began."""
        if not (self._registered or self._closed):
            self._registered = True
            self._registry.add(self._thread_id)

    def unregister(self) -> None:
        self._closed = True
        if self._registered:
            self._registered = False
            self._registry.remove(self._thread_id)

    @property
    def has_others(self) -> bool:
        """Whether anybody else has a seat, when this one was left."""
        return self._registry.has_readers(self._thread_id)

    async def wait_until_unread(self) -> None:
        """Wait until nobody else has a seat either."""
        await self._registry.wait_until_unread(self._thread_id)
