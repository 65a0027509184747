"""How stream events are stored: rows of events, and what a row says of the work that its events belong to.

An event belongs to a unit of work (`parts.Unit`): a task, or a called task, whose result is recorded as one. Units of
one superstep stream at the same time, and one is recorded before the other. So a row has the events of the units that
its transaction records, each with its own position, and positions of several rows interleave.

A row also says which units it closes, and which may begin now (`opens`). From these an attempt that comes after a crash
knows which units run again, without the code of the graphs inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from checkpoint_savers.codec import Codec, seal, unseal
from checkpoint_savers.errors import CorruptCheckpointError, UnstorableValueError
from checkpoint_savers.records import CheckpointId, EventKind, EventRow

from ..._core.isolation import own
from ..._core.untracked import without_untracked
from ..observing.error_text import text
from .parts import Cursor, RawPart, Unit

CLOSED = "__closed__"
"""The mode of an event that only stands for its row, which has none of its own. Readers do not get it."""

GRAPH = ""
"""The id in `closes` that stands for the events of the called graph itself, which belong to no unit."""


class StoredEvent(msgspec.Struct, array_like=True, frozen=True):
    """A part as it is stored. New fields go to the end, with a default.

    Attributes:
        bare: the state in it was shown as a mapping, and not as the schema's own object.
        offset: its position, counted from the row's.
        unit: the index in the row's `units`; -1 for an event of the called graph itself.
    """

    mode: str
    ns: tuple[str, ...]
    step: int
    data: bytes
    interrupts: bytes = b""
    bare: bool = False
    offset: int = 0
    unit: int = -1


class StoredEvents(msgspec.Struct, array_like=True, frozen=True):
    """What a row holds.

    Attributes:
        units: that its events belong to.
        closes: ids of units that are recorded with this row or before it, and have events in earlier rows; `GRAPH` too.
        opens: units that may begin once this row is stored.
    """

    events: list[StoredEvent]
    units: list[Unit] = []
    closes: list[str] = []
    opens: list[Unit] = []

    def unit_of(self, event: StoredEvent) -> Unit | None:
        """Return the unit that an event belongs to; None for the called graph's own."""
        return self.units[event.unit] if event.unit >= 0 else None

    def closed_by(self, event: StoredEvent) -> str:
        """Return the id in `closes` by which an event becomes final."""
        return self.units[event.unit].id if event.unit >= 0 else GRAPH


class PendingEvent(msgspec.Struct, frozen=True):
    """An event that is not stored yet, at its position in the attempt."""

    position: int
    unit: Unit | None
    event: StoredEvent


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredEvents).decode


def write_row(
    checkpoint_id: str,
    epoch: int,
    kind: EventKind,
    pending: Sequence[PendingEvent],
    *,
    closes: Sequence[str] = (),
    opens: Sequence[Unit] = (),
) -> EventRow:
    """Return the row of these events, which are in the order of their positions; there is at least one."""
    first = pending[0].position
    units: dict[Unit, int] = {}
    events: list[StoredEvent] = []
    for each in pending:
        unit = -1 if each.unit is None else units.setdefault(each.unit, len(units))
        events.append(msgspec.structs.replace(each.event, offset=each.position - first, unit=unit))
    frame = StoredEvents(events, list(units), list(closes), list(opens))
    return EventRow(
        checkpoint_id=CheckpointId(checkpoint_id), epoch=epoch, position=first, kind=kind, frame=seal(_encode(frame))
    )


def read_row(row: EventRow, thread_id: str) -> StoredEvents:
    """Return what a row holds.

    Raises:
        CorruptCheckpointError: its frame is damaged.
    """
    where = f"thread {thread_id!r}, the events on checkpoint {row.checkpoint_id}"
    try:
        found = _decode(unseal(row.frame, where))
        if any(not -1 <= event.unit < len(found.units) or event.offset < 0 for event in found.events):
            raise ValueError("an event belongs to no unit of its row")
        return found
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"its frame cannot be read ({error})") from error


def stored_event(part: RawPart, codec: Codec) -> StoredEvent:
    """Return a part as it is stored.

    Raises:
        UnstorableValueError: the node has written a value that cannot be stored.
    """
    asked = codec.encode(own(part.interrupts), channel="interrupt()") if part.interrupts else b""
    return StoredEvent(part.mode, part.ns, part.step, _encoded(part, codec), asked, part.coerce is None)


def shown_part(event: StoredEvent, unit: Unit | None, cursor: Cursor, codec: Codec) -> RawPart:
    """Return the part of a stored event."""
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
    )


def _encoded(part: RawPart, codec: Codec) -> bytes:
    data, where = own(_storable(part)), f"the {part.mode!r} stream"
    try:
        return codec.encode(data, channel=where)
    except UnstorableValueError:
        if part.mode in ("custom", "messages"):
            raise  # in the node that wrote it
    # A node's input may hold what cannot be stored: it is not kept with the others.
    return codec.encode(_without_unstorable(data, codec), channel=where)


def _without_unstorable(value: Any, codec: Codec) -> Any:
    """A mapping without the entries that cannot be stored, at any depth of mappings; None for anything else."""
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
    """The payload without the values of untracked keys, and with the text of a live exception in its place."""
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
    """Of a task or a checkpoint."""
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
    """Of a node: a mapping, or a list of mappings if it wrote a key more than once."""
    if isinstance(update, list):
        return [without_untracked(each, part.untracked) for each in list[Any].__iter__(update)]
    return without_untracked(update, part.untracked)
