"""Chunks whose reader is slow: capacity, overflow policies, one order; and streams that are no longer read (P12)."""

from __future__ import annotations

import asyncio
import itertools
import operator
import random
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, Send, StateGraph, StreamWriter, get_stream_writer, task
from pregel_async._runtime.streaming.buffer import Buffer
from pregel_async._runtime.streaming.parts import RawPart
from pregel_async._runtime.streaming.subscription import Subscription
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    count: Annotated[int, operator.add]


def counter(last: int, *, writes: int = 1, saver: Any = None) -> Any:
    """Return a graph that counts, superstep by superstep, and writes the count."""

    async def node(state: State, writer: StreamWriter) -> State:
        for _ in range(writes):
            await writer(state["count"])
        return {"count": 1}

    made = StateGraph(State).add_node("n", node).add_edge(START, "n")
    made.add_conditional_edges("n", lambda state: "n" if state["count"] < last else END)
    return made.compile(saver)


async def stalled(graph: Any, *, taken: int = 0, **arguments: Any) -> tuple[Any, list[Any]]:
    """Return a stream whose reader has read some chunks, after all activity has stopped, and those chunks."""
    stream = graph.astream({}, "t", **arguments)
    await stream.__aenter__()
    got = [await anext(stream) for _ in range(taken)]
    await anyio.wait_all_tasks_blocked()
    return stream, got


async def read_rest(stream: Any) -> list[Any]:
    got = [chunk async for chunk in stream]
    await stream.aclose()
    return got


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
async def test_the_capacity_is_shared_by_all_modes(capacity: int) -> None:
    """64 chunks per run by default, shared by its modes; `capacity=` sets another number."""
    arguments = {} if capacity == 64 else {"capacity": capacity}
    modes = ["values", "updates", "custom", "tasks"]
    async with nothing_left():
        stream, _ = await stalled(counter(100), stream_mode=modes, **arguments)
        assert len(stream._buffer.parts) == capacity
        assert len(await read_rest(stream)) == 5 * 100  # tasks twice


async def test_block_is_the_default() -> None:
    """The run stops, and no chunk is lost."""
    stream, got = await stalled(counter(200), taken=3, stream_mode=["updates", "values"], version="v2")
    assert len(stream._buffer.parts) == 64
    got += await read_rest(stream)
    assert [part["seq"] for part in got] == list(range(1, 401))


@pytest.mark.parametrize("named", [True, False])
async def test_drop_oldest(named: bool) -> None:
    """P12: the run continues, and the oldest unread chunk of that mode is dropped; gaps of `seq` show it."""
    overflow: Any = {"custom": "drop_oldest"} if named else "drop_oldest"
    stream, _ = await stalled(counter(200), stream_mode="custom", overflow=overflow, capacity=5, version="v2")
    assert stream._buffer.ended
    assert [(part["data"], part["seq"]) for part in await read_rest(stream)] == [(n, n + 1) for n in range(195, 200)]


@pytest.mark.parametrize("mode", ["values", "custom", "updates"])
async def test_coalesce(mode: Any) -> None:
    """Only the newest chunk of that mode is kept, also before the buffer is full."""
    stream, _ = await stalled(counter(200), stream_mode=mode, overflow="coalesce", version="v2")
    assert stream._buffer.ended
    (last,) = await read_rest(stream)
    assert last["seq"] == 200
    assert last["data"] == {"values": {"count": 200}, "custom": 199, "updates": {"n": {"count": 1}}}[mode]


async def test_a_policy_of_each_mode() -> None:
    """Modes that block stop the run and lose nothing, while the other modes drop."""
    stream, _ = await stalled(
        counter(200),
        stream_mode=["values", "updates", "custom"],
        overflow={"values": "coalesce", "custom": "drop_oldest"},
        capacity=10,
        version="v2",
    )
    assert not stream._buffer.ended
    assert len(stream._buffer.parts) <= 12
    got = await read_rest(stream)
    assert [part["data"] for part in got if part["type"] == "updates"] == [{"n": {"count": 1}}] * 200
    assert [part["seq"] for part in got] == sorted(part["seq"] for part in got)
    assert got[-1]["type"] == "values"
    assert got[-1]["data"] == {"count": 200}


async def test_coalesce_keeps_one_of_each_graph() -> None:
    """The newest state of a subgraph does not replace the root's; the number of such states is bounded."""
    inner = counter(5)
    made = StateGraph(State).add_node("sub", inner)
    made.add_conditional_edges(START, lambda state: [Send("sub", {}) for _ in range(30)])
    modes: Any = {"stream_mode": "values", "subgraphs": True, "overflow": "coalesce"}
    stream, _ = await stalled(made.compile(), **modes)
    got = await read_rest(stream)
    assert len(got) == 31
    assert len({ns for ns, _ in got}) == 31
    assert all(state == {"count": 5} for ns, state in got if ns)
    stream, _ = await stalled(made.compile(), **modes, capacity=4)
    got = await read_rest(stream)
    assert len(got) <= 5
    assert got[-1] == ((), {"count": 150})


async def test_questions_and_results_survive_any_policy() -> None:
    """P12: the newest chunk of a mode is never dropped: the last state and the questions arrive."""
    from pregel_async import interrupt

    async def node(state: State) -> State:
        interrupt("?")
        return {}

    made = StateGraph(State).add_node("n", lambda state: {"count": 1}).add_node("asks", node)
    graph = made.add_edge(START, "n").add_edge("n", "asks").compile(InMemorySaver(), blocking=False)
    for overflow in ("drop_oldest", "coalesce"):
        stream, _ = await stalled(graph, stream_mode=["values", "updates"], overflow=overflow, capacity=1)
        got = await read_rest(stream)
        assert [mode for mode, chunk in got if "__interrupt__" in chunk] == ["updates", "values"]


def test_the_buffer_against_a_model() -> None:
    """P12: for any sequence of adding and taking, no mode that blocks loses a part, the order is that of the adding, a
    mode that drops loses its oldest, and the buffer never holds more than its capacity and one part of each mode that
    drops."""
    for seed in range(300):
        rng = random.Random(seed)
        policies: Any = {"d": "drop_oldest", "c": "coalesce", "e": "drop_oldest"}
        capacity = rng.randint(1, 6)
        pipe = Buffer(capacity, policies)
        added: dict[str, list[int]] = {mode: [] for mode in "bdce"}
        taken: list[RawPart] = []
        numbers = itertools.count(1)
        for _ in range(rng.randint(1, 120)):
            mode = rng.choice("bdce")
            if rng.random() < 0.4 and pipe.parts:
                taken.append(pipe.pop())
            elif not pipe.blocks(mode):
                number = next(numbers)
                pipe.add(RawPart(mode=mode, ns=(), data=number, step=0))
                added[mode].append(number)
                assert pipe.parts[-1].data == number
            assert len(pipe.parts) <= capacity + 3
            assert len([part for part in pipe.parts if part.mode == "c"]) <= 1
        while pipe.parts:
            taken.append(pipe.pop())
        assert [part.data for part in taken] == sorted(part.data for part in taken)
        assert [part.data for part in taken if part.mode == "b"] == added["b"]
        for mode in "dce":
            assert [part.data for part in taken if part.mode == mode][-1:] == added[mode][-1:]


async def test_capacity_of_a_cancelled_writer_is_not_lost() -> None:
    """P12: a writer that waits for a second reader, and is cancelled there, passes on the capacity that it has at the
    first reader."""
    pipes = [Buffer(1), Buffer(1)]
    feed = Subscription(["updates"], pipes[0])
    feed.sinks.append(pipes[1])
    scope = anyio.CancelScope()

    async def put(data: str, inside: anyio.CancelScope) -> None:
        with inside:
            await feed.put(RawPart(mode="updates", ns=(), data=data, step=0))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            await put("first", anyio.CancelScope())
            group.start_soon(put, "cancelled", scope)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(put, "next", anyio.CancelScope())
            await anyio.wait_all_tasks_blocked()
            assert pipes[0].pop().data == "first"
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert pipes[1].pop().data == "first"
        assert [part.data for pipe in pipes for part in pipe.parts] == ["next", "next"]


async def test_a_wakeup_of_a_cancelled_writer_is_not_lost(anyio_backend_name: str) -> None:
    """P12: asyncio's own cancellation may hit a writer that has just been given capacity."""
    if anyio_backend_name != "asyncio":
        return
    pipe = Buffer(1)
    pipe.add(RawPart(mode="updates", ns=(), data=1, step=0))
    waiting = [asyncio.ensure_future(pipe.wait_for_capacity()) for _ in range(2)]
    await anyio.wait_all_tasks_blocked()
    pipe.pop()
    waiting[0].cancel()
    with anyio.fail_after(30):
        await waiting[1]
    assert waiting[0].cancelled()


@pytest.mark.parametrize("overflow", ["block", "drop_oldest", "coalesce"])
async def test_one_total_order(overflow: Any) -> None:
    """P12: whatever the policy and however the writers interleave, numbers only increase, and each writer's chunks come
    in its order; under "block" all of them come."""

    @task
    async def called(name: str) -> None:
        for number in range(20):
            await get_stream_writer()((name, number))

    async def anode(name: str) -> State:
        step = called(f"{name} task")
        for number in range(20):
            get_stream_writer()((name, number))
            await anyio.lowlevel.checkpoint()
        await step
        return {"count": 1}

    def plain(name: str) -> State:
        for number in range(20):
            get_stream_writer()((name, number))
        return {"count": 1}

    made = StateGraph(State).add_node("anode", anode).add_node("plain", plain)
    made.add_conditional_edges(
        START, lambda state: [Send("anode", f"a{n}") for n in range(4)] + [Send("plain", f"p{n}") for n in range(4)]
    )
    async with nothing_left():
        stream = made.compile().astream(
            {}, stream_mode=["custom", "updates", "values"], overflow=overflow, capacity=3, version="v2"
        )
        got = []
        async for part in stream:
            got.append(part)
            if len(got) % 7 == 0:
                await anyio.wait_all_tasks_blocked()
    assert [part["seq"] for part in got] == sorted({part["seq"] for part in got})
    written = [part["data"] for part in got if part["type"] == "custom"]
    for name in {name for name, _ in written}:
        numbers = [number for each, number in written if each == name]
        assert numbers == sorted(set(numbers))
    if overflow == "block":
        assert len(written) == 240
        assert [part["seq"] for part in got] == list(range(1, 240 + 8 + 4 + 1 + 1))
    assert got[-1]["type"] == "values"


@pytest.mark.parametrize("begun", [0, 1, 5])
async def test_finish_lets_the_run_continue(begun: int) -> None:
    """`finish()`: the run continues to its end without waiting for a reader; its chunks are dropped, and the state is
    stored."""
    graph = counter(300, saver=InMemorySaver())
    async with nothing_left():
        stream = graph.astream({}, "t", stream_mode=["custom", "values"], capacity=2)
        for _ in range(begun):
            await anext(stream)
        with anyio.fail_after(30):
            await stream.finish()
            assert (await graph.aget_state("t")).values == {"count": 300}
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            await stream.finish()
            await stream.aclose()


async def test_finish_after_the_end_and_in_a_block() -> None:
    """`finish()`: at the end of an `async with`, and of a stream that was read to its end."""
    graph = counter(10, saver=InMemorySaver())
    async with nothing_left():
        async with graph.astream({}, "t") as stream:
            await anext(stream)
            await stream.finish()
        assert (await graph.aget_state("t")).values == {"count": 10}
        async with graph.astream({}, "u") as stream:
            assert len([chunk async for chunk in stream]) == 10
            await stream.finish()


async def test_finish_raises_the_runs_failure() -> None:
    """`finish()`: the run's failure is raised, once."""

    async def fails(state: State) -> None:
        raise ValueError("broken")

    graph = StateGraph(State).add_node("n", fails).add_edge(START, "n").compile()
    for version in ("v1", "v2"):
        stream = graph.astream({}, version=version, capacity=1, stream_mode=["tasks", "updates"])
        with pytest.raises(ValueError, match="broken"):
            await stream.finish()
        await stream.finish()
        await stream.aclose()


@pytest.mark.parametrize("fails", [False, True])
async def test_cancelling_finish_cancels_the_run(fails: bool) -> None:
    """`finish()`: cancelled, it cancels the run, which has ended before control returns, also if a failure of the run
    is on its way."""
    steps: list[str] = []
    reached = anyio.Event()

    async def node(state: State) -> None:
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            steps.append("cleaned up")
            if fails:
                raise ValueError("while cleaning up")

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    after: list[str] = []
    async with nothing_left():
        async with anyio.create_task_group() as group:

            async def finish() -> None:
                await graph.astream({}).finish()
                after.append("went on")

            group.start_soon(finish)
            await reached.wait()
            group.cancel_scope.cancel()
        assert steps == ["cleaned up"]
        assert after == []


async def test_finish_while_another_task_reads() -> None:
    """`finish()`: the reader sees the end of the stream, and no error."""
    graph = counter(50)
    got: list[Any] = []
    stream = graph.astream({}, capacity=1)

    async def read() -> None:
        async for chunk in stream:
            got.append(chunk)
        got.append("the end")

    async with nothing_left():
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            while not got:
                await anyio.lowlevel.checkpoint()
            await stream.finish()
    assert got[-1] == "the end"


async def test_a_reader_that_is_thread_bound_can_leave() -> None:
    """P7: a plain node that waits in its writer for a reader that leaves continues or ends, and no thread is left."""

    def node(state: State, writer: StreamWriter) -> None:
        for number in range(200):
            writer(number)

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    async with nothing_left():
        for how in ("close", "finish"):
            stream = graph.astream({}, stream_mode="custom", capacity=2)
            assert await anext(stream) == 0
            while len(stream._buffer.parts) < 2:
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(30):
                await (stream.aclose() if how == "close" else stream.finish())
