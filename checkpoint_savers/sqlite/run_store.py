"""`SqliteRuns`: accepted runs in the saver's file, on the saver's connection."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar, TypeVarTuple

from ..records import Commit, Lease
from ..runs.decisions import WantedLease
from ..runs.known_rows import KnownRows, LeasedRows, MarkedWrite, RunChange
from ..runs.port import PAGE, ActiveThread, Decide, RunStore, check_commit
from ..runs.queries import RowPosition, RunQuery, ThreadQuery
from ..runs.rows import RunRow, RunThreadRow
from . import runs, writing
from .run_mark import RunUpdates
from .worker import Job, Worker

T = TypeVar("T")
QueryT = TypeVar("QueryT", RunQuery, ThreadQuery)
Ts = TypeVarTuple("Ts")


class _MarkedJob:
    """A superstep with its run's mark. See `MarkedWrite`."""

    def __init__(self, connection: Worker, columns: writing.CommitColumns, frames: Mapping[str, bytes]) -> None:
        self.frames = frames
        self.is_stored = False
        self._connection = connection
        self._job = Job.of_group(writing.commit, columns, size=columns.size)

    async def store(self) -> None:
        try:
            await self._connection.run(self._job, shielded=True)
            self.is_stored = True
        except asyncio.CancelledError:
            self.is_stored = self._job.error is None  # `run` raises the cancellation only when the job has ended
            raise


class SqliteRuns(RunStore):
    """The runs of a `SqliteSaver`. Each transaction is a job of the saver's connection.

    Args:
        connection: returns the open connection; raises `SaverClosedError` if the saver is not open.
        acquired: called with a lease that a transaction has acquired.
        released: called with a lease that a transaction has released.
        clock: returns the time in unix seconds.
        refuse_newer: raises if a later version has upgraded the file since it was opened.
    """

    look_every = 0.02
    look_at_thread_every = 0.01

    def __init__(
        self,
        connection: Callable[[], Worker],
        *,
        acquired: Callable[[Lease], object],
        released: Callable[[Lease], object],
        clock: Callable[[], float],
        refuse_newer: Callable[[sqlite3.Cursor], None],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._acquired = acquired
        self._clock = clock
        self._refuse_newer = refuse_newer
        self._known = LeasedRows(self._marked_write, now=clock, notify=self.notify, released=released)
        self._looked_at = float("-inf")
        self._seen: tuple[Worker, int] | None = None  # the number of `data_version`, which belongs to a connection

    async def transact(
        self,
        thread_id: str,
        decide: Decide[T],
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        lease: Lease | None = None,
        commit: Commit | None = None,
        wants: WantedLease | None = None,
        is_new: bool = False,
    ) -> T:
        check_commit(lease, commit)
        if lease is not None and commit is not None:
            changes = await self._known.store(decide, run_id, lease, commit)
            if changes is not None:
                return changes.result
        columns = None if lease is None or commit is None else writing.bind_commit(lease, commit)
        asked = runs.Transaction(
            thread_id=thread_id,
            decide=decide,
            run_id=run_id,
            idempotency_key=idempotency_key,
            lease=lease,
            commit=columns,
            wants=wants,
            clock=self._clock,
            refuse_newer=self._refuse_newer,
        )
        job = Job(runs.transact, (asked,), writes=True, size=0 if columns is None else columns.size)
        try:
            done = await self._connection().run(job, shielded=commit is not None)
            return done.result
        finally:
            # Also if the caller was cancelled: the transaction may have been committed.
            if job.value is not None:
                released = lease if job.value.released else None
                self._known.note(thread_id, job.value.known_rows, job.value.topics, released)
                if job.value.acquired is not None:
                    self._acquired(job.value.acquired)

    def _marked_write(self, known: KnownRows, change: RunChange, lease: Lease, commit: Commit) -> MarkedWrite:
        """Return the write of a superstep and the change of its run: one job, without reading. See `LeasedRows`."""
        updates = RunUpdates.of(change, known.frames, self._refuse_newer)
        return _MarkedJob(self._connection(), writing.bind_commit(lease, commit, updates.store), updates.frames)

    def forget(self, lease: Lease) -> None:
        """Forget the rows that this process has written under a lease. Call it when the lease is no longer held.

        Args:
            lease: the lease.
        """
        self._known.forget(lease)

    async def get_run(self, run_id: str) -> RunRow | None:
        return await self._read(runs.get_run, run_id)

    async def get_runs(self, run_ids: Collection[str]) -> tuple[RunRow, ...]:
        return await self._read(runs.get_runs, run_ids)

    async def get_thread(self, thread_id: str) -> RunThreadRow | None:
        return await self._read(runs.get_thread, thread_id)

    async def queued(self, *, routes: Collection[str] = (), limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        return await self._read(runs.queued, routes, limit)

    async def due(self, *, limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        return await self._read(runs.due, self._clock(), limit)

    async def active(self, *, limit: int = PAGE) -> tuple[ActiveThread, ...]:
        return await self._read(runs.active, limit)

    async def find_runs(self, query: RunQuery, *, after: RowPosition | None, limit: int) -> list[RunRow]:
        return await self._find(runs.find_runs, query, after, limit)

    async def find_threads(self, query: ThreadQuery, *, after: RowPosition | None, limit: int) -> list[RunThreadRow]:
        return await self._find(runs.find_threads, query, after, limit)

    async def count_runs(self, query: RunQuery) -> int:
        return await self._count(runs.count_runs, query)

    async def count_threads(self, query: ThreadQuery) -> int:
        return await self._count(runs.count_threads, query)

    async def _find(
        self,
        work: Callable[[sqlite3.Cursor, QueryT, RowPosition | None, int], runs.Slice[list[T]]],
        query: QueryT,
        after: RowPosition | None,
        limit: int,
    ) -> list[T]:
        """Return the first rows of a search, from as many slices as are needed."""
        found: list[T] = []
        while len(found) < limit:
            part = await self._read(work, query, after, limit - len(found))
            found += part.found
            if part.end is None:
                break
            after = part.end
        return found

    async def _count(
        self, work: Callable[[sqlite3.Cursor, QueryT, RowPosition | None], runs.Slice[int]], query: QueryT
    ) -> int:
        """Return the number of rows of a search, slice by slice."""
        part = await self._read(work, query, None)
        count = part.found
        while part.end is not None:
            part = await self._read(work, query, part.end)
            count += part.found
        return count

    async def has_changed_elsewhere(self) -> bool:
        # One look serves all tasks that wait: each is woken if it finds a change.
        now = time.monotonic()
        if now - self._looked_at < self.look_at_thread_every:
            return False
        self._looked_at = now
        # The number does not change with writes of the connection itself: `transact` notifies of those.
        connection = self._connection()
        before = self._seen
        self._seen = connection, await connection.run(Job(runs.data_version, writes=False))
        return self._seen != before

    def _read(self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts) -> Coroutine[Any, Any, T]:
        return self._connection().run(Job(work, args, writes=False))
