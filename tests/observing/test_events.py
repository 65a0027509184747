"""What an observer is told: each measure against a run whose figures are known."""

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
from tests.observing.watched import Clock, EventLog, Slow, State, beside, chain, node

pytestmark = pytest.mark.anyio

RETRY = RetryPolicy(initial_interval=2, backoff_factor=1, jitter=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# ---- the order, and who belongs to whom ------------------------------------------------------------------------------


async def test_a_run_is_told_from_its_beginning_to_its_end(clock: Clock) -> None:
    """Run, superstep, attempt, attempt, what was stored, superstep, run; the hidden start is no superstep."""
    told = EventLog()
    graph = chain(("a", node("a", clock=clock, takes=3)), ("b", node("b", clock=clock, takes=5)))
    graph = graph.compile(Slow(clock, 0.25, 0.5), environment=clock, name="two", observer=told)
    await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}, "run_id": "mine"})
    step = ["SuperstepStarted", "AttemptStarted", "AttemptEnded", "CheckpointWritten", "SuperstepEnded"]
    assert told.names == ["RunStarted", "CheckpointWritten", *step, *step, "RunEnded"]
    started, ended = told.one(RunStarted), told.one(RunEnded)
    assert (started.run_id, started.thread_id, started.namespace, started.graph) == ("mine", "t", "", "two")
    assert (started.within, started.around) == (None, None)
    assert ended.run is started
    assert (ended.run_id, ended.thread_id, ended.namespace, ended.graph) == ("mine", "t", "", "two")
    assert (ended.status, ended.supersteps, ended.error, ended.spent) == ("done", 2, None, {})
    assert ended.seconds == 8.75
    first, second = told.of(SuperstepStarted)
    assert [(each.step, each.nodes, each.run) for each in (first, second)] == [
        (1, ("a",), started),
        (2, ("b",), started),
    ]
    closed = told.of(SuperstepEnded)
    assert [each.started for each in closed] == [first, second]
    assert [(each.step, each.status, each.seconds) for each in closed] == [(1, "done", 3.5), (2, "done", 5.0)]
    assert [
        (each.finished, each.replayed, each.cached, each.failed, each.paused, each.cancelled) for each in closed
    ] == [(1, 0, 0, 0, 0, 0)] * 2
    begun, over = told.of(AttemptStarted), told.of(AttemptEnded)
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


async def test_a_graph_inside_is_told_with_the_node_that_runs_it(clock: Clock) -> None:
    """It shares the call's id, has its own namespace, and refers to the node's attempt and to the run around it."""
    told = EventLog()
    inner = chain(("x", node("x"))).compile(name="inner")
    graph = chain(("a", inner)).compile(InMemorySaver(), name="outer", observer=told)
    await graph.ainvoke({"log": []}, "t")
    outer, inside = told.of(RunStarted)
    at, within = told.of(AttemptStarted)
    assert (inside.run_id, inside.thread_id, inside.graph) == (outer.run_id, "t", "inner")
    assert inside.namespace == f"a:{at.task_id}"
    assert (inside.within, inside.around) == (at, outer)
    assert (at.node, at.run, within.node, within.run) == ("a", outer, "x", inside)
    assert [(each.graph, each.status, each.supersteps) for each in told.of(RunEnded)] == [
        ("inner", "done", 1),
        ("outer", "done", 1),
    ]
    assert {each.run for each in told.of(CheckpointWritten)} == {outer}
    assert {each.namespace for each in told.of(CheckpointWritten)} == {"", inside.namespace}


async def test_a_called_task_is_told_with_its_caller() -> None:
    told = EventLog()

    @task
    async def inner(number: int) -> int:
        return number

    @task
    async def outer(number: int) -> int:
        return await inner(number) + 1

    async def calls(state: State) -> State:
        return {"log": [await outer(1)]}

    await chain(("calls", calls)).compile(observer=told).ainvoke({"log": []})
    first, second, third = told.of(AttemptStarted)
    assert [each.node for each in (first, second, third)] == ["calls", "outer", "inner"]
    assert (first.caller, second.caller, third.caller) == (None, first, second)
    assert {each.superstep for each in (first, second, third)} == {told.one(SuperstepStarted)}
    assert [each.node for each in told.of(AttemptEnded)] == ["inner", "outer", "calls"]


async def test_what_a_router_at_the_start_does_is_no_superstep() -> None:
    """A task that it calls and a graph that it runs are told, with no superstep and no node."""
    told = EventLog()
    inner = chain(("x", node("x"))).compile(name="inner")

    @task
    async def where() -> str:
        return "a"

    async def router(state: State) -> str:
        await inner.ainvoke({"log": []})
        return await where()

    graph = StateGraph(State).add_node("a", node("a")).add_conditional_edges(START, router, ["a"])
    await graph.compile(observer=told).ainvoke({"log": []})
    called = next(each for each in told.of(AttemptStarted) if each.node == "where")
    assert (called.superstep, called.caller, called.step) == (None, None, 0)
    outer, inside = told.of(RunStarted)
    assert (inside.within, inside.around) == (None, outer)
    assert [each.supersteps for each in told.of(RunEnded)] == [1, 1]


# ---- tasks, retries, failures ----------------------------------------------------------------------------------------


async def test_each_attempt_is_told_and_why_it_is_tried_again(clock: Clock) -> None:
    told, figures = EventLog(), Figures()
    graph = chain(("a", node("a", clock=clock, takes=1, fails=2)), retry_policy=RETRY)
    await graph.compile(environment=clock, observer=told).ainvoke({"log": []}, observer=figures)
    assert [each.number for each in told.of(AttemptStarted)] == [1, 2, 3]
    assert [(each.outcome, each.seconds) for each in told.of(AttemptEnded)] == [
        ("failed", 1.0),
        ("failed", 1.0),
        ("finished", 1.0),
    ]
    retried = told.of(AttemptRetried)
    assert [(each.node, each.step, each.number, str(each.error)) for each in retried] == [
        ("a", 1, 1, "a failed"),
        ("a", 1, 2, "a failed"),
    ]
    assert {each.task_id for each in retried} == {told.of(AttemptStarted)[0].task_id}
    assert [each.error for each in told.of(AttemptEnded)][:2] == [each.error for each in retried]
    assert (figures.tasks, figures.attempts, figures.retries, figures.failures, figures.handled) == (1, 3, 2, 2, 0)
    assert figures.seconds == 7.0


async def test_a_failure_that_is_handled_fails_no_superstep() -> None:
    """The error handler is a task of its own."""
    told, figures = EventLog(), Figures()

    async def handler(state: State, error: NodeError) -> State:
        return {"log": ["handled"]}

    graph = StateGraph(State).add_node("a", node("a", fails=1), error_handler=handler).add_edge(START, "a")
    await graph.compile(InMemorySaver(), observer=told).ainvoke({"log": []}, "t", observer=figures)
    handled = told.one(FailureHandled)
    first, second = told.of(AttemptStarted)
    assert (handled.node, handled.step, str(handled.error)) == ("a", 1, "a failed")
    assert (first.handles, second.handles, second.node) == (False, True, handled.handler)
    assert handled.task_id == first.task_id != second.task_id
    assert (told.one(SuperstepEnded).status, told.one(SuperstepEnded).finished) == ("done", 1)
    assert (figures.tasks, figures.failures, figures.handled) == (2, 1, 1)


async def test_a_failure_that_is_collected_is_told_once() -> None:
    """It is no second run of the task."""

    class Collects(TypedDict, total=False):
        failed: Annotated[list[Any], operator.add]

    told, figures = EventLog(), Figures()

    async def fails(state: Any) -> Any:
        raise ConnectionError("no")

    graph = StateGraph(Collects).add_node("a", fails).add_edge(START, "a")
    compiled = graph.compile(on_failure=Collect("failed"), observer=told)
    await compiled.ainvoke({"failed": []}, observer=figures)
    assert (told.one(FailureHandled).handler, told.one(FailureHandled).node) == (None, "a")
    assert len(told.of(AttemptStarted)) == 1
    assert (figures.tasks, figures.attempts, figures.failures, figures.handled) == (1, 1, 1, 1)


async def test_a_node_whose_router_alone_runs_again() -> None:
    """P3: the node has run before, and is no task of this call; the attempt says that only routers run."""
    told, figures, left = EventLog(), Figures(), [1]

    async def router(state: State) -> str:
        if left:
            left.pop()
            raise ConnectionError("no way")
        return "b"

    graph = StateGraph(State).add_node("a", node("a")).add_node("b", node("b")).add_edge(START, "a")
    compiled = graph.add_conditional_edges("a", router, ["b"]).compile(InMemorySaver())
    with pytest.raises(ConnectionError):
        await compiled.ainvoke({"log": []}, "t")
    assert await compiled.ainvoke(None, "t", observer=Both(told, figures)) == {"log": ["a", "b"]}
    assert [(each.node, each.routes) for each in told.of(AttemptStarted)] == [("a", True), ("b", False)]
    assert (figures.tasks, figures.attempts) == (1, 2)


async def test_how_tasks_of_a_failed_superstep_have_ended() -> None:
    """One fails, one had finished, one is cancelled; and none is left open."""
    told, gate = EventLog(), anyio.Event()

    async def done(state: State) -> State:
        gate.set()
        return {"log": ["done"]}

    async def fails(state: State) -> State:
        await gate.wait()
        raise ConnectionError("no")

    async def waits(state: State) -> State:
        await anyio.sleep_forever()
        return {}

    graph = beside(done=done, fails=fails, waits=waits).compile(InMemorySaver(), observer=told)
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"log": []}, "t")
    assert {each.node: each.outcome for each in told.of(AttemptEnded)} == {
        "done": "finished",
        "fails": "failed",
        "waits": "cancelled",
    }
    closed = told.one(SuperstepEnded)
    assert (closed.status, closed.finished, closed.failed, closed.cancelled) == ("failed", 1, 1, 1)
    ended = told.one(RunEnded)
    assert (ended.status, ended.supersteps, type(ended.error)) == ("failed", 1, ConnectionError)

    told.events.clear()
    figures = Figures()
    with pytest.raises(ConnectionError):
        await graph.ainvoke(None, "t", observer=figures)
    closed = told.one(SuperstepEnded)
    assert (closed.replayed, closed.finished, figures.replayed, figures.tasks) == (1, 0, 1, 2)


async def test_a_failed_fold_ends_the_superstep_as_failed() -> None:
    """The node has finished; its update is refused."""
    told = EventLog()

    async def bad(state: State) -> Any:
        return {"log": 5}

    with pytest.raises(TypeError):
        await chain(("bad", bad)).compile(observer=told).ainvoke({"log": []})
    assert told.one(AttemptEnded).outcome == "finished"
    assert (told.one(SuperstepEnded).status, told.one(RunEnded).status) == ("failed", "failed")


# ---- how runs end ----------------------------------------------------------------------------------------------------


async def test_a_question_is_no_failure() -> None:
    told, figures = EventLog(), Figures()

    async def asks(state: State) -> State:
        return {"log": [interrupt("who?")]}

    inner = chain(("asks", asks)).compile(name="inner")
    graph = chain(("a", inner)).compile(InMemorySaver(), observer=told)
    await graph.ainvoke({"log": []}, "t", observer=figures)
    assert [(each.outcome, each.error) for each in told.of(AttemptEnded)] == [("paused", None)] * 2
    assert [(each.status, each.paused) for each in told.of(SuperstepEnded)] == [("interrupted", 1)] * 2
    assert [(each.status, each.error) for each in told.of(RunEnded)] == [("interrupted", None)] * 2
    assert (figures.failures, dict(figures.runs)) == (0, {"interrupted": 1})
    await graph.ainvoke(Command(resume="me"), "t", observer=figures)
    assert dict(figures.runs) == {"interrupted": 1, "done": 1}


async def test_how_runs_stop() -> None:
    """At a breakpoint, drained, over budget, cancelled; with a bad input before they begin."""
    told = EventLog()

    async def drains(state: State) -> State:
        control.request_drain("enough")
        return {"log": ["a"]}

    async def spends(state: State) -> State:
        spend("tokens", 7)
        spend("euros", Decimal("0.10"))
        spend("tokens", 5)
        return {"log": ["a"]}

    control = RunControl()
    graph = chain(("a", drains), ("b", node("b"))).compile(observer=told)
    with pytest.raises(GraphDrained):
        await graph.ainvoke({"log": []}, control=control)
    assert (told.one(RunEnded).status, type(told.one(RunEnded).error)) == ("drained", GraphDrained)

    told.events.clear()
    await graph.ainvoke({"log": []}, interrupt_before=["b"])
    assert (told.one(RunEnded).status, told.one(RunEnded).supersteps) == ("stopped", 1)

    told.events.clear()
    budgets = {"tokens": Budget(run=11), "euros": Budget()}
    graph = chain(("a", spends), ("b", node("b"))).compile(budgets=budgets, observer=told)
    figures = Figures()
    with pytest.raises(BudgetExceededError):
        await graph.ainvoke({"log": []}, observer=figures)
    assert told.one(RunEnded).status == "failed"
    assert told.one(RunEnded).spent == figures.spent == {"tokens": 12, "euros": Decimal("0.10")}

    told.events.clear()
    with pytest.raises(InvalidInputError):
        await graph.ainvoke({"nothing": 1})
    assert (told.names, told.one(RunEnded).status) == (["RunStarted", "RunEnded"], "failed")


@pytest.mark.parametrize("stored", [False, True])
async def test_what_was_spent_is_told_with_the_call(stored: bool) -> None:
    """All of it, by nodes of graphs inside too, and of a failed attempt; once, and not again with the graph inside."""
    told, figures = EventLog(), Figures()
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
    graph = graph.compile(InMemorySaver() if stored else None, budgets={"tokens": Budget()}, observer=told)
    await graph.ainvoke({"log": []}, "t" if stored else None, observer=figures)
    inside, call = told.of(RunEnded)
    assert (inside.spent, call.spent, figures.spent) == ({}, {"tokens": 15}, {"tokens": 15})


@pytest.mark.parametrize("stored", [False, True])
async def test_a_cancelled_run_leaves_nothing_open(stored: bool) -> None:
    """Everything that was told to have begun is told to have ended, inside first."""
    told = EventLog()

    async def waits(state: State) -> State:
        scope.cancel()
        await anyio.sleep_forever()
        return {}

    inner = chain(("waits", waits)).compile()
    graph = beside(a=inner, b=node("b")).compile(InMemorySaver() if stored else None, observer=told)
    with anyio.CancelScope() as scope:
        await graph.ainvoke({"log": []}, "t" if stored else None)
    assert scope.cancelled_caught
    assert [each.outcome for each in told.of(AttemptEnded) if each.node != "b"] == ["cancelled", "cancelled"]
    assert [each.status for each in told.of(SuperstepEnded)] == ["cancelled", "cancelled"]
    assert [(each.status, each.error) for each in told.of(RunEnded)] == [("cancelled", None)] * 2
    for begun, ended in ((RunStarted, RunEnded), (SuperstepStarted, SuperstepEnded), (AttemptStarted, AttemptEnded)):
        assert len(told.of(begun)) == len(told.of(ended))


async def test_a_closed_stream_is_a_cancelled_run() -> None:
    told = EventLog()
    graph = chain(("a", node("a")), ("b", node("b"))).compile(observer=told)
    async with graph.astream({"log": []}, capacity=1) as chunks:
        async for _ in chunks:
            break
    assert told.one(RunEnded).status == "cancelled"


async def test_what_an_outer_failure_hides_does_not_count(clock: Clock) -> None:
    """A graph that is called while an exception is being handled has not raised it."""
    told = EventLog()
    graph = chain(("a", node("a"))).compile(observer=told)
    try:
        raise ConnectionError("earlier")
    except ConnectionError:
        await graph.ainvoke({"log": []})
    assert (told.one(RunEnded).status, told.one(RunEnded).error, told.one(AttemptEnded).error) == ("done", None, None)


# ---- storage ---------------------------------------------------------------------------------------------------------


async def test_what_is_stored_is_told_with_its_size_and_how_long_it_took(clock: Clock) -> None:
    """By the saver's own counts: rows, records and bytes."""
    told, figures = EventLog(), Figures()
    saver = Slow(clock, 0.04, 0.02, 0.01)
    sizes: list[tuple[int, int]] = []

    class Weighing(Slow):
        async def commit(self, lease: Any, commit: Any) -> None:
            rows = [*commit.rows, *commit.records, *commit.events]
            sizes.append((len(commit.rows), sum(len(row.frame) for row in rows)))
            await super().commit(lease, commit)

        async def record(self, lease: Any, records: Any, *, expires_at: float) -> None:
            sizes.append((0, sum(len(row.frame) for row in records)))
            await super().record(lease, records, expires_at=expires_at)

    saver = Weighing(clock, 0.04, 0.02, 0.01)
    graph = beside(a=node("a"), b=node("b")).compile(saver, environment=clock, observer=told)
    await graph.ainvoke({"log": []}, "t", observer=figures)
    written = told.of(CheckpointWritten)
    assert [(each.kind, each.checkpoints, each.records, each.step) for each in written] == [
        ("commit", 2, 0, 0),
        ("record", 0, 1, None),
        ("commit", 1, 0, 1),
    ]
    assert [(each.checkpoints, each.size) for each in written] == sizes
    assert [round(each.seconds, 9) for each in written] == [0.04, 0.02, 0.01]
    assert (figures.writes, figures.checkpoints, figures.records, figures.bytes) == (3, 3, 1, sum(s for _, s in sizes))
    assert [round(figures.latency(share), 9) for share in (0.3, 0.5, 0.95, 1)] == [0.01, 0.02, 0.04, 0.04]


async def test_events_that_are_kept_are_stored_too(clock: Clock) -> None:
    told = EventLog()
    graph = chain(("a", node("a"))).compile(InMemorySaver(), observer=told)
    async with graph.astream({"log": []}, "t", keep_events=True, version="v2") as chunks:
        async for _ in chunks:
            pass
    assert sum(each.events for each in told.of(CheckpointWritten)) > 0


async def test_a_write_that_fails_is_told_and_stored_by_nobody(clock: Clock) -> None:
    told, figures = EventLog(), Figures()
    saver = Slow(clock, 0.5)
    saver.fails["commit"] = StorageError("the disk is full")
    graph = chain(("a", node("a"))).compile(saver, environment=clock, observer=told)
    with pytest.raises(StorageError):
        await graph.ainvoke({"log": []}, "t", observer=figures)
    refused = told.of(CheckpointRefused)[0]
    assert (refused.kind, str(refused.error), refused.seconds) == ("commit", "the disk is full", 0.5)
    assert told.of(CheckpointWritten) == []
    assert (figures.writes, figures.refused, dict(figures.runs)) == (0, len(told.of(CheckpointRefused)), {"failed": 1})


# ---- conflicts -------------------------------------------------------------------------------------------------------


async def test_runs_that_meet_on_a_thread(clock: Clock) -> None:
    """One that does not run, and one that waits, which is told once however often it looks."""
    told, looked = EventLog(), anyio.Event()
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
            await graph.ainvoke({"log": []}, "t", observer=told)
        met = told.one(ConflictMet)
        assert (met.kind, met.thread_id, met.run) == ("rejected", "t", told.one(RunStarted))
        assert met.holder is not None
        assert told.names == ["RunStarted", "ConflictMet", "RunEnded"]

        told.events.clear()

        async def second() -> None:
            await graph.with_config({"tags": ["second"]}).ainvoke(
                {"log": []}, "t", on_conflict="wait", observer=Both(told, Looks())
            )

        group.start_soon(second)
        with anyio.fail_after(30):
            await looked.wait()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        go.set()
    assert told.one(ConflictMet).kind == "waiting"
    assert told.one(RunEnded).status == "done"


class Both(Observer):
    def __init__(self, *each: Observer) -> None:
        self.each = each

    def observe(self, event: Any, /) -> None:
        for observer in self.each:
            observer.observe(event)


async def test_a_thread_that_is_taken_over(clock: Clock) -> None:
    """The run that lost it is told of, and its write."""
    told, figures = EventLog(), Figures()
    saver = InMemorySaver()

    async def slow(state: State) -> State:
        later = clock.now() + 1000  # its lease has lapsed by then
        await saver.acquire("t", this_process("another"), now=later, expires_at=later + 30)
        return {"log": ["a"]}

    graph = chain(("a", slow), ("c", node("c"))).compile(saver, environment=clock, observer=told)
    with pytest.raises(ThreadBusyError) as raised:
        await graph.ainvoke({"log": []}, "t", observer=figures)
    assert raised.value.lost
    assert told.one(ConflictMet).kind == "lost"
    assert dict(figures.conflicts) == {"lost": 1}
    assert figures.refused == 1


# ---- streams ---------------------------------------------------------------------------------------------------------


async def test_how_many_parts_wait_for_the_reader() -> None:
    """EventLog as each is put into the queue: one more, until it is full, and never beyond."""
    told, figures = EventLog(), Figures()
    graph = chain(*((name, node(name)) for name in "abcde")).compile(observer=told)
    async with graph.astream({"log": []}, stream_mode="updates", capacity=3, observer=figures) as chunks:
        with anyio.fail_after(30):
            while len(told.of(StreamFilled)) < 3:
                await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert [(each.mode, each.depth) for each in told.of(StreamFilled)] == [
            ("updates", 1),
            ("updates", 2),
            ("updates", 3),
        ]
        read = [chunk async for chunk in chunks]
    assert len(read) == len(told.of(StreamFilled)) == 5
    assert figures.depth == 3
    assert {each.run for each in told.of(StreamFilled)} == {told.one(RunStarted)}


async def test_chunks_that_nobody_waits_for_are_no_queue() -> None:
    """`ainvoke` that returns chunks keeps them all."""
    told = EventLog()
    await chain(("a", node("a"))).compile(observer=told).ainvoke({"log": []}, stream_mode="updates")
    assert told.of(StreamFilled) == []


# ---- edits -----------------------------------------------------------------------------------------------------------


async def test_an_edit_of_a_thread_is_told(clock: Clock) -> None:
    """How many supersteps it makes, and how long it took; it is no run."""
    told, figures = EventLog(), Figures()
    saver = Slow(clock)
    graph = chain(("a", node("a"))).compile(saver, environment=clock, name="edited")
    await graph.ainvoke({"log": []}, "t")
    watched = chain(("a", node("a"))).compile(saver, environment=clock, name="edited", observer=Both(told, figures))
    saver.times = [0.6]
    one = StateUpdate({"log": [1]}, "a")
    await watched.abulk_update_state("t", [[one], [one, one], [one]])
    assert told.names == ["UpdateStarted", "CheckpointWritten", "UpdateEnded"]
    started, ended = told.one(UpdateStarted), told.one(UpdateEnded)
    assert (started.thread_id, started.namespace, started.graph) == ("t", "", "edited")
    assert (started.supersteps, started.updates) == (3, 4)
    assert (ended.run, ended.error, round(ended.seconds, 9)) == (started, None, 0.6)
    assert (told.one(CheckpointWritten).run, told.one(CheckpointWritten).checkpoints) == (started, 3)
    assert (figures.updates, round(figures.update_seconds, 9), figures.bytes > 0) == (1, 0.2, True)

    told.events.clear()
    saver.fails["commit"] = StorageError("gone")
    with pytest.raises(StorageError):
        await watched.aupdate_state("t", {"log": [2]}, "a")
    assert (str(told.one(UpdateEnded).error), figures.updates) == ("gone", 1)


# ---- who is told -----------------------------------------------------------------------------------------------------


async def test_the_calls_observer_is_told_besides_the_graphs() -> None:
    """Whoever asked to watch watches; one that is given twice is told once."""
    first, second = EventLog(), EventLog()
    graph = chain(("a", node("a"))).compile(observer=first)
    await graph.ainvoke({"log": []}, observer=second)
    assert first.events == second.events
    assert len(first.events) == 6
    await graph.ainvoke({"log": []}, observer=first)
    assert len(first.events) == 12
    await graph.ainvoke({"log": []})
    assert (len(first.events), len(second.events)) == (18, 6)


async def test_a_graph_inside_has_its_own_observer_too() -> None:
    """It is told of that graph alone; the one around is told of both."""
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


def test_every_way_to_make_a_graph_takes_an_observer() -> None:
    """Channels and workflows; and the verbs without async."""
    told = EventLog()
    low = Pregel(
        nodes={"a": NodeBuilder().subscribe_only("in").do(lambda x: x + 1).write_to("out")},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        observer=told,
    )
    assert low.invoke(1) == 2

    @entrypoint(observer=told)
    async def flow(number: int) -> int:
        return number

    assert flow.invoke(3) == 3
    assert [each.graph for each in told.of(RunEnded)] == ["Pregel", "flow"]
    for_call = EventLog()
    assert chain(("a", node("a"))).compile().invoke({"log": []}, observer=for_call) == {"log": ["a"]}
    assert list(chain(("a", node("a"))).compile().stream({"log": []}, observer=for_call))
    assert [each.status for each in for_call.of(RunEnded)] == ["done", "done"]


@pytest.mark.parametrize("wrong", [EventLog, print, "told"])
async def test_what_is_no_observer_is_refused(wrong: Any) -> None:
    """Where it is declared, and before anything runs; a class is told that it is one."""
    graph = chain(("a", node("a")))
    with pytest.raises(GraphValidationError, match="observer"):
        graph.compile(observer=wrong)
    with pytest.raises(ConfigError, match="the class EventLog: make one" if wrong is EventLog else "not a "):
        await graph.compile().ainvoke({"log": []}, observer=wrong)


async def test_runs_with_one_id_do_not_mix() -> None:
    """Two calls that were given the same id, at the same time: each attempt belongs to its own run."""
    told, started = EventLog(), []
    both = anyio.Event()

    async def meets(state: State) -> State:
        started.append(1)
        if len(started) == 2:
            both.set()
        await both.wait()
        return {"log": []}

    graph = chain(("meets", meets)).compile(observer=told)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(graph.ainvoke, {"log": []}, {"run_id": "same"})
    runs = told.of(RunStarted)
    assert len({id(run) for run in runs}) == 2 and runs[0] != runs[1]
    assert {each.run for each in told.of(AttemptStarted)} == set(runs)
    for ended in told.of(AttemptEnded):
        assert ended.started.run is ended.run
    assert {each.run for each in told.of(RunEnded)} == set(runs)
