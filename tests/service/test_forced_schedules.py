"""Two transactions that meet: each order of them is forced, and ends as one after the other would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async.service import Run, RunNotFoundError, RunOverError, RunService, Worker

from .graphs import Gate, gated, steps
from .schedules import Clock, stopping

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[BaseCheckpointSaver]:
    if request.param == "memory":
        yield InMemorySaver(clock=clock)
    else:
        async with SqliteSaver.from_conn_string(tmp_path / "runs.db", synchronous="NORMAL", clock=clock) as saver:
            yield saver


async def log_of(service: RunService, thread_id: str = "t") -> list[str]:
    state = await service.graph("agent").aget_state(thread_id)
    return state.values.get("log", [])


class Once:
    """Stops a worker before a write of one name, once, until the test opens the gate."""

    def __init__(self, name: str) -> None:
        self.gate = Gate()
        self._name = name

    async def __call__(self, name: str) -> None:
        if name == self._name and not self.gate.begun.is_set():
            with anyio.move_on_after(30, shield=True):  # a worker stores a run's end in a shield: no test may hang
                await self.gate.wait()


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_cancel_against_end(action: Literal["interrupt", "rollback"], saver: BaseCheckpointSaver) -> None:
    """P16: a run that has ended by itself, but whose last superstep is not stored, is not cancelled any more: it has
    one status."""
    before_end = Once("end")
    graphs = {"agent": steps("a", "b")}
    async with RunService(graphs, saver, work=False) as web, RunService(graphs, stopping(saver, before_end)):
        run = await web.start("agent", {"log": ["in"]}, thread_id="t")
        await before_end.gate.begun.wait()
        asked = await web.cancel(run.run_id, action=action, wait=False)
        assert asked.status == "running"
        before_end.gate.opened.set()
        assert (await web.join(run.run_id)).status == "success"
        with pytest.raises(RunOverError):
            await web.cancel(run.run_id, action=action)
        assert await log_of(web) == ["in", "a", "b"]
        assert (await web.get_thread("t")).status == "idle"


@pytest.mark.parametrize("multitask", ["enqueue", "interrupt", "rollback"])
async def test_start_against_end(multitask: Any, saver: BaseCheckpointSaver) -> None:
    """P16: a run that is accepted while the one before is about to end runs after it."""
    before_end = Once("end")
    graphs = {"agent": steps("a")}
    async with RunService(graphs, saver, work=False) as web, RunService(graphs, stopping(saver, before_end)):
        first = await web.start("agent", {"log": ["1"]}, thread_id="t")
        await before_end.gate.begun.wait()
        second = await web.start("agent", {"log": ["2"]}, thread_id="t", multitask=multitask)
        before_end.gate.opened.set()
        assert (await web.join(second.run_id)).status == "success"
        assert (await web.get_run(first.run_id)).status == "success"
        assert await log_of(web) == ["1", "a", "2", "a"]


@pytest.mark.parametrize("thread_id", ["t", None])
async def test_two_starts_with_one_key(thread_id: str | None, saver: BaseCheckpointSaver) -> None:
    """P16: equal requests at the same time are one run."""
    graphs = {"agent": steps("a")}
    found: list[Run] = []
    async with (
        RunService(graphs, saver, work=False) as one,
        RunService(graphs, saver, work=False) as other,
        RunService(graphs, saver),
    ):

        async def start(service: RunService) -> None:
            found.append(await service.start("agent", {"log": ["in"]}, thread_id=thread_id, idempotency_key="k"))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(start, one)
                group.start_soon(start, other)
        assert len({(run.run_id, run.thread_id) for run in found}) == 1
        await one.join(found[0].run_id)
        assert await log_of(one, found[0].thread_id) == ["in", "a"]
        assert await one.count_runs() == 1 == await one.count_threads()


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
@pytest.mark.parametrize("before", ["take", "begin", "end"])
async def test_two_runs_in_the_place_of_one(before: str, action: Any, saver: BaseCheckpointSaver) -> None:
    """P16: of runs that displace each other, the last one that was accepted runs."""
    stop = Once(before)
    graphs = {"agent": steps("a", "b")}
    async with RunService(graphs, saver, work=False) as web, RunService(graphs, stopping(saver, stop)):
        first = await web.start("agent", {"log": ["1"]}, thread_id="t")
        await stop.gate.begun.wait()
        later: list[Run] = []

        async def displace(number: int) -> None:
            later.append(await web.start("agent", {"log": [str(number)]}, thread_id="t", multitask=action))

        async with anyio.create_task_group() as group:
            for number in (2, 3, 4):
                group.start_soon(displace, number)
        stop.gate.opened.set()
        runs = saver.runs
        assert runs is not None
        rows = [await runs.get_run(run.run_id) for run in later]
        order = sorted((row for row in rows if row is not None), key=lambda row: row.seq)
        assert (await web.join(order[-1].run_id)).status == "success"
        for row in order[:-1]:
            displaced = await runs.get_run(row.run_id)
            assert displaced is not None
            assert (displaced.status, displaced.hidden) == ("cancelled", action == "rollback")
        log = await log_of(web)
        assert log[-3] in ("2", "3", "4") and log[-2:] == ["a", "b"]
        ended = await runs.get_run(first.run_id)
        assert ended is not None and not ended.is_open
        assert ended.status == "cancelled" or before != "take"  # or it ended before its worker saw the request
        if ended.status == "success":
            assert log == ["1", "a", "b", *log[-3:]]
        elif action == "rollback" or before == "take":
            assert len(log) == 3
        else:
            assert log[:-3] == ["1", "a", "b"][: len(log) - 3]


@pytest.mark.parametrize("stop_at", ["rewrite", "end"])
async def test_a_worker_that_stops_within_a_rollback(stop_at: str, saver: BaseCheckpointSaver, clock: Clock) -> None:
    """P16: whatever was deleted, the next worker deletes the rest, and the first one changes nothing afterwards."""
    gate, stop = Gate(), Once(stop_at)
    graphs = {"agent": gated(gate), "other": steps("x")}
    async with RunService(graphs, saver, work=False) as web:
        before = await web.start("other", {"log": ["0"]}, thread_id="t")
        async with RunService(graphs, saver):
            await web.join(before.run_id)
        async with RunService(graphs, stopping(saver, stop)):
            run = await web.start("agent", {"log": ["1"]}, thread_id="t")
            await gate.begun.wait()
            await web.cancel(run.run_id, action="rollback", wait=False)
            await stop.gate.begun.wait()
            clock.ahead += saver.lease_seconds + 1
            async with RunService(graphs, saver):
                assert (await web.cancel(run.run_id, action="rollback")).status == "cancelled"
                after = await web.start("other", {"log": ["2"]}, thread_id="t")
                await web.join(after.run_id)
            stop.gate.opened.set()
        assert await log_of(web) == ["0", "x", "2", "x"]
        with pytest.raises(RunNotFoundError):
            await web.get_run(run.run_id)
        assert (await web.get_thread("t")).status == "idle"


async def test_a_rollback_that_comes_while_a_cancelled_run_ends(saver: BaseCheckpointSaver) -> None:
    """P16: a run is hidden only if its checkpoints are deleted, also if that is asked for at the last moment."""
    gate, before_end = Gate(), Once("end")
    graphs = {"agent": gated(gate)}
    async with RunService(graphs, saver, work=False) as web, RunService(graphs, stopping(saver, before_end)):
        run = await web.start("agent", {"log": ["1"]}, thread_id="t")
        await gate.begun.wait()
        await web.cancel(run.run_id, wait=False)
        await before_end.gate.begun.wait()
        await web.cancel(run.run_id, action="rollback", wait=False)
        before_end.gate.opened.set()
        gate.opened.set()
        after = await web.start("agent", {"log": ["2"]}, thread_id="t")
        await web.join(after.run_id)
        with pytest.raises(RunNotFoundError):
            await web.get_run(run.run_id)
        assert await log_of(web) == ["2", "before", "wait", "after"]


async def test_an_urgent_run_does_not_overtake_one_that_has_begun(saver: BaseCheckpointSaver) -> None:
    """P16: a run that a worker gave back between two supersteps is resumed before any other run of its thread."""
    gate = Gate()
    graphs = {"agent": gated(gate)}
    async with RunService(graphs, saver, work=False) as web:
        async with RunService(graphs, saver, work=Worker(grace=0.0)):
            first = await web.start("agent", {"log": ["1"]}, thread_id="t")
            await gate.begun.wait()
        assert (await web.get_run(first.run_id)).status == "pending"
        urgent = await web.start("agent", {"log": ["2"]}, thread_id="t", priority=5)
        gate.opened.set()
        async with RunService(graphs, saver):
            for run in (first, urgent):
                assert (await web.join(run.run_id)).status == "success"
        nodes = ["before", "wait", "after"]
        assert await log_of(web) == ["1", *nodes, "2", *nodes]


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
async def test_a_breakpoint_and_a_worker_that_stops_before_the_end(
    where: str, saver: BaseCheckpointSaver, clock: Clock
) -> None:
    """P8, P16: a run that has stopped at a breakpoint does not pass it because its worker was lost."""
    before_end = Once("end")
    graphs = {"agent": steps("a", "b")}
    options: Any = {where: ["b"] if where == "interrupt_before" else ["a"]}
    async with RunService(graphs, saver, work=False) as web:
        async with RunService(graphs, stopping(saver, before_end)):
            run = await web.start("agent", {"log": ["in"]}, thread_id="t", **options)
            await before_end.gate.begun.wait()
            clock.ahead += saver.lease_seconds + 1
            async with RunService(graphs, saver):
                assert (await web.join(run.run_id)).status == "interrupted"
            before_end.gate.opened.set()
        assert await log_of(web) == ["in", "a"]
        assert (await web.get_thread("t")).status == "interrupted"
