"""The writing verbs of a run: the statements between BEGIN and COMMIT.

Each function takes a cursor and runs in the connection's thread. Statements are constant texts, which SQLite compiles
once; every value is bound. A writing transaction holds the write lock from its beginning: rows that a function reads
cannot change before it writes, so values are compared in Python.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ..errors import CorruptCheckpointError, ThreadBusyError, ThreadNotFoundError
from ..metadata import with_changes, with_defaults, write_metadata
from ..owner import is_live
from ..records import Commit, Lease, NamespaceChange, Owner
from .ids import StoredId, write_id
from .reading import MAX_INTEGER, thread_metadata
from .rows import (
    CheckpointColumns,
    EventColumns,
    MetadataText,
    RecordColumns,
    bind_event,
    bind_record,
    location,
    read_checkpoint_id,
    read_owner,
    validated,
    write_owner,
)
from .supersteps import NewCheckpoint, insert, metadata_key, next_metadata_key
from .supersteps import bind as bind_checkpoints

_THREAD = "SELECT key, epoch, run_id, owner, expires_at, newest, head FROM thread WHERE id = ?"
_STORE_LEASE = (
    "INSERT INTO thread (id, epoch, run_id, owner, expires_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "epoch = excluded.epoch, run_id = excluded.run_id, owner = excluded.owner, expires_at = excluded.expires_at"
)
_KEY = "SELECT key FROM thread WHERE id = ?"
_LEASE = "SELECT key, epoch, run_id, head FROM thread WHERE id = ?"
_RENEW = "UPDATE thread SET expires_at = ? WHERE key = ?"
_ADVANCE = "UPDATE thread SET expires_at = ?, newest = max(ifnull(newest, ''), ?) WHERE key = ?"
_ADVANCE_ROOT = "UPDATE thread SET expires_at = ?, newest = max(ifnull(newest, ''), ?), head = ? WHERE key = ?"
_RELEASE = "UPDATE thread SET run_id = NULL, owner = NULL, expires_at = NULL WHERE key = ?"
_IS_BARE = (
    "SELECT 1 FROM thread AS t WHERE t.key = ? AND t.newest IS NULL "
    "AND NOT EXISTS (SELECT 1 FROM run_thread AS r WHERE r.thread = t.key)"
)
_SET_METADATA = "UPDATE thread SET metadata = ? WHERE key = ?"
_SPACE = "SELECT key FROM space WHERE thread = ? AND ns = ?"
_HEAD = "SELECT head FROM space WHERE key = ?"
_ADD_SPACE = "INSERT INTO space (thread, ns) VALUES (?, ?)"
_MOVE_SPACE = "UPDATE space SET head = ? WHERE key = ?"
_IS_STORED = "SELECT 1 FROM checkpoint INDEXED BY checkpoint_by_id WHERE thread = ? AND id = ? AND space = ?"
_METADATA = "SELECT counts, text FROM metadata WHERE thread = ? AND key = ?"
_ADD_METADATA = "INSERT INTO metadata (thread, key, counts, text) VALUES (?, ?, ?, ?)"
_ADD_FRAME = "INSERT INTO frame (id, data) VALUES (?, ?)"
_ADD_CHECKPOINT = (
    "INSERT INTO checkpoint (thread, space, base, id, parent, step, metadata, pinned, frame, size) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_PUT_RECORD = (
    "INSERT OR REPLACE INTO record (thread, space, checkpoint, task_id, place, kind, frame) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_CLEAR_RECORD = "DELETE FROM record WHERE thread = ? AND space = ? AND checkpoint = ? AND task_id = ?"
_ADD_EVENT = "INSERT INTO event (thread, checkpoint, epoch, position, kind, frame) VALUES (?, ?, ?, ?, ?, ?)"
_CLEAR = (
    "DELETE FROM frame WHERE key IN (SELECT frame FROM checkpoint WHERE thread = ?)",
    *(f"DELETE FROM {table} WHERE thread = ?" for table in ("checkpoint", "metadata", "record", "event", "space")),
)
_DELETE = (
    "DELETE FROM run_request WHERE key IN (SELECT key FROM run INDEXED BY run_by_thread WHERE thread = ?)",
    "DELETE FROM run INDEXED BY run_by_thread WHERE thread = ?",
    "DELETE FROM run_thread WHERE thread = ?",
    "DELETE FROM thread WHERE key = ?",
)

ROOT = 0
"""Key of the root graph's namespace, in every thread."""


def acquire(
    db: sqlite3.Cursor,
    thread_id: str,
    owner: Owner,
    now: float,
    expires_at: float,
    refuse_newer: Callable[[sqlite3.Cursor], None],
) -> Lease:
    """Acquire a thread's lease. See `SaverPort.acquire`.

    Args:
        db: a cursor in a writing transaction.
        thread_id: the thread.
        owner: the run that acquires it.
        now: unix seconds.
        expires_at: unix seconds.
        refuse_newer: raises if a later version has upgraded the file since it was opened.

    Returns:
        The lease.

    Raises:
        ThreadBusyError: another run holds a live lease.
        CorruptCheckpointError: the thread's row is damaged.
        UnsupportedFormatError: raised by `refuse_newer`.
    """
    lease = next_lease(db, thread_id, owner, now)
    refuse_newer(db)  # under the write lock: no program upgrades the file before this is committed
    store_lease(db, lease, expires_at)
    return lease


def next_lease(db: sqlite3.Cursor, thread_id: str, owner: Owner, now: float) -> Lease:
    """Make the next lease of a thread, with the next epoch, without storing it. `store_lease` stores it.

    Args:
        db: a cursor in a writing transaction.
        thread_id: the thread, which may be new.
        owner: the run or worker that acquires it.
        now: unix seconds.

    Raises:
        ThreadBusyError: another run holds a live lease.
        CorruptCheckpointError: the thread's row is damaged.
    """
    found = _find_thread(db, thread_id)
    if found is None:
        return Lease(thread_id=thread_id, epoch=1, owner=owner, newest=None)
    if found.owner is not None and found.owner != owner and is_live(found.owner, found.expires_at, now=now):
        raise ThreadBusyError(thread_id, holder=str(found.owner), expires_at=found.expires_at)
    newest = None if found.newest is None else read_checkpoint_id(found.newest, location(thread_id, ""))
    if not 0 <= found.epoch < MAX_INTEGER:
        raise CorruptCheckpointError(location(thread_id, ""), f"its epoch is {found.epoch}, which no saver assigns")
    return Lease(thread_id=thread_id, epoch=found.epoch + 1, owner=owner, newest=newest)


def store_lease(db: sqlite3.Cursor, lease: Lease, expires_at: float) -> None:
    """Store a lease of `next_lease`. Adds the thread if it is new.

    Args:
        db: a cursor in the transaction in which `next_lease` made the lease.
        lease: the lease.
        expires_at: unix seconds.
    """
    owner = lease.owner
    db.execute(_STORE_LEASE, (lease.thread_id, lease.epoch, owner.run_id, write_owner(owner), expires_at))


def renew(db: sqlite3.Cursor, lease: Lease, expires_at: float) -> None:
    """Set the lease's expiry. See `SaverPort.renew`.

    Args:
        db: a cursor in a writing transaction.
        lease: the lease.
        expires_at: unix seconds.

    Raises:
        ThreadBusyError: with `lost=True`: the lease is no longer held.
    """
    db.execute(_RENEW, (expires_at, check_lease(db, lease)[0]))


class MovedHead(NamedTuple):
    """A namespace whose head moves without a new checkpoint.

    Attributes:
        ns: the namespace.
        id: the stored checkpoint that becomes its head.
        before: the head that is expected before.
    """

    ns: str
    id: StoredId
    before: StoredId | None


class CommitColumns(NamedTuple):
    """The fields of a `Commit`, bound, with the lease. Encoded by the caller's thread, before the transaction begins.

    Attributes:
        lease: the run's lease.
        rows: new checkpoints, those of each namespace in order.
        moves: the heads that move without a new checkpoint.
        records: records to put.
        clears: records to delete: namespace, checkpoint and task id.
        expires_at: the lease's new expiry, in unix seconds.
        releases: True to release the lease, too.
        events: rows of events to add.
        metadata: entries for the thread's metadata. Keys that the thread has already are not changed.
        mark: called with the cursor after the commit's own statements, to change rows of runs. If it raises, the commit
            is not stored. None for a commit that changes no run.
    """

    lease: Lease
    rows: Sequence[NewCheckpoint]
    moves: Sequence[MovedHead]
    records: Sequence[RecordColumns]
    clears: Sequence[tuple[str, StoredId, str]]
    expires_at: float
    releases: bool
    events: Sequence[EventColumns]
    metadata: Mapping[str, Any]
    mark: Callable[[sqlite3.Cursor], None] | None = None

    @property
    def size(self) -> int:
        """The bytes of all frames."""
        return sum([len(one.frame) for part in (self.rows, self.records, self.events) for one in part])


def bind_commit(lease: Lease, commit: Commit, mark: Callable[[sqlite3.Cursor], None] | None = None) -> CommitColumns:
    """Convert a commit to columns.

    Args:
        lease: the run's lease.
        commit: the commit.
        mark: see `CommitColumns`.

    Returns:
        The columns.
    """
    return CommitColumns(
        lease=lease,
        rows=bind_checkpoints(lease, commit),
        moves=tuple([moved for each in (*commit.others, commit) for moved in _moved_head(each)]),
        records=tuple(map(bind_record, commit.records)),
        clears=tuple([(ns, write_id(checkpoint_id), task_id) for ns, checkpoint_id, task_id in commit.clears]),
        expires_at=commit.expires_at,
        releases=commit.releases,
        events=tuple(map(bind_event, commit.events)),
        metadata=dict(commit.metadata),
        mark=mark,
    )


def _moved_head(change: NamespaceChange) -> tuple[MovedHead, ...]:
    """Return the move of a namespace's head without a new checkpoint, as a tuple of one; empty if there is none."""
    if change.rows or change.head is None:
        return ()
    before = None if change.expected_head is None else write_id(change.expected_head)
    ns, id = change.head
    return (MovedHead(ns, write_id(id), before),)


def commit(db: sqlite3.Cursor, commits: Iterable[CommitColumns]) -> None:
    """Store supersteps, of any number of runs. See `SaverPort.commit`.

    The checkpoints of all of them are stored together. What few commits have takes statements of its own.

    Args:
        db: a cursor in a writing transaction.
        commits: the supersteps, in order.

    Raises:
        ThreadBusyError: with `lost=True`: a lease is no longer held, or a head is not the expected one. If there are
            several commits, the error may name another one's thread: roll back and store them one by one.
        Exception: raised by the `mark` of a commit. Roll back and store the commits one by one, likewise.
    """
    for has_rows, group in groupby(commits, _has_rows):
        same = list(group)
        if has_rows and not insert(db, [row for each in same for row in each.rows]):
            raise lease_lost(db, same[0].lease.thread_id)
        for each in same:
            if each.moves or not has_rows:
                _move_heads(db, each)
            if each.clears or each.records or each.events or each.metadata or not _is_released_by_rows(each):
                _store_rest(db, each)
            if each.mark is not None:
                each.mark(db)


def _has_rows(commit: CommitColumns) -> bool:
    return bool(commit.rows)


def _is_released_by_rows(commit: CommitColumns) -> bool:
    """Return True if the statement that inserts the commit's rows releases the lease, or no statement is to."""
    return not commit.releases or bool(commit.rows and not commit.moves)


def _move_heads(db: sqlite3.Cursor, commit: CommitColumns) -> None:
    """Check and renew the lease of a commit, and move the heads that move without a new checkpoint."""
    thread, root_head = check_lease(db, commit.lease)
    if not commit.moves:
        db.execute(_RENEW, (commit.expires_at, thread))
    for ns, tip, before in commit.moves:
        space, head = namespace_key(db, thread, ns), root_head
        if ns:
            (head,) = db.execute(_HEAD, (space,)).fetchone()
        if head != before or not is_stored(db, thread, space, tip):
            raise lease_lost(db, commit.lease.thread_id)
        if ns:
            db.execute(_ADVANCE, (commit.expires_at, tip, thread))
            db.execute(_MOVE_SPACE, (tip, space))
        else:
            db.execute(_ADVANCE_ROOT, (commit.expires_at, tip, tip, thread))


def _store_rest(db: sqlite3.Cursor, commit: CommitColumns) -> None:
    """Store what a commit has besides checkpoints. Its lease has been checked in this transaction."""
    (thread,) = db.execute(_KEY, (commit.lease.thread_id,)).fetchone()
    # Cleared before records are put: a record of the same task in this commit replaces the cleared one.
    for name, checkpoint, task_id in commit.clears:
        db.execute(_CLEAR_RECORD, (thread, namespace_key(db, thread, name), checkpoint, task_id))
    put_records(db, thread, commit.records)
    add_events(db, thread, commit.events)
    if commit.metadata:
        before = thread_metadata(db, thread, location(commit.lease.thread_id, ""))
        set_metadata(db, thread, with_defaults(before, commit.metadata))
    if not _is_released_by_rows(commit):
        _release(db, thread)


def record(db: sqlite3.Cursor, lease: Lease, records: Iterable[RecordColumns], expires_at: float) -> None:
    """Store records of an open superstep. See `SaverPort.record`.

    Args:
        db: a cursor in a writing transaction.
        lease: the run's lease.
        records: records to put.
        expires_at: the lease's new expiry, in unix seconds.

    Raises:
        ThreadBusyError: with `lost=True`: the lease is no longer held.
    """
    thread, _ = check_lease(db, lease)
    db.execute(_RENEW, (expires_at, thread))
    put_records(db, thread, records)


def release(db: sqlite3.Cursor, lease: Lease) -> None:
    """Release a lease; do nothing if it is no longer held. See `SaverPort.release`.

    Args:
        db: a cursor in a writing transaction.
        lease: the lease.
    """
    found = _find_lease(db, lease)
    if found is not None:
        _release(db, found[0])


def delete_thread(
    db: sqlite3.Cursor, thread_id: str, now: float, refuse_newer: Callable[[sqlite3.Cursor], None]
) -> None:
    """Delete a thread that no run holds.

    Args:
        db: a cursor in a writing transaction.
        thread_id: the thread.
        now: unix seconds.
        refuse_newer: as for `acquire`: without a lease, no earlier statement has checked the version.

    Raises:
        ThreadBusyError: a run holds the thread.
        UnsupportedFormatError: raised by `refuse_newer`.
    """
    refuse_newer(db)
    found = _find_thread(db, thread_id)
    if found is None:
        _require_writable(db)
        return
    if found.owner is not None and is_live(found.owner, found.expires_at, now=now):
        raise ThreadBusyError(thread_id, holder=str(found.owner), expires_at=found.expires_at)
    delete(db, found.key)


def update_thread(
    db: sqlite3.Cursor, thread_id: str, changes: Mapping[str, Any], refuse_newer: Callable[[sqlite3.Cursor], None]
) -> None:
    """Change a thread's metadata. See `SaverPort.update_thread`.

    Args:
        db: a cursor in a writing transaction.
        thread_id: the thread.
        changes: JSON values by key; None deletes the key.
        refuse_newer: as for `acquire`: without a lease, no earlier statement has checked the version.

    Raises:
        ThreadNotFoundError: the thread holds no checkpoint, and has no row of accepted runs.
        UnsupportedFormatError: raised by `refuse_newer`.
    """
    refuse_newer(db)
    found = _find_thread(db, thread_id)
    if found is None or _is_bare(db, found.key):
        _require_writable(db)
        raise ThreadNotFoundError(thread_id)
    set_metadata(db, found.key, with_changes(thread_metadata(db, found.key, location(thread_id, "")), changes))


def check_lease(db: sqlite3.Cursor, lease: Lease) -> tuple[int, StoredId | None]:
    """Return the thread's key and the root graph's head, if the lease is held.

    Args:
        db: a cursor in a writing transaction.
        lease: the lease.

    Returns:
        The key, and the head or None.

    Raises:
        ThreadBusyError: with `lost=True`: the lease is no longer held.
    """
    found = _find_lease(db, lease)
    if found is None:
        raise lease_lost(db, lease.thread_id)
    return found


def lease_lost(db: sqlite3.Cursor, thread_id: str) -> ThreadBusyError:
    """Return the error for a lease that is no longer held.

    Args:
        db: a cursor.
        thread_id: the thread.

    Returns:
        The error, which names the present holder.
    """
    found = _find_thread(db, thread_id)
    if found is None or found.owner is None:
        return ThreadBusyError(thread_id, lost=True)
    return ThreadBusyError(thread_id, holder=str(found.owner), expires_at=found.expires_at, lost=True)


def namespace_key(db: sqlite3.Cursor, thread: int, ns: str) -> int:
    """Return the key of a namespace. A namespace without a key gets one.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
        ns: the namespace.

    Returns:
        The key.
    """
    if not ns:
        return ROOT
    found: tuple[int] | None = db.execute(_SPACE, (thread, ns)).fetchone()
    return inserted_key(db.execute(_ADD_SPACE, (thread, ns))) if found is None else found[0]


def is_stored(db: sqlite3.Cursor, thread: int, space: int, id: StoredId) -> bool:
    """Return True if a checkpoint is stored.

    Args:
        db: a cursor.
        thread: the thread's key.
        space: the namespace's key.
        id: the checkpoint's id.

    Returns:
        True if there is such a row.
    """
    return db.execute(_IS_STORED, (thread, id, space)).fetchone() is not None


def add_row(db: sqlite3.Cursor, thread: int, space: int, row: CheckpointColumns) -> None:
    """Insert a checkpoint and its frame.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
        space: the namespace's key.
        row: the checkpoint.
    """
    add_checkpoint(db, thread, space, row, inserted_key(db.execute(_ADD_FRAME, (row.id, row.frame))))


def add_checkpoint(db: sqlite3.Cursor, thread: int, space: int, row: CheckpointColumns, frame: int) -> None:
    """Insert a checkpoint whose frame is stored already.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
        space: the namespace's key.
        row: the checkpoint.
        frame: the key of its frame.
    """
    text = _metadata_key(db, thread, row.metadata)
    db.execute(
        _ADD_CHECKPOINT,
        (thread, space, row.base, row.id, row.parent, row.step, text, row.pinned, frame, len(row.frame)),
    )


def inserted_key(db: sqlite3.Cursor) -> int:
    """Return the key that an INSERT assigned.

    Args:
        db: the cursor that executed it.

    Returns:
        The rowid.
    """
    assert db.lastrowid is not None
    return db.lastrowid


def set_metadata(db: sqlite3.Cursor, thread: int, metadata: dict[str, Any]) -> None:
    """Replace the metadata of a thread.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
        metadata: JSON values by key.
    """
    db.execute(_SET_METADATA, (write_metadata(metadata), thread))


def put_records(db: sqlite3.Cursor, thread: int, records: Iterable[RecordColumns]) -> None:
    """Insert or replace records.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
        records: the records.
    """
    for ns, *rest in records:
        db.execute(_PUT_RECORD, (thread, namespace_key(db, thread, ns), *rest))


def add_events(db: sqlite3.Cursor, thread: int, events: Iterable[EventColumns]) -> None:
    """Insert rows of events.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
        events: the rows.
    """
    for event in events:
        db.execute(_ADD_EVENT, (thread, *event))


def delete(db: sqlite3.Cursor, thread: int) -> None:
    """Delete all rows of a thread.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
    """
    clear(db, thread)
    for statement in _DELETE:
        db.execute(statement, (thread,))


def clear(db: sqlite3.Cursor, thread: int) -> None:
    """Delete all that a thread holds. Its own row stays, with the lease.

    Args:
        db: a cursor in a writing transaction.
        thread: the thread's key.
    """
    for statement in _CLEAR:
        db.execute(statement, (thread,))


def _release(db: sqlite3.Cursor, thread: int) -> None:
    """Release the lease, and delete a thread that holds no checkpoint and has no accepted runs."""
    # Otherwise a thread whose first run stored nothing would be listed as an empty thread for ever.
    db.execute(_RELEASE, (thread,))
    if _is_bare(db, thread):
        delete(db, thread)


def _is_bare(db: sqlite3.Cursor, thread: int) -> bool:
    """Return True if a thread holds no checkpoint and has no row of accepted runs."""
    return db.execute(_IS_BARE, (thread,)).fetchone() is not None


def _find_lease(db: sqlite3.Cursor, lease: Lease) -> tuple[int, StoredId | None] | None:
    """Return the thread's key and root head, or None if the lease is no longer held."""
    found = db.execute(_LEASE, (lease.thread_id,)).fetchone()
    # Both are compared: a thread that was deleted and made again counts its epochs from 1, so that an old lease may
    # have the epoch of a new one.
    if found is None or found[1] != lease.epoch or found[2] != lease.owner.run_id:
        _require_writable(db)
        return None
    return found[0], found[3]


def _require_writable(db: sqlite3.Cursor) -> None:
    """Change nothing, but raise on a read-only file, which BEGIN IMMEDIATE accepts."""
    db.execute("DELETE FROM thread WHERE key IS NULL")


def _metadata_key(db: sqlite3.Cursor, thread: int, metadata: MetadataText) -> int:
    """Return the key of a metadata text in a thread; insert the text if it is new."""
    key = metadata_key(metadata.text)
    while True:
        found = db.execute(_METADATA, (thread, key)).fetchone()
        if found is None:
            db.execute(_ADD_METADATA, (thread, key, *metadata))
            return key
        if found == metadata:
            return key
        key = next_metadata_key(key)


class _ThreadRow(NamedTuple):
    key: int
    epoch: int
    owner: Owner | None
    expires_at: float
    newest: StoredId | None


def _find_thread(db: sqlite3.Cursor, thread_id: str) -> _ThreadRow | None:
    row = db.execute(_THREAD, (thread_id,)).fetchone()
    if row is None:
        return None
    where = location(thread_id, "")
    key, epoch, _, owner, expires_at, newest, _ = validated(
        row, tuple[int, int, str | None, str | None, float | None, Any, Any], where
    )
    return _ThreadRow(key, epoch, None if owner is None else read_owner(owner, where), expires_at or 0.0, newest)
