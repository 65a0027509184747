"""Snapshots and tasks have the methods of LangGraph's named tuples, for LangGraph's fields in its order."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict
from typing import Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, PregelTask, StateGraph, StateSnapshot, interrupt

pytestmark = pytest.mark.anyio

SNAPSHOT = ("values", "next", "config", "metadata", "created_at", "parent_config", "tasks", "interrupts")
TASK = ("id", "name", "path", "error", "interrupts", "state", "result")


class State(TypedDict, total=False):
    x: int


async def asked() -> tuple[StateSnapshot, StateSnapshot]:
    """Return the head and the first snapshot of the history of a thread that asks a question."""

    def ask(state: State) -> State:
        return {"x": interrupt("how many?")}

    graph: Any = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(InMemorySaver())
    await graph.ainvoke({"x": 1}, "t")
    return await graph.aget_state("t"), [state async for state in graph.aget_state_history("t")][0]


async def test_a_snapshot_is_unpacked() -> None:
    """Unpacking, `len`, indices and slices cover LangGraph's eight fields; any further field is only an attribute."""
    for state in await asked():
        values, following, config, *others, interrupts = state
        assert (values, following, config, interrupts) == ({"x": 1}, ("ask",), state.config, state.interrupts)
        assert others == [state.metadata, state.created_at, state.parent_config, state.tasks]
        assert len(state) == 8 and state._fields == SNAPSHOT
        assert (state[0], state[-1], state[1:3]) == (state.values, state.interrupts, (state.next, state.config))
        with pytest.raises(IndexError):
            state[8]
        assert state._asdict() == {name: getattr(state, name) for name in SNAPSHOT}
        assert (state.error, state.spent, state.unknown) == (None, {}, {})


async def test_a_task_is_unpacked() -> None:
    """The same for a task's seven fields."""
    (task,) = (await asked())[0].tasks
    id_, name, path, error, interrupts, state, result = task
    assert (id_, name, path) == (task.id, "ask", ("__pregel_pull", "ask"))
    assert (error, state, result, interrupts) == (None, None, None, task.interrupts)
    assert len(task) == 7 and task._fields == TASK and task[1] == "ask" and task[:2] == (task.id, "ask")
    assert task._asdict() == {field: getattr(task, field) for field in TASK}


async def test_replace_makes_a_copy() -> None:
    """`_replace` changes the copy alone, and keeps all other fields."""
    state, from_history = await asked()
    for snapshot in (state, from_history):
        assert snapshot._replace(values={"x": 2}).values == {"x": 2}
        assert snapshot._replace() == snapshot
        assert snapshot.values == {"x": 1}
    assert state._replace(unknown={"y": 1})._replace(next=()).unknown == {"y": 1}
    (task,) = state.tasks
    assert task._replace(name="other") == PregelTask(task.id, "other", task.path, interrupts=task.interrupts)
    for made in (state, task):
        with pytest.raises(TypeError):
            made._replace(nothing=1)
        assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made


def test_fields_by_position() -> None:
    """Both are made with their fields by position, as in tests of code that reads them."""
    config: Any = {"configurable": {"thread_id": "t"}}
    state = StateSnapshot({"x": 1}, ("ask",), config, None, "now", None, (), ())
    assert (state.values, state.next, state.config, state.created_at) == ({"x": 1}, ("ask",), config, "now")
    assert [*PregelTask("i", "n", ("p",))] == ["i", "n", ("p",), None, (), None, None]


async def test_an_endpoint_may_return_the_tasks() -> None:
    """A task is data for what serialises dataclasses."""
    (task,) = (await asked())[0].tasks
    found = json.loads(json.dumps(asdict(task)))
    question = {"value": "how many?", "id": task.interrupts[0].id, "response_schema": None}
    assert found["interrupts"] == [question]


async def test_the_shape_is_known_without_decoding() -> None:
    """`len` and `_fields` of a damaged snapshot raise nothing, and reading it raises what its attributes raise."""

    def damaged() -> Any:
        raise ValueError("damaged")

    state = StateSnapshot.of(damaged, config={}, metadata={}, parent_config=None)
    assert len(state) == 8 and state[2] == {}
    with pytest.raises(ValueError, match="damaged"):
        list(state)
