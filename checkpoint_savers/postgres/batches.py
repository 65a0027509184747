"""The values of a batch as a table of a statement.

Most batches have one write. Its statement is prepared: planning it takes longer than executing it. The server keeps the
plan of a prepared statement if it expects that to cost as little as one that is made for the values. Of an array it
expects ten rows, so one row is a list of values. A batch of several writes is planned each time: for ten rows of a
small table, a plan reads the whole table, and it would be kept while the table grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

Columns: TypeAlias = Mapping[str, str]
"""The names of a table's columns, and their types."""


def table_of(name: str, columns: Columns, count: int) -> str:
    """Return a table for a FROM clause, with placeholders for `values_of`.

    Args:
        name: the name of the table.
        columns: its columns.
        count: the number of its rows, 1 or more.
    """
    if count == 1:
        rows = f"(VALUES ({', '.join([f'%b::{each}' for each in columns.values()])}))"
    else:
        rows = f"unnest({', '.join([f'%b::{each}[]' for each in columns.values()])})"
    return f"{rows} AS {name} ({', '.join(columns)})"


def may_prepare(count: int) -> Literal[False] | None:
    """Return what `execute` is to be passed as `prepare`.

    Args:
        count: the number of writes of a batch.

    Returns:
        None if the statement may be prepared, False if not.
    """
    return None if count == 1 else False


def values_of(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the values for the placeholders of a table.

    Args:
        rows: its rows, at least one.
    """
    first, *others = rows
    return [list(column) for column in zip(first, *others, strict=True)] if others else list(first)
