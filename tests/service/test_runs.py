"""Runs of a service from start to end: what is stored, in which order they run, and how they are cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, ThreadBusyError
from pregel_async import START, Command, RunnableConfig, StateGraph, interrupt
from pregel_async.errors import ConfigError, EmptyInputError, InvalidInputError, InvalidResumeError
from pregel_async.runtime import Runtime
from pregel_async.service import (
    Assistant,
    IdempotencyConflictError,
    RunNotFoundError,
    RunOverError,
    RunService,
    ServiceBusyError,
    ServiceDrainingError,
    UnknownGraphError,
    Worker,
)

from .graphs import Gate, Log, asking, failing, gated, steps

pytestmark = pytest.mark.anyio


async def test_from_start_to_result(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": steps("a", "b")}, saver) as service:
        run = await service.start("agent", {"log": ["in"]}, thread_id="t", metadata={"n": 1})
        assert (run.status, run.thread_id, run.graph, run.metadata) == ("pending", "t", "agent", {"n": 1})
        result = await service.join(run.run_id)
        assert (result.status, result.values, result.error) == ("success", {"log": ["in", "a", "b"]}, None)
        assert result.run.attempt == 1 and result.run.started_at is not None and result.run.ended_at is not None
        thread = await service.get_thread("t")
        assert (thread.status, thread.values, thread.graph) == ("idle", {"log": ["in", "a", "b"]}, "agent")
        assert (await service.graph("agent").aget_state("t")).values == {"log": ["in", "a", "b"]}


async def test_a_run_survives_its_process(saver: BaseCheckpointSaver) -> None:
    """P16: a run that `start` has returned is executed by any later process."""
    async with RunService({"agent": steps("a")}, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t")
        assert (await web.get_run(run.run_id)).status == "pending"
    async with RunService({"agent": steps("a")}, saver) as worker:
        assert (await worker.join(run.run_id)).values == {"log": ["a"]}


async def test_results_of_several_runs(saver: BaseCheckpointSaver) -> None:
    """P16: each run has its own result, also when later runs have continued the thread; one that has stored nothing has
    none."""
    gate = Gate()
    async with RunService({"agent": steps("a"), "gated": gated(gate)}, saver) as service:
        runs = [await service.start("agent", {"log": [name]}, thread_id="t") for name in ("1", "2")]
        running = await service.start("gated", {}, thread_id="t")
        waiting = await service.start("agent", {}, thread_id="t")
        await gate.begun.wait()
        await service.cancel(waiting.run_id)
        gate.opened.set()
        await service.join(running.run_id)
        results = [(await service.join(run.run_id)).values for run in (*runs, waiting)]
        assert results == [{"log": ["1", "a"]}, {"log": ["1", "a", "2", "a"]}, None]


async def test_a_question_and_its_answer(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": asking()}, saver) as service:
        asked = await service.join((await service.start("agent", {}, thread_id="t")).run_id)
        assert asked.status == "interrupted" and [each.value for each in asked.interrupts] == ["sure?"]
        thread = await service.get_thread("t")
        assert thread.status == "interrupted"
        ((question,),) = thread.interrupts.values()
        assert question["value"] == "sure?"
        answered = await service.join((await service.start("agent", Command(resume="yes"), "t")).run_id)
        assert (answered.status, answered.values) == ("success", {"log": ["yes"]})
        assert (await service.get_thread("t")).status == "idle"


async def test_an_answer_that_does_not_fit(saver: BaseCheckpointSaver) -> None:
    """P8: its run fails, and the question is in the inbox still, with the schema of its answer."""

    def ask(state: Log) -> dict[str, Any]:
        return {"log": [str(interrupt("how many?", response_schema=int))]}

    graph = StateGraph(Log).add_node(ask).add_edge(START, "ask").compile(blocking=False)
    async with RunService({"agent": graph}, saver) as service:
        await service.join((await service.start("agent", {}, thread_id="t")).run_id)
        refused = await service.join((await service.start("agent", Command(resume="many"), "t")).run_id)
        assert refused.error is not None and refused.error.type.endswith(".InvalidAnswerError")
        (thread,) = (await service.search_threads(status="interrupted")).items
        ((question,),) = thread.interrupts.values()
        assert question["response_schema"] == {"type": "integer"}
        assert thread.error is not None and thread.error.message == refused.error.message
        answered = await service.join((await service.start("agent", Command(resume={question["id"]: 3}), "t")).run_id)
        assert (answered.status, answered.values) == ("success", {"log": ["3"]})
        assert (await service.get_thread("t")).error is None


async def test_an_answer_that_is_late(saver: BaseCheckpointSaver) -> None:
    """P8: a second answer changes nothing: its run fails, and the thread remains as the first one has left it."""
    async with RunService({"agent": asking()}, saver) as service:
        await service.join((await service.start("agent", {}, thread_id="t")).run_id)
        runs = [await service.start("agent", Command(resume=answer), "t") for answer in ("yes", "no")]
        first, second = [await service.join(run.run_id) for run in runs]
        assert (first.status, second.status) == ("success", "error") and second.run.attempt == 1
        thread = await service.get_thread("t")
        assert (thread.status, thread.values) == ("idle", {"log": ["yes"]})
        assert thread.error is not None and thread.error.type.endswith(".InvalidResumeError")


async def test_a_failure_and_a_retry(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": failing(LookupError("no such user"))}, saver) as service:
        run = await service.start("agent", {"log": ["in"]}, thread_id="t")
        failed = await service.join(run.run_id)
        assert failed.status == "error" and failed.error is not None
        assert (failed.error.type, failed.error.message) == ("LookupError", "no such user")
        assert (await service.get_thread("t")).status == "error"
        again = await service.join((await service.retry(run.run_id)).run_id)
        assert (again.status, again.values, again.run.stalls) == ("success", {"log": ["in", "work"]}, 0)
        assert (await service.get_thread("t")).error is None


async def test_runs_of_a_thread_run_one_after_the_other(saver: BaseCheckpointSaver) -> None:
    """P16: in the order in which they were accepted, except that more urgent ones come first."""
    gate = Gate()
    async with RunService({"agent": gated(gate)}, saver) as service:
        first = await service.start("agent", {"log": ["1"]}, thread_id="t")
        await gate.begun.wait()
        second = await service.start("agent", {"log": ["2"]}, thread_id="t")
        urgent = await service.start("agent", {"log": ["3"]}, thread_id="t", priority=5)
        assert (await service.get_thread("t")).status == "busy"
        with pytest.raises(ThreadBusyError):
            await service.start("agent", {}, thread_id="t", multitask="reject")
        assert await service.count_runs(thread_id="t") == 3
        assert (await service.get_run(first.run_id)).is_open and second.is_open
        gate.opened.set()
        for run in (first, second, urgent):
            assert not (await service.join(run.run_id)).run.is_open
        log = (await service.graph("agent").aget_state("t")).values["log"]
        assert [each for each in log if each.isdigit()] == ["1", "3", "2"] and len(log) == 12


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_a_run_in_the_place_of_the_running_one(action: Any, saver: BaseCheckpointSaver) -> None:
    """P7, P16: the running run is cancelled, with "rollback" as if it had never been; then the new one runs."""
    gate = Gate()
    async with RunService({"agent": gated(gate)}, saver) as service:
        first = await service.start("agent", {"log": ["1"]}, thread_id="t")
        await gate.begun.wait()
        waiting = await service.start("agent", {"log": ["2"]}, thread_id="t")
        new = await service.start("agent", {"log": ["3"]}, thread_id="t", multitask=action)
        await gate.left.wait()
        gate.opened.set()
        result = await service.join(new.run_id)
        assert gate.cancelled == 1
        if action == "interrupt":
            assert [(await service.get_run(run.run_id)).status for run in (first, waiting)] == ["cancelled"] * 2
            assert result.values == {"log": ["1", "before", "3", "before", "wait", "after"]}
        else:
            for run in (first, waiting):
                with pytest.raises(RunNotFoundError):
                    await service.get_run(run.run_id)
            assert result.values == {"log": ["3", "before", "wait", "after"]}
        assert (await service.get_run(new.run_id)).status == "success"


async def test_cancelling_a_pending_run(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": steps("a")}, saver, work=False) as service:
        run = await service.start("agent", {}, thread_id="t")
        cancelled = await service.cancel(run.run_id, reason="changed my mind")
        assert (cancelled.status, cancelled.cancel_reason) == ("cancelled", "changed my mind")
        with pytest.raises(RunOverError):
            await service.cancel(run.run_id)
        assert (await service.get_thread("t")).status == "idle"
        with pytest.raises(RunNotFoundError):
            await service.cancel("no such run")


async def test_cancelling_a_run_of_another_process(saver: BaseCheckpointSaver) -> None:
    """P7: `cancel` returns when the run's tasks have ended."""
    gate = Gate()
    async with (
        RunService({"agent": gated(gate)}, saver) as worker,
        RunService({"agent": gated(Gate())}, saver, work=False) as web,
    ):
        run = await web.start("agent", {}, thread_id="t")
        await gate.begun.wait()
        assert (await web.cancel(run.run_id)).status == "cancelled"
        assert gate.cancelled == 1
        assert (await worker.get_thread("t")).status == "interrupted"
        # What was stored stays, and a retry continues from there.
        gate.opened.set()
        again = await web.join((await web.retry(run.run_id)).run_id)
        assert again.values == {"log": ["before", "wait", "after"]}


async def test_cancel_and_rollback_removes_what_the_run_stored(saver: BaseCheckpointSaver) -> None:
    gate = Gate()
    async with RunService({"agent": gated(gate), "other": steps("x")}, saver) as service:
        await service.join((await service.start("other", {}, thread_id="t")).run_id)
        before = (await service.graph("other").aget_state("t")).config
        run = await service.start("agent", {"log": ["1"]}, thread_id="t")
        await gate.begun.wait()
        await service.cancel(run.run_id, action="rollback")
        state = await service.graph("other").aget_state("t")
        assert (state.values, state.config) == ({"log": ["x"]}, before)
        assert (await service.get_thread("t")).status == "idle"
        with pytest.raises(RunNotFoundError):
            await service.join(run.run_id)


async def test_a_time_limit(saver: BaseCheckpointSaver) -> None:
    gate = Gate()
    async with RunService({"agent": gated(gate)}, saver) as service:
        result = await service.join((await service.start("agent", {}, thread_id="t", time_limit=0.05)).run_id)
        assert result.status == "timeout"
        assert gate.cancelled == gate.begun.is_set()  # a slow machine needs the time before the node begins
        assert (await service.get_thread("t")).status == "error"


async def test_a_run_of_later(saver: BaseCheckpointSaver) -> None:
    """A run with `after=` waits for its time, and its thread is busy meanwhile."""
    now = [1_000_000.0]
    saver.clock = lambda: now[0]
    async with RunService({"agent": steps("a")}, saver) as service:
        run = await service.start("agent", {}, thread_id="t", after=timedelta(hours=1))
        assert run.due == datetime.fromtimestamp(1_003_600, UTC)
        early = await service.start("agent", {}, thread_id="other")
        await service.join(early.run_id)
        assert (await service.get_run(run.run_id)).status == "pending"
        assert (await service.get_thread("t")).status == "busy"
        now[0] += 3600
        assert (await service.join(run.run_id)).status == "success"


async def test_one_request_with_one_key(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": steps("a")}, saver) as service:
        first = await service.start("agent", {"log": ["1"]}, thread_id="t", idempotency_key="k")
        await service.join(first.run_id)
        again = await service.start("agent", {"log": ["1"]}, thread_id="t", idempotency_key="k")
        assert (again.run_id, again.status) == (first.run_id, "success")
        with pytest.raises(IdempotencyConflictError):
            await service.start("agent", {"log": ["2"]}, thread_id="t", idempotency_key="k")
        with pytest.raises(IdempotencyConflictError):
            await service.start("agent", {"log": ["1"]}, thread_id="t", idempotency_key="k", metadata={"n": 1})
        assert (await service.graph("agent").aget_state("t")).values == {"log": ["1", "a"]}
        elsewhere = [await service.start("agent", {}, idempotency_key="new thread") for _ in range(2)]
        assert len({(run.run_id, run.thread_id) for run in elsewhere}) == 1


async def test_what_start_refuses(saver: BaseCheckpointSaver) -> None:
    """P16: what a graph would refuse is refused before anything is stored."""

    class Strict(TypedDictOfNumbers, total=False):
        pass

    graph = StateGraph(Strict).add_node("a", lambda state: {}).add_edge(START, "a").compile()
    async with RunService({"agent": graph}, saver, max_pending=1, work=False) as service:
        with pytest.raises(UnknownGraphError, match="no graph 'agnt'; it has 'agent'"):
            await service.start("agnt", {})
        with pytest.raises(InvalidInputError):
            await service.start("agent", {"number": "many"})
        with pytest.raises(ConfigError):
            await service.start("agent", {"number": 1}, {"callbacks": [object()]})
        with pytest.raises(ConfigError):
            await service.start("agent", {"number": 1}, priority=101)
        for key in ("\ud800", 7):
            with pytest.raises(ConfigError, match="idempotency_key"):
                await service.start("agent", {"number": 1}, idempotency_key=cast("Any", key))
        with pytest.raises(EmptyInputError):
            await service.start("agent", thread_id="new")
        with pytest.raises(InvalidResumeError):
            await service.start("agent", Command(resume="yes"), thread_id="new")
        assert await service.count_runs() == 0
        await service.start("agent", {"number": 1})
        service._pending = (0.0, 0)
        with pytest.raises(ServiceBusyError) as refused:
            await service.start("agent", {"number": 2})
        assert refused.value.pending == 1 and refused.value.retry_after > 0
        assert await service.count_runs() == 1


class TypedDictOfNumbers(Log, total=False):
    number: int


@dataclass
class Who:
    name: str


async def test_the_context_of_nodes(saver: BaseCheckpointSaver) -> None:
    """It is stored with the run, or made by the worker for each attempt."""

    def greet(state: Log, runtime: Runtime[Who]) -> dict[str, Any]:
        return {"log": [runtime.context.name]}

    graph: Any = StateGraph(Log, context_schema=Who).add_node("greet", greet).add_edge(START, "greet").compile()
    async with RunService({"agent": graph}, saver, work=False) as web:
        stored = await web.start("agent", {}, thread_id="t", context=Who("ann"))
    async with RunService({"agent": graph}, saver) as service:
        assert (await service.join(stored.run_id)).values == {"log": ["ann"]}

    async def context(run: Any) -> Who:
        return Who(f"the user of {run.thread_id}")

    async with RunService({"agent": graph}, saver, context=context) as service:
        made = await service.start("agent", {}, thread_id="u")
        assert (await service.join(made.run_id)).values == {"log": ["the user of u"]}


async def test_assistants_of_one_graph(saver: BaseCheckpointSaver) -> None:
    """An assistant has defaults for config, context and metadata, which those of `start` override."""

    def greet(state: Log, runtime: Runtime[Who], config: RunnableConfig) -> dict[str, Any]:
        return {"log": [config["configurable"]["tone"], runtime.context.name]}

    graph: Any = StateGraph(Log, context_schema=Who).add_node("greet", greet).add_edge(START, "greet").compile()
    kind = Assistant(
        graph, config={"configurable": {"tone": "kind"}}, context=Who("ann"), metadata={"team": "care", "n": 1}
    )
    short = Assistant(graph, config={"configurable": {"tone": "short"}})
    async with RunService({"kind": kind, "short": short}, saver) as service:
        run = await service.start("kind", {}, metadata={"n": 2})
        assert run.metadata == {"team": "care", "n": 2}
        assert (await service.join(run.run_id)).values == {"log": ["kind", "ann"]}
        run = await service.start("kind", {}, {"configurable": {"tone": "loud"}}, context=Who("bob"))
        assert (await service.join(run.run_id)).values == {"log": ["loud", "bob"]}
        run = await service.start("short", {}, context=Who("eve"))
        assert (await service.join(run.run_id)).values == {"log": ["short", "eve"]}
        assert await service.count_runs(graph="kind") == 2


async def test_a_drained_worker_gives_its_runs_back(saver: BaseCheckpointSaver) -> None:
    """P16: a run stops at its next barrier, another worker continues it, and no node runs twice."""
    gate = Gate()
    async with RunService({"agent": gated(gate)}, saver) as old:
        run = await old.start("agent", {}, thread_id="t")
        await gate.begun.wait()
        old.drain()
        with pytest.raises(ServiceDrainingError):
            await old.start("agent", {})
        gate.opened.set()
    async with RunService({"agent": gated(Gate())}, saver, work=False) as web:
        given = await web.get_run(run.run_id)
        assert (given.status, given.stalls, given.attempt) == ("pending", 0, 1)
    async with RunService({"agent": gated(Gate())}, saver) as new:
        result = await new.join(run.run_id)
        assert (result.values, result.run.attempt) == ({"log": ["before", "wait", "after"]}, 2)


async def test_a_drain_whose_grace_is_over(saver: BaseCheckpointSaver) -> None:
    """P7, P16: the run's tasks are cancelled, and the run is given back."""
    gate = Gate()
    async with RunService({"agent": gated(gate)}, saver, work=Worker(grace=0.0)) as old:
        run = await old.start("agent", {}, thread_id="t")
        await gate.begun.wait()
    assert gate.cancelled == 1
    open_gate = Gate()
    open_gate.opened.set()
    async with RunService({"agent": gated(open_gate)}, saver) as new:
        assert (await new.join(run.run_id)).values == {"log": ["before", "wait", "after"]}


async def test_slots(saver: BaseCheckpointSaver) -> None:
    """A worker executes as many runs at the same time as it has slots."""
    gate, running, most = Gate(), 0, 0

    async def work(state: Log) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            gate.opened.set()
        await gate.wait()
        await anyio.lowlevel.checkpoint()
        running -= 1
        return {"log": ["work"]}

    graph: Any = StateGraph(Log).add_node("work", work).add_edge(START, "work").compile()
    async with RunService({"agent": graph}, saver, work=Worker(slots=2)) as service:
        runs = [await service.start("agent", {}) for _ in range(7)]
        for run in runs:
            assert (await service.join(run.run_id)).status == "success"
    assert most == 2


async def test_search(saver: BaseCheckpointSaver) -> None:
    async with RunService({"agent": asking(), "other": steps("x")}, saver) as service:
        for name in ("agent", "other"):
            run = await service.start(
                name, {}, {"metadata": {"owner": "ann"}}, thread_id=name, metadata={"kind": {"of": name}}
            )
            await service.join(run.run_id)
        page = await service.search_threads(status="interrupted")
        assert [each.thread_id for each in page.items] == ["agent"] and page.next is None
        assert await service.count_threads(metadata={"owner": "ann"}) == 2
        assert await service.count_threads(values={"log": ["x"]}) == 1
        found = await service.search_runs(metadata={"kind": {"of": "other"}})
        assert [each.thread_id for each in found.items] == ["other"]
        first = await service.search_runs(limit=1)
        second = await service.search_runs(limit=1, after=first.next)
        assert [each.thread_id for each in (*first.items, *second.items)] == ["other", "agent"]


@asynccontextmanager
async def closed_service(saver: BaseCheckpointSaver) -> AsyncIterator[RunService]:
    yield RunService({"agent": steps("a")}, saver)


async def test_a_service_that_is_not_open(saver: BaseCheckpointSaver) -> None:
    async with closed_service(saver) as service:
        with pytest.raises(ConfigError, match="async with"):
            await service.start("agent", {})
    with pytest.raises(ConfigError):
        RunService({}, saver)
