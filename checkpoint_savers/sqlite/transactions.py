"""The verbs as transactions: what each does between BEGIN and COMMIT.

Functions of a cursor, which run in the connection's thread. Statements are constant texts, which SQLite compiles
once; every value is bound.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from ..errors import CorruptCheckpointError, ThreadBusyError
from ..metadata import read_metadata
from ..owner import is_live
from ..records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Claim,
    EventKey,
    EventKind,
    EventRow,
    Header,
    Owner,
    RecordKind,
    TaskId,
    TaskRecord,
)
from .schema import EVENTS_SINCE

Row = tuple[object, ...]
"""Values to be bound."""

T = TypeVar("T")

_THREAD = "SELECT epoch, owner, expires_at, newest FROM threads WHERE thread_id = ?"
_ADD_THREAD = "INSERT INTO threads (thread_id, epoch, run_id, owner, expires_at, newest) VALUES (?, 1, ?, ?, ?, NULL)"
_TAKE_THREAD = "UPDATE threads SET epoch = ?, run_id = ?, owner = ?, expires_at = ? WHERE thread_id = ?"
_RENEW = "UPDATE threads SET expires_at = ? WHERE thread_id = ? AND epoch = ? AND run_id = ?"
_ADVANCE = (
    "UPDATE threads SET expires_at = ?, newest = max(ifnull(newest, ''), ?) "
    "WHERE thread_id = ? AND epoch = ? AND run_id = ?"
)
_RELEASE = (
    "UPDATE threads SET run_id = NULL, owner = NULL, expires_at = NULL WHERE thread_id = ? AND epoch = ? AND run_id = ?"
)
_IS_BARE = "SELECT 1 FROM threads WHERE thread_id = ? AND newest IS NULL"
_FIRST_HEAD = "INSERT INTO heads (thread_id, ns, checkpoint_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_MOVE_HEAD = "UPDATE heads SET checkpoint_id = ? WHERE thread_id = ? AND ns = ? AND checkpoint_id = ?"
_MOVE_HEAD_BACK = (
    f"{_MOVE_HEAD} AND EXISTS (SELECT 1 FROM checkpoints WHERE thread_id = ? AND ns = ? AND checkpoint_id = ?)"
)
_ADD_CHECKPOINT = (
    "INSERT INTO checkpoints (thread_id, ns, base_id, checkpoint_id, parent_id, step, metadata, frame) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_PUT_RECORD = (
    "INSERT OR REPLACE INTO records (thread_id, ns, checkpoint_id, task_id, idx, kind, frame) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_CLEAR_RECORD = "DELETE FROM records WHERE thread_id = ? AND ns = ? AND checkpoint_id = ? AND task_id = ?"
_ADD_EVENT = "INSERT INTO events (thread_id, checkpoint_id, epoch, position, kind, frame) VALUES (?, ?, ?, ?, ?, ?)"
_DELETE = tuple(
    f"DELETE FROM {table} WHERE thread_id = ?" for table in ("records", "checkpoints", "heads", "events", "threads")
)
_HEAD_AND_BASE = (
    "SELECT h.checkpoint_id, (SELECT c.base_id FROM checkpoints AS c WHERE c.thread_id = h.thread_id "
    "AND c.checkpoint_id = ifnull(?, h.checkpoint_id) AND c.ns = h.ns) "
    "FROM heads AS h WHERE h.thread_id = ? AND h.ns = ?"
)
_CHAIN = (
    "SELECT checkpoint_id, parent_id, base_id, step, metadata, frame FROM checkpoints "
    "WHERE thread_id = ? AND ns = ? AND base_id = ? AND checkpoint_id <= ? ORDER BY checkpoint_id"
)
_RECORDS = (
    "SELECT checkpoint_id, task_id, idx, kind, frame FROM records "
    "WHERE thread_id = ? AND ns = ? AND checkpoint_id = ? ORDER BY idx, task_id"
)
_SEGMENT = (
    "SELECT checkpoint_id, parent_id, base_id, step, metadata, frame FROM checkpoints "
    "WHERE thread_id = ? AND ns = ? AND base_id = ? ORDER BY checkpoint_id"
)
_SEGMENT_RECORDS = (
    "SELECT r.checkpoint_id, r.task_id, r.idx, r.kind, r.frame FROM checkpoints AS c "
    "CROSS JOIN records AS r USING (thread_id, ns, checkpoint_id) "
    "WHERE c.thread_id = ? AND c.ns = ? AND c.base_id = ? ORDER BY r.checkpoint_id, r.idx, r.task_id"
)
_EVENTS = (
    "SELECT checkpoint_id, epoch, position, kind, frame FROM events "
    "WHERE thread_id = ? AND (checkpoint_id, epoch, position) >= (?, ?, ?) "
    "ORDER BY checkpoint_id, epoch, position LIMIT ?"
)
_PAGE_OF_THREAD = (
    "SELECT thread_id, ns, checkpoint_id, parent_id, base_id, step, metadata "
    "FROM checkpoints INDEXED BY checkpoints_by_id "
    "WHERE thread_id = ? AND (checkpoint_id, ns) < (?, ?) AND ns = ifnull(?, ns) "
    "ORDER BY checkpoint_id DESC, ns DESC LIMIT ?"
)
_PAGE_OF_ALL = (
    "SELECT c.thread_id, c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata FROM ("
    "SELECT thread_id, ns, base_id, checkpoint_id FROM checkpoints INDEXED BY checkpoints_by_id "
    "WHERE (checkpoint_id, thread_id, ns) < (?, ?, ?) AND ns = ifnull(?, ns) "
    "ORDER BY checkpoint_id DESC, thread_id DESC, ns DESC LIMIT ?"
    ") AS k CROSS JOIN checkpoints AS c USING (thread_id, ns, base_id, checkpoint_id) "
    "ORDER BY c.checkpoint_id DESC, c.thread_id DESC, c.ns DESC"
)

_FIRST = (CheckpointId(""), 0, 0)
"""A key that is smaller than every row's."""

_MOST = 2**63 - 1
"""The greatest number that SQLite takes. A key to begin at may come from a reader far away, and hold any."""

_owner_text = msgspec.json.Encoder().encode
_owner = msgspec.json.Decoder(Owner).decode


def claim(db: sqlite3.Cursor, thread_id: str, owner: Owner, now: float, expires_at: float) -> Claim:
    text = _owner_text(owner).decode()
    row = db.execute(_THREAD, (thread_id,)).fetchone()
    if row is None:
        db.execute(_ADD_THREAD, (thread_id, owner.run_id, text, expires_at))
        return Claim(thread_id=thread_id, epoch=1, owner=owner, newest=None)
    epoch, holder, until, newest = _thread(row, thread_id)
    if holder is not None and holder != owner and is_live(holder, until, now=now):
        raise ThreadBusyError(thread_id, holder=str(holder), expires_at=until)
    db.execute(_TAKE_THREAD, (epoch + 1, owner.run_id, text, expires_at, thread_id))
    return Claim(thread_id=thread_id, epoch=epoch + 1, owner=owner, newest=newest)


def renew(db: sqlite3.Cursor, claim: Claim, expires_at: float) -> None:
    if db.execute(_RENEW, (expires_at, claim.thread_id, claim.epoch, claim.owner.run_id)).rowcount != 1:
        raise _lost(db, claim.thread_id)


def commit(
    db: sqlite3.Cursor,
    claim: Claim,
    rows: Sequence[Row],
    expected_head: CheckpointId | None,
    records: Sequence[Row],
    clears: Sequence[Row],
    expires_at: float,
    releases: bool,
    moved: tuple[str, CheckpointId] | None,
    events: Sequence[Row],
) -> None:
    """Rows, records and events as they are bound, made ready outside of the transaction."""
    thread_id = claim.thread_id
    if rows:
        ns, head = rows[-1][1], rows[-1][3]
        held = (expires_at, head, thread_id, claim.epoch, claim.owner.run_id)
        if db.execute(_ADVANCE, held).rowcount != 1:
            raise _lost(db, thread_id)
        if expected_head is None:
            db.execute(_FIRST_HEAD, (thread_id, ns, head))
        else:
            db.execute(_MOVE_HEAD, (head, thread_id, ns, expected_head))
        if db.rowcount != 1:
            raise _lost(db, thread_id)
        for row in rows:
            db.execute(_ADD_CHECKPOINT, row)
    else:
        renew(db, claim, expires_at)
        if moved is not None:
            db.execute(_MOVE_HEAD_BACK, (moved[1], thread_id, moved[0], expected_head, thread_id, *moved))
            if db.rowcount != 1:
                raise _lost(db, thread_id)
    for key in clears:
        db.execute(_CLEAR_RECORD, key)
    for row in records:
        db.execute(_PUT_RECORD, row)
    for row in events:
        db.execute(_ADD_EVENT, row)
    if releases:
        release(db, claim)


def record(db: sqlite3.Cursor, claim: Claim, records: Sequence[Row], expires_at: float) -> None:
    renew(db, claim, expires_at)
    for row in records:
        db.execute(_PUT_RECORD, row)


def release(db: sqlite3.Cursor, claim: Claim) -> None:
    released = db.execute(_RELEASE, (claim.thread_id, claim.epoch, claim.owner.run_id)).rowcount
    if released and db.execute(_IS_BARE, (claim.thread_id,)).fetchone() is not None:
        _erase(db, claim.thread_id)


def delete_thread(db: sqlite3.Cursor, thread_id: str, now: float) -> None:
    row = db.execute(_THREAD, (thread_id,)).fetchone()
    if row is not None:
        _, holder, until, _ = _thread(row, thread_id)
        if holder is not None and is_live(holder, until, now=now):
            raise ThreadBusyError(thread_id, holder=str(holder), expires_at=until)
    _erase(db, thread_id)


def read(db: sqlite3.Cursor, thread_id: str, ns: str, checkpoint_id: CheckpointId | None) -> Chain | None:
    where = _where(thread_id, ns)
    row = db.execute(_HEAD_AND_BASE, (checkpoint_id, thread_id, ns)).fetchone()
    if row is None:
        return None
    head, base = _checked(row, tuple[str, str | None], where)
    if base is None:
        if checkpoint_id is None:
            raise CorruptCheckpointError(where, f"its head, checkpoint {head}, is missing")
        return None
    asked = CheckpointId(head) if checkpoint_id is None else checkpoint_id
    rows = _rows(db.execute(_CHAIN, (thread_id, ns, base, asked)).fetchall(), ns, where)
    if not rows or rows[0].checkpoint_id != base or rows[-1].checkpoint_id != asked:
        raise CorruptCheckpointError(f"{where}, checkpoint {asked}", f"the base of its chain, {base}, is missing")
    records = _records(db.execute(_RECORDS, (thread_id, ns, asked)).fetchall(), ns, where)
    return Chain(rows=rows, records=records, head=CheckpointId(head))


def segment(
    db: sqlite3.Cursor, thread_id: str, ns: str, base_id: CheckpointId
) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
    where = _where(thread_id, ns)
    key = (thread_id, ns, base_id)
    rows = _rows(db.execute(_SEGMENT, key).fetchall(), ns, where)
    return rows, _records(db.execute(_SEGMENT_RECORDS, key).fetchall(), ns, where)


def events(db: sqlite3.Cursor, thread_id: str, since: EventKey | None, limit: int) -> tuple[EventRow, ...]:
    # Asked each time, as a file that was opened read-only may be upgraded by another process at any moment.
    if db.execute("PRAGMA user_version").fetchone()[0] < EVENTS_SINCE:
        return ()
    checkpoint_id, *numbers = _FIRST if since is None else since
    bound = [min(max(number, -_MOST), _MOST) for number in numbers]
    raw = db.execute(_EVENTS, (thread_id, checkpoint_id, *bound, max(limit, 0))).fetchall()
    return tuple(
        EventRow(checkpoint_id=CheckpointId(id), epoch=epoch, position=position, kind=kind, frame=frame)
        for id, epoch, position, kind, frame in _checked(
            raw, list[tuple[str, int, int, EventKind, bytes]], f"{_where(thread_id, '')}, its events"
        )
    )


def page(
    db: sqlite3.Cursor, thread_id: str | None, ns: str | None, before: tuple[str, str, str] | None, limit: int
) -> list[Any]:
    """Raw header rows, newest first, after a position (checkpoint id, thread id, namespace)."""
    # Every text is smaller than any blob: the empty one stands for "from the newest".
    checkpoint_id, after_thread, after_ns = (b"", b"", b"") if before is None else before
    if thread_id is None:
        return db.execute(_PAGE_OF_ALL, (checkpoint_id, after_thread, after_ns, ns, limit)).fetchall()
    return db.execute(_PAGE_OF_THREAD, (thread_id, checkpoint_id, after_ns, ns, limit)).fetchall()


def headers(raw: list[Any]) -> Iterator[Header]:
    """What `page` found."""
    rows = _checked(raw, list[tuple[str, str, str, str | None, str, int, str]], "a listing")
    for thread_id, ns, checkpoint_id, parent_id, base_id, step, metadata in rows:
        yield Header(
            thread_id=thread_id,
            ns=ns,
            checkpoint_id=CheckpointId(checkpoint_id),
            parent_id=None if parent_id is None else CheckpointId(parent_id),
            base_id=CheckpointId(base_id),
            step=step,
            metadata=read_metadata(metadata, f"{_where(thread_id, ns)}, checkpoint {checkpoint_id}"),
        )


def _erase(db: sqlite3.Cursor, thread_id: str) -> None:
    for statement in _DELETE:
        db.execute(statement, (thread_id,))


def _lost(db: sqlite3.Cursor, thread_id: str) -> ThreadBusyError:
    row = db.execute(_THREAD, (thread_id,)).fetchone()
    if row is None:
        return ThreadBusyError(thread_id, lost=True)
    _, holder, until, _ = _thread(row, thread_id)
    if holder is None:
        return ThreadBusyError(thread_id, lost=True)
    return ThreadBusyError(thread_id, holder=str(holder), expires_at=until, lost=True)


# ---- from what is stored to records. A database is not typed as Python is, and a damaged one holds anything
# ------------


def _thread(row: Any, thread_id: str) -> tuple[int, Owner | None, float, CheckpointId | None]:
    where = f"thread {thread_id!r}"
    epoch, text, until, newest = _checked(row, tuple[int, str | None, float | None, str | None], where)
    try:
        holder = None if text is None else _owner(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"the owner of its claim cannot be read ({error})") from error
    return epoch, holder, until or 0.0, None if newest is None else CheckpointId(newest)


def _rows(raw: list[Any], ns: str, where: str) -> tuple[CheckpointRow, ...]:
    return tuple(
        CheckpointRow(
            ns=ns,
            checkpoint_id=CheckpointId(checkpoint_id),
            parent_id=None if parent_id is None else CheckpointId(parent_id),
            base_id=CheckpointId(base_id),
            step=step,
            metadata=read_metadata(metadata, f"{where}, checkpoint {checkpoint_id}"),
            frame=frame,
        )
        for checkpoint_id, parent_id, base_id, step, metadata, frame in _checked(
            raw, list[tuple[str, str | None, str, int, str, bytes]], where
        )
    )


def _records(raw: list[Any], ns: str, where: str) -> tuple[TaskRecord, ...]:
    return tuple(
        TaskRecord(
            ns=ns,
            checkpoint_id=CheckpointId(checkpoint_id),
            task_id=TaskId(task_id),
            index=index,
            kind=kind,
            frame=frame,
        )
        for checkpoint_id, task_id, index, kind, frame in _checked(
            raw, list[tuple[str, str, int, RecordKind, bytes]], where
        )
    )


def _checked(raw: Any, type: type[T], where: str) -> T:
    try:
        return msgspec.convert(raw, type, builtin_types=(bytes,))  # else a text in a blob's place is read as base64
    except msgspec.ValidationError as error:
        raise CorruptCheckpointError(where, f"a stored row is damaged ({error})") from error


def _where(thread_id: str, ns: str) -> str:
    return f"thread {thread_id!r}, namespace {ns!r}" if ns else f"thread {thread_id!r}"
