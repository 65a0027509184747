"""`RunControl`: a run that is asked to stop does so at its next barrier, and can be resumed (1.25)."""

from __future__ import annotations

import operator
import os
import signal
import threading
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import (
    START,
    Command,
    GraphDrained,
    RunControl,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)
from pregel_async.errors import ConfigError
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Chain:
    """A graph of nodes in sequence, in which one node, or a subgraph, requests a drain; with a record of what ran."""

    def __init__(self, *names: str, at: str | None = None, inside: dict[str, Chain] | None = None, **settings: Any):
        self.ran: list[str] = []
        self.at = at
        made = StateGraph(State)
        for name in names:
            made.add_node(name, (inside or {})[name].graph if name in (inside or {}) else self._node(name))
        for before, after in zip((START, *names), names):
            made.add_edge(before, after)
        self.graph: Any = made.compile(**settings)

    def _node(self, name: str) -> Any:
        async def node(state: State, runtime: Runtime[Any]) -> State:
            self.ran.append(name)
            await anyio.lowlevel.checkpoint()
            if name == self.at and runtime.control is not None:
                runtime.control.request_drain(f"at {name}")
            return {"log": [name]}

        return node


async def drained(graph: Any, given: Any, config: Any = "t", **arguments: Any) -> str:
    """Return the reason with which a run stops."""
    with pytest.raises(GraphDrained) as caught:
        await graph.ainvoke(given, config, **arguments)
    return caught.value.reason


def test_a_control_keeps_its_first_reason() -> None:
    """`request_drain(reason)`, `drain_requested`, `drain_reason`."""
    control = RunControl()
    assert (control.drain_requested, control.drain_reason) == (False, None)
    control.request_drain()
    control.request_drain("again")
    assert (control.drain_requested, control.drain_reason) == (True, "shutdown")
    RunControl().request_drain("")  # an empty reason is one too
    empty = RunControl()
    empty.request_drain("")
    assert empty.drain_requested


@pytest.mark.parametrize("at", ["a", "b"])
async def test_a_run_stops_at_its_next_barrier_and_resumes(at: str) -> None:
    """The current superstep is finished and stored; with work left the run raises GraphDrained; resumed with None it
    gives the undisturbed result, and no node runs twice."""
    chain = Chain("a", "b", "c", at=at, checkpointer=InMemorySaver())
    control = RunControl()
    async with nothing_left():
        assert await drained(chain.graph, {}, control=control) == f"at {at}"
        done = ["a", "b"][: ["a", "b"].index(at) + 1]
        state = await chain.graph.aget_state("t")
        assert state.values["log"] == chain.ran == done
        assert state.next == (["b", "c"][len(done) - 1],)
        assert await chain.graph.ainvoke(None, "t") == {"log": ["a", "b", "c"]}
    assert chain.ran == ["a", "b", "c"]


async def test_a_drain_by_the_last_node() -> None:
    """A drain that the last node requests does not raise: no work is left."""
    chain = Chain("a", "b", at="b", checkpointer=InMemorySaver())
    control = RunControl()
    assert await chain.graph.ainvoke({}, "t", control=control) == {"log": ["a", "b"]}
    assert control.drain_requested
    assert await chain.graph.ainvoke({}, "t2", control=RunControl()) == {"log": ["a", "b"]}


async def test_a_drain_before_the_run() -> None:
    """Requested before the run: the input is stored, and no node runs; an empty reason counts too."""
    chain = Chain("a", "b", checkpointer=InMemorySaver())
    control = RunControl()
    control.request_drain("")
    assert await drained(chain.graph, {}, control=control) == ""
    assert chain.ran == []
    assert await drained(chain.graph, None, control=control) == ""  # it does not continue with the same control
    assert await chain.graph.ainvoke(None, "t") == {"log": ["a", "b"]}
    # A second input during a drain is stored as well.
    assert await drained(chain.graph, {"log": ["in"]}, control=control) == ""
    assert await chain.graph.ainvoke(None, "t") == {"log": ["a", "b", "in", "a", "b"]}


async def test_work_that_is_under_way_completes() -> None:
    """All tasks of the superstep that have begun, and the tasks that they call, are finished."""
    control, ran, begun, everybody = RunControl(), [], [], anyio.Event()

    @task
    async def step(name: str) -> str:
        await anyio.lowlevel.checkpoint()
        ran.append(name)
        return name

    async def worker(name: str) -> State:
        begun.append(name)
        if len(begun) == 3:
            control.request_drain()
            everybody.set()
        await everybody.wait()
        first = await step(f"{name}.1")
        return {"log": [first, await step(f"{name}.2")]}

    made = StateGraph(State).add_node("worker", worker).add_node("after", lambda state: {"log": ["after"]})
    made.add_conditional_edges(START, lambda state: [Send("worker", str(number)) for number in range(3)], ["worker"])
    graph = made.add_edge("worker", "after").compile(InMemorySaver())
    await drained(graph, {}, control=control)
    assert sorted(ran) == ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]
    expected = ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2", "after"]
    assert await graph.ainvoke(None, "t") == {"log": expected}
    assert len(ran) == 6


@pytest.mark.parametrize("way", ["thread", "worker"])
async def test_any_thread_may_request_a_drain(way: str) -> None:
    """A plain thread, and a node's own worker thread, may request a drain."""
    control = RunControl()

    def ask(state: State) -> State:
        if way == "worker":
            control.request_drain("from a worker")
        else:
            thread = threading.Thread(target=control.request_drain, args=("from a thread",))
            thread.start()
            thread.join()
        return {"log": ["a"]}

    made = StateGraph(State).add_node("a", ask).add_node("b", lambda state: {"log": ["b"]})
    graph = made.add_edge(START, "a").add_edge("a", "b").compile(InMemorySaver())
    assert await drained(graph, {}, control=control) == f"from a {way}"
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"]}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_handler_may_request_a_drain(backend: str) -> None:
    """A signal handler, for example of SIGTERM, may request a drain at any point of the main thread."""
    control = RunControl()
    before = signal.signal(signal.SIGTERM, lambda number, frame: control.request_drain("SIGTERM"))
    chain = Chain("a", "b", checkpointer=InMemorySaver())

    async def terminate(state: State) -> State:
        os.kill(os.getpid(), signal.SIGTERM)
        while not control.drain_requested:
            await anyio.lowlevel.checkpoint()
        return {"log": ["first"]}

    made = StateGraph(State).add_node("first", terminate).add_node("rest", chain.graph)
    graph = made.add_edge(START, "first").add_edge("first", "rest").compile(InMemorySaver())

    async def main() -> None:
        assert await drained(graph, {}, control=control) == "SIGTERM"
        assert chain.ran == []
        assert await graph.ainvoke(None, "t") == {"log": ["first", "first", "a", "b"]}

    try:
        anyio.run(main, backend=backend)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("checkpointer", [None, True, False])
async def test_a_subgraph_stops_at_its_own_barrier(checkpointer: bool | None) -> None:
    """Subgraphs inherit the control; the parent can be resumed, and gives the undisturbed result. Recorded work of the
    subgraph does not run again; a subgraph that stores nothing has recorded none."""
    sub = Chain("x", "y", "z", at="y", checkpointer=checkpointer)
    outer = Chain("a", "sub", "b", inside={"sub": sub}, checkpointer=InMemorySaver())
    async with nothing_left():
        assert await drained(outer.graph, {}, control=RunControl()) == "at y"
        assert (outer.ran, sub.ran) == (["a"], ["x", "y"])
        state = await outer.graph.aget_state("t", subgraphs=True)
        assert state.next == ("sub",)
        if checkpointer is not False:
            assert state.tasks[0].state.next == ("z",)
        undisturbed = await Chain(
            "a", "sub", "b", inside={"sub": Chain("x", "y", "z")}, checkpointer=InMemorySaver()
        ).graph.ainvoke({}, "u")
        assert await outer.graph.ainvoke(None, "t") == undisturbed
    assert outer.ran == ["a", "b"]
    assert sub.ran == ["x", "y", "z"] if checkpointer is not False else ["x", "y", "x", "y", "z"]


async def test_a_drain_by_the_last_node_of_a_subgraph() -> None:
    """The subgraph has finished; its parent has work left, and stops."""
    sub = Chain("x", at="x")
    outer = Chain("sub", "b", inside={"sub": sub}, checkpointer=InMemorySaver())
    assert await drained(outer.graph, {}, control=RunControl()) == "at x"
    assert (await outer.graph.aget_state("t")).next == ("b",)
    assert await outer.graph.ainvoke(None, "t") == {"log": ["x", "b"]}
    alone = Chain("sub", inside={"sub": Chain("x", at="x")}, checkpointer=InMemorySaver())
    assert await alone.graph.ainvoke({}, "t", control=RunControl()) == {"log": ["x"]}


async def test_concurrent_subgraphs_three_deep() -> None:
    """Each graph stops at its own barrier; finished work does not run again."""

    def made() -> tuple[Any, list[Chain]]:
        deep = Chain("p", "q", at="p")
        left, right = Chain("x", "deep", "z", inside={"deep": deep}), Chain("u", "v")
        builder = StateGraph(State).add_node("left", left.graph).add_node("right", right.graph)
        builder.add_node("plain", lambda state: {"log": ["plain"]})
        for name in ("left", "right", "plain"):
            builder.add_edge(START, name)
        return builder.compile(InMemorySaver(), blocking=False), [deep, left, right]

    graph, chains = made()
    await drained(graph, {}, control=RunControl())
    assert chains[0].ran == ["p"]
    undisturbed, others = made()
    assert await graph.ainvoke(None, "t") == await undisturbed.ainvoke({}, "t")
    assert [chain.ran for chain in chains] == [chain.ran for chain in others] == [["p", "q"], ["x", "z"], ["u", "v"]]


async def test_a_control_of_a_graph_that_a_node_calls() -> None:
    """`control=` of a call in a node stops the graph that is called; the run around it stops with it, as it cannot
    continue without the result."""
    controls = [RunControl(), RunControl()]
    sub = Chain("x", "y", at="x")
    seen: list[Any] = []

    async def calls(state: State, runtime: Runtime[Any]) -> State:
        seen.append(runtime.control)
        return {"log": (await sub.graph.ainvoke({}, control=controls.pop(0)))["log"]}

    made = StateGraph(State).add_node("calls", calls).add_node("after", lambda state: {"log": ["after"]})
    graph = made.add_edge(START, "calls").add_edge("calls", "after").compile(InMemorySaver(), blocking=False)
    assert await drained(graph, {}) == "at x"
    assert seen == [None]
    assert await graph.ainvoke(None, "t") == {"log": ["x", "y", "after"]}
    assert sub.ran == ["x", "y"]


async def test_nodes_see_the_control() -> None:
    """Nodes see `runtime.control`, in subgraphs, tasks and threads too."""
    control, seen = RunControl(), []

    @task
    def step() -> None:
        seen.append(get_runtime().control)

    async def node(state: State, runtime: Runtime[Any]) -> None:
        seen.append(runtime.control)
        await step()

    flow = entrypoint()(lambda given: seen.append(get_runtime().control))
    sub = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    made = StateGraph(State).add_node("sub", sub).add_node("flow", lambda state: flow.invoke(1))
    graph = made.add_edge(START, "sub").add_edge("sub", "flow").compile(InMemorySaver())
    await graph.ainvoke({}, "t", control=control)
    assert seen == [control] * 3
    await graph.ainvoke({}, "t")
    assert seen[3:] == [None] * 3


async def test_questions_go_before() -> None:
    """A run that asks is not drained: its caller gets the questions. An answer that is given to a draining run is
    stored."""
    control = RunControl()

    async def asks(state: State) -> State:
        control.request_drain()
        return {"log": [interrupt("?")]}

    made = StateGraph(State).add_node("asks", asks).add_node("b", lambda state: {"log": ["b"]})
    graph = made.add_edge(START, "asks").add_edge("asks", "b").compile(InMemorySaver())
    result: Any = await graph.ainvoke({}, "t", control=control)
    assert [question.value for question in result["__interrupt__"]] == ["?"]
    assert await drained(graph, Command(resume="x"), control=control) == "shutdown"
    assert await graph.ainvoke(None, "t") == {"log": ["x", "b"]}


async def test_questions_with_a_drained_subgraph() -> None:
    """The same where a subgraph stops in the superstep in which another node asks: the subgraph continues with the
    answer."""
    sub = Chain("x", "y", at="x")

    async def asks(state: State) -> State:
        return {"log": [interrupt("?")]}

    made = StateGraph(State).add_node("asks", asks).add_node("sub", sub.graph).add_edge(START, "asks")
    graph = made.add_edge(START, "sub").compile(InMemorySaver())
    result: Any = await graph.ainvoke({}, "t", control=RunControl())
    assert [question.value for question in result["__interrupt__"]] == ["?"]
    assert sub.ran == ["x"]
    assert await graph.ainvoke(Command(resume="!"), "t") == {"log": ["!", "x", "y"]}
    assert sub.ran == ["x", "y"]


async def test_a_failure_goes_before() -> None:
    """P9: a superstep that fails has failed, drained or not."""
    control = RunControl()

    async def fails(state: State) -> None:
        control.request_drain()
        raise ValueError

    graph = StateGraph(State).add_node("a", fails).add_edge(START, "a").compile(InMemorySaver())
    with pytest.raises(ValueError):
        await graph.ainvoke({}, "t", control=control)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("nested", [False, True])
async def test_the_stream_of_a_drained_run(nested: bool, version: Any) -> None:
    """The stream shows the supersteps and then GraphDrained: no question, as none is asked, and no end of a task that
    will be resumed."""
    inner = Chain("x", "y", at="x")
    outer = Chain("sub", "b", inside={"sub": inner}, checkpointer=InMemorySaver())
    graph, first = (
        (outer.graph, "sub") if nested else (Chain("x", "y", at="x", checkpointer=InMemorySaver()).graph, "x")
    )
    got: list[Any] = []
    with pytest.raises(GraphDrained):
        async for chunk in graph.astream(
            {}, "t", control=RunControl(), stream_mode=["updates", "values", "tasks"], version=version
        ):
            got.append(chunk)
    if version == "v2":
        assert got[-1]["type"] == "error"
        assert got[-1]["seq"] == len(got)
        got = [(part["type"], part["data"]) for part in got[:-1]]
    shown = [(mode, "start" if "input" in chunk else next(iter(chunk))) for mode, chunk in got]
    ended = [("updates", "x"), ("tasks", "id"), ("values", "log")]
    assert shown == [("tasks", "start"), *([] if nested else ended)]
    assert got[0][1]["name"] == first
    assert [mode async for mode, _ in graph.astream(None, "t", stream_mode=["updates", "custom"])]


async def test_without_a_checkpointer() -> None:
    """Without a checkpointer the run stops all the same, and cannot be resumed."""
    chain = Chain("a", "b", at="a")
    assert await drained(chain.graph, {}, None, control=RunControl()) == "at a"
    assert chain.ran == ["a"]


async def test_one_control_stops_many_runs() -> None:
    """A process that shuts down can use one control for all its runs."""
    control, running = RunControl(), 0
    everybody = anyio.Event()

    async def node(state: State) -> State:
        nonlocal running
        running += 1
        if running == 5:
            control.request_drain()
            everybody.set()
        await everybody.wait()
        return {"log": ["a"]}

    made = StateGraph(State).add_node("a", node).add_node("b", lambda state: {"log": ["b"]})
    graph = made.add_edge(START, "a").add_edge("a", "b").compile(InMemorySaver())
    async with nothing_left():
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(drained_with, graph, f"t{number}", control)
    for number in range(5):
        assert await graph.ainvoke(None, f"t{number}") == {"log": ["a", "b"]}


async def drained_with(graph: Any, thread: str, control: RunControl) -> None:
    assert await drained(graph, {}, thread, control=control) == "shutdown"


async def test_an_entrypoint_finishes_its_superstep() -> None:
    """An entrypoint is one superstep: its running tasks are finished."""
    control = RunControl()

    @task
    async def step(number: int) -> int:
        control.request_drain()
        return number * 2

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(number: int) -> int:
        return await step(await step(number))

    assert await flow.ainvoke(1, "t", control=control) == 4


async def test_a_bad_control_is_refused_before_anything_runs() -> None:
    """An object that is no control, for example the class in place of an instance, is refused by name, like other
    settings of a call."""
    wrong: Any = RunControl
    chain = Chain("a")
    with pytest.raises(ConfigError, match="control is a RunControl"):
        await chain.graph.ainvoke({}, control=wrong)
