"""Count the readers of each thread's run, to cancel the run when the last one has disconnected.

A client that loses its connection reconnects before the service has noticed the loss: its new connection joins the run
that the old one started. Cancelling the run when the old connection ends would cancel it under the new reader.
"""

from __future__ import annotations

import anyio


class ReaderRegistry:
    """The number of readers of an endpoint's runs, by thread."""

    def __init__(self) -> None:
        self._readers: dict[str, int] = {}
        self._unread: dict[str, anyio.Event] = {}

    def new_registration(self, thread_id: str) -> ReaderRegistration:
        """Return a registration for one reader of a thread's run. It does not count until `register()` is called.

        Args:
            thread_id: the thread that the reader's run belongs to.

        Returns:
            The registration. Its owner calls `unregister()` in the end.
        """
        return ReaderRegistration(self, thread_id)

    def add(self, thread_id: str) -> None:
        """Count one more reader of a thread.

        Args:
            thread_id: the thread.
        """
        self._readers[thread_id] = self._readers.get(thread_id, 0) + 1

    def remove(self, thread_id: str) -> None:
        """Count one reader of a thread less, and wake `wait_until_unread` if it was the last.

        Args:
            thread_id: a thread that has a reader.
        """
        remaining = self._readers[thread_id] - 1
        if remaining:
            self._readers[thread_id] = remaining
            return
        # No entry for a thread without readers: a service sees many threads, and each would leave an entry behind.
        del self._readers[thread_id]
        unread = self._unread.pop(thread_id, None)
        if unread is not None:
            unread.set()

    def has_readers(self, thread_id: str) -> bool:
        """Return True if a thread has a reader.

        Args:
            thread_id: the thread.

        Returns:
            True if at least one reader is counted.
        """
        return thread_id in self._readers

    async def wait_until_unread(self, thread_id: str) -> None:
        """Wait until a thread has no reader.

        Args:
            thread_id: the thread.
        """
        # A new reader may register between the event and this task's turn: check again after waking.
        while self.has_readers(thread_id):
            await self._unread.setdefault(thread_id, anyio.Event()).wait()


class ReaderRegistration:
    """The registration of one reader of a thread's run.

    `unregister()` must be called in the end, also after a failure: a reader that stays counted keeps runs of the thread
    from being cancelled.

    Args:
        registry: counts the readers.
        thread_id: the thread that the reader's run belongs to.
    """

    def __init__(self, registry: ReaderRegistry, thread_id: str) -> None:
        self._registry = registry
        self._thread_id = thread_id
        self._registered = False
        self._closed = False

    def register(self) -> None:
        """Count this reader, unless it is counted already or `unregister()` was called before.

        The run may begin after its client has disconnected. Counting that client would keep the run alive without a
        reader.
        """
        if not (self._registered or self._closed):
            self._registered = True
            self._registry.add(self._thread_id)

    def unregister(self) -> None:
        """Stop counting this reader, for good. Calling it again does nothing."""
        self._closed = True
        if self._registered:
            self._registered = False
            self._registry.remove(self._thread_id)

    @property
    def has_others(self) -> bool:
        """True if the thread has a reader. Read it after `unregister()`: then only other readers are counted."""
        return self._registry.has_readers(self._thread_id)

    async def wait_until_unread(self) -> None:
        """Wait until the thread has no reader. Call it after `unregister()`."""
        await self._registry.wait_until_unread(self._thread_id)
