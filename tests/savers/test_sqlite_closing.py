"""SqliteSaver opened, cancelled and closed: no write is lost, and no thread or lock is left (P7, P13)."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import (
    SaverClosedError,
    SqliteSaver,
    SqliteStore,
)
from checkpoint_savers.caches import SqliteCache
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    NOW,
    cid,
    commit,
    elsewhere,
    head_of,
    in_threads,
    row,
    take,
    written,
)
from checkpoint_savers.sqlite.worker import Job
from tests.savers.dropped_objects import warned
from tests.savers.sqlite_tools import held, saver_threads, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path) as saver:
        yield saver


async def test_a_started_commit_is_awaited(saver: SqliteSaver) -> None:
    """P7: however its caller is cancelled, the commit ends first and is stored completely; then the cancellation is
    raised."""
    lease = await take(saver)
    async with anyio.create_task_group() as outer:
        async with held(saver) as go:
            ended: list[bool] = []

            async def run() -> None:
                try:
                    await saver.commit(lease, commit(row(1), row(2, 1)))
                finally:
                    ended.append(go.is_set())

            async def run_cancelled() -> None:
                async with anyio.create_task_group() as group:
                    group.start_soon(run)
                    await turns()
                    group.cancel_scope.cancel()

            outer.start_soon(run_cancelled)
            await turns(20)
            assert ended == []
    assert ended == [True]
    assert await head_of(saver) == cid(2)


async def test_a_cancelled_acquire_releases_the_lease(saver: SqliteSaver) -> None:
    """P7, P6: a lease that was acquired after its caller was cancelled does not lock the thread until it expires."""
    async with anyio.create_task_group() as outer:

        async def run_cancelled() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(take, saver)
                await turns()
                group.cancel_scope.cancel()

        async with held(saver):
            outer.start_soon(run_cancelled)
            await turns(20)
    assert (await take(saver, run="run-2")).epoch == 1, "no trace is left"


async def test_a_closed_loop_does_not_affect_others(saver: SqliteSaver) -> None:
    """P13: if a loop is closed while one of its tasks waits for a commit, all other callers are served as before."""
    lease = await take(saver)
    loop = asyncio.new_event_loop()

    def leave() -> None:
        task = loop.create_task(saver.commit(lease, commit(row(1))))
        for _ in range(5):
            loop.call_soon(loop.stop)
            loop.run_forever()
        loop.close()
        task._log_destroy_pending = False  # asyncio would log it

    async with held(saver):
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    await saver.commit(lease, commit(row(2, 1), head=1))
    assert await head_of(saver) == cid(2)


async def test_no_thread_is_left_running(path: Path) -> None:
    """P7: after closing, the saver's threads and its loop have ended."""
    async with SqliteSaver.from_conn_string(path) as saver:
        assert len(saver_threads()) == 2
        await written(saver, row(1))
    assert saver_threads() == []
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name], "the WAL was not checkpointed"


async def test_a_saver_that_is_not_open(path: Path) -> None:
    """Before it is opened and after it is closed, calls raise SaverClosedError; it may be opened again, but not
    twice at once."""
    saver = SqliteSaver.from_conn_string(path)
    leases = []
    for _ in range(2):
        for attempt in (
            saver.acquire("t", elsewhere("run"), now=NOW, expires_at=LATER),
            saver.read("t"),
            saver.scan(None, None),
            saver.segment("t", "", cid(1)),
            saver.adelete_thread("t"),
            *(saver.commit(lease, commit(row(2, 1), head=1)) for lease in leases),
            *(saver.release(lease) for lease in leases),
        ):
            with pytest.raises(SaverClosedError, match="async with"):
                await attempt
        async with saver:
            leases = [await take(saver)]
            await saver.commit(leases[0], commit(row(1), releases=True))
            with pytest.raises(SaverClosedError, match="open already"):
                async with saver:
                    pass
            assert await head_of(saver) == cid(1)
            await saver.adelete_thread("t")
    assert saver_threads() == []


@pytest.mark.parametrize("kind", [SqliteSaver, SqliteStore, SqliteCache])
def test_opened_with_a_plain_with(path: Path, kind: Any) -> None:
    """The error says how to open the saver, and no file is created."""
    with pytest.raises(TypeError, match=rf"opened with 'async with', or .*open_sync\({kind.__name__}\(") as caught:
        with kind(path):
            pass
    assert "nothing was opened" in str(caught.value)
    assert not path.exists()


async def test_closing_waits_for_started_calls(path: Path) -> None:
    """P7: started calls complete; later ones are refused; no call is left waiting."""
    async with SqliteSaver.from_conn_string(path) as saver:
        leases = [await take(saver, f"t{number}") for number in range(10)]
        done: list[int] = []

        async def run(number: int) -> None:
            await saver.commit(leases[number], commit(row(1)))
            done.append(number)

        async with anyio.create_task_group() as group:
            async with held(saver):
                for number in range(10):
                    group.start_soon(run, number)
                await turns()
                group.start_soon(saver.__aexit__, None, None, None)
                await turns()
                with pytest.raises(SaverClosedError):
                    await saver.read("t0")
        assert sorted(done) == list(range(10))
    assert saver_threads() == []
    async with SqliteSaver.from_conn_string(path) as saver:
        assert len(await saver.scan(None, None)) == 10


async def test_closing_releases_leases(path: Path) -> None:
    """P6: if a saver is closed during a run, the run's threads are free at once, with what is stored."""
    async with SqliteSaver.from_conn_string(path) as saver:
        leases = [await take(saver, thread) for thread in ("t1", "t2", "t3")]
        await saver.commit(leases[0], commit(row(1)))
        await saver.commit(leases[1], commit(row(1)))
        await saver.release(leases[1])
        await take(saver, "t2", "run-2")
    async with SqliteSaver.from_conn_string(path) as saver:
        assert [(await take(saver, thread, "run-3")).epoch for thread in ("t1", "t2", "t3")] == [2, 3, 1]
        assert await head_of(saver, "t1") == cid(1)


async def test_closing_releases_a_lease_that_is_being_acquired(path: Path) -> None:
    """P6: a run that begins as the saver is closed does not lock its thread until the lease expires."""
    async with anyio.create_task_group() as group:
        async with SqliteSaver.from_conn_string(path) as saver:
            async with held(saver) as go:
                group.start_soon(take, saver)
                await turns()
                go.set()
    async with SqliteSaver.from_conn_string(path) as saver:
        assert (await take(saver, run="run-2")).thread_id == "t"


async def test_a_call_that_comes_too_late(path: Path) -> None:
    """P7: a call that arrives just as the saver closes, or later, is refused instead of waiting."""
    async with SqliteSaver.from_conn_string(path) as saver:
        worker = saver._worker
        assert worker is not None
        refused: list[SaverClosedError] = []

        async def run() -> None:
            try:
                await saver.read("t")
            except SaverClosedError as error:
                refused.append(error)

        async with anyio.create_task_group() as group, held(saver):
            worker._queue.put(None)  # as `stop` does, between the caller's check and its enqueuing
            group.start_soon(run)
            await turns()
        assert len(refused) == 1
    with pytest.raises(SaverClosedError):
        await worker.run(Job(lambda db: None, writes=False))


async def test_many_threads_while_it_closes(path: Path) -> None:
    """P13: callers in other threads, on both loops, get an answer or are refused, and none hangs."""
    saver = SqliteSaver.from_conn_string(path, synchronous="NORMAL")
    await saver.__aenter__()
    begun = threading.Semaphore(0)

    async def use() -> None:
        try:
            while True:
                await saver.read("t")
                begun.release()
        except SaverClosedError:
            pass

    async def close() -> None:
        for _ in range(50):
            begun.acquire()
        await saver.__aexit__(None, None, None)

    await in_threads(use, use, use, use, close)
    assert saver_threads() == []


async def test_opening_that_is_cancelled(path: Path) -> None:
    """P7: opening may be cancelled at any moment; nothing is left running, and the file is usable."""
    for number in range(6):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                async with SqliteSaver.from_conn_string(path):
                    await anyio.sleep_forever()

            group.start_soon(run)
            await turns(number)
            group.cancel_scope.cancel()
        assert saver_threads() == []
    async with SqliteSaver.from_conn_string(path) as saver:
        await written(saver, row(1))


async def test_closing_in_a_cancelled_scope(path: Path) -> None:
    """P7: the saver is closed in spite of the cancellation."""
    with anyio.CancelScope() as scope:
        async with SqliteSaver.from_conn_string(path) as saver:
            await written(saver, row(1))
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert saver_threads() == []


def test_a_saver_that_was_never_closed(path: Path) -> None:
    """The saver warns, and its threads end when Python frees it."""

    async def forget() -> None:
        saver = await SqliteSaver.from_conn_string(path).__aenter__()
        await written(saver, row(1))

    threads = set(threading.enumerate())
    with pytest.warns(ResourceWarning, match="never closed") as caught:
        asyncio.run(forget())
        anyio.run(warned, caught)
    for thread in set(threading.enumerate()) - threads:
        thread.join()
    assert saver_threads() == []


def test_no_warning_without_need(path: Path) -> None:
    """A saver that was never opened, and one that was closed, are freed without a warning."""

    async def use() -> None:
        async with SqliteSaver.from_conn_string(path) as saver:
            await written(saver, row(1))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use())
        SqliteSaver.from_conn_string(path)
        gc.collect()
