"""Assemble the objects of one graph's run: its context, its events, its runner and the algorithm's port."""

from __future__ import annotations

from collections.abc import Sequence

from ..._core.program import Program
from ..observing.observation import Observation
from ..persistence.namespaces import ids_in
from ..persistence.unstored import Persistence
from ..platform.loop_turns import LoopTurns
from ..streaming.publisher import EventPublisher
from ..streaming.run_events import NO_READER, InnerEvents, RecordedEvents, RunEvents, ShownEvents
from ..streaming.subscription import Subscription
from ..tasks.context import NO_ATTEMPTS, AttemptContext, GraphContext, RunContext
from ..tasks.slots import ConcurrencyLimiter
from ..tasks.task_runner import run_called
from .graph_run import GraphRun
from .runner import Runner
from .settings import Audience, Settings


def run_of(
    program: Program,
    settings: Settings,
    audience: Audience,
    run_context: RunContext,
    persistence: Persistence,
    observation: Observation,
    publisher: EventPublisher,
    *,
    ns: str = "",
    outer: tuple[AttemptContext, ...] = (),
    caller: str = "",
) -> GraphRun:
    """Return the run of one graph.

    Args:
        program: the graph.
        settings: the settings of the call.
        audience: the readers of the call.
        run_context: the objects that all graphs of the run share.
        persistence: where the graph's run is stored.
        observation: makes the events for observers.
        publisher: makes the parts for readers.
        ns: the graph's namespace.
        outer: the attempts at the nodes that contain this run, the innermost first.
        caller: the task that runs the graph, if the graph keeps its state from call to call; else empty.
    """
    # A stream runs in a task that has just been started, which counts as the event loop's turn at the first barrier.
    turns = LoopTurns(run_context.loop.turn, is_taken=False)
    for subscription in audience.subscriptions:
        subscription.observed = observation
        turns.is_taken = subscription.has_own_task and not persistence.is_stored
    is_timed = program.is_timed
    control, results, width = settings.control, settings.results, settings.max_concurrency
    # A subgraph uses the control and the cached results of its outer graph, unless its call has its own.
    for node in outer[:1]:
        control, results = control or node.graph.control, results or node.graph.results
    if audience.tracer is not None:
        audience.tracer.attach(persistence, ns)
    graph = GraphContext(
        run=run_context,
        program=program,
        ns=ns,
        persistence=persistence,
        events=_events(publisher, audience.subscriptions, persistence, turns),
        observation=observation,
        config=settings.config,
        options=settings,
        outer=outer,
        limiter=None if width is None else ConcurrencyLimiter(width),
        control=control,
        call=run_called,
        is_timed=is_timed,
        open_attempts=set() if is_timed else NO_ATTEMPTS,
        results=results,
        token_listener=audience.token_listener if publisher.shows_messages else None,
        tracer=audience.tracer,
    )
    runner = Runner(graph, width, turns)
    return GraphRun(graph, settings, (run_context.scope, ids_in(ns, caller)), runner)


def _events(
    publisher: EventPublisher, own: Sequence[Subscription], persistence: Persistence, turns: LoopTurns
) -> RunEvents:
    """Return the kind of `RunEvents` that the readers of a graph's run need."""
    if not publisher.subscriptions:
        return NO_READER
    events = ShownEvents(publisher, own, turns)
    if publisher.units.are_stored:
        events = InnerEvents(publisher, own, turns)
        for subscription in own:
            if subscription.recorder is not None:
                events = RecordedEvents(publisher, subscription, subscription.recorder, turns)
    if own and persistence.is_stored:
        persistence.acknowledge(events.set_committed)
    return events
