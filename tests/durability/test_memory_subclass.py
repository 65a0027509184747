"""InMemorySaver's commits cannot be cut off, as they wait for nothing. A subclass's may wait."""

from __future__ import annotations

from typing import TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.records import Claim, Commit
from pregel_async import START, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict):
    x: int


class Far(InMemorySaver):
    """Takes its time for the commit of a first superstep."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.arrived = anyio.Event(), anyio.Event()

    async def commit(self, claim: Claim, commit: Commit) -> None:
        if any(row.step == 1 for row in commit.rows):
            self.reached.set()
            await self.arrived.wait()
        await super().commit(claim, commit)


async def test_a_commit_that_waits_is_not_cut_off() -> None:
    """P3, P7: what a node has done is stored, although its run is cancelled while it is on its way."""

    async def node(state: State) -> State:
        return {"x": state["x"] + 1}

    saver = Far()
    graph = StateGraph(State).add_sequence([("a", node), ("b", node)]).add_edge(START, "a").compile(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {"x": 0}, "t")
        await saver.reached.wait()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            saver.arrived.set()
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"x": 1}, ("b",))
