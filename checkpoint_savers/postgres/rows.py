"""Convert stored rows to records. The columns' types ensure most of their form; the rest is checked here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from ..errors import CorruptCheckpointError
from ..metadata import read_metadata
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
from .escaping import unescape

Raw = tuple[Any, ...]
"""A row, as a query returns it."""

_RECORD_KINDS = frozenset(get_args(RecordKind))
_EVENT_KINDS = frozenset(get_args(EventKind))

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Owner).decode


def owner_text(owner: Owner) -> str:
    """Encode an owner. Equal owners have equal texts, so that SQL can compare leases.

    Args:
        owner: the owner.

    Returns:
        JSON text.
    """
    return _encode(owner).decode()


def owner_of(text: str, thread_id: str) -> Owner:
    """Decode an owner.

    Args:
        text: JSON text.
        thread_id: names the thread in an error.

    Returns:
        The owner.

    Raises:
        CorruptCheckpointError: the text is damaged.
    """
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where_of(thread_id), f"the owner of its lease cannot be read ({error})") from error


def to_checkpoint_id(text: str) -> CheckpointId:
    """Decode a checkpoint id.

    Args:
        text: as it is stored.

    Returns:
        The id.

    Raises:
        CorruptCheckpointError: no saver has stored it.
    """
    return CheckpointId(unescape(text))


def to_checkpoint_id_or_none(text: str | None) -> CheckpointId | None:
    """Decode a checkpoint id, or None.

    Args:
        text: as it is stored, or None.

    Returns:
        The id, or None.

    Raises:
        CorruptCheckpointError: no saver has stored it.
    """
    return None if text is None else CheckpointId(unescape(text))


def rows_of(raw: Iterable[Raw], where: str) -> tuple[CheckpointRow, ...]:
    """Decode checkpoints, and sort them by id.

    Args:
        raw: rows of (ns, checkpoint id, parent, base, step, metadata, pinned, frame).
        where: names the rows in an error.

    Returns:
        The checkpoints.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    rows = [
        CheckpointRow(
            ns=unescape(ns),
            checkpoint_id=to_checkpoint_id(checkpoint_id),
            parent_id=to_checkpoint_id_or_none(parent_id),
            base_id=to_checkpoint_id(base_id),
            step=step,
            metadata=read_metadata(metadata, f"{where}, checkpoint {checkpoint_id}"),
            frame=frame,
            pinned=pinned,
        )
        for ns, checkpoint_id, parent_id, base_id, step, metadata, pinned, frame in raw
    ]
    # Sorted here: the parts of a UNION ALL come in no guaranteed order.
    rows.sort(key=lambda row: (row.checkpoint_id, row.ns))
    return tuple(rows)


def records_of(raw: Iterable[Raw], where: str) -> tuple[TaskRecord, ...]:
    """Decode records, and sort them by checkpoint, namespace, index and task.

    Args:
        raw: rows of (ns, checkpoint id, task id, index, kind, frame).
        where: names the rows in an error.

    Returns:
        The records.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    records = [
        TaskRecord(
            ns=unescape(ns),
            checkpoint_id=to_checkpoint_id(checkpoint_id),
            task_id=TaskId(unescape(task_id)),
            index=index,
            kind=_checked_kind(kind, _RECORD_KINDS, where),
            frame=frame,
        )
        for ns, checkpoint_id, task_id, index, kind, frame in raw
    ]
    records.sort(key=lambda record: (record.checkpoint_id, record.ns, record.index, record.task_id))
    return tuple(records)


def events_of(raw: Iterable[Raw], where: str) -> tuple[EventRow, ...]:
    """Decode rows of events, and keep their order.

    Args:
        raw: rows of (checkpoint id, epoch, position, kind, frame).
        where: names the rows in an error.

    Returns:
        The rows.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    return tuple(
        EventRow(
            checkpoint_id=to_checkpoint_id(checkpoint_id),
            epoch=epoch,
            position=position,
            kind=_checked_kind(kind, _EVENT_KINDS, where),
            frame=frame,
        )
        for checkpoint_id, epoch, position, kind, frame in raw
    )


def header_of(raw: Raw) -> Header:
    """Decode a header.

    Args:
        raw: a row of (thread id, ns, checkpoint id, parent, base, step, metadata, size, pinned).

    Returns:
        The header.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    thread_id, ns, checkpoint_id, parent_id, base_id, step, metadata, size, pinned = raw
    thread_id, ns = unescape(thread_id), unescape(ns)
    return Header(
        thread_id=thread_id,
        ns=ns,
        checkpoint_id=to_checkpoint_id(checkpoint_id),
        parent_id=to_checkpoint_id_or_none(parent_id),
        base_id=to_checkpoint_id(base_id),
        step=step,
        metadata=read_metadata(metadata, f"{where_of(thread_id, ns)}, checkpoint {checkpoint_id}"),
        size=size,
        pinned=pinned,
    )


def thread_of(raw: Raw) -> ThreadHeader:
    """Decode a thread's header.

    Args:
        raw: a row of (thread id, epoch, owner, expiry, newest, head, metadata).

    Returns:
        The header.

    Raises:
        CorruptCheckpointError: a column is damaged.
    """
    thread_id, epoch, owner, expires_at, newest, head, metadata = raw
    thread_id = unescape(thread_id)
    return ThreadHeader(
        thread_id=thread_id,
        epoch=epoch,
        owner=None if owner is None else owner_of(owner, thread_id),
        expires_at=0.0 if owner is None else expires_at or 0.0,
        newest=to_checkpoint_id_or_none(newest),
        head=to_checkpoint_id_or_none(head),
        metadata=read_metadata(metadata, where_of(thread_id)),
    )


def where_of(thread_id: str, ns: str = "") -> str:
    """Return the name of a namespace in error messages.

    Args:
        thread_id: the thread.
        ns: the namespace; "" for the root graph's.

    Returns:
        The name.
    """
    return f"thread {thread_id!r}, namespace {ns!r}" if ns else f"thread {thread_id!r}"


def _checked_kind(kind: str, kinds: frozenset[str], where: str) -> Any:
    if kind not in kinds:
        raise CorruptCheckpointError(where, f"a stored row is of the kind {kind!r}, which does not exist")
    return kind
