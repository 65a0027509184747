"""`Sweeper`: removes expired items from time to time, as long as a store is open."""

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

    A sweep that fails is tried again the next time, and nobody is told: what has expired is not there for anybody,
    removed or not, and whoever uses the store hears of what is wrong with its database.

    Args:
        store: is not held: one that nobody closes can still be collected.
        every: seconds between two sweeps.
    """

    def __init__(self, store: Sweepable, every: float) -> None:
        self._store = weakref.ref(store)
        self._every = every
        self._driver = DriverThread(f"{type(store).__name__} sweeper", self._drive)
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def start(self) -> None:
        self._driver.start()

    async def stop(self) -> None:
        """Wait until a sweep that is under way has ended, and the thread is gone."""
        if self._driver.forked:
            return
        self._is_stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
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
            del store
