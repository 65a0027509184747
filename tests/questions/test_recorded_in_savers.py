"""What LangGraph's users read of an open superstep: `pending_writes` of a saver, breakpoints at error handlers, and the
time of the first attempt."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.records import StoredObject
from pregel_async import START, Command, NodeError, RetryPolicy, Runtime, StateGraph, get_runtime, interrupt
from pregel_async.errors import ConfigError
from pregel_async.testing import VirtualClock
from tests.helpers.each_saver import SAVERS, opened

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as made:
        yield made


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def fails(state: State) -> dict[str, Any]:
    raise ValueError("no line")


def asks(state: State) -> dict[str, Any]:
    return {"log": [interrupt("which?"), interrupt("how many?")]}


def works(state: State) -> dict[str, Any]:
    return {"log": ["worked"]}


async def pending(saver: BaseCheckpointSaver) -> list[tuple[str, Any]]:
    found = await saver.aget_tuple(CONFIG)
    assert found is not None
    return [(channel, value) for _, channel, value in found.pending_writes]


async def test_a_failure_in_pending_writes(saver: BaseCheckpointSaver) -> None:
    """The writes of finished siblings, and the failure as text, as LangGraph shows it."""
    builder = StateGraph(State).add_node(fails).add_node(works).add_edge(START, "fails").add_edge(START, "works")
    with pytest.raises(ValueError, match="no line"):
        await builder.compile(checkpointer=saver).ainvoke({}, CONFIG, on_failure="finish")
    assert sorted(await pending(saver)) == [("__error__", "ValueError('no line')"), ("log", ["worked"])]


async def test_questions_in_pending_writes(saver: BaseCheckpointSaver) -> None:
    """The questions that a task has asked, with their ids; the answers are not shown."""
    graph = StateGraph(State).add_node(asks).add_edge(START, "asks").compile(checkpointer=saver)
    first: Any = await graph.ainvoke({}, CONFIG)
    second: Any = await graph.ainvoke(Command(resume="this"), CONFIG)
    asked = [
        StoredObject("pregel_async.Interrupt", {"value": each.value, "id": each.id, "response_schema": None})
        for each in (*first["__interrupt__"], *second["__interrupt__"])
    ]
    assert await pending(saver) == [("__interrupt__", asked)]
    assert graph.checkpointer is not None
    codec = graph._definition.codec
    found = await saver.aget_tuple(CONFIG, codec=codec)
    assert found is not None
    assert found.pending_writes[0][2] == [*first["__interrupt__"], *second["__interrupt__"]]


def handled(saver: BaseCheckpointSaver | None, ran: list[str], **breakpoints: Any) -> Any:
    def bad(state: State) -> dict[str, Any]:
        ran.append("bad")
        raise ValueError("no line")

    def handle(state: State, error: NodeError) -> dict[str, Any]:
        ran.append("handle")
        return {"log": [f"handled {error.node}"]}

    builder = StateGraph(State).add_node("bad", bad, error_handler=handle).add_node(works)
    return builder.add_edge(START, "bad").add_edge("works", "works").compile(checkpointer=saver, **breakpoints)


HANDLER = "__error_handler__bad"


async def test_a_stop_before_an_error_handler(saver: BaseCheckpointSaver) -> None:
    """The run stops with the failure recorded, which the state shows; the next call runs the handler, and not the node
    again."""
    ran: list[str] = []
    graph = handled(saver, ran, interrupt_before=[HANDLER])
    assert [chunk async for chunk in graph.astream({}, CONFIG)] == [{"__interrupt__": ()}]
    state = await graph.aget_state(CONFIG)
    assert (ran, state.next, state.tasks[0].error.message) == (["bad"], ("bad",), "no line")
    assert await graph.ainvoke(None, CONFIG) == {"log": ["handled bad"]}
    assert ran == ["bad", "handle"]


async def test_a_stop_after_an_error_handler(saver: BaseCheckpointSaver) -> None:
    """The run stops after the superstep in which the handler ran; also per call. "*" stops at nodes only."""
    ran: list[str] = []
    graph = handled(saver, ran)
    chunks = [chunk async for chunk in graph.astream({}, CONFIG, interrupt_after=[HANDLER])]
    assert chunks == [{HANDLER: {"log": ["handled bad"]}}, {"__interrupt__": ()}]
    assert await graph.ainvoke({}, {"configurable": {"thread_id": "u"}}, interrupt_before="*") == {"log": []}
    assert await graph.ainvoke(None, {"configurable": {"thread_id": "u"}}, interrupt_before="*") == {
        "log": ["handled bad"]
    }
    with pytest.raises(ConfigError, match="no such node"):
        handled(saver, ran, interrupt_before=["__error_handler__works"])


async def test_a_stop_before_the_handler_in_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """It stops the whole run, and a run that stores nothing too."""
    ran: list[str] = []
    inner = handled(None, ran, interrupt_before=[HANDLER])
    assert await inner.ainvoke({}) == {"log": []}
    assert ran == ["bad"]
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=saver)
    assert await graph.ainvoke({}, CONFIG) == {"log": []}
    assert (await graph.aget_state(CONFIG)).next == ("inner",)
    assert await graph.ainvoke(None, CONFIG) == {"log": ["handled bad"]}
    assert ran == ["bad", "bad", "handle"]


@pytest.mark.parametrize("policy", [None, RetryPolicy(max_attempts=2, retry_on=OSError, jitter=False)])
async def test_the_time_of_the_first_attempt(policy: RetryPolicy | None) -> None:
    """`node_first_attempt_time` is set with and without a retry policy, and stays the same in one node."""
    clock = VirtualClock()
    seen: list[tuple[float | None, float]] = []

    async def node(state: State, runtime: Runtime) -> None:
        began = clock.now()
        await clock.sleep(5)
        seen.append((runtime.execution_info.node_first_attempt_time, began))
        seen.append((get_runtime().execution_info.node_first_attempt_time, began))
        if policy is not None and runtime.execution_info.node_attempt == 1:
            raise OSError("again")

    builder = StateGraph(State).add_node("node", node, retry_policy=policy).add_edge(START, "node")
    graph = builder.compile(environment=clock)

    await graph.ainvoke({})
    assert {told for told, _ in seen} == {seen[0][1]}


def test_without_an_event_loop() -> None:
    """The same by `invoke`."""
    ran: list[str] = []
    graph = handled(InMemorySaver(), ran, interrupt_before=[HANDLER])
    assert graph.invoke({}, CONFIG) == {"log": []}
    assert graph.invoke(None, CONFIG) == {"log": ["handled bad"]}
    assert ran == ["bad", "handle"]
