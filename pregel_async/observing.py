"""Observe runs: the events that an observer receives, and `Figures`, an observer that adds them up.

    figures = Figures()
    await graph.ainvoke(input, observer=figures)
    print(figures)

Pass an observer to a graph (`compile(observer=...)`), to a call, or to both; it also receives the events of nested
graphs. Runs without observers make no events and call nothing. docs/operations.md says what to watch for, and
`pregel_async.otel` sends the events to OpenTelemetry.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterator
from decimal import Decimal

from ._runtime.observing.observer import (
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
from ._runtime.persistence.spending import plus

__all__ = [
    "AttemptEnded",
    "AttemptRetried",
    "AttemptStarted",
    "CheckpointRefused",
    "CheckpointWritten",
    "ConflictMet",
    "Event",
    "FailureHandled",
    "Figures",
    "ModelCalled",
    "Observer",
    "RunEnded",
    "RunStarted",
    "StreamFilled",
    "SuperstepEnded",
    "SuperstepStarted",
    "UpdateEnded",
    "UpdateStarted",
]

LATENCY_WINDOW = 4096
"""How many latencies of writes are kept for the percentiles: those of the newest writes."""


class Figures(Observer):
    """Add up events, of one call or of all calls that the observer is passed to. Any thread may read the attributes.

    Attributes:
        runs: number of calls that have ended, by status. Runs of nested graphs are parts of their calls.
        supersteps: number of supersteps that have ended, including those of nested graphs.
        tasks: number of tasks whose code has run, including those of nested graphs, called tasks and error handlers.
        replayed: number of tasks that did not run, because their result was recorded or cached.
        attempts: number of attempts at tasks.
        retries: number of failed attempts that were followed by another.
        failures: number of failed attempts. A failure of a nested graph also counts for the node that runs the graph.
        handled: number of failures that were passed to an error handler, or collected.
        writes: number of storage transactions that succeeded; `refused`, of those that failed.
        checkpoints, records, bytes: number of checkpoints, records and bytes in the successful transactions.
        conflicts: number of conflicts with other runs on a thread, by kind; see `ConflictMet`.
        depth: the highest number of stream parts that waited for a reader.
        updates: number of edits of threads that were stored.
        update_seconds: the longest duration of a superstep of such an edit, in seconds, averaged over its call.
        seconds: total duration of the calls, in seconds.
        spent: amounts spent, by budget.
        model_calls: number of calls of models that have ended, also of those that failed.
        input_tokens, output_tokens: tokens of these calls, as far as the providers have reported them.
        cost_usd: cost of these calls in US dollars, as far as the models have prices.
    """

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.supersteps = 0
        self.tasks = 0
        self.replayed = 0
        self.attempts = 0
        self.retries = 0
        self.failures = 0
        self.handled = 0
        self.writes = 0
        self.refused = 0
        self.checkpoints = 0
        self.records = 0
        self.bytes = 0
        self.conflicts: Counter[str] = Counter()
        self.depth = 0
        self.updates = 0
        self.update_seconds = 0.0
        self.seconds = 0.0
        self.spent: dict[str, int | Decimal] = {}
        self.model_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: int | Decimal = 0
        self._latencies: deque[float] = deque(maxlen=LATENCY_WINDOW)
        self._slowest = 0.0  # of all writes: the window forgets old ones
        self._lock = threading.Lock()  # calls on several event loops may share the observer

    def observe(self, event: Event, /) -> None:
        with self._lock:
            self._add(event)

    def _add(self, event: Event) -> None:
        match event:
            case AttemptStarted():
                self.attempts += 1
                self.tasks += event.number == 1 and not event.routes
            case AttemptEnded():
                self.failures += event.outcome == "failed"
            case AttemptRetried():
                self.retries += 1
            case FailureHandled():
                self.handled += 1
            case SuperstepEnded():
                self.supersteps += 1
                self.replayed += event.replayed + event.cached
            case CheckpointWritten():
                self.writes += 1
                self.checkpoints += event.checkpoints
                self.records += event.records
                self.bytes += event.size
                self._latencies.append(event.seconds)
                self._slowest = max(self._slowest, event.seconds)
            case CheckpointRefused():
                self.refused += 1
            case ConflictMet():
                self.conflicts[event.kind] += 1
            case ModelCalled():
                self.model_calls += 1
                self.input_tokens += event.input_tokens or 0
                self.output_tokens += event.output_tokens or 0
                self.cost_usd = plus(self.cost_usd, event.cost_usd or 0)
            case StreamFilled():
                self.depth = max(self.depth, event.depth)
            case UpdateEnded():
                if event.error is None:
                    self.updates += 1
                    self.update_seconds = max(self.update_seconds, event.seconds / event.run.supersteps)
            case RunEnded():
                if event.run.around is None:
                    self.runs[event.status] += 1
                    self.seconds += event.seconds
                    for name, amount in event.spent.items():
                        self.spent[name] = plus(self.spent.get(name, 0), amount)
            case RunStarted() | SuperstepStarted() | UpdateStarted():
                pass

    def latency(self, share: float) -> float:
        """Return how many seconds it took until a share of the newest writes was durable.

        Args:
            share: more than 0 and at most 1; 0.5 for the median. With 1, the slowest of all writes counts.

        Returns:
            Seconds; 0 if nothing was written.

        Raises:
            ValueError: the share is out of range.
        """
        if not 0 < share <= 1:
            raise ValueError(f"a share is more than 0 and at most 1, not {share!r}")
        with self._lock:
            if share == 1:
                return self._slowest
            ordered = sorted(self._latencies)
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Format the figures for people.

        Yields:
            Lines, the work done first. Lines without anything to report are left out.
        """
        more = [
            _count_if_any(self.replayed, "task not run again", "tasks not run again"),
            _count_if_any(self.retries, "retry", "retries"),
            _count_if_any(self.failures, "failure", "failures")
            + (f" ({self.handled} handled)" if self.handled else ""),
        ]
        done = [_count(self.supersteps, "superstep"), _count(self.tasks, "task"), *filter(None, more)]
        yield f"{', '.join(done)}, {self.seconds:.1f} s"
        if self.writes or self.refused:
            refused = f" ({self.refused} refused)" if self.refused else ""
            yield (
                f"{_count(self.writes, 'write')} to storage{refused}: {_count(self.checkpoints, 'checkpoint')}, "
                f"{_count(self.records, 'record')}, {_size(self.bytes)}; p50 {_milliseconds(self.latency(0.5))}, "
                f"p95 {_milliseconds(self.latency(0.95))}, max {_milliseconds(self.latency(1))}"
            )
        if self.depth:
            yield f"{_count(self.depth, 'part')} waited for the reader at most"
        if self.conflicts:
            conflicts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.conflicts.items()))
            yield f"conflicts with other runs: {conflicts}"
        if self.updates:
            longest = _milliseconds(self.update_seconds)
            yield f"{_count(self.updates, 'edit')} of threads; {longest} for a superstep at most"
        if self.model_calls:
            cost = f", {self.cost_usd} USD" if self.cost_usd else ""
            yield (
                f"{_count(self.model_calls, 'model call')}: {self.input_tokens} input tokens, "
                f"{self.output_tokens} output tokens{cost}"
            )
        if self.spent:
            yield "spent: " + ", ".join(f"{name} {amount}" for name, amount in sorted(self.spent.items()))


def _count_if_any(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}" if count else ""


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _size(count: int) -> str:
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
