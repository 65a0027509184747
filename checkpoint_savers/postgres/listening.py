"""Get notified when threads are released or accepted runs change: one connection that listens, for the whole process.

LISTEN belongs to a server session, which behind a transaction pooler is not the client's. So it is used only with a
direct connection. NOTIFY works through poolers. It is sent by the transaction that releases a thread. Changes of runs
are announced after their transactions: the server holds one lock from a NOTIFY until its transaction is on disk, so
that all transactions that notify wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import psycopg
import psycopg_pool

from ..bridge import loop_scheduler
from .connections import PostgresCursor, Source
from .driver import Driver
from .failures import UnreachableError
from .writing import CHANNEL

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect: the first pause, and the longest."""

LISTEN_TIMEOUT = 5.0
"""Seconds for which the statement LISTEN may delay the end of a saver that is being closed."""

ANNOUNCE_EVERY = 0.02
"""Seconds between two announcements of changed runs by one process."""

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
        self._own: set[tuple[int, str]] = set()

    def expect(self, pid: int, payload: str) -> None:
        """Ignore a payload when it is next received from a session: this process sends it, and has woken its callers.

        Args:
            pid: the process of the session.
            payload: what is sent.
        """
        self._own.add((pid, payload))

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
            self.unsubscribe(payload, callback)

    def subscribe(self, payload: str, callback: Callback, driver: Driver) -> None:
        """Call a function whenever a payload is received, or may have been missed.

        Args:
            payload: what is sent.
            callback: called on the driver's loop. Subscribing it again changes nothing.
            driver: the open saver's driver.

        Raises:
            SaverClosedError: the saver is not open.
        """
        with self._lock:
            self._waiting.setdefault(payload, set()).add(callback)
        driver.start_in_background(self._serve_once)

    def unsubscribe(self, payload: str, callback: Callback) -> None:
        """Undo `subscribe`.

        Args:
            payload: what is sent.
            callback: the function.
        """
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
                        # Closing waits for this statement: to cancel it takes another request to the server, which
                        # takes as long, and psycopg logs a warning.
                        with anyio.move_on_after(LISTEN_TIMEOUT, shield=True):
                            await connection.execute(f"LISTEN {CHANNEL}".encode())
                        pause = FIRST_PAUSE
                        self._own.clear()
                        self._notify(None)  # wake all: notifications sent before LISTEN are lost
                        async for notify in connection.notifies():
                            sent = notify.pid, notify.payload
                            if sent in self._own:
                                self._own.discard(sent)
                            else:
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


class Announcer:
    """Sends NOTIFY for changes that were committed, at most once in `ANNOUNCE_EVERY` seconds unless it is urgent.

    An announcement may be lost, if the process or the connection ends before it is sent: listeners also poll.

    Args:
        source: of connections.
        listener: of this process, which need not be notified; None if there is none.
    """

    def __init__(self, source: Source, listener: Listener | None) -> None:
        self._source = source
        self._listener = listener
        self._lock = threading.Lock()
        self._payloads: set[str] = set()
        self._is_running = False

    def announce(self, payloads: Sequence[str], driver: Driver, *, urgent: bool = False) -> None:
        """Send payloads soon and together, from any thread.

        Args:
            payloads: what to send.
            driver: the open saver's driver.
            urgent: send them now, however short ago others were sent.

        Raises:
            SaverClosedError: the saver is not open.
        """
        with self._lock:
            self._payloads.update(payloads)
            was_running, self._is_running = self._is_running, True
        if was_running and not urgent:
            return
        try:
            driver.start_in_background(self._send_waiting if was_running else self._send)
        except BaseException:
            if not was_running:
                with self._lock:
                    self._is_running = False
            raise

    async def _send(self) -> None:
        while True:
            with self._lock:
                if not self._payloads:
                    self._is_running = False
                    return
            await self._send_waiting()
            await asyncio.sleep(ANNOUNCE_EVERY)

    async def _send_waiting(self) -> None:
        with self._lock:
            payloads, self._payloads = self._payloads, set()
        if payloads:
            with contextlib.suppress(UnreachableError, psycopg.Error, psycopg_pool.PoolClosed):
                await self._source.run_on_connection(partial(self._notify_all, payloads=list(payloads)))

    async def _notify_all(self, cursor: PostgresCursor, payloads: list[str]) -> None:
        if self._listener is not None:
            # Before they are sent: another connection receives them, perhaps before this one has its answer.
            for payload in payloads:
                self._listener.expect(cursor.connection.info.backend_pid, payload)
        await cursor.execute(b"SELECT pg_notify(%b, p) FROM unnest(%b::text[]) AS p", (CHANNEL, payloads))
