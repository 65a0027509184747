"""`VirtualClock`: virtual time, on every event loop."""

from __future__ import annotations

import operator
import time
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph
from pregel_async.policies import RetryPolicy, TimeoutPolicy
from pregel_async.testing import Script, VirtualClock, fails, returns, waits

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def test_time_stands_still() -> None:
    """Only `advance` moves a clock on which no task sleeps, however long the work takes."""
    clock = VirtualClock(start=1000.0)
    before = clock.now(), clock.monotonic()
    await anyio.lowlevel.checkpoint()
    assert (clock.now(), clock.monotonic()) == before == (1000.0, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (1002.5, 2.5)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(float("nan"))
    with pytest.raises(ValueError, match="autojump"):
        VirtualClock(autojump=-1)
    with pytest.raises(ValueError, match="autojump"):
        VirtualClock(autojump=10**400)
    with pytest.raises(ValueError, match="advance"):
        VirtualClock().advance(10**400)


async def test_sleepers_wake_in_order_of_time() -> None:
    """Sleepers wake in the order of their times, and at equal times in the order in which they went to sleep; a day
    takes no real time."""
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        for name, seconds in (("d", 86400.0), ("b", 5.0), ("c", 5.0), ("a", 1.0), ("now", 0.0)):
            group.start_soon(sleep, name, seconds)
            await anyio.lowlevel.checkpoint()
    assert woken[:2] == [("now", 0.0), ("a", 1.0)]
    assert sorted(woken[2:4]) == [("b", 5.0), ("c", 5.0)]
    assert woken[4:] == [("d", 86400.0)]
    assert time.monotonic() - began < 30
    assert clock.sleepers == 0


async def test_autojump_none() -> None:
    """With `autojump=None` only `advance` wakes sleepers, and only those whose time has come; a cancelled sleeper no
    longer waits."""
    clock = VirtualClock(autojump=None)
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 1.0, 2.0):
            group.start_soon(sleep, seconds)
        while clock.sleepers < 3:
            await anyio.lowlevel.checkpoint()
        clock.advance(1.5)
        while not woken:
            await anyio.lowlevel.checkpoint()
        assert woken == [1.0] and clock.sleepers == 2
        clock.advance(0.5)
        while len(woken) < 2:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert woken == [1.0, 2.0] and clock.sleepers == 0


async def test_the_clock_waits_for_working_tasks() -> None:
    """The clock jumps only when all tasks sleep."""
    clock = VirtualClock()
    seen: list[float] = []

    async def work() -> None:
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        seen.append(clock.monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(clock.sleep, 60.0)
        group.start_soon(work)
    assert seen == [0.0] and clock.monotonic() == 60.0


async def test_worker_threads_are_given_their_time() -> None:
    """A clock with a set allowance for unseen work does not jump while a thread is working."""
    clock = VirtualClock(autojump=60.0)
    seen: list[float] = []

    async def work() -> None:
        await anyio.to_thread.run_sync(lambda: time.sleep(0.2))
        seen.append(clock.monotonic())
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(clock.sleep, 60.0)
        group.start_soon(work)
    assert seen == [0.0]


async def test_a_backoff_of_minutes_takes_no_time() -> None:
    """Retries wait by the graph's clock."""
    clock = VirtualClock()
    flaky = Script(fails(ConnectionError("reset")), fails(ConnectionError("reset")), returns({"log": ["at last"]}))
    policy = RetryPolicy(initial_interval=100.0, max_interval=128.0, jitter=False)
    graph = StateGraph(State).add_node("flaky", flaky, retry_policy=policy).add_edge(START, "flaky")
    began = time.monotonic()
    assert await graph.compile(checkpointer=InMemorySaver(), environment=clock).ainvoke({"log": []}, "t") == {
        "log": ["at last"]
    }
    assert [call.at - flaky.calls[0].at for call in flaky.calls] == [0.0, 100.0, 228.0]
    assert [call.attempt for call in flaky.calls] == [1, 2, 3]
    assert time.monotonic() - began < 30


async def test_a_timeout_comes_when_its_time_has_come() -> None:
    """Timeouts use the graph's clock, and cancel the attempt that takes too long."""
    clock = VirtualClock()
    slow = Script(waits(3600.0), [waits(5.0), returns({"log": ["in time"]})])
    graph = StateGraph(State).add_edge(START, "slow")
    graph.add_node("slow", slow, timeout=TimeoutPolicy(run_timeout=60.0), retry_policy=RetryPolicy(jitter=False))
    assert await graph.compile(environment=clock).ainvoke({"log": []}) == {"log": ["in time"]}
    assert [call.outcome for call in slow.calls] == ["cancelled", "returned"]
    assert clock.monotonic() == pytest.approx(65.5)


async def test_ids_and_randomness_come_from_the_seed() -> None:
    """Two clocks with one seed give the same ids; another seed gives others."""

    def draws(clock: VirtualClock) -> Any:
        return clock.new_id(), clock.entropy(), clock.jitter()

    assert draws(VirtualClock(seed=3)) == draws(VirtualClock(seed=3)) != draws(VirtualClock(seed=4))
    assert 0 <= VirtualClock().jitter() < 1
    assert VirtualClock().entropy() < 2**62
