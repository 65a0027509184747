"""Commits of the savers of this package cannot be interrupted by a cancel scope. Commits of a subclass can, so they are
shielded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from checkpoint_savers.records import Commit, Lease, Owner
from pregel_async import START, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict):
    x: int


class SlowCommit(BaseCheckpointSaver):
    """Takes a long time for the commit of the first superstep."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reached, self.arrived = anyio.Event(), anyio.Event()

    async def commit(self, lease: Lease, commit: Commit) -> None:
        if any(row.step == 1 for row in commit.rows):
            self.reached.set()
            await self.arrived.wait()
        await super().commit(lease, commit)  # of the saver that this class is mixed into


class SlowMemorySaver(SlowCommit, InMemorySaver):
    pass


class SlowSqliteSaver(SlowCommit, SqliteSaver):
    pass


class Odd(SqliteSaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)


class Sure(Odd):
    commit_is_shielded = True


class Plain(Sure):
    pass


def test_which_commits_are_shielded() -> None:
    """A class that overrides `commit` is shielded according to its own declaration, wherever it stands in the class
    hierarchy."""
    shielded = (InMemorySaver, SqliteSaver, Sure, Plain)
    assert all(each.commit_is_shielded for each in shielded)
    assert not any(
        each.commit_is_shielded for each in (BaseCheckpointSaver, SlowCommit, SlowMemorySaver, SlowSqliteSaver, Odd)
    )


class SlowAcquire(InMemorySaver):
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        return await super().acquire(thread_id, owner, now=now, expires_at=expires_at)


class SlowRelease(SqliteSaver):
    async def release(self, lease: Lease) -> None:
        await super().release(lease)


class SureRelease(SlowRelease):
    lease_is_shielded = True


def test_which_leases_are_shielded() -> None:
    """P6, P7: a class that overrides `acquire` or `release` is shielded according to its own declaration."""
    shielded = (InMemorySaver, SqliteSaver, PostgresSaver, SureRelease)
    assert all(each.lease_is_shielded for each in shielded)
    assert not any(each.lease_is_shielded for each in (BaseCheckpointSaver, SlowAcquire, SlowRelease))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_waiting_commit_is_not_interrupted(kind: str, tmp_path: Path) -> None:
    """P3, P7: a waiting commit is finished although its run is cancelled meanwhile."""
    async with SlowMemorySaver() if kind == "memory" else SlowSqliteSaver(tmp_path / "threads.db") as saver:
        await _cancelled_commit(saver)


async def _cancelled_commit(saver: SlowCommit) -> None:
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
