"""The upkeep verbs: rewrite, load or delete a thread, under its lease.

Functions of a cursor, as in `writing`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import StorageError
from ..records import Lease
from .ids import StoredId
from .rows import CheckpointColumns, EventColumns, RecordColumns, location, read_checkpoint_id
from .writing import (
    add_checkpoint,
    add_events,
    add_row,
    check_lease,
    clear,
    delete,
    namespace_key,
    put_records,
    set_metadata,
)

StoredKey = tuple[str, StoredId]
"""Key of a checkpoint: its namespace and its id."""

_STORED = "SELECT base, frame FROM checkpoint INDEXED BY checkpoint_by_id WHERE thread = ? AND id = ? AND space = ?"
_DELETE_ROW = "DELETE FROM checkpoint WHERE thread = ? AND space = ? AND base = ? AND id = ?"
_DELETE_FRAME = "DELETE FROM frame WHERE key = ?"
_DELETE_RECORDS = "DELETE FROM record WHERE thread = ? AND space = ? AND checkpoint = ?"
_DELETE_EVENTS = "DELETE FROM event WHERE thread = ? AND checkpoint = ?"
_DELETE_TEXTS = (
    "DELETE FROM metadata WHERE thread = :thread "
    "AND key NOT IN (SELECT metadata FROM checkpoint WHERE thread = :thread)"
)
_DELETE_SPACES = (
    "DELETE FROM space WHERE thread = ? AND head IS NULL "
    "AND NOT EXISTS (SELECT 1 FROM record AS r WHERE r.thread = space.thread AND r.space = space.key)"
)
_CHANGE_FRAME = "UPDATE frame SET data = ? WHERE key = ?"
_PIN = "UPDATE checkpoint SET pinned = ? WHERE thread = ? AND space = ? AND base = ? AND id = ?"
_MOVE_ROOT = "UPDATE thread SET head = ? WHERE key = ?"
_MOVE_SPACE = "UPDATE space SET head = ? WHERE key = ?"
_NEWEST = "UPDATE thread SET newest = max(ifnull(newest, ''), ?) WHERE key = ?"
_INVALID_HEAD = (
    "SELECT ns, head FROM (SELECT 0 AS key, '' AS ns, head FROM thread WHERE key = :thread "
    "UNION ALL SELECT key, ns, head FROM space WHERE thread = :thread) AS s "
    "WHERE CASE WHEN head IS NULL "
    "THEN EXISTS (SELECT 1 FROM checkpoint AS c WHERE c.thread = :thread AND c.space = s.key) "
    "ELSE NOT EXISTS (SELECT 1 FROM checkpoint AS c INDEXED BY checkpoint_by_id "
    "WHERE c.thread = :thread AND c.id = s.head AND c.space = s.key) END LIMIT 1"
)
_HAS_CONTENT = (
    "SELECT EXISTS (SELECT 1 FROM checkpoint WHERE thread = :thread) "
    "OR EXISTS (SELECT 1 FROM record WHERE thread = :thread) OR EXISTS (SELECT 1 FROM event WHERE thread = :thread)"
)


def rewrite(
    db: sqlite3.Cursor,
    lease: Lease,
    gone: Iterable[StoredKey],
    rows: Iterable[CheckpointColumns],
    heads: Mapping[str, StoredId | None],
    events: Iterable[StoredId],
    pins: Mapping[StoredKey, bool],
) -> None:
    """Delete and replace rows of a thread. See `SaverPort.rewrite`; the arguments are the fields of a `Rewrite`, bound.

    Args:
        db: a cursor in a writing transaction.
        lease: the lease.
        gone: checkpoints to delete, with their records.
        rows: checkpoints to replace.
        heads: new heads by namespace; None removes the head.
        events: checkpoints whose events are deleted.
        pins: new pins by checkpoint.

    Raises:
        ThreadBusyError: with `lost=True`: the lease is no longer held.
        StorageError: a row, head or pin is of a checkpoint that is not stored, or a namespace without a head holds
            checkpoints.
    """
    thread, _ = check_lease(db, lease)
    for ns, id in gone:
        space = namespace_key(db, thread, ns)
        found = db.execute(_STORED, (thread, id, space)).fetchone()
        if found is not None:
            base, frame = found
            db.execute(_DELETE_FRAME, (frame,))
            db.execute(_DELETE_ROW, (thread, space, base, id))
            db.execute(_DELETE_RECORDS, (thread, space, id))
    for row in rows:
        space, base, frame = _stored(db, lease, thread, (row.ns, row.id))
        # Deleted and inserted, not updated: the base is part of the primary key, by which the table is clustered. The
        # frame is updated in place, under the same key.
        db.execute(_DELETE_ROW, (thread, space, base, row.id))
        db.execute(_CHANGE_FRAME, (row.frame, frame))
        add_checkpoint(db, thread, space, row, frame)
    for key, pinned in pins.items():
        space, base, _ = _stored(db, lease, thread, key)
        db.execute(_PIN, (pinned, thread, space, base, key[1]))
    _set_heads(db, lease, thread, heads)
    for id in events:
        db.execute(_DELETE_EVENTS, (thread, id))
    # Last, as deleted and replaced rows decide which metadata texts and namespaces are still referenced.
    db.execute(_DELETE_TEXTS, {"thread": thread})
    db.execute(_DELETE_SPACES, (thread,))


def load(
    db: sqlite3.Cursor,
    lease: Lease,
    heads: Mapping[str, StoredId],
    rows: Sequence[CheckpointColumns],
    records: Sequence[RecordColumns],
    events: Iterable[EventColumns],
    metadata: dict[str, Any],
    replaces: bool,
) -> None:
    """Store a dumped thread. See `SaverPort.load`.

    Args:
        db: a cursor in a writing transaction.
        lease: the lease.
        heads: heads by namespace.
        rows: all checkpoints.
        records: all records.
        events: all rows of events.
        metadata: the thread's metadata.
        replaces: True to delete all that the thread holds first.

    Raises:
        ThreadBusyError: with `lost=True`: the lease is no longer held.
        StorageError: the thread is not empty, two records have one key, or a head is not among the rows.
    """
    thread, _ = check_lease(db, lease)
    if replaces:
        clear(db, thread)
        db.execute(_MOVE_ROOT, (None, thread))
    elif db.execute(_HAS_CONTENT, {"thread": thread}).fetchone()[0]:
        raise _refused(lease, "it is not empty")
    # `put_records` replaces records with an equal key, so a duplicate would be lost without an error.
    if len({record[:3] for record in records}) < len(records):
        raise _refused(lease, "two of the records to be loaded have one key")
    for row in rows:
        add_row(db, thread, namespace_key(db, thread, row.ns), row)
        db.execute(_NEWEST, (row.id, thread))
    _set_heads(db, lease, thread, heads)
    put_records(db, thread, records)
    add_events(db, thread, events)
    set_metadata(db, thread, metadata)


def erase(db: sqlite3.Cursor, lease: Lease) -> None:
    """Delete all rows of a thread; `files.vacuum` removes the bytes that they leave in the file.

    Args:
        db: a cursor in a writing transaction.
        lease: the lease.

    Raises:
        ThreadBusyError: with `lost=True`: the lease is no longer held.
    """
    delete(db, check_lease(db, lease)[0])


def _stored(db: sqlite3.Cursor, lease: Lease, thread: int, key: StoredKey) -> tuple[int, StoredId, int]:
    """Return a stored checkpoint's namespace key, base and frame key. Raise if it is not stored."""
    ns, id = key
    space = namespace_key(db, thread, ns)
    found = db.execute(_STORED, (thread, id, space)).fetchone()
    if found is None:
        raise _refused(lease, f"checkpoint {_id_text(lease, id)} of namespace {ns!r} is not stored")
    return space, found[0], found[1]


def _set_heads(db: sqlite3.Cursor, lease: Lease, thread: int, heads: Mapping[str, StoredId | None]) -> None:
    for ns, head in heads.items():
        if ns:
            db.execute(_MOVE_SPACE, (head, namespace_key(db, thread, ns)))
        else:
            db.execute(_MOVE_ROOT, (head, thread))
    # Checked after all heads are set, over the whole thread: a deleted row may have been the head of a namespace that
    # the change does not name.
    wrong = db.execute(_INVALID_HEAD, {"thread": thread}).fetchone()
    if wrong is None:
        return
    ns, head = wrong
    if head is None:
        raise _refused(lease, f"namespace {ns!r} would hold checkpoints and have no head")
    raise _refused(
        lease, f"the head of namespace {ns!r} would be checkpoint {_id_text(lease, head)}, which is not stored"
    )


def _id_text(lease: Lease, id: StoredId) -> str:
    return read_checkpoint_id(id, location(lease.thread_id, ""))


def _refused(lease: Lease, reason: str) -> StorageError:
    return StorageError(f"thread {lease.thread_id!r}: {reason}. Nothing was changed.")
