"""Send runs to OpenTelemetry: runs, supersteps and nodes as spans, and counts as metrics. It needs the extra `otel`.

    from pregel_async.otel import OpenTelemetryObserver

    graph = builder.compile(saver, observer=OpenTelemetryObserver())

Spans
    run GRAPH           one for each run of a graph; for a nested graph, inside the span of the node that runs it
      superstep
        node NODE       one for each attempt; the current span in the node's code, its tasks and its worker threads
          node TASK     one for each attempt at a task that the node calls
          chat MODEL    one for each call of a model of `pregel_async.prebuilt`
    update_state GRAPH  one for each edit of a thread

A question, a breakpoint, a drain and a cancellation are not errors: `pregel.status` distinguishes them. Failures have
the status ERROR and `error.type`. The exception is recorded in the span of the node that raised it, and in the span of
the call.

Attributes and metrics of calls of models (`gen_ai`) follow OpenTelemetry's semantic conventions for generative AI.

The names of attributes and metrics are constants of this module. Metrics have no attributes with ids of runs, threads
or tasks, because each distinct id would become a time series.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

try:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, get_meter_provider
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer_provider, use_span
    from opentelemetry.trace import set_span_in_context as in_context
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise ImportError(
        f"pregel_async.otel needs {error.name}, which is not installed: pip install 'pregel-async[otel]'",
        name=error.name,
    ) from error

from ._runtime.observing.error_text import described
from .observing import (
    AttemptEnded,
    AttemptRetried,
    AttemptStarted,
    CheckpointRefused,
    CheckpointWritten,
    ConflictMet,
    Event,
    FailureHandled,
    ModelCalled,
    Observer,
    RunEnded,
    RunStarted,
    StreamFilled,
    SuperstepEnded,
    SuperstepStarted,
    UpdateEnded,
    UpdateStarted,
)

__all__ = ["OpenTelemetryObserver"]

SCOPE: Final = "pregel_async"
"""The name of the tracer and of the meter."""

# Attributes. `error.type` and the exception's event follow OpenTelemetry's semantic conventions. There are none for
# graphs.
RUN_ID: Final = "pregel.run.id"
THREAD_ID: Final = "pregel.thread.id"
GRAPH: Final = "pregel.graph.name"
NAMESPACE: Final = "pregel.namespace"
STEP: Final = "pregel.superstep"
NODES: Final = "pregel.superstep.nodes"
NODE: Final = "pregel.node.name"
TASK_ID: Final = "pregel.task.id"
ATTEMPT: Final = "pregel.attempt"
HANDLER: Final = "pregel.error_handler"
STATUS: Final = "pregel.status"
SUPERSTEPS: Final = "pregel.supersteps"
ERROR_TYPE: Final = "error.type"
WRITE_KIND: Final = "pregel.write.kind"
CONFLICT_KIND: Final = "pregel.conflict.kind"
STREAM_MODE: Final = "pregel.stream.mode"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
COST: Final = "pregel_async.cost_usd"  # also a metric: the conventions have no cost

# Metrics.
STEPS_PER_RUN: Final = "pregel_steps_per_run"
WRITE_LATENCY: Final = "checkpoint_write_latency_ms"
QUEUE_DEPTH: Final = "stream_queue_depth"
UPDATE_DURATION: Final = "bulk_update_superstep_duration_ms"
RUN_DURATION: Final = "pregel_run_duration_ms"
RUNS: Final = "pregel_runs"
TASKS: Final = "pregel_tasks"
RETRIES: Final = "pregel_retries"
FAILURES: Final = "pregel_failures"
HANDLED: Final = "pregel_failures_handled"
CONFLICTS: Final = "pregel_conflicts"
BYTES_WRITTEN: Final = "pregel_bytes_written"
WRITES_REFUSED: Final = "pregel_writes_refused"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"
MODEL_DURATION: Final = "gen_ai.client.operation.duration"

_Started = RunStarted | SuperstepStarted | AttemptStarted | UpdateStarted


class OpenTelemetryObserver(Observer):
    """Send events of runs to OpenTelemetry. One observer can serve any number of graphs, calls and threads.

    Args:
        tracer_provider: makes the tracer; None for the provider that is global when the observer is made.
        meter_provider: makes the meter; None for the provider that is global when the observer is made.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        tracers = get_tracer_provider() if tracer_provider is None else tracer_provider
        meter = (get_meter_provider() if meter_provider is None else meter_provider).get_meter(SCOPE)
        self._tracer = tracers.get_tracer(SCOPE)
        # Keyed by the event object, which is equal to itself only: two runs with the same id stay apart.
        self._spans: dict[_Started, Span] = {}
        self._lock = threading.Lock()  # runs of several event loops may share the observer
        self._steps = meter.create_histogram(STEPS_PER_RUN, "{superstep}", "Supersteps that a call took.")
        self._latency = meter.create_histogram(WRITE_LATENCY, "ms", "How long a transaction of storage took.")
        self._depth = meter.create_histogram(QUEUE_DEPTH, "{part}", "Parts of a stream that waited for its reader.")
        self._update = meter.create_histogram(
            UPDATE_DURATION, "ms", "How long a superstep of an edit took, averaged over its call."
        )
        self._duration = meter.create_histogram(RUN_DURATION, "ms", "How long a call took.")
        self._runs = meter.create_counter(RUNS, "{run}", "Calls that have ended, by status.")
        self._tasks = meter.create_counter(TASKS, "{task}", "Tasks whose code has run.")
        self._retries = meter.create_counter(RETRIES, "{attempt}", "Failed attempts that were followed by another.")
        self._failures = meter.create_counter(FAILURES, "{attempt}", "Attempts that failed.")
        self._handled = meter.create_counter(HANDLED, "{task}", "Failures that were handled, or collected.")
        self._conflicts = meter.create_counter(CONFLICTS, "{conflict}", "Runs that met another on their thread.")
        self._bytes = meter.create_counter(BYTES_WRITTEN, "By", "Bytes that were given to storage, and stored.")
        self._tokens = meter.create_histogram(TOKEN_USAGE, "{token}", "Tokens of a call of a model.")
        self._model_duration = meter.create_histogram(MODEL_DURATION, "s", "How long a call of a model took.")
        self._cost = meter.create_counter(COST, "{USD}", "Cost of calls of models that have prices.")
        self._refused = meter.create_counter(WRITES_REFUSED, "{write}", "Transactions that storage failed to store.")

    @property
    def open_spans(self) -> int:
        """The number of spans that have started and not ended, which belong to running work."""
        return len(self._spans)

    def around(self, started: AttemptStarted, /) -> AbstractContextManager[object]:
        span = self._spans.get(started)
        if span is None:  # starting it failed, which was reported as an `ObserverWarning`
            return nullcontext()
        # `AttemptEnded` ends the span: only then is it known whether an exception is a failure, a question or a
        # cancellation.
        return use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def observe(self, event: Event, /) -> None:
        match event:
            case RunStarted():
                self._begin_run(event)
            case RunEnded():
                self._end_run(event)
            case SuperstepStarted():
                self._start_span(event, "superstep", (event.run,), {STEP: event.step, NODES: event.nodes})
            case SuperstepEnded():
                self._end_span(event.started, event.status, failed=event.status == "failed")
            case AttemptStarted():
                self._begin_attempt(event)
            case AttemptEnded():
                self._end_attempt(event)
            case AttemptRetried():
                self._retries.add(1, {GRAPH: event.graph, NODE: event.node})
            case FailureHandled():
                self._handled.add(1, {GRAPH: event.graph, NODE: event.node})
            case CheckpointWritten():
                self._latency.record(event.seconds * 1000, {GRAPH: event.graph, WRITE_KIND: event.kind})
                self._bytes.add(event.size, {GRAPH: event.graph, WRITE_KIND: event.kind})
            case CheckpointRefused():
                kind = described(event.error)[0]
                self._refused.add(1, {GRAPH: event.graph, WRITE_KIND: event.kind, ERROR_TYPE: kind})
            case ConflictMet():
                self._conflicts.add(1, {GRAPH: event.graph, CONFLICT_KIND: event.kind})
            case ModelCalled():
                self._end_model_call(event)
            case StreamFilled():
                self._depth.record(event.depth, {GRAPH: event.graph, STREAM_MODE: event.mode})
            case UpdateStarted():
                self._begin_update(event)
            case UpdateEnded():
                self._end_span(event.run, None, event.error, failed=event.error is not None, record_error=True)
                if event.error is None:
                    self._update.record(event.seconds * 1000 / event.run.supersteps, {GRAPH: event.run.graph})

    def _begin_run(self, event: RunStarted) -> None:
        attributes: dict[str, AttributeValue] = {RUN_ID: event.run_id, GRAPH: event.graph, NAMESPACE: event.namespace}
        if event.thread_id is not None:
            attributes[THREAD_ID] = event.thread_id
        self._start_span(event, f"run {event.graph}", (event.within, event.around), attributes)

    def _end_run(self, event: RunEnded) -> None:
        called = event.run.around is None
        failed = event.status == "failed"
        self._end_span(
            event.run, event.status, event.error, failed=failed, record_error=called, supersteps=event.supersteps
        )
        if called:
            attributes = {GRAPH: event.graph, STATUS: event.status}
            self._steps.record(event.supersteps, attributes)
            self._duration.record(event.seconds * 1000, attributes)
            self._runs.add(1, attributes)

    def _begin_update(self, event: UpdateStarted) -> None:
        attributes: dict[str, AttributeValue] = {
            RUN_ID: event.run_id,
            THREAD_ID: event.thread_id,
            GRAPH: event.graph,
            NAMESPACE: event.namespace,
            SUPERSTEPS: event.supersteps,
        }
        self._start_span(event, f"update_state {event.graph}", (), attributes)

    def _begin_attempt(self, event: AttemptStarted) -> None:
        attributes: dict[str, AttributeValue] = {
            RUN_ID: event.run_id,
            GRAPH: event.graph,
            NODE: event.node,
            TASK_ID: event.task_id,
            STEP: event.step,
            ATTEMPT: event.number,
            HANDLER: event.handles,
        }
        self._start_span(event, f"node {event.node}", (event.caller, event.superstep, event.run), attributes)
        if event.number == 1 and not event.routes:
            self._tasks.add(1, {GRAPH: event.graph, NODE: event.node})

    def _end_attempt(self, event: AttemptEnded) -> None:
        failed = event.outcome == "failed"
        self._end_span(event.started, event.outcome, event.error, failed=failed, record_error=True)
        if failed:
            kind = "" if event.error is None else described(event.error)[0]
            self._failures.add(1, {GRAPH: event.graph, NODE: event.node, ERROR_TYPE: kind})

    def _end_model_call(self, event: ModelCalled) -> None:
        """Make the span of a call of a model that has ended, and count it."""
        about: dict[str, AttributeValue] = {OPERATION: "chat", REQUEST_MODEL: event.model}
        if event.provider is not None:
            about[PROVIDER] = event.provider
        if event.response_model is not None:
            about[RESPONSE_MODEL] = event.response_model
        used: dict[str, AttributeValue] = {}
        for kind, name, count in (
            ("input", INPUT_TOKENS, event.input_tokens),
            ("output", OUTPUT_TOKENS, event.output_tokens),
        ):
            if count is not None:
                used[name] = count
                self._tokens.record(count, {**about, TOKEN_TYPE: kind})
        details = {
            CACHE_READ_TOKENS: event.cache_read_tokens,
            CACHE_WRITE_TOKENS: event.cache_write_tokens,
            REASONING_TOKENS: event.reasoning_tokens,
        }
        used |= {name: count for name, count in details.items() if count}
        if event.cost_usd is not None:
            used[COST] = float(event.cost_usd)
            self._cost.add(float(event.cost_usd), {GRAPH: event.graph, **about})
        failed = {} if event.error is None else {ERROR_TYPE: described(event.error)[0]}
        self._model_duration.record(event.seconds, {**about, **failed})
        outer = self._spans.get(event.attempt)
        parent = None if outer is None else in_context(outer)
        # Made at the end: a call has one event, and nothing inside of it needs the span as its parent.
        ended = time.time_ns()
        began = ended - int(event.seconds * 1e9)
        span = self._tracer.start_span(
            f"chat {event.model}", parent, SpanKind.CLIENT, {**about, **used, **failed}, start_time=began
        )
        if event.error is not None:
            span.set_status(Status(StatusCode.ERROR, ": ".join(described(event.error))))
        span.end(ended)

    def _start_span(
        self, event: _Started, name: str, parents: tuple[_Started | None, ...], attributes: Mapping[str, AttributeValue]
    ) -> None:
        """Start a span inside the first of `parents` that has a span, or else inside the caller's current span."""
        parent: Context | None = None
        for outer in parents:
            if outer is not None and outer in self._spans:
                parent = in_context(self._spans[outer])
                break
        span = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes)
        with self._lock:
            self._spans[event] = span

    def _end_span(
        self,
        started: _Started,
        status: str | None,
        error: BaseException | None = None,
        *,
        failed: bool,
        record_error: bool = False,
        supersteps: int | None = None,
    ) -> None:
        """End the span of a started event, with its status, error and number of supersteps."""
        with self._lock:
            span = self._spans.pop(started, None)
        if span is None:
            return  # starting it failed, which was reported as an `ObserverWarning`
        try:
            if status is not None:
                span.set_attribute(STATUS, status)
            if supersteps is not None:
                span.set_attribute(SUPERSTEPS, supersteps)
            if failed:
                kind, message = ("", "") if error is None else described(error)
                span.set_status(Status(StatusCode.ERROR, f"{kind}: {message}" if kind else None))
                if error is not None:
                    span.set_attribute(ERROR_TYPE, kind)
                    if record_error:
                        span.record_exception(error)
        finally:  # end the span even if formatting the exception raises
            span.end()
