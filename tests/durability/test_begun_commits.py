"""With durability "async", a saver that can is handed each commit, and the run waits for the one before: P3, P4 and P7
hold as they do with a task for each commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.bridge import Waiter, wake
from checkpoint_savers.errors import SaverClosedError, StorageError, ThreadBusyError
from checkpoint_savers.records import Commit, Lease
from pregel_async import START, StateGraph
from pregel_async._runtime.persistence.lease import ThreadLease
from pregel_async._runtime.platform.environment import SystemEnvironment

pytestmark = pytest.mark.anyio


class State(TypedDict):
    x: int


class BeginningSaver(InMemorySaver):
    """Begins commits, and finishes each when the test says so.

    Attributes:
        begun: the commits that have begun and not ended.
        refuses: raised by `begin_commit`; None for nothing.
    """

    begins_commits = True

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[Lease, Commit, Waiter, list[BaseException | None]]] = []
        self.refuses: Exception | None = None

    def begin_commit(self, lease: Lease, commit: Commit, waiter: Waiter) -> Callable[[], None]:
        if self.refuses is not None:
            raise self.refuses
        outcome: list[BaseException | None] = []
        self.begun.append((lease, commit, waiter, outcome))

        def result() -> None:
            [error] = outcome
            if error is not None:
                raise error

        return result

    async def finish(self, error: BaseException | None = None) -> None:
        lease, commit, waiter, outcome = self.begun.pop(0)
        if error is None:
            await self.commit(lease, commit)
        outcome.append(error)
        wake((waiter,))

    @asynccontextmanager
    async def during(self, run: Callable[[], Awaitable[object]]) -> AsyncGenerator[TaskGroup]:
        """Have a run under way, for whose commits nothing waits afterwards: a run that does not end fails."""
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                yield group
            finally:
                with anyio.CancelScope(shield=True):
                    for _ in range(20):
                        await anyio.lowlevel.checkpoint()
                    self.refuses = self.refuses or StorageError("the test is over")
                    while self.begun:
                        await self.finish(self.refuses)

    async def reached(self) -> None:
        """Wait until a commit has begun, and for what the run does before it waits for that commit."""
        with anyio.fail_after(30):
            while not self.begun:
                await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()


def chain(saver: InMemorySaver | SqliteSaver, ran: list[str], nodes: int = 3) -> Any:
    def node(name: str) -> Callable[[State], Awaitable[State]]:
        async def run(state: State) -> State:
            ran.append(name)
            return {"x": state["x"] + 1}

        return run

    names = [f"n{at}" for at in range(nodes)]
    builder = StateGraph(State).add_sequence([(name, node(name)) for name in names])
    return builder.add_edge(START, "n0").compile(saver)


async def test_at_most_one_superstep_is_at_risk() -> None:
    """P4: a node runs while the superstep before it is being stored, and the next one starts when that is stored."""
    saver, ran = BeginningSaver(), list[str]()
    graph = chain(saver, ran)
    async with saver.during(lambda: graph.ainvoke({"x": 0}, "t", durability="async")):
        for stored, running in enumerate((["n0"], ["n0", "n1"], ["n0", "n1", "n2"], ["n0", "n1", "n2"])):
            await saver.reached()
            assert ran == running
            [(_, commit, _, _)] = saver.begun
            assert [row.step for row in commit.rows] == ([-1, 0] if stored == 0 else [stored])
            await saver.finish()
    assert (await graph.aget_state("t")).values == {"x": 3}


@pytest.mark.parametrize("at", [0, 2, 3])
async def test_the_error_of_a_commit(at: int) -> None:
    """P4: the caller gets the error of the commit, with a note that says what is stored; the run stops at that barrier,
    and the stored thread is continued later."""
    saver, ran = BeginningSaver(), list[str]()
    graph = chain(saver, ran)
    error = StorageError("the disk is full")
    caught: list[BaseException] = []

    async def run() -> None:
        with pytest.raises(StorageError) as failed:
            await graph.ainvoke({"x": 0}, "t", durability="async")
        caught.append(failed.value)

    async with saver.during(run):
        for number in range(at + 1):
            await saver.reached()
            await saver.finish(error if number == at else None)
    assert caught == [error]
    what = f"superstep {at} finished and is not stored" if at else "the input is not stored"
    assert any(note.startswith(what) for note in error.__notes__), error.__notes__
    assert ran == ["n0", "n1", "n2"][: at + 1]
    if at:
        assert (await graph.aget_state("t")).metadata["step"] == at - 1
        assert (await graph.ainvoke(None, "t"))["x"] == 3


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_the_error_of_a_subgraphs_commit_is_named_once(durability: Any) -> None:
    """P9: no note says that the failure could not be recorded because of the failure itself."""

    class FailingSaver(InMemorySaver):
        async def commit(self, lease: Lease, commit: Commit) -> None:
            if any(row.ns for row in commit.rows):
                raise StorageError("the disk is full")
            await super().commit(lease, commit)

    inner = chain(InMemorySaver(), [])
    inner.checkpointer = None
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(FailingSaver())
    with pytest.raises(StorageError) as caught:
        await graph.ainvoke({"x": 0}, "t", durability=durability)
    assert not [note for note in caught.value.__notes__ if "could not be recorded" in note]


async def test_nothing_is_written_after_a_failed_commit() -> None:
    """P4: once a commit has failed, the run writes nothing more, not even a task record before the next barrier."""
    saver, go_on, written = BeginningSaver(), anyio.Event(), list[str]()
    builder, caught = StateGraph(State), list[BaseException]()
    error = StorageError("the disk is full")
    store, record = saver.commit, saver.record

    async def commit(lease: Lease, commit: Commit) -> None:
        written.append("commit")
        await store(lease, commit)

    async def recorded(*args: Any, **options: Any) -> None:
        written.append("record")
        await record(*args, **options)

    saver.commit, saver.record = commit, recorded  # counts the writes

    async def first(state: State) -> State:
        return {"x": 1}

    async def quick(state: State) -> None:
        await go_on.wait()

    async def slow(state: State) -> None:
        await go_on.wait()
        for _ in range(20):  # until what `quick` leads to has happened
            await anyio.lowlevel.checkpoint()

    builder.add_node(first).add_node(quick).add_node(slow).add_edge(START, "first")
    graph = builder.add_edge("first", "quick").add_edge("first", "slow").compile(saver)

    async def run() -> None:
        with pytest.raises(StorageError) as failed:
            await graph.ainvoke({"x": 0}, "t", durability="async")
        caught.append(failed.value)

    async with saver.during(run):
        await saver.reached()
        await saver.finish()
        await saver.reached()
        await saver.finish(error)
        before = list(written)
        go_on.set()
        with anyio.fail_after(30):
            while not caught:
                await anyio.lowlevel.checkpoint()
        assert caught == [error]
        assert written == before


async def test_a_commit_that_cannot_begin() -> None:
    """P4: the error of a saver that refuses to begin a commit reaches the caller, and no further node starts."""
    saver, ran = BeginningSaver(), list[str]()
    saver.refuses = SaverClosedError("closed")
    with pytest.raises(SaverClosedError) as caught:
        await chain(saver, ran).ainvoke({"x": 0}, "t", durability="async")
    assert caught.value is saver.refuses and ran in ([], ["n0"])


async def test_a_cancelled_run_waits_for_its_commit() -> None:
    """P3, P7: a cancelled run returns when the commit that has begun is stored, and its thread is free then."""
    saver, ran = BeginningSaver(), list[str]()
    graph = chain(saver, ran)
    ended = False

    async def run() -> None:
        nonlocal ended
        try:
            await graph.ainvoke({"x": 0}, "t", durability="async")
        finally:
            ended = True

    async with saver.during(run) as group:
        await saver.reached()
        await saver.finish()
        await saver.reached()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert not ended and len(saver.begun) == 1
            await saver.finish()
            while not ended and not saver.begun:
                await anyio.lowlevel.checkpoint()
            for _ in saver.begun:  # the second node's superstep had finished, too
                await saver.finish()
    assert ended
    state = await graph.aget_state("t")
    assert (state.metadata["step"], state.values["x"]) == (len(ran), len(ran))
    assert (await graph.ainvoke(None, "t"))["x"] == 3


async def test_a_lease_waits_for_begun_commits() -> None:
    """P6, P7: a lease is released after the commits that were handed over under it."""
    saver, ended = BeginningSaver(), False

    async def run() -> None:
        nonlocal ended
        async with await ThreadLease.acquire(saver, SystemEnvironment(), "t", "reject") as lease:
            commit = Commit(rows=(), expected_head=None, expires_at=lease.expiry())
            lease.begin(commit, lambda commit, error: None)
        ended = True

    async with saver.during(run):
        await saver.reached()
        assert not ended
        await saver.finish()
    assert ended


async def test_a_lost_lease(tmp_path: Path) -> None:
    """P6: a run that lost its lease learns it from the commit that was handed over, and stores nothing."""
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db") as saver:

        async def steal(state: State) -> State:
            [header] = await saver.threads()
            assert header.owner is not None
            await saver.acquire("t", header.owner, now=saver.clock(), expires_at=saver.clock() + 60)
            return {"x": 1}

        graph = StateGraph(State).add_node("steal", steal).add_edge(START, "steal").compile(saver)
        with pytest.raises(ThreadBusyError) as caught:
            await graph.ainvoke({"x": 0}, "t", durability="async")
        assert caught.value.lost
        heads = await saver.scan("t", "")
        assert max(head.step for head in heads) == 0


@pytest.mark.one_loop
async def test_no_task_for_each_commit(tmp_path: Path) -> None:
    """A run with "async" starts no task of the event loop for its commits."""
    loop, made = asyncio.get_running_loop(), list[str]()

    def counting(loop: asyncio.AbstractEventLoop, work: Any, **kwargs: Any) -> asyncio.Task[Any]:
        made.append(str(kwargs))
        return asyncio.Task(work, loop=loop, **kwargs)

    async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as saver:
        found = []
        for nodes in (5, 25):
            loop.set_task_factory(counting)
            try:
                assert (await chain(saver, [], nodes).ainvoke({"x": 0}, f"t{nodes}", durability="async"))["x"] == nodes
            finally:
                loop.set_task_factory(None)
            found.append(len(made))
            made.clear()
    assert found[0] == found[1], found


class Overriding(BeginningSaver):
    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, commit)


class Both(Overriding):
    begins_commits = True


def test_which_savers_begin_commits() -> None:
    """A class that overrides `commit` is called by it, until it says that it begins commits, too."""
    assert SqliteSaver.begins_commits and BeginningSaver.begins_commits and Both.begins_commits
    assert not Overriding.begins_commits and not InMemorySaver.begins_commits
