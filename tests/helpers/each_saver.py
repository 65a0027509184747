"""Each saver, for the tests of what runs store: opened as often as a test likes, on the same threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from tests.helpers.postgres_tools import conninfo, made_schema

Open = Callable[[], AbstractAsyncContextManager[BaseCheckpointSaver]]

SAVERS = ["memory", "sqlite", "postgres"]


@contextmanager
def opener(kind: str, path: Path) -> Iterator[Open]:
    """What opens a saver of a kind, as a process does that starts. Threads in memory stay while the test runs."""
    if kind == "memory":
        kept = InMemorySaver()

        @asynccontextmanager
        async def in_memory() -> AsyncIterator[BaseCheckpointSaver]:
            yield kept

        yield in_memory
    elif kind == "sqlite":
        yield lambda: SqliteSaver(path / "threads.db", synchronous="NORMAL")
    else:
        with made_schema() as schema:
            yield lambda: PostgresSaver(conninfo(), schema=schema, setup=False)
