"""One writer per thread (P6): within a process, between processes and event loops, and when a lease changes owners."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

import pregel_async._runtime.persistence.lease as lease_module
from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import CorruptCheckpointError, StorageError, UnstorableValueError
from checkpoint_savers.records import Lease
from pregel_async import START, CompiledStateGraph, Send, StateGraph
from pregel_async._runtime.platform.companions import DelayedCompanion
from pregel_async.errors import (
    CheckpointNotFoundError,
    GraphChangedError,
    GraphRecursionError,
    InvalidInputError,
    InvalidUpdateError,
    ThreadBusyError,
)
from pregel_async.types import Durability
from tests.durability.durable_environment import EXPIRY, MODES, is_one_chain, trace_of
from tests.durability.durable_graphs import Planned, Probe, State, node, sends, update_of
from tests.durability.durable_writer import Counted, WriterReport, counter
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio

T = TypeVar("T")
HERE = Path(__file__).parent


async def test_ten_runs_of_which_one_starts(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P6: of ten runs nine are refused and have run no node; the one counts."""
    refused: list[ThreadBusyError] = []
    ran: list[int] = []
    all_refused = anyio.Event()

    async def count(state: Counted) -> dict[str, Any]:
        ran.append(1)
        await all_refused.wait()
        return {"n": state.get("n", 0) + 1}

    graph = (
        StateGraph(Counted).add_node("count", count).add_edge(START, "count").compile(saver, environment=environment)
    )

    async def once() -> None:
        try:
            await graph.ainvoke({}, "t")
        except ThreadBusyError as error:
            assert not error.lost and error.thread_id == "t" and error.holder is not None
            refused.append(error)
            if len(refused) == 9:
                all_refused.set()

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(once)
    assert len(ran) == 1 and len(refused) == 9
    assert (await graph.aget_state("t")).values["n"] == 1


async def test_ten_runs_that_wait_for_each_other(saver: BaseCheckpointSaver) -> None:
    """P6: with `on_conflict="wait"` every one of them counts."""
    report = WriterReport()
    graph = counter(saver, report)
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(lambda: graph.ainvoke({}, "t", on_conflict="wait"))
    assert (await graph.aget_state("t")).values["n"] == report.ran == 10
    await is_one_chain(saver)


async def test_one_run_id_twice(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P6: two runs are two, even when the caller gives them the same id."""
    ran: list[int] = []
    refused = anyio.Event()

    async def count(state: Counted) -> dict[str, Any]:
        ran.append(1)
        await refused.wait()
        return {"n": state.get("n", 0) + 1}

    graph = (
        StateGraph(Counted).add_node("count", count).add_edge(START, "count").compile(saver, environment=environment)
    )
    bound = graph.with_config({"run_id": "the same"})

    async def once() -> None:
        try:
            await bound.ainvoke({}, "t")
        except ThreadBusyError as error:
            assert not error.lost
            refused.set()

    async with anyio.create_task_group() as group:
        group.start_soon(once)
        group.start_soon(once)
    assert len(ran) == 1


async def test_a_run_within_a_run(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P6: a node that runs its own thread is refused, like any other caller; other threads it may run."""
    inner = counter(saver, WriterReport(), environment=environment)

    async def outer(state: Counted) -> dict[str, Any]:
        with pytest.raises(ThreadBusyError):
            await inner.ainvoke({}, "t")
        return {"n": (await inner.ainvoke({}, "other"))["n"] + 10}

    graph = (
        StateGraph(Counted).add_node("outer", outer).add_edge(START, "outer").compile(saver, environment=environment)
    )
    assert (await graph.ainvoke({}, "t"))["n"] == 11
    assert (await inner.ainvoke({}, "t"))["n"] == 12


@pytest.mark.parametrize("together", [False, True], ids=["threads of their own", "one thread"])
def test_twenty_event_loops(together: bool, tmp_path: Path) -> None:
    """P6, P13: one compiled graph and one open saver serve 20 OS threads, each with a loop of its own."""
    times = 2 if together else 5
    report = WriterReport()

    async def main() -> None:
        async with SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL", busy_timeout=60) as saver:
            graph = counter(saver, report)

            async def count(name: str) -> None:
                for _ in range(times):
                    await graph.ainvoke({}, name, on_conflict="wait")

            names = ["t"] * 20 if together else [f"t{number}" for number in range(20)]
            loops: list[tuple[str, dict[str, Any]]] = [("asyncio", {}), ("trio", {}), ("asyncio", {"use_uvloop": True})]
            failures = await anyio.to_thread.run_sync(
                in_threads,
                [
                    lambda name=name, loop=loops[number % 3]: anyio.run(
                        count, name, backend=loop[0], backend_options=loop[1]
                    )
                    for number, name in enumerate(names)
                ],
            )
            assert not failures, failures
            for name in set(names):
                expected = times * names.count(name)
                assert (await graph.aget_state(name)).values["n"] == expected
                await is_one_chain(saver, name)

    anyio.run(main)
    assert report.ran == 20 * times


def in_threads(calls: list[Callable[[], object]]) -> list[BaseException]:
    """Run all concurrently; return what they raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=run, args=(call,)) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return failures


@contextmanager
def writer(database: Path, action: str, times: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Start another process and wait until it is ready."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "PYTHONWARNINGS": "error",
    }
    command = [sys.executable, str(HERE / "durable_writer.py"), str(database), action, str(times)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("action", ["reject", "wait"])
def test_two_processes(action: str, tmp_path: Path) -> None:
    """P6: of ten runs in each of two processes on one file, every one counts, or is refused and has run no node."""
    database = tmp_path / "threads.db"
    with writer(database, action, 10) as first, writer(database, action, 10) as second:
        go(first)
        go(second)
        report = [msgspec.json.decode(process.communicate()[0], type=WriterReport) for process in (first, second)]
        assert [first.returncode, second.returncode] == [0, 0]
    done, refused, ran = (sum(getattr(one, name) for one in report) for name in ("done", "refused", "ran"))
    assert done + refused == 20 and ran == done and done >= 1
    assert action == "reject" or refused == 0

    async def look() -> None:
        async with SqliteSaver(database) as saver:
            assert (await counter(saver, WriterReport()).aget_state("t")).values["n"] == done
            await is_one_chain(saver)

    anyio.run(look)


async def test_a_process_that_lives_and_then_has_ended(tmp_path: Path) -> None:
    """P6: the lease of a process is respected as long as the process lives, and void once it has ended, even before its
    parent has waited for it."""
    database = tmp_path / "threads.db"
    async with SqliteSaver(database) as saver:
        graph = counter(saver, report := WriterReport())
        with writer(database, "lease") as process:
            go(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "holding\n"
            with pytest.raises(ThreadBusyError) as caught:
                await graph.ainvoke({}, "t")
            assert not caught.value.lost and f"process {process.pid} " in str(caught.value.holder)
            assert report.ran == 0
            process.kill()
            assert process.stdout.read() == ""  # the process has ended, though its parent has not waited for it
            with anyio.fail_after(30):
                await graph.ainvoke({}, "t", on_conflict="wait")
            assert report.ran == 1


class HeldNode:
    """A node that waits until the test opens it, if it is armed.

    Attributes:
        after: the exception to raise after the wait; None to return.
    """

    def __init__(self, after: Exception | None = None) -> None:
        self.lease = True
        self.reached = anyio.Event()
        self.let_go = anyio.Event()
        self.after = after

    async def __call__(self, given: Any) -> dict[str, Any]:
        if self.lease:
            self.reached.set()
            await self.let_go.wait()
            if self.after is not None:
                raise self.after
            return {"log": ["the old owner's"]}
        return {"log": ["held"]}


def alone(held: HeldNode) -> StateGraph[Any]:
    return StateGraph(State).add_node("held", held).add_edge(START, "held")


def in_second_superstep(held: HeldNode) -> StateGraph[Any]:
    return StateGraph(State).add_sequence([("a", node(Probe(), "a")), ("held", held)]).add_edge(START, "a")


def with_a_sibling(held: HeldNode) -> StateGraph[Any]:
    """Let the held node finish first of the two, so that its result is recorded."""

    async def longer(state: Any) -> dict[str, Any]:
        if held.lease:
            await held.let_go.wait()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
        return {"log": ["longer"]}

    graph = StateGraph(State).add_node("held", held).add_node("longer", longer)
    return graph.add_edge(START, "held").add_edge(START, "longer")


def before_a_router(held: HeldNode) -> StateGraph[Any]:
    """Let the held node's writes be recorded before the router runs."""

    async def router(state: Any) -> list[Send]:
        await anyio.lowlevel.checkpoint()
        return []

    return alone(held).add_conditional_edges("held", router)


SHAPES = [alone, in_second_superstep, with_a_sibling, before_a_router]


@pytest.mark.pairwise
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "fails"])
@pytest.mark.parametrize("given", [None, {"log": ["new"]}], ids=["resumed", "begun anew"])
@pytest.mark.parametrize("still", [False, True], ids=["has ended", "still runs"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_taken_over(
    shape: Callable[[HeldNode], StateGraph[Any]],
    still: bool,
    given: dict[str, Any] | None,
    fails: bool,
    saver: BaseCheckpointSaver,
    environment: SeededEnvironment,
) -> None:
    """P6: an expired lease is taken over; the next write of its former owner is refused with `lost=True` and changes
    nothing, even while the head is still the one it knows; and the end of the former owner's run does not release the
    new owner's lease."""
    held = HeldNode(Planned("too late") if fails else None)
    graph = shape(held).compile(saver, environment=environment)
    old: list[Any] = []

    async def run_old() -> None:
        try:
            old.append(await graph.ainvoke({"log": ["old"]}, "t"))
        except Exception as error:
            old.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run_old)
        await held.reached.wait()
        environment.time += EXPIRY
        mine = HeldNode()
        mine.lease = still
        taker = shape(mine).compile(saver, environment=environment)
        if still:
            group.start_soon(taker.ainvoke, given, "t")
            await mine.reached.wait()
        else:
            await taker.ainvoke(given, "t")
        before = await trace_of(taker), (await saver.aget_tuple("t", codec=_codec(saver)))
        held.let_go.set()
        while not old:
            await anyio.lowlevel.checkpoint()
        assert (await trace_of(taker), (await saver.aget_tuple("t", codec=_codec(saver)))) == before
        if still:
            with pytest.raises(ThreadBusyError) as caught:
                await graph.ainvoke({"log": ["third"]}, "t")
            assert not caught.value.lost
            mine.let_go.set()
    (error,) = old
    if fails:
        assert isinstance(error, Planned)
        assert any("ThreadBusyError" in note for note in error.__notes__)
    else:
        assert isinstance(error, ThreadBusyError) and error.lost
    await is_one_chain(saver)


def _codec(saver: BaseCheckpointSaver) -> Any:
    return saver.codec.with_types(Send, tag="pregel_async.Send")


class HeartbeatSaver(Through):
    """A saver that reports each renewal of the lease.

    Attributes:
        at: called at each renewal; may raise.
        lost: set when a renewal was refused.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.at: Callable[[], None] = lambda: None
        self.beats = 0
        self.lost = anyio.Event()

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb == "renew":
            self.beats += 1
            self.at()
        try:
            return await call()
        except ThreadBusyError:
            self.lost.set()
            raise


@pytest.mark.parametrize("fails", [False, True], ids=["steady", "one beat fails"])
async def test_the_heartbeat(fails: bool, saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P6: a superstep that takes many times as long as a lease lasts keeps its thread."""
    beating = HeartbeatSaver(saver)
    beating.lease_seconds = 0.03
    enough = anyio.Event()

    def at() -> None:
        environment.time += 0.012
        if fails and beating.beats == 2:
            raise StorageError("injected")
        if beating.beats == 6:
            enough.set()

    beating.at = at

    async def long(state: Any) -> dict[str, Any]:
        began = environment.time
        await enough.wait()
        assert environment.time - began > 0.06
        with pytest.raises(ThreadBusyError):
            await graph.ainvoke({}, "t")
        return update_of("long@0")

    graph = StateGraph(State).add_node("long", long).add_edge(START, "long").compile(beating, environment=environment)
    with anyio.fail_after(30):
        assert (await graph.ainvoke({}, "t"))["log"] == ["long@0"]
    beats = beating.beats
    await anyio.sleep(0.05)
    assert beating.beats == beats  # the heartbeat has ended with the run


async def test_the_heartbeat_of_the_real_clock(saver: BaseCheckpointSaver) -> None:
    """P6, P7: whichever way the loop waits, the lease is renewed until the run ends, and no task of the heartbeat is
    left."""
    beating = HeartbeatSaver(saver)
    beating.lease_seconds = 0.003
    enough = anyio.Event()
    beating.at = lambda: enough.set() if beating.beats == 3 else None

    async def long(state: Any) -> dict[str, Any]:
        await enough.wait()
        return update_of("long@0")

    graph = StateGraph(State).add_node("long", long).add_edge(START, "long").compile(beating)
    before = len(anyio.get_running_tasks())
    with anyio.fail_after(30):
        assert (await graph.ainvoke({}, "t"))["log"] == ["long@0"]
    assert len(anyio.get_running_tasks()) == before


async def test_a_run_that_ends_while_its_lease_is_renewed(saver: BaseCheckpointSaver) -> None:
    """P7: a run that ends during a renewal cancels the renewal and waits for it."""
    renewing, ended = anyio.Event(), anyio.Event()

    class Hanging(Through):
        async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
            if verb == "renew":
                renewing.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.set()
            return await call()

    async def long(state: Any) -> dict[str, Any]:
        await renewing.wait()
        return update_of("long@0")

    hanging = Hanging(saver)
    hanging.lease_seconds = 0.003
    graph = StateGraph(State).add_node("long", long).add_edge(START, "long").compile(hanging)
    with anyio.fail_after(30):
        assert (await graph.ainvoke({}, "t"))["log"] == ["long@0"]
    assert ended.is_set()


@pytest.mark.parametrize("real", [True, False])
async def test_a_saver_that_breaks_when_it_renews(
    real: bool, saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P9: an exception of `renew`, which savers should not raise, is the run's failure, as for any other verb."""
    beating = HeartbeatSaver(saver)
    beating.lease_seconds = 0.003
    beaten = anyio.Event()

    def at() -> None:
        beaten.set()
        raise LookupError("a mistake of the saver's")

    beating.at = at

    async def long(state: Any) -> dict[str, Any]:
        await beaten.wait()
        await anyio.lowlevel.checkpoint()
        return update_of("long@0")

    builder = StateGraph(State).add_node("long", long).add_edge(START, "long")
    graph = builder.compile(beating) if real else builder.compile(beating, environment=environment)
    with anyio.fail_after(30), pytest.raises(LookupError, match="a mistake of the saver's"):
        await graph.ainvoke({}, "t")
    assert beating.beats == 1


@pytest.mark.one_loop
async def test_a_companion_is_waited_for_under_cancellation() -> None:
    """P7: asyncio's own cancellation during the wait for a companion's end is raised once the companion has ended."""
    begun, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def companion() -> None:
        begun.set()
        with anyio.CancelScope(shield=True):
            await go.wait()
        ended.set()

    late = DelayedCompanion(0, companion)
    await begun.wait()
    ending = asyncio.create_task(late.end())
    for _ in range(5):
        await asyncio.sleep(0)
        ending.cancel()
    assert not ending.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert ended.is_set()


@pytest.mark.one_loop
async def test_a_companion_that_did_not_start() -> None:
    """P7: when the work has ended between the timer and the companion's first step, the companion does not start."""
    begun: list[int] = []

    async def companion() -> None:
        begun.append(1)

    late = DelayedCompanion(60, companion)
    late()
    await late.end()
    assert not begun


async def test_a_storage_call_that_a_run_has_begun(environment: SeededEnvironment) -> None:
    """P6, P7: a storage call that a run has begun ends before the thread is released, however the run is cancelled."""
    done: list[str] = []

    class Telling(InMemorySaver):
        async def release(self, lease: Lease) -> None:
            done.append("given up")
            await super().release(lease)

    async def store() -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        done.append("stored")

    with anyio.CancelScope() as scope:
        async with await lease_module.ThreadLease.acquire(Telling(), environment, "t", "reject", "async") as lease:
            lease.start(store)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert done == ["stored", "given up"]


@pytest.mark.one_loop
async def test_several_storage_calls_that_a_run_has_begun(environment: SeededEnvironment) -> None:
    """P6, P7: `Task.cancel()` during the wait for one storage call does not leave the others behind."""
    done: list[str] = []
    go_on = [anyio.Event() for _ in range(3)]

    class Telling(InMemorySaver):
        async def release(self, lease: Lease) -> None:
            done.append("given up")
            await super().release(lease)

    async def store(number: int) -> None:
        await go_on[number].wait()
        done.append("stored")

    async def run() -> None:
        async with await lease_module.ThreadLease.acquire(Telling(), environment, "t", "reject", "async") as lease:
            for number in range(3):
                lease.start(partial(store, number))
            begun.set()

    begun = anyio.Event()
    task = asyncio.ensure_future(run())
    await begun.wait()
    for event in go_on:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
            task.cancel()
        event.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["stored", "stored", "stored", "given up"]


async def test_a_heartbeat_that_came_too_late(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P6: a heartbeat that comes too late does not take the thread back; the run gets the error with its next
    commit."""
    beating = HeartbeatSaver(saver)
    beating.lease_seconds = 0.03
    started = anyio.Event()

    async def long(state: Any) -> dict[str, Any]:
        started.set()
        await beating.lost.wait()
        return update_of("long@0")

    graph = StateGraph(State).add_node("long", long).add_edge(START, "long").compile(beating, environment=environment)
    other = StateGraph(State).add_node("long", node(Probe(), "short")).add_edge(START, "long")

    def miss() -> None:
        raise StorageError("injected")

    async def take() -> None:
        await started.wait()
        beating.at = miss
        environment.time += EXPIRY
        await other.compile(saver, environment=environment).ainvoke({"log": ["new"]}, "t")
        beating.at = lambda: None

    async with anyio.create_task_group() as group:
        group.start_soon(take)
        with anyio.fail_after(30), pytest.raises(ThreadBusyError) as caught:
            await graph.ainvoke({}, "t")
    assert caught.value.lost
    assert (await other.compile(saver).aget_state("t")).values["log"] == ["new", "short@1"]


@pytest.mark.parametrize("mode", MODES)
async def test_taken_over_in_each_mode(
    mode: Durability, saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P6: in every durability mode the former owner's next transaction is refused with `lost=True` and changes nothing,
    and two live runs never share a thread."""
    held = HeldNode()
    graph = in_second_superstep(held).compile(saver, environment=environment)

    async def run_old() -> None:
        with pytest.raises(ThreadBusyError) as caught:
            await graph.ainvoke({"log": ["in"]}, "t", durability=mode)
        assert caught.value.lost

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run_old)
            await held.reached.wait()
            held.lease = False
            with pytest.raises(ThreadBusyError) as refused:
                await graph.ainvoke({"log": ["new"]}, "t", durability=mode)
            assert not refused.value.lost
            environment.time += EXPIRY
            await graph.ainvoke({"log": ["new"]}, "t", durability=mode)
            held.let_go.set()
    log = (await graph.aget_state("t")).values["log"]
    assert log[-2:] == [f"a@{len(log) - 2}", "held"] and "the old owner's" not in log
    await is_one_chain(saver, mode=mode)


async def _nothing(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    await graph.ainvoke({"log": ["in"]}, "t")


async def _fails(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    failing = StateGraph(State).add_node("a", node(Probe(), "a", fails=frozenset({0}))).add_edge(START, "a")
    with pytest.raises(Planned):
        await failing.compile(saver).ainvoke({"log": ["in"]}, "t")


async def _ends_the_process(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    def leave(state: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await StateGraph(State).add_node("a", leave).add_edge(START, "a").compile(saver).ainvoke({"log": ["in"]}, "t")


async def _is_cancelled(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    with anyio.CancelScope() as scope:

        async def cancel(state: Any) -> None:
            scope.cancel()
            await anyio.sleep_forever()

        hanging = StateGraph(State).add_node("a", cancel).add_edge(START, "a").compile(saver)
        await hanging.ainvoke({"log": ["in"]}, "t")
    assert scope.cancelled_caught


async def _is_dropped(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    async with graph.astream({"log": ["in"]}, "t") as chunks:
        async for _ in chunks:
            break


async def _reaches_its_limit(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke({"log": ["in"]}, {"configurable": {"thread_id": "t"}, "recursion_limit": 1})


async def _has_bad_input(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    with pytest.raises(InvalidInputError):
        await graph.ainvoke({"unknown": 1}, "t")


async def _has_unstorable_input(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    with pytest.raises(UnstorableValueError):
        await graph.ainvoke({"log": [object()]}, "t")


async def _has_two_writers(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    two = StateGraph(State)
    for name in "ab":
        two.add_node(name, lambda state: {"last": "x"}).add_edge(START, name)
    with pytest.raises(InvalidUpdateError):
        await two.compile(saver).ainvoke({"log": ["in"]}, "t")


async def _asks_for_another_checkpoint(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    await graph.ainvoke({"log": ["in"]}, "t")
    for given in (None, {"log": ["in"]}):
        with pytest.raises(CheckpointNotFoundError):
            await graph.ainvoke(given, {"configurable": {"thread_id": "t", "checkpoint_id": "none"}})


async def _finds_another_graph(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    class Other(State, total=False):
        log: int

    await graph.ainvoke({"log": ["in"]}, "t")
    other = StateGraph(Other).add_node("a", node(Probe(), "a")).add_edge(START, "a").compile(saver)
    with pytest.raises(GraphChangedError):
        await other.ainvoke(None, "t")


async def _finds_damage(saver: BaseCheckpointSaver, graph: CompiledStateGraph[Any]) -> None:
    await graph.ainvoke({"log": ["in"]}, "t")

    class Damaged(Through):
        async def read(self, thread_id: str, ns: str = "", checkpoint_id: Any = None) -> Any:
            chain = await self.inner.read(thread_id, ns, checkpoint_id)
            assert chain is not None
            rows = tuple(msgspec.structs.replace(row, frame=row.frame[:-1]) for row in chain.rows)
            return msgspec.structs.replace(chain, rows=rows)

    damaged = StateGraph(State).add_node("a", node(Probe(), "a")).add_edge(START, "a").compile(Damaged(saver))
    for given in (None, {"log": ["in"]}):
        with pytest.raises(CorruptCheckpointError):
            await damaged.ainvoke(given, "t")


ENDS = [
    _nothing,
    _fails,
    _ends_the_process,
    _is_cancelled,
    _is_dropped,
    _reaches_its_limit,
    _has_bad_input,
    _has_unstorable_input,
    _has_two_writers,
    _asks_for_another_checkpoint,
    _finds_another_graph,
    _finds_damage,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
async def test_the_thread_is_released(
    end: Callable[[BaseCheckpointSaver, CompiledStateGraph[Any]], Awaitable[None]], saver: BaseCheckpointSaver
) -> None:
    """P6: however a run ends, the next one can start at once."""
    graph = StateGraph(State).add_sequence([(name, node(Probe(), name)) for name in "ab"]).add_edge(START, "a")
    await end(saver, graph.compile(saver))
    await graph.compile(saver).ainvoke({"log": ["next"]}, "t")
    await saver.adelete_thread("t")


async def test_sends_of_two_owners(environment: SeededEnvironment) -> None:
    """P5, P6: a former owner's records from before it lost the thread count, and the new owner does not run these tasks
    again."""
    saver = InMemorySaver(clock=environment.now)
    probe = Probe()
    held = HeldNode()

    async def work(given: Any) -> dict[str, Any]:
        if given["i"] == 2:
            await held(given)
        return await node(probe, "w")(given)

    graph = StateGraph(State).add_node("a", node(probe, "a")).add_node("w", work).add_edge(START, "a")
    compiled = graph.add_conditional_edges("a", sends("w", 3)).compile(saver, environment=environment)

    async def run_old() -> None:
        with pytest.raises(ThreadBusyError) as caught:
            await compiled.ainvoke({"log": ["in"]}, "t")
        assert caught.value.lost

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run_old)
            await held.reached.wait()
            held.lease = False
            while len((await saver.aget_tuple("t", codec=_codec(saver))).pending_writes) < 2:
                await anyio.lowlevel.checkpoint()
            environment.time += EXPIRY
            result = await compiled.ainvoke(None, "t")
            assert sorted(probe.started) == ["a@1", "w[0]@2", "w[1]@2", "w[2]@2"]
            assert result["log"] == ["in", "a@1", "w[0]@2", "w[1]@2", "w[2]@2"]
            held.let_go.set()
