"""Nodes that write faster than their reader reads: they are slowed, wherever they write from, and nothing hangs (P12)."""

# Tests do on purpose what users may do, types or not:
# mypy: disable-error-code="arg-type,func-returns-value"

from __future__ import annotations

import collections
import dataclasses
import gc
import operator
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest
from living import nothing_left

from pregel_async import END, START, Send, StateGraph, StreamWriter, get_stream_writer
from pregel_async.errors import StreamFullError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    count: Annotated[int, operator.add]


def graph_of(*nodes: Any, **settings: Any) -> Any:
    """A graph of nodes that run at once."""
    made = StateGraph(State)
    for number, node in enumerate(nodes):
        made.add_node(f"n{number}", node).add_edge(START, f"n{number}")
    return made.compile(**settings)


async def idle() -> None:
    """Until everything waits for the reader, or for what the test does next."""
    await anyio.wait_all_tasks_blocked()


# ---- a reader that leaves while nodes are held -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "drop", "finish"])
async def test_a_reader_leaves_while_a_node_is_held_behind_a_shield(how: str) -> None:
    """P7: whoever closes a stream waits for its run, and the run not for it: not even where no cancellation gets to
    the node that waits."""
    written = []

    async def node(state: State, writer: StreamWriter) -> None:
        with anyio.CancelScope(shield=True):
            for number in range(100):
                writer(number)
                written.append(number)
                await anyio.lowlevel.checkpoint()

    async with nothing_left():
        stream = graph_of(node).astream({}, stream_mode="custom", capacity=4)
        with anyio.fail_after(10):
            assert await anext(stream) == 0
            await idle()
            assert len(written) == 5  # one was read, and four wait
            if how == "close":
                await stream.aclose()
            elif how == "finish":
                await stream.finish()
            else:
                with pytest.warns(ResourceWarning):
                    del stream
                    gc.collect(1)
                await idle()
    assert len(written) == 100


async def test_a_stream_that_never_began_can_be_closed_and_closed_again() -> None:
    """P7: closing twice, entering after that, finishing: nothing happens, and nothing is wrong."""
    stream = graph_of(lambda state: None).astream({})
    for _ in range(2):
        await stream.aclose()
    async with stream:
        assert [chunk async for chunk in stream] == []
    await stream.finish()


# ---- who waits for a reader is told of room --------------------------------------------------------------------------


async def test_a_held_node_takes_no_place_from_others() -> None:
    """P12: a node that is held only waits until there is room. A thread that waits to put its chunk gets that room, even
    if the reader takes nothing more before."""
    wrote = anyio.Event()

    async def held(state: State, writer: StreamWriter) -> None:
        await anyio.lowlevel.checkpoint()
        writer(1)
        await anyio.lowlevel.checkpoint()
        await wrote.wait()

    async def other(state: State, writer: StreamWriter) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

        def write() -> None:
            get_stream_writer()("thread")
            anyio.from_thread.run_sync(wrote.set)

        await anyio.to_thread.run_sync(write)

    with anyio.fail_after(10):
        async with graph_of(held, other).astream({}, stream_mode="custom", capacity=1) as stream:
            await idle()
            while not blocked(stream, 2):  # the thread waits too
                await anyio.lowlevel.checkpoint()
            assert await anext(stream) == 1
            assert await anext(stream) == "thread"
            assert [chunk async for chunk in stream] == []


def blocked(stream: Any, count: int) -> bool:
    """Whether so many wait for the reader."""
    return len(stream._pipe._waiting) == count


async def test_room_that_was_given_to_somebody_who_is_cancelled() -> None:
    """P12: it goes to the next who waits."""
    told: list[str] = []

    async def quits(state: State, writer: StreamWriter) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await writer("x")
        told.append("quit")

    async def stays(state: State, writer: StreamWriter) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(lambda: get_stream_writer()("stays"))

    scopes: list[anyio.CancelScope] = []
    with anyio.fail_after(10):
        async with graph_of(quits, stays).astream({}, stream_mode="custom", capacity=1) as stream:
            await idle()
            while not blocked(stream, 2):
                await anyio.lowlevel.checkpoint()
            assert await anext(stream) == "x"  # the room is given to the first
            scopes[0].cancel()
            assert [chunk async for chunk in stream] == ["stays"]
    assert told == ["quit"]


# ---- nodes that never wait -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("wide", [True, False])
async def test_nodes_that_never_wait_start_when_there_is_room(wide: bool, blocking: bool) -> None:
    """P12: a node that writes one chunk and awaits nothing cannot be held; so the next does not begin before the reader
    has caught up, be it of the same superstep or of a later one. A slow reader slows the run and never fails it."""
    ran = 0

    def write(state: Any, writer: StreamWriter) -> dict[str, Any]:
        nonlocal ran
        ran += 1
        writer(bytes(100_000))
        return {"count": 1}

    async def awrite(state: Any, writer: StreamWriter) -> dict[str, Any]:
        return write(state, writer)

    made = StateGraph(State).add_node("n", awrite if blocking else write)
    if wide:
        made.add_conditional_edges(START, lambda state: [Send("n", number) for number in range(300)])
    else:
        made.add_edge(START, "n").add_conditional_edges("n", lambda state: "n" if state["count"] < 300 else END)
    async with nothing_left():
        async with made.compile(blocking=blocking).astream({}, stream_mode="custom") as stream:
            await idle()
            assert ran == 64
            assert await anext(stream) == bytes(100_000)
            await idle()
            assert ran == 65
            assert len([chunk async for chunk in stream]) == 299


class Slotted:
    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Record(msgspec.Struct):
    data: bytes


@dataclasses.dataclass(slots=True)
class Data:
    data: bytes


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data


WRAPPED = {
    "bytes": lambda data: data,
    "text": lambda data: data.decode("latin"),
    "list": lambda data: [data],
    "key": lambda data: {data: 1},
    "deep": lambda data: {"a": [{"b": ({"c": [{"d": data}]},)}]},
    "deque": lambda data: collections.deque([data]),
    "instance": Bytes,
    "slots": Slotted,
    "dataclass": Data,
    "struct": Record,
    "view": memoryview,
}


@pytest.mark.parametrize("kind", WRAPPED)
async def test_a_loop_that_never_waits_is_stopped(kind: str) -> None:
    """P12: whatever it is that a loop without an await writes, it gets StreamFullError long before 32 MB."""
    wrap, written = WRAPPED[kind], 0

    async def node(state: State, writer: StreamWriter) -> None:
        nonlocal written
        while True:
            writer(wrap(written.to_bytes(4, "big") * 25_000))
            written += 1

    async with graph_of(node).astream({}, stream_mode="custom") as stream:
        await idle()
        assert 64 < written < 200
        with pytest.raises(StreamFullError, match="await writer") as caught:
            assert len([chunk async for chunk in stream]) == written
    assert (caught.value.mode, caught.value.unread) == ("custom", written)


async def test_a_loop_of_small_chunks_is_stopped_too() -> None:
    """P12: what a chunk takes beside its payload counts: a loop that writes numbers takes no more memory than one that
    writes bytes."""
    written = 0

    async def node(state: State, writer: StreamWriter) -> None:
        nonlocal written
        while True:
            writer(written)
            written += 1

    async with graph_of(node).astream({}, stream_mode="custom") as stream:
        await idle()
        with pytest.raises(StreamFullError):
            assert [chunk async for chunk in stream] == list(range(written))
    assert 10_000 < written < 50_000


async def test_what_was_charged_is_forgotten_when_the_reader_has_caught_up() -> None:
    """P12: bursts one after the other may be as long as the first."""

    async def node(state: State, writer: StreamWriter) -> None:
        for _ in range(5):
            for _ in range(120):
                settled = writer(bytes(100_000))
            await settled

    async with graph_of(node).astream({}, stream_mode="custom") as stream:
        assert len([chunk async for chunk in stream]) == 600


@pytest.mark.parametrize("how", ["awaits the writer", "awaits something else", "tasks of one node"])
async def test_many_that_wait_are_never_refused(how: str) -> None:
    """P12: however many write at once and however much, those who wait in turn are slowed, and none gets an error."""
    started = 0
    everybody = anyio.Event()

    async def write(number: int) -> None:
        nonlocal started
        started += 1
        if started == 200:
            everybody.set()
        await everybody.wait()
        for _ in range(2):
            settled = get_stream_writer()(bytes(100_000))
            await (anyio.lowlevel.checkpoint() if how == "awaits something else" else settled)

    async def node(number: int) -> None:
        await write(number)

    async def group(number: int) -> None:
        async with anyio.create_task_group() as tasks:
            for each in range(200):
                tasks.start_soon(write, each)

    several = how != "tasks of one node"
    made = StateGraph(State).add_node("n", node if several else group)
    made.add_conditional_edges(START, lambda state: [Send("n", each) for each in range(200 if several else 1)])
    async with nothing_left():
        async with made.compile().astream({}, stream_mode="custom") as stream:
            await idle()
            assert len([chunk async for chunk in stream]) == 400


async def test_a_chunk_that_is_larger_than_all_bursts() -> None:
    """P12: one chunk may be of any size: its writer waits after it."""

    async def node(state: State, writer: StreamWriter) -> None:
        for _ in range(3):
            await writer(bytes(20_000_000))

    async with graph_of(node).astream({}, stream_mode="custom", capacity=1) as stream:
        await idle()
        assert [len(chunk) async for chunk in stream] == [20_000_000] * 3
