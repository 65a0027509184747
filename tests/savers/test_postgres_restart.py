"""PostgresSaver while its server, one of the tests' own, is killed and started again (P4, P5, P6).

Every acknowledged write is there after the crash, and a write in progress is stored once or not at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Any, TypedDict

import anyio
import anyio.to_thread
import psycopg_pool
import pytest

from checkpoint_savers import InMemorySaver, PostgresSaver, StorageError, ThreadBusyError
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.conformance.savers.suite import LATER, cid, commit, event, head_of, record, row, take, written
from pregel_async import START, Send, StateGraph
from tests.helpers.postgres_tools import OwnServer, made_schema, own_server, patience

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server


@pytest.fixture
def schema(server: OwnServer) -> Iterator[str]:
    with made_schema(server.conninfo) as schema:
        yield schema


async def restarted(server: OwnServer) -> None:
    await anyio.to_thread.run_sync(server.restart)


def join(left: list[str], right: list[str]) -> list[str]:
    return left + right


class State(TypedDict, total=False):
    log: Annotated[list[str], join]


class Steps:
    """A graph of three steps, the second of which has three tasks; the tests set what happens in a task by its name."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.happens: dict[str, Any] = {}

    async def do(self, name: str) -> State:
        self.ran.append(name)
        if name in self.happens:
            await self.happens.pop(name)()
        return {"log": [name]}

    def graph(self, saver: BaseCheckpointSaver) -> Any:
        async def first(state: State) -> State:
            return await self.do("first")

        async def each(number: int) -> State:
            return await self.do(f"each {number}")

        async def last(state: State) -> State:
            return await self.do("last")

        builder = StateGraph(State).add_node(first).add_node(each).add_node(last)
        builder.add_edge(START, "first").add_edge("each", "last")
        builder.add_conditional_edges("first", lambda _: [Send("each", number) for number in range(3)], ["each"])
        return builder.compile(saver)


LOG = ["first", "each 0", "each 1", "each 2", "last"]


async def check_history_is_undisturbed(saver: PostgresSaver, thread: str) -> None:
    """P2: the history has the steps of an undisturbed run."""

    async def steps_of(graph: Any, thread: str) -> list[Any]:
        return [(one.metadata["step"], one.values, one.next) async for one in graph.aget_state_history(thread)]

    undisturbed = Steps().graph(InMemorySaver())
    await undisturbed.ainvoke({"log": []}, thread)
    assert await steps_of(Steps().graph(saver), thread) == await steps_of(undisturbed, thread)


@pytest.mark.parametrize("name", ["first", "each 1", "last"])
async def test_a_run_survives_a_server_restart(name: str, server: OwnServer, schema: str) -> None:
    """P4, P5: if the server is killed and started while a node runs, the run completes, and each task has run once."""
    steps = Steps()
    steps.happens[name] = lambda: restarted(server)
    async with PostgresSaver.from_conn_string(server.conninfo, schema=schema, reconnect_timeout=60) as saver:
        assert await steps.graph(saver).ainvoke({"log": []}, "t") == {"log": LOG}
        assert sorted(steps.ran) == sorted(LOG)
        await check_history_is_undisturbed(saver, "t")


@pytest.mark.parametrize("name", ["first", "each 1", "last"])
async def test_a_run_without_a_server_ends_and_resumes(name: str, server: OwnServer, schema: str) -> None:
    """P4, P5: if the server is away for longer than `reconnect_timeout`, the run ends with an error that says so; a
    resume runs only what was not recorded."""

    steps = Steps()
    async with PostgresSaver.from_conn_string(server.conninfo, schema=schema, reconnect_timeout=60) as saver:

        async def stop() -> None:
            await anyio.to_thread.run_sync(server.stop)
            away.enter_context(patience(saver, 0.2))

        steps.happens[name] = stop
        try:
            with ExitStack() as away, pytest.raises(StorageError, match="server|pool"):
                await steps.graph(saver).ainvoke({"log": []}, "t")
        finally:
            await anyio.to_thread.run_sync(server.start)
        ran, steps.ran = steps.ran, []
        found = await saver.aget_tuple("t", codec=saver.codec.with_types(Send, tag="pregel_async.Send"))
        assert found is not None
        values = found.checkpoint["channel_values"].get("log", [])
        recorded = [value for _, channel, log in found.pending_writes if channel == "log" for value in log]
        assert len(values) >= {"first": 0, "each 1": 1, "last": 4}[name]
        assert {*values, *recorded} <= set(ran)
        (header,) = await saver.threads()
        assert header.owner is not None, "the lease could not be released"
        await saver.release(await saver.acquire("t", header.owner, now=LATER, expires_at=LATER))
        assert await steps.graph(saver).ainvoke(None, "t") == {"log": LOG}
        assert sorted(steps.ran) == sorted(set(LOG) - {*values, *recorded})
        await check_history_is_undisturbed(saver, "t")


WRITERS = 12
KILLS = 3


@pytest.mark.parametrize("seed", range(2))
async def test_acknowledged_writes_survive(seed: int, server: OwnServer, schema: str) -> None:
    """P3, P4, P6: twelve writers commit, record and release while the server is killed three times; every
    acknowledged write is stored once, each thread is one chain, and no writer gets an error."""
    rng = random.Random(seed)
    acknowledged = dict.fromkeys(range(WRITERS), 0)
    done = anyio.Event()

    async def write(saver: PostgresSaver, number: int) -> None:
        thread = f"t{number}"
        while not done.is_set():
            lease = await take(saver, thread, f"run-{number}")
            for _ in range(5):
                last = acknowledged[number]
                one = commit(
                    row(last + 1, last or None, base=1),
                    head=last or None,
                    records=[record(last + 1, "a")],
                    clears=[record(last, "a")],
                    events=[event(last + 1)],
                )
                await saver.commit(lease, one)
                acknowledged[number] = last + 1
                await saver.record(lease, [record(last + 1, "b")], expires_at=LATER)
            await saver.release(lease)

    async with PostgresSaver.from_conn_string(server.conninfo, schema=schema, reconnect_timeout=60) as saver:
        async with anyio.create_task_group() as group:
            for number in range(WRITERS):
                group.start_soon(write, saver, number)
            for _ in range(KILLS):
                await anyio.sleep(rng.uniform(0.05, 0.3))  # at some point of their work
                before = dict(acknowledged)
                await restarted(server)
                while any(acknowledged[number] <= before[number] for number in range(WRITERS)):
                    await anyio.sleep(0.01)
            done.set()
        for number in range(WRITERS):
            rows, records = await saver.segment(f"t{number}", "", cid(1))
            assert [one.checkpoint_id for one in rows] == [cid(n) for n in range(1, acknowledged[number] + 1)]
            assert [one.parent_id for one in rows[1:]] == [one.checkpoint_id for one in rows[:-1]]
            assert await head_of(saver, f"t{number}") == rows[-1].checkpoint_id
            assert len(await saver.events(f"t{number}", limit=10_000)) == len(rows)
            kept = [one.task_id for one in records if one.checkpoint_id == rows[-1].checkpoint_id]
            assert kept == ["a", "b"]


async def test_a_users_pool_survives(server: OwnServer, schema: str, anyio_backend_name: str) -> None:
    """P13: the same with a pool that the user opened."""
    if anyio_backend_name != "asyncio":
        pytest.skip("a pool of psycopg's is opened on asyncio")
    async with psycopg_pool.AsyncConnectionPool(server.conninfo, min_size=2, open=False) as pool:
        async with PostgresSaver(pool, schema=schema, reconnect_timeout=60) as saver:
            lease = await take(saver)
            for number in range(1, 4):
                await saver.commit(lease, commit(row(number, number - 1 or None), head=number - 1 or None))
                await asyncio.to_thread(server.restart)
                assert await head_of(saver) == cid(number)


async def test_a_lease_survives_the_server(server: OwnServer, schema: str) -> None:
    """P6: leases are stored, so they hold after the crash."""
    async with PostgresSaver.from_conn_string(server.conninfo, schema=schema, reconnect_timeout=60) as saver:
        lease = await take(saver)
        await restarted(server)
        with pytest.raises(ThreadBusyError):
            await take(saver, run="run-2")
        await saver.commit(lease, commit(row(1), releases=True))
        await written(saver, row(2, 1), thread="u")
