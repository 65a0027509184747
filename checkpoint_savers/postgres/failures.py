"""Translate exceptions of PostgreSQL, psycopg and its pool to this package's."""

from __future__ import annotations

import psycopg
import psycopg_pool

from ..errors import (
    CheckpointError,
    CorruptCheckpointError,
    SaverClosedError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
)

_CONNECTION_LOST = frozenset(("57P01", "57P02", "57P03", "57P05"))
"""SQLSTATEs: the server shuts down, has crashed, does not accept connections yet, or has ended an idle one."""


_RETRYABLE = frozenset(("40001", "40P01"))
"""SQLSTATEs of transactions that the server rolled back because they conflicted with another."""

_UNPREPARED = frozenset(("26000", "42P05"))
"""SQLSTATEs: there is no prepared statement of this name; there is one already."""


class UnreachableError(Exception):
    """No connection could be made, or it broke. The cause says why."""


def is_connection_lost(error: BaseException, connection: psycopg.AsyncConnection[object] | None) -> bool:
    """Return True if the connection is gone.

    Its statement may then have been executed or not, and another connection is needed.

    Args:
        error: what was raised.
        connection: the connection in use, or None.

    Returns:
        True if it is gone.
    """
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate or ""
    return state in _CONNECTION_LOST or state.startswith("08") or (connection is not None and connection.broken)


def is_retryable(error: psycopg.Error) -> bool:
    """Return True if the same statement may succeed when it is repeated at once: nothing of it was stored.

    Args:
        error: what psycopg raised.

    Returns:
        True for serialization failures and deadlocks.
    """
    return error.sqlstate in _RETRYABLE


def is_unprepared(error: psycopg.Error) -> bool:
    """Return True if the server does not execute a prepared statement, but would execute its text.

    It has dropped the statement (`DEALLOCATE ALL`, `DISCARD ALL`), has another one of that name, or a table that the
    statement reads has other columns than when it was prepared. psycopg does not notice, so that each later execution
    on the connection would fail, too.

    Args:
        error: what psycopg raised.

    Returns:
        True if the statement was not executed, and can be on another connection.
    """
    state = error.sqlstate
    return state in _UNPREPARED or (state == "0A000" and error.diag.source_function == "RevalidateCachedQuery")


def affects_all_writes(error: BaseException) -> bool:
    """Return True if an error does not depend on what was to be written, so that trying a part of it is of no use.

    Args:
        error: what was raised.

    Returns:
        True for errors of the connection, of resources (53), of the system (58), and of a read-only server.
    """
    state = getattr(error, "sqlstate", None) or ""
    return (
        isinstance(error, UnreachableError | psycopg_pool.PoolClosed) or state[:2] in ("53", "58") or state == "25006"
    )


def translate(error: BaseException, name: str) -> BaseException:
    """Return the error to raise for one that work on a database raised.

    Args:
        error: what was raised.
        name: how messages name the database.

    Returns:
        A `CheckpointError` whose cause is psycopg's error; errors that are neither psycopg's nor the connection's
        unchanged.
    """
    if isinstance(error, UnreachableError):
        translated: CheckpointError = StorageError(f"{name}: {error}")
        translated.__cause__ = error.__cause__
        return translated
    if isinstance(error, psycopg_pool.PoolClosed):
        translated = SaverClosedError(
            f"{name}: the pool that the saver was given is not open. Open it first, and close it last"
        )
    elif isinstance(error, psycopg.Error | psycopg.Warning):
        translated = _translate_sqlstate(error, name)
    elif isinstance(error, UnicodeDecodeError):
        translated = CorruptCheckpointError(name, f"a stored text is damaged ({error})")
    else:
        return error
    translated.__cause__ = error
    return translated


def _translate_sqlstate(error: psycopg.Error | psycopg.Warning, name: str) -> CheckpointError:
    state = getattr(error, "sqlstate", None) or ""
    what = f"{type(error).__name__}: {str(error).strip()}"
    match state:
        case "53100":
            return StorageFullError(f"{name}: the server's disk is full ({what}). Nothing was stored; make room.")
        case "25006":
            return StorageReadOnlyError(
                f"{name}: the database cannot be written ({what}). Is it a standby, or set to read-only?"
            )
        case "55P03" | "40P01" | "40001":
            return StorageLockedError(
                f"{name}: another connection holds a lock for longer than the busy timeout ({what}). "
                "Nothing was stored. End what holds it, or pass a longer busy_timeout."
            )
        case "42501":
            return StorageError(f"{name}: the role may not do that ({what}). Nothing was stored; GRANT what it needs.")
        case "3D000" | "28000" | "28P01":
            return StorageError(f"{name}: the server refuses the connection ({what}).")
        case "54000":
            return StorageError(
                f"{name}: an id is too long for an index of PostgreSQL, which takes about 2700 bytes ({what}). "
                "Nothing was stored."
            )
        case "57014":
            return StorageError(f"{name}: the server cancelled the statement ({what}). Nothing was stored.")
        case _:
            pass
    if state[:2] == "XX":
        return CorruptCheckpointError(name, f"the server finds it damaged ({what})")
    if state[:2] in ("42", "3F"):
        # "no such table" and the like. Statements are constant, and fit all tables that a saver has made.
        return CorruptCheckpointError(name, f"its tables are not as a saver made them ({what})")
    if state[:2] == "23":
        return StorageError(f"{name}: a row is stored there already, or cannot be ({what}). Nothing was stored.")
    return StorageError(f"{name}: {what}. Nothing was stored.")
