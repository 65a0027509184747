"""A reader that joins a run at an awkward moment."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph

pytestmark = pytest.mark.anyio

ASK: Any = {"stream_mode": ["custom", "updates", "values"], "version": "v2"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def test_a_joined_reader_ends_with_its_run_whoever_has_the_thread_by_then() -> None:
    """P6, P12: a run gives its thread up with its last commit, and may wait for its reader then. A second run, begun
    meanwhile, took the first one's place among those that can be joined, so that whoever had joined the first waited
    forever.
    """

    async def work(state: State) -> State:
        return {"log": ["x"]}

    graph = StateGraph(State).add_node(work).add_edge(START, "work").compile(InMemorySaver())
    slow = graph.astream({"log": []}, "t", keep_events=True, capacity=1, **ASK)
    seen = [await anext(slow)]
    joined: list[Any] = []

    async def join() -> None:
        async for part in graph.astream(None, "t", after=seen[0]["cursor"], **ASK):
            joined.append(part)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            while (await graph.aget_state("t")).next:  # the last parts wait for the slow reader
                await anyio.sleep(0.01)
            second = [part async for part in graph.astream({"log": []}, "t", keep_events=True, **ASK)]
            seen += [part async for part in slow]
    assert [part["data"] for part in joined] == [part["data"] for part in seen[1:]]
    assert second[-1]["data"] == {"log": ["x", "x"]}
