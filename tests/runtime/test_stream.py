"""The stream object: it owns its run, is bounded, and ends cleanly whatever its reader does (P7, P12)."""

# ruff: noqa: PERF401  # chunks read before an error, or a stop, count

from __future__ import annotations

import asyncio
import gc
import operator
import threading
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, Send, StateGraph
from pregel_async.errors import GraphRecursionError
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio

CAPACITY = 64


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: Annotated[int, operator.add]


class Source:
    """A graph that counts, superstep by superstep, and records its progress."""

    def __init__(self, last: int = 1000, *, fails: bool = False, saver: Any = None) -> None:
        self.ran = 0
        self.cleaned = 0
        self.last = last
        made = StateGraph(State).add_node("n", self._node).add_edge(START, "n")
        made.add_conditional_edges("n", lambda state: "n" if state["count"] < last else "bad" if fails else END)
        made.add_node("bad", self._bad)
        self.graph = made.compile(saver)

    async def _node(self, state: Any) -> dict[str, Any]:
        self.ran += 1
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            self.cleaned += 1
        return {"count": 1}

    async def _bad(self, state: Any) -> None:
        raise ValueError("after the last chunk")

    def stream(self, **arguments: Any) -> Any:
        return self.graph.astream({}, "t", **arguments)


def waiting() -> tuple[Any, anyio.Event, list[str]]:
    """Return a graph whose only node waits forever, with events for its start and its clean-up."""
    reached, steps = anyio.Event(), []

    async def node(state: Any) -> None:
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            steps.append("cleaned up")

    made = StateGraph(State).add_node("first", lambda state: {"log": ["first"]}).add_node("node", node)
    return made.add_edge(START, "first").add_edge("first", "node").compile(blocking=False), reached, steps


UPDATE = {"n": {"count": 1}}


@pytest.mark.parametrize("entered", [False, True])
async def test_every_chunk_in_order(entered: bool) -> None:
    """P12: chunks of one run are in one total order, and none is lost, however far the run is ahead."""
    source = Source(300)
    async with nothing_left():
        stream = source.stream(stream_mode="values")
        if entered:
            async with stream:
                counts = [chunk["count"] async for chunk in stream]
        else:
            counts = [chunk["count"] async for chunk in stream]
    assert counts == list(range(1, 301))


async def test_an_exhausted_stream_stays_exhausted() -> None:
    """`GraphStream`: after the end there are no more chunks; closing it again and again has no effect."""
    stream = Source(2).stream()
    assert [chunk async for chunk in stream] == [UPDATE, UPDATE]
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        await stream.aclose()


async def test_a_stream_is_its_own_iterator() -> None:
    """`GraphStream`: an async iterator: each of several loops over it continues where the one before stopped."""
    async with Source(5).stream() as stream:
        assert aiter(stream) is stream
        async for chunk in stream:
            assert chunk == UPDATE
            break
        assert len([chunk async for chunk in stream]) == 4


@pytest.mark.parametrize("saver", [None, InMemorySaver])
async def test_the_error_follows_the_last_chunk(saver: Any) -> None:
    """P9: when the run fails, its exception itself follows the last chunk, once."""
    source = Source(3, fails=True, saver=saver and saver())
    got: list[Any] = []
    async with nothing_left():
        stream = source.stream()
        with pytest.raises(ValueError, match="after the last chunk") as caught:
            async for chunk in stream:
                got.append(chunk)
    assert got == [UPDATE] * 3
    assert any("'bad'" in note for note in caught.value.__notes__)
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()
    await stream.aclose()


async def test_an_error_waits_for_its_chunks() -> None:
    """P9: a run that failed long before its chunks are read loses none of them."""
    async with Source(10, fails=True).stream() as stream:
        await anyio.wait_all_tasks_blocked()
        got = [await anext(stream) for _ in range(10)]
        with pytest.raises(ValueError, match="after the last chunk"):
            await anext(stream)
    assert got == [UPDATE] * 10


async def test_a_run_that_never_begins() -> None:
    """Errors of the input are raised at the first read."""
    stream = Source().graph.astream({"nonsense": 1})
    with anyio.fail_after(30):
        with pytest.raises(TypeError, match="nonsense"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_run_that_ends_at_once() -> None:
    """P13: a reader sees all of a run that has ended before the reader started to wait (with eager tasks it has ended
    when it was started)."""
    graph = StateGraph(State).add_node("n", lambda state: None).add_conditional_edges(START, lambda state: END)
    with anyio.fail_after(30):
        assert [chunk async for chunk in graph.compile(blocking=False).astream({})] == []
        async with graph.compile(blocking=False).astream({"nonsense": 1}) as stream:
            with pytest.raises(TypeError, match="nonsense"):
                await anext(stream)


async def test_nothing_runs_before_it_is_read() -> None:
    """`GraphStream`: the run starts with the first read, or on entering; making a stream and dropping it runs
    nothing."""
    source = Source()
    async with nothing_left():
        stream = source.stream()
        await anyio.wait_all_tasks_blocked()
        assert source.ran == 0
        del stream
        gc.collect(1)
        stream = source.stream()
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert source.ran == 0


async def test_entering_starts_the_run() -> None:
    """`GraphStream`: on entering, the run starts, whether or not it is read."""
    graph, reached, steps = waiting()
    async with nothing_left():
        with anyio.fail_after(30):
            async with graph.astream({}):
                await reached.wait()
    assert steps == ["cleaned up"]


@pytest.mark.parametrize("taken", [0, 1, 10])
async def test_a_run_does_not_get_far_ahead(taken: int) -> None:
    """P12: streams are bounded: a run stops 64 chunks ahead of a reader that does not read, and continues when
    it does."""
    source = Source(500)
    async with source.stream() as stream:
        for _ in range(taken):
            await anext(stream)
        await anyio.wait_all_tasks_blocked()
        assert taken + CAPACITY <= source.ran <= taken + CAPACITY + 1
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        assert taken + CAPACITY + 1 <= source.ran <= taken + CAPACITY + 2
        rest = [chunk async for chunk in stream]
    assert taken + 1 + len(rest) == 500


async def test_wide_supersteps_are_bounded_too() -> None:
    """P12: all of many tasks that finish at once wait for the reader, and no chunk is lost."""
    finished = 0

    async def worker(number: int) -> dict[str, Any]:
        nonlocal finished
        finished += 1
        return {"log": [str(number)]}

    made = (
        StateGraph(State)
        .add_node("w", worker)
        .add_conditional_edges(START, lambda s: [Send("w", n) for n in range(200)])
    )
    async with made.compile().astream({}, stream_mode=["updates", "values"]) as stream:
        await anyio.wait_all_tasks_blocked()
        chunks = [chunk async for chunk in stream]
    shown = [chunk["w"]["log"][0] for mode, chunk in chunks if mode == "updates"]
    assert sorted(shown, key=int) == [str(number) for number in range(200)]
    assert chunks[-1] == ("values", {"log": [str(number) for number in range(200)], "count": 0})


async def test_a_reader_that_is_far_behind_can_close() -> None:
    """P7, P12: a run that waits for capacity is cancelled like any other."""
    source = Source(500)
    async with nothing_left():
        async with source.stream() as stream:
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()
            assert source.ran == source.cleaned <= CAPACITY + 1


@pytest.mark.parametrize("how", ["break", "aclose", "exception"])
async def test_leaving_early(how: str) -> None:
    """P7: when a stream is closed, by `aclose()` or the end of `async with`, its run has ended before control
    returns."""
    graph, reached, steps = waiting()
    async with nothing_left():
        if how == "break":
            async with graph.astream({}) as stream:
                async for _ in stream:
                    await reached.wait()
                    break
        elif how == "aclose":
            stream = graph.astream({})
            await anext(stream)
            await reached.wait()
            await stream.aclose()
        else:
            with pytest.raises(KeyError, match="mine") as caught:
                async with graph.astream({}) as stream:
                    async for _ in stream:
                        await reached.wait()
                        raise KeyError("mine")
            assert caught.value.__context__ is None
        assert steps == ["cleaned up"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_failure_in_the_body_is_the_one_that_is_raised() -> None:
    """P9: an exception in the reader's own code is raised itself; a failure of the run that was not read is attached to
    it."""
    source = Source(1, fails=True)
    with pytest.raises(KeyError) as caught:
        async with source.stream() as stream:
            await anext(stream)
            await anyio.wait_all_tasks_blocked()
            raise KeyError("mine")
    assert any("after the last chunk" in note for note in caught.value.__notes__)


async def test_a_failure_that_was_not_read() -> None:
    """P9: nothing is swallowed: closing a stream raises a failure of its run that was not read."""
    stream = Source(1, fails=True).stream()
    await anext(stream)
    await anyio.wait_all_tasks_blocked()
    with pytest.raises(ValueError, match="after the last chunk"):
        await stream.aclose()
    await stream.aclose()


async def test_a_failure_while_cleaning_up() -> None:
    """P9: a node that fails while it is cancelled for the closing has failed: the closing task gets the failure."""
    reached = anyio.Event()

    async def node(state: Any) -> None:
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    async with nothing_left():
        stream = graph.astream({})
        await stream.__aenter__()
        await reached.wait()
        with pytest.raises(ValueError, match="while cleaning up"):
            await stream.aclose()


async def test_closing_twice_at_once() -> None:
    """P7: two tasks that close one stream both wait until its run has ended."""
    graph, reached, steps = waiting()
    stream = graph.astream({})
    await stream.__aenter__()
    await reached.wait()
    seen: list[list[str]] = []

    async def close() -> None:
        await stream.aclose()
        seen.append(list(steps))

    async with anyio.create_task_group() as group:
        group.start_soon(close)
        group.start_soon(close)
    assert seen == [["cleaned up"]] * 2


async def test_closing_while_another_task_reads() -> None:
    """P7: closing ends the stream for the task that reads it: it sees the end, and no error."""
    graph, reached, steps = waiting()
    stream = graph.astream({})
    got: list[Any] = []

    async def read() -> None:
        async for chunk in stream:
            got.append(chunk)
        got.append("the end")

    async with nothing_left():
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await reached.wait()
            await stream.aclose()
            assert steps == ["cleaned up"]
    assert got == [{"first": {"log": ["first"]}}, "the end"]


async def test_a_read_that_is_cancelled() -> None:
    """P7: when a stream is cancelled during a read, the run has ended before control returns."""
    graph, reached, steps = waiting()
    async with nothing_left():
        stream = graph.astream({})
        await anext(stream)
        await reached.wait()
        with anyio.move_on_after(0.01) as scope:
            await anext(stream)
        assert scope.cancelled_caught
        assert steps == ["cleaned up"]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_wait_for_around_a_read(anyio_backend_name: str) -> None:
    """No scope stays open across a `yield`, because each `__anext__` may come from another task: `wait_for` reads chunk
    by chunk, and a timeout ends the run."""
    if anyio_backend_name != "asyncio":
        return
    async with nothing_left():
        stream = Source(5).stream()
        assert [await asyncio.wait_for(stream.__anext__(), 60) for _ in range(5)] == [UPDATE] * 5
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(stream.__anext__(), 60)
        graph, reached, steps = waiting()
        stream = graph.astream({})
        await asyncio.wait_for(stream.__anext__(), 60)
        await reached.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.__anext__(), 0.01)
        assert steps == ["cleaned up"]


async def test_reads_from_different_tasks() -> None:
    """Each read may come from another task, and the task that started the run may have ended."""
    stream = Source(3).stream()
    got: list[Any] = []

    async def read() -> None:
        got.append(await anext(stream))

    async with nothing_left():
        for _ in range(3):
            async with anyio.create_task_group() as group:
                group.start_soon(read)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert got == [UPDATE] * 3


async def test_two_readers_at_once() -> None:
    """`GraphStream`: a second reader is refused by name, and the first continues unaffected."""
    graph, reached, steps = waiting()
    async with graph.astream({}) as stream:
        await anext(stream)
        await reached.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(_read_quietly, stream)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="another task"):
                await anext(stream)
            assert steps == []
            await stream.aclose()


async def _read_quietly(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_the_readers_scope_is_not_the_runs() -> None:
    """P7: a scope around one read ends with the read: cancelling it later does not reach the run."""
    async with Source(3).stream() as stream:
        with anyio.CancelScope() as scope:
            await anext(stream)
        scope.cancel()
        assert len([chunk async for chunk in stream]) == 2


@pytest.mark.parametrize("why", ["break", "error"])
async def test_a_dropped_stream(why: str) -> None:
    """P7: a stream that is only dropped (a break, or an error, without `async with`) is cancelled at that moment,
    warns, and ends as soon as the loop runs again. (Python calls nothing at a `break`, but at the end of the last
    reference.)"""
    graph, reached, steps = waiting()

    async def reader() -> None:
        async for _ in graph.astream({}):
            await reached.wait()
            if why == "error":
                raise KeyError("mine")
            break

    async with nothing_left():
        with pytest.warns(ResourceWarning, match="dropped before its end.*async with"):
            try:
                await reader()
            except KeyError as error:
                error.__traceback__ = None
            gc.collect(1)
        await anyio.wait_all_tasks_blocked()
        assert steps == ["cleaned up"]


async def test_a_stream_that_is_dropped_in_another_thread() -> None:
    """P7: the same wherever Python drops the stream, a worker thread included."""
    graph, reached, steps = waiting()
    box = [graph.astream({})]
    async with nothing_left():
        await anext(box[0])
        await reached.wait()

        def drop() -> None:
            box.clear()
            gc.collect(1)

        with pytest.warns(ResourceWarning, match="dropped"):
            await anyio.to_thread.run_sync(drop)
        await anyio.wait_all_tasks_blocked()
        assert steps == ["cleaned up"]


async def test_a_dropped_stream_never_cancels_its_reader() -> None:
    """P7: dropping a stream cancels its run, and never its reader."""
    graph, reached, steps = waiting()
    with pytest.warns(ResourceWarning):
        stream = graph.astream({})
        await anext(stream)
        await reached.wait()
        del stream
        gc.collect(1)
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert steps == ["cleaned up"]


async def test_a_finished_stream_does_not_warn() -> None:
    """P7: a stream that ended, was closed or never began may be dropped without a warning (warnings are errors
    here)."""
    for read in (0, 2, 5):
        stream = Source(2).stream()
        for _ in range(read):
            try:
                await anext(stream)
            except StopAsyncIteration:
                break
        if read == 2:
            await stream.aclose()
        del stream
        gc.collect(1)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stream_that_outlives_its_loop(backend: str) -> None:
    """P7: a stream that is still referenced when its event loop ends has no run any more, and does not warn when it is
    freed."""
    kept: list[Any] = []
    steps: list[str] = []

    async def main() -> None:
        graph, reached, cleaned = waiting()
        stream = graph.astream({})
        kept.extend([stream, cleaned])
        await anext(stream)
        await reached.wait()

    anyio.run(main, backend=backend)
    steps = kept.pop()
    kept.clear()
    gc.collect(1)
    assert steps == ["cleaned up"]


async def test_many_streams_at_once() -> None:
    """P13: streams of one graph do not affect each other."""
    source = Source(20)
    results: dict[int, int] = {}

    async def read(number: int) -> None:
        async with source.stream(stream_mode="values") as stream:
            async for chunk in stream:
                results[number] = chunk["count"]

    async with nothing_left():
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(read, number)
    assert results == dict.fromkeys(range(10), 20)


async def test_a_stream_in_a_node() -> None:
    """P13: a node may read a stream of another graph, and is cancelled with it."""
    graph, reached, steps = waiting()

    async def node(state: Any) -> None:
        async with graph.astream({}) as stream:
            async for _ in stream:
                pass

    outer = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    async with nothing_left():
        async with outer.astream({}):
            await reached.wait()
        assert steps == ["cleaned up"]


async def test_a_stream_with_a_limit() -> None:
    """P14: the limit's error comes after the last chunk; what was read is what was stored."""
    source = Source(100, saver=InMemorySaver())
    got: list[Any] = []
    with pytest.raises(GraphRecursionError):
        async for chunk in source.graph.astream({}, {"configurable": {"thread_id": "t"}, "recursion_limit": 7}):
            got.append(chunk)
    assert len(got) == 7
    assert (await source.graph.aget_state("t")).values["count"] == 7


async def test_a_slow_reader_and_a_thread() -> None:
    """P12, P13: worker threads feed a stream like other nodes, and end with it."""
    graph = StateGraph(State).add_node("w", lambda number: {"log": [threading.current_thread().name]})
    made = graph.add_conditional_edges(START, lambda state: [Send("w", number) for number in range(100)])
    async with nothing_left():
        async with made.compile().astream({}) as stream:
            await anyio.wait_all_tasks_blocked()
            count = len([chunk async for chunk in stream])
    assert count == 100


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("closing", [False, True])
async def test_exceptions_that_end_a_process_reach_the_reader(kind: type[BaseException], closing: bool) -> None:
    """KeyboardInterrupt and SystemExit in a node are raised, as themselves, in the task that reads or closes the
    stream."""

    async def node(state: Any) -> None:
        raise kind

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    stream = graph.astream({})
    caught: BaseException | None = None
    try:
        if closing:
            await stream.__aenter__()
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()
        else:
            await anext(stream)
    except BaseException as error:  # pytest would end at it
        caught = error
    assert type(caught) is kind
