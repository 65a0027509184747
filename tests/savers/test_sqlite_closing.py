"""SqliteSaver opened, cancelled and closed: nothing is lost, nothing is left (P7, P13)."""

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
from tests.savers.dropping import warned
from tests.savers.sqlite_tools import held, saver_threads, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path) as saver:
        yield saver


# ---- cancelling --------------------------------------------------------------------------------------------------


async def test_a_commit_that_was_handed_over_is_waited_for(saver: SqliteSaver) -> None:
    """P7: however its caller is cancelled, the commit ends first; then the caller is told, and it is stored whole."""
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


async def test_a_lease_whose_acquire_was_cancelled_is_released(saver: SqliteSaver) -> None:
    """P7, P6: taken when its caller was gone already, it does not keep the thread until it expires."""
    async with anyio.create_task_group() as outer:

        async def run_cancelled() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(take, saver)
                await turns()
                group.cancel_scope.cancel()

        async with held(saver):
            outer.start_soon(run_cancelled)
            await turns(20)
    assert (await take(saver, run="run-2")).epoch == 1, "no trace"


async def test_a_loop_that_was_closed_harms_nobody(saver: SqliteSaver) -> None:
    """P13: a loop is closed while one of its tasks waits for a commit: all others are served as ever."""
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


# ---- opening and closing -----------------------------------------------------------------------------------------


async def test_nothing_is_left_running(path: Path) -> None:
    """P7: when the saver is closed, its threads and its loop are gone."""
    async with SqliteSaver.from_conn_string(path) as saver:
        assert len(saver_threads()) == 2
        await written(saver, row(1))
    assert saver_threads() == []
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name], "the WAL is folded in"


async def test_not_open(path: Path) -> None:
    """Before it is opened and after it is closed: SaverClosedError; it may be opened again, not twice at once."""
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
    """It says how it is opened, and makes no file."""
    with pytest.raises(TypeError, match=rf"opened with 'async with', or .*open_sync\({kind.__name__}\(") as caught:
        with kind(path):
            pass
    assert "nothing was opened" in str(caught.value)
    assert not path.exists()


async def test_closing_waits_for_what_was_begun(path: Path) -> None:
    """P7: calls that were handed over are done; those that come later are refused; none is left waiting."""
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
    """P6: of a run that still goes on when its saver is closed, every thread is free at once, with what is stored."""
    async with SqliteSaver.from_conn_string(path) as saver:
        leases = [await take(saver, thread) for thread in ("t1", "t2", "t3")]
        await saver.commit(leases[0], commit(row(1)))
        await saver.commit(leases[1], commit(row(1)))
        await saver.release(leases[1])
        await take(saver, "t2", "run-2")
    async with SqliteSaver.from_conn_string(path) as saver:
        assert [(await take(saver, thread, "run-3")).epoch for thread in ("t1", "t2", "t3")] == [2, 3, 1]
        assert await head_of(saver, "t1") == cid(1)


async def test_a_call_that_comes_too_late(path: Path) -> None:
    """P7: handed over just when the saver closes, or after: refused, and not left waiting."""
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
            worker._queue.put(None)  # what `stop` does, in the moment between a caller's question and its handing over
            group.start_soon(run)
            await turns()
        assert len(refused) == 1
    with pytest.raises(SaverClosedError):
        await worker.run(Job(lambda db: None, writes=False))


async def test_many_threads_while_it_closes(path: Path) -> None:
    """P13: callers of other threads, on both loops, are answered or refused, and none hangs."""
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
    """P7: at any moment; nothing is left running, and the file is good."""
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
    """P7: it is closed all the same."""
    with anyio.CancelScope() as scope:
        async with SqliteSaver.from_conn_string(path) as saver:
            await written(saver, row(1))
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert saver_threads() == []


def test_a_saver_that_was_never_closed(path: Path) -> None:
    """It warns, and its threads end when Python drops it."""

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


def test_no_warning_without_reason(path: Path) -> None:
    """A saver that was never opened, and one that was closed, are dropped in silence."""

    async def use() -> None:
        async with SqliteSaver.from_conn_string(path) as saver:
            await written(saver, row(1))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use())
        SqliteSaver.from_conn_string(path)
        gc.collect()
