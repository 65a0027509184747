"""Accepted runs: the statements between BEGIN and COMMIT.

Functions of a cursor, which run in the connection's thread. Every value is bound, and each statement names its index,
so that its plan does not depend on the statistics that a file has or lacks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ..listing import SLICE
from ..metadata import read_metadata, with_defaults
from ..records import Lease
from ..runs.changes import Topic
from ..runs.decisions import Changes, Found, WantedLease
from ..runs.known_rows import KnownRows
from ..runs.port import ActiveThread, Decide, ends_work, topics_of
from ..runs.queries import RowPosition, RunQuery, ThreadQuery, contains
from ..runs.rows import RunRow, RunThreadRow, in_order
from . import writing
from .rows import location, read_owner, validated
from .run_rows import RunColumns, RunThreadColumns, bind_request, bind_run, bind_thread, read_run, read_thread

T = TypeVar("T")

_RUN = f"t.id, {', '.join(f'r.{name}' for name in RunColumns._fields)}, q.data"
# LEFT joins, so that a row whose thread or request is missing is reported as damaged, not omitted.
_OF_RUN = "LEFT JOIN thread AS t ON t.key = r.thread LEFT JOIN run_request AS q ON q.key = r.key"
_THREAD = f"t.id, t.metadata, {', '.join(f'r.{name}' for name in RunThreadColumns._fields)}"
_OF_THREAD = "LEFT JOIN thread AS t ON t.key = r.thread"

_KEY = "SELECT key, metadata FROM thread WHERE id = ?"
_ADD_KEY = "INSERT INTO thread (id, epoch) VALUES (?, 0)"
_ROW = f"SELECT {_THREAD} FROM run_thread AS r {_OF_THREAD} WHERE r.thread = ?"
_ROW_OF_ID = f"SELECT {_THREAD} FROM thread AS t CROSS JOIN run_thread AS r ON r.thread = t.key WHERE t.id = ?"
_ROWS_OF_IDS = (
    f"SELECT {_THREAD} FROM thread AS t CROSS JOIN run_thread AS r ON r.thread = t.key "
    "WHERE t.id IN (SELECT value FROM json_each(?))"
)
_OPEN = (
    f"SELECT {_RUN} FROM run AS r INDEXED BY run_open {_OF_RUN} "
    "WHERE r.thread = ? AND r.status IN ('pending', 'running')"
)
_RUN_OF_KEY = f"SELECT {_RUN} FROM run AS r {_OF_RUN} WHERE r.key = ?"
_RUN_OF_ID = f"SELECT {_RUN} FROM run AS r {_OF_RUN} WHERE r.id = ?"
_RUNS_OF_IDS = f"SELECT {_RUN} FROM run AS r {_OF_RUN} WHERE r.id IN (SELECT value FROM json_each(?))"
_RUN_OF_IDEMPOTENCY_KEY = f"SELECT {_RUN} FROM run AS r INDEXED BY run_by_key {_OF_RUN} WHERE r.idempotency_key = ?"
_ADD_RUN = f"INSERT INTO run (thread, {', '.join(RunColumns._fields)}) VALUES ({', '.join('?' * 10)})"
_ADD_REQUEST = "INSERT INTO run_request (key, data) VALUES (?, ?)"
_CHANGE_RUN = "UPDATE run SET status = ?, hidden = ?, data = ? WHERE id = ?"
_PUT_ROW = (
    f"INSERT INTO run_thread (thread, {', '.join(RunThreadColumns._fields)}) VALUES ({', '.join('?' * 12)}) "
    f"ON CONFLICT (thread) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in RunThreadColumns._fields)}"
)
_QUEUED = (
    f"SELECT {_THREAD} FROM run_thread AS r INDEXED BY run_thread_queued {_OF_THREAD} "
    "WHERE r.activation = 'queued' AND (:routes = '[]' OR r.route IN (SELECT value FROM json_each(:routes))) "
    "ORDER BY r.priority DESC, r.activation_at LIMIT :limit"
)
_DUE = (
    f"SELECT {_THREAD} FROM run_thread AS r INDEXED BY run_thread_due {_OF_THREAD} "
    "WHERE r.wake_at > 0 AND r.wake_at <= ? ORDER BY r.wake_at LIMIT ?"
)
_ACTIVE = (
    f"SELECT t.owner, t.expires_at, {_THREAD} FROM run_thread AS r INDEXED BY run_thread_active {_OF_THREAD} "
    "WHERE r.activation = 'active' ORDER BY r.activation_at LIMIT ?"
)


class Transaction(NamedTuple, Generic[T]):
    """What `RunStore.transact` was asked for. Encoded by the caller's thread, before the transaction begins.

    Attributes:
        thread_id, decide, run_id, idempotency_key, lease: as for `RunStore.transact`.
        commit: a superstep to store.
        wants: a lease to acquire.
        clock: returns the time in unix seconds.
        refuse_newer: raises if a later version has upgraded the file since it was opened.
    """

    thread_id: str
    decide: Decide[T]
    run_id: str | None
    idempotency_key: str | None
    lease: Lease | None
    commit: writing.CommitColumns | None
    wants: WantedLease | None
    clock: Callable[[], float]
    refuse_newer: Callable[[sqlite3.Cursor], None]


class Transacted(NamedTuple, Generic[T]):
    """The result of a transaction.

    Attributes:
        result: the decision's.
        topics: what has changed.
        released: True if the lease was released.
        acquired: the lease that was acquired; None for none.
        known_rows: the thread's rows after the transaction; None if no lease is held then.
    """

    result: T
    topics: tuple[Topic, ...]
    released: bool
    acquired: Lease | None
    known_rows: KnownRows | None


def transact(db: sqlite3.Cursor, asked: Transaction[T]) -> Transacted[T]:
    """Change the runs of a thread. See `RunStore.transact`.

    Args:
        db: a cursor in a writing transaction.
        asked: what to do.

    Returns:
        The decision's result.

    Raises:
        ThreadBusyError: another lease is live, and the wanted one is required; or, with `lost=True`: the lease is no
            longer held, or the head is not the expected one.
        CorruptCheckpointError: a row is damaged.
        UnsupportedFormatError: raised by `refuse_newer`.
    """
    # Under the write lock, and also with a lease, which may be older than the upgrade of the file.
    asked.refuse_newer(db)
    lease, wants = asked.lease, asked.wants
    if lease is not None:
        writing.check_lease(db, lease)
    new = None if wants is None else wants.lease_from(partial(writing.next_lease, db, asked.thread_id))
    known = db.execute(_KEY, (asked.thread_id,)).fetchone()
    found = _found(db, asked, None if known is None else known[0], new)
    changes = asked.decide(found)
    frames: dict[str, bytes] = {}
    if changes.thread is not None or changes.runs or changes.metadata:
        frames = _write(db, found, changes, known)
    # After the rows above: a thread without checkpoints that has no row there is deleted when its lease is released.
    released = False
    if asked.commit is not None:
        writing.commit(db, [asked.commit])
        released = asked.commit.releases
    if lease is not None and ends_work(found, changes, lease):
        writing.release(db, lease)
        released = True
    if new is None or wants is None or ends_work(found, changes, new):
        acquired, held = None, None if released else lease
    else:
        writing.store_lease(db, new, wants.expires_at)
        acquired = held = new
    return Transacted(
        result=changes.result,
        topics=topics_of(changes),
        released=released,
        acquired=acquired,
        known_rows=None if held is None else KnownRows.after(found, changes, held, frames),
    )


def _found(db: sqlite3.Cursor, asked: Transaction[Any], thread: int | None, lease: Lease | None) -> Found:
    row = None if thread is None else db.execute(_ROW, (thread,)).fetchone()
    runs = [] if thread is None else [read_run(raw) for raw in db.execute(_OPEN, (thread,)).fetchall()]
    named = None
    if asked.idempotency_key is not None:
        named = db.execute(_RUN_OF_IDEMPOTENCY_KEY, (asked.idempotency_key,)).fetchone()
    elif asked.run_id is not None:
        named = db.execute(_RUN_OF_ID, (asked.run_id,)).fetchone()
    return Found(
        thread_id=asked.thread_id,
        thread=None if row is None else read_thread(row),
        open=in_order(runs),
        named=None if named is None else read_run(named),
        now=asked.clock(),
        lease=lease,
    )


def _write(db: sqlite3.Cursor, found: Found, changes: Changes[Any], known: tuple[int, str] | None) -> dict[str, bytes]:
    """Write what was decided. Return the frames of the written rows, by the keys of `KnownRows.frames`."""
    if known is None:
        db.execute(_ADD_KEY, (found.thread_id,))
        thread, metadata = writing.inserted_key(db), {}
    else:
        thread, metadata = known[0], read_metadata(known[1], location(found.thread_id, ""))
    if changes.metadata.keys() - metadata.keys():
        writing.set_metadata(db, thread, with_defaults(metadata, changes.metadata))
    # A decision changes only runs that it has seen. Any other one is new: an INSERT refuses the id of a stored run, and
    # an upsert would replace it.
    stored = {run.run_id for run in (*found.open, found.named) if run is not None}
    frames: dict[str, bytes] = {}
    for run in changes.runs:
        columns = bind_run(run)
        frames[run.run_id] = columns.data
        if run.run_id in stored:
            db.execute(_CHANGE_RUN, (columns.status, columns.hidden, columns.data, columns.id))
        else:
            db.execute(_ADD_RUN, (thread, *columns))
            db.execute(_ADD_REQUEST, (writing.inserted_key(db), bind_request(run.request)))
    if changes.thread is not None:
        row = bind_thread(changes.thread)
        frames[""] = row.data
        db.execute(_PUT_ROW, (thread, *row))
    return frames


def get_run(db: sqlite3.Cursor, run_id: str) -> RunRow | None:
    """Read a run. See `RunStore.get_run`.

    Args:
        db: a cursor in a transaction.
        run_id: the run.
    """
    raw = db.execute(_RUN_OF_ID, (run_id,)).fetchone()
    return None if raw is None else read_run(raw)


def get_runs(db: sqlite3.Cursor, run_ids: Collection[str]) -> tuple[RunRow, ...]:
    """Read several runs. See `RunStore.get_runs`.

    Args:
        db: a cursor in a transaction.
        run_ids: the runs.
    """
    return tuple([read_run(raw) for raw in db.execute(_RUNS_OF_IDS, (_list(tuple(run_ids)),)).fetchall()])


def get_thread(db: sqlite3.Cursor, thread_id: str) -> RunThreadRow | None:
    """Read the row of a thread. See `RunStore.get_thread`.

    Args:
        db: a cursor in a transaction.
        thread_id: the thread.
    """
    raw = db.execute(_ROW_OF_ID, (thread_id,)).fetchone()
    return None if raw is None else read_thread(raw)


def queued(db: sqlite3.Cursor, routes: Collection[str], limit: int) -> tuple[RunThreadRow, ...]:
    """List queued threads. See `RunStore.queued`.

    Args:
        db: a cursor in a transaction.
        routes: only threads with one of these routes; empty for all.
        limit: maximum number of threads.
    """
    values = {"routes": _list(tuple(routes)), "limit": max(limit, 0)}
    return tuple([read_thread(raw) for raw in db.execute(_QUEUED, values).fetchall()])


def due(db: sqlite3.Cursor, now: float, limit: int) -> tuple[RunThreadRow, ...]:
    """List threads that have become due. See `RunStore.due`.

    Args:
        db: a cursor in a transaction.
        now: unix seconds.
        limit: maximum number of threads.
    """
    return tuple([read_thread(raw) for raw in db.execute(_DUE, (now, max(limit, 0))).fetchall()])


def active(db: sqlite3.Cursor, limit: int) -> tuple[ActiveThread, ...]:
    """List active threads. See `RunStore.active`.

    Args:
        db: a cursor in a transaction.
        limit: maximum number of threads.
    """
    found: list[ActiveThread] = []
    for owner, expires_at, *raw in db.execute(_ACTIVE, (max(limit, 0),)).fetchall():
        thread = read_thread(tuple(raw))
        if owner is None:
            found.append(ActiveThread(thread, None, 0.0))
        else:
            found.append(ActiveThread(thread, read_owner(owner, location(thread.thread_id, "")), expires_at))
    return tuple(found)


def update_thread(
    db: sqlite3.Cursor,
    thread_id: str,
    changes: Mapping[str, Any],
    now: float,
    refuse_newer: Callable[[sqlite3.Cursor], None],
) -> None:
    """Change a thread's metadata, and the time in its row of accepted runs. See `SaverPort.update_thread`.

    Args:
        db: a cursor in a writing transaction.
        thread_id: the thread.
        changes: JSON values by key; None deletes the key.
        now: unix seconds.
        refuse_newer: as for `writing.update_thread`, also for the errors.
    """
    writing.update_thread(db, thread_id, changes, refuse_newer)
    raw = db.execute(_ROW_OF_ID, (thread_id,)).fetchone()
    if raw is not None:
        thread, _ = db.execute(_KEY, (thread_id,)).fetchone()
        db.execute(_PUT_ROW, (thread, *bind_thread(replace(read_thread(raw), updated_at=now))))


class Slice(NamedTuple, Generic[T]):
    """What one job has found of a search. Commits of other callers run between two jobs.

    Attributes:
        found: rows, or their number.
        end: where the next job continues; None at the end of the list.
    """

    found: T
    end: RowPosition | None


def find_runs(db: sqlite3.Cursor, query: RunQuery, after: RowPosition | None, limit: int) -> Slice[list[RunRow]]:
    """Read runs. See `RunStore.find_runs`.

    Args:
        db: a cursor in a transaction.
        query: which runs.
        after: the position after which to begin.
        limit: maximum number of runs.

    Returns:
        The first runs of a slice.
    """
    keys, end = _scan_runs(db, query, after, SLICE if query.metadata else limit)
    return Slice([read_run(db.execute(_RUN_OF_KEY, (key,)).fetchone()) for key in keys[:limit]], end)


def count_runs(db: sqlite3.Cursor, query: RunQuery, after: RowPosition | None) -> Slice[int]:
    """Count runs. See `RunStore.count_runs`.

    Args:
        db: a cursor in a transaction.
        query: which runs.
        after: the position after which to begin.

    Returns:
        The number of runs of a slice.
    """
    if query.metadata:
        # Compared in Python, as in all stores in files and in memory: SQL has no containment.
        keys, end = _scan_runs(db, query, after, SLICE)
        return Slice(len(keys), end)
    return Slice(_count(db, _run_sources(query)), None)


class _ScannedRuns(msgspec.Struct, array_like=True):
    all: list[tuple[float, str, int, str]]  # created_at, id, key, metadata


def _scan_runs(
    db: sqlite3.Cursor, query: RunQuery, after: RowPosition | None, size: int
) -> tuple[list[int], RowPosition | None]:
    """Return the keys of the next runs that match, and the position of the last row that was read."""
    rows: list[Any] = []
    for source, values in _run_sources(query):
        page = _page(source, "r.created_at", ", r.key, r.metadata", after=after is not None, descending=True)
        rows += db.execute(page, {**values, **_bounds(after, size)}).fetchall()
    rows = sorted(validated((rows,), _ScannedRuns, "a listing of runs").all, reverse=True)[:size]
    keys = [
        key
        for _, id, key, metadata in rows
        if not query.metadata or contains(read_metadata(metadata, f"run {id!r}"), query.metadata)
    ]
    return keys, RowPosition(*rows[-1][:2]) if len(rows) == size > 0 else None


def _run_sources(query: RunQuery) -> list[tuple[str, dict[str, Any]]]:
    """Return the texts FROM ... WHERE which find the runs of a query, whatever their metadata, and their values.

    There is one for each status, as the index by status has the order of the listing only within a status.
    """
    values: dict[str, Any] = {"thread": query.thread_id, "assistant": query.assistant}
    also = "" if query.assistant is None else " AND r.assistant = :assistant"
    if query.thread_id is not None:
        of = "r.thread = (SELECT key FROM thread WHERE id = :thread) AND r.hidden = 0"
        source = f"FROM run AS r INDEXED BY run_by_thread WHERE {of}{also}{_one_of(query.status)}"
        return [(source, {**values, "statuses": _list(query.status)})]
    if not query.status:
        return [(f"FROM run AS r INDEXED BY run_by_age WHERE r.hidden = 0{also}", values)]
    source = f"FROM run AS r INDEXED BY run_by_status WHERE r.status = :status AND r.hidden = 0{also}"
    return [(source, {**values, "status": status}) for status in dict.fromkeys(query.status)]


def find_threads(
    db: sqlite3.Cursor, query: ThreadQuery, after: RowPosition | None, limit: int
) -> Slice[list[RunThreadRow]]:
    """Read rows of threads. See `RunStore.find_threads`.

    Args:
        db: a cursor in a transaction.
        query: which threads, and their order.
        after: the position after which to begin.
        limit: maximum number of threads.

    Returns:
        The first threads of a slice.
    """
    found, end = _scan_threads(db, query, after, SLICE if query.metadata or query.values else limit)
    return Slice(found[:limit], end)


def count_threads(db: sqlite3.Cursor, query: ThreadQuery, after: RowPosition | None) -> Slice[int]:
    """Count threads. See `RunStore.count_threads`.

    Args:
        db: a cursor in a transaction.
        query: which threads.
        after: the position after which to begin.

    Returns:
        The number of threads of a slice.
    """
    if query.metadata or query.values or query.thread_ids:
        found, end = _scan_threads(db, query, after, SLICE)
        return Slice(len(found), end)
    sources = _thread_sources(replace(query, sort_by="updated_at"))  # in no order: an index with the status serves best
    return Slice(_count(db, [(source.format(join=""), values) for source, values in sources]), None)


def _scan_threads(
    db: sqlite3.Cursor, query: ThreadQuery, after: RowPosition | None, size: int
) -> tuple[list[RunThreadRow], RowPosition | None]:
    """Return the next threads that match, and the position of the last row that was read."""
    if query.thread_ids:  # these are as many as the caller has named
        rows = [read_thread(raw) for raw in db.execute(_ROWS_OF_IDS, (_list(query.thread_ids),)).fetchall()]
        found = sorted(filter(query.matches, rows), key=query.position, reverse=query.descending)
        return [row for row in found if after is None or query.is_behind(row, after)], None
    rows = []
    for source, values in _thread_sources(query):
        joined = source.format(join=_OF_THREAD)
        page = _page(joined, f"r.{query.sort_by}", f", {_THREAD}", after=after is not None, descending=query.descending)
        rows += [read_thread(raw[2:]) for raw in db.execute(page, {**values, **_bounds(after, size)}).fetchall()]
    rows = sorted(rows, key=query.position, reverse=query.descending)[:size]
    found = [row for row in rows if query.matches(row)]
    return found, query.position(rows[-1]) if len(rows) == size > 0 else None


def _thread_sources(query: ThreadQuery) -> list[tuple[str, dict[str, Any]]]:
    """Return the texts FROM ... WHERE which find the threads of a query, of any content, and their values.

    In each text, `{join}` is to be replaced by a join of the saver's threads, or by nothing to count: SQLite does not
    see that the join changes no number, and would look up each thread.
    """
    values: dict[str, Any] = {"assistant": query.assistant, "statuses": _list(query.status)}
    also = "" if query.assistant is None else " AND r.assistant = :assistant"
    if query.status and query.sort_by == "updated_at":
        source = f"FROM run_thread AS r INDEXED BY run_thread_by_status {{join}} WHERE r.status = :status{also}"
        return [(source, {**values, "status": status}) for status in dict.fromkeys(query.status)]
    if query.assistant is not None and query.sort_by == "updated_at":
        source = "FROM run_thread AS r INDEXED BY run_thread_by_assistant {join} WHERE r.assistant = :assistant"
        return [(source, values)]
    index = {"updated_at": "run_thread_by_update", "created_at": "run_thread_by_creation"}[query.sort_by]
    source = f"FROM run_thread AS r INDEXED BY {index} {{join}} WHERE TRUE{also}{_one_of(query.status)}"
    return [(source, values)]


def _count(db: sqlite3.Cursor, sources: Sequence[tuple[str, dict[str, Any]]]) -> int:
    count = 0
    for source, values in sources:
        count += db.execute(f"SELECT count(*) {source}", values).fetchone()[0]
    return count


def _page(source: str, at: str, more: str, *, after: bool, descending: bool) -> str:
    """Return the statement for a page of a listing by time and id."""
    # A comparison of rows, which an index on both columns serves as one range.
    sign, order = ("<", "DESC") if descending else (">", "ASC")
    behind = f" AND ({at}, r.id) {sign} (:at, :id)" if after else ""
    return f"SELECT {at}, r.id{more} {source}{behind} ORDER BY {at} {order}, r.id {order} LIMIT :limit"


def _bounds(after: RowPosition | None, size: int) -> dict[str, Any]:
    return {"limit": size} if after is None else {"limit": size, "at": after.at, "id": after.id}


def _one_of(statuses: Sequence[str]) -> str:
    return " AND r.status IN (SELECT value FROM json_each(:statuses))" if statuses else ""


def _list(texts: Sequence[str]) -> str:
    return msgspec.json.encode(texts).decode()


def data_version(db: sqlite3.Cursor) -> int:
    """Return a number that differs from the one before if another connection has written to the file since.

    Args:
        db: a cursor.
    """
    number: int = db.execute("PRAGMA data_version").fetchone()[0]
    return number
