"""Change the runs of threads. All calls that wait at the same time share one transaction of two round trips.

The first round trip locks the threads' rows, those of `pregel_run_threads` before those of `pregel_threads`, and reads
them. Then the client decides. The second round trip writes and commits. Each statement has a snapshot of its own (READ
COMMITTED). The statements that read come after those that lock, so they see what the previous holder of the lock has
committed. One statement that locks and reads would read from a snapshot that is older than its lock. A superstep takes
a third round trip, because the other writes depend on its answer.

Two frequent cases do without this transaction, unless another process has changed the rows: the first and the last
superstep of a run are stored with the run's rows by one statement (`run_mark`), and so is the first run of a new thread
(`new_threads`).

A batch has calls that are all to be stored. If one is refused, the batch is rolled back and halved, until that call is
alone, and its error is raised to its caller. If a thread is locked by another connection, its call is left out and
repeated after some milliseconds: a batch waits for no thread.

The statements of a round trip are sent together: those that lock and read as one query with literals, those that write
and commit in psycopg's pipeline mode. If one fails, the server skips the rest, and the transaction is rolled back. The
first could not be a pipeline: PostgreSQL 15 does not apply `idle_in_transaction_session_timeout` to a transaction that
waits after one, and a process that is stopped there would hold its locks for ever.

If the connection breaks during COMMIT, the transaction's number answers on another connection whether it was committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg

from ..errors import CheckpointError, ThreadBusyError, UnsupportedFormatError
from ..metadata import read_metadata, with_defaults, write_metadata
from ..owner import is_live
from ..records import Commit, Lease
from ..runs.changes import Topic
from ..runs.decisions import Changes, Found, WantedLease
from ..runs.known_rows import KnownRows
from ..runs.port import Decide, ends_work, topics_of
from ..runs.rows import RunRow, RunThreadRow, in_order
from .batches import Columns, may_prepare, table_of, values_of
from .connections import Connection, PostgresCursor, fetch, new_client_cursor, new_cursor
from .escaping import escape, unescape
from .group_commit import QueuedWrite
from .new_threads import INSERT_RUNS, IS_STORED, LEASE, NewThread, insert_statement, lease_values
from .outcomes import was_committed
from .rows import Raw, owner_of, to_checkpoint_id_or_none, where_of
from .run_rows import (
    CONTENT,
    NEW_RUN,
    RUN_CHANGES,
    RUN_COLUMNS,
    RUN_COLUMNS_AND_ASKED_PAYLOADS,
    THREAD_CHANGES,
    THREAD_COLUMNS,
    changed_run_values,
    content_values,
    new_run_values,
    run_of,
    thread_row_of,
    thread_values,
)
from .schema import SAVER
from .server_clock import SERVER_TIME, ServerClock, counter
from .writing import CHANNEL, LeasedWrite, WriteStatements, notify_payload

T = TypeVar("T")

OnQueued: TypeAlias = Callable[[Connection, RunThreadRow], Awaitable[None]]
"""Called in the transaction that queues a thread, with its connection. If it raises, the transaction is rolled back."""

IDLE_TIMEOUT: Final = 5
"""Seconds after which the server ends a transaction whose client is silent, so that a stopped process blocks no thread
for longer."""

# The settings are local to the transaction: behind a pooler, a session's setting would be the next client's. Rows are
# inserted and locked in the order of their ids, so that two batches cannot deadlock.
_SETTINGS: Final = f"""
SELECT set_config('lock_timeout', %b, true), set_config('idle_in_transaction_session_timeout', '{IDLE_TIMEOUT}s', true)
"""
_ADD_ROWS: Final = """
INSERT INTO {s}.pregel_run_threads (thread_id) SELECT id FROM unnest(%b::text[]) AS id ORDER BY id COLLATE "C"
ON CONFLICT (thread_id) DO NOTHING RETURNING thread_id
"""
_LOCK_RUNS: Final = """
SELECT 1 FROM {s}.pregel_run_threads WHERE thread_id = ANY(%b::text[]) ORDER BY thread_id FOR UPDATE"""
_LOCKED: Final = b"""
WITH free AS MATERIALIZED (
    SELECT thread_id FROM {s}.pregel_run_threads WHERE thread_id = ANY(%b::text[]) FOR UPDATE SKIP LOCKED
)
SELECT r.thread_id FROM {s}.pregel_run_threads r WHERE r.thread_id = ANY(%b::text[])
    AND NOT EXISTS (SELECT FROM free f WHERE f.thread_id = r.thread_id)
"""
# A thread without a checkpoint is deleted when its lease is released, unless it has runs. A release that has looked for
# runs before this transaction finds another `seq` under the lock, and is repeated.
_LOCK_THREADS: Final = """
INSERT INTO {s}.pregel_threads AS t (thread_id, epoch, seq)
SELECT id, 0, 0 FROM unnest(%b::text[]) AS id ORDER BY id COLLATE "C"
ON CONFLICT (thread_id) DO UPDATE SET seq = t.seq + 1 WHERE t.newest IS NULL
"""
_LOCK_LEASED: Final = """
SELECT thread_id, epoch, run_id, owner, expires_at, newest FROM {s}.pregel_threads WHERE thread_id = ANY(%b::text[])
ORDER BY thread_id FOR UPDATE
"""
_READ_THREADS: Final = f"""
SELECT {SERVER_TIME}, pg_current_xact_id()::text,
    (SELECT max(version) FROM {{s}}.pregel_saver_version), {THREAD_COLUMNS}
FROM {{s}}.pregel_run_threads r LEFT JOIN {{s}}.pregel_threads t ON t.thread_id = r.thread_id
WHERE r.thread_id = ANY(%b::text[])
"""
_OPEN: Final = f"""
SELECT true, NULL, {RUN_COLUMNS_AND_ASKED_PAYLOADS} FROM {{s}}.pregel_runs u
WHERE u.thread_id = ANY(%b::text[]) AND u.status IN ('pending', 'running')
"""
_NAMED: Final = f"""
UNION ALL SELECT false, NULL, {RUN_COLUMNS_AND_ASKED_PAYLOADS} FROM {{s}}.pregel_runs u WHERE u.run_id = ANY(%b::text[])
"""
_OF_KEY: Final = f"""
UNION ALL SELECT false, u.idempotency_key, {RUN_COLUMNS} FROM {{s}}.pregel_runs u
WHERE u.idempotency_key = ANY(%b::text[])
"""
_UPDATE_RUNS: Final = """
UPDATE {s}.pregel_runs u SET status = r.status, hidden = r.hidden, frame = r.frame
FROM {rows}
WHERE u.run_id = r.run_id
"""
_SET = """
UPDATE {s}.pregel_run_threads t SET status = r.status, assistant = r.assistant, activation = r.activation,
    activation_no = r.activation_no, activation_at = r.activation_at, priority = r.priority, route = r.route,
    wake_at = r.wake_at, created_at = r.created_at, updated_at = r.updated_at, frame = r.frame"""
_UPDATE_THREADS: Final = f"{_SET} FROM {{rows}} WHERE t.thread_id = r.thread_id"
_UPDATE_CONTENT: Final = f"""{_SET}, state = r.state::jsonb, content = r.content
FROM {{rows}} WHERE t.thread_id = r.thread_id"""
_SET_METADATA: Final = "UPDATE {s}.pregel_threads SET metadata = %b, seq = seq + 1 WHERE thread_id = %b"
_RELEASE: Final = """
WITH job AS (SELECT * FROM {rows}), released AS (
    UPDATE {s}.pregel_threads t SET run_id = NULL, owner = NULL, expires_at = NULL, seq = seq + 1
    FROM job r WHERE t.thread_id = r.thread_id
)
SELECT pg_notify(%b, payload) FROM job
"""
_ACQUIRE: Final = """
UPDATE {s}.pregel_threads t
SET epoch = r.epoch, seq = 0, run_id = r.run_id, owner = r.owner, expires_at = r.expires_at
FROM {rows} WHERE t.thread_id = r.thread_id
"""
_RELEASED: Final = {"thread_id": "text", "payload": "text"}
_RUNS: Final = "pregel_runs"
_RUN_THREADS: Final = "pregel_run_threads"
_FRAMES: Final = f"""
SELECT '{_RUNS}', run_id, frame FROM {{s}}.{_RUNS} WHERE run_id = ANY(%b::text[])
UNION ALL SELECT '{_RUN_THREADS}', thread_id, frame FROM {{s}}.{_RUN_THREADS} WHERE thread_id = ANY(%b::text[])
"""
_FORGET: Final = "DELETE FROM {s}.pregel_run_threads WHERE thread_id = %b"

_KEY_INDEX: Final = "pregel_runs_by_key"


class _SplitError(Exception):
    """A call of a batch changes nothing, and its thread's row was inserted to be locked.

    The batch is halved, until the transaction of that call alone can be rolled back.
    """


class RunAttempt(QueuedWrite[T]):
    """One call of `transact`, and the state of the attempts at its transaction.

    Args:
        thread_id: the thread.
        decide: the decision.
        assumed: what the decision finds, if the caller says that the thread is new: nothing is read then. None to lock
            and read the rows first.
        run_id: a run that the decision needs.
        idempotency_key: or the key of that run.
        lease: to compare, or None.
        commit: a superstep to store, or None.
        wants: a lease to acquire, or None.
        clock: returns the time in unix seconds, or None for the server's time.
        on_queued: called if the thread is queued, or None.

    Attributes:
        xid: the number of a transaction that is being committed, perhaps with other calls; None before.
        committed: True once the transaction has ended without an error.
        topics: what it has changed.
        released: True if it released the lease.
        acquired: the lease that it acquired; None for none.
        known_rows: the thread's rows after the transaction; None if no lease is held then.
        sent: what the transaction of `xid` has found, and what it changes; None before.
    """

    def __init__(
        self,
        thread_id: str,
        decide: Decide[T],
        *,
        assumed: Found | None,
        run_id: str | None,
        idempotency_key: str | None,
        lease: Lease | None,
        commit: Commit | None,
        wants: WantedLease | None,
        clock: Callable[[], float | None],
        on_queued: OnQueued | None,
    ) -> None:
        super().__init__(thread_id, 0 if commit is None else _size_of(commit))
        self.decide = decide
        self.assumed = assumed
        self.kind = "known" if assumed is None else "new"
        self.run_id = run_id
        self.idempotency_key = idempotency_key
        self.lease = lease
        self.commit = commit
        self.wants = wants
        self.clock = clock
        self.on_queued = on_queued
        self.xid: str | None = None
        self.committed = False
        self.topics: tuple[Topic, ...] = ()
        self.released = False
        self.acquired: Lease | None = None
        self.known_rows: KnownRows | None = None
        self.sent: tuple[Found, Changes[T]] | None = None

    def frames(self) -> dict[tuple[str, str], tuple[bytes | None, bytes]]:
        """Return the frames of the rows that were sent: before the transaction (None for no row), and after it.

        Returns:
            By table and id.
        """
        if self.sent is None:
            return {}
        found, changes = self.sent
        known = {run.run_id: run for run in (*found.open, found.named) if run is not None}
        frames: dict[tuple[str, str], tuple[bytes | None, bytes]] = {}
        for run in changes.runs:
            was = known.get(run.run_id)
            before = None if was is None else changed_run_values(was)[-1]
            frames[_RUNS, escape(run.run_id)] = before, changed_run_values(run)[-1]
        if changes.thread is not None:
            before = None if found.thread is None else thread_values(found.thread)[-1]
            frames[_RUN_THREADS, escape(self.thread_id)] = before, thread_values(changes.thread)[-1]
        return frames

    @property
    def is_of_known_thread(self) -> bool:
        """True if the thread has a lease or was queued, so that its row exists, unless it was deleted meanwhile."""
        return self.lease is not None or (self.wants is not None and self.wants.required)


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


class _Decided(NamedTuple):
    """What a call writes.

    Attributes:
        attempt: the call.
        locked: what was found.
        changes: what it changes.
        metadata: of the saver's thread afterwards.
        on_queued: awaited in the transaction; None if the call does not queue the thread.
        releases: True if the lease is to be released, apart from the commit.
        writes: False if nothing is to be written.
    """

    attempt: RunAttempt[Any]
    locked: _Locked
    changes: Changes[Any]
    metadata: dict[str, Any]
    on_queued: OnQueued | None
    releases: bool
    writes: bool


class RunTransactions:
    """Executes calls of `RunStore.transact` in the tables of one schema.

    Args:
        schema: the schema's quoted name.
        name: the same, not quoted.
        where: how messages name the database.
        busy_timeout: seconds to wait for a lock.
        writing: stores supersteps.
        clock: the server's clock, which is corrected by the time in each answer.
    """

    def __init__(
        self, schema: str, name: str, where: str, busy_timeout: float, *, writing: WriteStatements, clock: ServerClock
    ) -> None:
        self._schema = schema
        self._select_new_run = IS_STORED.format(s=schema).encode()
        self._frames = _FRAMES.format(s=schema).encode()
        self._name = name
        self._where = where
        self._busy_timeout = busy_timeout
        self._lock_timeout = f"{max(int(busy_timeout * 1000), 1)}ms"
        self._writing = writing
        self._clock = clock

    async def store(self, cursor: PostgresCursor, writes: Sequence[RunAttempt[Any]]) -> Sequence[RunAttempt[Any]]:
        """Execute a batch of calls in one transaction, without those of which an earlier attempt was committed.

        Calls for new threads are stored by a statement of their own, without this transaction if it succeeds. See
        `group_commit.StoreBatch`, and `RunStore.transact` for the errors of a call.

        Args:
            cursor: of a connection in autocommit mode.
            writes: the calls, at most one for each thread.

        Returns:
            The calls to repeat, as their threads are locked. A call that is alone waits instead.

        Raises:
            ThreadBusyError: the only call is refused; so are others by other errors.
            StorageError: the server has not ended an earlier attempt.
            Exception: the batch is to be halved.
        """
        await self._store_new_threads(cursor, [write for write in writes if write.assumed is not None])
        connection = cursor.connection
        locked: list[RunAttempt[Any]] = []
        while left := await self._not_committed(cursor, [write for write in writes if write not in locked]):
            try:
                await self._execute(connection, left)
            except psycopg.errors.LockNotAvailable:
                if len(left) == 1:
                    raise
                await connection.rollback()
                ids = [escape(attempt.thread_id) for attempt in left]
                await cursor.execute(_LOCKED.replace(b"{s}", self._schema.encode()), (ids, ids), binary=True)
                found = {unescape(thread_id) for (thread_id,) in await cursor.fetchall()}
                locked += [attempt for attempt in left if attempt.thread_id in found]
                if not found:
                    raise  # it is free by now, or another row is locked: one by one
            except psycopg.errors.UniqueViolation as error:
                # Another thread's run has the key since this transaction looked for it. Next time, it is found.
                if error.diag.constraint_name != _KEY_INDEX or len(left) > 1:
                    raise
                left[0].xid = None
                await connection.rollback()
            else:
                for attempt in left:
                    attempt.committed = True
        return locked

    async def _not_committed(
        self, cursor: PostgresCursor, attempts: Sequence[RunAttempt[Any]]
    ) -> list[RunAttempt[Any]]:
        """Return the calls that are still to be executed."""
        # The earlier attempts of a batch may have been parts of several transactions.
        for xid in {attempt.xid for attempt in attempts if not attempt.committed and attempt.xid is not None}:
            of_xid = [attempt for attempt in attempts if attempt.xid == xid]
            committed = await was_committed(
                cursor,
                xid,
                self._where,
                self._busy_timeout + IDLE_TIMEOUT,
                lacks_writes=partial(self._lacks_writes, cursor, of_xid),
            )
            for attempt in of_xid:
                attempt.xid, attempt.committed = None, committed
        return [attempt for attempt in attempts if not attempt.committed]

    async def _lacks_writes(self, cursor: PostgresCursor, attempts: Sequence[RunAttempt[Any]]) -> bool:
        """Return True if a row that these calls were to change is as they have found it."""
        # A row that another process has changed since is neither as it was found nor as it was to be, and says nothing.
        written = {place: frames for attempt in attempts for place, frames in attempt.frames().items()}
        ids = ([key for table, key in written if table == name] for name in (_RUNS, _RUN_THREADS))
        found = {(table, key): frame for table, key, frame in await fetch(cursor, self._frames, *ids)}
        return any(before != after and found.get(place) == before for place, (before, after) in written.items())

    async def _store_new_threads(self, cursor: PostgresCursor, attempts: Sequence[RunAttempt[Any]]) -> None:
        """Store new threads with their first runs by one statement, and set `committed` of the calls that are stored.

        The calls that are not stored have no assumption afterwards: they need the transaction that locks and reads.

        Args:
            cursor: of a connection in autocommit mode.
            attempts: calls with an assumption.

        Raises:
            psycopg.errors.UniqueViolation: a row of one of several calls exists. Halve the batch.
        """
        todo: list[tuple[RunAttempt[Any], NewThread]] = []
        for attempt in attempts:
            if attempt.committed or attempt.assumed is None:
                continue
            new = self._new_thread(attempt, attempt.assumed)
            if new is None:
                attempt.assumed = None
            else:
                todo.append((attempt, new))
        if not todo:
            return
        text, values = insert_statement([new for _, new in todo])
        try:
            prepare, sent = may_prepare(len(todo)), counter()
            await cursor.execute(text.format(s=self._schema).encode(), values, prepare=prepare, binary=True)
            times, received = await cursor.fetchall(), counter()
            for (now,) in times:
                self._clock.update(sent, now, received)
            is_stored = len(times) == len(todo)
        except psycopg.errors.UniqueViolation:
            if len(todo) > 1:
                raise
            # An earlier attempt of this call, whose connection broke, may have stored the rows. That attempt has ended:
            # the INSERT waits for the transaction of another INSERT of the same row.
            ((attempt, new),) = todo
            is_stored = attempt.unsure and bool(await fetch(cursor, self._select_new_run, *new.key))
        for attempt, _ in todo:
            attempt.committed = is_stored
            attempt.assumed = None

    def _new_thread(self, attempt: RunAttempt[Any], assumed: Found) -> NewThread | None:
        """Decide by the assumption that the thread of a call is new.

        Returns:
            The rows to store. None if the decision raises a `CheckpointError`, or stores anything else than a thread
            and a run.
        """
        try:
            decided = self._decided(attempt, _Locked(assumed, {}, is_new=True, xid=""), alone=True)
        except CheckpointError:  # the assumption may be wrong: decide again by the stored rows
            return None
        changes, wants = decided.changes, attempt.wants
        if changes.thread is None or len(changes.runs) != 1:
            return None
        expires_at = None if wants is None or attempt.acquired is None else wants.expires_at
        return NewThread(changes.thread, changes.runs[0], decided.metadata, attempt.acquired, expires_at)

    async def _execute(self, connection: Connection, attempts: Sequence[RunAttempt[Any]]) -> None:
        todo = [
            self._decided(attempt, locked, alone=len(attempts) == 1)
            for attempt, locked in zip(attempts, await self._lock(connection, attempts), strict=True)
        ]
        if not any(each.writes for each in todo):
            await new_cursor(connection).execute(b"ROLLBACK")  # also of an empty row that was inserted to be locked
            return
        commits = [each for each in todo if each.attempt.commit is not None]
        calls_back = any(each.on_queued is not None for each in todo)
        if commits:
            # Before the rows of runs: their answer shows whether the heads are the expected ones.
            await self._set_metadata(connection, todo)
            await self._store(connection, commits)
        # Without a pipeline while other code waits in the transaction: the server would not end it then, if this
        # process stops.
        async with nullcontext() if calls_back else _pipeline(connection):
            if not commits:
                await self._set_metadata(connection, todo)
            await self._write(connection, todo)
            await self._acquire(connection, [each.attempt for each in todo])
            await self._release(connection, [each for each in todo if each.releases])
            for each in todo:
                if each.on_queued is not None and each.changes.thread is not None:
                    await each.on_queued(connection, each.changes.thread)
            # Set before COMMIT is sent: if the connection breaks then, only the number can answer.
            for each in todo:
                each.attempt.xid = each.locked.xid
                each.attempt.sent = each.locked.found, each.changes
            await new_cursor(connection).execute(b"COMMIT")
        for each in todo:
            each.attempt.xid = None

    def _decided(self, attempt: RunAttempt[Any], locked: _Locked | Exception, *, alone: bool) -> _Decided:
        """Decide about a call, and set the results of the attempt.

        Args:
            attempt: the call.
            locked: what was found, or the error with which the call is refused.
            alone: True if the transaction has no other call, so that it can be rolled back.

        Returns:
            What is to be written.

        Raises:
            Exception: raised by the decision, or passed as `locked`. The batch is halved then.
        """
        if isinstance(locked, Exception):
            raise locked
        changes = attempt.decide(locked.found)
        commit, lease = attempt.commit, attempt.lease
        already = commit is not None and commit.releases
        releases = lease is not None and not already and ends_work(locked.found, changes, lease)
        new = locked.found.lease
        attempt.acquired = None if new is None or ends_work(locked.found, changes, new) else new
        metadata = with_defaults(locked.metadata, changes.metadata)
        thread = changes.thread
        changed = thread is not None or bool(changes.runs) or metadata != locked.metadata
        writes = changed or releases or commit is not None  # an acquired lease comes with changes
        if not alone and (not writes or thread is None) and locked.is_new:
            raise _SplitError  # its row was inserted to be locked
        attempt.value = changes.result
        attempt.released = already or releases
        held = attempt.acquired if lease is None or attempt.released else lease
        attempt.known_rows = None if held is None else KnownRows.after(locked.found, changes, held)
        attempt.topics = topics_of(changes)
        queues = is_queued(locked.found.thread, thread)
        return _Decided(attempt, locked, changes, metadata, attempt.on_queued if queues else None, releases, writes)

    async def _set_metadata(self, connection: Connection, todo: Sequence[_Decided]) -> None:
        """Change the metadata of the saver's threads, and delete an empty row that was inserted to be locked."""
        for each in todo:
            thread_id = escape(each.attempt.thread_id)
            if each.metadata != each.locked.metadata:
                await self._run(connection, _SET_METADATA, write_metadata(each.metadata), thread_id)
            if each.changes.thread is None and each.locked.is_new:
                await self._run(connection, _FORGET, thread_id)

    async def _store(self, connection: Connection, commits: Sequence[_Decided]) -> None:
        """Store supersteps, by the saver's own statement."""
        # Their numbers are the ones after the threads' last, as they are not queued: see `LeasedWrite`.
        writes = [
            LeasedWrite(each.attempt.lease, each.attempt.commit) for each in commits if each.attempt.lease is not None
        ]
        locked = await self._writing.store(new_cursor(connection), writes)
        assert not locked, "the rows are locked by this transaction"
        for write in writes:
            write.result()

    async def _lock(self, connection: Connection, attempts: Sequence[RunAttempt[Any]]) -> list[_Locked | Exception]:
        """Lock and read the threads' rows, and check the leases."""
        ids = [escape(attempt.thread_id) for attempt in attempts]
        known = [escape(each.thread_id) for each in attempts if each.is_of_known_thread]
        leased = [escape(each.thread_id) for each in attempts if each.lease is not None or each.wants is not None]
        names = [escape(attempt.run_id) for attempt in attempts if attempt.run_id is not None]
        # Only a worker that takes a run, and a caller who gets one back, need payloads.
        taking = [escape(each.thread_id) for each in attempts if each.wants is not None and each.wants.required]
        shown = [escape(each.run_id) for each in attempts if each.run_id is not None and each.lease is None]
        keys = [escape(attempt.idempotency_key) for attempt in attempts if attempt.idempotency_key is not None]
        steps: list[tuple[str, tuple[object, ...]]] = [
            ("BEGIN ISOLATION LEVEL READ COMMITTED", ()),
            (_SETTINGS, (self._lock_timeout,)),
            (_ADD_ROWS, (ids,)),
            (f"{_LOCK_RUNS} NOWAIT" if len(ids) > 1 else _LOCK_RUNS, (ids,)),
            (_LOCK_THREADS, ([each for each in ids if each not in known],)),
            (_LOCK_LEASED, (leased,)),
            (_READ_THREADS, (ids,)),
            (
                _OPEN + (_NAMED if names else "") + (_OF_KEY if keys else ""),
                (shown, taking, ids, *([shown, taking, names] if names else ()), *([keys] if keys else ())),
            ),
        ]
        if not leased:
            del steps[5]
        if len(known) == len(ids):
            del steps[4]
        cursor = new_client_cursor(connection)
        text = ";".join([statement for statement, _ in steps]).replace("%b", "%s").format(s=self._schema)
        sent = counter()
        await cursor.execute(text.encode(), [value for _, values in steps for value in values])
        received = counter()
        cursor.nextset()
        cursor.nextset()
        new = {thread_id for (thread_id,) in await cursor.fetchall()}
        cursor.nextset()
        holders: list[Raw] = []
        if len(known) < len(ids):
            cursor.nextset()
        if leased:
            cursor.nextset()
            holders = await cursor.fetchall()
        cursor.nextset()
        threads = {unescape(columns[3]): columns for columns in await cursor.fetchall()}
        for now, *_ in threads.values():
            self._clock.update(sent, now, received)
        cursor.nextset()
        runs = [(is_open, key, run_of(tuple(columns))) for is_open, key, *columns in await cursor.fetchall()]
        return [self._found(attempt, new, holders, threads[attempt.thread_id], runs) for attempt in attempts]

    def _found(
        self,
        attempt: RunAttempt[Any],
        new: Container[str],
        holders: Sequence[Raw],
        raw: Raw,
        runs: Sequence[tuple[bool, str | None, RunRow]],
    ) -> _Locked | Exception:
        """Return what was found of one thread, or the error with which its call is refused.

        A call whose lease cannot be acquired finds nothing, and has its error: workers compete for threads, and the
        batch need not be halved for it.
        """
        now, xid, version, *columns = raw
        thread_id, lease = attempt.thread_id, attempt.lease
        is_new = escape(thread_id) in new
        rows = [row[1:] for row in holders if row[0] == escape(thread_id)]
        acquired, attempt.error = None, None
        try:
            if lease is not None:
                _check_lease(lease, rows)
            # Under a lease, as for a commit: a run that had its lease before an upgrade finishes.
            elif version is not None and version > SAVER.version:
                raise UnsupportedFormatError(self._where, version, SAVER.version)
            if attempt.wants is not None and rows:
                try:
                    acquired = _next_lease(thread_id, attempt.wants, rows[0])
                except ThreadBusyError as error:
                    attempt.error = error if attempt.wants.required else None
            thread = None if is_new else thread_row_of(tuple(columns))
            known = {} if columns[-1] is None else read_metadata(columns[-1], where_of(thread_id))
        except CheckpointError as error:
            return error
        named = [run for is_open, key, run in runs if not is_open and _is_named(attempt, run, key)]
        time = attempt.clock()
        found = Found(
            thread_id=thread_id,
            thread=thread,
            open=in_order([run for is_open, _, run in runs if is_open and run.thread_id == thread_id]),
            named=named[0] if named else None,
            now=now if time is None else time,
            lease=acquired,
        )
        return _Locked(found, known, is_new, xid)

    async def _write(self, connection: Connection, todo: Sequence[_Decided]) -> None:
        new: list[RunRow] = []
        changed: list[RunRow] = []
        threads: list[Raw] = []
        contents: list[Raw] = []
        for each in todo:
            # A run that was not found is new: an INSERT with ON CONFLICT would hide that an id is used twice.
            found = each.locked.found
            known = {run.run_id for run in (*found.open, found.named) if run is not None}
            for run in each.changes.runs:
                (changed if run.run_id in known else new).append(run)
            thread, before = each.changes.thread, found.thread
            if thread is None:
                continue
            # Values may be large. While they do not change, their columns are left out, so that the server rewrites
            # neither them nor what it has stored out of line.
            values = escape(thread.thread_id), *thread_values(thread)
            if before is not None and thread.values is before.values and thread.interrupts is before.interrupts:
                threads.append(values)
            else:
                contents.append((*values, *content_values(thread)))
        for statement, columns, rows in (
            (INSERT_RUNS, NEW_RUN, list(map(new_run_values, new))),
            (_UPDATE_RUNS, RUN_CHANGES, list(map(changed_run_values, changed))),
            (_UPDATE_THREADS, THREAD_CHANGES, threads),
            (_UPDATE_CONTENT, {**THREAD_CHANGES, **CONTENT}, contents),
        ):
            await self._write_rows(connection, statement, columns, rows)

    async def _acquire(self, connection: Connection, attempts: Sequence[RunAttempt[Any]]) -> None:
        rows = [
            lease_values(each.acquired, each.wants.expires_at)
            for each in attempts
            if each.acquired is not None and each.wants is not None
        ]
        await self._write_rows(connection, _ACQUIRE, LEASE, rows)

    async def _release(self, connection: Connection, todo: Sequence[_Decided]) -> None:
        leases = [(each, each.attempt.lease) for each in todo if each.attempt.lease is not None]
        known = [lease for each, lease in leases if each.changes.thread is not None or not each.locked.is_new]
        released = [(escape(lease.thread_id), notify_payload(self._name, lease.thread_id)) for lease in known]
        await self._write_rows(connection, _RELEASE, _RELEASED, released, CHANNEL)
        # The saver's own release also deletes a thread of which nothing is stored.
        bare = [LeasedWrite(lease, None) for _, lease in leases if lease not in known]
        if bare:
            await self._writing.store(new_cursor(connection), bare)

    async def _write_rows(
        self, connection: Connection, statement: str, columns: Columns, rows: Sequence[Raw], *parameters: object
    ) -> None:
        if rows:
            text = statement.replace("{rows}", table_of("r", columns, len(rows)))
            await self._run(connection, text, *values_of(rows), *parameters, prepare=may_prepare(len(rows)))

    async def _run(
        self, connection: Connection, statement: str, *parameters: object, prepare: bool | None = False
    ) -> PostgresCursor:
        # A cursor for each statement: within a pipeline, results are fetched after all statements were sent.
        cursor = new_cursor(connection)
        await cursor.execute(statement.format(s=self._schema).encode(), parameters, prepare=prepare, binary=True)
        return cursor


def _size_of(commit: Commit) -> int:
    """Return the bytes of a superstep's payload."""
    rows = [row for change in (commit, *commit.others) for row in change.rows]
    frames = [row.frame for row in rows] + [record.frame for record in commit.records]
    return sum(map(len, frames)) + sum([len(event.frame) for event in commit.events])


def _pipeline(connection: Connection) -> AbstractAsyncContextManager[object]:
    # With an older libpq, each statement is a round trip.
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


def _check_lease(lease: Lease, rows: list[Raw]) -> None:
    """Raise an error unless the saver's row of a thread, which is locked, shows that the lease is held."""
    for epoch, run_id, owner, until, _ in rows:
        if epoch == lease.epoch and run_id == escape(lease.owner.run_id):
            return
        if owner is not None:
            holder = owner_of(owner, lease.thread_id)
            raise ThreadBusyError(lease.thread_id, holder=str(holder), expires_at=until or 0.0, lost=True)
    raise ThreadBusyError(lease.thread_id, lost=True)


def _next_lease(thread_id: str, wants: WantedLease, row: Raw) -> Lease:
    """Return the lease to acquire, given the saver's row of a thread; raise ThreadBusyError if another is live."""
    epoch, _, holder, until, newest = row
    if holder is not None:
        owner = owner_of(holder, thread_id)
        if owner != wants.owner and is_live(owner, until or 0.0, now=wants.now):
            raise ThreadBusyError(thread_id, holder=str(owner), expires_at=until or 0.0)
    return Lease(thread_id=thread_id, epoch=epoch + 1, owner=wants.owner, newest=to_checkpoint_id_or_none(newest))


def _is_named(attempt: RunAttempt[Any], run: RunRow, key: str | None) -> bool:
    """Return True if a run is the one that a call has asked for, by its id or by its key."""
    if key is None:
        return run.run_id == attempt.run_id
    return attempt.idempotency_key is not None and key == escape(attempt.idempotency_key)


def is_queued(before: RunThreadRow | None, after: RunThreadRow | None) -> bool:
    """Return True if a change queues a thread, or queues it again.

    Args:
        before: the thread's row; None if it had none.
        after: its new row; None if it does not change.
    """
    if after is None or after.activation != "queued":
        return False
    return before is None or (before.activation, before.activation_no) != ("queued", after.activation_no)
