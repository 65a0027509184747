"""The reading verbs on a file of version 1, 2 or 3 that cannot be written, and so is read as it is.

Another process may upgrade it at any moment: which tables there are is asked inside each transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from msgspec.structs import replace

from ..errors import CorruptCheckpointError, StorageReadOnlyError
from ..metadata import read_metadata, users_part
from ..records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    EventKey,
    EventKind,
    EventRow,
    Header,
    RecordKind,
    TaskId,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)
from . import reading
from .rows import checked, place, read_owner, read_thread_headers
from .upgrade import EARLIER, SAME_TABLES

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ROW = "ns, checkpoint_id, parent_id, base_id, step, metadata, frame"
_RECORD = "ns, checkpoint_id, task_id, idx, kind, frame"
_BASES = (
    "SELECT h.checkpoint_id, c.base_id, b.base_id FROM heads AS h "
    "LEFT JOIN checkpoints AS c INDEXED BY checkpoints_by_id "
    "ON c.thread_id = h.thread_id AND c.checkpoint_id = ifnull(?, h.checkpoint_id) AND c.ns = h.ns "
    "LEFT JOIN checkpoints AS b INDEXED BY checkpoints_by_id "
    "ON b.thread_id = h.thread_id AND b.checkpoint_id = c.base_id AND b.ns = h.ns "
    "WHERE h.thread_id = ? AND h.ns = ?"
)
_CHAIN = (
    f"SELECT {_ROW} FROM checkpoints "
    "WHERE thread_id = ? AND ns = ? AND base_id = ? AND checkpoint_id <= ? ORDER BY checkpoint_id"
)
_SEGMENT = f"SELECT {_ROW} FROM checkpoints WHERE thread_id = ? AND ns = ? AND base_id = ? ORDER BY checkpoint_id"
_RECORDS = f"SELECT {_RECORD} FROM records WHERE thread_id = ? AND ns = ? AND checkpoint_id = ? ORDER BY idx, task_id"
_SEGMENT_RECORDS = (
    "SELECT r.ns, r.checkpoint_id, r.task_id, r.idx, r.kind, r.frame FROM checkpoints AS c "
    "CROSS JOIN records AS r USING (thread_id, ns, checkpoint_id) "
    "WHERE c.thread_id = ? AND c.ns = ? AND c.base_id = ? ORDER BY r.checkpoint_id, r.idx, r.task_id"
)
_EVENTS = (
    "SELECT checkpoint_id, epoch, position, kind, frame FROM events "
    "WHERE thread_id = ? AND (checkpoint_id, epoch, position) >= (?, ?, ?) "
    "ORDER BY checkpoint_id, epoch, position LIMIT ?"
)
_HEADER = "c.thread_id, c.ns, c.checkpoint_id, c.parent_id, c.base_id, c.step, c.metadata, length(c.frame)"
_PAGE_OF_THREAD = (
    f"SELECT {_HEADER} FROM checkpoints AS c INDEXED BY checkpoints_by_id "
    "WHERE c.thread_id = :thread AND (c.checkpoint_id, c.ns) < (:id, :after_ns) AND c.ns = ifnull(:ns, c.ns) "
    "ORDER BY c.checkpoint_id DESC, c.ns DESC LIMIT :limit"
)
_PAGE_OF_ALL = (
    f"SELECT {_HEADER} FROM ("
    "SELECT thread_id, ns, base_id, checkpoint_id FROM checkpoints INDEXED BY checkpoints_by_id "
    "WHERE (checkpoint_id, thread_id, ns) < (:id, :after_thread, :after_ns) AND ns = ifnull(:ns, ns) "
    "ORDER BY checkpoint_id DESC, thread_id DESC, ns DESC LIMIT :limit"
    ") AS k CROSS JOIN checkpoints AS c USING (thread_id, ns, base_id, checkpoint_id) "
    "ORDER BY c.checkpoint_id DESC, c.thread_id DESC, c.ns DESC"
)
_THREADS = (
    "SELECT t.thread_id, t.epoch, t.owner, t.expires_at, t.newest, h.checkpoint_id, c.metadata FROM threads AS t "
    "LEFT JOIN heads AS h ON h.thread_id = t.thread_id AND h.ns = '' "
    "LEFT JOIN checkpoints AS c INDEXED BY checkpoints_by_id "
    "ON c.thread_id = t.thread_id AND c.checkpoint_id = h.checkpoint_id AND c.ns = '' "
    "WHERE t.thread_id >= ifnull(:after, '') AND t.thread_id IS NOT :after ORDER BY t.thread_id LIMIT :limit"
)
_AT_HEAD = (
    "FROM thread AS t "
    "LEFT JOIN checkpoint AS c INDEXED BY checkpoint_by_id ON c.thread = t.key AND c.id = t.head AND c.space = 0 "
    "LEFT JOIN metadata AS m ON m.thread = c.thread AND m.key = c.metadata"
)
_THREADS_OF_3 = (
    f"SELECT t.id, t.epoch, t.owner, t.expires_at, t.newest, t.head, c.id, m.text {_AT_HEAD} "
    "WHERE t.id >= ifnull(:after, '') AND t.id IS NOT :after ORDER BY t.id LIMIT :limit"
)
_METADATA_OF_3 = f"SELECT m.text {_AT_HEAD} WHERE t.key = ?"
_HEADS = "SELECT ns, checkpoint_id FROM heads WHERE thread_id = ? ORDER BY ns"
_ALL_ROWS = (
    f"SELECT {_ROW} FROM checkpoints INDEXED BY checkpoints_by_id WHERE thread_id = ? ORDER BY checkpoint_id, ns"
)
_ALL_RECORDS = f"SELECT {_RECORD} FROM records WHERE thread_id = ? ORDER BY checkpoint_id, ns, idx, task_id"


def instead(work: Callable[[sqlite3.Cursor, *Ts], T]) -> Callable[[sqlite3.Cursor, *Ts], T]:
    """A function of `reading`, for a file that may be of an earlier version."""
    with_other_tables: Callable[..., T] = _BEFORE[work]
    without_metadata: Callable[..., T] = _WITHOUT_METADATA.get(work, work)

    def run(db: sqlite3.Cursor, *args: *Ts) -> T:
        version = _version(db)
        if version in EARLIER:
            return with_other_tables(db, *args)
        return (without_metadata if version == SAME_TABLES else work)(db, *args)

    return run


def refuse(db: sqlite3.Cursor) -> NoReturn:
    """In the place of what writes. Raises what SQLite raises, or `StorageReadOnlyError` where it would write now."""
    db.execute(f"PRAGMA user_version = {_version(db)}")
    raise StorageReadOnlyError("the file could not be written when it was opened: close it, and open it again")


def _version(db: sqlite3.Cursor) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def _read(db: sqlite3.Cursor, thread_id: str, ns: str, checkpoint_id: CheckpointId | None) -> Chain | None:
    where = place(thread_id, ns)
    row = db.execute(_BASES, (checkpoint_id, thread_id, ns)).fetchone()
    if row is None:
        return None
    head, base, first = checked(row, tuple[str, str | None, str | None], where)
    if base is None:
        if checkpoint_id is None:
            raise CorruptCheckpointError(where, f"its head, checkpoint {head}, is missing")
        return None
    asked = head if checkpoint_id is None else checkpoint_id
    raw = db.execute(_CHAIN, (thread_id, ns, base, asked)).fetchall()
    if first != base:  # it is a milestone
        raw = db.execute(_CHAIN, (thread_id, ns, first, base)).fetchall() + raw
    rows = _rows(raw, where)
    if not rows or rows[0].checkpoint_id != first or rows[-1].checkpoint_id != asked:
        raise CorruptCheckpointError(f"{where}, checkpoint {asked}", f"the base of its chain, {base}, is missing")
    records = _records(db.execute(_RECORDS, (thread_id, ns, asked)).fetchall(), where)
    return Chain(rows=rows, records=records, head=CheckpointId(head))


def _segment(
    db: sqlite3.Cursor, thread_id: str, ns: str, base_id: CheckpointId
) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
    where = place(thread_id, ns)
    key = (thread_id, ns, base_id)
    rows = _rows(db.execute(_SEGMENT, key).fetchall(), where)
    return rows, _records(db.execute(_SEGMENT_RECORDS, key).fetchall(), where)


def _events(db: sqlite3.Cursor, thread_id: str, since: EventKey | None, limit: int) -> tuple[EventRow, ...]:
    if _version(db) < 2:
        return ()
    key = ("", 0, 0) if since is None else (since[0], *reading.numbers(since))
    raw = db.execute(_EVENTS, (thread_id, *key, max(limit, 0))).fetchall()
    return tuple(
        EventRow(checkpoint_id=CheckpointId(id), epoch=epoch, position=position, kind=kind, frame=frame)
        for id, epoch, position, kind, frame in checked(
            raw, list[tuple[str, int, int, EventKind, bytes]], f"{place(thread_id, '')}, its events"
        )
    )


def _page(
    db: sqlite3.Cursor, thread_id: str | None, ns: str | None, before: reading.Position | None, limit: int
) -> list[Header]:
    # Every text is smaller than any blob: the empty one stands for "from the newest".
    id, after_thread, after_ns = (b"", b"", b"") if before is None else before
    values = {
        "thread": thread_id,
        "ns": ns,
        "id": id,
        "after_thread": after_thread,
        "after_ns": after_ns,
        "limit": limit,
    }
    raw = db.execute(_PAGE_OF_ALL if thread_id is None else _PAGE_OF_THREAD, values).fetchall()
    return [
        Header(
            thread_id=thread,
            ns=space,
            checkpoint_id=CheckpointId(checkpoint_id),
            parent_id=None if parent_id is None else CheckpointId(parent_id),
            base_id=CheckpointId(base_id),
            step=step,
            metadata=read_metadata(metadata, f"{place(thread, space)}, checkpoint {checkpoint_id}"),
            size=size,
        )
        for thread, space, checkpoint_id, parent_id, base_id, step, metadata, size in checked(
            raw, list[tuple[str, str, str, str | None, str, int, str, int]], "a listing"
        )
    ]


def _threads(db: sqlite3.Cursor, after: str | None, limit: int) -> list[ThreadHeader]:
    raw = db.execute(_THREADS, {"after": after, "limit": limit}).fetchall()
    found: list[ThreadHeader] = []
    for thread_id, epoch, owner, expires_at, newest, head, metadata in checked(
        raw, list[tuple[str, int, str | None, float | None, str | None, str | None, str | None]], "a listing"
    ):
        where = place(thread_id, "")
        if head is not None and metadata is None:
            raise CorruptCheckpointError(where, f"its head, checkpoint {head}, is missing")
        found.append(
            ThreadHeader(
                thread_id=thread_id,
                epoch=epoch,
                owner=None if owner is None else read_owner(owner, where),
                expires_at=expires_at or 0.0,
                newest=None if newest is None else CheckpointId(newest),
                head=None if head is None else CheckpointId(head),
                metadata={} if metadata is None else _users_part(metadata, f"{where}, checkpoint {head}"),
            )
        )
    return found


def _heads(db: sqlite3.Cursor, thread_id: str, ns: str | None) -> dict[str, CheckpointId]:
    heads = checked(db.execute(_HEADS, (thread_id,)).fetchall(), list[tuple[str, str]], place(thread_id, ns or ""))
    return {name: CheckpointId(head) for name, head in heads if ns is None or name == ns}


def _dump(db: sqlite3.Cursor, thread_id: str) -> ThreadDump | None:
    where = place(thread_id, "")
    rows = _rows(db.execute(_ALL_ROWS, (thread_id,)).fetchall(), where)
    if not rows:
        return None
    heads = _heads(db, thread_id, None)
    head = heads.get("")
    return ThreadDump(
        heads=heads,
        rows=rows,
        records=_records(db.execute(_ALL_RECORDS, (thread_id,)).fetchall(), where),
        events=_events(db, thread_id, None, reading.MOST),
        metadata=next((users_part(row.metadata) for row in rows if (row.ns, row.checkpoint_id) == ("", head)), {}),
    )


def _threads_of_3(db: sqlite3.Cursor, after: str | None, limit: int) -> list[ThreadHeader]:
    raw = db.execute(_THREADS_OF_3, {"after": after, "limit": limit}).fetchall()
    texts = {thread_id: text for thread_id, *_, text in raw}
    headers = read_thread_headers([(*row, "{}") for *row, _ in raw])
    return [
        replace(one, metadata=_users_part(texts[one.thread_id], place(one.thread_id, "")))
        if one.head is not None
        else one
        for one in headers
    ]


def _dump_of_3(db: sqlite3.Cursor, thread_id: str) -> ThreadDump | None:
    def metadata(db: sqlite3.Cursor, thread: int, where: str) -> dict[str, Any]:
        text = db.execute(_METADATA_OF_3, (thread,)).fetchone()
        return {} if text is None else _users_part(text[0], where)

    return reading.dump(db, thread_id, metadata)


def _users_part(text: Any, where: str) -> dict[str, Any]:
    """A thread's metadata, as an upgrade would derive them of the head's."""
    return users_part(read_metadata(checked(text, str, where), where))


_BEFORE: dict[Callable[..., Any], Callable[..., Any]] = {
    reading.read: _read,
    reading.segment: _segment,
    reading.events: _events,
    reading.page: _page,
    reading.threads: _threads,
    reading.dump: _dump,
    reading.heads: _heads,
}


_WITHOUT_METADATA: dict[Callable[..., Any], Callable[..., Any]] = {
    reading.threads: _threads_of_3,
    reading.dump: _dump_of_3,
}
"""What differs of version 3, whose threads have no metadata of their own."""


def _rows(raw: list[Any], where: str) -> tuple[CheckpointRow, ...]:
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
        for ns, checkpoint_id, parent_id, base_id, step, metadata, frame in checked(
            raw, list[tuple[str, str, str | None, str, int, str, bytes]], where
        )
    )


def _records(raw: list[Any], where: str) -> tuple[TaskRecord, ...]:
    return tuple(
        TaskRecord(
            ns=ns,
            checkpoint_id=CheckpointId(checkpoint_id),
            task_id=TaskId(task_id),
            index=index,
            kind=kind,
            frame=frame,
        )
        for ns, checkpoint_id, task_id, index, kind, frame in checked(
            raw, list[tuple[str, str, str, int, RecordKind, bytes]], where
        )
    )
