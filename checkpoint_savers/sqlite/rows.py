"""From records to what is bound, and from what is stored to records.

A database is not typed as Python is, and a damaged one holds anything: so all that is read is checked here.

Metadata are stored as text, once per thread. Most checkpoints of a run differ in nothing but `step`, which their rows
have anyway: so where both are the same number, the text has null in its place, and is marked (`counts`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from ..errors import CorruptCheckpointError
from ..metadata import read_metadata, write_metadata
from ..records import (
    CheckpointId,
    CheckpointRow,
    EventKind,
    EventRow,
    Header,
    Owner,
    RecordKind,
    TaskId,
    TaskRecord,
    ThreadHeader,
)
from .ids import StoredId, read_id, write_id

T = TypeVar("T")

# ---- to be bound. Made outside of the transaction ------------------------------------------------------------------


class MetadataText(NamedTuple):
    """Metadata as they are stored."""

    counts: bool
    text: str


class CheckpointColumns(NamedTuple):
    """A checkpoint to be stored."""

    ns: str
    id: StoredId
    parent: StoredId | None
    base: StoredId
    step: int
    metadata: MetadataText
    pinned: bool
    frame: bytes


class RecordColumns(NamedTuple):
    """A task's record to be stored."""

    ns: str
    checkpoint: StoredId
    task_id: str
    position: int
    kind: str
    frame: bytes


class EventColumns(NamedTuple):
    """A row of events to be stored."""

    checkpoint: StoredId
    epoch: int
    position: int
    kind: str
    frame: bytes


def bind_row(row: CheckpointRow, *, pinned: bool) -> CheckpointColumns:
    """Raises `ValueError` if the checkpoint's id is none: it would not be read in its order."""
    id = write_id(row.checkpoint_id)
    if isinstance(id, str):
        raise ValueError(f"a checkpoint's id is a UUID in lower case, not {row.checkpoint_id!r}")
    base = id if row.base_id == row.checkpoint_id else write_id(row.base_id)
    parent = None if row.parent_id is None else write_id(row.parent_id)
    return CheckpointColumns(
        row.ns, id, parent, base, row.step, bind_metadata(row.metadata, row.step), pinned, row.frame
    )


def bind_metadata(metadata: dict[str, Any], step: int) -> MetadataText:
    counted = metadata.get("step")
    if type(counted) is int and counted == step:
        return MetadataText(True, write_metadata({**metadata, "step": None}))
    return MetadataText(False, write_metadata(metadata))


def bind_record(record: TaskRecord) -> RecordColumns:
    return RecordColumns(
        record.ns, write_id(record.checkpoint_id), record.task_id, record.index, record.kind, record.frame
    )


def bind_event(event: EventRow) -> EventColumns:
    return EventColumns(write_id(event.checkpoint_id), event.epoch, event.position, event.kind, event.frame)


def write_owner(owner: Owner) -> str:
    return _write_owner(owner).decode()


_write_owner = msgspec.json.Encoder().encode
_read_owner = msgspec.json.Decoder(Owner).decode

_Id: TypeAlias = Any  # bytes or a text, which `IdCache` checks: msgspec does not know the one from the other


class IdCache(dict[StoredId, CheckpointId]):
    """Ids by what is stored. A listing names most of them three times: as an id, as a base and as a parent."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __missing__(self, stored: StoredId) -> CheckpointId:
        found = self[stored] = read_checkpoint_id(stored, self._where)
        return found


def read_checkpoint_id(stored: StoredId, where: str) -> CheckpointId:
    try:
        return CheckpointId(read_id(stored))
    except ValueError as error:
        raise CorruptCheckpointError(where, f"a checkpoint's id is damaged ({error})") from error


# What is read is checked as the one field of a Struct: msgspec looks at a class once, and at other types at each call.


class _RowList(msgspec.Struct, array_like=True):
    all: list[tuple[str, _Id, _Id | None, _Id, int, int, str, int, bytes]]


def read_rows(raw: list[Any], where: str) -> tuple[CheckpointRow, ...]:
    """As (ns, id, parent, base, step, counts, text, pinned, frame)."""
    ids = IdCache(where)
    return tuple(
        [
            CheckpointRow(
                ns=ns,
                checkpoint_id=ids[id],
                parent_id=None if parent is None else ids[parent],
                base_id=ids[base],
                step=step,
                metadata=_metadata(counts, text, step, where, ids[id]),
                frame=frame,
                pinned=pinned != 0,
            )
            for ns, id, parent, base, step, counts, text, pinned, frame in validated((raw,), _RowList, where).all
        ]
    )


class _HeaderList(msgspec.Struct, array_like=True):
    all: list[tuple[str, str, _Id, _Id | None, _Id, int, int, str, int, int]]


def read_headers(raw: list[Any]) -> list[Header]:
    """Of any thread and namespace, as (thread, ns, id, parent, base, step, counts, text, pinned, size)."""
    ids = IdCache("a listing")
    return [
        Header(
            thread_id=thread_id,
            ns=ns,
            checkpoint_id=ids[id],
            parent_id=None if parent is None else ids[parent],
            base_id=ids[base],
            step=step,
            metadata=_metadata(counts, text, step, thread_id, ids[id]),
            size=size,
            pinned=pinned != 0,
        )
        for thread_id, ns, id, parent, base, step, counts, text, pinned, size in validated(
            (raw,), _HeaderList, "a listing"
        ).all
    ]


class _ThreadHeaderList(msgspec.Struct, array_like=True):
    all: list[tuple[str, int, str | None, float | None, _Id | None, _Id | None, _Id | None, str]]


def read_thread_headers(raw: list[Any]) -> list[ThreadHeader]:
    """As (thread, epoch, owner, expires_at, newest, head, id, metadata); the id is that of the head's row."""
    found: list[ThreadHeader] = []
    for thread_id, epoch, owner, expires_at, newest, head, id, text in validated(
        (raw,), _ThreadHeaderList, "a listing"
    ).all:
        where = location(thread_id, "")
        if head is not None and id is None:
            raise CorruptCheckpointError(where, f"its head, checkpoint {read_checkpoint_id(head, where)}, is missing")
        found.append(
            ThreadHeader(
                thread_id=thread_id,
                epoch=epoch,
                owner=None if owner is None else read_owner(owner, where),
                expires_at=expires_at or 0.0,
                newest=None if newest is None else read_checkpoint_id(newest, where),
                head=None if head is None else read_checkpoint_id(head, where),
                metadata=read_metadata(text, where),
            )
        )
    return found


class _RecordList(msgspec.Struct, array_like=True):
    all: list[tuple[str, _Id, str, int, RecordKind, bytes]]


def read_records(raw: list[Any], where: str) -> tuple[TaskRecord, ...]:
    """As (ns, checkpoint, task id, place, kind, frame)."""
    ids = IdCache(where)
    return tuple(
        [
            TaskRecord(
                ns=ns, checkpoint_id=ids[checkpoint], task_id=TaskId(task_id), index=index, kind=kind, frame=frame
            )
            for ns, checkpoint, task_id, index, kind, frame in validated((raw,), _RecordList, where).all
        ]
    )


class _EventList(msgspec.Struct, array_like=True):
    all: list[tuple[_Id, int, int, EventKind, bytes]]


def read_events(raw: list[Any], where: str) -> tuple[EventRow, ...]:
    """As (checkpoint, epoch, position, kind, frame)."""
    ids = IdCache(where)
    return tuple(
        [
            EventRow(checkpoint_id=ids[checkpoint], epoch=epoch, position=position, kind=kind, frame=frame)
            for checkpoint, epoch, position, kind, frame in validated((raw,), _EventList, where).all
        ]
    )


def read_owner(text: str, where: str) -> Owner:
    try:
        return _read_owner(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"the owner of its lease cannot be read ({error})") from error


def validated(raw: Any, type: type[T], where: str) -> T:
    try:
        return msgspec.convert(raw, type, builtin_types=(bytes,))  # else a text in a blob's place is read as base64
    except msgspec.ValidationError as error:
        raise CorruptCheckpointError(where, f"a stored row is damaged ({error})") from error


def location(thread_id: str, ns: str) -> str:
    """What errors call a namespace."""
    return f"thread {thread_id!r}, namespace {ns!r}" if ns else f"thread {thread_id!r}"


def _metadata(counts: int, text: str, step: int, where: str, id: CheckpointId) -> dict[str, Any]:
    try:
        metadata = _read_metadata(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return read_metadata(text, f"{where}, checkpoint {id}")  # raises; only here is the place spelled out
    if counts:
        metadata["step"] = step
    return metadata


_read_metadata = msgspec.json.Decoder(dict[str, Any]).decode
