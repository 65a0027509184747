"""What one namespace of a leased thread has to store, and when it goes, which is what the durability modes differ in.

"sync" stores each superstep before the next one starts, which is here; "async" while it runs (`overlapped.py`), and
"exit" all of them as one when the run ends (`at_exit.py`).

Whatever the mode, a transaction follows the one before it in its namespace, and the one of the checkpoint around that
it was made on; and after one has failed there is none any more (`ThreadLease.commit`).
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
"""The superstep of an empty namespace: before the first input, which is superstep -1."""

Key = tuple[str, CheckpointId, TaskId]
"""Of a record: namespace, checkpoint and task."""


class CommitWriter:
    """What one namespace has to store. Here with "sync": each verb returns when it is durable.

    Args:
        around: that of the graph around; empty for the outermost graph.
        keeps: the state of the graph is kept from call to call: the lease learns its newest checkpoint.

    Attributes:
        chain: of the branch that is written.
        head: the namespace's head, as it is stored.
        moves: the tip is not the head: the head moves there with the next transaction.
        events: rows of events that are to go with the next transaction, or do with the one that is under way.
        listeners: called with the superstep that is stored with all before it.
        stored: the checkpoint of the branch that is stored; None when there is none,
        standing: and its superstep.
        forgotten: the thread is to be left as it was found: nothing is written any more.
    """

    def __init__(
        self, lease: ThreadLease, ns: str, outer: tuple[CommitWriter, ...] = (), *, keeps: bool = False
    ) -> None:
        self.lease = lease
        self.ns = ns
        self.outer = outer
        self.keeps = keeps
        self.chain = ChainWriter.start(ns)
        self.head: CheckpointId | None = None
        self.moves_head = False
        self.events: list[EventRow] = []
        self.listeners: tuple[Callable[[int], None], ...] = ()
        self.stored: CheckpointId | None = None
        self.stored_step = NOTHING_STORED
        self.discarded = False
        self._rows: list[CheckpointRow] = []
        self._staged: dict[Key, TaskRecord] = {}
        self._clears: list[Key] = []
        self._next: tuple[_Batch, ...] = ()  # what gathers while a batch is being stored; at most one

    def nested(self, ns: str, *, keeps: bool) -> Self:
        """That of a graph that a node runs."""
        return type(self)(self.lease, ns, (self,), keeps=keeps)

    @property
    def tip(self) -> CheckpointId:
        """The checkpoint on which the open superstep was planned: a superstep always follows one."""
        tip = self.chain.tip
        assert tip is not None
        return tip

    def add(self, delta: Delta, step: int, metadata: dict[str, Any]) -> CheckpointRow:
        """Add the next checkpoint, and return its row."""
        row = self.chain.append(delta, checkpoint_id=self.lease.ids.next(delta.ts), step=step, metadata=metadata)
        self._rows.append(row)
        return row

    def stage(self, record: TaskRecord) -> None:
        """Add what became of a task."""
        self._staged[record.ns, record.checkpoint_id, record.task_id] = record

    def clear(self, keys: Iterable[Key]) -> None:
        """Make records void."""
        for key in keys:
            self._staged.pop(key, None)
            self._clears.append(key)

    def discard(self) -> None:
        """Drop what waits, and whatever else is to be stored."""
        self.discarded = True
        self._rows.clear()
        self._staged.clear()
        self._clears.clear()
        self.events.clear()
        self.moves_head = False

    @property
    def has_queued(self) -> bool:
        """Whether there is something to store."""
        return bool(self._rows or self._staged or self.moves_head)

    def commit(self, *, ends: bool) -> Awaitable[None]:
        """A superstep is finished. Await it at once.

        Args:
            ends: nothing is left to run. The outermost graph's lease is released with it.

        Raises:
            CheckpointError: of this transaction, or of an earlier one.
        """
        return self.store_queued(releases=ends and not self.outer)

    async def record(self, record: TaskRecord, on_stored: Callable[[], None], events: Sequence[EventRow] = ()) -> None:
        """Store the result of a task whose siblings are running. Results that come during a transaction share the next.

        Args:
            noted: called when it is stored.
            events: the task's, which are stored in the same transaction.
        """
        await self._write_batched([record], [on_stored], events)

    async def record_outcomes(self, records: Sequence[TaskRecord]) -> None:
        """The open superstep comes to rest: store these records."""
        await self._write(records)

    async def record_answers(self, records: Sequence[TaskRecord]) -> None:
        """The open superstep was told something, before anything runs."""
        await self.record_outcomes(records)

    async def flush_checkpoints(self) -> None:
        """Store the checkpoints that wait: something is to be stored that was made on them."""
        if self._rows:
            await self._write_batched()

    async def flush_events(self) -> None:
        """Store the events that wait, and whatever else does."""
        await self._write_batched()

    async def flush(self) -> None:
        """The run ends, or is cut off: store what is to be kept of it."""
        if self.events and not self.discarded:
            await self.flush_events()

    async def close(self) -> None:
        """The run of this graph is over, well or not: what earlier verbs took over is stored when this returns."""

    async def commit_edit(self) -> None:
        """Store all that waits, in one transaction, and release the root's lease: for an edit."""
        if self.has_queued:
            await self.store_queued(releases=self.ns == "")

    async def store_queued(
        self, records: Sequence[TaskRecord] = (), events: Sequence[EventRow] = (), *, releases: bool = False
    ) -> None:
        """Store these, and all that waits, in one transaction. It waits still if that fails."""
        if self.outer:
            await self._flush_outer_checkpoints()
        commit = self._build_commit(records, events, releases=releases)
        try:
            await self.lease.commit(
                commit, partial(self._mark_stored, more_events=len(events)) if events else self._mark_stored
            )
        except CheckpointError as error:
            self._explain(error, commit)
            raise

    def _build_commit(
        self, records: Sequence[TaskRecord] = (), events: Sequence[EventRow] = (), *, releases: bool = False
    ) -> Commit:
        """The transaction of all that waits."""
        lease, rows = self.lease, tuple(self._rows)
        return Commit(
            rows=rows,
            expected_head=self.head,
            records=(*self._staged.values(), *records),
            clears=tuple(self._clears),
            expires_at=lease.environment.now() + lease.duration,
            releases=releases and not lease.outlives_commit,
            head=None if rows or not self.chain.tip else (self.ns, self.chain.tip),
            events=(*self.events, *events),
        )

    def _mark_stored(self, commit: Commit, more_events: int = 0) -> None:
        """Note that a transaction is stored. More may have come meanwhile, and waits for the next.

        Args:
            more_events: so many of its events did not wait here.
        """
        lease, rows = self.lease, commit.rows
        if commit.events:
            self._mark_events_stored(commit, more_events)
        if commit.clears:
            del self._clears[: len(commit.clears)]
        if self._staged:
            for record in commit.records:
                key = record.ns, record.checkpoint_id, record.task_id
                if self._staged.get(key) is record:
                    del self._staged[key]
        self.moves_head = False
        lease.visited.add(self.ns)
        if rows:
            del self._rows[: len(rows)]
            self.head = self.stored = tip = rows[-1].checkpoint_id
            self.stored_step = rows[-1].step
            for acknowledged in self.listeners:
                acknowledged(self.stored_step)
            if self.keeps:
                lease.move_tip(self.ns, tip)
        elif commit.head:
            _, self.head = commit.head
            if self.keeps:
                lease.move_tip(*commit.head)
        if commit.releases:
            lease.released = True

    def _mark_events_stored(self, commit: Commit, more_events: int = 0) -> None:
        del self.events[: len(commit.events) - more_events]
        for stored in self.lease.event_listeners:
            stored(commit.events)

    def _explain(self, error: CheckpointError, commit: Commit) -> None:
        """Add a note to the error that says what is not stored."""
        if not commit.rows:
            return
        step = commit.rows[-1].step
        of = f" of the graph in namespace {self.ns!r}" if self.ns else ""
        text = f"superstep {step}{of} finished and is not stored" if step > 0 else f"the input{of} is not stored"
        if not (isinstance(error, ThreadBusyError) and error.lost):  # else another run says where the thread stands
            there = "the thread" if not self.ns else "it"
            stands = (
                f"{there} stands at superstep {self.stored_step}" if self.stored_step > NOTHING_STORED else "nothing is"
            )
            text += f"; {stands}"
        annotate(error, text)

    async def _flush_outer_checkpoints(self) -> None:
        """A graph's state is stored after the checkpoint of the graph around it that it was made on."""
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
        """Store records, or only what waits, with whatever else is being recorded at the time."""
        for batch in self._next:
            batch.add(records, on_stored, events)
            await batch.wait()
            return
        batch = _Batch()
        batch.add(records, on_stored, events)
        with anyio.CancelScope(shield=True):
            while batch.used:
                # Those that come while this one is being stored gather in the next; this task stores it for them.
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
    """Records that are stored in one transaction, and the tasks that wait for it."""

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
        """Wait until it is durable. Raises what storing it raised."""
        ended = anyio.Event()
        self._waiting.append(ended)
        await ended.wait()
        for error in self._failures:
            raise error

    def done(self, failures: Sequence[BaseException] = ()) -> None:
        """Wake the waiters.

        Args:
            failures: what storing it raised; empty if it is stored.
        """
        self._failures = failures
        if not failures:
            for on_stored in self._on_stored:
                on_stored()
        for ended in self._waiting:
            ended.set()
