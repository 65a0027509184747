"""A run's mark in PostgreSQL: its first and last transaction are one statement, unless its rows have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import psycopg
import pytest

from checkpoint_savers import PostgresSaver, ThreadBusyError
from checkpoint_savers.conformance.runs.suite import SUCCESS, request
from checkpoint_savers.conformance.savers.suite import LATER, NOW, commit, here, row
from checkpoint_savers.postgres.run_transactions import RunTransactions
from checkpoint_savers.records import Lease
from checkpoint_savers.runs.decisions import RunOutcome, WantedLease
from tests.helpers.postgres_tools import conninfo, made_schema

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@pytest.fixture
async def saver() -> AsyncIterator[PostgresSaver]:
    with made_schema() as schema:
        async with PostgresSaver(conninfo(), schema=schema, clock=lambda: NOW) as saver:
            yield saver


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the transactions that lock and read rows of runs."""
    found: list[int] = []
    execute = RunTransactions._execute

    async def counted(self: RunTransactions, connection: Any, attempts: Any) -> None:
        found.append(len(attempts))
        await execute(self, connection, attempts)

    monkeypatch.setattr(RunTransactions, "_execute", counted)
    return found


async def taken(saver: PostgresSaver, run_id: str = "a") -> Lease:
    """Start a run, and take it."""
    await saver.runs.start("t", request(run_id))
    found = await saver.runs.acquire_and_take("t", 1, WantedLease(here("worker"), NOW, LATER), worker="w")
    assert found is not None and found.run.run_id == run_id
    return found.lease


async def status_of(saver: PostgresSaver, run_id: str = "a") -> tuple[str, bool]:
    run = await saver.runs.get_run(run_id)
    assert run is not None
    return run.status, run.begun


async def test_a_run_without_interference(saver: PostgresSaver, transactions: list[int]) -> None:
    """P16: the first and the last superstep of a run are stored with its rows, in one statement each."""
    lease = await taken(saver)
    del transactions[:]
    await saver.runs.begin(lease, "a", commit(row(1)), first_event="first")
    assert await status_of(saver) == ("running", True)
    await saver.commit(lease, commit(row(2, 1), head=1))
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(3, 2), head=2))
    assert transactions == []
    run, thread = await saver.runs.get_run("a"), await saver.runs.get_thread("t")
    assert run is not None and thread is not None
    assert (run.status, run.begun, run.first_event, run.stalls) == ("success", True, "first", 0)
    assert (thread.status, thread.activation, thread.values) == ("idle", "none", {"x": 1})
    (header,) = await saver.threads()
    assert header.owner is None and header.newest == row(3).checkpoint_id


async def test_rows_that_were_changed(saver: PostgresSaver, transactions: list[int]) -> None:
    """P16: a request to cancel, a follower and another run of the thread, which come while the run is executed, are
    neither overwritten nor missed."""
    lease = await taken(saver)
    await saver.runs.cancel("a", action="rollback")
    del transactions[:]
    await saver.runs.begin(lease, "a", commit(row(1)))
    run = await saver.runs.get_run("a")
    assert run is not None and run.begun and run.cancel == "rollback"
    await saver.runs.follow(run, 5.0)
    await saver.runs.start("t", request("b"))
    assert transactions == [1, 1, 1]
    cancelled = RunOutcome(status="cancelled", rest="idle")
    assert not await saver.runs.end(lease, "a", cancelled), "its checkpoints are to be deleted first"
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
    run, thread = await saver.runs.get_run("a"), await saver.runs.get_thread("t")
    assert run is not None and thread is not None
    assert run.status == "success" and run.cancel == "rollback" and run.followed_until > NOW
    assert (thread.activation, thread.activation_no, thread.pending) == ("queued", 2, 1)


async def test_another_run_of_the_thread(saver: PostgresSaver, transactions: list[int]) -> None:
    """P16: a run that is accepted while the one before is executed queues the thread when that ends."""
    lease = await taken(saver)
    await saver.runs.begin(lease, "a", commit(row(1)))
    async with PostgresSaver(conninfo(), schema=saver.schema, clock=lambda: NOW) as other:
        await other.runs.start("t", request("b"))
    del transactions[:]
    assert await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
    assert transactions == [1]
    thread = await saver.runs.get_thread("t")
    assert thread is not None and (thread.activation, thread.runs, thread.pending) == ("queued", 2, 1)


@pytest.mark.parametrize("row_of", ["run", "thread"])
async def test_a_row_that_is_locked(saver: PostgresSaver, transactions: list[int], row_of: str) -> None:
    """The statement waits for no lock: another connection that has a row's lock may wait for the saver's rows."""
    lease = await taken(saver)
    del transactions[:]
    table, where = {"run": ("pregel_runs", "run_id = 'a'"), "thread": ("pregel_run_threads", "thread_id = 't'")}[row_of]
    with psycopg.connect(conninfo()) as other:
        other.execute(f'SELECT 1 FROM "{saver.schema}".{table} WHERE {where} FOR UPDATE'.encode())
        execute = RunTransactions._execute

        async def executed(self: RunTransactions, *args: Any) -> None:
            other.rollback()
            await execute(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunTransactions, "_execute", executed)
            await saver.runs.end(lease, "a", SUCCESS, commit(row(1)))
    assert transactions == [1]
    assert await status_of(saver) == ("success", False)


async def test_a_lost_lease(saver: PostgresSaver) -> None:
    """P5: a worker whose lease was taken over changes neither the thread nor the run."""
    lease = await taken(saver)
    async with await psycopg.AsyncConnection.connect(conninfo(), autocommit=True) as other:
        await other.execute(f'UPDATE "{saver.schema}".pregel_threads SET epoch = epoch + 1'.encode())
    before = await saver.runs.get_thread("t")
    with pytest.raises(ThreadBusyError) as error:
        await saver.runs.end(lease, "a", SUCCESS, commit(row(1)))
    assert error.value.lost
    assert await status_of(saver) == ("running", False)
    assert await saver.runs.get_thread("t") == before
    assert await saver.read("t") is None


async def test_a_head_that_does_not_fit(saver: PostgresSaver) -> None:
    """P3: a superstep that is refused leaves the run's rows as they are."""
    lease = await taken(saver)
    with pytest.raises(ThreadBusyError):
        await saver.runs.begin(lease, "a", commit(row(2, 1), head=1))
    assert await status_of(saver) == ("running", False)


async def test_two_threads_in_one_statement(saver: PostgresSaver) -> None:
    """A mark changes the rows of its own thread alone, regardless of what else is stored by the same statement."""
    lease = await taken(saver)
    await saver.runs.start("u", request("b"))
    other = await saver.runs.acquire_and_take("u", 1, WantedLease(here("other"), NOW, LATER), worker="w")
    assert other is not None
    await saver.runs.cancel("b")
    async with anyio.create_task_group() as group:
        group.start_soon(saver.runs.begin, lease, "a", commit(row(1)))
        group.start_soon(saver.runs.begin, other.lease, "b", commit(row(1)))
    assert await status_of(saver) == await status_of(saver, "b") == ("running", True)
    run = await saver.runs.get_run("b")
    assert run is not None and run.cancel == "interrupt"
