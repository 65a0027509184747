"""A run's mark in PostgreSQL: its first and last transaction are one statement, unless its rows have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from checkpoint_savers import PostgresSaver
from checkpoint_savers.conformance.runs.suite import SUCCESS, request
from checkpoint_savers.conformance.savers.suite import LATER, NOW, commit, here, row
from checkpoint_savers.postgres.run_transactions import RunTransactions
from checkpoint_savers.records import Lease
from checkpoint_savers.runs.decisions import WantedLease
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
