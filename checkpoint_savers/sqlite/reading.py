"""The reading verbs: the statements between BEGIN and COMMIT.

Functions of a cursor, which run in the connection's thread. Statements are constant texts, which SQLite compiles once;
every value is bound.
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
"""The position of a listing: after this checkpoint (id, thread id, namespace)."""

# Joins are LEFT joins, so that a row whose metadata, frame or namespace is missing is reported as damaged, not omitted.
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
# The index is named (INDEXED BY), so that the plan does not depend on the statistics that a file has or lacks.
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
# The inner query selects the page from the covering index alone; only the page's rows are then looked up.
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
"""The greatest integer that SQLite stores."""

BEFORE_ALL = (float("-inf"), 0, 0)
"""Smaller than the key of every row of events, also of a damaged one: SQLite orders numbers before texts."""


def read(db: sqlite3.Cursor, thread_id: str, ns: str, checkpoint_id: CheckpointId | None) -> Chain | None:
    """Read the chain of a checkpoint. See `SaverPort.read`.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread.
        ns: the namespace.
        checkpoint_id: the checkpoint; None for the head.

    Returns:
        The chain, or None if there is no such checkpoint.

    Raises:
        CorruptCheckpointError: a row is damaged, or the chain's first row or the head is missing.
    """
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
    # The base is a snapshot, which depends on a keyframe: read the keyframe and the snapshots since, too.
    if first != base:
        raw = db.execute(_CHAIN, (ns, thread, space, first, base)).fetchall() + raw
    # A chain is complete only if it begins with its keyframe and ends with the requested row: a missing row is not
    # noticed otherwise.
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
    """Read the rows of a base, with their records. See `SaverPort.segment`.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread.
        ns: the namespace.
        base_id: the base.

    Returns:
        The rows and the records, in order.

    Raises:
        CorruptCheckpointError: a row is damaged.
    """
    where = location(thread_id, ns)
    found = _find_namespace(db, thread_id, ns)
    if found is None:
        return (), ()
    thread, space, _ = found
    base = write_id(base_id)
    rows = read_rows(db.execute(_CHAIN, (ns, thread, space, base, AFTER_ALL)).fetchall(), where)
    return rows, read_records(db.execute(_SEGMENT_RECORDS, (ns, thread, space, base)).fetchall(), where)


def events(db: sqlite3.Cursor, thread_id: str, since: EventKey | None, limit: int) -> tuple[EventRow, ...]:
    """Read rows of events. See `SaverPort.events`.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread.
        since: the first key to read; None for the beginning.
        limit: number of rows, at most.

    Returns:
        The rows, in order.

    Raises:
        CorruptCheckpointError: a row is damaged.
    """
    found = db.execute(_KEY, (thread_id,)).fetchone()
    if found is None:
        return ()
    key = BEFORE_ALL if since is None else (write_id(since[0]), *clamped(since))
    raw = db.execute(_EVENTS, (*found, *key, max(limit, 0))).fetchall()
    return read_events(raw, f"{location(thread_id, '')}, its events")


def clamped(key: EventKey) -> tuple[int, int]:
    """Return epoch and position of a key, clamped to SQLite's integers.

    A key may come from a remote reader, with numbers of any size; sqlite3 raises OverflowError for those it cannot
    bind.

    Args:
        key: the key.

    Returns:
        The two numbers.
    """
    _, epoch, position = key
    return min(max(epoch, -MAX_INTEGER), MAX_INTEGER), min(max(position, -MAX_INTEGER), MAX_INTEGER)


def page(
    db: sqlite3.Cursor, thread_id: str | None, ns: str | None, before: Position | None, limit: int
) -> list[Header]:
    """Read a page of headers, newest first.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread; None for all.
        ns: the namespace; None for all.
        before: the position after which the page begins; None for the beginning.
        limit: number of headers, at most.

    Returns:
        The headers.

    Raises:
        CorruptCheckpointError: a row is damaged.
    """
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
    """Read a page of thread headers, in the order of their ids.

    Args:
        db: a cursor in a transaction.
        after: the last id of the page before; None for the beginning.
        limit: number of headers, at most.

    Returns:
        The headers.

    Raises:
        CorruptCheckpointError: a row is damaged.
    """
    return read_thread_headers(db.execute(_THREADS, {"after": after, "limit": limit}).fetchall())


def heads(db: sqlite3.Cursor, thread_id: str, ns: str | None) -> dict[str, CheckpointId]:
    """Read the heads of a thread's namespaces. See `SaverPort.heads`.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread.
        ns: the namespace; None for all.

    Returns:
        Checkpoint ids by namespace.

    Raises:
        CorruptCheckpointError: a row is damaged.
    """
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
    """Read everything that is stored of a thread. See `SaverPort.dump`.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread.

    Returns:
        The dump, or None if the thread holds no checkpoint.

    Raises:
        CorruptCheckpointError: a row is damaged.
    """
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
    """Read the metadata of a thread.

    Args:
        db: a cursor in a transaction.
        thread: the thread's key.
        where: names the thread in an error.

    Returns:
        JSON values by key.

    Raises:
        CorruptCheckpointError: they are damaged.
    """
    (text,) = db.execute(_METADATA_OF, (thread,)).fetchone()
    return read_metadata(validated(text, str, where), where)


def _find_namespace(db: sqlite3.Cursor, thread_id: str, ns: str) -> tuple[int, int, StoredId | None] | None:
    """Return the keys of a thread and a namespace, and the namespace's head; None if either is unknown."""
    found: tuple[int, int | None, StoredId | None] | None = db.execute(
        _NAMESPACE, {"thread": thread_id, "ns": ns}
    ).fetchone()
    if found is None or found[1] is None:
        return None
    return found[0], found[1], found[2]
