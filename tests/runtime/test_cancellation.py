"""P7: when a run was cancelled, every task of it has ended and cleaned up before control returns."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Send, StateGraph
from tests.runtime.leak_checks import after_turns, nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Scene:
    """Nodes that wait forever and clean up slowly, with a record of which node did what."""

    def __init__(self) -> None:
        self.reached = 0
        self.expected = 1
        self.ready = anyio.Event()
        self.cleaned: list[str] = []
        self.leave = threading.Event()

    def arrive(self) -> None:
        self.reached += 1
        if self.reached == self.expected:
            self.ready.set()

    def arrive_from_thread(self) -> None:
        self.arrive()
        if self.ready.is_set():
            after_turns(30, self.leave.set)  # threads end when the cancellation has arrived

    def waits(self, name: str) -> Any:
        async def call(state: Any) -> None:
            try:
                self.arrive()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    for _ in range(5):
                        await anyio.lowlevel.checkpoint()
                self.cleaned.append(name)

        return call


def one(scene: Scene) -> Any:
    return StateGraph(State).add_node("a", scene.waits("a")).add_edge(START, "a")


def several(scene: Scene) -> Any:
    scene.expected = 3
    made = StateGraph(State)
    for name in "abc":
        made.add_node(name, scene.waits(name)).add_edge(START, name)
    return made


def sends(scene: Scene) -> Any:
    scene.expected = 3
    made = StateGraph(State).add_node("w", scene.waits("w"))
    return made.add_conditional_edges(START, lambda state: [Send("w", number) for number in range(3)])


def router(scene: Scene) -> Any:
    return (
        StateGraph(State)
        .add_node("a", lambda s: None)
        .add_edge(START, "a")
        .add_conditional_edges("a", scene.waits("route"))
    )


def own_tasks(scene: Scene) -> Any:
    """Return a node with tasks of its own."""
    scene.expected = 2

    async def node(state: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(scene.waits("child 1"), None)
            group.start_soon(scene.waits("child 2"), None)

    return StateGraph(State).add_node("a", node).add_edge(START, "a")


def in_thread(scene: Scene) -> Any:
    """A worker thread, which no cancellation reaches, and a node after it."""

    def node(state: Any) -> None:
        anyio.from_thread.run_sync(scene.arrive_from_thread)
        assert scene.leave.wait(60)
        scene.cleaned.append("thread")

    made = StateGraph(State).add_node("a", node).add_node("after", lambda state: scene.cleaned.append("after"))
    return made.add_edge(START, "a").add_edge("a", "after")


SCENES: list[Callable[[Scene], Any]] = [one, several, sends, router, own_tasks, in_thread]
each_scene = pytest.mark.parametrize("build", SCENES)
each_saver = pytest.mark.parametrize("stored", [False, True])


def expected(build: Any) -> list[str]:
    return {
        one: ["a"],
        several: ["a", "b", "c"],
        sends: ["w", "w", "w"],
        router: ["route"],
        own_tasks: ["child 1", "child 2"],
        in_thread: ["thread"],
    }[build]


@each_scene
@each_saver
async def test_a_cancelled_scope(build: Any, stored: bool) -> None:
    """P7: a run that is cancelled by a scope around it has ended and cleaned up before the scope ends."""
    scene = Scene()
    graph = build(scene).compile(InMemorySaver() if stored else None)
    async with nothing_left():
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancels() -> None:
                    await scene.ready.wait()
                    scope.cancel()

                group.start_soon(cancels)
                await graph.ainvoke({}, "t")
        assert scope.cancelled_caught
        assert sorted(scene.cleaned) == expected(build)


@each_scene
@each_saver
async def test_a_cancelled_task(build: Any, stored: bool, anyio_backend_name: str) -> None:
    """P7: a run whose task was cancelled by asyncio's own `Task.cancel()` has ended and cleaned up."""
    if anyio_backend_name != "asyncio":
        return
    scene = Scene()
    graph = build(scene).compile(InMemorySaver() if stored else None)
    async with nothing_left():
        task = asyncio.ensure_future(graph.ainvoke({}, "t"))
        await scene.ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(scene.cleaned) == expected(build)


@each_scene
@each_saver
async def test_a_task_that_is_cancelled_again_and_again(build: Any, stored: bool, anyio_backend_name: str) -> None:
    """P7: also when the cancelled caller is cancelled again while it waits for the clean-up."""
    if anyio_backend_name != "asyncio":
        return
    scene = Scene()
    graph = build(scene).compile(InMemorySaver() if stored else None)
    async with nothing_left():
        task = asyncio.ensure_future(graph.ainvoke({}, "t"))
        await scene.ready.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        if build is not in_thread:  # asyncio's shield holds against scopes only: clean-up was cancelled too
            return
        assert sorted(scene.cleaned) == expected(build)


@each_scene
@each_saver
@pytest.mark.parametrize("how", ["aclose", "async with", "scope"])
async def test_a_closed_stream(build: Any, stored: bool, how: str) -> None:
    """P7: when a stream is closed, left, or cancelled during a read, its run has ended before control returns."""
    scene = Scene()
    graph = build(scene).compile(InMemorySaver() if stored else None)
    async with nothing_left():
        if how == "aclose":
            stream = graph.astream({}, "t")
            async with anyio.create_task_group() as group:
                group.start_soon(read_all, stream)
                await scene.ready.wait()
                await stream.aclose()
                assert sorted(scene.cleaned) == expected(build)
        elif how == "async with":
            async with graph.astream({}, "t"):
                await scene.ready.wait()
            assert sorted(scene.cleaned) == expected(build)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(read_all, graph.astream({}, "t"))
                await scene.ready.wait()
                group.cancel_scope.cancel()
            assert sorted(scene.cleaned) == expected(build)


async def read_all(stream: Any) -> None:
    async for _ in stream:
        pass


@each_scene
async def test_a_cancelled_batch(build: Any) -> None:
    """P7: every run of a cancelled batch has ended and cleaned up."""
    scene = Scene()
    graph = build(scene).compile()
    scene.expected *= 3
    async with nothing_left():
        async with anyio.create_task_group() as group:
            group.start_soon(graph.abatch, [{}, {}, {}])
            await scene.ready.wait()
            group.cancel_scope.cancel()
        assert sorted(scene.cleaned) == sorted(expected(build) * 3)


@each_scene
@each_saver
async def test_a_deadline(build: Any, stored: bool) -> None:
    """P7: a deadline around a run raises the builtin TimeoutError, after all clean-up."""
    scene = Scene()
    graph = build(scene).compile(InMemorySaver() if stored else None)
    async with nothing_left():
        with pytest.raises(TimeoutError):
            with anyio.fail_after(30) as scope:
                async with anyio.create_task_group() as group:

                    async def expires() -> None:
                        await scene.ready.wait()
                        scope.deadline = float("-inf")

                    group.start_soon(expires)
                    await graph.ainvoke({}, "t")
        assert sorted(scene.cleaned) == expected(build)


@each_saver
async def test_a_run_that_ends_normally_leaves_nothing(stored: bool) -> None:
    """No background task outlives a run, however it ended."""
    made = StateGraph(State).add_node("a", lambda state: {"log": ["a"]}).add_node("b", lambda state: None)
    graph = made.add_edge(START, "a").add_edge(START, "b").compile(InMemorySaver() if stored else None)
    async with nothing_left():
        await graph.ainvoke({}, "t")
        await graph.ainvoke({}, "t", stream_mode="updates")
        async with graph.astream({}, "t") as chunks:
            await read_all(chunks)
        await read_all(graph.astream({}, "t"))
        await graph.abatch([{}, {}], ["t1", "t2"])


@each_saver
async def test_a_run_that_fails_leaves_nothing(stored: bool) -> None:
    """No background task outlives a failed run."""
    made = StateGraph(State).add_node("a", lambda state: 1 / 0).add_node("b", lambda state: None)
    graph = made.add_edge(START, "a").add_edge(START, "b").compile(InMemorySaver() if stored else None)
    async with nothing_left():
        with pytest.raises(ZeroDivisionError):
            await graph.ainvoke({}, "t")
        with pytest.raises(ZeroDivisionError):
            await read_all(graph.astream({}, "t"))


@each_saver
async def test_a_cancelled_thread_is_free_again(stored: bool) -> None:
    """P6, P7: when a cancelled run has returned, its thread is free: the next run starts at once."""
    if not stored:
        return
    scene = Scene()
    graph = one(scene).compile(InMemorySaver())
    for _ in range(2):
        scene.ready, scene.reached = anyio.Event(), 0
        async with anyio.create_task_group() as group:
            group.start_soon(graph.ainvoke, {}, "t")
            await scene.ready.wait()
            group.cancel_scope.cancel()
    assert scene.cleaned == ["a", "a"]
