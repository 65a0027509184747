"""What PostgreSQL, psycopg and its pool raise, said in this package's words."""

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
"""The server shuts down, has crashed, does not take connections yet, or has ended an idle one."""


_RETRYABLE = frozenset(("40001", "40P01"))
"""Of transactions that met each other, the server has rolled this one back."""


class UnreachableError(Exception):
    """No connection could be had, or it broke. The cause says why."""


def is_connection_lost(error: BaseException, connection: psycopg.AsyncConnection[object] | None) -> bool:
    """Whether the connection has gone, so that what it was to do may have been done or not, and another is needed."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate or ""
    return state in _CONNECTION_LOST or state.startswith("08") or (connection is not None and connection.broken)


def is_retryable(error: psycopg.Error) -> bool:
    """Whether the same may go well when it is tried again at once: nothing of it was done."""
    return error.sqlstate in _RETRYABLE


def affects_all_writes(error: BaseException) -> bool:
    """Whether an error has nothing to do with what was to be written, so that trying that by itself is no use."""
    state = getattr(error, "sqlstate", None) or ""
    return (
        isinstance(error, UnreachableError | psycopg_pool.PoolClosed) or state[:2] in ("53", "58") or state == "25006"
    )


def translate(error: BaseException, name: str) -> BaseException:
    """The error to raise for one that work on a database raised; psycopg's becomes its cause.

    Errors that are neither psycopg's nor of the connection stay what they are.

    Args:
        name: how messages call the database.
    """
    if isinstance(error, UnreachableError):
        said: CheckpointError = StorageError(f"{name}: {error}")
        said.__cause__ = error.__cause__
        return said
    if isinstance(error, psycopg_pool.PoolClosed):
        said = SaverClosedError(
            f"{name}: the pool that the saver was given is not open. Open it first, and close it last"
        )
    elif isinstance(error, psycopg.Error | psycopg.Warning):
        said = _translate_sqlstate(error, name)
    elif isinstance(error, UnicodeDecodeError):
        said = CorruptCheckpointError(name, f"a stored text is damaged ({error})")
    else:
        return error
    said.__cause__ = error
    return said


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
        # "no such table" and the like. Statements are constant, and right for all tables that a saver has made.
        return CorruptCheckpointError(name, f"its tables are not as a saver made them ({what})")
    if state[:2] == "23":
        return StorageError(f"{name}: a row is stored there already, or cannot be ({what}). Nothing was stored.")
    return StorageError(f"{name}: {what}. Nothing was stored.")
