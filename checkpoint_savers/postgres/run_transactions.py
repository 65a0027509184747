"""Change the runs of a thread, in one transaction of two round trips.

The first round trip locks the thread's rows, that of its runs first and the saver's second, and reads them. The
decision is made in the client. The second one writes and commits. Each statement has a snapshot of its own (READ
COMMITTED): those that read come after those that lock, and see what the lock's holder before has committed. One
statement that locks and reads would read from a snapshot that is older than its lock. A superstep is a round trip
more, as its answer decides about the rest.

The statements of a round trip are sent together: those that lock and read as one query with literals, those that write
and commit in psycopg's pipeline mode. If one fails, the server skips the rest, and the transaction is rolled back. The
first could not be a pipeline: PostgreSQL 15 does not apply `idle_in_transaction_session_timeout` to a transaction that
waits after one, and a process that is stopped there would hold its locks for ever.

If the connection breaks during COMMIT, the transaction's number answers on another connection whether it was committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import psycopg

from ..errors import ThreadBusyError, UnsupportedFormatError
from ..metadata import read_metadata, with_defaults, write_metadata
from ..records import Commit, Lease
from ..runs.decisions import Changes, Found
from ..runs.port import Decide, ends_work
from ..runs.rows import RunRow, RunThreadRow
from .connections import Connection, PostgresCursor, new_client_cursor, new_cursor
from .escaping import escape
from .outcomes import was_committed
from .rows import Raw, owner_of, where_of
from .run_rows import (
    RUN_COLUMNS,
    THREAD_COLUMNS,
    changed_run_values,
    content_values,
    new_run_values,
    run_of,
    thread_row_of,
    thread_values,
)
from .schema import SAVER
from .server_clock import SERVER_TIME
from .writing import CHANNEL, LeasedWrite, WriteStatements, notify_payload

T = TypeVar("T")

OnQueued: TypeAlias = Callable[[Connection, RunThreadRow], Awaitable[None]]
"""Called in the transaction that queues a thread, with its connection. If it raises, the transaction is rolled back."""

IDLE_TIMEOUT: Final = 5
"""Seconds after which the server ends a transaction whose client is silent, so that a stopped process blocks no thread
for longer."""

# It inserts the row, or locks the one that is there: a row is locked also if the condition of DO UPDATE is not met. The
# settings are local to the transaction: behind a pooler, a session's setting would be the next client's.
_LOCK_RUNS: Final = f"""
INSERT INTO {{s}}.pregel_run_threads (thread_id)
SELECT %b FROM (
    SELECT set_config('lock_timeout', %b, true),
        set_config('idle_in_transaction_session_timeout', '{IDLE_TIMEOUT}s', true)
) AS settings
ON CONFLICT (thread_id) DO UPDATE SET status = excluded.status WHERE false
RETURNING 1
"""
# A thread without a checkpoint is deleted when its lease is released, unless it has runs. A release that has looked for
# runs before this transaction finds another `seq` under the lock, and is repeated.
_LOCK_THREAD: Final = """
INSERT INTO {s}.pregel_threads AS t (thread_id, epoch, seq) VALUES (%b, 0, 0)
ON CONFLICT (thread_id) DO UPDATE SET seq = t.seq + 1 WHERE t.newest IS NULL
"""
_LOCK_LEASED: Final = """
SELECT epoch, run_id, owner, expires_at FROM {s}.pregel_threads WHERE thread_id = %b FOR UPDATE
"""
_READ_THREAD: Final = f"""
SELECT {SERVER_TIME}, pg_current_xact_id()::text,
    (SELECT max(version) FROM {{s}}.pregel_saver_version), {THREAD_COLUMNS}
FROM {{s}}.pregel_run_threads r LEFT JOIN {{s}}.pregel_threads t ON t.thread_id = r.thread_id WHERE r.thread_id = %b
"""
_OPEN: Final = f"""
SELECT true, {RUN_COLUMNS} FROM {{s}}.pregel_runs u WHERE u.thread_id = %b AND u.status IN ('pending', 'running')
"""
_NAMED: Final = f"{_OPEN} UNION ALL SELECT false, {RUN_COLUMNS} FROM {{s}}.pregel_runs u WHERE u.run_id = %b"
_OF_KEY: Final = f"{_OPEN} UNION ALL SELECT false, {RUN_COLUMNS} FROM {{s}}.pregel_runs u WHERE u.idempotency_key = %b"
_INSERT_RUNS: Final = """
INSERT INTO {s}.pregel_runs (
    run_id, status, hidden, frame, thread_id, seq, assistant, idempotency_key, created_at, metadata, payload
)
SELECT r.run_id, r.status, r.hidden, r.frame, r.thread_id, r.seq, r.assistant, r.key, r.created_at, r.metadata::jsonb,
    r.payload
FROM unnest(%b::text[], %b::text[], %b::bool[], %b::bytea[], %b::text[], %b::bigint[], %b::text[], %b::text[],
    %b::float8[], %b::text[], %b::bytea[])
    AS r (run_id, status, hidden, frame, thread_id, seq, assistant, key, created_at, metadata, payload)
"""
_UPDATE_RUNS: Final = """
UPDATE {s}.pregel_runs u SET status = r.status, hidden = r.hidden, frame = r.frame
FROM unnest(%b::text[], %b::text[], %b::bool[], %b::bytea[]) AS r (run_id, status, hidden, frame)
WHERE u.run_id = r.run_id
"""
_THREAD_SET: Final = """
UPDATE {s}.pregel_run_threads SET status = %b, assistant = %b, activation = %b, activation_no = %b, activation_at = %b,
    priority = %b, route = %b, wake_at = %b, created_at = %b, updated_at = %b, frame = %b"""
_UPDATE_THREAD: Final = f"{_THREAD_SET} WHERE thread_id = %b"
_UPDATE_CONTENT: Final = f"{_THREAD_SET}, state = %b::jsonb, content = %b WHERE thread_id = %b"
_SET_METADATA: Final = "UPDATE {s}.pregel_threads SET metadata = %b, seq = seq + 1 WHERE thread_id = %b"
_RELEASE: Final = """
WITH released AS (
    UPDATE {s}.pregel_threads SET run_id = NULL, owner = NULL, expires_at = NULL, seq = seq + 1 WHERE thread_id = %b
)
SELECT pg_notify(%b, %b)
"""
_FORGET: Final = "DELETE FROM {s}.pregel_run_threads WHERE thread_id = %b"

_KEY_INDEX: Final = "pregel_runs_by_key"


class RunAttempt(Generic[T]):
    """One call of `transact`, and the state of the attempts at its transaction.

    Args:
        thread_id: the thread.
        decide: the decision.
        run_id: a run that the decision needs.
        idempotency_key: or the key of that run.
        lease: to compare, or None.
        commit: a superstep to store, or None.
        clock: returns the time in unix seconds, or None for the server's time.
        on_queued: called if the thread is queued, or None.

    Attributes:
        xid: the number of a transaction that is being committed; None before.
        committed: True once the transaction has ended without an error.
        changed: True if it wrote rows of runs or threads.
        released: True if it released the lease.
    """

    def __init__(
        self,
        thread_id: str,
        decide: Decide[T],
        *,
        run_id: str | None,
        idempotency_key: str | None,
        lease: Lease | None,
        commit: Commit | None,
        clock: Callable[[], float | None],
        on_queued: OnQueued | None,
    ) -> None:
        self.thread_id = thread_id
        self.decide = decide
        self.run_id = run_id
        self.idempotency_key = idempotency_key
        self.lease = lease
        self.commit = commit
        self.clock = clock
        self.on_queued = on_queued
        self.xid: str | None = None
        self.committed = False
        self.changed = False
        self.released = False
        self._results: list[T] = []

    def set_result(self, result: T) -> None:
        """Set the decision's result, before COMMIT.

        Args:
            result: the result.
        """
        self._results = [result]

    def result(self) -> T:
        """Return the result of the decision that was committed."""
        return self._results[0]

    def interrupted(self) -> None:
        """Note that the connection broke. `xid` shows whether COMMIT may have been sent."""


class _Locked(NamedTuple):
    """What the first round trip has found.

    Attributes:
        found: for the decision.
        metadata: of the saver's thread.
        is_new: True if this transaction has inserted the thread's row, which is empty.
        xid: the transaction's number.
    """

    found: Found
    metadata: dict[str, Any]
    is_new: bool
    xid: str


class RunTransactions:
    """The statements of one schema.

    Args:
        schema: quoted.
        name: of the schema.
        where: how messages name the database.
        busy_timeout: seconds to wait for a lock.
        writing: stores supersteps.
    """

    def __init__(self, schema: str, name: str, where: str, busy_timeout: float, *, writing: WriteStatements) -> None:
        self._schema = schema
        self._name = name
        self._where = where
        self._busy_timeout = busy_timeout
        self._lock_timeout = f"{max(int(busy_timeout * 1000), 1)}ms"
        self._writing = writing

    async def transact(self, cursor: PostgresCursor, attempt: RunAttempt[T]) -> T:
        """Execute the transaction, unless an earlier attempt was committed. See `RunStore.transact`.

        Args:
            cursor: of a connection in autocommit mode.
            attempt: the call.

        Returns:
            The decision's result.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held, or the commit's head has changed.
            UnsupportedFormatError: a later version has upgraded the tables.
            StorageError: the server has not ended an earlier attempt.
        """
        connection = cursor.connection
        while True:
            if attempt.xid is not None:
                xid, attempt.xid = attempt.xid, None
                timeout = self._busy_timeout + IDLE_TIMEOUT
                if await was_committed(cursor, xid, self._where, timeout):
                    break
            try:
                await self._execute(connection, attempt)
            except psycopg.errors.UniqueViolation as error:
                # Another thread's run has the key since this transaction looked for it. Next time, it is found.
                if error.diag.constraint_name != _KEY_INDEX:
                    raise
                attempt.xid = None
                await connection.rollback()
            else:
                break
        attempt.committed = True
        return attempt.result()

    async def _execute(self, connection: Connection, attempt: RunAttempt[T]) -> None:
        locked = await self._lock(connection, attempt)
        changes = attempt.decide(locked.found)
        attempt.set_result(changes.result)
        commit, lease = attempt.commit, attempt.lease
        already = commit is not None and commit.releases
        releases = lease is not None and not already and ends_work(locked.found, changes, lease)
        attempt.released = already or releases
        metadata = with_defaults(locked.metadata, changes.metadata)
        writes = changes.thread is not None or bool(changes.runs) or metadata != locked.metadata
        attempt.changed = writes
        if not (writes or releases or commit):
            await new_cursor(connection).execute(b"ROLLBACK")  # also of an empty row that was inserted to be locked
            return
        thread = changes.thread
        is_queued = thread is not None and _is_queued(locked.found.thread, thread)
        on_queued = attempt.on_queued if is_queued else None
        if lease is not None and commit is not None:
            await self._prepare(connection, locked, changes, metadata)
            await self._store(connection, lease, commit)
        # Without a pipeline while other code waits in the transaction: the server would not end it then, if this
        # process stops.
        async with nullcontext() if on_queued is not None else _pipeline(connection):
            if commit is None:
                await self._prepare(connection, locked, changes, metadata)
            await self._write(connection, locked.found, changes)
            if lease is not None and releases:
                await self._release(connection, lease, is_known=thread is not None or not locked.is_new)
            if on_queued is not None and thread is not None:
                await on_queued(connection, thread)
            # Set before COMMIT is sent: if the connection breaks then, only the number can answer.
            attempt.xid = locked.xid
            await new_cursor(connection).execute(b"COMMIT")
        attempt.xid = None

    async def _prepare(
        self, connection: Connection, locked: _Locked, changes: Changes[Any], metadata: dict[str, Any]
    ) -> None:
        """Change the saver's thread, and delete an empty row that was inserted to be locked."""
        thread_id = escape(locked.found.thread_id)
        if metadata != locked.metadata:
            await self._run(connection, _SET_METADATA, write_metadata(metadata), thread_id)
        if changes.thread is None and locked.is_new:
            await self._run(connection, _FORGET, thread_id)

    async def _store(self, connection: Connection, lease: Lease, commit: Commit) -> None:
        """Store a superstep, by the saver's own statement."""
        cursor = new_cursor(connection)
        # Its number is the one after the thread's last, as it is not queued: see `LeasedWrite`.
        write = LeasedWrite(lease, commit)
        locked = await self._writing.store(cursor, [write])
        write.result()
        assert not locked, "the row is locked by this transaction"

    async def _lock(self, connection: Connection, attempt: RunAttempt[Any]) -> _Locked:
        """Lock and read a thread's rows, and check the lease."""
        thread_id, lease = escape(attempt.thread_id), attempt.lease
        statement: str = _OPEN
        named: tuple[str, ...] = ()
        if attempt.run_id is not None:
            statement, named = _NAMED, (escape(attempt.run_id),)
        elif attempt.idempotency_key is not None:
            statement, named = _OF_KEY, (escape(attempt.idempotency_key),)
        lock = _LOCK_THREAD if lease is None else _LOCK_LEASED
        texts = (_LOCK_RUNS, lock, _READ_THREAD, statement)
        text = ";".join(("BEGIN ISOLATION LEVEL READ COMMITTED", *texts)).replace("%b", "%s").format(s=self._schema)
        cursor = new_client_cursor(connection)
        await cursor.execute(text.encode(), (thread_id, self._lock_timeout, thread_id, thread_id, thread_id, *named))
        cursor.nextset()
        is_new = cursor.rowcount == 1
        cursor.nextset()
        if lease is not None:
            _check_lease(lease, await cursor.fetchall())
        cursor.nextset()
        ((now, xid, version, *columns),) = await cursor.fetchall()
        cursor.nextset()
        runs = await cursor.fetchall()
        # Under a lease, as for a commit: a run that had its lease before an upgrade finishes.
        if lease is None and version is not None and version > SAVER.version:
            raise UnsupportedFormatError(self._where, version, SAVER.version)
        metadata: str | None = columns[-1]
        time = attempt.clock()
        open_runs, named_run = _runs_of(runs)
        found = Found(
            thread_id=attempt.thread_id,
            thread=None if is_new else thread_row_of(tuple(columns)),
            open=open_runs,
            named=named_run,
            now=now if time is None else time,
        )
        known = {} if metadata is None else read_metadata(metadata, where_of(attempt.thread_id))
        return _Locked(found, known, is_new, xid)

    async def _write(self, connection: Connection, found: Found, changes: Changes[Any]) -> None:
        # A run that was not found is new: an INSERT with ON CONFLICT would hide that an id is used twice.
        known = {run.run_id for run in found.open}
        if found.named is not None:
            known.add(found.named.run_id)
        new = [run for run in changes.runs if run.run_id not in known]
        changed = [run for run in changes.runs if run.run_id in known]
        if new:
            await self._run(connection, _INSERT_RUNS, *_columns(map(new_run_values, new)))
        if changed:
            await self._run(connection, _UPDATE_RUNS, *_columns(map(changed_run_values, changed)))
        thread, before = changes.thread, found.thread
        if thread is None:
            return
        # Values may be large. While they do not change, their columns are left out, so that the server rewrites neither
        # them nor what it has stored out of line.
        values, thread_id = thread_values(thread), escape(thread.thread_id)
        if before is not None and thread.values is before.values and thread.interrupts is before.interrupts:
            await self._run(connection, _UPDATE_THREAD, *values, thread_id)
        else:
            await self._run(connection, _UPDATE_CONTENT, *values, *content_values(thread), thread_id)

    async def _release(self, connection: Connection, lease: Lease, *, is_known: bool) -> None:
        if is_known:
            payload = notify_payload(self._name, lease.thread_id)
            await self._run(connection, _RELEASE, escape(lease.thread_id), CHANNEL, payload)
            return
        # The saver's own release also deletes a thread of which nothing is stored.
        await self._writing.store(new_cursor(connection), [LeasedWrite(lease, None)])

    async def _run(self, connection: Connection, statement: str, *parameters: object) -> PostgresCursor:
        # A cursor for each statement: within a pipeline, results are fetched after all statements were sent.
        cursor = new_cursor(connection)
        await cursor.execute(statement.format(s=self._schema).encode(), parameters, binary=True)
        return cursor


def _pipeline(connection: Connection) -> AbstractAsyncContextManager[object]:
    # With an older libpq, each statement is a round trip.
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


def _check_lease(lease: Lease, rows: list[Raw]) -> None:
    """Raise an error unless the saver's row of a thread, which is locked, shows that the lease is held."""
    for epoch, run_id, owner, until in rows:
        if epoch == lease.epoch and run_id == escape(lease.owner.run_id):
            return
        if owner is not None:
            holder = owner_of(owner, lease.thread_id)
            raise ThreadBusyError(lease.thread_id, holder=str(holder), expires_at=until or 0.0, lost=True)
    raise ThreadBusyError(lease.thread_id, lost=True)


def _runs_of(rows: list[Raw]) -> tuple[tuple[RunRow, ...], RunRow | None]:
    """Return the open runs of a thread, in the order in which they are taken, and the named run."""
    open_runs: list[RunRow] = []
    named: RunRow | None = None
    for is_open, *columns in rows:
        run = run_of(tuple(columns))
        if is_open:
            open_runs.append(run)
        else:
            named = run
    open_runs.sort(key=lambda run: run.order)
    return tuple(open_runs), named


def _is_queued(before: RunThreadRow | None, after: RunThreadRow) -> bool:
    """Return True if a change queues a thread, or queues it again."""
    if after.activation != "queued":
        return False
    return before is None or (before.activation, before.activation_no) != ("queued", after.activation_no)


def _columns(rows: Iterable[Raw]) -> list[list[Any]]:
    """Transpose rows: one list for each column."""
    return list(map(list, zip(*rows, strict=True)))
