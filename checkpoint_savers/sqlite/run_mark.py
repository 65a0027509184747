"""Run marks: changes of a run's rows that are stored in the transaction of a superstep, without reading the rows.

The decision was made by rows that this process knows (`runs.known_rows`). Each UPDATE compares the stored frame with
the known one. If they differ, the superstep is not stored, and the ordinary transaction (`runs.transact`) reads the
rows and decides again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ..runs.known_rows import RowsChangedError, RunChange
from .run_rows import RunThreadColumns, run_frame, thread_frame

_RUN: Final = "UPDATE run SET {}data = ? WHERE id = ? AND data = ?"
_RUN_FIELDS: Final = ("status", "hidden")
_THREAD: Final = "UPDATE run_thread SET {}data = ? WHERE thread = (SELECT key FROM thread WHERE id = ?) AND data = ?"
_THREAD_FIELDS: Final = tuple([name for name in RunThreadColumns._fields if name not in ("id", "data")])

_Update: TypeAlias = tuple[str, tuple[object, ...]]


class RunUpdates(NamedTuple):
    """The statements of a run mark. The caller's thread encodes the rows, so that the connection's thread need not.

    Attributes:
        updates: the statements with their values. Each changes one row, or none if the stored row is not the known one.
        frames: the new frames, as in `KnownRows`.
        refuse_newer: raises if a later version has upgraded the file since it was opened.
    """

    updates: Sequence[_Update]
    frames: Mapping[str, bytes]
    refuse_newer: Callable[[sqlite3.Cursor], None]

    @classmethod
    def of(
        cls, change: RunChange, known: Mapping[str, bytes], refuse_newer: Callable[[sqlite3.Cursor], None]
    ) -> RunUpdates:
        """Return the statements of a change.

        Args:
            change: the rows before and after.
            known: the frames of `KnownRows`.
            refuse_newer: see the attribute.
        """
        before, after, run_id = change.before, change.after, change.after.run_id
        frames = {**known, run_id: run_frame(after)}
        values = frames[run_id], run_id, known.get(run_id) or run_frame(before)
        updates = [_update(_RUN, _RUN_FIELDS, before, after, values)]
        thread = change.thread_after
        if thread is not None:
            frames[""] = thread_frame(thread)
            values = frames[""], thread.thread_id, known.get("") or thread_frame(change.thread_before)
            updates.append(_update(_THREAD, _THREAD_FIELDS, change.thread_before, thread, values))
        return cls(updates, frames, refuse_newer)

    def store(self, db: sqlite3.Cursor) -> None:
        """Change the rows. The superstep was stored in the same transaction, which compares the lease.

        Args:
            db: a cursor in a writing transaction.

        Raises:
            RowsChangedError: the stored rows are not the known ones. Roll back.
            UnsupportedFormatError: raised by `refuse_newer`.
        """
        self.refuse_newer(db)  # also under a valid lease: the file may have been upgraded since it was acquired
        for statement, values in self.updates:
            if db.execute(statement, values).rowcount != 1:
                raise RowsChangedError


def _update(
    statement: str, fields: Sequence[str], before: object, after: object, last: tuple[bytes, str, bytes]
) -> _Update:
    """Return an UPDATE that sets the frame and those columns that change, with its values.

    Args:
        statement: its text, with `{}` for the columns.
        fields: the columns that may change, which are attributes of the rows.
        before, after: the row.
        last: the last values of the statement: the new frame, the row's id and the known frame.
    """
    # Only the columns that change: SQLite rewrites the entries of each index on a column of SET, even if the value is
    # the same. So the first superstep of a run rewrites no index, and the last one half of them. Few different sets of
    # columns change together, so there are few different statements to compile.
    columns, values = "", list[object]()
    for name in fields:
        value = getattr(after, name)
        if value != getattr(before, name):
            columns += f"{name} = ?, "
            values.append(value)
    return statement.format(columns), (*values, *last)
