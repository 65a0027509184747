"""Run marks: changes of a run's rows that are stored by the statement that stores a superstep.

The decision was made by rows that this process knows (`runs.known_rows`). The statement locks the stored rows, and
compares their frames with the known ones. If they differ, or another transaction has locked a row, nothing is stored.
The transaction that locks and reads the rows first then decides again (`run_transactions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..runs.known_rows import RunChange
from .batches import table_of, values_of
from .escaping import escape
from .run_rows import CONTENT, RUN_CHANGES, THREAD_CHANGES, changed_run_values, content_values, thread_values

RUNS: Final = """, marks AS MATERIALIZED (SELECT * FROM {marks}), marked AS MATERIALIZED (
    SELECT m.* FROM marks m JOIN {s}.pregel_runs u ON u.run_id = m.run_id AND u.frame = m.before
    FOR UPDATE OF u SKIP LOCKED
)"""
"""The runs that a batch marks (`marks`), and those of them whose stored rows are the expected ones (`marked`)."""

THREADS: Final = """, thread_marks AS MATERIALIZED (SELECT * FROM {thread_marks}), marked_threads AS MATERIALIZED (
    SELECT m.* FROM thread_marks m
    JOIN {s}.pregel_run_threads r ON r.thread_id = m.thread_id AND r.frame = m.before
    FOR UPDATE OF r SKIP LOCKED
)"""
"""The same for the threads that a batch marks."""

_RUN: Final = {"n": "int", "before": "bytea", **RUN_CHANGES}
_THREAD: Final = {"n": "int", "before": "bytea", "has_content": "bool", **THREAD_CHANGES, **CONTENT}

UPDATED_RUNS: Final = """, updated_runs AS (
    UPDATE {s}.pregel_runs u SET status = k.status, hidden = k.hidden, frame = k.frame
    FROM marked k JOIN held h USING (n) WHERE u.run_id = k.run_id
)"""

UPDATED_THREADS: Final = """, updated_threads AS (
    UPDATE {s}.pregel_run_threads t SET status = k.status, assistant = k.assistant, activation = k.activation,
        activation_no = k.activation_no, activation_at = k.activation_at, priority = k.priority, route = k.route,
        wake_at = k.wake_at, created_at = k.created_at, updated_at = k.updated_at, frame = k.frame,
        state = CASE WHEN k.has_content THEN k.state::jsonb ELSE t.state END,
        content = CASE WHEN k.has_content THEN k.content ELSE t.content END
    FROM marked_threads k JOIN held h USING (n) WHERE t.thread_id = k.thread_id
)"""

# A write (`s.n`) marks no row, or the row that it marks is the expected one. The condition does not list the numbers of
# the writes with marks: each different text would be another prepared statement.
_FITS: Final = "(NOT EXISTS (SELECT FROM {all} k WHERE k.n = s.n) OR EXISTS (SELECT FROM {found} k WHERE k.n = s.n))"
_IS_MARKED: Final = _FITS.format(all="marks", found="marked")
_IS_THREAD_MARKED: Final = _FITS.format(all="thread_marks", found="marked_threads")


class RunMark(NamedTuple):
    """The rows of a run that a write changes.

    Attributes:
        run: values for `RUNS`, without the number of the write.
        thread: values for `THREADS`, likewise; None if the thread's row does not change.
        frames: the new frames, as in `KnownRows`.
    """

    run: tuple[Any, ...]
    thread: tuple[Any, ...] | None
    frames: Mapping[str, bytes]

    @classmethod
    def of(cls, change: RunChange, known: Mapping[str, bytes]) -> RunMark:
        """Return the mark of a change.

        Args:
            change: the rows before and after.
            known: frames of `KnownRows`.
        """
        run_id = change.after.run_id
        run = changed_run_values(change.after)
        frames = {**known, run_id: run[-1]}
        of_run = known.get(run_id) or changed_run_values(change.before)[-1], *run
        before, after = change.thread_before, change.thread_after
        if after is None:
            return cls(of_run, None, frames)
        has_content = before.values is not after.values or before.interrupts is not after.interrupts
        content = content_values(after) if has_content else (None, None)
        thread = thread_values(after)
        frames[""] = thread[-1]
        expected = known.get("") or thread_values(before)[-1]
        return cls(of_run, (expected, has_content, escape(after.thread_id), *thread, *content), frames)


class MarkParts(NamedTuple):
    """The parts that the marks of a batch add to its statement.

    Attributes:
        found: the marks and the rows that they expect, with placeholders for `values`.
        fits: a condition for a write: its mark, if it has one, can be stored.
        is_marked: an expression, alike.
        updates: the changes.
        values: for the placeholders of `found`.
    """

    found: str = ""
    fits: str = ""
    is_marked: str = "true"
    updates: str = ""
    values: Sequence[Any] = ()

    @classmethod
    def of(cls, marks: Sequence[RunMark | None]) -> MarkParts:
        """Return the parts for the marks of a batch.

        Args:
            marks: the mark of each write; None for a write without one.
        """
        runs = [(n, *mark.run) for n, mark in enumerate(marks) if mark is not None]
        threads = [(n, *mark.thread) for n, mark in enumerate(marks) if mark is not None and mark.thread is not None]
        if not runs:
            return cls()
        found = RUNS.replace("{marks}", table_of("m", _RUN, len(runs)))
        fits, values = _IS_MARKED, values_of(runs)
        if threads:
            found += THREADS.replace("{thread_marks}", table_of("m", _THREAD, len(threads)))
            fits += f" AND {_IS_THREAD_MARKED}"
            values += values_of(threads)
        return cls(
            found=found,
            fits=f" AND {fits}",
            is_marked=fits,
            updates=UPDATED_RUNS + UPDATED_THREADS * bool(threads),
            values=values,
        )
