"""Services whose queued threads are jobs of procrastinate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import copy
from typing import Any

import anyio
import psycopg
import pytest

from checkpoint_savers import InMemorySaver, PostgresSaver, StorageError
from pregel_async import Command
from pregel_async.errors import ConfigError
from pregel_async.service import RunService, Worker
from tests.helpers.postgres_tools import execute, new_schema, reused_schema, unsynced
from tests.helpers.versioned_graphs import graph, versions

from .graphs import Gate, gated, steps

pytest.importorskip("procrastinate", reason="procrastinate is not installed: pip install 'pregel-async[service]'")

from pregel_async.service import ProcrastinateDispatcher

# procrastinate's worker needs asyncio.
pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@pytest.fixture
def jobs() -> Iterator[str]:
    with new_schema() as schema:
        yield schema


@pytest.fixture
async def saver() -> AsyncIterator[PostgresSaver]:
    with reused_schema() as schema:
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, listen=True) as saver:
            yield saver


@pytest.fixture
async def dispatcher(saver: PostgresSaver, jobs: str) -> ProcrastinateDispatcher:
    dispatcher = ProcrastinateDispatcher(schema=jobs)
    await dispatcher.setup(saver)
    return dispatcher


def stored(jobs: str) -> list[tuple[Any, ...]]:
    return execute(f'SELECT status::text, args FROM "{jobs}".procrastinate_jobs ORDER BY id')


async def test_from_start_to_result(saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str) -> None:
    async with RunService({"agent": steps("a", "b")}, saver, dispatcher=dispatcher) as service:
        runs = [await service.start("agent", {}, thread_id=f"t{number % 5}") for number in range(20)]
        for run in runs:
            assert (await service.join(run.run_id)).status == "success"
        assert len((await service.graph("agent").aget_state("t0")).values["log"]) == 8
    assert stored(jobs) == []


async def test_a_job_and_its_thread_are_one_transaction(
    saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str
) -> None:
    async with RunService({"agent": steps("a")}, saver, dispatcher=dispatcher, work=False) as web:
        run = await web.start("agent", {}, thread_id="t", priority=7)
        assert stored(jobs) == [("todo", {"thread_id": "t", "no": 1})]
        await web.cancel(run.run_id)
    async with RunService({"agent": steps("a")}, saver, dispatcher=dispatcher) as service:
        await service.join((await service.start("agent", {}, thread_id="u")).run_id)
    assert stored(jobs) == []  # the stale job did nothing


async def test_losing_every_job_loses_no_run(
    saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str
) -> None:
    """P16: the keeper finds queued threads whose jobs are gone."""
    async with RunService({"agent": steps("a")}, saver, dispatcher=dispatcher, work=False) as web:
        runs = [await web.start("agent", {}, thread_id=f"t{number}") for number in range(5)]
    execute(f'DELETE FROM "{jobs}".procrastinate_jobs', url=in_schema(jobs))
    saver.lease_seconds = 0.3
    async with RunService({"agent": steps("a")}, saver, dispatcher=dispatcher) as service:
        for run in runs:
            assert (await service.join(run.run_id)).status == "success"


def in_schema(schema: str) -> str:
    return psycopg.conninfo.make_conninfo(unsynced(), options=f"-c search_path={schema}")


async def test_routes_of_versions(saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str) -> None:
    """P16: a worker without the version of a thread neither fetches its job nor keeps a slot for it."""

    def service(*numbers: int, work: bool | Worker = True) -> RunService:
        return RunService({"orders": versions(None, *numbers)}, saver, dispatcher=copy(dispatcher), work=work)

    for name, number in (("known", 3), ("moved", 2)):
        await graph(number, saver).ainvoke({}, name)
    async with service(2, 3, work=False) as web:
        answer = Command(resume="yes")
        waiting = [await web.start("orders", answer, thread_id=name, priority=9) for name in ("known", "moved")]
        await graph(2, saver).ainvoke(answer, "moved")
        await graph(3, saver).ainvoke({}, "moved")
        assert [args["no"] for _, args in stored(jobs)] == [1, 1]
    async with service(2, work=Worker(slots=1)) as old:
        for _ in range(3):
            await old.join((await old.start("orders", {}, thread_id="other")).run_id)
    # Now the jobs that have ended are deleted.
    assert stored(jobs) == [("todo", {"thread_id": "known", "no": 1}), ("todo", {"thread_id": "moved", "no": 2})]
    async with service(3) as new:
        for run in waiting:
            assert (await new.join(run.run_id)).status == "success"


async def test_slots_and_a_drain(saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str) -> None:
    gate = Gate()
    graphs = {"agent": gated(gate)}
    async with RunService(graphs, saver, dispatcher=dispatcher, work=Worker(slots=2, grace=0.2)) as old:
        runs = [await old.start("agent", {}, thread_id=f"t{number}") for number in range(3)]
        await gate.begun.wait()
        while await old.count_runs(status="running") < 2:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        assert await old.count_runs(status="running") == 2
    assert gate.cancelled == 2
    gate.opened.set()
    async with RunService(graphs, saver, dispatcher=dispatcher) as new:
        for run in runs:
            assert (await new.join(run.run_id)).values == {"log": ["before", "wait", "after"]}


async def test_setup_twice(saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str) -> None:
    """A deployment that finds tables of an older version upgrades them, and one that finds the newest changes nothing."""
    await dispatcher.setup(saver)
    newest = execute(f'SELECT newest FROM "{jobs}".pregel_jobs_version')
    assert newest[0][0] >= "03.04"
    execute(f"UPDATE \"{jobs}\".pregel_jobs_version SET newest = '03.04.00_01_pre_add_retry_failed_job_procedure.sql'")
    execute(f'DROP FUNCTION IF EXISTS "{jobs}".procrastinate_retry_job_v1', url=in_schema(jobs))
    await dispatcher.setup(saver)
    assert execute(f'SELECT newest FROM "{jobs}".pregel_jobs_version') == newest


async def test_a_saver_without_postgres() -> None:
    with pytest.raises(ConfigError, match="PostgreSQL"):
        async with RunService({"agent": steps("a")}, InMemorySaver(), dispatcher=ProcrastinateDispatcher()):
            pass


async def test_a_job_that_cannot_be_inserted(
    saver: PostgresSaver, dispatcher: ProcrastinateDispatcher, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: the driver's error decides, as for the saver's own statements: the transaction is repeated or refused."""
    import procrastinate
    from procrastinate.manager import JobManager

    errors: list[Exception] = [psycopg.errors.SerializationFailure("again"), psycopg.errors.DiskFull("full")]
    defer = JobManager.defer_job_async

    async def failing(self: JobManager, *args: Any, **options: Any) -> Any:
        if errors:
            raise procrastinate.exceptions.ConnectorException from errors.pop(0)
        return await defer(self, *args, **options)

    monkeypatch.setattr(JobManager, "defer_job_async", failing)
    async with RunService({"agent": steps("a")}, saver, dispatcher=dispatcher, work=False) as web:
        with pytest.raises(StorageError, match="full"):
            await web.start("agent", {}, thread_id="t")
        assert not errors and await web.count_runs() == 0
        await web.start("agent", {}, thread_id="t")
    assert [args for _, args in stored(jobs)] == [{"thread_id": "t", "no": 1}]
