"""`asyncio.run` cancels all tasks that are left when its main task has ended, also those that have not begun and then
never do.

There is no warning about a coroutine that was never awaited: warnings are errors here.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver, children
from checkpoint_savers.children import DeferredCoroutine
from checkpoint_savers.records import Commit, Lease
from pregel_async import END, START, Send, StateGraph, entrypoint, task
from pregel_async.serve import graph_lifespan

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_collector() -> Iterator[None]:
    """A coroutine that the collector frees later would fail another test."""
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


class SlowSaver(InMemorySaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await anyio.lowlevel.checkpoint()
        await super().commit(lease, commit)


async def all_cancelled_at(turn: int, work: Callable[[], Awaitable[object]]) -> None:
    """Cancel each task of the loop except this one, once, as `asyncio.run` does; all must end."""
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
        async with asyncio.timeout(20):
            while not asyncio.all_tasks() <= before:
                await asyncio.sleep(0)
    assert all(one.cancelled() or one.exception() is None for one in left)


@pytest.mark.parametrize("turn", range(16))
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("kind", [InMemorySaver, SlowSaver])
async def test_a_run(kind: type[InMemorySaver], durability: Any, turn: int) -> None:
    """P7: the run ends, its thread is released, and a resume continues from the head."""
    saver = kind()
    graph = chain(saver)
    await all_cancelled_at(turn, lambda: graph.ainvoke({"x": 0}, "t", durability=durability))
    stands = await graph.aget_state("t")
    assert await graph.ainvoke(None if stands.next else {"x": 0}, "t") == {"x": 3}


@pytest.mark.parametrize("turn", range(16))
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_run_of_several(durability: Any, turn: int) -> None:
    """P7, P9: a cancelled node is reported as cancelled, and not as a node that has cancelled itself."""
    graph = StateGraph(State)
    for name in "abc":
        graph.add_node(name, lambda _: anyio.lowlevel.checkpoint()).add_edge(START, name)
    compiled = graph.compile(InMemorySaver())
    await all_cancelled_at(turn, lambda: compiled.ainvoke({"x": 3}, "t", durability=durability))
    assert not any(each.error for each in (await compiled.aget_state("t")).tasks)


@pytest.mark.parametrize("turn", range(4, 30))  # earlier, it acquires the lease
async def test_a_run_that_is_cancelled_repeatedly(turn: int) -> None:
    """P6, P7: a run that is cancelled again and again releases its thread, however slow its saver is."""

    class Slow(SlowSaver):
        async def release(self, lease: Lease) -> None:
            await anyio.lowlevel.checkpoint()
            await super().release(lease)

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
    """P7: the reader of a run that never began gets its cancellation."""
    graph = chain(InMemorySaver())
    parts: list[object] = []

    async def read() -> None:
        async for part in graph.astream({"x": 0}, "t"):
            parts.append(part)

    await all_cancelled_at(turn, read)
    assert len(parts) <= 3


async def test_a_stream_whose_run_alone_is_cancelled() -> None:
    """P7: a run that never began is not reported as a run without output."""
    stream = chain(InMemorySaver()).astream({"x": 0}, "t")
    before = asyncio.all_tasks()
    async with stream:
        (run,) = asyncio.all_tasks() - before
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)


@pytest.mark.parametrize("turn", range(10))
async def test_called_tasks(turn: int) -> None:
    """P7: a called task that never began was cancelled, and its caller does not wait for it."""

    @task
    async def twice(x: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * x

    @entrypoint(InMemorySaver())
    async def calls(x: int) -> list[int]:
        return [await each for each in [twice(x), twice(x + 1)]]

    await all_cancelled_at(turn, lambda: calls.ainvoke(1, "t"))


async def leave(state: State) -> str:
    await anyio.lowlevel.checkpoint()
    return END


class Peak(TypedDict):
    x: Annotated[int, max]


def fan(saver: InMemorySaver) -> Any:
    """Return a graph of two levels: nodes that wait, a plain function that returns a coroutine, and routers
    that wait."""
    inside = StateGraph(Peak).add_node("a", node).add_node("b", node).add_edge(START, "a").add_edge(START, "b")
    graph = StateGraph(Peak).add_node("inside", inside.compile()).add_node("plain", lambda state: node(state))
    for name in ("inside", "plain"):
        graph.add_conditional_edges(name, leave, [END])
    sends = [Send(name, {"x": place}) for place in range(2) for name in ("inside", "plain")]
    return graph.add_conditional_edges(START, lambda _: sends, ["inside", "plain"]).compile(saver, step_timeout=60)


async def run_fan(saver: InMemorySaver) -> None:
    await fan(saver).ainvoke({"x": 0}, "t")


async def run_fan_in_places(saver: InMemorySaver) -> None:
    await fan(saver).ainvoke({"x": 0}, {"configurable": {"thread_id": "t"}, "max_concurrency": 2})


async def stream_fan(saver: InMemorySaver) -> None:
    async for _ in fan(saver).astream({"x": 0}, "t", stream_mode=["values", "tasks"], subgraphs=True):
        pass


async def run_batch(saver: InMemorySaver) -> None:
    await chain(saver).abatch([{"x": 0}] * 2, [{"configurable": {"thread_id": thread}} for thread in "tu"])


async def look_after_threads(saver: InMemorySaver) -> None:
    await chain(saver).ainvoke({"x": 0}, "t")
    await saver.acopy_thread("t", "u")
    await saver.aerase_thread("t")


async def serve(saver: InMemorySaver) -> None:
    graph = chain(saver)
    async with graph_lifespan(graph, pick_up=True)(object()):
        await graph.ainvoke({"x": 0}, "t")


@pytest.mark.parametrize("work", [run_fan, run_fan_in_places, stream_fan, run_batch, look_after_threads, serve])
async def test_coroutines_of_children_that_never_begin(work: Callable[[InMemorySaver], Awaitable[None]]) -> None:
    """P7: there is no warning about anything that a run, a batch or upkeep was about to start."""
    for turn in range(20):
        await all_cancelled_at(turn, lambda: work(SlowSaver()))


async def test_a_backup_that_is_cancelled(tmp_path: Path) -> None:
    """P7: there is no warning about anything that a cancelled backup was about to start either."""
    async with SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL") as saver:
        for turn in range(6):
            await all_cancelled_at(turn, lambda: saver.backup(tmp_path / f"copy {turn}.db"))


@pytest.mark.parametrize("abandoned", [False, True])
async def test_a_coroutine_that_arrives_with_the_cancellation(abandoned: bool) -> None:
    """P7: a plain function has returned a coroutine, and its run is cancelled before it gets that."""
    begun, goes_on, posted = threading.Event(), threading.Event(), threading.Event()
    loop: Any = asyncio.get_running_loop()

    def plain(state: State) -> Coroutine[Any, Any, State]:
        begun.set()
        assert goes_on.wait(60)
        return node(state)

    def post(*args: Any, **more: Any) -> None:
        type(loop).call_soon_threadsafe(loop, *args, **more)
        posted.set()

    graph = StateGraph(State).add_node("plain", plain, abandon_on_cancel=abandoned).add_edge(START, "plain").compile()
    run = asyncio.ensure_future(graph.ainvoke({"x": 0}))
    while not begun.is_set():
        await asyncio.sleep(0)
    loop.call_soon_threadsafe = post
    goes_on.set()
    assert posted.wait(60)  # the loop is stopped meanwhile
    del loop.call_soon_threadsafe
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_coroutine_that_arrives_after_the_cancellation() -> None:
    """P7: the run waits for its thread, and discards the coroutine that the thread returns."""
    begun, goes_on = threading.Event(), threading.Event()

    def plain(state: State) -> Coroutine[Any, Any, State]:
        begun.set()
        assert goes_on.wait(60)
        return node(state)

    graph = StateGraph(State).add_node("plain", plain).add_edge(START, "plain").compile()
    run = asyncio.ensure_future(graph.ainvoke({"x": 0}))
    while not begun.is_set():
        await asyncio.sleep(0)
    run.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_child_under_a_version_of_anyio_that_wraps_no_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 4.14, a child's coroutine is that of its task."""
    monkeypatch.setattr(children, "_WRAPS", False)
    started: list[Any] = []

    class Group:
        def start_soon(self, *child: Any) -> None:
            started.append(child)

    group: Any = Group()
    children.start_soon(group, node, {"x": 1})
    assert started == [(node, {"x": 1})]


async def test_a_coroutine_that_is_made_later() -> None:
    """The coroutine is made when it is first awaited or sent to, and is driven like any other."""
    made: list[str] = []

    async def work(name: str) -> str:
        made.append(name)
        try:
            await asyncio.sleep(0)
        except ValueError:
            return "caught"
        return name

    DeferredCoroutine(work, ("closed",)).close()
    assert made == []
    assert await DeferredCoroutine(work, ("awaited",)) == "awaited"
    for name, drive, result in (
        ("sent to", lambda later: later.send(None), "sent to"),
        ("thrown at", lambda later: later.throw(ValueError()), "caught"),
    ):
        later = DeferredCoroutine(work, (name,))
        assert later.send(None) is None
        with pytest.raises(StopIteration) as stop:
            drive(later)
        assert stop.value.value == result
    later = DeferredCoroutine(work, ("closed midway",))
    later.send(None)
    later.close()
    with pytest.raises(RuntimeError, match="cannot reuse"):
        later.send(None)
    with pytest.raises(KeyError):
        DeferredCoroutine(work, ("never",)).throw(KeyError())
    assert made == ["awaited", "sent to", "thrown at", "closed midway"]
