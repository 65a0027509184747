"""A `Runtime` and an `ExecutionInfo` that a unit test makes, to call a node's function without a graph."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from checkpoint_savers import InMemoryStore
from pregel_async import START, ExecutionInfo, RunControl, Runtime, StateGraph

INFO = ExecutionInfo(checkpoint_id="c", checkpoint_ns="node:1", task_id="t")


@dataclass
class Context:
    user: str = "ada"


class State(TypedDict, total=False):
    said: str


async def greet(state: State, runtime: Runtime[Context]) -> State:
    runtime.stream_writer({"progress": 1})
    await runtime.stream_writer.message({"role": "assistant", "content": "hi"})
    runtime.heartbeat()
    attempt = 1 if runtime.execution_info is None else runtime.execution_info.node_attempt
    return {"said": f"hello {runtime.context.user}, attempt {attempt}"}


@pytest.mark.anyio
async def test_a_node_is_called_without_a_graph() -> None:
    """What is not given is None, and the stream writer and the heartbeat do nothing. In a graph the node is the same."""
    assert await greet({}, Runtime(context=Context("bob"))) == {"said": "hello bob, attempt 1"}
    info = INFO.patch(node_attempt=3)
    assert await greet({}, Runtime(context=Context(), execution_info=info)) == {"said": "hello ada, attempt 3"}
    graph: Any = StateGraph(State, Context).add_node(greet).add_edge(START, "greet").compile()
    assert await graph.ainvoke({}, context=Context("bob")) == {"said": "hello bob, attempt 1"}
    bare: Runtime[Any] = Runtime()
    assert [bare.context, bare.store, bare.previous, bare.execution_info, bare.server_info, bare.control] == [None] * 6
    assert repr(bare).startswith("Runtime(context=None, store=None")


@pytest.mark.anyio
async def test_outside_of_a_server_there_is_no_server_info() -> None:
    """In a node, too."""
    found: list[Any] = []

    def node(state: State, runtime: Runtime) -> None:
        found.append(runtime.server_info)

    graph: Any = StateGraph(State).add_node(node).add_edge(START, "node").compile()
    await graph.ainvoke({})
    assert found == [None]


def test_execution_info() -> None:
    """The first three fields may be given by position, in LangGraph's order; the others have defaults."""
    assert ExecutionInfo("c", "node:1", "t") == INFO
    assert (INFO.thread_id, INFO.run_id, INFO.node_attempt, INFO.node_first_attempt_time) == (None, None, 1, None)
    assert [field.name for field in dataclasses.fields(INFO)] == [
        *("checkpoint_id", "checkpoint_ns", "task_id", "thread_id", "run_id"),
        *("node_attempt", "node_first_attempt_time"),
    ]
    assert INFO.patch(run_id="r") == dataclasses.replace(INFO, run_id="r")
    with pytest.raises(TypeError):
        ExecutionInfo("c", "node:1")


def test_override_and_merge() -> None:
    """`override` replaces fields. `merge` takes what the other runtime sets, also values that are false."""
    store, seen = InMemoryStore(), list[Any]()
    runtime: Runtime[Any] = Runtime(context=1, store=store, previous="before", execution_info=INFO)
    changed = runtime.override(context=2, previous=None)
    assert (changed.context, changed.previous, changed.store, changed.execution_info) == (2, None, store, INFO)
    assert runtime.context == 1
    assert dataclasses.replace(runtime, context=2).context == 2
    merged = runtime.merge(Runtime(context=0, heartbeat=lambda: seen.append("beat")))
    merged.heartbeat()
    assert (merged.context, merged.store, merged.previous, merged.execution_info) == (0, store, "before", INFO)
    assert seen == ["beat"]
    assert runtime.merge(Runtime()) == runtime
    for wrong in (lambda: runtime.override(nothing=1), lambda: INFO.patch(nothing=1)):
        with pytest.raises(TypeError, match="nothing"):
            wrong()


def test_patch_execution_info() -> None:
    """It needs an `execution_info`."""
    runtime: Runtime[Any] = Runtime(execution_info=INFO)
    assert runtime.patch_execution_info(node_attempt=2).execution_info == INFO.patch(node_attempt=2)
    with pytest.raises(RuntimeError, match="execution_info"):
        Runtime().patch_execution_info(node_attempt=2)


def test_a_requested_drain_shows() -> None:
    """A node asks its runtime whether the run should stop; without a `control` it never should."""
    control = RunControl()
    runtime: Runtime[Any] = Runtime(control=control)
    assert (runtime.drain_requested, runtime.drain_reason) == (False, None)
    control.request_drain("deploy")
    assert (runtime.drain_requested, runtime.drain_reason) == (True, "deploy")
    assert (Runtime().drain_requested, Runtime().drain_reason) == (False, None)
