"""P7: every way to stop a run, with every kind of work in flight (`cancel_scene.py`), on every event loop.

After each: every task of the run has ended before control returned, every `finally` has run once, the thread is whole
and free, and the reader is unaffected.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from tests.runtime.cancel_scene import Scene, Where
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    """In memory and in a file. No test here loses power, so SQLite need not wait for the disk."""
    if request.param == "memory":
        yield InMemorySaver()
    else:
        async with SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL") as saver:
            yield saver


def opened(stream: Any, entered: bool) -> Any:
    """Return the stream, with `async with` or without."""
    return stream if entered else nullcontext(stream)


def streamed(scene: Scene) -> Any:
    return scene.graph.astream({}, "t")


async def read_on(stream: Any) -> None:
    async for _ in stream:
        pass


async def read_and_stop(scene: Scene, stream: Any, stop: Callable[[], object]) -> None:
    """Read, and stop the reading task when everything is in flight; keep reading, so that a read is interrupted."""
    await anext(stream)
    await scene.ready.wait()
    scene.stops()
    stop()
    await read_on(stream)


async def has_ended(stream: Any) -> None:
    """P7: a reader that continues sees the end, and no error."""
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@asynccontextmanager
async def another(scene: Scene, work: Callable[[], Awaitable[Any]]) -> AsyncIterator[anyio.CancelScope]:
    """Start another task of the test's own, which the test waits for; yield its scope."""
    scope = anyio.CancelScope()

    async def run() -> None:
        scene.mine()
        with scope:
            await work()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        yield scope


async def closed(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    async with opened(stream, entered):
        async for _ in stream:
            await scene.ready.wait()
            scene.stops()
            await stream.aclose()
            scene.returned()
    scene.returned()
    await has_ended(stream)


async def closed_without_reading(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    if not entered:
        await anext(stream)
    async with opened(stream, entered):
        await scene.ready.wait()
        scene.stops()
        await stream.aclose()
        scene.returned()


async def broken_off(scene: Scene) -> None:
    stream = streamed(scene)
    async with stream:
        async for _ in stream:
            await scene.ready.wait()
            scene.stops()
            break
    scene.returned()
    await has_ended(stream)


async def failed_in_the_body(scene: Scene) -> None:
    stream = streamed(scene)
    with pytest.raises(KeyError, match="mine") as caught:
        async with stream:
            async for _ in stream:
                await scene.ready.wait()
                scene.stops()
                raise KeyError("mine")
    scene.returned()
    assert caught.value.__context__ is None
    assert not hasattr(caught.value, "__notes__")


async def returned_from_within(scene: Scene) -> None:
    async def reader() -> str:
        async with streamed(scene) as stream:
            async for _ in stream:
                await scene.ready.wait()
                scene.stops()
                return "mine"
        raise AssertionError

    assert await reader() == "mine"
    scene.returned()


async def through_a_generator(scene: Scene) -> None:
    """Close an async generator of the user's around the stream."""

    async def shown() -> AsyncIterator[Any]:
        async with streamed(scene) as stream:
            async for chunk in stream:
                yield chunk

    async with aclosing(shown()) as chunks:
        async for _ in chunks:
            await scene.ready.wait()
            scene.stops()
            break
    scene.returned()


async def scope_of_its_own(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    with anyio.CancelScope() as scope:
        async with opened(stream, entered):
            await read_and_stop(scene, stream, scope.cancel)
    scene.returned()
    assert scope.cancelled_caught
    await has_ended(stream)


async def scope_around_one_read(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    async with opened(stream, entered):
        await anext(stream)
        await scene.ready.wait()
        scene.stops()
        with anyio.CancelScope() as scope:
            scope.cancel()
            while True:
                await anext(stream)
        scene.returned()
        await has_ended(stream)
    scene.returned()


async def deadline(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    def expire() -> None:
        scope.deadline = anyio.current_time() - 1

    with pytest.raises(TimeoutError):
        with anyio.fail_after(60) as scope:
            async with opened(stream, entered):
                await read_and_stop(scene, stream, expire)
    scene.returned()
    await has_ended(stream)


async def task_cancels_itself(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    this: Any = asyncio.current_task()
    with pytest.raises(asyncio.CancelledError):
        async with opened(stream, entered):
            await read_and_stop(scene, stream, this.cancel)
    scene.returned()
    assert this.uncancel() == 0
    await has_ended(stream)


def stop_soon(scene: Scene) -> None:
    """Let the next call stop the run after a millisecond: the held work is released after that."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_later, 0.002, scene.stops)  # its timer exists by then: this one comes after it


async def wait_for_around_a_read(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    async with opened(stream, entered):
        await asyncio.wait_for(anext(stream), 60)
        await scene.ready.wait()
        while stream._buffer.parts:
            await asyncio.wait_for(anext(stream), 60)
        stop_soon(scene)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        scene.returned()
        await has_ended(stream)


async def wait_for_around_the_loop(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    async def reader() -> None:
        scene.mine()
        async with opened(stream, entered):
            await read_on(stream)

    running = asyncio.ensure_future(reader())
    await scene.ready.wait()
    stop_soon(scene)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, 0.001)
    scene.returned()
    await has_ended(stream)


async def timeout_around_the_loop(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60) as limit:
            async with opened(stream, entered):
                await read_and_stop(scene, stream, lambda: limit.reschedule(asyncio.get_running_loop().time() - 1))
    scene.returned()


async def closed_by_another(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    async def close() -> None:
        await scene.ready.wait()
        scene.stops()
        await stream.aclose()
        scene.returned()

    async with another(scene, close):
        async with opened(stream, entered):
            await read_on(stream)
        scene.returned()
    scene.returned()


async def closed_by_two_at_once(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    async def close() -> None:
        await scene.ready.wait()
        if not scene.released:
            scene.stops()
        await stream.aclose()
        scene.returned()

    async with another(scene, close), another(scene, close):
        async with opened(stream, entered):
            await read_on(stream)
        scene.returned()


async def closed_while_a_reader_was_begun_elsewhere(scene: Scene, entered: bool) -> None:
    """Read in one task, which has ended; close in another."""
    stream = streamed(scene)
    async with another(scene, lambda: anext(stream)):
        pass
    async with opened(stream, entered):
        await scene.ready.wait()
        scene.stops()
        await stream.aclose()
        scene.returned()
    await has_ended(stream)


async def reader_cancelled_by_another(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    async def read() -> None:
        try:
            async with opened(stream, entered):
                await read_on(stream)
        finally:
            scene.returned()

    async with another(scene, read) as scope:
        await scene.ready.wait()
        scene.stops()
        scope.cancel()
    scene.returned()
    assert scope.cancelled_caught
    await has_ended(stream)


async def scope_cancelled_by_another(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await scene.ready.wait()
        scene.stops()
        scope.cancel()

    async with another(scene, cancel):
        with scope:
            async with opened(stream, entered):
                await read_on(stream)
        scene.returned()
    assert scope.cancelled_caught
    await has_ended(stream)


async def one_read_cancelled_elsewhere(scene: Scene, entered: bool) -> None:
    """The stream is open here, and a task that reads it is cancelled."""
    stream = streamed(scene)

    async def read() -> None:
        try:
            await read_on(stream)
        finally:
            scene.returned()

    if not entered:
        await anext(stream)
    async with opened(stream, entered):
        async with another(scene, read) as scope:
            await scene.ready.wait()
            scene.stops()
            scope.cancel()
        scene.returned()
        await has_ended(stream)


async def body_of_another_fails(scene: Scene, entered: bool) -> None:
    """A sibling of the reader fails, and their group cancels the reader."""
    stream = streamed(scene)

    async def fail() -> None:
        await scene.ready.wait()
        scene.stops()
        raise KeyError("the reader's sibling")

    with pytest.raises(ExceptionGroup) as caught:
        async with another(scene, fail):
            try:
                async with opened(stream, entered):
                    await read_on(stream)
            finally:
                scene.returned()
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    await has_ended(stream)


async def task_cancelled_by_another(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    async def read() -> None:
        scene.mine()
        try:
            async with opened(stream, entered):
                await read_on(stream)
        finally:
            scene.returned()

    reader = asyncio.ensure_future(read())
    await scene.ready.wait()
    scene.stops()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    scene.returned()
    await has_ended(stream)


async def task_cancelled_again_and_again(scene: Scene, entered: bool) -> None:
    stream = streamed(scene)

    async def read() -> None:
        scene.mine()
        try:
            async with opened(stream, entered):
                await read_on(stream)
        finally:
            scene.returned()

    reader = asyncio.ensure_future(read())
    await scene.ready.wait()
    scene.stops()
    while not reader.done():
        reader.cancel()
        await asyncio.sleep(0)
    assert reader.cancelled()
    scene.returned()


async def native_group_fails(scene: Scene, entered: bool) -> None:
    """`asyncio.TaskGroup` cancels its children natively."""
    stream = streamed(scene)

    async def read() -> None:
        scene.mine()
        try:
            async with opened(stream, entered):
                await read_on(stream)
        finally:
            scene.returned()

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            await scene.ready.wait()
            scene.stops()
            raise KeyError("in the body of the group")
    scene.returned()
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    await has_ended(stream)


SAME = [
    closed,
    closed_without_reading,
    scope_of_its_own,
    scope_around_one_read,
    deadline,
    closed_by_another,
    closed_by_two_at_once,
    closed_while_a_reader_was_begun_elsewhere,
    reader_cancelled_by_another,
    scope_cancelled_by_another,
    one_read_cancelled_elsewhere,
    body_of_another_fails,
]
NATIVE = [
    task_cancels_itself,
    wait_for_around_a_read,
    wait_for_around_the_loop,
    timeout_around_the_loop,
    task_cancelled_by_another,
    task_cancelled_again_and_again,
    native_group_fails,
]
ENTERED = [broken_off, failed_in_the_body, returned_from_within, through_a_generator]

each_place = pytest.mark.parametrize("where", ["nodes", "commit"])


async def play(way: Callable[[Scene], Awaitable[None]], saver: BaseCheckpointSaver, where: Where) -> None:
    scene = Scene(saver, where)
    try:
        with anyio.fail_after(30):
            async with nothing_left():
                with scene.alone():
                    await way(scene)
                await scene.check_resume()
    finally:
        scene.release()  # a thread that a failed test has left behind


@each_place
@pytest.mark.pairwise
@pytest.mark.parametrize("entered", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("way", SAME, ids=lambda way: way.__name__)
async def test_a_stream(way: Any, entered: bool, where: Where, saver: BaseCheckpointSaver) -> None:
    """P7: when a stream is closed or cancelled during a read, by the same or another task, with and without `async
    with`, the run has ended before control returns."""
    await play(lambda scene: way(scene, entered), saver, where)


@each_place
@pytest.mark.parametrize("entered", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("way", NATIVE, ids=lambda way: way.__name__)
async def test_a_stream_natively(
    way: Any, entered: bool, where: Where, saver: BaseCheckpointSaver, anyio_backend_name: str
) -> None:
    """P7: the same with asyncio's own cancellation."""
    if anyio_backend_name == "asyncio":
        await play(lambda scene: way(scene, entered), saver, where)


@each_place
@pytest.mark.parametrize("way", ENTERED, ids=lambda way: way.__name__)
async def test_a_stream_that_is_left(way: Any, where: Where, saver: BaseCheckpointSaver) -> None:
    """P7: at the end of `async with`, however it comes, the run has ended before control returns."""
    await play(way, saver, where)


async def by_break(scene: Scene) -> None:
    async for _ in streamed(scene):
        await scene.ready.wait()
        scene.stops()
        break


async def by_error(scene: Scene) -> None:
    try:
        async for _ in streamed(scene):
            await scene.ready.wait()
            scene.stops()
            raise KeyError("mine")
    except KeyError as error:
        error.__traceback__ = None


async def by_return(scene: Scene) -> None:
    async def reader() -> str:
        async for _ in streamed(scene):
            await scene.ready.wait()
            scene.stops()
            return "mine"
        raise AssertionError

    assert await reader() == "mine"


async def by_del(scene: Scene) -> None:
    stream = streamed(scene)
    await anext(stream)
    await scene.ready.wait()
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
    assert scene.running or scene.where == "commit", "the run continues while the stream is referenced"
    assert scene.left() and not scene.released
    scene.stops()
    del stream


async def by_another_task(scene: Scene) -> None:
    kept = [streamed(scene)]

    async def drop() -> None:
        await scene.ready.wait()
        scene.stops()
        kept.clear()

    await anext(kept[0])
    async with another(scene, drop):
        pass


async def by_a_reader_that_is_gone(scene: Scene) -> None:
    async def read() -> None:
        stream = streamed(scene)
        await anext(stream)
        await scene.ready.wait()
        scene.stops()

    async with another(scene, read):
        pass


@each_place
@pytest.mark.pairwise
@pytest.mark.parametrize(
    "way",
    [by_break, by_error, by_return, by_del, by_another_task, by_a_reader_that_is_gone],
    ids=lambda way: way.__name__,
)
async def test_a_stream_that_is_dropped(way: Any, where: Where, saver: BaseCheckpointSaver) -> None:
    """P7: a stream that is only dropped is cancelled at that moment, warns, never cancels its reader, and ends as soon
    as the loop runs again."""

    async def dropped(scene: Scene) -> None:
        with pytest.warns(ResourceWarning, match="dropped before its end") as warned:
            await way(scene)
            gc.collect()
        assert (
            len([one for one in warned if "dropped before its end" in str(one.message)]) == 1
        )  # ignore garbage of other tests
        await scene.ended()

    await play(dropped, saver, where)


@each_place
@pytest.mark.parametrize("then", ["aclose", "aclose by another", "read on", "enter"])
async def test_a_stream_that_stays_referenced(then: str, where: Where, saver: BaseCheckpointSaver) -> None:
    """P7: after a `break` a stream that is still referenced keeps running until it is closed; the reader may continue
    reading."""

    async def kept(scene: Scene) -> None:
        stream = streamed(scene)
        async for _ in stream:
            await scene.ready.wait()
            break
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert scene.left() and not scene.released
        scene.stops()
        if then == "aclose":
            await stream.aclose()
        elif then == "aclose by another":
            async with another(scene, stream.aclose):
                pass
        elif then == "read on":
            with anyio.CancelScope() as scope:
                scope.cancel()
                while True:
                    await anext(stream)
        else:
            async with stream:
                pass
        scene.returned()

    await play(kept, saver, where)


@pytest.mark.parametrize("entered", [False, True], ids=["without", "with"])
async def test_a_stream_that_is_read_to_its_end(entered: bool, saver: BaseCheckpointSaver) -> None:
    """P7: when the last read returns, every task of the run has ended."""
    scene = Scene(saver, "nowhere")
    async with nothing_left():
        with scene.alone():
            stream = streamed(scene)
            async with opened(stream, entered):
                await read_on(stream)
                assert scene.running == [] and scene.left() == set()
            assert set(scene.cleaned.values()) == {1}
        assert (await scene.graph.aget_state("t")).next == ()
        await saver.adelete_thread("t")


async def invoked_in_a_scope(scene: Scene) -> None:
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await scene.ready.wait()
        scene.stops()
        scope.cancel()

    async with another(scene, cancel):
        with scope:
            await scene.graph.ainvoke({}, "t")
        scene.returned()
    assert scope.cancelled_caught


async def invoked_with_a_deadline(scene: Scene) -> None:
    async def expire() -> None:
        await scene.ready.wait()
        scene.stops()
        scope.deadline = anyio.current_time() - 1

    async with another(scene, expire):
        with pytest.raises(TimeoutError):
            with anyio.fail_after(60) as scope:
                await scene.graph.ainvoke({}, "t")
        scene.returned()


async def invoked_in_another_task(scene: Scene) -> None:
    async def call() -> None:
        try:
            await scene.graph.ainvoke({}, "t")
        finally:
            scene.returned()

    async with another(scene, call) as scope:
        await scene.ready.wait()
        scene.stops()
        scope.cancel()
    assert scope.cancelled_caught


async def invoked_natively(scene: Scene) -> None:
    async def call() -> None:
        scene.mine()
        try:
            await scene.graph.ainvoke({}, "t")
        finally:
            scene.returned()

    running = asyncio.ensure_future(call())
    await scene.ready.wait()
    scene.stops()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def invoked_with_wait_for(scene: Scene) -> None:
    async def call() -> None:
        scene.mine()
        try:
            await scene.graph.ainvoke({}, "t")
        finally:
            scene.returned()

    running = asyncio.ensure_future(call())
    await scene.ready.wait()
    stop_soon(scene)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, 0.001)
    scene.returned()


async def invoked_with_timeout(scene: Scene) -> None:
    async def expire() -> None:
        await scene.ready.wait()
        scene.stops()
        limit.reschedule(asyncio.get_running_loop().time() - 1)

    async with another(scene, expire):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60) as limit:
                await scene.graph.ainvoke({}, "t")
        scene.returned()


@each_place
@pytest.mark.parametrize(
    "way",
    [
        invoked_in_a_scope,
        invoked_with_a_deadline,
        invoked_in_another_task,
        invoked_natively,
        invoked_with_wait_for,
        invoked_with_timeout,
    ],
    ids=lambda way: way.__name__,
)
async def test_ainvoke(way: Any, where: Where, saver: BaseCheckpointSaver, anyio_backend_name: str) -> None:
    """P7: when `ainvoke` is cancelled by a scope, a deadline or asyncio's own means, the run has ended before control
    returns."""
    if way in (invoked_natively, invoked_with_wait_for, invoked_with_timeout) and anyio_backend_name != "asyncio":
        return
    await play(way, saver, where)
