"""Upkeep verbs: change a whole thread, in a transaction of several statements under the lock on the thread's row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import StorageError, ThreadBusyError, ThreadNotFoundError, UnsupportedFormatError
from ..metadata import read_metadata, with_changes, write_metadata
from ..owner import is_live
from ..records import CheckpointRow, Lease, Rewrite, ThreadDump
from .connections import PostgresCursor
from .escaping import escape, escape_or_none
from .rows import Raw, owner_of, where_of
from .run_rows import THREAD_COLUMNS, touched_values
from .schema import SAVER, TABLES
from .writing import CHANNEL, notify_payload

_THREAD = """
SELECT thread, epoch, run_id, owner, expires_at FROM {s}.pregel_threads WHERE thread_id = %b FOR UPDATE
"""
_VERSION = "SELECT max(version) FROM {s}.pregel_saver_version"
_METADATA = """
SELECT newest IS NOT NULL OR EXISTS (SELECT FROM {s}.pregel_run_threads r WHERE r.thread_id = t.thread_id), metadata
FROM {s}.pregel_threads t WHERE thread = %b
"""
# The row is locked already, unless the thread's first run was accepted since. Its transaction, or another one that has
# locked the row by now, sets the time itself; to wait for it in this order could be a deadlock.
_RUN_THREAD = f"""
SELECT {THREAD_COLUMNS} FROM {{s}}.pregel_run_threads r JOIN {{s}}.pregel_threads t ON t.thread_id = r.thread_id
WHERE r.thread_id = %b FOR UPDATE OF r SKIP LOCKED
"""
_TOUCH = "UPDATE {s}.pregel_run_threads SET updated_at = %b, frame = %b WHERE thread_id = %b"
_SET_METADATA = "UPDATE {s}.pregel_threads SET metadata = %b WHERE thread = %b"
# A batched write that read the thread before this transaction finds another `seq` under the lock, and is repeated.
# Numbers of writes are far apart (`writing.SPACING`), so the next write's number is still greater.
_BUMP_SEQ = "UPDATE {s}.pregel_threads SET seq = seq + 1 WHERE thread = %b"
_CLEAR = tuple(
    f"DELETE FROM {{s}}.pregel_{table} WHERE thread = %b" for table in ("records", "checkpoints", "heads", "events")
)
_DELETE = (*_CLEAR, "DELETE FROM {s}.pregel_threads WHERE thread = %b")
# The thread's row in `pregel_run_threads` is locked first, as by each transaction of runs: else the two could deadlock.
_LOCK_RUNS = "SELECT 1 FROM {s}.pregel_run_threads WHERE thread_id = %b FOR UPDATE"
_DELETE_RUNS = (
    "DELETE FROM {s}.pregel_runs WHERE thread_id = %b",
    "DELETE FROM {s}.pregel_run_threads WHERE thread_id = %b",
)
_GONE = tuple(
    f"DELETE FROM {{s}}.pregel_{table} t USING unnest(%b::text[], %b::text[]) AS g (ns, checkpoint_id) "
    "WHERE t.thread = %b AND t.checkpoint_id = g.checkpoint_id AND t.ns = g.ns"
    for table in ("records", "checkpoints")
)
_GONE_EVENTS = "DELETE FROM {s}.pregel_events WHERE thread = %b AND checkpoint_id = ANY(%b::text[])"
_REPLACE = """
UPDATE {s}.pregel_checkpoints c SET parent_id = r.parent_id, base_id = r.base_id, step = r.step, pinned = r.pinned,
    metadata = r.metadata, frame = r.frame
FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bool[], %b::text[], %b::bytea[])
    AS r (ns, checkpoint_id, parent_id, base_id, step, pinned, metadata, frame)
WHERE c.thread = %b AND c.checkpoint_id = r.checkpoint_id AND c.ns = r.ns
"""
_PIN = """
UPDATE {s}.pregel_checkpoints c SET pinned = r.pinned
FROM unnest(%b::text[], %b::text[], %b::bool[]) AS r (ns, checkpoint_id, pinned)
WHERE c.thread = %b AND c.checkpoint_id = r.checkpoint_id AND c.ns = r.ns
"""
_NO_HEADS = "DELETE FROM {s}.pregel_heads WHERE thread = %b AND ns = ANY(%b::text[])"
_HEADS = """
INSERT INTO {s}.pregel_heads (thread, ns, checkpoint_id)
SELECT %b, r.ns, r.checkpoint_id FROM unnest(%b::text[], %b::text[]) AS r (ns, checkpoint_id)
ON CONFLICT (thread, ns) DO UPDATE SET checkpoint_id = excluded.checkpoint_id
"""
_INVALID_HEADS = """
SELECT ns, checkpoint_id FROM {s}.pregel_heads h WHERE thread = %b AND NOT EXISTS (
    SELECT FROM {s}.pregel_checkpoints c
    WHERE c.thread = h.thread AND c.checkpoint_id = h.checkpoint_id AND c.ns = h.ns
)
UNION ALL
SELECT ns, NULL FROM (SELECT DISTINCT ns FROM {s}.pregel_checkpoints WHERE thread = %b) AS c WHERE NOT EXISTS (
    SELECT FROM {s}.pregel_heads h WHERE h.thread = %b AND h.ns = c.ns
)
"""
_HAS_CONTENT = """
SELECT EXISTS (SELECT FROM {s}.pregel_checkpoints WHERE thread = %b)
    OR EXISTS (SELECT FROM {s}.pregel_heads WHERE thread = %b)
    OR EXISTS (SELECT FROM {s}.pregel_records WHERE thread = %b)
    OR EXISTS (SELECT FROM {s}.pregel_events WHERE thread = %b)
"""
_LOAD_ROWS = """
INSERT INTO {s}.pregel_checkpoints (thread, ns, checkpoint_id, parent_id, base_id, step, pinned, metadata, frame)
SELECT %b, r.* FROM unnest(
    %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bool[], %b::text[], %b::bytea[]
) AS r
"""
_LOAD_RECORDS = """
INSERT INTO {s}.pregel_records (thread, ns, checkpoint_id, task_id, idx, kind, frame)
SELECT %b, r.* FROM unnest(%b::text[], %b::text[], %b::text[], %b::bigint[], %b::text[], %b::bytea[]) AS r
"""
_LOAD_EVENTS = """
INSERT INTO {s}.pregel_events (thread, checkpoint_id, epoch, position, kind, frame)
SELECT %b, r.* FROM unnest(%b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bytea[]) AS r
"""
_NEWEST = 'UPDATE {s}.pregel_threads SET newest = greatest(newest, %b::text COLLATE "C") WHERE thread = %b'
_TABLES = ", ".join(f"{{s}}.{table}" for table in TABLES)
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %b AND c.relname = ANY(%b)
"""

CHUNK = 8_000_000
"""Payload of one statement, in bytes, when a thread is loaded."""


class UpkeepAttempt:
    """State of the attempts at one transaction.

    Attributes:
        unsure: True if the connection broke during an attempt, which may have been committed.
    """

    def __init__(self) -> None:
        self.unsure = False

    def interrupted(self) -> None:
        """Note that the connection broke during an attempt."""
        self.unsure = True


class UpkeepStatements:
    """The statements of one schema.

    Args:
        schema: quoted.
        name: of the schema.
        where: how messages name the database.
        busy_timeout: seconds to wait for the lock on a thread.
    """

    def __init__(self, schema: str, name: str, where: str, busy_timeout: float) -> None:
        self._schema = schema
        self._name = name
        self._where = where
        self._lock_timeout = f"{max(int(busy_timeout * 1000), 1)}ms"

    async def rewrite(self, cursor: PostgresCursor, lease: Lease, change: Rewrite) -> None:
        """Delete and replace rows of a thread. See `SaverPort.rewrite`.

        Idempotent: it may be repeated after an attempt whose connection broke, whether or not that was committed.

        Args:
            cursor: of a connection in autocommit mode.
            lease: the lease.
            change: the rows, heads, events and pins to change.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: a row, head or pin is of a checkpoint that is not stored, or a namespace without a head holds
                checkpoints.
        """
        thread = await self._lock_leased(cursor, lease)
        where = where_of(lease.thread_id)
        if change.gone:
            for statement in _GONE:
                await self._run(cursor, statement, *_columns(_keys(change.gone)), thread)
        if change.rows:
            rows = [_values(row) for row in change.rows]
            if await self._run(cursor, _REPLACE, *_columns(rows), thread) != len(rows):
                raise StorageError(f"{where}: rows are to be replaced that are not stored. {_NOTHING}")
        if change.pins:
            pins = [(*key, pinned) for key, pinned in zip(_keys(change.pins), change.pins.values(), strict=True)]
            if await self._run(cursor, _PIN, *_columns(pins), thread) != len(pins):
                raise StorageError(f"{where}: a checkpoint that is to be pinned or unpinned is not stored. {_NOTHING}")
        if change.events:
            await self._run(cursor, _GONE_EVENTS, thread, [escape(one) for one in change.events])
        dropped = [escape(ns) for ns, head in change.heads.items() if head is None]
        if dropped:
            await self._run(cursor, _NO_HEADS, thread, dropped)
        kept = [(escape(ns), escape(head)) for ns, head in change.heads.items() if head is not None]
        if kept:
            await self._run(cursor, _HEADS, thread, *_columns(kept))
        # Checked after all changes, over the whole thread: a deleted row may have been the head of a namespace that the
        # change does not name.
        await self._run(cursor, _INVALID_HEADS, thread, thread, thread)
        for ns, head in await cursor.fetchall():
            wrong = "it holds checkpoints, and would have no head" if head is None else f"its head {head} is not stored"
            raise StorageError(f"{where_of(lease.thread_id, ns)}: {wrong}. {_NOTHING}")
        await self._run(cursor, _BUMP_SEQ, thread)
        await cursor.execute(b"COMMIT")

    async def update_thread(
        self, cursor: PostgresCursor, thread_id: str, changes: Mapping[str, Any], now: float
    ) -> None:
        """Change a thread's metadata, and the time in its row of accepted runs, under the locks on both. Idempotent.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
            changes: JSON values by key; None deletes the key.
            now: unix seconds.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoint, and no run of it was accepted.
            UnsupportedFormatError: a later version has upgraded the tables.
        """
        found = await self._lock_without_lease(cursor, thread_id, runs=True)
        is_known, text = False, ""
        if found is not None:
            await self._run(cursor, _METADATA, found[0])
            ((is_known, text),) = await cursor.fetchall()
        if found is None or not is_known:
            await cursor.execute(b"ROLLBACK")
            raise ThreadNotFoundError(thread_id)
        # Merged here and not by the server, which changes numbers in JSON and cannot store NUL.
        changed = with_changes(read_metadata(text, where_of(thread_id)), changes)
        await self._run(cursor, _SET_METADATA, write_metadata(changed), found[0])
        await self._run(cursor, _RUN_THREAD, escape(thread_id))
        for raw in await cursor.fetchall():
            updated_at, frame = touched_values(raw, now)
            await self._run(cursor, _TOUCH, updated_at, frame, escape(thread_id))
        await cursor.execute(b"COMMIT")

    async def load(self, cursor: PostgresCursor, lease: Lease, dump: ThreadDump, attempt: UpkeepAttempt) -> None:
        """Store a dumped thread. See `SaverPort.load`.

        Args:
            cursor: of a connection in autocommit mode.
            lease: the lease.
            dump: what to store.
            attempt: state of the attempts.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: the thread is not empty, or a head is not among the rows.
        """
        thread = await self._lock_leased(cursor, lease)
        where = where_of(lease.thread_id)
        if dump.replaces:  # also what an unsure attempt has stored
            for statement in _CLEAR:
                await self._run(cursor, statement, thread)
        elif await self._has_content(cursor, thread):
            # Only this run holds the lease: content that is there after an unsure attempt was stored by that attempt.
            if attempt.unsure:
                await cursor.execute(b"ROLLBACK")
                return
            raise StorageError(f"{where}: it holds something already. {_NOTHING}")
        keys = {(row.ns, row.checkpoint_id) for row in dump.rows}
        missing = sorted(set(dump.heads.items()) - keys)
        if missing:
            raise StorageError(f"{where}: heads are not among the rows: {missing}. {_NOTHING}")
        rows = (_values(row) for row in dump.rows)
        records = (
            (escape(one.ns), escape(one.checkpoint_id), escape(one.task_id), one.index, one.kind, one.frame)
            for one in dump.records
        )
        events = ((escape(one.checkpoint_id), one.epoch, one.position, one.kind, one.frame) for one in dump.events)
        for statement, whole in ((_LOAD_ROWS, rows), (_LOAD_RECORDS, records), (_LOAD_EVENTS, events)):
            # In parts, as PostgreSQL limits each value, such as an array of payloads, to 1 GB.
            for chunk in _chunks(whole):
                await self._run(cursor, statement, thread, *_columns(chunk))
        if dump.heads:
            heads = [(escape(ns), escape(head)) for ns, head in dump.heads.items()]
            await self._run(cursor, _HEADS, thread, *_columns(heads))
        if dump.rows:
            await self._run(cursor, _NEWEST, escape(max(row.checkpoint_id for row in dump.rows)), thread)
        await self._run(cursor, _SET_METADATA, write_metadata(dump.metadata), thread)
        await self._run(cursor, _BUMP_SEQ, thread)
        await cursor.execute(b"COMMIT")

    async def erase(self, cursor: PostgresCursor, lease: Lease, attempt: UpkeepAttempt) -> None:
        """Delete everything that is stored of a thread.

        Args:
            cursor: of a connection in autocommit mode.
            lease: the lease.
            attempt: state of the attempts.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
        """
        try:
            thread = await self._lock_leased(cursor, lease, runs=True)
        except ThreadBusyError as error:
            # After an unsure attempt, a missing thread means that the attempt deleted it.
            if attempt.unsure and error.holder is None:
                await cursor.execute(b"ROLLBACK")
                return
            raise
        await self._delete(cursor, lease.thread_id, thread)

    async def delete(self, cursor: PostgresCursor, thread_id: str, now: float) -> None:
        """Delete everything that is stored of a thread, unless a run holds it.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
            now: unix seconds.

        Raises:
            ThreadBusyError: a run holds the thread.
            UnsupportedFormatError: a later version has upgraded the tables.
        """
        found = await self._lock_without_lease(cursor, thread_id, runs=True)
        if found is None:
            await cursor.execute(b"ROLLBACK")
            return
        thread, _, _, owner, until = found
        if owner is not None:
            holder = owner_of(owner, thread_id)
            if is_live(holder, until or 0.0, now=now):
                raise ThreadBusyError(thread_id, holder=str(holder), expires_at=until)
        await self._delete(cursor, thread_id, thread)

    async def vacuum(self, cursor: PostgresCursor, full: bool) -> None:
        """Vacuum the tables.

        Args:
            cursor: of a connection in autocommit mode.
            full: True for VACUUM FULL.
        """
        await cursor.execute(f"VACUUM{' (FULL)' if full else ''} {_TABLES.format(s=self._plain)}".encode())

    async def size(self, cursor: PostgresCursor) -> int:
        """Measure the tables and their indexes.

        Args:
            cursor: of a connection in autocommit mode.

        Returns:
            Their size, in bytes.
        """
        await self._run(cursor, _SIZE, self._name, list(TABLES))
        found = await cursor.fetchone()
        assert found is not None
        return int(found[0])

    # Below: helpers. Statements inside a transaction raise out of it; `Source.run_on_connection` rolls back then.

    @property
    def _plain(self) -> str:
        """The schema, quoted for statements without parameters, in which "%" is not doubled."""
        return self._schema.replace("%%", "%")

    async def _run(self, cursor: PostgresCursor, statement: str, *parameters: object) -> int:
        await cursor.execute(statement.format(s=self._schema).encode(), parameters, binary=True)
        return cursor.rowcount

    async def _lock(self, cursor: PostgresCursor, thread_id: str, *, runs: bool) -> Raw | None:
        await cursor.execute(b"BEGIN ISOLATION LEVEL READ COMMITTED")
        # Local to the transaction: behind a pooler, a session's setting would be the next client's.
        await cursor.execute(b"SELECT set_config('lock_timeout', %b, true)", (self._lock_timeout,))
        if runs:
            await self._run(cursor, _LOCK_RUNS, escape(thread_id))
        await self._run(cursor, _THREAD, escape(thread_id))
        return await cursor.fetchone()

    async def _lock_without_lease(self, cursor: PostgresCursor, thread_id: str, *, runs: bool = False) -> Raw | None:
        """Lock a thread for a write without a lease.

        It checks the version of the tables, as acquiring a lease would have done.

        Raises:
            UnsupportedFormatError: a later version has upgraded the tables.
        """
        found = await self._lock(cursor, thread_id, runs=runs)
        await self._run(cursor, _VERSION)
        ((version,),) = await cursor.fetchall()
        if version is not None and version > SAVER.version:
            await cursor.execute(b"ROLLBACK")
            raise UnsupportedFormatError(self._where, version, SAVER.version)
        return found

    async def _lock_leased(self, cursor: PostgresCursor, lease: Lease, *, runs: bool = False) -> int:
        """Lock a thread whose lease is held, and return its number. The caller ends with `_BUMP_SEQ`."""
        found = await self._lock(cursor, lease.thread_id, runs=runs)
        if found is None:
            raise ThreadBusyError(lease.thread_id, lost=True)
        thread, epoch, run_id, owner, until = found
        if epoch != lease.epoch or run_id != escape(lease.owner.run_id):
            if owner is None:
                raise ThreadBusyError(lease.thread_id, lost=True)
            holder = owner_of(owner, lease.thread_id)
            raise ThreadBusyError(lease.thread_id, holder=str(holder), expires_at=until or 0.0, lost=True)
        return int(thread)

    async def _has_content(self, cursor: PostgresCursor, thread: int) -> bool:
        await self._run(cursor, _HAS_CONTENT, *[thread] * 4)
        return await cursor.fetchone() != (False,)

    async def _delete(self, cursor: PostgresCursor, thread_id: str, thread: int) -> None:
        for statement in _DELETE:
            await self._run(cursor, statement, thread)
        for statement in _DELETE_RUNS:
            await self._run(cursor, statement, escape(thread_id))
        # Deleting a thread releases it, too: runs that wait for it are notified.
        await cursor.execute(b"SELECT pg_notify(%b, %b)", (CHANNEL, notify_payload(self._name, thread_id)))
        await cursor.execute(b"COMMIT")


_NOTHING = "Nothing was changed."


def _keys(keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(escape(ns), escape(checkpoint_id)) for ns, checkpoint_id in keys]


def _columns(rows: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
    """Transpose rows: one list for each column."""
    return map(list, zip(*rows, strict=True))


def _chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Split rows, whose last value is a payload, into lists of bounded size."""
    chunk: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        size += len(row[-1])
        if chunk and (size > CHUNK or len(chunk) == 10_000):
            yield chunk
            chunk, size = [], len(row[-1])
        chunk.append(row)
    if chunk:
        yield chunk


def _values(row: CheckpointRow) -> tuple[Any, ...]:
    """Return a checkpoint's values, in the order of `_REPLACE` and `_LOAD_ROWS`."""
    return (
        escape(row.ns),
        escape(row.checkpoint_id),
        escape_or_none(row.parent_id),
        escape(row.base_id),
        row.step,
        row.pinned,
        write_metadata(row.metadata),
        row.frame,
    )
