"""Open each kind of saver as often as a test needs, on the same threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from tests.helpers.postgres_tools import reused_schema, unsynced

Open = Callable[[], AbstractAsyncContextManager[BaseCheckpointSaver]]

SAVERS = ["memory", "sqlite", "postgres"]


@contextmanager
def opener(kind: str, path: Path) -> Iterator[Open]:
    """Return a function that opens a saver of a kind as a starting process does. Threads in memory last for the
    test."""
    if kind == "memory":
        kept = InMemorySaver()

        @asynccontextmanager
        async def in_memory() -> AsyncIterator[BaseCheckpointSaver]:
            yield kept

        yield in_memory
    elif kind == "sqlite":
        yield lambda: SqliteSaver(path / "threads.db", synchronous="NORMAL")
    else:
        with reused_schema() as schema:
            yield lambda: PostgresSaver(unsynced(), schema=schema, setup=False)


@asynccontextmanager
async def opened(kind: str, path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    """Open a saver of a kind for one test."""
    with opener(kind, path) as open_saver:
        async with open_saver() as saver:
            yield saver
