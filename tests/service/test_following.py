"""Following a run: all its parts once and in order, from any process, without running code of the graph."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError
from pregel_async.errors import InvalidCursorError
from pregel_async.service import RunNotFoundError, RunService

from .graphs import Gate, asking, failing, gated, steps

pytestmark = pytest.mark.anyio


async def names(service: RunService, run_id: str, **options: Any) -> list[str]:
    """Follow a run to its end, and return the names of the nodes whose updates it showed."""
    async with service.follow(run_id, stream_mode="updates", **options) as parts:
        return [name async for part in parts if part["type"] == "updates" for name in part["data"]]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_run_in_progress(elsewhere: bool, saver: BaseCheckpointSaver) -> None:
    gate = Gate()
    async with (
        RunService({"agent": gated(gate)}, saver) as worker,
        RunService({"agent": gated(Gate())}, saver, work=False) as web,
    ):
        run = await web.start("agent", {}, thread_id="t", stream_mode="updates")
        seen: list[str] = []
        async with (web if elsewhere else worker).follow(run.run_id, stream_mode="updates") as parts:
            async for part in parts:
                assert part["type"] == "updates"
                seen += part["data"]
                gate.opened.set()
        assert seen == ["before", "wait", "after"]
        assert (await web.get_run(run.run_id)).status == "success"
        assert await names(web, run.run_id) == seen  # the same after its end


async def test_only_the_parts_of_this_run(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": steps("a", "b")}, saver) as service:
        runs = [await service.start("agent", {}, thread_id="t", stream_mode="updates") for _ in range(3)]
        for run in runs:
            await service.join(run.run_id)
        for run in runs:
            assert await names(service, run.run_id) == ["a", "b"]


async def test_from_a_cursor(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": steps("a", "b", "c")}, saver) as service:
        run = await service.start("agent", {}, thread_id="t", stream_mode="updates")
        await service.join(run.run_id)
        async with service.follow(run.run_id, stream_mode="updates") as parts:
            first = await anext(aiter(parts))
        assert await names(service, run.run_id, after=first["cursor"]) == ["b", "c"]
        with pytest.raises(InvalidCursorError):
            await names(service, run.run_id, after="nonsense")
        with pytest.raises(RunNotFoundError):
            await names(service, "no such run")


async def test_leaving_does_not_stop_the_run(saver: BaseCheckpointSaver) -> None:
    """P7: a follower that leaves cancels nothing."""
    gate = Gate()
    async with RunService({"agent": gated(gate)}, saver) as service:
        run = await service.start("agent", {}, thread_id="t", stream_mode="updates")
        async with service.follow(run.run_id, stream_mode="updates") as parts:
            async for _ in parts:
                break
        gate.opened.set()
        assert (await service.join(run.run_id)).values == {"log": ["before", "wait", "after"]}


async def act_on(how: str, worker: RunService, run_id: str, saver: BaseCheckpointSaver, gate: Gate) -> None:
    """End a run that waits at a gate."""
    if how == "timeout":
        return  # the run ends by itself, on a slow machine before it is at the gate
    await gate.begun.wait()
    if how == "cancel":
        await worker.cancel(run_id)
    elif how == "drain":
        worker.drain()
        gate.opened.set()
        async with RunService({"agent": gated(gate)}, saver) as successor:
            await successor.join(run_id)
    elif how == "storage fails":
        with pytest.MonkeyPatch.context() as patch:

            async def fail(*_: object) -> None:
                patch.undo()
                failed.set()
                raise StorageError("the disk is away")

            failed = anyio.Event()
            patch.setattr(saver, "commit", fail)
            gate.opened.set()
            await failed.wait()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("how", ["cancel", "timeout", "drain", "storage fails"])
async def test_a_run_that_is_stopped(
    how: str, elsewhere: bool, saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower in the worker's own process sees what all others see: the stream ends with the run, raises nothing,
    and continues with the attempt that continues the run."""
    gate = Gate()
    monkeypatch.setattr(saver, "begins_commits", False)  # so that all commits are calls of `commit`
    async with (
        RunService({"agent": gated(gate)}, saver) as worker,
        RunService({"agent": gated(gate)}, saver, work=False) as web,
        anyio.create_task_group() as group,
    ):
        limit = 0.05 if how == "timeout" else None
        run = await web.start("agent", {}, thread_id="t", stream_mode="updates", time_limit=limit, durability="sync")
        group.start_soon(act_on, how, worker, run.run_id, saver, gate)
        async with (web if elsewhere else worker).follow(run.run_id, stream_mode="updates") as parts:
            seen = [(part["type"], *part["data"]) async for part in parts]
        names = ["before"] if how in ("cancel", "timeout") else ["before", "wait", "after"]
        updates = [entry for entry in seen if entry[0] == "updates"]
        assert updates == [("updates", name) for name in names] or (how == "timeout" and not updates)
        assert all(entry[0] != "error" for entry in seen)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_run_that_fails(elsewhere: bool, saver: BaseCheckpointSaver) -> None:
    """Its failure is the last part. The follower raises nothing: the run has failed, and not the reading."""
    graphs = {"agent": failing(LookupError("no such user"))}
    async with RunService(graphs, saver) as worker, RunService(graphs, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t", stream_mode="updates")
        async with (web if elsewhere else worker).follow(run.run_id, stream_mode="updates") as parts:
            seen = [(part["type"], part["data"]) async for part in parts]
        assert seen == [("error", {"error": "LookupError", "message": "no such user"})]


async def test_runs_without_events(saver: BaseCheckpointSaver) -> None:
    """A run that was cancelled before it began, one that stores no events, and one that asks: the follower ends."""
    async with RunService({"agent": steps("a"), "ask": asking()}, saver, work=False) as web:
        never = await web.start("agent", {}, thread_id="t")
        await web.cancel(never.run_id)
        assert await names(web, never.run_id) == []
        silent = await web.start("agent", {}, thread_id="t", stream_mode=())
        asks = await web.start("ask", {}, thread_id="u", stream_mode="updates")
        async with RunService({"agent": steps("a"), "ask": asking()}, saver):
            assert await names(web, silent.run_id) == []
            assert await names(web, asks.run_id) == ["__interrupt__"]
