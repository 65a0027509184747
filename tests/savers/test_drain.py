"""A run that is drained within a superstep: each saver stores the results of finished tasks, with each durability
(P4, P5)."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, GraphDrained, RunControl, Send, StateGraph
from tests.savers.upkeep_graphs import opened

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[int], operator.add]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


async def test_finished_tasks_are_recorded_and_the_others_run_on_a_resume(saver: BaseCheckpointSaver) -> None:
    """P4, P5: of nine tasks that run two at a time, the tasks in flight when the drain is requested are recorded and
    shown in the thread's state; another call runs the others, and each runs once."""
    control, ran = RunControl(), list[int]()

    async def work(number: int) -> State:
        ran.append(number)
        await anyio.lowlevel.checkpoint()
        if len(ran) > 2:
            control.request_drain()
        return {"log": [number]}

    made = StateGraph(State).add_node("work", work)
    made.add_conditional_edges(START, lambda _: [Send("work", number) for number in range(9)], ["work"])
    graph = made.compile(saver)
    for durability in ("sync", "async", "exit"):
        control = RunControl()
        ran.clear()
        config: Any = {"configurable": {"thread_id": durability}, "max_concurrency": 2}
        with pytest.raises(GraphDrained):
            await graph.ainvoke({}, config, control=control, durability=durability)
        assert 3 <= len(ran) <= 4, "those that had a slot"
        state = await graph.aget_state(config)
        assert [each.result for each in state.tasks if each.result is not None] == [{"log": [n]} for n in sorted(ran)]
        assert all(each.error is None and not each.interrupts for each in state.tasks)
        assert await graph.ainvoke(None, config, durability=durability) == {"log": list(range(9))}
        assert sorted(ran) == list(range(9))
