"""Access to every stored value of a saver's PostgreSQL tables, so that tests can damage it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from checkpoint_savers.conformance import Cell

KEYS: Mapping[str, tuple[str, ...]] = {
    "pregel_threads": ("thread",),
    "pregel_heads": ("thread", "ns"),
    "pregel_checkpoints": ("thread", "checkpoint_id", "ns"),
    "pregel_records": ("thread", "ns", "checkpoint_id", "task_id"),
    "pregel_events": ("thread", "checkpoint_id", "epoch", "position"),
}


@contextmanager
def cells_of(conninfo: str, schema: str) -> Iterator[Callable[[], list[Cell]]]:
    """Return every value of every table as a cell. A cell accepts values of its column's type only."""
    opened: list[psycopg.Connection] = []

    def cells() -> list[Cell]:
        db = psycopg.connect(conninfo, autocommit=True)
        opened.append(db)
        return list(_cells(db, schema))

    try:
        yield cells
    finally:
        for db in opened:
            db.close()


def _cells(db: psycopg.Connection, schema: str) -> Iterator[Cell]:
    for table, keys in KEYS.items():
        name = sql.Identifier(schema, table)
        rows = db.execute(sql.SQL("SELECT * FROM {}").format(name))
        assert rows.description is not None
        columns = [column.name for column in rows.description]
        for values in rows.fetchall():
            row = dict(zip(columns, values, strict=True))
            where = {key: row[key] for key in keys}
            yield from (_cell(db, table, name, where, column) for column in columns)


def _cell(db: psycopg.Connection, table: str, name: sql.Identifier, where: dict[str, Any], column: str) -> Cell:
    """One stored value. Its row is found by key, and the key may be the damaged value."""
    here = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(key)) for key in where)
    value_of = sql.Identifier(column)
    select = sql.SQL("SELECT {} FROM {} WHERE {}").format(value_of, name, here)
    update = sql.SQL("UPDATE {} SET {} = %s WHERE {} RETURNING {}").format(name, value_of, here, value_of)

    def get() -> object:
        found = db.execute(select, tuple(where.values())).fetchone()
        assert found is not None
        return found[0]

    def put(value: object) -> None:
        found = db.execute(update, (value, *where.values())).fetchone()
        assert found is not None
        if column in where:
            (where[column],) = found  # as the database stored the value

    return Cell(f"{table}.{column}", get, put)
