"""Runs of graphs with states of one bare value, overwrites and batch reducers."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import END, START, Send, StateGraph
from pregel_async.channels import DeltaChannel
from pregel_async.errors import InvalidInputError, InvalidUpdateError
from pregel_async.types import Overwrite

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def chain(kind: Any, *nodes: Any, saver: Any = None, **settings: Any) -> Any:
    made = StateGraph(kind, **settings).add_sequence(list(nodes)).add_edge(START, nodes[0].__name__)
    return made.compile(saver, blocking=False)


def plus_one(state: int) -> int:
    return state + 1


def says_nothing(state: Any) -> None:
    return None


async def test_a_root_is_bare_everywhere(saver: BaseCheckpointSaver) -> None:
    """A root is bare in node inputs and results, call inputs and results, streams and storage; None writes nothing."""
    graph = chain(int, plus_one, says_nothing, saver=saver)
    assert await graph.ainvoke(1, "t") == 2
    assert (await graph.aget_state("t")).values == 2
    assert await graph.ainvoke(5, "t") == 6
    values = [chunk async for chunk in graph.astream(1, "u", stream_mode="values")]
    assert values[-1] == 2
    updates = [chunk async for chunk in graph.astream(1, "v", stream_mode="updates")]
    assert updates == [{"plus_one": 2}, {"says_nothing": None}]
    with pytest.raises(InvalidInputError, match="the graph takes int"):
        await graph.ainvoke("one", "w")


async def test_a_root_with_a_reducer_and_routers(saver: BaseCheckpointSaver) -> None:
    """Parallel nodes fold into a root and routers see it bare; an input is folded, an overwrite replaces it."""
    seen: list[Any] = []

    def a(state: list[str]) -> list[str]:
        return ["a"]

    def b(state: list[str]) -> list[str]:
        return ["b"]

    def again(state: list[str]) -> Any:
        seen.append(state)
        return Send("sent", "x")

    def sent(arg: str) -> list[str]:
        return [arg]

    made = StateGraph(Annotated[list, operator.add])
    for node in (a, b, sent):
        made.add_node(node)
    made.add_edge(START, "a").add_edge(START, "b").add_conditional_edges("b", again)
    graph = made.compile(saver, blocking=False)
    assert await graph.ainvoke(["in"], "t") == ["in", "a", "b", "x"]
    assert seen == [["in", "b"]]
    assert await graph.ainvoke(Overwrite(["anew"]), "t") == ["anew", "a", "b", "x"]


async def test_a_dict_as_a_root() -> None:
    """A node's result replaces a dict root as a whole; its elements are isolated like any value's."""

    def adds(state: dict[str, Any]) -> dict[str, Any]:
        state["list"].append(1)
        return {"given": state}

    given: dict[str, Any] = {"list": []}
    assert await chain(dict, adds).ainvoke(given) == {"given": {"list": [1]}}
    assert given == {"list": []}


async def forgotten(state: int) -> int:
    return 1


async def test_a_forgotten_await() -> None:
    """A forgotten awaitable is refused as a value of a root."""
    left: list[Any] = []

    def returns_it(state: int) -> Any:
        async def inner() -> Any:
            left.append(forgotten(state))
            return left[0]

        return inner()

    with pytest.raises(InvalidUpdateError, match="await"):
        await chain(int, returns_it).ainvoke(1)
    left[0].close()


class State(TypedDict):
    log: Annotated[list[Any], operator.add]
    batch: Annotated[list[Any], DeltaChannel(lambda current, updates: (current.extend(*updates), current)[1])]


async def test_an_overwrite_from_a_node(saver: BaseCheckpointSaver) -> None:
    """The stream shows the overwrite and the state has its value; it is recorded, stored and read back like any
    update."""

    def a(state: State) -> Any:
        return {"log": ["a"], "batch": [{"a": 1}]}

    def b(state: State) -> Any:
        return {"log": Overwrite(["b"])}

    made = (
        StateGraph(State)
        .add_node(a)
        .add_node(b)
        .add_edge(START, "a")
        .add_edge(START, "b")
        .add_conditional_edges("b", lambda state: END)
    )
    graph = made.compile(saver, blocking=False)
    chunks = [chunk async for chunk in graph.astream({"log": ["in"]}, "t", stream_mode="updates")]
    assert {"b": {"log": Overwrite(["b"])}} in chunks
    assert (await graph.aget_state("t")).values == {"log": ["b"], "batch": [{"a": 1}]}
    assert await graph.ainvoke({"log": Overwrite([]), "batch": [{"x": 1}]}, "t") == {
        "log": ["b"],
        "batch": [{"a": 1}, {"x": 1}, {"a": 1}],
    }

    def fails(state: State) -> Any:
        raise LookupError

    made = (
        StateGraph(State).add_node("b", b).add_node("z", fails, defer=False).add_edge(START, "b").add_edge(START, "z")
    )
    failing = made.compile(saver, blocking=False)
    with pytest.raises(LookupError):
        await failing.ainvoke({"log": ["in"]}, "f")
    results = {task.name: task.result for task in (await failing.aget_state("f")).tasks}
    assert results == {"b": {"log": Overwrite(["b"])}, "z": None}


async def test_router_sees_an_overwrite() -> None:
    """A router sees its own node's overwrite, in any spelling, folded as the barrier will fold it."""
    seen: list[Any] = []

    def b(state: State) -> Any:
        return {"log": {"__overwrite__": ["b"]}}

    made = (
        StateGraph(State)
        .add_node(b)
        .add_edge(START, "b")
        .add_conditional_edges("b", lambda s: (seen.append(s["log"]), END)[1])
    )
    await made.compile(blocking=False).ainvoke({"log": ["in"]})
    assert seen == [["b"]]


class Page(TypedDict, Generic[T]):
    item: T
    log: Annotated[list[T], operator.add]


async def test_a_node_annotated_with_the_states_class() -> None:
    """A node annotated with the state's class, with or without arguments, gets the state; in a graph of one value every
    node does."""

    def bare(state: Page) -> None:
        return None

    def given(state: Page[int]) -> None:
        return None

    made = StateGraph(Page[int]).add_node(bare).add_node(given)
    assert made.nodes["bare"].input is made.nodes["given"].input is made.state_schema

    def keyed(state: State) -> None:
        return None

    rooted = StateGraph(dict).add_node(keyed)
    assert rooted.nodes["keyed"].input is rooted.state_schema
