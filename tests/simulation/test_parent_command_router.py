"""A parent command of a node whose async router fails: the smallest case of a defect that a simulation has found."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def test_a_parent_command_survives_its_routers_failure() -> None:
    """P3: a subgraph's node returns a parent command, and its async router fails. The command is recorded, and a resume
    runs only the router: the command still reaches the parent graph. (Seed 4583: the command was folded inside.)"""
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
