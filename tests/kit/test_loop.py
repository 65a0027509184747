"""`SimulatedLoop`: an event loop with a schedule and time from a seed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from pregel_async.testing import SimulatedLoop, StuckError, VirtualClock
from pregel_async.testing import threads as lockstep

SEEDS = range(25)


def run(seed: int, work: Callable[[], Awaitable[Any]], **options: Any) -> tuple[Any, SimulatedLoop]:
    loop = SimulatedLoop(VirtualClock(seed=seed), random.Random(seed), **options)
    try:
        return loop.run(work()), loop
    finally:
        loop.close()


async def three() -> list[str]:
    """Three tasks that take turns, and report each turn."""
    log: list[str] = []

    async def one(name: str) -> None:
        for turn in range(3):
            log.append(f"{name}{turn}")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(one, name)
    return log


def test_a_seed_is_an_interleaving() -> None:
    """The same seed gives the same interleaving, other seeds give others; each task's own steps keep their order."""
    first = [run(seed, three)[0] for seed in SEEDS]
    assert first == [run(seed, three)[0] for seed in SEEDS]
    assert len({tuple(log) for log in first}) > 15
    for log in first:
        assert [turn for turn in log if turn[0] == "b"] == ["b0", "b1", "b2"]


def test_sleeping_takes_no_time_whatever_sleeps() -> None:
    """asyncio's and anyio's timers and the clock's use the same virtual time, in order."""

    async def work() -> list[float]:
        loop: Any = asyncio.get_running_loop()
        log: list[float] = []

        async def after(sleep: Callable[[float], Awaitable[Any]], seconds: float) -> None:
            await sleep(seconds)
            log.append(loop.time())

        async with anyio.create_task_group() as group:
            group.start_soon(after, asyncio.sleep, 86400.0)
            group.start_soon(after, anyio.sleep, 3600.0)
            group.start_soon(after, loop.clock.sleep, 7200.0)
        with anyio.move_on_after(10.0):
            await anyio.sleep(20.0)
        return [*log, loop.time()]

    assert run(1, work)[0] == [3600.0, 7200.0, 86400.0, 86410.0]


def test_callbacks_keep_their_order() -> None:
    """Callbacks of `call_soon` keep their order, as asyncio promises and code relies on."""

    async def work() -> list[int]:
        log: list[int] = []
        for number in range(20):
            asyncio.get_running_loop().call_soon(log.append, number)
        while len(log) < 20:
            await asyncio.sleep(0)
        return log

    assert all(run(seed, work)[0] == list(range(20)) for seed in SEEDS)


async def threaded() -> list[str]:
    """Plain functions in worker threads that call the loop in between."""
    log: list[str] = []

    async def ask(name: str) -> str:
        await anyio.sleep(1.0)
        return name.upper()

    def plain(name: str) -> None:
        log.append(f"{name} begins")
        log.append(anyio.from_thread.run(ask, name))
        anyio.from_thread.run_sync(log.append, f"{name} from the loop")
        log.append(f"{name} ends")

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(anyio.to_thread.run_sync, plain, name)
    return log


def test_worker_threads_take_turns_by_the_seed() -> None:
    """Only one thread runs at a time, the loop's included, so the seed determines the order of threads too."""
    first = [run(seed, threaded)[0] for seed in SEEDS]
    assert first == [run(seed, threaded)[0] for seed in SEEDS]
    assert len({tuple(log) for log in first}) > 10
    assert all(len(log) == 12 for log in first)


def test_other_loops_are_as_they_were() -> None:
    """A simulation in one thread does not affect a loop in another thread, and leaves nothing behind."""
    went: list[list[str]] = []

    async def run_in_another_thread() -> None:
        thread = threading.Thread(target=lambda: went.append(anyio.run(threaded)))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0)

    run(0, run_in_another_thread)
    assert len(went[0]) == 12
    assert len(anyio.run(threaded)) == 12
    assert not lockstep._users


def test_a_deadlock_is_reported() -> None:
    """If all tasks wait for each other, or loop without end, the loop raises instead of hanging."""

    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError, match=r"nothing can wake it; tasks that have not ended: .*waits"):
        run(0, waits)

    async def turns() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StuckError, match="501 steps, and no end"):
        run(0, turns, limit=500)


def test_a_thread_that_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for another would wait forever, as only one runs at a time: the loop reports this after a
    while."""
    monkeypatch.setattr(lockstep, "PATIENCE", 0.05)
    gate = threading.Event()

    async def work() -> None:
        await anyio.to_thread.run_sync(gate.wait)

    loop = SimulatedLoop(VirtualClock(), random.Random(0))
    try:
        with pytest.raises(RuntimeError, match="waiting for another thread"):
            loop.run(work())
    finally:
        gate.set()
        loop.close()
