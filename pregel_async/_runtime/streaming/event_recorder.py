"""Store events with a run's transactions, so that a reader that reconnects misses none.

Recorded work never runs again, so its events are stored in the transaction that records it; if they need too much
memory, they are flushed before it. Three kinds of transaction record work:

1. A task's record closes the unit of the task, and the units of the tasks that it has called.
2. A subgraph's commit closes the units of the superstep's tasks.
3. The called graph's commit closes all open units, and so does the transaction in which its run ends.

Flushed events are void until a row closes their unit. After a crash, the units that were opened and not closed run
again: the tasks that the called graph plans, which the resumed run knows, and called tasks and tasks of subgraphs, for
which rows were stored before they published anything.

With `durability="exit"` no row is stored before the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import anyio
import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.records import CheckpointId, EventKey, EventKind, EventRow
from checkpoint_savers.saver_port import PAGE

from ..._message_ids import fingerprint
from ...messages import id_of
from ..persistence.namespace_writer import NamespaceWriter
from .event_rows import CLOSED, GRAPH, PendingEvent, StoredEvent, read_row, shown_part, stored_event, write_row
from .parts import RESTARTED, Cursor, RawPart, Unit, number_of

FLUSH_BYTES = 256 * 1024
"""Bytes of events that are held in memory before they are flushed."""

MAX_BYTES = 8 * 2**20
"""The most bytes of events that may be held in memory."""

FLUSH_EVENTS = 256
"""The number of events that are held in memory before they are flushed."""

MAX_POSITION = 10**8 - 1
"""Greater than each position within an attempt; cursors have eight digits for it."""

MOVED = "__moved__"
"""The mode of an event that names the cursor at which the open attempt began, if that was on another checkpoint.

Readers do not receive it.
"""

CALL_PATH = 4
"""The length of a called task's path. Its second element is the caller's path. See `Task.path`."""

_NOTHING = StoredEvent(CLOSED, (), 0, b"")

_GRAPH = Unit(GRAPH, (), "")


class EventRecorder:
    """Stores the events of one run.

    Args:
        writer: the namespace writer of the called graph, with whose transactions events are stored.
        codec: knows the types of the graph and of its subgraphs.

    Attributes:
        finished: ids of the units that an earlier attempt at the open superstep has recorded with their events. If a
            resumed run publishes these events again, they are not stored again.
        is_running: tasks of the called graph run, so that rows of the superstep may be stored early.
        has_earlier: an earlier attempt at the open superstep has stored events.
        on_stored: called with the keys of rows that have been stored.
        stores_at_exit: no row is stored before the run ends (durability "exit").
        shows_unstored: parts are published before their checkpoint or record is stored (durability "async" or "exit").
    """

    def __init__(self, writer: NamespaceWriter, codec: Codec) -> None:
        self.finished: set[str] = set()
        self.has_earlier = self.is_running = False
        self.on_stored: Callable[[Iterable[EventKey]], None] | None = None
        self.stores_at_exit = writer.lease.durability == "exit"
        self.shows_unstored = writer.lease.durability != "sync"
        self._writer = writer
        self._codec = codec
        self._checkpoint_id = writer.tip or ""
        self._epoch = writer.lease.token.epoch
        self._position = 0
        self._before = 0  # events under this lease before those of the attempt
        self._pending: list[PendingEvent] = []
        self._size = 0
        self._rows: dict[EventKey, EventRow] = {}  # rows that are not stored yet
        self._flushed_units: dict[str, Unit] = {}  # open units with flushed events
        # The units that rows have opened, by id, with the unit that each is part of; and the reverse, so that closing a
        # unit need not search all open units.
        self._open_units: dict[str, Sequence[Unit]] = {}
        self._inner_units: dict[str, set[str]] = {}
        self._recorded_units: set[str] = set()  # with "exit": ids of units that are recorded when the run ends
        self._lock = anyio.Lock()
        writer.lease.event_listeners = (self._on_rows_stored,)

    @property
    def needs_flush(self) -> bool:
        """True if the events that are held in memory should be flushed."""
        return self._size > FLUSH_BYTES or len(self._pending) > FLUSH_EVENTS

    @property
    def is_over_capacity(self) -> bool:
        """True if no more events can be held in memory, because code that cannot wait has published too many."""
        return self._size > MAX_BYTES

    @property
    def cursor(self) -> Cursor:
        """The cursor of the last event."""
        return Cursor(self._checkpoint_id, self._epoch, self._position)

    def move_to_tip(self) -> None:
        """Continue at the thread's current checkpoint."""
        self._checkpoint_id = self._writer.tip or ""

    async def resume(
        self, planned: Callable[[bool], Iterable[Unit]], step: int, shown_messages: set[object]
    ) -> list[RawPart]:
        """Resume the open superstep at the thread's current checkpoint.

        After a stop with the superstep open (a question, a failure), a run publishes recorded work again, and runs
        answered tasks of subgraphs again. So all units known at that stop run again, except those recorded since.

        Args:
            planned: returns the units of the called graph that run now; if called with True, the recorded ones too.
            step: the number of the open superstep.
            shown_messages: receives the keys of the messages that earlier attempts have published for good.

        Returns:
            The part that reports which units run again; none if the previous run was not cut off.
        """
        self.move_to_tip()
        after, before, rows = await self._attempts_since_stop()
        if after.position and not rows and self._epoch == after.epoch + 1:
            # The previous run ended with a tail row, and no run has leased the thread since: an epoch in between would
            # belong to an attempt that was cut off before it stored anything.
            return []
        self.has_earlier = bool(rows)
        thread_id = self._writer.thread_id
        reruns = {unit.id: unit for unit in planned(bool(before))}
        for row in before:
            found = read_row(row, thread_id)
            reruns.update({unit.id: unit for unit in (*found.units, *found.opens)})
        for row in rows:
            found = read_row(row, thread_id)
            reruns.update({unit.id: unit for unit in found.opens})
            self.finished.update(found.closes)
            if row.kind == "head":
                self.finished.update([unit.id for unit in found.units])
        self.finished.discard(GRAPH)
        for row in rows:
            self._collect_messages(row, shown_messages)
        named = [msgspec.structs.asdict(unit) for unit in reruns.values() if unit.id not in self.finished]
        data = {"step": step, "checkpoint_id": self._checkpoint_id, "after": str(after), "tasks": named}
        return [RawPart(mode=RESTARTED, ns=(), data=data, step=step)]

    async def _attempts_since_stop(self) -> tuple[Cursor, list[EventRow], list[EventRow]]:
        """Return the cursor of the last stop on the open superstep, the rows up to it, and the rows since."""
        rows = await self._rows_since((CheckpointId(self._checkpoint_id), 0, 0))
        tail_epochs = [row.epoch for row in rows if row.kind == "tail"]
        after = (
            Cursor(self._checkpoint_id, tail_epochs[-1], MAX_POSITION)
            if tail_epochs
            else Cursor(self._checkpoint_id, 0, 0)
        )
        earlier = [row for row in rows if row.epoch <= after.epoch]
        rows = rows[len(earlier) :]
        for row in rows:
            found = read_row(row, self._writer.thread_id)
            if found.events[0].mode == MOVED:  # with "exit", the attempt began at another checkpoint
                after = Cursor.parse(found.events[0].data.decode())
                before = await self._rows_since((CheckpointId(after.checkpoint_id), after.epoch, 0))
                return after, earlier, [*[each for each in before if each.epoch == after.epoch], *rows]
        return after, earlier, rows

    async def _rows_since(self, since: EventKey) -> list[EventRow]:
        """Return the rows of a checkpoint from a key on."""
        saver, at, rows = self._writer.lease.saver, since[0], list[EventRow]()
        while True:
            page = await saver.events(self._writer.thread_id, since=since, limit=PAGE)
            mine = [row for row in page if row.checkpoint_id == at]
            rows += [row for row in mine if row.position]  # the others say which runs continue the thread
            if len(mine) < PAGE:
                return rows
            since = (at, mine[-1].epoch, mine[-1].position + 1)

    def _collect_messages(self, row: EventRow, shown_messages: set[object]) -> None:
        """Add the keys of the messages of recorded units to `shown_messages`; see `modes.messages`."""
        found = read_row(row, self._writer.thread_id)
        for event in found.events:
            unit = found.unit_of(event)
            if event.mode != "messages" or unit is None or unit.id not in self.finished:
                continue
            message, metadata = shown_part(event, unit, Cursor("", 0, 0), self._codec).data
            shown_messages.add(id_of(message))
            content, path = fingerprint(message), metadata.get("langgraph_path", ())
            if len(path) == CALL_PATH:
                shown_messages.add((("|".join(event.ns), path[1]), content))
            shown_messages.update([(("|".join(event.ns[: at + 1]), None), content) for at in range(len(event.ns))])

    def add(self, part: RawPart) -> None:
        """Add an event, and assign its part a cursor.

        Raises:
            UnstorableValueError: the payload cannot be stored.
        """
        self._pending.append(self._new_event(part))

    def _new_event(self, part: RawPart) -> PendingEvent:
        event = stored_event(part, self._codec)
        self._position += 1
        part.at = int(self._writer.lease.environment.now() * 1000)
        part.number = number_of(self._epoch, self._before + self._position)
        # The part may be published on a checkpoint that a crash loses. `since` then names the stored checkpoint from
        # which a reader has to continue.
        since: str | None = None
        if self.shows_unstored and (self.stores_at_exit or self._checkpoint_id != (self._writer.stored or "")):
            since = self._writer.stored or ""
        part.cursor = Cursor(self._checkpoint_id, self._epoch, self._position, 0, since)
        self._size += len(event.data)
        return PendingEvent(self._position, part.unit, event, part.at)

    async def open_units(self, units: Sequence[Unit], outer_units: Sequence[Unit]) -> None:
        """Store that units are about to begin.

        Args:
            units: the units.
            outer_units: the unit that they are part of, if there is one.
        """
        if self._register(units, outer_units) and not self.stores_at_exit:
            self._writer.events.append(self._make_row("head", [], opens=units))
            await self._writer.flush_events()

    def _register(self, units: Sequence[Unit], outer_units: Sequence[Unit]) -> bool:
        has_new = any(unit.id not in self._open_units for unit in units)
        for unit in units:
            self._open_units[unit.id] = outer_units
            for outer in outer_units:
                self._inner_units.setdefault(outer.id, set()).add(unit.id)
        return has_new

    async def wait_for_flush(self) -> None:
        """Wait until no flush is in progress: the row that closes a unit must not be stored before its events."""
        if self._lock.locked():
            async with self._lock:
                pass

    def close_units(
        self, ids: Iterable[str], parts: Iterable[RawPart], opens: Sequence[Unit] = (), outer_units: Sequence[Unit] = ()
    ) -> list[EventRow]:
        """Close units and all their inner units.

        Args:
            ids: the ids of the units.
            parts: the last parts of the units.
            opens: the units that may begin once the row is stored.
            outer_units: the unit that the units in `opens` are part of, if there is one.

        Returns:
            The row for the transaction that records the units; none if it would be empty.
        """
        over = self._with_inner_units(ids)
        closes = [each for each in over if each in self._open_units or each in self._flushed_units]
        for each in over:
            self._inner_units.pop(each, None)
            for outer in self._open_units.pop(each, ()):
                self._inner_units.get(outer.id, set()).discard(each)
        last = [self._new_event(part) for part in parts]
        if self.stores_at_exit:
            self._pending += last
            self._recorded_units |= over
            return []
        if opens:
            self._register(opens, outer_units)
        for each in over:
            self._flushed_units.pop(each, None)
        mine = [each for each in self._pending if each.unit is not None and each.unit.id in over]
        if mine:
            self._pending = [each for each in self._pending if each.unit is None or each.unit.id not in over]
        if not (mine or last or closes or opens):
            return []
        # Sorted, as the order of a set of strings differs between processes, and rows should not.
        return [self._make_row("head", [*self._pop_restart(), *mine, *last], closes=sorted(closes), opens=opens)]

    def _with_inner_units(self, ids: Iterable[str]) -> set[str]:
        """Return the ids of units and of all their open inner units. Visits no other unit: thousands may be open."""
        found, visits = set[str](), list(ids)
        while visits:
            each = visits.pop()
            if each not in found:
                found.add(each)
                visits += self._inner_units.get(each, ())
        return found

    def close_superstep(self, tip: CheckpointId) -> None:
        """Add the superstep's events to the transaction that makes this checkpoint, and continue at that checkpoint."""
        self.append_tail_row()
        self._before += self._position
        self._checkpoint_id, self._position = tip, 0
        self.finished.clear()

    def defer_superstep(self) -> None:
        """Mark all events so far as recorded. For durability "exit", where a superstep is stored when the run ends."""
        self._recorded_units |= {each.unit.id for each in self._pending if each.unit is not None}
        self._recorded_units |= self._flushed_units.keys()
        self._open_units, self._inner_units = {}, {}

    def append_head_row(self) -> None:
        """Add the held events, the first at the new checkpoint, to the transaction that makes it."""
        if self._pending:
            self._writer.events.append(self._make_row("head", self._pop_pending()))

    def append_tail_row(self) -> None:
        """Add all held events to the next transaction, and close all units: the run ends, or the superstep does."""
        if self._pending or self._flushed_units:
            self._writer.events.append(self._make_row("tail", self._pop_pending()))
        self._flushed_units, self._open_units, self._inner_units, self._recorded_units = {}, {}, {}, set()

    def void_open_units(self) -> None:
        """Drop the held events of open units, because the run is cut off.

        With "exit", add the other held events to the transaction that ends the run.
        """
        held = self._pop_pending()
        if not self.stores_at_exit:
            return
        mine = [each for each in held if each.unit is None or each.unit.id in self._recorded_units]
        void = {each.unit.id: each.unit for each in held if each.unit is not None and each not in mine}
        void.update(
            {id: unit for id, unit in self._flushed_units.items() if id not in self._recorded_units and id != GRAPH}
        )
        closes = [id for id in self._flushed_units if id in self._recorded_units or id == GRAPH]
        if not (mine or void or closes):
            return
        tip = self._writer.tip or ""
        self._writer.events.append(self._make_row("head", mine, closes=closes, opens=list(void.values())))
        # With "exit" the events began at a checkpoint that is no longer the thread's newest. A later attempt reads the
        # rows of the newest one, so a row there names the beginning.
        if tip != self._checkpoint_id:
            began = str(Cursor(self._checkpoint_id, self._epoch, 0)).encode()
            self._before += self._position
            self._checkpoint_id, self._position = tip, 1
            moved = PendingEvent(1, None, StoredEvent(MOVED, (), 0, began))
            self._writer.events.append(self._make_row("head", [moved]))

    async def flush(self) -> None:
        """Store the held events now. They are void until their units are closed."""
        # Several tasks may find `needs_flush` true at once; all but the first find nothing left to do.
        async with self._lock:
            if self.needs_flush:
                await self._flush_pending()

    async def flush_early(self) -> None:
        """Store the held events of a superstep in progress, however few, because a reader elsewhere waits for them.

        Does nothing between supersteps: their transaction has all held events, and a row must not be in two.
        """
        async with self._lock:
            if self.is_running and self._pending and not self.stores_at_exit:
                await self._flush_pending()

    async def end_early_rows(self) -> None:
        """Stop to store rows early, and wait for the last one: a superstep is about to be stored."""
        self.is_running = False
        await self.wait_for_flush()

    async def _flush_pending(self) -> None:
        if restart := self._pop_restart():
            self._writer.events.append(self._make_row("head", restart))
        if self._pending:
            self._flushed_units.update({unit.id: unit for each in self._pending for unit in (each.unit or _GRAPH,)})
            self._writer.events.append(self._make_row("part", self._pop_pending()))
        await self._writer.flush_events()

    def _pop_restart(self) -> list[PendingEvent]:
        """Remove and return the held event that reports which units run again, if there is one.

        It is stored with the attempt's first row that records work. A reader that reads the events of that work from
        storage must drop those of earlier attempts, and later attempts do not name that work any more.
        """
        first = self._pending[:1] if self._pending and self._pending[0].event.mode == RESTARTED else []
        del self._pending[: len(first)]
        return first

    def _pop_pending(self) -> list[PendingEvent]:
        held, self._pending, self._size = self._pending, [], 0
        return held

    def _make_row(
        self, kind: EventKind, held: list[PendingEvent], *, closes: Sequence[str] = (), opens: Sequence[Unit] = ()
    ) -> EventRow:
        if not held:
            self._position += 1
            # The position is part of the row's key, so that a row without events takes one as well.
            held = [PendingEvent(self._position, None, _NOTHING)]
        if kind == "head" and GRAPH in self._flushed_units and not self.stores_at_exit:
            closes = [*closes, GRAPH]
            del self._flushed_units[GRAPH]
        self._size = sum([len(each.event.data) for each in self._pending])
        row = write_row(self._checkpoint_id, self._epoch, kind, held, closes=closes, opens=opens, before=self._before)
        self._rows[row.key] = row
        return row

    def _on_rows_stored(self, rows: Iterable[EventRow]) -> None:
        keys = [row.key for row in rows]
        for key in keys:
            self._rows.pop(key, None)
        if self.on_stored is not None:
            self.on_stored(keys)

    def unstored_rows(self) -> list[EventRow]:
        """Return the rows that only this process has, including those of transactions in progress."""
        rows = list(self._rows.values())
        if self._pending:
            rows.append(write_row(self._checkpoint_id, self._epoch, "part", self._pending, before=self._before))
        return sorted(rows, key=lambda row: row.key)

    def open_attempts(self) -> set[tuple[str, int]]:
        """Return the attempts (checkpoint and epoch) that have events which are not final in storage yet."""
        return {(self._checkpoint_id, self._epoch), *((row.checkpoint_id, row.epoch) for row in self._rows.values())}
