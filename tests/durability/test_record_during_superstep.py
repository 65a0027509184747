"""P5: a task's result is stored as the task finishes, while its siblings still run."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import END, START, StateGraph, interrupt
from tests.helpers.passing_saver import WRITES, Through

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
        with anyio.fail_after(30):
            while (state := await graph.aget_state("t")).next != ("slow",):
                await anyio.lowlevel.checkpoint()
        assert {task.name: task.result for task in state.tasks} == {"fast": {"done": ["fast"]}, "slow": None}
        assert state.values == {"done": []}  # P3: not applied before the superstep is whole
        seen.set()
    assert (await graph.aget_state("t")).values == {"done": ["fast", "slow"]}


@pytest.mark.parametrize("keeps_events", [False, True])
@pytest.mark.parametrize("what", ["result", "question"])
async def test_results_that_cannot_be_stored_are_not_streamed(what: str, keeps_events: bool) -> None:
    """P4: when storage fails as a task finishes or asks, readers see neither result nor question, with stored events
    and without."""

    class Failing(Through):
        fails = False

        async def around(self, verb: str, call: Any) -> Any:
            if self.fails and verb in WRITES:
                raise StorageError("no disk")
            return await call()

    async def fast(state: State) -> dict[str, list[str]]:
        saver.fails = True
        if what == "question":
            interrupt("really?")
        return {"done": ["fast"]}

    async def slow(state: State) -> None:
        await anyio.sleep_forever()

    saver = Failing(InMemorySaver())
    builder = StateGraph(State).add_node(fast).add_edge(START, "fast")
    if what == "result":
        builder.add_node(slow).add_edge(START, "slow")
    graph = builder.compile(saver)
    shown: list[Any] = []
    with pytest.raises(StorageError, match="no disk"):
        async for part in graph.astream(
            {"done": []}, "t", stream_mode=["updates", "tasks"], keep_events=keeps_events, version="v2"
        ):
            shown.append(part)
    streamed = [part for part in shown if part["type"] == "updates" or "result" in str(part["data"])]
    assert streamed == [], streamed
