"""Translate SQLite's exceptions to this package's."""

from __future__ import annotations

import sqlite3

from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
)


def translate(error: BaseException, path: str) -> BaseException:
    """Return the error to raise for one that work on a database raised.

    Args:
        error: what was raised.
        path: how messages name the database.

    Returns:
        A `CheckpointError` whose cause is the SQLite error; other errors unchanged.
    """
    translated: CheckpointError
    if isinstance(error, sqlite3.Error | sqlite3.Warning):
        translated = _translate_code(error, path)
    elif isinstance(error, UnicodeDecodeError):
        # SQLite's message quotes the damaged file, and the sqlite3 module cannot decode it.
        translated = CorruptCheckpointError(path, f"SQLite finds the file damaged ({error})")
    else:
        return error
    translated.__cause__ = error
    return translated


def is_busy(error: sqlite3.Error) -> bool:
    """Return True if another connection holds a lock, so that a retry may succeed.

    Args:
        error: what SQLite raised.

    Returns:
        True for SQLITE_BUSY and SQLITE_LOCKED.
    """
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_read_only(error: sqlite3.Error) -> bool:
    """Return True if the database cannot be written.

    Args:
        error: what SQLite raised.

    Returns:
        True for SQLITE_READONLY.
    """
    return _code(error) == sqlite3.SQLITE_READONLY


def is_about_tables(error: sqlite3.Error) -> bool:
    """Return True if a statement does not fit the existing tables.

    Args:
        error: what SQLite raised.

    Returns:
        True for SQLITE_ERROR.
    """
    return _code(error) == sqlite3.SQLITE_ERROR


def _code(error: BaseException) -> int:
    """Return the primary result code; 0 for errors of the Python module itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _translate_code(error: sqlite3.Error | sqlite3.Warning, path: str) -> CheckpointError:
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageLockedError(
                f"{path}: another connection holds the database's lock for longer than the busy timeout ({error}). "
                "Nothing was stored. End what holds it, or pass a longer busy_timeout."
            )
        case sqlite3.SQLITE_READONLY:
            advice = ""
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DIRECTORY:
                advice = f" It can be read as 'file:{path}?immutable=1', as long as no process writes to it."
            return StorageReadOnlyError(
                f"{path}: the database cannot be written ({error}). "
                f"It was opened read-only, or its file or folder does not allow writing.{advice}"
            )
        case sqlite3.SQLITE_FULL:
            return StorageFullError(
                f"{path}: the database or its disk is full ({error}). Nothing was stored; make room."
            )
        case sqlite3.SQLITE_CORRUPT:
            return CorruptCheckpointError(path, f"SQLite finds the file damaged ({error})")
        case sqlite3.SQLITE_NOTADB:
            return CorruptCheckpointError(path, "it is not an SQLite database")
        case sqlite3.SQLITE_ERROR:
            # "no such column" and the like. Statements are constant, and fit every file that a saver has made.
            return CorruptCheckpointError(path, f"its tables are not as a saver made them ({error})")
        case 0 if "decode" in str(error):  # the module's own error for text that is not UTF-8 has no code
            return CorruptCheckpointError(path, f"a stored text is damaged ({error})")
        case sqlite3.SQLITE_CANTOPEN:
            return StorageError(
                f"{path}: the file cannot be opened ({error}). Does its folder exist, and may it be read?"
            )
        case sqlite3.SQLITE_CONSTRAINT:
            return StorageError(f"{path}: a row is stored there already, or cannot be ({error}). Nothing was stored.")
        case _:
            return StorageError(f"{path}: {type(error).__name__}: {error}. Nothing was stored.")
