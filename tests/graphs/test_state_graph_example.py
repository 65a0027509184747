"""The StateGraph example of the specification: the listing that it compiles to, its walkthrough, and its six
invariants."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.records import Commit, Lease
from pregel_async import END, START, CompiledStateGraph, PregelNode, PregelProtocol, Send, StateGraph
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import GraphRecursionError, StorageError

pytestmark = pytest.mark.anyio


class State(TypedDict):
    input: str
    output: str
    decision: str


def process_input(state: State) -> dict[str, Any]:
    return {"output": f"processed {state['input']}"}


def make_decision(state: State) -> dict[str, Any]:
    return {"decision": f"decided on {state['output']}"}


def example(saver: BaseCheckpointSaver | None = None) -> CompiledStateGraph[State]:
    builder = StateGraph(State)
    builder.add_node("process_input", process_input)
    builder.add_node("make_decision", make_decision)
    builder.add_edge(START, "process_input")
    builder.add_edge("process_input", "make_decision")
    return builder.compile(saver, blocking=False)


def test_the_channels_of_the_listing() -> None:
    """One channel per key, one inbox per node, and the entrypoint."""
    channels = example().channels
    assert {name: type(channel) for name, channel in channels.items()} == {
        START: EphemeralValue,
        "input": LastValue,
        "output": LastValue,
        "decision": LastValue,
        "branch:to:process_input": EphemeralValue,
        "branch:to:make_decision": EphemeralValue,
    }
    assert all(channel.key == name for name, channel in channels.items())


def test_the_nodes_of_the_listing() -> None:
    """The nodes have the listing's names, triggers and reads, the start node included."""
    nodes = example().nodes
    assert {name: (node.name, node.trigger_channels, sorted(node.read_channels)) for name, node in nodes.items()} == {
        START: (START, [START], [START]),
        "process_input": ("process_input", ["branch:to:process_input"], ["decision", "input", "output"]),
        "make_decision": ("make_decision", ["branch:to:make_decision"], ["decision", "input", "output"]),
    }
    assert all(isinstance(node, PregelNode) for node in nodes.values())
    assert nodes["process_input"].action is process_input


def test_the_entry_and_the_outputs_of_the_listing() -> None:
    """The input enters through `__start__`; the keys of the state are the output channels."""
    graph = example()
    assert graph.input_channels == START
    assert sorted(graph.output_channels) == ["decision", "input", "output"]


def test_parts_of_a_graph_are_copies() -> None:
    """P13: the compiled graph returns copies of its parts, so that callers cannot change it through them."""
    graph = example()
    graph.channels["input"].update(["mine"])
    graph.channels.clear()
    graph.nodes.clear()
    assert len(graph.channels) == 6
    assert not graph.channels["input"].is_available()
    assert len(graph.nodes) == 3


def test_it_is_a_pregel() -> None:
    """Every graph satisfies the protocol."""
    assert isinstance(example(), PregelProtocol)


async def test_the_walkthrough() -> None:
    """The start node writes the input, process_input its output, make_decision its decision, each in a superstep of its
    own; the result has the output channels' values."""
    graph = example(InMemorySaver())
    result = await graph.ainvoke({"input": "x"}, "t")
    assert result == {"input": "x", "output": "processed x", "decision": "decided on processed x"}
    history = [snapshot async for snapshot in graph.aget_state_history("t")][::-1]
    assert [(snapshot.values, snapshot.next) for snapshot in history] == [
        ({}, (START,)),
        ({"input": "x"}, ("process_input",)),
        ({"input": "x", "output": "processed x"}, ("make_decision",)),
        (result, ()),
    ]


async def test_the_walkthrough_as_a_stream() -> None:
    """Stream modes: values after each superstep, updates after each node; the start node is not shown."""
    graph = example()
    chunks = [chunk async for chunk in graph.astream({"input": "x"}, stream_mode=["updates", "values"])]
    assert chunks == [
        ("values", {"input": "x"}),
        ("updates", {"process_input": {"output": "processed x"}}),
        ("values", {"input": "x", "output": "processed x"}),
        ("updates", {"make_decision": {"decision": "decided on processed x"}}),
        ("values", {"input": "x", "output": "processed x", "decision": "decided on processed x"}),
    ]


async def test_the_default_mode_is_updates() -> None:
    """The default stream mode is `updates`."""
    assert [chunk async for chunk in example().astream({"input": "x"})] == [
        {"process_input": {"output": "processed x"}},
        {"make_decision": {"decision": "decided on processed x"}},
    ]


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    total: Annotated[int, operator.add]
    seen: dict[str, Any]


def fanned(pause: Callable[[str], float], saver: BaseCheckpointSaver | None = None) -> Any:
    """Five parallel nodes, then three sends, each delayed by `pause`."""

    def writer(name: str) -> Any:
        async def call(state: Any) -> dict[str, Any]:
            for _ in range(int(pause(name))):
                await anyio.lowlevel.checkpoint()
            return {"log": [f"{name}:{len(state.get('log', ()))}"], "total": 1}

        return call

    builder = StateGraph(Log)
    for name in "abcde":
        builder.add_node(name, writer(name))
        builder.add_edge(START, name)
    builder.add_node("sent", writer("sent"))
    builder.add_conditional_edges("c", lambda state: [Send("sent", {"log": ["x"] * n}) for n in range(3)])
    return builder.compile(saver)


async def test_invariant_1_execution_determinism() -> None:
    """Given the same input and thread id, execution produces identical results; the order in which tasks of a superstep
    finish does not affect the final state."""
    results, histories = [], []
    for seed in range(6):
        luck = random.Random(seed)
        graph = fanned(lambda name, luck=luck: luck.randrange(6), InMemorySaver())
        results.append(await graph.ainvoke({"log": []}, "t"))
        histories.append(
            [
                (snapshot.values, snapshot.next, [(task.id, task.path, task.result) for task in snapshot.tasks])
                async for snapshot in graph.aget_state_history("t")
            ]
        )
    assert results[0] == {"log": ["a:0", "b:0", "c:0", "d:0", "e:0", "sent:0", "sent:1", "sent:2"], "total": 8}
    assert all(result == results[0] for result in results)
    assert all(history == histories[0] for history in histories)


async def test_invariant_2_state_isolation() -> None:
    """Updates of one node are not visible to other nodes of the superstep, and no node sees a part of an unfinished
    node's work."""
    seen: dict[str, Any] = {}
    done = anyio.Event()

    async def early(state: Any) -> dict[str, Any]:
        state["log"].append("changed in place")
        done.set()
        return {"log": ["early"]}

    async def late(state: Any) -> dict[str, Any]:
        await done.wait()
        seen["late"] = list(state["log"])
        return {"log": ["late"]}

    async def after(state: Any) -> None:
        seen["after"] = list(state["log"])

    builder = StateGraph(Log).add_node(early).add_node(late).add_node(after)
    builder.add_edge(START, "early").add_edge(START, "late").add_edge("late", "after")
    await builder.compile().ainvoke({"log": ["in"]})
    assert seen == {"late": ["in"], "after": ["in", "early", "late"]}


async def test_invariant_3_checkpoint_consistency() -> None:
    """Checkpoints hold the complete state at superstep boundaries; a restored one continues with exactly the same
    state."""
    builder = StateGraph(Log)
    builder.add_sequence(
        [(name, lambda state, name=name: {"log": [f"{name}{state['total']}"], "total": 1}) for name in "abcd"]
    )
    builder.add_edge(START, "a")
    saver = InMemorySaver()
    whole = await builder.compile(blocking=False).ainvoke({"total": 10})
    for limit in (1, 2, 3):
        thread = f"t{limit}"
        with pytest.raises(GraphRecursionError):
            await builder.compile(saver, blocking=False).ainvoke(
                {"total": 10}, {"configurable": {"thread_id": thread}, "recursion_limit": limit}
            )
        # Another graph object, as after a restart.
        graph = builder.compile(saver, blocking=False)
        state = await graph.aget_state(thread)
        assert state.values == {"log": whole["log"][:limit], "total": 10 + limit}
        assert await graph.ainvoke(None, thread) == whole


async def test_invariant_4_task_management() -> None:
    """Tasks execute in an order determined by the graph: a node runs after its predecessors, and the tasks of one
    superstep run concurrently."""
    running, most = 0, 0
    order: list[str] = []
    together = anyio.Event()

    def worker(name: str) -> Any:
        async def call(state: Any) -> None:
            nonlocal running, most
            order.append(name)
            running += 1
            most = max(most, running)
            if name in "bcd":
                if running == 3:
                    together.set()
                await together.wait()
            running -= 1

        return call

    builder = StateGraph(Log)
    for name in "abcde":
        builder.add_node(name, worker(name))
    builder.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("a", "d").add_edge(["b", "c", "d"], "e")
    await builder.compile().ainvoke({})
    assert most == 3
    assert (order[0], sorted(order[1:4]), order[4]) == ("a", ["b", "c", "d"], "e")


class Breaking(InMemorySaver):
    """A saver whose commits fail from some commit on."""

    commits_left = 10**9

    async def commit(self, lease: Lease, commit: Commit) -> None:
        if self.commits_left <= 0:
            raise StorageError("the disk is gone")
        self.commits_left -= 1
        await super().commit(lease, commit)


async def test_invariant_5_error_handling() -> None:
    """Unrecoverable errors propagate without corrupting the state, and storage failures do not corrupt earlier
    checkpoints."""
    broken = True

    def flaky(state: Any) -> dict[str, Any]:
        if broken:
            raise ValueError("not today")
        return {"log": ["flaky"]}

    saver = Breaking()
    builder = StateGraph(Log).add_node("first", lambda state: {"log": ["first"]}).add_node("flaky", flaky)
    builder.add_node("last", lambda state: {"log": ["last"]}).add_edge(START, "first").add_edge("first", "flaky")
    graph = builder.add_edge("flaky", "last").compile(saver, blocking=False)
    with pytest.raises(ValueError, match="not today"):
        await graph.ainvoke({"log": []}, "t")
    state = await graph.aget_state("t")
    assert (state.values["log"], state.next) == (["first"], ("flaky",))
    broken = False
    saver.commits_left = 1
    with pytest.raises(StorageError, match="the disk is gone"):
        await graph.ainvoke(None, "t")
    state = await graph.aget_state("t")
    assert (state.values["log"], state.next) == (["first", "flaky"], ("last",))
    saver.commits_left = 9
    assert (await graph.ainvoke(None, "t"))["log"] == ["first", "flaky", "last"]


async def test_invariant_6_termination_guarantees() -> None:
    """Acyclic graphs end; cyclic ones need an exit, and recursion limits stop those without one."""

    def spin(state: Any) -> dict[str, Any]:
        return {"total": 1}

    loop = StateGraph(Log).add_node(spin).add_edge(START, "spin").add_edge("spin", "spin").compile(blocking=False)
    with pytest.raises(GraphRecursionError, match="limit of 25"):
        await loop.ainvoke({}, {"recursion_limit": 25})
    until = StateGraph(Log).add_node(spin).add_edge(START, "spin")
    until.add_conditional_edges("spin", lambda state: "spin" if state["total"] < 30 else END)
    assert await until.compile(blocking=False).ainvoke({}) == {"log": [], "total": 30}
    chain = StateGraph(Log)
    chain.add_sequence([(f"n{index}", spin) for index in range(40)]).add_edge(START, "n0")
    assert await chain.compile(blocking=False).ainvoke({}, {"recursion_limit": 40}) == {"log": [], "total": 40}
