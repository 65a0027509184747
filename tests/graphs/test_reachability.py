"""Compiling a graph warns about unreachable nodes, where they can be known."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypedDict

import pytest

from pregel_async import END, START, Command, NodeError, Send, StateGraph, entrypoint
from pregel_async.errors import UnreachableNodeWarning

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int


async def node(state: State) -> State:
    return {}


def unannotated(state):
    return {}


def returns(hint: Any) -> Callable[[State], Any]:
    async def call(state: State) -> Any: ...

    call.__annotations__["return"] = hint
    return call


def lost(builder: StateGraph[Any]) -> tuple[str, ...]:
    """Return the nodes that a warning names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        builder.compile(name="shop")
    found = [each.message for each in caught if isinstance(each.message, UnreachableNodeWarning)]
    assert len(found) == len(caught) <= 1
    if not found:
        return ()
    assert found[0].graph == "shop" and "graph 'shop' never runs" in str(found[0])
    assert caught[0].filename == __file__
    return found[0].nodes


def graph(first: Any = node, *, more: Sequence[str] = ("left",), **options: Any) -> StateGraph[Any]:
    """START -> first, and unreachable nodes."""
    made = StateGraph(State).add_node("first", first, **options).add_edge(START, "first")
    for name in more:
        made.add_node(name, node)
    return made


def test_unreachable_nodes_are_named() -> None:
    """One warning names all unreachable nodes, including those reachable only from another unreachable node."""
    assert lost(graph(more=())) == ()
    assert lost(graph(more=("left", "behind")).add_edge("left", "behind")) == ("left", "behind")
    assert lost(graph().add_edge("left", "first").add_edge("left", END)) == ("left",)
    assert lost(graph().add_edge("first", "left")) == ()


def test_waiting_edges_lead_on_when_all_starts_are_reached() -> None:
    made = graph(more=("second", "joined", "after")).add_edge(["first", "second"], "joined").add_edge("joined", "after")
    assert lost(made) == ("second", "joined", "after")
    assert lost(made.add_edge("first", "second")) == ()


def test_conditional_edges() -> None:
    """A path map lists the destinations of a conditional edge; without one every node counts as a destination."""
    assert lost(graph(more=("a", "b")).add_conditional_edges("first", unannotated, ["a"])) == ("b",)
    assert lost(graph(more=("a", "b")).add_conditional_edges("first", unannotated, {True: "a", False: "b"})) == ()
    assert lost(graph(more=("a", "b")).add_conditional_edges("a", unannotated)) == ()
    assert lost(graph(more=("a", "b")).add_conditional_edges("first", returns(Literal["b"]))) == ("a",)


@pytest.mark.parametrize(
    "hint",
    [
        None,
        State,
        dict[str, Any],
        Annotated[State | None, "note"],
        list[State],
        Awaitable[State],
        str,
        tuple[State, ...],
    ],
    ids=str,
)
def test_code_that_returns_no_command(hint: Any) -> None:
    assert lost(graph(returns(hint))) == ("left",)


@pytest.mark.parametrize(
    "hint",
    [
        Any,
        object,
        Command,
        Command[str],
        State | Command,
        Awaitable[Command | None],
        list[Command | State],
        Sequence[Any],
        list,
        Send,
        Annotated[Command, "note"],
        "Nowhere",
    ],
    ids=str,
)
def test_code_that_may_return_a_command(hint: Any) -> None:
    """A node that may return a command may lead anywhere, unless its annotation lists the destinations."""
    assert lost(graph(returns(hint))) == ()
    assert lost(graph(returns(hint), destinations=["first"])) == ("left",)


def test_code_without_an_annotation_may_return_a_command() -> None:
    assert lost(graph(unannotated)) == ()
    assert lost(graph(lambda state: {})) == ()
    assert lost(graph(unannotated, destinations=["left"])) == ()
    assert lost(graph(unannotated, destinations=["first"])) == ("left",)


def test_declared_commands() -> None:
    assert lost(graph(returns(Command[Literal["left"]]))) == ()
    assert lost(graph(returns(State | Command[Literal["first"]]))) == ("left",)


def test_error_handlers() -> None:
    """Commands of error handlers count like their nodes', those of the default handler too."""

    async def annotated(state: State, error: NodeError) -> State:
        return {}

    async def goes(state: State, error: NodeError) -> Command[Literal["left"]]:
        return Command(goto="left")

    assert lost(graph(error_handler=annotated)) == ("left",)
    assert lost(graph(error_handler=unannotated)) == ()
    assert lost(graph(error_handler=goes)) == ()
    assert lost(graph().set_node_defaults(error_handler=unannotated)) == ()


def test_subgraphs() -> None:
    """A subgraph may command its parent if its code may return commands."""
    plain = graph(more=()).compile()
    leaves = graph(returns(Command), more=()).compile()
    names = graph(returns(Command[Literal["left"]]), more=()).compile()
    deep = graph(leaves, more=()).compile()

    @entrypoint()
    async def workflow(given: int) -> None: ...

    async def calls(state: State) -> State:
        await leaves.ainvoke(state)
        return {}

    assert lost(graph(plain)) == ("left",)
    for inside in (leaves, names, deep, workflow, calls):
        assert lost(graph(inside)) == ()
        assert lost(graph(inside, destinations=["first"])) == ("left",)
