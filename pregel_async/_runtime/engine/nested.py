"""Running a graph as part of a node.

A graph that a node runs shares the `RunContext` of the run around it: its thread, answers and budgets. Its input and
its result are those of any call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import StorageError

from ..._core.program import Program
from ...errors import CallsChangedError, GraphInterrupt, InvalidUpdateError
from ..observing.observation import NOT_OBSERVED, Observation
from ..observing.observed import Observed
from ..observing.observer import RunStarted
from ..persistence.lease import ThreadLease
from ..persistence.namespace_writer import NamespaceWriter
from ..persistence.namespaces import namespace_of
from ..persistence.unstored import Persistence, Unstored
from ..streaming.publisher import publisher_of_subgraph
from ..tasks.context import ROUTER_BASE, AttemptContext
from .assembly import run_of
from .call_input import NOTHING_GIVEN, read_given
from .graph_run import Ended
from .settings import Audience, Settings


class NestedCall(msgspec.Struct, frozen=True):
    """How a node runs a graph.

    Attributes:
        outer: the node.
        number: which of the graphs that the node runs this is; see `AttemptContext.number`.
        digest: of the input; see `AttemptContext.digest_of_input`.
        codec: what to make of the outer graph's codec: it knows this graph's types besides.
        stores: the graph's supersteps are stored, if those of the graph around are.
        keeps: its state is kept from call to call.
    """

    outer: AttemptContext
    number: int
    digest: bytes
    codec: Callable[[Codec], Codec]
    stores: bool
    keeps: bool

    @property
    def ns(self) -> str:
        """The namespace of the graph."""
        return namespace_of(self.outer.graph.ns, self.outer.task, keeps=self.keeps, number=self.number)

    @property
    def caller(self) -> str:
        """The task that runs the graph, if its state is kept from call to call; else empty."""
        return self.outer.task.id if self.keeps else ""


async def run_nested(program: Program, given: Any, settings: Settings, nested: NestedCall, audience: Audience) -> Ended:
    """Run a graph as part of a node.

    Raises:
        GraphInterrupt: it has paused. So does the node.
        CallsChangedError: an earlier attempt of the node has run another graph in this place, or with another input.
        ParentCommand: it has ended with commands for a graph around it.
    """
    nested.outer.check_refusal()
    call = read_given(program, given)
    outer, ns = nested.outer, nested.ns
    run_context, lease = outer.graph.run, outer.graph.run.lease
    place = outer.next_position(nested.number)
    outer.sign()
    with _only_one(lease, ns, outer) if nested.keeps and isinstance(lease, ThreadLease) else nullcontext():
        persistence = await _persistence(program, nested, ns)
        if persistence.continues:
            call = NOTHING_GIVEN
        if persistence.is_new:
            call.require_input(program, lease.thread_id)
        publisher = publisher_of_subgraph(
            program,
            audience.shown,
            audience.subscriptions,
            outer.publisher,
            ns=ns,
            task=outer.task,
            saved=persistence.is_stored,
            timeout_pauses=[outer.waiting] if outer.is_timed else [],
            thread_id=lease.thread_id,
            now=run_context.environment.now,
        )
        observation = _observation(program, settings, nested, ns) if settings.observers else NOT_OBSERVED
        this = run_of(
            program,
            settings,
            audience,
            run_context,
            persistence,
            observation,
            publisher,
            ns=ns,
            outer=(outer, *outer.graph.outer),
            caller=nested.caller,
        )
        try:
            ended = await observation.observe(lambda: this.go(call))
        finally:
            persistence.hand_over_spent()
    if not ended.done:
        outer.open[place] = ended.interrupts
        raise GraphInterrupt(ended.interrupts)
    return ended


async def _persistence(program: Program, nested: NestedCall, ns: str) -> Persistence:
    """Load the graph's namespace, if it has one."""
    outer, outside, run_context = nested.outer, nested.outer.graph.persistence, nested.outer.graph.run
    if not (nested.stores and isinstance(outside, NamespaceWriter)):
        return Unstored(program, run_context.scope, [(outside, outer.task.id)])
    try:
        thread = await NamespaceWriter.nested(
            outside,
            nested.codec(outside.codec),
            program,
            ns=ns,
            task=outer.task.id,
            caller=outer.task.id if nested.keeps else None,
            given=(program.name, nested.digest.hex()) if nested.digest else None,
            at=run_context.travels.pop(ns, None),
        )
    except StorageError as error:
        outside.lease.fail(error)  # it is the run's, and not the node's
        raise
    if thread.ran_instead is not None:
        where, which = outer.task, nested.number % ROUTER_BASE + 1
        raise outer.refuse(
            CallsChangedError(where.node.name, where.step, which, thread.ran_instead, program.name, "graph")
        )
    if thread.continues:
        run_context.spending.know(thread.counter.go_on())
    return thread


def _observation(program: Program, settings: Settings, nested: NestedCall, ns: str) -> Observation:
    outer = nested.outer
    outside, run_context = outer.graph.observation, outer.graph.run
    started = RunStarted(
        run_id=run_context.run_id,
        thread_id=run_context.lease.thread_id,
        namespace=ns,
        graph=program.name,
        within=outer.observed.started,
        around=next(iter(outside.runs), None),
    )
    return Observed(outside.with_observers(settings.observers, run_context.environment), started)


@contextlib.contextmanager
def _only_one(lease: ThreadLease, ns: str, outer: AttemptContext) -> Generator[None]:
    """Let one task of a superstep at a time run a graph that keeps its state.

    The state that two of them leave would depend on the schedule: so the second is refused, on every schedule alike.
    Calls by one task continue from each other in turn; concurrent ones are refused.

    Raises:
        InvalidUpdateError: another task of the superstep has run it, or it runs.
    """
    *_, outer = outer.chain_in_graph()  # a task that a node calls is the node's
    at = outer.graph.persistence.tip
    who, running = lease.kept.get(ns, (("", ""), False))
    another = who[0] == at and who[1] != outer.task.id
    if running or another:
        raise InvalidUpdateError(
            f"the graph in namespace {ns!r} keeps its state (checkpointer=True), and "
            f"{'two tasks of one superstep run it' if another else 'it is run twice at once'}: whose state it would go "
            "on from is the event loop's choice. Run it in supersteps of their own, or one call after the other in one "
            "node; or compile it without checkpointer=True",
            node=outer.task.node.name,
        )
    lease.kept[ns] = (at, outer.task.id), True
    try:
        yield
    finally:
        lease.kept[ns] = (at, outer.task.id), False
