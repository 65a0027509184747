"""Hearing that a thread was given up: one connection that listens, for all who wait in this process.

LISTEN belongs to a session, which behind a transaction pooler is not the client's. So it is only done where a direct
connection is given. NOTIFY is sent by whoever gives a thread up, in the same transaction, and works through poolers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

import anyio
import psycopg

from ..bridge import here
from .connections import Source
from .driver import Driver
from .failures import UnreachableError
from .writing import CHANNEL

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect."""

Callback = Callable[[], None]


class Listener:
    """Those who wait for a thread, and the connection that hears for them.

    The connection is made when somebody first waits, and again when it breaks. Whoever waits looks for himself, too.

    Args:
        source: makes the connection.
        conninfo: of a direct connection.
    """

    def __init__(self, source: Source, conninfo: str) -> None:
        self._source = source
        self._conninfo = conninfo
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Callback]] = {}  # by what NOTIFY says of a thread
        self._is_started = False
        self._scope: anyio.CancelScope | None = None

    async def wait_for_release(self, payload: str, driver: Driver) -> None:
        """Return when something is said, or may have been.

        Raises:
            SaverClosedError
        """
        event, post = anyio.Event(), here()

        def callback() -> None:
            with contextlib.suppress(RuntimeError):  # the loop of whoever waits has ended
                post(event.set)

        with self._lock:
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

    # ---- on the driver's loop --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing is heard any more."""
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
                        self._notify(None)  # what was said before is not heard
                        async for notify in connection.notifies():
                            self._notify(notify.payload)
                except (UnreachableError, psycopg.Error):
                    await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    def _notify(self, payload: str | None) -> None:
        with self._lock:
            if payload is None:
                callbacks = [callback for each in self._waiting.values() for callback in each]
            else:
                callbacks = list(self._waiting.get(payload, ()))
        for callback in callbacks:
            callback()
