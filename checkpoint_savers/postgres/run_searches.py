"""Read rows of accepted runs: one by its id, the listings of dispatchers and keepers, and searches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

from ..runs.port import ActiveThread
from ..runs.queries import RowPosition, RunQuery, ThreadQuery
from ..runs.rows import RunRow, RunThreadRow
from .connections import PostgresCursor, fetch
from .escaping import escape
from .rows import Raw
from .run_rows import RUN_COLUMNS, THREAD_COLUMNS, active_of, json_text, run_of, thread_row_of
from .run_tables import METADATA_AS_JSON

# `metadata` alone is the saver's thread's: the other table has no such column.
_THREADS: Final = "{s}.pregel_run_threads r LEFT JOIN {s}.pregel_threads t ON t.thread_id = r.thread_id"
# The planner does not see that the condition on metadata is never true for a thread without the saver's row, and would
# not begin with the index of that table.
_FOUND_THREADS: Final = "{s}.pregel_run_threads r JOIN {s}.pregel_threads t ON t.thread_id = r.thread_id"
# The row of a thread is empty while a transaction has inserted it only to lock it; others do not see it then.
_GET_RUN: Final = f"SELECT {RUN_COLUMNS} FROM {{s}}.pregel_runs u WHERE u.run_id = %b"
_GET_THREAD: Final = f"SELECT {THREAD_COLUMNS} FROM {_THREADS} WHERE r.thread_id = %b"
_GET_RUNS: Final = f"SELECT {RUN_COLUMNS} FROM {{s}}.pregel_runs u WHERE u.run_id = ANY(%b)"
_QUEUED: Final = f"""
SELECT {THREAD_COLUMNS} FROM {_THREADS}
WHERE r.activation = 'queued' AND (%b::text[] = '{{{{}}}}' OR r.route = ANY(%b))
ORDER BY r.priority DESC, r.activation_at LIMIT %b
"""
# `now()` and not `clock_timestamp()`: an index can be searched for a value that is the same for the whole statement.
_DUE: Final = f"""
SELECT {THREAD_COLUMNS} FROM {_THREADS}
WHERE r.wake_at > 0 AND r.wake_at <= coalesce(%b::float8, extract(epoch FROM now())::float8)
ORDER BY r.wake_at LIMIT %b
"""
_ACTIVE: Final = f"""
SELECT {THREAD_COLUMNS}, t.owner, t.expires_at FROM {_THREADS}
WHERE r.activation = 'active' ORDER BY r.activation_at LIMIT %b
"""
_MOST: Final = 2**63 - 1

Condition = tuple[str, tuple[object, ...]]
"""A part of a WHERE clause, and its values."""


class RunSearches:
    """The statements of one schema.

    Args:
        schema: quoted.
    """

    def __init__(self, schema: str) -> None:
        self._schema = schema

    async def get_run(self, cursor: PostgresCursor, run_id: str) -> RunRow | None:
        """Return a run, or None. See `RunStore.get_run`.

        Args:
            cursor: of a connection in autocommit mode.
            run_id: the run's id.
        """
        rows = await self._all(cursor, _GET_RUN, escape(run_id), prepare=None)
        return run_of(rows[0]) if rows else None

    async def get_thread(self, cursor: PostgresCursor, thread_id: str) -> RunThreadRow | None:
        """Return the row of a thread, or None. See `RunStore.get_thread`.

        Args:
            cursor: of a connection in autocommit mode.
            thread_id: the thread.
        """
        rows = await self._all(cursor, _GET_THREAD, escape(thread_id), prepare=None)
        return thread_row_of(rows[0]) if rows else None

    async def get_runs(self, cursor: PostgresCursor, run_ids: Collection[str]) -> tuple[RunRow, ...]:
        """Return several runs. See `RunStore.get_runs`.

        Args:
            cursor: of a connection in autocommit mode.
            run_ids: the ids of the runs.
        """
        return tuple(map(run_of, await self._all(cursor, _GET_RUNS, list(map(escape, run_ids)))))

    async def queued(self, cursor: PostgresCursor, routes: Collection[str], limit: int) -> tuple[RunThreadRow, ...]:
        """List queued threads. See `RunStore.queued`.

        Args:
            cursor: of a connection in autocommit mode.
            routes: only threads with one of these routes; empty for all.
            limit: number of rows, at most.
        """
        named = list(map(escape, routes))
        return tuple(map(thread_row_of, await self._all(cursor, _QUEUED, named, named, _bounded(limit))))

    async def due(self, cursor: PostgresCursor, now: float | None, limit: int) -> tuple[RunThreadRow, ...]:
        """List threads that have become due. See `RunStore.due`.

        Args:
            cursor: of a connection in autocommit mode.
            now: unix seconds; None for the server's time.
            limit: number of rows, at most.
        """
        return tuple(map(thread_row_of, await self._all(cursor, _DUE, now, _bounded(limit))))

    async def active(self, cursor: PostgresCursor, limit: int) -> tuple[ActiveThread, ...]:
        """List active threads. See `RunStore.active`.

        Args:
            cursor: of a connection in autocommit mode.
            limit: number of rows, at most.
        """
        return tuple(map(active_of, await self._all(cursor, _ACTIVE, _bounded(limit))))

    async def find_runs(
        self, cursor: PostgresCursor, query: RunQuery, after: RowPosition | None, limit: int
    ) -> list[RunRow]:
        """Return runs, newest first. See `RunStore.find_runs`.

        Args:
            cursor: of a connection in autocommit mode.
            query: which runs.
            after: the position of the last run of the page before.
            limit: number of rows, at most.
        """
        conditions = _of_runs(query)
        if after is not None:
            conditions.append(("(u.created_at, u.run_id) < (%b, %b)", (after.at, escape(after.id))))
        order = "ORDER BY u.created_at DESC, u.run_id DESC"
        text = f"SELECT {RUN_COLUMNS} FROM {{s}}.pregel_runs u"
        return [run_of(row) for row in await self._found(cursor, text, conditions, order, limit)]

    async def find_threads(
        self, cursor: PostgresCursor, query: ThreadQuery, after: RowPosition | None, limit: int
    ) -> list[RunThreadRow]:
        """Return threads, in the query's order. See `RunStore.find_threads`.

        Args:
            cursor: of a connection in autocommit mode.
            query: which threads, and their order.
            after: the position of the last thread of the page before.
            limit: number of rows, at most.
        """
        conditions = _of_threads(query)
        if after is not None:
            sign = "<" if query.descending else ">"
            conditions.append((f"(r.{query.sort_by}, r.thread_id) {sign} (%b, %b)", (after.at, escape(after.id))))
        direction = "DESC" if query.descending else "ASC"
        order = f"ORDER BY r.{query.sort_by} {direction}, r.thread_id {direction}"
        text = f"SELECT {THREAD_COLUMNS} FROM {_tables_of(query)}"
        return [thread_row_of(row) for row in await self._found(cursor, text, conditions, order, limit)]

    async def count_runs(self, cursor: PostgresCursor, query: RunQuery) -> int:
        """Return the number of runs. See `RunStore.count_runs`.

        Args:
            cursor: of a connection in autocommit mode.
            query: which runs.
        """
        return await self._count(cursor, "SELECT count(*) FROM {s}.pregel_runs u", _of_runs(query))

    async def count_threads(self, cursor: PostgresCursor, query: ThreadQuery) -> int:
        """Return the number of threads. See `RunStore.count_threads`.

        Args:
            cursor: of a connection in autocommit mode.
            query: which threads.
        """
        return await self._count(cursor, f"SELECT count(*) FROM {_tables_of(query)}", _of_threads(query))

    async def _found(
        self, cursor: PostgresCursor, text: str, conditions: Sequence[Condition], order: str, limit: int
    ) -> list[Raw]:
        where, values = _where(conditions)
        return await self._all(cursor, f"{text}{where} {order} LIMIT %b", *values, _bounded(limit))

    async def _count(self, cursor: PostgresCursor, text: str, conditions: Sequence[Condition]) -> int:
        where, values = _where(conditions)
        ((number,),) = await self._all(cursor, f"{text}{where}", *values)
        return int(number)

    async def _all(
        self, cursor: PostgresCursor, statement: str, *parameters: object, prepare: Literal[False] | None = False
    ) -> list[Raw]:
        return await fetch(cursor, statement.format(s=self._schema).encode(), *parameters, prepare=prepare)


def _of_runs(query: RunQuery) -> list[Condition]:
    conditions: list[Condition] = [("NOT u.hidden", ())]
    if query.thread_id is not None:
        conditions.append(("u.thread_id = %b", (escape(query.thread_id),)))
    if query.assistant is not None:
        conditions.append(("u.assistant = %b", (escape(query.assistant),)))
    if query.status:
        conditions.append(_one_of("u.status", query.status))
    if query.metadata:
        conditions.append(("u.metadata @> %b::jsonb", (json_text(query.metadata),)))
    return conditions


def _of_threads(query: ThreadQuery) -> list[Condition]:
    conditions: list[Condition] = []
    if query.thread_ids:
        conditions.append(_one_of("r.thread_id", [escape(thread_id) for thread_id in query.thread_ids]))
    if query.assistant is not None:
        conditions.append(("r.assistant = %b", (escape(query.assistant),)))
    if query.status:
        conditions.append(_one_of("r.status", query.status))
    if query.metadata:
        conditions.append((f"{METADATA_AS_JSON} @> %b::jsonb", (json_text(query.metadata),)))
    if query.values:
        conditions.append(("r.state @> %b::jsonb", (json_text(query.values),)))
    return conditions


def _tables_of(query: ThreadQuery) -> str:
    return _FOUND_THREADS if query.metadata else _THREADS


def _one_of(column: str, values: Sequence[str]) -> Condition:
    # Equality with one value keeps the order of an index behind it; a list of values does not.
    if len(values) == 1:
        return f"{column} = %b", (values[0],)
    return f"{column} = ANY(%b::text[])", (list(values),)


def _where(conditions: Sequence[Condition]) -> tuple[str, list[object]]:
    text = " AND ".join(text for text, _ in conditions)
    return f" WHERE {text}" if text else "", [value for _, values in conditions for value in values]


def _bounded(limit: int) -> int:
    return min(max(limit, 0), _MOST)
