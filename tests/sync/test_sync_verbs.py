"""The sync verbs: each one runs its async twin on one background loop, for any number of plain threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, PregelProtocol, StateGraph
from pregel_async._api.compiled import Graph
from pregel_async._api.sync_verbs import SyncStream, SyncVerbs, open_sync
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async._runtime.streaming.buffer import CAPACITY
from pregel_async._runtime.sync import background_portal as portal
from pregel_async.errors import ConfigError, PregelError
from pregel_async.types import StateUpdate
from tests.helpers.endless_node import EndlessNode

ROOT = Path(__file__).parents[2]
LONG = 30
"""Seconds after which a test stops waiting for an event."""

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    count: int


def graph_of(*nodes: Callable[..., Any], **compiled: Any) -> Graph[Any, Any]:
    """A graph of parallel nodes."""
    made = StateGraph(State)
    for node in nodes:
        made.add_node(node.__name__, node).add_edge(START, node.__name__)
    return made.compile(**compiled)


def chain(*nodes: Callable[..., Any], **compiled: Any) -> Graph[Any, Any]:
    """A graph of nodes in sequence."""
    made = StateGraph(State).add_sequence(list(nodes))
    return made.add_edge(START, nodes[0].__name__).compile(**compiled)


async def first(state: Any) -> dict[str, Any]:
    await anyio.lowlevel.checkpoint()
    return {"log": ["first"]}


def second(state: Any) -> dict[str, Any]:
    return {"log": ["second"]}


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseCheckpointSaver]:
    """Open each saver as a program without an event loop does."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    with open_sync(SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL")) as saver:
        yield saver


def test_each_verb(opened: BaseCheckpointSaver) -> None:
    """invoke, stream, batch, get_state and get_state_history return the same as their async twins."""
    graph = chain(first, second, checkpointer=opened)
    assert graph.invoke({"log": []}, "t") == {"log": ["first", "second"]}
    assert graph.get_state("t").values == {"log": ["first", "second"]}
    assert [snapshot.next for snapshot in graph.get_state_history("t")] == [(), ("second",), ("first",), ("__start__",)]
    assert len(list(graph.get_state_history("t", limit=2))) == 2
    with graph.stream({"log": []}, "u", stream_mode=["values", "updates"]) as chunks:
        assert list(chunks) == [
            ("values", {"log": []}),
            ("updates", {"first": {"log": ["first"]}}),
            ("values", {"log": ["first"]}),
            ("updates", {"second": {"log": ["second"]}}),
            ("values", {"log": ["first", "second"]}),
        ]
    assert graph.batch([{"log": [1]}, {"log": [2]}], ["v", "w"]) == [
        {"log": [1, "first", "second"]},
        {"log": [2, "first", "second"]},
    ]


VERBS = [
    "invoke",
    "stream",
    "batch",
    "batch_as_completed",
    "get_state",
    "get_state_history",
    "update_state",
    "bulk_update_state",
    "check_threads",
    "migrate_threads",
]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if hasattr(Graph, f"a{verb}")])
def test_the_signatures_are_the_twins(verb: str) -> None:
    """A verb has the parameter names, kinds, defaults and types of its async twin."""
    ours, theirs = inspect.signature(getattr(Graph, verb)), inspect.signature(getattr(Graph, f"a{verb}"))
    assert list(ours.parameters.values()) == list(theirs.parameters.values())


class RecordingTwins(SyncVerbs[Any, Any]):
    """Async twins that record their arguments."""

    environment = SystemEnvironment()

    async def aupdate_state(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound("update_state", args, kwargs)

    async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound("invoke", args, kwargs)

    async def abatch(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound("batch", args, kwargs)

    async def abatch_as_completed(self, *args: Any, **kwargs: Any) -> Any:
        yield self.bound("batch_as_completed", args, kwargs)

    async def aget_state(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound("get_state", args, kwargs)

    async def abulk_update_state(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound("bulk_update_state", args, kwargs)

    async def astream(self, *args: Any, **kwargs: Any) -> Any:
        yield self.bound("stream", args, kwargs)

    async def aget_state_history(self, *args: Any, **kwargs: Any) -> Any:
        yield self.bound("get_state_history", args, kwargs)

    async def acheck_threads(self, *args: Any, **kwargs: Any) -> Any:
        yield self.bound("check_threads", args, kwargs)

    async def amigrate_threads(self, *args: Any, **kwargs: Any) -> Any:
        yield self.bound("migrate_threads", args, kwargs)

    def bound(self, verb: str, args: Any, kwargs: Any) -> dict[str, Any]:
        return inspect.signature(getattr(self, verb)).bind(*args, **kwargs).arguments


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_reaches_the_twin(verb: str) -> None:
    """Each argument is passed to the twin unchanged."""
    recorder = RecordingTwins()
    call = getattr(recorder, verb)
    given = {name: f"the {name}" for name in inspect.signature(call).parameters}
    got = call(**given)
    assert (next(got) if isinstance(got, SyncStream) else got) == given


def test_updating_state() -> None:
    """update_state and bulk_update_state write to a thread, and the next run sees the values."""
    graph = graph_of(first).with_checkpointer(InMemorySaver())
    graph.invoke({"log": []}, "t")
    before = graph.get_state("t")
    config = graph.update_state("t", {"log": ["by hand"]}, "first")
    assert graph.get_state(config).values["log"] == [*before.values["log"], "by hand"]
    graph.bulk_update_state("t", [[StateUpdate({"log": ["one"]}, "first")], [StateUpdate({"log": ["two"]}, "first")]])
    assert graph.get_state("t").values["log"] == [*before.values["log"], "by hand", "one", "two"]
    assert [state.metadata["source"] for state in graph.get_state_history("t", limit=3)] == ["update"] * 3


def test_the_protocol() -> None:
    """Every graph has invoke, stream, get_state, update_state and get_state_history."""
    assert isinstance(graph_of(first), PregelProtocol)


def test_a_bad_config_raises_at_once() -> None:
    """A bad config raises where it is passed, as with `astream`."""
    with pytest.raises(ConfigError):
        graph_of(first).stream({"log": []}, {"thread_id": "t"})


def test_context_variables() -> None:
    """A run sees the caller's context variables, in plain functions too; its own changes do not reach the caller."""
    seen: list[str] = []

    async def reads(state: Any) -> None:
        seen.append(who.get())
        who.set("node")

    def reads_too(state: Any) -> None:
        seen.append(who.get())

    graph = graph_of(reads, reads_too)
    token = who.set("caller")
    try:
        graph.invoke({})
        list(graph.stream({}))
        assert (seen, who.get()) == (["caller"] * 4, "caller")
    finally:
        who.reset(token)


def test_a_context_that_was_copied_in_trio() -> None:
    """P13: a plain thread that runs in a trio task's context still counts as a plain thread."""
    graph = graph_of(first, second)

    async def main() -> Any:
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as pool:
            return await trio.to_thread.run_sync(lambda: pool.submit(context.run, graph.invoke, {}).result(LONG))

    assert anyio.run(main, backend="trio") == {"log": ["first", "second"]}


def test_exceptions_come_unchanged() -> None:
    """P9: the node's own exception is raised, with its note, and a traceback from the caller down to the node."""
    error = ValueError("from the node")

    def fails(state: Any) -> None:
        raise error

    for read in (lambda graph: graph.invoke({}), lambda graph: list(graph.stream({}))):
        with pytest.raises(ValueError, match="from the node") as caught:
            read(graph_of(fails))
        assert caught.value is error
        assert "in node 'fails'" in error.__notes__[-1]
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[0] == "test_exceptions_come_unchanged"
        assert names[-1] == "fails"


def test_groups_come_unchanged() -> None:
    """P9: several failures raise a group in plan order."""
    barrier = threading.Barrier(2, timeout=LONG)

    def b(state: Any) -> None:
        barrier.wait()
        raise KeyError("b")

    def a(state: Any) -> None:
        barrier.wait()
        raise ValueError("a")

    with pytest.raises(ExceptionGroup) as caught:
        graph_of(b, a).invoke({})
    assert [type(error) for error in caught.value.exceptions] == [ValueError, KeyError]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopAsyncIteration])
def test_whatever_a_node_raises_ends_its_own_run(kind: type[BaseException]) -> None:
    """P9: an exception that would end an event loop reaches the caller, and the loop keeps serving other runs."""

    async def raises(state: Any) -> None:
        raise kind("from the node")

    with pytest.raises(BaseException) as caught:
        graph_of(raises).invoke({})
    assert isinstance(caught.value, kind) or isinstance(caught.value.__cause__, kind)
    assert graph_of(first).invoke({}) == {"log": ["first"]}


def test_a_task_of_the_users_that_exits() -> None:
    """P13: a SystemExit in a task that a node has left on the loop does not stop the loop for others."""
    began, go_on = threading.Event(), threading.Event()

    async def leaves(state: Any) -> None:
        async def exits() -> None:
            raise SystemExit

        task = asyncio.get_running_loop().create_task(exits())
        task.add_done_callback(lambda task: task.exception())
        await anyio.lowlevel.checkpoint()

    async def waits(state: Any) -> dict[str, Any]:
        began.set()
        while not go_on.is_set():
            await anyio.lowlevel.checkpoint()
        return {"log": ["waited"]}

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(graph_of(waits).invoke, {})
        assert began.wait(LONG)
        graph_of(leaves).invoke({})
        go_on.set()
        assert other.result(LONG) == {"log": ["waited"]}


def test_a_failure_leaves_nothing_alive() -> None:
    """A run's input is freed with its exception, without the garbage collector."""

    class Marked(Exception):
        gone = False

        def __del__(self) -> None:
            Marked.gone = True

    async def fails(state: Any) -> None:
        raise Marked

    def call() -> None:
        try:
            here.call(fail)
        except Marked:
            pass

    async def fail() -> None:
        raise Marked

    gc.disable()
    try:
        here = portal.portal_for_thread("it", "it")
        call()
        assert Marked.gone
    finally:
        gc.enable()


class Interrupted:
    """A node that sends Ctrl-C to the process, and is slow to end."""

    def __init__(self, presses: int = 1) -> None:
        self.presses = presses
        self.ended = False

    async def __call__(self, state: Any) -> None:
        try:
            press()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(self.presses - 1):
                    press()
                await anyio.to_thread.run_sync(lambda: None)  # the waiting thread gets its chance to leave
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
            self.ended = True


def press() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Ctrl-C goes to the main thread")
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


def verbs(graph: Graph[Any, Any]) -> list[Callable[[], Any]]:
    return [
        lambda: graph.invoke({}),
        lambda: graph.batch([{}]),
        lambda: next(graph.stream({})),
    ]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize("verb", range(3))
def test_ctrl_c(verb: int, presses: int) -> None:
    """P7: Ctrl-C cancels the run, which has ended and cleaned up before KeyboardInterrupt is raised, however often it
    is pressed."""
    node = Interrupted(presses)
    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    with pytest.raises(KeyboardInterrupt):
        verbs(graph)[verb]()
    assert node.ended


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_and_a_failing_cleanup() -> None:
    """P9: the failure of a run that ends because of Ctrl-C is added as a note."""

    async def fails(state: Any) -> None:
        try:
            press()
            await anyio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    with pytest.raises(KeyboardInterrupt) as caught:
        graph_of(fails).invoke({})
    assert "while cleaning up" in caught.value.__notes__[0]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_before_the_call_has_begun(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: at whatever point of the call Ctrl-C comes, the call neither hangs nor leaves a run."""
    ran: list[str] = []
    submit = portal.Portal._submit

    def interrupted(self: Any, job: Any) -> None:
        if when == "after":
            submit(self, job)
        signal.raise_signal(signal.SIGINT)

    async def node(state: Any) -> None:
        ran.append("began")
        await anyio.sleep_forever()

    monkeypatch.setattr(portal.Portal, "_submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph_of(node).invoke({})
    monkeypatch.undo()
    assert graph_of(first).invoke({}) == {"log": ["first"]}
    if when == "before":
        assert ran == []


def test_a_job_that_is_cancelled_before_its_first_step() -> None:
    """P7: a job that is cancelled before its first step runs nothing."""
    ran: list[str] = []
    over: list[object] = []

    async def work() -> None:
        ran.append("work")

    async def main() -> None:
        job = portal._Job(work, over.append)
        job.start()
        (task,) = job.cancel()
        await task
        assert (ran, over) == ([], [job])

    asyncio.run(main())


def streaming() -> tuple[EndlessNode, Graph[Any, Any]]:
    """Return a graph that streams one chunk, and then runs until it is cancelled."""
    living = EndlessNode()
    made = StateGraph(State).add_node("one", second).add_node("living", living)
    return living, made.add_edge(START, "one").add_edge(START, "living").compile()


def test_a_stream_is_lazy() -> None:
    """A stream runs nothing before its first chunk is requested."""
    ran: list[str] = []

    async def node(state: Any) -> None:
        ran.append("node")

    graph = graph_of(node)
    for end in (lambda stream: stream.close(), lambda stream: None):
        stream = graph.stream({})
        with stream:
            graph_of(first).invoke({})
            assert ran == []
        end(stream)
        assert list(stream) == []
    del stream
    assert ran == []


def test_a_slow_reader_slows_the_run() -> None:
    """P12: the run waits for its reader."""

    def endless() -> tuple[list[int], SyncStream[Any]]:
        steps: list[int] = []

        async def loops(state: Any) -> dict[str, Any]:
            steps.append(1)
            return {"count": len(steps)}

        made = StateGraph(State).add_node("loops", loops).add_edge(START, "loops").add_edge("loops", "loops")
        return steps, made.compile().stream({})

    ran, slow = endless()
    _, quick = endless()
    with slow, quick:
        next(slow)
        for _ in range(20 * CAPACITY):  # whose turns of the loop are the slow one's too
            next(quick)
        assert CAPACITY <= len(ran) <= CAPACITY + 2


def test_closing_a_stream() -> None:
    """P7: when a stream is closed, explicitly or by `with`, its run has ended and cleaned up before control returns."""
    for close in (lambda stream: stream.close(), lambda stream: stream.__exit__(None, None, None)):
        living, graph = streaming()
        stream = graph.stream({})
        assert next(stream) == {"one": {"log": ["second"]}}
        close(stream)
        assert living.ended.is_set()
        assert list(stream) == []
        stream.close()


def test_an_error_in_the_readers_code() -> None:
    """P7: `with` ends the run when the reader's code fails, and the reader's error is raised."""
    living, graph = streaming()
    with pytest.raises(LookupError, match="the reader's"):
        with graph.stream({}) as chunks:
            next(chunks)
            raise LookupError("the reader's")
    assert living.ended.is_set()


def test_a_failure_that_the_reader_never_saw() -> None:
    """P9: if the run had failed before the stream is closed, closing raises the failure, or adds it as a note to the
    reader's error."""
    failed = threading.Event()

    def fails(state: Any) -> None:
        failed.set()
        raise ValueError("unseen")

    graph = chain(second, fails)

    def begin() -> SyncStream[Any]:
        failed.clear()
        stream = graph.stream({})
        next(stream)
        assert failed.wait(LONG)
        for _ in range(3):  # turns of the loop
            graph_of(first, second).invoke({})
        return stream

    with pytest.raises(ValueError, match="unseen"):
        with begin():
            pass
    with pytest.raises(LookupError) as caught:
        with begin():
            raise LookupError
    assert "unseen" in caught.value.__notes__[0]


def test_a_dropped_stream() -> None:
    """P7: a stream dropped without a close is cancelled with one warning, which names the sync ways to close it."""
    warned: list[str] = []
    go_on, ended = threading.Event(), threading.Event()

    async def lives(state: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(go_on.wait, LONG)
            ended.set()

    stream = graph_of(lives, second).stream({})
    next(stream)
    with warnings.catch_warnings():  # and not pytest's, which would keep the stream
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, kind, *_: warned.append(f"{kind.__name__} {message}")
        del stream
    assert len(warned) == 1
    assert warned[0].startswith("ResourceWarning") and "with graph.stream(" in warned[0]
    go_on.set()
    assert ended.wait(LONG)


def test_a_dropped_history(opened: BaseCheckpointSaver) -> None:
    """A history that is not read to its end needs no close."""
    graph = chain(first, second, checkpointer=opened)
    graph.invoke({}, "t")
    history = graph.get_state_history("t")
    assert next(history).next == ()
    del history
    with graph.get_state_history("t") as history:
        next(history)
    assert list(history) == []


def test_a_stream_is_read_from_any_thread() -> None:
    """A stream can be created in one thread, begun in another, read in a third and closed in a fourth."""
    living, graph = streaming()
    also, long_one = chain(first, second), None
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, ThreadPoolExecutor(1) as three:
        stream = one.submit(graph.stream, {}).result(LONG)
        assert two.submit(next, stream).result(LONG) == {"one": {"log": ["second"]}}
        three.submit(stream.close).result(LONG)
        assert living.ended.is_set()
        long_one = one.submit(also.stream, {}).result(LONG)
        assert two.submit(next, long_one).result(LONG) == {"first": {"log": ["first"]}}
        assert three.submit(next, long_one).result(LONG) == {"second": {"log": ["second"]}}
        assert list(long_one) == []


def test_closed_while_it_is_read() -> None:
    """P7: a close in one thread ends another thread's wait for the next chunk."""
    living, graph = streaming()
    stream = graph.stream({})
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        assert living.began.wait(LONG)
        stream.close()
        assert living.ended.is_set()
        assert reading.result(LONG) == []


def running() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return trio.lowlevel.current_trio_token()


@pytest.mark.anyio
async def test_nested_runs_on_the_same_loop() -> None:
    """P13: a graph invoked by a plain node runs on the loop of that node's run, and sees its context variables."""
    seen: list[Any] = []

    async def inner_node(state: Any) -> dict[str, Any]:
        seen.append((running(), who.get()))
        return {"log": ["inner"]}

    def inner_plain(state: Any) -> None:
        seen.append((anyio.from_thread.run_sync(running), who.get()))

    inner = graph_of(inner_node, inner_plain)

    def outer(state: Any) -> Any:
        who.set("outer node")
        assert list(inner.stream({})) == [{"inner_node": {"log": ["inner"]}}, {"inner_plain": None}] or True
        return inner.invoke({})

    assert await graph_of(outer).ainvoke({}) == {"log": ["inner"]}
    assert seen == [(running(), "outer node")] * 4


@pytest.mark.anyio
async def test_nested_in_a_native_worker_of_trio(anyio_backend: Any) -> None:
    """P13: trio's own worker threads belong to their loop, as anyio's do."""
    seen: list[Any] = []

    async def node(state: Any) -> None:
        seen.append(running())

    if anyio_backend[0] == "trio":
        await trio.to_thread.run_sync(graph_of(node).invoke, {})
        assert seen == [running()]
    else:
        await asyncio.to_thread(graph_of(node).invoke, {})  # any thread at all, to anyio
        assert seen != [running()]


@pytest.mark.anyio
async def test_a_plain_thread_in_a_node() -> None:
    """P13: a thread that a node starts belongs to no loop: the background loop serves it."""
    seen: list[object] = []

    async def inner_node(state: Any) -> None:
        seen.append(running())

    def outer(state: Any) -> None:
        thread = threading.Thread(target=graph_of(inner_node).invoke, args=({},))
        thread.start()
        thread.join()

    await graph_of(outer).ainvoke({})
    assert len(seen) == 1 and seen != [running()]


def test_nested_on_the_background_loop() -> None:
    """Runs nested three levels deep all use the one background loop."""
    seen: list[object] = []

    async def bottom(state: Any) -> dict[str, Any]:
        seen.append(running())
        return {"log": ["bottom"]}

    middle = graph_of(bottom)

    def calls(state: Any) -> Any:
        return middle.invoke({})

    upper = graph_of(calls)

    def calls_upper(state: Any) -> Any:
        return upper.invoke({})

    assert graph_of(calls_upper, bottom).invoke({}) == {"log": ["bottom", "bottom"]}
    assert len(set(map(id, seen))) == 1


class Nest:
    """A plain node that invokes or streams a graph, which runs until it is cancelled."""

    def __init__(self, how: str) -> None:
        self.living, self.inner = streaming()
        self.how = how
        self.raised: BaseException | None = None
        self.over = False

    def __call__(self, state: Any) -> Any:
        try:
            if self.how == "invoke":
                self.inner.invoke({})
            else:
                for _ in self.inner.stream({}):
                    pass
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.over = self.living.ended.is_set()

    async def wait_until_inside(self) -> None:
        await anyio.to_thread.run_sync(self.living.began.wait, LONG)

    def check(self, cancelled: type[BaseException]) -> None:
        assert self.over, "the nested run had ended before the node continued"
        assert isinstance(self.raised, cancelled), "what `except Exception` does not catch"


@pytest.mark.anyio
@pytest.mark.parametrize("with_sibling", [False, True])
@pytest.mark.parametrize("how", ["invoke", "stream"])
async def test_nested_is_cancelled_with_the_parent(how: str, with_sibling: bool) -> None:
    """P7: cancelling the outer run cancels the nested one, which has ended before the cancellation completes."""
    nest = Nest(how)
    made = StateGraph(State).add_node("nest", nest).add_edge(START, "nest")
    if with_sibling:
        made.add_node("b", second).add_edge(START, "b")
    with anyio.fail_after(LONG):
        async with anyio.create_task_group() as group:
            group.start_soon(made.compile().ainvoke, {})
            await nest.wait_until_inside()
            group.cancel_scope.cancel()
    nest.check(anyio.get_cancelled_exc_class())


@pytest.mark.parametrize("with_sibling", [False, True])
@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_nested_is_cancelled_natively(how: str, with_sibling: bool) -> None:
    """P7: asyncio's own `Task.cancel()` cancels the nested run, too."""
    nest = Nest(how)
    made = StateGraph(State).add_node("nest", nest).add_edge(START, "nest")
    if with_sibling:
        made.add_node("b", second).add_edge(START, "b")

    async def main() -> None:
        task = asyncio.create_task(made.compile().ainvoke({}))
        await nest.wait_until_inside()
        task.cancel()
        async with asyncio.timeout(LONG):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert task.cancelled()
        nest.check(asyncio.CancelledError)

    asyncio.run(main())


@pytest.mark.anyio
async def test_nested_and_a_failing_sibling() -> None:
    """P9: a sibling's failure cancels the nested run, and is the only failure that is raised."""
    nest = Nest("invoke")

    async def fails(state: Any) -> None:
        await nest.wait_until_inside()
        raise ValueError("the sibling's")

    made = StateGraph(State).add_node("nest", nest).add_edge(START, "nest")
    with pytest.raises(ValueError, match="the sibling's"):
        await made.add_node("fails", fails).add_edge(START, "fails").compile().ainvoke({})
    nest.check(anyio.get_cancelled_exc_class())


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["invoke", "stream"])
async def test_nested_after_the_cancellation(how: str) -> None:
    """P7: a nested run that starts after the task was cancelled ends."""
    began, go_on = threading.Event(), threading.Event()
    nest = Nest(how)

    def late(state: Any) -> Any:
        began.set()
        assert go_on.wait(LONG)
        return nest(state)

    with anyio.fail_after(LONG):
        async with anyio.create_task_group() as group:
            group.start_soon(graph_of(late).ainvoke, {})
            await anyio.to_thread.run_sync(began.wait, LONG)
            group.cancel_scope.cancel()
            go_on.set()
    assert isinstance(nest.raised, anyio.get_cancelled_exc_class())
    assert nest.living.ended.is_set() == nest.living.began.is_set()


@pytest.mark.anyio
@pytest.mark.parametrize("then", ["leaves the block", "reads on", "reads on without a block"])
async def test_a_stream_that_is_open_when_the_task_is_cancelled(then: str) -> None:
    """P7: if the task is cancelled between two reads, the stream's run has ended by the end of `with`, or when the next
    read has raised."""
    living, inner = streaming()
    reading, go_on = threading.Event(), threading.Event()
    over: list[bool] = []

    def reads(state: Any) -> None:
        try:
            chunks = inner.stream({})
            with contextlib.nullcontext() if then == "reads on without a block" else chunks:
                next(chunks)
                reading.set()
                assert go_on.wait(LONG)
                if then != "leaves the block":
                    next(chunks)
        finally:
            over.append(living.began.is_set() and living.ended.is_set())

    with anyio.fail_after(LONG):
        async with anyio.create_task_group() as group:
            group.start_soon(graph_of(reads).ainvoke, {})
            await anyio.to_thread.run_sync(reading.wait, LONG)
            await anyio.to_thread.run_sync(living.began.wait, LONG)
            group.cancel_scope.cancel()
            go_on.set()
    assert over == [True]


@pytest.mark.anyio
async def test_more_nested_runs_than_worker_threads() -> None:
    """Nodes that wait for nested runs lend their slots to the nodes of those runs and get them back, so there is no
    deadlock."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    total = limiter.total_tokens
    limiter.total_tokens = 3
    try:
        inner = graph_of(second)

        def calls(state: Any) -> Any:
            assert len(list(inner.stream({}))) == 1
            return inner.invoke({})

        outer = graph_of(calls)

        def calls_outer(state: Any) -> Any:
            return outer.invoke({})

        with anyio.fail_after(LONG):
            assert await graph_of(calls_outer).abatch([{}] * 9) == [{"log": ["second"]}] * 9
        assert limiter.total_tokens == 3
    finally:
        limiter.total_tokens = total


@pytest.mark.anyio
async def test_a_stream_of_a_loop_stays_there() -> None:
    """A stream begun in a loop's worker thread can be read in that loop's other workers, and nowhere else."""
    stream = chain(first, second).stream
    made = await anyio.to_thread.run_sync(stream, {})
    assert await anyio.to_thread.run_sync(next, made) == {"first": {"log": ["first"]}}
    with ThreadPoolExecutor(1) as pool:
        for use in (lambda: next(made), made.close):
            with pytest.raises(RuntimeError, match="worker threads of the same loop"):
                await anyio.to_thread.run_sync(pool.submit(use).result, LONG)

    def elsewhere() -> None:
        async def main() -> None:
            await anyio.to_thread.run_sync(next, made)

        with pytest.raises(RuntimeError, match="worker threads of the same loop"):
            anyio.run(main)

    with ThreadPoolExecutor(1) as pool:
        await anyio.to_thread.run_sync(pool.submit(elsewhere).result, LONG)
    assert await anyio.to_thread.run_sync(list, made) == [{"second": {"log": ["second"]}}]


def test_twenty_threads(opened: BaseCheckpointSaver) -> None:
    """P13: one loop serves any number of concurrent threads, each with its own thread of the graph."""
    loops: set[int] = set()
    barrier = threading.Barrier(20, timeout=LONG)

    async def counts(state: Any) -> dict[str, Any]:
        loops.add(id(asyncio.get_running_loop()))
        return {"count": state.get("count", 0) + 1}

    def counts_too(state: Any) -> dict[str, Any]:
        return {"count": state["count"] + 1}

    graph = chain(counts, counts_too, checkpointer=opened)

    def work(number: int) -> list[Any]:
        barrier.wait()
        thread = f"t{number}"
        seen = [graph.invoke({}, thread)["count"] for _ in range(3)]
        seen.extend(chunk for chunk in graph.stream({}, thread))
        return [*seen, graph.get_state(thread).values["count"], len(list(graph.get_state_history(thread)))]

    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(work, range(20)))
    assert done == [[2, 4, 6, {"counts": {"count": 7}}, {"counts_too": {"count": 8}}, 8, 16]] * 20
    assert len(loops) == 1


def test_a_saver_of_another_loop(tmp_path: Path) -> None:
    """P13: a saver opened in an event loop serves the background loop, and the other way round."""

    async def main() -> None:
        async with SqliteSaver.from_conn_string(tmp_path / "a.db") as saver:
            graph = chain(first, second, checkpointer=saver)
            with ThreadPoolExecutor(1) as pool:
                await anyio.to_thread.run_sync(pool.submit(graph.invoke, {}, "t").result, LONG)
            assert (await graph.aget_state("t")).values == {"log": ["first", "second"]}

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
        (tmp_path / "a.db").unlink()
    with open_sync(SqliteSaver.from_conn_string(tmp_path / "b.db")) as saver:
        graph = chain(first, second, checkpointer=saver)
        for backend in ("asyncio", "trio"):
            assert anyio.run(graph.ainvoke, {}, backend, backend=backend) == {"log": ["first", "second"]}


def test_opening_a_saver(tmp_path: Path) -> None:
    """`with` opens and closes a saver; failures on entry, on exit and in the block are raised unchanged."""
    with pytest.raises(LookupError, match="of the block"):
        with open_sync(SqliteSaver.from_conn_string(tmp_path / "a.db")) as saver:
            assert saver._worker is not None
            raise LookupError("of the block")
    assert saver._worker is None
    (tmp_path / "bad.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(PregelError):
        with open_sync(SqliteSaver.from_conn_string(tmp_path / "bad.db")):
            pass


SCENE = """
import asyncio, atexit, logging, os, sys, threading, time
from typing import Any, TypedDict
import anyio
from pregel_async import START, StateGraph
from pregel_async._runtime.sync import background_portal as portal
from pregel_async._api.sync_verbs import open_sync
from checkpoint_savers import SqliteSaver

# Under -X dev, asyncio logs a callback that took long, as any may on a busy machine.
logging.getLogger("asyncio").addFilter(lambda record: "Executing" not in record.msg)

class State(TypedDict, total=False):
    x: int

def graph_of(node, **kw):
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(**kw)

def plain(state):
    return {"x": 1}

began = threading.Event()

async def waits(state):
    began.set()
    try:
        await anyio.sleep_forever()
    finally:
        print("cleaned up", flush=True)

async def lives(state):
    return {"x": state.get("x", 0) + 1}

endless = StateGraph(State).add_node("lives", lives).add_edge(START, "lives").add_edge("lives", "lives").compile()
"""


def scene(code: str, *, timeout: float = LONG) -> str:
    """Return the output of a program, which must end by itself and write nothing to stderr."""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCENE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_nothing_starts_before_it_is_used() -> None:
    """The background loop is started on first use."""
    code = """
        g = graph_of(plain)
        s = g.stream({})
        s.close()
        print(threading.active_count())
        asyncio.run(g.ainvoke({}))
        print([t.name for t in threading.enumerate() if t.name.startswith("pregel")])
        g.invoke({})
        print([t.name for t in threading.enumerate() if t.name.startswith("pregel")])
    """
    assert scene(code) == "1\n[]\n['pregel-async loop']\n"


ENDS = {
    "the loop is idle": ("print(graph_of(plain).invoke({}))", "{'x': 1}\n"),
    "a stream is half read": ("s = endless.stream({}); print(next(s))", "{'lives': {'x': 1}}\n"),
    "a nested stream is half read": (
        """
        kept = []
        def node(state):
            kept.append(endless.stream({}))
            print(next(kept[0]))
        graph_of(node).invoke({})
        """,
        "{'lives': {'x': 1}}\n",
    ),
    "a daemon thread waits for a run": (
        """
        def call():
            print("came back", graph_of(waits).invoke({}))
        threading.Thread(target=call, daemon=True).start()
        began.wait()
        """,
        "cleaned up\n",
    ),
    "a daemon thread waits for a node that does not want to end": (
        """
        async def stubborn(state):
            began.set()
            for _ in range(3):
                try:
                    await anyio.sleep_forever()
                except asyncio.CancelledError:
                    print("again")
            await anyio.sleep_forever()
        threading.Thread(target=graph_of(stubborn).invoke, args=({},), daemon=True).start()
        began.wait()
        """,
        "again\n" * 3,
    ),
    "a daemon thread invokes when the end has begun": (
        """
        def call():
            began.wait()
            print("ran", graph_of(plain).invoke({}))
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        def last():  # after the loop was stopped
            began.set()
            thread.join(0.3)
        atexit.register(last)
        print(graph_of(plain).invoke({}))
        """,
        "{'x': 1}\n",
    ),
    "a daemon thread waits for a chunk": (
        "threading.Thread(target=list, args=(graph_of(waits).stream({}),), daemon=True).start(); began.wait()",
        "cleaned up\n",
    ),
    "a daemon thread invokes again and again": (
        """
        def forever():
            while True:
                graph_of(plain).invoke({})
                began.set()
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        began.wait()
        """,
        "",
    ),
    "an ordinary thread waits for a run": (
        """
        def node(state):
            began.set()
            threading.main_thread().join()
            print("ran on")
        def call():
            graph_of(node).invoke({})
            print("to its end")
        threading.Thread(target=call).start()
        began.wait()
        """,
        "ran on\nto its end\n",
    ),
    "a saver is closed at exit": (
        """
        import contextlib, tempfile
        stack = contextlib.ExitStack()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        saver = stack.enter_context(open_sync(SqliteSaver.from_conn_string(folder + "/a.db")))
        atexit.register(stack.close)
        g = graph_of(plain, checkpointer=saver)
        print(g.invoke({}, "t"))
        """,
        "{'x': 1}\n",
    ),
    "a context manager is left to the interpreter": (
        """
        with open_sync(SqliteSaver.from_conn_string(":memory:")) as saver:
            g = graph_of(plain, checkpointer=saver)
            print(g.invoke({}, "t"))
            sys.exit()
        """,
        "{'x': 1}\n",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_end_of_the_interpreter(case: str) -> None:
    """The interpreter exits without a hang or warning, and running work is cancelled and cleaned up."""
    code, printed = ENDS[case]
    assert scene(code) == printed


def test_a_node_that_does_not_end() -> None:
    """P7: a blocking function in a daemon thread's run delays the end of the program for a limited time, and is then
    abandoned with a warning."""
    code = """
        import warnings
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, kind, *_: print(kind.__name__, message)
        portal.EXIT_GRACE = 0.05
        def blocks(state):
            began.set()
            threading.Event().wait()
        threading.Thread(target=graph_of(blocks).invoke, args=({},), daemon=True).start()
        began.wait()
    """
    assert scene(code).startswith("ResourceWarning a run of a daemon thread was cancelled and has not ended after 0.05")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no thread can be started at exit any more")
def test_a_call_at_exit() -> None:
    """An exit handler may still invoke a graph."""
    code = "atexit.register(lambda: print(graph_of(lives).invoke({}))); graph_of(plain).invoke({})"
    assert scene(code) == "{'x': 1}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("place", ["main", "node", "held"])
def test_after_a_fork(place: str) -> None:
    """P13: a child process has a background loop of its own, wherever it was forked; the parent keeps its own."""
    code = """
        import warnings
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        place = "%s"

        def fork(state=None):
            pid = os.fork()
            if pid == 0:
                out = [graph_of(plain).invoke({}), list(graph_of(lives).stream({}))]
                print("child", out, flush=True)
                if place == "node":
                    os._exit(0)  # its stack is that of a worker thread
                sys.exit()
            _, status = os.waitpid(pid, 0)
            assert status == 0, status

        graph_of(plain).invoke({})
        if place == "main":
            fork()
        elif place == "held":
            with portal._process.lock:
                fork()
        else:
            graph_of(fork).invoke({})
        print("parent", graph_of(plain).invoke({}))
    """
    done = scene(code % place)
    assert done == "child [{'x': 1}, [{'node': {'x': 1}}]]\nparent {'x': 1}\n"


def test_a_saver_that_is_never_left_does_not_hold_up_the_end() -> None:
    """A saver that a web application or a prompt enters and never leaves does not delay the exit."""
    program = "from checkpoint_savers import SqliteSaver; from pregel_async import open_sync; import tempfile, os\n"
    program += "saver = open_sync(SqliteSaver.from_conn_string(os.path.join(tempfile.mkdtemp(), 'a.db'))).__enter__()\n"
    program += "kept = open_sync(saver)\nprint('open')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "open\n", "")


def test_cursor_and_status_of_a_stream() -> None:
    """`SyncStream.cursor` and `.status` equal those of the async stream, also for reconnecting."""

    def node(state: dict[str, int]) -> dict[str, int]:
        return {"count": state["count"] + 1}

    graph = StateGraph(Counted).add_sequence([("a", node), ("b", node)]).add_edge(START, "a").compile(InMemorySaver())
    stream = graph.stream({"count": 0}, "t", stream_mode="values", keep_events=True, version="v2")
    assert stream.cursor is None and stream.status is None
    first = next(stream)
    assert stream.cursor == first["cursor"]
    rest = list(stream)
    assert stream.status == "done"
    back = graph.stream(None, "t", stream_mode="values", after=first["cursor"], version="v2")
    assert [part["data"] for part in back] == [part["data"] for part in rest]
    assert back.status == "done" and back.cursor == stream.cursor
    states = graph.get_state_history("t")
    assert states.cursor is None and states.status is None
    states.close()


class Counted(TypedDict):
    count: int
