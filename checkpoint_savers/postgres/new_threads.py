"""Store new threads with their first runs by one statement, which is one round trip.

If the caller has just made a thread's id, nothing is stored of the thread yet. So the decision about its first run is
made without reading, and one statement inserts three rows: the saver's row of the thread (`pregel_threads`, with the
lease), the thread's row of runs (`pregel_run_threads`), and the run (`pregel_runs`). If one of these rows exists, the
statement fails and inserts nothing. The run is then stored by the transaction that locks and reads the rows first
(`run_transactions`).
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
    FROM {{saver_threads}} CROSS JOIN layout WHERE is_ours
), added_run_threads AS (
    INSERT INTO {{s}}.pregel_run_threads (
        thread_id, status, assistant, activation, activation_no, activation_at, priority, route, wake_at, created_at,
        updated_at, frame, state, content
    )
    SELECT r.thread_id, r.status, r.assistant, r.activation, r.activation_no, r.activation_at, r.priority, r.route,
        r.wake_at, r.created_at, r.updated_at, r.frame, r.state::jsonb, r.content
    FROM {{run_threads}} CROSS JOIN layout WHERE is_ours
)
{INSERT_RUNS} CROSS JOIN layout WHERE is_ours
RETURNING {SERVER_TIME}
"""

LEASE: Final[Columns] = {
    "thread_id": "text",
    "epoch": "bigint",
    "run_id": "text",
    "owner": "text",
    "expires_at": "float8",
}
"""The columns of `lease_values`."""

_SAVER_THREADS: Final[Columns] = {**LEASE, "metadata": "text"}
_RUN_THREADS: Final[Columns] = {**THREAD_CHANGES, **CONTENT}

IS_STORED: Final = "SELECT FROM {s}.pregel_runs WHERE run_id = %b AND thread_id = %b AND created_at = %b"
"""Selects the first run of a new thread, whatever its status is by now. `NewThread.key` has the parameters."""


def lease_values(lease: Lease, expires_at: float | None) -> Raw:
    """Return the values of a lease, in the order of `LEASE`.

    Args:
        lease: the lease.
        expires_at: when it expires, in unix seconds.
    """
    owner = lease.owner
    return escape(lease.thread_id), lease.epoch, escape(owner.run_id), owner_text(owner), expires_at


class NewThread(NamedTuple):
    """A thread to be stored, with its first run.

    Attributes:
        row: its row of runs.
        run: its first run.
        metadata: the thread's metadata, which the saver's row holds.
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
        """The parameters of `IS_STORED`."""
        return escape(self.run.run_id), escape(self.run.thread_id), self.run.created_at

    def saver_thread_values(self) -> Raw:
        """Return the values of the saver's row, in the order of its columns in the statement."""
        metadata = write_metadata(self.metadata)
        if self.lease is None:
            return escape(self.row.thread_id), 0, None, None, None, metadata
        return *lease_values(self.lease, self.expires_at), metadata

    def run_thread_values(self) -> Raw:
        """Return the values of the thread's row of runs, likewise."""
        return escape(self.row.thread_id), *thread_values(self.row), *content_values(self.row)


def insert_statement(new: Sequence[NewThread]) -> tuple[str, list[Any]]:
    """Return the statement that stores new threads, and its parameters.

    The statement stores all of the threads or none. It returns one row with the server's time for each thread. It
    returns no rows, and stores nothing, if a later version has upgraded the tables. It raises `UniqueViolation` if one
    of the rows exists already.

    Args:
        new: the threads, at least one.

    Returns:
        The text, with `{s}` for the quoted schema; and the values of its placeholders.
    """
    tables = (
        ("{saver_threads}", _SAVER_THREADS, [each.saver_thread_values() for each in new]),
        ("{run_threads}", _RUN_THREADS, [each.run_thread_values() for each in new]),
        ("{rows}", NEW_RUN, [new_run_values(each.run) for each in new]),
    )
    statement, values = _STATEMENT, list[Any]()
    for placeholder, columns, rows in tables:
        statement = statement.replace(placeholder, table_of("r", columns, len(rows)))
        values += values_of(rows)
    return statement, values
