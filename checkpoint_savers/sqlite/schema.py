"""The file: its tables, how it is told apart from other files, and how it is opened and set up."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal

from ..errors import CorruptCheckpointError, StorageReadOnlyError, UnsupportedFormatError
from .failures import is_busy, is_read_only

APPLICATION_ID: Final = 0x50524753
"""`PRGS`, in the file's header: this is a file of ours."""

# The rule for all tables: texts that repeat are stored once, and stand for themselves as small numbers elsewhere.
#
#   thread       one row each, with its lease and the root graph's head: what every commit compares and changes is in
#                one row of one page. And with the thread's own metadata, which are JSON.
#   space        a namespace inside a thread. The root graph's is number 0, and has no row.
#   checkpoint   without its payload, and so small: clustered by chain, as one or two ranges are what a read wants, and
#                what a listing shares. The index is the way from an id to its chain, and lists a thread by age; as the
#                table has no rowid, it holds the whole key.
#   frame        the payloads, in the order in which they were written: commits of many threads end in the same page,
#                pages fill up whichever threads take turns, and listings touch none of them. With a rowid, as SQLite
#                stores large rows without waste in such tables only. Each has its checkpoint's id: else a number that
#                damage has changed would be that of another payload, which is whole.
#   metadata     of checkpoints, each text once per thread, without the number of the superstep (see `rows`).
#   record, event    clustered by what is read together.
#
# Ids of checkpoints are of type ANY: see `ids`.
TABLES = {
    "thread": """
        CREATE TABLE thread (
            key INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            epoch INTEGER NOT NULL,
            run_id TEXT,
            owner TEXT,
            expires_at REAL,
            newest ANY,
            head ANY,
            metadata TEXT NOT NULL DEFAULT '{}'
        ) STRICT
    """,
    "space": """
        CREATE TABLE space (
            key INTEGER NOT NULL PRIMARY KEY,
            thread INTEGER NOT NULL,
            ns TEXT NOT NULL,
            head ANY,
            UNIQUE (thread, ns)
        ) STRICT
    """,
    "checkpoint": """
        CREATE TABLE checkpoint (
            thread INTEGER NOT NULL,
            space INTEGER NOT NULL,
            base ANY NOT NULL,
            id ANY NOT NULL,
            parent ANY,
            step INTEGER NOT NULL,
            metadata INTEGER NOT NULL,
            pinned INTEGER NOT NULL,
            frame INTEGER NOT NULL,
            size INTEGER NOT NULL,
            PRIMARY KEY (thread, space, base, id)
        ) STRICT, WITHOUT ROWID
    """,
    "checkpoint_by_id": "CREATE UNIQUE INDEX checkpoint_by_id ON checkpoint (thread, id, space)",
    "frame": """
        CREATE TABLE frame (
            key INTEGER NOT NULL PRIMARY KEY,
            id ANY NOT NULL,
            data BLOB NOT NULL
        ) STRICT
    """,
    "metadata": """
        CREATE TABLE metadata (
            thread INTEGER NOT NULL,
            key INTEGER NOT NULL,
            counts INTEGER NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (thread, key)
        ) STRICT, WITHOUT ROWID
    """,
    "record": """
        CREATE TABLE record (
            thread INTEGER NOT NULL,
            space INTEGER NOT NULL,
            checkpoint ANY NOT NULL,
            task_id TEXT NOT NULL,
            place INTEGER NOT NULL,
            kind TEXT NOT NULL,
            frame BLOB NOT NULL,
            PRIMARY KEY (thread, space, checkpoint, task_id)
        ) STRICT, WITHOUT ROWID
    """,
    "event": """
        CREATE TABLE event (
            thread INTEGER NOT NULL,
            checkpoint ANY NOT NULL,
            epoch INTEGER NOT NULL,
            position INTEGER NOT NULL,
            kind TEXT NOT NULL,
            frame BLOB NOT NULL,
            PRIMARY KEY (thread, checkpoint, epoch, position)
        ) STRICT, WITHOUT ROWID
    """,
}
"""What a file of ours has, by name. What else it has is somebody else's business."""


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES.values():
        connection.execute(statement)


UPGRADES: tuple[Callable[[sqlite3.Connection], None], ...] = (_make_tables,)
"""What makes a file of version n + 1 of one of version n, at index n, in a transaction. Version 0 is an empty file."""

VERSION: Final = len(UPGRADES)
"""The number of this layout, in the file's header (`user_version`). A greater one is refused, not touched."""

MARKS = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}")


def prepare(
    connection: sqlite3.Connection, name: str, *, synchronous: Literal["FULL", "NORMAL"], busy_timeout: float
) -> None:
    """Prepare a new connection: check which program made the file before any change, then upgrade it.

    Raises:
        CorruptCheckpointError: the file is another program's, or none of SQLite's.
        UnsupportedFormatError: it is ours, of a later version.
        StorageLockedError, StorageFullError: as errors of SQLite's: it cannot be upgraded now. Nothing was changed.
        StorageReadOnlyError: it is empty, and cannot be written.
    """
    deadline = time.monotonic() + busy_timeout
    with read_transaction(connection, deadline):
        found = _version(connection, name)
    # What is deleted is overwritten where that costs no more writing. It is no promise: see `files.vacuum`.
    connection.execute("PRAGMA secure_delete = FAST")
    if found < VERSION:
        _upgrade(connection, name, deadline)
    use_wal(connection, deadline)
    execute_with_retry(connection, f"PRAGMA synchronous = {synchronous}", deadline)
    if sys.platform == "darwin" and synchronous == "FULL":
        # There, fsync leaves the data in the drive's own cache, and a power loss takes it.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def upgraded_since(connection: sqlite3.Connection, name: str) -> UnsupportedFormatError | None:
    """What to say when the file is of a later version by now, and so has other tables; None when it is not."""
    found = _user_version(connection)
    return UnsupportedFormatError(name, found, VERSION) if found > VERSION else None


def refuse_newer(db: sqlite3.Cursor, name: str) -> None:
    """Raise if a later version of this package has upgraded the file since it was opened.

    Raises:
        UnsupportedFormatError
    """
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        raise UnsupportedFormatError(name, found, VERSION)


def _upgrade(connection: sqlite3.Connection, name: str, deadline: float) -> None:
    """Upgrade a file to this version, in one transaction; an empty one is of version 0."""
    with setup_transaction(connection, deadline, f"{name}: the database is empty, and cannot be written"):
        found = _version(connection, name)
        if found < VERSION:
            for upgrade in UPGRADES[found:]:
                upgrade(connection)
            for mark in MARKS:
                connection.execute(mark)


@contextmanager
def setup_transaction(connection: sqlite3.Connection, deadline: float, refusal: str) -> Generator[None]:
    """A transaction that makes what is missing. Look again in it: of several processes that try, the first to get the
    lock does; the others see under it that it is done.

    Args:
        refusal: what to say where nothing can be written.
    """
    try:
        execute_with_retry(connection, "BEGIN IMMEDIATE", deadline)
        yield
        execute_with_retry(connection, "COMMIT", deadline)
    except sqlite3.OperationalError as error:
        if not is_read_only(error):
            raise
        raise StorageReadOnlyError(refusal) from error
    finally:
        roll_back(connection)


@contextmanager
def read_transaction(connection: sqlite3.Connection, deadline: float) -> Generator[None]:
    """A transaction that only reads, so that what it sees is of one moment."""
    execute_with_retry(connection, "BEGIN", deadline)
    try:
        yield
    finally:
        roll_back(connection)


def use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Have the file keep a write-ahead log, if it can be written."""
    try:
        execute_with_retry(connection, "PRAGMA journal_mode = WAL", deadline)
    except sqlite3.OperationalError as error:
        if not is_read_only(error):
            raise


def _user_version(connection: sqlite3.Connection) -> int:
    number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


def _version(connection: sqlite3.Connection, name: str) -> int:
    """The version of a file of ours; 0 when nothing is there yet. Raises when what is there is not for us."""
    application_id: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version = _user_version(connection)
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    if application_id == APPLICATION_ID:
        if version > VERSION:
            raise UnsupportedFormatError(name, version, VERSION)
        missing = sorted(TABLES.keys() - names) if version == VERSION else []
        if version < 1 or missing:
            raise CorruptCheckpointError(name, f"its version is {version}, and these parts are missing: {missing}")
        return version
    if application_id or version or names:
        raise CorruptCheckpointError(name, "it is a database of another program", "Choose another file")
    return 0


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that is open still."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def execute_with_retry(connection: sqlite3.Connection, statement: str, deadline: float) -> list[tuple[object, ...]]:
    """Execute, and try again while SQLite says busy without waiting by itself, as for the change to WAL."""
    while True:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))
