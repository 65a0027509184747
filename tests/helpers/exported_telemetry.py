"""The spans and metrics that OpenTelemetry's SDK exports."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pregel_async.otel import OpenTelemetryObserver


class Exported:
    """The exported spans and metrics of providers of the test's own."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.observer = OpenTelemetryObserver(self.tracers, self.meters)
        self.tracer = self.tracers.get_tracer("a user's")

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans in the order of their ends."""
        return list(self._spans.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @property
    def tree(self) -> list[str]:
        """Each span under its parent, with its status if that is an error."""
        lines: list[str] = []

        def show(parent: int | None, depth: int) -> None:
            inside = [span for span in self.spans if (span.parent.span_id if span.parent else None) == parent]
            for span in sorted(inside, key=lambda span: (span.start_time, span.name)):
                error = " ERROR" if span.status.status_code is StatusCode.ERROR else ""
                lines.append("  " * depth + span.name + error)
                show(span.context.span_id, depth + 1)

        show(None, 0)
        return lines

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """By name: the attributes and the sum of each point; for histograms the count and the sum."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: [
                (dict(point.attributes), (point.count, point.sum) if hasattr(point, "count") else point.value)
                for point in metric.data.data_points
            ]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def traced_node(self, name: str) -> Any:
        """A node that creates a span of its own."""

        async def call(state: Any) -> Any:
            with self.tracer.start_as_current_span(f"in {name}"):
                await anyio.lowlevel.checkpoint()
            return {"log": [name]}

        return call
