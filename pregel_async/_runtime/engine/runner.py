"""Execute one superstep: run all its tasks concurrently, and wait for all of them.

Several tasks run in a task group. They share one task of the event loop until the first of them waits; then each gets
its own (`_Group`). A single task is awaited in place, which behaves as a task group of one:
    1. the task has its own context, so that context variables it sets stay there (`attempt.in_own_context`);
    2. the event loop gets a turn, and a cancellation is noticed, at every barrier;
    3. outcome, error and cancellation are the same as in a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context, copy_context
from functools import partial

import anyio
import anyio.lowlevel

from checkpoint_savers.children import start_soon

from ..._core.board import Board
from ..._core.task import NEW, Cancelled, Failed, Finished, NotStarted, Outcome, Paused, Settled, Task, Unfinished
from ...errors import NodeCancelledError, StepTimeoutError, UnstorableValueError
from ...policies import Collect
from ..observing.error_text import described
from ..platform.event_loops import NEVER_CANCELLED, NativeCancellations, native_cancellations, sole_exception
from ..platform.first_wait import call_on_first_wait
from ..platform.loop_turns import LoopTurns
from ..streaming.parts import routers_of
from ..streaming.stored_units import UnitCloser
from ..tasks.attempt import run_attempt, run_hidden_start
from ..tasks.context import GraphContext
from ..tasks.task_runner import TaskRunner, record_unrouted
from ..tasks.timeouts import Timeout


class Runner:
    """Executes the supersteps of one graph's run.

    Args:
        graph: the objects that the nodes share.
        max_concurrency: the greatest number of tasks that run at once; None for no limit.
        turns: the event loop's turns.
    """

    def __init__(self, graph: GraphContext, max_concurrency: int | None, turns: LoopTurns) -> None:
        self._graph = graph
        self._max_concurrency = max_concurrency
        self._turns = turns
        self._natively_cancelled = native_cancellations(graph.run.loop)

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """Run the tasks on the board. See `superstep.Port.execute`."""
        graph, events = self._graph, self._graph.events
        # The hidden start runs no user code and awaits nothing, so that it needs neither a turn nor an attempt.
        if tasks[0].node.hidden and not tasks[0].node.routers:
            began = run_hidden_start(board, tasks[0])
            if events.are_shown and isinstance(began, Finished) and (parts := events.publisher.began(tasks[0], began)):
                await events.send(parts)
            return (began,)
        if events.are_shown and (planned := events.publisher.planned(board, tasks)):
            await events.send(planned)
        if self._turns.is_taken:
            self._turns.is_taken = False
        else:
            await self._turns.turn()
        timeout = graph.program.step_timeout
        if timeout is not None:
            return await self._execute_within(timeout, board, tasks)
        if len(tasks) > 1:
            return await _Group(graph, board, tasks, self._max_concurrency).execute()
        # In place: a task group would cost more than the rest of the superstep.
        (task,) = tasks
        outcome = await _run_planned(graph, board, task, self._natively_cancelled, contained=False)
        if isinstance(outcome, Finished):
            if self._natively_cancelled.count() > self._natively_cancelled.before:
                # The node has swallowed its caller's cancellation, which a group would raise all the same. A cancel
                # scope raises its cancellation again. asyncio's `Task.cancel()` raises only once, hence the `raise`.
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise anyio.get_cancelled_exc_class()
            if events.are_shown:
                await self._show_finished(task, outcome)
        return (outcome,)

    async def _show_finished(self, task: Task, outcome: Finished) -> None:
        """Show the result of a superstep's only task: now, or with the commit that stores it."""
        is_unstored = not self._graph.persistence.is_stored
        if is_unstored or outcome.replayed:
            await self._graph.events.finished(task, outcome, at_barrier=is_unstored)
        else:
            self._graph.events.finished_unstored(task, outcome)

    async def _execute_within(self, timeout: float, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """Run the tasks in a group that is stopped when the superstep's timeout (in seconds) expires."""
        group = _Group(self._graph, board, tasks, self._max_concurrency)
        watch = Timeout(self._graph.run.environment, run=timeout, expire=group.expire)
        outcomes = await watch.run(group.execute)
        return group.timed_out(timeout) if outcomes is None else outcomes


async def _run_planned(
    graph: GraphContext, board: Board, task: Task, natively_cancelled: NativeCancellations, *, contained: bool
) -> Settled:
    """Return a task's recorded outcome, or run the task.

    A task whose questions this call does not answer is not run: its recorded outcome is `Paused`.

    Args:
        natively_cancelled, contained: as in `run_attempt`.
    """
    records = graph.persistence.task_records
    recorded = NEW
    if records.results:
        found = records.recorded(task, graph.run)
        if not isinstance(found, Unfinished):
            return found
        recorded = found
        if recorded.has_run:
            graph.events.publisher.units.attribute(task, routers_of(task.id))
    if task.node.plain:  # no policies: `TaskRunner` would make the same single attempt
        outcome = await run_attempt(
            graph,
            board,
            task,
            recorded,
            natively_cancelled=natively_cancelled,
            contained=contained,
            record=record_unrouted,
        )
    else:
        outcome = await TaskRunner(graph, board, natively_cancelled, contained=contained).run(task, recorded)
    if isinstance(outcome, Failed) and isinstance(graph.options.on_failure, Collect):
        runner = TaskRunner(graph, board, natively_cancelled, contained=contained)
        outcome = await runner.collect(task, outcome, graph.options.on_failure.channel)
    for failure in graph.unrecorded:  # a called task's result could not be stored: raised even if the node caught it
        raise failure
    if isinstance(outcome, Paused):
        try:
            graph.persistence.check(task, outcome)
        except UnstorableValueError as error:
            return Failed(error, outcome.writes)
    return outcome


class _Group:
    """The concurrent tasks of one superstep.

    They start in plan order in one task of the group, which they share as long as none of them waits. As soon as one
    waits, each of the rest gets its own.
    """

    # Ten thousand nodes that only compute need no tasks of the event loop, each of which costs memory and a turn.

    def __init__(self, graph: GraphContext, board: Board, tasks: Sequence[Task], max_concurrency: int | None) -> None:
        self._graph = graph
        self._board = board
        self._tasks = tasks
        self._width = min(max_concurrency or len(tasks), len(tasks))
        self._outcomes: list[Outcome] = [_OPEN] * len(tasks)
        self._positions = iter(range(len(tasks)))
        self._open = len(tasks)
        self._storage_errors: list[BaseException] = []  # the errors of storing results
        self._fails_fast = graph.options.on_failure == "fail_fast"
        self._group = anyio.create_task_group()
        self._is_expired = False  # the superstep's timeout has expired
        self._late_errors: list[Exception] = []  # errors of tasks that ended after the timeout

    async def execute(self) -> Sequence[Outcome]:
        try:
            async with self._group as group:
                if self._width == len(self._tasks):
                    start_soon(group, partial(self._run_in_turn, copy_context()))
                else:
                    for _ in range(self._width):
                        start_soon(group, self._run_tasks)
        except BaseExceptionGroup as several:
            raise sole_exception(several) from None
        except anyio.get_cancelled_exc_class():
            failed = [outcome.error for outcome in self._outcomes if isinstance(outcome, Failed)]
            if all(isinstance(error, NodeCancelledError) for error in failed):
                raise  # otherwise a node failed while it was being cancelled, and its error is raised
        for error in self._storage_errors:
            raise error
        return self._outcomes

    async def _run_tasks(self) -> None:
        for position in self._positions:
            if self._group.cancel_scope.cancel_called:
                return  # a sibling has failed. A node that never awaits would not notice the cancellation.
            await self._run_task(position)

    async def _run_in_turn(self, context: Context) -> None:
        """Run the tasks one after the other, until one of them waits.

        Args:
            context: the group's context. Tasks are started in it, because the current context at that moment is the
                context of the node that waits.
        """
        start_remaining = partial(self._start_remaining, context)
        cancelled = native_cancellations(self._graph.run.loop)
        for position in self._positions:
            await call_on_first_wait(self._run_task(position), start_remaining)
            if cancelled():  # by the node, for which this is its own task: the others must not be cancelled with it
                start_remaining()

    def _start_remaining(self, context: Context) -> tuple[()]:
        """Start a task of the group for each task that has not begun. The task that waits waits for none of them."""
        for position in self._positions:
            context.run(start_soon, self._group, partial(self._run_task, position, contained=True))
        return ()

    async def _run_task(self, position: int, *, contained: bool = False) -> None:
        """Run one task and set its outcome. Raises nothing but a cancellation."""
        graph, task = self._graph, self._tasks[position]
        try:
            outcome = await _run_planned(graph, self._board, task, NEVER_CANCELLED, contained=contained)
            if self._is_expired and self._is_ignored(outcome):
                return
            self._outcomes[position] = outcome
            if isinstance(outcome, Failed):
                if self._fails_fast or not isinstance(
                    outcome.error, Exception
                ):  # `KeyboardInterrupt` and `SystemExit` stop all siblings
                    self._stop()
                return
            if isinstance(outcome, (Paused, NotStarted)):
                # `_open` does not reach zero then, so that each sibling is recorded: no commit of this superstep
                # follows that could hold the writes of the last one.
                return
            self._open -= 1
            if not graph.persistence.is_stored or outcome.replayed:
                await graph.events.finished(task, outcome)
            elif self._open:
                await self._record(position, task, outcome)
            else:  # the last task to finish needs no record, because the superstep's commit has its writes
                graph.events.finished_unstored(task, outcome)
        except anyio.get_cancelled_exc_class():
            raise
        except Exception as error:
            # Storage failed. The superstep raises this error alone, not in a group with the nodes' errors.
            self._storage_errors.append(error)
            self._stop()

    async def _record(self, position: int, task: Task, outcome: Finished) -> None:
        """Store the result of a task while its siblings run, then show it."""
        events = self._graph.events
        closing = events.closer(task, outcome)
        try:
            await events.publisher.units.wait_for_flush()
            await self._graph.persistence.record(
                outcome.handler_task or task, outcome.writes, routed=True, events=closing
            )
        except UnstorableValueError as error:
            self._outcomes[position] = Failed(error, None if outcome.handler_task else outcome.writes[: outcome.own])
            if self._fails_fast:
                self._stop()
        except anyio.get_cancelled_exc_class():  # a sibling has failed: the result is stored with the failure
            if not closing.is_closed:
                events.finished_unstored(task, outcome)
            raise
        else:
            await self._show_recorded(task, outcome, closing)

    async def _show_recorded(self, task: Task, outcome: Finished, closing: UnitCloser) -> None:
        if closing.is_closed:
            await self._graph.events.closed(closing)
        else:
            await self._graph.events.finished(task, outcome)

    def expire(self) -> None:
        """Note that the timeout has expired, and detach all running attempts.

        Outcomes after this do not count, and calls from the attempts raise an error.
        """
        self._is_expired = True
        for attempt in list(self._graph.open_attempts):
            attempt.stop()

    def _is_ignored(self, outcome: Outcome) -> bool:
        """Return True if an outcome after the timeout is dropped: all except `KeyboardInterrupt` and `SystemExit`.

        Other errors are retained, and become notes of the timeout's error.
        """
        if not isinstance(outcome, Failed):
            return True
        if isinstance(outcome.error, Exception):
            self._late_errors.append(outcome.error)
            return True
        return False

    def timed_out(self, timeout: float) -> Sequence[Outcome]:
        """Return the outcomes after the timeout expired: unfinished tasks have failed with one `StepTimeoutError`."""
        pairs = zip(self._tasks, self._outcomes, strict=True)
        unfinished = tuple([task.node.name for task, outcome in pairs if outcome is _OPEN])
        error = StepTimeoutError(self._tasks[0].step, timeout, unfinished)
        for late in self._late_errors:
            error.__context__ = error.__context__ or late
            where = next((note for note in getattr(late, "__notes__", ()) if note.startswith("in node ")), "")
            error.add_note(f"and while it was stopped: {': '.join(described(late))} ({where})")
        return [Failed(error) if outcome is _OPEN else outcome for outcome in self._outcomes]

    def _stop(self) -> None:
        self._group.cancel_scope.cancel()


_OPEN = Cancelled()
"""The outcome of a task that has not ended."""
