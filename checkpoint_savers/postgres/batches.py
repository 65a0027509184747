"""Pass the rows of a batch to a statement, as a table in its FROM clause.

Most batches have one write. Its statement is prepared, because planning it takes longer than executing it. The server
keeps a generic plan for a prepared statement, if it estimates that plans for the actual values cost no less. In a
generic plan it assumes ten rows for an array, so a single row is passed as VALUES instead.

A batch of several writes is passed as arrays, and planned each time. Joined with ten rows, a small table is best read
as a whole, and a generic plan would do so even after the table has grown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

Columns: TypeAlias = Mapping[str, str]
"""The SQL types of a table's columns, by name."""


def table_of(name: str, columns: Columns, count: int) -> str:
    """Return the text of a table for a FROM clause. `values_of` returns the values of its placeholders.

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
    """Return the argument `prepare=` of psycopg's `execute`.

    Args:
        count: the number of writes in the batch.

    Returns:
        None (prepare the statement when it has been executed often enough) for one write, False (never) for several.
    """
    return None if count == 1 else False


def values_of(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the values of the placeholders that `table_of` makes.

    Args:
        rows: the rows of the table, at least one.
    """
    first, *others = rows
    return [list(column) for column in zip(first, *others, strict=True)] if others else list(first)
