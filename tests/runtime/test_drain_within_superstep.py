"""A drain within a superstep: running tasks finish and are recorded, and no further task begins (P5, P7)."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import anyio.to_process
import anyio.to_thread
import pytest
import sniffio

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    START,
    Command,
    GraphDrained,
    RetryPolicy,
    RunControl,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.errors import GraphInterrupt, InterruptSwallowedError
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[int], operator.add]


class Fan:
    """A fan-out of `count` sends, of which the `last` one to begin requests a drain; with a record of what ran."""

    def __init__(self, count: int = 9, last: int = 2, **node: Any) -> None:
        self.control = RunControl()
        self.ran: list[int] = []
        self.count, self.last, self.node = count, last, node

    async def work(self, number: int) -> State:
        self.ran.append(number)
        await anyio.lowlevel.checkpoint()
        if len(self.ran) > self.last:
            self.control.request_drain()
        return {"log": [number]}

    def graph(self, saver: BaseCheckpointSaver | bool | None, work: Any = None) -> Any:
        made = StateGraph(State).add_node("work", work or self.work, **self.node)
        made.add_node("after", lambda state: {"log": [len(state["log"])]}).add_edge("work", "after")
        made.add_conditional_edges(START, lambda _: [Send("work", n) for n in range(self.count)], ["work"])
        return made.compile(saver)

    @property
    def result(self) -> Any:
        return {"log": [*range(self.count), self.count]}


def at_most(width: int) -> Any:
    return {"configurable": {"thread_id": "t"}, "max_concurrency": width}


async def test_tasks_that_wait_for_a_slot_do_not_begin() -> None:
    """P5: running tasks of a fan-out finish and are recorded, and the caller gets GraphDrained; a resume runs the
    others, and each runs once. (tests/savers/test_drain.py checks each saver and durability.)"""
    fan = Fan()
    graph = fan.graph(InMemorySaver())
    async with nothing_left():
        with pytest.raises(GraphDrained):
            await graph.ainvoke({}, at_most(2), control=fan.control)
    begun = list(fan.ran)
    assert 3 <= len(begun) <= 4, "those that had a slot"
    assert await graph.ainvoke(None, at_most(2)) == fan.result
    assert sorted(fan.ran) == list(range(fan.count))


async def test_tasks_that_share_a_turn_do_not_begin() -> None:
    """P5: the same without `max_concurrency`, with tasks that wait for nothing and therefore run one after the
    other."""
    fan = Fan(last=99)

    async def work(number: int) -> State:
        fan.ran.append(number)
        if number == 2:
            fan.control.request_drain()
        return {"log": [number]}

    graph = fan.graph(InMemorySaver(), work)
    with pytest.raises(GraphDrained):
        await graph.ainvoke({}, "t", control=fan.control)
    assert fan.ran == [0, 1, 2]
    assert await graph.ainvoke(None, "t") == fan.result
    assert sorted(fan.ran) == list(range(fan.count))


@pytest.mark.parametrize("abandon", [False, True])
async def test_functions_that_wait_for_a_thread_are_not_called(abandon: bool) -> None:
    """P5: plain functions that wait for one of the loop's worker threads count as queued."""
    fan = Fan(count=30, abandon_on_cancel=abandon)

    def work(number: int) -> State:
        fan.ran.append(number)
        if len(fan.ran) == 5:
            fan.control.request_drain()
        return {"log": [number]}

    graph = fan.graph(InMemorySaver(), work)
    threads = anyio.to_thread.current_default_thread_limiter()
    before, threads.total_tokens = threads.total_tokens, 2
    try:
        with pytest.raises(GraphDrained):
            await graph.ainvoke({}, "t", control=fan.control)
    finally:
        threads.total_tokens = before
    assert 5 <= len(fan.ran) <= 7
    assert await graph.ainvoke(None, "t") == fan.result
    assert sorted(fan.ran) == list(range(fan.count))


async def test_running_tasks_are_retried() -> None:
    """P5: a running task ends in its usual way: it is retried, and its error handler runs."""
    control, ran = RunControl(), list[str]()

    async def work(number: int) -> State:
        ran.append(f"work {number}")
        control.request_drain()
        raise ConnectionError("no")

    async def handler(state: Any) -> State:
        ran.append("handler")
        return {"log": [-1]}

    made = StateGraph(State)
    made.add_node(
        "work",
        work,
        retry_policy=RetryPolicy(max_attempts=2, initial_interval=1e-9, jitter=False),
        error_handler=handler,
    )
    made.add_conditional_edges(START, lambda _: [Send("work", 0), Send("work", 1)], ["work"])
    graph = made.compile(InMemorySaver())
    with pytest.raises(GraphDrained):
        await graph.ainvoke({}, at_most(1), control=control)
    assert ran == ["work 0", "work 0", "handler"]
    assert await graph.ainvoke(None, "t") == {"log": [-1, -1]}
    assert ran[3:] == ["work 1", "work 1", "handler"]


async def test_a_failure_and_a_question_go_before() -> None:
    """P8, P9: when some tasks did not begin, the failure of a running task is still raised, and a question still asked;
    its answer is applied, and the remaining tasks run then."""
    control, ran = RunControl(), list[int]()

    async def work(number: int) -> State:
        ran.append(number)
        control.request_drain()
        if number == 0 and len(ran) == 1:
            raise ValueError("no")
        return {"log": [interrupt("?") if number == 0 else number]}

    made = StateGraph(State).add_node("work", work)
    made.add_conditional_edges(START, lambda _: [Send("work", 0), Send("work", 1)], ["work"])
    graph = made.compile(InMemorySaver())
    with pytest.raises(ValueError, match="^no\n"):
        await graph.ainvoke({}, at_most(1), control=control)
    control = RunControl()
    asked: Any = await graph.ainvoke(None, at_most(1), control=control)
    assert [question.value for question in asked["__interrupt__"]] == ["?"]
    assert ran == [0, 0]
    assert await graph.ainvoke(Command(resume=7), at_most(1)) == {"log": [7, 1]}
    assert ran == [0, 0, 0, 1]


async def test_a_fan_out_of_subgraphs() -> None:
    """P5: graphs that wait for a slot do not begin, and a running one stops at its own barrier; three deep."""
    fan = Fan(count=3, last=0)

    def graphs(state: Any) -> list[Send]:
        return [Send("middle", {"log": []}), Send("middle", {"log": []})]

    middle = StateGraph(State).add_node("fan", fan.graph(None)).add_edge(START, "fan")
    made = StateGraph(State).add_node("middle", middle.compile())
    graph = made.add_conditional_edges(START, graphs, ["middle"]).compile(InMemorySaver())
    with pytest.raises(GraphDrained):
        await graph.ainvoke({}, at_most(1), control=fan.control)
    assert fan.ran == [0]
    assert await graph.ainvoke(None, at_most(1)) == {"log": [0, 1, 2, 3] * 2}
    assert fan.ran == [0, 1, 2, 0, 1, 2]


async def test_a_command_for_the_parent_graph_waits_for_the_others() -> None:
    """P5: a command for the parent graph is carried out when the tasks that did not begin have run."""
    control, ran = RunControl(), list[int]()

    async def work(number: int) -> Any:
        ran.append(number)
        control.request_drain()
        return Command(graph=Command.PARENT, update={"log": [number]}) if number == 0 else {"log": [number]}

    inner = StateGraph(State).add_node("work", work)
    inner.add_conditional_edges(START, lambda _: [Send("work", 0), Send("work", 1)], ["work"])
    graph = StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner").compile(InMemorySaver())
    with pytest.raises(GraphDrained):
        await graph.ainvoke({}, at_most(1), control=control)
    assert await graph.ainvoke(None, at_most(1)) == {"log": [0]}
    assert ran == [0, 1]


async def test_a_reader_that_reconnects() -> None:
    """P4, P5: stored events contain each finished task once, before and after the drain."""
    fan = Fan(count=5)
    graph = fan.graph(InMemorySaver())

    async def read(*given: Any, **options: Any) -> list[Any]:
        async with graph.astream(*given, keep_events=True, stream_mode="updates", version="v2", **options) as stream:
            nonlocal cursor
            async for part in stream:
                # otherwise the part is of a recorded result
                if part["type"] == "updates" and "__metadata__" not in part["data"]:
                    seen.append(part["data"])
                cursor = stream.cursor
        return seen

    seen, cursor = list[Any](), None
    with pytest.raises(GraphDrained):
        await read({}, at_most(1), control=fan.control)
    assert seen == [{"work": {"log": [n]}} for n in range(3)]
    assert await read(None, at_most(1), after=cursor) == [
        *({"work": {"log": [n]}} for n in range(5)),
        {"after": {"log": [5]}},
    ]


async def test_without_a_saver() -> None:
    """Without a saver the run stops all the same."""
    fan = Fan()
    with pytest.raises(GraphDrained):
        await fan.graph(None).ainvoke({}, {"max_concurrency": 1}, control=fan.control)
    assert fan.ran == [0, 1, 2]


class Calls:
    """An entrypoint that calls a task nine times at once, with a record of the calls that ran."""

    def __init__(self, **settings: Any) -> None:
        self.control = RunControl()
        self.ran: list[int] = []
        self.swallows = False

        async def called(number: int) -> int:
            self.ran.append(number)
            await anyio.lowlevel.checkpoint()
            if len(self.ran) > 2:
                self.control.request_drain()
            return number

        step: Any = task(called)

        @entrypoint(checkpointer=InMemorySaver())
        async def flow(given: int) -> Any:
            futures = [step(number) for number in range(9)]
            if sniffio.current_async_library() == "asyncio":
                return await asyncio.gather(*futures, return_exceptions=self.swallows)
            found = []
            for future in futures:
                try:
                    found.append(await future)
                except BaseException:
                    if not self.swallows:
                        raise
            return found

        self.flow = flow


@pytest.mark.parametrize("swallows", [False, True])
async def test_called_tasks_that_wait_for_a_slot_do_not_begin(swallows: bool) -> None:
    """P5: running calls finish and are recorded, the others do not begin, and their caller stops; it runs again, and
    only the other calls run. The caller may catch the exception that stops it: `gather(..., return_exceptions=True)`.
    """
    calls = Calls()
    calls.swallows = swallows
    async with nothing_left():
        with pytest.raises(GraphDrained):
            await calls.flow.ainvoke(1, at_most(2), control=calls.control)
    assert 3 <= len(calls.ran) <= 4
    assert await calls.flow.ainvoke(None, at_most(2)) == list(range(9))
    assert sorted(calls.ran) == list(range(9))


async def test_calls_that_need_not_wait_begin() -> None:
    """P5: a running node is to finish: its later calls begin, unless they have to wait."""
    calls = Calls()
    assert await calls.flow.ainvoke(1, "t", control=calls.control) == list(range(9))


async def test_a_swallowed_question_is_still_an_error() -> None:
    """P8: a drain excuses no node that swallows a question while another call did not begin."""
    control, began, go = RunControl(), anyio.Event(), anyio.Event()

    @task
    async def asks() -> None:
        began.set()
        await go.wait()
        interrupt("?")

    @task
    async def waits() -> None:
        raise AssertionError("it had no slot")

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: int) -> None:
        first = asks()
        await began.wait()
        second = waits()
        for _ in range(3):  # turns of the event loop in which the call comes to wait: both slots are taken
            await anyio.lowlevel.checkpoint()
        control.request_drain()
        go.set()
        for future in (first, second):
            with pytest.raises(GraphInterrupt):
                await future

    with pytest.raises(InterruptSwallowedError):
        await flow.ainvoke(1, at_most(2), control=control)


async def test_a_called_function_that_waits_for_a_thread_is_not_called() -> None:
    """P5: a call that waited for a worker thread when the drain came does not begin; the caller stops, and finishes
    when it is resumed."""
    control, ran, lock = RunControl(), list[int](), threading.Lock()

    @task
    def step(number: int) -> int:
        with lock:
            ran.append(number)
            if len(ran) == 2:
                control.request_drain()
        return number

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: int) -> list[int]:
        return [await future for future in [step(number) for number in range(20)]]

    threads = anyio.to_thread.current_default_thread_limiter()
    before, threads.total_tokens = threads.total_tokens, 1
    try:
        with pytest.raises(GraphDrained):
            await flow.ainvoke(1, "t", control=control)
    finally:
        threads.total_tokens = before
    assert len(ran) == 2
    assert await flow.ainvoke(None, "t") == list(range(20))
    assert sorted(ran) == list(range(20))


def adds_itself(number: int) -> State:
    return {"log": [number]}


async def test_a_function_that_waits_for_a_process_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: the same for functions that run in worker processes. (Here the function runs in the test's own process.)"""
    control, ran = RunControl(), list[Any]()

    async def run_here(call: Any, *args: Any, **options: Any) -> Any:
        ran.append(args)
        await anyio.lowlevel.checkpoint()
        control.request_drain()
        return call(*args)

    made = StateGraph(State).add_node("work", adds_itself, on_timeout="process", timeout=1000)
    made.add_conditional_edges(START, lambda _: [Send("work", n) for n in range(4)], ["work"])
    graph = made.compile(InMemorySaver())
    workers = anyio.to_process.current_default_process_limiter()
    before, workers.total_tokens = workers.total_tokens, 1
    try:
        with monkeypatch.context() as patch:
            patch.setattr(anyio.to_process, "run_sync", run_here)
            with pytest.raises(GraphDrained):
                await graph.ainvoke({}, "t", control=control)
            assert len(ran) == 1
            assert await graph.ainvoke(None, "t") == {"log": [0, 1, 2, 3]}
    finally:
        workers.total_tokens = before
    assert len(ran) == 4
