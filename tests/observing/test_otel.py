"""OpenTelemetry: the spans and metrics that its SDK exports."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError, ThreadBusyError
from pregel_async import START, Command, NodeError, RetryPolicy, RunControl, StateGraph, StateUpdate, interrupt, task
from pregel_async.errors import GraphDrained
from pregel_async.otel import OpenTelemetryObserver
from tests.helpers.exported_telemetry import Exported
from tests.observing.recording import Clock, State, TimedSaver, chain, node, parallel

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
RETRY = RetryPolicy(initial_interval=1, jitter=False)


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an observer that raises causes one
        yield made
    assert made.observer.open_spans == 0
    made.tracers.shutdown()
    made.meters.shutdown()


async def test_spans_are_nested_like_the_work(exported: Exported) -> None:
    """Run, superstep, node; spans of the node's own code; tasks that it calls; the graph that it runs; worker
    threads."""

    @task
    async def called() -> None:
        with exported.tracer.start_as_current_span("in called"):
            await anyio.lowlevel.checkpoint()

    async def first(state: State) -> State:
        await called()
        with exported.tracer.start_as_current_span("in first"):
            pass
        return {}

    def second(state: State) -> State:
        with exported.tracer.start_as_current_span("in a thread"):
            return {}

    inner = chain(("x", exported.traced_node("x"))).compile(name="inner")
    graph = chain(("first", first), ("second", second), ("third", inner))
    graph = graph.compile(InMemorySaver(), name="outer", observer=exported.observer)
    with exported.tracer.start_as_current_span("a request"):
        await graph.ainvoke({"log": []}, "t")
    assert exported.tree == [
        "a request",
        "  run outer",
        "    superstep",
        "      node first",
        "        node called",
        "          in called",
        "        in first",
        "    superstep",
        "      node second",
        "        in a thread",
        "    superstep",
        "      node third",
        "        run inner",
        "          superstep",
        "            node x",
        "              in x",
    ]
    assert not trace.get_current_span().get_span_context().is_valid


async def test_the_attributes_of_spans(exported: Exported) -> None:
    """Spans have ids, names, positions and the outcome."""
    graph = chain(("a", node("a"))).compile(InMemorySaver(), name="mine", observer=exported.observer)
    await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}, "run_id": "r"})
    run, step, attempt = exported.one("run mine"), exported.one("superstep"), exported.one("node a")
    assert run.attributes == {
        "pregel.run.id": "r",
        "pregel.thread.id": "t",
        "pregel.graph.name": "mine",
        "pregel.namespace": "",
        "pregel.status": "done",
        "pregel.supersteps": 1,
    }
    assert step.attributes == {"pregel.superstep": 1, "pregel.superstep.nodes": ("a",), "pregel.status": "done"}
    assert {**attempt.attributes, "pregel.task.id": ""} == {
        "pregel.run.id": "r",
        "pregel.graph.name": "mine",
        "pregel.node.name": "a",
        "pregel.task.id": "",
        "pregel.superstep": 1,
        "pregel.attempt": 1,
        "pregel.error_handler": False,
        "pregel.status": "finished",
    }
    assert len(attempt.attributes["pregel.task.id"]) == 32
    for span in (run, step, attempt):
        assert (span.kind, span.status.status_code, span.events) == (SpanKind.INTERNAL, StatusCode.UNSET, ())
        assert span.instrumentation_scope.name == "pregel_async"


async def test_a_run_without_a_thread_has_none(exported: Exported) -> None:
    await chain(("a", node("a"))).compile(name="mine", observer=exported.observer).ainvoke({"log": []})
    assert "pregel.thread.id" not in exported.one("run mine").attributes


async def test_each_attempt_is_a_span_and_a_failed_one_an_error(exported: Exported) -> None:
    """A failed attempt's span has the exception; the run, which continues, is no error."""
    graph = chain(("a", node("a", fails=1)), retry_policy=RETRY)
    await graph.compile(environment=Clock(), name="g", observer=exported.observer).ainvoke({"log": []})
    assert exported.tree == ["run g", "  superstep", "    node a ERROR", "    node a"]
    failed, finished = exported.named("node a")
    assert [span.attributes["pregel.attempt"] for span in (failed, finished)] == [1, 2]
    assert failed.attributes["error.type"] == "ConnectionError"
    assert failed.status.description == "ConnectionError: a failed"
    (event,) = failed.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "ConnectionError"
    assert event.attributes["exception.message"] == "a failed"
    assert "error.type" not in finished.attributes


async def test_a_failure_is_an_error_of_all_enclosing_spans(exported: Exported) -> None:
    """Of the node, the superstep, the subgraph, and the call."""
    inner = chain(("x", node("x", fails=1))).compile(name="inner")
    graph = chain(("a", inner)).compile(InMemorySaver(), name="outer", observer=exported.observer)
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"log": []}, "t")
    assert exported.tree == [
        "run outer ERROR",
        "  superstep ERROR",
        "    node a ERROR",
        "      run inner ERROR",
        "        superstep ERROR",
        "          node x ERROR",
    ]
    assert [len(exported.one(name).events) for name in ("run outer", "node a", "run inner", "node x")] == [1, 1, 0, 1]


async def test_a_handled_failure_fails_the_node_alone(exported: Exported) -> None:
    async def handler(state: State, error: NodeError) -> State:
        return {"log": ["handled"]}

    graph = StateGraph(State).add_node("a", node("a", fails=1), error_handler=handler).add_edge(START, "a")
    await graph.compile(name="g", observer=exported.observer).ainvoke({"log": []})
    run, superstep, failed, handles = exported.tree
    assert (run, superstep, failed) == ("run g", "  superstep", "    node a ERROR")
    assert "ERROR" not in handles
    assert [span.attributes["pregel.error_handler"] for span in exported.spans[:2]] == [False, True]


async def test_a_question_is_not_an_error(exported: Exported) -> None:
    """Nor are the spans that it stops, nor those of the answer."""

    async def asks(state: State) -> State:
        return {"log": [interrupt("who?")]}

    inner = chain(("asks", asks)).compile(name="inner")
    graph = chain(("a", inner)).compile(InMemorySaver(), name="outer", observer=exported.observer)
    await graph.ainvoke({"log": []}, "t")
    statuses = {span.name: span.attributes["pregel.status"] for span in exported.spans}
    assert statuses == {
        "run outer": "interrupted",
        "run inner": "interrupted",
        "superstep": "interrupted",
        "node a": "paused",
        "node asks": "paused",
    }
    await graph.ainvoke(Command(resume="me"), "t")
    assert not any("ERROR" in line for line in exported.tree)
    assert not any(span.events for span in exported.spans)


async def test_a_drain_a_breakpoint_and_a_cancellation_are_not_errors(exported: Exported) -> None:
    control = RunControl()

    async def drains(state: State) -> State:
        control.request_drain()
        return {"log": ["a"]}

    graph = chain(("a", drains), ("b", node("b"))).compile(name="g", observer=exported.observer)
    with pytest.raises(GraphDrained):
        await graph.ainvoke({"log": []}, control=control)
    await graph.ainvoke({"log": []}, interrupt_before=["b"])
    with anyio.CancelScope() as scope:

        async def waits(state: State) -> State:
            scope.cancel()
            await anyio.sleep_forever()
            return {}

        await parallel(waits=waits, b=node("b")).compile(name="g", observer=exported.observer).ainvoke({"log": []})
    assert [span.attributes["pregel.status"] for span in exported.named("run g")] == ["drained", "stopped", "cancelled"]
    assert exported.one("node waits").attributes["pregel.status"] == "cancelled"
    assert not any("ERROR" in line for line in exported.tree)


async def test_an_exception_that_ends_the_process_leaves_no_span_open(exported: Exported) -> None:
    async def ends(state: State) -> State:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await parallel(ends=ends, b=node("b")).compile(name="g", observer=exported.observer).ainvoke({"log": []})
    assert exported.observer.open_spans == 0
    assert exported.one("run g").attributes["error.type"] == "SystemExit"


async def test_failing_storage_leaves_no_span_open(exported: Exported) -> None:
    saver = TimedSaver(Clock())
    saver.fails["commit"] = StorageError("gone")
    with pytest.raises(StorageError):
        graph = chain(("a", node("a"))).compile(saver, name="g", observer=exported.observer)
        await graph.ainvoke({"log": []}, "t")
    (event,) = exported.one("run g").events
    assert event.attributes["exception.message"] == "gone"


async def test_an_exception_that_cannot_be_printed_leaves_no_span_open(exported: Exported) -> None:
    """Whatever the SDK does with the exception."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    async def fails(state: State) -> State:
        raise Unprintable

    with pytest.raises(Unprintable):
        await chain(("a", fails)).compile(name="g", observer=exported.observer).ainvoke({"log": []})
    assert exported.tree == ["run g ERROR", "  superstep ERROR", "    node a ERROR"]


async def test_concurrent_runs_have_separate_traces(exported: Exported) -> None:
    """If runs of one graph with one run id are in step, each node is in its own run's trace."""
    met: list[int] = []
    all_here = anyio.Event()

    async def meets(state: State) -> State:
        met.append(1)
        if len(met) == 5:
            all_here.set()
        await all_here.wait()
        with exported.tracer.start_as_current_span("inside"):
            await anyio.lowlevel.checkpoint()
        return {"log": []}

    inner = chain(("meets", meets)).compile(name="inner")
    graph = chain(("a", inner), ("b", exported.traced_node("b"))).compile(name="g", observer=exported.observer)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(graph.ainvoke, {"log": []}, {"run_id": "same"})
    traces = {span.context.trace_id for span in exported.spans}
    assert len(traces) == 5
    for one in traces:
        names = sorted(span.name for span in exported.spans if span.context.trace_id == one)
        assert names == sorted(
            ["run g", "superstep", "node a", "run inner", "superstep", "node meets", "inside"]
            + ["superstep", "node b", "in b"]
        )


def test_runs_of_several_threads_share_an_observer(exported: Exported) -> None:
    """The sync methods run in another thread; their caller's span is the parent of the run all the same."""
    graph = chain(("a", exported.traced_node("a"))).compile(name="g", observer=exported.observer)
    with exported.tracer.start_as_current_span("a request"):
        graph.invoke({"log": []})
    assert exported.tree == ["a request", "  run g", "    superstep", "      node a", "        in a"]


async def test_a_stream_is_in_the_trace_where_it_began(exported: Exported) -> None:
    """Wherever it is read."""
    graph = chain(("a", node("a"))).compile(name="g", observer=exported.observer)
    with exported.tracer.start_as_current_span("a request"):
        async with graph.astream({"log": []}) as chunks:
            async for _ in chunks:
                pass
    assert exported.tree[:2] == ["a request", "  run g"]


async def test_the_metrics_of_a_run(exported: Exported) -> None:
    """The metrics have the graph and the node as attributes, and never an id."""
    clock = Clock()
    saver = TimedSaver(clock, 0.04, 0.02)
    graph = chain(("a", node("a", clock=clock, takes=2, fails=1)), retry_policy=RETRY)
    graph = graph.compile(saver, environment=clock, name="g", observer=exported.observer)
    async with graph.astream({"log": []}, "t", capacity=5) as chunks:
        async for _ in chunks:
            pass
    metrics = exported.metrics()
    of_g, of_a, done = {"pregel.graph.name": "g"}, {"pregel.graph.name": "g", "pregel.node.name": "a"}, {}
    done = {**of_g, "pregel.status": "done"}
    writes = {**of_g, "pregel.write.kind": "commit"}
    assert metrics["pregel_steps_per_run"] == [(done, (1, 1))]
    assert metrics["pregel_runs"] == [(done, 1)]
    ((attributes, (count, total)),) = metrics["pregel_run_duration_ms"]
    assert (attributes, count, round(total, 6)) == (done, 1, 5060.0)
    ((attributes, (count, total)),) = metrics["checkpoint_write_latency_ms"]
    assert (attributes, count, round(total, 6)) == (writes, 2, 60.0)
    assert metrics["pregel_bytes_written"][0][0] == writes
    assert metrics["pregel_bytes_written"][0][1] > 50
    assert metrics["stream_queue_depth"] == [({**of_g, "pregel.stream.mode": "updates"}, (1, 1))]
    assert metrics["pregel_tasks"] == [(of_a, 1)]
    assert metrics["pregel_retries"] == [(of_a, 1)]
    assert metrics["pregel_failures"] == [({**of_a, "error.type": "ConnectionError"}, 1)]
    assert not {"pregel_conflicts", "pregel_writes_refused", "pregel_failures_handled"} & metrics.keys()


async def test_a_subgraph_does_not_count_as_a_call(exported: Exported) -> None:
    """Its tasks count under its name; its supersteps and its time belong to its node."""
    inner = chain(("x", node("x")), ("y", node("y"))).compile(name="inner")
    await chain(("a", inner)).compile(name="outer", observer=exported.observer).ainvoke({"log": []})
    metrics = exported.metrics()
    for name in ("pregel_steps_per_run", "pregel_runs", "pregel_run_duration_ms"):
        assert [attributes["pregel.graph.name"] for attributes, _ in metrics[name]] == ["outer"]
    assert [attributes["pregel.graph.name"] for attributes, _ in metrics["pregel_tasks"]] == ["outer", "inner", "inner"]


async def test_the_metrics_of_failures(exported: Exported) -> None:
    """Conflicts, refused writes and handled failures."""
    clock = Clock()
    saver = TimedSaver(clock)
    graph = chain(("a", node("a"))).compile(saver, environment=clock, name="g", observer=exported.observer)

    async def calls(state: State) -> State:
        with pytest.raises(ThreadBusyError):
            await graph.ainvoke({"log": []}, "t")
        saver.fails["commit"] = StorageError("gone")
        return {"log": ["a"]}

    with pytest.raises(StorageError):
        h = chain(("calls", calls)).compile(saver, environment=clock, name="h", observer=exported.observer)
        await h.ainvoke({"log": []}, "t")

    async def handler(state: State, error: NodeError) -> State:
        return {"log": ["handled"]}

    graph = StateGraph(State).add_node("a", node("a", fails=1), error_handler=handler).add_edge(START, "a")
    await graph.compile(name="g", observer=exported.observer).ainvoke({"log": []})
    metrics = exported.metrics()
    assert metrics["pregel_conflicts"] == [({"pregel.graph.name": "g", "pregel.conflict.kind": "rejected"}, 1)]
    (refused, *_) = metrics["pregel_writes_refused"]
    assert refused[0]["pregel.graph.name"] == "h"
    assert refused[0]["error.type"].endswith("StorageError")
    assert metrics["pregel_failures_handled"] == [({"pregel.graph.name": "g", "pregel.node.name": "a"}, 1)]


async def test_the_metrics_of_an_edit(exported: Exported) -> None:
    """They are per superstep; an edit that fails has a span, and no duration."""
    clock = Clock()
    saver = TimedSaver(clock)
    graph = chain(("a", node("a"))).compile(saver, environment=clock, name="g", observer=exported.observer)
    await graph.ainvoke({"log": []}, "t")
    saver.times = [0.3]
    one = [StateUpdate({"log": [1]}, "a")]
    await graph.abulk_update_state("t", [one, one, one])
    saver.fails["commit"] = StorageError("gone")
    with pytest.raises(StorageError):
        await graph.aupdate_state("t", {"log": [1]}, "a")
    ((attributes, (count, total)),) = exported.metrics()["bulk_update_superstep_duration_ms"]
    assert (attributes, count, round(total, 6)) == ({"pregel.graph.name": "g"}, 1, 100.0)
    good, bad = exported.named("update_state g")
    assert (good.status.status_code, good.attributes["pregel.supersteps"]) == (StatusCode.UNSET, 3)
    assert (bad.status.status_code, bad.attributes["error.type"].endswith("StorageError")) == (StatusCode.ERROR, True)


def test_the_global_providers_are_used_when_none_are_given() -> None:
    """Without an SDK no data are kept, and no call fails."""
    observer = OpenTelemetryObserver()
    assert chain(("a", node("a"))).compile(observer=observer).invoke({"log": []}) == {"log": ["a"]}
    assert observer.open_spans == 0


def test_without_opentelemetry_it_says_what_to_install() -> None:
    """In a process that cannot import it."""
    code = """
        import sys
        sys.modules["opentelemetry"] = None
        try:
            import pregel_async.otel
        except ImportError as error:
            print(error)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ran.stdout.startswith("pregel_async.otel needs opentelemetry")
    assert "pip install 'pregel-async[otel]'" in ran.stdout
