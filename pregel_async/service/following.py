"""Follow a run or a thread from any process: read the stored events, and wait for more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio

from checkpoint_savers.codec import Codec
from checkpoint_savers.runs.changes import ChangeSignal
from checkpoint_savers.runs.queries import RunQuery
from checkpoint_savers.runs.rows import RunRow

from .._api.following import decoding_of, follow
from .._api.following import follow_thread as follow_log
from .._runtime.streaming.modes.mode import Coerce
from .._runtime.streaming.parts import Cursor, RawPart
from .._runtime.streaming.subscription import Subscription
from .._runtime.streaming.thread_log import NO_RUN, LogRun
from ..parts import StreamPart, ThreadPart
from ..types import StreamMode
from .early_parts import FOLLOWED_FOR, are_early
from .opened import OpenService

PAGE = 20
"""Number of runs that are read at once to find the one that had a thread under a lease."""


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
    notes = are_early(stream_mode, subgraphs=subgraphs)
    with opened.runs.watch(row.thread_id) as changes:
        seen = 0

        async def wait() -> Cursor | None:
            nonlocal seen
            seen = await _changed(opened, changes, seen)
            row = await opened.row(run_id)
            if notes:
                await opened.note_follower(row)
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


@asynccontextmanager
async def follow_thread(
    opened: OpenService,
    thread_id: str,
    after: str | None,
    stream_mode: StreamMode | Sequence[StreamMode],
    subgraphs: bool,
    *,
    ends: bool,
) -> AsyncGenerator[AsyncIterator[ThreadPart], None]:
    """See `RunService.follow_thread`."""
    cursor = Cursor("", 0, 0) if after is None else Cursor.parse(after)
    with opened.runs.watch(thread_id) as changes:
        notes = are_early(stream_mode, subgraphs=subgraphs)
        runs = _FollowedThread(opened, thread_id, changes, ends=ends, notes=notes)
        graph = next(iter(opened.graphs.values()))._definition
        stream = follow_log(graph, thread_id, cursor, runs, modes=stream_mode, subgraphs=subgraphs)
        async with stream as parts:
            yield parts


class _FollowedThread:
    """The runs of one thread; see `thread_log.ThreadRuns`.

    Args:
        opened: the open service.
        thread_id: the thread.
        changes: signals changes of the thread.
        ends: the log ends when all runs are over.
        notes: note in the rows of runs that they are followed.
    """

    def __init__(self, opened: OpenService, thread_id: str, changes: ChangeSignal, *, ends: bool, notes: bool) -> None:
        self._opened = opened
        self._thread_id = thread_id
        self._changes = changes
        self._ends = ends
        self._notes = notes
        self._seen = 0

    async def wait(self) -> None:
        self._seen = await _changed(self._opened, self._changes, self._seen)

    async def is_idle(self) -> bool:
        if not self._ends:
            return False
        thread = await self._opened.runs.get_thread(self._thread_id)
        return thread is None or thread.status != "busy"

    async def get(self, run_id: str) -> LogRun:
        row = await self._opened.runs.get_run(run_id)
        if row is None or row.thread_id != self._thread_id:
            return NO_RUN
        if self._notes:
            await self._opened.note_follower(row)
        return _log_run(row)

    async def at(self, epoch: int) -> LogRun:
        for run in await self._since(epoch):
            if run.first.epoch <= epoch and (not run.is_over or epoch <= run.last.epoch):
                return run
        return NO_RUN

    async def after(self, epoch: int) -> LogRun:
        later = [run for run in await self._since(epoch) if run.first.epoch > epoch]
        return min(later, key=lambda run: run.first.epoch, default=NO_RUN)

    async def _since(self, epoch: int) -> list[LogRun]:
        """Return the runs that have begun, from the one that had the thread under a lease on."""
        found: list[LogRun] = []
        query, after = RunQuery(thread_id=self._thread_id), None
        while True:
            page = await self._opened.runs.search_runs(query, limit=PAGE, after=after)
            runs = [_log_run(row) for row in page.items if row.first_event]
            found += runs
            after = page.next
            # Runs are listed as they were accepted, and some of a greater priority have begun earlier: hence a page.
            if after is None or (runs and all(run.first.epoch <= epoch for run in runs)):
                return found

    async def codec(self, run_id: str) -> tuple[Codec, Callable[[RawPart], Coerce | None]]:
        row = await self._opened.row(run_id)
        return decoding_of(self._opened.graph(row.request.assistant)._definition)

    def joinable(self) -> Sequence[Subscription]:
        graphs = self._opened.graphs.values()
        return [each for graph in graphs for each in graph._definition.live.joinable(self._thread_id)]


async def _changed(opened: OpenService, changes: ChangeSignal, seen: int) -> int:
    """Wait until a thread may have changed, or its follower's note is to be renewed. Return the next `seen`."""
    with anyio.move_on_after(FOLLOWED_FOR / 3):
        return await opened.runs.wait_for_thread(changes, seen)
    return changes.number


def _log_run(row: RunRow) -> LogRun:
    """Return a run as a thread's log shows it; `NO_RUN` if it has not begun."""
    if not row.first_event:
        return NO_RUN
    error = None if row.error is None else {"type": row.error.type, "message": row.error.message}
    return LogRun(
        run_id=row.run_id,
        first=Cursor.parse(row.first_event),
        last=Cursor.parse(row.last_event or row.first_event),
        is_over=not row.is_open,
        is_void=row.hidden,
        ending={"run_id": row.run_id, "status": row.status, "error": error, "rolled_back": row.hidden},
        ended_at=int(row.ended_at * 1000),
    )


async def _nothing() -> AsyncIterator[StreamPart]:
    return
    yield
