"""A run's mark: the change of its rows that is stored by the statement which stores a superstep.

A run's first and last transaction change its row and its thread's, too. The process that has taken the run knows these
rows, as it has written them under the lease. So it decides without reading them, and the statement stores the superstep
only if both rows are still what they were: their frames are compared under their locks. Each change of a thread's open
runs changes one of the two. If another process has changed them, say by a request to cancel the run, nothing is stored,
and the transaction that locks and reads the rows first does it (`run_transactions`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from ..records import Lease
from ..runs.decisions import Changes, Found
from ..runs.rows import RunRow, RunThreadRow
from .escaping import escape
from .run_rows import changed_run_values, content_values, thread_values

PARTS: Final = """, mark AS MATERIALIZED (
    SELECT * FROM unnest(%b::int[], %b::bytea[], %b::bytea[], %b::bool[],
        %b::text[], %b::text[], %b::bool[], %b::bytea[],
        %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::float8[], %b::bigint[], %b::text[],
        %b::float8[], %b::float8[], %b::float8[], %b::bytea[], %b::text[], %b::bytea[])
    AS m (n, run_before, thread_before, has_content,
        run_id, run_status, hidden, run_frame,
        thread_id, status, assistant, activation, activation_no, activation_at, priority, route,
        wake_at, created_at, updated_at, frame, state, content)
), marked AS MATERIALIZED (
    SELECT m.* FROM mark m
    JOIN {s}.pregel_run_threads r ON r.thread_id = m.thread_id AND r.frame = m.thread_before
    JOIN {s}.pregel_runs u ON u.run_id = m.run_id AND u.frame = m.run_before
    FOR UPDATE OF r, u SKIP LOCKED
)"""
"""The marks of a batch, and those whose rows are still the expected ones."""

FITS: Final = """
        AND (NOT EXISTS (SELECT FROM mark m WHERE m.n = s.n) OR EXISTS (SELECT FROM marked k WHERE k.n = s.n))"""
"""The condition that a write's mark, if it has one, can be stored."""

UPDATES: Final = """, marked_runs AS (
    UPDATE {s}.pregel_runs u SET status = k.run_status, hidden = k.hidden, frame = k.run_frame
    FROM marked k JOIN held h USING (n) WHERE u.run_id = k.run_id
), marked_threads AS (
    UPDATE {s}.pregel_run_threads t SET status = k.status, assistant = k.assistant, activation = k.activation,
        activation_no = k.activation_no, activation_at = k.activation_at, priority = k.priority, route = k.route,
        wake_at = k.wake_at, created_at = k.created_at, updated_at = k.updated_at, frame = k.frame,
        state = CASE WHEN k.has_content THEN k.state::jsonb ELSE t.state END,
        content = CASE WHEN k.has_content THEN k.content ELSE t.content END
    FROM marked k JOIN held h USING (n) WHERE t.thread_id = k.thread_id
)"""

IS_MARKED: Final = "EXISTS (SELECT FROM marked k WHERE k.n = s.n)"
"""An expression: the rows of a write's mark are the expected ones, and no other connection has locked them."""


RunMark: TypeAlias = tuple[Any, ...]
"""The values of a mark, in the order of `PARTS`, without the number of its write."""


class RowsChangedError(Exception):
    """Another process has changed the rows of a run since this one has written them. Nothing was stored."""


class KnownRows(NamedTuple):
    """The rows of a thread as a transaction under a lease has left them.

    Attributes:
        epoch: of the lease.
        thread: the thread's row.
        open: its open runs.
    """

    epoch: int
    thread: RunThreadRow
    open: tuple[RunRow, ...]

    @classmethod
    def after(cls, found: Found, changes: Changes[Any], lease: Lease) -> KnownRows | None:
        """Return what a transaction leaves; None if the thread has no row.

        Args:
            found: the rows before it.
            changes: what it writes.
            lease: under which it writes, or which it acquires.
        """
        thread = changes.thread or found.thread
        if thread is None:
            return None
        rows = {run.run_id: run for run in (*found.open, *changes.runs)}
        return cls(lease.epoch, thread, tuple([run for run in rows.values() if run.is_open]))

    def found(self, run_id: str | None, now: float) -> Found:
        """Return them for a decision.

        Args:
            run_id: the run that the decision needs.
            now: the time, in unix seconds.
        """
        named = next((run for run in self.open if run.run_id == run_id), None)
        return Found(
            self.thread.thread_id, self.thread, tuple(sorted(self.open, key=lambda run: run.order)), named, now
        )


def mark_of(found: Found, changes: Changes[Any]) -> RunMark | None:
    """Return the mark of a change; None if it changes other rows than those of one run and its thread.

    Args:
        found: the rows before.
        changes: what is to be written.
    """
    before, after, run = found.thread, changes.thread, found.named
    if run is None or before is None or after is None or changes.metadata:
        return None
    if [each.run_id for each in changes.runs] != [run.run_id]:
        return None
    has_content = before.values is not after.values or before.interrupts is not after.interrupts
    return (
        changed_run_values(run)[-1],
        thread_values(before)[-1],
        has_content,
        *changed_run_values(changes.runs[0]),
        escape(after.thread_id),
        *thread_values(after),
        *(content_values(after) if has_content else (None, None)),
    )
