"""Operations on the file as a whole: measure, rewrite, copy. Those that change it run outside of transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import msgspec

from ..atomic_file import AtomicFile
from ..bridge import Waiter, wait_until_woken, wake
from ..children import start_soon
from ..errors import StorageError
from .failures import translate

PAGES = 256
"""Pages of a backup that are copied at a time: one MB, in about a millisecond."""


class DatabaseSize(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes on disk, in bytes.

    Attributes:
        database: the file.
        log: the write-ahead log next to the file. SQLite folds it into the file at times, and when the last saver
            closes.
        free: pages of the file that hold nothing: later writes use them, and `vacuum` returns them to the disk.
    """

    database: int
    log: int
    free: int


def size(db: sqlite3.Cursor) -> DatabaseSize:
    """Measure the file and its log.

    Args:
        db: a cursor.

    Returns:
        The sizes, in bytes.
    """

    def pragma(name: str) -> int:
        found: int = db.execute(f"PRAGMA {name}").fetchone()[0]
        return found

    page = pragma("page_size")
    log = Path(f"{file_of(db)}-wal")
    return DatabaseSize(
        database=pragma("page_count") * page,
        log=log.stat().st_size if log.exists() else 0,
        free=pragma("freelist_count") * page,
    )


def vacuum(db: sqlite3.Cursor) -> bool:
    """Rewrite the file without free pages, and then `truncate` its log: only then the file itself shrinks.

    This also removes every byte of deleted rows. `PRAGMA secure_delete` does not: when SQLite moves a row from one page
    to another, it leaves a copy in the unused part of the old page, and a deletion overwrites only the row in the new
    page. (Measured on files into which several threads were written in turn: with secure_delete on, a search found 40
    to 70 pieces of 15 deleted threads; after VACUUM, none.)

    Args:
        db: a cursor outside of a transaction.

    Returns:
        What `truncate` returns.
    """
    db.execute("VACUUM")
    return truncate(db)


def truncate(db: sqlite3.Cursor) -> bool:
    """Fold the log into the file and empty the log, without waiting for other connections.

    Args:
        db: a cursor outside of a transaction.

    Returns:
        False if another connection still reads from the log, or writes.
    """
    # SQLite would hold the write lock while it waits for readers, and block all other writers for up to the busy
    # timeout. The caller repeats this instead.
    waits: int = db.execute("PRAGMA busy_timeout").fetchone()[0]
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy: int = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        db.execute(f"PRAGMA busy_timeout = {waits}")
    return not busy


def file_of(db: sqlite3.Cursor) -> str:
    """Return the path of the main database; "" for one in memory.

    Args:
        db: a cursor.

    Returns:
        The path, as SQLite knows it.
    """
    files: dict[str, str] = {name: file for _, name, file in db.execute("PRAGMA database_list")}
    return files["main"]


async def copy(source: Callable[[], sqlite3.Connection], name: str, target: Path) -> None:
    """Write the database, as of one moment, to a new file.

    It is read in one transaction of a separate connection, which blocks no writer: later commits remain in the log,
    which grows until the copy is complete.

    Args:
        source: opens that connection, in the thread that copies.
        name: how messages name the database.
        target: path of the new file.

    Raises:
        StorageError: one of the two cannot be read or written. There is no copy.
    """
    stopped = threading.Event()
    failure: list[BaseException] = []

    def work(waiter: Waiter) -> None:
        try:
            try:
                connection = source()
            except sqlite3.Error as error:
                raise translate(error, name) from error
            with closing(connection):
                connection.execute("BEGIN")
                # The first read fixes the moment that the transaction sees.
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
                copy_now(connection, target, stopped)
        except BaseException as error:
            failure.append(error)
        finally:
            wake((waiter,))

    threads: list[threading.Thread] = []

    def start(waiter: Waiter) -> None:
        thread = threading.Thread(target=work, args=(waiter,), name=f"SqliteSaver backup of {name}", daemon=True)
        thread.start()
        threads.append(thread)

    # `wait_until_woken` returns only when the thread has ended, so a cancellation cannot stop the copy by itself. A
    # child task is cancelled at once, and its `finally` asks the thread to stop.
    async with anyio.create_task_group() as group:
        start_soon(group, _call_when_cancelled, stopped.set)
        try:
            await wait_until_woken(start)
        finally:
            for thread in threads:
                thread.join()  # waking this task was its last act: this takes microseconds
        group.cancel_scope.cancel()
    if failure:
        raise failure[0]


def copy_now(connection: sqlite3.Connection, target: Path, stopped: threading.Event | None = None) -> None:
    """Copy what a connection sees. The file gets its name when it is complete and on disk.

    Args:
        connection: the source.
        target: path of the new file.
        stopped: set to cancel the copy.

    Raises:
        StorageError: one of the two cannot be read or written. There is no copy.
    """
    file = AtomicFile(target)

    def look(*_: int) -> None:
        if stopped is not None and stopped.is_set():
            raise _BackupCancelled

    try:
        os.close(file.create())
        with closing(sqlite3.connect(file.temporary, isolation_level=None)) as made:
            # A rollback journal could only restore the empty file, and SQLite leaves it behind after a disk error. The
            # commit syncs the file without a journal, too.
            made.execute("PRAGMA journal_mode = OFF")
            connection.backup(made, pages=PAGES, progress=look)
        file.finish(replace=False)
    except BaseException as error:
        file.discard()
        if isinstance(error, FileExistsError):
            raise _already_exists(target) from error
        if isinstance(error, OSError):
            raise StorageError(f"{target}: the backup cannot be written ({error}). It was not made.") from error
        raise translate(error, str(target)) from error


def new_file(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a copy to be made.

    Args:
        path: as the user passed it.

    Returns:
        The path.

    Raises:
        StorageError: a file exists there.
    """
    target = Path(path).absolute()
    if target.exists():
        raise _already_exists(target)
    return target


def _already_exists(target: Path) -> StorageError:
    return StorageError(f"{target} exists already: give the backup another name. Nothing was copied.")


class _BackupCancelled(Exception):
    """The caller of the backup was cancelled."""


async def _call_when_cancelled(act: Callable[[], None]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        act()
