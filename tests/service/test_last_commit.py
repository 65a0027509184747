"""The end of a run is stored with its last superstep, or with the questions for which it pauses: in one transaction."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.upkeep.retention import Retention
from pregel_async import START, Command, StateGraph
from pregel_async._runtime.streaming.event_rows import read_row
from pregel_async._runtime.streaming.parts import RUN
from pregel_async.runtime import interrupt
from pregel_async.service import Run, RunOverError, RunService, run_marks
from pregel_async.types import Durability

from .graphs import Gate, Log, asking, failing, steps
from .schedules import stopping

pytestmark = pytest.mark.anyio


class Watched:
    """Sees each write of a worker, and what is stored when the worker is about to store a run's end."""

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        self.writes: list[str] = []
        self.head_before_end: Any = None
        self.saver = saver
        self.stopping = stopping(saver, self)

    async def __call__(self, name: str) -> None:
        self.writes.append(name)
        if name == "end":
            self.head_before_end = await self.head()

    async def head(self) -> Any:
        chain = await self.saver.read("t")
        return None if chain is None else (chain.head, chain.records)


@pytest.fixture(params=[run_marks.MAX_ROWS, 0], ids=["kept rows", "read rows"])
def watched(saver: BaseCheckpointSaver, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Watches runs whose rows are kept for their end, and runs whose rows are read again, as those of long threads."""
    monkeypatch.setattr(run_marks, "MAX_ROWS", request.param)
    return Watched(saver)


async def run_once(watched: Watched, graph: Any, given: Any, **options: Any) -> Run:
    """Execute one run of thread "t", and check what its end has left."""
    saver, runs, watched.writes = watched.saver, watched.saver.runs, []
    assert runs is not None
    async with RunService({"agent": graph}, watched.stopping) as service:
        run = (await service.join((await service.start("agent", given, thread_id="t", **options)).run_id)).run
        state, thread = await service.graph("agent").aget_state("t"), await service.get_thread("t")
    row, stored = await runs.get_run(run.run_id), await runs.get_thread("t")
    assert row is not None and row.begun and row.first_event < row.last_event
    assert thread.values == state.values
    assert thread.interrupts == {
        task.id: [{"id": one.id, "value": one.value} for one in task.interrupts]
        for task in state.tasks
        if task.interrupts
    }
    assert thread.status == ("interrupted" if state.next else "idle")
    assert stored is not None and stored.activation == "none"
    (header,) = await saver.threads()
    assert header.owner is None, "the lease is released"
    return run


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("modes", [("values",), ()], ids=["events", "no events"])
async def test_the_end_is_stored_with_the_last_superstep(watched: Watched, durability: Durability, modes: Any) -> None:
    """P16: before the transaction that stores a run's end, its last superstep is not stored; after it, both are, and
    the lease is released. So no kill leaves a run whose work is stored and whose end is not."""
    for _ in range(12 if durability == "sync" and modes else 1):  # so many that the chain of rows has snapshots
        run = await run_once(watched, steps("a", "b"), {"log": ["in"]}, durability=durability, stream_mode=modes)
        assert run.status == "success"
        assert watched.writes == (["take", "end"] if durability == "exit" else ["take", "begin", "commit", "end"])
        assert watched.head_before_end != await watched.head()


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("modes", [("values",), ()], ids=["events", "no events"])
async def test_the_end_is_stored_with_the_question(watched: Watched, durability: Durability, modes: Any) -> None:
    """P16: a run that pauses at a question ends in the transaction that stores the question; so does its answer."""
    for _ in range(2):
        given: Any = {"log": ["in"]}
        run = await run_once(watched, asking(), given, durability=durability, stream_mode=modes)
        assert (run.status, watched.writes[-1]) == ("interrupted", "end")
        assert watched.head_before_end != await watched.head()
        run = await run_once(watched, asking(), Command(resume="yes"), durability=durability, stream_mode=modes)
        assert (run.status, watched.writes[-1]) == ("success", "end")
        assert watched.head_before_end != await watched.head()


def asking_twice(*, retention: Retention | None = None) -> Any:
    """A graph of two nodes that ask at the same time, inside of a subgraph."""
    inner = StateGraph(Log)
    for name in ("x", "y"):
        inner.add_node(name, _ask(name)).add_edge(START, name)
    builder = StateGraph(Log).add_node("inner", inner.compile()).add_edge(START, "inner")
    return builder.compile(blocking=False, retention=retention)


def _ask(name: str) -> Any:
    return lambda state: {"log": [f"{name} {interrupt(name)}"]}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_an_answer_to_one_of_two_questions(watched: Watched, durability: Durability) -> None:
    """P16: the transaction that stores an answer is no end, although another question of the superstep is open."""
    run = await run_once(watched, asking_twice(), {"log": ["in"]}, durability=durability)
    assert run.status == "interrupted"
    async with RunService({"agent": asking_twice()}, watched.saver, work=False) as web:
        (questions,) = (await web.get_thread("t")).interrupts.values()
        assert len(questions) == 2
    for command in (Command(resume={questions[0]["id"]: 1}), Command(update={"log": ["also"]})):
        run = await run_once(watched, asking_twice(), command, durability=durability)
        assert run.status == "interrupted"
        assert watched.writes[:2] == ["take", "begin"] and watched.writes[-1] == "end"
    run = await run_once(watched, asking_twice(), Command(resume={questions[1]["id"]: 2}), durability=durability)
    assert run.status == "success"
    assert watched.head_before_end != await watched.head()


async def test_ends_that_are_stored_by_themselves(watched: Watched) -> None:
    """P16: a failure, a breakpoint, and a run whose thread is pruned after it, have no last superstep to be stored
    with: each has the status that it would have without a service."""
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (failing(ValueError("no")), {}, "error"),
        (steps("a", "b"), {"interrupt_before": ["b"]}, "interrupted"),
        (steps("a", "b"), {"interrupt_after": ["b"]}, "interrupted"),
    ]
    for graph, options, status in cases:
        async with RunService({"agent": graph}, watched.stopping) as service:
            run = await service.start("agent", {"log": ["in"]}, **options)
            ended = await service.join(run.run_id)
            assert (ended.status, watched.writes[-1]) == (status, "end")


async def test_a_pruned_thread(watched: Watched) -> None:
    """P16: a graph with a retention prunes its thread under the run's lease, before the end releases it."""
    graph = asking_twice(retention=Retention(keep=1))
    for given, status in (({"log": ["in"]}, "interrupted"), (None, "interrupted")):
        run = await run_once(watched, graph, given, stream_mode=())  # events would keep all since the input
        assert run.status == status
        assert len(await watched.saver.scan("t", "")) == 1


class Held:
    """Holds a worker before its last transaction, until the test opens the gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def __call__(self, name: str) -> None:
        if name == "end" and not self.gate.begun.is_set():
            with anyio.fail_after(30, shield=True):
                await self.gate.wait()


@pytest.mark.parametrize("graph", [steps("a"), asking()], ids=["superstep", "question"])
async def test_a_cancellation_before_the_last_commit(saver: BaseCheckpointSaver, graph: Any) -> None:
    """P16: a request to cancel a run that arrives before its last transaction, and is not noticed, changes nothing:
    the run has ended by itself, and the request is over."""
    held = Held()
    async with (
        RunService({"agent": graph}, saver, work=False) as web,
        RunService({"agent": graph}, stopping(saver, held)),
    ):
        run = await web.start("agent", {"log": ["in"]}, thread_id="t")
        await held.gate.begun.wait()
        assert (await web.cancel(run.run_id, action="rollback", wait=False)).status == "running"
        assert (await web.graph("agent").aget_state("t")).values != {"log": ["in", "a"]}
        held.gate.opened.set()
        ended = await web.join(run.run_id)
        assert ended.status in ("success", "interrupted")
        with pytest.raises(RunOverError):
            await web.cancel(run.run_id)
        thread = await web.get_thread("t")
        assert thread.values == (await web.graph("agent").aget_state("t")).values
        assert thread.status == ("idle" if ended.status == "success" else "interrupted")


async def test_a_start_before_the_last_commit(saver: BaseCheckpointSaver) -> None:
    """P16: the last transaction of a run queues its thread again if a run was accepted since; and only then."""
    held, runs = Held(), saver.runs
    assert runs is not None
    graphs = {"agent": steps("a")}
    async with RunService(graphs, saver, work=False) as web:
        async with RunService(graphs, stopping(saver, held)):
            first = await web.start("agent", {"log": ["1"]}, thread_id="t")
            await held.gate.begun.wait()
            second = await web.start("agent", {"log": ["2"]}, thread_id="t")
            before = await runs.get_thread("t")
            assert before is not None and (before.activation, before.pending) == ("active", 1)
            held.gate.opened.set()
            assert (await web.join(first.run_id)).status == "success"
            assert (await web.join(second.run_id)).values == {"log": ["1", "a", "2", "a"]}
        after = await runs.get_thread("t")
        assert after is not None and (after.activation, after.activation_no) == ("none", before.activation_no + 1)
        (header,) = await saver.threads()
        assert header.owner is None and header.epoch == 2


async def test_a_question_of_a_drained_superstep(watched: Watched) -> None:
    """P16: a run that is drained before all tasks of its superstep have begun is given back, although one asks: it does
    not end with that question."""
    gate, ran = Gate(), list[str]()

    async def ask(state: Log) -> dict[str, Any]:
        await gate.wait()
        return {"log": [interrupt("sure?")]}

    builder = StateGraph(Log).add_node("ask", ask).add_node("work", lambda state: ran.append("work"))
    graph = builder.add_edge(START, "ask").add_edge(START, "work").compile(blocking=False)
    async with RunService({"agent": graph}, watched.stopping) as old:
        run = await old.start("agent", {}, thread_id="t", config={"max_concurrency": 1})
        await gate.begun.wait()
        old.drain()
        gate.opened.set()
    assert ran == [] and "end" not in watched.writes
    async with RunService({"agent": graph}, watched.stopping) as new:
        result = await new.join(run.run_id)
        assert (result.status, result.run.attempt, ran) == ("interrupted", 2, ["work"])


async def test_the_start_is_stored_once(saver: BaseCheckpointSaver) -> None:
    """S5: the row that says which run begins is stored with the run's first transaction, and with no other."""
    async with RunService({"agent": steps("a", "b", "c")}, saver) as service:
        run = await service.start("agent", {}, thread_id="t", stream_mode=["updates"])
        await service.join(run.run_id)
    rows = [read_row(row, "t") for row in await saver.events("t", limit=100)]
    assert [event.mode for row in rows for event in row.events].count(RUN) == 1 and len(rows) >= 3
