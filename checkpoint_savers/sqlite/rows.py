"""Convert records to bound columns, and stored columns to records.

SQLite's types are looser than Python's, and a damaged database may hold anything, so everything that is read is
validated here.

Metadata are stored as text, once per thread. Most checkpoints of a run differ only in `step`, which is a column anyway.
So where metadata's "step" equals the column, the text has null in its place and is marked (`counts`).
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


class MetadataText(NamedTuple):
    """Checkpoint metadata, as they are stored.

    Attributes:
        counts: the metadata's "step" equals the checkpoint's column `step`, and is null in the text.
        text: the metadata, as JSON.
    """

    counts: bool
    text: str


class CheckpointColumns(NamedTuple):
    """The columns of a checkpoint to be stored. Encoded by the caller's thread, before the transaction begins."""

    ns: str
    id: StoredId
    parent: StoredId | None
    base: StoredId
    step: int
    metadata: MetadataText
    pinned: bool
    frame: bytes


class RecordColumns(NamedTuple):
    """The columns of a task's record to be stored."""

    ns: str
    checkpoint: StoredId
    task_id: str
    position: int
    kind: str
    frame: bytes


class EventColumns(NamedTuple):
    """The columns of a row of events to be stored."""

    checkpoint: StoredId
    epoch: int
    position: int
    kind: str
    frame: bytes


def bind_row(row: CheckpointRow, *, pinned: bool) -> CheckpointColumns:
    """Convert a checkpoint to columns.

    Args:
        row: the checkpoint.
        pinned: the value of its column `pinned`.

    Returns:
        The columns.

    Raises:
        ValueError: its id is not a checkpoint id: stored as text, it would not be read in its order.
    """
    id = write_id(row.checkpoint_id)
    if isinstance(id, str):
        raise ValueError(f"a checkpoint's id is a UUID in lower case, not {row.checkpoint_id!r}")
    base = id if row.base_id == row.checkpoint_id else write_id(row.base_id)
    parent = None if row.parent_id is None else write_id(row.parent_id)
    return CheckpointColumns(
        row.ns, id, parent, base, row.step, bind_metadata(row.metadata, row.step), pinned, row.frame
    )


def bind_metadata(metadata: dict[str, Any], step: int) -> MetadataText:
    """Convert metadata to text, without a "step" that equals the column.

    Args:
        metadata: JSON values by key.
        step: number of the superstep.

    Returns:
        The text, and whether "step" was taken out.
    """
    counted = metadata.get("step")
    # Not isinstance: True equals 1, and would come back as 1.
    if type(counted) is int and counted == step:
        return MetadataText(True, write_metadata({**metadata, "step": None}))
    return MetadataText(False, write_metadata(metadata))


def bind_record(record: TaskRecord) -> RecordColumns:
    """Convert a task's record to columns.

    Args:
        record: the record.

    Returns:
        The columns.
    """
    return RecordColumns(
        record.ns, write_id(record.checkpoint_id), record.task_id, record.index, record.kind, record.frame
    )


def bind_event(event: EventRow) -> EventColumns:
    """Convert a row of events to columns.

    Args:
        event: the row.

    Returns:
        The columns.
    """
    return EventColumns(write_id(event.checkpoint_id), event.epoch, event.position, event.kind, event.frame)


def write_owner(owner: Owner) -> str:
    """Encode the owner of a lease as JSON text.

    Args:
        owner: the owner.

    Returns:
        The text: equal owners have equal texts.
    """
    return _write_owner(owner).decode()


_write_owner = msgspec.json.Encoder().encode
_read_owner = msgspec.json.Decoder(Owner).decode

_Id: TypeAlias = Any  # bytes or str, checked by `IdCache`: in a Struct, msgspec cannot distinguish the two


class IdCache(dict[StoredId, CheckpointId]):
    """Decoded ids by their stored form. A listing names most ids three times: as id, as base and as parent."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __missing__(self, stored: StoredId) -> CheckpointId:
        found = self[stored] = read_checkpoint_id(stored, self._where)
        return found


def read_checkpoint_id(stored: StoredId, where: str) -> CheckpointId:
    """Decode a checkpoint id.

    Args:
        stored: the column, of any type.
        where: names the rows in an error.

    Returns:
        The id.

    Raises:
        CorruptCheckpointError: it is not a stored id.
    """
    try:
        return CheckpointId(read_id(stored))
    except ValueError as error:
        raise CorruptCheckpointError(where, f"a checkpoint's id is damaged ({error})") from error


# Rows are validated as the only field of a Struct: msgspec analyses a class once, other types in each call.


class _RowList(msgspec.Struct, array_like=True):
    all: list[tuple[str, _Id, _Id | None, _Id, int, int, str, int, bytes]]


def read_rows(raw: list[Any], where: str) -> tuple[CheckpointRow, ...]:
    """Decode checkpoints.

    Args:
        raw: rows of (ns, id, parent, base, step, counts, text, pinned, frame).
        where: names the rows in an error.

    Returns:
        The checkpoints, in the same order.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
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
    """Decode headers of any threads and namespaces.

    Args:
        raw: rows of (thread, ns, id, parent, base, step, counts, text, pinned, size).

    Returns:
        The headers, in the same order.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
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
    """Decode headers of threads.

    Args:
        raw: rows of (thread, epoch, owner, expires_at, newest, head, id, metadata), where `id` is that of the head's
            row.

    Returns:
        The headers, in the same order.

    Raises:
        CorruptCheckpointError: a column is damaged, or a head's row is missing.
    """
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
    """Decode records of tasks.

    Args:
        raw: rows of (ns, checkpoint, task id, index, kind, frame).
        where: names the rows in an error.

    Returns:
        The records, in the same order.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
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
    """Decode rows of events.

    Args:
        raw: rows of (checkpoint, epoch, position, kind, frame).
        where: names the rows in an error.

    Returns:
        The rows, in the same order.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    ids = IdCache(where)
    return tuple(
        [
            EventRow(checkpoint_id=ids[checkpoint], epoch=epoch, position=position, kind=kind, frame=frame)
            for checkpoint, epoch, position, kind, frame in validated((raw,), _EventList, where).all
        ]
    )


def read_owner(text: str, where: str) -> Owner:
    """Decode the owner of a lease.

    Args:
        text: JSON text.
        where: names the thread in an error.

    Returns:
        The owner.

    Raises:
        CorruptCheckpointError: the text is damaged.
    """
    try:
        return _read_owner(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"the owner of its lease cannot be read ({error})") from error


def validated(raw: Any, type: type[T], where: str) -> T:
    """Convert what SQLite returned to a type.

    Args:
        raw: rows, as the sqlite3 module returns them.
        type: the type to convert to.
        where: names the rows in an error.

    Returns:
        The converted value.

    Raises:
        CorruptCheckpointError: a value is not of that type.
    """
    try:
        return msgspec.convert(raw, type, builtin_types=(bytes,))  # else a text in a blob's place is decoded as base64
    except msgspec.ValidationError as error:
        raise CorruptCheckpointError(where, f"a stored row is damaged ({error})") from error


def location(thread_id: str, ns: str) -> str:
    """Return the name of a namespace in error messages.

    Args:
        thread_id: the thread.
        ns: the namespace; "" for the root graph's.

    Returns:
        The name.
    """
    return f"thread {thread_id!r}, namespace {ns!r}" if ns else f"thread {thread_id!r}"


def _metadata(counts: int, text: str, step: int, where: str, id: CheckpointId) -> dict[str, Any]:
    try:
        metadata = _read_metadata(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return read_metadata(text, f"{where}, checkpoint {id}")  # raises; the location is formatted only for errors
    if counts:
        metadata["step"] = step
    return metadata


_read_metadata = msgspec.json.Decoder(dict[str, Any]).decode
