"""Commits that wait at the same time share a transaction (P3, P4, P7): each caller is notified when its own commit
is durable, callers of one loop together and in order; a failure affects its own commit only; batches are bounded and
fair."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import CorruptCheckpointError, SqliteSaver, StorageError, StorageFullError, ThreadBusyError
from checkpoint_savers.bridge import Waiter
from checkpoint_savers.conformance.savers.suite import LATER, cid, commit, event, head_of, in_threads, record, row, take
from checkpoint_savers.records import Lease
from checkpoint_savers.sqlite import worker
from checkpoint_savers.sqlite.worker import MAX_BYTES, MAX_JOBS, Job
from tests.savers.sqlite_tools import execute, held, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path, synchronous="NORMAL") as saver:
        yield saver


class Trace:
    """What was done in a block.

    Attributes:
        statements: the SQL statements of the connection.
        hops: for each time that a loop was woken, how many callers were notified at once.
    """

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.hops: list[int] = []

    @property
    def transactions(self) -> int:
        return self.statements.count("BEGIN IMMEDIATE")


@asynccontextmanager
async def watched(saver: SqliteSaver, patch: pytest.MonkeyPatch) -> AsyncIterator[Trace]:
    seen = Trace()
    wake = worker.wake

    def count(waiters: Sequence[Waiter]) -> None:
        if waiters:
            seen.hops.append(len(waiters))
        wake(waiters)

    await execute(saver, lambda db: db.connection.set_trace_callback(seen.statements.append))
    patch.setattr(worker, "wake", count)
    try:
        yield seen
    finally:
        patch.setattr(worker, "wake", wake)
        await execute(saver, lambda db: db.connection.set_trace_callback(None))


async def leases_of(saver: SqliteSaver, number: int) -> list[Lease]:
    return [await take(saver, f"t{one:04d}") for one in range(number)]


async def test_one_transaction_and_one_wakeup(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty supersteps of thirty threads take one BEGIN and one COMMIT, and their loop is woken once."""
    leases = await leases_of(saver, 30)
    async with watched(saver, monkeypatch) as seen:
        async with anyio.create_task_group() as group, held(saver):
            seen.statements.clear()
            for lease in leases:
                new = commit(row(1), records=[record(1, "a")], events=[event(1)])
                group.start_soon(saver.commit, lease, new)
            await turns()
        assert (seen.transactions, seen.statements.count("COMMIT")) == (1, 2), (
            "one COMMIT is of the job that held the connection"
        )
        assert sorted(seen.hops) == [1, 30]


async def test_a_single_commit(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single commit has a transaction of its own, without a savepoint."""
    lease = await take(saver)
    async with watched(saver, monkeypatch) as seen:
        await saver.commit(lease, commit(row(1)))
        assert seen.hops == [1] and seen.transactions == 1
        assert not [one for one in seen.statements if one.startswith("SAVEPOINT")]


async def test_callers_on_many_loops(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: callers in threads with asyncio and trio loops are each notified on their own loop."""
    leases = await leases_of(saver, 40)

    def work(number: int) -> Callable[[], Any]:
        async def run() -> None:
            async with anyio.create_task_group() as group:
                for lease in leases[number * 10 : number * 10 + 10]:
                    group.start_soon(saver.commit, lease, commit(row(1)))

        return run

    await in_threads(*(work(number) for number in range(4)))
    assert len(await saver.scan(None, None)) == 40


async def test_commits_keep_their_order(saver: SqliteSaver) -> None:
    """P3: fifty commits of one thread that each expect the one before, submitted by as many tasks at once, are
    stored in order."""
    lease = await take(saver)
    async with anyio.create_task_group() as group, held(saver):
        for number in range(1, 51):
            group.start_soon(
                saver.commit, lease, commit(row(number, number - 1 or None, base=1), head=number - 1 or None)
            )
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
    assert await head_of(saver) == cid(50)


async def test_notified_when_durable(saver: SqliteSaver, path: Path) -> None:
    """P4: no caller is notified before the COMMIT that stores all commits of the batch; after it, another program
    sees them."""
    leases = await leases_of(saver, 10)
    notified: list[int] = []

    def stored(thread: str) -> int:
        with closing(sqlite3.connect(path)) as other:
            count: int = other.execute(
                "SELECT count(*) FROM checkpoint JOIN thread ON key = thread WHERE thread.id = ?", (thread,)
            ).fetchone()[0]
            return count

    async def run(number: int) -> None:
        await saver.commit(leases[number], commit(row(1)))
        notified.append(stored(f"t{number:04d}"))

    async with anyio.create_task_group() as group:
        async with held(saver) as go:
            for number in range(10):
                group.start_soon(run, number)
            await turns()
            async with held_last(saver) as written:  # a job of the same transaction, after theirs
                go.set()
                while not written():
                    await anyio.lowlevel.checkpoint()
                await turns(20)
                assert notified == [] and stored("t0000") == 0
    assert notified == [1] * 10


@asynccontextmanager
async def held_last(saver: SqliteSaver) -> AsyncIterator[Callable[[], bool]]:
    """As `held` with `writes`, without waiting until it is the job's turn."""
    import threading

    inside, go = threading.Event(), threading.Event()

    def work(db: sqlite3.Cursor) -> None:
        inside.set()
        go.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: execute(saver, work, writes=True))
        await turns()
        try:
            yield inside.is_set
        finally:
            go.set()


async def test_failures_of_every_kind(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: a lost lease, an unexpected head, an id that is taken, a payload that does not fit, a damaged row: each
    raises for its own caller, and the others' commits are stored completely."""
    leases = await leases_of(saver, 30)
    for number in (5, 25):
        await saver.commit(leases[number], commit(row(1)))
    await saver.release(leases[10])
    pages = await execute(saver, lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    await execute(saver, lambda db: db.execute(f"PRAGMA max_page_count = {pages + 40}").fetchall())
    await execute(saver, lambda db: db.execute("UPDATE thread SET owner = '{' WHERE id = 't0020'"), writes=True)
    wrong = {
        5: (commit(row(2, 1), head=7), ThreadBusyError),
        10: (commit(row(1)), ThreadBusyError),
        15: (commit(row(1, frame=bytes(1_000_000))), StorageFullError),
        25: (commit(row(1), head=1), StorageError),
    }
    found: dict[int, BaseException] = {}

    async def run(number: int) -> None:
        try:
            if number == 20:
                await saver.acquire("t0020", leases[0].owner, now=0.0, expires_at=LATER)
            else:
                await saver.commit(leases[number], wrong[number][0] if number in wrong else commit(row(1)))
        except StorageError as error:
            found[number] = error
        except (ThreadBusyError, CorruptCheckpointError) as error:
            found[number] = error

    async with anyio.create_task_group() as group, held(saver):
        for number in range(30):
            group.start_soon(run, number)
        await turns()
    assert {number: type(error) for number, error in found.items()} == {
        **{number: kind for number, (_, kind) in wrong.items()},
        20: CorruptCheckpointError,
    }
    stored = {one.thread_id for one in await saver.scan(None, None)}
    assert stored == {f"t{number:04d}" for number in range(30)} - {"t0010", "t0015", "t0020"}


async def test_a_duplicate_key_does_not_cost_the_others_their_transaction(
    saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: the other commits stay in the shared transaction."""
    leases = await leases_of(saver, 10)
    await saver.commit(leases[3], commit(row(1)))
    refused: list[StorageError] = []

    async def run(number: int) -> None:
        try:
            await saver.commit(leases[number], commit(row(1), head=1 if number == 3 else None))
        except StorageError as error:
            refused.append(error)

    async with watched(saver, monkeypatch) as seen:
        async with anyio.create_task_group() as group, held(saver):
            for number in range(10):
                group.start_soon(run, number)
            await turns()
        assert seen.transactions == 1
    assert len(refused) == 1 and isinstance(refused[0].__cause__, sqlite3.IntegrityError)
    assert len(await saver.scan(None, None)) == 10


async def test_a_job_that_raises_anything(saver: SqliteSaver) -> None:
    """P3: also an exception that no method of a saver raises affects its own caller only."""
    leases = await leases_of(saver, 4)
    raised: list[BaseException] = []

    def wrong(db: sqlite3.Cursor) -> None:
        db.execute("DELETE FROM thread")
        raise ZeroDivisionError

    async def run() -> None:
        try:
            await execute(saver, wrong, writes=True)
        except ZeroDivisionError as error:
            raised.append(error)

    async with anyio.create_task_group() as group, held(saver):
        for lease in leases[:2]:
            group.start_soon(saver.commit, lease, commit(row(1)))
        group.start_soon(run)
        for lease in leases[2:]:
            group.start_soon(saver.commit, lease, commit(row(1)))
        await turns()
    assert len(raised) == 1 and len(await saver.scan(None, None)) == 4


async def test_a_batch_has_a_maximum_number_of_jobs(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand waiting commits take several transactions, each with a bounded number of jobs."""
    number = 5 * MAX_JOBS + 7
    leases = await leases_of(saver, number)
    async with watched(saver, monkeypatch) as seen:
        async with anyio.create_task_group() as group, held(saver):
            for lease in leases:
                group.start_soon(saver.commit, lease, commit(row(1)))
            await turns()
        assert seen.transactions == 6
        assert max(seen.hops) == MAX_JOBS and sum(seen.hops) == number + 1
    assert len(await saver.scan(None, None, limit=10_000)) == number


async def test_a_batch_has_a_maximum_size(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve commits of a third of the limit each, at most three or four share a transaction; a commit above the
    limit is stored, too."""
    leases = await leases_of(saver, 13)
    async with watched(saver, monkeypatch) as seen:
        async with anyio.create_task_group() as group, held(saver):
            for lease in leases[:12]:
                group.start_soon(saver.commit, lease, commit(row(1, frame=bytes(MAX_BYTES // 3))))
            await turns()
        assert seen.transactions == 3 and max(seen.hops) == 4
    await saver.commit(leases[12], commit(row(1, frame=bytes(2 * MAX_BYTES))))
    assert len(await saver.scan(None, None)) == 13


@pytest.mark.parametrize("writes", [True, False])
async def test_waiting_jobs_do_not_starve(saver: SqliteSaver, writes: bool) -> None:
    """A reader among a thousand writers, and a writer among a thousand readers, wait for those that came before, and
    for at most one more batch."""
    await take(saver, "t")
    given: list[int] = []
    served: list[int] = []
    number, odd = 8 * MAX_JOBS, 100

    async def run(index: int) -> None:
        mine = writes if index != odd else not writes

        def work(db: sqlite3.Cursor) -> None:
            db.execute("UPDATE thread SET epoch = epoch" if mine else "SELECT * FROM thread")
            served.append(index)

        given.append(index)
        await execute(saver, work, writes=mine)

    async with anyio.create_task_group() as group, held(saver):
        for index in range(number):
            group.start_soon(run, index)
        await turns()
        assert len(given) == number
    assert sorted(served) == list(range(number))
    places = {index: place for place, index in enumerate(given)}
    assert all(abs(place - places[index]) < MAX_JOBS for place, index in enumerate(served))


async def test_readers_and_writers_that_repeat(saver: SqliteSaver) -> None:
    """Readers that ask again as soon as they are answered do not keep a writer waiting, nor writers a reader."""
    leases = await leases_of(saver, 8)
    stop = False

    async def write(lease: Lease) -> None:
        while not stop:
            await saver.renew(lease, expires_at=LATER)

    async def read(thread: str) -> None:
        while not stop:
            await saver.read(thread)

    async with anyio.create_task_group() as group:
        for lease in leases[1:]:
            group.start_soon(write, lease)
            group.start_soon(read, lease.thread_id)
        for number in range(1, 20):
            await saver.commit(leases[0], commit(row(number, number - 1 or None, base=1), head=number - 1 or None))
            assert await head_of(saver, "t0000") == cid(number)
        stop = True


async def test_one_of_many_callers_is_cancelled(saver: SqliteSaver) -> None:
    """P7: its commit is stored with the others', before its cancellation is raised; the other callers are
    unaffected."""
    leases = await leases_of(saver, 10)
    notified: list[int] = []
    went_on: list[int] = []
    cancelled: list[bool] = []

    async def run(number: int) -> None:
        await saver.commit(leases[number], commit(row(1)))
        notified.append(number)
        await turns()
        went_on.append(number)

    async def run_cancelled() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(run, 4)
            await turns()
            group.cancel_scope.cancel()
        cancelled.append(await head_of(saver, "t0004") == cid(1))

    async with anyio.create_task_group() as group, held(saver):
        for number in (0, 1, 2, 3, 5, 6, 7, 8, 9):
            group.start_soon(run, number)
        group.start_soon(run_cancelled)
        await turns(20)
        assert not cancelled
    assert sorted(notified) == [*range(10)] and cancelled == [True]
    assert sorted(went_on) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


async def test_jobs_without_a_transaction_keep_their_turn(saver: SqliteSaver) -> None:
    """A job that rewrites the file runs after the writes submitted before it, and once for all callers that request
    it."""
    leases = await leases_of(saver, 3)
    seen: list[int] = []

    def count(db: sqlite3.Cursor) -> int:
        assert not db.connection.in_transaction
        seen.append(db.execute("SELECT count(*) FROM checkpoint").fetchone()[0])
        return len(seen)

    found: list[int] = []

    async def run() -> None:
        assert saver._worker is not None
        found.append(await saver._worker.run(Job(count, writes=True, bare=True)))

    async with anyio.create_task_group() as group, held(saver):
        group.start_soon(run)
        for lease in leases:
            group.start_soon(saver.commit, lease, commit(row(1)))
        group.start_soon(run)
        await turns()
    assert seen == [3] and found == [1, 1]


@pytest.mark.one_loop
async def test_an_idle_worker_keeps_no_job(saver: SqliteSaver) -> None:
    """P7: the thread of a saver releases jobs, with their arguments and results, when they have ended: not only when
    the next one arrives."""

    class Large:
        pass

    queue, result = saver._worker, Large()
    assert queue is not None
    left = weakref.ref(result)
    assert await queue.run(Job(lambda _, value: value, (result,), writes=False)) is result
    del result
    with anyio.fail_after(20):
        while left() is not None:
            await anyio.lowlevel.checkpoint()
