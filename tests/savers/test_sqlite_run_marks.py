"""Run marks in SQLite: their statements, shared transactions, cancelled callers, and a file that was upgraded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import groupby
from pathlib import Path

import anyio
import pytest

from checkpoint_savers import SqliteSaver
from checkpoint_savers.conformance.runs.suite import SUCCESS, request, take_run
from checkpoint_savers.conformance.savers.suite import commit, head_of, row
from checkpoint_savers.errors import UnsupportedFormatError
from checkpoint_savers.records import Lease
from checkpoint_savers.scopes import is_done
from checkpoint_savers.sqlite.schema import VERSION
from tests.savers.sqlite_tools import execute, held, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver(tmp_path / "runs.db", synchronous="NORMAL") as saver:
        yield saver


async def taken(saver: SqliteSaver, run_id: str = "a") -> Lease:
    """Start a run of a thread with its name, and take it."""
    await saver.runs.start(run_id, request(run_id))
    return (await take_run(saver, 1, at=run_id)).lease


@asynccontextmanager
async def traced(saver: SqliteSaver) -> AsyncGenerator[list[str]]:
    """The first words of the statements of the connection."""
    found: list[str] = []
    await execute(
        saver, lambda db: db.connection.set_trace_callback(lambda text: found.append(" ".join(text.split()[:4])))
    )
    del found[:]
    yield found
    await execute(saver, lambda db: db.connection.set_trace_callback(None))


def changed(statements: list[str]) -> list[str]:
    """The statements of the last transaction that writes. Each is traced again for each statement of its triggers."""
    end = len(statements) - statements[::-1].index("COMMIT") - 1
    begin = len(statements) - statements[::-1].index("BEGIN IMMEDIATE")
    return [text for text, _ in groupby(statements[begin:end])]


async def test_the_statements_of_a_run(saver: SqliteSaver) -> None:
    """The first superstep of a run is stored by one statement, as any other, and changes one column of the run's row,
    so that it writes no index; the last one also changes the thread's row. No row of runs is read."""
    lease = await taken(saver)
    async with traced(saver) as found:
        await saver.runs.begin(lease, "a", commit(row(1)))
        store = ["INSERT INTO superstep VALUES", "PRAGMA user_version"]
        assert changed(found) == [*store, "UPDATE run SET data"]
        await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
        assert changed(found) == [*store, "UPDATE run SET status", "UPDATE run_thread SET status"]


async def test_indexes_that_do_not_change(saver: SqliteSaver, tmp_path: Path) -> None:
    """The statements of a run set no column that stays the same: SQLite would write the entries of its indexes."""
    lease, found = await taken(saver), list[str]()
    await execute(saver, lambda db: db.connection.set_trace_callback(found.append))
    await saver.runs.begin(lease, "a", commit(row(1)))
    await saver.runs.end(lease, "a", SUCCESS, commit(row(2, 1), head=1))
    updates = [text.partition(" WHERE ")[0] for text in found if text.startswith("UPDATE run")]
    assert not [text for text in updates if "hidden" in text or "created_at" in text or "assistant" in text]


async def test_marks_share_a_transaction(saver: SqliteSaver) -> None:
    """Supersteps that wait at the same time, with marks and without, are stored together by one statement."""
    leases = {run_id: await taken(saver, run_id) for run_id in "abcd"}
    async with traced(saver) as found:
        async with anyio.create_task_group() as group, held(saver):
            for run_id, lease in leases.items():
                if run_id == "b":
                    group.start_soon(saver.commit, lease, commit(row(1)))
                else:
                    group.start_soon(saver.runs.begin, lease, run_id, commit(row(1)))
                await turns(1)
            await turns()
        stored = changed(found)
    assert [text for text in stored if "INTO" in text] == ["INSERT INTO superstep VALUES"]
    assert stored.count("UPDATE run SET data") == 3 and stored.count("SAVEPOINT job") == 1
    for run_id in "abcd":
        run = await saver.runs.get_run(run_id)
        assert run is not None and run.begun is (run_id != "b")
        assert await head_of(saver, run_id) == row(1).checkpoint_id


async def test_a_mark_that_is_refused_in_a_shared_transaction(saver: SqliteSaver) -> None:
    """P3: if the rows of one run have changed, the other supersteps of the transaction are stored all the same."""
    leases = {run_id: await taken(saver, run_id) for run_id in "abc"}
    await saver.runs.cancel("b")
    async with anyio.create_task_group() as group, held(saver):
        for run_id, lease in leases.items():
            group.start_soon(saver.runs.begin, lease, run_id, commit(row(1)))
        await turns()
    for run_id in "abc":
        run = await saver.runs.get_run(run_id)
        assert run is not None and run.begun and run.cancel == ("interrupt" if run_id == "b" else None)
        assert await head_of(saver, run_id) == row(1).checkpoint_id


@pytest.mark.one_loop
@pytest.mark.parametrize("changes", [False, True], ids=["unchanged", "changed"])
async def test_a_caller_that_is_cancelled(saver: SqliteSaver, changes: bool) -> None:
    """P7: a task that is cancelled while its run's end is stored learns whether it was; what was stored is noted."""
    lease = await taken(saver)
    if changes:
        await saver.runs.cancel("a")
    seen = saver.runs.changes.number
    async with held(saver):
        task = asyncio.ensure_future(saver.runs.end(lease, "a", SUCCESS, commit(row(1))))
        await turns()
        task.cancel()
        await turns()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    run = await saver.runs.get_run("a")
    assert run is not None and (run.status == "running") is changes
    assert is_done(cancelled.value) is not changes
    assert (saver.runs.changes.number == seen) is changes
    assert (saver._held_leases == {}) is not changes


async def test_a_file_that_a_later_version_has_upgraded(saver: SqliteSaver, tmp_path: Path) -> None:
    """P11: a program that has the file open stores no mark in it."""
    lease = await taken(saver)
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as later:
        later.execute(f"PRAGMA user_version = {VERSION + 1}")
        with pytest.raises(UnsupportedFormatError):
            await saver.runs.begin(lease, "a", commit(row(1)))
        assert later.execute("SELECT count(*) FROM checkpoint").fetchone() == (0,)
        later.execute(f"PRAGMA user_version = {VERSION}")
    await saver.runs.begin(lease, "a", commit(row(1)))


async def test_a_saver_that_is_opened_again(tmp_path: Path) -> None:
    """A saver that was closed has no lease, and remembers no rows."""
    saver = SqliteSaver(tmp_path / "runs.db")
    async with saver:
        await taken(saver)
        assert list(saver.runs._known._known) == ["a"]
    assert saver.runs._known._known == {}
