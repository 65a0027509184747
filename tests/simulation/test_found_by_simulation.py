"""What simulations have found, each as the small scene that it came down to."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def test_a_command_for_the_graph_outside_whose_router_fails() -> None:
    """P3: a node inside gives a command for the graph around it, and its async router fails. The command is recorded, and
    resume runs the router alone: the command still reaches the graph around. (Seed 4583: it was folded inside.)"""
    ran: list[str] = []

    def leaves(state: State) -> Command:
        ran.append("leaves")
        return Command(graph=Command.PARENT, update={"log": ["from inside"]})

    async def route(state: State) -> Any:
        ran.append("route")
        if ran.count("route") == 1:
            raise ConnectionError("once")
        return []

    inner = StateGraph(State).add_node(leaves).add_edge(START, "leaves")
    inner.add_conditional_edges("leaves", route)
    outer = StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner")
    graph = outer.compile(checkpointer=InMemorySaver())
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"log": ["in"]}, "t")
    assert await graph.ainvoke(None, "t") == {"log": ["in", "from inside"]}
    assert ran == ["leaves", "route", "route"]
