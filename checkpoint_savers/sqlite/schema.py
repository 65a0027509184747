"""The tables of a saver's file: how the file is recognised, opened, set up and upgraded."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal

from ..errors import CheckpointError, CorruptCheckpointError, StorageReadOnlyError, UnsupportedFormatError
from .failures import is_busy, is_read_only

APPLICATION_ID: Final = 0x50524753
"""`PRGS`, in the file's header: marks a file of this package."""

# The rule for all tables: repeated texts are stored once, and other rows refer to them by small integers.
#
#    thread       One row for each thread. It has the lease and the root graph's head, so that everything which a commit
#                 compares and changes is in one row of one page. It also has the thread's own metadata, as JSON.
#    space        One row for each namespace of a thread. The root graph's namespace has key 0 and no row.
#    checkpoint   One small row for each checkpoint, without the payload. The rows are clustered by chain, because a
#                 read needs one or two ranges of a chain. The index finds an id's chain, and lists a thread by age. As
#                 the table has no rowid, the index holds the whole primary key.
#    frame        The payloads of checkpoints, in the order in which they were written. So commits of many threads share
#                 pages, pages are full whatever the order of the threads' commits, and listings read none of them. The
#                 table has a rowid, because SQLite wastes space for large rows in tables without one. Each row has its
#                 checkpoint's id: without it, a damaged frame number would refer to another, intact payload.
#    metadata     Metadata of checkpoints: each text once per thread, without the number of the superstep (`rows.py`).
#    record       Task records, clustered by checkpoint.
#    event        Stored events, in the order in which they are read.
#    run_thread   One row for each thread of which a run was accepted (`run_rows.py`): the thread's own row is changed
#                 by each commit, and must remain small. It repeats the thread's id for the indexes, which sort by it.
#    run          One row for each accepted run, which is changed as the run proceeds.
#    run_request  What was asked for, with the payload: it never changes, and changes of a run need not copy it.
#
# The columns of checkpoint ids have the type ANY, because such a column holds 16 bytes or a text (`ids.py`).
_THREAD_TABLES = {
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
"""The statements that make the parts of a file of version 1, by name."""

_RUN_TABLES = {
    "run_thread": """
        CREATE TABLE run_thread (
            thread INTEGER NOT NULL PRIMARY KEY,
            id TEXT NOT NULL,
            status TEXT NOT NULL,
            assistant TEXT NOT NULL,
            activation TEXT NOT NULL,
            activation_at REAL NOT NULL,
            priority INTEGER NOT NULL,
            route TEXT NOT NULL,
            wake_at REAL NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            data BLOB NOT NULL
        ) STRICT
    """,
    "run_thread_queued": (
        "CREATE INDEX run_thread_queued ON run_thread (priority DESC, activation_at) WHERE activation = 'queued'"
    ),
    "run_thread_active": "CREATE INDEX run_thread_active ON run_thread (activation_at) WHERE activation = 'active'",
    "run_thread_due": "CREATE INDEX run_thread_due ON run_thread (wake_at) WHERE wake_at > 0",
    "run_thread_by_status": "CREATE INDEX run_thread_by_status ON run_thread (status, updated_at, id)",
    "run_thread_by_assistant": "CREATE INDEX run_thread_by_assistant ON run_thread (assistant, updated_at, id)",
    "run_thread_by_update": "CREATE INDEX run_thread_by_update ON run_thread (updated_at, id)",
    "run_thread_by_creation": "CREATE INDEX run_thread_by_creation ON run_thread (created_at, id)",
    "run": """
        CREATE TABLE run (
            key INTEGER NOT NULL PRIMARY KEY,
            thread INTEGER NOT NULL,
            id TEXT NOT NULL UNIQUE,
            seq INTEGER NOT NULL,
            status TEXT NOT NULL,
            assistant TEXT NOT NULL,
            hidden INTEGER NOT NULL,
            idempotency_key TEXT,
            created_at REAL NOT NULL,
            metadata TEXT NOT NULL,
            data BLOB NOT NULL
        ) STRICT
    """,
    "run_by_key": "CREATE UNIQUE INDEX run_by_key ON run (idempotency_key) WHERE idempotency_key IS NOT NULL",
    "run_open": "CREATE INDEX run_open ON run (thread) WHERE status IN ('pending', 'running')",
    "run_by_thread": "CREATE INDEX run_by_thread ON run (thread, created_at, id)",
    "run_by_status": "CREATE INDEX run_by_status ON run (status, hidden, created_at, id)",
    "run_by_age": "CREATE INDEX run_by_age ON run (hidden, created_at, id)",
    "run_request": """
        CREATE TABLE run_request (
            key INTEGER NOT NULL PRIMARY KEY,
            data BLOB NOT NULL
        ) STRICT
    """,
}
"""The statements that make what version 2 adds."""

TABLES = {**_THREAD_TABLES, **_RUN_TABLES}
"""The statements that make the parts of a file, by name. Other tables in the file are ignored."""


def _make_thread_tables(connection: sqlite3.Connection) -> None:
    for statement in _THREAD_TABLES.values():
        connection.execute(statement)


def _make_run_tables(connection: sqlite3.Connection) -> None:
    for statement in _RUN_TABLES.values():
        connection.execute(statement)


UPGRADES: tuple[Callable[[sqlite3.Connection], None], ...] = (_make_thread_tables, _make_run_tables)
"""Functions that upgrade a file from version n to n + 1, at index n, in a transaction. Version 0 is an empty file."""

VERSION: Final = len(UPGRADES)
"""The version of this layout, in the file's header (`user_version`). A file with a greater one is refused and not
changed."""

MARKS = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}")
"""Statements that write the marks of this version into the file's header."""


def prepare(
    connection: sqlite3.Connection, name: str, *, synchronous: Literal["FULL", "NORMAL"], busy_timeout: float
) -> None:
    """Prepare a new connection: check which program made the file before any change, then upgrade it.

    Args:
        connection: the new connection.
        name: how messages name the database.
        synchronous: "FULL" or "NORMAL", as for `SqliteSaver`.
        busy_timeout: seconds to wait for another process's lock.

    Raises:
        CorruptCheckpointError: the file was made by another program, or is not an SQLite database.
        UnsupportedFormatError: a later version made it.
        sqlite3.OperationalError: the file is locked or full: it cannot be upgraded now, and was not changed.
        StorageReadOnlyError: it is empty, and cannot be written.
    """
    deadline = time.monotonic() + busy_timeout
    with read_transaction(connection, deadline):
        found = _version(connection, name)
    # FAST overwrites deleted content where that needs no additional write. It is no promise of erasure: see
    # `files.vacuum`.
    connection.execute("PRAGMA secure_delete = FAST")
    if found < VERSION:
        try:
            _upgrade(connection, name, deadline)
        except StorageReadOnlyError:
            # What a file of an earlier version has can be read as it is. `other_version` explains what it lacks.
            if not found:
                raise
    use_wal(connection, deadline)
    execute_with_retry(connection, f"PRAGMA synchronous = {synchronous}", deadline)
    if sys.platform == "darwin" and synchronous == "FULL":
        # On macOS, fsync leaves the data in the drive's own cache, and a power loss destroys it.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def other_version(connection: sqlite3.Connection, name: str) -> CheckpointError | None:
    """Return an error if the file has another version: a later one, or an earlier one that could not be upgraded.

    Args:
        connection: an open connection.
        name: how messages name the database.

    Returns:
        The error to raise, or None.
    """
    found = _user_version(connection)
    if found > VERSION:
        return UnsupportedFormatError(name, found, VERSION)
    if found < VERSION:
        return StorageReadOnlyError(
            f"{name}: an earlier version of this package made the file (layout {found}, and this is {VERSION}), and it "
            "cannot be upgraded as it cannot be written. It has no accepted runs"
        )
    return None


def refuse_newer(db: sqlite3.Cursor, name: str) -> None:
    """Raise if a later version of this package has upgraded the file since it was opened.

    Args:
        db: a cursor.
        name: how messages name the database.

    Raises:
        UnsupportedFormatError: the file's version is greater than this one's.
    """
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        raise UnsupportedFormatError(name, found, VERSION)


def _upgrade(connection: sqlite3.Connection, name: str, deadline: float) -> None:
    """Upgrade a file to this version, in one transaction; an empty file is of version 0."""
    with setup_transaction(connection, deadline, f"{name}: the database is empty, and cannot be written"):
        # Read again under the write lock: another process may have upgraded the file since it was read.
        found = _version(connection, name)
        if found < VERSION:
            for upgrade in UPGRADES[found:]:
                upgrade(connection)
            for mark in MARKS:
                connection.execute(mark)


@contextmanager
def setup_transaction(connection: sqlite3.Connection, deadline: float, refusal: str) -> Generator[None]:
    """Run a block in a transaction that creates what the file lacks.

    The block has to check again what the file lacks: if several processes open the file, the first to get the lock does
    the work, and the others find it done.

    Args:
        connection: a connection without a transaction.
        deadline: time of `time.monotonic` until which a locked file is retried.
        refusal: message of the error if the file cannot be written.

    Yields:
        None, in the transaction.

    Raises:
        StorageReadOnlyError: the file cannot be written.
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
    """Run a block in a transaction that only reads, so that all its reads see one moment.

    Args:
        connection: a connection without a transaction.
        deadline: time of `time.monotonic` until which a locked file is retried.

    Yields:
        None, in the transaction.
    """
    execute_with_retry(connection, "BEGIN", deadline)
    try:
        yield
    finally:
        roll_back(connection)


def use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Switch the file to a write-ahead log, if it can be written.

    Args:
        connection: a connection without a transaction.
        deadline: time of `time.monotonic` until which a locked file is retried.
    """
    try:
        execute_with_retry(connection, "PRAGMA journal_mode = WAL", deadline)
    except sqlite3.OperationalError as error:
        if not is_read_only(error):
            raise


def _user_version(connection: sqlite3.Connection) -> int:
    number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


def _version(connection: sqlite3.Connection, name: str) -> int:
    """Return the version of the file; 0 if it is empty. Raise if this saver must not use it."""
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
    # A file with any content that we did not mark is another program's: we neither add tables to it nor change its
    # header.
    if application_id or version or names:
        raise CorruptCheckpointError(name, "it is a database of another program", "Choose another file")
    return 0


def roll_back(connection: sqlite3.Connection) -> None:
    """End an open transaction, if there is one.

    Args:
        connection: the connection.
    """
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def execute_with_retry(connection: sqlite3.Connection, statement: str, deadline: float) -> list[tuple[object, ...]]:
    """Execute a statement, and repeat it while SQLite reports a lock without waiting itself, as for the switch to WAL.

    Args:
        connection: the connection.
        statement: the statement.
        deadline: time of `time.monotonic` until which it is repeated.

    Returns:
        The rows.

    Raises:
        sqlite3.OperationalError: the statement failed, or the file is still locked.
    """
    while True:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))
