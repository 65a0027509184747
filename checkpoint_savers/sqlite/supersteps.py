"""Store new checkpoints, of any number of threads, by one statement.

`superstep` is a view of the connection, which has no rows. An INSERT into it runs a trigger for each inserted row: it
compares the thread's lease and the head, changes them, and inserts the checkpoint, its payload and its metadata. View
and triggers are temporary: they belong to the connection, and are no part of the file's layout.

So a batch of n commits takes a statement for each power of two in n, and not five statements for each commit. That
matters because Python releases the GIL while SQLite executes a statement, and gets it back from a busy event loop only
after `sys.getswitchinterval()`, 5 ms. A single commit is one statement, too, which takes as long as the five did: it
needs no implementation of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple
from zlib import crc32

from ..records import Commit, Lease
from .ids import StoredId, write_id
from .rows import bind_row
from .schema import execute_with_retry

MOST_ROWS: Final = 128
"""Number of rows of a statement, at most; a power of two."""

MOST_BYTES: Final = 500_000
"""Bytes of the payloads and metadata of a statement with more than one row, at most. SQLite copies the rows of such a
statement into a table in memory, which would be spilled into a temporary file when it is large."""

METADATA_KEYS: Final = 1 << 23
"""Number of keys for a thread's metadata texts: SQLite stores keys below this in three bytes."""

_LOST: Final = "lost"
_TAKEN: Final = "taken"


class NewCheckpoint(NamedTuple):
    """The columns of the view `superstep`: a new checkpoint, with the lease and the head that it expects.

    Encoded by the caller's thread, before the transaction begins.
    """

    thread_id: str
    epoch: int
    run_id: str
    expires_at: float
    releases: bool
    ns: str
    head: StoredId | None
    id: StoredId
    parent: StoredId | None
    base: StoredId
    step: int
    metadata: int
    counts: bool
    text: str
    frame: bytes


def bind(lease: Lease, commit: Commit) -> tuple[NewCheckpoint, ...]:
    """Convert the checkpoints of a commit to columns.

    Args:
        lease: the run's lease.
        commit: the commit.

    Returns:
        The columns, in order. Each checkpoint expects the one before, in its namespace, as the head. The last one
        releases the lease if the commit does, unless the commit also moves a head without a checkpoint.
    """
    bound: list[NewCheckpoint] = []
    releases = commit.releases
    for change in (*commit.others, commit):
        head = None if change.expected_head is None else write_id(change.expected_head)
        releases = releases and (bool(change.rows) or change.head is None)
        for row in change.rows:
            ns, id, parent, base, step, (counts, text), _, frame = bind_row(row, pinned=False)
            bound.append(
                NewCheckpoint(
                    lease.thread_id,
                    lease.epoch,
                    lease.owner.run_id,
                    commit.expires_at,
                    False,
                    ns,
                    head,
                    id,
                    parent,
                    base,
                    step,
                    metadata_key(text),
                    counts,
                    text,
                    frame,
                )
            )
            head = id
    if releases and bound:
        bound[-1] = bound[-1]._replace(releases=True)
    return tuple(bound)


def metadata_key(text: str) -> int:
    """Return the key at which a metadata text is stored, unless another text of the thread has it.

    Args:
        text: the text.

    Returns:
        A hash of the text, so that an equal text is found by primary key, without an index of texts.
    """
    return crc32(text.encode()) % METADATA_KEYS


def next_metadata_key(key: int) -> int:
    """Return the key to try if another text has the given one.

    Args:
        key: the key.
    """
    return (key + 1) % METADATA_KEYS


def prepare(connection: sqlite3.Connection, deadline: float) -> None:
    """Make the view and its triggers, for this connection.

    Args:
        connection: a connection to a prepared file.
        deadline: time of `time.monotonic` until which a locked file is retried.
    """
    columns = ", ".join([f"NULL AS {name}" for name in NewCheckpoint._fields])
    inner = "(SELECT key FROM space WHERE thread = t.key AND ns = NEW.ns)"
    for statement in (
        f"CREATE TEMP VIEW superstep AS SELECT {columns}",
        _trigger("root", "NEW.ns = ''", _advance_root(), "0"),
        _trigger("inner", "NEW.ns <> ''", _advance_inner(), inner),
    ):
        execute_with_retry(connection, statement, deadline)


def _trigger(name: str, condition: str, advance: str, space: str) -> str:
    return f"""
        CREATE TEMP TRIGGER superstep_of_{name} INSTEAD OF INSERT ON superstep WHEN {condition} BEGIN
            {advance}
            INSERT OR IGNORE INTO metadata (thread, key, counts, text)
                SELECT key, NEW.metadata, NEW.counts, NEW.text FROM thread WHERE id = NEW.thread_id;
            INSERT INTO frame (id, data) VALUES (NEW.id, NEW.frame);
            INSERT INTO checkpoint (thread, space, base, id, parent, step, metadata, pinned, frame, size)
                SELECT t.key, {space}, NEW.base, NEW.id, NEW.parent, NEW.step, m.key, 0, last_insert_rowid(),
                    length(NEW.frame)
                FROM thread AS t CROSS JOIN metadata AS m ON m.thread = t.key AND m.key = NEW.metadata
                WHERE t.id = NEW.thread_id AND m.counts = NEW.counts AND m.text = NEW.text;
            SELECT RAISE(ABORT, '{_TAKEN}') WHERE changes() = 0;
        END
    """


def _advance(root_head: str, condition: str) -> str:
    """Return the compare-and-set of a thread's row."""
    # Both epoch and run are compared: a thread that was deleted and made again counts its epochs from 1, so that an old
    # lease may have the epoch of a new one.
    return f"""
            UPDATE thread SET
                run_id = iif(NEW.releases, NULL, run_id),
                owner = iif(NEW.releases, NULL, owner),
                expires_at = iif(NEW.releases, NULL, NEW.expires_at),
                newest = max(ifnull(newest, ''), NEW.id){root_head}
                WHERE id = NEW.thread_id AND epoch = NEW.epoch AND run_id = NEW.run_id{condition};
            SELECT RAISE(ABORT, '{_LOST}') WHERE changes() = 0;
    """


def _advance_root() -> str:
    # The root's head is in the thread's own row, which each commit updates anyway: a root graph's commit touches one
    # row less than a subgraph's.
    return _advance(", head = NEW.id", " AND head IS NEW.head")


def _advance_inner() -> str:
    return f"""
            {_advance("", "")}
            INSERT OR IGNORE INTO space (thread, ns) SELECT key, NEW.ns FROM thread WHERE id = NEW.thread_id;
            UPDATE space SET head = NEW.id
                WHERE thread = (SELECT key FROM thread WHERE id = NEW.thread_id) AND ns = NEW.ns AND head IS NEW.head;
            SELECT RAISE(ABORT, '{_LOST}') WHERE changes() = 0;
    """


def insert(db: sqlite3.Cursor, rows: Sequence[NewCheckpoint]) -> bool:
    """Insert checkpoints, each under the lease and after the head that it expects.

    Args:
        db: a cursor in a writing transaction.
        rows: the checkpoints, in order.

    Returns:
        False if a lease is lost or a head is another one. Roll back then: some of the rows may be inserted.

    Raises:
        sqlite3.IntegrityError: a checkpoint is stored already. Roll back, too.
    """
    left, most = list(rows), MOST_ROWS
    while left:
        size = _statement_size(left, most)
        try:
            db.execute(_insert_rows(size), tuple(chain.from_iterable(left[:size])))
        except sqlite3.IntegrityError as error:  # the statement has changed nothing
            if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_TRIGGER:
                raise
            if str(error) == _LOST:
                return False
            # Another text has the key of a row's metadata. That is rare: the rows are inserted one by one to find it.
            if size == 1:
                left[0] = left[0]._replace(metadata=next_metadata_key(left[0].metadata))
            most = 1
        else:
            del left[:size]
    return True


def _statement_size(rows: Sequence[NewCheckpoint], most: int) -> int:
    """Return how many of the next rows one statement inserts: a power of two, so that SQLite compiles few texts."""
    size = 1 << (min(len(rows), most).bit_length() - 1)
    while size > 1 and sum([len(row.frame) + len(row.text) for row in rows[:size]]) > MOST_BYTES:
        size //= 2
    return size


@cache
def _insert_rows(size: int) -> str:
    row = f"({', '.join('?' * len(NewCheckpoint._fields))})"
    return f"INSERT INTO superstep VALUES {', '.join([row] * size)}"
