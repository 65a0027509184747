"""Run a root graph: acquire its thread's lease, load the thread, and start the graph's run."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from ..._core.ownership import NO_CLASSES
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
from .call_input import read_call_input
from .graph_run import EndedRun
from .settings import Audience, Settings


def run(
    program: Program,
    value: Any,
    settings: Settings,
    environment: Environment,
    saver: BaseCheckpointSaver | None,
    codec: Codec | None,
    audience: Audience,
) -> Coroutine[Any, Any, EndedRun]:
    """Run a graph to its end, or until it pauses.

    Args:
        program: the graph.
        value: the input; None to continue from the stored state; a `Command` to answer or edit first.
        settings: the settings of the call.
        environment: the clock, ids and randomness.
        saver: stores the thread; None stores nothing.
        codec: encodes the graph's values; None stores nothing.
        audience: the readers of the call.

    Raises:
        GraphDrained: the run was asked to drain, and has stopped with work left.
        BudgetExceededError: the run has exceeded a budget or its time limit.
    """
    run_id = settings.run_id or environment.new_id()
    spending = Spending(environment, settings.limits)
    observation = _observation(program, settings, environment, run_id, spending) if settings.observers else NOT_OBSERVED
    root_call = _RootCall(program, value, settings, environment, run_id, spending, audience, observation)
    if saver is None or codec is None or settings.thread_id is None:
        return observation.observe(
            partial(_run_unstored, root_call, NO_CLASSES if codec is None else codec.kept_scalars)
        )
    saver = observation.measure(saver, waits=settings.waits)
    return observation.observe(partial(_run_stored, root_call, saver, codec, settings.thread_id))


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class _RootCall(msgspec.Struct, frozen=True, gc=False):
    """The call of a root graph, and the objects that count, show and observe its run."""

    program: Program
    value: Any
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
    """Return the attempt at the node that calls the graph; None if the caller is no node."""
    outer = CURRENT.get()
    return None if outer is None else outer.observed.started


async def _run_unstored(root_call: _RootCall, kept_scalars: frozenset[type]) -> EndedRun:
    program, settings, audience = root_call.program, root_call.settings, root_call.audience
    call_input = read_call_input(program, root_call.value, kept_scalars)
    call_input.require_input(program, settings.thread_id)
    # Calls in a node may name one thread several times, and each begins it anew, as nothing is stored. Their message
    # ids must differ, since the node may return the messages to the outer graph.
    named = settings.thread_id if CURRENT.get() is None else None
    run_context = RunContext(
        root_call.environment, root_call.run_id, named or root_call.run_id, NO_LEASE, root_call.spending
    )
    for subscription in audience.subscriptions:
        subscription.set_run_id(root_call.run_id)
    publisher = publisher_of(
        program, audience.shown, audience.subscriptions, thread_id=settings.thread_id, now=root_call.environment.now
    )
    persistence = Unstored(program, run_context.scope)
    graph_run = run_of(program, settings, audience, run_context, persistence, root_call.observation, publisher)
    running = graph_run.run(call_input)
    del call_input  # see `GraphRun.run`
    return _raise_if_stopped(run_context, await running)


async def _run_stored(root_call: _RootCall, saver: BaseCheckpointSaver, codec: Codec, thread_id: str) -> EndedRun:
    program, settings, audience = root_call.program, root_call.settings, root_call.audience
    call_input = read_call_input(program, root_call.value, codec.kept_scalars)
    # Before the lease is acquired: a call that cannot succeed must not wait for another run's lease.
    if not call_input.is_input and await saver.read(thread_id, "", settings.at) is None:
        if settings.at is not None:
            raise CheckpointNotFoundError(thread_id, settings.at)
        call_input.require_input(program, thread_id)
    for ns, at in settings.travels.items():
        if await saver.read(thread_id, ns, at) is None:
            raise CheckpointNotFoundError(thread_id, at)
    async with await ThreadLease.acquire(
        saver,
        root_call.environment,
        thread_id,
        settings.on_conflict,
        settings.durability,
        yields_first=False,  # a superstep yields; and without one, the release of the lease does
    ) as lease:
        lease.metadata = settings.thread_metadata
        metadata = {**settings.metadata, "run_id": root_call.run_id}
        forks = bool(settings.travels) and not await _starts_at_tips(saver, thread_id, settings)
        namespace = await NamespaceWriter.open(lease, codec, program, at=settings.at, fork=forks, metadata=metadata)
        namespace.require_fit(call_input.writes, discards=call_input.is_input)
        run_context = RunContext(root_call.environment, root_call.run_id, lease.scope, lease, root_call.spending)
        if run_context.spending.is_limited:
            run_context.spending.add_earlier(namespace.counter.recorded())
        run_context.start_checkpoints = dict(settings.travels)
        keeps_events = False
        for subscription in audience.subscriptions:
            if subscription.records_events:
                keeps_events = True
                subscription.record_with(EventRecorder(namespace, audience.codec()))
            subscription.set_run_id(root_call.run_id)
        for begin in audience.begun:
            if not await begin(namespace):
                asks = namespace.questions()
                return EndedRun(namespace.start, not asks, tuple(asks))
        publisher = publisher_of(
            program, audience.shown, audience.subscriptions, thread_id=thread_id, now=root_call.environment.now
        )
        program = namespace.program  # extended, if the stored state needs that
        graph_run = run_of(program, settings, audience, run_context, namespace, root_call.observation, publisher)
        work = partial(graph_run.run, call_input)
        if settings.retention is not None:
            from ..persistence.retention import RunPruner  # imported lazily: few graphs have a retention

            pruner = RunPruner(lease, settings.retention, keeps_events=keeps_events)
            work = partial(pruner.prune_after, work)
        running = lease.keep_alive_during(work)
        del call_input, work  # see `GraphRun.run`
        return _raise_if_stopped(run_context, await running)


def _raise_if_stopped(run_context: RunContext, result: EndedRun) -> EndedRun:
    """Return the end of a run, or raise the error for which the run stopped with work left."""
    if not result.done and not result.interrupts:
        for error in run_context.stop.errors:
            raise error
    return result


async def _starts_at_tips(saver: BaseCheckpointSaver, thread_id: str, settings: Settings) -> bool:
    """Return True if all checkpoints of the call's `checkpoint_map` are tips: the call resumes, and makes no branch."""
    for ns, at in (("", settings.at), *settings.travels.items()):
        if at is not None and await has_child(saver, thread_id, ns, at):
            return False
    return True
