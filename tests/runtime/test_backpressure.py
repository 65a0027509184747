"""P12: nodes that write faster than their reader reads are slowed, wherever they write from, and no run hangs."""

from __future__ import annotations

import asyncio
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

from pregel_async import END, START, Send, StateGraph, StreamWriter, get_stream_writer, task
from pregel_async.errors import StreamFullError
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    count: Annotated[int, operator.add]


def graph_of(*nodes: Any, **settings: Any) -> Any:
    """Return a graph of nodes that run concurrently."""
    made = StateGraph(State)
    for number, node in enumerate(nodes):
        made.add_node(f"n{number}", node).add_edge(START, f"n{number}")
    return made.compile(**settings)


async def idle() -> None:
    """Wait until everything waits for the reader or for the test's next step."""
    await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("how", ["close", "drop", "finish"])
async def test_a_reader_leaves_while_a_node_is_held_behind_a_shield(how: str) -> None:
    """P7: closing a stream waits for its run, and the run does not wait for the closing reader, even where no
    cancellation reaches the waiting node."""
    written = []

    async def node(state: State, writer: StreamWriter) -> None:
        with anyio.CancelScope(shield=True):
            for number in range(100):
                writer(number)
                written.append(number)
                await anyio.lowlevel.checkpoint()

    async with nothing_left():
        stream = graph_of(node).astream({}, stream_mode="custom", capacity=4)
        with anyio.fail_after(30):
            assert await anext(stream) == 0
            await idle()
            assert len(written) == 5  # one chunk was read, and four wait
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
    """P7: closing twice, entering after that and finishing have no effect and raise nothing."""
    stream = graph_of(lambda state: None).astream({})
    for _ in range(2):
        await stream.aclose()
    async with stream:
        assert [chunk async for chunk in stream] == []
    await stream.finish()


async def test_a_held_node_takes_no_capacity_from_others() -> None:
    """P12: a held node only waits until there is capacity. A thread that waits to put its chunk gets that capacity,
    even if the reader takes nothing more before."""
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

    with anyio.fail_after(30):
        async with graph_of(held, other).astream({}, stream_mode="custom", capacity=1) as stream:
            await idle()
            while not blocked(stream, 2):  # the thread waits too
                await anyio.lowlevel.checkpoint()
            assert await anext(stream) == 1
            assert await anext(stream) == "thread"
            assert [chunk async for chunk in stream] == []


def blocked(stream: Any, count: int) -> bool:
    """Return True if the given number of writers wait for the reader."""
    return len(stream._buffer._writers) == count


async def test_capacity_given_to_a_cancelled_writer() -> None:
    """P12: capacity given to a cancelled writer goes to the next writer that waits."""
    reports: list[str] = []

    async def quits(state: State, writer: StreamWriter) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await writer("x")
        reports.append("quit")

    async def stays(state: State, writer: StreamWriter) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(lambda: get_stream_writer()("stays"))

    scopes: list[anyio.CancelScope] = []
    with anyio.fail_after(30):
        async with graph_of(quits, stays).astream({}, stream_mode="custom", capacity=1) as stream:
            await idle()
            while not blocked(stream, 2):
                await anyio.lowlevel.checkpoint()
            assert await anext(stream) == "x"  # the capacity goes to the first
            scopes[0].cancel()
            assert [chunk async for chunk in stream] == ["stays"]
    assert reports == ["quit"]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("wide", [True, False])
async def test_nodes_that_never_wait_start_when_there_is_capacity(wide: bool, blocking: bool) -> None:
    """P12: a node that writes one chunk and awaits nothing cannot be held; so the next one does not begin before the
    reader has caught up, whether it is of the same superstep or of a later one. A slow reader slows the run and never
    fails it."""
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
    """P12: a loop that writes without an await gets StreamFullError long before 32 MB, whatever it writes."""
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
    """P12: the overhead of a chunk counts: a loop that writes numbers takes no more memory than one that writes
    bytes."""
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


async def test_bursts_after_the_reader_has_caught_up() -> None:
    """P12: a later burst may be as long as the first, once the reader has caught up."""

    async def node(state: State, writer: StreamWriter) -> None:
        for _ in range(5):
            for _ in range(120):
                settled = writer(bytes(100_000))
            await settled

    async with graph_of(node).astream({}, stream_mode="custom") as stream:
        assert len([chunk async for chunk in stream]) == 600


@pytest.mark.parametrize("how", ["awaits the writer", "awaits something else", "tasks of one node"])
async def test_many_that_wait_are_never_refused(how: str) -> None:
    """P12: however many nodes write at once and however much, those that wait in turn are slowed, and none gets an
    error."""
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


def held(stream: Any) -> int:
    """Return how many nodes wait for the reader."""
    return len(stream._buffer._writers)


async def start(graph: Any, **arguments: Any) -> Any:
    """Return a stream with room for one chunk, after all activity has stopped."""
    stream = graph.astream({}, "t", stream_mode="custom", capacity=1, **arguments)
    await stream.__aenter__()
    await idle()
    return stream


async def pause() -> None:
    """Await a call that takes one turn of the event loop."""
    await anyio.lowlevel.checkpoint()


async def test_a_node_is_held_at_any_await() -> None:
    """P12: a node that does not await the writer is held at its next await of any kind: with capacity for one chunk, it
    is never more than one ahead."""
    written = 0

    async def node(state: State, writer: StreamWriter) -> None:
        nonlocal written
        event = anyio.Event()
        send, receive = anyio.create_memory_object_stream[int](1)
        lock = anyio.Lock()
        event.set()
        with send, receive:
            for number in range(8):
                written += 1
                writer(number)
                match number % 4:
                    case 0:
                        await pause()
                    case 1:
                        await anyio.to_thread.run_sync(int)
                    case 2:
                        async with lock:
                            await pause()
                    case _:
                        await send.send(1)
                        await receive.receive()
        await event.wait()

    async with nothing_left():
        async with await start(graph_of(node)) as stream:
            for number in range(8):
                while not held(stream):
                    await pause()
                assert written == number + 1
                assert await anext(stream) == number


async def test_results_that_a_held_node_awaited_are_not_lost() -> None:
    """P12: results and exceptions of awaited calls arrive unchanged after the hold."""
    got: list[Any] = []

    async def gives(what: Any) -> Any:
        await pause()
        if isinstance(what, BaseException):
            raise what
        return what

    async def node(state: State, writer: StreamWriter) -> None:
        send, receive = anyio.create_memory_object_stream[int](2)
        with send, receive:
            for number in range(3):
                writer(number)
                got.append(await gives(number))
                writer("again")
                try:
                    await gives(KeyError(number))
                except KeyError as error:
                    got.append(error.args)
                await send.send(number)
                writer("sent")
                got.append(await receive.receive())

    stream = await start(graph_of(node))
    async with nothing_left():
        assert len([chunk async for chunk in stream]) == 9
    assert got == [0, (0,), 0, 1, (1,), 1, 2, (2,), 2]


@pytest.mark.parametrize("kind", ["anyio", "asyncio", "trio"])
async def test_a_held_node_and_its_lock(kind: str, anyio_backend_name: str) -> None:
    """P12: a node that is held while it holds or acquires a lock keeps it and releases it: others get it in turn; also
    when all are cancelled."""
    if kind not in ("anyio", anyio_backend_name):
        return
    import trio

    inside = 0
    done: list[int] = []

    def contender(number: int) -> Any:
        async def node(state: State, writer: StreamWriter) -> None:
            nonlocal inside
            for _ in range(5):
                writer(number)
                async with lock:
                    inside += 1
                    assert inside == 1
                    writer(number)
                    try:
                        await pause()
                    finally:
                        inside -= 1
            done.append(number)

        return node

    for closing in (False, True):
        lock: Any = {"anyio": anyio.Lock, "asyncio": asyncio.Lock, "trio": trio.Lock}[kind]()
        done.clear()
        inside = 0
        async with nothing_left():
            with anyio.fail_after(30):
                stream = await start(graph_of(*[contender(number) for number in range(4)]))
                if closing:
                    for _ in range(7):
                        await anext(stream)
                    await idle()
                    await stream.aclose()
                else:
                    assert len([chunk async for chunk in stream]) == 40
                    assert sorted(done) == [0, 1, 2, 3]
                async with lock:  # the lock is free
                    assert inside == 0


async def test_a_timeout_of_the_node_while_it_is_held() -> None:
    """P12: the node's own deadline counts while it is held and is raised in the node as its own; the node continues
    after it, and the reader gets all chunks."""
    got: list[str] = []

    async def node(state: State, writer: StreamWriter) -> State:
        writer(0)
        try:
            with anyio.fail_after(0.02):
                for number in range(1, 100):
                    writer(number)
                    await pause()
        except TimeoutError:
            got.append("timed out")
        with anyio.move_on_after(0.02) as scope:
            await writer("awaited")
            await anyio.sleep_forever()
        got.append(f"moved on {scope.cancelled_caught}")
        writer("after")
        await pause()
        return {"count": 1}

    async with nothing_left():
        with anyio.fail_after(30):
            stream = await start(graph_of(node))
            while len(got) < 2:
                await anyio.sleep(0.001)
            chunks = [chunk async for chunk in stream]
    assert got == ["timed out", "moved on True"]
    assert chunks == [0, 1, "awaited", "after"] or chunks == [0, 1, 2, "awaited", "after"]


async def test_asyncios_timeout_while_held(anyio_backend_name: str) -> None:
    """Asyncio's own timeouts work in a held node too; the task is not left cancelled."""
    if anyio_backend_name != "asyncio":
        return
    got: list[Any] = []

    async def node(state: State, writer: StreamWriter) -> State:
        for _ in range(3):
            try:
                async with asyncio.timeout(0.01):
                    writer("x")
                    await asyncio.sleep(0)
                    writer("x")
                    await asyncio.sleep(0)
            except TimeoutError:
                got.append("timed out")
        try:
            await asyncio.wait_for(asyncio.sleep(10), 0.01)
        except TimeoutError:
            got.append("waited")
        current = asyncio.current_task()
        got.append(None if current is None else current.cancelling())
        return {"count": 1}

    async with nothing_left():
        with anyio.fail_after(30):
            stream = await start(graph_of(node))
            while "waited" not in got:
                await anyio.sleep(0.001)
                if len(got) == 3 and not stream._buffer.ended:
                    break
            chunks = [chunk async for chunk in stream]
    assert got == ["timed out"] * 3 + ["waited", 0]
    assert set(chunks) == {"x"}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("how", ["close", "cancelled read", "native", "scope around", "sibling fails"])
async def test_cancelling_nodes_that_are_held(how: str, alone: bool, anyio_backend_name: str) -> None:
    """P7: held nodes are cancelled like others, clean up, and have ended before control returns, however the
    cancellation comes."""
    cleaned: list[str] = []
    failing = anyio.Event()

    async def node(state: State, writer: StreamWriter) -> None:
        try:
            await pause()
            await pause()  # all of them have started
            while True:
                writer("x")
                await pause()
        finally:
            with anyio.CancelScope(shield=True):
                await pause()
            cleaned.append("x")

    async def fails(state: State) -> None:
        await failing.wait()
        raise ValueError

    count = 1 if alone else 5
    graph = graph_of(*[node] * count, *([fails] if how == "sibling fails" else []))

    async def read(stream: Any) -> None:
        async with stream:
            await idle()
            started.set()
            await anyio.sleep_forever()

    started = anyio.Event()
    async with nothing_left():
        with anyio.fail_after(30):
            stream = graph.astream({}, stream_mode="custom", capacity=1)
            if how == "native":
                if anyio_backend_name != "asyncio":
                    return
                reader = asyncio.ensure_future(read(stream))
                await started.wait()
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
            elif how == "scope around":
                async with anyio.create_task_group() as group:
                    group.start_soon(read, stream)
                    await started.wait()
                    group.cancel_scope.cancel()
            else:
                await stream.__aenter__()
                await idle()
                if how == "close":
                    await stream.aclose()
                elif how == "cancelled read":
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        while True:
                            await anext(stream)
                            await pause()
                    await stream.aclose()
                else:
                    failing.set()
                    with pytest.raises(ValueError):
                        async for _ in stream:
                            pass
        assert len(cleaned) == count


async def test_a_native_cancellation_of_a_nodes_task_while_it_is_held(anyio_backend_name: str) -> None:
    """A node that cancels itself natively while it is held gets the cancellation and fails with it."""
    if anyio_backend_name != "asyncio":
        return
    from pregel_async.errors import NodeCancelledError

    tasks: list[Any] = []

    async def node(state: State, writer: StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        writer("x")
        await asyncio.sleep(0)

    async def other(state: State) -> None:
        while not held(streams[0]):
            await asyncio.sleep(0)
        tasks[0].cancel()

    streams: list[Any] = []

    async with nothing_left():
        with anyio.fail_after(30):
            with pytest.raises(NodeCancelledError):
                async with graph_of(node, other).astream({}, stream_mode="custom", capacity=1) as stream:
                    streams.append(stream)
                    await idle()
                    async for _ in stream:
                        pass


async def test_a_held_node_with_a_task_group() -> None:
    """P12: children of a held node's task group keep running; they are held where they await the writer; a child's
    failure reaches the body while it is held."""
    got: list[str] = []
    go = anyio.Event()

    async def child(writer: StreamWriter) -> None:
        await writer("child")
        got.append("child")

    async def bad() -> None:
        await go.wait()
        raise ValueError("child")

    async def node(state: State, writer: StreamWriter) -> State:
        async with anyio.create_task_group() as group:
            group.start_soon(child, writer)
            for number in range(3):
                writer(number)
                await pause()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(bad)
                while True:
                    writer("loop")
                    await pause()
        except* ValueError:
            got.append("failed")
        return {"count": 1}

    async with nothing_left():
        with anyio.fail_after(30):
            stream = await start(graph_of(node))
            chunks = [await anext(stream) for _ in range(6)]
            await idle()
            go.set()
            chunks += [chunk async for chunk in stream]
    assert sorted(map(str, chunks))[:4] == ["0", "1", "2", "child"]
    assert got == ["child", "failed"]


async def test_many_held_nodes_in_subgraphs() -> None:
    """P12: with nodes of several graphs, tasks that they call, and one reader, none is forgotten and none gets far
    ahead."""
    written = 0

    async def busy(name: str) -> None:
        nonlocal written
        for number in range(10):
            written += 1
            get_stream_writer()((name, number))
            await pause()

    @task
    async def called(name: str) -> None:
        await busy(name)

    async def node(state: State) -> None:
        waits = called("task")
        await busy("node")
        await waits

    inner = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    middle = StateGraph(State).add_node("inner", inner).add_node("node", node)
    middle.add_edge(START, "inner").add_edge(START, "node")
    made = StateGraph(State).add_node("middle", middle.compile()).add_node("node", node)
    made.add_conditional_edges(START, lambda state: [Send("middle", {}) for _ in range(5)] + [Send("node", {})])
    async with nothing_left():
        with anyio.fail_after(30):
            async with made.compile().astream({}, stream_mode="custom", subgraphs=True, capacity=3) as stream:
                await idle()
                assert 3 <= written <= 3 + 22  # no more than one chunk of each beyond
                got = [chunk async for chunk in stream]
    assert len(got) == 11 * 2 * 10
    for ns in {ns for ns, _ in got}:
        for name in ("node", "task"):
            assert [chunk[1] for each, chunk in got if each == ns and chunk[0] == name] in ([], list(range(10)))


async def test_a_reader_of_a_subgraph_that_stalls() -> None:
    """P12: a node that reads a graph and stops reading holds that graph, and no other."""
    ran = 0

    async def busy(state: State, writer: StreamWriter) -> State:
        nonlocal ran
        ran += 1
        writer("x")
        await pause()
        return {"count": 1}

    made = StateGraph(State).add_node("busy", busy).add_edge(START, "busy")
    inner = made.add_conditional_edges("busy", lambda state: "busy" if state["count"] < 50 else END).compile()

    async def reads(state: State) -> None:
        async with inner.astream({}, stream_mode="custom", capacity=2) as stream:
            await anext(stream)
            await idle()
            assert ran <= 4
            assert len([chunk async for chunk in stream]) == 49

    async with nothing_left():
        with anyio.fail_after(30):
            assert await graph_of(reads, lambda state: {"count": 1}).ainvoke({}) == {"count": 1, "log": []}


async def test_a_node_sees_its_own_context_variables_while_it_is_gated() -> None:
    """P12: context variables that a node sets are there after an await, and nowhere else, whether or not its chunks are
    read."""
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    async def node(state: State, writer: StreamWriter) -> None:
        seen.append(variable.get())
        variable.set("node")
        writer(1)
        await pause()
        writer(2)
        await pause()
        seen.append(variable.get())

    made = StateGraph(State).add_sequence([("a", node), ("b", node)]).add_edge(START, "a").compile()
    for mode in ("custom", "updates"):
        seen.clear()
        async with made.astream({}, stream_mode=mode, capacity=1) as stream:
            await idle()
            assert len([chunk async for chunk in stream]) == (4 if mode == "custom" else 2)
        assert seen == ["none", "node", "none", "node"]
    assert variable.get() == "none"


async def test_a_generator_and_a_writer_from_another_nodes_code() -> None:
    """A writer that is used after its node has ended is refused; one that is used in a generator of the running node
    works."""
    from pregel_async.errors import OutsideRunError

    kept: list[StreamWriter] = []

    async def numbers(writer: StreamWriter) -> Any:
        for number in range(5):
            writer(number)
            await pause()
            yield number

    async def node(state: State, writer: StreamWriter) -> None:
        kept.append(writer)
        assert [number async for number in numbers(writer)] == list(range(5))

    async with nothing_left():
        stream = await start(graph_of(node))
        assert [chunk async for chunk in stream] == list(range(5))
    with pytest.raises(OutsideRunError, match="has ended"):
        kept[0]("late")


async def test_values_received_before_a_scope_was_cancelled() -> None:
    """P12: a value that a node has received before it was held stays its own, though its scope is cancelled meanwhile:
    on every event loop, the cancellation comes at its next await."""
    got: list[Any] = []
    scopes: list[anyio.CancelScope] = []

    async def node(state: State, writer: StreamWriter) -> None:
        send, receive = anyio.create_memory_object_stream[str]()
        with send, receive:
            async with anyio.create_task_group() as group:
                group.start_soon(later, send, writer)
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    got.append(await receive.receive())
                    await pause()
                    got.append("went on")
                got.append(scope.cancelled_caught)

    async def later(send: Any, writer: StreamWriter) -> None:
        for _ in range(3):
            await pause()
        writer("full")
        await send.send("item")

    async with nothing_left():
        with anyio.fail_after(30):
            stream = await start(graph_of(node))
            assert held(stream) == 1
            assert got == []
            scopes[0].cancel()
            while len(got) < 2:
                await pause()
            assert [chunk async for chunk in stream] == ["full"]
    assert got == ["item", True]
