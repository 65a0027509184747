"""Get notified when threads are released: one connection that listens, for all callers of this process.

LISTEN belongs to a server session, which behind a transaction pooler is not the client's. So it is used only with a
direct connection. NOTIFY is sent by the transaction that releases a thread, and works through poolers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

import anyio
import psycopg

from ..bridge import loop_scheduler
from .connections import Source
from .driver import Driver
from .failures import UnreachableError
from .writing import CHANNEL

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect: the first pause, and the longest."""

Callback = Callable[[], None]


class Listener:
    """The callers that wait for threads, and the connection that is notified for them.

    The connection is made when a caller first waits, and again if it breaks. Callers also poll.

    Args:
        source: makes the connection.
        conninfo: of a direct connection.
    """

    def __init__(self, source: Source, conninfo: str) -> None:
        self._source = source
        self._conninfo = conninfo
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Callback]] = {}  # by NOTIFY payload
        self._is_started = False
        self._scope: anyio.CancelScope | None = None

    async def wait_for_release(self, payload: str, driver: Driver) -> None:
        """Wait until a payload is received, or may have been missed.

        Args:
            payload: what `notify_payload` makes of the thread.
            driver: the open saver's driver.

        Raises:
            SaverClosedError: the saver is not open.
        """
        event, post = anyio.Event(), loop_scheduler()

        def callback() -> None:
            with contextlib.suppress(RuntimeError):  # the waiting caller's loop has ended
                post(event.set)

        with self._lock:
            # Registered before LISTEN is certain to run: a notification in between wakes the caller, who then polls;
            # the other order would miss it.
            self._waiting.setdefault(payload, set()).add(callback)
        try:
            driver.start_in_background(self._serve_once)
            await event.wait()
        finally:
            with self._lock:
                callbacks = self._waiting[payload]
                callbacks.discard(callback)
                if not callbacks:
                    del self._waiting[payload]

    # The methods below run on the driver's loop, so `_is_started` and `_scope` need no lock.

    def stop(self) -> None:
        """Stop listening, before the driver closes."""
        # Also if it never started: a caller that comes during closing must not start it.
        self._is_started = True
        if self._scope is not None:
            self._scope.cancel()

    async def _serve_once(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        with anyio.CancelScope() as self._scope:
            pause = FIRST_PAUSE
            while True:
                try:
                    async with await self._source.connect(self._conninfo) as connection:
                        await connection.execute(f"LISTEN {CHANNEL}".encode())
                        pause = FIRST_PAUSE
                        self._notify(None)  # wake all: notifications sent before LISTEN are lost
                        async for notify in connection.notifies():
                            self._notify(notify.payload)
                except (UnreachableError, psycopg.Error):
                    # Random, so that the processes of a restarted server do not all connect at the same moment.
                    await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    def _notify(self, payload: str | None) -> None:
        with self._lock:
            if payload is None:
                callbacks = [callback for each in self._waiting.values() for callback in each]
            else:
                callbacks = list(self._waiting.get(payload, ()))
        # Outside of the lock: a callback calls into another event loop.
        for callback in callbacks:
            callback()
