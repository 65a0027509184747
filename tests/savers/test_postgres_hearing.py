"""Whoever waits for a thread hears that it was given up, where PostgresSaver has a direct connection (P6)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import PostgresSaver, SaverClosedError
from checkpoint_savers.conformance.savers.suite import LATER, commit, elsewhere, event, in_threads, record, row, take
from checkpoint_savers.records import Lease
from pregel_async import START, StateGraph
from pregel_async._runtime.platform.environment import SystemEnvironment
from tests.helpers.postgres_tools import Proxy, conninfo, execute, made_schema

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    with made_schema() as schema:
        yield schema


@pytest.fixture(autouse=True)
def emptied(schema: str) -> None:
    for table in ("threads", "heads", "checkpoints", "records", "events"):
        execute(f'TRUNCATE "{schema}".pregel_{table}')


@pytest.fixture
async def saver(schema: str) -> AsyncIterator[PostgresSaver]:
    """With ears."""
    async with PostgresSaver.from_conn_string(conninfo(), schema=schema, listen=True) as saver:
        yield saver


@pytest.fixture
async def other(schema: str) -> AsyncIterator[PostgresSaver]:
    """Without."""
    async with PostgresSaver.from_conn_string(conninfo(), schema=schema) as saver:
        yield saver


async def listens(saver: PostgresSaver) -> None:
    """Return when the saver has begun to listen, which it does when somebody first waits: he is called then."""
    with anyio.fail_after(30):
        await saver.wait_for_release("somebody")


WAYS: list[Callable[[PostgresSaver, Lease], Any]] = [
    lambda saver, lease: saver.release(lease),
    lambda saver, lease: saver.commit(lease, commit(row(1), releases=True)),
    lambda saver, lease: saver.commit(lease, commit(records=[record(1, "a")], events=[event(1)], releases=True)),
    lambda saver, lease: saver.erase(lease),
]


@pytest.mark.parametrize("way", WAYS, ids=["released", "with the last commit", "with records", "erased"])
async def test_each_way_to_give_a_thread_up_is_heard(
    way: Callable[[PostgresSaver, Lease], Any], saver: PostgresSaver, other: PostgresSaver
) -> None:
    """P6: in another process, which may be behind a pooler, as this one sends no more than a statement."""
    lease = await take(other)
    await listens(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(saver.wait_for_release, "t")
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await way(other, lease)
    await take(saver, run="run-2")


async def test_a_thread_that_is_deleted_is_heard(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P6: also when its lease had lapsed."""
    lease = await other.acquire("t", elsewhere("run-1"), now=0.0, expires_at=1.0)
    await other.commit(lease, commit(row(1), expires_at=1.0))
    await listens(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(saver.wait_for_release, "t")
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await other.adelete_thread("t")


async def test_only_that_thread_is_heard(saver: PostgresSaver, other: PostgresSaver, schema: str) -> None:
    """P6: other threads, the same thread in another schema, and what is no release wake nobody."""
    lease = await take(other)
    await listens(saver)
    heard = anyio.Event()

    async def wait() -> None:
        await saver.wait_for_release("t")
        heard.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        await other.commit(lease, commit(row(1)))
        await other.renew(lease, expires_at=LATER)
        await other.record(lease, [record(1, "a")], expires_at=LATER)
        await other.release(await take(other, "u"))
        with made_schema() as apart:
            async with PostgresSaver.from_conn_string(conninfo(), schema=apart) as stranger:
                await stranger.release(await take(stranger, "t"))
        last = anyio.Event()

        async def wait_for_last() -> None:
            await saver.wait_for_release("last")
            last.set()

        group.start_soon(wait_for_last)
        await anyio.lowlevel.checkpoint()
        await other.release(await take(other, "last"))
        with anyio.fail_after(30):
            await last.wait()  # what was said before that has been heard, too
        assert not heard.is_set()
        await other.release(lease)
        with anyio.fail_after(30):
            await heard.wait()


async def test_what_is_refused_or_rolled_back_is_not_said(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P3: NOTIFY is part of the transaction."""
    lease = await take(other)
    await other.commit(lease, commit(row(1)))
    await listens(saver)
    heard: list[str] = []

    async def wait(thread: str) -> None:
        await saver.wait_for_release(thread)
        heard.append(thread)

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
            while "last" not in heard:
                await anyio.lowlevel.checkpoint()
        assert heard == ["last"]
        group.cancel_scope.cancel()


async def test_many_wait_on_many_loops(schema: str, other: PostgresSaver) -> None:
    """P13: in twenty threads, asyncio and trio, with one connection for all of them."""
    leases = [await take(other, f"t{number}") for number in range(4)]
    ready = threading.Barrier(21)
    with Proxy(conninfo()) as proxy:
        async with PostgresSaver.from_conn_string(conninfo(), schema=schema, listen=proxy.url) as saver:
            await listens(saver)

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
            assert not saver._open.listener._waiting, "who has heard is remembered no longer"
        assert proxy.connections == 1


async def test_the_connection_breaks(schema: str, other: PostgresSaver) -> None:
    """P6: it is made again; and as what was said meanwhile is lost, all who wait are called then."""
    with Proxy(conninfo()) as proxy:
        async with PostgresSaver.from_conn_string(conninfo(), schema=schema, listen=proxy.url) as saver:
            await listens(saver)
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
    """P6: where it cannot be made, whoever waits goes on looking for himself, and closing does not wait for it."""
    with Proxy(conninfo()) as proxy:
        proxy.refuses = True
        async with PostgresSaver.from_conn_string(conninfo(), schema=schema, listen=proxy.url) as saver:
            with anyio.move_on_after(0.1) as scope:
                await saver.wait_for_release("t")
            assert scope.cancelled_caught
    assert not [one for one in threading.enumerate() if "PostgresSaver" in one.name]


async def test_without_ears(other: PostgresSaver) -> None:
    """P6: there is nothing to hear, and no connection is made for it."""
    with anyio.move_on_after(0.05) as scope:
        await other.wait_for_release("t")
    assert scope.cancelled_caught
    await other.__aexit__(None, None, None)
    with pytest.raises(SaverClosedError):
        await other.wait_for_release("t")


# ---- a run that waits -----------------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    n: int


class Patient(SystemEnvironment):
    """Whoever sleeps in it sleeps for ever: only what is heard lets him go on."""

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep_forever()


async def test_a_run_that_waits_goes_on_when_it_hears(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P6: `on_conflict="wait"` claims the thread when it was given up, and not when a pause is over."""

    def count(state: State) -> State:
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(State).add_node(count).add_edge(START, "count").compile(saver, environment=Patient())
    lease = await other.acquire("t", elsewhere("run-1"), now=4e9, expires_at=5e9)
    await listens(saver)
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


async def test_a_run_that_waits_and_is_cancelled(saver: PostgresSaver, other: PostgresSaver) -> None:
    """P7: at any moment; the thread is nobody's then."""
    builder = StateGraph(State).add_node("a", lambda state: {"n": 1}).add_edge(START, "a")
    graph = builder.compile(saver)
    await listens(saver)
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
