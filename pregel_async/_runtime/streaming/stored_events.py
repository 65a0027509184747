"""Read the stored events of a thread, as far as they are final.

The events of an attempt (a checkpoint and an epoch) are final once the row of a closed superstep follows, or once the
unit of work that they belong to is recorded. Until the attempt has ended, a gap in the positions may still be filled by
other units. As a cursor is a single position, a reader receives the events after a gap only when the attempt has ended;
the missing events are void then.

A reader that follows a run also receives stored events of the open attempt that are not final yet, up to the first gap.
If the attempt is cut off they are void, as live parts are for a reader in the run's process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.records import EventRow

from ...errors import InvalidCursorError
from .event_recorder import MAX_POSITION, MOVED
from .event_rows import CLOSED, GRAPH, StoredEvent, read_row, shown_part
from .event_window import EventWindow, ReadRow
from .parts import END, RESTARTED, Cursor, RawPart, Unit

AttemptKey: TypeAlias = tuple[str, int]
"""A checkpoint, and the epoch of the lease under which a run continued from there."""

CursorKey: TypeAlias = tuple[str, int, int]
"""A checkpoint, an epoch and a position: the sort key of events. See `Cursor.key`."""

AFTER_ALL: CursorKey = ("~", 0, 0)
"""A key after all others, as ids of checkpoints are hexadecimal."""


class _AttemptState(msgspec.Struct):
    """The state of an attempt, as far as its rows show it.

    Attributes:
        is_final: all its events are final.
        over: it has ended and adds no more events.
        closes: ids of units that its rows close.
    """

    is_final: bool = False
    over: bool = False
    closes: set[str] = msgspec.field(default_factory=set[str])


class _LocatedEvent(NamedTuple):
    """A stored event with its key.

    Attributes:
        certain: it is final, because its row was stored by the transaction that recorded its unit.
        closed_by: if it is not certain, it is final once a row closes this id.
        at, before: its time, and the number of events under its lease before its attempt; see `TimedEvents`.
    """

    key: CursorKey
    certain: bool
    closed_by: str
    unit: Unit | None
    event: StoredEvent
    at: int
    before: int

    @property
    def attempt(self) -> AttemptKey:
        return self.key[:2]


class StoredRun:
    """The events after a cursor, on the branch of the thread's newest checkpoint.

    Args:
        window: the stored rows, advanced to the cursor's checkpoint.
        after: the cursor.
        codec: decodes the events.
        held: rows of a run of this process that are not stored yet.
        live: the attempts of that run: all their events count as final.
        up_to: the key of the last event to read: that run sends all later ones live.
        over: no run is in progress, so that events which are not final now are void.
        early: also show events of the open attempt that are not final yet.

    Attributes:
        has_void: a reader with this cursor has received events of the cursor's attempt that are void.
        step: the number of the superstep that the cursor is in.
        is_lost: the void units are not known: a run without stored events closed the superstep, or the attempt
            published parts before it stored anything (`durability="exit"`).
        is_exhausted: `parts` has yielded all that the window's rows have, and waits for no unit.
    """

    def __init__(
        self,
        window: EventWindow,
        after: Cursor,
        codec: Codec,
        *,
        held: Sequence[EventRow] = (),
        live: Collection[AttemptKey] = (),
        up_to: CursorKey = AFTER_ALL,
        over: bool = False,
        early: bool = False,
    ) -> None:
        self.has_void = False
        self.is_lost = False
        self.is_exhausted = False
        self.step = 0
        self._window = window
        self._after = after
        self._codec = codec
        self._rows = _merged(window, [row for row in held if row.checkpoint_id >= after.checkpoint_id])
        self._live = frozenset(live)
        self._up_to = up_to
        self._over = over
        self._early = early
        self._known: dict[AttemptKey, _AttemptState] = {}
        self._branch = _with_live(window.path, self._live)
        self._forked = window.forked

    def load(self) -> None:
        """Find which events are final.

        Raises:
            InvalidCursorError: the cursor is not on the branch of the thread's newest checkpoint.
        """
        after = self._after
        mine: AttemptKey = after.key[:2]
        if after.checkpoint_id not in self._branch:
            raise InvalidCursorError(
                f"thread {self._window.thread_id!r} is not on the branch of checkpoint {after.checkpoint_id!r} now: "
                "read it from its state (aget_state), and follow a new run"
            )
        newest: dict[str, int] = {}
        restarts = False
        for row, found in self._rows:
            known = self._known.setdefault((row.checkpoint_id, row.epoch), _AttemptState())
            known.closes.update(found.closes)
            known.over = known.over or any(event.mode == END for event in found.events)
            # At a fork, a tail row may belong to a superstep that was closed on the other branch. There, only the
            # tail of a run that has ended makes the attempt whole.
            if row.kind == "tail" and (row.checkpoint_id not in self._forked or known.over):
                known.is_final = True
            if row.checkpoint_id == mine[0] and row.epoch > mine[1]:
                restarts = restarts or any(event.mode == RESTARTED for event in found.events)
            newest[row.checkpoint_id] = row.epoch
        # A superstep that has ended while the rows were read does not count as ended yet: its last rows may be missing.
        head = self._branch.get(self._window.head_before_read, max(self._branch.values()))
        for (checkpoint_id, epoch), known in self._known.items():
            leads_on = self._branch.get(checkpoint_id, head) < head
            known.over = known.over or self._over or leads_on or epoch < newest[checkpoint_id]
        self.step = self._branch.get(mine[0], -1) + 1
        # All events of the attempt count, so that the reader has received none that are void.
        known = self._known_of(mine)
        if mine in self._live or known.is_final or after.position == MAX_POSITION:
            return
        if self._early and mine in self._known and not known.over:
            return  # it is not decided yet which of the received events become final
        final = 0
        for each in self._in_order():
            if each.key > after.key:
                break
            final += each.attempt == mine and each.key[2] > 0 and self._is_final(each)
        self.has_void = final < after.position
        runs_ahead = after.since == after.checkpoint_id and not final
        self.is_lost = self.has_void and (runs_ahead or (self._branch[mine[0]] < head and not restarts))

    def parts(self, *, repeat_superstep: bool = False) -> Iterator[RawPart]:
        """Yield the parts of the final events after the cursor.

        Args:
            repeat_superstep: begin with the first event at the cursor's checkpoint.

        Yields:
            Parts with their cursors, in the order of the events.
        """
        mine, committed = self._after.key[:2], max(self._branch.values())
        expected: dict[AttemptKey, int] = {}
        seen: CursorKey = ("", 0, 0)
        if self._early and not repeat_superstep and not self._known_of(mine).over:
            # The reader has all events up to its cursor. A long superstep has thousands of rows with them.
            seen, expected[mine] = self._after.key, self._after.position + 1
        for each in self._in_order(seen):
            at, position = each.attempt, each.key[2]
            known = self._known_of(at)
            is_open = not (known.over or known.is_final or at in self._live)
            final = self._is_final(each) or (self._early and is_open)
            if final and position <= expected.get(at, 1):
                expected[at] = position + 1
            elif is_open:
                return  # a unit that is still running may fill the gap, and its events come first
            if not final or at[0] not in self._branch or each.event.mode in (CLOSED, MOVED):
                continue
            if at < mine and not (repeat_superstep and at[0] == mine[0]):
                continue
            if each.key > self._up_to:
                continue
            if at == mine and position <= self._after.position and not repeat_superstep:
                continue
            part = shown_part(each.event, each.unit, Cursor(*each.key), self._codec, at=each.at, before=each.before)
            part.committed = committed
            yield part
        self.is_exhausted = True

    def _known_of(self, attempt: AttemptKey) -> _AttemptState:
        """Return the state of an attempt. It is empty if the attempt's rows were stored after `load` read them."""
        return self._known.get(attempt, _AttemptState())

    def _is_final(self, found: _LocatedEvent) -> bool:
        if found.certain or found.attempt in self._live:
            return True
        known = self._known_of(found.attempt)
        return known.is_final or (found.closed_by in known.closes and found.key[0] not in self._forked)

    def _in_order(self, seen: CursorKey = ("", 0, 0)) -> Iterator[_LocatedEvent]:
        """Yield the events in the order of their keys, without rows of an attempt that has only events up to `seen`."""
        # The positions of several rows interleave, and a row's key is that of its first event. So events wait in a heap
        # until a row with a greater key arrives.
        waiting: list[tuple[CursorKey, int, _LocatedEvent]] = []
        last: CursorKey = ("", -1, -1)
        number = 0

        def before(key: CursorKey) -> Iterator[_LocatedEvent]:
            nonlocal last
            while waiting and waiting[0][0] < key:
                found = heappop(waiting)[2]
                if found.key != last:  # otherwise its row was held, and has been stored meanwhile
                    last = found.key
                    yield found

        for row, stored in self._rows:
            if (row.checkpoint_id, row.epoch) == seen[:2] and row.position + stored.events[-1].offset <= seen[2]:
                continue
            yield from before(row.key)
            times = stored.times or [0] * len(stored.events)
            for event, time in zip(stored.events, times, strict=True):
                key = (row.checkpoint_id, row.epoch, row.position + event.offset)
                closed_by = stored.closed_by(event)
                certain = row.kind == "head" and (closed_by == GRAPH or row.checkpoint_id not in self._forked)
                each = _LocatedEvent(
                    key, certain, closed_by, stored.unit_of(event), event, stored.at + time, stored.before
                )
                heappush(waiting, (key, number, each))
                number += 1
        yield from before(AFTER_ALL)


def _merged(window: EventWindow, held: Sequence[EventRow]) -> Sequence[ReadRow]:
    """Return the stored and the held rows in the order of their keys, a held one before the same one in storage."""
    if not held or not window.is_complete:  # held rows come after all that is stored
        return window.rows()
    rows = [*(ReadRow(row, read_row(row, window.thread_id)) for row in held), *window.rows()]
    return sorted(rows, key=lambda each: each.row.key)


def _with_live(path: Mapping[str, int], live: Collection[AttemptKey]) -> Mapping[str, int]:
    """Return a path with the checkpoints of a run of this process, which may not be stored yet."""
    new = {checkpoint_id: -1 for checkpoint_id, _ in live if checkpoint_id not in path}
    return {**path, **new} if new else path


def restarted(after: Cursor, step: int) -> RawPart:
    """Return the part that reports all parts after a cursor as void."""
    data = {"step": step, "checkpoint_id": after.checkpoint_id, "after": str(after), "tasks": None}
    return RawPart(mode=RESTARTED, ns=(), data=data, step=step)
