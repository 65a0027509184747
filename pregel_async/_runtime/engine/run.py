"""Running the graph that a call names: acquire its thread's lease and load it, and let the algorithm run on it."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from ..._core.isolation import NO_CLASSES
from ..._core.program import Program
from ...errors import CheckpointNotFoundError
from ..observing.observation import NOT_OBSERVED, Observation
from ..observing.observed import Observed
from ..observing.observer import AttemptStarted, RunStarted
from ..observing.observers import Observers
from ..persistence.lease import ThreadLease
from ..persistence.namespace_writer import NamespaceWriter
from ..persistence.namespaces import has_child
from ..persistence.spending import Spending
from ..persistence.unstored import NO_LEASE, Unstored
from ..platform.environment import Environment
from ..streaming.event_recorder import EventRecorder
from ..streaming.publisher import publisher_of
from ..tasks.context import CURRENT, RunContext
from .assembly import run_of
from .call_input import read_given
from .graph_run import Ended
from .settings import Audience, Settings


def run(
    program: Program,
    given: Any,
    settings: Settings,
    environment: Environment,
    saver: BaseCheckpointSaver | None,
    codec: Codec | None,
    audience: Audience,
) -> Coroutine[Any, Any, Ended]:
    """Run a graph to its end, or to where it pauses.

    Args:
        given: the input; None goes on from what is stored; a `Command` answers or edits first.

    Raises:
        GraphDrained: it was asked to stop, and has.
    """
    run_id = settings.run_id or environment.new_id()
    spending = Spending(environment, settings.limits)
    observation = _observation(program, settings, environment, run_id, spending) if settings.observers else NOT_OBSERVED
    call = _Call(program, given, settings, environment, run_id, spending, audience, observation)
    if saver is None or codec is None or settings.thread_id is None:
        return observation.observe(partial(_run_unstored, call, NO_CLASSES if codec is None else codec.kept_scalars))
    saver = observation.measure(saver, waits=settings.waits)
    return observation.observe(partial(_run_stored, call, saver, codec, settings.thread_id))


class _Call(msgspec.Struct, frozen=True, gc=False):
    """A call of a graph, and what its run spends, shows and lets observers see."""

    program: Program
    given: Any
    settings: Settings
    environment: Environment
    run_id: str
    spending: Spending
    audience: Audience
    observation: Observation


def _observation(
    program: Program, settings: Settings, environment: Environment, run_id: str, spending: Spending
) -> Observation:
    started = RunStarted(
        run_id=run_id, thread_id=settings.thread_id, namespace="", graph=program.name, within=_calling_attempt()
    )
    return Observed(Observers(settings.observers, environment), started, lambda: spending.run)


def _calling_attempt() -> AttemptStarted | None:
    """Return the attempt of the node that calls the graph with a thread of its own, if a node does."""
    outer = CURRENT.get()
    return None if outer is None else outer.observed.started


async def _run_unstored(call: _Call, kept_scalars: frozenset[type]) -> Ended:
    program, settings, audience = call.program, call.settings, call.audience
    given = read_given(program, call.given, kept_scalars)
    given.require_input(program, settings.thread_id)
    run_context = RunContext(call.environment, call.run_id, settings.thread_id or call.run_id, NO_LEASE, call.spending)
    for subscription in audience.subscriptions:
        subscription.set_run_id(call.run_id)
    publisher = publisher_of(
        program, audience.shown, audience.subscriptions, thread_id=settings.thread_id, now=call.environment.now
    )
    persistence = Unstored(program, run_context.scope)
    this = run_of(program, settings, audience, run_context, persistence, call.observation, publisher)
    return _stopped(run_context, await this.go(given))


async def _run_stored(call: _Call, saver: BaseCheckpointSaver, codec: Codec, thread_id: str) -> Ended:
    program, settings, audience = call.program, call.settings, call.audience
    given = read_given(program, call.given, codec.kept_scalars)
    if not given.is_input and await saver.read(thread_id, "", settings.at) is None:
        if settings.at is not None:
            raise CheckpointNotFoundError(thread_id, settings.at)
        given.require_input(program, thread_id)
    for ns, at in settings.travels.items():
        if await saver.read(thread_id, ns, at) is None:
            raise CheckpointNotFoundError(thread_id, at)
    async with await ThreadLease.acquire(
        saver, call.environment, thread_id, settings.on_conflict, settings.durability
    ) as lease:
        lease.metadata = settings.thread_metadata
        metadata = {**settings.metadata, "run_id": call.run_id}
        travels = bool(settings.travels) and not await _is_where_it_stands(saver, thread_id, settings)
        thread = await NamespaceWriter.open(lease, codec, program, at=settings.at, fork=travels, metadata=metadata)
        run_context = RunContext(call.environment, call.run_id, thread_id, lease, call.spending)
        if run_context.spending.is_limited:
            run_context.spending.know(thread.counter.recorded())
        run_context.travels = dict(settings.travels)
        keeps_events = False
        for subscription in audience.subscriptions:
            if subscription.records_events:
                keeps_events = True
                subscription.record_with(EventRecorder(thread, audience.codec()))
            subscription.set_run_id(call.run_id)
        for begin in audience.begun:
            if not await begin(thread):
                asks = thread.questions()
                return Ended(thread.start, not asks, tuple(asks))
        publisher = publisher_of(
            program, audience.shown, audience.subscriptions, thread_id=thread_id, now=call.environment.now
        )
        this = run_of(program, settings, audience, run_context, thread, call.observation, publisher)
        work = partial(this.go, given)
        if settings.retention is not None:
            from ..persistence.retention import Retaining  # few programs prune as they go

            retaining = Retaining(lease, settings.retention, keeps_events=keeps_events)
            work = partial(retaining.after, work)
        return _stopped(run_context, await lease.keep_alive_during(work))


def _stopped(run_context: RunContext, ended: Ended) -> Ended:
    if not ended.done and not ended.interrupts:
        for error in run_context.stop.errors:
            raise error
    return ended


async def _is_where_it_stands(saver: BaseCheckpointSaver, thread_id: str, settings: Settings) -> bool:
    """Whether a journey ends where the thread, or a branch of it, stands: that is resumed, and not run again."""
    for ns, at in (("", settings.at), *settings.travels.items()):
        if at is not None and await has_child(saver, thread_id, ns, at):
            return False
    return True
