"""Hostile users, nodes and environments: dropped streams, swallowed cancellations, strange exceptions and
wrong clocks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import operator
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count, pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
import sniffio

from checkpoint_savers import Codec, InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError
from pregel_async import END, START, Send, StateGraph
from pregel_async.channels import UntrackedValue
from pregel_async.errors import (
    ConfigError,
    GraphChangedError,
    GraphRecursionError,
    NodeCancelledError,
    ThreadBusyError,
    UnknownStoredKeyWarning,
)
from tests.durability.durable_environment import Died, Failing, Graph, How, Watch, trace_of
from tests.durability.durable_graphs import SCENARIOS, Planned, Probe, State, fan_out, node, sync_node
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import Through
from tests.helpers.steps import Steps, tasks_now

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent


class Values(TypedDict, total=False):
    n: int
    m: int
    out: Annotated[list[Any], operator.add]
    data: dict[str, Any]


def one(call: Callable[[Any], Any], saver: BaseCheckpointSaver | None = None, **settings: Any) -> Graph:
    return StateGraph(Values).add_node("a", call).add_edge(START, "a").compile(saver, **settings)


def several(calls: dict[str, Callable[[Any], Any]], saver: BaseCheckpointSaver | None = None, **settings: Any) -> Graph:
    """Run all calls concurrently."""
    graph = StateGraph(Values)
    for name, call in calls.items():
        graph.add_node(name, call).add_edge(START, name)
    return graph.compile(saver, **settings)


async def outcome_of(graph: Graph, *args: Any) -> Any:
    try:
        return await graph.ainvoke(*args)
    except Exception as error:
        return error


def many(count: int) -> Graph:
    async def work(given: int) -> dict[str, Any]:
        return {"out": [given]}

    graph = StateGraph(Values).add_node("work", work)
    return graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(count)]).compile()


async def test_more_waiting_tasks_than_the_stream_holds() -> None:
    """P12: tasks that write more parts than the stream holds all wait for the reader, and the reader gets every
    part."""
    with anyio.fail_after(30):
        async with many(300).astream({}) as chunks:
            got = 0
            async for _ in chunks:
                got += 1
                await anyio.lowlevel.checkpoint()
    assert got == 300


async def test_waiting_for_the_reader_costs_the_same_for_each_task() -> None:
    """P12: steps of the event loop per waiting task do not grow when twice as many tasks wait for the reader."""

    async def steps(count: int) -> int:
        counted = Steps(0)

        async def read() -> None:
            async for _ in graph.astream({}):
                pass

        graph = many(count)
        with counted.watch():
            async with anyio.create_task_group() as group:
                group.start_soon(read)
        return counted.count

    assert await steps(800) < 2.5 * await steps(400)


async def test_a_slow_reader_slows_the_run() -> None:
    """P12: the run is never further ahead of a slow reader than the stream's capacity."""
    ran = 0

    async def count(state: Values) -> dict[str, Any]:
        nonlocal ran
        ran += 1
        return {"n": ran}

    graph = StateGraph(Values).add_node("a", count).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: "a" if state["n"] < 500 else END)
    read = 0
    async with graph.compile().astream({}, stream_mode="values") as chunks:
        async for _ in chunks:
            read += 1
            assert ran - read <= 70
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
    assert ran == 500


@pytest.mark.parametrize("how", ["die", "down"])
@pytest.mark.parametrize("name", ["failing-alone", "fan-out", "broken-reducer"])
async def test_streamed_results_are_stored(
    name: str, how: How, saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P4, P5: when storage fails or the process dies at any moment, no task whose result a stream has shown
    runs again."""
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == name]
    given = scenario.ops[0].given
    for at in count(1):
        probe = Probe()
        failing = Failing(saver, probe, at, how, "before")
        shown: list[str] = []
        with contextlib.suppress(Planned, StorageError, Died, BaseExceptionGroup):
            async for chunk in scenario.build(probe).compile(failing, environment=environment).astream(given, "t"):
                shown.extend(key for update in chunk.values() for key in update["log"])
        ran = len(probe.started)
        probe.dead = False
        probe.op = 1
        environment.time += 31
        stored = await saver.scan("t", "")
        await scenario.build(probe).compile(saver, environment=environment).ainvoke(None if stored else given, "t")
        again = sorted({*shown} & {*probe.started[ran:]})
        await saver.adelete_thread("t")
        assert not again, f"call {at}: shown, and run again: {again}"
        if failing.error is None:
            return


@pytest.mark.parametrize("how", ["break", "in a cycle", "by another thread"])
async def test_a_dropped_stream(how: str, saver: BaseCheckpointSaver) -> None:
    """P7: a dropped stream warns, its run is cancelled as soon as the loop runs again, and the thread is released."""
    started, ended = anyio.Event(), anyio.Event()

    async def hang(state: Values) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            ended.set()

    graph = StateGraph(Values).add_node("a", lambda state: {"n": 1}).add_node("b", hang)
    compiled = graph.add_edge(START, "a").add_edge("a", "b").compile(saver)
    before = tasks_now()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "break":
            async for _ in compiled.astream({}, "t"):
                await started.wait()
                break
        else:
            held: list[Any] = [compiled.astream({}, "t")]
            await held[0].__anext__()
            await started.wait()
            if how == "in a cycle":
                held.append(held)
                del held
                gc.collect()
            else:
                await anyio.to_thread.run_sync(held.clear)
    assert [warning.category for warning in caught] == [ResourceWarning]
    with anyio.fail_after(30):
        await ended.wait()
        while tasks_now() - before:
            await anyio.lowlevel.checkpoint()
    await saver.adelete_thread("t")


async def test_a_stream_dropped_before_its_saver_closes(tmp_path: Path) -> None:
    """P6, P7: after a stream was dropped and its saver closed, the thread is free when the saver is opened again."""

    async def hang(state: Values) -> None:
        await anyio.sleep_forever()

    def build(second: Callable[[Any], Any], saver: BaseCheckpointSaver) -> Graph:
        graph = StateGraph(Values).add_node("a", lambda state: {"n": 1}).add_node("b", second)
        return graph.add_edge(START, "a").add_edge("a", "b").compile(saver)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        async with SqliteSaver(tmp_path / "db") as saver:
            async for _ in build(hang, saver).astream({}, "t"):
                break
    async with SqliteSaver(tmp_path / "db") as saver:
        assert (await build(lambda state: {"m": 1}, saver).ainvoke(None, "t"))["m"] == 1


async def test_a_stream_that_cannot_release_its_thread(environment: SeededEnvironment) -> None:
    """P9: closing a stream that cannot release its thread raises the error of the release."""

    class Stuck(Through):
        async def release(self, lease: Any) -> None:
            raise StorageError("injected")

    saver = InMemorySaver(clock=environment.now)
    graph = StateGraph(Values).add_sequence([("a", lambda state: {"n": 1}), ("b", _hang)]).add_edge(START, "a")
    with pytest.raises(StorageError):
        async with graph.compile(Stuck(saver), environment=environment).astream({}, "t") as chunks:
            async for _ in chunks:
                break


async def _hang(state: Any) -> None:
    await anyio.sleep_forever()


async def test_readers_see_before_or_after(saver: BaseCheckpointSaver) -> None:
    """P3: readers of a thread during a run see it at the boundary of a superstep."""
    probe = Probe()
    graph = fan_out(probe).compile(saver)
    seen: list[list[str]] = []
    over = False

    async def look() -> None:
        while not over:
            values = (await graph.aget_state("t")).values
            if values.get("log"):
                seen.append(values["log"])
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        for _ in range(3):
            result = await graph.ainvoke({"log": ["in"]}, "t")
        over = True
    whole = result["log"]
    boundaries = [whole[:length] for length in range(len(whole) + 1) if length % 8 in (0, 1, 2, 7)]
    assert all(log in boundaries for log in seen)


async def test_a_lone_function_is_waited_for(saver: BaseCheckpointSaver) -> None:
    """P7, P6: however its caller is cancelled, a run does not end before its worker thread does, and no second worker
    thread runs."""
    at_work, go = threading.Event(), threading.Event()
    at_once = most = 0

    def work(state: Values) -> dict[str, Any]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        at_work.set()
        go.wait(60)
        at_once -= 1
        return {"n": 1}

    graph = one(work, saver)
    ended = False

    async def run() -> None:
        nonlocal ended
        try:
            await graph.ainvoke({}, "t")
        except BaseException:
            ended = True
            raise

    async with anyio.create_task_group() as group:
        if sniffio.current_async_library() == "asyncio":
            task = asyncio.get_running_loop().create_task(run())
            cancel: Callable[[], object] = task.cancel
        else:
            group.start_soon(run)
            cancel = group.cancel_scope.cancel
        with anyio.CancelScope(shield=True):
            while not at_work.is_set():
                await anyio.lowlevel.checkpoint()
            cancel()
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            assert not ended
            refused = await outcome_of(graph, {}, "t")
            assert isinstance(refused, ThreadBusyError)
            go.set()
            while not ended:
                await anyio.lowlevel.checkpoint()
    assert (await graph.ainvoke(None, "t"))["n"] == 1
    assert most == 1


@pytest.mark.parametrize("concurrent", [False, True], ids=["alone", "with a sibling"])
async def test_a_node_that_swallows_its_cancellation(concurrent: bool, saver: BaseCheckpointSaver) -> None:
    """P7: the run ends at the barrier all the same, and no further node runs."""
    ran: list[str] = []
    started = anyio.Event()

    async def stubborn(state: Any) -> dict[str, Any]:
        started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return {"log": ["stubborn"]}
        raise AssertionError

    async def after(state: Any) -> None:
        ran.append("after")

    graph = StateGraph(State).add_node("a", stubborn).add_node("b", after).add_edge(START, "a").add_edge("a", "b")
    if concurrent:
        graph.add_node("c", node(Probe(), "c")).add_edge(START, "c")
    compiled = graph.compile(saver)
    if sniffio.current_async_library() == "asyncio":
        task = asyncio.get_running_loop().create_task(compiled.ainvoke({}, "t"))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(compiled.ainvoke, {}, "t")
            await started.wait()
            group.cancel_scope.cancel()
    assert ran == []
    await saver.adelete_thread("t")


async def test_a_node_that_shields_itself(saver: BaseCheckpointSaver) -> None:
    """P7: the run waits for a node that shields itself from cancellation, and ends after it."""
    ended = False

    async def shielded(state: Values) -> dict[str, Any]:
        nonlocal ended
        scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
        ended = True
        return {"n": 1}

    graph = StateGraph(Values).add_node("a", shielded).add_node("b", lambda state: {"m": 1})
    with anyio.CancelScope() as scope:
        await graph.add_edge(START, "a").add_edge("a", "b").compile(saver).ainvoke({}, "t")
    assert scope.cancelled_caught and ended


async def test_timeouts_inside_and_outside() -> None:
    """P7: asyncio's own timeouts, around a run and inside a node, behave as usual."""
    if sniffio.current_async_library() != "asyncio":
        pytest.skip("about asyncio.timeout, which trio has not")

    async def patient(state: Values) -> dict[str, Any]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
        return {"n": 1}

    graph = StateGraph(Values).add_node("a", patient).add_node("b", lambda state: {"m": 1})
    compiled = graph.add_edge(START, "a").add_edge("a", "b").compile(InMemorySaver())
    assert await compiled.ainvoke({}, "t") == {"n": 1, "m": 1, "out": []}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one(_hang).ainvoke({}), 0.001)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await one(_hang).ainvoke({})
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@pytest.mark.parametrize("concurrent", [False, True], ids=["alone", "with a sibling"])
async def test_a_cancellation_raised_by_a_node(concurrent: bool) -> None:
    """P9: a node that lets a cancellation of its own making escape has failed; also when its caller was cancelled
    before and runs the graph to clean up."""
    if sniffio.current_async_library() != "asyncio":
        pytest.skip("trio's Cancelled cannot be constructed")

    async def make_up(state: Values) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    graph = several({"a": make_up, "b": lambda state: {"m": 1}}) if concurrent else one(make_up)
    with pytest.raises(NodeCancelledError):
        await graph.ainvoke({})

    async def cleaning_up() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            assert (await one(lambda state: {"n": 1}).ainvoke({}))["n"] == 1
            with pytest.raises(NodeCancelledError):
                await graph.ainvoke({})

    task = asyncio.get_running_loop().create_task(cleaning_up())
    await asyncio.sleep(0)
    task.cancel()
    await task


SIGINT = """
import anyio, os, signal, sys, threading
from typing import TypedDict
from checkpoint_savers import SqliteSaver
from pregel_async import START, StateGraph

kind, count, call, backend, path = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored

class State(TypedDict, total=False):
    a: int
    b: int

async def asynchronous(state):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(10)
    finally:
        print("cleaned up", flush=True)

def plain(state):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(0.1)
    print("cleaned up", flush=True)
    return {"a": 1}

async def concurrent(state):
    try:
        await anyio.sleep(10)
    finally:
        print("and concurrent", flush=True)

async def main():
    async with SqliteSaver(path) as saver:
        graph = StateGraph(State).add_node("a", plain if kind == "plain" else asynchronous).add_edge(START, "a")
        if count == "2":
            graph.add_node("b", concurrent).add_edge(START, "b")
        graph = graph.compile(saver)
        if call == "invoke":
            await graph.ainvoke({}, "t")
        else:
            async for _ in graph.astream({}, "t"):
                pass

try:
    anyio.run(main, backend=backend)
except KeyboardInterrupt:
    print("interrupted", flush=True)

async def again():
    async with SqliteSaver(path) as saver:
        graph = StateGraph(State).add_node("a", lambda state: {"a": 1}).add_node("b", lambda state: {"b": 1})
        print(await graph.add_edge(START, "a").compile(saver).ainvoke(None, "t"))

anyio.run(again)
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", ["invoke", "stream"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_control_c(kind: str, count: int, call: str, anyio_backend: Any, tmp_path: Path) -> None:
    """P7, P9: on Ctrl-C every node cleans up, `KeyboardInterrupt` arrives as itself, and the thread can be resumed at
    once."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "PYTHONWARNINGS": "error",
    }
    command = [sys.executable, "-c", SIGINT, kind, str(count), call, anyio_backend[0], str(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert sorted(lines[:count]) == ["and concurrent", "cleaned up"][2 - count :]
    assert lines[count] == "interrupted" and lines[-1].startswith("{'a': 1")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("plain", [False, True], ids=["async", "in a thread"])
@pytest.mark.parametrize("concurrent", [False, True], ids=["alone", "with a sibling"])
async def test_an_exception_that_ends_the_process(
    kind: type[BaseException], plain: bool, concurrent: bool, saver: BaseCheckpointSaver
) -> None:
    """P9: an exception that ends the process, raised by a node, ends the run as itself; it is recorded, and the thread
    can be resumed."""
    cleaned: list[int] = []

    async def asynchronous(state: Values) -> None:
        raise kind("now")

    def in_a_thread(state: Values) -> None:
        raise kind("now")

    async def other(state: Values) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(1)

    calls: dict[str, Any] = {"a": in_a_thread if plain else asynchronous}
    if concurrent:
        calls["b"] = other
    for _ in range(2):
        with pytest.raises(kind, match="now"):
            await several(calls, saver).ainvoke({}, "t")
    assert len(cleaned) == 2 * concurrent
    graph = several(dict.fromkeys(calls, lambda state: {"out": [1]}), saver)
    failed = [task.error.type for task in (await graph.aget_state("t")).tasks if task.error]
    assert failed == [kind.__name__]
    assert (await graph.ainvoke(None, "t"))["out"] == [1] * (1 + concurrent)


@pytest.mark.parametrize("concurrent", [False, True], ids=["alone", "with a sibling"])
async def test_a_failure_while_being_cancelled(concurrent: bool, saver: BaseCheckpointSaver) -> None:
    """P3, P7: a node that fails at the moment its run is cancelled has failed, and the failure is recorded."""

    async def fail(state: Values) -> None:
        scope.cancel()
        raise Planned("now")

    calls: dict[str, Any] = {"a": fail, "b": _hang} if concurrent else {"a": fail}
    with anyio.CancelScope() as scope, contextlib.suppress(Planned):
        await several(calls, saver).ainvoke({}, "t")
    graph = several(dict.fromkeys(calls, lambda state: {"out": [1]}), saver)
    tasks = (await graph.aget_state("t")).tasks
    assert [task.error.message for task in tasks if task.error] == ["now"]
    assert (await graph.ainvoke(None, "t"))["out"] == [1] * len(calls)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    x: int = 1


class Aloof(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


ERRORS = [Unprintable(), Frozen(), Aloof(), OSError("no such file: \udcff"), ValueError("a\x00b"), Exception()]


@pytest.mark.parametrize("concurrent", [False, True], ids=["alone", "with a sibling"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_of_any_kind(error: Exception, concurrent: bool, saver: BaseCheckpointSaver) -> None:
    """P9, P3: the run raises the very exception object of the node, and its failure is recorded."""

    async def fail(state: Values) -> None:
        raise error

    graph = several({"a": fail, "b": _hang}, saver) if concurrent else one(fail, saver)
    with pytest.raises(type(error)) as caught:
        await graph.ainvoke({}, "t")
    assert caught.value is error
    failed = [task.error for task in (await graph.aget_state("t")).tasks if task.error]
    assert len(failed) == 1 and failed[0].type.endswith(type(error).__name__)


async def test_a_node_with_a_group_of_its_own() -> None:
    """P9: the group that its tasks raise is the node's own exception."""

    async def fail() -> None:
        raise Planned("inside")

    async def grouped(state: Values) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            await anyio.sleep_forever()

    for graph in (one(grouped), several({"a": grouped, "b": _hang})):
        with pytest.raises(ExceptionGroup) as caught:
            await graph.ainvoke({})
        assert [type(error) for error in caught.value.exceptions] == [Planned]
        assert "node 'a'" in caught.value.__notes__[0]


@pytest.mark.parametrize("error", [StorageError("mine"), ThreadBusyError("another")], ids=lambda e: type(e).__name__)
async def test_a_node_that_fails_like_a_saver(error: Exception, saver: BaseCheckpointSaver) -> None:
    """P3, P5: the failure of a node that raises a saver's error is recorded, and so is a finished sibling, which does
    not run again."""
    probe = Probe()
    watch = Watch(saver, probe)

    async def fail(state: Any) -> None:
        while not probe.started:
            await anyio.lowlevel.checkpoint()
        raise error

    graph = StateGraph(State).add_node("slow", sync_node(probe, "slow", seconds=0.003)).add_node("fail", fail)
    compiled = graph.add_edge(START, "slow").add_edge(START, "fail").compile(saver)
    with pytest.raises(type(error)) as caught:
        await compiled.ainvoke({"log": ["in"]}, "t")
    assert caught.value is error
    assert [task.name for task in (await compiled.aget_state("t")).tasks if task.error] == ["fail"]
    await watch.look()


async def test_a_failed_replay(saver: BaseCheckpointSaver) -> None:
    """P2, P5: running again from an older checkpoint makes a new branch and changes nothing on the other one."""
    failing = False
    value = 1

    async def a(state: Values) -> dict[str, Any]:
        return {"n": value}

    async def b(state: Values) -> dict[str, Any]:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        if failing:
            raise Planned("b")
        return {"m": value}

    graph = several({"a": a, "b": b}, saver)
    await graph.ainvoke({}, "t")
    before = await trace_of(graph)
    older = [snapshot async for snapshot in graph.aget_state_history("t")][1].config
    failing, value = True, 2
    with pytest.raises(Planned):
        await graph.ainvoke(None, older)
    after = await trace_of(graph)
    assert [one for one in after if one in before] == before
    failing = False
    assert await graph.ainvoke(None, "t") == {"n": 2, "m": 2, "out": []}
    assert [one for one in await trace_of(graph) if one in before] == before


class Untracked(TypedDict, total=False):
    n: int
    lock: Annotated[Any, UntrackedValue]


@pytest.mark.parametrize("fails", [False, True], ids=["", "concurrent a failure"])
async def test_an_untracked_value_beside_a_sibling(fails: bool, saver: BaseCheckpointSaver) -> None:
    """P5, P11: values of untracked keys need not be storable, also where results are recorded one by one."""

    async def slow(state: Any) -> dict[str, Any]:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        if fails and failing:
            raise Planned("slow")
        return {"n": 1}

    failing = True
    graph = StateGraph(Untracked).add_node("a", lambda state: {"lock": threading.Lock()}).add_node("slow", slow)
    compiled = graph.add_edge(START, "a").add_edge(START, "slow").compile(saver)
    if fails:
        with pytest.raises(Planned):
            await compiled.ainvoke({}, "t")
        failing = False
        assert (await compiled.ainvoke(None, "t"))["n"] == 1
    else:
        assert set(await compiled.ainvoke({}, "t")) == {"n", "lock"}


async def test_parts_of_its_input(saver: BaseCheckpointSaver) -> None:
    """P1: a node may return its input, parts of it, the same part twice, or a pickled copy; the state holds
    plain data."""

    async def same(state: Values) -> Any:
        return {"data": state["data"], "out": state["out"]}

    async def parts(state: Values) -> Any:
        data = state["data"]
        return {"data": {"inner": data, "again": [data, data["list"]]}, "out": [data["list"][0]]}

    async def pickled(state: Values) -> Any:
        return {"data": pickle.loads(pickle.dumps(state["data"]))}

    graph = StateGraph(Values).add_sequence([("a", same), ("b", parts), ("c", pickled)]).add_edge(START, "a")
    compiled = graph.compile(saver)
    given: Any = {"data": {"list": [{"x": 1}, 2]}, "out": []}
    result = await compiled.ainvoke(given, "t")
    inner = {"list": [{"x": 1}, 2]}
    assert result == {"data": {"inner": inner, "again": [inner, inner["list"]]}, "out": [{"x": 1}]}
    assert given == {"data": inner, "out": []}
    result["data"]["inner"]["list"].append("mine")
    assert (await compiled.aget_state("t")).values["data"]["again"][0] == inner
    assert type(pickle.loads(pickle.dumps(result))["data"]["inner"]) is dict


SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("count", [1, 4])
async def test_context_variables(count: int, most: int | None) -> None:
    """P1: context variables that a node sets are its own: siblings, later nodes, the node's routers and its caller do
    not see them."""

    async def work(given: int) -> dict[str, Any]:
        saw = SEEN.get()
        SEEN.set(f"set by {given}")
        await anyio.lowlevel.checkpoint()
        return {"out": [saw]}

    def router(state: Values) -> str:
        routed.append(SEEN.get())
        return "later"

    async def later(state: Values) -> dict[str, Any]:
        return {"out": [SEEN.get()]}

    routed: list[str] = []
    graph = StateGraph(Values).add_node("work", work).add_node("later", later)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(count)])
    compiled = graph.add_conditional_edges("work", router).compile()
    SEEN.set("the caller's")
    result = await compiled.ainvoke({}, {"max_concurrency": most})
    assert result["out"] == ["the caller's"] * (count + 1)
    assert SEEN.get() == "the caller's"
    assert len(set(routed)) == 1


async def test_runs_within_nodes(saver: BaseCheckpointSaver) -> None:
    """P6, P13: runs inside nodes are awaited, streamed, or started from a worker thread; they run on threads of their
    own and are cancelled with the outer run."""
    inner = one(lambda state: {"n": state.get("n", 0) + 1}, saver)

    async def awaits(state: Values) -> dict[str, Any]:
        return {"out": [(await inner.ainvoke({}, "awaited"))["n"]]}

    async def streams(state: Values) -> dict[str, Any]:
        async with inner.astream({}, "streamed") as chunks:
            return {"out": [chunk async for chunk in chunks]}

    def in_a_thread(state: Values) -> dict[str, Any]:
        return {"out": [anyio.from_thread.run(inner.ainvoke, {}, "threaded")["n"]]}

    outer = several({"a": awaits, "b": streams, "c": in_a_thread}, saver)
    assert (await outer.ainvoke({}, "t"))["out"] == [1, {"a": {"n": 1}}, 1]
    hanging = one(_hang, saver)

    async def hangs(state: Values) -> None:
        scope.cancel()
        await hanging.ainvoke({}, "hanging")

    with anyio.CancelScope() as scope:
        await one(hangs, saver).ainvoke({}, "outer")
    assert scope.cancelled_caught
    assert await outcome_of(inner, {}, "hanging") == {"n": 1, "out": []}


async def test_a_clock_that_goes_backwards(environment: SeededEnvironment, saver: BaseCheckpointSaver) -> None:
    """P2, P6: with a clock that goes backwards ids still increase, within a run and from run to run, and the run keeps
    its thread."""

    class Backwards(SeededEnvironment):
        def now(self) -> float:
            self.time -= 100.0
            return self.time

    graph = StateGraph(Values).add_node("a", lambda state: {"n": state.get("n", 0) + 1}).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: "a" if state["n"] % 10 else END)
    for _ in range(2):
        await graph.compile(saver, environment=Backwards(environment.time)).ainvoke({}, "t")
    ids = [header.checkpoint_id for header in await saver.scan("t", "")]
    assert len(ids) == 24 and all(newer > older for newer, older in pairwise(ids))


@pytest.mark.parametrize(
    "thread", ["a\x00b", "\x00", "\N{SNOWMAN}\U0001f600", " ", "'; DROP TABLE threads; --", "x" * 100_000]
)
async def test_thread_ids(thread: str, saver: BaseCheckpointSaver) -> None:
    """P11: any text is a thread's id."""
    graph = one(lambda state: {"n": state.get("n", 0) + 1}, saver)
    await graph.ainvoke({}, "a")
    for expected in (1, 2):
        assert (await graph.ainvoke({}, thread))["n"] == expected
    assert (await graph.aget_state(thread)).values["n"] == 2
    assert (await graph.aget_state("a")).values["n"] == 1


@pytest.mark.parametrize("key", ["thread_id", "checkpoint_id", "metadata", "run_id", "mine"])
async def test_text_with_an_unpaired_surrogate(key: str, saver: BaseCheckpointSaver) -> None:
    """P11: text with an unpaired surrogate cannot be stored and is refused before any node runs."""
    ran: list[int] = []
    graph = one(lambda state: ran.append(1), saver)
    config: dict[str, Any] = {"configurable": {"thread_id": "t"}}
    if key == "metadata":
        config["metadata"] = {"x": "\udcff"}
    elif key == "run_id":
        config["run_id"] = "\udcff"
    else:
        config["configurable"][key] = "\udcff"
    with pytest.raises(ConfigError):
        await graph.ainvoke({}, config)
    assert ran == [] and await saver.scan(None, None) == ()


@pytest.mark.parametrize("steps", [1, 7, 10_007])
async def test_the_limit(steps: int) -> None:
    """P14: n supersteps need a limit of n, 10 007 by default; with one less, work remains and a resume does it."""
    saver = InMemorySaver()
    graph = StateGraph(Values).add_node("a", lambda state: {"n": state.get("n", 0) + 1}).add_edge(START, "a")
    loop = graph.add_conditional_edges("a", lambda state: "a" if state["n"] < steps else END)
    compiled = loop.compile(saver if steps < 100 else None, blocking=False)
    limit: dict[str, Any] = {} if steps == 10_007 else {"recursion_limit": steps}
    assert (await compiled.ainvoke({"n": 0}, {"configurable": {"thread_id": "t"}, **limit}))["n"] == steps
    if steps > 1:
        less: Any = {"configurable": {"thread_id": "u"}, "recursion_limit": steps - 1}
        with pytest.raises(GraphRecursionError) as caught:
            await compiled.ainvoke({"n": 0}, less)
        assert caught.value.pending == ("a",)
    if 1 < steps < 100:
        assert (await compiled.ainvoke(None, less))["n"] == steps


@pytest.mark.filterwarnings("ignore")
def test_a_loop_that_is_closed_with_a_run_open(tmp_path: Path) -> None:
    """P13: after a loop was closed during a run, other loops can use the saver; the thread is busy until the lease
    expires, because no release was possible."""
    environment = SeededEnvironment()

    async def main() -> None:
        async with SqliteSaver(tmp_path / "db", clock=environment.now) as saver:
            hangs: list[asyncio.Event] = []

            async def hang(state: Any) -> None:
                hangs[0].set()
                await anyio.sleep_forever()

            hanging = one(hang, saver, environment=environment)

            def other() -> None:
                loop = asyncio.new_event_loop()
                hangs.append(asyncio.Event())
                task = loop.create_task(hanging.ainvoke({}, "t"))
                loop.run_until_complete(hangs[0].wait())
                assert not task.done()
                loop.close()

            await anyio.to_thread.run_sync(other)
            gc.collect()
            graph = one(lambda state: {"n": 1}, saver, environment=environment)
            assert await graph.ainvoke({}, "other") == {"n": 1, "out": []}
            assert isinstance(await outcome_of(graph, {}, "t"), ThreadBusyError)
            environment.time += 31
            assert await graph.ainvoke({}, "t") == {"n": 1, "out": []}

    anyio.run(main)


async def test_reading_on_any_loop(saver: BaseCheckpointSaver) -> None:
    """P7, P13: no async generator is left to the garbage collector, which trio would warn about."""
    graph = one(lambda state: {"n": 1}, saver)
    for _ in range(3):
        await graph.ainvoke({}, "t")
    history = [snapshot async for snapshot in graph.aget_state_history("t")]
    assert (await graph.aget_state(history[4].config)).next
    async for _ in (reading := graph.aget_state_history("t")):
        break
    await reading.aclose()
    async for _ in (listing := saver.alist("t")):
        break
    await listing.aclose()
    gc.collect()
    await anyio.lowlevel.checkpoint()


async def half_done(saver: BaseCheckpointSaver) -> None:
    """Return a thread on which `a` has finished, written to `m` and led to `c`, and `b` has failed."""

    async def fail(state: Any) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        raise Planned("b")

    graph = StateGraph(Values).add_node("a", lambda state: {"m": 1, "n": 1}).add_node("b", fail)
    graph.add_node("c", lambda state: {}).add_edge(START, "a").add_edge(START, "b").add_edge("a", "c")
    with pytest.raises(Planned):
        await graph.compile(saver).ainvoke({}, "t")


async def test_a_recorded_write_to_a_removed_key(saver: BaseCheckpointSaver) -> None:
    """P5, P15: a recorded write to a removed key stays stored and is reported with a warning; the thread resumes
    without the key."""

    class Fewer(TypedDict, total=False):
        n: int
        out: Annotated[list[Any], operator.add]

    await half_done(saver)
    graph = StateGraph(Fewer)
    for name in "abc":
        graph.add_node(name, lambda state, name=name: {"out": [name]})
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "c")
    with pytest.warns(UnknownStoredKeyWarning, match="key 'm'"):
        assert await graph.compile(saver).ainvoke(None, "t") == {"n": 1, "out": ["b", "c"]}


@dataclasses.dataclass
class Sum:
    x: int


@dataclasses.dataclass
class Renamed:
    x: int


async def test_a_renamed_class(tmp_path: Path) -> None:
    """P11: the tag of a registered class is chosen in code, so that stored values can be read after the class was
    renamed, also where a reducer folds them."""
    for kind in (Sum, Renamed):

        async def add(state: Any) -> dict[str, Any]:
            return {"plain": kind(1), "folded": kind(1)}

        schema: Any = TypedDict("schema", {"plain": kind, "folded": Annotated[kind, _add]}, total=False)
        async with SqliteSaver(tmp_path / "db", codec=Codec().with_types(kind, tag="sum")) as saver:
            graph = StateGraph(schema).add_node("a", add).add_edge(START, "a").compile(saver)
            result = await graph.ainvoke({"folded": kind(0)}, "t")
    assert result == {"plain": Renamed(1), "folded": Renamed(2)}


def _add(current: Any, update: Any) -> Any:
    return type(current)(current.x + update.x)


async def test_a_recorded_edge_to_a_removed_node(saver: BaseCheckpointSaver) -> None:
    """P9: a recorded edge to a removed node is an error before any node runs."""
    await half_done(saver)
    ran: list[str] = []
    graph = StateGraph(Values)
    for name in "ab":
        graph.add_node(name, lambda state, name=name: ran.append(name)).add_edge(START, name)
    with pytest.raises(GraphChangedError) as caught:
        await graph.compile(saver).ainvoke(None, "t")
    assert "'c'" in str(caught.value) and ran == []
