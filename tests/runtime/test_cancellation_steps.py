"""P7: a run with every kind of work in flight (`cancel_scene.py`), stopped before each step of each of its tasks.

By default some steps of each way; PREGEL_STEPS says how many, and a number above the total means all.
"""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from tests.helpers.steps import Steps
from tests.runtime.cancel_scene import FINAL, Scene
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio

STEPS = int(os.environ.get("PREGEL_STEPS", "5"))

Way = Callable[[Scene, Steps], Awaitable[None]]
"""A function that runs the scene until it ends or is stopped, and checks that the run has ended as soon as control
returns."""


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    """In memory and in a file. No test here loses power, so SQLite need not wait for the disk."""
    if request.param == "memory":
        yield InMemorySaver()
    else:
        async with SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL") as saver:
            yield saver


def nothing_runs(scene: Scene) -> None:
    """P7: right after control returned, check that no node runs and that each started node has cleaned up once."""
    assert scene.running == []
    assert scene.left() == set()
    assert set(scene.cleaned) == set(scene.started)
    assert set(scene.cleaned.values()) <= {1}


def streamed(scene: Scene) -> Any:
    return scene.graph.astream({}, "t", stream_mode=["values", "updates", "tasks"])


async def read_on(stream: Any) -> None:
    async for _ in stream:
        pass


async def scope_around_ainvoke(scene: Scene, steps: Steps) -> None:
    with anyio.CancelScope() as scope:
        steps.act = scope.cancel
        await scene.graph.ainvoke({}, "t")
    nothing_runs(scene)


async def scope_around_a_stream(scene: Scene, steps: Steps) -> None:
    with anyio.CancelScope() as scope:
        steps.act = scope.cancel
        await read_on(streamed(scene))
    nothing_runs(scene)


async def scope_around_async_with(scene: Scene, steps: Steps) -> None:
    with anyio.CancelScope() as scope:
        steps.act = scope.cancel
        async with streamed(scene) as stream:
            await read_on(stream)
    nothing_runs(scene)


async def scope_within_async_with(scene: Scene, steps: Steps) -> None:
    async with streamed(scene) as stream:
        with anyio.CancelScope() as scope:
            steps.act = scope.cancel
            await read_on(stream)
        nothing_runs(scene)


async def natively(scene: Scene, steps: Steps, call: Callable[[], Awaitable[Any]]) -> None:
    this: Any = asyncio.current_task()
    steps.act = this.cancel
    try:
        await call()
    except asyncio.CancelledError:
        this.uncancel()
    nothing_runs(scene)


async def ainvoke_natively(scene: Scene, steps: Steps) -> None:
    await natively(scene, steps, lambda: scene.graph.ainvoke({}, "t"))


async def a_stream_natively(scene: Scene, steps: Steps) -> None:
    await natively(scene, steps, lambda: read_on(streamed(scene)))


async def async_with_natively(scene: Scene, steps: Steps) -> None:
    async def call() -> None:
        async with streamed(scene) as stream:
            await read_on(stream)

    await natively(scene, steps, call)


async def closed_by_another(scene: Scene, steps: Steps) -> None:
    """Close from another task during a read."""
    closing, stream = anyio.Event(), streamed(scene)

    async def close() -> None:
        scene.mine()
        await closing.wait()
        await stream.aclose()
        nothing_runs(scene)

    async with anyio.create_task_group() as group:
        steps.act = closing.set
        group.start_soon(close)
        await read_on(stream)
        nothing_runs(scene)
        closing.set()


async def left_at_the_next_chunk(scene: Scene, steps: Steps) -> None:
    """Leave an `async with` by a `break`."""
    stop: list[bool] = []
    steps.act = lambda: stop.append(True)
    async with streamed(scene) as stream:
        async for _ in stream:
            if stop:
                break
    nothing_runs(scene)


async def dropped(scene: Scene, steps: Steps) -> None:
    """Drop the stream in whichever task is about to make a step, for example one of the run's own."""
    kept = [streamed(scene)]
    await kept[0].__aenter__()

    def drop() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            kept.clear()
            gc.collect(0)

    steps.act = drop
    while scene.left():
        await anyio.lowlevel.checkpoint()
    nothing_runs(scene)
    kept.clear()


WAYS: list[Way] = [
    scope_around_ainvoke,
    scope_around_a_stream,
    scope_around_async_with,
    scope_within_async_with,
    ainvoke_natively,
    a_stream_natively,
    async_with_natively,
    closed_by_another,
    left_at_the_next_chunk,
    dropped,
]


@pytest.mark.pairwise
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_any_step(way: Way, saver: BaseCheckpointSaver) -> None:
    """P3, P5, P6, P7: at whichever step the run is stopped, every task of the run has ended when control returns, every
    `finally` has run once, the thread is free, and a resume repeats nothing recorded and reaches the undisturbed end.
    """
    if sniffio.current_async_library() == "trio" and way.__name__.endswith("natively"):
        return  # trio has scopes only
    whole = await play(way, saver, 0)
    assert whole > 30
    chosen = range(1, whole + 20) if whole <= STEPS else [1 + (2 * n + 1) * whole // (2 * STEPS) for n in range(STEPS)]
    for at in chosen:
        await play(way, saver, at)


async def play(way: Way, saver: BaseCheckpointSaver, at: int) -> int:
    """Stop before the given step. Return how many steps there were."""
    scene, steps = Scene(saver, "nowhere"), Steps(at)

    async def work() -> None:
        with scene.alone():
            await way(scene, steps)

    with anyio.fail_after(30):
        async with nothing_left():
            with steps.watch():
                async with anyio.create_task_group() as group:
                    group.start_soon(work)
                count = steps.count
                steps.act = int
            if not steps.acted:
                assert set(scene.cleaned.values()) == {1}
                assert (await scene.graph.aget_state("t")).values["log"] == FINAL
            await scene.check_resume()
    return count
