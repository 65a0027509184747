"""The rows of runs that a process knows, as it has written them last under a lease.

A run's first and last transaction store a superstep and change the run's row, perhaps also its thread's. The process
that executes the run has taken it, so it has written these rows. It decides by them without reading, and the superstep
is stored only if the stored rows are still the same; each database compares their frames. Each change of a thread's
open runs changes one of the two rows: if another process has changed any, say by a request to cancel the run, nothing
is stored, and the ordinary transaction reads the rows and decides again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..records import Lease
from .decisions import Changes, Found
from .rows import RunRow, RunThreadRow, in_order


class RowsChangedError(Exception):
    """Another process has changed the rows of a run since this one has written them. Nothing was stored."""


class KnownRows(NamedTuple):
    """The rows of a thread as a transaction under a lease has left them.

    Attributes:
        epoch: of the lease.
        thread: the thread's row.
        open: its open runs.
        frames: the stored frames of rows, for a database that need not encode them again to compare them: by run id,
            and that of the thread's row by "". Those of other rows may be missing.
    """

    epoch: int
    thread: RunThreadRow
    open: Sequence[RunRow]
    frames: Mapping[str, bytes] = MappingProxyType({})

    @classmethod
    def after(
        cls, found: Found, changes: Changes[Any], lease: Lease, frames: Mapping[str, bytes] = MappingProxyType({})
    ) -> KnownRows | None:
        """Return what a transaction leaves; None if the thread has no row.

        Args:
            found: the rows before it.
            changes: what it writes.
            lease: under which it writes, or which it acquires.
            frames: as of the class.
        """
        thread = changes.thread or found.thread
        if thread is None:
            return None
        rows = {run.run_id: run for run in (*found.open, *changes.runs)}
        return cls(lease.epoch, thread, [run for run in rows.values() if run.is_open], frames)

    def found(self, run_id: str | None, now: float) -> Found:
        """Return them for a decision.

        Args:
            run_id: the run that the decision needs.
            now: the time, in unix seconds.
        """
        named = None
        for run in self.open:
            if run.run_id == run_id:
                named = run
        return Found(self.thread.thread_id, self.thread, in_order(self.open), named, now)


class LeasedRows:
    """The known rows of the threads whose leases this process holds.

    They need not be complete or up to date: a transaction that decides by them compares them with the stored ones.
    """

    def __init__(self) -> None:
        self._known: dict[str, KnownRows] = {}

    def pop(self, lease: Lease) -> KnownRows | None:
        """Return the rows of a thread, and forget them: the transaction that decides by them notes what it leaves.

        Args:
            lease: the lease on the thread.

        Returns:
            The rows; None if this process has not written them under the lease.
        """
        known = self._known.get(lease.thread_id)
        return None if known is None or known.epoch != lease.epoch else self._known.pop(lease.thread_id, None)

    def note(self, left: KnownRows | None) -> None:
        """Note what a committed transaction has left.

        Args:
            left: the rows; None if it has released the lease.
        """
        if left is not None:
            self._known[left.thread.thread_id] = left

    def forget(self, lease: Lease) -> None:
        """Forget the rows that are known under a lease which is no longer held.

        Args:
            lease: the lease. Rows that were written under a later one remain.
        """
        self.pop(lease)


class RunChange(NamedTuple):
    """A change of one run, and perhaps of its thread's row.

    Attributes:
        before, after: the run.
        thread_before: the thread's row.
        thread_after: the same, changed; None if it does not change.
    """

    before: RunRow
    after: RunRow
    thread_before: RunThreadRow
    thread_after: RunThreadRow | None

    @classmethod
    def of(cls, found: Found, changes: Changes[Any]) -> RunChange | None:
        """Return what a transaction changes; None if that is not one run and its thread's row.

        Args:
            found: the rows before.
            changes: what is to be written.
        """
        run, thread = found.named, found.thread
        if run is None or thread is None or changes.metadata or len(changes.runs) != 1:
            return None
        (after,) = changes.runs
        return None if after.run_id != run.run_id else cls(run, after, thread, changes.thread)
