"""The log of a thread: the parts of all its runs, with numbers, ids and times that are the same for all readers."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import Command
from pregel_async.errors import InvalidCursorError
from pregel_async.service import RunService

from .graphs import Gate, asking, failing, gated, steps

pytestmark = pytest.mark.anyio


async def log_of(service: RunService, **options: Any) -> list[Any]:
    """Return the log of the thread "t" as it is."""
    async with service.follow_thread("t", **{"stream_mode": ["updates", "values"], **options}) as parts:
        return [part async for part in parts]


def brief(parts: list[Any]) -> list[str]:
    """The nodes whose updates are shown, and where runs begin and end."""
    found: list[str] = []
    for part in parts:
        if part["type"] == "updates":
            found += part["data"]
        elif part["type"] == "run_started":
            found.append("(")
        elif part["type"] == "run_ended":
            found.append(f"{part['data']['status']})")
        elif part["type"] != "values":
            found.append(part["type"])
    return found


async def finish(service: RunService, name: str = "agent", input: Any = None, **options: Any) -> str:
    """Run a graph on the thread "t", and return the run's id."""
    options = {"stream_mode": ("updates", "values"), **options}
    run = await service.start(name, {} if input is None else input, thread_id="t", **options)
    await service.join(run.run_id)
    return run.run_id


async def test_runs_one_after_the_other(saver: BaseCheckpointSaver) -> None:
    """Numbers, ids and times grow over all runs, each part says its run, and each id continues after its part."""
    begun = time.time()
    graphs = {"agent": steps("a", "b"), "ask": asking(), "fail": failing(LookupError("no such user"))}
    async with RunService(graphs, saver) as service:
        assert await log_of(service) == []
        first = await finish(service)
        asks = await finish(service, "ask")
        answers = await finish(service, "ask", Command(resume="yes"))
        silent = await finish(service, stream_mode=())
        fails = await finish(service, "fail")
        parts = await log_of(service)
        runs = [first, asks, answers, silent, fails]
        assert brief(parts) == [
            *("(", "a", "b", "success)"),
            *("(", "__interrupt__", "interrupted)"),
            *("(", "ask", "success)"),
            *("(", "success)"),
            *("(", "error", "error)"),
        ]
        assert list(dict.fromkeys(part["run_id"] for part in parts)) == runs
        assert [part["data"]["run_id"] for part in parts if part["type"] == "run_started"] == runs
        ended = [part["data"] for part in parts if part["type"] == "run_ended"]
        assert [each["run_id"] for each in ended] == runs
        assert ended[-1]["error"] == {"type": "LookupError", "message": "no such user"}
        numbers = [part["seq"] for part in parts]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] < 2**53
        assert len({part["cursor"] for part in parts}) == len(parts)
        times = [part["timestamp"] for part in parts if part["type"] != "run_ended"]
        assert times == sorted(times)
        assert begun - 1 < times[0] <= times[-1] < time.time() + 1
        for at, part in enumerate(parts):
            assert await log_of(service, after=part["cursor"]) == parts[at + 1 :]
        assert [part for part in parts if part["type"] != "values"] == await log_of(service, stream_mode="updates")
        with pytest.raises(InvalidCursorError):
            await log_of(service, after="nonsense")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_reader_of_runs_to_come(elsewhere: bool, saver: BaseCheckpointSaver) -> None:
    """With until="never", a reader sees runs that are accepted while it reads; the same parts as a later reader."""
    gate = Gate()
    graphs = {"agent": gated(gate), "steps": steps("a")}
    async with (
        RunService(graphs, saver) as worker,
        RunService({"agent": gated(Gate()), "steps": steps("a")}, saver, work=False) as web,
        anyio.create_task_group() as group,
    ):
        seen: list[Any] = []

        async def read() -> None:
            reader = web if elsewhere else worker
            async with reader.follow_thread("t", until="never", stream_mode="updates") as parts:
                async for part in parts:
                    seen.append(part)
                    if brief(seen)[-1] == "before":
                        gate.opened.set()
                    if brief(seen).count("success)") == 3:
                        return

        group.start_soon(read)
        for name in ("agent", "steps", "agent"):
            await finish(web, name, stream_mode="updates")
    runs = [["(", "before", "wait", "after", "success)"], ["(", "a", "success)"]]
    assert brief(seen) == [*runs[0], *runs[1], *runs[0]]
    async with RunService(graphs, saver, work=False) as later:
        stored = await log_of(later, stream_mode="updates")
    keys = ("type", "data", "seq", "cursor", "run_id", "timestamp")
    assert [[part[key] for key in keys] for part in seen] == [[part[key] for key in keys] for part in stored]


@pytest.mark.parametrize("multitask", ["interrupt", "rollback"])
async def test_a_run_that_gives_way(multitask: Any, saver: BaseCheckpointSaver) -> None:
    """A reader of a run that is cancelled, or rolled back with its checkpoints, continues with the run after it."""
    gate = Gate()
    async with RunService({"agent": gated(gate), "steps": steps("a")}, saver) as service:
        await finish(service, "steps")
        await service.start("agent", {}, thread_id="t", stream_mode="updates")
        seen: list[Any] = []
        async with service.follow_thread("t", stream_mode="updates") as parts:
            async for part in parts:
                seen.append(part)
                if brief(seen)[-1] == "before" and not gate.opened.is_set():
                    await service.start("agent", {}, thread_id="t", stream_mode="updates", multitask=multitask)
                if part["type"] == "run_ended" and part["data"]["status"] == "cancelled":
                    gate.opened.set()
        before, last = ["(", "a", "success)"], ["(", "before", "wait", "after", "success)"]
        given_up = ["(", "before", "cancelled)"]
        assert brief(seen) == [*before, *given_up, *last]
        ended = [part["data"]["rolled_back"] for part in seen if part["type"] == "run_ended"]
        assert ended == [False, multitask == "rollback", False]
        numbers = [part["seq"] for part in seen]
        assert numbers == sorted(set(numbers))
        kept = [] if multitask == "rollback" else given_up
        assert brief(await log_of(service, stream_mode="updates")) == [*before, *kept, *last]
        for part in seen[: -len(last)]:  # also from a place that is gone
            rest = brief(await log_of(service, after=part["cursor"], stream_mode="updates"))
            assert rest[-len(last) :] == last


async def test_a_run_from_an_older_checkpoint(saver: BaseCheckpointSaver) -> None:
    """A run that begins at an older checkpoint is in the log after the runs before it, and they remain in it."""
    async with RunService({"agent": steps("a", "b")}, saver) as service:
        await finish(service)
        await finish(service)
        graph = service.graph("agent")
        states = [each async for each in graph.aget_state_history({"configurable": {"thread_id": "t"}})]
        oldest = states[-1].config["configurable"]["checkpoint_id"]
        seen: list[Any] = []
        async with service.follow_thread("t", until="never", stream_mode="updates") as parts:
            async for part in parts:
                seen.append(part)
                if brief(seen).count("success)") == 2 and len(brief(seen)) == 8:
                    config: Any = {"configurable": {"checkpoint_id": oldest}}
                    await service.start("agent", {}, config, thread_id="t", stream_mode="updates")
                if brief(seen).count("success)") == 3:
                    break
        assert brief(seen) == ["(", "a", "b", "success)"] * 3
        numbers = [part["seq"] for part in seen]
        assert numbers == sorted(set(numbers))
