"""The rows in which stream events are stored.

An event belongs to a unit of work (`parts.Unit`): a task or a called task, whose result is recorded as a whole. The
units of a superstep publish events at the same time and are recorded one after the other. So a row holds the events of
the units that its transaction records, each with its own position, and the positions of several rows interleave.

A row also names the units that it closes, and those that may begin once it is stored (`opens`). After a crash, a new
attempt learns from these which units run again, without the code of the subgraphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from checkpoint_savers.codec import Codec, seal, unseal
from checkpoint_savers.errors import CorruptCheckpointError, UnstorableValueError
from checkpoint_savers.records import CheckpointId, EventKind, EventRow

from ..._core.ownership import own
from ..._core.untracked import without_untracked
from ..observing.error_text import text
from .parts import RUN, Cursor, RawPart, Unit, number_of

CLOSED = "__closed__"
"""The mode of the event in a row that has no other: each row has a position. Readers do not receive it."""

GRAPH = ""
"""The id in `closes` for the events of the called graph itself, which belong to no unit."""


class StoredEvent(msgspec.Struct, array_like=True, frozen=True):
    """A stored part.

    Attributes:
        mode, ns, step: as in `RawPart`.
        data: the encoded payload.
        interrupts: the encoded open questions; empty for none.
        bare: the state in the payload was published as a mapping, not as an object of the schema's class.
        offset: its position, relative to the row's.
        unit: the index in the row's `units`; -1 for an event of the called graph itself.
    """

    # Stored as an array: new fields go to the end and need a default, so that stored rows remain readable.

    mode: str
    ns: tuple[str, ...]
    step: int
    data: bytes
    interrupts: bytes = b""
    bare: bool = False
    offset: int = 0
    unit: int = -1


class StoredEvents(msgspec.Struct, array_like=True, frozen=True):
    """The decoded content of a row.

    Attributes:
        events: the events, in the order of their positions.
        units: the units that the events belong to.
        closes: ids of units that are recorded with this row or before it, and have events in earlier rows; may contain
            `GRAPH`.
        opens: units that may begin once this row is stored.
    """

    events: list[StoredEvent]
    units: list[Unit] = []
    closes: list[str] = []
    opens: list[Unit] = []

    def unit_of(self, event: StoredEvent) -> Unit | None:
        """Return the unit that an event belongs to; None for an event of the called graph itself."""
        return self.units[event.unit] if event.unit >= 0 else None

    def closed_by(self, event: StoredEvent) -> str:
        """Return the id whose occurrence in `closes` makes an event final."""
        return self.units[event.unit].id if event.unit >= 0 else GRAPH


class TimedEvents(StoredEvents, array_like=True, frozen=True):
    """The decoded content of a row, with the times and the numbers of its events.

    Earlier versions read it as a `StoredEvents`, and rows that they have stored are read without times.

    Attributes:
        at: when the first event was published, in milliseconds since the epoch; 0 if it is not known.
        times: the times of the events, in milliseconds since `at`; empty if none is later.
        before: the number of events under the row's lease before those of its attempt.
    """

    at: int = 0
    times: list[int] = []
    before: int = 0


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that is not stored yet, with its position within the attempt, and its time in milliseconds."""

    position: int
    unit: Unit | None
    event: StoredEvent
    at: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TimedEvents).decode


def write_row(
    checkpoint_id: str,
    epoch: int,
    kind: EventKind,
    pending: Sequence[PendingEvent],
    *,
    closes: Sequence[str] = (),
    opens: Sequence[Unit] = (),
    before: int = 0,
) -> EventRow:
    """Return a row with these events: at least one, in the order of their positions."""
    first = pending[0].position
    # Each unit is stored once for a row, and its events refer to it by index: a unit may have thousands of chunks.
    units: dict[Unit, int] = {}
    events: list[StoredEvent] = []
    for each in pending:
        unit = -1 if each.unit is None else units.setdefault(each.unit, len(units))
        events.append(msgspec.structs.replace(each.event, offset=each.position - first, unit=unit))
    frame = StoredEvents(events, list(units), list(closes), list(opens))
    at = pending[0].at
    if at:
        times = [max(0, each.at - at) for each in pending]  # the clock may go back
        frame = TimedEvents(
            events, list(units), list(closes), list(opens), at=at, times=times if any(times) else [], before=before
        )
    return EventRow(
        checkpoint_id=CheckpointId(checkpoint_id), epoch=epoch, position=first, kind=kind, frame=seal(_encode(frame))
    )


def run_row(checkpoint_id: str, epoch: int, run_id: str, at: int) -> EventRow:
    """Return the row that says which run begins, or continues, under a lease. It comes before all rows of the lease.

    Args:
        checkpoint_id: the thread's newest checkpoint before the run's first transaction; "" for none.
        epoch: the epoch of the lease.
        run_id: the run.
        at: when, in milliseconds since the epoch.
    """
    return write_row(
        checkpoint_id, epoch, "head", [PendingEvent(0, None, StoredEvent(RUN, (), 0, run_id.encode()), at)]
    )


def read_row(row: EventRow, thread_id: str) -> TimedEvents:
    """Decode a row.

    Raises:
        CorruptCheckpointError: the frame is damaged.
    """
    where = f"thread {thread_id!r}, the events on checkpoint {row.checkpoint_id}"
    try:
        found = _decode(unseal(row.frame, where))
        # Checked here, where the error can name the row. Later, a damaged index would be an IndexError in a reader.
        if any(not -1 <= event.unit < len(found.units) or event.offset < 0 for event in found.events):
            raise ValueError("an event belongs to no unit of its row")
        if found.times and len(found.times) != len(found.events):
            raise ValueError("there is not one time for each event")
        return found
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"its frame cannot be read ({error})") from error


def stored_event(part: RawPart, codec: Codec) -> StoredEvent:
    """Encode a part.

    Raises:
        UnstorableValueError: a node has written a value to the stream that cannot be stored.
    """
    asked = codec.encode(own(part.interrupts), channel="interrupt()") if part.interrupts else b""
    return StoredEvent(part.mode, part.ns, part.step, _encoded(part, codec), asked, part.coerce is None)


def shown_part(
    event: StoredEvent, unit: Unit | None, cursor: Cursor, codec: Codec, *, at: int = 0, before: int = 0
) -> RawPart:
    """Decode a stored event, published at a time, with so many events before its attempt. See `TimedEvents`."""
    number = number_of(cursor.epoch, before + cursor.position)
    if event.mode == RUN:
        return RawPart(mode=RUN, ns=(), data=event.data.decode(), step=0, cursor=cursor, at=at, number=number)
    asked: Any = codec.decode(event.interrupts, channel="interrupt()") if event.interrupts else ()
    return RawPart(
        mode=event.mode,
        ns=event.ns,
        data=codec.decode(event.data, channel=f"the {event.mode!r} stream"),
        step=event.step,
        interrupts=asked,
        cursor=cursor,
        needs_coerce=not event.bare,
        unit=unit,
        at=at,
        number=number,
    )


def _encoded(part: RawPart, codec: Codec) -> bytes:
    data, where = own(_storable(part)), f"the {part.mode!r} stream"
    try:
        return codec.encode(data, channel=where)
    except UnstorableValueError:
        if part.mode in ("custom", "messages"):
            raise  # in the node that wrote the value, which can be changed to write another
    # The runtime made the part, and a node's input may contain values that cannot be stored. Failing the run because of
    # its stream would be worse than storing the part without them.
    return codec.encode(_without_unstorable(data, codec), channel=where)


def _without_unstorable(value: Any, codec: Codec) -> Any:
    """Return a mapping without the entries that cannot be stored, at any depth; None for other values."""
    if not isinstance(value, dict):
        return None
    left: dict[Any, Any] = {}
    for key, item in value.items():
        try:
            codec.encode(item, channel=str(key))
        except UnstorableValueError:
            if isinstance(item, dict):
                left[key] = _without_unstorable(item, codec)
        else:
            left[key] = item
    return left


def _storable(part: RawPart) -> Any:
    """Return the payload without the values of untracked keys, and with exceptions replaced by their texts."""
    data = part.data
    if part.mode == "debug":
        return {**data, "payload": _storable_payload(data["payload"], part)}
    if part.mode in ("tasks", "checkpoints"):
        return _storable_payload(data, part)
    if part.untracked and part.is_keyed:
        if part.mode == "values":
            return without_untracked(data, part.untracked)
        if part.mode == "updates":
            return {node: _storable_update(update, part) for node, update in data.items()}
    return data


def _storable_payload(payload: dict[str, Any], part: RawPart) -> dict[str, Any]:
    """Return the payload of a `tasks` or `checkpoints` part as it may be stored."""
    error = payload.get("error")
    if isinstance(error, BaseException):
        payload = {**payload, "error": f"{type(error).__name__}: {text(error)}"}
    if not part.untracked:
        return payload
    pending: dict[str, Any] = {}
    for name in ("input", "values"):
        if name in payload:
            pending[name] = without_untracked(payload[name], part.untracked)
    if "result" in payload and part.is_keyed:
        pending["result"] = _storable_update(payload["result"], part)
    return {**payload, **pending}


def _storable_update(update: Any, part: RawPart) -> Any:
    """Return a node's update as it may be stored: a mapping, or a list of mappings for a key written repeatedly."""
    if isinstance(update, list):
        return [without_untracked(each, part.untracked) for each in list[Any].__iter__(update)]
    return without_untracked(update, part.untracked)
