"""The events that an observer gets, with each measure compared to a run whose figures are known."""

from __future__ import annotations

import operator
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError, ThreadBusyError
from checkpoint_savers.owner import this_process
from pregel_async import (
    START,
    Budget,
    Collect,
    Command,
    GraphDrained,
    NodeBuilder,
    NodeError,
    Pregel,
    RetryPolicy,
    RunControl,
    StateGraph,
    StateUpdate,
    entrypoint,
    interrupt,
    spend,
    task,
)
from pregel_async.channels import LastValue
from pregel_async.errors import BudgetExceededError, ConfigError, GraphValidationError, InvalidInputError
from pregel_async.observing import (
    AttemptEnded,
    AttemptRetried,
    AttemptStarted,
    CheckpointRefused,
    CheckpointWritten,
    ConflictMet,
    FailureHandled,
    Figures,
    Observer,
    RunEnded,
    RunStarted,
    StreamFilled,
    SuperstepEnded,
    SuperstepStarted,
    UpdateEnded,
    UpdateStarted,
)
from tests.observing.recording import Clock, EventLog, State, TimedSaver, chain, node, parallel

pytestmark = pytest.mark.anyio

RETRY = RetryPolicy(initial_interval=2, backoff_factor=1, jitter=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_the_events_of_a_run(clock: Clock) -> None:
    """Run, superstep, attempt, commit, superstep, run start and end in that order; the hidden start is no superstep."""
    log = EventLog()
    graph = chain(("a", node("a", clock=clock, takes=3)), ("b", node("b", clock=clock, takes=5)))
    graph = graph.compile(TimedSaver(clock, 0.25, 0.5), environment=clock, name="two", observer=log)
    await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}, "run_id": "mine"})
    step = ["SuperstepStarted", "AttemptStarted", "AttemptEnded", "CheckpointWritten", "SuperstepEnded"]
    assert log.names == ["RunStarted", "CheckpointWritten", *step, *step, "RunEnded"]
    started, ended = log.one(RunStarted), log.one(RunEnded)
    assert (started.run_id, started.thread_id, started.namespace, started.graph) == ("mine", "t", "", "two")
    assert (started.within, started.around) == (None, None)
    assert ended.run is started
    assert (ended.run_id, ended.thread_id, ended.namespace, ended.graph) == ("mine", "t", "", "two")
    assert (ended.status, ended.supersteps, ended.error, ended.spent) == ("done", 2, None, {})
    assert ended.seconds == 8.75
    first, second = log.of(SuperstepStarted)
    assert [(each.step, each.nodes, each.run) for each in (first, second)] == [
        (1, ("a",), started),
        (2, ("b",), started),
    ]
    closed = log.of(SuperstepEnded)
    assert [each.started for each in closed] == [first, second]
    assert [(each.step, each.status, each.seconds) for each in closed] == [(1, "done", 3.5), (2, "done", 5.0)]
    assert [
        (each.finished, each.replayed, each.cached, each.failed, each.paused, each.cancelled) for each in closed
    ] == [(1, 0, 0, 0, 0, 0)] * 2
    begun, over = log.of(AttemptStarted), log.of(AttemptEnded)
    assert [each.started for each in over] == begun
    assert [(each.node, each.step, each.number, each.superstep) for each in begun] == [
        ("a", 1, 1, first),
        ("b", 2, 1, second),
    ]
    assert [(each.node, each.step, each.outcome, each.seconds) for each in over] == [
        ("a", 1, "finished", 3.0),
        ("b", 2, "finished", 5.0),
    ]
    assert all(each.task_id == of.task_id for each, of in zip(over, begun, strict=True))
    assert not any(each.handles or each.routes or each.caller for each in begun)


async def test_the_events_of_a_subgraph(clock: Clock) -> None:
    """A subgraph's events have the call's run id and a namespace of their own, and refer to the node's attempt and
    to the outer run."""
    log = EventLog()
    inner = chain(("x", node("x"))).compile(name="inner")
    graph = chain(("a", inner)).compile(InMemorySaver(), name="outer", observer=log)
    await graph.ainvoke({"log": []}, "t")
    outer, inside = log.of(RunStarted)
    at, within = log.of(AttemptStarted)
    assert (inside.run_id, inside.thread_id, inside.graph) == (outer.run_id, "t", "inner")
    assert inside.namespace == f"a:{at.task_id}"
    assert (inside.within, inside.around) == (at, outer)
    assert (at.node, at.run, within.node, within.run) == ("a", outer, "x", inside)
    assert [(each.graph, each.status, each.supersteps) for each in log.of(RunEnded)] == [
        ("inner", "done", 1),
        ("outer", "done", 1),
    ]
    assert {each.run for each in log.of(CheckpointWritten)} == {outer}
    assert {each.namespace for each in log.of(CheckpointWritten)} == {"", inside.namespace}


async def test_the_events_of_a_called_task() -> None:
    log = EventLog()

    @task
    async def inner(number: int) -> int:
        return number

    @task
    async def outer(number: int) -> int:
        return await inner(number) + 1

    async def calls(state: State) -> State:
        return {"log": [await outer(1)]}

    await chain(("calls", calls)).compile(observer=log).ainvoke({"log": []})
    first, second, third = log.of(AttemptStarted)
    assert [each.node for each in (first, second, third)] == ["calls", "outer", "inner"]
    assert (first.caller, second.caller, third.caller) == (None, first, second)
    assert {each.superstep for each in (first, second, third)} == {log.one(SuperstepStarted)}
    assert [each.node for each in log.of(AttemptEnded)] == ["inner", "outer", "calls"]


async def test_a_router_at_the_start_is_no_superstep() -> None:
    """The events of a task that it calls and of a graph that it runs have no superstep and no node."""
    log = EventLog()
    inner = chain(("x", node("x"))).compile(name="inner")

    @task
    async def where() -> str:
        return "a"

    async def router(state: State) -> str:
        await inner.ainvoke({"log": []})
        return await where()

    graph = StateGraph(State).add_node("a", node("a")).add_conditional_edges(START, router, ["a"])
    await graph.compile(observer=log).ainvoke({"log": []})
    called = next(each for each in log.of(AttemptStarted) if each.node == "where")
    assert (called.superstep, called.caller, called.step) == (None, None, 0)
    outer, inside = log.of(RunStarted)
    assert (inside.within, inside.around) == (None, outer)
    assert [each.supersteps for each in log.of(RunEnded)] == [1, 1]


async def test_each_attempt_has_events_with_the_reason_for_a_retry(clock: Clock) -> None:
    log, figures = EventLog(), Figures()
    graph = chain(("a", node("a", clock=clock, takes=1, fails=2)), retry_policy=RETRY)
    await graph.compile(environment=clock, observer=log).ainvoke({"log": []}, observer=figures)
    assert [each.number for each in log.of(AttemptStarted)] == [1, 2, 3]
    assert [(each.outcome, each.seconds) for each in log.of(AttemptEnded)] == [
        ("failed", 1.0),
        ("failed", 1.0),
        ("finished", 1.0),
    ]
    retried = log.of(AttemptRetried)
    assert [(each.node, each.step, each.number, str(each.error)) for each in retried] == [
        ("a", 1, 1, "a failed"),
        ("a", 1, 2, "a failed"),
    ]
    assert {each.task_id for each in retried} == {log.of(AttemptStarted)[0].task_id}
    assert [each.error for each in log.of(AttemptEnded)][:2] == [each.error for each in retried]
    assert (figures.tasks, figures.attempts, figures.retries, figures.failures, figures.handled) == (1, 3, 2, 2, 0)
    assert figures.seconds == 7.0


async def test_a_handled_failure_fails_no_superstep() -> None:
    """The error handler runs as a task of its own."""
    log, figures = EventLog(), Figures()

    async def handler(state: State, error: NodeError) -> State:
        return {"log": ["handled"]}

    graph = StateGraph(State).add_node("a", node("a", fails=1), error_handler=handler).add_edge(START, "a")
    await graph.compile(InMemorySaver(), observer=log).ainvoke({"log": []}, "t", observer=figures)
    handled = log.one(FailureHandled)
    first, second = log.of(AttemptStarted)
    assert (handled.node, handled.step, str(handled.error)) == ("a", 1, "a failed")
    assert (first.handles, second.handles, second.node) == (False, True, handled.handler)
    assert handled.task_id == first.task_id != second.task_id
    assert (log.one(SuperstepEnded).status, log.one(SuperstepEnded).finished) == ("done", 1)
    assert (figures.tasks, figures.failures, figures.handled) == (2, 1, 1)


async def test_a_collected_failure_has_one_event() -> None:
    """The task counts as run once."""

    class Collects(TypedDict, total=False):
        failed: Annotated[list[Any], operator.add]

    log, figures = EventLog(), Figures()

    async def fails(state: Any) -> Any:
        raise ConnectionError("no")

    graph = StateGraph(Collects).add_node("a", fails).add_edge(START, "a")
    compiled = graph.compile(on_failure=Collect("failed"), observer=log)
    await compiled.ainvoke({"failed": []}, observer=figures)
    assert (log.one(FailureHandled).handler, log.one(FailureHandled).node) == (None, "a")
    assert len(log.of(AttemptStarted)) == 1
    assert (figures.tasks, figures.attempts, figures.failures, figures.handled) == (1, 1, 1, 1)


async def test_a_node_whose_router_alone_runs_again() -> None:
    """P3: the node has run before, and does not count as a task of this call; the attempt says that only routers
    run."""
    log, figures, left = EventLog(), Figures(), [1]

    async def router(state: State) -> str:
        if left:
            left.pop()
            raise ConnectionError("no way")
        return "b"

    graph = StateGraph(State).add_node("a", node("a")).add_node("b", node("b")).add_edge(START, "a")
    compiled = graph.add_conditional_edges("a", router, ["b"]).compile(InMemorySaver())
    with pytest.raises(ConnectionError):
        await compiled.ainvoke({"log": []}, "t")
    assert await compiled.ainvoke(None, "t", observer=Both(log, figures)) == {"log": ["a", "b"]}
    assert [(each.node, each.routes) for each in log.of(AttemptStarted)] == [("a", True), ("b", False)]
    assert (figures.tasks, figures.attempts) == (1, 2)


async def test_the_outcomes_of_a_failed_superstep() -> None:
    """One task fails, one has finished, one is cancelled; and each attempt has an end."""
    log, gate = EventLog(), anyio.Event()

    async def done(state: State) -> State:
        gate.set()
        return {"log": ["done"]}

    async def fails(state: State) -> State:
        await gate.wait()
        raise ConnectionError("no")

    async def waits(state: State) -> State:
        await anyio.sleep_forever()
        return {}

    graph = parallel(done=done, fails=fails, waits=waits).compile(InMemorySaver(), observer=log)
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"log": []}, "t")
    assert {each.node: each.outcome for each in log.of(AttemptEnded)} == {
        "done": "finished",
        "fails": "failed",
        "waits": "cancelled",
    }
    closed = log.one(SuperstepEnded)
    assert (closed.status, closed.finished, closed.failed, closed.cancelled) == ("failed", 1, 1, 1)
    ended = log.one(RunEnded)
    assert (ended.status, ended.supersteps, type(ended.error)) == ("failed", 1, ConnectionError)

    log.events.clear()
    figures = Figures()
    with pytest.raises(ConnectionError):
        await graph.ainvoke(None, "t", observer=figures)
    closed = log.one(SuperstepEnded)
    assert (closed.replayed, closed.finished, figures.replayed, figures.tasks) == (1, 0, 1, 2)


async def test_a_failed_fold_ends_the_superstep_as_failed() -> None:
    """The node has finished; its update is refused."""
    log = EventLog()

    async def bad(state: State) -> Any:
        return {"log": 5}

    with pytest.raises(TypeError):
        await chain(("bad", bad)).compile(observer=log).ainvoke({"log": []})
    assert log.one(AttemptEnded).outcome == "finished"
    assert (log.one(SuperstepEnded).status, log.one(RunEnded).status) == ("failed", "failed")


async def test_a_question_is_not_a_failure() -> None:
    log, figures = EventLog(), Figures()

    async def asks(state: State) -> State:
        return {"log": [interrupt("who?")]}

    inner = chain(("asks", asks)).compile(name="inner")
    graph = chain(("a", inner)).compile(InMemorySaver(), observer=log)
    await graph.ainvoke({"log": []}, "t", observer=figures)
    assert [(each.outcome, each.error) for each in log.of(AttemptEnded)] == [("paused", None)] * 2
    assert [(each.status, each.paused) for each in log.of(SuperstepEnded)] == [("interrupted", 1)] * 2
    assert [(each.status, each.error) for each in log.of(RunEnded)] == [("interrupted", None)] * 2
    assert (figures.failures, dict(figures.runs)) == (0, {"interrupted": 1})
    await graph.ainvoke(Command(resume="me"), "t", observer=figures)
    assert dict(figures.runs) == {"interrupted": 1, "done": 1}


async def test_the_statuses_of_runs() -> None:
    """A run ends at a breakpoint, drained, over budget, cancelled; with an invalid input it ends before it begins."""
    log = EventLog()

    async def drains(state: State) -> State:
        control.request_drain("enough")
        return {"log": ["a"]}

    async def spends(state: State) -> State:
        spend("tokens", 7)
        spend("euros", Decimal("0.10"))
        spend("tokens", 5)
        return {"log": ["a"]}

    control = RunControl()
    graph = chain(("a", drains), ("b", node("b"))).compile(observer=log)
    with pytest.raises(GraphDrained):
        await graph.ainvoke({"log": []}, control=control)
    assert (log.one(RunEnded).status, type(log.one(RunEnded).error)) == ("drained", GraphDrained)

    log.events.clear()
    await graph.ainvoke({"log": []}, interrupt_before=["b"])
    assert (log.one(RunEnded).status, log.one(RunEnded).supersteps) == ("stopped", 1)

    log.events.clear()
    budgets = {"tokens": Budget(run=11), "euros": Budget()}
    graph = chain(("a", spends), ("b", node("b"))).compile(budgets=budgets, observer=log)
    figures = Figures()
    with pytest.raises(BudgetExceededError):
        await graph.ainvoke({"log": []}, observer=figures)
    assert log.one(RunEnded).status == "failed"
    assert log.one(RunEnded).spent == figures.spent == {"tokens": 12, "euros": Decimal("0.10")}

    log.events.clear()
    with pytest.raises(InvalidInputError):
        await graph.ainvoke({"nothing": 1})
    assert (log.names, log.one(RunEnded).status) == (["RunStarted", "RunEnded"], "failed")


@pytest.mark.parametrize("stored", [False, True])
async def test_spending_is_reported_with_the_call(stored: bool) -> None:
    """All amounts are reported, those of subgraphs and of failed attempts, too; once, and not again with the
    subgraph."""
    log, figures = EventLog(), Figures()
    left = [1]

    async def spends(state: State) -> State:
        spend("tokens", 5)
        if left:
            left.pop()
            raise ConnectionError
        return {"log": ["x"]}

    retry = RetryPolicy(initial_interval=0, jitter=False)
    inner = chain(("x", spends), retry_policy=retry).compile()
    graph = chain(("a", inner), ("b", spends))
    graph = graph.compile(InMemorySaver() if stored else None, budgets={"tokens": Budget()}, observer=log)
    await graph.ainvoke({"log": []}, "t" if stored else None, observer=figures)
    inside, call = log.of(RunEnded)
    assert (inside.spent, call.spent, figures.spent) == ({}, {"tokens": 15}, {"tokens": 15})


@pytest.mark.parametrize("stored", [False, True])
async def test_a_cancelled_run_ends_all_that_began(stored: bool) -> None:
    """Each start event is followed by an end event, innermost first."""
    log = EventLog()

    async def waits(state: State) -> State:
        scope.cancel()
        await anyio.sleep_forever()
        return {}

    inner = chain(("waits", waits)).compile()
    graph = parallel(a=inner, b=node("b")).compile(InMemorySaver() if stored else None, observer=log)
    with anyio.CancelScope() as scope:
        await graph.ainvoke({"log": []}, "t" if stored else None)
    assert scope.cancelled_caught
    assert [each.outcome for each in log.of(AttemptEnded) if each.node != "b"] == ["cancelled", "cancelled"]
    assert [each.status for each in log.of(SuperstepEnded)] == ["cancelled", "cancelled"]
    assert [(each.status, each.error) for each in log.of(RunEnded)] == [("cancelled", None)] * 2
    for begun, ended in ((RunStarted, RunEnded), (SuperstepStarted, SuperstepEnded), (AttemptStarted, AttemptEnded)):
        assert len(log.of(begun)) == len(log.of(ended))


async def test_a_closed_stream_is_a_cancelled_run() -> None:
    log = EventLog()
    graph = chain(("a", node("a")), ("b", node("b"))).compile(observer=log)
    async with graph.astream({"log": []}, capacity=1) as chunks:
        async for _ in chunks:
            break
    assert log.one(RunEnded).status == "cancelled"


async def test_an_exception_being_handled_by_the_caller_does_not_count(clock: Clock) -> None:
    """A graph that is called while an exception is being handled has not raised that exception."""
    log = EventLog()
    graph = chain(("a", node("a"))).compile(observer=log)
    try:
        raise ConnectionError("earlier")
    except ConnectionError:
        await graph.ainvoke({"log": []})
    assert (log.one(RunEnded).status, log.one(RunEnded).error, log.one(AttemptEnded).error) == ("done", None, None)


async def test_each_write_is_reported_with_its_size_and_duration(clock: Clock) -> None:
    """The counts are the saver's own: rows, records and bytes."""
    log, figures = EventLog(), Figures()
    saver = TimedSaver(clock, 0.04, 0.02, 0.01)
    sizes: list[tuple[int, int]] = []

    class Weighing(TimedSaver):
        async def commit(self, lease: Any, commit: Any) -> None:
            rows = [*commit.rows, *commit.records, *commit.events]
            sizes.append((len(commit.rows), sum(len(row.frame) for row in rows)))
            await super().commit(lease, commit)

        async def record(self, lease: Any, records: Any, *, expires_at: float) -> None:
            sizes.append((0, sum(len(row.frame) for row in records)))
            await super().record(lease, records, expires_at=expires_at)

    saver = Weighing(clock, 0.04, 0.02, 0.01)
    graph = parallel(a=node("a"), b=node("b")).compile(saver, environment=clock, observer=log)
    await graph.ainvoke({"log": []}, "t", observer=figures)
    written = log.of(CheckpointWritten)
    assert [(each.kind, each.checkpoints, each.records, each.step) for each in written] == [
        ("commit", 2, 0, 0),
        ("record", 0, 1, None),
        ("commit", 1, 0, 1),
    ]
    assert [(each.checkpoints, each.size) for each in written] == sizes
    assert [round(each.seconds, 9) for each in written] == [0.04, 0.02, 0.01]
    assert (figures.writes, figures.checkpoints, figures.records, figures.bytes) == (3, 3, 1, sum(s for _, s in sizes))
    assert [round(figures.latency(share), 9) for share in (0.3, 0.5, 0.95, 1)] == [0.01, 0.02, 0.04, 0.04]


async def test_stored_events_are_counted(clock: Clock) -> None:
    log = EventLog()
    graph = chain(("a", node("a"))).compile(InMemorySaver(), observer=log)
    async with graph.astream({"log": []}, "t", keep_events=True, version="v2") as chunks:
        async for _ in chunks:
            pass
    assert sum(each.events for each in log.of(CheckpointWritten)) > 0


async def test_a_failed_write_is_reported_and_not_counted_as_stored(clock: Clock) -> None:
    log, figures = EventLog(), Figures()
    saver = TimedSaver(clock, 0.5)
    saver.fails["commit"] = StorageError("the disk is full")
    graph = chain(("a", node("a"))).compile(saver, environment=clock, observer=log)
    with pytest.raises(StorageError):
        await graph.ainvoke({"log": []}, "t", observer=figures)
    refused = log.of(CheckpointRefused)[0]
    assert (refused.kind, str(refused.error), refused.seconds) == ("commit", "the disk is full", 0.5)
    assert log.of(CheckpointWritten) == []
    assert (figures.writes, figures.refused, dict(figures.runs)) == (0, len(log.of(CheckpointRefused)), {"failed": 1})


async def test_runs_that_conflict_on_a_thread(clock: Clock) -> None:
    """A refused run has one event, and so has a waiting run, however often it polls."""
    log, looked = EventLog(), anyio.Event()
    go = anyio.Event()

    class Looks(Observer):
        def observe(self, event: Any, /) -> None:
            if isinstance(event, ConflictMet) and event.kind == "waiting":
                looked.set()

    async def waits(state: State) -> State:
        await go.wait()
        return {"log": ["a"]}

    graph = chain(("a", waits)).compile(InMemorySaver(), environment=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {"log": []}, "t")
        with anyio.fail_after(30):
            while await graph.checkpointer.read("t") is None:
                await anyio.lowlevel.checkpoint()
        with pytest.raises(ThreadBusyError):
            await graph.ainvoke({"log": []}, "t", observer=log)
        met = log.one(ConflictMet)
        assert (met.kind, met.thread_id, met.run) == ("rejected", "t", log.one(RunStarted))
        assert met.holder is not None
        assert log.names == ["RunStarted", "ConflictMet", "RunEnded"]

        log.events.clear()

        async def second() -> None:
            await graph.with_config({"tags": ["second"]}).ainvoke(
                {"log": []}, "t", on_conflict="wait", observer=Both(log, Looks())
            )

        group.start_soon(second)
        with anyio.fail_after(30):
            await looked.wait()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        go.set()
    assert log.one(ConflictMet).kind == "waiting"
    assert log.one(RunEnded).status == "done"


class Both(Observer):
    def __init__(self, *each: Observer) -> None:
        self.each = each

    def observe(self, event: Any, /) -> None:
        for observer in self.each:
            observer.observe(event)


async def test_a_thread_that_is_taken_over(clock: Clock) -> None:
    """The run that lost its lease has an event, and so has its refused write."""
    log, figures = EventLog(), Figures()
    saver = InMemorySaver()

    async def slow(state: State) -> State:
        later = clock.now() + 1000  # its lease has expired by then
        await saver.acquire("t", this_process("another"), now=later, expires_at=later + 30)
        return {"log": ["a"]}

    graph = chain(("a", slow), ("c", node("c"))).compile(saver, environment=clock, observer=log)
    with pytest.raises(ThreadBusyError) as raised:
        await graph.ainvoke({"log": []}, "t", observer=figures)
    assert raised.value.lost
    assert log.one(ConflictMet).kind == "lost"
    assert dict(figures.conflicts) == {"lost": 1}
    assert figures.refused == 1


async def test_the_number_of_parts_that_wait_for_the_reader() -> None:
    """The depth is reported as each part enters the buffer: one more each time, until it is full, and never beyond."""
    log, figures = EventLog(), Figures()
    graph = chain(*((name, node(name)) for name in "abcde")).compile(observer=log)
    async with graph.astream({"log": []}, stream_mode="updates", capacity=3, observer=figures) as chunks:
        with anyio.fail_after(30):
            while len(log.of(StreamFilled)) < 3:
                await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert [(each.mode, each.depth) for each in log.of(StreamFilled)] == [
            ("updates", 1),
            ("updates", 2),
            ("updates", 3),
        ]
        read = [chunk async for chunk in chunks]
    assert len(read) == len(log.of(StreamFilled)) == 5
    assert figures.depth == 3
    assert {each.run for each in log.of(StreamFilled)} == {log.one(RunStarted)}


async def test_chunks_without_a_reader_do_not_queue() -> None:
    """`ainvoke` that returns chunks keeps them all."""
    log = EventLog()
    await chain(("a", node("a"))).compile(observer=log).ainvoke({"log": []}, stream_mode="updates")
    assert log.of(StreamFilled) == []


async def test_the_event_of_an_edit(clock: Clock) -> None:
    """It has the number of supersteps and the duration of the edit; an edit is no run."""
    log, figures = EventLog(), Figures()
    saver = TimedSaver(clock)
    graph = chain(("a", node("a"))).compile(saver, environment=clock, name="edited")
    await graph.ainvoke({"log": []}, "t")
    watched = chain(("a", node("a"))).compile(saver, environment=clock, name="edited", observer=Both(log, figures))
    saver.times = [0.6]
    one = StateUpdate({"log": [1]}, "a")
    await watched.abulk_update_state("t", [[one], [one, one], [one]])
    assert log.names == ["UpdateStarted", "CheckpointWritten", "UpdateEnded"]
    started, ended = log.one(UpdateStarted), log.one(UpdateEnded)
    assert (started.thread_id, started.namespace, started.graph) == ("t", "", "edited")
    assert (started.supersteps, started.updates) == (3, 4)
    assert (ended.run, ended.error, round(ended.seconds, 9)) == (started, None, 0.6)
    assert (log.one(CheckpointWritten).run, log.one(CheckpointWritten).checkpoints) == (started, 3)
    assert (figures.updates, round(figures.update_seconds, 9), figures.bytes > 0) == (1, 0.2, True)

    log.events.clear()
    saver.fails["commit"] = StorageError("gone")
    with pytest.raises(StorageError):
        await watched.aupdate_state("t", {"log": [2]}, "a")
    assert (str(log.one(UpdateEnded).error), figures.updates) == ("gone", 1)


async def test_the_observers_of_the_call_and_the_graph() -> None:
    """Both get all events; an observer that is passed twice gets them once."""
    first, second = EventLog(), EventLog()
    graph = chain(("a", node("a"))).compile(observer=first)
    await graph.ainvoke({"log": []}, observer=second)
    assert first.events == second.events
    assert len(first.events) == 6
    await graph.ainvoke({"log": []}, observer=first)
    assert len(first.events) == 12
    await graph.ainvoke({"log": []})
    assert (len(first.events), len(second.events)) == (18, 6)


async def test_a_subgraph_with_an_observer_of_its_own() -> None:
    """It gets the events of that graph alone; the outer graph's observer gets those of both."""
    outer, inner, own_saver = EventLog(), EventLog(), EventLog()
    inside = chain(("x", node("x"))).compile(name="inside", observer=inner)
    apart = chain(("y", node("y"))).compile(InMemorySaver(), name="apart", observer=own_saver)

    async def calls(state: State) -> State:
        await apart.ainvoke({"log": []}, "another")
        return {"log": []}

    graph = chain(("a", inside), ("b", calls)).compile(name="around", observer=outer)
    await graph.ainvoke({"log": []})
    assert {each.graph for each in outer.of(RunStarted)} == {"around", "inside", "apart"}
    assert {each.graph for each in inner.of(RunStarted)} == {"inside"}
    assert {each.graph for each in own_saver.of(RunStarted)} == {"apart"}
    assert inner.one(RunStarted).within is not None
    alone = own_saver.one(RunStarted)
    assert (alone.namespace, alone.around, alone.thread_id) == ("", None, "another")
    assert alone.within is not None and alone.within.node == "b"


def test_all_kinds_of_graphs_take_an_observer() -> None:
    """Graphs of channels and workflows, and sync calls, too."""
    log = EventLog()
    low = Pregel(
        nodes={"a": NodeBuilder().subscribe_only("in").do(lambda x: x + 1).write_to("out")},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        observer=log,
    )
    assert low.invoke(1) == 2

    @entrypoint(observer=log)
    async def flow(number: int) -> int:
        return number

    assert flow.invoke(3) == 3
    assert [each.graph for each in log.of(RunEnded)] == ["Pregel", "flow"]
    for_call = EventLog()
    assert chain(("a", node("a"))).compile().invoke({"log": []}, observer=for_call) == {"log": ["a"]}
    assert list(chain(("a", node("a"))).compile().stream({"log": []}, observer=for_call))
    assert [each.status for each in for_call.of(RunEnded)] == ["done", "done"]


@pytest.mark.parametrize("wrong", [EventLog, print, "log"])
async def test_an_invalid_observer_is_refused(wrong: Any) -> None:
    """It is refused where it is passed, before anything runs; for a class the error says that it is a class."""
    graph = chain(("a", node("a")))
    with pytest.raises(GraphValidationError, match="observer"):
        graph.compile(observer=wrong)
    with pytest.raises(ConfigError, match="the class EventLog: make one" if wrong is EventLog else "not a "):
        await graph.compile().ainvoke({"log": []}, observer=wrong)


async def test_concurrent_runs_with_one_run_id() -> None:
    """If two concurrent calls have the same run id, each attempt belongs to its own run."""
    log, started = EventLog(), []
    both = anyio.Event()

    async def meets(state: State) -> State:
        started.append(1)
        if len(started) == 2:
            both.set()
        await both.wait()
        return {"log": []}

    graph = chain(("meets", meets)).compile(observer=log)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(graph.ainvoke, {"log": []}, {"run_id": "same"})
    runs = log.of(RunStarted)
    assert len({id(run) for run in runs}) == 2 and runs[0] != runs[1]
    assert {each.run for each in log.of(AttemptStarted)} == set(runs)
    for ended in log.of(AttemptEnded):
        assert ended.started.run is ended.run
    assert {each.run for each in log.of(RunEnded)} == set(runs)
