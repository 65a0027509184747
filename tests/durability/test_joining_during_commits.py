"""Readers that join a run at an awkward moment: during a commit, and when another run has acquired the thread."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError
from checkpoint_savers.records import Commit, Lease, TaskRecord
from pregel_async import START, Command, StateGraph, get_stream_writer, interrupt

pytestmark = pytest.mark.anyio

ASK: Any = {"stream_mode": ["custom", "updates", "values"], "version": "v2"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def test_a_joined_reader_ends_with_its_run() -> None:
    """P6, P12: a run releases its thread with its last commit and may wait for its reader then. When a second run,
    started meanwhile, took the first one's place among the runs that can be joined, readers that had joined the first
    waited forever."""

    async def work(state: State) -> State:
        return {"log": ["x"]}

    graph = StateGraph(State).add_node(work).add_edge(START, "work").compile(InMemorySaver())
    slow = graph.astream({"log": []}, "t", keep_events=True, capacity=1, **ASK)
    seen = [await anext(slow)]
    joined: list[Any] = []

    async def join() -> None:
        async for part in graph.astream(None, "t", after=seen[0]["cursor"], **ASK):
            joined.append(part)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            while (await graph.aget_state("t")).next:  # the last parts wait for the slow reader
                await anyio.sleep(0.01)
            second = [part async for part in graph.astream({"log": []}, "t", keep_events=True, **ASK)]
            seen += [part async for part in slow]
    assert [part["data"] for part in joined] == [part["data"] for part in seen[1:]]
    assert second[-1]["data"] == {"log": ["x", "x"]}


class HoldingSaver(InMemorySaver):
    """A saver that holds the next commit with events, once it is armed."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    async def commit(self, lease: Lease, commit: Commit) -> None:
        if self.holds and commit.events:
            self.reached.set()
            await self.opened.wait()
        await super().commit(lease, commit)


@pytest.mark.parametrize(("many", "read"), [(2, 1), (2, 2), (300, 1), (300, 5), (300, 299), (300, 301)])
@pytest.mark.parametrize("ends", ["commit", "failure"])
async def test_joining_while_a_superstep_is_being_stored(many: int, read: int, ends: str) -> None:
    """docs/streaming.md: "The run goes on in this process: you join it, and get every chunk once." During a transaction
    its events were neither stored nor buffered: a reader that joined then missed them, and got a notice that the
    superstep was void."""
    saver = HoldingSaver()

    async def work(state: State) -> State:
        writer = get_stream_writer()
        for number in range(many):
            await writer(number)
        if state.get("log"):  # of the second superstep
            saver.holds = True
            if ends == "failure":
                raise ZeroDivisionError
        return {"log": ["x"]}

    builder = StateGraph(State).add_sequence([("first", work), ("second", work)])
    graph = builder.add_edge(START, "first").compile(saver)
    seen: list[Any] = []
    joined: list[Any] = []
    failed: list[BaseException] = []

    async def run() -> None:
        try:
            async for part in graph.astream({"log": []}, "t", keep_events=True, **ASK):
                seen.append(part)
        except ZeroDivisionError as error:
            failed.append(error)

    async def join(after: str) -> None:
        try:
            async for part in graph.astream(None, "t", after=after, **ASK):
                joined.append(part)
        except ZeroDivisionError as error:
            failed.append(error)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await saver.reached.wait()
            await anyio.wait_all_tasks_blocked()
            # one of the time before the second superstep, and all but one of the second superstep
            at = len(seen) - many + read - 2
            group.start_soon(join, seen[at]["cursor"])
            await anyio.wait_all_tasks_blocked()
            early = [part["data"] for part in joined]
            saver.opened.set()
    assert early == [part["data"] for part in seen[at + 1 :]][: len(early)]
    assert [(part["type"], part["data"]) for part in joined] == [
        (part["type"], part["data"]) for part in seen[at + 1 :]
    ]
    assert [part["seq"] for part in joined] == [part["seq"] for part in seen[at + 1 :]]
    assert len(failed) == (2 if ends == "failure" else 0)


class Failing(InMemorySaver):
    """A saver that holds the next record, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        if self.fails:
            self.reached.set()
            await self.opened.wait()
            raise StorageError("down")
        await super().record(lease, records, expires_at=expires_at)


async def test_readers_do_not_join_a_call_that_fails_before_it_starts() -> None:
    """docs/streaming.md: "It has ended, or asks: you get what you missed". A reader that reconnected while another call
    of the thread was passing an answer that could not be stored had joined that call, and got its error."""
    saver = Failing()

    async def ask(state: State) -> State:
        return {"log": [interrupt("go on?")]}

    graph = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(saver)
    seen = [part async for part in graph.astream({"log": []}, "t", keep_events=True, **ASK)]
    joined: list[Any] = []

    async def answer() -> None:
        with pytest.raises(StorageError):
            await graph.astream(Command(resume="yes"), "t", keep_events=True, version="v2").finish()

    async def join() -> None:
        async for part in graph.astream(None, "t", after=seen[0]["cursor"], **ASK):
            joined.append(part)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            saver.fails = True
            group.start_soon(answer)
            await saver.reached.wait()
            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            saver.opened.set()
    assert [part["data"] for part in joined] == [part["data"] for part in seen[1:]]
