"""What a thread's history shows of questions and inputs, as programs written for LangGraph read it."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt
from tests.helpers.each_saver import SAVERS, opened

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "refund-7"}}


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as made:
        yield made


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def review(state: State) -> dict[str, Any]:
    return {"log": [interrupt("approve?"), interrupt("how much?")]}


def check(state: State) -> dict[str, Any]:
    return {"log": ["checked"]}


def pay(state: State) -> dict[str, Any]:
    return {"log": ["paid"]}


def refund() -> StateGraph[State]:
    """`review` asks twice beside `check`; then `pay`."""
    builder = StateGraph(State)
    for node in (review, check, pay):
        builder.add_node(node)
    builder.add_edge(START, "review")
    builder.add_edge(START, "check")
    return builder.add_edge(["review", "check"], "pay")


def values(asked: Any) -> list[Any]:
    return [each.value for each in asked]


async def asked_at(graph: Any, *nodes: str, config: Any = CONFIG) -> Any:
    """Return the newest snapshot of the history whose next nodes are these."""
    history = [state async for state in graph.aget_state_history(config)]
    return next(state for state in history if state.next == nodes)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_answered_questions(saver: BaseCheckpointSaver, durability: Literal["sync", "async", "exit"]) -> None:
    """The head lists open questions only; the snapshot of the superstep that asked keeps all of them, with the result,
    after the answers; `aget_state` of that checkpoint shows the same."""
    graph = refund().compile(checkpointer=saver)
    await graph.ainvoke({"log": ["in"]}, CONFIG, durability=durability)
    await graph.ainvoke(Command(resume="yes"), CONFIG, durability=durability)
    head = await graph.aget_state(CONFIG)
    assert (head.next, values(head.interrupts), values(head.tasks[1].interrupts)) == (
        ("review",),
        ["how much?"],
        ["how much?"],
    )
    await graph.ainvoke(Command(resume="10"), CONFIG, durability=durability)
    assert (await graph.aget_state(CONFIG)).interrupts == ()
    asked = await asked_at(graph, "check", "review")
    [checked, reviewed] = asked.tasks
    assert (values(reviewed.interrupts), reviewed.result) == (["approve?", "how much?"], {"log": ["yes", "10"]})
    assert (checked.interrupts, asked.interrupts, reviewed.error) == ((), reviewed.interrupts, None)
    assert await graph.aget_state(asked.config) == asked


async def test_a_node_alone(saver: BaseCheckpointSaver) -> None:
    """A node that asks alone keeps its question too, also if it fails after the answer and runs again. What it asked
    does not answer a replay, which asks again."""
    broken = [True]

    async def ask(state: State) -> dict[str, Any]:
        answer = interrupt("which?")
        if broken.pop():
            raise ConnectionError
        broken.append(False)
        return {"log": [answer]}

    graph = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(checkpointer=saver)
    await graph.ainvoke({}, CONFIG)
    with pytest.raises(ConnectionError):
        await graph.ainvoke(Command(resume="this"), CONFIG)
    assert (await graph.aget_state(CONFIG)).interrupts == ()
    broken.append(False)
    assert await graph.ainvoke(None, CONFIG) == {"log": ["this"]}
    asked = await asked_at(graph, "ask")
    [task] = asked.tasks
    assert (values(task.interrupts), task.result, task.error) == (["which?"], {"log": ["this"]}, None)
    again: Any = await graph.ainvoke(None, asked.config)
    assert values(again["__interrupt__"]) == ["which?"]
    assert await graph.ainvoke(Command(resume="that"), CONFIG) == {"log": ["that"]}
    assert await graph.aget_state(asked.config) == asked


async def test_answers_are_not_kept(saver: BaseCheckpointSaver) -> None:
    """The record of a closed superstep has the questions, and no answers."""
    graph = refund().compile(checkpointer=saver)
    await graph.ainvoke({}, CONFIG)
    await graph.ainvoke(Command(resume="secret"), CONFIG)
    await graph.aupdate_state(CONFIG, {"log": ["other"]}, as_node="review")
    asked = await asked_at(graph, "check", "review")
    chain = await saver.read("refund-7", "", asked.config["configurable"]["checkpoint_id"])
    assert chain is not None
    assert b"secret" not in b"".join(record.frame for record in chain.records)
    assert values(asked.interrupts) == ["approve?", "how much?"]


async def test_an_update_as_the_node_that_asked(saver: BaseCheckpointSaver) -> None:
    """A result given by hand closes the question, which the history keeps; the head lists it no more."""
    graph = refund().compile(checkpointer=saver)
    await graph.ainvoke({}, CONFIG)
    await graph.aupdate_state(CONFIG, {"log": ["by hand"]}, as_node="review")
    assert (await graph.aget_state(CONFIG)).interrupts == ()
    [_, reviewed] = (await asked_at(graph, "check", "review")).tasks
    assert (values(reviewed.interrupts), reviewed.result) == (["approve?"], {"log": ["by hand"]})


async def test_in_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """The histories of the outer graph and of the subgraph both keep the question."""

    def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt("in the subgraph?")]}

    inner = StateGraph(State).add_node(ask).add_edge(START, "ask").compile()
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=saver)
    await graph.ainvoke({}, CONFIG)
    [task] = (await graph.aget_state(CONFIG)).tasks
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert values((await asked_at(graph, "inner")).interrupts) == ["in the subgraph?"]
    assert values((await asked_at(graph, "ask", config=task.state)).interrupts) == ["in the subgraph?"]


async def test_an_error_handler_that_asks(saver: BaseCheckpointSaver) -> None:
    """The question of an error handler is shown at the task that failed, with the failure and the handler's result."""

    def fails(state: State) -> dict[str, Any]:
        raise ConnectionError("no line")

    def handle(state: State) -> dict[str, Any]:
        return {"log": [interrupt("try later?")]}

    graph = StateGraph(State).add_node(fails, error_handler=handle).add_edge(START, "fails").compile(checkpointer=saver)
    await graph.ainvoke({}, CONFIG)
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    [task] = (await asked_at(graph, "fails")).tasks
    assert (values(task.interrupts), task.result) == (["try later?"], {"log": ["yes"]})
    assert task.error is not None and task.error.message == "no line"


async def test_the_input_is_the_result_of_start(saver: BaseCheckpointSaver) -> None:
    """The task `__start__` has its input as result, of each input of the thread; None while it is pending."""
    graph = refund().compile(checkpointer=saver)
    for text in ("first", "second"):
        await graph.aupdate_state(CONFIG, {"log": [text]}, as_node="__input__")
        pending = await graph.aget_state(CONFIG)
        assert (pending.next, pending.tasks[0].result) == ((START,), None)
        await graph.ainvoke(None, CONFIG)
    starts = [state.tasks[0] async for state in graph.aget_state_history(CONFIG) if state.next == (START,)]
    assert [(task.name, task.result) for task in starts] == [
        (START, {"log": ["second"]}),
        (START, {"log": ["first"]}),
    ]


def test_without_an_event_loop() -> None:
    """The same by `get_state` and `get_state_history`."""
    graph = refund().compile(checkpointer=InMemorySaver())
    graph.invoke({"log": ["in"]}, CONFIG)
    graph.invoke(Command(resume="yes"), CONFIG)
    assert values(graph.get_state(CONFIG).interrupts) == ["how much?"]
    graph.invoke(Command(resume="10"), CONFIG)
    shown = {state.next: state.tasks for state in graph.get_state_history(CONFIG)}
    assert values(shown["check", "review"][1].interrupts) == ["approve?", "how much?"]
    assert shown[(START,)][0].result == {"log": ["in"]}
