"""`Sweeper`: removes expired items at intervals while a store is open."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Protocol

import anyio

from ..bridge import DriverThread
from ..errors import StorageError


class Sweepable(Protocol):
    """A store."""

    async def asweep_ttl(self) -> int: ...


class Sweeper:
    """A thread that sweeps a store.

    A failed sweep is repeated at the next interval and not reported: expired items are never returned, removed or not,
    and callers of the store see its database's errors anyway.

    Args:
        store: held by a weak reference, so that a store that is never closed can still be collected.
        every: seconds between two sweeps.
    """

    def __init__(self, store: Sweepable, every: float) -> None:
        self._store = weakref.ref(store)
        self._every = every
        # A thread of its own and not a task of the opener's loop: that loop may end while the store remains open.
        self._driver = DriverThread(f"{type(store).__name__} sweeper", self._drive)
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def start(self) -> None:
        """Start the thread."""
        self._driver.start()

    async def stop(self) -> None:
        """Wait until a sweep that is running has ended, and the thread with it."""
        # The thread exists in the parent process only: nothing would ever end the wait.
        if self._driver.forked:
            return
        self._is_stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stopped.set)
        await self._driver.join()

    async def _drive(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not self._is_stopped:
            with anyio.move_on_after(self._every):
                await self._stopped.wait()
                return
            store = self._store()
            if store is None:
                return
            with contextlib.suppress(StorageError):
                await store.asweep_ttl()
            # The local reference would keep the store alive during the next interval.
            del store
