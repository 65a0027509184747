"""The rows of runs that a process knows because it has written them under a lease that it holds.

The first and the last transaction of a run store a superstep, change the run's row, and may change its thread's row.
The process that executes the run wrote both rows when it took the run. So it decides by these rows without reading them
(optimistic concurrency control). The database stores the superstep only if the frames of the rows that change are still
the known ones. Each change of an open run of the thread changes one of the two rows. If another process has changed
them, for example to request a cancellation, nothing is stored, and the ordinary transaction reads the rows and decides
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from ..records import Commit, Lease
from .changes import Topic
from .decisions import Changes, Found
from .port import ends_work, topics_of
from .rows import RunRow, RunThreadRow, in_order

T = TypeVar("T")


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


class MarkedWrite(Protocol):
    """A superstep with the change of its run, ready to be stored by one database.

    Attributes:
        frames: as those of `KnownRows`, after it.
        is_stored: True if it is stored.
    """

    @property
    def frames(self) -> Mapping[str, bytes]: ...

    @property
    def is_stored(self) -> bool: ...

    async def store(self) -> None:
        """Store it, if the stored rows are the known ones.

        Raises:
            RowsChangedError: they are not. Nothing was stored.
            Exception: as for the saver's `commit`.
        """
        ...


MakeMarkedWrite: TypeAlias = Callable[[KnownRows, RunChange, Lease, Commit], MarkedWrite | None]
"""Makes a write of the known rows, what changes, the lease, and the superstep. None if the database must read first."""


class LeasedRows:
    """The known rows of the threads whose leases this process holds, and the writes that are decided by these rows.

    They need not be complete or up to date: a transaction that decides by them compares them with the stored ones.

    Args:
        make: makes a write.
        now: returns the time in unix seconds.
        notify: called with a thread and what has changed of it, when something was stored.
        released: called when a lease was released.
    """

    def __init__(
        self,
        make: MakeMarkedWrite,
        *,
        now: Callable[[], float],
        notify: Callable[[str, tuple[Topic, ...]], None],
        released: Callable[[Lease], object],
    ) -> None:
        self._known: dict[str, KnownRows] = {}
        self._make = make
        self._now = now
        self._notify = notify
        self._released = released

    async def store(
        self, decide: Callable[[Found], Changes[T]], run_id: str | None, lease: Lease, commit: Commit
    ) -> Changes[T] | None:
        """Store a superstep and what is decided about its run, without reading the rows.

        Args:
            decide, run_id, lease, commit: as for `RunStore.transact`.

        Returns:
            What was decided. None if nothing was stored: the rows are not known, another process has changed them, or
            the change is not one of a run and its thread.

        Raises:
            Exception: as for `RunStore.transact`.
        """
        known = self._pop(lease)
        if known is None:
            return None
        found = known.found(run_id, self._now())
        changes = decide(found)
        change = RunChange.of(found, changes)
        if change is None:
            return None
        releases = commit.releases or ends_work(found, changes, lease)
        write = self._make(known, change, lease, replace(commit, releases=releases))
        if write is None:
            return None
        try:
            await write.store()
        except RowsChangedError:
            return None
        finally:
            if write.is_stored:  # also if the caller was cancelled while it waited
                after = None if releases else KnownRows.after(found, changes, lease, write.frames)
                self.note(lease.thread_id, after, topics_of(changes), lease if releases else None)
        return changes

    def note(
        self, thread_id: str, rows_after: KnownRows | None, topics: tuple[Topic, ...], released: Lease | None
    ) -> None:
        """Note what a transaction has stored, and notify those who wait for it.

        Args:
            thread_id: the thread.
            rows_after: its rows; None if no lease is held.
            topics: what has changed.
            released: the lease that was released; None for none.
        """
        if rows_after is not None:
            self._known[thread_id] = rows_after
        if topics:
            self._notify(thread_id, topics)
        if released is not None:
            self._released(released)

    def forget(self, lease: Lease) -> None:
        """Forget the rows that this process has written under a lease. Call it when the lease is no longer held.

        Args:
            lease: the lease. Rows that were written under a later lease remain.
        """
        self._pop(lease)

    def _pop(self, lease: Lease) -> KnownRows | None:
        """Return and forget the rows of a thread; None if this process has written none of them under the lease."""
        # They are noted again by what the next transaction stores.
        known = self._known.get(lease.thread_id)
        return None if known is None or known.epoch != lease.epoch else self._known.pop(lease.thread_id, None)
