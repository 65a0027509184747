"""Which statements PostgresSaver prepares, and that it prepares none behind a pooler."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import psycopg
import psycopg_pool
import pytest
from psycopg.pq import ExecStatus

from checkpoint_savers import PostgresSaver, PostgresStore
from checkpoint_savers.conformance.runs.suite import SUCCESS, request, take_run
from checkpoint_savers.conformance.savers.suite import commit, event, head_of, record, row, take, written
from checkpoint_savers.postgres.batches import table_of, values_of
from checkpoint_savers.postgres.connections import PostgresCursor
from checkpoint_savers.runs.queries import RunQuery, ThreadQuery
from tests.helpers.postgres_tools import Proxy, empty, made_schema, unsynced

pytestmark = pytest.mark.anyio

TIMES = 8
"""Often enough for a statement to be prepared."""


@pytest.fixture
async def saver(proxy: Proxy, schema: str) -> AsyncIterator[PostgresSaver]:
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, pool_size=1) as saver:
        yield saver


async def work(saver: PostgresSaver) -> None:
    """Store supersteps, records and runs, and read them."""
    lease = await take(saver, "t")
    for step in range(1, TIMES):
        before = step - 1 or None
        cleared = [record(before, "x")] if before else []
        given = commit(
            row(step, before), head=before, records=[record(step, "x")], clears=cleared, events=[event(step)]
        )
        await saver.commit(lease, given)
        await head_of(saver, "t")
    for number in range(TIMES):
        await saver.runs.start(f"u{number}", request(f"r{number}"))
        run_lease, _ = await take_run(saver, 1, at=f"u{number}")
        await saver.runs.begin(run_lease, f"r{number}", commit(row(1)))
        await saver.runs.end(run_lease, f"r{number}", SUCCESS)


async def test_statements_of_single_writes_are_prepared(saver: PostgresSaver, proxy: Proxy) -> None:
    """Planning such a statement takes longer than executing it."""
    await work(saver)
    parts = ("added AS", "recorded AS", "cleared AS", "updated_runs AS", "INSERT INTO", "pregel_heads h ON")
    for part in parts:
        assert any(part in text for text in proxy.prepared), part
    assert len(proxy.prepared) < 16
    assert not any("unnest" in text.partition("), seen")[0] for text in proxy.prepared if "WITH job" in text)


async def test_batches_and_searches_are_planned_for_their_values(
    saver: PostgresSaver, proxy: Proxy, schema: str
) -> None:
    """A generic plan may read the whole of a table that was small when the plan was made."""
    await work(saver)
    before = len(proxy.prepared)
    lease = await take(saver, "v")
    for _ in range(TIMES):
        await saver.runs.search_runs(RunQuery(status=("success",)))
        await saver.runs.search_threads(ThreadQuery(status=("idle",)))
        await saver.runs.count_runs(RunQuery())
        await saver.runs.queued()
        await saver.scan(None, None)
        await saver.threads()
    await saver.release(lease)
    for _ in range(TIMES):
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(_hold, saver, f"b{number}")
    batches = [text for text in proxy.prepared if "SELECT * FROM unnest" in text]
    searches = [text for text in proxy.prepared[before:] if schema in text and ("LIMIT" in text or "count(" in text)]
    assert (batches, searches) == ([], [])


async def _hold(saver: PostgresSaver, thread_id: str) -> None:
    await saver.release(await take(saver, thread_id))


async def test_stores_and_upkeep_prepare_nothing(saver: PostgresSaver, proxy: Proxy) -> None:
    """Their statements find rows by arrays of keys."""
    with made_schema() as apart:
        async with PostgresStore(proxy.url, schema=apart, setup=True, pool_size=1) as store:
            for number in range(TIMES):
                await store.aput(("a",), str(number), {"n": number})
                await store.aget(("a",), str(number))
                await store.adelete(("a",), str(number))
    await written(saver, row(1), thread="v")
    for number in range(TIMES):
        await saver.aupdate_thread("v", {"n": number})
    assert proxy.prepared == []


async def test_nothing_is_prepared_behind_a_pooler(proxy: Proxy, schema: str) -> None:
    """There the next statement may run on another server connection."""
    proxy.hides_processes = True
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema) as saver:
        await work(saver)
    assert proxy.prepared == []


async def test_nothing_is_prepared_on_a_users_connections(proxy: Proxy, schema: str, anyio_backend_name: str) -> None:
    """The user chooses their settings, and may have a pooler behind them."""
    if anyio_backend_name != "asyncio":
        pytest.skip("a pool of psycopg's is opened on asyncio")
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": 1}
    async with psycopg_pool.AsyncConnectionPool(proxy.url, kwargs=options, open=False, min_size=1) as pool:
        async with PostgresSaver(pool, schema=schema) as saver:
            await work(saver)
        async with pool.connection() as connection:
            assert connection.prepare_threshold == 1
    assert proxy.prepared == []


@pytest.mark.parametrize("text", ["DEALLOCATE ALL", "DISCARD ALL"])
async def test_prepared_statements_that_the_server_does_not_execute(saver: PostgresSaver, text: str) -> None:
    """They are executed on a new connection. Otherwise each later call on the old one would fail."""
    await work(saver)
    lease = await take(saver, "t2")
    await saver.commit(lease, commit(row(1)))
    await _execute_unseen(saver, text)
    for step in range(2, TIMES):
        await saver.commit(lease, commit(row(step, step - 1), head=step - 1))
        assert await head_of(saver, "t2") == row(step).checkpoint_id
    for number in range(TIMES):
        await _hold(saver, f"w{number}")


async def test_a_prepared_statement_of_a_changed_table() -> None:
    """The server refuses a statement whose answer has other columns now, and would execute its text."""
    with made_schema() as schema:
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, pool_size=1) as saver:
            for number in range(2 * TIMES):
                if number == TIMES:
                    with psycopg.connect(unsynced(), autocommit=True) as connection:
                        change = f'ALTER TABLE "{schema}".pregel_threads ALTER COLUMN owner TYPE varchar'
                        connection.execute(change.encode())
                await _hold(saver, f"w{number}")


async def _execute_unseen(saver: PostgresSaver, text: str) -> None:
    """Execute a statement on the saver's connection, without psycopg's knowing of it."""

    async def execute(cursor: PostgresCursor) -> None:
        assert cursor.connection.pgconn.exec_(text.encode()).status == ExecStatus.COMMAND_OK

    assert saver._open is not None
    driver = saver._open.driver
    await driver.run(lambda: driver.source.run_on_connection(execute))


async def test_kept_plans_use_indexes(saver: PostgresSaver, proxy: Proxy, schema: str) -> None:
    """Generic plans read no whole tables, even if the tables were empty when the plans were made."""
    await work(saver)
    empty(schema)
    with psycopg.connect(unsynced(), autocommit=True) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        for number, text in enumerate(text for text in proxy.prepared if "FROM" in text):
            places = len(set(re.findall(r"\$\d+", text)))
            connection.execute(f"PREPARE s{number} AS {text}".encode())
            nulls = f"({', '.join(['NULL'] * places)})" if places else ""
            plan = connection.execute(f"EXPLAIN EXECUTE s{number}{nulls}".encode()).fetchall()
            scans = [line for (line,) in plan if re.search("Seq Scan on (?!pregel_saver_version)", line)]
            assert not scans, (text, scans)


def test_a_table_of_one_row_and_of_several() -> None:
    columns = {"n": "int", "name": "text"}
    assert table_of("j", columns, 1) == "(VALUES (%b::int, %b::text)) AS j (n, name)"
    assert table_of("j", columns, 2) == "unnest(%b::int[], %b::text[]) AS j (n, name)"
    assert values_of([(1, "a")]) == [1, "a"]
    assert values_of([(1, "a"), (2, None)]) == [[1, 2], ["a", None]]
