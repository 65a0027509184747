"""The tables of accepted runs in PostgreSQL: their upgrade, the indexes that statements use, and damaged rows."""

from __future__ import annotations

import re
from typing import Any, Literal

import anyio
import anyio.lowlevel
import psycopg
import pytest
from msgspec.structs import replace

from checkpoint_savers import CorruptCheckpointError, PostgresSaver, StorageError
from checkpoint_savers.conformance.runs.suite import SUCCESS, request, take_run
from checkpoint_savers.conformance.savers.suite import everything, row, written
from checkpoint_savers.postgres import run_store, run_transactions
from checkpoint_savers.postgres.run_searches import RunSearches
from checkpoint_savers.postgres.schema import MIGRATIONS, quoted, statements
from checkpoint_savers.runs.queries import RowPosition, RunQuery, ThreadQuery
from tests.helpers.postgres_tools import empty, execute, made_schema, new_schema, own_database, unsynced

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


async def test_the_upgrade_of_version_1() -> None:
    """P4, P15: a schema of version 1 with threads is opened after `setup`; nothing that it holds has changed, and its
    threads have runs and are found by their metadata, NUL and backslashes included."""
    metadata = {"user": "a\x00b\x01c", "path": "\\u0000 \\\\", "n": 1}
    with new_schema() as schema:
        execute(f'CREATE SCHEMA "{schema}"')
        for statement in statements(schema, 0)[: len(MIGRATIONS[0])]:
            execute(statement)
        # Rows as version 1 has stored them: the tables of threads and checkpoints are the same in both versions.
        with made_schema() as source:
            async with PostgresSaver.from_conn_string(unsynced(), schema=source) as saver:
                await written(saver, row(1), row(2, 1), metadata=metadata)
                await written(saver, row(1), thread="u")
                before = await everything(saver), await saver.threads()
            for table in ("threads", "heads", "checkpoints", "records", "events"):
                options = "OVERRIDING SYSTEM VALUE" if table == "threads" else ""
                execute(f'INSERT INTO "{schema}".pregel_{table} {options} SELECT * FROM "{source}".pregel_{table}')
        with pytest.raises(StorageError, match="version 1, and this is version 2"):
            await PostgresSaver.from_conn_string(unsynced(), schema=schema).__aenter__()
        execute(PostgresSaver.setup_script(schema=schema, version=1))
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
            assert (await everything(saver), await saver.threads()) == before
            await saver.runs.start("t", request("a"), metadata={"n": 2, "more": True})
            for wanted in (metadata, {"user": "a\x00b\x01c"}, {"path": "\\u0000 \\\\"}, {"more": True}):
                assert await saver.runs.count_threads(ThreadQuery(metadata=wanted)) == 1, wanted
            for wanted in ({"n": 2}, {"user": "a\x01b\x01c"}, {"path": "\x00 \\"}, {"more": 1}):
                assert await saver.runs.count_threads(ThreadQuery(metadata=wanted)) == 0, wanted
            thread = await saver.runs.get_thread("t")
            assert thread is not None and thread.metadata == {**metadata, "more": True}


class Explained(RunSearches):
    """Explains its statements instead of executing them."""

    def __init__(self, schema: str) -> None:
        super().__init__(quoted(schema))
        self.plans: list[str] = []

    async def _all(self, cursor: Any, statement: str, *parameters: object, **options: Any) -> list[Any]:
        text = "EXPLAIN " + statement.format(s=self._schema)
        await cursor.execute(text.encode(), parameters)
        self.plans.append("\n".join(line for (line,) in await cursor.fetchall()))
        return [] if "count(*)" not in statement else [(0,)]


FILL = """
INSERT INTO {s}.pregel_runs (run_id, thread_id, seq, status, hidden, assistant, created_at, metadata, payload, frame)
SELECT 'r' || n, 't' || n, 1, (ARRAY['success', 'success', 'error', 'interrupted', 'timeout'])[1 + n % 5],
    false, 'graph', n, jsonb_build_object('n', n), '', '' FROM generate_series(1, 10000) AS n;
INSERT INTO {s}.pregel_run_threads
    (thread_id, status, assistant, activation, activation_at, wake_at, created_at, updated_at, state)
SELECT 't' || n, (ARRAY['idle', 'idle', 'busy', 'interrupted', 'error'])[1 + n % 5],
    CASE n % 2000 WHEN 0 THEN 'rare' ELSE 'graph' END, CASE n % 500 WHEN 0 THEN 'queued' WHEN 1 THEN 'active' ELSE 'none' END, n,
    CASE n % 500 WHEN 2 THEN n ELSE 0 END, n, n, NULL FROM generate_series(1, 10000) AS n;
INSERT INTO {s}.pregel_threads (thread_id, epoch, seq, newest, metadata)
SELECT 't' || n, 1, 1, 'c', jsonb_build_object('n', n)::text FROM generate_series(1, 10000) AS n
"""
INDEXES = """
SELECT indexname FROM pg_indexes
WHERE schemaname = '{s}' AND (tablename IN ('pregel_runs', 'pregel_run_threads') OR tablename = 'pregel_threads' AND indexname NOT LIKE '%key')
"""
TABLES = ("pregel_runs", "pregel_run_threads", "pregel_threads")


async def locking_statements(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements by which transactions lock and read the rows of a thread, with their values."""
    found: list[str] = []

    class Recording(psycopg.AsyncClientCursor[Any]):
        async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            found.extend(self.mogrify(query, params).split(";"))
            return await super().execute(query, params, **options)

    monkeypatch.setattr(run_transactions, "new_client_cursor", Recording)
    async with PostgresSaver.from_conn_string(url, schema=schema) as saver:
        run = await saver.runs.start("new", request("new", idempotency_key="key"))
        lease, _ = await take_run(saver, 1, at="new")
        await saver.runs.end(lease, run.run_id, SUCCESS)
        await saver.adelete_thread("new")
    return [text for text in found if "pregel_" in text and text.strip().startswith("SELECT")]


async def vacuum(url: str, schema: str, table: str) -> None:
    """Vacuum a table until all its pages are visible to all: other transactions of the database delay that."""
    pages = "SELECT relallvisible = relpages FROM pg_class WHERE oid = %s::regclass"
    with anyio.fail_after(120):
        while True:
            execute(f'VACUUM ANALYZE "{schema}".{table}', url=url)
            if execute(pages, f'"{schema}".{table}', url=url) == [(True,)]:
                return
            await anyio.sleep(0.1)


async def test_statements_use_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement of a keeper, a dispatcher and a transaction, and each search by thread, assistant, status, metadata
    or without a filter reads an index and not a table; each index serves one of them. A count by status reads no row."""
    with own_database() as url, made_schema(url) as schema:
        execute(FILL.format(s=f'"{schema}"'), url=url)
        for table in TABLES:
            await vacuum(url, schema, table)
        locking = await locking_statements(url, schema, monkeypatch)
        assert len(locking) > 6
        after = RowPosition(5000.0, "t5000")
        explained = Explained(schema)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            cursor = connection.cursor()
            for text in locking:
                await cursor.execute(b"EXPLAIN " + text.encode())
                explained.plans.append("\n".join(line for (line,) in await cursor.fetchall()))
            await explained.get_run(cursor, "r1")
            await explained.get_runs(cursor, ("r1", "r2"))
            await explained.get_thread(cursor, "t1")
            await explained.queued(cursor, ("graph",), 100)
            await explained.due(cursor, None, 100)
            await explained.active(cursor, 100)
            # A keeper's look, and a dispatcher's: each by the index of such threads alone, in its order.
            for plan, index in zip(explained.plans[-3:], ("queued", "waking", "active"), strict=True):
                assert f"Index Scan using pregel_run_threads_{index}" in plan and "Sort" not in plan, plan
            for query in (
                RunQuery(),
                RunQuery(thread_id="t7"),
                RunQuery(status=("error",)),
                RunQuery(status=("pending", "running")),
                RunQuery(metadata={"n": 7}),
                RunQuery(status=("success",), metadata={"n": 7}),
                RunQuery(assistant="graph"),
                RunQuery(assistant="graph", status=("pending",)),
            ):
                await explained.find_runs(cursor, query, None, 20)
                await explained.find_runs(cursor, query, after, 20)
            orders: tuple[Literal["updated_at", "created_at"], ...] = ("updated_at", "created_at")
            for way in (True, False):
                for by in orders:
                    for given in (
                        ThreadQuery(),
                        ThreadQuery(status=("idle",)),
                        ThreadQuery(status=("busy", "error")),
                        ThreadQuery(thread_ids=("t1", "t2")),
                        ThreadQuery(metadata={"n": 7}),
                        ThreadQuery(assistant="graph"),
                        ThreadQuery(assistant="rare"),
                        ThreadQuery(assistant="rare", status=("interrupted",)),
                    ):
                        ordered = replace(given, sort_by=by, descending=way)
                        await explained.find_threads(cursor, ordered, None, 20)
                        await explained.find_threads(cursor, ordered, after, 20)
            await explained.count_threads(cursor, ThreadQuery(metadata={"n": 7}))
            await explained.count_threads(cursor, ThreadQuery(assistant="rare"))
            await explained.count_runs(cursor, RunQuery(thread_id="t7"))
            counts = len(explained.plans)
            await explained.count_threads(cursor, ThreadQuery(status=("interrupted",)))
            await explained.count_threads(cursor, ThreadQuery(status=("busy", "interrupted")))
            await explained.count_runs(cursor, RunQuery(status=("error",)))
            await explained.count_runs(cursor, RunQuery(status=("pending",)))
            for plan in explained.plans[counts:]:
                assert "Index Only Scan" in plan and "Filter" not in plan, plan
        scanned = [plan for plan in explained.plans if re.search("Seq Scan on pregel_(runs|run_threads|threads)", plan)]
        assert not scanned, scanned[0]
        by_metadata = [plan for plan in explained.plans if "@>" in plan]
        assert by_metadata and all("by_metadata" in plan for plan in by_metadata)
        made = {name for (name,) in execute(INDEXES.format(s=schema), url=url)}
        unused = {name for name in made if not any(f" {name}" in plan for plan in explained.plans)}
        assert made and not unused


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        ("UPDATE {s}.pregel_runs SET frame = set_byte(frame, 40, get_byte(frame, 40) # 1)", "run 'a'"),
        ("UPDATE {s}.pregel_runs SET frame = ''", "run 'a'"),
        ("UPDATE {s}.pregel_runs SET status = 'running'", "run 'a'"),
        ("UPDATE {s}.pregel_runs SET seq = 2", "run 'a'"),
        ("UPDATE {s}.pregel_run_threads SET frame = set_byte(frame, 40, get_byte(frame, 40) # 1)", "thread 't'"),
        ("UPDATE {s}.pregel_run_threads SET content = set_byte(content, 20, get_byte(content, 20) # 1)", "thread 't'"),
        ("UPDATE {s}.pregel_run_threads SET activation_no = 7", "thread 't'"),
        ("UPDATE {s}.pregel_threads SET metadata = '[]'", "thread 't'"),
    ],
)
async def test_damaged_rows(schema: str, damage: str, place: str) -> None:
    """P11: a changed bit of a run's or thread's row is found when it is read, and the error names the row."""
    empty(schema)
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        await saver.runs.start("t", request("a", metadata={"n": 1}))
        execute(damage.format(s=f'"{schema}"'))
        with pytest.raises(CorruptCheckpointError, match=place):
            await (saver.runs.get_run("a") if "run " in place else saver.runs.get_thread("t"))
        with pytest.raises(CorruptCheckpointError, match=place):
            await saver.runs.start("t", request("b"))
        with pytest.raises(CorruptCheckpointError, match=place):
            await take_run(saver, 1)
        assert execute(f'SELECT count(*) FROM "{schema}".pregel_runs') == [(1,)]


async def test_changes_are_announced(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `listen=`, a change by another process wakes the tasks that wait for one, and they need not look."""
    empty(schema)
    monkeypatch.setattr(run_store.PostgresRuns, "has_changed_elsewhere", never)
    async with (
        PostgresSaver.from_conn_string(unsynced(), schema=schema, listen=True) as waiting,
        PostgresSaver.from_conn_string(unsynced(), schema=schema) as other,
    ):
        found: list[str] = []

        async def wait(run_id: str) -> None:
            seen = 0
            while await waiting.runs.get_run(run_id) is None:
                seen = await waiting.runs.wait_for_change(seen)
            found.append(run_id)

        with anyio.fail_after(30):
            for run_id in ("a", "b"):
                async with anyio.create_task_group() as group:
                    group.start_soon(wait, run_id)
                    await anyio.lowlevel.checkpoint()
                    await other.runs.start("t", request(run_id))
        assert found == ["a", "b"]


async def never(self: run_store.PostgresRuns) -> bool:
    return False
