"""Workers that die, that are stopped and continue, and that never commit: their runs are resumed, once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, ThreadBusyError
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import Commit, Lease
from checkpoint_savers.runs.decisions import TakenRun, WantedLease
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunRow
from pregel_async.service import RunService
from pregel_async.service.worker import WorkLoop

from .graphs import Gate, asking, gated, steps

pytestmark = pytest.mark.anyio


class Clock:
    """The system's clock, which runs also in the runs' environment, and can be set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def saver(clock: Clock) -> AsyncIterator[BaseCheckpointSaver]:
    yield InMemorySaver(clock=clock)


async def take(saver: BaseCheckpointSaver, thread_id: str = "t") -> TakenRun:
    """Take a queued thread's run, as a worker does that dies then."""
    runs = saver.runs
    assert runs is not None
    thread = await runs.get_thread(thread_id)
    assert thread is not None
    now = saver.clock()
    wants = WantedLease(this_process("dead"), now, now + saver.lease_seconds)
    taken = await runs.acquire_and_take(thread_id, thread.activation_no, wants, worker="dead")
    assert taken is not None
    return taken


async def take_and_die(saver: BaseCheckpointSaver, clock: Clock) -> RunRow:
    """Take the queued run of thread "t", as a worker does that dies then, and queue it again after its lease."""
    _, row = await take(saver)
    clock.ahead += saver.lease_seconds
    runs = saver.runs
    assert runs is not None
    for active in await runs.active():
        assert await runs.requeue(active.thread)
    return row


async def test_a_worker_that_died_before_the_input_was_stored(saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P16: its successor applies the input."""
    graphs = {"agent": steps("a")}
    async with RunService(graphs, saver, work=False) as web:
        run = await web.start("agent", {"log": ["in"]}, thread_id="t")
    await take(saver)
    async with RunService(graphs, saver) as service:
        assert (await service.get_run(run.run_id)).status == "running"
        clock.ahead += saver.lease_seconds
        result = await service.join(run.run_id)
        assert (result.values, result.run.attempt) == ({"log": ["in", "a"]}, 2)


@pytest.mark.parametrize("answer", [False, True], ids=["input", "answer"])
async def test_a_worker_that_is_stopped_and_continues(answer: bool, saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P6, P16: a worker that is stopped at any of its writes, and overtaken, changes nothing when it continues: the
    input or the answer is applied once."""
    # The first transaction with an answer is followed by the last one.
    for stop_at in ("take", "begin", "end") if answer else ("take", "begin", "commit", "end"):
        thread_id = f"{stop_at}"
        stopped, overtaken = Gate(), anyio.Event()

        async def stop(name: str, stop_at: str = stop_at, stopped: Gate = stopped) -> None:
            if name == stop_at and not stopped.begun.is_set():
                await stopped.wait()

        graphs = {"agent": asking() if answer else steps("a", "b")}
        async with RunService(graphs, saver, work=False) as web:
            if answer:
                asked = await web.start("agent", {"log": ["in"]}, thread_id=thread_id)
                async with RunService(graphs, saver):
                    await web.join(asked.run_id)
            from pregel_async import Command

            given: Any = Command(resume="yes") if answer else {"log": ["in"]}
            run = await web.start("agent", given, thread_id=thread_id)

            async def overtake(run_id: str = run.run_id, stopped: Gate = stopped, thread_id: str = thread_id) -> None:
                await stopped.begun.wait()
                clock.ahead += saver.lease_seconds + 1
                async with RunService(graphs, saver) as other:
                    await other.join(run_id)
                overtaken.set()

            slow = StoppedSaver(saver, stop)
            async with anyio.create_task_group() as group:
                group.start_soon(overtake)
                async with RunService(graphs, slow):
                    await overtaken.wait()
                    stopped.opened.set()
            row = await web.get_run(run.run_id)
            log = (await web.graph("agent").aget_state(thread_id)).values["log"]
            assert log == (["in", "yes"] if answer else ["in", "a", "b"]), stop_at
            assert row.status == "success"


class StoppedSaver(InMemorySaver):
    """The same threads as another saver's, with a stop before some writes."""

    def __init__(self, saver: Any, stop: Any) -> None:
        self.__dict__.update(saver.__dict__)
        self._stop = stop
        self._stopped_runs = StoppedRuns(saver.runs, stop)

    @property
    def runs(self) -> Any:
        return self._stopped_runs

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self._stop("commit")
        await super().commit(lease, commit)


class StoppedRuns:
    def __init__(self, runs: RunStore, stop: Any) -> None:
        self._runs = runs
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._runs, name)
        if name not in ("acquire_and_take", "begin", "end"):
            return method

        async def stopped(*args: Any, **kwargs: Any) -> Any:
            await self._stop("take" if name == "acquire_and_take" else name)
            return await method(*args, **kwargs)

        return stopped


async def test_a_run_that_ends_its_workers(saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P16: a run that is taken again and again without a committed superstep ends with an error."""
    graphs = {"agent": steps("a")}
    async with RunService(graphs, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t", max_stalls=3)
        for taken in range(3):
            assert (await take_and_die(saver, clock)).stalls == taken + 1
    async with RunService(graphs, saver) as service:
        result = await service.join(run.run_id)
        assert result.status == "error" and result.error is not None and result.error.type == "RunStalledError"


async def test_quarantine(saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P16: a run that was taken twice without a committed superstep is executed alone."""
    gate, other = Gate(), Gate()
    graphs = {"suspect": gated(gate), "agent": gated(other)}
    async with RunService(graphs, saver, work=False) as web:
        suspect = await web.start("suspect", {}, thread_id="t")
        for _ in range(2):
            await take_and_die(saver, clock)
    async with RunService(graphs, saver) as service:
        await gate.begun.wait()
        run = await service.start("agent", {}, thread_id="u")
        await anyio.wait_all_tasks_blocked()
        assert not other.begun.is_set()
        other.opened.set()
        gate.opened.set()
        assert (await service.join(suspect.run_id)).status == "success"
        assert (await service.join(run.run_id)).status == "success"


async def test_quarantine_on_a_busy_worker(saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P16: a run that has waited in quarantine for longer than a lease gets a worker to itself: the worker stops to
    take others until it has none."""
    suspect_gate, busy, later = Gate(), Gate(), Gate()
    graphs = {"suspect": gated(suspect_gate), "busy": gated(busy), "later": gated(later)}
    async with RunService(graphs, saver, work=False) as web:
        suspect = await web.start("suspect", {}, thread_id="t")
        for _ in range(2):
            await take_and_die(saver, clock)
        first = await web.start("busy", {}, thread_id="b", priority=1)
        async with RunService(graphs, saver) as service:
            await busy.begun.wait()
            clock.ahead += saver.lease_seconds + 1
            await service.start("busy", {}, thread_id="c", after=timedelta(hours=1))  # a change, so that workers look
            await anyio.wait_all_tasks_blocked()
            last = await service.start("later", {}, thread_id="d", priority=-1)
            await anyio.wait_all_tasks_blocked()
            assert not suspect_gate.begun.is_set() and not later.begun.is_set()
            busy.opened.set()
            await suspect_gate.begun.wait()
            assert not later.begun.is_set()
            later.opened.set()
            suspect_gate.opened.set()
            for run in (first, suspect, last):
                assert (await service.join(run.run_id)).status == "success"


async def test_a_cancelled_run_of_a_dead_worker(saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P16: the worker that takes it ends it, and runs none of it."""
    gate = Gate()
    graphs = {"agent": gated(gate)}
    async with RunService(graphs, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t")
        await take(saver)
        assert (await web.cancel(run.run_id, wait=False)).status == "running"
        with pytest.raises(TimeoutError, match=r"has not ended after 0.01 seconds. The request to cancel it remains"):
            await web.cancel(run.run_id, wait=0.01)
        with pytest.raises(TimeoutError, match=f"run '{run.run_id}' has not ended after 0.01 seconds"):
            await web.join(run.run_id, timeout=0.01)
        clock.ahead += saver.lease_seconds
        async with RunService(graphs, saver):
            assert (await web.join(run.run_id)).status == "cancelled"
    assert not gate.begun.is_set()


async def test_a_direct_call_and_a_run_of_one_thread(saver: BaseCheckpointSaver) -> None:
    """P6: a run waits until a call of the graph has released the thread, and a call is refused while a run has it."""
    gate = Gate()
    direct = gated(gate).with_checkpointer(saver)
    async with (
        RunService({"agent": gated(Gate()), "steps": steps("x")}, saver) as service,
        anyio.create_task_group() as group,
    ):
        group.start_soon(direct.ainvoke, {}, "t")
        await gate.begun.wait()
        run = await service.start("steps", {}, thread_id="t")
        await anyio.wait_all_tasks_blocked()
        assert (await service.get_run(run.run_id)).status == "pending"
        gate.opened.set()
        result = await service.join(run.run_id)
        assert result.values == {"log": ["before", "wait", "after", "x"]}
        waiting = await service.start("agent", {}, thread_id="u")
        while (await service.get_run(waiting.run_id)).status == "pending":
            await anyio.sleep(0)
        with pytest.raises(ThreadBusyError):
            await direct.ainvoke({}, "u")
        await service.cancel(waiting.run_id)


async def test_a_defect_before_a_run_is_taken(
    saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread is tried again after a pause, and not at once, again and again."""
    runs: Any = saver.runs
    take, tries, pauses = runs.acquire_and_take, list[str](), list[str]()
    try_later = WorkLoop._try_later

    async def defective(thread_id: str, *args: Any, **options: Any) -> Any:
        tries.append(thread_id)
        if len(tries) < 3:
            raise RuntimeError("a defect")
        return await take(thread_id, *args, **options)

    async def counted(self: WorkLoop, thread_id: str) -> None:
        pauses.append(thread_id)
        await try_later(self, thread_id)

    monkeypatch.setattr(runs, "acquire_and_take", defective, raising=False)
    monkeypatch.setattr(WorkLoop, "_try_later", counted)
    async with RunService({"agent": steps("a")}, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t")
        async with RunService({"agent": steps("a")}, saver):
            assert (await web.join(run.run_id)).status == "success"
    assert (tries, pauses) == (["t"] * 3, ["t"] * 2)
    assert caplog.text.count("a defect") >= 2
