"""One superstep's execution: all its tasks at once, joined at the barrier.

Several tasks run in a task group. Each has a task of the event loop to itself from when the first of them waits for
something; until then they need none (`_Group`). A single one is awaited in place, which is a task group of one, written
out: a group of its own would cost a superstep more than all the rest of it.
    1. it has a context of its own, so what it sets in context variables stays there (`attempt.in_own_context`);
    2. the event loop gets its turn, and a cancellation is noticed, at every barrier;
    3. outcome, error and cancellation are what one task in a group would give.
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
from ..platform.event_loops import NEVER_CANCELLED, NativeCancellations, alone, native_cancellations
from ..platform.loop_turns import LoopTurns
from ..streaming.kept_units import UnitCloser
from ..streaming.parts import routers_of
from ..tasks.attempt import noticed, run_attempt, start
from ..tasks.context import GraphContext
from ..tasks.driving import TaskRunner, record_unrouted
from ..tasks.timeouts import Timeout


class Runner:
    """Executes the supersteps of one graph's run.

    Args:
        graph: what the nodes reach.
        max_concurrency: how many tasks run at once; None for all.
        turns: the event loop's.
    """

    def __init__(self, graph: GraphContext, max_concurrency: int | None, turns: LoopTurns) -> None:
        self._graph = graph
        self._max_concurrency = max_concurrency
        self._turns = turns
        self._natively_cancelled = native_cancellations(graph.run.loop)

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """Run the tasks on the board as it is. See `superstep.Port.execute`."""
        graph, events = self._graph, self._graph.events
        if tasks[0].node.hidden and not tasks[0].node.routers:  # nothing is awaited, and a barrier follows
            began = start(board, tasks[0])
            if events.are_shown and isinstance(began, Finished):
                await events.send(events.publisher.began(tasks[0], began))
            return (began,)
        if events.are_shown and (planned := events.publisher.planned(board, tasks)):
            await events.send(planned)
        if self._turns.is_taken:
            self._turns.is_taken = False
        else:
            await self._turns.turn()
        timeout = graph.program.step_timeout
        if timeout is not None:
            return await self._within(timeout, board, tasks)
        if len(tasks) > 1:
            return await _Group(graph, board, tasks, self._max_concurrency).execute()
        (task,) = tasks
        outcome = await _run_planned(graph, board, task, self._natively_cancelled, contained=False)
        if isinstance(outcome, Finished):
            if self._natively_cancelled.count() > self._natively_cancelled.before:
                # The node has swallowed its caller's cancellation. A group would end with it all the same. A scope
                # raises it again; asyncio's own `Task.cancel()` raises once, so that it has to be raised here.
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise anyio.get_cancelled_exc_class()
            if events.are_shown:
                await self._show_finished(task, outcome)
        return (outcome,)

    async def _show_finished(self, task: Task, outcome: Finished) -> None:
        """Show the only task of a superstep: now, unless the superstep's own commit stores its result."""
        is_unstored = not self._graph.persistence.is_stored
        if is_unstored or outcome.replayed:
            await self._graph.events.finished(task, outcome, at_barrier=is_unstored)
        else:
            self._graph.events.finished_unstored(task, outcome)

    async def _within(self, timeout: float, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """All tasks in a group, however many, which is stopped when the superstep's time is up."""
        group = _Group(self._graph, board, tasks, self._max_concurrency)
        watch = Timeout(self._graph.run.environment, run=timeout, expire=group.expire)
        outcomes = await watch.over(group.execute)
        return group.timed_out(timeout) if outcomes is None else outcomes


async def _run_planned(
    graph: GraphContext, board: Board, task: Task, natively_cancelled: NativeCancellations, *, contained: bool
) -> Settled:
    """Run a task of a superstep, unless its result is recorded, or it waits for an answer that is not among those
    given.

    Args:
        natively_cancelled, contained: as in `run_attempt`.
    """
    records = graph.persistence.task_records
    recorded = records.recorded(task, graph.run) if records.entries else NEW
    if not isinstance(recorded, Unfinished):
        return recorded
    if recorded.has_run:
        graph.events.publisher.units.attribute(task, routers_of(task.id))
    if task.node.plain:  # it has no policies, and gets the same from its only attempt
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
    for failure in graph.unrecorded:  # whatever the node made of it: the superstep ends with that error alone
        raise failure
    if isinstance(outcome, Paused):
        try:
            graph.persistence.check(task, outcome)
        except UnstorableValueError as error:
            return Failed(error, outcome.writes)
    return outcome


class _Group:
    """The tasks of one superstep, when there are several.

    They begin in plan order, in one task of the group, which they share as long as none waits for anything: of ten
    thousand that compute, none needs a place in the event loop. As soon as one waits, each of the rest gets a task.
    """

    def __init__(self, graph: GraphContext, board: Board, tasks: Sequence[Task], max_concurrency: int | None) -> None:
        self._graph = graph
        self._board = board
        self._tasks = tasks
        self._width = min(max_concurrency or len(tasks), len(tasks))
        self._outcomes: list[Outcome] = [_OPEN] * len(tasks)
        self._places = iter(range(len(tasks)))
        self._open = len(tasks)
        self._broken: list[BaseException] = []  # what storing a result has failed with
        self._fails_fast = graph.options.on_failure == "fail_fast"
        self._group = anyio.create_task_group()
        self._is_late = False  # the superstep's time is up
        self._late: list[Exception] = []  # what failed after that

    async def execute(self) -> Sequence[Outcome]:
        try:
            async with self._group as group:
                if self._width == len(self._tasks):
                    start_soon(group, partial(self._in_turn, copy_context()))
                else:
                    for _ in range(self._width):
                        start_soon(group, self._several)
        except BaseExceptionGroup as several:
            raise alone(several) from None
        except anyio.get_cancelled_exc_class():
            failed = [outcome.error for outcome in self._outcomes if isinstance(outcome, Failed)]
            if all(isinstance(error, NodeCancelledError) for error in failed):
                raise  # else a node failed while it was being cancelled, and that is raised
        for error in self._broken:
            raise error
        return self._outcomes

    async def _several(self) -> None:
        for place in self._places:
            if self._group.cancel_scope.cancel_called:
                return  # a sibling has failed; a node that never awaits would not notice
            await self._one(place)

    async def _in_turn(self, context: Context) -> None:
        """Run the tasks one after the other, until one of them waits for something.

        Args:
            context: without the node that runs when another task of the group is started.
        """
        part = partial(self._part, context)
        cancelled = native_cancellations(self._graph.run.loop)
        for place in self._places:
            await noticed(self._one(place), part)
            if cancelled():  # by the node, which has a task of its own as far as it knows
                part()

    def _part(self, context: Context) -> None:
        """Give each task that has not begun a task of the group to itself."""
        for place in self._places:
            context.run(start_soon, self._group, partial(self._one, place, contained=True))

    async def _one(self, place: int, *, contained: bool = False) -> None:
        """Run one task, and keep what became of it. Nothing but a cancellation leaves here."""
        graph, task = self._graph, self._tasks[place]
        try:
            outcome = await _run_planned(graph, self._board, task, NEVER_CANCELLED, contained=contained)
            if self._is_late and self._comes_late(outcome):
                return
            self._outcomes[place] = outcome
            if isinstance(outcome, Failed):
                if self._fails_fast or not isinstance(outcome.error, Exception):  # what ends a process ends all
                    self._stop()
                return
            if isinstance(outcome, (Paused, NotStarted)):
                # The others run on, and all of them are recorded: no commit of this superstep follows.
                return
            self._open -= 1
            if not graph.persistence.is_stored or outcome.replayed:
                await graph.events.finished(task, outcome)
            elif self._open:
                await self._record(place, task, outcome)
            else:  # the last to finish needs no record: the superstep's commit holds its writes
                graph.events.finished_unstored(task, outcome)
        except anyio.get_cancelled_exc_class():
            raise
        except Exception as error:
            # Storage failed: the superstep ends with that error, and with it alone.
            self._broken.append(error)
            self._stop()

    async def _record(self, place: int, task: Task, outcome: Finished) -> None:
        """Store the result of a task whose siblings are attempt, and show it then."""
        events = self._graph.events
        closing = events.closer(task, outcome)
        try:
            await events.publisher.units.wait_for_flush()
            await self._graph.persistence.record(outcome.by or task, outcome.writes, routed=True, events=closing)
        except UnstorableValueError as error:
            self._outcomes[place] = Failed(error, None if outcome.by else outcome.writes[: outcome.own])
            if self._fails_fast:
                self._stop()
        except anyio.get_cancelled_exc_class():  # a sibling has failed: this is stored with the failure
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
        """The superstep's time is up: whatever becomes of the tasks that go on does not count any more, and whatever
        they do reaches nothing."""
        self._is_late = True
        for attempt in list(self._graph.open_attempts):
            attempt.stop()

    def _comes_late(self, outcome: Outcome) -> bool:
        """Whether an outcome comes after the time, and does not end the process. The timeout notes a failure."""
        if not isinstance(outcome, Failed):
            return True
        if isinstance(outcome.error, Exception):
            self._late.append(outcome.error)
            return True
        return False

    def timed_out(self, timeout: float) -> Sequence[Outcome]:
        """The outcomes, when the superstep's time was up: what had not finished has failed with that."""
        pairs = zip(self._tasks, self._outcomes, strict=True)
        unfinished = tuple([task.node.name for task, outcome in pairs if outcome is _OPEN])
        error = StepTimeoutError(self._tasks[0].step, timeout, unfinished)
        for late in self._late:
            error.__context__ = error.__context__ or late
            where = next((note for note in getattr(late, "__notes__", ()) if note.startswith("in node ")), "")
            error.add_note(f"and while it was stopped: {': '.join(described(late))} ({where})")
        return [Failed(error) if outcome is _OPEN else outcome for outcome in self._outcomes]

    def _stop(self) -> None:
        self._group.cancel_scope.cancel()


_OPEN = Cancelled()
"""The outcome of a task as long as it has no other."""
