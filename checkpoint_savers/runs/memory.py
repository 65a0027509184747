"""`InMemoryRuns`: accepted runs in dicts, which end with the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from ..records import Lease, Owner
from .decisions import Found
from .port import PAGE, ActiveThread, Decide, RunStore, ends_work
from .rows import RunRow, RunThreadRow

T = TypeVar("T")


class InMemoryRuns(RunStore):
    """The runs of an `InMemorySaver`.

    Args:
        lock: the saver's lock: a thread's lease and its runs are changed together.
        check: raises ThreadBusyError if a lease is no longer held. Called with the lock.
        release: releases a lease. Called with the lock.
        owner_of: returns the owner of a thread's lease and when it expires. Called with the lock.
        clock: returns the time in unix seconds.
    """

    def __init__(
        self,
        lock: AbstractContextManager[object],
        *,
        check: Callable[[Lease], object],
        release: Callable[[Lease], None],
        owner_of: Callable[[str], tuple[Owner | None, float]],
        clock: Callable[[], float],
    ) -> None:
        self._lock = lock
        self._check = check
        self._release = release
        self._owner_of = owner_of
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
    ) -> T:
        with self._lock:
            if lease is not None:
                self._check(lease)
            named = run_id if idempotency_key is None else self._by_key.get(idempotency_key)
            found = Found(
                thread_id=thread_id,
                thread=self._threads.get(thread_id),
                open=tuple(sorted(self._open.get(thread_id, {}).values(), key=lambda run: run.order)),
                named=None if named is None else self._runs.get(named),
                now=self._clock(),
            )
            changes = decide(found)
            for run in changes.runs:
                self._store(run)
            if changes.thread is not None:
                self._threads[thread_id] = changes.thread
            if lease is not None and ends_work(found, changes, lease):
                self._release(lease)
            return changes.result

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

    async def get_thread(self, thread_id: str) -> RunThreadRow | None:
        with self._lock:
            return self._threads.get(thread_id)

    async def queued(self, *, limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        with self._lock:
            found = [row for row in self._threads.values() if row.activation == "queued"]
        return _first(found, limit, lambda row: (-row.priority, row.activation_at))

    async def due(self, *, limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        with self._lock:
            now = self._clock()
            found = [row for row in self._threads.values() if 0 < row.wake_at <= now]
        return _first(found, limit, lambda row: (row.wake_at,))

    async def active(self, *, limit: int = PAGE) -> tuple[ActiveThread, ...]:
        with self._lock:
            found = [row for row in self._threads.values() if row.activation == "active"]
            first = _first(found, limit, lambda row: (row.activation_at,))
            return tuple([ActiveThread(row, *self._owner_of(row.thread_id)) for row in first])


def _first(
    rows: Iterable[RunThreadRow], limit: int, key: Callable[[RunThreadRow], tuple[float, ...]]
) -> tuple[RunThreadRow, ...]:
    return tuple(sorted(rows, key=key)[:limit])
