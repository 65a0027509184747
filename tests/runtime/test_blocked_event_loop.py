"""Sync verbs in a thread whose event loop they block: in notebooks, and in async code that does not await."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import operator
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt, task
from pregel_async._api.compiled import Graph
from pregel_async._api.sync_verbs import open_sync
from pregel_async._runtime.sync import background_portal as portal
from pregel_async._runtime.sync import blocked_loop as blocking
from pregel_async.errors import BlockingCallWarning, GraphRecursionError, SyncCallError
from pregel_async.testing import VirtualClock
from pregel_async.types import StateUpdate
from tests.helpers.endless_node import EndlessNode

pytestmark = pytest.mark.anyio

LONG = 30
START_OF_TIME = 1_900_000_000.0
blocks = pytest.mark.filterwarnings("ignore:.*blocks the event loop:pregel_async.errors.BlockingCallWarning")
who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="unset")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def graph_of(*nodes: Callable[..., Any], **compiled: Any) -> Graph[Any, Any]:
    """Return a graph of nodes in sequence."""
    made = StateGraph(State).add_sequence(list(nodes))
    return made.add_edge(START, nodes[0].__name__).compile(**compiled)


async def first(state: State) -> State:
    await anyio.lowlevel.checkpoint()
    return {"log": ["first"]}


def second(state: State) -> State:
    return {"log": ["second"]}


@blocks
async def test_each_verb_where_a_loop_runs() -> None:
    """Each sync verb returns the same in a thread that runs an event loop as elsewhere, as in a notebook's cells."""
    graph = graph_of(first, second, checkpointer=InMemorySaver())
    done = {"log": ["first", "second"]}
    assert graph.invoke({}, "t") == done
    assert graph.get_state("t").values == done
    assert [state.next for state in graph.get_state_history("t")] == [(), ("second",), ("first",), ("__start__",)]
    assert graph.batch([{}, {}], ["u", "v"]) == [done, done]
    graph.update_state("t", {"log": ["by hand"]}, "second")
    graph.bulk_update_state("t", [[StateUpdate({"log": ["again"]}, "second")]])
    assert graph.get_state("t").values["log"][-2:] == ["by hand", "again"]
    with graph.stream({}, "w") as chunks:
        assert list(chunks) == [{"first": {"log": ["first"]}}, {"second": {"log": ["second"]}}]
    assert await graph.ainvoke({}, "x") == done  # the loop keeps running


@blocks
async def test_a_nodes_own_exception() -> None:
    """A node's own exception arrives unchanged, and a failed run leaves the loop as it was."""

    async def fails(state: State) -> None:
        raise LookupError("from the node")

    with pytest.raises(LookupError, match="from the node") as caught:
        graph_of(fails).invoke({})
    assert "in node 'fails'" in caught.value.__notes__[-1]
    with pytest.raises(LookupError, match="from the node"):
        list(graph_of(fails).stream({}))


@blocks
async def test_the_callers_context() -> None:
    """Context variables of the caller reach nodes of both kinds; variables that nodes set stay in the nodes."""
    seen: list[str] = []

    async def reads(state: State) -> None:
        seen.append(who.get())
        who.set("node")

    def reads_too(state: State) -> None:
        seen.append(who.get())

    token = who.set("caller")
    graph_of(reads, reads_too).invoke({})
    list(graph_of(reads, reads_too).stream({}))
    assert (seen, who.get()) == (["caller"] * 4, "caller")
    who.reset(token)


@blocks
async def test_a_lock_of_the_blocked_loop() -> None:
    """Nodes can use an asyncio lock that was made on the blocked loop and that no code there holds."""
    lock = asyncio.Lock()

    async def locks(state: State) -> State:
        async with lock:
            return {"log": ["locked"]}

    assert graph_of(locks).invoke({}) == {"log": ["locked"]}


@blocks
async def test_a_question() -> None:
    """A thread that asks in one call is answered in the next, and continues with the async verbs, too."""

    def asks(state: State) -> State:
        return {"log": [interrupt("Sure?")]}

    graph = graph_of(asks, first, checkpointer=InMemorySaver())
    assert graph.invoke({}, "t")["__interrupt__"][0].value == "Sure?"
    assert graph.invoke(Command(resume="yes"), "t") == {"log": ["yes", "first"]}
    graph.invoke({}, "u")
    assert await graph.ainvoke(Command(resume="no"), "u") == {"log": ["no", "first"]}


def endless() -> tuple[EndlessNode, Graph[Any, Any]]:
    """Return a graph that streams one chunk and then keeps running."""
    node = EndlessNode()
    made = StateGraph(State).add_node("one", second).add_node("endless", node)
    return node, made.add_edge(START, "one").add_edge("one", "endless").compile()


@blocks
async def test_a_stream_that_is_left() -> None:
    """The run of a stream that is left by the end of its block, by `close()` or by an error of the reader has ended
    before control returns; while the reader does other work, the run continues."""
    for leave in ("block", "close", "error"):
        node, graph = endless()
        try:
            with graph.stream({}) as chunks:
                assert next(chunks) == {"one": {"log": ["second"]}}
                await anyio.lowlevel.checkpoint()  # the loop has its turns between two reads
                assert node.began.wait(LONG)
                if leave == "close":
                    chunks.close()
                    assert node.ended.is_set()
                if leave == "error":
                    raise LookupError
        except LookupError:
            pass
        assert node.ended.is_set()


async def test_a_stream_across_threads() -> None:
    """A stream can be started in a plain thread and read and closed where a loop runs, and the other way round."""
    node, graph = endless()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(graph.stream, {}).result(LONG)
        assert pool.submit(next, stream).result(LONG) == {"one": {"log": ["second"]}}
        assert node.began.wait(LONG)
        stream.close()  # without a warning: if it were an error, the run would continue
        assert node.ended.is_set()
        graph = graph_of(first, second)
        stream = graph.stream({})
        with pytest.warns(BlockingCallWarning):
            assert next(stream) == {"first": {"log": ["first"]}}
        assert pool.submit(list, stream).result(LONG) == [{"second": {"log": ["second"]}}]


@blocks
async def test_a_stream_of_a_worker_thread() -> None:
    """A stream that was started in a worker thread runs on the loop that would be blocked: reading it there is refused,
    and it keeps running."""
    graph = graph_of(first, second)
    stream = await anyio.to_thread.run_sync(graph.stream, {})
    assert await anyio.to_thread.run_sync(next, stream) == {"first": {"log": ["first"]}}
    with pytest.raises(RuntimeError, match="worker threads of the same loop"):
        next(stream)
    assert await anyio.to_thread.run_sync(list, stream) == [{"second": {"log": ["second"]}}]


def warned_by(call: Callable[[], object]) -> list[warnings.WarningMessage]:
    """Return the warnings that a program shows by default: each once per place in its code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        call()
    return list(caught)


async def test_the_warning(anyio_backend_name: str) -> None:
    """The warning names the verb, the library and the remedy; it points to the caller's line, and comes once
    per line."""
    graph = graph_of(first, second, checkpointer=InMemorySaver())

    def again() -> None:
        for number in range(3):
            graph.invoke({}, f"t{number}")  # one place
        graph.invoke({}, "u")  # another

    lines, start = again.__code__.co_firstlineno, 2
    found = warned_by(again)
    assert [(w.category, w.filename, w.lineno) for w in found] == [
        (BlockingCallWarning, __file__, lines + start),
        (BlockingCallWarning, __file__, lines + start + 1),
    ]
    assert str(found[0].message).startswith(f"invoke() blocks the event loop ({anyio_backend_name})")
    assert "await graph.ainvoke(...)" in str(found[0].message)


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("stream", lambda graph: list(graph.stream({}, "t"))),
        ("batch", lambda graph: graph.batch([{}], ["t"])),
        ("get_state", lambda graph: graph.get_state("t")),
        ("get_state_history", lambda graph: list(graph.get_state_history("t"))),
        ("update_state", lambda graph: graph.update_state("t", {}, "first")),
        ("open_sync", lambda graph: open_sync(graph.checkpointer).__enter__()),
    ],
)
async def test_each_verb_warns_once(verb: str, call: Callable[[Any], object]) -> None:
    """Each verb warns once; a stream warns at its first read, at the reader's line."""
    graph = graph_of(first, second, checkpointer=Opened())
    (found,) = warned_by(lambda: call(graph))
    assert str(found.message).startswith(f"{verb}() blocks the event loop")
    assert (found.filename, found.lineno) == (__file__, call.__code__.co_firstlineno)


async def test_one_warning_for_a_stream() -> None:
    """Even where a program asks for every warning, a stream has one, and not one per read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with graph_of(first, second).stream({}) as chunks:
            assert len(list(chunks)) == 2
    assert len(caught) == 1


class Opened(InMemorySaver):
    """A saver that may be entered as a context manager."""

    async def __aenter__(self) -> Opened:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_a_warning_that_is_an_error() -> None:
    """Where warnings are errors, the call raises it, and nothing has run."""
    ran: list[str] = []

    async def node(state: State) -> None:
        ran.append("node")

    graph = graph_of(node)
    for call in (lambda: graph.invoke({}), lambda: next(graph.stream({}))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(BlockingCallWarning):
                call()
    assert ran == []


@pytest.mark.parametrize("shell", [object(), None])
async def test_in_a_notebook(shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where IPython has a shell, a blocked loop is the normal state of every cell, and there is no warning. That
    IPython was merely imported means nothing, and it is never imported for this."""
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert len(warned_by(lambda: graph_of(first).invoke({}))) == (0 if shell else 1)
    monkeypatch.delitem(sys.modules, "IPython")
    assert len(warned_by(lambda: list(graph_of(first).stream({})))) == 1
    assert "IPython" not in sys.modules


def test_no_warning_where_no_loop_runs() -> None:
    """A plain thread without a loop gets no warning."""
    assert warned_by(lambda: graph_of(first).invoke({})) == []


async def test_no_warning_in_a_worker_thread() -> None:
    """A worker thread of a loop gets no warning."""
    found: list[object] = []
    graph = graph_of(first)
    await anyio.to_thread.run_sync(lambda: found.extend(warned_by(lambda: graph.invoke({}))))
    assert found == []


CALLS: dict[str, Callable[[Graph[Any, Any]], object]] = {
    "invoke": lambda graph: graph.invoke({}),
    "stream": lambda graph: list(graph.stream({})),
    "batch": lambda graph: graph.batch([{}]),
    "get_state": lambda graph: graph.get_state("t"),
    "get_state_history": lambda graph: list(graph.get_state_history("t")),
    "update_state": lambda graph: graph.update_state("t", {}),
    "bulk_update_state": lambda graph: graph.bulk_update_state("t", []),
    "clear_cache": lambda graph: graph.clear_cache(),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("kind", ["async", "inline"])
async def test_in_a_node_on_the_loop(verb: str, kind: str, anyio_backend_name: str) -> None:
    """A node on its run's loop must await: a sync verb that would stop that run is an error, which names the node, the
    place and the remedy. This holds for every such loop, the background loop included, and nothing has run."""
    ran: list[str] = []

    async def inside(state: State) -> None:
        ran.append("inside")

    inner = graph_of(inside, checkpointer=InMemorySaver() if "state" in verb else None)

    async def coroutine(state: State) -> None:
        CALLS[verb](inner)

    def plain(state: State) -> None:
        CALLS[verb](inner)

    graph = graph_of(coroutine) if kind == "async" else graph_of(plain, blocking=False)
    node = "coroutine" if kind == "async" else "plain"
    with anyio.fail_after(LONG):
        with pytest.raises(SyncCallError, match=rf"^{verb}\(\) was called by node '{node}' \(superstep 1") as caught:
            await graph.ainvoke({})
        assert (caught.value.node, caught.value.library) == (node, anyio_backend_name)
        assert f"a{verb}(...)" in str(caught.value) and "Use 'a" in str(caught.value)
        with pytest.raises(SyncCallError, match=node), ThreadPoolExecutor(1) as pool:
            await anyio.to_thread.run_sync(lambda: pool.submit(graph.invoke, {}).result(LONG))
    assert ran == []


@blocks
async def test_several_levels_deep() -> None:
    """Plain nodes may call graphs of plain nodes, with an async one at the bottom: each level runs on the one
    background loop, and where a level cannot wait, the error comes at once."""
    leaf = graph_of(first)

    def calls_leaf(state: State) -> Any:
        return leaf.invoke({})

    middle = graph_of(calls_leaf)

    def calls_middle(state: State) -> Any:
        return list(middle.stream({}))[0]["calls_leaf"]

    upper = graph_of(calls_middle)
    assert upper.invoke({}) == {"log": ["first"]}

    async def blocks_at_the_bottom(state: State) -> Any:
        return upper.invoke({})

    bottom = graph_of(blocks_at_the_bottom)

    def calls_bottom(state: State) -> Any:
        return bottom.invoke({})

    with pytest.raises(SyncCallError, match="'blocks_at_the_bottom'"):
        graph_of(calls_bottom).invoke({})


def test_on_the_background_loop_itself() -> None:
    """Code outside nodes that runs on the background loop cannot wait for it: an error, and no deadlock."""
    graph = graph_of(first)

    class Manager:
        async def __aenter__(self) -> Any:
            return graph.invoke({})

        async def __aexit__(self, *_: object) -> None:
            stream = graph.stream({})
            next(stream)

    with ThreadPoolExecutor(1) as pool:
        manager = open_sync(Manager())
        with pytest.raises(SyncCallError, match="on the background loop that it would run on"):
            pool.submit(manager.__enter__).result(LONG)
        with pytest.raises(SyncCallError, match="on the background loop that it would run on"):
            pool.submit(manager.__exit__, None, None, None).result(LONG)


def test_a_stream_that_reaches_its_own_loop() -> None:
    """A stream that was started in a plain thread and is read by an async node runs on the loop that would be
    blocked."""
    stream = graph_of(first, second).stream({})
    assert next(stream) == {"first": {"log": ["first"]}}

    async def reads(state: State) -> None:
        next(stream)

    with ThreadPoolExecutor(1) as pool, pytest.raises(SyncCallError, match="'reads'"):
        pool.submit(graph_of(reads).invoke, {}).result(LONG)
    assert list(stream) == [{"second": {"log": ["second"]}}]


@blocks
async def test_a_loop_in_a_worker_thread() -> None:
    """A plain node that runs a loop of its own blocks only that loop: the graph that it calls there is a part of its
    run, and the graph's question reaches the caller."""

    def asks(state: State) -> State:
        return {"log": [interrupt("Sure?")]}

    inner = graph_of(asks)

    def outer(state: State) -> Any:
        async def main() -> Any:
            return inner.invoke({})

        return anyio.run(main)

    graph = graph_of(outer, checkpointer=InMemorySaver())
    with anyio.fail_after(LONG):
        assert (await graph.ainvoke({}, "t"))["__interrupt__"][0].value == "Sure?"
        assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes"]}


def on_the_loop() -> Callable[[], threading.Event]:
    """Run a call on the running loop, and return an event that is set when it is done."""
    if sys.modules.get("trio") and trio.lowlevel.in_trio_run():
        post: Callable[[Callable[[], object]], object] = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        post = asyncio.get_running_loop().call_soon_threadsafe

    def ask() -> threading.Event:
        done = threading.Event()
        post(done.set)
        return done

    return ask


async def turns_until(done: threading.Event) -> None:
    """Wait on the background loop in a way that lets a virtual clock see that no other work is due."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wait() -> None:
        done.wait(LONG)
        loop.call_soon_threadsafe(lambda: waiter.done() or waiter.set_result(None))

    threading.Thread(target=wait, daemon=True).start()
    await waiter


def stuck(call: Callable[[], object]) -> str:
    """Return the message for a call that, like the work that it waits for, would never end."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*blocks the event loop")
        warnings.filterwarnings("error", message=".*has blocked the event loop")
        with pytest.raises(BlockingCallWarning) as caught:
            call()
    return str(caught.value)


@pytest.mark.parametrize("how", ["invoke", "stream", "batch"])
async def test_a_node_that_waits_for_the_blocked_loop(how: str, anyio_backend_name: str) -> None:
    """After 30 seconds on the graph's clock a warning names the node, its superstep and its task. Made an error, it is
    raised by the call, whose run is cancelled and has ended."""
    ask, ended, clock = on_the_loop(), threading.Event(), VirtualClock()

    async def waits(state: State) -> None:
        try:
            await turns_until(ask())
        finally:
            ended.set()

    graph = graph_of(first, waits, environment=clock)
    said = stuck(lambda: CALLS[how](graph))
    assert said.startswith(f"{how}() has blocked the event loop ({anyio_backend_name}) of its thread for 30 seconds")
    assert "node 'waits' (superstep 2, task " in said and "'first'" not in said
    assert ended.is_set()
    assert 30 <= clock.monotonic() < 31


async def test_the_warning_alone_ends_nothing() -> None:
    """The warning is issued once, at the caller's line, and the call continues: the node may wait for something
    else."""
    clock, go_on = VirtualClock(), threading.Event()

    async def waits(state: State) -> State:
        await turns_until(go_on)
        return {"log": ["waited"]}

    graph = graph_of(waits, environment=clock)
    seen: list[tuple[str, int]] = []

    def show(message: Any, category: Any, filename: str, lineno: int, *_: object) -> None:
        seen.append((filename, lineno))
        if "has blocked" in str(message):
            go_on.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        assert graph.invoke({}) == {"log": ["waited"]}
    assert len(seen) == 2 and seen[0] == seen[1] and seen[0][0] == __file__


@blocks
async def test_a_stream_with_two_long_waits() -> None:
    """In one stream, only the first slow node is named."""
    clock = VirtualClock()

    async def slow(state: State) -> None:
        await clock.sleep(100)

    async def slow_too(state: State) -> None:
        await clock.sleep(100)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(graph_of(slow, slow_too, environment=clock).stream({}))
    (found,) = [str(each.message) for each in caught if "has blocked" in str(each.message)]
    assert "'slow' (superstep 1" in found


async def test_the_innermost_node_is_named() -> None:
    """Of nodes that run graphs and call tasks, the waiting one is named, and not those around it."""
    ask = on_the_loop()

    @task
    async def waits() -> None:
        await turns_until(ask())

    async def calls(state: State) -> None:
        await waits()

    inner = graph_of(calls)

    async def runs(state: State) -> Any:
        return await inner.ainvoke({})

    said = stuck(lambda: graph_of(runs, environment=VirtualClock()).invoke({}))
    assert "'waits'" in said and "'runs'" not in said and "'calls'" not in said


async def test_several_nodes_that_wait() -> None:
    """Several waiting nodes are counted, and the first three are named."""
    ask = on_the_loop()

    async def waits(state: State) -> None:
        await turns_until(ask())

    made = StateGraph(State)
    for name in "abcde":
        made.add_node(name, waits).add_edge(START, name)
    said = stuck(lambda: made.compile(environment=VirtualClock()).invoke({}))
    assert "nodes 'a' (superstep 1, task " in said and "and 2 more have been at work" in said


@blocks
async def test_a_long_run_of_quick_nodes() -> None:
    """No node is suspected before it has been running for 30 seconds: neither in a run of many nodes, nor a node whose
    graph makes progress, nor one that calls task after task."""
    clock = VirtualClock()

    async def quick(state: State) -> State:
        await clock.sleep(20)
        return {"log": ["quick"]}

    @task
    async def slow_enough() -> None:
        await clock.sleep(25)

    async def calls(state: State) -> None:
        for _ in range(3):
            await slow_enough()

    inner = StateGraph(State).add_sequence([("x", quick), ("y", quick), ("z", quick)]).add_edge(START, "x").compile()

    async def runs(state: State) -> Any:
        return await inner.ainvoke({})

    graph = graph_of(runs, calls, environment=clock)
    assert len(graph.invoke({})["log"]) == 3
    assert clock.monotonic() > 120


@blocks
async def test_nodes_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run keeps only a few of its nodes for this check, and a waiting node is found behind the others."""
    ask, loops = on_the_loop(), list[blocking.WatchedLoop]()
    make = blocking.WatchedLoop

    def made_one(*given: Any) -> blocking.WatchedLoop:
        loops.append(make(*given))
        return loops[-1]

    async def quick(state: State) -> State:
        assert len(loops[-1]._at_work) < 150
        return {"log": [1]}

    async def waits(state: State) -> None:
        await turns_until(ask())

    monkeypatch.setattr(blocking, "WatchedLoop", made_one)
    made = StateGraph(State).add_node(quick).add_node(waits).add_edge(START, "quick")
    made.add_conditional_edges(
        "quick", lambda state: "quick" if len(state["log"]) < 500 else "waits", ["quick", "waits"]
    )
    assert "'waits' (superstep 501" in stuck(lambda: made.compile(environment=VirtualClock()).invoke({}))
    assert len(loops[0]._at_work) == 1


@blocks
async def test_a_thread_that_the_blocked_loop_holds() -> None:
    """A call that waits for a thread held by a run on the blocked loop says so, and blames no node."""
    saver, began = InMemorySaver(), anyio.Event()

    async def holds(state: State) -> None:
        began.set()
        await anyio.sleep_forever()

    later = VirtualClock(
        start=START_OF_TIME + 1e9, seed=1, autojump=None
    )  # the lease does not expire while the other call waits
    async with anyio.create_task_group() as group:
        group.start_soon(graph_of(holds, checkpointer=saver, environment=later).ainvoke, {}, "t")
        await began.wait()
        waiting = graph_of(holds, checkpointer=saver, environment=VirtualClock(start=START_OF_TIME))
        said = stuck(lambda: waiting.invoke({}, "t", on_conflict="wait"))
        assert "no node is at work. If the call waits for a thread, or for a result to share, that a run on" in said
        said = stuck(lambda: waiting.update_state("t", {"log": [1]}, "holds", on_conflict="wait"))
        assert said.startswith("update_state() has blocked")
        group.cancel_scope.cancel()


@blocks
async def test_nothing_is_left_of_a_call() -> None:
    """No timer and no task is left on the background loop, on the system's clock as on a virtual one."""
    left: list[int] = []

    async def count() -> None:
        left.append(len(asyncio.all_tasks()))
        left.append(len([t for t in asyncio.get_running_loop()._scheduled if not t._cancelled]))

    for environment in (None, VirtualClock(autojump=None)):
        graph = graph_of(first, second, environment=environment)
        graph.invoke({})
        list(graph.stream({}))
        left.clear()
        portal.portal_for_thread("it", "it").call(count)
        assert left[0] == 2  # the loop's own task, and this one
        assert left[1] <= 1 + (environment is not None)


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


def uvloop_run(main: Callable[[], Any]) -> Any:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed here")
    return uvloop.run(main())


RUNNERS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "asyncio": lambda main: asyncio.run(main()),
    "anyio": anyio.run,
    "uvloop": uvloop_run,
    "trio": trio.run,
    "anyio on trio": functools.partial(anyio.run, backend="trio"),
}


@blocks
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("library", RUNNERS)
@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_ctrl_c(library: str, how: str) -> None:
    """One Ctrl-C while a loop of any kind is blocked: the run is cancelled and has ended before KeyboardInterrupt is
    raised at the call of the verb. asyncio's own handling is then restored."""
    node, raised = EndlessNode(), []

    async def pressed(state: State) -> None:
        press()
        await node(state)

    graph = graph_of(pressed)

    async def main() -> None:
        before = signal.getsignal(signal.SIGINT)
        try:
            CALLS[how](graph)
        except KeyboardInterrupt:
            raised.append(node.ended.is_set())
            assert signal.getsignal(signal.SIGINT) is before
            raise

    with pytest.raises(KeyboardInterrupt):
        RUNNERS[library](main)
    assert raised == [True]


@pytest.mark.usefixtures("interruptible")
def test_a_runner_asks_the_loop() -> None:
    """asyncio's runner answers a first Ctrl-C by asking its loop to cancel the main task, which a blocked loop cannot
    do: while it is blocked, Python's own signal handler is active again."""
    seen: list[object] = []

    async def main() -> None:
        blocked = blocking.BlockedLoop("invoke()", "asyncio")
        runners = signal.getsignal(signal.SIGINT)
        assert runners is not signal.default_int_handler
        with blocked.interruptible():
            seen.append(signal.getsignal(signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is runners

    asyncio.run(main())
    assert seen == [signal.default_int_handler]


@blocks
@pytest.mark.usefixtures("interruptible")
def test_a_handler_of_the_programs_own() -> None:
    """A program that handles Ctrl-C itself, as servers do, keeps its handler: its call is not interrupted."""
    heard: list[int] = []

    async def node(state: State) -> State:
        press()
        while not heard:
            await anyio.lowlevel.checkpoint()
        return {"log": ["went on"]}

    async def main() -> Any:
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
        return graph_of(node).invoke({})

    assert asyncio.run(main()) == {"log": ["went on"]}
    assert heard == [signal.SIGINT]


@blocks
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_ctrl_c_in_a_deadlock(library: str) -> None:
    """A plain function that waits for the blocked loop cannot be cancelled. The second Ctrl-C abandons its run, with a
    warning; the loop runs again, so that the function gets what it has waited for."""
    over = threading.Event()

    async def main() -> None:
        ask = on_the_loop()

        def waits(state: State) -> None:
            done = ask()
            press()
            interrupted.wait(LONG)
            press()
            assert done.wait(LONG)
            over.set()

        with pytest.warns(ResourceWarning, match="left to end by itself"), pytest.raises(KeyboardInterrupt):
            graph_of(waits).invoke({})
        await anyio.to_thread.run_sync(over.wait, LONG)

    interrupted = threading.Event()
    wait_out = portal.Portal._wait_out

    def noted(self: Any, *given: Any) -> None:
        interrupted.set()
        wait_out(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portal.Portal, "_wait_out", noted)
        RUNNERS[library](main)
    assert over.is_set()


def test_limits_are_the_same() -> None:
    """The recursion limit, and every other error of a run, is raised to the caller as elsewhere."""

    async def main() -> None:
        made = StateGraph(State).add_node("a", second).add_edge(START, "a").add_edge("a", "a")
        made.compile().invoke({}, {"recursion_limit": 3})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlockingCallWarning)
        with pytest.raises(GraphRecursionError):
            asyncio.run(main())
