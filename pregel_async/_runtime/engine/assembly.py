"""Put one graph's run together: what its nodes share, what it shows, and the port that the algorithm asks."""

from __future__ import annotations

from collections.abc import Sequence

from ..._core.program import Program
from ..observing.observation import Observation
from ..persistence.namespaces import ids_in
from ..persistence.unstored import Persistence
from ..platform.loop_turns import LoopTurns
from ..streaming.publisher import Log
from ..streaming.run_events import NOBODY_READS, InnerEvents, RecordedEvents, RunEvents, ShownEvents
from ..streaming.subscription import Feed
from ..tasks.context import AttemptContext, GraphContext, RunContext
from ..tasks.driving import run_called
from ..tasks.slots import Places
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
    log: Log,
    *,
    ns: str = "",
    outer: tuple[AttemptContext, ...] = (),
    caller: str = "",
) -> GraphRun:
    """Return the run of one graph.

    Args:
        ns: the graph's namespace.
        outer: the nodes that the graph's run is in, from the inside out.
        caller: the task that runs the graph, if its state is kept from call to call; else empty.
    """
    fresh = not persistence.is_stored and any(feed.fresh for feed in audience.feeds)
    turns = LoopTurns(run_context.loop.turn, is_taken=fresh)
    for feed in audience.feeds:
        feed.observed = observation
    control, results, width = settings.control, settings.results, settings.max_concurrency
    for node in outer[:1]:
        control, results = control or node.graph.control, results or node.graph.results
    graph = GraphContext(
        run=run_context,
        program=program,
        ns=ns,
        persistence=persistence,
        events=_events(log, audience.feeds, persistence, turns),
        observation=observation,
        config=settings.config,
        options=settings,
        outer=outer,
        places=None if width is None else Places(width),
        control=control,
        call=run_called,
        is_timed=program.is_timed,
        results=results,
        overhears=audience.overhears if log.overhears else None,
    )
    runner = Runner(graph, width, turns)
    return GraphRun(graph, settings, (run_context.scope, ids_in(ns, caller)), runner)


def _events(log: Log, own: Sequence[Feed], persistence: Persistence, turns: LoopTurns) -> RunEvents:
    """Return the kind of `RunEvents` that the readers of a graph's run need."""
    if not log.feeds:
        return NOBODY_READS
    events = ShownEvents(log, own, turns)
    if log.units.are_kept:
        events = InnerEvents(log, own, turns)
        for feed in own:
            if feed.keeper is not None:
                events = RecordedEvents(log, feed, feed.keeper, turns)
    if own:
        persistence.acknowledge(events.acknowledge)
    return events
