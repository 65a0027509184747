"""A saver under a lease that a worker holds: the run works under it, and does not release it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.records import Commit, EventRow, Lease, Owner, TaskRecord, Waiter


class _HeldSaver:
    """Wraps a saver for one run of one thread; see `held`.

    Args:
        saver: the saver.
        lease: the thread's lease.
        store_first, mark: see `held`.
    """

    # All else is delegated by `__getattr__`: the saver is the user's object, and may be of any class.

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        lease: Lease,
        store_first: Callable[[Commit], Awaitable[None]],
        mark: Callable[[str], EventRow],
    ) -> None:
        self._saver = saver
        self._lease = lease
        self._first: tuple[Callable[[Commit], Awaitable[None]], ...] = (store_first,)  # empty once it was called
        self._mark: tuple[Callable[[str], EventRow], ...] = (mark,)  # empty once its row is stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    @property
    def commit_is_shielded(self) -> bool:
        # Only the saver's own commit is.
        return not self._first and self._saver.commit_is_shielded

    @property
    def begins_commits(self) -> bool:
        # A commit that is begun without a waiter cannot be stored together with rows of the service.
        return not self._first and self._saver.begins_commits

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        return self._lease

    async def release(self, lease: Lease) -> None:
        """Do nothing: the worker releases the lease when it has stored how the run ended."""

    async def commit(self, lease: Lease, commit: Commit) -> None:
        commit = _unreleasing(commit)
        is_first = bool(self._first) and _is_of_root(commit)
        marks = self._mark if is_first or commit.events else ()
        if marks:
            commit = replace(commit, events=(*[mark(_place_of(commit)) for mark in marks], *commit.events))
        if is_first:
            await self._take_first()(commit)
        else:
            await self._saver.commit(lease, commit)
            self._announce(commit)
        if marks:
            self._mark = ()

    def begin_commit(self, lease: Lease, commit: Commit, waiter: Waiter) -> Callable[[], None]:
        def arrived() -> None:
            self._announce(commit)
            waiter.arrived()

        return self._saver.begin_commit(lease, _unreleasing(commit), Waiter(waiter.post, arrived))

    def _announce(self, commit: Commit) -> None:
        """Notify followers, in all processes, of the events of a transaction that has ended."""
        if commit.events and self._saver.runs is not None:
            self._saver.runs.announce(self._lease.thread_id)

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        if self._first and any(not record.ns for record in records):
            commit = Commit(rows=(), expected_head=None, records=tuple(records), expires_at=expires_at)
            await self.commit(lease, commit)
        else:
            await self._saver.record(lease, records, expires_at=expires_at)

    def _take_first(self) -> Callable[[Commit], Awaitable[None]]:
        (store_first,), self._first = self._first, ()
        return store_first


def held(
    saver: BaseCheckpointSaver,
    lease: Lease,
    store_first: Callable[[Commit], Awaitable[None]],
    mark: Callable[[str], EventRow],
) -> BaseCheckpointSaver:
    """Return a saver for one run under a lease that the caller holds.

    The run acquires this lease in place of one of its own, and leaves its release to the caller. So the caller can
    decide under the lease what the run is to do, and store how it ended before any other run can begin.

    Args:
        saver: the saver.
        lease: the thread's lease.
        store_first: stores the first transaction of the called graph, which has the run's input or its answers. The
            caller stores rows of its own in the same transaction.
        mark: returns the row of events that says which run continues the thread, for the checkpoint on which it is. It
            is stored with the first transaction that has events or is the called graph's.

    Returns:
        The saver, wrapped.
    """
    return cast("BaseCheckpointSaver", _HeldSaver(saver, lease, store_first, mark))


def _unreleasing(commit: Commit) -> Commit:
    return replace(commit, releases=False) if commit.releases else commit


def _place_of(commit: Commit) -> str:
    """Return the thread's newest checkpoint before a transaction; "" for none."""
    if commit.rows or commit.head is not None:
        return commit.expected_head or ""
    return commit.records[0].checkpoint_id if commit.records else commit.events[0].checkpoint_id


def _is_of_root(commit: Commit) -> bool:
    """Return True if a transaction is one of the called graph. Others store its subgraphs, or events alone."""
    for change in (commit, *commit.others):
        if (change.rows and not change.rows[-1].ns) or (change.head is not None and not change.head[0]):
            return True
    return any(not record.ns for record in commit.records)
