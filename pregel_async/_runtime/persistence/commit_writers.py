"""What one namespace of a claimed thread has to store, and when it goes, which is what the durability modes differ in.

"sync" stores each superstep before the next one starts, "async" beside it, and "exit" all of them as one when the run
ends.

Whatever the mode, a transaction follows the one before it in its namespace, and the one of the checkpoint around that
it was made on; and after one has failed there is none any more (`Hold.commit`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import anyio

from checkpoint_savers.entries import Entry
from checkpoint_savers.errors import CheckpointError, ThreadBusyError, annotate
from checkpoint_savers.ledger import Ledger
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, EventRow, TaskId, TaskRecord

from .lease import Apart, Hold

StandsAt = Callable[[CheckpointId], None]

Key = tuple[str, CheckpointId, TaskId]
"""Of a record: namespace, checkpoint and task."""


class Outbox:
    """What one namespace has to store. Here with "sync": each verb returns when it is durable.

    Attributes:
        ledger: of the branch that is written; None stands for a namespace that is not loaded yet.
        head: the namespace's head, as it is stored.
        moves: the tip is not the head: the head moves there with the next transaction.
        events: rows of events that are to go with the next transaction, or do with the one that is under way.
        stands_at: told of the tip when it is stored; None when nobody asks.
        acknowledged: told which superstep is stored with all before it; None when nobody asks.
        stored: the checkpoint of the branch that is stored; None when there is none,
        standing: and its superstep.
        forgotten: the thread is to be left as it was found: nothing is written any more.
    """

    def __init__(self, hold: Hold, ns: str, outer: Outbox | None, stands_at: StandsAt | None) -> None:
        self.hold = hold
        self.ns = ns
        self.outer = outer
        self.ledger = Ledger.start(ns)
        self.head: CheckpointId | None = None
        self.moves = False
        self.events: list[EventRow] = []
        self.stands_at = stands_at
        self.acknowledged: Callable[[int], None] | None = None
        self.stored: CheckpointId | None = None
        self.standing: int | None = None
        self.forgotten = False
        self._rows: list[CheckpointRow] = []
        self._staged: dict[Key, TaskRecord] = {}
        self._clears: list[Key] = []
        self._batch: _Batch | None = None

    # ---- what is to go with the next transaction ---------------------------------------------------------------------

    def add(self, entry: Entry, step: int, metadata: dict[str, Any]) -> CheckpointRow:
        """The next checkpoint."""
        row = self.ledger.append(entry, checkpoint_id=self.hold.next_id(), step=step, metadata=metadata)
        self._rows.append(row)
        return row

    def stage(self, record: TaskRecord) -> None:
        """What became of a task."""
        self._staged[record.ns, record.checkpoint_id, record.task_id] = record

    def clear(self, keys: Iterable[Key]) -> None:
        """Records that are void."""
        for key in keys:
            self._staged.pop(key, None)
            self._clears.append(key)

    def forget(self) -> None:
        """Drop what waits, and whatever else is to be stored."""
        self.forgotten = True
        self._rows.clear()
        self._staged.clear()
        self._clears.clear()
        self.events.clear()
        self.moves = False

    @property
    def waits(self) -> bool:
        """Whether there is something to store."""
        return bool(self._rows or self._staged or self.moves)

    # ---- storing it --------------------------------------------------------------------------------------------------

    def commit(self, *, ends: bool) -> Awaitable[None]:
        """A superstep is finished. Await it at once.

        Args:
            ends: nothing is left to run. The root's claim is given up with it.

        Raises:
            CheckpointError: of this transaction, or of an earlier one.
        """
        return self.transact(releases=ends and self.outer is None)

    async def record(self, record: TaskRecord, noted: Callable[[], None], events: EventRow | None = None) -> None:
        """Store the result of a task whose siblings are running. Results that come during a transaction share the next.

        Args:
            events: the task's, which are stored in the same transaction.
        """
        await self._share(record, noted, events)

    async def put(self, records: Sequence[TaskRecord]) -> None:
        """The open superstep comes to rest: store these records."""
        await self._write(records)

    async def answer(self, records: Sequence[TaskRecord]) -> None:
        """The open superstep was told something, before anything runs."""
        await self.put(records)

    async def flush(self) -> None:
        """Store the checkpoints that wait: something is to be stored that was made on them."""
        if self._rows:
            await self._share(None)

    async def spill(self) -> None:
        """Store the events that wait, and whatever else does."""
        await self._share(None)

    async def rest(self) -> None:
        """The run ends, or is cut off: store what is to be kept of it."""
        if self.events and not self.forgotten:
            await self.spill()

    async def finish(self) -> None:
        """The run of this graph is over, well or not: what earlier verbs took over is stored when this returns."""

    async def settle(self) -> None:
        """Store all that waits, in one transaction, and give the root's claim up: for an edit."""
        if self.waits:
            await self.transact(releases=self.ns == "")

    async def transact(
        self, records: Sequence[TaskRecord] = (), events: Sequence[EventRow] = (), *, releases: bool = False
    ) -> None:
        """One transaction with these, and with all that waits. It waits still if that fails."""
        if self.outer is not None:
            await self._saved_first(self.outer)
        rows, tip = tuple(self._rows), self.ledger.tip
        assert tip is not None
        cancelled = await self._store(rows, records, None if rows else (self.ns, tip), events, releases=releases)
        if self.stands_at is not None:
            self.stands_at(tip)
        if cancelled is not None:
            raise cancelled

    async def _store(
        self,
        rows: Sequence[CheckpointRow],
        records: Sequence[TaskRecord],
        head: tuple[str, CheckpointId] | None,
        more_events: Sequence[EventRow] = (),
        *,
        releases: bool = False,
        alone: bool = False,
    ) -> BaseException | None:
        """Store these, and unless they go alone, all else that waits. Returns: as `Hold.commit`."""
        hold, rows = self.hold, tuple(rows)
        releases = releases and not hold.lingers
        events = () if alone else tuple(self.events)
        staged = () if alone else tuple(self._staged.items())
        clears = () if alone else tuple(self._clears)
        commit = Commit(
            rows=rows,
            expected_head=self.head,
            records=(*[record for _, record in staged], *records) if staged else tuple(records),
            clears=clears,
            expires_at=hold.expiry(),
            releases=releases,
            head=head,
            events=(*events, *more_events) if more_events else events,
        )
        try:
            cancelled = await hold.commit(commit)
        except CheckpointError as error:
            if rows:
                self._tell(error, rows[-1].step)
            raise
        # More may have come meanwhile, and waits for the next.
        del self._rows[: len(rows)]
        if events:
            del self.events[: len(events)]
        if commit.events and hold.events_stored is not None:
            hold.events_stored(commit.events)
        if clears:
            del self._clears[: len(clears)]
        for key, record in staged:
            if self._staged.get(key) is record:
                del self._staged[key]
        self.moves = False
        hold.visited.add(self.ns)
        if rows:
            self.head = self.stored = rows[-1].checkpoint_id
            self.standing = rows[-1].step
            if self.acknowledged is not None:
                self.acknowledged(self.standing)
        elif head is not None:
            self.head = head[1]
        if releases:
            hold.released = True
        return cancelled

    def _tell(self, error: CheckpointError, step: int) -> None:
        """Say what is not stored."""
        of = f" of the graph in namespace {self.ns!r}" if self.ns else ""
        text = f"superstep {step}{of} finished and is not stored" if step > 0 else f"the input{of} is not stored"
        if not (isinstance(error, ThreadBusyError) and error.lost):  # else another run says where the thread stands
            there = "the thread" if not self.ns else "it"
            text += f"; {there} stands at superstep {self.standing}" if self.standing is not None else "; nothing is"
        annotate(error, text)

    async def _saved_first(self, outer: Outbox) -> None:
        """A graph's state is stored after the checkpoint of the graph around it that it was made on."""
        with anyio.CancelScope(shield=True):
            await outer.flush()

    async def _write(self, records: Sequence[TaskRecord], events: Sequence[EventRow] = ()) -> None:
        if self.waits or self.events or events:
            await self.transact(records, events)
        elif records:
            if self.outer is not None:
                await self._saved_first(self.outer)
            await self.hold.record(records)

    async def _share(
        self, record: TaskRecord | None, noted: Callable[[], None] | None = None, events: EventRow | None = None
    ) -> None:
        """Store a record, or only what waits, with whatever else is being recorded at the time."""
        batch = self._batch
        if batch is not None:
            batch.add(record, noted, events)
            await batch.wait()
            return
        batch = self._batch = _Batch()
        batch.add(record, noted, events)
        with anyio.CancelScope(shield=True):
            while batch.used:
                # Those that come while this one is being stored gather in the next; this task stores it for them.
                self._batch = following = _Batch()
                try:
                    await self._write(batch.records, batch.events)
                except BaseException as error:
                    self._batch = None
                    batch.done(error)
                    following.done(error)
                    raise
                batch.done(None)
                batch = following
            self._batch = None


class Overlapping(Outbox):
    """With "async": a finished superstep is stored while the next one runs, one at a time.

    A superstep is handed over when the one before it is stored, so that one at most is at risk. What becomes of tasks
    goes with it. Questions, failures and the end are stored before control returns.
    """

    def __init__(self, hold: Hold, ns: str, outer: Outbox | None, stands_at: StandsAt | None) -> None:
        super().__init__(hold, ns, outer, stands_at)
        self._under_way: Apart | None = None
        self._due = False  # not only checkpoints that wait for another

    async def commit(self, *, ends: bool) -> None:
        self._due = True
        await self._landed()
        self._depart(releases=ends and self.outer is None)
        # Where events are kept, a reader must not see what tasks show of which no stored row says that they may begin.
        if ends or (self.outer is not None and self.hold.events_stored is not None):
            await self._landed()

    async def record(self, record: TaskRecord, noted: Callable[[], None], events: EventRow | None = None) -> None:
        if self.hold.broken is not None:
            raise self.hold.broken
        self.stage(record)
        if events is not None:
            self.events.append(events)
        noted()

    async def put(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            self.stage(record)
        await self.finish()

    async def flush(self) -> None:
        await self._landed()
        if self._rows:
            self._depart()
            await self._landed()

    async def spill(self) -> None:
        self._due = True
        await self.finish()

    async def rest(self) -> None:
        await self.finish()

    async def finish(self) -> None:
        if self.forgotten:
            return
        if self._under_way is not None or self._due or self._staged or self.events:
            await self.hold.start(self._store_rest).wait_out()
        elif self.hold.broken is not None:
            raise self.hold.broken

    async def _store_rest(self) -> None:
        await self._landed()
        if self._due or self._staged or self.events:
            self._depart()
            await self._landed()

    def _depart(self, *, releases: bool = False) -> None:
        """Begin a transaction with all that waits, in a task of the run's own."""
        assert self._under_way is None
        self._due = False
        flight = self.hold.start(partial(self._fly, releases))
        if not flight.over.is_set():  # as it may be, where asyncio's tasks begin eagerly
            self._under_way = flight

    async def _fly(self, releases: bool) -> None:
        try:
            await self.transact(releases=releases)
        except BaseException as error:
            self.hold.fail(error)
            raise
        finally:
            self._under_way = None

    async def _landed(self) -> None:
        """Wait until nothing is under way. Raises what a transaction of the run has raised."""
        while self._under_way is not None:
            await self._under_way.wait()
        if self.hold.broken is not None:
            raise self.hold.broken


class Late(Outbox):
    """With "exit": everything is stored when the run ends, however it ends; see `Thread.end`.

    Checkpoints are merged as they come, so that what is held does not grow with their number. A fork is not: what is
    recorded on it is told apart by it.

    Attributes:
        due: not only checkpoints that wait for another.
        end: stores all that the run has to store, of all its graphs; of the root's alone.
    """

    def __init__(self, hold: Hold, ns: str, outer: Outbox | None, stands_at: StandsAt | None) -> None:
        super().__init__(hold, ns, outer, stands_at)
        self.due = False
        self.end: Callable[[bool], Awaitable[None]] | None = None

    def add(self, entry: Entry, step: int, metadata: dict[str, Any]) -> CheckpointRow:
        if metadata["source"] == "fork":
            return super().add(entry, step, metadata)
        made = self.hold.next_id()
        self.ledger.put_off(entry, checkpoint_id=made, step=step, metadata=metadata)
        self._drop_void()
        # As it would be stored if the run ended here, but for what it holds: that is made when it is. Those that were
        # put off before it are merged with it and never exist, so that none of them is its parent.
        parent = self.ledger.parent_of_put_off
        return CheckpointRow(
            ns=self.ns, checkpoint_id=made, parent_id=parent, base_id=made, step=step, metadata=metadata, frame=b""
        )

    def _drop_void(self) -> None:
        """Drop what is recorded on checkpoints that are never stored."""
        stands = {*self.ledger.stands, *[row.parent_id for row in self._rows]}
        self._staged = {key: record for key, record in self._staged.items() if key[1] in stands}
        self._clears = [key for key in self._clears if key[1] in stands]

    @property
    def waits(self) -> bool:
        return self.due or bool(self._staged or self.events)

    async def commit(self, *, ends: bool) -> None:
        self.due = True
        if self.stands_at is not None and self.ledger.tip is not None:
            self.stands_at(self.ledger.tip)
        if ends:
            await self._end(releases=True)

    async def record(self, record: TaskRecord, noted: Callable[[], None], events: EventRow | None = None) -> None:
        assert events is None  # rows of events are made at the end
        self.stage(record)
        noted()

    async def put(self, records: Sequence[TaskRecord]) -> None:
        await self.answer(records)
        await self._end(releases=False)

    async def answer(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            self.stage(record)

    async def flush(self) -> None:
        """Nothing is stored before the run ends, and then in order."""

    async def spill(self) -> None:
        """Events that are too many to be held are stored by themselves, where they are void until the run ends."""
        await self.hold.start(self._spill).wait_out()

    async def _spill(self) -> None:
        hold, events = self.hold, tuple(self.events)
        commit = Commit(rows=(), expected_head=None, expires_at=hold.expiry(), events=events)
        cancelled = await hold.commit(commit)
        del self.events[: len(events)]
        if hold.events_stored is not None:
            hold.events_stored(events)
        if cancelled is not None:
            raise cancelled

    async def rest(self) -> None:
        await self._end(releases=False)

    async def finish(self) -> None:
        await self._end(releases=False)

    async def _end(self, *, releases: bool) -> None:
        if self.end is None or self.forgotten or self.hold.released:
            return
        if self.hold.broken is not None:
            raise self.hold.broken
        await self.hold.start(partial(self.end, releases)).wait_out()

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def store_closed(self, root: CheckpointId | None) -> None:
        """Store what was made on checkpoints that the root graph has left behind, before the root's own: its state may
        say that this one's stands there.

        Args:
            root: where it stands; None when it has ended.
        """
        put = self.ledger.put
        if root is None:
            await self.store()
        elif put and put[0].root != root:
            stays_open = put[-1].root == root
            self._rows += self.ledger.take_put_off(all_closed=not stays_open)
            if stays_open:
                cancelled = await self._store(self._rows[:-1], (), None, alone=True)
                if cancelled is not None:
                    raise cancelled
            else:
                await self.store()

    async def store(self, *, releases: bool = False) -> None:
        """Store all that waits, in one transaction."""
        if not self.waits:
            return
        self._rows += self.ledger.take_put_off()
        tip = self.ledger.tip
        head = None if self._rows or tip is None else (self.ns, tip)
        cancelled = await self._store(self._rows, (), head, releases=releases)
        self.due = False
        if cancelled is not None:
            raise cancelled


class _Batch:
    """Records that are stored in one transaction, and the tasks that wait for it."""

    def __init__(self) -> None:
        self.records: list[TaskRecord] = []
        self.noted: list[Callable[[], None]] = []
        self.events: list[EventRow] = []
        self.used = False
        self._event: anyio.Event | None = None
        self._error: BaseException | None = None

    def add(self, record: TaskRecord | None, noted: Callable[[], None] | None, events: EventRow | None) -> None:
        self.used = True
        if events is not None:
            self.events.append(events)
        if record is not None:
            self.records.append(record)
        if noted is not None:
            self.noted.append(noted)

    async def wait(self) -> None:
        """Wait until it is durable. Raises what storing it raised."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
        if self._error is not None:
            raise self._error

    def done(self, error: BaseException | None) -> None:
        if error is None:
            for noted in self.noted:
                noted()
        self._error = error
        if self._event is not None:
            self._event.set()


def outbox(hold: Hold, ns: str, outer: Outbox | None, stands_at: StandsAt | None) -> Outbox:
    """A namespace's, as durable as the run."""
    kind = {"sync": Outbox, "async": Overlapping, "exit": Late}[hold.durability]
    return kind(hold, ns, outer, stands_at)
