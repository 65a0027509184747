"""What a dispatcher on procrastinate relies on, and works around, as version 3 shows it.

These tests pin the behaviour of another package. One that fails after an upgrade says which part of the dispatcher to
look at.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import psycopg.conninfo
import psycopg_pool
import pytest

from checkpoint_savers import PostgresSaver
from checkpoint_savers.conformance.runs.suite import SUCCESS, request, take_run
from checkpoint_savers.runs.rows import RunThreadRow
from tests.helpers.postgres_tools import conninfo, execute, made_schema, new_schema, unsynced

procrastinate: Any = pytest.importorskip(
    "procrastinate", reason="procrastinate is not installed: pip install procrastinate"
)

# procrastinate needs asyncio.
pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


def in_schema(schema: str) -> str:
    """A connection string whose search path is one schema."""
    return psycopg.conninfo.make_conninfo(conninfo(), options=f"-c search_path={schema}")


@pytest.fixture(scope="module")
def jobs() -> Iterator[str]:
    """A schema with procrastinate's tables."""
    with new_schema() as schema:
        execute(f'CREATE SCHEMA "{schema}"')
        execute(procrastinate.schema.SchemaManager.get_schema(), url=in_schema(schema))
        yield schema


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    """A schema with a saver's tables."""
    with made_schema() as schema:
        yield schema


@pytest.fixture
async def app(jobs: str) -> AsyncIterator[Any]:
    """An open app. There are no jobs."""
    execute("DELETE FROM procrastinate_jobs", url=in_schema(jobs))  # its triggers need the search path, too
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=in_schema(jobs)))
    async with app.open_async():
        yield app


def stored(jobs: str) -> list[tuple[Any, ...]]:
    return execute(f'SELECT queue_name, status::text, args FROM "{jobs}".procrastinate_jobs ORDER BY id')


async def defer(app: Any, connection: Any, jobs: str, queue: str, **options: Any) -> None:
    """Insert a job in a transaction of a connection, whose own search path does not matter."""
    await connection.execute("SELECT set_config('search_path', %s, true)", (jobs,))
    job = app.configure_task("drain", queue=queue, connection=connection, **options)
    await job.defer_async(thread_id="t", no=1)


async def test_a_job_in_the_transaction_that_queues_a_thread(app: Any, jobs: str, schema: str) -> None:
    """Fact 2: `defer_async` runs on our connection, in our transaction, with a search path that is local to it. The job
    is there if and only if the thread is queued."""
    fails = False

    async def on_queued(connection: Any, thread: RunThreadRow) -> None:
        await connection.execute("SELECT set_config('search_path', %s, true)", (jobs,))
        job = app.configure_task("drain", queue="pa_x", connection=connection, priority=thread.priority)
        await job.defer_async(thread_id=thread.thread_id, no=thread.activation_no)
        assert stored(jobs) == [], "it is not committed yet"
        if fails:
            raise LookupError

    async with PostgresSaver.from_conn_string(unsynced(), schema=schema, pool_size=1) as saver:
        saver.runs.on_queued = on_queued
        fails = True
        with pytest.raises(LookupError):
            await saver.runs.start("t", request("a"))
        assert stored(jobs) == [] and await saver.runs.get_thread("t") is None
        fails = False
        await saver.runs.start("t", request("a", priority=3))
        assert stored(jobs) == [("pa_x", "todo", {"no": 1, "thread_id": "t"})]
        # The same session again: the path was local.
        lease, _ = await take_run(saver, 1)
        assert await saver.runs.end(lease, "a", SUCCESS)
    async with await psycopg.AsyncConnection.connect(conninfo(), autocommit=True) as connection:
        with pytest.raises(procrastinate.exceptions.ConnectorException) as caught:
            await app.configure_task("drain", connection=connection).defer_async()
        assert isinstance(caught.value.__cause__, psycopg.errors.UndefinedObject), "without the path, nothing is found"


async def test_a_pool_in_autocommit_mode_has_no_listener(jobs: str) -> None:
    """Fact 3: procrastinate passes `autocommit` beside the pool's own arguments. So set it by `configure=`."""
    kwargs = {"autocommit": True}
    async with psycopg_pool.AsyncConnectionPool(in_schema(jobs), kwargs=kwargs, min_size=1, open=False) as pool:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        async with app.open_async(pool):
            with pytest.raises(TypeError, match="autocommit"):
                async with app.connector._get_standalone_connection():
                    pass


async def test_an_app_keeps_the_pool_that_it_was_given(jobs: str) -> None:
    """Fact 4: after `close_async`, an app still has the pool, and does not take another. So make an app for each open
    service."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    pools = [psycopg_pool.AsyncConnectionPool(in_schema(jobs), min_size=1, open=False) for _ in range(2)]
    for pool in pools:
        async with pool:
            await app.open_async(pool)
            assert app.connector.pool is pools[0]
            await app.close_async()


async def test_names_of_queues_are_limited(app: Any, jobs: str) -> None:
    """Fact 5: a queue's name becomes part of a channel's, which has 63 bytes at most: 40 are left. A longer one fails
    the insert, and our transaction."""
    async with await psycopg.AsyncConnection.connect(conninfo(), autocommit=True) as connection:
        async with connection.transaction():
            await defer(app, connection, jobs, "q" * 40)
        with pytest.raises(procrastinate.exceptions.ConnectorException) as caught:
            async with connection.transaction():
                await defer(app, connection, jobs, "q" * 41)
        assert "channel name too long" in str(caught.value.__cause__)
    assert [name for name, *_ in stored(jobs)] == ["q" * 40]


async def test_a_queueing_lock_aborts_the_transaction(app: Any, jobs: str) -> None:
    """Fact 6: a second job with the same `queueing_lock` is an error of the server, so that our transaction cannot go
    on. `activation_no` makes duplicates harmless instead."""
    async with await psycopg.AsyncConnection.connect(conninfo(), autocommit=True) as connection:
        async with connection.transaction():
            await defer(app, connection, jobs, "pa_x", queueing_lock="t")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            async with connection.transaction():
                with pytest.raises(procrastinate.exceptions.AlreadyEnqueued):
                    await defer(app, connection, jobs, "pa_x", queueing_lock="t")
                await connection.execute("SELECT 1")
    assert len(stored(jobs)) == 1


async def test_jobs_of_dead_workers_stay(app: Any, jobs: str) -> None:
    """Fact 7: a job that a worker has fetched remains `doing` if the worker dies; no other worker fetches it. With
    `delete_jobs="always"`, a finished one is deleted."""
    await app.configure_task("drain", queue="pa_x").defer_async(thread_id="t", no=1)
    manager = app.job_manager
    dead = await manager.register_worker()
    job = await manager.fetch_job(queues=["pa_x"], worker_id=dead)
    assert job is not None
    execute("DELETE FROM procrastinate_workers", url=in_schema(jobs))
    assert [status for _, status, _ in stored(jobs)] == ["doing"]
    assert await manager.fetch_job(queues=["pa_x"], worker_id=await manager.register_worker()) is None

    done = asyncio.Event()

    async def drain(thread_id: str, no: int) -> None:
        done.set()

    app.task(drain, name="drain")
    await app.configure_task("drain", queue="pa_y").defer_async(thread_id="t", no=2)
    await app.run_worker_async(queues=["pa_y"], wait=False, delete_jobs="always", install_signal_handlers=False)
    assert done.is_set() and [queue for queue, *_ in stored(jobs)] == ["pa_x"]


def test_a_worker_can_leave_signals_alone() -> None:
    """Facts 8 and 9: the interval of polls and the handlers of signals are options of a worker."""
    worker: Any = pytest.importorskip("procrastinate.worker", reason="procrastinate is not installed")
    options = inspect.signature(worker.Worker.__init__).parameters
    assert {"install_signal_handlers", "fetch_job_polling_interval", "shutdown_graceful_timeout"} <= options.keys()
