"""The file as a whole: measured, rewritten, copied. What changes it runs outside of transactions."""

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
from ..bridge import Waiter, tell, until
from ..children import start_soon
from ..errors import StorageError
from .failures import translate

PAGES = 256
"""Pages of a backup that are copied in one go: one MB, in about a millisecond."""


class DatabaseSize(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on disk.

    Attributes:
        database: of the file.
        log: of the write-ahead log beside it. It is folded in from time to time, and when the last saver closes.
        free: of pages in the file that hold nothing: what comes next goes there, and `vacuum` gives them back.
    """

    database: int
    log: int
    free: int


def size(db: sqlite3.Cursor) -> DatabaseSize:
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
    """Rewrite the file without the pages that hold nothing, and then as `truncate`: it shrinks when the log is in it.

    It is the way to leave no byte of what was deleted, too. `PRAGMA secure_delete` is not: when SQLite moves rows from
    one page to another, it lets copies of them lie in the part of the page that it does not use, and a row that is
    deleted later is overwritten in the one place where it is then. (Tried on files in which threads took turns: with
    secure_delete on, a search found 40 to 70 pieces of 15 deleted threads; after VACUUM, none.)
    """
    db.execute("VACUUM")
    return truncate(db)


def truncate(db: sqlite3.Cursor) -> bool:
    """Fold the log into the file, and make it empty. False when another connection still reads from it, or writes.

    Nobody is waited for.
    """
    waits: int = db.execute("PRAGMA busy_timeout").fetchone()[0]
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy: int = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        db.execute(f"PRAGMA busy_timeout = {waits}")
    return not busy


def file_of(db: sqlite3.Cursor) -> str:
    """The path of the main database; "" in memory."""
    files: dict[str, str] = {name: file for _, name, file in db.execute("PRAGMA database_list")}
    return files["main"]


async def copy(source: Callable[[], sqlite3.Connection], name: str, target: Path) -> None:
    """Write the database, as it is at one moment, to a new file.

    It is read in one transaction of a connection of its own, which holds up nobody who writes: what is written
    meanwhile stays in the log, which grows until the copy is made.

    Args:
        source: opens that connection, in the thread that copies.
        name: what messages call the database.

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
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # now it has its moment
                copy_now(connection, target, stopped)
        except BaseException as error:
            failure.append(error)
        finally:
            tell((waiter,))

    threads: list[threading.Thread] = []

    def start(waiter: Waiter) -> None:
        thread = threading.Thread(target=work, args=(waiter,), name=f"SqliteSaver backup of {name}", daemon=True)
        thread.start()
        threads.append(thread)

    async with anyio.create_task_group() as group:
        start_soon(group, _call_when_cancelled, stopped.set)
        try:
            await until(start)
        finally:
            for thread in threads:
                thread.join()  # it has told, and has nothing left to do: this takes microseconds
        group.cancel_scope.cancel()
    if failure:
        raise failure[0]


def copy_now(connection: sqlite3.Connection, target: Path, stopped: threading.Event | None = None) -> None:
    """Copy what a connection sees. The file gets its name when it is complete and on disk.

    Raises:
        StorageError: as `copy` does.
    """
    file = AtomicFile(target)

    def look(*_: int) -> None:
        if stopped is not None and stopped.is_set():
            raise _BackupCancelled

    try:
        os.close(file.create())
        with closing(sqlite3.connect(file.temporary, isolation_level=None)) as made:
            # A journal could only bring back the empty file, and SQLite leaves it behind after an error of the disk.
            # The commit syncs the file without it, too.
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
    """Where a copy goes. Raises `StorageError` when something is there already."""
    target = Path(path).absolute()
    if target.exists():
        raise _already_exists(target)
    return target


def _already_exists(target: Path) -> StorageError:
    return StorageError(f"{target} is there already: give the backup another name. Nothing was copied.")


class _BackupCancelled(Exception):
    """Whoever wanted the copy was cancelled."""


async def _call_when_cancelled(act: Callable[[], None]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        act()
