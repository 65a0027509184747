"""Run one graph: implement the algorithm's port, which is execute, checkpoint, pause and fail.

The runner executes tasks, the persistence stores them, and the events publish them to readers. This module calls the
three in the order that durability requires: a superstep is stored before a reader is shown that it is stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator, Sequence

import anyio
import msgspec

from checkpoint_savers.errors import CheckpointError, annotate

from ..._core import superstep
from ..._core.board import Board
from ..._core.ownership import REGISTERED
from ..._core.program import Program
from ..._core.stop import drained, overspent
from ..._core.task import NEW, Cancelled, Finished, Outcome, Paused, Task
from ..._core.untracked import filled, missing
from ...errors import InvalidInputError, UntrackedValueLostError
from ...types import Interrupt
from ..observing.error_text import with_notes
from ..persistence.digests import AnsweredQuestions
from ..persistence.namespace_writer import NOTHING_ANSWERED, NamespaceWriter
from ..streaming.parts import Unit
from ..streaming.run_events import Superstep
from ..tasks.context import GraphContext
from .call_input import CallInput, answers_to
from .runner import Runner
from .settings import Settings


class EndedRun(msgspec.Struct, frozen=True):
    """The end of a run that did not fail.

    Attributes:
        board: the last board.
        done: nothing is left to run; False if the run has paused, at questions or at a breakpoint.
        interrupts: the open questions, in plan order.
    """

    board: Board
    done: bool
    interrupts: tuple[Interrupt, ...]


class GraphRun:
    """One run of one graph: applies the input to the board, runs the algorithm, and is its port.

    Args:
        graph: the objects that the nodes of the run share.
        settings: the settings of the call.
        scope: the scope of task ids; see `superstep.Scope`.
        runner: executes the tasks.
    """

    def __init__(self, graph: GraphContext, settings: Settings, scope: tuple[str, str], runner: Runner) -> None:
        self._graph = graph
        self._program: Program = graph.program
        self._persistence = graph.persistence
        self._events = graph.events
        self._observation = graph.observation
        self._limit = settings.limit
        self._breakpoints = settings.breakpoints
        self._scope = scope
        self._runner = runner
        self._interrupts: tuple[Interrupt, ...] = ()
        self._paused = False
        self._board = graph.persistence.start
        self._begun = False  # True once the input or the resume has been applied to the board

    async def run(self, call_input: CallInput) -> EndedRun:
        """Run the graph until nothing is left to run, or until it pauses.

        Args:
            call_input: the input of the call.
        """
        run_context, resumed = self._graph.run, not (call_input.is_input or self._persistence.is_new)
        # A subgraph without a thread returns its result to the outer graph, so that the outer graph's registered
        # classes have to survive in it: they are replaced only by classes of this graph's own.
        token = REGISTERED.set(self._persistence.kept_scalars) if self._persistence.kept_scalars else None
        try:
            supersteps = superstep.run(
                self._program,
                self._board,
                self,
                scope=self._scope,
                limit=self._limit,
                tasks=await (self._resume(call_input) if resumed else self._apply_input(call_input)),
                breakpoints=self._breakpoints,
                resumed=resumed and not call_input.is_input,
                barrier=self._barrier if self._graph.control is not None or run_context.spending.is_limited else None,
            )
            self._begun = True
            # Thousands of runs may wait at once, and Python's collector traverses all that they hold: the input is not
            # among it.
            del call_input
            done = await supersteps
            self._events.begin()  # does nothing if `execute` has called it
            if done:
                self._events.done("done")
            elif not self._paused:  # between two supersteps: at a breakpoint, or drained, or overspent
                deliveries = self._events.stopping(self._board, run_context.stop)
                await self._persistence.flush()
                await self._events.send(deliveries)
            await self._persistence.close()
        except Exception as error:
            await self._failed(error)
            raise
        except anyio.get_cancelled_exc_class():
            await self._cancelled()
            raise
        except GeneratorExit:
            # The coroutine is closed without an event loop, for example at interpreter exit: no await is possible.
            raise
        except BaseException as error:  # `KeyboardInterrupt` and `SystemExit`; `ParentCommand` for an outer graph
            await self._flush_after(error)
            raise
        finally:
            if token:
                REGISTERED.reset(token)
        return EndedRun(self._board, done, self._interrupts)

    def _barrier(self, board: Board, tasks: Sequence[Task]) -> bool:
        """Return True if the run has to stop before these tasks: it is drained, or a limit is exceeded."""
        run_context, control = self._graph.run, self._graph.control
        if control is not None and control.drain_reason is not None:
            run_context.stop = drained(control.drain_reason)
        for error in run_context.spending.exceeded(board.step, superstep.names_of(tasks)):
            run_context.stop = overspent(error)
        return bool(run_context.stop.errors)

    @property
    def _step(self) -> int:
        """The number of the open superstep; 0 before the run has begun."""
        return self._board.step + 1 if self._begun else 0

    async def _resume(self, call_input: CallInput) -> Sequence[Task] | None:
        """Continue from the stored board.

        Returns:
            The open superstep's tasks if they were planned in another thread, from which this one was copied; else
            None, so that the algorithm plans them.
        """
        namespace, board, run_context = self._persistence, self._board, self._graph.run
        assert isinstance(namespace, NamespaceWriter), "only a stored namespace can be resumed"
        if call_input.is_command:
            answers = answers_to(call_input.resume, namespace) if call_input.answers else {}
            await namespace.resume(board, answers, self._program.validated(board.values, call_input.writes))
            run_context.new_answers = answers
        loaded = namespace.tip
        if namespace.ns == "":
            await namespace.find_moved_tips()
        namespace.branch_off(board)
        if namespace.ns == "":
            run_context.answers = namespace.answers()
            run_context.answered_questions = AnsweredQuestions(namespace.answered_questions(), namespace.is_same)
        await self._events.resumed(namespace, board, self._open_units, branched=namespace.tip != loaded)
        return superstep.plan(self._program, board, self._open_scope) if namespace.scope != self._scope[0] else None

    async def _apply_input(self, call_input: CallInput) -> Sequence[Task]:
        """Apply the input to the board and store it. Return the tasks that it triggers.

        Pending tasks are discarded: they count as run, and have written nothing.
        """
        board, program = self._board, self._program
        writes = program.validated(board.values, call_input.writes)
        discarded = superstep.plan(program, board, self._open_scope) if board.updated else []
        superstep.update(program, board, discarded, [*[[] for _ in discarded], writes], scope=self._scope)
        board.ran = ()  # the discarded tasks did not really run, and history must not say so
        upcoming = superstep.plan(program, board, self._scope)
        if not call_input.is_input and not upcoming:
            raise InvalidInputError(
                f"the command given to graph {program.name!r} only updates the state, and nothing is stored to "
                "continue from: pass an input, or a command with goto="
            )
        nothing = [Cancelled()] * len(discarded)
        step = Superstep(board=board, ran=discarded, outcomes=nothing, upcoming=upcoming, source="input")
        await self._events.commit(self._persistence, step)
        return upcoming

    @property
    def _open_scope(self) -> tuple[str, str]:
        """The scope of the loaded superstep's task ids, which name the thread in which it was planned."""
        return self._persistence.scope, self._scope[1]

    def _open_units(self, everything: bool) -> Iterator[Unit]:
        """Yield the units of the open superstep that run again; with `everything`, also the recorded ones."""
        units = self._events.publisher.units
        for task in superstep.plan(self._program, self._board, self._open_scope):
            recorded = self._persistence.recorded(task, NOTHING_ANSWERED)
            if everything or not isinstance(recorded, Finished):
                # The node itself does not run again if only its routers or its error handler are left.
                over = set() if everything or recorded == NEW else {task.id}
                yield from (unit for unit in units.of_task(task) if unit.id not in over)

    def execute(self, board: Board, tasks: Sequence[Task]) -> Awaitable[Sequence[Outcome]]:
        lease = self._graph.run.lease
        # With "async" the previous superstep was stored while this one was planned; it may have failed by now.
        if lease.failures:
            lease.require_storage()
        if self._program.untracked:
            self._fill_in(board, tasks)
        if self._events.are_shown and not tasks[0].node.hidden:
            self._events.begin()
        if self._observation.is_on:
            self._observation.superstep_started(tasks)
        return self._runner.execute(board, tasks)

    def _fill_in(self, board: Board, tasks: Sequence[Task]) -> None:
        """Replace the marks for untracked values in restored sends with the values that the state has now.

        Raises:
            UntrackedValueLostError: the state has no such value. No task of the superstep has run.
        """
        for task in tasks:
            lost = missing(task.arg) if task.send >= 0 else ()
            if lost and not isinstance(self._persistence.recorded(task, NOTHING_ANSWERED), Finished):
                for key in lost:
                    if key not in board.values:
                        thread_id = self._graph.run.lease.thread_id or self._scope[0]
                        raise UntrackedValueLostError(task.node.name, key, thread_id, task.step)
                task.arg = filled(task.arg, {key: board.values[key] for key in lost})

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        if self._events.are_shown:
            stops = upcoming and self._breakpoints and self._breakpoints.between(ran, upcoming, outcomes)
            step = Superstep(board=board, ran=ran, outcomes=outcomes, upcoming=upcoming, stops=bool(stops))
            await self._events.commit(self._persistence, step)
        elif self._persistence.is_stored:
            await self._persistence.commit(board, ran, outcomes, upcoming)
        if self._observation.is_on:
            self._observation.superstep_ended("done", outcomes)

    async def pause(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        deliveries = await self._events.pausing(self._persistence, board, tasks, outcomes, self._graph.run.stop)
        await self._persistence.pause(tasks, outcomes)
        paused = [outcome for outcome in outcomes if isinstance(outcome, Paused)]
        self._interrupts, self._paused = tuple([each for pause in paused for each in pause.interrupts]), True
        await self._events.send(deliveries)
        self._observation.superstep_ended("interrupted", outcomes)

    async def fail(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        if tasks[0].node.hidden and not tasks[0].node.routers:
            # Only the hidden start has run, so the state has refused the input: store nothing of the call.
            self._persistence.discard()
        else:
            events, persistence = self._events, self._persistence
            unrecorded, recorded = await events.failing_superstep(persistence, tasks, outcomes, error, self._step)
            # Two sets of parts, because results that could not be recorded must not be shown as stored.
            is_recorded = await persistence.fail(tasks, outcomes, error)
            await events.send(recorded if is_recorded else unrecorded)
        self._observation.superstep_ended("failed", outcomes)

    async def _failed(self, error: Exception) -> None:
        """Show a failure outside of a superstep: a limit, an unstorable value, failing storage."""
        deliveries = self._events.failing(error, self._step, begun=self._begun)
        await self._flush_after(error)
        self._events.done("failed")  # replaces the status of an end that could not be stored
        await self._events.send(deliveries)

    async def _cancelled(self) -> None:
        """Store that the run was cancelled for good, if it was, so that no other process resumes it."""
        # Shielded, as the run is being cancelled. A storage error is dropped: the cancellation must leave the run.
        if self._events.cancelling(self._step):
            with anyio.CancelScope(shield=True), contextlib.suppress(CheckpointError):
                await self._persistence.flush()
        await self._persistence.close()

    async def _flush_after(self, error: BaseException) -> None:
        """Store what is still queued, after an error. If that fails, the failure becomes a note of `error`."""
        try:
            await self._persistence.flush()
        except CheckpointError as second:
            if second is error or self._graph.run.lease.durability == "sync":
                return  # `error` reports the failed storage already
            annotate(error, f"and queued data could not be stored: {with_notes(second)}")
