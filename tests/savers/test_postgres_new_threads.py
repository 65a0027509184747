"""PostgreSQL: the first run of a new thread is stored by one statement, unless the thread exists already."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import psycopg
import pytest

from checkpoint_savers import PostgresSaver, UnsupportedFormatError
from checkpoint_savers.conformance.runs.suite import request
from checkpoint_savers.conformance.savers.suite import LATER, NOW, commit, here, row
from checkpoint_savers.postgres.run_transactions import RunTransactions
from checkpoint_savers.runs.decisions import StartedRun, WantedLease
from checkpoint_savers.runs.rows import RunThreadRow
from tests.helpers.postgres_tools import conninfo, execute, made_schema

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

WANTS = WantedLease(here("worker"), NOW, LATER)


@pytest.fixture
async def saver() -> AsyncIterator[PostgresSaver]:
    with made_schema() as schema:
        async with PostgresSaver(conninfo(), schema=schema, clock=lambda: NOW) as saver:
            yield saver


class Statements:
    """Records the batches that are stored.

    Attributes:
        new: the sizes of batches of new threads.
        locking: the sizes of transactions that lock and read the rows first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.new: list[int] = []
        self.locking: list[int] = []
        store_new, execute = RunTransactions._store_new_threads, RunTransactions._execute

        async def counted_store_new(here: RunTransactions, cursor: Any, attempts: Sequence[Any]) -> None:
            self.new += [len(attempts)] * bool(attempts)
            await store_new(here, cursor, attempts)

        async def counted_execute(here: RunTransactions, connection: Any, attempts: Sequence[Any]) -> None:
            self.locking.append(len(attempts))
            await execute(here, connection, attempts)

        monkeypatch.setattr(RunTransactions, "_store_new_threads", counted_store_new)
        monkeypatch.setattr(RunTransactions, "_execute", counted_execute)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    return Statements(monkeypatch)


async def start_and_take(saver: PostgresSaver, thread_id: str, run_id: str) -> StartedRun:
    return await saver.runs.start_and_take(thread_id, request(run_id), WANTS, worker="w", is_new=True)


async def test_one_statement(saver: PostgresSaver, statements: Statements) -> None:
    """P3, P16: a run of a new thread is accepted, or accepted and taken, by one statement."""
    await saver.runs.start("t", request("a"), is_new=True)
    started = await start_and_take(saver, "u", "b")
    assert (statements.new, statements.locking) == ([1, 1], [])
    assert started.taken is not None
    # The rows are known to this process: the mark of the first superstep needs no transaction that reads them.
    await saver.runs.begin(started.taken.lease, "b", commit(row(1)))
    assert statements.locking == []


async def test_a_thread_that_is_not_new(saver: PostgresSaver, statements: Statements) -> None:
    """P3: if the thread exists, its run is stored by the transaction that locks and reads."""
    await saver.runs.start("t", request("a"), is_new=True)
    lease = await saver.acquire("called", here("direct call"), now=NOW, expires_at=LATER)
    assert (await saver.runs.start("t", request("b"), is_new=True)).seq == 2
    assert (await start_and_take(saver, "called", "c")).taken is None
    await saver.commit(lease, commit(row(1), releases=True))
    assert (statements.new, statements.locking) == ([1, 1, 1], [1, 1])


async def test_runs_with_a_key_or_a_queue(saver: PostgresSaver, statements: Statements) -> None:
    """P4: a run with a key, or of a queue in the database, is stored by the transaction that locks and reads: another
    thread may have the key, and the job is queued in the same transaction."""
    await saver.runs.start("t", request("a", idempotency_key="k"), is_new=True)
    queued: list[str] = []

    async def on_queued(connection: Any, thread: RunThreadRow) -> None:
        queued.append(thread.thread_id)

    saver.runs.on_queued = on_queued
    await saver.runs.start("u", request("b"), is_new=True)
    assert (statements.new, statements.locking, queued) == ([], [1, 1], ["u"])


async def test_a_later_layout(saver: PostgresSaver, statements: Statements) -> None:
    """P3: after an upgrade of the schema, nothing is stored, and the error says why."""
    execute(f'UPDATE "{saver.schema}".pregel_saver_version SET version = version + 1')
    with pytest.raises(UnsupportedFormatError):
        await saver.runs.start("t", request("a"), is_new=True)
    assert statements.new == [1]
    assert await saver.runs.get_run("a") is None and await saver.threads() == ()


async def test_another_process_inserts_the_thread(saver: PostgresSaver, statements: Statements) -> None:
    """P3: the statement waits for a transaction that stores the same thread, and finds what that has stored."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(conninfo()) as other, anyio.fail_after(30):
        other.execute(f"INSERT INTO {saver.schema}.pregel_threads (thread_id, epoch, seq) VALUES ('t', 3, 0)".encode())
        async with anyio.create_task_group() as group:

            async def start() -> None:
                started = await start_and_take(saver, "t", "a")
                assert started.taken is not None and started.taken.lease.epoch == 4

            group.start_soon(start)
            while not execute(waiting, f"%added_run_threads%{saver.schema}%"):
                await anyio.lowlevel.checkpoint()
            other.commit()
    assert statements.locking == [1]
