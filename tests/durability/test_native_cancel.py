"""P6, P7: every task of a run is cancelled natively during a transaction, as at the end of `asyncio.run`."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.conformance.savers.suite import LATER, here
from checkpoint_savers.lease import UpkeepLease, acquire
from checkpoint_savers.records import Lease, Owner
from checkpoint_savers.sqlite.worker import Job, Worker
from pregel_async import START, StateGraph


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def a(state: State) -> State:
    return {"log": ["a"]}


async def b(state: State) -> State:
    return {"log": ["b"]}


def graph_of(saver: SqliteSaver, *, nested: bool) -> Any:
    steps = StateGraph(State).add_sequence([a, b, ("c", a)]).add_edge(START, "a")
    if nested:
        steps = StateGraph(State).add_node("inside", steps.compile(checkpointer=True)).add_edge(START, "inside")
    return steps.compile(saver)


def cancel_all_but(spared: asyncio.Task[Any] | None) -> None:
    for task in asyncio.all_tasks():
        if task is not spared:
            task.cancel()


@pytest.mark.parametrize("commit", [1, 2, 3])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_commit_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any, nested: bool, commit: int
) -> None:
    """P4, P7: the commit is stored and its outcome known, so that the run stores what is left and ends as cancelled.
    The thread is free, and a resume continues from there."""
    begun = 0
    submit = Worker.submit

    async def main() -> None:
        nonlocal begun
        async with SqliteSaver.from_conn_string(tmp_path / "t.db", synchronous="NORMAL") as saver:
            graph = graph_of(saver, nested=nested)

            def submitted(worker: Worker, job: Job[Any], waiter: Any) -> None:
                nonlocal begun
                submit(worker, job, waiter)
                if job.work.__name__ == "commit":
                    begun += 1
                    if begun == commit:
                        cancel_all_but(spared)

            monkeypatch.setattr(Worker, "submit", submitted)
            spared = asyncio.current_task()
            run = asyncio.create_task(graph.ainvoke({"log": ["in"]}, "t", durability=durability))
            await asyncio.wait([run])
            monkeypatch.undo()
            assert run.cancelled() is (begun >= commit)
            if not run.cancelled():
                assert durability == "exit" and run.exception() is None
            state = await graph.aget_state("t")
            if state.next:
                state = await graph.ainvoke(None, "t")
            else:
                state = state.values
            assert state["log"][-3:] == ["a", "b", "a"]
            assert (await saver.acquire("t", here("next"), now=0.0, expires_at=LATER)).epoch > 1

    asyncio.run(main())


class UnshieldedLeases(InMemorySaver):
    """A saver whose `acquire` and `release` are shielded by a task of their own."""

    lease_is_shielded = False


class SlowLeases(InMemorySaver):
    """A saver whose `acquire` and `release` wait, and can be cancelled while they do."""

    def __init__(self) -> None:
        super().__init__()
        self.at = ""
        self.go_on = asyncio.Event()

    async def _pause(self, verb: str) -> None:
        self.at = verb
        await self.go_on.wait()
        self.go_on.clear()
        self.at = ""

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        lease = await super().acquire(thread_id, owner, now=now, expires_at=expires_at)
        await self._pause("acquire")
        return lease

    async def release(self, lease: Lease) -> None:
        await self._pause("release")
        await super().release(lease)


async def reached(saver: SlowLeases, verb: str) -> None:
    while saver.at != verb:
        await asyncio.sleep(0)


async def use(saver: InMemorySaver) -> None:
    async with UpkeepLease(saver, "t"):
        pass


async def take_it(saver: SlowLeases) -> None:
    await acquire(saver, "t", here("run"), now=0.0, expires_at=LATER)


@pytest.mark.parametrize("work", [take_it, use])
@pytest.mark.parametrize("times", [1, 3])
def test_releasing_a_lease(work: Callable[[SlowLeases], Any], times: int) -> None:
    """P6: a saver with a slow `release` finishes it, however often its caller is cancelled; otherwise the thread would
    be busy until the lease expires."""

    async def main() -> None:
        saver = SlowLeases()
        task = asyncio.create_task(work(saver))
        for verb in ("acquire", "release"):
            await reached(saver, verb)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            saver.go_on.set()
            while saver.at == verb:
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [header.owner for header in await saver.threads()] in ([], [None])

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("spares_the_caller", [False, True])
def test_acquiring_and_releasing_while_all_is_cancelled(spares_the_caller: bool) -> None:
    """P6: `asyncio.run` also cancels the tasks in which a lease is acquired and released, before they begin: the thread
    is free all the same, and code that is not cancelled itself notices nothing."""

    async def main(turn: int) -> bool:
        saver = UnshieldedLeases()
        before = asyncio.current_task()
        task = asyncio.create_task(use(saver))
        for _ in range(turn):
            await asyncio.sleep(0)
        done = task.done()
        for one in asyncio.all_tasks() - {before} - ({task} if spares_the_caller else set()):
            one.cancel()
        await asyncio.wait([task])
        assert task.cancelled() is not (done or spares_the_caller)
        assert [header.owner for header in await saver.threads()] in ([], [None])
        return done

    turns = 0
    while not asyncio.run(main(turns)):
        turns += 1
    assert turns > 2
