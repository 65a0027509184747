"""The reading verbs: what each asks between BEGIN and COMMIT.

Functions of a cursor, which run in the connection's thread. Statements are constant texts, which SQLite compiles
once; every value is bound.
"""

from __future__ import annotations

import sqlite3
from typing import Any, TypeAlias

from ..errors import CorruptCheckpointError
from ..metadata import read_metadata
from ..records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    EventKey,
    EventRow,
    Header,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)
from .ids import AFTER_ALL, StoredId, write_id
from .rows import (
    location,
    read_checkpoint_id,
    read_events,
    read_headers,
    read_records,
    read_rows,
    read_thread_headers,
    validated,
)

Position: TypeAlias = tuple[str, str, str]
"""Where a listing stands: after this checkpoint of this thread, in this namespace."""

_NS = "CASE c.space WHEN 0 THEN '' ELSE s.ns END"
_METADATA = "LEFT JOIN metadata AS m ON m.thread = c.thread AND m.key = c.metadata"
_FRAME = "LEFT JOIN frame AS f ON f.key = c.frame AND f.id = c.id"
_SPACE = "LEFT JOIN space AS s ON s.key = c.space"
_ROW = "c.id, c.parent, c.base, c.step, m.counts, m.text, c.pinned, f.data"
_HEADER = f"t.id, {_NS}, c.id, c.parent, c.base, c.step, m.counts, m.text, c.pinned, c.size"

_KEY = "SELECT key FROM thread WHERE id = ?"
_METADATA_OF = "SELECT metadata FROM thread WHERE key = ?"
_NAMESPACE = (
    "SELECT t.key, CASE WHEN :ns = '' THEN 0 ELSE s.key END, CASE WHEN :ns = '' THEN t.head ELSE s.head END "
    "FROM thread AS t LEFT JOIN space AS s ON s.thread = t.key AND s.ns = :ns WHERE t.id = :thread"
)
_BASES = (
    "SELECT c.base, b.base FROM checkpoint AS c INDEXED BY checkpoint_by_id "
    "LEFT JOIN checkpoint AS b INDEXED BY checkpoint_by_id "
    "ON b.thread = c.thread AND b.id = c.base AND b.space = c.space "
    "WHERE c.thread = ? AND c.id = ? AND c.space = ?"
)
_CHAIN = (
    f"SELECT ?, {_ROW} FROM checkpoint AS c {_METADATA} {_FRAME} "
    "WHERE c.thread = ? AND c.space = ? AND c.base = ? AND c.id <= ? ORDER BY c.id"
)
_RECORDS = (
    "SELECT ?, checkpoint, task_id, place, kind, frame FROM record "
    "WHERE thread = ? AND space = ? AND checkpoint = ? ORDER BY place, task_id"
)
_SEGMENT_RECORDS = (
    "SELECT ?, r.checkpoint, r.task_id, r.place, r.kind, r.frame FROM checkpoint AS c "
    "CROSS JOIN record AS r ON r.thread = c.thread AND r.space = c.space AND r.checkpoint = c.id "
    "WHERE c.thread = ? AND c.space = ? AND c.base = ? ORDER BY r.checkpoint, r.place, r.task_id"
)
_EVENTS = (
    "SELECT checkpoint, epoch, position, kind, frame FROM event "
    "WHERE thread = ? AND (checkpoint, epoch, position) >= (?, ?, ?) "
    "ORDER BY checkpoint, epoch, position LIMIT ?"
)
_PAGE_OF_THREAD = (
    f"SELECT {_HEADER} FROM thread AS t CROSS JOIN checkpoint AS c INDEXED BY checkpoint_by_id ON c.thread = t.key "
    f"{_SPACE} {_METADATA} "
    f"WHERE t.id = :thread AND c.id <= :id AND (c.id, {_NS}) < (:id, :after_ns) AND {_NS} = ifnull(:ns, {_NS}) "
    f"ORDER BY c.id DESC, {_NS} DESC LIMIT :limit"
)
_PAGE_OF_ALL = (
    f"SELECT {_HEADER} FROM ("
    f"SELECT c.thread, c.space, c.base, c.id, t.id AS name, {_NS} AS ns "
    "FROM checkpoint AS c INDEXED BY checkpoint_by_id "
    f"LEFT JOIN thread AS t ON t.key = c.thread {_SPACE} "
    f"WHERE c.id <= :id AND (c.id, t.id, {_NS}) < (:id, :after_thread, :after_ns) AND {_NS} = ifnull(:ns, {_NS}) "
    "ORDER BY c.id DESC, name DESC, ns DESC LIMIT :limit"
    ") AS k CROSS JOIN checkpoint AS c USING (thread, space, base, id) "
    f"LEFT JOIN thread AS t ON t.key = c.thread {_SPACE} {_METADATA} ORDER BY c.id DESC, k.name DESC, k.ns DESC"
)
_THREADS = (
    "SELECT t.id, t.epoch, t.owner, t.expires_at, t.newest, t.head, c.id, t.metadata FROM thread AS t "
    "LEFT JOIN checkpoint AS c INDEXED BY checkpoint_by_id ON c.thread = t.key AND c.id = t.head AND c.space = 0 "
    "WHERE t.id >= ifnull(:after, '') AND t.id IS NOT :after ORDER BY t.id LIMIT :limit"
)
_HEADS = "SELECT '', head FROM thread WHERE key = ? UNION ALL SELECT ns, head FROM space WHERE thread = ? ORDER BY 1"
_ALL_ROWS = (
    f"SELECT {_NS}, {_ROW} FROM checkpoint AS c INDEXED BY checkpoint_by_id {_SPACE} {_METADATA} {_FRAME} "
    f"WHERE c.thread = ? ORDER BY c.id, {_NS}"
)
_ALL_RECORDS = (
    f"SELECT {_NS}, c.checkpoint, c.task_id, c.place, c.kind, c.frame FROM record AS c {_SPACE} "
    f"WHERE c.thread = ? ORDER BY c.checkpoint, {_NS}, c.place, c.task_id"
)

MAX_INTEGER = 2**63 - 1
"""The greatest number that SQLite takes."""

BEFORE_ALL = (float("-inf"), 0, 0)
"""Smaller than the key of every row of events, a damaged one's too: numbers come before texts."""


def read(db: sqlite3.Cursor, thread_id: str, ns: str, checkpoint_id: CheckpointId | None) -> Chain | None:
    where = location(thread_id, ns)
    found = _find_namespace(db, thread_id, ns)
    if found is None:
        return None
    thread, space, head = found
    if head is None:
        return None
    asked = head if checkpoint_id is None else write_id(checkpoint_id)
    bases = db.execute(_BASES, (thread, asked, space)).fetchone()
    if bases is None:
        if checkpoint_id is None:
            raise CorruptCheckpointError(where, f"its head, checkpoint {read_checkpoint_id(asked, where)}, is missing")
        return None
    base, first = bases
    raw = db.execute(_CHAIN, (ns, thread, space, base, asked)).fetchall()
    if first != base:  # it is a milestone
        raw = db.execute(_CHAIN, (ns, thread, space, first, base)).fetchall() + raw
    if not raw or raw[0][1] != first or raw[-1][1] != asked:
        raise CorruptCheckpointError(
            f"{where}, checkpoint {read_checkpoint_id(asked, where)}", "the base of its chain is missing"
        )
    return Chain(
        rows=read_rows(raw, where),
        records=read_records(db.execute(_RECORDS, (ns, thread, space, asked)).fetchall(), where),
        head=read_checkpoint_id(head, where),
    )


def segment(
    db: sqlite3.Cursor, thread_id: str, ns: str, base_id: CheckpointId
) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
    where = location(thread_id, ns)
    found = _find_namespace(db, thread_id, ns)
    if found is None:
        return (), ()
    thread, space, _ = found
    base = write_id(base_id)
    rows = read_rows(db.execute(_CHAIN, (ns, thread, space, base, AFTER_ALL)).fetchall(), where)
    return rows, read_records(db.execute(_SEGMENT_RECORDS, (ns, thread, space, base)).fetchall(), where)


def events(db: sqlite3.Cursor, thread_id: str, since: EventKey | None, limit: int) -> tuple[EventRow, ...]:
    found = db.execute(_KEY, (thread_id,)).fetchone()
    if found is None:
        return ()
    key = BEFORE_ALL if since is None else (write_id(since[0]), *clamped(since))
    raw = db.execute(_EVENTS, (*found, *key, max(limit, 0))).fetchall()
    return read_events(raw, f"{location(thread_id, '')}, its events")


def clamped(key: EventKey) -> tuple[int, int]:
    """Those of a key at which to begin, as SQLite takes them: it may come from a reader far away, and hold any."""
    _, epoch, position = key
    return min(max(epoch, -MAX_INTEGER), MAX_INTEGER), min(max(position, -MAX_INTEGER), MAX_INTEGER)


def page(
    db: sqlite3.Cursor, thread_id: str | None, ns: str | None, before: Position | None, limit: int
) -> list[Header]:
    """Headers, newest first, after a position."""
    id, after_thread, after_ns = (None, "", "") if before is None else before
    values = {
        "thread": thread_id,
        "ns": ns,
        "id": AFTER_ALL if id is None else write_id(id),
        "after_thread": after_thread,
        "after_ns": after_ns,
        "limit": limit,
    }
    return read_headers(db.execute(_PAGE_OF_ALL if thread_id is None else _PAGE_OF_THREAD, values).fetchall())


def threads(db: sqlite3.Cursor, after: str | None, limit: int) -> list[ThreadHeader]:
    return read_thread_headers(db.execute(_THREADS, {"after": after, "limit": limit}).fetchall())


def heads(db: sqlite3.Cursor, thread_id: str, ns: str | None) -> dict[str, CheckpointId]:
    where = location(thread_id, ns or "")
    if ns is not None:
        found = _find_namespace(db, thread_id, ns)
        return {} if found is None or found[2] is None else {ns: read_checkpoint_id(found[2], where)}
    key = db.execute(_KEY, (thread_id,)).fetchone()
    return {} if key is None else _heads(db, key, where)


def _heads(db: sqlite3.Cursor, key: tuple[int], where: str) -> dict[str, CheckpointId]:
    heads = validated(db.execute(_HEADS, (*key, *key)).fetchall(), list[tuple[str, Any]], where)
    return {ns: read_checkpoint_id(head, where) for ns, head in heads if head is not None}


def dump(db: sqlite3.Cursor, thread_id: str) -> ThreadDump | None:
    where = location(thread_id, "")
    found = db.execute(_KEY, (thread_id,)).fetchone()
    if found is None:
        return None
    rows = read_rows(db.execute(_ALL_ROWS, found).fetchall(), where)
    if not rows:
        return None
    return ThreadDump(
        heads=_heads(db, found, where),
        rows=rows,
        records=read_records(db.execute(_ALL_RECORDS, found).fetchall(), where),
        events=events(db, thread_id, None, MAX_INTEGER),
        metadata=thread_metadata(db, found[0], where),
    )


def thread_metadata(db: sqlite3.Cursor, thread: int, where: str) -> dict[str, Any]:
    """Those of the thread itself."""
    (text,) = db.execute(_METADATA_OF, (thread,)).fetchone()
    return read_metadata(validated(text, str, where), where)


def _find_namespace(db: sqlite3.Cursor, thread_id: str, ns: str) -> tuple[int, int, StoredId | None] | None:
    """The numbers of a thread and of a namespace in it, and where that stands; None when one is unknown."""
    found: tuple[int, int | None, StoredId | None] | None = db.execute(
        _NAMESPACE, {"thread": thread_id, "ns": ns}
    ).fetchone()
    if found is None or found[1] is None:
        return None
    return found[0], found[1], found[2]
