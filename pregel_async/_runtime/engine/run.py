"""Running a graph: claim its thread and load it, and give the algorithm its port; the same for a graph inside a node.

A graph that a node runs takes the session of the run around it: its thread, its answers, its task group. What it is
given and what it gives differ in nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import StorageError

from ..._core.board import Board
from ..._core.isolation import NO_CLASSES
from ..._core.program import Program
from ...errors import CallsChangedError, CheckpointNotFoundError, GraphInterrupt, InvalidUpdateError
from ..observing.observed import Observed, Observers, measured
from ..observing.observer import RunStarted
from ..persistence.lease import Hold
from ..persistence.namespace_writer import Thread
from ..persistence.namespaces import has_child, namespace_of
from ..persistence.spending import NO_LIMITS, Spending
from ..platform.environment import World
from ..streaming.event_recorder import Keeper
from ..streaming.publisher import log_of
from ..tasks.context import CURRENT, ROUTED, Running, Session
from .call_input import Given, read_given
from .graph_run import Ended, port_for
from .settings import Audience, Settings


def run(
    program: Program,
    given: Any,
    settings: Settings,
    world: World,
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
    watched = _run_observed if settings.observers else _run
    return watched(program, given, settings, world, saver, codec, audience)


async def _run_observed(
    program: Program,
    given: Any,
    settings: Settings,
    world: World,
    saver: BaseCheckpointSaver | None,
    codec: Codec | None,
    audience: Audience,
) -> Ended:
    run_id, outer = settings.run_id or world.new_id(), CURRENT.get()
    within = None if outer is None or outer.attempt is None else outer.attempt.started
    started = RunStarted(run_id=run_id, thread_id=settings.thread_id, namespace="", graph=program.name, within=within)
    observed = Observed(Observers(settings.observers, world), started)
    settings = msgspec.structs.replace(settings, run_id=run_id)
    if saver is not None:
        saver = measured(saver, observed, waits=settings.waits)
    return await observed.over(lambda: _run(program, given, settings, world, saver, codec, audience, observed))


async def _run(
    program: Program,
    given: Any,
    settings: Settings,
    world: World,
    saver: BaseCheckpointSaver | None,
    codec: Codec | None,
    audience: Audience,
    observed: Observed | None = None,
) -> Ended:
    call = read_given(program, given, NO_CLASSES if codec is None else codec.kept_scalars)
    run_id = settings.run_id or world.new_id()
    feed = audience.feed
    log = log_of(program, audience.shown, feed, None, ns="", thread_id=settings.thread_id, now=world.now)
    if saver is None or codec is None or settings.thread_id is None:
        call.require_input(program, settings.thread_id)
        session = Session(world, run_id, settings.thread_id or run_id, None)
        session.spending = _spending(settings, world)
        if observed is not None:
            observed.spending = session.spending
        if feed is not None:
            feed.introduce(run_id)
        this = port_for(observed)(program, settings, session, log, None, "", None, audience=audience, observed=observed)
        return _stopped(session, await this.go(call))
    thread_id = settings.thread_id
    if call.writes is None and await saver.read(thread_id, "", settings.at) is None:
        if settings.at is not None:
            raise CheckpointNotFoundError(thread_id, settings.at)
        call.require_input(program, thread_id)
    for ns, at in settings.travels.items():
        if await saver.read(thread_id, ns, at) is None:
            raise CheckpointNotFoundError(thread_id, at)
    async with await Hold.take(saver, world, thread_id, settings.on_conflict, settings.durability) as hold:
        hold.metadata = settings.thread_metadata
        metadata = {**settings.metadata, "run_id": run_id}
        travels = bool(settings.travels) and not await _is_where_it_stands(saver, thread_id, settings)
        thread = await Thread.open(hold, codec, program, at=settings.at, fork=travels, metadata=metadata)
        session = Session(world, run_id, thread_id, hold)
        session.spending = _spending(settings, world)
        if session.spending is not None:
            session.spending.know(thread.counter.recorded())
        if observed is not None:
            observed.spending = session.spending
        session.travels = dict(settings.travels)
        if feed is not None and feed.keeps and audience.codec is not None:
            feed.keeper = Keeper(thread, audience.codec())
            feed.keeper.on_stored = feed.stored
        if feed is not None:
            feed.introduce(run_id)
        if audience.begun is not None and not await audience.begun(thread):
            asks = thread.questions()
            return Ended(Board(program) if thread.board is None else thread.board, not asks, tuple(asks))
        this = port_for(observed)(
            program, settings, session, log, thread, "", None, audience=audience, observed=observed
        )
        if settings.retention is None:
            return _stopped(session, await hold.beside(partial(this.go, call)))
        from ..persistence.retention import Retaining  # few programs prune as they go

        retaining = Retaining(hold, settings.retention, keeps_events=feed is not None and feed.keeps)
        return _stopped(session, await hold.beside(partial(retaining.after, partial(this.go, call))))


def _spending(settings: Settings, world: World) -> Spending | None:
    if not settings.budgets and settings.limits == NO_LIMITS:
        return None
    return Spending(world, settings.budgets, settings.limits)


def _stopped(session: Session, ended: Ended) -> Ended:
    if session.stopped is not None and not ended.done and not ended.interrupts:
        raise session.stopped
    return ended


async def _is_where_it_stands(saver: BaseCheckpointSaver, thread_id: str, settings: Settings) -> bool:
    """Whether a journey ends where the thread, or a branch of it, stands: that is resumed, and not run again."""
    for ns, at in (("", settings.at), *settings.travels.items()):
        if at is not None and await has_child(saver, thread_id, ns, at):
            return False
    return True


async def run_nested(
    program: Program,
    given: Any,
    settings: Settings,
    outer: Running,
    number: int,
    digest: bytes,
    codec: Callable[[Codec], Codec],
    audience: Audience,
    *,
    keeps: bool | None,
) -> Ended:
    """Run a graph as part of a node.

    Args:
        outer: the node.
        number: which of the graphs that the node runs this is; see `Running.number`.
        digest: of the input; see `Running.digest_of_input`.
        codec: what to make of the outer graph's codec: it knows this graph's types besides.
        keeps: the graph's state is kept from call to call; False for one call; None stores nothing of it.

    Raises:
        GraphInterrupt: it has paused. So does the node.
        CallsChangedError: an earlier attempt of the node has run another graph in this place, or with another input.
        ParentCommand: it has ended with commands for a graph around it.
    """
    outer.check_refusal()
    call = read_given(program, given)
    around = outer.around
    session = around.session
    ns = namespace_of(around.ns, outer.task, keeps=bool(keeps), number=number)
    thread_id = None if session.hold is None else session.hold.thread_id
    log = log_of(
        program,
        audience.shown,
        audience.feed,
        around.log,
        ns=ns,
        thread_id=thread_id,
        now=session.world.now,
        within=outer.task,
        saved=around.thread is not None and keeps is not None,
    )
    place = outer.next_place(number)
    outer.sign()
    if settings.budgets and session.spending is None:
        session.spending = Spending(
            session.world, {}, NO_LIMITS
        )  # it counts; its limits are for when it is called itself
    thread: Thread | None = None
    with _only_one(session.hold, ns, outer) if keeps and session.hold is not None else contextlib.nullcontext():
        if around.thread is not None and keeps is not None:
            try:
                thread = await Thread.nested(
                    around.thread,
                    codec(around.thread.codec),
                    program,
                    ns=ns,
                    task=outer.task.id,
                    caller=outer.task.id if keeps else None,
                    given=(program.name, digest.hex()) if digest else None,
                    at=session.travels.pop(ns, None),
                )
            except StorageError as error:
                around.thread.hold.fail(error)  # it is the run's, and not the node's
                raise
            if thread.ran_instead is not None:
                where, which = outer.task, number % ROUTED + 1
                raise outer.refuse(
                    CallsChangedError(where.node.name, where.step, which, thread.ran_instead, program.name, "graph")
                )
            if thread.continues:
                call = Given(None, None, [], False)
                before = thread.counter.go_on()
                if session.spending is not None:
                    session.spending.know(before)
        if thread is None or thread.board is None:
            call.require_input(program, thread_id)
        caller = outer.task.id if keeps else None
        observed = _observed_inside(program, settings, outer, ns) if settings.observers else None
        this = port_for(observed)(
            program, settings, session, log, thread, ns, outer, caller, audience=audience, observed=observed
        )
        try:
            ended = await (this.go(call) if observed is None else observed.over(lambda: this.go(call)))
        finally:
            if thread is not None:
                thread.counter.hand_over()
    if not ended.done:
        outer.open[place] = ended.interrupts
        raise GraphInterrupt(ended.interrupts)
    return ended


def _observed_inside(program: Program, settings: Settings, outer: Running, ns: str) -> Observed:
    """Of a graph that a node runs."""
    session, around = outer.around.session, outer.around.observed
    started = RunStarted(
        run_id=session.run_id,
        thread_id=None if session.hold is None else session.hold.thread_id,
        namespace=ns,
        graph=program.name,
        within=None if outer.attempt is None else outer.attempt.started,
        around=None if around is None else around.run,
    )
    if around is None:
        return Observed(Observers(settings.observers, session.world), started)
    return Observed(around.observers.and_also(settings.observers), started)


@contextlib.contextmanager
def _only_one(hold: Hold, ns: str, outer: Running) -> Generator[None]:
    """Let one task of a superstep at a time run a graph that keeps its state.

    What two of them did to it would depend on the schedule: that is refused, on every schedule alike. Calls that one
    task makes go on from each other in turn, and are refused at once.

    Raises:
        InvalidUpdateError: another task of the superstep has run it, or it runs.
    """
    while outer.task.caller is not None and outer.within is not None:
        outer = outer.within  # a task that a node calls is the node's
    at = None if outer.around.thread is None else outer.around.thread.tip
    who, running = hold.kept.get(ns, (("", ""), False))
    another = who[0] == at and who[1] != outer.task.id
    if running or another:
        raise InvalidUpdateError(
            f"the graph in namespace {ns!r} keeps its state (checkpointer=True), and "
            f"{'two tasks of one superstep run it' if another else 'it is run twice at once'}: whose state it would go "
            "on from is the event loop's choice. Run it in supersteps of their own, or one call after the other in one "
            "node; or compile it without checkpointer=True",
            node=outer.task.node.name,
        )
    hold.kept[ns] = (at, outer.task.id), True
    try:
        yield
    finally:
        hold.kept[ns] = (at, outer.task.id), False
