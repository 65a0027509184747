"""Tables and statements of `SqliteStore`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from .port import Answer, Batch, Find, Row, Scan, Spaces, page_of_rows, page_of_spaces

VERSION: Final = 1
"""The version of this layout, in the one row of `store_version`. A store of a greater one is refused and not changed.
"""

# With a rowid, as only tables with one store large rows without waste. A search uses `by_age`, a covering index for
# everything that it has to know of rows that it does not return.
TABLES: Final = {
    "store_version": "CREATE TABLE store_version (version INTEGER NOT NULL) STRICT",
    "store_item": """
        CREATE TABLE store_item (
            id INTEGER NOT NULL PRIMARY KEY,
            namespace BLOB NOT NULL,
            key BLOB NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            ttl REAL,
            expires_at REAL,
            frame BLOB NOT NULL,
            UNIQUE (namespace, key)
        ) STRICT
    """,
    "store_item_by_age": ("CREATE INDEX store_item_by_age ON store_item (namespace, updated_at DESC, key, expires_at)"),
    "store_item_by_expiry": (
        "CREATE INDEX store_item_by_expiry ON store_item (expires_at) WHERE expires_at IS NOT NULL"
    ),
}
"""The statements that make the parts of a store, by name."""

_NOT_EXPIRED: Final = "(expires_at IS NULL OR expires_at > ?)"
_COLUMNS: Final = "namespace, key, created_at, updated_at, ttl, frame"
_FIND: Final = f"SELECT {_COLUMNS} FROM store_item WHERE namespace = ? AND key = ? AND {_NOT_EXPIRED}"
_ROW: Final = f"SELECT {_COLUMNS} FROM store_item WHERE id = ?"
_IS_ALONE: Final = "SELECT NOT EXISTS (SELECT 1 FROM store_item WHERE namespace > ? AND namespace < ?)"
_OF_ONE: Final = (
    "SELECT id FROM store_item INDEXED BY store_item_by_age "
    f"WHERE namespace = ? AND {_NOT_EXPIRED} ORDER BY updated_at DESC, key LIMIT ?"
)
_OF_ALL: Final = (
    "SELECT id FROM store_item INDEXED BY store_item_by_age "
    f"WHERE namespace >= ? AND namespace < ? AND {_NOT_EXPIRED} ORDER BY updated_at DESC, namespace, key LIMIT ?"
)
_SPACE: Final = (
    "SELECT namespace FROM store_item INDEXED BY store_item_by_age "
    f"WHERE namespace >= ? AND namespace < ? AND {_NOT_EXPIRED} ORDER BY namespace LIMIT 1"
)
_REFRESH: Final = (
    # Another process may have put the item again since it was found: its time is not shortened.
    "UPDATE store_item SET expires_at = max(expires_at, ? + ttl) WHERE namespace = ? AND key = ? AND ttl IS NOT NULL"
)
_REMOVE: Final = "DELETE FROM store_item WHERE namespace = ? AND key = ?"
_PUT: Final = (
    "INSERT INTO store_item (namespace, key, created_at, updated_at, ttl, expires_at, frame) "
    "VALUES (?1, ?2, ?3, ?3, ?4, ?3 + ?4, ?5) ON CONFLICT (namespace, key) DO UPDATE SET "
    "created_at = CASE WHEN expires_at <= ?3 THEN ?3 ELSE created_at END, "
    "updated_at = ?3, ttl = ?4, expires_at = ?3 + ?4, frame = ?5"
)
_SWEEP: Final = (
    "DELETE FROM store_item WHERE id IN (SELECT id FROM store_item WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)


class ReadResults(NamedTuple):
    """The answers of a batch's reads.

    Attributes:
        answers: as of `Outcome`.
        due: namespaces and keys of the rows whose ttl starts again.
    """

    answers: list[Answer]
    due: list[tuple[bytes, bytes]]


def read(db: sqlite3.Cursor, batch: Batch) -> ReadResults:
    """Execute a batch's reads.

    Args:
        db: a cursor in a transaction.
        batch: the batch.

    Returns:
        The answers.
    """
    answers, due = list[Answer](), list[tuple[bytes, bytes]]()
    for one in batch.reads:
        match one:
            case Find():
                row = _find(db, one, batch.now)
                answers.append(row)
                rows = [] if row is None else [row]
            case Scan():
                rows = _scan(db, one, batch.now)
                answers.append(rows)
            case Spaces():
                answers.append(page_of_spaces(partial(_space_from, db, one.end, batch.now), one))
                continue
        if one.refresh:
            due += [(row.namespace, row.key) for row in rows if row.ttl is not None]
    return ReadResults(answers, due)


def _find(db: sqlite3.Cursor, find: Find, now: float) -> Row | None:
    raw = db.execute(_FIND, (find.namespace, find.key, now)).fetchone()
    return None if raw is None else Row(*raw)


def _scan(db: sqlite3.Cursor, scan: Scan, now: float) -> list[Row]:
    most = scan.offset + scan.limit if scan.accepts is None else -1  # -1: no limit, as the filter decides
    with closing(db.connection.cursor()) as ids:  # an open cursor would keep the read transaction open
        if scan.start and db.execute(_IS_ALONE, (scan.start, scan.end)).fetchone()[0]:
            ids.execute(_OF_ONE, (scan.start, now, most))
        else:
            ids.execute(_OF_ALL, (scan.start, scan.end, now, most))
        return page_of_rows((Row(*db.execute(_ROW, id).fetchone()) for id in ids), scan)


def _space_from(db: sqlite3.Cursor, end: bytes, now: float, at: bytes) -> bytes | None:
    row: tuple[bytes] | None = db.execute(_SPACE, (at, end, now)).fetchone()
    return None if row is None else row[0]


def refresh(db: sqlite3.Cursor, due: list[tuple[bytes, bytes]], now: float) -> None:
    """Start the ttl of rows again.

    Args:
        db: a cursor in a writing transaction.
        due: namespaces and keys.
        now: unix seconds.
    """
    db.executemany(_REFRESH, [(now, *address) for address in due])


def write(db: sqlite3.Cursor, batch: Batch) -> int:
    """Execute a batch's writes.

    Args:
        db: a cursor in a writing transaction.
        batch: the batch.

    Returns:
        The number of expired rows that were removed.
    """
    for one in batch.writes:
        if one.frame is None:
            db.execute(_REMOVE, (one.namespace, one.key))
        else:
            db.execute(_PUT, (one.namespace, one.key, batch.now, one.ttl, one.frame))
    return db.execute(_SWEEP, (batch.now, batch.sweeps)).rowcount if batch.sweeps else 0
