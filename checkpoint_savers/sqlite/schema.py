"""The file: its tables, how it is told apart from other files, and how it is opened, set up and upgraded."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from typing import Literal

from ..errors import CorruptCheckpointError, StorageReadOnlyError, UnsupportedFormatError
from .failures import is_busy, is_read_only

APPLICATION_ID = 0x50524547
"""`PREG`, in the file's header: this is a file of ours."""

VERSION = 2
"""The number of this layout, in the file's header (`user_version`). A greater one is refused, not touched.

Version 2 has stream events. A file of version 1 is upgraded when it is opened for writing: a table is added, and
nothing that was there is changed. All the same a program that knows version 1 only does not open it any more, and that
is why the number is a new one. It would get along, and run threads without keeping their events: whoever reads those
later relies on finding all that was shown, and nothing would tell him that this had quietly ceased to be so.

A program of version 1 that has the file open at that moment is not stopped: it asked when it opened it. Its supersteps
go on, without events; and what it deletes is deleted, events too (`events_go_with_their_thread`).
"""

EVENTS_SINCE = 2
"""The first version that has events. A file before it, opened read-only, is read as it is."""

PARTS_1 = frozenset({"threads", "heads", "checkpoints", "checkpoints_by_id", "records"})
PARTS_2 = frozenset({"events", "events_go_with_their_thread"})
"""What a file of ours has, by the version that added it. What else it has is somebody else's business."""

# Checkpoints are clustered by chain: one range is what a read wants, and what a listing shares. The index is the
# way from an id to its chain, and lists a thread by age; it holds the whole key, so that it answers alone. In a
# table WITHOUT ROWID the payload stands last, so that a scan of the rest never touches its overflow pages.
TABLES_1 = (
    """
    CREATE TABLE threads (
        thread_id TEXT NOT NULL PRIMARY KEY,
        epoch INTEGER NOT NULL,
        run_id TEXT,
        owner TEXT,
        expires_at REAL,
        newest TEXT
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE heads (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        PRIMARY KEY (thread_id, ns)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE checkpoints (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        base_id TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        parent_id TEXT,
        step INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, ns, base_id, checkpoint_id)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (thread_id, checkpoint_id, ns, base_id)",
    """
    CREATE TABLE records (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        kind TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, ns, checkpoint_id, task_id)
    ) STRICT, WITHOUT ROWID
    """,
)

# One range is what a reader of events wants, from the key at which it begins. The trigger is for programs of version 1:
# they do not know the table, and one that has the file open deletes its threads still.
TABLES_2 = (
    """
    CREATE TABLE events (
        thread_id TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        position INTEGER NOT NULL,
        kind TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, checkpoint_id, epoch, position)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER events_go_with_their_thread AFTER DELETE ON threads BEGIN
        DELETE FROM events WHERE thread_id = OLD.thread_id;
    END
    """,
)

MARKS = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}")

MISSING = {0: (*TABLES_1, *TABLES_2), 1: TABLES_2}
"""What a file of an earlier version has yet to get. An empty file is of version 0."""


def prepare(
    connection: sqlite3.Connection, name: str, *, synchronous: Literal["FULL", "NORMAL"], busy_timeout: float
) -> None:
    """Make a fresh connection ready: check whose file it is before anything is changed; then set an empty one up, and
    upgrade one of an earlier version.

    Raises:
        CorruptCheckpointError: the file is another program's, or none of SQLite's.
        UnsupportedFormatError: it is ours, of a later version.
        StorageLockedError, StorageFullError: as errors of SQLite's: it is of an earlier version, and cannot be upgraded
            now. Nothing was changed; opened read-only it can be read.
        StorageReadOnlyError: it is empty, and cannot be written.
    """
    deadline = time.monotonic() + busy_timeout
    found = _look(connection, name, deadline)
    if found < VERSION:
        _bring_up(connection, name, deadline, found)
    try:
        _patiently(connection, "PRAGMA journal_mode = WAL", deadline)
    except sqlite3.OperationalError as error:
        if not is_read_only(error):
            raise
    _patiently(connection, f"PRAGMA synchronous = {synchronous}", deadline)
    if sys.platform == "darwin" and synchronous == "FULL":
        # There, fsync leaves the data in the drive's own cache, and a power loss takes it.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def _bring_up(connection: sqlite3.Connection, name: str, deadline: float, found: int) -> None:
    """Make an empty file, or one of an earlier version, one of this version, in one transaction.

    Of several processes that try, the first to get the lock does; the others see under it that it is done. Where
    writing is not allowed, one of an earlier version stays as it is.

    Args:
        found: its version, as it was without the lock.
    """
    try:
        _patiently(connection, "BEGIN IMMEDIATE", deadline)
        found = _version(connection, name)
        if found < VERSION:
            for mark in MARKS:  # first: where writing is not allowed it ends here, before a name can be in the way
                connection.execute(mark)
            _refuse_others(connection, name)
            for statement in MISSING[found]:
                connection.execute(statement)
        _patiently(connection, "COMMIT", deadline)
    except sqlite3.OperationalError as error:
        if not is_read_only(error):
            raise
        if not found:
            raise StorageReadOnlyError(f"{name}: the database is empty, and cannot be written") from error
    finally:
        _end(connection)


def _look(connection: sqlite3.Connection, name: str, deadline: float) -> int:
    """As `_version`, in a transaction, so that what it sees is of one moment."""
    _patiently(connection, "BEGIN", deadline)
    try:
        return _version(connection, name)
    finally:
        _end(connection)


def _version(connection: sqlite3.Connection, name: str) -> int:
    """The version of a file of ours; 0 when nothing is there yet. Raises when what is there is not for us."""
    application_id: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    if application_id == APPLICATION_ID:
        if version > VERSION:
            raise UnsupportedFormatError(name, version, VERSION)
        missing = sorted((PARTS_1 if version < EVENTS_SINCE else PARTS_1 | PARTS_2) - names)
        if version < 1 or missing:
            raise CorruptCheckpointError(name, f"its version is {version}, and these parts are missing: {missing}")
        return version
    if application_id or version or names:
        raise CorruptCheckpointError(name, "it is a database of another program", "Choose another file")
    return 0


def _refuse_others(connection: sqlite3.Connection, name: str) -> None:
    """Raise when somebody has put something of his own into a file of ours, by a name that is needed now."""
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema")]
    theirs = sorted(one for one in names if one.lower() in PARTS_2)
    if theirs:
        raise CorruptCheckpointError(name, f"it has {theirs} already, which no saver has made", "Give it another name")


def _end(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _patiently(connection: sqlite3.Connection, statement: str, deadline: float) -> list[tuple[object, ...]]:
    """Execute, and try again while SQLite says busy without waiting by itself, as for the change to WAL."""
    while True:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))
