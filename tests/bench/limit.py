"""The limit: no framework. A task group per superstep, a dict merged after the barrier, one row and one commit."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec
from workloads import Case, increment, total, work

encode = msgspec.msgpack.Encoder().encode


class Store:
    """One writer thread; commits that pile up while one is running are taken as one group. synchronous=FULL."""

    def __init__(self, path: str) -> None:
        self.jobs: queue.SimpleQueue[tuple[tuple[str, int, bytes], asyncio.Future[None]] | None] = queue.SimpleQueue()
        self.loop = asyncio.get_running_loop()
        self.thread = threading.Thread(target=self.work, args=(path,), daemon=True)
        self.thread.start()

    def work(self, path: str) -> None:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE c (thread TEXT, step INTEGER, v BLOB, PRIMARY KEY (thread, step)) WITHOUT ROWID")
        while (job := self.jobs.get()) is not None:
            batch = [job]
            while not self.jobs.empty() and (more := self.jobs.get()) is not None:
                batch.append(more)
            db.execute("BEGIN")
            db.executemany("INSERT INTO c VALUES (?, ?, ?)", [row for row, _ in batch])
            db.execute("COMMIT")
            for _, future in batch:
                self.loop.call_soon_threadsafe(future.set_result, None)
        db.close()

    async def put(self, thread: str, step: int, state: object) -> None:
        future = self.loop.create_future()
        self.jobs.put(((thread, step, encode(state)), future))
        await future


class Limit:
    """Bare code that does what the graphs of `workloads.Engine` do."""

    def __init__(self, name: str, stack: AsyncExitStack) -> None:
        self.stack = stack

    async def superstep(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        results: list[Any] = [None] * len(calls)

        async def one(place: int) -> None:
            results[place] = await calls[place]()

        async with anyio.create_task_group() as group:
            for place in range(len(calls)):
                group.start_soon(one, place)
        return results

    async def chain(self, n: int, saver: str | None = None) -> Case:
        store = None
        if saver == "sqlite":
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            store = Store(str(Path(folder) / "threads.db"))
            self.stack.callback(store.jobs.put, None)

        async def run() -> dict[str, int]:
            state, thread = {"x": 0}, uuid.uuid4().hex
            for step in range(n):
                (update,) = await self.superstep([lambda: increment(state)])
                state.update(update)
                if store is not None:
                    await store.put(thread, step, state)
                elif saver == "memory":
                    encode(state)
            return state

        return Case(run, n, lambda result: result["x"] == n)

    async def loop(self, n: int) -> Case:
        return await self.chain(n)

    async def fanout(self, n: int) -> Case:
        async def run() -> dict[str, Any]:
            state: dict[str, Any] = {"n": n, "out": []}
            for update in await self.superstep([lambda i=i: work({"i": i}) for i in range(n)]):  # bound now
                state["out"].extend(update["out"])
            state.update(await total(state))
            return state

        expected = n * (n - 1) // 2
        return Case(run, n, lambda result: result["total"] == expected)
