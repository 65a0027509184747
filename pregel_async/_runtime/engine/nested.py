"""Run a subgraph: a graph that a node calls.

A subgraph shares the `RunContext` of the outer graph's run: thread, answers and budgets. Its input and its result are
those of any call.
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
from ..._core.task import ROUTER_BASE
from ..._core.untracked import refill
from ...errors import CallsChangedError, GraphInterrupt, InvalidUpdateError
from ..observing.observation import NOT_OBSERVED, Observation
from ..observing.observed import Observed
from ..observing.observer import RunStarted
from ..persistence.lease import ThreadLease
from ..persistence.namespace_writer import NamespaceWriter
from ..persistence.namespaces import former_namespaces, namespace_of
from ..persistence.unstored import Persistence, Unstored
from ..streaming.publisher import publisher_of_subgraph
from ..tasks.context import AttemptContext
from .assembly import run_of
from .call_input import NO_INPUT, read_call_input
from .graph_run import EndedRun
from .settings import Audience, Settings


class NestedCall(msgspec.Struct, frozen=True):
    """A node's call of a subgraph.

    Attributes:
        outer: the attempt at the node.
        number: the call's number among the node's subgraph calls; see `AttemptContext.number`.
        digest: the digest of the input; see `AttemptContext.digest_of_input`.
        codec: makes the subgraph's codec of the outer graph's: it adds the subgraph's types.
        stores: the subgraph's supersteps are stored if the outer graph's are.
        keeps_state: the subgraph keeps its state from call to call.
    """

    outer: AttemptContext
    number: int
    digest: bytes
    codec: Callable[[Codec], Codec]
    stores: bool
    keeps_state: bool

    @property
    def ns(self) -> str:
        """The subgraph's namespace."""
        return namespace_of(self.outer.graph.ns, self.outer.task, keeps_state=self.keeps_state, number=self.number)

    def former_namespaces(self) -> list[str]:
        """Return the namespaces that a kept state had under former names of nodes, newest first."""
        nodes = [attempt.task.node for attempt in (self.outer, *self.outer.graph.outer)]
        return former_namespaces(self.ns, nodes[::-1]) if any(node.was for node in nodes) else []

    @property
    def caller(self) -> str:
        """The task that runs the subgraph if it keeps its state from call to call; else empty."""
        return self.outer.task.id if self.keeps_state else ""


async def run_nested(
    program: Program, value: Any, settings: Settings, nested: NestedCall, audience: Audience
) -> EndedRun:
    """Run a subgraph.

    Args:
        program: the subgraph.
        value: the input that the node passed.
        settings: the settings of the call.
        nested: the call.
        audience: the readers of the call.

    Raises:
        GraphInterrupt: the subgraph has paused, and so does the node.
        CallsChangedError: an earlier attempt at the node ran another graph in this position, or with another input.
        ParentCommand: the subgraph has ended with commands for an outer graph.
    """
    nested.outer.check_refusal()
    call_input = read_call_input(program, value)
    outer, ns = nested.outer, nested.ns
    run_context, lease = outer.graph.run, outer.graph.run.lease
    position = outer.next_position(nested.number)
    outer.record_activity()
    if outer.node_record is not None:
        await outer.node_record.store()
    with _exclusive_use(lease, ns, outer) if nested.keeps_state and isinstance(lease, ThreadLease) else nullcontext():
        persistence = await _persistence(program, nested, ns)
        # The loaded state of an earlier attempt contains the input already, except what is never stored.
        if persistence.continues:
            if program.untracked:
                refill(program, persistence.start, call_input.writes)
            call_input = NO_INPUT
        persistence.require_fit(call_input.writes, discards=call_input.is_input)
        if persistence.is_new:
            call_input.require_input(program, lease.thread_id)
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
        graph_run = run_of(
            persistence.program,
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
            ended = await observation.observe(lambda: graph_run.run(call_input))
        finally:
            # Also after a failure or a cancellation: otherwise amounts that are in no record would be lost.
            persistence.hand_over_spent()
    if not ended.done:
        outer.open_questions[position] = ended.interrupts
        raise GraphInterrupt(ended.interrupts)
    return ended


async def _persistence(program: Program, nested: NestedCall, ns: str) -> Persistence:
    """Load the subgraph's namespace, or return `Unstored` if the subgraph is not stored."""
    outer, outer_namespace, run_context = nested.outer, nested.outer.graph.persistence, nested.outer.graph.run
    if not (nested.stores and isinstance(outer_namespace, NamespaceWriter)):
        return Unstored(program, run_context.scope, [(outer_namespace, outer.task.id)])
    try:
        namespace = await NamespaceWriter.nested(
            outer_namespace,
            nested.codec(outer_namespace.codec),
            program,
            ns=ns,
            task=outer.task.id,
            caller=outer.task.id if nested.keeps_state else None,
            identity=(program.name, nested.digest.hex()) if nested.digest else None,
            at=run_context.start_checkpoints.pop(ns, None),
            former=nested.former_namespaces() if nested.keeps_state else (),
        )
    except StorageError as error:
        # Noted as the run's failure: a failure of the node would be retried, or reach the node's error handler.
        outer_namespace.lease.fail(error)
        raise
    if namespace.ran_instead is not None:
        caller, index = outer.task, nested.number % ROUTER_BASE + 1
        raise outer.refuse(
            CallsChangedError(caller.node.name, caller.step, index, namespace.ran_instead, program.name, "graph")
        )
    if namespace.continues:
        run_context.spending.add_earlier(namespace.counter.publish_earlier())
    return namespace


def _observation(program: Program, settings: Settings, nested: NestedCall, ns: str) -> Observation:
    outer = nested.outer
    outer_observation, run_context = outer.graph.observation, outer.graph.run
    started = RunStarted(
        run_id=run_context.run_id,
        thread_id=run_context.lease.thread_id,
        namespace=ns,
        graph=program.name,
        within=outer.observed.started,
        around=next(iter(outer_observation.runs), None),
    )
    return Observed(outer_observation.with_observers(settings.observers, run_context.environment), started)


@contextlib.contextmanager
def _exclusive_use(lease: ThreadLease, ns: str, outer: AttemptContext) -> Generator[None]:
    """Reserve a subgraph that keeps its state, for one task of the superstep and one call at a time.

    Consecutive calls by one task are allowed: each continues from the state of the call before.

    Raises:
        InvalidUpdateError: another task of the superstep has run the subgraph, or it is running.
    """
    # If two tasks ran the subgraph, its final state would depend on the schedule. Whether their runs overlap depends on
    # the schedule, too: so the second task is refused even if the first has finished.
    *_, outer = outer.chain_in_graph()  # called tasks count as the node that calls them
    at = outer.graph.persistence.tip
    last_use, running = lease.kept_graphs.get(ns, (("", ""), False))
    another = last_use[0] == at and last_use[1] != outer.task.id
    if running or another:
        raise InvalidUpdateError(
            f"the graph in namespace {ns!r} keeps its state (checkpointer=True), and "
            f"{'two tasks of one superstep run it' if another else 'it is run twice at once'}: the state that "
            "remains would depend on the schedule. Run it in supersteps of their own, or with calls in turn in one "
            "node; or compile it without checkpointer=True",
            node=outer.task.node.name,
        )
    lease.kept_graphs[ns] = (at, outer.task.id), True
    try:
        yield
    finally:
        lease.kept_graphs[ns] = (at, outer.task.id), False
