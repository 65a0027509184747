"""Acquire leases, with one statement for a whole batch.

The statement checks whether a lease has expired. Whether its process is gone can only be checked on that process's
machine, by the client: then the request is repeated for exactly the epoch whose process was found dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import ThreadBusyError, UnsupportedFormatError
from ..owner import is_gone
from ..records import Lease, Owner
from .batches import may_prepare, table_of, values_of
from .connections import PostgresCursor
from .escaping import escape
from .group_commit import QueuedWrite
from .rows import owner_of, owner_text, to_checkpoint_id_or_none
from .schema import SAVER
from .server_clock import SERVER_TIME, ServerClock, counter

# `seen` reads each thread and decides whether its lease is free. `free` locks the row only if it is still as it was
# seen, and skips rows that another connection has locked: a batch never waits for one busy thread. `made` inserts
# missing threads; of several connections that insert the same one, all but the first find a conflict and repeat the
# request. Its ORDER BY makes two batches lock new rows in the same order, so they cannot deadlock.
_STATEMENT = """
WITH job AS MATERIALIZED (
    SELECT * FROM {job}
), layout AS MATERIALIZED (
    SELECT max(version) AS version, coalesce(max(version), 0) <= {version} AS is_ours
    FROM {s}.pregel_saver_version
), seen AS MATERIALIZED (
    SELECT j.*, l.version, l.is_ours,
        t.thread, t.epoch, t.newest, t.owner AS holder, t.expires_at AS until,
        t.owner IS NULL OR t.expires_at <= j.now OR t.owner = j.owner OR t.epoch = j.dead AS is_free
    FROM job j CROSS JOIN layout l LEFT JOIN {s}.pregel_threads t ON t.thread_id = j.thread_id
), free AS MATERIALIZED (
    SELECT s.n, s.run_id, s.owner, s.expires_at, t.thread
    FROM seen s JOIN {s}.pregel_threads t ON t.thread = s.thread AND t.epoch = s.epoch
        AND t.owner IS NOT DISTINCT FROM s.holder AND t.expires_at IS NOT DISTINCT FROM s.until
    WHERE s.is_free AND s.is_ours
    FOR UPDATE OF t SKIP LOCKED
), taken AS (
    UPDATE {s}.pregel_threads t
    SET epoch = t.epoch + 1, seq = 0, run_id = f.run_id, owner = f.owner, expires_at = f.expires_at
    FROM free f WHERE t.thread = f.thread
    RETURNING f.n, t.epoch, t.newest
), made AS (
    INSERT INTO {s}.pregel_threads (thread_id, epoch, seq, run_id, owner, expires_at)
    SELECT thread_id, 1, 0, run_id, owner, expires_at FROM seen WHERE thread IS NULL AND is_ours
    ORDER BY thread_id COLLATE "C"
    ON CONFLICT (thread_id) DO NOTHING
    RETURNING thread_id, epoch
)
SELECT s.n, coalesce(taken.epoch, made.epoch), taken.newest, s.thread IS NULL OR s.is_free, s.epoch, s.holder, s.until,
    s.version, s.is_ours, {time}
FROM seen s LEFT JOIN taken USING (n) LEFT JOIN made ON made.thread_id = s.thread_id
"""


_JOB: Final = {
    "n": "int",
    "thread_id": "text",
    "run_id": "text",
    "owner": "text",
    "now": "float8",
    "expires_at": "float8",
    "dead": "bigint",
}
"""The columns of the table `job`, which has a row for each request."""


class LeaseRequest(QueuedWrite[Lease]):
    """A request for a lease. Arguments as those of `SaverPort.acquire`."""

    __slots__ = ("dead", "expires_at", "now", "owner", "text")

    def __init__(self, thread_id: str, owner: Owner, now: float, expires_at: float) -> None:
        super().__init__(thread_id)
        self.owner = owner
        self.text = owner_text(owner)
        self.now = now
        self.expires_at = expires_at
        self.dead: int | None = None  # epoch of a lease whose process is gone


class AcquireStatement:
    """The statement of one schema.

    Args:
        schema: quoted.
        name: how messages name the database.
        clock: corrected by each answer.
    """

    def __init__(self, schema: str, name: str, clock: ServerClock) -> None:
        self._schema = schema
        self._name = name
        self._clock = clock

    async def store(self, cursor: PostgresCursor, writes: Sequence[LeaseRequest]) -> list[LeaseRequest]:
        """Execute a batch of requests. See `group_commit.StoreBatch`.

        Args:
            cursor: of a connection in autocommit mode.
            writes: the requests.

        Returns:
            The requests to repeat.
        """
        jobs = [
            (
                n,
                escape(write.thread_id),
                escape(write.owner.run_id),
                write.text,
                write.now,
                write.expires_at,
                write.dead,
            )
            for n, write in enumerate(writes)
        ]
        statement = _STATEMENT.format(
            s=self._schema, version=SAVER.version, time=SERVER_TIME, job=table_of("j", _JOB, len(jobs))
        )
        sent = counter()
        await cursor.execute(statement.encode(), values_of(jobs), prepare=may_prepare(len(jobs)), binary=True)
        answers, received = await cursor.fetchall(), counter()
        again: list[LeaseRequest] = []
        for n, epoch, newest, was_free, seen, holder, until, version, is_ours, now in answers:
            write = writes[n]
            self._clock.update(sent, now, received)
            if not is_ours:
                # A later version has upgraded the tables since this saver was opened.
                write.error = UnsupportedFormatError(self._name, version, SAVER.version)
            elif epoch is not None:
                write.value = Lease(
                    thread_id=write.thread_id, epoch=epoch, owner=write.owner, newest=to_checkpoint_id_or_none(newest)
                )
            # Free when it was seen, and still not acquired: another connection has locked or changed the row.
            elif was_free:
                again.append(write)
            else:
                found = owner_of(holder, write.thread_id)
                # Only this epoch is declared dead: if a live process acquires the lease meanwhile, the epoch is another
                # one and the repeated request fails.
                if is_gone(found) and write.dead != seen:
                    write.dead = seen
                    again.append(write)
                else:
                    write.error = ThreadBusyError(write.thread_id, holder=str(found), expires_at=until or 0.0)
        return again
