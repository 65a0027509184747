"""The file: its tables, how it is told apart from other files, and how it is opened and set up."""

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

VERSION = 1
"""The number of this layout, in the file's header (`user_version`). A greater one is refused, not touched."""

NAMES = frozenset({"threads", "heads", "checkpoints", "checkpoints_by_id", "records"})
"""What a file of ours has. What else it has is somebody else's business."""

# Checkpoints are clustered by chain: one range is what a read wants, and what a listing shares. The index is the
# way from an id to its chain, and lists a thread by age; it holds the whole key, so that it answers alone. In a
# table WITHOUT ROWID the payload stands last, so that a scan of the rest never touches its overflow pages.
SCHEMA = (
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
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)


def prepare(
    connection: sqlite3.Connection, name: str, *, synchronous: Literal["FULL", "NORMAL"], busy_timeout: float
) -> None:
    """Make a fresh connection ready: check whose file it is before anything is changed, and set an empty one up.

    Raises:
        CorruptCheckpointError: the file is another program's, or none of SQLite's.
        UnsupportedFormatError: it is ours, of a later version.
        StorageReadOnlyError: it is empty, and cannot be written.
    """
    deadline = time.monotonic() + busy_timeout
    if _look(connection, name, deadline):
        _create(connection, name, deadline)
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


def _create(connection: sqlite3.Connection, name: str, deadline: float) -> None:
    """Set an empty file up. Of several processes that try, the first to get the lock does."""
    try:
        _patiently(connection, "BEGIN IMMEDIATE", deadline)
        if _is_empty(connection, name):
            for statement in SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if is_read_only(error):
            raise StorageReadOnlyError(f"{name}: the database is empty, and cannot be written") from error
        raise
    finally:
        _end(connection)


def _look(connection: sqlite3.Connection, name: str, deadline: float) -> bool:
    """As `_is_empty`, in a transaction, so that what it sees is of one moment."""
    _patiently(connection, "BEGIN", deadline)
    try:
        return _is_empty(connection, name)
    finally:
        _end(connection)


def _is_empty(connection: sqlite3.Connection, name: str) -> bool:
    """Whether nothing is there yet. Raises when what is there is not for us."""
    application_id: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    if application_id == APPLICATION_ID:
        if version > VERSION:
            raise UnsupportedFormatError(name, version, VERSION)
        missing = sorted(NAMES - names)
        if version < 1 or missing:
            raise CorruptCheckpointError(name, f"its version is {version}, and these parts are missing: {missing}")
        return False
    if application_id or version or names:
        raise CorruptCheckpointError(name, "it is a database of another program", "Choose another file")
    return True


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
