"""Drive one task to its outcome: by what is recorded of it, by its node's policies, and by the graph's failure policy.

    recorded    a result, or open questions, of an earlier run
    kept        what an earlier run made of an equal input, if it is kept (`kept_results`)
    attempts    by the node's retry policies (`retries`), each within its timeout (`timeouts`)
    handler     the node's error handler runs in the task's place, in the same superstep, on the same input
    collected   the failure itself is the task's update, by the graph's failure policy

A handled failure is recorded before its handler starts, so that a crash in the handler leads back to the handler and
not to the node. Storage errors are never retried and never reach error handlers.

Two kinds of tasks: those that a superstep plans (`engine.runner`), and those that a node calls (`run_called`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

import anyio
from msgspec import structs

from checkpoint_savers.errors import annotate

from ..._core.board import Board
from ..._core.isolation import isolate
from ..._core.program import Write
from ..._core.task import NEW, Failed, Finished, NotStarted, Settled, Task, Unfinished
from ...errors import NodeError, RecordedFailureError, UnstorableValueError
from ..observing.error_text import described
from ..platform.event_loops import NEVER_CANCELLED, NativeCancellations
from ..streaming.kept_units import Deliveries, UnitCloser
from ..streaming.parts import routers_of
from .attempt import run_attempt
from .context import AttemptContext, GraphContext, Refusal
from .retries import SINGLE_ATTEMPT, Attempts, run_with_retries


async def run_called(caller: AttemptContext, task: Task) -> Settled:
    """Run a task that a node calls, in a task of its own; its result is recorded before anybody has it.

    When storing it fails, the caller gets that error, and nothing more is called: the superstep ends with it.
    """
    graph = caller.graph
    for failure in graph.unrecorded:
        return Failed(failure)
    recorded = graph.persistence.recorded(task, graph.run)
    if not isinstance(recorded, Unfinished):
        return recorded
    for done in caller.done_before(task):
        return done
    try:
        await graph.events.publisher.units.open(task, caller.task)
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        graph.unrecorded.append(error)
        return Failed(error)
    await _show(caller, graph.events.publisher.planned(caller.board, (task,)))
    outcome = await TaskRunner(graph, caller.board, NEVER_CANCELLED, contained=True).run(task, recorded)
    if isinstance(outcome, Failed):
        await _show(caller, graph.events.publisher.failed((task,), (outcome,)))
    if isinstance(outcome, Finished):
        try:
            await _record_called(caller, task, outcome)
        except UnstorableValueError as error:
            return Failed(error)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # nothing else may leave: no task group is there to take it
            graph.unrecorded.append(error)
            return Failed(error)
    return outcome


async def _record_called(caller: AttemptContext, task: Task, outcome: Finished) -> None:
    """Store what a called task gave, or keep it for the next attempt of its caller; and show it then."""
    events = caller.graph.events
    caller.keep_done(task, outcome)
    await events.publisher.units.wait_for_flush()
    closing = events.closer(task, outcome)
    await caller.graph.persistence.record(task, outcome.writes, routed=True, events=closing)
    if closing.is_closed:
        await events.closed(closing)
    else:
        await events.finished(task, outcome)


async def _show(caller: AttemptContext, deliveries: Deliveries) -> None:
    """Show parts of a called task. Waiting for a reader is not its caller's time."""
    if deliveries:
        with caller.waiting():
            await caller.graph.events.send(deliveries)


class TaskRunner:
    """Makes the attempts at one task of a graph's run.

    Args:
        natively_cancelled, contained: as in `run_attempt`.
    """

    __slots__ = ("_board", "_contained", "_graph", "_natively_cancelled")

    def __init__(
        self, graph: GraphContext, board: Board, natively_cancelled: NativeCancellations, *, contained: bool
    ) -> None:
        self._graph = graph
        self._board = board
        self._natively_cancelled = natively_cancelled
        self._contained = contained

    async def run(self, task: Task, recorded: Unfinished) -> Settled:
        """Run a task by its node's policies."""
        if recorded.failures:
            (error,) = recorded.failures
        else:
            outcome = await self._kept(task, recorded)
            if task.node.handler is None or not isinstance(outcome, Failed) or not self._can_be_handled(outcome):
                return outcome
            assert isinstance(outcome.error, Exception)
            error = outcome.error
            closing = await self._closing(task)
            await self._graph.persistence.record_failure(task, error, closing)
        return await self._handled(task, error)

    async def collect(self, task: Task, failed: Failed, channel: str) -> Settled:
        """Make a failure the task's update, under the policy `Collect`: its edges are taken as after any update."""
        if not self._can_be_handled(failed):
            return failed
        self._graph.observation.handled(task, failed.error, None)
        failure = NodeError(task.node.name, task.id, RecordedFailureError(*described(failed.error)))
        return await self._once(task, Unfinished([(channel, [failure])]))

    async def _kept(self, task: Task, recorded: Unfinished) -> Settled:
        results, graph = self._graph.results, self._graph
        policy = task.node.cache
        if results is None or policy is None or recorded.has_run:
            return await self._tried(task, recorded)

        def value() -> Any:
            return self._board.input_of(task.node) if task.send < 0 else isolate(task.arg)

        def compute(recorded: Unfinished) -> Awaitable[Settled]:
            return self._tried(task, recorded)

        if graph.run.answered(task.id):  # no other task gets what comes of that, nor this one another's result
            return await compute(NEW)
        return await results.share(task, policy, value, compute, context=graph.options.context)

    async def _tried(self, task: Task, recorded: Unfinished, failures: tuple[NodeError, ...] = ()) -> Settled:
        """Attempt a task until it has not failed, or is not to be retried."""
        if not task.node.retry:
            return await self._once(task, recorded, SINGLE_ATTEMPT, failures)

        def once(attempts: Attempts, writes: list[Write] | None) -> Awaitable[Settled]:
            return self._once(task, Unfinished(writes), attempts, failures)

        async def again(failed: Failed, number: int) -> None:
            self._graph.observation.retried(task, failed, number)
            if failed.writes is not None:
                await self._record_unrouted(task, failed.writes)

        return await run_with_retries(
            once, task, recorded.writes, self._graph.run.environment, final=self._is_final, again=again
        )

    async def _record_unrouted(self, task: Task, writes: list[Write]) -> None:
        """Record what the node wrote before its routers failed: the wait may be long, and the process may die."""
        recorded = self._graph.persistence.recorded(task, self._graph.run)
        if isinstance(recorded, Unfinished) and not recorded.has_run:
            await record_unrouted(self._graph, task, writes)

    def _once(
        self,
        task: Task,
        recorded: Unfinished,
        attempts: Attempts = SINGLE_ATTEMPT,
        failures: tuple[NodeError, ...] = (),
    ) -> Coroutine[Any, Any, Settled]:
        return run_attempt(
            self._graph,
            self._board,
            task,
            recorded,
            natively_cancelled=self._natively_cancelled,
            contained=self._contained,
            record=record_unrouted,
            attempts=attempts,
            failures=failures,
        )

    async def _handled(self, task: Task, error: Exception) -> Settled:
        """Run the node's error handler in the task's place. Its own failure leads a resume back to it."""
        handler = task.node.handler
        assert handler is not None, "a failure is recorded for a handler"
        graph, by = self._graph, task.handling(handler)
        graph.observation.handled(task, error, handler.name)
        graph.events.publisher.units.attribute(task, by.id)  # what the task did before is recorded with its failure
        await graph.events.send(graph.events.publisher.failed((task,), (Failed(error),)))
        await graph.events.send(graph.events.publisher.planned(self._board, (by,)))
        outcome = await self._tried(by, NEW, (NodeError(task.node.name, task.id, error),))
        assert not isinstance(outcome, NotStarted), "a handler goes with its task, which has begun"
        if not isinstance(outcome, Failed):
            return structs.replace(outcome, by=by)
        annotate(outcome.error, f"in the error handler of node {task.node.name!r}", context=error)
        if graph.persistence.is_stored:
            annotate(
                outcome.error,
                f"the failure of node {task.node.name!r} is recorded: a resume starts at its error handler, and does "
                "not run the node again. To leave that superstep, pass a new input, or give the node's result with "
                f"aupdate_state(config, values, as_node={task.node.name!r})",
            )
        return Failed(outcome.error)

    def _can_be_handled(self, failed: Failed) -> bool:
        """Return True for a node's failure, and not for that of its routers: what they decide no other code can."""
        return isinstance(failed.error, Exception) and not failed.has_run and not self._is_final(failed.error)

    def _is_final(self, error: BaseException) -> bool:
        """Return True if a failure is neither retried nor handled: storage has failed in this run, the node was
        refused what it asks for, or the task is being cancelled."""
        if self._graph.unrecorded or self._graph.run.lease.failures:
            return True
        if isinstance(error, Refusal):  # it would be the same in every attempt
            return True
        return anyio.current_effective_deadline() == float("-inf") or self._natively_cancelled()

    async def _closing(self, task: Task) -> UnitCloser:
        publisher = self._graph.events.publisher
        await publisher.units.wait_for_flush()
        return publisher.closer(task)


async def record_unrouted(graph: GraphContext, task: Task, writes: list[Write]) -> None:
    """Store a node's own writes before its routers are waited for."""
    publisher = graph.events.publisher
    await publisher.units.wait_for_flush()
    await graph.persistence.record(task, writes, routed=False, events=publisher.closer(task))
    publisher.units.attribute(task, routers_of(task.id))
