"""A saver under a lease that a worker holds: the run works under it, and does not release it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.records import Chain, CheckpointId, Commit, EventRow, Lease, Owner, TaskRecord

from .run_marks import RunMarks, unreleasing


class _HeldSaver:
    """Wraps a saver for one run of one thread; see `held`."""

    # All else is delegated by `__getattr__`: the saver is the user's object, and may be of any class.

    # A commit that is begun without a waiter cannot be stored together with rows of the service, and only the saver's
    # own commit is shielded. `acquire` and `release` never wait.
    begins_commits = False
    commit_is_shielded = False
    lease_is_shielded = True

    def __init__(
        self, saver: BaseCheckpointSaver, lease: Lease, marks: RunMarks, started: Callable[[str], EventRow]
    ) -> None:
        self._saver = saver
        self._lease = lease
        self._marks = marks
        self._started: tuple[Callable[[str], EventRow], ...] = (started,)  # empty once its row is stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        return self._lease

    async def release(self, lease: Lease) -> None:
        """Do nothing: the lease is released by the transaction that stores how the run ended."""

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await self._saver.read(thread_id, ns, checkpoint_id)
        if chain is not None and not ns:
            self._marks.note_loaded(chain)
        return chain

    async def commit(self, lease: Lease, commit: Commit) -> None:
        # Events alone of a run that has begun are no progress: the run's row says how often it was taken without any.
        is_of_root = _is_of_root(commit) and not (self._marks.has_begun and _has_events_alone(commit))
        carries_start = is_of_root or bool(commit.events)
        if carries_start:
            commit = self._with_start(commit)
        if not (is_of_root and await self._marks.store(commit)):
            commit = unreleasing(commit)
            await self._saver.commit(lease, commit)
            if is_of_root:
                self._marks.note_stored(commit)
            if commit.events and self._saver.runs is not None:
                self._saver.runs.announce(lease.thread_id)  # followers in other processes wait for them
        if carries_start:
            self._started = ()

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        is_of_root = any(not record.ns for record in records)
        commit = Commit(rows=(), expected_head=None, records=tuple(records), expires_at=expires_at)
        if is_of_root:
            commit = self._with_start(commit)
            if await self._marks.store(commit, is_commit=False):
                self._started = ()
                return
        await self._saver.record(lease, records, expires_at=expires_at)
        if is_of_root:
            self._marks.note_stored(commit, is_commit=False)

    def _with_start(self, commit: Commit) -> Commit:
        """Return a transaction with the row that says which run begins, unless that is stored."""
        rows = [started(_place_of(commit)) for started in self._started]
        return replace(commit, events=(*rows, *commit.events)) if rows else commit


def held(
    saver: BaseCheckpointSaver, lease: Lease, marks: RunMarks, started: Callable[[str], EventRow]
) -> BaseCheckpointSaver:
    """Return a saver for one run under a lease that the caller holds.

    The run acquires this lease in place of one of its own, and does not release it. So the caller can decide under the
    lease what the run is to do, and store how it ended before any other run can begin.

    Args:
        saver: the saver.
        lease: the thread's lease.
        marks: stores the root graph's transactions that change the run's row, too.
        started: returns the row of events that says which run continues the thread, for the checkpoint on which it is.
            It is stored with the first transaction that has events or is the called graph's.

    Returns:
        The saver, wrapped.
    """
    return cast("BaseCheckpointSaver", _HeldSaver(saver, lease, marks, started))


def _place_of(commit: Commit) -> str:
    """Return the thread's newest checkpoint before a transaction; "" for none."""
    if commit.rows or commit.head is not None:
        return commit.expected_head or ""
    return commit.records[0].checkpoint_id if commit.records else commit.events[0].checkpoint_id


def _has_events_alone(commit: Commit) -> bool:
    """Return True if a transaction stores events, and leaves the thread's state as it is."""
    is_head_same = commit.head is None or commit.head[1] == commit.expected_head
    return is_head_same and not (commit.rows or commit.records or commit.clears or commit.others or commit.releases)


def _is_of_root(commit: Commit) -> bool:
    """Return True if a transaction is one of the called graph. Others store its subgraphs, or events alone."""
    for change in (commit, *commit.others):
        if (change.rows and not change.rows[-1].ns) or (change.head is not None and not change.head[0]):
            return True
    return any(not record.ns for record in commit.records)
