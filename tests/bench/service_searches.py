"""Searches of runs and threads among a million of each, on PostgreSQL: the time of each statement, and its index.

    python -m tests.bench.service_searches
    python -m tests.bench.service_searches --rows 100000

The rows are made by SQL. They have the columns by which statements filter and sort, and no contents, so statements are
explained (`EXPLAIN ANALYZE`, the fastest of three) and not read. The tables are vacuumed, as autovacuum does once a
fiftieth of their rows have changed: a count reads only pages that were changed since. Database: that of
PREGEL_TEST_POSTGRES, or `test` of the local server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import psycopg

from checkpoint_savers import PostgresSaver
from checkpoint_savers.postgres.run_searches import RunSearches
from checkpoint_savers.postgres.schema import quoted
from checkpoint_savers.runs.queries import RunQuery, ThreadQuery

URL = os.environ.get("PREGEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
FILL = """
INSERT INTO {s}.pregel_runs (run_id, thread_id, seq, status, hidden, assistant, created_at, metadata, payload, frame)
SELECT '{id}' || lpad(n::text, 12, '0'), '{id}' || lpad(n::text, 12, '0'), 1, (ARRAY['success', 'success', 'error', 'interrupted', 'timeout'])[1 + n % 5],
    false, 'graph', n, jsonb_build_object('user', n / 10), '', '' FROM generate_series(1, {rows}) AS n;
INSERT INTO {s}.pregel_run_threads
    (thread_id, status, assistant, activation, activation_at, wake_at, created_at, updated_at)
SELECT '{id}' || lpad(n::text, 12, '0'), (ARRAY['idle', 'idle', 'busy', 'interrupted', 'error'])[1 + n % 5],
    CASE n % 20000 WHEN 3 THEN 'rare' ELSE 'graph' END,
    CASE n % 20000 WHEN 0 THEN 'queued' WHEN 1 THEN 'active' ELSE 'none' END, n,
    CASE n % 20000 WHEN 2 THEN n ELSE 0 END, n, n FROM generate_series(1, {rows}) AS n;
INSERT INTO {s}.pregel_threads (thread_id, epoch, seq, newest, metadata)
SELECT '{id}' || lpad(n::text, 12, '0'), 1, 1, 'c', jsonb_build_object('user', n / 10)::text FROM generate_series(1, {rows}) AS n
"""
ID = "01990000-0000-7000-8000-"
"""The beginning of all ids, which are as long as a UUID, and in the order of time as those of version 7."""
INDEXES = """
SELECT format('%%I.%%I', i.schemaname, i.indexname), i.indexdef FROM pg_indexes i
WHERE i.schemaname = %s AND i.tablename IN ('pregel_runs', 'pregel_run_threads', 'pregel_threads') AND NOT EXISTS (
    SELECT FROM pg_constraint c WHERE c.conindid = format('%%I.%%I', i.schemaname, i.indexname)::regclass
)
"""


class Timed(RunSearches):
    """Explains its statements instead of reading what they find."""

    def __init__(self, schema: str) -> None:
        super().__init__(quoted(schema))
        self.found: tuple[float, str] = (0.0, "")

    async def _all(self, cursor: Any, statement: str, *parameters: object, **options: Any) -> list[Any]:
        text = "EXPLAIN (ANALYZE, TIMING OFF) " + statement.format(s=self._schema)
        times: list[float] = []
        plan = ""
        for _ in range(3):
            await cursor.execute(text.encode(), parameters)
            plan = "\n".join([line for (line,) in await cursor.fetchall()])
            times.append(float(re.findall(r"Execution Time: ([\d.]+)", plan)[0]))
        scans = re.findall(
            r"Index (?:Only )?Scan (?:Backward )?using (\w+)|Bitmap Index Scan on (\w+)|(Seq Scan)", plan
        )
        self.found = min(times), ", ".join(sorted({name for scan in scans for name in scan if name}))
        return [] if "count(*)" not in statement else [(0,)]


async def measure(rows: int) -> dict[str, float]:
    """Print the milliseconds and the indexes of each search. Return the milliseconds, by name."""
    found: dict[str, float] = {}
    schema = f"bench_{os.getpid()}"
    connection = await psycopg.AsyncConnection.connect(URL, autocommit=True)
    async with connection:
        try:
            await connection.execute(PostgresSaver.setup_script(schema=schema).encode())
            # An index of many rows is made in a fraction of the time that adding them one by one takes.
            indexes = await (await connection.execute(INDEXES, (schema,))).fetchall()
            for name, _ in indexes:
                await connection.execute(f"DROP INDEX {name}".encode())
            await connection.execute(FILL.format(s=schema, rows=rows, id=ID).encode())
            for _, definition in indexes:
                await connection.execute(definition.encode())
            for table in ("pregel_runs", "pregel_run_threads", "pregel_threads"):
                await connection.execute(f"VACUUM ANALYZE {schema}.{table}".encode())
            timed, cursor = Timed(schema), connection.cursor()
            calls: dict[str, Any] = {
                "queued threads": timed.queued(cursor, ("graph",), 100),
                "due threads": timed.due(cursor, None, 100),
                "active threads": timed.active(cursor, 100_000),
                "newest runs": timed.find_runs(cursor, RunQuery(), None, 101),
                "failed runs": timed.find_runs(cursor, RunQuery(status=("error",)), None, 101),
                "runs of a user": timed.find_runs(cursor, RunQuery(metadata={"user": 7}), None, 101),
                "inbox page": timed.find_threads(cursor, ThreadQuery(status=("interrupted",)), None, 101),
                "threads of a graph": timed.find_threads(cursor, ThreadQuery(assistant="rare"), None, 101),
                "threads of a user": timed.find_threads(cursor, ThreadQuery(metadata={"user": 7}), None, 101),
                "count of an inbox": timed.count_threads(cursor, ThreadQuery(status=("interrupted",))),
                "count of failed runs": timed.count_runs(cursor, RunQuery(status=("error",))),
            }
            for name, call in calls.items():
                await call
                found[name] = timed.found[0]
                print(f"{name:22}{timed.found[0]:10.2f} ms  {timed.found[1]}", flush=True)
        finally:
            await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures = anyio.run(measure, options.rows)
    if options.json:
        options.json.write_text(json.dumps(figures))
