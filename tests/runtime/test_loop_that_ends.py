"""`asyncio.run` cancels all tasks that are left when its own has ended, also those that have not begun: they never do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.records import Claim, Commit
from pregel_async import START, StateGraph, entrypoint, task

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    # anyio's own: of a child that is cancelled before it begins, its task groups drop the coroutine.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_collector() -> Iterator[None]:
    """What it frees later would be said of another test, to which the filter above does not apply."""
    yield
    gc.collect()


class State(TypedDict):
    x: int


async def node(state: State) -> State:
    await anyio.lowlevel.checkpoint()
    return {"x": state["x"] + 1}


def chain(saver: InMemorySaver) -> Any:
    graph = StateGraph(State).add_sequence([("a", node), ("b", node), ("c", node)])
    return graph.add_edge(START, "a").compile(saver)


class Far(InMemorySaver):
    async def commit(self, claim: Claim, commit: Commit) -> None:
        await anyio.lowlevel.checkpoint()
        await super().commit(claim, commit)


async def all_cancelled_at(turn: int, work: Callable[[], Awaitable[object]]) -> None:
    """Cancel each task of the loop's but this one, once, as `asyncio.run` does; all are to end."""
    before = asyncio.all_tasks()

    async def run() -> None:
        await work()

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        for _ in range(turn):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        for one in left:
            one.cancel()
        for _ in range(200):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before, left
    assert all(one.cancelled() or one.exception() is None for one in left)


@pytest.mark.parametrize("turn", range(16))
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("kind", [InMemorySaver, Far])
async def test_a_run(kind: type[InMemorySaver], durability: Any, turn: int) -> None:
    """P7: it ends, its thread is given up, and a resume goes on where it stood."""
    saver = kind()
    graph = chain(saver)
    await all_cancelled_at(turn, lambda: graph.ainvoke({"x": 0}, "t", durability=durability))
    stands = await graph.aget_state("t")
    assert await graph.ainvoke(None if stands.next else {"x": 0}, "t") == {"x": 3}


@pytest.mark.parametrize("turn", range(16))
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_run_of_several(durability: Any, turn: int) -> None:
    """P7, P9: who was cancelled is told so, and not that a node has cancelled itself."""
    graph = StateGraph(State)
    for name in "abc":
        graph.add_node(name, lambda _: anyio.lowlevel.checkpoint()).add_edge(START, name)
    compiled = graph.compile(InMemorySaver())
    await all_cancelled_at(turn, lambda: compiled.ainvoke({"x": 3}, "t", durability=durability))
    assert not any(each.error for each in (await compiled.aget_state("t")).tasks)


@pytest.mark.parametrize("turn", range(4, 30))  # before, it claims
async def test_a_run_that_is_cancelled_on_and_on(turn: int) -> None:
    """P6, P7: it gives its thread up, whatever its saver does about that."""

    class Slow(Far):
        async def release(self, claim: Claim) -> None:
            await anyio.lowlevel.checkpoint()
            await super().release(claim)

    graph = chain(Slow())
    task = asyncio.ensure_future(graph.ainvoke({"x": 0}, "t"))
    for _ in range(turn):
        await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    stands = await graph.aget_state("t")
    assert await graph.ainvoke(None if stands.next else {"x": 0}, "t") == {"x": 3}


@pytest.mark.parametrize("turn", range(8))
async def test_a_stream(turn: int) -> None:
    """P7: the reader of a run that never began is told that it was cancelled."""
    graph = chain(InMemorySaver())
    parts: list[object] = []

    async def read() -> None:
        async for part in graph.astream({"x": 0}, "t"):
            parts.append(part)

    await all_cancelled_at(turn, read)
    assert len(parts) <= 3


async def test_a_stream_whose_run_alone_is_cancelled() -> None:
    """P7: a run that never began is no run that had nothing to show."""
    stream = chain(InMemorySaver()).astream({"x": 0}, "t")
    before = asyncio.all_tasks()
    async with stream:
        (run,) = asyncio.all_tasks() - before
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)


@pytest.mark.parametrize("turn", range(10))
async def test_called_tasks(turn: int) -> None:
    """P7: a task that never began was cancelled, and nobody waits for it."""

    @task
    async def twice(x: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * x

    @entrypoint(InMemorySaver())
    async def calls(x: int) -> list[int]:
        return [await each for each in [twice(x), twice(x + 1)]]

    await all_cancelled_at(turn, lambda: calls.ainvoke(1, "t"))
