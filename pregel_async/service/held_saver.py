"""A saver under a lease that a worker holds: the run works under it, and does not release it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.records import Chain, CheckpointId, Commit, Lease, Owner, TaskRecord

from .run_marks import RunMarks, unreleasing


class _HeldSaver:
    """Wraps a saver for one run of one thread; see `held`."""

    # All else is delegated by `__getattr__`: the saver is the user's object, and may be of any class.

    # A commit that is begun without a waiter cannot be stored together with rows of the service, and only the saver's
    # own commit is shielded.
    begins_commits = False
    commit_is_shielded = False

    def __init__(self, saver: BaseCheckpointSaver, lease: Lease, marks: RunMarks) -> None:
        self._saver = saver
        self._lease = lease
        self._marks = marks

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
        is_of_root = _is_of_root(commit)
        if is_of_root and await self._marks.store(commit):
            return
        commit = unreleasing(commit)
        await self._saver.commit(lease, commit)
        if is_of_root:
            self._marks.note_stored(commit)
        if commit.events and self._saver.runs is not None:
            self._saver.runs.announce()  # followers in other processes wait for them

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        is_of_root = any(not record.ns for record in records)
        commit = Commit(rows=(), expected_head=None, records=tuple(records), expires_at=expires_at)
        if is_of_root and await self._marks.store(commit, is_commit=False):
            return
        await self._saver.record(lease, records, expires_at=expires_at)
        if is_of_root:
            self._marks.note_stored(commit, is_commit=False)


def held(saver: BaseCheckpointSaver, lease: Lease, marks: RunMarks) -> BaseCheckpointSaver:
    """Return a saver for one run under a lease that the caller holds.

    The run acquires this lease in place of one of its own, and does not release it. So the caller can decide under the
    lease what the run is to do, and store how it ended before any other run can begin.

    Args:
        saver: the saver.
        lease: the thread's lease.
        marks: stores the root graph's transactions that change the run's row, too.

    Returns:
        The saver, wrapped.
    """
    return cast("BaseCheckpointSaver", _HeldSaver(saver, lease, marks))


def _is_of_root(commit: Commit) -> bool:
    """Return True if a transaction is one of the called graph. Others store its subgraphs, or events alone."""
    for change in (commit, *commit.others):
        if (change.rows and not change.rows[-1].ns) or (change.head is not None and not change.head[0]):
            return True
    return any(not record.ns for record in commit.records)
