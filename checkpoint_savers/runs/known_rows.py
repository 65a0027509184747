"""The rows of runs that a process knows because it has written them under a lease that it holds.

The first and the last transaction of a run store a superstep, change the run's row, and may change its thread's row.
The process that executes the run wrote both rows when it took the run. So it decides by these rows without reading them
(optimistic concurrency control). The database stores the superstep only if the frames of the rows that change are still
the known ones. Each change of an open run of the thread changes one of the two rows. If another process has changed
them, for example to request a cancellation, nothing is stored, and the ordinary transaction reads the rows and decides
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..records import Lease
from .decisions import Changes, Found
from .rows import RunRow, RunThreadRow, in_order


class RowsChangedError(Exception):
    """The stored rows of a run are not the known ones: another process has changed them. Nothing was stored."""


class KnownRows(NamedTuple):
    """The rows of a thread after a transaction under a lease.

    Attributes:
        epoch: the epoch of the lease.
        thread: the thread's row.
        open: the thread's open runs.
        frames: stored frames, by run id; the key "" is the thread's row. Saves encoding the rows again to compare them.
            Frames may be missing.
    """

    epoch: int
    thread: RunThreadRow
    open: Sequence[RunRow]
    frames: Mapping[str, bytes] = MappingProxyType({})

    @classmethod
    def after(
        cls, found: Found, changes: Changes[Any], lease: Lease, frames: Mapping[str, bytes] = MappingProxyType({})
    ) -> KnownRows | None:
        """Return the rows after a transaction; None if the thread has no row then.

        Args:
            found: the rows before the transaction.
            changes: what the transaction writes.
            lease: the lease under which it writes, or which it acquires.
            frames: see the attribute.
        """
        thread = changes.thread or found.thread
        if thread is None:
            return None
        rows = {run.run_id: run for run in (*found.open, *changes.runs)}
        return cls(lease.epoch, thread, [run for run in rows.values() if run.is_open], frames)

    def found(self, run_id: str | None, now: float) -> Found:
        """Return the rows as a decision expects them.

        Args:
            run_id: the run that the decision needs; None for none.
            now: the time, in unix seconds.
        """
        named = None
        for run in self.open:
            if run.run_id == run_id:
                named = run
        return Found(self.thread.thread_id, self.thread, in_order(self.open), named, now)


class LeasedRows:
    """The known rows of the threads whose leases this process holds.

    Rows may be missing or out of date: a transaction that decides by known rows compares them with the stored ones.
    """

    def __init__(self) -> None:
        self._known: dict[str, KnownRows] = {}

    def pop(self, lease: Lease) -> KnownRows | None:
        """Return the rows of a thread, and forget them. After a successful transaction, pass the new rows to `note`.

        Args:
            lease: the lease on the thread.

        Returns:
            The rows; None if this process has not written them under the lease.
        """
        known = self._known.get(lease.thread_id)
        return None if known is None or known.epoch != lease.epoch else self._known.pop(lease.thread_id, None)

    def note(self, rows: KnownRows | None) -> None:
        """Remember the rows of a thread after a committed transaction.

        Args:
            rows: the rows; None if no lease is held on the thread.
        """
        if rows is not None:
            self._known[rows.thread.thread_id] = rows

    def forget(self, lease: Lease) -> None:
        """Forget the rows that were written under a lease. Call it when the lease is no longer held.

        Args:
            lease: the lease. Rows that were written under a later lease on the thread remain.
        """
        self.pop(lease)


class RunChange(NamedTuple):
    """A change of one run, and perhaps of its thread's row.

    Attributes:
        before, after: the run's row before and after the change.
        thread_before: the thread's row before the change.
        thread_after: the thread's row after the change; None if it stays the same.
    """

    before: RunRow
    after: RunRow
    thread_before: RunThreadRow
    thread_after: RunThreadRow | None

    @classmethod
    def of(cls, found: Found, changes: Changes[Any]) -> RunChange | None:
        """Return the change that a decision makes; None if it changes anything but the named run and the thread's row.

        Args:
            found: the rows before the change.
            changes: the decision.
        """
        run, thread = found.named, found.thread
        if run is None or thread is None or changes.metadata or len(changes.runs) != 1:
            return None
        (after,) = changes.runs
        return None if after.run_id != run.run_id else cls(run, after, thread, changes.thread)
