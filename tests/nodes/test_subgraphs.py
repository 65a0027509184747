"""Subgraphs: how they are called, what they inherit, where their state is stored, and what never runs again."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, StorageError
from pregel_async import (
    END,
    START,
    Command,
    NodeBuilder,
    Pregel,
    RemainingSteps,
    Send,
    StateGraph,
    StateSnapshot,
    entrypoint,
    get_config,
    get_runtime,
    get_store,
    interrupt,
    task,
)
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import (
    CheckpointNotFoundError,
    ConfigError,
    EmptyInputError,
    GraphRecursionError,
    InvalidUpdateError,
    SubgraphNotFoundError,
)

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int
    private: str


class Count(TypedDict, total=False):
    count: Annotated[int, operator.add]


class Oops(Exception):
    """A user's own exception."""


class Switches:
    """Switches for the things that fail, and counts of what ran."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.ran: Counter[str] = Counter()

    def node(self, name: str, **update: Any) -> Any:
        async def call(state: Any) -> dict[str, Any]:
            self.ran[name] += 1
            if name in self.broken:
                raise Oops(name)
            return {"log": [name], **update}

        return call

    def asks(self, name: str) -> Any:
        async def call(state: Any) -> dict[str, Any]:
            self.ran[name] += 1
            answer = interrupt(name)
            if name in self.broken:
                raise Oops(name)
            return {"log": [f"{name}:{answer}"]}

        return call


@pytest.fixture
def switches() -> Switches:
    return Switches()


def chain(*nodes: tuple[str, Any], schema: Any = State, **schemas: Any) -> StateGraph[Any]:
    """Nodes one after another, from START."""
    return StateGraph(schema, **schemas).add_sequence(list(nodes)).add_edge(START, nodes[0][0])


def counter(checkpointer: Any = None) -> Any:
    """A graph that adds one to its own count, and returns it."""
    return chain(("add", lambda state: {"count": 1}), schema=Count).compile(checkpointer, blocking=False)


def calls(graph: Any, given: Any = None, **config: Any) -> Any:
    """Return a node that runs a graph and logs the count that it returns."""

    async def call(state: Any) -> dict[str, Any]:
        result = await graph.ainvoke({} if given is None else given, **config)
        return {"log": [str(result["count"])]}

    return call


def ids(result: Any) -> list[str]:
    return [asked.id for asked in result["__interrupt__"]]


def asked(result: Any) -> list[Any]:
    return [asked.value for asked in result["__interrupt__"]]


async def history(graph: Any, config: Any = "t") -> list[StateSnapshot]:
    return [state async for state in graph.aget_state_history(config)]


def state_of_subgraph(state: StateSnapshot, *names: str) -> StateSnapshot:
    """Return the state of a subgraph, found by the names of the nodes that lead to it."""
    for name in names:
        (found,) = [one for one in state.tasks if one.name == name]
        assert isinstance(found.state, StateSnapshot), found
        state = found.state
    return state


def at(ns: str, thread: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}


async def test_shared_keys_go_in_and_come_out(saver: BaseCheckpointSaver) -> None:
    """A graph as a node gets the keys that both know, and its output is the node's update, so that a reducer of both is
    applied on top of the input."""

    class Inner(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        own: str

    def look(state: Inner) -> Inner:
        assert set(state) == {"log"}
        return {"log": ["i"], "own": "kept inside"}

    sub = chain(("look", look), schema=Inner).compile(blocking=False)
    graph = chain(("o", lambda state: {"log": ["o"]}), ("sub", sub)).compile(saver, blocking=False)
    assert await graph.ainvoke({"log": ["s"], "private": "p", "n": 1}, "t") == {
        "log": ["s", "o", "s", "o", "i"],
        "private": "p",
        "n": 1,
    }


async def test_a_graph_that_shares_no_key() -> None:
    """A graph as a node that shares no key with the state changes nothing of it."""

    class Other(TypedDict, total=False):
        other: str

    sub = chain(("x", lambda state: {"other": "x"}), schema=Other).compile(blocking=False)
    graph = chain(("sub", sub)).compile(blocking=False)
    assert await graph.ainvoke({"n": 1}) == {"log": [], "n": 1}


async def test_input_and_output_schemas_of_a_node() -> None:
    """A graph as a node gets its input schema's keys, and gives its output schema's."""

    class In(TypedDict, total=False):
        n: int

    class Out(TypedDict, total=False):
        private: str

    def look(state: Any) -> dict[str, Any]:
        return {"log": ["never seen"], "private": f"{state.get('n')} {state.get('private')}"}

    sub = chain(("look", look), input_schema=In, output_schema=Out).compile(blocking=False)
    graph = chain(("sub", sub)).compile(blocking=False)
    assert await graph.ainvoke({"n": 1, "private": "p"}) == {"log": [], "n": 1, "private": "1 None"}


@dataclasses.dataclass
class DataState:
    log: Annotated[list[str], operator.add] = dataclasses.field(default_factory=list)
    n: int = 0


class StructState(msgspec.Struct):
    log: Annotated[list[str], operator.add] = []
    n: int = 0


class ModelState(pydantic.BaseModel):
    log: Annotated[list[str], operator.add] = []
    n: int = 0


KINDS = [State, DataState, StructState, ModelState]


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
async def test_schemas_of_other_kinds(outer: Any, inner: Any) -> None:
    """A subgraph's schema may be of another kind than its parent's."""

    def look(state: Any) -> dict[str, Any]:
        n = state["n"] if isinstance(state, dict) else state.n
        return {"log": ["i"], "n": n + 1}

    def before(state: Any) -> dict[str, Any]:
        return {"n": 1}

    sub = chain(("look", look), schema=inner).compile(InMemorySaver(), blocking=False)
    graph = chain(("before", before), ("sub", sub), schema=outer).compile(InMemorySaver(), blocking=False)
    result = await graph.ainvoke({"log": ["s"]}, "t")
    assert (result["log"], result["n"]) == (["s", "s", "i"], 2)


async def test_root_types() -> None:
    """A graph whose state is one value is a node of a graph whose state is one value."""
    sub = chain(("double", lambda state: state * 2), schema=Annotated[int, operator.add]).compile(blocking=False)
    graph = chain(("sub", sub), schema=Annotated[int, operator.add]).compile(blocking=False)
    assert await graph.ainvoke(1) == 1 + (1 + 2)


async def test_an_entrypoint_as_a_node(saver: BaseCheckpointSaver) -> None:
    """A workflow is a node as any graph is."""

    @entrypoint()
    async def flow(state: dict[str, Any]) -> dict[str, Any]:
        return {"log": [f"flow {state['n']}"]}

    graph = chain(("flow", flow)).compile(saver, blocking=False)
    assert await graph.ainvoke({"n": 1}, "t") == {"log": ["flow 1"], "n": 1}


async def test_a_graph_of_channels_as_a_node(saver: BaseCheckpointSaver) -> None:
    """A low-level graph is a node too."""

    def shout(private: str) -> str:
        return private.upper()

    sub = Pregel(
        nodes={"shout": NodeBuilder().subscribe_only("private").do(shout).write_to("n")},
        channels={"private": EphemeralValue(str), "n": LastValue(str)},
        input_channels=["private"],
        output_channels=["n"],
        blocking=False,
    )
    graph = chain(("sub", sub)).compile(saver, blocking=False)
    assert await graph.ainvoke({"private": "p"}, "t") == {"log": [], "private": "p", "n": "P"}


async def test_called_in_a_node(saver: BaseCheckpointSaver) -> None:
    """A graph that a node calls is part of the node's run, and stored in its namespace."""
    places = []

    async def look(state: Any) -> dict[str, Any]:
        places.append(get_config()["configurable"])
        return {"n": state["n"] + 1}

    sub = chain(("look", look)).compile()

    async def call(state: Any) -> dict[str, Any]:
        return {"n": (await sub.ainvoke({"n": state["n"]}))["n"]}

    graph = chain(("call", call)).compile(saver)
    assert await graph.ainvoke({"n": 1}, "t") == {"log": [], "n": 2}
    (place,) = places
    outer, _, inner = place["checkpoint_ns"].partition("|")
    assert (outer.partition(":")[0], inner.partition(":")[0], place["thread_id"]) == ("call", "look", "t")
    assert (await history(graph, at(outer)))[0].values == {"log": [], "n": 2}


async def test_called_in_a_plain_function(saver: BaseCheckpointSaver) -> None:
    """A plain function runs in a worker thread, and a graph that it calls is part of the node's
    run, questions included."""
    sub = chain(("ask", lambda state: {"log": [interrupt("?")]})).compile()

    def call(state: Any) -> Any:
        return anyio.from_thread.run(sub.ainvoke, {"n": 1})

    graph = chain(("call", call)).compile(saver)
    assert asked(await graph.ainvoke({}, "t")) == ["?"]
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes"], "n": 1}


async def test_called_in_a_task(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5: a graph that a task calls is part of the task; its question is the node's."""
    sub = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile()

    @task
    async def work(n: int) -> Any:
        return (await sub.ainvoke({"n": n}))["log"]

    async def call(state: Any) -> dict[str, Any]:
        return {"log": [*await work(1), *await work(2)]}

    graph = chain(("call", call)).compile(saver)
    first = await graph.ainvoke({}, "t")
    second = await graph.ainvoke(Command(resume="x"), "t")
    assert (asked(first), asked(second)) == (["ask"], ["ask"])
    assert ids(first) != ids(second)
    assert await graph.ainvoke(Command(resume="y"), "t") == {"log": ["a", "ask:x", "a", "ask:y"]}
    assert switches.ran == {"a": 2, "ask": 4}


async def test_called_in_an_entrypoint(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5: and one that a workflow calls is part of the workflow."""
    sub = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile()

    @entrypoint(saver)
    async def flow(n: int) -> Any:
        return (await sub.ainvoke({"n": n}))["log"]

    assert asked(await flow.ainvoke(1, "t")) == ["ask"]
    assert (await flow.aget_state("t", subgraphs=True)).tasks[0].state.values == {"log": ["a"], "n": 1}
    assert await flow.ainvoke(Command(resume="x"), "t") == ["a", "ask:x"]
    assert switches.ran == {"a": 1, "ask": 2}


async def test_streamed_in_a_node(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A node may stream a graph; it is part of its run all the same."""
    sub = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile()

    async def call(state: Any) -> dict[str, Any]:
        log: list[str] = []
        async with sub.astream({}, stream_mode="updates") as chunks:
            async for chunk in chunks:
                log += [name for name in chunk if name != "__interrupt__"]
        return {"log": log}

    graph = chain(("call", call)).compile(saver)
    assert asked(await graph.ainvoke({}, "t")) == ["ask"]
    assert await graph.ainvoke(Command(resume="x"), "t") == {"log": ["ask"]}
    assert switches.ran == {"a": 1, "ask": 2}


async def test_several_in_one_node(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """The second and third graph that a task runs have namespaces of their own, `|1` and `|2`; P5: the finished
    ones do not run again after a later one's question."""
    quiet = chain(("a", switches.node("a"))).compile()
    loud = chain(("ask", switches.asks("ask"))).compile()

    async def call(state: Any) -> dict[str, Any]:
        log = (await quiet.ainvoke({"log": ["1"]}))["log"]
        log += (await quiet.ainvoke({"log": ["2"]}))["log"]
        return {"log": log + (await loud.ainvoke({"log": ["3"]}))["log"]}

    graph = chain(("call", call)).compile(saver)
    assert asked(await graph.ainvoke({}, "t")) == ["ask"]
    (found,) = (await graph.aget_state("t")).tasks
    for ns, log in (("", ["1", "a"]), ("|1", ["2", "a"]), ("|2", ["3"])):
        assert (await graph.aget_state(at(f"call:{found.id}{ns}"))).values == {"log": log}
    assert await graph.ainvoke(Command(resume="x"), "t") == {"log": ["1", "a", "2", "a", "3", "ask:x"]}
    assert switches.ran == {"a": 2, "ask": 2}


async def test_concurrently_in_the_nodes_own_task_group(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A node may run graphs concurrently in a task group of its own; the question of one is found in the group that the
    task group raises."""
    graphs = {name: chain((name, switches.asks(name))).compile() for name in "ab"}

    async def call(state: Any) -> dict[str, Any]:
        logs: dict[str, Any] = {}
        turn = {"a": anyio.Event(), "b": anyio.Event()}
        turn["a"].set()

        async def one(name: str) -> None:
            await turn[name].wait()
            if name == "a":
                turn["b"].set()
            logs[name] = (await graphs[name].ainvoke({}))["log"]

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            group.start_soon(one, "b")
        return {"log": logs["a"] + logs["b"]}

    graph = chain(("call", call)).compile(saver)
    result = await graph.ainvoke({}, "t")
    while "__interrupt__" in result:
        result = await graph.ainvoke(
            Command(resume={key: value for key, value in zip(ids(result), asked(result), strict=True)}), "t"
        )
    assert result == {"log": ["a:a", "b:b"]}


async def test_many_concurrently_in_tasks(saver: BaseCheckpointSaver) -> None:
    """P2: graphs that a node runs concurrently in tasks are identified by the order of the calls, on every loop."""
    sub = chain(("log", lambda state: {"log": [f"{state['n']}"]})).compile(blocking=False)

    @task
    async def work(n: int) -> Any:
        return (await sub.ainvoke({"n": n}))["log"]

    async def call(state: Any) -> dict[str, Any]:
        started = [work(n) for n in range(5)]
        logs = [await one for one in started]
        interrupt("?")
        return {"log": [found for log in logs for found in log]}

    graph = chain(("call", call)).compile(saver)
    await graph.ainvoke({}, "t")
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": ["0", "1", "2", "3", "4"]}


async def test_in_a_loop(saver: BaseCheckpointSaver) -> None:
    """With `checkpointer=None` each run of a node has a state of its own."""
    graph = (
        chain(("call", calls(counter())), ("more", lambda state: {}))
        .add_conditional_edges("more", lambda state: "call" if len(state["log"]) < 4 else END)
        .compile(saver, blocking=False)
    )
    assert await graph.ainvoke({}, "t") == {"log": ["1", "1", "1", "1"]}


@pytest.mark.parametrize("checkpointer", [None, False])
async def test_many_sends(saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any) -> None:
    """A graph as a node runs many times concurrently, each time with its Send's argument."""

    async def ask(state: Any) -> dict[str, Any]:
        return {"log": [f"{state['n']} {interrupt(state['n'])}"]}

    class Out(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    sub = chain(("a", switches.node("a")), ("ask", ask), output_schema=Out).compile(checkpointer)
    graph = (
        StateGraph(State)
        .add_node("sub", sub)
        .add_conditional_edges(START, lambda state: [Send("sub", {"n": n, "log": []}) for n in range(20)], ["sub"])
        .compile(saver, blocking=False)
    )
    result = await graph.ainvoke({}, "t")
    assert asked(result) == list(range(20))
    assert len(set(ids(result))) == 20
    odd = {key: "odd" for key, n in zip(ids(result), asked(result), strict=True) if n % 2}
    result = await graph.ainvoke(Command(resume=odd), "t")
    assert asked(result) == list(range(0, 20, 2))
    result = await graph.ainvoke(Command(resume=dict.fromkeys(ids(result), "even")), "t")
    assert result["log"] == [part for n in range(20) for part in ("a", f"{n} {'odd' if n % 2 else 'even'}")]
    if checkpointer is None:
        assert switches.ran["a"] == 20


@pytest.mark.parametrize("how", ["none", "whole", "keys", "own key"])
async def test_the_nodes_config_passed_on_or_not(saver: BaseCheckpointSaver, how: str) -> None:
    """Whether a node passes its config on or not, the graph that it calls is part of its run."""
    seen = []

    async def look(state: Any) -> dict[str, Any]:
        seen.append(get_config())
        return {"log": [interrupt("?")]}

    sub = chain(("look", look)).compile()

    async def call(state: Any, config: Any) -> Any:
        passed = {
            "none": None,
            "whole": config,
            "keys": {**config, "tags": ["x"], "metadata": {"m": 1}},
            "own key": {"configurable": {"mine": 1}},
        }[how]
        return await sub.ainvoke({}, passed)

    graph = chain(("call", call)).compile(saver)
    assert asked(await graph.ainvoke({}, "t")) == ["?"]
    assert await graph.ainvoke(Command(resume="x"), "t") == {"log": ["x"]}
    assert seen[0]["configurable"]["thread_id"] == "t"
    assert seen[0]["configurable"]["checkpoint_ns"].startswith("call:")
    assert seen[0]["configurable"].get("mine") == (1 if how == "own key" else None)


async def test_the_nodes_config_passed_on_by_a_task(saver: BaseCheckpointSaver) -> None:
    """The config of the node that has called a task names the same run: a graph that gets it is part of the task."""
    sub = chain(("ask", lambda state: {"log": [interrupt("?")]})).compile(blocking=False)

    @task
    async def work(config: Any) -> Any:
        return await sub.ainvoke({}, config)

    @task
    async def own(n: int, config: Any) -> Any:
        return await sub.ainvoke({}, config)

    async def call(state: Any, config: Any) -> Any:
        one, two = await work(config), await own(1)
        return {"log": one["log"] + two["log"]}

    graph = chain(("call", call)).compile(saver)
    assert asked(await graph.ainvoke({}, "t")) == ["?"]
    assert asked(await graph.ainvoke(Command(resume="x"), "t")) == ["?"]
    assert await graph.ainvoke(Command(resume="y"), "t") == {"log": ["x", "y"]}


async def test_a_thread_of_its_own(saver: BaseCheckpointSaver) -> None:
    """A graph that a node calls with a thread_id is a run of its own, in its own saver."""
    own = InMemorySaver()
    sub = counter(own)
    graph = chain(("call", calls(sub, config={"configurable": {"thread_id": "other"}}))).compile(saver)
    same = chain(("call", calls(sub, config="t"))).compile(saver)
    for n in (1, 2):
        assert (await graph.ainvoke({}, "t"))["log"][-1] == str(n)
    assert (await same.ainvoke({}, "t"))["log"][-1] == "1"
    assert (await sub.aget_state("other")).values == {"count": 2}
    assert (await sub.aget_state("t")).values == {"count": 1}
    assert [found async for found in saver.alist("other")] == []


async def test_a_thread_of_its_own_asks_for_itself(saver: BaseCheckpointSaver) -> None:
    """Its questions are in what it returns, and its answers come from the node."""
    sub = chain(("ask", lambda state: {"log": [interrupt("?")]})).compile(InMemorySaver(), blocking=False)

    async def call(state: Any) -> Any:
        assert asked(await sub.ainvoke({}, "own")) == ["?"]
        return await sub.ainvoke(Command(resume="x"), "own")

    graph = chain(("call", call)).compile(saver)
    assert await graph.ainvoke({}, "t") == {"log": ["x"]}


async def test_a_graphs_own_saver_counts_when_the_outer_has_none(switches: Switches) -> None:
    """A subgraph with a saver of its own is stored there when its parent stores nothing."""
    own = InMemorySaver()
    sub = counter(own)
    graph = chain(("call", calls(sub))).compile()
    assert (await graph.ainvoke({}, "t"))["log"] == ["1"]
    assert (await graph.ainvoke({}, "t"))["log"] == ["2"]
    assert (await sub.aget_state("t")).values == {"count": 2}
    with pytest.raises(ConfigError, match="thread"):
        await graph.ainvoke({})


async def test_a_question_of_a_graph_with_its_own_saver() -> None:
    """P8: its question is not lost: it stops the parent graph, and is answered where it is stored."""
    sub = chain(("ask", lambda state: {"log": [interrupt("?")]})).compile(InMemorySaver(), blocking=False)
    graph = chain(("sub", sub), ("after", lambda state: {"log": ["after"]})).compile(blocking=False)
    result = await graph.ainvoke({}, "t")
    assert asked(result) == ["?"]
    assert result["log"] == []
    assert await sub.ainvoke(Command(resume="x"), "t") == {"log": ["x"]}


async def test_a_graphs_own_saver_is_ignored_inside_a_stored_one(saver: BaseCheckpointSaver) -> None:
    """In a graph that stores its threads, everything is stored with it: one writer, one transaction."""
    own = InMemorySaver()
    graph = chain(("call", calls(counter(own)))).compile(saver)
    for _ in range(2):
        assert (await graph.ainvoke({}, "t"))["log"][-1] == "1"
    assert [found async for found in own.alist(None)] == []


async def test_inherited_settings(saver: BaseCheckpointSaver) -> None:
    """Context, store, tags, metadata, the user's own settings and max_concurrency reach all subgraphs."""
    seen: list[Any] = []

    async def look(state: Any) -> dict[str, Any]:
        config = get_config()
        seen.append(
            (
                get_runtime().context,
                get_store(),
                config["tags"],
                config["metadata"]["m"],
                config["configurable"]["mine"],
                config["max_concurrency"],
                config["run_id"],
            )
        )
        return {}

    middle = chain(("sub", chain(("look", look)).compile()), ("also", look)).compile()
    graph = chain(("middle", middle)).compile(saver, store="a store")
    config = {
        "configurable": {"thread_id": "t", "mine": 1},
        "tags": ["x"],
        "metadata": {"m": 1},
        "max_concurrency": 3,
        "run_id": "r",
    }
    await graph.ainvoke({}, config, context={"user": "u"})
    assert seen == [({"user": "u"}, "a store", ["x"], 1, 1, 3, "r")] * 2


async def test_max_concurrency_of_one_does_not_deadlock(saver: BaseCheckpointSaver) -> None:
    """A node that runs a graph does not occupy the slot that the graph's nodes need."""
    sub = chain(("x", lambda state: {"log": ["x"]})).compile()
    middle = chain(("sub", sub)).compile()
    graph = chain(("middle", middle)).compile(saver)
    with anyio.fail_after(30):
        result = await graph.ainvoke({}, {"max_concurrency": 1, "configurable": {"thread_id": "t"}})
    assert result == {"log": ["x"]}


async def test_the_recursion_limit_is_counted_per_graph(saver: BaseCheckpointSaver) -> None:
    """P14: a subgraph counts its own supersteps, with the limit of the call; RemainingSteps is its own."""

    class Left(TypedDict, total=False):
        log: Annotated[list[int], operator.add]
        left: RemainingSteps

    def look(state: Left) -> dict[str, Any]:
        return {"log": [state["left"]]}

    sub = chain(("a", look), ("b", look), ("c", look), schema=Left).compile(blocking=False)
    graph = chain(("one", sub), ("two", sub), schema=Left).compile(saver, blocking=False)
    limited = {"recursion_limit": 3, "configurable": {"thread_id": "t"}}
    assert await graph.ainvoke({}, limited) == {"log": [3, 2, 1, 3, 2, 1, 3, 2, 1]}
    limited = {"recursion_limit": 2, "configurable": {"thread_id": "u"}}
    with pytest.raises(GraphRecursionError) as caught:
        await graph.ainvoke({}, limited)
    assert any("'one'" in note for note in caught.value.__notes__)
    assert await graph.ainvoke(None, {"configurable": {"thread_id": "u"}}) != {}


async def test_true_keeps_the_state_from_call_to_call(saver: BaseCheckpointSaver) -> None:
    """With `checkpointer=True` the state accumulates: over loop iterations and over runs."""
    graph = (
        chain(("call", calls(counter(True))), ("more", lambda state: {}))
        .add_conditional_edges("more", lambda state: "call" if len(state["log"]) % 3 else END)
        .compile(saver, blocking=False)
    )
    assert (await graph.ainvoke({}, "t"))["log"] == ["1", "2", "3"]
    assert (await graph.ainvoke({}, "t"))["log"] == ["1", "2", "3", "4", "5", "6"]
    assert (await graph.ainvoke({}, "u"))["log"] == ["1", "2", "3"]
    assert (await graph.aget_state(at("call"))).values == {"count": 6}


async def test_true_as_a_node(saver: BaseCheckpointSaver) -> None:
    """`checkpointer=True` works for a graph as a node, too."""

    class Both(TypedDict, total=False):
        seen: Annotated[int, max]
        own: Annotated[int, operator.add]

    class In(TypedDict, total=False):
        pass

    sub = chain(("add", lambda state: {"own": 1}), ("see", lambda state: {"seen": state["own"]}), schema=Both).compile(
        True, blocking=False
    )

    class Outer(TypedDict, total=False):
        seen: Annotated[int, max]

    graph = chain(("sub", sub), schema=Outer).compile(saver)
    for n in (1, 2, 3):
        assert await graph.ainvoke({"seen": 0}, "t") == {"seen": n}


async def test_none_and_false_keep_nothing(saver: BaseCheckpointSaver) -> None:
    """With None and False every call starts from the beginning."""
    for checkpointer in (None, False):
        graph = chain(("call", calls(counter(checkpointer)))).compile(saver)
        for _ in range(3):
            assert (await graph.ainvoke({}, f"{checkpointer}"))["log"][-1] == "1"


async def test_false_stores_nothing(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """With False nothing of the subgraph is stored, nor of its own subgraphs; after a question it runs from its start,
    with the answers."""
    deep = chain(("b", switches.node("b"))).compile(True)
    sub = chain(("a", switches.node("a")), ("deep", deep), ("ask", switches.asks("ask"))).compile(False)
    graph = chain(("sub", sub)).compile(saver)
    assert asked(await graph.ainvoke({}, "t")) == ["ask"]
    assert {found.config["configurable"]["checkpoint_ns"] async for found in saver.alist("t")} == {""}
    (found,) = (await graph.aget_state("t", subgraphs=True)).tasks
    assert found.state is None
    assert list(graph.get_subgraphs(recurse=True)) == []
    assert (await graph.ainvoke(Command(resume="x"), "t"))["log"] == ["a", "a", "b", "ask:x"]
    assert switches.ran == {"a": 2, "b": 2, "ask": 2}


async def test_true_at_the_root() -> None:
    """`checkpointer=True` is for a subgraph: a graph called by itself with it is an error that says so."""
    with pytest.raises(ConfigError, match="saver"):
        await counter(True).ainvoke({}, "t")


async def test_true_without_a_saver_around() -> None:
    """When the parent stores nothing, no state is kept."""
    graph = chain(("call", calls(counter(True)))).compile()
    for _ in range(2):
        assert (await graph.ainvoke({}))["log"] == ["1"]


async def test_true_under_two_names_and_twice_in_one_node(saver: BaseCheckpointSaver) -> None:
    """A graph that keeps its state keeps one per place that it is called from."""
    kept = counter(True)

    async def twice(state: Any) -> dict[str, Any]:
        first = await kept.ainvoke({})
        second = await kept.ainvoke({"count": 10})
        return {"log": [str(first["count"]), str(second["count"])]}

    graph = chain(("one", calls(kept)), ("two", twice)).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["1", "1", "11"]
    assert (await graph.ainvoke({}, "t"))["log"][3:] == ["2", "2", "22"]
    for ns, count in (("one", 2), ("two", 2), ("two|1", 22)):
        assert (await graph.aget_state(at(ns))).values == {"count": count}


async def test_true_after_a_question_and_in_the_next_call(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """It continues from its last state, after a question too, its own or its node's."""
    kept = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile(True)

    async def call(state: Any) -> dict[str, Any]:
        log = (await kept.ainvoke({"log": ["in"]}))["log"]
        interrupt("after")
        return {"log": ["/".join(log)]}

    graph = (
        chain(("call", call), ("more", lambda state: {}))
        .add_conditional_edges("more", lambda state: "call" if len(state["log"]) < 2 else END)
        .compile(saver, blocking=False)
    )
    assert asked(await graph.ainvoke({}, "t")) == ["ask"]
    assert asked(await graph.ainvoke(Command(resume=1), "t")) == ["after"]
    assert asked(await graph.ainvoke(Command(resume=2), "t")) == ["ask"]
    assert asked(await graph.ainvoke(Command(resume=3), "t")) == ["after"]
    assert (await graph.ainvoke(Command(resume=4), "t"))["log"] == ["in/a/ask:1", "in/a/ask:1/in/a/ask:3"]
    assert switches.ran == {"a": 2, "ask": 4}


async def test_true_after_a_failure_of_its_node(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5: it keeps its position when its node failed after it had finished, and does not count twice."""
    kept = counter(True)

    async def call(state: Any) -> dict[str, Any]:
        found = await kept.ainvoke({})
        if "call" in switches.broken:
            raise Oops
        return {"log": [str(found["count"])]}

    graph = chain(("call", call)).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["1"]
    switches.broken = {"call"}
    for given in ({}, None):
        with pytest.raises(Oops):
            await graph.ainvoke(given, "t")
    switches.broken.clear()
    assert (await graph.ainvoke(None, "t"))["log"] == ["1", "2"]
    assert (await graph.ainvoke({}, "t"))["log"] == ["1", "2", "3"]


async def test_true_in_tasks_one_after_another(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5: tasks of one name that run it one after another share its state; a task that runs again continues from its
    own changes, and not from those of later tasks."""
    kept = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile(True)

    @task
    async def work(n: int) -> Any:
        return (await kept.ainvoke({"log": [f"{n}"]}))["log"]

    async def call(state: Any) -> dict[str, Any]:
        await work(1)
        return {"log": await work(2)}

    graph = chain(("call", call)).compile(saver)
    for _ in range(2):
        assert asked(await graph.ainvoke(None if switches.ran else {}, "t")) == ["ask"]
    assert asked(await graph.ainvoke(Command(resume=1), "t")) == ["ask"]
    assert await graph.ainvoke(Command(resume=2), "t") == {"log": ["1", "a", "ask:1", "2", "a", "ask:2"]}
    assert switches.ran["a"] == 2


async def test_true_in_many_sends(saver: BaseCheckpointSaver) -> None:
    """P2: two tasks of a superstep cannot share a kept state, on any schedule: that is refused, with the remedy."""
    graph = (
        StateGraph(State)
        .add_node("call", calls(counter(True)))
        .add_conditional_edges(START, lambda state: [Send("call", {}) for _ in range(3)], ["call"])
        .compile(saver, blocking=False)
    )
    one_at_once = {"max_concurrency": 1, "configurable": {"thread_id": "u"}}
    for given, config in (({}, "t"), (None, "t"), ({}, one_at_once)):
        with pytest.raises((InvalidUpdateError, ExceptionGroup)) as caught:
            await graph.ainvoke(given, config)
        errors = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
        assert all(isinstance(error, InvalidUpdateError) and "checkpointer=True" in str(error) for error in errors)


async def test_true_abandoned_by_its_node(saver: BaseCheckpointSaver) -> None:
    """When a node abandons a call, before the graph has begun or in the middle of it, the kept state is not lost."""
    kept = counter(True)

    async def call(state: Any) -> dict[str, Any]:
        if state.get("n") == 1:
            with anyio.move_on_after(0):
                await kept.ainvoke({})
            return {"log": ["gave up"]}
        return {"log": [str((await kept.ainvoke({}))["count"])]}

    graph = chain(("call", call)).compile(saver)
    assert (await graph.ainvoke({"n": 0}, "t"))["log"] == ["1"]
    assert (await graph.ainvoke({"n": 1}, "t"))["log"][-1] == "gave up"
    assert (await graph.ainvoke({"n": 0}, "t"))["log"][-1] == "2"


async def test_kept_inside_kept(saver: BaseCheckpointSaver) -> None:
    """A graph that keeps its state works inside one that does, and inside one that does not."""
    deep = counter(True)
    for checkpointer in (True, None):
        middle = chain(("call", calls(deep)), ("again", calls(deep))).compile(checkpointer)

        async def call(state: Any, middle: Any = middle) -> dict[str, Any]:
            return {"log": ["/".join((await middle.ainvoke({}))["log"])]}

        graph = chain(("outer", call)).compile(saver)
        thread = f"{checkpointer}"
        assert (await graph.ainvoke({}, thread))["log"] == ["1/1"]
        assert (await graph.ainvoke({}, thread))["log"][-1] == ("1/1/2/2" if checkpointer else "2/2")
        assert (await graph.aget_state(at("outer|call", thread))).values == {"count": 2}


async def test_kept_state_continued_without_an_input(saver: BaseCheckpointSaver) -> None:
    """A kept state can be continued without an input; a state that is not kept cannot."""
    kept = counter(True)

    async def call(state: Any) -> dict[str, Any]:
        return {"log": [str((await kept.ainvoke(None if state.get("n") else {}))["count"])]}

    graph = chain(("call", call)).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["1"]
    assert (await graph.ainvoke({"n": 1}, "t"))["log"] == ["1", "1"]
    with pytest.raises(EmptyInputError):
        await graph.ainvoke({"n": 1}, "u")


def three_levels(switches: Switches, checkpointer: Any = None) -> Any:
    low = chain(("la", switches.node("la")), ("lask", switches.asks("lask")), ("lb", switches.node("lb")))
    mid = chain(("ma", switches.node("ma")), ("low", low.compile(checkpointer)), ("mask", switches.asks("mask")))
    return chain(("ta", switches.node("ta")), ("mid", mid.compile(checkpointer)), ("task", switches.asks("task")))


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_questions_at_three_levels(saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any) -> None:
    """P5, P8: a question at any depth stops the run; the answer finds it; nothing that is recorded runs again."""
    graph = three_levels(switches, checkpointer).compile(saver)
    first = await graph.ainvoke({}, "t")
    assert asked(first) == ["lask"]
    again = await graph.ainvoke(None, "t")
    assert ids(again) == ids(first)
    state = await graph.aget_state("t", subgraphs=True)
    assert [found.value for found in state.interrupts] == ["lask"]
    assert (state.next, state_of_subgraph(state, "mid").next, state_of_subgraph(state, "mid", "low").next) == (
        ("mid",),
        ("low",),
        ("lask",),
    )
    assert state_of_subgraph(state, "mid", "low").values == {"log": ["ta", "ma", "la"]}
    assert [found.id for found in state_of_subgraph(state, "mid", "low").interrupts] == ids(first)
    assert asked(await graph.ainvoke(Command(resume={ids(first)[0]: 1}), "t")) == ["mask"]
    assert asked(await graph.ainvoke(Command(resume=2), "t")) == ["task"]
    await graph.ainvoke(Command(resume=3), "t")
    assert switches.ran == {"ta": 1, "ma": 1, "la": 1, "lask": 3, "lb": 1, "mask": 2, "task": 2}


async def test_answers_to_some_of_the_graphs_at_once(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P8: when several graphs ask at once, nested ones too, some may be answered: the others keep asking, with the same
    ids, and do not run."""
    pair = StateGraph(State)
    for name in "xy":
        pair.add_node(name, chain(("ask", switches.asks(name))).compile()).add_edge(START, name)
    graph = (
        StateGraph(State).add_node("pair", pair.compile()).add_node("z", chain(("ask", switches.asks("z"))).compile())
    )
    built = graph.add_edge(START, "pair").add_edge(START, "z").compile(saver)
    first = await built.ainvoke({}, "t")
    assert asked(first) == ["x", "y", "z"]
    by = dict(zip(asked(first), ids(first), strict=True))
    second = await built.ainvoke(Command(resume={by["y"]: 0}), "t")
    assert dict(zip(asked(second), ids(second), strict=True)) == {"x": by["x"], "z": by["z"]}
    assert switches.ran == {"x": 1, "y": 2, "z": 1}
    state = await built.aget_state("t", subgraphs=True)
    assert [found.value for found in state.interrupts] == ["x", "z"]
    assert [found.value for found in state_of_subgraph(state, "pair").interrupts] == ["x"]
    third = await built.ainvoke(Command(resume={by["z"]: False}), "t")
    assert ids(third) == [by["x"]]
    result = await built.ainvoke(Command(resume="last"), "t")
    assert sorted(result["log"]) == ["x:last", "y:0", "z:False"]
    assert switches.ran == {"x": 2, "y": 2, "z": 2}


async def test_a_breakpoint_in_a_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A subgraph that stops at a breakpoint stops the run; with input None everything continues."""
    sub = chain(("a", switches.node("a")), ("b", switches.node("b"))).compile(interrupt_before=["b"])
    graph = chain(("sub", sub), ("c", switches.node("c"))).compile(saver)
    await graph.ainvoke({}, "t")
    state = await graph.aget_state("t", subgraphs=True)
    assert (state.next, state_of_subgraph(state, "sub").next) == (("sub",), ("b",))
    assert (await graph.ainvoke(None, "t"))["log"] == ["a", "b", "c"]
    assert switches.ran == {"a": 1, "b": 1, "c": 1}


async def test_a_failure_in_a_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5, P9: a failure in a subgraph is raised as it is, with a note for each enclosing graph; the resume runs only
    tasks without a result."""
    sub = chain(("a", switches.node("a")), ("b", switches.node("b"))).compile()
    mid = chain(("m", switches.node("m")), ("sub", sub)).compile()
    graph = chain(("mid", mid), ("c", switches.node("c"))).compile(saver)
    switches.broken = {"b"}
    with pytest.raises(Oops) as caught:
        await graph.ainvoke({}, "t")
    assert [name for note in caught.value.__notes__ for name in ("'b'", "'sub'", "'mid'") if name in note] == [
        "'b'",
        "'sub'",
        "'mid'",
    ]
    state = await graph.aget_state("t", subgraphs=True)
    deep = state_of_subgraph(state, "mid", "sub")
    assert deep.next == ("b",)
    assert deep.tasks[0].error is not None
    switches.broken.clear()
    await graph.ainvoke(None, "t")
    assert switches.ran == {"m": 1, "a": 1, "b": 2, "c": 1}


async def test_a_failure_of_the_node_after_the_graph_finished(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5: a graph that finished does not run again when its node fails after it."""
    sub = chain(("a", switches.node("a"))).compile()

    async def call(state: Any) -> Any:
        result = await sub.ainvoke({})
        if "call" in switches.broken:
            raise Oops
        return result

    graph = chain(("call", call)).compile(saver)
    switches.broken = {"call"}
    for given in ({}, None, None):
        with pytest.raises(Oops):
            await graph.ainvoke(given, "t")
    switches.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a"]}
    assert switches.ran == {"a": 1}


async def test_a_failure_of_a_sibling(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5, P9: a graph that is cancelled because a sibling of its node failed continues from where it was."""
    done = anyio.Event()

    async def slow(state: Any) -> dict[str, Any]:
        switches.ran["slow"] += 1
        done.set()
        if switches.broken:
            await anyio.sleep_forever()
        return {"log": ["slow"]}

    async def fails(state: Any) -> dict[str, Any]:
        await done.wait()
        if switches.broken:
            raise Oops
        return {}

    sub = chain(("a", switches.node("a")), ("slow", slow)).compile()
    graph = StateGraph(State).add_node("sub", sub).add_node("fails", fails)
    built = graph.add_edge(START, "sub").add_edge(START, "fails").compile(saver)
    switches.broken = {"fails"}
    with pytest.raises(Oops):
        await built.ainvoke({}, "t")
    switches.broken.clear()
    assert await built.ainvoke(None, "t") == {"log": ["a", "slow"]}
    assert switches.ran == {"a": 1, "slow": 2}


async def test_a_new_input_begins_anew(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A new input discards pending work, in the subgraph too: the graph runs from its start."""
    sub = chain(("a", switches.node("a")), ("b", switches.node("b"))).compile()
    graph = chain(("sub", sub)).compile(saver)
    switches.broken = {"b"}
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    switches.broken.clear()
    assert (await graph.ainvoke({}, "t"))["log"] == ["a", "b"]
    assert switches.ran == {"a": 2, "b": 2}


async def test_cancelled(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P7, P5: a run that is cancelled while a subgraph runs has ended with all its tasks, and a resume
    continues there."""
    begun, ended = anyio.Event(), []

    async def slow(state: Any) -> dict[str, Any]:
        if not begun.is_set():
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(True)
        return {"log": ["slow"]}

    sub = chain(("a", switches.node("a")), ("slow", slow)).compile()
    graph = chain(("mid", chain(("sub", sub)).compile())).compile(saver)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await graph.ainvoke({}, "t")

        scopes: list[anyio.CancelScope] = []
        group.start_soon(run)
        await begun.wait()
        scopes[0].cancel()
    assert ended == [True]
    assert await graph.ainvoke(None, "t") == {"log": ["a", "slow"]}
    assert switches.ran == {"a": 1}


async def test_the_state_through_the_parent(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A task's `state` is the config of the graph that it runs, or the graph's snapshot."""
    graph = three_levels(switches).compile(saver)
    await graph.ainvoke({}, "t")
    (found,) = (await graph.aget_state("t")).tasks
    assert isinstance(found.state, dict)
    assert found.state["configurable"] == {"thread_id": "t", "checkpoint_ns": f"mid:{found.id}"}
    middle = await graph.aget_state(found.state)
    (deep,) = middle.tasks
    assert isinstance(deep.state, dict)
    assert deep.state["configurable"]["checkpoint_ns"] == f"mid:{found.id}|low:{deep.id}"
    low = await graph.aget_state(deep.state)
    whole = await graph.aget_state("t", subgraphs=True)
    assert state_of_subgraph(whole, "mid", "low") == low
    assert (low.next, low.values) == (("lask",), {"log": ["ta", "ma", "la"]})
    assert low.metadata is not None
    assert low.metadata["parents"] == {
        "": whole.config["configurable"]["checkpoint_id"],
        f"mid:{found.id}": middle.config["configurable"]["checkpoint_id"],
    }
    assert low.config["configurable"]["checkpoint_map"] == {
        **low.metadata["parents"],
        f"mid:{found.id}|low:{deep.id}": low.config["configurable"]["checkpoint_id"],
    }
    steps = [state.values["log"] for state in await history(graph, deep.state)]
    assert steps == [["ta", "ma", "la"], ["ta", "ma"], []]


async def test_snapshots_hold_data_only(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """No live object leaks into a config."""
    graph = three_levels(switches).compile(saver)
    await graph.ainvoke({}, "t")
    low = state_of_subgraph(await graph.aget_state("t", subgraphs=True), "mid", "low")
    assert msgspec.json.decode(msgspec.json.encode(low.config)) == low.config
    assert set(low.config["configurable"]) == {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"}


async def test_a_finished_tasks_graph_in_history(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """The `state` of a finished task is the config of its graph's last state; it can be read, and run from."""
    sub = chain(("a", switches.node("a"))).compile(True)
    graph = chain(("sub", sub), ("b", switches.node("b"))).compile(saver)
    for _ in range(2):
        await graph.ainvoke({}, "t")
    runs = [one for state in await history(graph) for one in state.tasks if one.name == "sub"]
    seen = []
    for one in runs:
        assert isinstance(one.state, dict)
        seen.append((await graph.aget_state(one.state)).values["log"])
    assert seen == [["a", "a", "b", "a"], ["a"]]


async def test_a_kept_state_in_a_snapshot_of_the_past(saver: BaseCheckpointSaver) -> None:
    """A snapshot of the past shows a kept state of the same moment."""
    graph = chain(("call", calls(counter(True)))).compile(saver)
    for _ in range(3):
        await graph.ainvoke({}, "t")
    shown = [one.state for state in await history(graph) for one in state.tasks if one.name == "call"]
    assert [(await graph.aget_state(config)).values for config in shown if isinstance(config, dict)] == [
        {"count": 3},
        {"count": 2},
        {"count": 1},
    ]


async def test_unknown_subgraphs(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A namespace that no node's graph has is an error that says so."""
    graph = three_levels(switches).compile(saver)
    await graph.ainvoke({}, "t")
    for ns in ("ta", "no", "mid|no", "mid:x|low:y|z"):
        with pytest.raises(SubgraphNotFoundError, match=ns.rpartition("|")[2].partition(":")[0]):
            await graph.aget_state(at(ns))
        with pytest.raises(SubgraphNotFoundError):
            await history(graph, at(ns))


async def test_a_subgraph_with_nothing_stored(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """The state of a graph that has not run is empty; an unknown checkpoint of it is an error."""
    graph = three_levels(switches).compile(saver)
    empty = await graph.aget_state(at("mid"))
    assert (empty.values, empty.next, empty.metadata) == ({}, (), None)
    with pytest.raises(CheckpointNotFoundError):
        await graph.aget_state({"configurable": {**at("mid")["configurable"], "checkpoint_id": "x"}})


GLOBAL = chain(("g", lambda state: {}), ("h", lambda state: {})).compile(name="global")


class Holder:
    """Holds a graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    async def call(self, state: Any) -> Any:
        return await self.graph.ainvoke(state)

    async def __call__(self, state: Any) -> Any:
        return await self.graph.ainvoke(state)


def found_in(node: Any) -> list[str]:
    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    return [inner.name for _, inner in graph.get_subgraphs()]


def test_discovery() -> None:
    """Graphs are found in closures, globals, defaults, attributes, methods, partials, tasks, and in the functions that
    these name."""
    sub = chain(("x", lambda state: {})).compile(name="mine")
    holder = Holder(sub)

    async def closure(state: Any) -> Any:
        return await sub.ainvoke(state)

    async def environment(state: Any) -> Any:
        return await GLOBAL.ainvoke(state)

    async def default(state: Any, *, graph: Any = sub) -> Any:
        return await graph.ainvoke(state)

    async def attribute(state: Any) -> Any:
        return await holder.graph.ainvoke(state)

    async def with_argument(graph: Any, state: Any) -> Any:
        return await graph.ainvoke(state)

    async def deeper(state: Any) -> Any:
        return await closure(state)

    async def nested(state: Any) -> Any:
        async def inner() -> Any:
            async def innermost() -> Any:
                return await holder.graph.ainvoke(state)

            return await innermost()

        return await inner()

    @task
    async def work(state: Any) -> Any:
        return await sub.ainvoke(state)

    async def tasked(state: Any) -> Any:
        return await work(state)

    assert found_in(sub) == ["mine"]
    assert found_in(closure) == ["mine"]
    assert found_in(environment) == ["global"]
    assert found_in(default) == ["mine"]
    assert found_in(attribute) == ["mine"]
    assert found_in(holder.call) == ["mine"]
    assert found_in(holder) == ["mine"]
    assert found_in(Holder([sub]).call) == ["mine"]
    assert found_in(functools.partial(with_argument, sub)) == ["mine"]
    assert found_in(functools.partial(closure)) == ["mine"]
    assert found_in(deeper) == ["mine"]
    assert found_in(nested) == ["mine"]
    assert found_in(tasked) == ["mine"]
    assert found_in(lambda state: {}) == []


def test_discovery_of_two_callable_objects() -> None:
    """Each of several called objects is searched."""

    class Nothing:
        def __call__(self, state: Any) -> None: ...

    nothing, holder = Nothing(), Holder(chain(("x", lambda state: {})).compile(name="mine"))

    async def both(state: Any) -> Any:
        nothing(state)
        return await holder(state)

    for _ in range(10):
        assert found_in(both) == ["mine"]


def test_get_subgraphs(switches: Switches) -> None:
    """There is one path for each node that runs a graph; with `recurse` those of nested subgraphs too; a namespace
    selects some."""
    graph = three_levels(switches).compile()

    def names(**how: Any) -> list[str]:
        return [path for path, _ in graph.get_subgraphs(**how)]

    assert names() == ["mid"]
    assert names(recurse=True) == ["mid", "mid|low"]
    assert names(namespace="mid") == ["mid"]
    assert names(namespace="mid|low", recurse=True) == ["mid|low"]
    assert names(namespace="low", recurse=True) == []


async def test_aget_subgraphs(switches: Switches) -> None:
    """The same, asynchronously."""
    graph = three_levels(switches).compile()
    assert [path async for path, _ in graph.aget_subgraphs(recurse=True)] == ["mid", "mid|low"]


class Crash:
    """A saver that fails from its n-th write on, before or after that one is stored."""

    def __init__(self, saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.after, self.writes = 0, False, 0
        for verb in ("commit", "record"):
            monkeypatch.setattr(saver, verb, self.around(getattr(saver, verb)))

    def around(self, write: Any) -> Any:
        async def crashing(*args: Any, **kwargs: Any) -> None:
            self.writes += 1
            if self.at and self.writes >= self.at + self.after:
                raise StorageError("crashed")
            await write(*args, **kwargs)
            if self.writes == self.at:
                raise StorageError("crashed after it was stored")

        return crashing


async def run_to_end(graph: Any, thread: str) -> Any:
    """Run a thread to its end, with as many calls as it takes."""
    while True:
        state = await graph.aget_state(thread)
        if state.metadata is not None and not state.next:
            return state.values
        await graph.ainvoke({} if state.metadata is None else Command(resume="x") if state.interrupts else None, thread)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_every_save(
    saver: BaseCheckpointSaver, switches: Switches, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """P4, P5: whichever write fails, the resumed run gives the undisturbed result, and no recorded work of a subgraph
    runs again: not a node, not a task, not a command for the parent, not a kept state's call."""

    def add(state: Any) -> dict[str, Any]:
        switches.ran["add"] += 1
        return {"count": 1}

    kept = chain(("add", add), schema=Count).compile(True, blocking=False)
    low = chain(("la", switches.node("la")), ("lask", switches.asks("lask")), ("lb", switches.node("lb"))).compile()

    @task
    async def work(n: int) -> str:
        return str((await kept.ainvoke({}))["count"])

    async def mid(state: Any) -> dict[str, Any]:
        first = await work(1)
        log = (await low.ainvoke({}))["log"]
        return {"log": [first, *log, str((await kept.ainvoke({}))["count"]), await work(2)]}

    def up(state: Any) -> Command:
        switches.ran["up"] += 1
        return Command(graph=Command.PARENT, goto="there", update={"log": ["up"]})

    leaves = chain(("ua", switches.node("ua")), ("up", up)).compile(blocking=False)
    made = chain(("a", switches.node("a")), ("mid", mid), ("leaves", leaves)).add_node("there", switches.node("there"))
    graph = made.add_edge("there", "again").add_node("again", mid).compile(saver)
    crash = Crash(saver, monkeypatch)
    crash.after = after
    expected = await run_to_end(graph, "undisturbed")
    undisturbed, writes = switches.ran.copy(), crash.writes
    assert expected["log"][:7] == ["a", "1", "la", "lask:x", "lb", "1", "2"]
    for at in range(1, writes + 1):
        crash.at, crash.writes = at, 0
        switches.ran.clear()
        with pytest.raises(StorageError):
            await run_to_end(graph, f"{at}")
        crash.at = 0
        assert await run_to_end(graph, f"{at}") == expected
        again = switches.ran - undisturbed
        del again["lask"]  # the question was not returned: it is asked again
        assert sum(again.values()) <= (0 if after else 1), (at, again)
