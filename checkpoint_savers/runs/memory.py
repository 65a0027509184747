"""`InMemoryRuns`: accepted runs in dicts, which end with the process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from ..errors import StorageError
from ..records import Commit, Lease, Owner
from .decisions import Found, WantedLease
from .port import PAGE, ActiveThread, Decide, RunStore, check_commit, ends_work, topics_of
from .queries import RowPosition, RunQuery, ThreadQuery, run_position
from .rows import RunRow, RunThreadRow

T = TypeVar("T")


class Threads(Protocol):
    """The threads of the saver. All methods are called with the saver's lock."""

    @property
    def check(self) -> Callable[[Lease], object]:
        """Raises ThreadBusyError if a lease is no longer held."""
        ...

    @property
    def release(self) -> Callable[[Lease], None]:
        """Releases a lease, if it is still held."""
        ...

    def next_lease(self, thread_id: str, owner: Owner, now: float) -> Lease:
        """Make the next lease, without storing it. Raises ThreadBusyError if another owner has a live one."""
        ...

    def store_lease(self, lease: Lease, expires_at: float) -> None:
        """Store a lease of `next_lease`. Its thread must exist."""
        ...

    def owner_of(self, thread_id: str) -> tuple[Owner | None, float]:
        """Return the owner of a thread's lease, and when it expires."""
        ...

    def metadata_of(self, thread_id: str) -> dict[str, Any]:
        """Return the metadata of a thread; none of an unknown thread."""
        ...

    def add(self, thread_id: str, metadata: Mapping[str, Any], lease: Lease | None, commit: Commit | None) -> None:
        """Make a thread, set metadata that it lacks, and store a superstep without releasing: all of it, or nothing."""


class InMemoryRuns(RunStore):
    """The runs of an `InMemorySaver`.

    Args:
        threads: the saver's threads.
        lock: the saver's lock: a thread's lease and its runs are changed together.
        clock: returns the time in unix seconds.
    """

    look_every = look_at_thread_every = float("inf")

    def __init__(self, threads: Threads, lock: AbstractContextManager[object], *, clock: Callable[[], float]) -> None:
        super().__init__()
        self._saver = threads
        self._lock = lock
        self._clock = clock
        self._threads: dict[str, RunThreadRow] = {}
        self._runs: dict[str, RunRow] = {}
        self._open: dict[str, dict[str, RunRow]] = {}  # by thread
        self._by_key: dict[str, str] = {}  # idempotency key -> run

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
        with self._lock:
            if lease is not None:
                self._saver.check(lease)
            new = None if wants is None else wants.lease_from(partial(self._saver.next_lease, thread_id))
            named = run_id if idempotency_key is None else self._by_key.get(idempotency_key)
            found = Found(
                thread_id=thread_id,
                thread=self._row(thread_id),
                open=tuple(sorted(self._open.get(thread_id, {}).values(), key=lambda run: run.order)),
                named=None if named is None else self._runs.get(named),
                now=self._clock(),
                lease=new,
            )
            changes = decide(found)
            # First what may be refused: there is no rollback here.
            seen = {run.run_id for run in (*found.open, found.named) if run is not None}
            for run in changes.runs:
                if run.run_id not in seen:
                    self._check_new(run)
            if changes.thread is not None or changes.metadata or commit is not None:
                self._saver.add(thread_id, changes.metadata, lease, commit)
            for run in changes.runs:
                self._store(run)
            if changes.thread is not None:
                self._threads[thread_id] = replace(changes.thread, metadata={})
            if lease is not None and (ends_work(found, changes, lease) or (commit is not None and commit.releases)):
                self._saver.release(lease)
            if wants is not None and new is not None and not ends_work(found, changes, new):
                self._saver.store_lease(new, wants.expires_at)
        if topics := topics_of(changes):
            self.notify(thread_id, topics)
        return changes.result

    def has(self, thread_id: str) -> bool:
        """Return True if a thread has a row here. Called with the lock."""
        return thread_id in self._threads

    def touch(self, thread_id: str) -> None:
        """Note that the metadata of a thread have changed, if it has a row here. Called with the lock."""
        row = self._threads.get(thread_id)
        if row is not None:
            self._threads[thread_id] = replace(row, updated_at=self._clock())

    def forget(self, thread_id: str) -> None:
        """Delete the runs and the row of a thread. Called with the lock."""
        if self._threads.pop(thread_id, None) is None:
            return
        self._open.pop(thread_id, None)
        for run in [run for run in self._runs.values() if run.thread_id == thread_id]:
            del self._runs[run.run_id]
            if run.request.idempotency_key is not None:
                del self._by_key[run.request.idempotency_key]
        self.notify(thread_id)

    def _row(self, thread_id: str) -> RunThreadRow | None:
        row = self._threads.get(thread_id)
        return None if row is None else self._with_metadata(row)

    def _rows(self) -> list[RunThreadRow]:
        return list(map(self._with_metadata, self._threads.values()))

    def _with_metadata(self, row: RunThreadRow) -> RunThreadRow:
        return replace(row, metadata=self._saver.metadata_of(row.thread_id))

    def _first(
        self, rows: Iterable[RunThreadRow], limit: int, key: Callable[[RunThreadRow], tuple[float, ...]]
    ) -> tuple[RunThreadRow, ...]:
        """Return the first rows by a key. Metadata is decoded for these alone, not for all threads."""
        return tuple(map(self._with_metadata, sorted(rows, key=key)[: max(limit, 0)]))

    def _check_new(self, run: RunRow) -> None:
        if run.run_id in self._runs or run.request.idempotency_key in self._by_key:
            raise StorageError(f"run {run.run_id!r}: a run with this id or key is stored already. Nothing was stored.")

    def _store(self, run: RunRow) -> None:
        self._runs[run.run_id] = run
        if run.request.idempotency_key is not None:
            self._by_key[run.request.idempotency_key] = run.run_id
        of_thread = self._open.setdefault(run.thread_id, {})
        if run.is_open:
            of_thread[run.run_id] = run
            return
        of_thread.pop(run.run_id, None)
        if not of_thread:
            del self._open[run.thread_id]

    async def get_run(self, run_id: str) -> RunRow | None:
        with self._lock:
            return self._runs.get(run_id)

    async def get_runs(self, run_ids: Collection[str]) -> tuple[RunRow, ...]:
        with self._lock:
            return tuple([self._runs[run_id] for run_id in run_ids if run_id in self._runs])

    async def get_thread(self, thread_id: str) -> RunThreadRow | None:
        with self._lock:
            return self._row(thread_id)

    async def queued(self, *, routes: Collection[str] = (), limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        with self._lock:
            queued = [row for row in self._threads.values() if row.activation == "queued"]
            found = [row for row in queued if not routes or row.route in routes]
            return self._first(found, limit, lambda row: (-row.priority, row.activation_at))

    async def due(self, *, limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        with self._lock:
            now = self._clock()
            found = [row for row in self._threads.values() if 0 < row.wake_at <= now]
            return self._first(found, limit, lambda row: (row.wake_at,))

    async def active(self, *, limit: int = PAGE) -> tuple[ActiveThread, ...]:
        with self._lock:
            found = [row for row in self._threads.values() if row.activation == "active"]
            first = self._first(found, limit, lambda row: (row.activation_at,))
            return tuple([ActiveThread(row, *self._saver.owner_of(row.thread_id)) for row in first])

    async def find_runs(self, query: RunQuery, *, after: RowPosition | None, limit: int) -> list[RunRow]:
        with self._lock:
            found = [run for run in self._runs.values() if query.matches(run)]
        found.sort(key=run_position, reverse=True)
        return [run for run in found if after is None or run_position(run) < after][: max(limit, 0)]

    async def find_threads(self, query: ThreadQuery, *, after: RowPosition | None, limit: int) -> list[RunThreadRow]:
        with self._lock:
            found = [row for row in self._rows() if query.matches(row)]
        found.sort(key=query.position, reverse=query.descending)
        if after is not None:
            found = [row for row in found if query.is_behind(row, after)]
        return found[: max(limit, 0)]

    async def count_runs(self, query: RunQuery) -> int:
        with self._lock:
            return sum([query.matches(run) for run in self._runs.values()])

    async def count_threads(self, query: ThreadQuery) -> int:
        with self._lock:
            return sum([query.matches(row) for row in self._rows()])
