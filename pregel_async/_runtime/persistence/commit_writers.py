"""Queue what a run stores in one namespace, and send it to the saver. One class for each durability mode.

`CommitWriter` is "sync": it stores each superstep before the next one starts. `OverlappedWriter` (`overlapped.py`) is
"async": it stores a superstep while the next one runs. `AtExitWriter` (`at_exit.py`) is "exit": it merges the
supersteps and stores them when the run ends.

All modes keep one order: a namespace's transactions are sent one after the other, and a subgraph's checkpoint is sent
after the outer graph's checkpoint that it refers to. After a failed transaction none is sent (`ThreadLease.commit`).

The verbs of all three classes:

    add, stage, clear              queue a checkpoint, a task record, or the deletion of records
    commit                         queue and store a finished superstep, as durably as the mode promises
    record, record_outcomes,       store task records of the open superstep
    record_answers
    flush_checkpoints              store queued checkpoints, because a subgraph's checkpoint refers to one of them
    flush_events                   store queued stream events, because memory must not grow with their number
    flush                          store everything queued, because the run stops before its end
    commit_edit                    store everything queued in one transaction, for `aupdate_state`
    close                          wait for everything handed over earlier, at the end of a run
    discard                        drop everything queued
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self

import anyio

from checkpoint_savers.chain import ChainWriter
from checkpoint_savers.deltas import Delta
from checkpoint_savers.errors import CheckpointError, ThreadBusyError, annotate
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, EventRow, TaskId, TaskRecord

from .lease import ThreadLease

NOTHING_STORED: Final = -2
"""The `stored_step` of an empty namespace. The first input is superstep -1."""

Key = tuple[str, CheckpointId, TaskId]
"""The key of a task record: namespace, checkpoint and task."""


class CommitWriter:
    """Write one namespace with durability "sync": each verb returns when its data are durable.

    Args:
        outer: the writer of the outer graph, as a tuple of one; empty for the root graph.
        keeps_state: the graph keeps its state from call to call, so the lease notes each new checkpoint as its tip.

    Attributes:
        chain: the chain of the branch that this run writes.
        head: the namespace's stored head, which each transaction expects to find.
        moves_head: the branch's tip is not the stored head; the next transaction moves the head to it.
        events: event rows for the next transaction. Rows of a transaction in progress stay here until it is stored.
        listeners: called with the number of each superstep once that superstep and all earlier ones are stored.
        stored: the newest stored checkpoint of the branch; None if there is none.
        stored_step: the superstep of `stored`; `NOTHING_STORED` if there is none.
        discarded: the run's input was refused, so this writer stores nothing more.
    """

    def __init__(
        self, lease: ThreadLease, ns: str, outer: tuple[CommitWriter, ...] = (), *, keeps_state: bool = False
    ) -> None:
        self.lease = lease
        self.ns = ns
        self.outer = outer
        self.keeps_state = keeps_state
        self.chain = ChainWriter.start(ns)
        self.head: CheckpointId | None = None
        self.moves_head = False
        self.events: list[EventRow] = []
        self.listeners: tuple[Callable[[int], None], ...] = ()
        self.stored: CheckpointId | None = None
        self.stored_step = NOTHING_STORED
        self.discarded = False
        # Tuples, as most are empty most of the time: Python's collector visits each list of each waiting run.
        self._rows: tuple[CheckpointRow, ...] = ()
        self._staged: dict[Key, TaskRecord] = {}
        self._clears: tuple[Key, ...] = ()
        self._next: tuple[_Batch, ...] = ()  # the batch that collects while another is being stored; at most one

    def nested(self, ns: str, *, keeps_state: bool) -> Self:
        """Return the writer for a subgraph's namespace."""
        return type(self)(self.lease, ns, (self,), keeps_state=keeps_state)

    @property
    def tip(self) -> CheckpointId:
        """The branch's newest checkpoint, on which the open superstep was planned."""
        # Callers ask for the tip only while a superstep is open, and each superstep follows a checkpoint.
        tip = self.chain.tip
        assert tip is not None
        return tip

    def add(self, delta: Delta, step: int, metadata: dict[str, Any]) -> CheckpointRow:
        """Queue the next checkpoint and return its row."""
        row = self.chain.append(delta, checkpoint_id=self.lease.ids.next(delta.ts), step=step, metadata=metadata)
        self._rows += (row,)
        return row

    def stage(self, record: TaskRecord) -> None:
        """Queue a task record. A later record of the same task replaces it."""
        self._staged[record.ns, record.checkpoint_id, record.task_id] = record

    def clear(self, keys: Iterable[Key]) -> None:
        """Queue the deletion of task records."""
        for key in keys:
            # An earlier record of the task may be stored, or be part of a running transaction. So the deletion is
            # queued even if a queued record is dropped here.
            self._staged.pop(key, None)
            self._clears += (key,)

    def discard(self) -> None:
        """Drop everything queued and store nothing from now on."""
        self.discarded = True
        self._rows = ()
        self._staged.clear()
        self._clears = ()
        self.events.clear()
        self.moves_head = False

    @property
    def has_queued(self) -> bool:
        """Whether checkpoints, records or a move of the head are queued. Events alone do not count."""
        return bool(self._rows or self._staged or self.moves_head)

    def commit(self, *, ends: bool) -> Awaitable[None]:
        """Store a finished superstep with everything else that is queued. Await the result at once.

        Args:
            ends: nothing is left to run: the root graph's transaction releases the lease, too.

        Raises:
            CheckpointError: this transaction or an earlier one failed.
        """
        # Returns the awaitable instead of awaiting it: each coroutine that a waiting run holds is one more object for
        # the collector to traverse in every superstep.
        return self.store_queued(releases=ends)

    async def record(self, record: TaskRecord, on_stored: Callable[[], None], events: Sequence[EventRow] = ()) -> None:
        """Store the record of a task while its siblings run. Results that come during a transaction share the next.

        Args:
            record: the record.
            on_stored: called when it is stored.
            events: rows of the task's events, which are stored in the same transaction.
        """
        await self._write_batched([record], [on_stored], events)

    async def record_outcomes(self, records: Sequence[TaskRecord]) -> None:
        """Store the last records of a superstep that stays open."""
        await self._write(records)

    async def record_answers(self, records: Sequence[TaskRecord]) -> None:
        """Store the answers and updates that a call brings to the open superstep, before anything runs."""
        await self.record_outcomes(records)

    async def flush_checkpoints(self) -> None:
        """Store queued checkpoints, because a subgraph's transaction refers to one of them."""
        if self._rows:
            await self._write_batched()

    async def flush_events(self) -> None:
        """Store queued events, and everything else that is queued."""
        await self._write_batched()

    async def flush(self) -> None:
        """Store what is still queued when a run stops before its end."""
        # With "sync" each finished superstep is stored already; only events may still be queued.
        if self.events and not self.discarded:
            await self.flush_events()

    async def close(self) -> None:
        """Return when everything that earlier verbs accepted is stored. With "sync" it is, already."""

    async def commit_edit(self) -> None:
        """Store everything queued in one transaction, which releases the root graph's lease: for an edit."""
        if self.has_queued:
            await self.store_queued(releases=self.ns == "")

    def store_queued(
        self,
        records: Sequence[TaskRecord] = (),
        events: Sequence[EventRow] = (),
        *,
        releases: bool = False,
    ) -> Awaitable[None]:
        """Store these records and events with everything queued, in one transaction.

        The transaction is built by this call and not when the result is awaited, so await the result at once. What is
        queued stays queued if the transaction fails.

        Args:
            records: the records.
            events: the event rows.
            releases: release the lease in the same transaction. Ignored for a subgraph.
        """
        if self.outer:
            return self._store_after_outer(records, events)
        return self._store(self._build_commit(records, events, releases=releases), events)

    async def _store_after_outer(self, records: Sequence[TaskRecord], events: Sequence[EventRow]) -> None:
        """Store the outer graphs' queued checkpoints, and then these records and events with everything queued."""
        await self._flush_outer_checkpoints()
        await self._store(self._build_commit(records, events), events)

    def _store(self, commit: Commit, events: Sequence[EventRow] = ()) -> Awaitable[None]:
        """Store a transaction. If it fails, add to the error which superstep is not stored.

        Args:
            commit: the transaction.
            events: those of its events that were never queued; they are its last.
        """
        stored = partial(self._mark_stored, more_events=len(events)) if events else self._mark_stored
        return self.lease.commit(commit, stored, self.explain)

    def _build_commit(
        self,
        records: Sequence[TaskRecord] = (),
        events: Sequence[EventRow] = (),
        *,
        releases: bool = False,
    ) -> Commit:
        """Return a transaction of everything queued. For the arguments see `store_queued`."""
        lease, rows, tip = self.lease, self._rows, self.chain.tip
        return Commit(
            rows=rows,
            expected_head=self.head,
            records=(*self._staged.values(), *records) if self._staged or records else (),
            clears=self._clears,
            expires_at=lease.expiry(),
            releases=releases and not lease.outlives_commit,
            # The last row becomes the head by itself; only a transaction without rows has to name one.
            head=None if rows or tip is None else (self.ns, tip),
            events=(*self.events, *events) if self.events or events else (),
        )

    def _mark_stored(self, commit: Commit, more_events: int = 0) -> None:
        """Remove a stored transaction's contents from the queue, and notify the listeners.

        Args:
            commit: the transaction.
            more_events: the number of events at its end that were passed to `store_queued` and never queued.
        """
        lease, rows = self.lease, commit.rows
        if commit.events:
            self._mark_events_stored(commit, more_events)
        # More may have been queued while the transaction was in progress. Lists only grow at their end, so the stored
        # part is a prefix. A task's record may have been replaced, so records are compared by identity.
        if commit.clears:
            self._clears = self._clears[len(commit.clears) :]
        if self._staged:
            for record in commit.records:
                key = record.ns, record.checkpoint_id, record.task_id
                if self._staged.get(key) is record:
                    del self._staged[key]
        self.moves_head = False
        if self.ns not in lease.visited:
            lease.visited.add(self.ns)
        if rows:
            last = rows[-1]
            self._rows = () if self._rows is rows else self._rows[len(rows) :]
            self.head = self.stored = last.checkpoint_id
            self.stored_step = last.step
            for listener in self.listeners:
                listener(last.step)
            if self.keeps_state:
                lease.move_tip(self.ns, last.checkpoint_id)
        elif commit.head:
            _, self.head = commit.head
            if self.keeps_state:
                lease.move_tip(*commit.head)
        if commit.releases:
            lease.released = True

    def _mark_events_stored(self, commit: Commit, more_events: int = 0) -> None:
        del self.events[: len(commit.events) - more_events]
        for listener in self.lease.event_listeners:
            listener(commit.events)

    def explain(self, error: CheckpointError, commit: Commit) -> None:
        """Add a note to an error: which superstep is not stored, and which superstep the thread is at."""
        if not commit.rows:
            return
        step = commit.rows[-1].step
        of = f" of the graph in namespace {self.ns!r}" if self.ns else ""
        text = f"superstep {step}{of} finished and is not stored" if step > 0 else f"the input{of} is not stored"
        if not (
            isinstance(error, ThreadBusyError) and error.lost
        ):  # after a lost lease another run has moved the thread, so that this run's last superstep would mislead
            there = "the thread" if not self.ns else "it"
            position = (
                f"{there} is at superstep {self.stored_step}" if self.stored_step > NOTHING_STORED else "nothing is"
            )
            text += f"; {position}"
        annotate(error, text)

    async def _flush_outer_checkpoints(self) -> None:
        """Store the outer graphs' queued checkpoints, so that no stored checkpoint refers to one that is not."""
        # Shielded like the transaction that follows (`ThreadLease.commit`): a cancellation between the two would leave
        # a finished superstep unstored.
        with anyio.CancelScope(shield=True):
            for outer in self.outer:
                await outer.flush_checkpoints()

    async def _write(self, records: Sequence[TaskRecord], events: Sequence[EventRow] = ()) -> None:
        if self.has_queued or self.events or events:
            await self.store_queued(records, events)
        elif records:
            if self.outer:
                await self._flush_outer_checkpoints()
            await self.lease.record(records)

    async def _write_batched(
        self,
        records: Sequence[TaskRecord] = (),
        on_stored: Sequence[Callable[[], None]] = (),
        events: Sequence[EventRow] = (),
    ) -> None:
        """Store records, or only what is queued. Calls that arrive during a transaction share the next one."""
        for batch in self._next:
            batch.add(records, on_stored, events)
            await batch.wait()
            return
        batch = _Batch()
        batch.add(records, on_stored, events)
        with anyio.CancelScope(shield=True):
            while batch.used:
                # The first caller stores the following batches for all callers: if each stored its own record, n
                # siblings that finish together would need n transactions in a row. Hence the shield: other callers
                # wait for this one's transaction.
                following = _Batch()
                self._next = (following,)
                try:
                    await self._write(batch.records, batch.events)
                except BaseException as error:
                    self._next = ()
                    batch.done([error])
                    following.done([error])
                    raise
                batch.done()
                batch = following
            self._next = ()


class _Batch:
    """Records and events of one transaction, and the tasks that wait for it."""

    def __init__(self) -> None:
        self.records: list[TaskRecord] = []
        self.events: list[EventRow] = []
        self.used = False
        self._on_stored: list[Callable[[], None]] = []
        self._waiting: list[anyio.Event] = []
        self._failures: Sequence[BaseException] = ()

    def add(
        self, records: Sequence[TaskRecord], on_stored: Sequence[Callable[[], None]], events: Sequence[EventRow]
    ) -> None:
        self.used = True
        self.records += records
        self.events += events
        self._on_stored += on_stored

    async def wait(self) -> None:
        """Wait until the batch is durable. Raises the error of its transaction."""
        ended = anyio.Event()
        self._waiting.append(ended)
        await ended.wait()
        for error in self._failures:
            raise error

    def done(self, failures: Sequence[BaseException] = ()) -> None:
        """Wake the waiters.

        Args:
            failures: the transaction's error, as a sequence of one; empty if the batch is stored.
        """
        self._failures = failures
        if not failures:
            for on_stored in self._on_stored:
                on_stored()
        for ended in self._waiting:
            ended.set()
