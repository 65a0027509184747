"""Reconnecting after another attempt or on another branch: a reader gets the events that were committed, and a notice
for void ones."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.records import EventRow
from pregel_async import START, StateGraph, get_stream_writer, interrupt
from pregel_async._runtime.streaming.buffer import CAPACITY
from pregel_async._runtime.streaming.event_recorder import FLUSH_EVENTS
from pregel_async.errors import StreamFullError
from pregel_async.types import Durability
from tests.helpers.passing_saver import WRITES, Through
from tests.helpers.stream_reader import kept_by_reader

pytestmark = pytest.mark.anyio

ASK: Any = {"stream_mode": ["custom", "values", "updates"], "version": "v2"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Attempts:
    """A graph first -> second whose nodes stream which attempt they are. The second node waits forever in the attempts
    of `stuck`."""

    def __init__(self, *stuck: int, silent: bool = False) -> None:
        self.number = 1
        self.reached = anyio.Event()
        self.began = anyio.Event()
        self.may_write = anyio.Event()
        self.may_write.set()

        async def first(state: State) -> State:
            await get_stream_writer()(f"{self.number} first")
            return {"log": ["first"]}

        async def second(state: State) -> State:
            self.began.set()
            await self.may_write.wait()
            if not silent:
                await get_stream_writer()(f"{self.number} second")
            if self.number in stuck:
                self.reached.set()
                await anyio.sleep_forever()
            return {"log": ["second"]}

        builder = StateGraph(State).add_node(first).add_node(second).add_edge(START, "first")
        self.graph = builder.add_edge("first", "second").compile(InMemorySaver())

    async def interrupted_attempt(self, durability: Durability = "sync") -> list[dict[str, Any]]:
        """Return what a reader saw of the first attempt, which is interrupted in its second superstep."""
        stream = self.graph.astream({"log": []}, "t", keep_events=True, durability=durability, **ASK)
        parts: list[dict[str, Any]] = []
        async with stream:
            with anyio.move_on_after(30):
                async with anyio.create_task_group() as group:

                    async def read_on() -> None:
                        async for part in stream:
                            parts.append(part)

                    group.start_soon(read_on)
                    await self.reached.wait()
                    await anyio.wait_all_tasks_blocked()
                    group.cancel_scope.cancel()
        self.number += 1
        return parts

    async def go_on(self, config: Any = "t") -> list[dict[str, Any]]:
        return await read(self.graph.astream(None, config, keep_events=True, **ASK))

    async def back(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        return await read(self.graph.astream(None, "t", after=part["cursor"], **ASK))


async def read(stream: Any) -> list[dict[str, Any]]:
    async with stream as parts:
        return [part async for part in parts]


def said(parts: Sequence[dict[str, Any]]) -> list[Any]:
    return [part["data"] for part in parts if part["type"] == "custom"]


def kinds(parts: Sequence[dict[str, Any]]) -> list[str]:
    return [part["type"] for part in parts]


async def test_another_caller_ran_the_next_attempt() -> None:
    """P4: a reader of an interrupted attempt gets the notice that it is void before any part of the next attempt, also
    when another caller ran that attempt and it is over."""
    attempts = Attempts(1)
    parts = await attempts.interrupted_attempt()
    assert said(parts) == ["1 first", "1 second"]
    await attempts.go_on()
    rest = await attempts.back(parts[-1])
    assert rest[0]["type"] == "superstep_restarted"
    assert rest[0]["data"]["step"] == 2
    assert kinds(rest).count("superstep_restarted") == 1
    assert said(rest) == ["2 second"]
    assert [part["seq"] for part in rest] == list(range(len(parts) + 1, len(parts) + 1 + len(rest)))
    assert said(await attempts.back(parts[0])) == ["1 first", "2 second"]


@pytest.mark.parametrize("at", [0, -1], ids=["of the beginning", "of the end"])
@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
async def test_a_reader_resumes_an_interrupted_run(mode: Durability, at: int) -> None:
    """P12: parts of closed supersteps come again from storage, parts of the open one are void; also when all of it is
    stored as the run is interrupted."""
    attempts = Attempts(1)
    parts = await attempts.interrupted_attempt(mode)
    assert said(parts) == ["1 first", "1 second"]
    rest = await attempts.back(parts[at])
    seen = parts[:1] if at == 0 else parts
    assert said(kept_by_reader([*seen, *rest])) == ["1 first", "2 second"]
    assert rest[-1]["data"] == {"log": ["first", "second"]}


@pytest.mark.parametrize("resumed_by", ["another call", "a reader that saw nothing void"])
async def test_joining_before_the_next_attempt_writes(resumed_by: str) -> None:
    """P4: a reader that joins the next attempt before its first part gets the notice that it has read void parts."""
    attempts = Attempts(1)
    parts = await attempts.interrupted_attempt()
    attempts.began, attempts.may_write = anyio.Event(), anyio.Event()
    after = {} if resumed_by == "another call" else {"after": parts[0]["cursor"]}
    resuming = attempts.graph.astream(None, "t", keep_events=True, **after, **ASK)
    with anyio.fail_after(30):
        async with resuming, anyio.create_task_group() as group:
            group.start_soon(resuming.finish)
            await attempts.began.wait()
            async with attempts.graph.astream(None, "t", after=parts[-1]["cursor"], **ASK) as joined:
                await joined.begin()
                await anyio.wait_all_tasks_blocked()
                attempts.may_write.set()
                rest = [part async for part in joined]
    assert kinds(rest).count("superstep_restarted") == 1
    assert said(kept_by_reader([*parts, *rest])) == ["1 first", "2 second"]


async def test_several_interrupted_attempts() -> None:
    """P4: of several interrupted attempts no part comes back."""
    attempts = Attempts(1, 2)
    parts = await attempts.interrupted_attempt()
    with anyio.move_on_after(30):
        attempts.reached = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(attempts.go_on)
            await attempts.reached.wait()
            group.cancel_scope.cancel()
    attempts.number = 3
    await attempts.go_on()
    rest = await attempts.back(parts[-1])
    assert kinds(rest).count("superstep_restarted") == 1
    assert said(rest) == ["3 second"]


async def test_committed_events_are_never_void() -> None:
    """P4: a reader that saw only what the previous commit released, and nothing of the interrupted superstep, gets no
    notice of void parts."""
    attempts = Attempts(1, silent=True)
    parts = await attempts.interrupted_attempt()
    assert parts[-1]["committed"] == 1
    await attempts.go_on()
    rest = await attempts.back(parts[-1])
    assert "superstep_restarted" not in kinds(rest)
    assert rest[-1]["data"] == {"log": ["first", "second"]}


async def test_another_branch() -> None:
    """P2: a reader whose cursor is from before a fork gets the events committed on the branch of the head, and none of
    the sibling branch."""
    attempts = Attempts()
    parts = await read(attempts.graph.astream({"log": []}, "t", keep_events=True, **ASK))
    (fork,) = [state async for state in attempts.graph.aget_state_history("t") if state.next == ("first",)]
    attempts.number = 2
    await attempts.go_on(fork.config)
    states = [part["data"]["log"] for part in await attempts.back(parts[0]) if part["type"] == "values"]
    assert states == [[], ["first"], ["first", "second"]]


@pytest.mark.parametrize("at", ["first", "second"])
async def test_the_superstep_that_was_forked(at: str) -> None:
    """P2: such a reader does not get the events of the sibling's superstep that started at the fork either."""
    attempts = Attempts()
    parts = await read(attempts.graph.astream({"log": []}, "t", keep_events=True, **ASK))
    (fork,) = [state async for state in attempts.graph.aget_state_history("t") if state.next == (at,)]
    attempts.number = 2
    await attempts.go_on(fork.config)
    before = ["1 first"] if at == "second" else ["2 first"]
    assert said(await attempts.back(parts[0])) == [*before, "2 second"]


@pytest.mark.parametrize("more", [0, 1, 2])
async def test_all_events_of_a_superstep_were_flushed(more: int) -> None:
    """P4: a superstep is committed with the events that were flushed before, also when there is nothing to add
    to them."""

    async def talks(state: State) -> State:
        writer = get_stream_writer()
        for number in range(FLUSH_EVENTS + more):
            await writer(number)
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile(InMemorySaver())
    parts = await read(graph.astream({"log": []}, "t", stream_mode="custom", keep_events=True, version="v2"))
    stream = graph.astream(None, "t", stream_mode="custom", after=parts[0]["cursor"], version="v2")
    assert [part["data"] for part in await read(stream)] == list(range(1, FLUSH_EVENTS + more))


async def test_readers_that_joined_and_left() -> None:
    """P12: a run delivers nothing to readers that have joined and left."""
    attempts = Attempts(1)
    stream = attempts.graph.astream({"log": []}, "t", keep_events=True, **ASK)
    async with stream:
        start = await anext(stream)
        await attempts.reached.wait()
        for _ in range(3):
            async with attempts.graph.astream(None, "t", after=start["cursor"], **ASK) as back:
                await anext(back)
                assert len(stream._subscription.sinks) == 2
            assert len(stream._subscription.sinks) == 1


async def test_a_cancelled_finish() -> None:
    """P7: cancelling a caller of `finish()` cancels the run, which has cleaned up before control returns."""
    ended: list[str] = []
    reached = anyio.Event()

    async def waits(state: State) -> State:
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            ended.append("node")
        return {}

    graph = StateGraph(State).add_node(waits).add_edge(START, "waits").compile()
    stream = graph.astream({"log": []})
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(stream.finish)
            await reached.wait()
            group.cancel_scope.cancel()
    assert ended == ["node"]
    assert stream.status == "cancelled"


async def test_a_cancelled_start() -> None:
    """P7: cancelling a caller that waits until its run has acquired the thread cancels the run, which never acquires
    the thread."""
    attempts = Attempts(1)
    holder = attempts.graph.astream({"log": []}, "t", **ASK)
    async with holder:
        await anext(holder)
        await attempts.reached.wait()
        second = attempts.graph.astream({"log": []}, "t", on_conflict="wait", **ASK)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(second.begin)
                await anyio.sleep(0.05)
                group.cancel_scope.cancel()
        assert second.status == "cancelled"


async def test_the_void_notice_says_what_is_committed() -> None:
    """P4: the part that voids an attempt also says what is committed."""
    attempts = Attempts(1)
    parts = await attempts.interrupted_attempt()
    rest = await attempts.back(parts[-1])
    assert rest[0]["type"] == "superstep_restarted"
    assert rest[0]["committed"] == 1


async def test_another_caller_ran_to_a_question() -> None:
    """P8: a question of a run without stored events is open: a reader that reconnects to the question before it does
    not run its node again."""
    ran: list[str] = []
    reached = anyio.Event()

    async def asks(state: State) -> State:
        ran.append("asks")
        if len(ran) == 1:
            reached.set()
            await anyio.sleep_forever()
        return {"log": [interrupt("go on?")]}

    graph = StateGraph(State).add_node(asks).add_edge(START, "asks").compile(InMemorySaver())
    async with graph.astream({"log": []}, "t", keep_events=True, **ASK) as stream:
        start = await anext(stream)
        await reached.wait()
    await graph.ainvoke(None, "t")
    assert ran == ["asks", "asks"]
    await read(graph.astream(None, "t", after=start["cursor"], **ASK))
    assert ran == ["asks", "asks"]


async def test_many_waiting_writers() -> None:
    """P12: writers that already wait for capacity are not charged for the parts they wait to add, however many there
    are in a node."""
    reached: list[int] = []

    async def talks(state: State) -> State:
        writer = get_stream_writer()

        async def say(number: int) -> None:
            writer("at once")
            done = writer("x" * 400_000)
            reached.append(number)
            await done

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(say, number)
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile()
    async with graph.astream({"log": []}, stream_mode="custom", capacity=1) as stream:
        await anyio.wait_all_tasks_blocked()
        assert len(reached) == 60
        assert len([chunk async for chunk in stream]) == 120


async def test_a_slow_joined_reader() -> None:
    """P12: a reader that has joined and is slow slows the run, as the first reader does."""
    written: list[int] = []
    go_on = anyio.Event()

    async def talks(state: State) -> State:
        await go_on.wait()
        for number in range(10 * CAPACITY):
            await get_stream_writer()(number)
            written.append(number)
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile(InMemorySaver())
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    async with stream, anyio.create_task_group() as group:
        start = await anext(stream)
        async with graph.astream(None, "t", after=start["cursor"], **ASK) as back:
            await anyio.wait_all_tasks_blocked()
            group.start_soon(stream.finish)
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            assert len(written) <= 3 * CAPACITY
            assert said([part async for part in back]) == list(range(10 * CAPACITY))


async def test_many_stored_events_without_a_reader() -> None:
    """P12: the buffer of events that are to be stored is bounded too: a loop that never awaits is refused when its
    reader has left."""
    size = 2**20

    async def talks(state: State) -> State:
        for _ in range(32):
            get_stream_writer()("x" * size)
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile(InMemorySaver())
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    with pytest.raises(StreamFullError):
        await stream.finish()


async def test_joining_while_events_are_being_flushed() -> None:
    """Events on their way to storage are streamed to a joining reader as well."""

    class Slow(Through):
        open = anyio.Event()
        slow = False

        async def around(self, verb: str, call: Any) -> Any:
            if self.slow and verb in WRITES:
                await self.open.wait()
            return await call()

    saver = Slow(InMemorySaver())
    saver.open = anyio.Event()

    async def talks(state: State) -> State:
        saver.slow = True
        for number in range(FLUSH_EVENTS + 2):
            await get_stream_writer()(number)
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile(saver)
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    async with stream, anyio.create_task_group() as group:
        start = await anext(stream)
        group.start_soon(stream.finish)
        await anyio.wait_all_tasks_blocked()
        async with graph.astream(None, "t", after=start["cursor"], **ASK) as back:
            try:
                with anyio.fail_after(30):
                    assert [(await anext(back))["data"] for _ in range(FLUSH_EVENTS)] == list(range(FLUSH_EVENTS))
            finally:
                saver.open.set()
            assert said([part async for part in back]) == [FLUSH_EVENTS, FLUSH_EVENTS + 1]


class EndsWhileItIsRead(Through):
    """A saver that ends a run when a reader has read the run's events, before the reader reads the thread's head.

    Args:
        inner: the saver.
        end: ends the run.
    """

    def __init__(self, inner: BaseCheckpointSaver, end: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self._end = end
        self._has_ended = False

    async def events(self, *args: Any, **options: Any) -> tuple[EventRow, ...]:
        rows = await super().events(*args, **options)
        if rows and not self._has_ended:
            self._has_ended = True
            await self._end()
        return rows


async def test_a_superstep_that_ends_while_its_events_are_read() -> None:
    """P12: the parts of a slow node, stored last and with smaller positions, reach a reader elsewhere, in order."""
    spoken, may_end, ended = anyio.Event(), anyio.Event(), anyio.Event()
    saver = InMemorySaver()

    async def slow(state: State) -> State:
        await get_stream_writer()("slow begins")
        spoken.set()
        await may_end.wait()
        await get_stream_writer()("slow ends")
        return {"log": ["slow"]}

    async def quick(state: State) -> State:
        await spoken.wait()
        await get_stream_writer()("quick")
        return {"log": ["quick"]}

    builder = StateGraph(State).add_node(slow).add_node(quick).add_edge(START, "slow").add_edge(START, "quick")

    async def end() -> None:
        may_end.set()
        await ended.wait()

    run, reader = builder.compile(saver), builder.compile(EndsWhileItIsRead(saver, end))
    seen: list[Any] = []

    async def read(stream: Any) -> None:
        async with stream:
            async for part in stream:
                seen.append(part)

    async with anyio.create_task_group() as group:
        stream = run.astream({"log": []}, "t", keep_events=True, **ASK)
        await stream.begin()
        start = stream.cursor

        async def finish() -> None:
            async with stream:
                async for _ in stream:
                    pass
            ended.set()

        group.start_soon(finish)
        while not any(b"quick" in row.frame for row in await saver.events("t")):
            await anyio.lowlevel.checkpoint()
        group.start_soon(read, reader.astream(None, "t", after=start, on_conflict="wait", **ASK))
    said = [part["data"] for part in seen if part["type"] == "custom"]
    assert said == ["slow begins", "quick", "slow ends"]
