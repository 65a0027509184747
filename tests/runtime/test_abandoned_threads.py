"""P7: `abandon_on_cancel`: a cancelled run does not wait for a plain function's thread, and no effect of the thread
reaches the run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import (
    START,
    Command,
    NodeBuilder,
    Pregel,
    Runtime,
    StateGraph,
    entrypoint,
    get_stream_writer,
    interrupt,
    spend,
    task,
)
from pregel_async._runtime.tasks.worker_threads import _AbandonableCall
from pregel_async.channels import LastValue
from pregel_async.errors import GraphValidationError, OutsideRunError
from pregel_async.node import PregelNode
from tests.helpers.steps import Steps
from tests.runtime.leak_checks import nothing_left, tasks, threads

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class HeldThread:
    """A worker thread that starts, waits until the test releases it, and records the outcome of its later calls."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.leave = threading.Event()
        self.left = threading.Event()
        self.calls = 0
        self.outcomes: list[Any] = []
        self.thread = threading.current_thread()

    def begins(self) -> None:
        self.calls += 1
        self.thread = threading.current_thread()

    def lease(self, then: Callable[[], Any] = lambda: None) -> Any:
        self.begins()
        self.arrived.set()
        try:
            assert self.leave.wait(60)
            try:
                self.outcomes.append(then())
            except BaseException as error:
                self.outcomes.append(error)
                raise
        finally:
            self.left.set()

    async def until(self, event: threading.Event) -> None:
        assert await anyio.to_thread.run_sync(event.wait, 60, limiter=anyio.CapacityLimiter(1))

    async def release_thread(self) -> None:
        """Release the thread, and wait until its slot is free and the worker is idle."""
        self.leave.set()
        await self.until(self.left)
        limiter = anyio.to_thread.current_default_thread_limiter()
        while limiter.borrowed_tokens or self.thread in threads():
            await anyio.lowlevel.checkpoint()


@pytest.fixture
def held() -> Iterator[HeldThread]:
    made = HeldThread()
    yield made
    made.leave.set()
    if made.calls:
        assert made.left.wait(60)


def held_node(held: HeldThread, then: Callable[[], Any] = lambda: None) -> Callable[[Any], Any]:
    def node(state: Any) -> dict[str, Any]:
        held.lease(then)
        return {"log": ["dropped"]}

    return node


def alone(held: HeldThread, then: Callable[[], Any] = lambda: None) -> StateGraph[Any]:
    made = StateGraph(State).add_node("slow", held_node(held, then), abandon_on_cancel=True)
    return made.add_edge(START, "slow")


async def cancelled(held: HeldThread, call: Callable[[], Any]) -> None:
    """Call the graph, and cancel it by a scope when the thread is held."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await held.until(held.arrived)
            group.cancel_scope.cancel()


NAMED = (
    r"node 'slow', superstep 1, task [0-9a-f-]+ was cancelled and its function continues in worker thread '.+ \(\d+\)'"
)


@pytest.mark.parametrize("with_sibling", [False, True])
@pytest.mark.parametrize("how", ["scope", "deadline", "Task.cancel", "aclose", "async with", "read", "sibling"])
async def test_control_returns_while_the_thread_works(
    how: str, with_sibling: bool, held: HeldThread, anyio_backend_name: str
) -> None:
    """P7: however the run ends, it does not wait for the thread; a warning names node, superstep, task and thread. When
    the thread has ended, its slot among the worker threads is free, and its result is discarded."""
    saver = InMemorySaver()
    made = alone(held)
    if with_sibling or how == "sibling":

        async def other(state: Any) -> dict[str, Any]:
            if how == "sibling":
                await held.until(held.arrived)
                raise KeyError("the sibling's")
            return {"log": ["other"]}

        made.add_node("other", other).add_edge(START, "other")
    graph = made.compile(saver)
    if how == "Task.cancel" and anyio_backend_name != "asyncio":
        return
    async with nothing_left():
        with pytest.warns(ResourceWarning, match=NAMED) as warned:
            if how == "scope":
                await cancelled(held, functools.partial(graph.ainvoke, {}, "t"))
            elif how == "deadline":
                with pytest.raises(TimeoutError):
                    with anyio.fail_after(60) as scope:
                        async with anyio.create_task_group() as group:

                            async def expires() -> None:
                                await held.until(held.arrived)
                                scope.deadline = float("-inf")

                            group.start_soon(expires)
                            await graph.ainvoke({}, "t")
            elif how == "Task.cancel":
                running = asyncio.ensure_future(graph.ainvoke({}, "t"))
                await held.until(held.arrived)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            elif how == "aclose":
                stream = graph.astream({}, "t")
                await stream.__aenter__()
                await held.until(held.arrived)
                await stream.aclose()
            elif how == "async with":
                async with graph.astream({}, "t"):
                    await held.until(held.arrived)
            elif how == "read":

                async def read() -> None:
                    async for _ in graph.astream({}, "t"):
                        pass

                await cancelled(held, read)
            else:
                with pytest.raises(KeyError, match="the sibling's"):
                    await graph.ainvoke({}, "t")
        assert len(warned) == 1
        assert not held.left.is_set()
        limiter = anyio.to_thread.current_default_thread_limiter()
        assert limiter.borrowed_tokens == 1
        await held.release_thread()
    assert held.outcomes == [None]
    state = await graph.aget_state("t")
    assert state.next in {("slow",), ("other", "slow")}
    assert "dropped" not in state.values.get("log", [])
    if how != "sibling":
        after = await graph.ainvoke(None, "t")
        assert after["log"] == (["other"] if with_sibling else []) + ["dropped"]
        assert held.calls == 2


async def test_the_next_run_does_not_wait_either(held: HeldThread) -> None:
    """P6, P7: the graph's thread is released at once: its next run continues while the worker thread works."""
    made = alone(held)
    graph = made.compile(InMemorySaver())
    with pytest.warns(ResourceWarning, match=NAMED):
        await cancelled(held, functools.partial(graph.ainvoke, {}, "t"))
    await graph.aupdate_state("t", {"log": ["by hand"]}, as_node="slow")
    assert (await graph.aget_state("t")).values == {"log": ["by hand"]}
    await held.release_thread()
    assert (await graph.aget_state("t")).values == {"log": ["by hand"]}


async def test_a_function_that_waits_for_a_thread_never_begins(held: HeldThread) -> None:
    """P7: a function whose worker thread had not started is not called after the cancellation, and there is no
    warning."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    occupied = threading.Event()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, occupied.wait, 20)
            while not limiter.borrowed_tokens:
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as inner:
                inner.start_soon(alone(held).compile().ainvoke, {})
                while not limiter.statistics().tasks_waiting:
                    await anyio.lowlevel.checkpoint()
                inner.cancel_scope.cancel()
            occupied.set()
        assert limiter.borrowed_tokens == 0
    finally:
        limiter.total_tokens = before
    assert held.calls == 0


async def test_cancelled_before_it_begins(held: HeldThread) -> None:
    """P7: a function of a run that is cancelled before its first step is not called either; its slot is released."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await alone(held).compile().ainvoke({})
    assert held.calls == 0
    assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0


@pytest.mark.parametrize("at", range(1, 15))
async def test_cancelled_at_each_step_before_it_begins(at: int, held: HeldThread) -> None:
    """P7: at whichever step the cancellation comes, the function is running and is abandoned, or it never begins. Its
    slot is released either way."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    steps = Steps(at)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NAMED, ResourceWarning)
        with steps.watch():
            async with anyio.create_task_group() as group:
                steps.act = group.cancel_scope.cancel
                group.start_soon(alone(held).compile().ainvoke, {})
                while not held.arrived.is_set():
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
    if held.calls:
        await held.release_thread()
    assert limiter.borrowed_tokens == 0


async def test_an_abandoned_call_never_begins() -> None:
    """P7: a worker thread that picks up an abandoned call later does nothing."""
    called: list[int] = []
    work = _AbandonableCall(called.append, 1)
    await work.limiter.acquire_on_behalf_of(work)
    assert not work.abandon()
    assert work.limiter.borrowed_tokens == 0
    work.run()
    assert called == []


async def test_a_call_that_is_abandoned_at_its_end() -> None:
    """P7: a coroutine that the function has returned by then is closed, and no warning says that it was never
    awaited."""

    async def later() -> None:
        raise AssertionError("never begun")

    coroutine = later()
    work = _AbandonableCall(lambda _: coroutine, None)
    await work.limiter.acquire_on_behalf_of(work)
    work.run()
    assert not work.abandon()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    while work.limiter.borrowed_tokens:
        await anyio.lowlevel.checkpoint()


async def test_an_abandoned_thread_keeps_its_slot(held: HeldThread) -> None:
    """P7: an abandoned thread counts among the loop's worker threads as long as it runs: their number stays limited."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    try:
        with pytest.warns(ResourceWarning, match=NAMED):
            await cancelled(held, functools.partial(alone(held).compile().ainvoke, {}))
        with pytest.raises(anyio.WouldBlock):
            limiter.acquire_nowait()
        await held.release_thread()
        limiter.acquire_nowait()
        limiter.release()
    finally:
        limiter.total_tokens = before


async def test_a_failure_of_an_abandoned_thread(held: HeldThread) -> None:
    """P7: an exception of the abandoned thread is dropped as well."""

    def fails() -> None:
        raise ValueError("too late")

    async with nothing_left():
        with pytest.warns(ResourceWarning, match=NAMED):
            await cancelled(held, functools.partial(alone(held, fails).compile().ainvoke, {}))
        await held.release_thread()
    assert isinstance(held.outcomes[0], ValueError)


async def test_an_awaitable_of_an_abandoned_thread(held: HeldThread) -> None:
    """P7: a coroutine that the abandoned function returns is closed, without a warning that it was never awaited."""
    left = threading.Event()

    async def later() -> None:
        raise AssertionError("never begun")

    def node(state: Any) -> Any:
        try:
            held.lease()
            return later()
        finally:
            left.set()

    graph = StateGraph(State).add_node("slow", node, abandon_on_cancel=True).add_edge(START, "slow").compile()
    with pytest.warns(ResourceWarning, match=NAMED) as warned:
        await cancelled(held, functools.partial(graph.ainvoke, {}))
        await held.release_thread()
    assert [warning.category for warning in warned] == [ResourceWarning]


async def test_a_warning_that_is_an_error(held: HeldThread) -> None:
    """P9: where warnings are errors, the warning is the failure of a node that failed while it was cancelled."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResourceWarning, match=NAMED) as caught:
            async with alone(held).compile().astream({}):
                await held.until(held.arrived)
    assert any("'slow'" in note for note in caught.value.__notes__)
    await held.release_thread()


@task
def called(number: int) -> int:
    return number + 1


inner = StateGraph(State).add_node("one", lambda state: {"log": ["inner"]}).add_edge(START, "one").compile(name="inner")
kept = StateGraph(State).add_node("one", lambda state: None).add_edge(START, "one").compile(InMemorySaver())

LATE: dict[str, Callable[[], Any]] = {
    "interrupt": lambda: interrupt("anybody?"),
    "writer": lambda: get_stream_writer()("too late"),
    "task": lambda: called(1),
    "spend": lambda: spend("tokens", 1),
    "invoke": lambda: inner.invoke({}),
    "stream": lambda: list(inner.stream({})),
    "batch": lambda: inner.batch([{}]),
    "invoke of a thread of its own": lambda: kept.invoke({}, "another"),
    "get_state": lambda: kept.get_state("another"),
}


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("what", LATE)
async def test_calls_of_an_abandoned_thread(what: str, read: bool, held: HeldThread) -> None:
    """P7: the abandoned thread is detached: its stream writer, `interrupt()`, tasks and graphs raise `OutsideRunError`,
    whether or not the stream is read."""
    graph = alone(held, LATE[what]).compile(InMemorySaver())
    with pytest.warns(ResourceWarning, match=NAMED):
        if read:
            async with graph.astream({}, "t", stream_mode="custom"):
                await held.until(held.arrived)
        else:
            await cancelled(held, functools.partial(graph.ainvoke, {}, "t"))
    async with nothing_left():
        await held.release_thread()
    (error,) = held.outcomes
    assert isinstance(error, OutsideRunError)
    assert "'slow', superstep 1, task " in str(error) and "left its thread behind" in str(error)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("what", LATE)
def test_a_loop_that_ends_before_the_thread(what: str, backend: str, held: HeldThread) -> None:
    """P7: the event loop may end before the thread does, without a warning; the thread gets the same error."""
    with pytest.warns(ResourceWarning, match=NAMED) as warned:
        graph = alone(held, LATE[what]).compile(InMemorySaver())
        anyio.run(cancelled, held, functools.partial(graph.ainvoke, {}, "t"), backend=backend)
        held.leave.set()
        assert held.left.wait(60)
    assert len(warned) == 1
    assert isinstance(held.outcomes[0], OutsideRunError)
    assert "left its thread behind" in str(held.outcomes[0])


async def test_an_injected_writer_too(held: HeldThread) -> None:
    """P7: a writer that was passed to the function raises too."""
    writers: list[Any] = []

    def node(state: Any, runtime: Runtime[Any]) -> None:
        writers.append(runtime.stream_writer)
        held.lease(lambda: runtime.stream_writer("too late"))

    graph = StateGraph(State).add_node("slow", node, abandon_on_cancel=True).add_edge(START, "slow").compile()
    with pytest.warns(ResourceWarning, match=NAMED):
        async with graph.astream({}, stream_mode="custom"):
            await held.until(held.arrived)
    await held.release_thread()
    assert isinstance(held.outcomes[0], OutsideRunError)
    with pytest.raises(OutsideRunError):
        writers[0]("from anywhere")


class LoopWork:
    """Code that an abandonable function runs on the event loop when it is cancelled, and its outcome."""

    def __init__(self, held: HeldThread) -> None:
        self.held = held
        self.cleaned: list[str] = []

    async def wait(self, *_: Any) -> None:
        try:
            self.held.arrived.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
            self.cleaned.append("cleaned up")

    def graph(self) -> Any:
        made = StateGraph(State).add_node("first", lambda state: {"log": ["first"]}).add_node("wait", self.wait)
        return made.add_edge(START, "first").add_edge("first", "wait").compile(name="below")


def invoking(below: LoopWork) -> None:
    below.graph().invoke({})


def invoking_through_anyio(below: LoopWork) -> None:
    anyio.from_thread.run(below.graph().ainvoke, {})


def reading(below: LoopWork) -> None:
    for _ in below.graph().stream({}):
        pass


def between_reads(below: LoopWork) -> None:
    with below.graph().stream({}) as chunks:
        next(chunks)
        below.held.leave.wait(60)
        next(chunks)


def calling(below: LoopWork) -> None:
    task(below.wait, name="below")(1).result()


def calling_without_waiting(below: LoopWork) -> None:
    future = task(below.wait, name="below")(1)
    below.held.leave.wait(60)
    future.result()


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize(
    "does", [invoking, invoking_through_anyio, reading, between_reads, calling, calling_without_waiting]
)
async def test_calls_on_the_event_loop_are_waited_for(
    does: Callable[[LoopWork], None], read: bool, held: HeldThread
) -> None:
    """P7: only the thread is abandoned: graphs and tasks that it called have ended and cleaned up before control
    returns, and the thread gets the error."""
    below = LoopWork(held)

    def node(state: Any) -> None:
        held.begins()
        try:
            held.outcomes.append(does(below))
        except BaseException as error:
            held.outcomes.append(error)
        finally:
            held.left.set()

    saver = InMemorySaver()
    graph = StateGraph(State).add_node("slow", node, abandon_on_cancel=True).add_edge(START, "slow").compile(saver)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NAMED, ResourceWarning)  # when the thread ends quickly, there is no warning
        async with nothing_left():
            before = tasks()
            if read:
                async with graph.astream({}, "t"):
                    await held.until(held.arrived)
            else:
                await cancelled(held, functools.partial(graph.ainvoke, {}, "t"))
            assert below.cleaned == ["cleaned up"]
            assert tasks() == before
            await held.release_thread()
    (error,) = held.outcomes
    # the awaited call may be cancelled before the thread is abandoned
    allowed = (asyncio.CancelledError, concurrent.futures.CancelledError, anyio.get_cancelled_exc_class())
    waits = does in (invoking, invoking_through_anyio, reading, calling)
    assert isinstance(error, OutsideRunError) or (waits and isinstance(error, allowed)), error


async def test_a_writer_that_waits_for_capacity(held: HeldThread) -> None:
    """P7, P12: a slow reader slows a function that waits in its writer; the function is released when the run is
    closed."""
    written = 0

    def node(state: Any) -> None:
        nonlocal written
        held.begins()
        writer = get_stream_writer()
        try:
            for number in range(1000):
                writer(number)
                written += 1
        except BaseException as error:
            held.outcomes.append(error)
        finally:
            held.left.set()

    graph = StateGraph(State).add_node("slow", node, abandon_on_cancel=True).add_edge(START, "slow").compile()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NAMED, ResourceWarning)
        async with nothing_left():
            before = tasks()
            async with graph.astream({}, stream_mode="custom") as chunks:
                got = [await anext(chunks) for _ in range(10)]
                while written < 74:
                    await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
                assert 74 <= written <= 75
            assert tasks() == before
            await held.release_thread()
    assert got == list(range(10))
    assert isinstance(held.outcomes[0], OutsideRunError)


async def test_an_abandonable_function_that_is_not_cancelled() -> None:
    """An abandonable function that is not cancelled runs like any other: in a worker thread, with everything that a
    node can reach."""
    on_loop: list[bool] = []
    loop_thread = threading.get_ident()

    def node(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        on_loop.append(threading.get_ident() == loop_thread)
        runtime.stream_writer("chunk")
        assert called(1).result() == 2
        assert inner.invoke({})["log"] == ["inner"]
        assert list(inner.stream({})) in ([{"one": {"log": ["inner"]}}], [])  # nothing when it continues from its end
        return {"log": [interrupt("name?")]}

    made = StateGraph(State).add_node("slow", node, abandon_on_cancel=True).add_edge(START, "slow")
    for blocking in (True, False):
        graph = made.compile(InMemorySaver(), blocking=blocking)
        async with nothing_left():
            chunks = [chunk async for chunk in graph.astream({}, "t", stream_mode=["custom", "updates"])]
            assert ("custom", "chunk") in chunks and "__interrupt__" in chunks[-1][1]

            assert (await graph.ainvoke(Command(resume="Ann"), "t"))["log"] == ["Ann"]
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    assert on_loop == [False] * 4


async def test_a_failure_of_an_abandonable_function() -> None:
    """P9: an abandonable function fails like any other."""
    made = StateGraph(State).add_node("slow", lambda state: 1 // 0, abandon_on_cancel=True).add_edge(START, "slow")
    with pytest.raises(ZeroDivisionError) as caught:
        await made.compile().ainvoke({})
    assert "in node 'slow', superstep 1" in caught.value.__notes__[0]
    assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0


async def test_an_awaitable_of_an_abandonable_function() -> None:
    """An awaitable that an abandonable function returns is awaited on the event loop, as of any other function."""

    async def later() -> dict[str, Any]:
        return {"log": ["later"]}

    made = StateGraph(State).add_node("slow", lambda state: later(), abandon_on_cancel=True).add_edge(START, "slow")
    assert (await made.compile().ainvoke({}))["log"] == ["later"]


async def test_a_concurrent_function_that_is_not_abandonable(held: HeldThread) -> None:
    """P7: a concurrent plain function that was not declared abandonable is waited for."""
    plain = HeldThread()

    def waited_for(state: Any) -> None:
        plain.lease()

    made = alone(held).add_node("plain", waited_for).add_edge(START, "plain")
    with pytest.warns(ResourceWarning, match=NAMED) as warned:
        async with anyio.create_task_group() as group:
            group.start_soon(made.compile().ainvoke, {})
            await held.until(held.arrived)
            await plain.until(plain.arrived)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
            assert not plain.left.is_set()
            plain.leave.set()
        assert plain.left.is_set() and not held.left.is_set()
    assert len(warned) == 1
    await held.release_thread()


async def test_a_task_that_is_abandoned(held: HeldThread) -> None:
    """`@task(abandon_on_cancel=True)`: a task that is cancelled, with its caller or by itself, abandons its thread."""

    @task(abandon_on_cancel=True)
    def slow(number: int) -> int:
        held.lease()
        return number

    @entrypoint()
    async def workflow(given: Any) -> str:
        future = slow(1)
        await held.until(held.arrived)
        if given == "cancel":
            future.cancel()
            while not future.done():
                await anyio.lowlevel.checkpoint()
            return "cancelled" if future.cancelled() else "not cancelled"
        return str(await future)

    async with nothing_left():
        with pytest.warns(ResourceWarning, match="node 'slow'.*its function continues in worker thread"):
            assert await workflow.ainvoke("cancel") == "cancelled"
        await held.release_thread()
        held.leave.clear()
        held.arrived.clear()
        with pytest.warns(ResourceWarning, match="node 'slow'.*its function continues in worker thread"):
            await cancelled(held, functools.partial(workflow.ainvoke, "await"))
        await held.release_thread()


async def test_a_node_of_channels_that_is_abandoned(held: HeldThread) -> None:
    """`NodeBuilder.abandon_on_cancel()`: the same for a low-level node, of one function or several."""

    def builder() -> NodeBuilder:
        return NodeBuilder().subscribe_only("a").abandon_on_cancel().write_to("b")

    channels = {"a": LastValue(int), "b": LastValue(int)}
    for node in (
        builder().do(lambda a: held.lease()),
        builder().do(lambda a: a).do(lambda a: held.lease()),
        PregelNode(channels="a", triggers=("a",), bound=lambda a: held.lease(), abandon_on_cancel=True),
    ):
        held.arrived.clear(), held.leave.clear(), held.left.clear()
        graph = Pregel(nodes={"slow": node}, channels=channels, input_channels="a", output_channels="b", blocking=False)
        with pytest.warns(ResourceWarning, match="node 'slow'.*its function continues in worker thread"):
            await cancelled(held, functools.partial(graph.ainvoke, 1))
        await held.release_thread()


async def an_async_function(state: Any) -> None: ...


class AsyncCallable:
    async def __call__(self, state: Any) -> None: ...


def given_to_add_node(call: Any) -> None:
    StateGraph(State).add_node("n", call, abandon_on_cancel=True)


def given_to_task(call: Any) -> None:
    task(name="n", abandon_on_cancel=True)(call)


def given_to_node_builder(call: Any) -> None:
    NodeBuilder().subscribe_only("a").do(call).abandon_on_cancel().build()


def given_to_a_sequence(call: Any) -> None:
    NodeBuilder().subscribe_only("a").do(lambda a: a).do(call).abandon_on_cancel().build()


def given_to_pregel_node(call: Any) -> None:
    node = PregelNode(channels="a", triggers=("a",), bound=call, abandon_on_cancel=True)
    Pregel(nodes={"n": node}, channels={"a": LastValue(int)}, input_channels="a", output_channels="a")


@pytest.mark.parametrize(
    "give",
    [given_to_add_node, given_to_task, given_to_node_builder, given_to_a_sequence, given_to_pregel_node],
    ids=lambda give: give.__name__,
)
@pytest.mark.parametrize(
    "call",
    [an_async_function, AsyncCallable(), functools.partial(an_async_function)],
    ids=["function", "object", "partial"],
)
def test_only_plain_functions(give: Callable[[Any], None], call: Any) -> None:
    """`abandon_on_cancel` on an async function is refused when the graph is built."""
    with pytest.raises(GraphValidationError, match="async, and abandon_on_cancel is for plain functions"):
        give(call)


def test_no_graph_is_abandoned() -> None:
    """`abandon_on_cancel` on a graph as a node is refused too."""
    with pytest.raises(GraphValidationError, match="node 'inner' is async, and abandon_on_cancel"):
        StateGraph(State).add_node(inner, abandon_on_cancel=True)
