"""Subgraphs that keep their state: the smallest cases of defects that the laws have found."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async import START, Command, Send, StateGraph, entrypoint, interrupt, task
from pregel_async.errors import InvalidUpdateError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    async with SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL") as opened:
        yield opened


def counter() -> Any:
    """Return a graph that counts its runs."""
    return (
        StateGraph(State)
        .add_node("count", lambda state: {"log": [f"run {len(state.get('log', ()))}"]})
        .add_edge(START, "count")
        .compile(checkpointer=True)
    )


def question_and_counter() -> Any:
    """Return a graph in which one node asks a question while its sibling runs `counter`."""
    kept = counter()

    async def inner(state: State) -> State:
        return {"log": [f"{len((await kept.ainvoke({'log': []}))['log'])} inside"]}

    def ask(state: State) -> State:
        return {"log": [interrupt("what?")]}

    return (
        StateGraph(State)
        .add_node("ask", ask)
        .add_node("inner", inner)
        .add_edge(START, "ask")
        .add_edge(START, "inner")
        .compile(checkpointer=InMemorySaver())
    )


async def test_a_kept_state_stays_when_a_sibling_asks() -> None:
    """P5: a subgraph that keeps its state, and finished while a sibling asked a question, has this state in its next
    call."""
    graph = question_and_counter()
    await graph.ainvoke({"log": []}, "t")
    await graph.ainvoke(Command(resume="one"), "t")
    await graph.ainvoke({"log": []}, "t")
    assert (await graph.ainvoke(Command(resume="two"), "t"))["log"] == ["one", "1 inside", "two", "2 inside"]


async def test_a_new_input_discards_what_a_kept_state_did_in_the_open_superstep() -> None:
    """P3: if a new input discards the open superstep, a subgraph's run in it leaves the kept state unchanged."""
    graph = question_and_counter()
    await graph.ainvoke({"log": []}, "t")
    await graph.ainvoke({"log": ["again"]}, "t")
    assert (await graph.ainvoke(Command(resume="one"), "t"))["log"] == ["again", "one", "1 inside"]


async def test_a_kept_graph_is_run_by_each_call_of_a_task() -> None:
    """P8: tasks that run one stateful subgraph in turn each run it on the state that the previous one left."""
    kept = counter()

    @task
    async def step(number: int) -> list[str]:
        return (await kept.ainvoke({"log": [f"step {number}"]}))["log"]

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: Any) -> Any:
        return [await step(0), await step(1)]

    once = ["step 0", "run 1"]
    assert await flow.ainvoke("go", "t") == [once, [*once, "step 1", "run 3"]]


@pytest.mark.parametrize("width", [1, None])
async def test_a_kept_graph_is_run_by_one_task_of_a_superstep(width: int | None, saver: BaseCheckpointSaver) -> None:
    """P2, P9: two tasks of one superstep may not run one stateful subgraph, as the result would depend on the schedule:
    every schedule raises the error."""
    kept = counter()

    async def inner(state: State) -> State:
        return {"log": (await kept.ainvoke({"log": state["log"]}))["log"]}

    graph = (
        StateGraph(State)
        .add_node("inner", inner)
        .add_conditional_edges(START, lambda state: [Send("inner", {"log": [name]}) for name in "ab"])
        .compile(checkpointer=saver)
    )
    with pytest.raises(InvalidUpdateError, match="two tasks of one superstep run it"):
        await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}, "max_concurrency": width})
