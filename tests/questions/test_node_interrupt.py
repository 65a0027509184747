"""`raise NodeInterrupt(value)`, LangGraph's deprecated way to stop at a node, and further names of LangGraph."""

from __future__ import annotations

from typing import Any, TypedDict, get_args

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, Interrupt, StateGraph, interrupt, task
from pregel_async.errors import GraphInterrupt, NoCheckpointerError, NodeInterrupt
from pregel_async.types import TAG_NOSTREAM, Checkpointer

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:NodeInterrupt is deprecated")]


class State(TypedDict, total=False):
    text: str
    seen: str


async def check(state: State) -> State:
    if len(state.get("text", "")) > 5:
        raise NodeInterrupt(f"{state.get('text')!r} is too long")
    return {"seen": state.get("text", "")}


def check_in_a_thread(state: State) -> State:
    if len(state.get("text", "")) > 5:
        raise NodeInterrupt(f"{state.get('text')!r} is too long")
    return {"seen": state.get("text", "")}


def graph(node: Any, saver: Any = None) -> Any:
    return StateGraph(State).add_node("check", node).add_edge(START, "check").compile(saver)


@pytest.mark.parametrize("node", [check, check_in_a_thread])
async def test_a_node_stops_until_the_state_has_changed(node: Any) -> None:
    """The question shows as one of `interrupt()` does; an answer changes nothing, an edit of the state does."""
    made = graph(node, InMemorySaver())
    asked = await made.ainvoke({"text": "a long text"}, "t")
    [question] = asked["__interrupt__"]
    assert question.value == "'a long text' is too long" and len(question.id) == 32
    state = await made.aget_state("t")
    assert (state.next, [each.value for each in state.interrupts]) == (("check",), [question.value])
    again = await made.ainvoke(Command(resume="so be it"), "t")
    assert [each.value for each in again["__interrupt__"]] == [question.value]
    await made.aupdate_state("t", {"text": "short"}, as_node=START)
    assert (await made.ainvoke(None, "t"))["seen"] == "short"
    assert (await made.aget_state("t")).next == ()


async def test_in_a_task_and_in_a_subgraph() -> None:
    """It stops the run wherever a node may ask."""

    @task
    async def called(text: str) -> None:
        raise NodeInterrupt(text)

    async def calls(state: State) -> None:
        await called("in a task")

    [question] = (await graph(calls, InMemorySaver()).ainvoke({}, "t"))["__interrupt__"]
    assert question.value == "in a task"
    outer = graph(graph(check), InMemorySaver())
    [question] = (await outer.ainvoke({"text": "a long text"}, "t"))["__interrupt__"]
    assert question.value == "'a long text' is too long"


async def test_after_an_answered_question() -> None:
    """A node may ask before it: the answer stays, and the question is asked once."""
    asked: list[str] = []

    def node(state: State) -> State:
        asked.append(interrupt("which?"))
        raise NodeInterrupt("not yet")

    made = graph(node, InMemorySaver())
    await made.ainvoke({}, "t")
    [question] = (await made.ainvoke(Command(resume="this"), "t"))["__interrupt__"]
    assert (question.value, asked) == ("not yet", ["this"])


async def test_without_a_saver() -> None:
    """As `interrupt()`: nothing could ever resume it."""
    with pytest.raises(NoCheckpointerError):
        await graph(check).ainvoke({"text": "a long text"})


@pytest.mark.one_loop
async def test_a_unit_test_catches_it() -> None:
    """Outside of a run it is an exception like any other, and creating it warns."""
    with pytest.raises(NodeInterrupt) as raised:
        await check({"text": "a long text"})
    assert isinstance(raised.value, GraphInterrupt)
    assert raised.value.interrupts == (Interrupt("'a long text' is too long"),)
    with pytest.warns(DeprecationWarning, match=r"use interrupt\(\)"):
        NodeInterrupt("?")


def test_names_of_types() -> None:
    """For annotations, and for the tags of models."""
    assert set(get_args(Checkpointer)) == {BaseCheckpointSaver, bool, type(None)}
    assert TAG_NOSTREAM == "nostream"


def test_no_picture_without_a_browser() -> None:
    """The error names the method that needs none."""
    with pytest.raises(NotImplementedError, match=r"draw_svg\(\)"):
        graph(check).get_graph().draw_mermaid_png(background_color="white")
