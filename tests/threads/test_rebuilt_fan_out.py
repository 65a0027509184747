"""A thread is rebuilt from what is known of it, a fan-out of sends too, as programs written for LangGraph do it."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Send, StateGraph, StateUpdate
from pregel_async.errors import InvalidUpdateError
from tests.helpers.each_saver import SAVERS, opened

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "imported"}}


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as made:
        yield made


class State(TypedDict, total=False):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


class Subject(TypedDict):
    subject: str


def subjects(state: State) -> dict[str, Any]:
    return {"subjects": ["lions", "elephants", "penguins"]}


def continue_to_jokes(state: State) -> list[Send]:
    return [Send("joke", {"subject": each}) for each in state["subjects"]]


def joke(state: Subject) -> dict[str, Any]:
    return {"jokes": [f"a joke about {state['subject']}"]}


def best(state: State) -> dict[str, Any]:
    return {"jokes": ["the best"]}


def jokes(saver: BaseCheckpointSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("subjects", subjects)
    builder.add_node("joke", joke)
    builder.add_node("best", best)
    builder.add_edge(START, "subjects")
    builder.add_conditional_edges("subjects", continue_to_jokes, ["joke"])
    builder.add_edge("joke", "best")
    return builder.compile(checkpointer=saver)


SOURCE = [
    [StateUpdate({"subjects": []}, "__input__")],
    [StateUpdate({"subjects": []}, START)],
    [StateUpdate({"subjects": ["lions", "cats"]}, "subjects")],
]


def told(*names: str) -> list[StateUpdate]:
    return [StateUpdate(values={"jokes": [name]}, as_node="joke") for name in names]


async def test_a_fan_out_is_rebuilt(saver: BaseCheckpointSaver) -> None:
    """As many updates as a node has pending sends become their results, in order, without task ids; the history shows
    them, and the thread continues after them."""
    graph = jokes(saver)
    await graph.abulk_update_state(CONFIG, [*SOURCE, told("of lions", "of cats")])
    state = await graph.aget_state(CONFIG)
    assert (state.values["jokes"], state.next) == (["of lions", "of cats"], ("best",))
    history = [each async for each in graph.aget_state_history(CONFIG)]
    assert [each.next for each in history] == [("best",), ("joke", "joke"), ("subjects",), ("__start__",)]
    assert [(each.path, each.result) for each in history[1].tasks] == [
        (("__pregel_push", 0, False), {"jokes": ["of lions"]}),
        (("__pregel_push", 1, False), {"jokes": ["of cats"]}),
    ]
    assert (await graph.ainvoke(None, CONFIG))["jokes"] == ["of lions", "of cats", "the best"]


async def test_the_rest_of_a_fan_out(saver: BaseCheckpointSaver) -> None:
    """Updates with a task id take that task; the others take the remaining tasks, in order. One object may be passed
    several times."""
    graph = jokes(saver)
    await graph.abulk_update_state(CONFIG, SOURCE[:2])
    await graph.aupdate_state(CONFIG, {"subjects": ["a", "b", "c"]}, "subjects")
    second = (await graph.aget_state(CONFIG)).tasks[1]
    same = StateUpdate({"jokes": ["same"]}, "joke")
    await graph.abulk_update_state(CONFIG, [[same, StateUpdate({"jokes": ["of b"]}, "joke", second.id), same]])
    assert (await graph.aget_state(CONFIG)).values["jokes"] == ["same", "of b", "same"]


async def test_what_does_not_fit_a_fan_out(saver: BaseCheckpointSaver) -> None:
    """Fewer or more updates than pending sends, or two for one task, are refused, and nothing is stored."""
    graph = jokes(saver)
    await graph.abulk_update_state(CONFIG, SOURCE[:2])
    await graph.aupdate_state(CONFIG, {"subjects": ["a", "b", "c"]}, "subjects")
    before = await graph.aget_state(CONFIG)
    named = StateUpdate({"jokes": ["?"]}, "joke", before.tasks[0].id)
    for wrong in (told("1", "2"), told("1", "2", "3", "4"), [named, *told("1")]):
        with pytest.raises(InvalidUpdateError, match="ambiguous which task of node 'joke'"):
            await graph.abulk_update_state(CONFIG, [wrong])
    with pytest.raises(InvalidUpdateError, match="one result"):
        await graph.abulk_update_state(CONFIG, [[named, named]])
    assert await graph.aget_state(CONFIG) == before


async def test_a_copy_with_several_updates(saver: BaseCheckpointSaver) -> None:
    """A `__copy__` may give the results of a whole fan-out: the fork shows them, and one superstep follows it."""
    graph = jokes(saver)
    await graph.ainvoke({}, CONFIG)
    history = [each async for each in graph.aget_state_history(CONFIG)]
    asked = next(each for each in history if each.next == ("joke",) * 3)
    given = [({"jokes": [name]}, "joke") for name in ("1", "2", "3")]
    config = await graph.aupdate_state(asked.config, given, as_node="__copy__")
    state = await graph.aget_state(config)
    assert (state.values["jokes"], state.next) == (["1", "2", "3"], ("best",))
    assert state.metadata["source"] == "update"
    fork = await graph.aget_state(state.parent_config)
    assert (fork.metadata["source"], fork.parent_config) == ("fork", asked.parent_config)
    assert [each.result for each in fork.tasks] == [{"jokes": ["1"]}, {"jokes": ["2"]}, {"jokes": ["3"]}]
    assert [each.id for each in fork.tasks] == [each.id for each in asked.tasks]
    assert await graph.aget_state(asked.config) == asked
    assert (await graph.ainvoke(None, CONFIG))["jokes"] == ["1", "2", "3", "the best"]


async def test_the_updates_of_a_copy_are_one_superstep(saver: BaseCheckpointSaver) -> None:
    """Updates as nodes without pending tasks are folded together, and each of several must name its node."""
    graph = jokes(saver)
    await graph.ainvoke({}, CONFIG)
    before = await graph.aget_state(CONFIG)
    await graph.aupdate_state(CONFIG, [({"subjects": []}, "subjects"), ({"jokes": ["more"]}, "best")], "__copy__")
    state = await graph.aget_state(CONFIG)
    assert state.values == {"subjects": [], "jokes": [*before.values["jokes"], "more"]}
    assert state.metadata["step"] == before.metadata["step"] + 1
    with pytest.raises(InvalidUpdateError, match="must be the only one"):
        await graph.aupdate_state(CONFIG, [({}, "best"), ({}, None)], "__copy__")


def test_a_fan_out_is_rebuilt_without_an_event_loop() -> None:
    """The same by `bulk_update_state` and `update_state`."""
    graph = jokes(InMemorySaver())
    graph.bulk_update_state(CONFIG, [*SOURCE, told("of lions", "of cats")])
    asked = next(each for each in graph.get_state_history(CONFIG) if len(each.next) == 2)
    assert [each.result for each in asked.tasks] == [{"jokes": ["of lions"]}, {"jokes": ["of cats"]}]
    graph.update_state(asked.config, [({"jokes": ["1"]}, "joke"), ({"jokes": ["2"]}, "joke")], as_node="__copy__")
    assert graph.invoke(None, CONFIG)["jokes"] == ["1", "2", "the best"]
