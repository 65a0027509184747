"""Past states of a subgraph that keeps its state between calls (`checkpointer=True`) can be forked, wherever the
thread's head is."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, Overwrite, StateGraph, interrupt
from pregel_async.errors import InvalidUpdateError
from tests.helpers.each_saver import SAVERS, Open, opener

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Own(TypedDict, total=False):
    own: Annotated[list[str], operator.add]


@pytest.fixture(params=SAVERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with opener(request.param, tmp_path) as opens:
        yield opens


def persistent_subgraph() -> StateGraph[Own]:
    """A graph whose second node asks a question with its state as the value."""

    async def first(state: Own) -> Own:
        return {"own": ["first"]}

    async def second(state: Own) -> Own:
        return {"own": [interrupt(list(state["own"]))]}

    made = StateGraph(Own).add_node("first", first).add_node("second", second)
    return made.add_edge(START, "first").add_edge("first", "second")


def nested(saver: Any, around: tuple[bool | None, ...]) -> tuple[Any, str]:
    """Nest the graph in further graphs; return the root graph and the innermost namespace.

    Args:
        around: the `checkpointer` of each graph between it and the root, innermost first.
    """
    graph: Any = persistent_subgraph().compile(checkpointer=True, name="kept")

    def calls(subgraph: Any) -> Any:
        async def call(state: State) -> State:
            await subgraph.ainvoke({"own": ["call"]} if subgraph.name == "kept" else {})
            return {"log": ["called"]}

        return call

    for checkpointer in (*around, saver):
        made = StateGraph(State).add_node("call", calls(graph)).add_edge(START, "call")
        graph = made.compile(checkpointer, name="around")
    return graph, "|".join(["call"] * (len(around) + 1))


async def past_of(graph: Any, place: Any) -> Any:
    """The config of the oldest checkpoint before the second node."""
    return [each async for each in graph.aget_state_history(place) if each.next == ("second",)][-1].config


async def everything(graph: Any) -> list[Any]:
    """The thread's history, without the newest checkpoints of its subgraphs."""
    shown = [snapshot async for snapshot in graph.aget_state_history("t")]
    return [
        (
            each.config,
            each.values,
            each.next,
            each.metadata,
            each.interrupts,
            [(task.id, task.result) for task in each.tasks],
        )
        for each in shown
    ]


@pytest.mark.parametrize("around", [(), (None,), (True, True)], ids=repr)
async def test_editing_the_past_during_an_open_superstep(opened: Open, around: tuple[bool | None, ...]) -> None:
    """P2: an edit of a past state starts a branch at the root checkpoint that the config names, as a replay of that
    checkpoint does. The head, its question and its records are unchanged."""
    async with opened() as saver:
        graph, ns = nested(saver, around)
        place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ns}}
        await graph.ainvoke({}, "t")
        await graph.ainvoke(Command(resume="one"), "t")
        past = await past_of(graph, place)
        (asked,) = (await graph.ainvoke(None, past))["__interrupt__"]
        assert asked.value == ["call", "first"]
        before = await everything(graph)

        forked = await graph.aupdate_state(past, {"own": Overwrite(["edited"])}, as_node="first")
        assert forked["configurable"]["checkpoint_map"][""] == past["configurable"]["checkpoint_map"][""]
        assert (await graph.aget_state(forked)).values == {"own": ["edited"]}
        assert await everything(graph) == before

        # The head continues from its own state, and the branch from the edited one.
        assert (await graph.ainvoke(Command(resume="two"), "t"))["log"] == ["called"]
        assert (await graph.aget_state(place)).values == {"own": ["call", "first", "two"]}
        (asked,) = (await graph.ainvoke(None, forked))["__interrupt__"]
        assert asked.value == ["edited"]
        await graph.ainvoke(Command(resume="three"), "t")
        assert (await graph.aget_state(place)).values == {"own": ["edited", "three"]}
        await graph.ainvoke({}, "t")
        (asked,) = (await graph.aget_state("t")).interrupts
        assert asked.value == ["edited", "three", "call", "first"]


@pytest.mark.parametrize("around", [(), (None,), (True, True)], ids=repr)
async def test_running_a_branch_during_an_open_superstep(around: tuple[bool | None, ...]) -> None:
    """A run from a past state, or from an edit of it, starts there, and the head's superstep stays open."""
    graph, ns = nested(InMemorySaver(), around)
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ns}}
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume="one"), "t")
    past = await past_of(graph, place)
    await graph.ainvoke(None, past)
    forked = await graph.aupdate_state(past, {"own": ["edited"]}, as_node="first")
    left = (await graph.aget_state("t")).config
    (asked,) = (await graph.ainvoke(None, forked))["__interrupt__"]
    assert asked.value == ["call", "first", "edited"]
    (asked,) = (await graph.ainvoke(None, past))["__interrupt__"]
    assert asked.value == ["call", "first"]
    result = await graph.ainvoke(Command(resume="left"), left)
    assert result["log"] == ["called"]
    assert (await graph.aget_state(place)).values == {"own": ["call", "first", "left"]}


async def test_editing_the_past_of_an_idle_thread() -> None:
    """An edit of a past or the newest state is shown, and the next call continues from it."""
    graph, ns = nested(InMemorySaver(), ())
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ns}}
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume="one"), "t")
    await graph.aupdate_state(await past_of(graph, place), {"own": ["edited"]}, as_node="first")
    assert (await graph.aget_state(place)).values == {"own": ["call", "first", "edited"]}
    await graph.ainvoke({}, "t")
    (asked,) = (await graph.aget_state("t")).interrupts
    assert asked.value == ["call", "first", "edited", "call", "first"]
    await graph.ainvoke(Command(resume="two"), "t")
    stands = (await graph.aget_state(place)).config
    await graph.aupdate_state(stands, {"own": Overwrite(["edited"])}, as_node="second")
    await graph.ainvoke({}, "t")
    (asked,) = (await graph.aget_state("t")).interrupts
    assert asked.value == ["edited", "call", "first"]


async def test_the_newest_state_is_not_edited_during_an_open_superstep() -> None:
    """The edit is refused if it would not create a branch, as the head itself would have to record where the
    subgraph's state is."""

    async def ask(state: State) -> State:
        return {"log": [interrupt("?")]}

    subgraph = persistent_subgraph().compile(checkpointer=True)

    async def call(state: State) -> State:
        await subgraph.ainvoke({"own": ["call"]})
        return {}

    made = StateGraph(State).add_node("call", call).add_node("ask", ask).add_edge(START, "call").add_edge("call", "ask")
    graph = made.compile(InMemorySaver())
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume="one"), "t")
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "call"}}
    for config in (place, (await graph.aget_state(place)).config):
        with pytest.raises(InvalidUpdateError, match="cannot be updated before that superstep has finished"):
            await graph.aupdate_state(config, {"own": ["?"]}, as_node="second")
