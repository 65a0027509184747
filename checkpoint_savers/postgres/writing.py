"""Store a batch of writes of runs with one statement, which skips each write whose lease or head does not fit.

The statement is a transaction of its own, so a commit is one round trip, and no lock is held while a client works. The
statement reads leases and heads as they are (`seen`); locks the threads whose lease and head are the expected ones, and
skips those that another connection has locked (`held`); and stores the rows of these alone. A thread that has changed
since it was seen is not held, as the number of its last write has changed with it.

Every write has a number, greater than that of each earlier write under the same lease, and the thread's row has the
number of the last one stored. So a write whose connection broke can simply be repeated: if it was stored, its number is
there; if it was lost, it is stored now; and if the first attempt is still running on the server and executes later, its
number is too small by then.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ThreadBusyError
from ..metadata import read_metadata, with_defaults, write_metadata
from ..records import Commit, EventRow, Lease, NamespaceChange, TaskRecord
from ..runs.known_rows import RowsChangedError
from .batches import may_prepare, table_of, values_of
from .connections import PostgresCursor
from .escaping import escape, escape_or_none, unescape
from .group_commit import QueuedWrite
from .rows import owner_of, where_of
from .run_mark import MarkParts, RunMark
from .server_clock import SERVER_TIME, ServerClock, counter

CHANNEL = "pregel_saver"
"""The NOTIFY channel on which releases of threads are announced."""

# Most commits change one namespace, which is a column of `job`. The further namespaces of a commit are in `other`; a
# batch without any does not plan these parts.
_OTHER = """, other AS MATERIALIZED (
    SELECT * FROM unnest(%b::int[], %b::text[], %b::text[], %b::text[], %b::bool[]) AS o (n, ns, expected, head, is_new)
)"""
_OTHERS_FIT = """ AND NOT EXISTS (
            SELECT FROM other o LEFT JOIN {s}.pregel_heads oh ON oh.thread = t.thread AND oh.ns = o.ns
            WHERE o.n = j.n AND (oh.checkpoint_id IS DISTINCT FROM o.expected OR NOT o.is_new AND NOT EXISTS (
                SELECT FROM {s}.pregel_checkpoints c
                WHERE c.thread = t.thread AND c.checkpoint_id = o.head AND c.ns = o.ns
            ))
        )"""
_NEWEST_OTHER = """, (SELECT max(o.head COLLATE "C") FROM other o WHERE o.n = h.n)"""
_MOVED_OTHERS = """, moved_others AS (
    INSERT INTO {s}.pregel_heads (thread, ns, checkpoint_id)
    SELECT h.thread, o.ns, o.head FROM other o JOIN held h USING (n)
    ON CONFLICT (thread, ns) DO UPDATE SET checkpoint_id = excluded.checkpoint_id
)"""


def _store_leased(other: str = "", fit: str = "", newest: str = "") -> str:
    """Return the first parts of the statement.

    Args:
        other: a part with the further namespaces of commits.
        fit: the condition that the heads of these are the expected ones.
        newest: an argument with the newest checkpoint of these.
    """
    # `MATERIALIZED` fixes that each part is executed once. `held` compares `seq` again under the row lock: the snapshot
    # of `seen` may be older than the lock. Locks are taken with SKIP LOCKED, so that a batch waits for no thread and
    # cannot deadlock with another batch.
    return f"""
WITH job AS MATERIALIZED (
    SELECT * FROM {{job}}
){{mark}}{other}, seen AS MATERIALIZED (
    SELECT j.*, t.thread, t.epoch AS epoch_now, t.seq AS seq_now, t.owner, t.expires_at AS until,
        t.epoch = j.epoch AND t.run_id = j.run_id AS is_held,
        j.ns IS NULL OR h.checkpoint_id IS NOT DISTINCT FROM j.expected AND (j.is_new OR EXISTS (
            SELECT FROM {{s}}.pregel_checkpoints c
            WHERE c.thread = t.thread AND c.checkpoint_id = j.head AND c.ns = j.ns
        )){fit} AS fits
    FROM job j
    LEFT JOIN {{s}}.pregel_threads t ON t.thread_id = j.thread_id
    LEFT JOIN {{s}}.pregel_heads h ON h.thread = t.thread AND h.ns = j.ns
), held AS MATERIALIZED (
    SELECT s.n, coalesce(s.seq, t.seq + 1) AS seq, s.expires_at, s.releases, s.ns, s.head, s.metadata, t.thread,
        {{is_bare}} AS is_bare
    FROM seen s
    JOIN {{s}}.pregel_threads t
        ON t.thread = s.thread AND t.epoch = s.epoch AND t.run_id = s.run_id AND t.seq = s.seq_now
    WHERE s.is_held AND s.fits AND (s.seq IS NULL OR s.seq_now < s.seq)
        AND (s.metadata IS NULL OR s.metadata_was = t.metadata){{mark_fits}}
    FOR UPDATE OF t SKIP LOCKED
), renewed AS (
    UPDATE {{s}}.pregel_threads t SET
        expires_at = CASE WHEN h.releases THEN NULL ELSE coalesce(h.expires_at, t.expires_at) END,
        run_id = CASE WHEN h.releases THEN NULL ELSE t.run_id END,
        owner = CASE WHEN h.releases THEN NULL ELSE t.owner END,
        newest = greatest(t.newest, h.head COLLATE "C"{newest}),
        metadata = coalesce(h.metadata, t.metadata),
        seq = h.seq
    FROM held h WHERE t.thread = h.thread AND NOT h.is_bare
)"""


_JOB = {
    "n": "int",
    "thread_id": "text",
    "epoch": "bigint",
    "run_id": "text",
    "seq": "bigint",
    "expires_at": "float8",
    "releases": "bool",
    "ns": "text",
    "expected": "text",
    "head": "text",
    "is_new": "bool",
    "metadata": "text",
    "metadata_was": "text",
}
"""The columns of the table `job`, which has a row for each write."""
_STATEMENT = _store_leased()
_STATEMENT_OF_OTHERS = _store_leased(_OTHER, _OTHERS_FIT, _NEWEST_OTHER)

_IS_BARE = """s.releases AND t.newest IS NULL AND s.head IS NULL
            AND NOT EXISTS (SELECT FROM {s}.pregel_run_threads r WHERE r.thread_id = t.thread_id)"""
_HEADS = """, moved AS (
    INSERT INTO {s}.pregel_heads (thread, ns, checkpoint_id)
    SELECT thread, ns, head FROM held WHERE ns IS NOT NULL
    ON CONFLICT (thread, ns) DO UPDATE SET checkpoint_id = excluded.checkpoint_id
)"""
_ROWS = """, added AS (
    INSERT INTO {s}.pregel_checkpoints
        (thread, checkpoint_id, ns, base_id, parent_id, step, pinned, metadata, frame)
    SELECT h.thread, r.checkpoint_id, r.ns, r.base_id, r.parent_id, r.step, r.pinned, r.metadata, r.frame
    FROM unnest(%b::int[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bool[], %b::text[],
        %b::bytea[]) AS r (n, checkpoint_id, ns, base_id, parent_id, step, pinned, metadata, frame)
    JOIN held h USING (n)
)"""
_CLEARS = """, cleared AS (
    DELETE FROM {s}.pregel_records t
    USING unnest(%b::int[], %b::text[], %b::text[], %b::text[]) AS r (n, ns, checkpoint_id, task_id), held h
    WHERE h.n = r.n AND t.thread = h.thread AND t.ns = r.ns AND t.checkpoint_id = r.checkpoint_id
        AND t.task_id = r.task_id
)"""
_RECORDS = """, recorded AS (
    INSERT INTO {s}.pregel_records (thread, ns, checkpoint_id, task_id, idx, kind, frame)
    SELECT h.thread, r.ns, r.checkpoint_id, r.task_id, r.idx, r.kind, r.frame
    FROM unnest(%b::int[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::text[], %b::bytea[])
        AS r (n, ns, checkpoint_id, task_id, idx, kind, frame)
    JOIN held h ON h.n = r.n AND NOT h.is_bare
    ON CONFLICT (thread, ns, checkpoint_id, task_id)
        DO UPDATE SET idx = excluded.idx, kind = excluded.kind, frame = excluded.frame
)"""
_EVENTS = """, shown AS (
    INSERT INTO {s}.pregel_events (thread, checkpoint_id, epoch, position, kind, frame)
    SELECT h.thread, r.checkpoint_id, r.epoch, r.position, r.kind, r.frame
    FROM unnest(%b::int[], %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bytea[])
        AS r (n, checkpoint_id, epoch, position, kind, frame)
    JOIN held h ON h.n = r.n AND NOT h.is_bare
)"""
_BARE = """, bare AS (
    DELETE FROM {s}.pregel_threads t USING held h WHERE t.thread = h.thread AND h.is_bare
), bare_records AS (
    DELETE FROM {s}.pregel_records t USING held h WHERE t.thread = h.thread AND h.is_bare
), bare_events AS (
    DELETE FROM {s}.pregel_events t USING held h WHERE t.thread = h.thread AND h.is_bare
)"""
_ANSWER = f"""
SELECT s.n, h.n IS NOT NULL, s.is_held AND s.fits, s.epoch_now, s.seq_now, s.owner, s.until, {SERVER_TIME},
    {{is_marked}}
FROM seen s LEFT JOIN held h USING (n)"""
_ANSWER_AND_NOTIFY = f"""
SELECT s.n, h.n IS NOT NULL, s.is_held AND s.fits, s.epoch_now, s.seq_now, s.owner, s.until, {SERVER_TIME},
    {{is_marked}}, pg_notify(%b, r.payload)
FROM seen s LEFT JOIN held h USING (n)
LEFT JOIN unnest(%b::int[], %b::text[]) AS r (n, payload) ON r.n = h.n"""

_METADATA = b"SELECT thread_id, metadata FROM {s}.pregel_threads WHERE thread_id = ANY(%b)"
_IS_STORED = b"""
    SELECT 1 FROM {s}.pregel_threads t JOIN {s}.pregel_checkpoints c ON c.thread = t.thread
    WHERE t.thread_id = %b AND c.checkpoint_id = %b AND c.ns = %b
"""

ColumnValues = tuple[Any, ...]
"""Values to bind."""

SPACING = 1024
"""Distance between the numbers of two writes: upkeep, and transactions of accepted runs, count in between."""


class WriteNumbers:
    """Makes the numbers of writes."""

    def __init__(self) -> None:
        self._number = 0

    def next(self) -> int:
        """Return a number for a write, greater than all earlier ones of this process."""
        # By the clock, not by counting from 0: another saver of this process, opened later, must go on with greater
        # numbers. At least SPACING apart, also if the clock does not advance.
        self._number = max(self._number, time.monotonic_ns() & -SPACING) + SPACING
        return self._number


def notify_payload(schema: str, thread_id: str) -> str:
    """Return the payload of a thread's NOTIFY: a hash, so that other listeners learn no ids and its length is bounded.

    Args:
        schema: name of the schema.
        thread_id: the thread.

    Returns:
        32 hexadecimal digits.
    """
    return hashlib.blake2b(f"{schema}\x00{thread_id}".encode(), digest_size=16).hexdigest()


class _ChangedHead(NamedTuple):
    """A head that a commit sets: the columns of `job` and `other`.

    Attributes:
        ns: the namespace, escaped; None if the write sets no head.
        expected: the head before, escaped; None if the namespace is to have none.
        new: the new head, escaped.
        is_row: True if the commit stores the new head's row itself.
    """

    ns: str | None
    expected: str | None
    new: str | None
    is_row: bool

    @classmethod
    def of(cls, change: NamespaceChange) -> Sequence[_ChangedHead]:
        """Return the head that a change sets, as a sequence of one; empty if it sets none."""
        head = (change.rows[-1].ns, change.rows[-1].checkpoint_id) if change.rows else change.head
        if head is None:
            return ()
        ns, new = head
        return (cls(escape(ns), escape_or_none(change.expected_head), escape(new), bool(change.rows)),)


_NO_HEAD = _ChangedHead(None, None, None, False)


class LeasedWrite(QueuedWrite[None]):
    """A write under a lease: a commit, records, a renewal or a release.

    Args:
        lease: compared with the thread's.
        commit: what to store. None for a mere release, which is no error if the lease is no longer held.
        number: returns a greater number in each call. None for a write that is not queued, but stored by a transaction
            that holds the lock on the thread's row: it gets the number after the thread's last one, so that writes that
            are queued meanwhile still have greater numbers.
        mark: a change of a run's rows, stored with the commit. If these are no longer the expected ones, the write's
            error is `RowsChangedError`.

    Attributes:
        is_stored: True once it is known that the write was stored.
    """

    __slots__ = (
        "_number",
        "clears",
        "commit",
        "events",
        "heads",
        "is_stored",
        "lease",
        "mark",
        "records",
        "rows",
        "seq",
    )

    def __init__(
        self,
        lease: Lease,
        commit: Commit | None,
        number: Callable[[], int] | None = None,
        *,
        mark: RunMark | None = None,
    ) -> None:
        super().__init__(lease.thread_id)
        self.lease = lease
        self.commit = commit
        self.mark = mark
        self.is_stored = False
        self.seq: int | None = None
        self._number = number
        self.heads: list[_ChangedHead] = []
        self.rows: list[ColumnValues] = []
        self.records: list[ColumnValues] = []
        self.clears: list[ColumnValues] = []
        self.events: list[ColumnValues] = []
        if commit is None:
            return
        self.heads = [head for change in (commit, *commit.others) for head in _ChangedHead.of(change)]
        self.rows = [
            (
                escape(row.checkpoint_id),
                escape(row.ns),
                escape(row.base_id),
                escape_or_none(row.parent_id),
                row.step,
                False,  # only `rewrite` pins
                write_metadata(row.metadata),
                row.frame,
            )
            for change in (*commit.others, commit)
            for row in change.rows
        ]
        # An INSERT with ON CONFLICT must not have a key twice, so only the last record of a task is stored. A stored
        # record is not cleared as well.
        records = {(one.ns, one.checkpoint_id, one.task_id): one for one in commit.records}
        self.records = [_record(one) for one in records.values()]
        self.clears = [
            (escape(ns), escape(checkpoint_id), escape(task_id))
            for ns, checkpoint_id, task_id in commit.clears
            if (ns, checkpoint_id, task_id) not in records
        ]
        self.events = [_event(one) for one in commit.events]
        self.size = sum(len(row[-1]) for row in (*self.rows, *self.records, *self.events))

    def queued(self) -> None:
        """Number the write."""
        # Not in `__init__`: the numbers must have the order in which writes are queued, and so stored.
        self.seq = None if self._number is None else self._number()

    @property
    def releases(self) -> bool:
        """True if the write releases the lease."""
        return self.commit is None or self.commit.releases


class WriteStatements:
    """The statements of one schema.

    Args:
        schema: quoted.
        name: of the schema.
        clock: corrected by each answer to `store`.
    """

    def __init__(self, schema: str, name: str, clock: ServerClock) -> None:
        self._schema = schema
        self._name = name
        self._clock = clock
        self._is_stored = _IS_STORED.replace(b"{s}", schema.encode())
        self._metadata = _METADATA.replace(b"{s}", schema.encode())

    async def store(self, cursor: PostgresCursor, writes: Sequence[LeasedWrite]) -> list[LeasedWrite]:
        """Execute a batch of writes. See `group_commit.StoreBatch`.

        Args:
            cursor: of a connection in autocommit mode.
            writes: at most one of each thread.

        Returns:
            The writes whose threads were locked or changed at the same time: to be repeated.
        """
        return await self.receive(cursor, writes, await self.send(cursor, writes))

    async def send(self, cursor: PostgresCursor, writes: Sequence[LeasedWrite]) -> float:
        """Execute the statement of a batch. `receive` reads its answer.

        Args:
            cursor: as for `store`; or of a connection in a transaction that holds the locks on the threads.
            writes: as for `store`.

        Returns:
            The counter of `server_clock` when the statement was sent.
        """
        statement, parameters = self._statement(writes, await self._merge_metadata(cursor, writes))
        sent = counter()
        await cursor.execute(statement, parameters, prepare=may_prepare(len(writes)), binary=True)
        return sent

    async def receive(self, cursor: PostgresCursor, writes: Sequence[LeasedWrite], sent: float) -> list[LeasedWrite]:
        """Read the answer to a batch, and set the errors of the writes that are refused.

        Args:
            cursor: that of `send`.
            writes: those of `send`.
            sent: what `send` has returned.

        Returns:
            The writes to be repeated.
        """
        answers, received = await cursor.fetchall(), counter()
        locked: list[LeasedWrite] = []
        for n, done, fits, epoch, seq, owner, until, now, is_marked, *_ in answers:
            write = writes[n]
            self._clock.update(sent, now, received)
            # A mere release of a lease that is no longer held is no error: another run has acquired the thread.
            if done or (write.commit is None and not fits):
                write.is_stored = done
            elif write.unsure and epoch == write.lease.epoch and write.seq is not None and seq >= write.seq:
                write.is_stored = True  # by an earlier attempt, whose connection broke
            elif fits and write.mark is not None and not is_marked:
                write.error = RowsChangedError()
            elif fits:
                # Lease and head are right and it was still not stored: the row is locked, or has changed since it was
                # seen.
                locked.append(write)
            elif write.unsure and await self._was_stored(cursor, write, epoch):
                write.is_stored = True
            else:
                write.error = self._lease_lost(write, owner, until)
        return locked

    async def _merge_metadata(
        self, cursor: PostgresCursor, writes: Sequence[LeasedWrite]
    ) -> Mapping[LeasedWrite, tuple[str, str | None]]:
        """Return the new and the present metadata of the threads, for the writes that add keys.

        JSON is merged here and not by the server, which changes numbers and cannot store NUL. The statement stores the
        result only if the text is unchanged since it was read. Otherwise the write counts as locked, and is repeated.
        """
        additions = {
            write: write.commit.metadata for write in writes if write.commit is not None and write.commit.metadata
        }
        if not additions:
            return {}
        await cursor.execute(self._metadata, ([escape(write.thread_id) for write in additions],), binary=True)
        present: dict[str, str] = {unescape(thread_id): text for thread_id, text in await cursor.fetchall()}
        merged: dict[LeasedWrite, tuple[str, str | None]] = {}
        for write, metadata in additions.items():
            text = present.get(write.thread_id)
            known = {} if text is None else read_metadata(text, where_of(write.thread_id))
            now = with_defaults(known, metadata)
            if text is None or now != known:
                merged[write] = write_metadata(now), text
        return merged

    def _statement(
        self, writes: Sequence[LeasedWrite], metadata: Mapping[LeasedWrite, tuple[str, str | None]]
    ) -> tuple[bytes, list[object]]:
        """Return the statement for this batch and its values.

        It has only the parts that are needed: each costs time to plan.
        """
        others = [(n, *head) for n, write in enumerate(writes) for head in write.heads[1:]]
        marks = MarkParts.of([write.mark for write in writes])
        text = [_STATEMENT_OF_OTHERS if others else _STATEMENT]
        jobs = [
            (
                n,
                escape(write.thread_id),
                write.lease.epoch,
                escape(write.lease.owner.run_id),
                write.seq,
                None if write.commit is None else write.commit.expires_at,
                write.releases,
                *(write.heads[0] if write.heads else _NO_HEAD),
                *metadata.get(write, (None, None)),
            )
            for n, write in enumerate(writes)
        ]
        bound = values_of(jobs)
        text.append(marks.updates)
        bound += marks.values
        if others:
            text.append(_MOVED_OTHERS)
            bound += map(list, zip(*others, strict=True))
        if any(write.heads for write in writes):
            text.append(_HEADS)
        for part, lists in (
            (_ROWS, [write.rows for write in writes]),
            (_CLEARS, [write.clears for write in writes]),
            (_RECORDS, [write.records for write in writes]),
            (_EVENTS, [write.events for write in writes]),
        ):
            if any(lists):
                text.append(part)
                bound += map(list, zip(*((n, *row) for n, rows in enumerate(lists) for row in rows), strict=True))
        released = [(n, write) for n, write in enumerate(writes) if write.releases]
        # A thread that is released and holds neither a checkpoint nor accepted runs is deleted. Only a run whose lease
        # began without a checkpoint can leave that, so all other batches save the three DELETEs.
        is_bare = "false"
        if any(write.lease.newest is None and not write.heads for _, write in released):
            is_bare = _IS_BARE.format(s=self._schema)
            text.append(_BARE)
        if released:
            text.append(_ANSWER_AND_NOTIFY)
            bound += [
                CHANNEL,
                [n for n, _ in released],
                [notify_payload(self._name, write.thread_id) for _, write in released],
            ]
        else:
            text.append(_ANSWER)
        statement = "".join(text).replace("{mark}", marks.found).replace("{job}", table_of("j", _JOB, len(writes)))
        return (
            statement.format(s=self._schema, is_bare=is_bare, mark_fits=marks.fits, is_marked=marks.is_marked).encode(),
            bound,
        )

    async def _was_stored(self, cursor: PostgresCursor, write: LeasedWrite, epoch: int | None) -> bool:
        """Return True if an attempt whose connection broke stored the write.

        Another run has acquired the thread since, so the number of the last write no longer shows it.
        """
        if epoch is None:
            return write.releases  # the thread was empty, and its release deleted it
        if not write.rows:
            return False
        await cursor.execute(self._is_stored, (escape(write.thread_id), *write.rows[-1][:2]))
        return await cursor.fetchone() is not None

    def _lease_lost(self, write: LeasedWrite, owner: str | None, until: float | None) -> ThreadBusyError:
        if owner is None:
            return ThreadBusyError(write.thread_id, lost=True)
        holder = owner_of(owner, write.thread_id)
        return ThreadBusyError(write.thread_id, holder=str(holder), expires_at=until or 0.0, lost=True)


def _record(record: TaskRecord) -> ColumnValues:
    return (
        escape(record.ns),
        escape(record.checkpoint_id),
        escape(record.task_id),
        record.index,
        record.kind,
        record.frame,
    )


def _event(event: EventRow) -> ColumnValues:
    return (escape(event.checkpoint_id), event.epoch, event.position, event.kind, event.frame)
