"""Follow a run from any process: wait until it begins, read its stored events, and wait for more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from .._api.following import follow
from .._runtime.streaming.parts import Cursor
from ..parts import StreamPart
from ..types import StreamMode
from .opened import OpenService


@asynccontextmanager
async def follow_run(
    opened: OpenService,
    run_id: str,
    after: str | None,
    stream_mode: StreamMode | Sequence[StreamMode],
    subgraphs: bool,
) -> AsyncGenerator[AsyncIterator[StreamPart], None]:
    """See `RunService.follow`."""
    row = await opened.row(run_id)
    cursor = None if after is None else Cursor.parse(after)
    if cursor is None:
        row = await opened.watcher.until(run_id, lambda row: row.begun or not row.is_open)
    if cursor is None and not row.begun:  # it ended before it began, and has no events
        yield _nothing()
        return
    graph = opened.graph(row.request.assistant)._definition
    with opened.runs.watch(row.thread_id) as changes:
        seen = 0

        async def wait() -> Cursor | None:
            nonlocal seen
            seen = await opened.runs.wait_for_thread(changes, seen)
            row = await opened.row(run_id)
            return None if row.is_open else Cursor.parse(row.last_event)

        stream = follow(
            graph,
            row.thread_id,
            Cursor.parse(row.first_event) if cursor is None else cursor,
            wait,
            run_id=run_id,
            modes=stream_mode,
            subgraphs=subgraphs,
        )
        async with stream as parts:
            yield parts


async def _nothing() -> AsyncIterator[StreamPart]:
    return
    yield
