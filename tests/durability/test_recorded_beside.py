"""P5: what a task returned is stored as it finishes, while its siblings still run."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import END, START, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict):
    done: Annotated[list[str], operator.add]


async def test_a_result_is_stored_while_a_sibling_runs(saver: BaseCheckpointSaver) -> None:
    """P5: another reader sees the finished task's result, and only the other one is left to run."""
    seen = anyio.Event()

    async def fast(state: State) -> dict[str, list[str]]:
        return {"done": ["fast"]}

    async def slow(state: State) -> dict[str, list[str]]:
        await seen.wait()
        return {"done": ["slow"]}

    builder = StateGraph(State).add_node(fast).add_node(slow)
    for name in ("fast", "slow"):
        builder.add_edge(START, name).add_edge(name, END)
    graph = builder.compile(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {"done": []}, "t")
        with anyio.fail_after(20):
            while (state := await graph.aget_state("t")).next != ("slow",):
                await anyio.lowlevel.checkpoint()
        assert {task.name: task.result for task in state.tasks} == {"fast": {"done": ["fast"]}, "slow": None}
        assert state.values == {"done": []}  # P3: not applied before the superstep is whole
        seen.set()
    assert (await graph.aget_state("t")).values == {"done": ["fast", "slow"]}
