"""Events that are kept with a run's transactions, so that a reader that was disconnected misses nothing.

What is recorded never runs again, so its events never come again: they are stored in the transaction that records it,
or, where there are too many to be held until then, before it. Three kinds of transaction record work:

1. A task's record closes the unit of that task, and of what it has called.
2. The commit of a graph inside closes the tasks of its superstep.
3. The commit of the called graph, and its rest, close all that is open.

Events that are spilled before their unit is closed are void until a later row closes it. What runs again after a crash
is what was opened and not closed: the tasks that the called graph plans, which the resumed run knows, and the calls and
the tasks of graphs inside, which are opened by rows of their own before they show anything.

With `durability="exit"` nothing is stored before the end, so that rows are made then.
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
from .event_rows import CLOSED, GRAPH, HeldEvent, StoredEvent, read_row, shown_part, stored_event, write_row
from .parts import RESTARTED, Cursor, Part, Unit

HEAVY = 256 * 1024
"""Bytes of events that are held before they are spilled."""

OVERFULL = 8 * 2**20
"""Bytes of events that may be held at most."""

MANY = 256
"""Events that are held before they are spilled."""

LAST = 10**8 - 1
"""Behind every position of an attempt."""

MOVED = "__moved__"
"""The mode of an event that names the place where the attempt began whose work is open on this checkpoint. Readers do
not get it."""

CALL_PATH = 4
"""The length of the path of a called task; the second element is its caller's. See `Task.path`."""

_NOTHING = StoredEvent(CLOSED, (), 0, b"")

_GRAPH = Unit(GRAPH, (), "")


class EventRecorder:
    """Keeps the events of one run.

    Args:
        thread: the called graph's, which commits.
        codec: knows the types of the graph and of those inside.

    Attributes:
        finished: ids of units that an earlier attempt at the open superstep has recorded, with their events. What a
            resumed run shows of them again is not kept a second time.
        has_earlier: an earlier attempt at the open superstep has kept events.
        on_stored: called with the keys of rows that are stored.
        is_late: nothing is stored before the run ends.
        is_ahead: events are shown on checkpoints that are not stored yet; a record is noted now, and stored later.
    """

    def __init__(self, thread: NamespaceWriter, codec: Codec) -> None:
        self.finished: set[str] = set()
        self.has_earlier = False
        self.on_stored: Callable[[Iterable[EventKey]], None] | None = None
        self.is_late = thread.lease.durability == "exit"
        self.is_ahead = thread.lease.durability != "sync"
        self._thread = thread
        self._codec = codec
        self._at = thread.tip or ""
        self._epoch = thread.lease.token.epoch
        self._position = 0
        self._held: list[HeldEvent] = []
        self._size = 0
        self._rows: dict[EventKey, EventRow] = {}  # made, and not stored yet
        self._spilled: dict[str, Unit] = {}  # open units that have events in earlier rows
        self._opened: dict[
            str, Sequence[Unit]
        ] = {}  # ids of units that rows have opened, and the units they are part of
        self._inside: dict[str, set[str]] = {}  # the same the other way: ids of units, and of the open ones inside
        self._recorded: set[str] = set()  # with "exit": ids of units that are recorded at the end
        self._lock = anyio.Lock()
        thread.lease.event_listeners = (self._stored,)

    @property
    def is_heavy(self) -> bool:
        """Whether the events that are held are to be spilled."""
        return self._size > HEAVY or len(self._held) > MANY

    @property
    def is_over_capacity(self) -> bool:
        """Whether no more can be held: code that may not wait has brought too many."""
        return self._size > OVERFULL

    @property
    def place(self) -> Cursor:
        """Of the last event."""
        return Cursor(self._at, self._epoch, self._position)

    def move(self) -> None:
        """Begin on the checkpoint that the thread is at."""
        self._at = self._thread.tip or ""

    async def begin(self, planned: Callable[[bool], Iterable[Unit]], step: int, said: set[object]) -> list[Part]:
        """Resume the superstep that is open on the checkpoint that the thread is at.

        After a rest, a run shows once more what was recorded before it, and tasks inside that were answered run again:
        all units that were known at the rest are void since then, but for those that were recorded since.

        Args:
            planned: gives the units of the called graph that run now; if True, with those that are recorded.
            step: the superstep that is open.
            said: gets what the messages are known by that earlier attempts have shown for good.

        Returns:
            The part that says what runs again; none if the run before came to rest.
        """
        self.move()
        after, before, rows = await self._cut_off_attempts()
        if after.position and not rows and self._epoch == after.epoch + 1:
            return []  # the run before came to rest; else one that has stored nothing may have been cut off since
        self.has_earlier = bool(rows)
        thread_id = self._thread.thread_id
        again = {unit.id: unit for unit in planned(bool(before))}
        for row in before:
            found = read_row(row, thread_id)
            again.update({unit.id: unit for unit in (*found.units, *found.opens)})
        for row in rows:
            found = read_row(row, thread_id)
            again.update({unit.id: unit for unit in found.opens})
            self.finished.update(found.closes)
            if row.kind == "head":
                self.finished.update([unit.id for unit in found.units])
        self.finished.discard(GRAPH)
        for row in rows:
            self._know(row, said)
        named = [msgspec.structs.asdict(unit) for unit in again.values() if unit.id not in self.finished]
        data = {"step": step, "checkpoint_id": self._at, "after": str(after), "tasks": named}
        return [Part(mode=RESTARTED, ns=(), data=data, step=step)]

    async def _cut_off_attempts(self) -> tuple[Cursor, list[EventRow], list[EventRow]]:
        """The place of the last rest on the open superstep; the rows up to it; and those of the attempts since."""
        rows = await self._rows_since((CheckpointId(self._at), 0, 0))
        rests = [row.epoch for row in rows if row.kind == "tail"]
        after = Cursor(self._at, rests[-1], LAST) if rests else Cursor(self._at, 0, 0)
        earlier = [row for row in rows if row.epoch <= after.epoch]
        rows = rows[len(earlier) :]
        for row in rows:
            found = read_row(row, self._thread.thread_id)
            if found.events[0].mode == MOVED:  # with "exit", the attempt began on another checkpoint
                after = Cursor.read(found.events[0].data.decode())
                before = await self._rows_since((CheckpointId(after.checkpoint_id), after.epoch, 0))
                return after, earlier, [*[each for each in before if each.epoch == after.epoch], *rows]
        return after, earlier, rows

    async def _rows_since(self, since: EventKey) -> list[EventRow]:
        """The rows on a checkpoint from a key on."""
        saver, at, rows = self._thread.lease.saver, since[0], list[EventRow]()
        while True:
            page = await saver.events(self._thread.thread_id, since=since, limit=PAGE)
            mine = [row for row in page if row.checkpoint_id == at]
            rows += mine
            if len(mine) < PAGE:
                return rows
            since = (at, mine[-1].epoch, mine[-1].position + 1)

    def _know(self, row: EventRow, said: set[object]) -> None:
        """Add what the messages of recorded units are known by to `said`; see `modes.messages`."""
        found = read_row(row, self._thread.thread_id)
        for event in found.events:
            unit = found.unit_of(event)
            if event.mode != "messages" or unit is None or unit.id not in self.finished:
                continue
            message, metadata = shown_part(event, unit, Cursor("", 0, 0), self._codec).data
            said.add(id_of(message))
            content, path = fingerprint(message), metadata.get("langgraph_path", ())
            if len(path) == CALL_PATH:
                said.add((("|".join(event.ns), path[1]), content))
            said.update([(("|".join(event.ns[: at + 1]), None), content) for at in range(len(event.ns))])

    def keep(self, part: Part) -> None:
        """Take an event, and give it its place.

        Raises:
            UnstorableValueError: it cannot be stored.
        """
        self._held.append(self._taken(part))

    def _taken(self, part: Part) -> HeldEvent:
        event = stored_event(part, self._codec)
        self._position += 1
        since: str | None = None
        if self.is_ahead and (self.is_late or self._at != (self._thread.stored or "")):
            since = self._thread.stored or ""
        part.cursor = Cursor(self._at, self._epoch, self._position, 0, since)
        self._size += len(event.data)
        return HeldEvent(self._position, part.unit, event)

    async def open(self, units: Sequence[Unit], within: Sequence[Unit]) -> None:
        """Note units that are about to begin; return when that is stored.

        Args:
            within: the unit that they are part of, if there is one.
        """
        if self._note(units, within) and not self.is_late:
            self._thread.events.append(self._row("head", [], opens=units))
            await self._thread.flush_events()

    def _note(self, units: Sequence[Unit], within: Sequence[Unit]) -> bool:
        news = any(unit.id not in self._opened for unit in units)
        for unit in units:
            self._opened[unit.id] = within
            for outer in within:
                self._inside.setdefault(outer.id, set()).add(unit.id)
        return news

    async def settle(self) -> None:
        """Wait until no spilled event is on its way to storage: the row that closes its unit must not be first."""
        if self._lock.locked():
            async with self._lock:
                pass

    def close_units(
        self, ids: Iterable[str], parts: Iterable[Part], opens: Sequence[Unit] = (), within: Sequence[Unit] = ()
    ) -> list[EventRow]:
        """Close units, with all that is part of them.

        Args:
            ids: of the units.
            parts: the last events of these.
            opens: the units that may begin then.
            within: the unit that those are part of, if there is one.

        Returns:
            The row for the transaction that records the units, if it has something to store.
        """
        over = self._with_inner(ids)
        closes = [each for each in over if each in self._opened or each in self._spilled]
        for each in over:
            self._inside.pop(each, None)
            for outer in self._opened.pop(each, ()):
                self._inside.get(outer.id, set()).discard(each)
        last = [self._taken(part) for part in parts]
        if self.is_late:
            self._held += last
            self._recorded |= over
            return []
        if opens:
            self._note(opens, within)
        for each in over:
            self._spilled.pop(each, None)
        mine = [each for each in self._held if each.unit is not None and each.unit.id in over]
        if mine:
            self._held = [each for each in self._held if each.unit is None or each.unit.id not in over]
        if not (mine or last or closes or opens):
            return []
        return [self._row("head", [*self._take_restart(), *mine, *last], closes=sorted(closes), opens=opens)]

    def _with_inner(self, ids: Iterable[str]) -> set[str]:
        """The ids of units, and of all open units inside them. Visits no other: thousands may be open."""
        found, visits = set[str](), list(ids)
        while visits:
            each = visits.pop()
            if each not in found:
                found.add(each)
                visits += self._inside.get(each, ())
        return found

    def close(self, tip: CheckpointId) -> None:
        """A superstep closes: its events go with the transaction that makes this checkpoint."""
        self.rest()
        self._at, self._position = tip, 0
        self.finished.clear()

    def superstep_over(self) -> None:
        """With "exit", a superstep is over that is stored at the end."""
        self._recorded |= {each.unit.id for each in self._held if each.unit is not None}
        self._recorded |= self._spilled.keys()
        self._opened, self._inside = {}, {}

    def stage_head(self) -> None:
        """What is held now are the first events on the new checkpoint, and go with the transaction that makes it."""
        if self._held:
            self._thread.events.append(self._row("head", self._take()))

    def rest(self) -> None:
        """The run comes to rest on the open superstep: its events go with the next transaction."""
        if self._held or self._spilled:
            self._thread.events.append(self._row("tail", self._take()))
        self._spilled, self._opened, self._inside, self._recorded = {}, {}, {}, set()

    def cut_off(self) -> None:
        """The run ends within a superstep: what is held of open units is void. The rest goes with the transaction that
        ends the run."""
        held = self._take()
        if not self.is_late:
            return
        mine = [each for each in held if each.unit is None or each.unit.id in self._recorded]
        void = {each.unit.id: each.unit for each in held if each.unit is not None and each not in mine}
        void.update({id: unit for id, unit in self._spilled.items() if id not in self._recorded and id != GRAPH})
        closes = [id for id in self._spilled if id in self._recorded or id == GRAPH]
        if not (mine or void or closes):
            return
        tip = self._thread.tip or ""
        self._thread.events.append(self._row("head", mine, closes=closes, opens=list(void.values())))
        if tip != self._at:
            began = str(Cursor(self._at, self._epoch, 0)).encode()
            self._at, self._position = tip, 1
            moved = HeldEvent(1, None, StoredEvent(MOVED, (), 0, began))
            self._thread.events.append(self._row("head", [moved]))

    async def spill(self) -> None:
        """Store what is held; it is void until its units are closed."""
        async with self._lock:
            if self.is_heavy:
                if restart := self._take_restart():
                    self._thread.events.append(self._row("head", restart))
                self._spilled.update({unit.id: unit for each in self._held for unit in (each.unit or _GRAPH,)})
                self._thread.events.append(self._row("part", self._take()))
                await self._thread.flush_events()

    def _take_restart(self) -> list[HeldEvent]:
        """Take the event that says what runs again, if it is held. It is stored with the first row of the attempt that
        records work: a reader who gets the events of that work from storage has to drop those of the attempts before,
        and later attempts do not name that work any more."""
        first = self._held[:1] if self._held and self._held[0].event.mode == RESTARTED else []
        del self._held[: len(first)]
        return first

    def _take(self) -> list[HeldEvent]:
        held, self._held, self._size = self._held, [], 0
        return held

    def _row(
        self, kind: EventKind, held: list[HeldEvent], *, closes: Sequence[str] = (), opens: Sequence[Unit] = ()
    ) -> EventRow:
        if not held:
            self._position += 1
            held = [HeldEvent(self._position, None, _NOTHING)]
        if kind == "head" and GRAPH in self._spilled and not self.is_late:
            closes = [*closes, GRAPH]
            del self._spilled[GRAPH]
        self._size = sum([len(each.event.data) for each in self._held])
        row = write_row(self._at, self._epoch, kind, held, closes=closes, opens=opens)
        self._rows[row.key] = row
        return row

    def _stored(self, rows: Iterable[EventRow]) -> None:
        keys = [row.key for row in rows]
        for key in keys:
            self._rows.pop(key, None)
        if self.on_stored is not None:
            self.on_stored(keys)

    def unstored(self) -> list[EventRow]:
        """The rows that only this process has: those of transactions under way too."""
        rows = list(self._rows.values())
        if self._held:
            rows.append(write_row(self._at, self._epoch, "part", self._held))
        return sorted(rows, key=lambda row: row.key)

    def attempts(self) -> set[tuple[str, int]]:
        """The checkpoint and the epoch of what is not closed yet, or whose closing is not stored yet."""
        return {(self._at, self._epoch), *((row.checkpoint_id, row.epoch) for row in self._rows.values())}
