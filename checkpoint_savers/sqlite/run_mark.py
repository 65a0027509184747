"""A run's mark: the change of its rows that is stored with a superstep, without reading them.

The decision was made by rows that this process knows (`runs.known_rows`). Each UPDATE compares the stored frame with
the known one. If they differ, the superstep is refused, and the ordinary transaction (`runs.transact`) decides by the
stored rows.
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
    """The statements of a run's mark. Encoded by the caller's thread, before the transaction begins.

    Attributes:
        updates: the statements with their values. Each changes one row, or none if the stored row is another one.
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
            known: frames of `KnownRows`.
            refuse_newer: as of the class.
        """
        before, after, run_id = change.before, change.after, change.after.run_id
        frames = {**known, run_id: run_frame(after)}
        old = known.get(run_id) or run_frame(before)
        updates = [_update(_RUN, _RUN_FIELDS, before, after, frames[run_id], run_id, old)]
        thread = change.thread_after
        if thread is not None:
            frames[""] = thread_frame(thread)
            old = known.get("") or thread_frame(change.thread_before)
            values = frames[""], thread.thread_id, old
            updates.append(_update(_THREAD, _THREAD_FIELDS, change.thread_before, thread, *values))
        return cls(updates, frames, refuse_newer)

    def store(self, db: sqlite3.Cursor) -> None:
        """Change the rows. The superstep was stored in the same transaction, which compares the lease.

        Args:
            db: a cursor in a writing transaction.

        Raises:
            RowsChangedError: the stored rows are not the expected ones. Roll back.
            UnsupportedFormatError: raised by `refuse_newer`.
        """
        self.refuse_newer(db)  # also with a lease, which may be older than the upgrade of the file
        for statement, values in self.updates:
            if db.execute(statement, values).rowcount != 1:
                raise RowsChangedError


def _update(statement: str, fields: Sequence[str], before: object, after: object, *frames_and_id: object) -> _Update:
    """Return a statement that changes those columns which differ, and the frame; and its values."""
    # SQLite writes the entries of each index that has a column of SET, also if the column's value stays the same. A
    # run that begins changes no index so, and one that ends changes half as many. The texts are few, as few fields
    # change together.
    columns, values = "", list[object]()
    for name in fields:
        value = getattr(after, name)
        if value != getattr(before, name):
            columns += f"{name} = ?, "
            values.append(value)
    return statement.format(columns), (*values, *frames_and_id)
