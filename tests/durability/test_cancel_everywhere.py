"""Cancellation before every step of every task of a run: nothing is left behind, and the thread can continue at once.

By default each case tries some of the steps; see `places`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
import sniffio

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async._runtime.streaming.stream import GraphStream
from pregel_async.types import Durability
from tests.durability.durable_environment import Graph, Watch, config_of, is_one_chain, left_to_do, places, trace_of
from tests.durability.durable_graphs import SCENARIOS, WHERE, Probe, Scenario
from tests.helpers.environments import SeededEnvironment
from tests.helpers.steps import Steps, tasks_now

pytestmark = pytest.mark.anyio

CHOSEN = [s for s in SCENARIOS if s.name in ("chain", "fan-out", "threads", "failing-node", "async-router", "join")]

FEW = [s for s in SCENARIOS if s.name in ("chain", "fan-out", "failing-node", "threads")]


class Durable:
    """A graph that runs in one durability mode."""

    def __init__(self, graph: Graph, mode: Durability) -> None:
        self._graph = graph
        self._mode: Durability = mode

    def ainvoke(self, given: Any, config: dict[str, Any]) -> Awaitable[Any]:
        return self._graph.ainvoke(given, config, durability=self._mode)

    def astream(self, given: Any, config: dict[str, Any], *, stream_mode: Any) -> GraphStream[Any]:
        return self._graph.astream(given, config, durability=self._mode, stream_mode=stream_mode)


Way = Callable[[Durable, Any, dict[str, Any], Steps], Awaitable[Any]]


class Cancelled(Exception):
    """The exception that a way of calling raises when its run was cancelled."""


async def invoked_by_scope(graph: Durable, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    with anyio.CancelScope() as scope:
        steps.act = scope.cancel
        return await graph.ainvoke(given, config)
    raise Cancelled


async def invoked_natively(graph: Durable, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    task = asyncio.current_task()
    assert task is not None
    steps.act = task.cancel
    try:
        return await graph.ainvoke(given, config)
    except asyncio.CancelledError:
        task.uncancel()
        raise Cancelled from None


async def invoked_again_and_again_natively(graph: Durable, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    """Call, and cancel natively again and again, which also hits code that is shielded from cancel scopes."""
    task = asyncio.current_task()
    assert task is not None
    steps.act, steps.again = task.cancel, not steps.acted
    try:
        return await graph.ainvoke(given, config)
    except asyncio.CancelledError:
        raise Cancelled from None
    finally:
        steps.again = False
        while task.uncancel():
            pass


async def streamed_by_scope(graph: Durable, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    with anyio.CancelScope() as scope:
        steps.act = scope.cancel
        return await _read(graph, given, config)
    raise Cancelled


async def streamed_natively(graph: Durable, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    task = asyncio.current_task()
    assert task is not None
    steps.act = task.cancel
    try:
        return await _read(graph, given, config)
    except asyncio.CancelledError:
        task.uncancel()
        raise Cancelled from None


async def _read(graph: Durable, given: Any, config: dict[str, Any]) -> Any:
    chunks = [chunk async for chunk in graph.astream(given, config, stream_mode=["values", "updates"])]
    return [chunk for mode, chunk in chunks if mode == "values"][-1]


async def streamed_and_closed(graph: Durable, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    """Close the stream from another task while it is being read."""
    last: Any = None
    failure: Exception | None = None
    closing = anyio.Event()
    closed = False

    async def close() -> None:
        nonlocal closed, failure
        await closing.wait()
        try:
            await stream.aclose()
        except Exception as error:  # the run had already failed
            failure = error
        closed = True

    async with anyio.create_task_group() as group:
        steps.act = closing.set
        group.start_soon(close)
        stream = graph.astream(given, config, stream_mode="values")
        try:
            async for chunk in stream:
                last = chunk
        except Exception as error:
            failure = error
        if closing.is_set():
            while not closed:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if closed:
        raise Cancelled
    return last


WAYS = [
    invoked_by_scope,
    invoked_natively,
    invoked_again_and_again_natively,
    streamed_by_scope,
    streamed_natively,
    streamed_and_closed,
]


@pytest.mark.pairwise
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("scenario", CHOSEN, ids=str)
async def test_every_step(
    scenario: Scenario,
    way: Way,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
    request: pytest.FixtureRequest,
) -> None:
    """P5, P6, P7: whichever step the cancellation hits, every node has cleaned up when control returns; no task is
    left; the context is the caller's; the thread is free; a resume comes to the undisturbed result and trace, and
    repeats nothing recorded."""
    if sniffio.current_async_library() == "trio" and way.__name__.endswith("natively"):
        pytest.skip("trio has no cancellation of its own besides scopes")
    await at_every_step(scenario, "sync", way, saver, environment, places(request))


@pytest.mark.pairwise
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("mode", ["async", "exit"])
@pytest.mark.parametrize("scenario", FEW, ids=str)
async def test_every_step_in_the_other_modes(
    scenario: Scenario,
    mode: Durability,
    way: Way,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
    request: pytest.FixtureRequest,
) -> None:
    """P4, P5, P7: the same with "async" and "exit". The cancelled caller waits until all finished tasks are stored."""
    if sniffio.current_async_library() == "trio" and way.__name__.endswith("natively"):
        pytest.skip("trio has no cancellation of its own besides scopes")
    await at_every_step(scenario, mode, way, saver, environment, places(request))


async def at_every_step(
    scenario: Scenario,
    mode: Durability,
    way: Way,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
    places: Iterator[int],
) -> None:
    expected = await play(scenario, mode, way, saver, environment, Steps(0))
    for at in places:
        steps = Steps(at)
        result, trace = await play(scenario, mode, way, saver, environment, steps)
        assert result == expected[0], f"step {at}"
        # With "exit" a run that was cancelled has stored its last superstep.
        assert trace == expected[1] or (mode == "exit" and trace[0] == expected[1][0]), f"step {at}"
        if not steps.acted:
            assert at > 10
            return


async def play(
    scenario: Scenario,
    mode: Durability,
    way: Way,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
    steps: Steps,
) -> Any:
    probe = Probe()
    watch = Watch(saver, probe, mode=mode)
    graph = scenario.build(probe).compile(saver, environment=environment)
    result: Any = None
    for number, op in enumerate(scenario.ops):
        probe.op = number
        given = op.given
        cancelled = True
        while cancelled:
            outcome = await _call(probe, Durable(graph, mode), way, given, config_of(scenario, number), steps)
            cancelled = isinstance(outcome, Cancelled)
            if cancelled:
                assert steps.acted
                given = await left_to_do(saver, number, scenario.ops)
            elif isinstance(outcome, BaseException):
                if op.raises is None or not isinstance(outcome, op.raises):
                    raise outcome
            else:
                assert op.raises is None
                result = outcome
            planned = len((await graph.aget_state("t")).tasks) if cancelled else None
            await watch.look(open_tasks=planned)
    await is_one_chain(saver, mode=mode)
    trace = await trace_of(graph)
    await saver.adelete_thread("t")  # refused if the thread was not released
    return result, trace


async def _call(probe: Probe, graph: Durable, way: Way, given: Any, config: dict[str, Any], steps: Steps) -> Any:
    """Call in a separate task, and inspect the state as soon as control returns, before any other task has a turn."""
    outcome: Any = None
    running, left = -1, set()

    async def call() -> None:
        nonlocal outcome, running, left
        WHERE.set("outside")
        before = tasks_now()
        try:
            outcome = await way(graph, given, config, steps)
        except Exception as error:
            outcome = error
        running, left = probe.running, tasks_now() - before
        assert WHERE.get() == "outside"

    with steps.watch():
        async with anyio.create_task_group() as group:
            group.start_soon(call)
        steps.act = int
    assert running == 0, f"{running} nodes were still at work when control returned: {probe.under_way}"
    assert not left, f"left over: {left}"
    return outcome
