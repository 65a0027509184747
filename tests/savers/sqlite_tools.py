"""Helpers for the tests of SqliteSaver."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import anyio.lowlevel

from checkpoint_savers import SqliteSaver
from checkpoint_savers.sqlite.worker import Job

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""The environment of processes that import what the tests import."""


def saver_threads() -> list[threading.Thread]:
    """The running threads of savers, stores and caches: those of their drivers, and of aiosqlite, whose connection
    was a `Thread` itself up to 0.21."""
    return [
        one
        for one in threading.enumerate()
        if one.name.startswith("Sqlite") or "_connection_worker" in one.name or isinstance(one, aiosqlite.Connection)
    ]


async def execute(saver: SqliteSaver, work: Callable[[sqlite3.Cursor], Any], *, writes: bool = False) -> Any:
    assert saver._worker is not None
    return await saver._worker.run(Job(work, writes=writes))


@asynccontextmanager
async def held(saver: SqliteSaver, *, writes: bool = False) -> AsyncIterator[threading.Event]:
    """Keep the connection's thread inside a transaction until the event is set; leaving the block sets it."""
    inside, go = threading.Event(), threading.Event()

    def work(db: sqlite3.Cursor) -> None:
        inside.set()
        go.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: execute(saver, work, writes=writes))
        while not inside.is_set():
            await anyio.lowlevel.checkpoint()
        try:
            yield go
        finally:
            go.set()


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's write lock from another connection."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()
