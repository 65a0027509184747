"""P4, P5: with durability "exit", the end of a run is one transaction, over all graphs of the run."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.testing import Crash, Fault, FaultySaver

pytestmark = pytest.mark.anyio


class Count(TypedDict):
    count: Annotated[int, operator.add]


class Asked(TypedDict, total=False):
    counts: Annotated[list[int], operator.add]
    answers: Annotated[list[str], operator.add]


def counting_graph(saver: FaultySaver, depth: int) -> Any:
    """Return a graph in which `work` calls a counter that keeps its state, while `ask` asks a question.

    Args:
        saver: the saver.
        depth: the number of graphs around the graph that has these nodes; each is called by a node of the next.
    """

    def rest(state: Count) -> None:
        """Nothing is left to do: the input has been counted."""

    counter = StateGraph(Count).add_node("rest", rest).add_edge(START, "rest").compile(checkpointer=True)

    async def work(state: Asked) -> Asked:
        return {"counts": [(await counter.ainvoke({"count": 1}))["count"]]}

    def ask(state: Asked) -> Asked:
        return {"answers": [interrupt("Shall we?")]}

    made = StateGraph(Asked).add_node("work", work).add_node("ask", ask)
    graph = made.add_edge(START, "work").add_edge(START, "ask").compile(saver if depth == 0 else None)
    for around in range(depth):
        inner = graph

        async def call(state: Asked, inner: Any = inner) -> Asked:
            result: Asked = await inner.ainvoke({})
            return result

        graph = (
            StateGraph(Asked)
            .add_node("call", call)
            .add_edge(START, "call")
            .compile(saver if around + 1 == depth else None)
        )
    return graph


@pytest.mark.one_loop
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_kept_state_agrees_with_the_records(depth: int, when: Literal["before", "after"]) -> None:
    """P4, P5: wherever the process dies while a run is stored that stops for a question, a graph that keeps its state
    has counted a call if and only if the calling task is recorded."""
    for at in range(1, 41):
        saver = FaultySaver(InMemorySaver(), Fault(how="crash", at=at, when=when))
        graph = counting_graph(saver, depth)
        given: Any = {}
        turn = 0
        while turn < 2:
            config = {"configurable": {"thread_id": "t"}, "metadata": {"turn": turn}}
            try:
                await graph.ainvoke(given, config, durability="exit")
            except Crash:
                await saver.restart()
            state = await graph.aget_state("t")
            if (state.metadata or {}).get("turn") != turn:
                continue  # the crash came before anything of this turn was stored
            if state.interrupts:
                given = Command(resume={each.id: "yes" for each in state.interrupts})
            elif state.next:
                given = None
            else:
                given, turn = {}, turn + 1
        assert state.values["counts"] == [1, 2], f"crash {when} write {at}"
        if not saver.happened:
            break
    else:
        raise AssertionError("more writes than crashes were tried")
