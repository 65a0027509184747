"""Questions to people: asked, shown, answered, and kept, wherever in a node's code they are."""

# Tests do on purpose what users may do, types or not:
# mypy: disable-error-code="arg-type,var-annotated"

from __future__ import annotations

import operator
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async import END, START, Command, GraphInterrupt, Interrupt, Send, StateGraph, interrupt, task
from pregel_async.errors import (
    EmptyInputError,
    GraphBubbleUp,
    InterruptSwallowedError,
    InvalidResumeError,
    InvalidUpdateError,
    OutsideRunError,
    UnstorableValueError,
)

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def one_node(node: Any, saver: BaseCheckpointSaver | None = None, **settings: Any) -> Any:
    return StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, **settings)


def side_by_side(saver: BaseCheckpointSaver | None = None, **nodes: Any) -> Any:
    """All nodes in one superstep."""
    made = StateGraph(State)
    for name, node in nodes.items():
        made.add_node(name, node).add_edge(START, name)
    return made.compile(saver)


def asker(*questions: Any) -> Any:
    """A node that asks one after the other, and logs the answers."""

    async def node(state: State) -> dict[str, Any]:
        return {"log": [interrupt(question) for question in questions]}

    return node


def values_of(result: Any) -> list[Any]:
    """The open questions of a result, in its order."""
    return [question.value for question in result["__interrupt__"]]


def ids_of(result: Any) -> dict[Any, str]:
    """Question -> id."""
    return {question.value: question.id for question in result["__interrupt__"]}


def gate(*, opens: anyio.Event | None = None, waits: anyio.Event | None = None, writes: Any = None) -> Any:
    """A node that waits for an event, and sets one."""

    async def node(state: State) -> Any:
        if waits is not None:
            await waits.wait()
        if opens is not None:
            opens.set()
        return writes

    return node


# ---- in routers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_question_of_a_router_is_not_one_of_its_node(saver: BaseCheckpointSaver, awaits: bool) -> None:
    """P8, P3: a router's question has an id of its own, the same when only the router runs again; the node's answer is
    not taken for the router's, and the node does not run again."""
    ran = Counter[str]()

    async def node(state: State) -> Any:
        ran["node"] += 1
        return {"log": [interrupt("node?")]}

    async def later(state: State) -> Any:
        await anyio.lowlevel.checkpoint()
        return now(state)

    def now(state: State) -> Any:
        ran["router"] += 1
        return interrupt(f"router, after {state['log']}?")

    made = StateGraph(State).add_node("n", node).add_edge(START, "n").add_node("end", gate(writes={"log": ["end"]}))
    graph = made.add_conditional_edges("n", later if awaits else now, ["end", END]).compile(saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["node?"]
    asked = await graph.ainvoke(Command(resume="yes"), "t")
    assert values_of(asked) == ["router, after ['yes']?"]
    assert await graph.ainvoke(None, "t") == asked
    assert await graph.ainvoke(Command(resume="end"), "t") == {"log": ["yes", "end"]}
    assert ran == {"node": 2, "router": 3}


async def test_what_a_router_calls_is_not_what_its_node_called(saver: BaseCheckpointSaver) -> None:
    """P5, P8: a task that a router calls is recorded as its own, and not as the node's call of the same number."""
    ran: list[str] = []

    @task
    async def look(what: str) -> str:
        ran.append(what)
        return what

    async def node(state: State) -> Any:
        return {"log": [await look("node")]}

    async def route(state: State) -> Any:
        found = await look("router")
        return END if interrupt(found) else "n"

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").add_conditional_edges("n", route).compile(saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["router"]
    assert values_of(await graph.ainvoke(None, "t")) == ["router"]
    assert await graph.ainvoke(Command(resume=True), "t") == {"log": ["node"]}
    assert ran == ["node", "router"]


# ---- what cannot be stored -----------------------------------------------------------------------------------------


async def test_a_question_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11, P3, P5: such a question fails its task: with a typed error that names the place, recorded and shown as any
    failure is; what a sibling did before is kept."""
    ran = Counter[str]()
    things: list[Any] = [object(), "a?", "a?"]

    async def asks(state: State) -> Any:
        await done.wait()
        return {"log": [interrupt({"form": things.pop(0)})]}

    async def works(state: State) -> Any:
        ran["works"] += 1
        done.set()
        return {"log": ["works"]}

    done = anyio.Event()
    graph = side_by_side(saver, asks=asks, works=works)
    with pytest.raises(UnstorableValueError, match="interrupt") as caught:
        await graph.ainvoke({}, "t")
    assert any("'asks'" in note for note in caught.value.__notes__)
    state = await graph.aget_state("t")
    assert (state.next, state.interrupts) == (("asks",), ())
    assert [task.error is not None for task in state.tasks] == [True, False]
    assert values_of(await graph.ainvoke(None, "t")) == [{"form": "a?"}]
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes", "works"]}
    assert ran == {"works": 1}


async def test_a_question_that_need_not_be_stored() -> None:
    """S-100: without a checkpointer, anything can be asked."""
    thing = anyio.Lock()
    (question,) = (await one_node(asker(thing)).ainvoke({}))["__interrupt__"]
    assert question.value is thing


@pytest.mark.parametrize("asks_first", [False, True])
async def test_a_result_beside_a_question_that_cannot_be_stored(saver: BaseCheckpointSaver, asks_first: bool) -> None:
    """P11: a sibling's result that cannot be stored fails it, whether it comes before the question or after."""
    there = anyio.Event()
    works = gate(writes={"note": object()}, **{"waits" if asks_first else "opens": there})

    async def asks(state: State) -> Any:
        if asks_first:
            there.set()
        else:
            await there.wait()
        interrupt("?")

    with pytest.raises(UnstorableValueError, match="note"):
        await side_by_side(saver, asks=asks, works=works).ainvoke({}, "t")


async def test_writes_beside_a_routers_question_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11, P3: nor are a node's own writes lost because its router asks: they are refused."""
    writes: list[Any] = [object(), "kept"]

    async def node(state: State) -> Any:
        return {"note": writes.pop(0)}

    made = StateGraph(State).add_node("n", node).add_edge(START, "n")
    graph = made.add_conditional_edges("n", lambda state: interrupt("?") or END).compile(saver)
    with pytest.raises(UnstorableValueError, match="note"):
        await graph.ainvoke({}, "t")
    assert values_of(await graph.ainvoke(None, "t")) == ["?"]
    assert await graph.ainvoke(Command(resume=END), "t") == {"log": [], "note": "kept"}


async def test_an_answer_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11, issue, "Bad input": such an answer is refused before anything runs; the question stays open."""
    graph = one_node(asker("?"), saver)
    asked = await graph.ainvoke({}, "t")
    with pytest.raises(UnstorableValueError, match=asked["__interrupt__"][0].id):
        await graph.ainvoke(Command(resume=object()), "t")
    assert (await graph.aget_state("t")).interrupts == tuple(asked["__interrupt__"])
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1]}
