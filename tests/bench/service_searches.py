"""Searches of runs and threads among a million of each, on PostgreSQL: the time of each statement, and its index.

    python -m tests.bench.service_searches
    python -m tests.bench.service_searches --rows 100000

The rows are made by SQL. They have the columns by which statements filter and sort, and no contents, so statements are
explained (`EXPLAIN ANALYZE`, the fastest of three) and not read. Database: that of PREGEL_TEST_POSTGRES, or `test` of
the local server.
"""

from __future__ import annotations

import argparse
import os
import re
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
SELECT 'r' || n, 't' || n, 1, (ARRAY['success', 'success', 'error', 'interrupted', 'timeout'])[1 + n % 5],
    false, 'graph', n, jsonb_build_object('user', n / 10), '', '' FROM generate_series(1, {rows}) AS n;
INSERT INTO {s}.pregel_run_threads
    (thread_id, status, assistant, activation, activation_at, wake_at, created_at, updated_at)
SELECT 't' || n, (ARRAY['idle', 'idle', 'busy', 'interrupted', 'error'])[1 + n % 5], 'graph',
    CASE n % 20000 WHEN 0 THEN 'queued' WHEN 1 THEN 'active' ELSE 'none' END, n,
    CASE n % 20000 WHEN 2 THEN n ELSE 0 END, n, n FROM generate_series(1, {rows}) AS n;
INSERT INTO {s}.pregel_threads (thread_id, epoch, seq, newest, metadata)
SELECT 't' || n, 1, 1, 'c', jsonb_build_object('user', n / 10)::text FROM generate_series(1, {rows}) AS n;
ANALYZE {s}.pregel_runs; ANALYZE {s}.pregel_run_threads; ANALYZE {s}.pregel_threads
"""


class Timed(RunSearches):
    """Explains its statements instead of reading what they find."""

    def __init__(self, schema: str) -> None:
        super().__init__(quoted(schema))
        self.found: tuple[float, str] = (0.0, "")

    async def _all(self, cursor: Any, statement: str, *parameters: object) -> list[Any]:
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


async def measure(rows: int) -> None:
    """Print the milliseconds and the indexes of each search."""
    schema = f"bench_{os.getpid()}"
    connection = await psycopg.AsyncConnection.connect(URL, autocommit=True)
    async with connection:
        try:
            await connection.execute(PostgresSaver.setup_script(schema=schema).encode())
            await connection.execute(FILL.format(s=schema, rows=rows).encode())
            timed, cursor = Timed(schema), connection.cursor()
            calls: dict[str, Any] = {
                "queued threads": timed.queued(cursor, ("graph",), 100),
                "due threads": timed.due(cursor, None, 100),
                "active threads": timed.active(cursor, 100_000),
                "newest runs": timed.find_runs(cursor, RunQuery(), None, 101),
                "failed runs": timed.find_runs(cursor, RunQuery(status=("error",)), None, 101),
                "runs of a user": timed.find_runs(cursor, RunQuery(metadata={"user": 7}), None, 101),
                "inbox page": timed.find_threads(cursor, ThreadQuery(status=("interrupted",)), None, 101),
                "threads of a user": timed.find_threads(cursor, ThreadQuery(metadata={"user": 7}), None, 101),
                "count of an inbox": timed.count_threads(cursor, ThreadQuery(status=("interrupted",))),
            }
            for name, call in calls.items():
                await call
                print(f"{name:20}{timed.found[0]:10.2f} ms  {timed.found[1]}", flush=True)
        finally:
            await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    anyio.run(measure, parser.parse_args().rows)
