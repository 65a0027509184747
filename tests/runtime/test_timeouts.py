"""Timeouts: an attempt that exceeds its time is stopped and has no effect; waiting for readers and slots does not
count."""

from __future__ import annotations

import asyncio
import operator
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, Runtime, Send, StateGraph, StreamWriter, entrypoint, interrupt, task
from pregel_async.errors import (
    GraphValidationError,
    InvalidUpdateError,
    NodeCancelledError,
    NodeTimeoutError,
    OutsideRunError,
    StepTimeoutError,
)
from pregel_async.types import RetryPolicy, TimeoutPolicy
from tests.helpers.virtual_loops import VirtualWorld
from tests.runtime import processes
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    bag: dict[str, list[int]]
    point: processes.Point
    path: str


@pytest.fixture
def environment() -> VirtualWorld:
    return VirtualWorld()


def alone(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    return (
        StateGraph(State)
        .add_node("node", node, **options)
        .add_edge(START, "node")
        .compile(saver, environment=environment)
    )


def with_a_sibling(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    made = StateGraph(State).add_node("node", node, **options).add_edge(START, "node")
    made.add_node("other", lambda state: None).add_edge(START, "other")
    return made.compile(saver, environment=environment, blocking=False)


def in_a_subgraph(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    inner = StateGraph(State).add_node("node", node, **options).add_edge(START, "node").compile(name="inner")
    return StateGraph(State).add_node(inner).add_edge(START, "inner").compile(saver, environment=environment)


def called(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    step = task(name="node", **options)(node)

    async def outer(state: Any) -> Any:
        return await step(state)

    return StateGraph(State).add_node("outer", outer).add_edge(START, "outer").compile(saver, environment=environment)


each_place = pytest.mark.parametrize("place", [alone, with_a_sibling, in_a_subgraph, called])


async def hangs(state: Any) -> None:
    await anyio.sleep_forever()


@each_place
@pytest.mark.parametrize("timeout", [5, 5.0, timedelta(seconds=5), TimeoutPolicy(run_timeout=5, idle_timeout=9)])
async def test_a_node_that_takes_too_long(place: Any, timeout: Any, environment: VirtualWorld) -> None:
    """An attempt that exceeds its run timeout is stopped with a `NodeTimeoutError` that holds all facts and is no
    builtin `TimeoutError`."""
    async with nothing_left():
        with anyio.fail_after(30), pytest.raises(NodeTimeoutError) as caught:
            await place(hangs, environment, timeout=timeout).ainvoke({})
    error = caught.value
    assert (error.node, error.kind, error.elapsed, error.timeout, error.run_timeout) == ("node", "run", 5, 5, 5)
    assert not isinstance(error, TimeoutError)
    assert any("in node 'node'" in note for note in error.__notes__)


@each_place
async def test_a_node_that_ends_in_time(place: Any, environment: VirtualWorld) -> None:
    """A node that ends in time is unaffected, and so is its caller's task."""

    async def node(state: Any) -> dict[str, Any]:
        await environment.sleep(4)
        return {"log": ["done"]}

    async with nothing_left():
        assert (await place(node, environment, timeout=5).ainvoke({}))["log"] == ["done"]
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        this: Any = asyncio.current_task()
        assert this.cancelling() == 0
    await anyio.lowlevel.checkpoint()


async def test_signs_of_life(environment: VirtualWorld) -> None:
    """The idle timeout counts from the last sign of life: a chunk, a message, a task, a graph, a heartbeat; also when
    the stream is not read. The run timeout is never extended."""

    @task
    async def step() -> None: ...

    graph = StateGraph(State).add_node("n", lambda s: None).add_edge(START, "n").compile(name="g", blocking=False)

    async def node(state: Any, writer: StreamWriter, runtime: Runtime[Any]) -> dict[str, Any]:
        for _ in range(3):
            await environment.sleep(4)
            writer("chunk")
            await environment.sleep(4)
            writer.message("token")
            await environment.sleep(4)
            await step()
            await environment.sleep(4)
            await graph.ainvoke({})
            await environment.sleep(4)
            runtime.heartbeat()
        await environment.sleep(4)
        return {"log": ["done"]}

    assert (await alone(node, environment, timeout=TimeoutPolicy(idle_timeout=5)).ainvoke({}))["log"] == ["done"]
    assert environment.time == 64
    with pytest.raises(NodeTimeoutError) as caught:
        await alone(node, environment, timeout=TimeoutPolicy(idle_timeout=5, run_timeout=30)).ainvoke({})
    assert (caught.value.kind, caught.value.elapsed) == ("run", 30)


async def test_no_sign_of_life(environment: VirtualWorld) -> None:
    """Without a sign of life the attempt is stopped, counted from the last one."""

    async def node(state: Any, writer: StreamWriter) -> None:
        await environment.sleep(4)
        writer("chunk")
        await anyio.sleep_forever()

    with pytest.raises(NodeTimeoutError) as caught:
        await alone(node, environment, timeout=TimeoutPolicy(idle_timeout=5, run_timeout=60)).ainvoke({})
    error = caught.value
    assert (error.kind, error.elapsed, error.timeout, environment.time) == ("idle", 5, 5, 9)


async def test_only_heartbeats(environment: VirtualWorld) -> None:
    """With refresh_on="heartbeat" only a heartbeat is a sign of life; any thread may give it."""

    async def writes(state: Any, writer: StreamWriter) -> None:
        while True:
            await environment.sleep(2)
            writer("chunk")

    async def beats(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        for _ in range(5):
            await environment.sleep(4)
            environment.held = lambda: True
            await anyio.to_thread.run_sync(runtime.heartbeat)
            environment.held = lambda: False
        return {"log": ["done"]}

    policy = TimeoutPolicy(idle_timeout=5, refresh_on="heartbeat")
    with pytest.raises(NodeTimeoutError):
        await alone(writes, environment, timeout=policy).ainvoke({})
    assert (await alone(beats, environment, timeout=policy).ainvoke({}))["log"] == ["done"]


async def test_nested_activity_is_a_sign_of_life(environment: VirtualWorld) -> None:
    """A chunk of a called task, and of a node of a subgraph, counts as a sign of life of the node, and so does a
    heartbeat there. A heartbeat without a timeout does nothing."""

    @task
    async def step(n: int) -> None:
        from pregel_async import get_runtime

        for _ in range(n):
            await environment.sleep(4)
            get_runtime().heartbeat()
            await environment.sleep(4)
            get_runtime().stream_writer("chunk")

    async def deep(state: Any) -> None:
        await step(2)

    inner = StateGraph(State).add_node("deep", deep).add_edge(START, "deep").compile(name="inner")
    made = StateGraph(State).add_node(inner, timeout=TimeoutPolicy(idle_timeout=5)).add_edge(START, "inner")
    await made.compile(environment=environment).ainvoke({})
    assert environment.time == 16
    await inner.ainvoke({})


async def test_the_steps_of_a_subgraph_are_signs_of_life(environment: VirtualWorld) -> None:
    """A subgraph that starts its next node is alive, though it streams nothing."""

    async def takes(state: Any) -> None:
        await environment.sleep(4)

    inner = StateGraph(State).add_sequence([("a", takes), ("b", takes), ("c", takes)]).add_edge(START, "a")
    policy = TimeoutPolicy(idle_timeout=5)
    made = StateGraph(State).add_node("in", inner.compile(name="in"), timeout=policy).add_edge(START, "in")
    await made.compile(environment=environment).ainvoke({})
    assert environment.time == 12


async def test_waiting_for_a_reader_is_not_the_nodes_time(environment: VirtualWorld) -> None:
    """P12: a slow reader slows the node, and does not time it out."""

    async def node(state: Any, writer: StreamWriter) -> dict[str, Any]:
        for number in range(4):
            await writer(number)
        return {"log": ["done"]}

    for place in (alone, in_a_subgraph):
        graph = place(node, environment, timeout=TimeoutPolicy(run_timeout=5, idle_timeout=5))
        modes = ["custom", "values"]
        seen = []
        async with graph.astream({}, stream_mode=modes, capacity=1, subgraphs=True) as chunks:
            async for part in chunks:
                seen.append(part)
                await environment.sleep(50)
        assert seen[-1][-1] == {"log": ["done"]}


async def test_a_subgraph_that_waits_for_a_reader(environment: VirtualWorld) -> None:
    """The same holds for a timed node whose subgraph's steps are streamed to a slow reader."""

    async def node(state: Any) -> dict[str, Any]:
        return {"log": ["x"]}

    names = [(name, node) for name in "abcdef"]
    inner = StateGraph(State).add_sequence(names).add_edge(START, "a").compile(name="in")
    made = StateGraph(State).add_node("in", inner, timeout=5).add_edge(START, "in").compile(environment=environment)
    seen = []
    async with made.astream({}, stream_mode=["updates", "tasks"], capacity=1, subgraphs=True) as chunks:
        async for part in chunks:
            seen.append(part)
            await environment.sleep(50)
    assert len(seen) > 12


async def test_waiting_for_a_slot_is_not_the_nodes_time(environment: VirtualWorld) -> None:
    """The time in which the node, or a task that it waits for, waits for its slot under `max_concurrency` does not
    count either."""

    @task
    async def step() -> None:
        await environment.sleep(1)

    async def node(state: Any) -> dict[str, Any]:
        await step()
        await step()
        return {"log": ["done"]}

    async def slow(state: Any) -> None:
        await environment.sleep(100)

    made = StateGraph(State).add_node("b", node, timeout=5)
    for name in ("a", "c", "d", "e"):
        made.add_node(name, slow).add_edge(START, name)
    graph = made.add_edge(START, "b").compile(environment=environment)
    for width in (1, 2):
        assert (await graph.ainvoke({}, {"max_concurrency": width}))["log"] == ["done"]


async def test_a_slot_that_another_task_has_taken(environment: VirtualWorld) -> None:
    """A node that has lent its slot while it waited for a task, and waits to get it back, does not time out."""
    lent = anyio.Event()

    @task
    async def slow() -> None:
        lent.set()
        await environment.sleep(100)

    @task
    async def quick() -> None: ...

    async def first(state: Any) -> None:
        future = slow()  # takes the slot that `timed` lends
        await lent.wait()
        slow()  # is ahead of `timed` when the slot of `quick` is free
        await future

    async def timed(state: Any) -> dict[str, Any]:
        await quick()
        return {"log": ["done"]}

    made = StateGraph(State).add_node(first).add_node(timed, timeout=5).add_edge(START, "first")
    graph = made.add_edge(START, "timed").compile(environment=environment)
    assert (await graph.ainvoke({}, {"max_concurrency": 2}))["log"] == ["done"]


@each_place
async def test_a_node_that_swallows_its_cancellation(place: Any, environment: VirtualWorld) -> None:
    """A result, exception or question after the timeout is dropped: the only error is the timeout."""

    def returns() -> Any:
        return {"log": ["late"]}

    def raises() -> Any:
        raise ZeroDivisionError

    def asks() -> Any:
        return interrupt("late?")

    for late in (returns, raises, asks):

        async def node(state: Any, late: Any = late) -> Any:
            try:
                await anyio.sleep_forever()
            except BaseException:
                return late()

        saver = InMemorySaver()
        graph = place(node, environment, saver, timeout=5)
        with pytest.raises(NodeTimeoutError) as caught:
            await graph.ainvoke({}, "t")
        assert caught.value.elapsed == 5
        state = await graph.aget_state("t")
        assert (state.values, state.interrupts) == ({"log": []}, ())


@each_place
async def test_clean_up_after_the_time_publishes_nothing(place: Any, environment: VirtualWorld) -> None:
    """Clean-up code that writes to the stream, calls tasks or runs graphs after the timeout is refused."""
    refused: list[str] = []
    ran: list[str] = []

    @task
    async def step() -> None:
        ran.append("task")

    async def touch(state: Any) -> None:
        ran.append("graph")

    graph = StateGraph(State).add_node(touch).add_edge(START, "touch").compile(name="late")

    async def node(state: Any) -> None:
        from pregel_async import get_stream_writer

        writer = get_stream_writer()
        writer("early")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for what in ("writer", "task", "graph"):
                    try:
                        if what == "writer":
                            writer("late")
                        elif what == "task":
                            await step()
                        else:
                            await graph.ainvoke({})
                    except OutsideRunError:
                        refused.append(what)

    made = place(node, environment, timeout=5)
    parts: list[Any] = []
    with pytest.raises(NodeTimeoutError):
        async for part in made.astream({}, stream_mode="custom", subgraphs=True):
            parts.append(part[-1])
    assert parts == ["early"]
    assert refused == ["writer", "task", "graph"]
    assert ran == []


@pytest.mark.parametrize("where", ["graph", "task"])
async def test_clean_up_of_nested_tasks_publishes_nothing(where: str, environment: VirtualWorld) -> None:
    """The same holds for nodes of a subgraph and for tasks of a node after its timeout. All of them have ended when the
    error is raised."""
    ended: list[str] = []

    async def deep(state: Any) -> None:
        from pregel_async import get_stream_writer

        writer = get_stream_writer()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(OutsideRunError):
                    writer("late")
                ended.append("deep")

    if where == "graph":
        inner = StateGraph(State).add_node("deep", deep).add_edge(START, "deep").compile(name="inner")
        made = StateGraph(State).add_node("node", inner, timeout=5)
    else:
        step = task(deep)

        async def node(state: Any) -> None:
            await step(state)

        made = StateGraph(State).add_node("node", node, timeout=5)
    graph = made.add_edge(START, "node").compile(InMemorySaver(), environment=environment)
    parts: list[Any] = []
    async with nothing_left():
        with pytest.raises(NodeTimeoutError):
            async for part in graph.astream({}, "t", stream_mode="custom", subgraphs=True):
                parts.append(part)
    assert parts == []
    assert ended == ["deep"]


@each_place
async def test_each_attempt_has_its_own_time(place: Any, environment: VirtualWorld) -> None:
    """The timeout is per attempt; a timeout is retried by default, and the wait between attempts does not count."""
    attempts: list[int] = []

    async def node(state: Any) -> dict[str, Any]:
        attempts.append(1)
        await environment.sleep(4 if len(attempts) == 3 else 99)
        return {"log": ["done"]}

    graph = place(
        node, environment, InMemorySaver(), timeout=5, retry_policy=RetryPolicy(jitter=False, initial_interval=60)
    )
    assert (await graph.ainvoke({}, "t"))["log"] == ["done"]
    assert environment.time == 5 + 60 + 5 + 120 + 4


async def test_of_a_send(environment: VirtualWorld) -> None:
    """A Send's timeout replaces the node's; it is stored with the Send."""
    seen: list[float] = []

    async def worker(seconds: int) -> None:
        seen.append(seconds)
        await environment.sleep(seconds)

    def sends(state: Any) -> list[Send]:
        return [Send("worker", 7, timeout=10), Send("worker", 3), Send("worker", 6, timeout=timedelta(seconds=5))]

    made = StateGraph(State).add_node("worker", worker, timeout=4)
    graph = made.add_conditional_edges(START, sends).compile(
        InMemorySaver(), environment=environment, interrupt_before=["worker"]
    )
    await graph.ainvoke({}, "t")
    for _ in range(2):  # from storage, and again on the resume
        seen.clear()
        with pytest.raises(NodeTimeoutError) as caught:
            await graph.ainvoke(None, "t")
        assert caught.value.timeout == 5
    assert sorted(seen) == [6, 7]  # finished tasks have not run again


async def test_a_send_that_an_edit_puts_off(environment: VirtualWorld) -> None:
    """A Send keeps its timeout when an edit of the state leaves the Send pending."""

    async def worker(seconds: int) -> None:
        await environment.sleep(seconds)

    made = StateGraph(State).add_node("worker", worker).add_node("other", lambda state: None)
    made.add_conditional_edges(START, lambda state: Send("worker", 7, timeout=5))
    graph = made.compile(InMemorySaver(), environment=environment, interrupt_before=["worker"])
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"log": ["edited"]}, as_node="other")
    with pytest.raises(NodeTimeoutError) as caught:
        await graph.ainvoke(None, "t")
    assert caught.value.timeout == 5


async def test_a_send_to_a_plain_function(environment: VirtualWorld) -> None:
    """A Send with a timeout to a plain function is refused, from a router, a node and a command, by name."""

    def worker(state: Any) -> None: ...

    async def goes(state: Any) -> Any:
        return Command(goto=Send("worker", {}, timeout=1))

    made = StateGraph(State).add_node(worker).add_node(goes)
    with pytest.raises(InvalidUpdateError, match="'worker'"):
        await made.add_conditional_edges(START, lambda s: Send("worker", {}, timeout=1)).compile().ainvoke({})
    made = StateGraph(State).add_node(worker).add_node(goes).add_edge(START, "goes")
    with pytest.raises(InvalidUpdateError, match="'worker'"):
        await made.compile().ainvoke({})
    with pytest.raises(InvalidUpdateError, match="'worker'"):
        await made.compile().ainvoke(Command(goto=Send("worker", {}, timeout=1)))


async def test_of_a_task_and_an_entrypoint(environment: VirtualWorld) -> None:
    """Tasks and entrypoints have timeouts; a task's timeout is raised in its caller."""

    @task(timeout=3)
    async def step() -> None:
        await anyio.sleep_forever()

    @entrypoint(environment=environment, timeout=10)
    async def flow(given: str) -> str:
        try:
            await step()
        except NodeTimeoutError as error:
            if given == "catches":
                return f"{error.node} {error.elapsed:g}"
        await anyio.sleep_forever()
        raise AssertionError

    assert await flow.ainvoke("catches") == "step 3"
    with pytest.raises(NodeTimeoutError) as caught:
        await flow.ainvoke("hangs")
    assert (caught.value.node, caught.value.elapsed) == ("flow", 10)


async def test_defaults(environment: VirtualWorld) -> None:
    """`set_node_defaults(timeout=)` applies to nodes that have no timeout of their own."""
    made = StateGraph(State).set_node_defaults(timeout=3).add_node("hangs", hangs).add_edge(START, "hangs")
    with pytest.raises(NodeTimeoutError) as caught:
        await made.compile(environment=environment).ainvoke({})
    assert caught.value.timeout == 3


@each_place
async def test_a_timeout_raised_by_the_node(place: Any, environment: VirtualWorld) -> None:
    """A `TimeoutError` of the user's, and `anyio.fail_after`, work as usual; the timeout's own scope does not swallow
    them."""
    error = TimeoutError("mine")

    async def raises(state: Any) -> None:
        raise error

    async def fails_after(state: Any) -> None:
        with anyio.fail_after(0):
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError) as caught:
        await place(raises, environment, timeout=5).ainvoke({})
    assert caught.value is error
    with pytest.raises(TimeoutError) as caught:
        await place(fails_after, environment, timeout=5).ainvoke({})
    assert not isinstance(caught.value, NodeTimeoutError)


@each_place
@pytest.mark.parametrize("how", ["scope", "native", "move_on_after", "aclose"])
@pytest.mark.parametrize("options", [{"timeout": 5}, {"retry_policy": RetryPolicy(), "timeout": 5}], ids=len)
async def test_cancelled_from_outside(
    place: Any, how: str, options: Any, environment: VirtualWorld, anyio_backend_name: str
) -> None:
    """P7: a cancellation by the caller passes through a timed and a retried node as through any other; no task is left,
    and clean-up is waited for."""
    if how == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation of its own besides scopes")
    environment.held = lambda: True
    seen: list[str] = []

    async def node(state: Any) -> None:
        seen.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            seen.append("ended")

    graph = place(node, environment, InMemorySaver(), **options)

    async def begun() -> None:
        while not seen:
            await anyio.lowlevel.checkpoint()

    async with nothing_left():
        if how == "native":
            running = asyncio.ensure_future(graph.ainvoke({}, "t"))
            await begun()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        elif how == "aclose":
            async with graph.astream({}, "t", stream_mode="tasks", capacity=8) as chunks:
                async for _ in chunks:
                    await begun()
                    break
        else:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def stop() -> None:
                        await begun()
                        scope.cancel()

                    group.start_soon(stop)
                    await graph.ainvoke({}, "t")
            assert scope.cancelled_caught
    assert seen == ["begun", "ended"]
    await anyio.lowlevel.checkpoint()


async def test_a_native_cancellation_that_a_timed_node_swallows(
    environment: VirtualWorld, anyio_backend_name: str
) -> None:
    """P7: a timed node that swallows asyncio's own cancellation does not keep its caller from being cancelled."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation of its own besides scopes")
    environment.held = lambda: True
    begun = anyio.Event()

    async def node(state: Any) -> dict[str, Any]:
        begun.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            pass
        return {"log": ["swallowed"]}

    running = asyncio.ensure_future(alone(node, environment, timeout=5).ainvoke({}))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_timed_node_that_raises_a_cancellation(environment: VirtualWorld, anyio_backend_name: str) -> None:
    """A timed node that raises asyncio's cancellation by itself fails with `NodeCancelledError`."""
    if anyio_backend_name == "trio":
        pytest.skip("trio's Cancelled cannot be constructed")

    async def node(state: Any) -> None:
        raise asyncio.CancelledError

    for place in (alone, with_a_sibling, in_a_subgraph):
        with pytest.raises(NodeCancelledError):
            await place(node, environment, timeout=5).ainvoke({})


async def test_step_timeout(environment: VirtualWorld) -> None:
    """A superstep that takes too long is stopped with one error, a builtin `TimeoutError`, that names the unfinished
    nodes in plan order. Finished tasks are recorded, and do not run again."""
    ran: list[str] = []

    def node(name: str, seconds: float) -> Any:
        async def call(state: Any) -> dict[str, Any]:
            ran.append(name)
            await environment.sleep(seconds if ran.count(name) == 1 else 1)
            return {"log": [name]}

        return call

    made = StateGraph(State)
    for name, seconds in (("c", 99), ("a", 99), ("b", 2)):
        made.add_node(name, node(name, seconds)).add_edge(START, name)
    graph = made.compile(InMemorySaver(), environment=environment, step_timeout=timedelta(seconds=5))
    with pytest.raises(TimeoutError) as caught:
        await graph.ainvoke({}, "t")
    error = caught.value
    assert isinstance(error, StepTimeoutError)
    assert (error.step, error.timeout, error.unfinished, environment.time) == (1, 5, ("a", "c"), 5)
    state = await graph.aget_state("t")
    assert [(task.name, bool(task.error), task.result) for task in state.tasks] == [
        ("a", True, None),
        ("b", False, {"log": ["b"]}),
        ("c", True, None),
    ]
    assert (await graph.ainvoke(None, "t"))["log"] == ["a", "b", "c"]
    assert sorted(ran) == ["a", "a", "b", "c", "c"]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_late_node_of_a_superstep(count: int, environment: VirtualWorld) -> None:
    """A node that swallows the superstep's timeout publishes nothing: its result does not count, and an exception of it
    is attached to the timeout, which is still the error."""

    async def returns(state: Any) -> dict[str, Any]:
        try:
            await anyio.sleep_forever()
        except BaseException:
            return {"log": ["late"]}

    async def raises(state: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ZeroDivisionError("clean-up")

    for node in (returns, raises):
        made = StateGraph(State)
        for number in range(count):
            made.add_node(f"n{number}", node).add_edge(START, f"n{number}")
        graph = made.compile(InMemorySaver(), environment=environment, step_timeout=5)
        with pytest.raises(StepTimeoutError) as caught:
            await graph.ainvoke({}, "t")
        assert caught.value.unfinished == tuple(f"n{number}" for number in range(count))
        notes = [note for note in getattr(caught.value, "__notes__", ()) if "ZeroDivisionError: clean-up" in note]
        assert len(notes) == (0 if node is returns else count)
        assert all("in node 'n" in note for note in notes)
        assert (await graph.aget_state("t")).values == {"log": []}


async def test_the_clean_up_of_a_late_superstep_reaches_nothing(environment: VirtualWorld) -> None:
    """Clean-up reaches nothing after the timeout, neither in its nodes nor in those of a subgraph within the
    superstep."""
    refused: list[str] = []

    async def node(state: Any, writer: StreamWriter) -> None:
        writer("begun")
        try:
            await anyio.sleep_forever()
        finally:
            for late in (lambda: writer("late"), lambda: interrupt("late?")):
                try:
                    late()
                except OutsideRunError as error:
                    refused.append(str(error))

    inner = StateGraph(State).add_node("in_a_subgraph", node).add_edge(START, "in_a_subgraph").compile()
    made = StateGraph(State).add_node("sibling", node).add_node("sub", inner)
    graph = made.add_edge(START, "sibling").add_edge(START, "sub").compile(environment=environment, step_timeout=5)
    seen: list[Any] = []
    with pytest.raises(StepTimeoutError):
        async for chunk in graph.astream({}, stream_mode="custom", subgraphs=True):
            seen.append(chunk[1])
    assert seen == ["begun", "begun"]
    assert len(refused) == 4


async def test_step_timeout_of_retries_and_handlers(environment: VirtualWorld) -> None:
    """The superstep's timeout covers all attempts, the waits between them and the handler; none begins after it."""
    ran: list[str] = []

    async def flaky(state: Any) -> None:
        ran.append("flaky")
        raise ConnectionError

    async def handler(state: Any) -> None:
        ran.append("handler")

    policy = RetryPolicy(jitter=False, initial_interval=3, backoff_factor=1, max_attempts=9)
    made = StateGraph(State).add_node(flaky, retry_policy=policy, error_handler=handler).add_edge(START, "flaky")
    with pytest.raises(StepTimeoutError):
        await made.compile(environment=environment, step_timeout=5).ainvoke({})
    assert ran == ["flaky", "flaky"]


async def test_each_superstep_has_its_own_time(environment: VirtualWorld) -> None:
    """The time is per superstep, and costs nothing when there is enough."""

    async def takes(state: Any) -> dict[str, Any]:
        await environment.sleep(4)
        return {"log": ["x"]}

    made = StateGraph(State).add_sequence([("a", takes), ("b", takes), ("c", takes)]).add_edge(START, "a")
    assert (await made.compile(environment=environment, step_timeout=5).ainvoke({}))["log"] == ["x"] * 3


async def test_abandon(environment: VirtualWorld) -> None:
    """P7: on_timeout="abandon" abandons the thread, with a warning that names the node; the detached thread cannot
    publish anything."""
    begun, leave, left = threading.Event(), threading.Event(), threading.Event()
    environment.held = lambda: not begun.is_set()
    refused: list[type[BaseException]] = []

    def node(state: Any, writer: StreamWriter) -> dict[str, Any]:
        writer("early")
        begun.set()
        leave.wait(60)
        for late in (lambda: writer("late"), lambda: interrupt("late?")):
            try:
                late()
            except BaseException as error:
                refused.append(type(error))
        left.set()
        return {"log": ["late"]}

    graph = alone(node, environment, InMemorySaver(), timeout=5, on_timeout="abandon")
    parts: list[Any] = []
    with pytest.warns(ResourceWarning, match="node 'node'"), pytest.raises(NodeTimeoutError):
        async for part in graph.astream({}, "t", stream_mode="custom"):
            parts.append(part)
    leave.set()
    assert await anyio.to_thread.run_sync(left.wait, 60)
    assert refused == [OutsideRunError, OutsideRunError]
    assert parts == ["early"]
    assert (await graph.aget_state("t")).values == {"log": []}


async def test_a_process_is_killed(environment: VirtualWorld, tmp_path: Path) -> None:
    """on_timeout="process" runs the function in a process, which has been killed when the error is raised."""
    path = tmp_path / "pid"
    environment.held = lambda: not path.exists()
    graph = alone(processes.writes_its_pid, environment, timeout=5, on_timeout="process")
    with anyio.fail_after(30), pytest.raises(NodeTimeoutError):
        await graph.ainvoke({"path": str(path)})
    pid = int(path.read_text())
    with anyio.fail_after(30):
        while _is_alive(pid):
            await anyio.lowlevel.checkpoint()


async def test_a_process_is_killed_with_its_run(environment: VirtualWorld, tmp_path: Path) -> None:
    """P7: the process is also killed when the run is cancelled."""
    path = tmp_path / "pid"
    graph = alone(processes.writes_its_pid, environment, on_timeout="process")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: graph.ainvoke({"path": str(path)}))
            while not path.exists():
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    pid = int(path.read_text())
    with anyio.fail_after(30):
        while _is_alive(pid):
            await anyio.lowlevel.checkpoint()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").exists() else True


async def test_values_sent_to_a_process_and_back(environment: VirtualWorld) -> None:
    """P1: state with nested containers and dataclasses is sent to the process and back; the function's changes in place
    have no effect elsewhere; the same holds for a task's arguments."""
    graph = alone(processes.adds, environment, InMemorySaver(), on_timeout="process")
    given: Any = {"bag": {"numbers": [1, 2]}, "point": processes.Point(1, ["here"])}
    result = await graph.ainvoke(given, "t")
    assert result["bag"] == {"numbers": [1, 2, 4]}
    assert result["point"] == processes.Point(1, ["here", "there"])
    assert result["log"][0] == "dict"
    assert result["log"][1] != str(os.getpid())
    assert given == {"bag": {"numbers": [1, 2]}, "point": processes.Point(1, ["here"])}

    doubles = task(on_timeout="process", timeout=1000)(processes.doubles)

    @entrypoint()
    async def flow(number: int) -> int:
        return await doubles(number, plus=1)

    assert await flow.ainvoke(4) == 9


async def test_decorated_functions_in_a_process() -> None:
    """`@task(on_timeout="process")` and `@entrypoint(on_timeout="process")` work as decorators, though the function's
    name then refers to the decorated object."""

    @entrypoint()
    async def flow(number: int) -> list[int]:
        return await processes.triples(number, plus=1)

    number, pid = await flow.ainvoke(4)
    assert number == 13 and pid != os.getpid()
    number, pid = await processes.squares.ainvoke(4)
    assert number == 16 and pid != os.getpid()
    with pytest.raises(GraphValidationError, match="'local'"):

        @task(on_timeout="process")
        def local() -> None: ...


async def test_exceptions_of_a_process(environment: VirtualWorld) -> None:
    """P9: the function's own exception comes back; for a process that died, or a value that cannot be pickled, the
    error names the node."""
    with pytest.raises(processes.Odd, match="over there") as caught:
        await alone(processes.fails, environment, on_timeout="process").ainvoke({})
    assert any("in node 'node'" in note for note in caught.value.__notes__)
    for node in (
        processes.returns_what_cannot_be_pickled,
        processes.raises_what_cannot_be_pickled,
        processes.dies,
    ):
        with anyio.fail_after(30), pytest.raises(Exception) as failed:
            await alone(node, environment, on_timeout="process").ainvoke({})
        assert any("in node 'node'" in note for note in failed.value.__notes__), node


class Opaque:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this cannot be pickled")


class Bare(TypedDict, total=False):
    thing: Any


@pytest.mark.one_loop
async def test_a_loop_that_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: on Windows, asyncio's SelectorEventLoop cannot start a process: the error says which loop can."""
    graph = StateGraph(State).add_node(
        "doubles", processes.doubles, timeout=TimeoutPolicy(run_timeout=5), on_timeout="process"
    )
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NotImplementedError, match="on the default event loop"):
        await graph.add_edge(START, "doubles").compile().ainvoke({})


async def test_inputs_that_cannot_be_sent_to_a_process(environment: VirtualWorld) -> None:
    """An input that cannot be pickled is a failure that names the node, and says why."""
    made = StateGraph(Bare).add_node("node", processes.fails, on_timeout="process").add_edge(START, "node")
    with pytest.raises(Exception, match="pickled") as caught:
        await made.compile(environment=environment).ainvoke({"thing": Opaque()})
    assert any("in node 'node'" in note for note in caught.value.__notes__)


def test_functions_that_cannot_run_in_a_process() -> None:
    """Functions that a process cannot import, or that want more than their input, are refused by name."""

    def local(state: Any) -> None: ...

    for node in (local, processes.triples.func, lambda state: None, Opaque().__init__):
        with pytest.raises(GraphValidationError, match=r"'node'.*cannot import|positional"):
            alone(node, VirtualWorld(), on_timeout="process")
    with pytest.raises(GraphValidationError, match="'wants_a_writer'"):
        task(on_timeout="process")(wants_a_writer)
    with pytest.raises(GraphValidationError, match="say one"):
        alone(processes.fails, VirtualWorld(), on_timeout="process", abandon_on_cancel=True)


def wants_a_writer(state: Any, writer: StreamWriter) -> None: ...
