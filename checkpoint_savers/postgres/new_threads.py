"""Accept the first runs of new threads: one statement, and so one round trip.

A caller that has just made a thread's id knows what a transaction would find of it: nothing. So the decision is made
before, and the statement stores the thread's row, its lease and its run. If one of these rows exists all the same, the
statement stores nothing, and the transaction that locks and reads the rows first does it (`run_transactions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..metadata import write_metadata
from ..records import Lease
from ..runs.rows import RunRow, RunThreadRow
from .batches import Columns, table_of, values_of
from .escaping import escape
from .rows import Raw, owner_text
from .run_rows import CONTENT, NEW_RUN, THREAD_CHANGES, content_values, new_run_values, thread_values
from .schema import SAVER
from .server_clock import SERVER_TIME

INSERT_RUNS: Final = """
INSERT INTO {s}.pregel_runs (
    run_id, status, hidden, frame, thread_id, seq, assistant, idempotency_key, created_at, metadata, payload
)
SELECT r.run_id, r.status, r.hidden, r.frame, r.thread_id, r.seq, r.assistant, r.key, r.created_at, r.metadata::jsonb,
    r.payload
FROM {rows}
"""

_STATEMENT: Final = f"""
WITH layout AS MATERIALIZED (
    SELECT coalesce(max(version), 0) <= {SAVER.version} AS is_ours FROM {{s}}.pregel_saver_version
), added_threads AS (
    INSERT INTO {{s}}.pregel_threads (thread_id, epoch, seq, run_id, owner, expires_at, metadata)
    SELECT r.thread_id, r.epoch, 0, r.run_id, r.owner, r.expires_at, r.metadata
    FROM {{leases}} CROSS JOIN layout WHERE is_ours
), added_run_threads AS (
    INSERT INTO {{s}}.pregel_run_threads (
        thread_id, status, assistant, activation, activation_no, activation_at, priority, route, wake_at, created_at,
        updated_at, frame, state, content
    )
    SELECT r.thread_id, r.status, r.assistant, r.activation, r.activation_no, r.activation_at, r.priority, r.route,
        r.wake_at, r.created_at, r.updated_at, r.frame, r.state::jsonb, r.content
    FROM {{threads}} CROSS JOIN layout WHERE is_ours
)
{INSERT_RUNS} CROSS JOIN layout WHERE is_ours
RETURNING {SERVER_TIME}
"""

_LEASES: Final[Columns] = {
    "thread_id": "text",
    "epoch": "bigint",
    "run_id": "text",
    "owner": "text",
    "expires_at": "float8",
    "metadata": "text",
}
_THREADS: Final[Columns] = {**THREAD_CHANGES, **CONTENT}

IS_STORED: Final = "SELECT FROM {s}.pregel_runs WHERE run_id = %b AND thread_id = %b AND created_at = %b"
"""Finds the run of a new thread, whatever has become of it: the values of `NewThread.key`."""


class NewThread(NamedTuple):
    """A thread to be stored, with its first run.

    Attributes:
        row: its row.
        run: its run.
        metadata: of the saver's thread.
        lease: the lease under which the run is taken; None if it waits for a worker.
        expires_at: when that lease expires, in unix seconds; None without one.
    """

    row: RunThreadRow
    run: RunRow
    metadata: dict[str, Any]
    lease: Lease | None
    expires_at: float | None

    @property
    def key(self) -> Raw:
        """The values for `IS_STORED`."""
        return escape(self.run.run_id), escape(self.run.thread_id), self.run.created_at

    def lease_values(self) -> Raw:
        """Return the values of the saver's thread."""
        thread_id, lease, metadata = escape(self.row.thread_id), self.lease, write_metadata(self.metadata)
        if lease is None:
            return thread_id, 0, None, None, None, metadata
        owner = lease.owner
        return thread_id, lease.epoch, escape(owner.run_id), owner_text(owner), self.expires_at, metadata

    def row_values(self) -> Raw:
        """Return the values of the thread's row of runs."""
        return escape(self.row.thread_id), *thread_values(self.row), *content_values(self.row)


def statement_for(new: Sequence[NewThread]) -> tuple[str, list[Any]]:
    """Return the statement that stores new threads, and its values.

    It stores all of them, and returns the server's time for each; or none: it returns no rows if the layout is a later
    version's, and raises `UniqueViolation` if a row exists already.

    Args:
        new: the threads, at least one.
    """
    tables = (
        ("{leases}", _LEASES, [each.lease_values() for each in new]),
        ("{threads}", _THREADS, [each.row_values() for each in new]),
        ("{rows}", NEW_RUN, [new_run_values(each.run) for each in new]),
    )
    statement, values = _STATEMENT, list[Any]()
    for name, columns, rows in tables:
        statement = statement.replace(name, table_of("r", columns, len(rows)))
        values += values_of(rows)
    return statement, values
