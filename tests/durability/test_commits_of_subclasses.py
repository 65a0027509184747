"""Commits of savers that come with this package cannot be cut off by a scope. Those of a subclass may: it is shielded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from checkpoint_savers.records import Commit, Lease
from pregel_async import START, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict):
    x: int


class Far(BaseCheckpointSaver):
    """Takes its time for the commit of a first superstep."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reached, self.arrived = anyio.Event(), anyio.Event()

    async def commit(self, lease: Lease, commit: Commit) -> None:
        if any(row.step == 1 for row in commit.rows):
            self.reached.set()
            await self.arrived.wait()
        await super().commit(lease, commit)  # of the saver that it is mixed into


class FarMemory(Far, InMemorySaver):
    pass


class FarSqlite(Far, SqliteSaver):
    pass


class Odd(SqliteSaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)


class Sure(Odd):
    commit_is_shielded = True


class Plain(Sure):
    pass


def test_who_is_shielded() -> None:
    """Who has a commit of its own says so itself, wherever it stands."""
    shielded = (InMemorySaver, SqliteSaver, Sure, Plain)
    assert all(each.commit_is_shielded for each in shielded)
    assert not any(each.commit_is_shielded for each in (BaseCheckpointSaver, Far, FarMemory, FarSqlite, Odd))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_commit_that_waits_is_not_cut_off(kind: str, tmp_path: Path) -> None:
    """P3, P7: what a node has done is stored, although its run is cancelled while it is on its way."""
    async with FarMemory() if kind == "memory" else FarSqlite(tmp_path / "threads.db") as saver:
        await _cut_off(saver)


async def _cut_off(saver: Far) -> None:
    async def node(state: State) -> State:
        return {"x": state["x"] + 1}

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
