"""Run one task to its outcome, with its record, its node's policies and the graph's failure policy.

The first step that applies decides:

    recorded    the result, or the open questions, that an earlier run recorded
    cached      the result of an earlier run for an equal input (`result_cache`)
    attempts    attempts by the node's retry policies (`retries`), each within its timeout (`timeouts`)
    handler     the node's error handler runs instead of the node, in the same superstep, on the same input
    collected   the graph's failure policy makes the failure itself the task's update

A handled failure is recorded before its handler starts, so that a crash in the handler leads back to the handler and
not to the node. Storage errors are never retried and never reach error handlers.

`engine.runner` runs the tasks that a superstep plans, and `run_called` those that a node calls.
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
from ..._core.task import NEW, Failed, Finished, NotStarted, Paused, Settled, Task, Unfinished
from ...errors import NodeError, RecordedFailureError, UnstorableValueError
from ..observing.error_text import described
from ..platform.event_loops import NEVER_CANCELLED, NativeCancellations
from ..streaming.parts import routers_of
from ..streaming.stored_units import Deliveries, UnitCloser
from .attempt import run_attempt
from .context import AttemptContext, GraphContext, ReplayRefusal
from .retries import SINGLE_ATTEMPT, AttemptHistory, run_with_retries


async def run_called(caller: AttemptContext, task: Task) -> Settled:
    """Run a task that a node calls, and record its result before the caller can see it."""
    graph = caller.graph
    # After an error of storage no further task is called: its result could not be stored either.
    for failure in graph.unrecorded:
        return Failed(failure)
    recorded = graph.persistence.recorded(task, graph.run)
    if not isinstance(recorded, Unfinished):
        return recorded
    for done in caller.result_of_earlier_attempt(task):
        return done
    try:
        if caller.node_record is not None:
            await caller.node_record.store()
        await graph.events.publisher.units.open(task, caller.task)
    except UnstorableValueError as error:
        return Failed(error)
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        graph.unrecorded.append(error)
        return Failed(error)
    await _show(caller, graph.events.publisher.planned(caller.board, (task,)))
    # A called task has a task of the event loop to itself, so a native cancellation there is never the run's.
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
        except BaseException as error:  # no task group receives it, so it becomes the outcome
            graph.unrecorded.append(error)
            return Failed(error)
    return outcome


async def _record_called(caller: AttemptContext, task: Task, outcome: Finished) -> None:
    """Record the result of a called task, or keep it for the caller's next attempt; then publish its events."""
    # In this order: a reader must not see a result that a crash could still undo.
    events = caller.graph.events
    caller.keep_result(task, outcome)
    await events.publisher.units.wait_for_flush()
    closing = events.closer(task, outcome)
    await caller.graph.persistence.record(task, outcome.writes, routed=True, events=closing)
    if closing.is_closed:
        await events.closed(closing)
    else:
        await events.finished(task, outcome)


async def _show(caller: AttemptContext, deliveries: Deliveries) -> None:
    """Publish events of a called task. The caller's timeouts are paused during the wait for readers."""
    if deliveries:
        with caller.waiting():
            await caller.graph.events.send(deliveries)


class TaskRunner:
    """Runs tasks of a graph's run according to their policies.

    Args:
        graph: the context of the graph's run.
        board: the state that the superstep reads.
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
        """Run a task by its node's policies: cache, retries and error handler."""
        # A recorded failure means that a handler had begun: the resume continues with the handler.
        if recorded.failures:
            (error,) = recorded.failures
        else:
            outcome = await self._run_cached(task, recorded)
            if task.node.handler is None or not isinstance(outcome, Failed) or not self._can_be_handled(outcome):
                return outcome
            assert isinstance(outcome.error, Exception)
            error = outcome.error
            closing = await self._close_events(task)
            await self._graph.persistence.record_failure(task, error, closing)
            # Only after a failure in this run: a resume finds the failure recorded and runs the handler.
            if self._graph.options.stops_before(task.node.handler):
                return Paused((), handler_task=task.handling(task.node.handler))
        return await self._run_handler(task, error)

    async def collect(self, task: Task, failed: Failed, channel: str) -> Settled:
        """Make a failure the task's update, under the policy `Collect`. The node's edges and routers run as usual."""
        if not self._can_be_handled(failed):
            return failed
        self._graph.observation.handled(task, failed.error, None)
        # The text of the error, not the exception: the update is part of the state, and must be storable.
        failure = NodeError(task.node.name, task.id, RecordedFailureError(*described(failed.error)))
        return await self._run_once(task, Unfinished([(channel, [failure])]))

    async def _run_cached(self, task: Task, recorded: Unfinished) -> Settled:
        results, graph = self._graph.results, self._graph
        policy = task.node.cache
        if results is None or policy is None or recorded.has_run:
            return await self._run_with_retries(task, recorded)

        def value() -> Any:
            return self._board.input_of(task.node) if task.send < 0 else isolate(task.arg)

        def compute(recorded: Unfinished) -> Awaitable[Settled]:
            return self._run_with_retries(task, recorded)

        # The answer is not part of the cache key: the result of an answered task must neither be stored for other tasks
        # nor be replaced by one that was made with another answer.
        if graph.run.depends_on_answer(task.id):
            return await compute(NEW)
        return await results.get_or_compute(task, policy, value, compute, context=graph.options.context)

    async def _run_with_retries(
        self, task: Task, recorded: Unfinished, failures: tuple[NodeError, ...] = ()
    ) -> Settled:
        """Attempt a task until it does not fail, or its failure is not to be retried."""
        if not task.node.retry:
            return await self._run_once(task, recorded, SINGLE_ATTEMPT, failures)

        def once(attempts: AttemptHistory, writes: list[Write] | None) -> Awaitable[Settled]:
            return self._run_once(task, Unfinished(writes), attempts, failures)

        async def on_retry(failed: Failed, number: int) -> None:
            self._graph.observation.retried(task, failed, number)
            if failed.writes is not None:
                await self._record_unrouted(task, failed.writes)

        return await run_with_retries(
            once, task, recorded.writes, self._graph.run.environment, is_final=self._is_final, on_retry=on_retry
        )

    async def _record_unrouted(self, task: Task, writes: list[Write]) -> None:
        """Record the node's writes after its routers failed, unless they are recorded."""
        # The wait for the next attempt may be long, and the process may die meanwhile.
        recorded = self._graph.persistence.recorded(task, self._graph.run)
        if isinstance(recorded, Unfinished) and not recorded.has_run:
            await record_unrouted(self._graph, task, writes)

    def _run_once(
        self,
        task: Task,
        recorded: Unfinished,
        attempts: AttemptHistory = SINGLE_ATTEMPT,
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

    async def _run_handler(self, task: Task, error: Exception) -> Settled:
        """Run the node's error handler instead of the node. If the handler fails, a resume starts at the handler."""
        handler = task.node.handler
        assert handler is not None, "a failure is recorded for a handler"
        graph, handler_task = self._graph, task.handling(handler)
        graph.observation.handled(task, error, handler.name)
        graph.events.publisher.units.attribute(task, handler_task.id)  # events so far were stored with the failure
        await graph.events.send(graph.events.publisher.failed((task,), (Failed(error),)))
        await graph.events.send(graph.events.publisher.planned(self._board, (handler_task,)))
        outcome = await self._run_with_retries(handler_task, NEW, (NodeError(task.node.name, task.id, error),))
        assert not isinstance(outcome, NotStarted), "a handler goes with its task, which has begun"
        if not isinstance(outcome, Failed):
            return structs.replace(outcome, handler_task=handler_task)
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
        """Return True if the failure may be handled or collected."""
        # A failure of routers must not: no handler can choose the next nodes for them.
        return isinstance(failed.error, Exception) and not failed.has_run and not self._is_final(failed.error)

    def _is_final(self, error: BaseException) -> bool:
        """Return True if a failure must be neither retried nor handled.

        That is so if storage has failed in this run, the error is a refusal, or the task is being cancelled.
        """
        if self._graph.unrecorded or self._graph.run.lease.failures:
            return True
        if isinstance(error, ReplayRefusal):  # every attempt would fail with the same refusal
            return True
        return anyio.current_effective_deadline() == float("-inf") or self._natively_cancelled()

    async def _close_events(self, task: Task) -> UnitCloser:
        publisher = self._graph.events.publisher
        await publisher.units.wait_for_flush()
        return publisher.closer(task)


async def record_unrouted(graph: GraphContext, task: Task, writes: list[Write]) -> None:
    """Record a node's own writes before its routers have answered."""
    publisher = graph.events.publisher
    await publisher.units.wait_for_flush()
    await graph.persistence.record(task, writes, routed=False, events=publisher.closer(task))
    publisher.units.attribute(task, routers_of(task.id))
