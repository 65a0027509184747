"""The least that stores a superstep: msgspec's bytes, one row, one commit."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode


class Store(Protocol):
    """Stores the state after a superstep."""

    async def put(self, thread: str, step: int, state: object) -> None:
        """Store, and wait until it is stored."""

    def send(self, thread: str, step: int, state: object) -> None:
        """Store some time."""

    async def flush(self) -> None:
        """Wait until all that was sent is stored."""


class Bytes:
    """Encoded values in a dict."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], bytes] = {}

    async def put(self, thread: str, step: int, state: object) -> None:
        self.send(thread, step, state)

    def send(self, thread: str, step: int, state: object) -> None:
        self.rows[thread, step] = encode(state)

    async def flush(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the writer's thread: it inserts a row, or runs a query, and completes a future."""

    row: tuple[str, int, bytes] | None = None
    query: Callable[[sqlite3.Connection], Any] | None = None
    future: asyncio.Future[Any] | None = None


class Sqlite:
    """One writer's thread; jobs that arrive during a commit share the next one. synchronous=FULL: an fsync for each."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        db = sqlite3.connect(self.path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE c (thread TEXT, step INTEGER, v BLOB, PRIMARY KEY (thread, step)) WITHOUT ROWID")
        going_on = True
        while going_on:
            taken = [self.jobs.get()]
            while not self.jobs.empty():
                taken.append(self.jobs.get())
            batch = [job for job in taken if job is not None]
            going_on = len(batch) == len(taken)
            if rows := [job.row for job in batch if job.row is not None]:
                db.execute("BEGIN")
                db.executemany("INSERT INTO c VALUES (?, ?, ?)", rows)
                db.execute("COMMIT")
            found = [(job.future, job.query(db) if job.query else None) for job in batch if job.future is not None]
            if found:
                self.loop.call_soon_threadsafe(self._tell, found)
        db.close()

    @staticmethod
    def _tell(found: list[tuple[asyncio.Future[Any], Any]]) -> None:
        for future, result in found:
            future.set_result(result)

    async def put(self, thread: str, step: int, state: object) -> None:
        future = self.loop.create_future()
        self.jobs.put(Job(row=(thread, step, encode(state)), future=future))
        await future

    def send(self, thread: str, step: int, state: object) -> None:
        self.jobs.put(Job(row=(thread, step, encode(state))))

    async def flush(self) -> None:
        future = self.loop.create_future()
        self.jobs.put(Job(future=future))
        await future

    async def all(self, thread: str) -> list[Any]:
        """Return all stored values in order."""

        def query(db: sqlite3.Connection) -> list[bytes]:
            found = db.execute("SELECT v FROM c WHERE thread = ? ORDER BY step", (thread,))
            return [row[0] for row in found]

        future: asyncio.Future[list[bytes]] = self.loop.create_future()
        self.jobs.put(Job(query=query, future=future))
        return [decode(row) for row in await future]

    def close(self) -> None:
        self.jobs.put(None)
        self.thread.join()


class Postgres:
    """A pool of connections, with one row and one commit for each put."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    async def put(self, thread: str, step: int, state: object) -> None:
        async with self.pool.connection() as db:
            await db.execute("INSERT INTO c VALUES (%s, %s, %s)", (thread, step, encode(state)))

    def send(self, thread: str, step: int, state: object) -> None:
        raise NotImplementedError

    async def flush(self) -> None:
        pass
