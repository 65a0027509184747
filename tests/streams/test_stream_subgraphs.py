"""Streams of subgraphs: the namespace of a chunk, its order, and its readers."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import anyio.to_thread
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, Send, StateGraph, StreamWriter, entrypoint, get_stream_writer, interrupt, task

pytestmark = pytest.mark.anyio

ALL: Any = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def logging_node(name: str) -> Any:
    async def node(state: State, writer: StreamWriter) -> State:
        await writer(name)
        return {"log": [name]}

    return node


def chain(**nodes: Any) -> Any:
    made, before = StateGraph(State), START
    for name, node in nodes.items():
        made.add_node(name, node).add_edge(before, name)
        before = name
    return made


async def chunks(graph: Any, given: Any, config: Any = "t", **arguments: Any) -> list[Any]:
    return [chunk async for chunk in graph.astream(given, config, **arguments)]


def path(ns: tuple[str, ...]) -> str:
    """Return the nodes of a namespace."""
    return "/".join(part.partition(":")[0] for part in ns)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("stored", [False, True])
async def test_the_namespace_of_a_chunk(stored: bool, version: Any) -> None:
    """The namespace is that of the graph that contains the node: `()` at the root, `("node:task", ...)` in a subgraph,
    at any depth; chunks of subgraphs are not delivered without `subgraphs=True`."""
    deep = chain(p=logging_node("p")).compile()
    inner = chain(x=logging_node("x"), deep=deep).compile()
    graph = chain(a=logging_node("a"), sub=inner).compile(InMemorySaver() if stored else None)
    got = await chunks(graph, {}, stream_mode="custom", subgraphs=True, version=version)
    shown = [(part["ns"], part["data"]) for part in got] if version == "v2" else got
    assert [(path(ns), data) for ns, data in shown] == [("", "a"), ("sub", "x"), ("sub/deep", "p")]
    if stored:
        tasks = [(await graph.aget_state("t")).config, shown[2][0]]
        ids = [part.partition(":")[2] for part in tasks[1]]
        history = [snapshot async for snapshot in graph.aget_state_history("t")]
        assert ids[0] == history[1].tasks[0].id
    got = await chunks(graph, {}, "t2", stream_mode="custom", version=version)
    assert [part["data"] if version == "v2" else part for part in got] == ["a"]


@pytest.mark.parametrize("modes", [*ALL, ALL])
async def test_every_mode_of_subgraphs(modes: Any, saver: BaseCheckpointSaver) -> None:
    """With `subgraphs=True` each mode streams of a subgraph what it would stream of that graph alone, and of the root
    the same as without."""
    inner = chain(x=logging_node("x"), y=logging_node("y"))
    graph = chain(a=logging_node("a"), sub=inner.compile(), b=logging_node("b")).compile(saver)
    names = [modes] if isinstance(modes, str) else modes
    both = await chunks(graph, {"log": ["in"]}, "t1", stream_mode=names, subgraphs=True)
    root = await chunks(graph, {"log": ["in"]}, "t2", stream_mode=names)
    alone = await chunks(inner.compile(saver), {"log": ["in", "a"]}, "t3", stream_mode=names)
    assert [(mode, outline(chunk)) for ns, mode, chunk in both if ns == ()] == [(m, outline(c)) for m, c in root]
    assert [(mode, outline(chunk)) for ns, mode, chunk in both if ns != ()] == [(m, outline(c)) for m, c in alone]
    assert {path(ns) for ns, _, _ in both} == (set() if modes == "messages" else {"", "sub"})


def outline(chunk: Any) -> Any:
    """Return a chunk without the parts that differ between threads: ids, dates, configs."""
    if isinstance(chunk, dict):
        left = {"id", "timestamp", "config", "parent_config", "metadata", "state"}
        return {key: outline(value) for key, value in chunk.items() if key not in left}
    return [outline(each) for each in chunk] if isinstance(chunk, (list, tuple)) else chunk


async def test_concurrent_subgraphs_of_one_node() -> None:
    """Sends to one node and calls in one task have different namespaces, as in storage."""
    inner = chain(x=logging_node("x")).compile()

    async def calls(state: State) -> None:
        await inner.ainvoke({})
        await inner.ainvoke({})

    made = StateGraph(State).add_node("sub", inner).add_node("calls", calls)
    made.add_conditional_edges(START, lambda state: [Send("sub", {}), Send("sub", {}), Send("calls", {})])
    got = await chunks(made.compile(InMemorySaver()), {}, stream_mode=["custom"], subgraphs=True)
    spaces = [ns for ns, _, _ in got]
    assert len(set(spaces)) == 4
    assert sorted(path(ns) for ns in spaces) == ["calls", "calls/1", "sub", "sub"]


async def test_tasks_and_entrypoints_in_subgraphs(saver: BaseCheckpointSaver) -> None:
    """A task writes in its caller's namespace; an entrypoint that a node runs is a subgraph; so is one that a task
    runs."""
    inner = chain(x=logging_node("x")).compile()

    @task
    async def step() -> None:
        get_stream_writer()("task")
        await inner.ainvoke({})

    @entrypoint()
    async def flow(given: int) -> None:
        get_stream_writer()("flow")
        await step()

    async def node(state: State) -> None:
        await flow.ainvoke(1)

    graph = chain(node=node).compile(saver)
    got = await chunks(graph, {}, stream_mode="custom", subgraphs=True)
    assert [(path(ns), chunk) for ns, chunk in got] == [("node", "flow"), ("node", "task"), ("node/step", "x")]


async def test_a_subgraph_with_a_thread_of_its_own() -> None:
    """A graph that a node runs on a thread of its own is a run of its own: only its own reader gets its chunks."""
    inner = chain(x=logging_node("x")).compile(InMemorySaver())

    async def node(state: State) -> None:
        assert await chunks(inner, {}, "own", stream_mode="custom") == ["x"]

    assert await chunks(chain(node=node).compile(InMemorySaver()), {}, stream_mode="custom", subgraphs=True) == []


@pytest.mark.parametrize("alone", [True, False])
async def test_chunks_of_subgraphs_are_live(alone: bool) -> None:
    """No chunk is held back until the node that runs the subgraph ends, also when it is the only one that runs."""
    read = anyio.Event()

    async def waits(state: State) -> None:
        await read.wait()

    inner = chain(x=logging_node("x"), waits=waits).compile()
    made = StateGraph(State).add_node("sub", inner).add_edge(START, "sub")
    if not alone:
        made.add_node("other", logging_node("other")).add_edge(START, "other")
    seen: list[Any] = []
    with anyio.fail_after(30):
        async for _, mode, chunk in made.compile(InMemorySaver()).astream(
            {}, "t", stream_mode=["updates", "custom", "checkpoints", "tasks"], subgraphs=True
        ):
            seen.append((mode, chunk))
            if ("updates", {"x": {"log": ["x"]}}) in seen and ("custom", "x") in seen:
                read.set()
    assert seen[-1][0] == "checkpoints"


async def test_one_order_over_all_graphs(saver: BaseCheckpointSaver) -> None:
    """P12: chunks of one run are in one total order: those of a subgraph come after its node's start and before its
    node's end; two readers of it (a node, and the caller) get the same order."""
    seen: list[Any] = []
    inner = chain(x=logging_node("x"), y=logging_node("y")).compile()

    async def node(state: State) -> None:
        async with inner.astream({}, stream_mode=["updates", "custom", "tasks", "values"], version="v2") as stream:
            async for part in stream:
                seen.append((part["type"], part["ns"], part["seq"], outline(part["data"])))

    graph = chain(node=node).compile(saver)
    got = await chunks(
        graph, {}, stream_mode=["updates", "custom", "tasks", "values"], subgraphs=True, version="v2", capacity=2
    )
    inside = [(part["type"], (), at, outline(part["data"])) for at, part in enumerate([p for p in got if p["ns"]], 1)]
    assert inside == seen
    assert [path(part["ns"]) for part in got] == ["", *["node"] * len(seen), "", ""]
    assert [part["seq"] for part in got] == list(range(1, len(got) + 1))


async def test_questions_of_subgraphs(saver: BaseCheckpointSaver) -> None:
    """With `subgraphs=True` a question of a subgraph is streamed in the subgraph's namespace and again in the parent's;
    without, only in the root's."""

    async def asks(state: State) -> State:
        return {"log": [interrupt("?")]}

    graph = chain(sub=chain(asks=asks).compile()).compile(saver)
    got = await chunks(graph, {}, stream_mode="updates", subgraphs=True)
    assert [(path(ns), [each.value for each in chunk["__interrupt__"]]) for ns, chunk in got] == [
        ("sub", ["?"]),
        ("", ["?"]),
    ]
    assert got[0][1]["__interrupt__"] == got[1][1]["__interrupt__"]
    assert [list(chunk) for chunk in await chunks(graph, {}, "t2", stream_mode="updates")] == [["__interrupt__"]]
    parts = await chunks(graph, {}, "t3", stream_mode="values", subgraphs=True, version="v2")
    assert [path(part["ns"]) for part in parts if part["interrupts"]] == ["sub", ""]
    after = await chunks(graph, Command(resume="yes"), stream_mode="updates", subgraphs=True)
    assert [(path(ns), chunk) for ns, chunk in after] == [
        ("sub", {"asks": {"log": ["yes"]}}),
        ("", {"sub": {"log": ["yes"]}}),
    ]


async def test_commands_for_the_parent_graph() -> None:
    """The commanding node of a subgraph streams no update; the node that runs the subgraph is credited."""

    def leaves(state: State) -> Any:
        return Command(graph=Command.PARENT, update={"log": ["up"]}, goto="after")

    inner = chain(leaves=leaves).compile(blocking=False)
    made = chain(sub=inner).add_node("after", logging_node("after"))
    got = await chunks(made.compile(blocking=False), {}, None, stream_mode="updates", subgraphs=True)
    assert [(path(ns), chunk) for ns, chunk in got] == [
        ("", {"sub": {"log": ["up"]}}),
        ("", {"after": {"log": ["after"]}}),
    ]


async def test_output_keys_are_those_of_the_graph_that_was_called() -> None:
    """`output_keys` apply to the called graph; its subgraphs stream all their keys."""
    inner = chain(x=logging_node("x")).compile()
    graph = chain(sub=inner).compile()
    got = await chunks(graph, {}, None, stream_mode=["values", "updates"], subgraphs=True, output_keys="log")
    assert [(path(ns), mode, chunk) for ns, mode, chunk in got] == [
        ("sub", "values", {"log": []}),
        ("sub", "updates", {"x": {"log": ["x"]}}),
        ("sub", "values", {"log": ["x"]}),
        ("", "updates", {"sub": ["x"]}),
        ("", "values", ["x"]),
    ]


async def test_each_writer_keeps_its_order() -> None:
    """Writers in async nodes, sync nodes in threads, tasks and subgraphs write concurrently: each in its own order."""

    def write(name: str) -> None:
        for number in range(50):
            get_stream_writer()((name, number))

    async def awrite(name: str) -> None:
        for number in range(50):
            await get_stream_writer()((name, number))

    @task
    async def atask() -> None:
        await awrite("task")

    @task
    def plain_task() -> None:
        write("plain task")

    async def both(state: State) -> None:
        first, second = atask(), plain_task()
        await awrite("caller")
        await first
        await second

    inner = StateGraph(State).add_node("i1", lambda state: write("i1")).add_node("i2", lambda state: awrite("i2"))
    made = StateGraph(State).add_node("both", both).add_node("plain", lambda state: write("plain"))
    made.add_node("sub", inner.add_edge(START, "i1").add_edge(START, "i2").compile())
    for name in ("both", "plain", "sub"):
        made.add_edge(START, name)
    names = ["task", "plain task", "caller", "i1", "i2", "plain"]
    for capacity in (1, 64):
        got = await chunks(made.compile(), {}, None, stream_mode="custom", subgraphs=True, capacity=capacity)
        for name in names:
            assert [chunk[1] for _, chunk in got if chunk[0] == name] == list(range(50))
        assert len(got) == 300


async def test_ambient_state_belongs_to_each_node() -> None:
    """Code in nested tasks and threads writes as its own node, even while its siblings run."""
    met = [anyio.Event(), anyio.Event()]

    def named(number: int) -> Any:
        async def node(state: State) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(later, number)

        return node

    async def later(number: int) -> None:
        met[number].set()
        await met[1 - number].wait()
        message = {"role": "ai", "content": str(number), "id": str(number)}
        get_stream_writer().message(message)
        await anyio.to_thread.run_sync(lambda: get_stream_writer().message({**message, "id": f"thread {number}"}))

    made = (
        StateGraph(State).add_node("n0", named(0)).add_node("n1", named(1)).add_edge(START, "n0").add_edge(START, "n1")
    )
    got = await chunks(made.compile(), {}, None, stream_mode="messages")
    assert (
        sorted((message["content"], place["langgraph_node"]) for message, place in got)
        == [("0", "n0")] * 2 + [("1", "n1")] * 2
    )
