"""Runs that the worker of a process takes in the transaction that starts them, because it has a spare slot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, StorageError, ThreadBusyError
from checkpoint_savers.owner import this_process
from pregel_async import START, StateGraph
from pregel_async.service import RowDispatcher, RunService, ServiceDrainingError, Worker
from pregel_async.service.dispatch.port import Crew
from pregel_async.service.worker import WorkLoop

from .graphs import Gate, Log, gated, steps

pytestmark = pytest.mark.anyio

CALLER: ContextVar[str] = ContextVar("CALLER", default="none")


class Counted:
    """Counts the transactions by which runs are started and taken, and delays those that start one if a test wants it.

    Attributes:
        started: by thread id: True if the transaction that started the run has also taken it.
        taken: number of transactions that take a run of a queued thread.
        held: a transaction that starts a run waits for this event before it begins; None to not wait.
        waits: set when a transaction waits for `held`.
        left: set when a transaction that starts a run has been committed.
        failure: raised in place of a transaction that starts a run; None for none.
    """

    def __init__(self, saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
        runs: Any = saver.runs
        self.started: dict[str, bool] = {}
        self.taken = 0
        self.held: anyio.Event | None = None
        self.waits, self.left = anyio.Event(), anyio.Event()
        self.failure: Exception | None = None
        self._start, self._take = runs.start_and_take, runs.acquire_and_take
        monkeypatch.setattr(runs, "start_and_take", self.start_and_take, raising=False)
        monkeypatch.setattr(runs, "acquire_and_take", self.acquire_and_take, raising=False)

    async def start_and_take(self, thread_id: str, *args: Any, **options: Any) -> Any:
        if self.held is not None:
            self.waits.set()
            await self.held.wait()
        if self.failure is not None:
            raise self.failure
        found = await self._start(thread_id, *args, **options)
        self.started[thread_id] = found.taken is not None
        self.left.set()
        return found

    async def acquire_and_take(self, *args: Any, **options: Any) -> Any:
        self.taken += 1
        return await self._take(*args, **options)


@asynccontextmanager
async def ready(service: RunService) -> AsyncIterator[RunService]:
    """Open a service, and wait until its worker has looked at the queue."""
    async with service:
        await spare(service, service.worker.slots if service.worker else 0)
        yield service


async def spare(service: RunService, slots: int) -> None:
    """Wait until the worker counts so many slots as spare."""
    loop = loop_of(service)
    while loop._spare < slots:
        await anyio.sleep(0.001)


def loop_of(service: RunService) -> WorkLoop:
    opened: Any = service._opened
    return opened.loop


async def test_a_run_is_taken_where_it_is_started(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction accepts the run and acquires the lease. No worker has to find it in the queue."""
    counted, gate = Counted(saver, monkeypatch), Gate()
    async with ready(RunService({"agent": gated(gate)}, saver)) as service:
        run = await service.start("agent", {}, thread_id="t")
        assert run.status == "pending" and counted.started == {"t": True}
        stored = await service.get_run(run.run_id)
        assert (stored.status, stored.attempt) == ("running", 1)
        await gate.begun.wait()
        second = await service.start("agent", {}, thread_id="t")  # queued: the thread is busy
        gate.opened.set()
        for each in (run, second):
            assert (await service.join(each.run_id)).status == "success"
        assert counted.started == {"t": True} and counted.taken == 1


async def test_queued_runs_are_first(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that becomes free is for the queue: a run that is started then does not overtake those that wait."""
    counted, gate, looks = Counted(saver, monkeypatch), Gate(), anyio.Event()
    runs, late = cast("Any", saver.runs), list[Any]()
    queued, work_on = runs.queued, WorkLoop._work_on

    async def held_queued(**options: Any) -> Any:
        await looks.wait()
        return await queued(**options)

    async def and_then_start(loop: WorkLoop, thread_id: str, *args: Any) -> None:
        await work_on(loop, thread_id, *args)
        # The slot has just become free, and the worker has not read the queue again.
        if thread_id.startswith("waiting"):
            late.append(await service.start("quick", {}, thread_id=f"late {thread_id}"))

    async with (
        ready(RunService({"agent": gated(gate), "quick": steps("a")}, saver, work=Worker(slots=2))) as service,
        RunService({"agent": gated(gate)}, saver, work=False) as web,
    ):
        monkeypatch.setattr(runs, "queued", held_queued, raising=False)
        waiting = [await web.start("agent", {}, thread_id=f"waiting {number}") for number in range(5)]
        monkeypatch.setattr(WorkLoop, "_work_on", and_then_start)
        looks.set()  # the worker finds five at once, and has two slots to spare
        gate.opened.set()
        for each in waiting:
            await service.join(each.run_id)
        while len(late) < 5:
            await anyio.sleep(0.001)
        began = [(await service.get_run(each.run_id)).started_at for each in waiting]
        for each in late:
            taken_at_once = counted.started.get(each.thread_id, False)
            assert not taken_at_once or each.created_at >= max(at for at in began if at is not None)
            await service.join(each.run_id)


async def test_what_does_not_fit_is_queued(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """No slot is spare, or the worker does not have the graph."""
    counted, gate = Counted(saver, monkeypatch), Gate()
    graphs = {"agent": gated(gate)}
    async with ready(RunService(graphs, saver, work=Worker(slots=2))) as service:
        runs = [await service.start("agent", {}, thread_id=f"t{number}") for number in range(4)]
        assert counted.started == {"t0": True, "t1": True}
        assert [(await service.get_run(run.run_id)).status for run in runs] == [*["running"] * 2, *["pending"] * 2]
        gate.opened.set()
        for run in runs:
            await service.join(run.run_id)
    async with RunService(graphs, saver, work=False) as web:
        waiting = await web.start("agent", {}, thread_id="t9")
        assert (await web.get_run(waiting.run_id)).status == "pending" and "t9" not in counted.started


async def test_a_refusal_reaches_its_caller(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is free afterwards, and the worker takes other runs."""
    counted, gate = Counted(saver, monkeypatch), Gate()
    async with (
        ready(RunService({"agent": gated(gate)}, saver, work=Worker(slots=2))) as service,
        RunService({"agent": gated(gate)}, saver, work=False) as web,
    ):
        held = await saver.acquire("t", this_process("a direct call"), now=saver.clock(), expires_at=saver.clock() + 30)
        first = await web.start("agent", {}, thread_id="t")
        with pytest.raises(ThreadBusyError):
            await service.start("agent", {}, thread_id="t", multitask="reject")
        counted.failure = StorageError("the disk is full")
        with pytest.raises(StorageError, match="the disk is full"):
            await service.start("agent", {}, thread_id="u")
        assert (await service.search_runs(thread_id="u")).items == ()
        counted.failure = None
        await saver.release(held)
        gate.opened.set()
        for run in (first, await service.start("agent", {}, thread_id="u")):
            assert (await service.join(run.run_id)).status == "success"
        await spare(service, 2)


async def test_the_caller_is_no_part_of_the_run(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a node of another run starts does not get the node's context, and may end after it."""
    counted, seen, gate = Counted(saver, monkeypatch), list[str](), Gate()

    async def look(state: Log) -> dict[str, Any]:
        seen.append(CALLER.get())
        await gate.wait()
        return {"log": ["looked"]}

    async def start(state: Log) -> dict[str, Any]:
        CALLER.set("a node")
        run = await service.start("inner", {}, thread_id="inner")
        return {"log": [run.run_id]}

    inner = StateGraph(Log).add_node("look", look).add_edge(START, "look").compile(blocking=False)
    outer = StateGraph(Log).add_node("start", start).add_edge(START, "start").compile(blocking=False)
    async with ready(RunService({"inner": inner, "outer": outer}, saver)) as service:
        result = await service.join((await service.start("outer", {}, thread_id="outer")).run_id)
        assert result.status == "success" and counted.started == {"outer": True, "inner": True}
        await gate.begun.wait()
        gate.opened.set()
        (run_id,) = (result.values or {})["log"]
        ended = await service.join(run_id)
        assert (ended.values, seen) == ({"log": ["looked"]}, ["none"])
        state = await service.graph("inner").aget_state("inner")
        assert "parents" not in state.metadata or not state.metadata["parents"]


@pytest.mark.parametrize("library", ["asyncio", "trio"])
async def test_a_start_on_another_event_loop(
    saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """The worker's tasks are on its own loop, so the run is queued for it."""
    counted = Counted(saver, monkeypatch)
    async with ready(RunService({"agent": steps("a")}, saver)) as service:

        async def start() -> str:
            return (await service.start("agent", {}, thread_id="t")).run_id

        asked = list[str]()
        with monkeypatch.context() as patch:  # a task that is started on the wrong loop would hang at the end
            patch.setattr(WorkLoop, "_has_slot_for", lambda *_: asked.append("for a slot"))
            run_id = await anyio.to_thread.run_sync(lambda: anyio.run(start, backend=library))
        assert not asked
        assert (await service.join(run_id)).values == {"log": ["a"]} and counted.started == {}
        run = await service.start("agent", {}, thread_id="u")
        assert (await service.join(run.run_id)).values == {"log": ["a"]}


class Failing(RowDispatcher):
    """Fails when its work is cancelled."""

    def __init__(self) -> None:
        self.working = anyio.CancelScope()

    async def work(self, crew: Crew) -> None:
        with self.working:
            await super().work(crew)
        raise ValueError("no dispatcher")


async def test_a_start_after_the_worker_has_failed(saver: BaseCheckpointSaver) -> None:
    """The run is queued for other workers. The service ends with the dispatcher's own error."""
    dispatcher, graphs = Failing(), {"agent": steps("a")}
    with pytest.raises(ValueError, match="no dispatcher"):
        async with ready(RunService(graphs, saver, dispatcher=dispatcher)) as service:
            with anyio.CancelScope(shield=True):
                dispatcher.working.cancel()
                await anyio.wait_all_tasks_blocked()
                run = await service.start("agent", {}, thread_id="t")
    async with RunService(graphs, saver) as service:
        assert (await service.join(run.run_id)).values == {"log": ["a"]}


async def test_a_caller_that_is_cancelled(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is not interrupted: the run is stored and executed."""
    counted, gate = Counted(saver, monkeypatch), Gate()
    counted.held = anyio.Event()
    async with ready(RunService({"agent": gated(gate)}, saver)) as service:
        gate.opened.set()
        async with anyio.create_task_group() as group:
            group.start_soon(service.start, "agent", {}, None)
            await counted.waits.wait()
            group.cancel_scope.cancel()
        counted.held.set()
        await counted.left.wait()
        (run,) = (await service.search_runs()).items
        assert (await service.join(run.run_id)).status == "success"


@pytest.mark.parametrize("grace", [30.0, 0.0])
async def test_a_start_during_a_shutdown(
    saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """A run whose start is in progress when the service drains is stored, and given back to other workers. Later ones
    are refused."""
    counted, gate = Counted(saver, monkeypatch), Gate()
    counted.held = held = anyio.Event()
    started: list[Any] = []
    async with anyio.create_task_group() as group:
        async with ready(RunService({"agent": gated(gate)}, saver, work=Worker(grace=grace))) as service:

            async def start() -> None:
                started.append(await service.start("agent", {}, thread_id="t"))

            group.start_soon(start)
            await counted.waits.wait()
            service.drain()
            with pytest.raises(ServiceDrainingError):
                await service.start("agent", {}, thread_id="u")
            group.start_soon(_set_later, held)
    assert counted.started == {"t": True} and started
    gate.opened.set()
    counted.held = None
    async with RunService({"agent": gated(gate)}, saver) as service:
        (run,) = (await service.search_runs()).items
        assert (await service.join(run.run_id)).values == {"log": ["before", "wait", "after"]}


async def test_a_failure_during_a_shutdown(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the storage's error, which may say that the run is perhaps stored, and not that it is refused."""
    counted, failures = Counted(saver, monkeypatch), list[Exception]()
    counted.held, counted.failure = anyio.Event(), StorageError("the connection broke")
    async with anyio.create_task_group() as group:
        async with ready(RunService({"agent": steps("a")}, saver, work=Worker(grace=0.0))) as service:

            async def start() -> None:
                try:
                    await service.start("agent", {}, thread_id="t")
                except Exception as error:
                    failures.append(error)

            group.start_soon(start)
            await counted.waits.wait()
            service.drain()
            group.start_soon(_set_later, counted.held)
    assert failures == [counted.failure]


async def _set_later(event: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    event.set()
