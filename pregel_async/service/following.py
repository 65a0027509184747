"""Follow a run from any process: wait until it begins, read its stored events, and wait for more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from .._api.following import follow
from .._runtime.streaming.parts import Cursor
from ..parts import StreamPart
from ..types import StreamMode
from .opened import OpenService

PAUSE = 0.01
"""Seconds between two looks of a follower at the events of a run of another process."""


@asynccontextmanager
async def follow_run(
    opened: OpenService,
    run_id: str,
    after: str | None,
    stream_mode: StreamMode | Sequence[StreamMode],
    subgraphs: bool,
) -> AsyncGenerator[AsyncIterator[StreamPart], None]:
    """See `RunService.follow`."""
    seen = 0

    async def wait() -> Cursor | None:
        nonlocal seen
        if seen:
            await anyio.sleep(PAUSE)
        seen = await opened.runs.wait_for_change(seen)
        row = await opened.row(run_id)
        return None if row.is_open else Cursor.parse(row.last_event)

    row = await opened.row(run_id)
    cursor = None if after is None else Cursor.parse(after)
    if cursor is None:
        row = await opened.watcher.until(run_id, lambda row: row.begun or not row.is_open)
    if cursor is None and not row.begun:  # it ended before it began, and has no events
        yield _nothing()
        return
    graph = opened.graph(row.request.assistant)._definition
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
