"""`PostgresSaver.wait_for_release`: with a direct connection (`listen=`), a waiting caller wakes when the thread's
lease is released (P6)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import PostgresSaver, SaverClosedError
from checkpoint_savers.conformance.savers.suite import LATER, commit, elsewhere, event, in_threads, record, row, take
from checkpoint_savers.postgres import listening
from checkpoint_savers.records import Lease
from pregel_async import START, StateGraph
from pregel_async._runtime.platform.environment import SystemEnvironment
from tests.helpers.postgres_tools import Proxy, empty, execute, made_schema, unsynced

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def emptied(schema: str) -> None:
    empty(schema)


@pytest.fixture
async def saver(schema: str) -> AsyncIterator[PostgresSaver]:
    """A saver that listens."""
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema, listen=True) as saver:
        yield saver


@pytest.fixture
async def other(schema: str) -> AsyncIterator[PostgresSaver]:
    """A saver that does not listen."""
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        yield saver


async def start_listening(saver: PostgresSaver) -> None:
    """Wait until the saver listens. It starts with the first call of `wait_for_release`, which then returns once
    without a release."""
    with anyio.fail_after(30):
        await saver.wait_for_release("any thread")


WAYS: list[Callable[[PostgresSaver, Lease], Any]] = [
    lambda saver, lease: saver.release(lease),
    lambda saver, lease: saver.commit(lease, commit(row(1), releases=True)),
    lambda saver, lease: saver.commit(lease, commit(records=[record(1, "a")], events=[event(1)], releases=True)),
    lambda saver, lease: saver.erase(lease),
]


@pytest.mark.parametrize("way", WAYS, ids=["released", "with the last commit", "with records", "erased"])
async def test_each_way_to_release_a_thread_wakes_waiters(
    way: Callable[[PostgresSaver, Lease], Any], saver: PostgresSaver, other: PostgresSaver
) -> None:
    """P6: a release by another process wakes the caller. That process may be behind a pooler, as it only executes a
    statement."""
    lease = await take(other)
    await start_listening(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(saver.wait_for_release, "t")
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await way(other, lease)
    await take(saver, run="run-2")


async def test_deleting_a_thread_wakes_waiters(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P6: also if its lease had expired."""
    lease = await other.acquire("t", elsewhere("run-1"), now=0.0, expires_at=1.0)
    await other.commit(lease, commit(row(1), expires_at=1.0))
    await start_listening(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(saver.wait_for_release, "t")
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await other.adelete_thread("t")


async def test_only_a_release_of_that_thread_wakes_waiters(
    saver: PostgresSaver, other: PostgresSaver, schema: str
) -> None:
    """P6: other threads, the same thread in another schema, and writes that release nothing wake no waiter."""
    lease = await take(other)
    await start_listening(saver)
    woken = anyio.Event()

    async def wait() -> None:
        await saver.wait_for_release("t")
        woken.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        await other.commit(lease, commit(row(1)))
        await other.renew(lease, expires_at=LATER)
        await other.record(lease, [record(1, "a")], expires_at=LATER)
        await other.release(await take(other, "u"))
        with made_schema() as apart:
            async with PostgresSaver.from_conn_string(unsynced(), schema=apart) as stranger:
                await stranger.release(await take(stranger, "t"))
        last = anyio.Event()

        async def wait_for_last() -> None:
            await saver.wait_for_release("last")
            last.set()

        group.start_soon(wait_for_last)
        await anyio.lowlevel.checkpoint()
        await other.release(await take(other, "last"))
        with anyio.fail_after(30):
            await last.wait()  # notifications arrive in order, so those sent earlier have arrived, too
        assert not woken.is_set()
        await other.release(lease)
        with anyio.fail_after(30):
            await woken.wait()


async def test_a_refused_or_rolled_back_release_wakes_none(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P3: NOTIFY is part of the transaction."""
    lease = await take(other)
    await other.commit(lease, commit(row(1)))
    await start_listening(saver)
    woken: list[str] = []

    async def wait(thread: str) -> None:
        await saver.wait_for_release(thread)
        woken.append(thread)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "t")
        await anyio.lowlevel.checkpoint()
        for refused in (commit(row(2, 1), head=7, releases=True), commit(row(1), head=1, releases=True)):
            with pytest.raises(Exception):
                await other.commit(lease, refused)
        group.start_soon(wait, "last")
        await anyio.lowlevel.checkpoint()
        await other.release(await take(other, "last"))
        with anyio.fail_after(30):
            while "last" not in woken:
                await anyio.lowlevel.checkpoint()
        assert woken == ["last"]
        group.cancel_scope.cancel()


async def test_many_waiters_on_many_loops(schema: str, other: PostgresSaver) -> None:
    """P13: twenty threads with asyncio and trio loops wait through one connection."""
    leases = [await take(other, f"t{number}") for number in range(4)]
    ready = threading.Barrier(21)
    with Proxy(unsynced()) as proxy:
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, listen=proxy.url) as saver:
            await start_listening(saver)

            async def wait(number: int) -> None:
                async with anyio.create_task_group() as group:
                    group.start_soon(saver.wait_for_release, f"t{number % 4}")
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
                    ready.wait(60)

            async def give_up() -> None:
                ready.wait(60)
                for lease in leases:
                    await other.release(lease)

            await in_threads(give_up, *(partial(wait, number) for number in range(20)))
            assert saver._open is not None and saver._open.listener is not None
            assert not saver._open.listener._waiting, "waiters that were woken are still registered"
        assert proxy.connections == 1


async def test_the_listening_connection_breaks(schema: str, other: PostgresSaver) -> None:
    """P6: the saver reconnects and wakes all waiters, because notifications sent meanwhile are lost."""
    with Proxy(unsynced()) as proxy:
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, listen=proxy.url) as saver:
            await start_listening(saver)
            for _ in range(3):
                with anyio.fail_after(30):
                    async with anyio.create_task_group() as group:
                        group.start_soon(saver.wait_for_release, "t")
                        await anyio.lowlevel.checkpoint()
                        proxy.cut()
            lease = await take(other)
            async with anyio.create_task_group() as group:
                group.start_soon(saver.wait_for_release, "t")
                await anyio.lowlevel.checkpoint()
                with anyio.fail_after(30):
                    await other.release(lease)


async def test_no_direct_connection(schema: str) -> None:
    """P6: without a direct connection `wait_for_release` does not return, so that callers poll, and closing does not
    wait for the connection."""
    with Proxy(unsynced()) as proxy:
        proxy.refuses = True
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, listen=proxy.url) as saver:
            with anyio.move_on_after(0.1) as scope:
                await saver.wait_for_release("t")
            assert scope.cancelled_caught
    assert not [one for one in threading.enumerate() if "PostgresSaver" in one.name]


async def test_a_saver_that_does_not_listen(other: PostgresSaver) -> None:
    """P6: `wait_for_release` does not return, and opens no connection."""
    with anyio.move_on_after(0.05) as scope:
        await other.wait_for_release("t")
    assert scope.cancelled_caught
    await other.__aexit__(None, None, None)
    with pytest.raises(SaverClosedError):
        await other.wait_for_release("t")


class State(TypedDict, total=False):
    n: int


class SleepsForever(SystemEnvironment):
    """Never returns from `sleep`, so that only a notification lets a waiting run continue."""

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep_forever()


async def test_a_waiting_run_starts_on_a_release(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P6: a run with `on_conflict="wait"` acquires the thread when it is released, and not at its next poll."""

    def count(state: State) -> State:
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(State).add_node(count).add_edge(START, "count").compile(saver, environment=SleepsForever())
    lease = await other.acquire("t", elsewhere("run-1"), now=4e9, expires_at=5e9)
    await start_listening(saver)
    result: list[Any] = []

    async def run() -> None:
        result.append(await graph.ainvoke({}, "t", on_conflict="wait"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        assert saver._open is not None and saver._open.listener is not None
        while not saver._open.listener._waiting:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await other.release(lease)
            while not result:
                await anyio.lowlevel.checkpoint()
    assert result == [{"n": 1}]


async def test_a_waiting_run_is_cancelled(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P7: a run may be cancelled at any moment while it waits; the thread is free afterwards."""
    builder = StateGraph(State).add_node("a", lambda state: {"n": 1}).add_edge(START, "a")
    graph = builder.compile(saver)
    await start_listening(saver)
    for turns in range(0, 40, 4):
        lease = await take(other, "t", f"run-{turns}")
        async with anyio.create_task_group() as group:
            group.start_soon(partial(graph.ainvoke, {}, "t", on_conflict="wait"))
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await other.release(lease)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        await other.release(await take(other, "t", "run-last"))


async def test_closing_while_listen_is_executed(
    schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P7: a saver that is closed right after it was opened waits for the statement, and logs nothing."""
    slow = f"LISTEN_{schema}"
    monkeypatch.setattr(listening, "CHANNEL", f'"{slow}"; SELECT pg_sleep(0.3)')
    executing = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s AND pid <> pg_backend_pid()"
    async with PostgresSaver(unsynced(), schema=schema, listen=True) as saver:
        with saver.runs.watch("t"), anyio.fail_after(30):
            while not execute(executing, f'LISTEN "{slow}"%'):
                await anyio.lowlevel.checkpoint()
    assert caplog.messages == []
