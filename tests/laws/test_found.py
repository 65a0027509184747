"""What the laws have found, each as small as it gets."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def counter() -> Any:
    """A graph that counts how often it was run."""
    return (
        StateGraph(State)
        .add_node("count", lambda state: {"log": [f"run {len(state.get('log', ()))}"]})
        .add_edge(START, "count")
        .compile(checkpointer=True)
    )


async def test_a_kept_state_stays_when_a_sibling_asks() -> None:
    """P5: a graph that keeps its state, and finished beside a node that asked, has it in the next call."""
    kept = counter()

    async def inner(state: State) -> State:
        return {"log": [f"{len((await kept.ainvoke({'log': []}))['log'])} inside"]}

    def ask(state: State) -> State:
        return {"log": [interrupt("what?")]}

    graph = (
        StateGraph(State)
        .add_node("ask", ask)
        .add_node("inner", inner)
        .add_edge(START, "ask")
        .add_edge(START, "inner")
        .compile(checkpointer=InMemorySaver())
    )
    await graph.ainvoke({"log": []}, "t")
    await graph.ainvoke(Command(resume="one"), "t")
    await graph.ainvoke({"log": []}, "t")
    assert (await graph.ainvoke(Command(resume="two"), "t"))["log"] == ["one", "1 inside", "two", "2 inside"]


async def test_a_new_input_discards_what_a_kept_state_did_in_the_open_superstep() -> None:
    """P3: a kept graph's run in a superstep that a new input discards has moved nothing."""
    kept = counter()

    async def inner(state: State) -> State:
        return {"log": [f"{len((await kept.ainvoke({'log': []}))['log'])} inside"]}

    def ask(state: State) -> State:
        return {"log": [interrupt("what?")]}

    graph = (
        StateGraph(State)
        .add_node("ask", ask)
        .add_node("inner", inner)
        .add_edge(START, "ask")
        .add_edge(START, "inner")
        .compile(checkpointer=InMemorySaver())
    )
    await graph.ainvoke({"log": []}, "t")
    await graph.ainvoke({"log": ["again"]}, "t")
    assert (await graph.ainvoke(Command(resume="one"), "t"))["log"] == ["again", "one", "1 inside"]
