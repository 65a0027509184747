"""Access to every stored value of a saver's SQLite file, so that tests can damage it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkpoint_savers.conformance import Cell

LOOSE = re.compile(r"\b(?:TEXT|REAL|ANY|BLOB|INTEGER(?!\s+(?:NOT NULL\s+)?PRIMARY KEY)|NOT NULL|STRICT(?:, )?)\b")
"""The column types and constraints that restrict a table's values, except those of its rowid, which is always a number."""


@contextmanager
def cells_of(path: Path) -> Iterator[Callable[[], list[Cell]]]:
    """Return every value of every table of a file as a cell. From then on the tables accept values of any type, as a
    damaged file may hold them. Writes do not wait for the disk."""
    opened: list[sqlite3.Connection] = []

    def cells() -> list[Cell]:
        db = sqlite3.connect(path, isolation_level=None, timeout=60)
        opened.append(db)
        db.execute("PRAGMA synchronous = OFF")
        _loosen(db)
        return list(_cells(db))

    try:
        yield cells
    finally:
        for db in opened:
            db.close()


def _cells(db: sqlite3.Connection) -> Iterator[Cell]:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    for table in tables:
        columns = db.execute(f"PRAGMA table_info({table})").fetchall()
        names = [column[1] for column in columns]
        keys = [column[1] for column in columns if column[5]]
        for values in db.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall():
            row = _Row(db, table, dict(zip(names, values, strict=True)), keys)
            yield from map(row.cell, names)


def _loosen(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA writable_schema = ON")
    for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall():
        loose = LOOSE.sub("", sql)
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (loose, name))
    (version,) = db.execute("PRAGMA schema_version").fetchone()
    db.execute(f"PRAGMA schema_version = {version + 1}")
    db.execute("PRAGMA writable_schema = RESET")


class _Row:
    """One row. It is found by its key, and the key may be the damaged value."""

    def __init__(self, db: sqlite3.Connection, table: str, values: dict[str, Any], keys: Sequence[str]) -> None:
        self._db = db
        self._table = table
        self._where = {name: values[name] for name in keys}

    def cell(self, name: str) -> Cell:
        return Cell(f"{self._table}.{name}", lambda: self._get(name), lambda value: self._put(name, value))

    def _get(self, name: str) -> object:
        rows = self._db.execute(f"SELECT {name} FROM {self._table} WHERE {self._key}", self._found)
        ((value,),) = rows.fetchall()
        return value

    def _put(self, name: str, value: object) -> None:
        statement = f"UPDATE {self._table} SET {name} = ? WHERE {self._key}"
        assert self._db.execute(statement, (value, *self._found)).rowcount == 1
        if name in self._where:
            self._where[name] = value

    @property
    def _key(self) -> str:
        return " AND ".join(f"{name} IS ?" for name in self._where)

    @property
    def _found(self) -> tuple[Any, ...]:
        return tuple(self._where.values())
