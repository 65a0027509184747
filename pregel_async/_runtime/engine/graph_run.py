"""The port that the algorithm asks of the world: execute, checkpoint, pause, give up.

A superstep's tasks are the runner's, what is stored the persistence's, and what is shown the events'. Here they meet,
in the order that durability asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator, Sequence

import anyio
import msgspec

from checkpoint_savers.errors import CheckpointError, annotate

from ..._core import superstep
from ..._core.board import Board
from ..._core.isolation import REGISTERED
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


class Ended(msgspec.Struct, frozen=True):
    """How a run ended that did not fail.

    Attributes:
        board: the last.
        done: nothing is left to run; else it has paused, at questions or at a breakpoint.
        interrupts: the open questions, in plan order.
    """

    board: Board
    done: bool
    interrupts: tuple[Interrupt, ...]


class GraphRun:
    """One run of one graph: puts the input on the board, lets the algorithm run, and is the port that it asks.

    Args:
        graph: what the nodes of the run share.
        settings: of the call.
        scope: what ids of tasks are made in.
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
        self._begun = False  # the board is the one to run from

    async def go(self, call: CallInput) -> Ended:
        """Run the graph."""
        run_context, resumed = self._graph.run, not (call.is_input or self._persistence.is_new)
        # A graph inside another of which nothing is stored gives its result to that one: what that one stores, stays.
        scalars = self._persistence.kept_scalars or REGISTERED.get()
        token = REGISTERED.set(scalars)
        try:
            tasks = await (self._resume(call) if resumed else self._enter(call))
            self._begun = True
            done = await superstep.run(
                self._program,
                self._board,
                self,
                scope=self._scope,
                limit=self._limit,
                tasks=tasks,
                breakpoints=self._breakpoints,
                resumed=resumed and not call.is_input,
                barrier=self._barrier if self._graph.control is not None or run_context.spending.is_limited else None,
            )
            self._events.begin()  # if it has not
            if done:
                self._events.done("done")
            elif not self._paused:  # between two supersteps: at a breakpoint, or because it was asked to
                deliveries = self._events.stopping(self._board, run_context.stop)
                await self._persistence.rest()
                await self._events.send(deliveries)
            await self._persistence.finish()
        except Exception as error:
            await self._failed(error)
            raise
        except anyio.get_cancelled_exc_class():
            await self._cancelled()
            raise
        except GeneratorExit:
            raise
        except BaseException as error:  # what ends a process, or the graph around
            await self._finish_beside(error)
            raise
        finally:
            REGISTERED.reset(token)
        return Ended(self._board, done, self._interrupts)

    def _barrier(self, board: Board, tasks: Sequence[Task]) -> bool:
        """Whether to stop before these tasks: as it was asked to, or as more was spent than may be."""
        run_context, control = self._graph.run, self._graph.control
        if control is not None and control.drain_reason is not None:
            run_context.stop = drained(control.drain_reason)
        for error in run_context.spending.exceeded(board.step, superstep.names_of(tasks)):
            run_context.stop = overspent(error)
        return bool(run_context.stop.errors)

    @property
    def _step(self) -> int:
        """The superstep that is open; 0 before the run has begun."""
        return self._board.step + 1 if self._begun else 0

    async def _resume(self, call: CallInput) -> Sequence[Task] | None:
        """Continue from the stored board. Return the open superstep's tasks, if they were planned in another thread."""
        thread, board, run_context = self._persistence, self._board, self._graph.run
        assert isinstance(thread, NamespaceWriter), "what holds something is stored"
        if call.is_command:
            answers = answers_to(call.resume, thread.questions(), thread.thread_id) if call.answers else {}
            await thread.resume(board, answers, self._program.validated(board.values, call.edits))
            run_context.given = answers
        loaded = thread.tip
        if thread.ns == "":
            await thread.find_kept()
        thread.branch_off(board)
        if thread.ns == "":
            run_context.answers = thread.answers()
            run_context.asked = AnsweredQuestions(thread.answered_questions(), thread.is_same)
        await self._events.resumed(thread, board, self._open_units, branched=thread.tip != loaded)
        return superstep.plan(self._program, board, self._open_scope) if thread.scope != thread.thread_id else None

    async def _enter(self, call: CallInput) -> Sequence[Task]:
        """Write the input on the board. What was pending is discarded: those tasks count as run, and wrote nothing."""
        board, program = self._board, self._program
        writes = program.validated(board.values, call.writes or call.edits)
        discarded = superstep.plan(program, board, self._open_scope) if board.updated else []
        superstep.update(program, board, discarded, [*[[] for _ in discarded], writes], scope=self._scope)
        board.ran = ()
        upcoming = superstep.plan(program, board, self._scope)
        if not call.is_input and not upcoming:
            raise InvalidInputError(
                f"the command given to graph {program.name!r} only updates, and nothing is stored to go on "
                "with: pass an input, or say goto="
            )
        nothing = [Cancelled()] * len(discarded)
        step = Superstep(board=board, ran=discarded, outcomes=nothing, upcoming=upcoming, source="input")
        await self._events.commit(self._persistence, step)
        return upcoming

    @property
    def _open_scope(self) -> tuple[str, str]:
        """What the ids of the loaded superstep's tasks are made of."""
        return self._persistence.scope, self._scope[1]

    def _open_units(self, everything: bool) -> Iterator[Unit]:
        """The units of the open superstep that run again; if `everything`, with those that are recorded."""
        units = self._events.publisher.units
        for task in superstep.plan(self._program, self._board, self._open_scope):
            recorded = self._persistence.recorded(task, NOTHING_ANSWERED)
            if everything or not isinstance(recorded, Finished):
                # Of a task whose routers or error handler are left, only these run.
                over = set() if everything or recorded == NEW else {task.id}
                yield from (unit for unit in units.of_task(task) if unit.id not in over)

    # ---- superstep.Port ----------------------------------------------------------------------------------------------

    def execute(self, board: Board, tasks: Sequence[Task]) -> Awaitable[Sequence[Outcome]]:
        lease = self._graph.run.lease
        if lease.failures:  # "async": the last superstep could not be stored
            lease.require_storage()
        if self._program.untracked:
            self._fill_in(board, tasks)
        if self._events.are_shown and not tasks[0].node.hidden:
            self._events.begin()
        if self._observation.is_on:
            self._observation.superstep_started(tasks)
        return self._runner.execute(board, tasks)

    def _fill_in(self, board: Board, tasks: Sequence[Task]) -> None:
        """Give the tasks of sends that were stored what was not stored of them, as far as the state has it.

        Raises:
            UntrackedValueLostError: it has not; nothing of the superstep has run.
        """
        for task in tasks:
            lost = missing(task.arg) if task.send >= 0 else ()
            if lost and not isinstance(self._persistence.recorded(task, NOTHING_ANSWERED), Finished):
                for key in lost:
                    if key not in board.values:
                        raise UntrackedValueLostError(task.node.name, key, self._scope[0], task.step)
                task.arg = filled(task.arg, {key: board.values[key] for key in lost})

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        if self._events.are_shown:
            stops = self._breakpoints is not None and bool(upcoming) and self._breakpoints.between(ran, upcoming)
            step = Superstep(board=board, ran=ran, outcomes=outcomes, upcoming=upcoming, stops=stops)
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

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        if tasks[0].node.hidden and not tasks[0].node.routers:
            self._persistence.forget()  # the state refuses the input: nothing has run, and nothing is stored
        else:
            events, persistence = self._events, self._persistence
            unrecorded, recorded = await events.failing_superstep(persistence, tasks, outcomes, error, self._step)
            is_recorded = await persistence.give_up(tasks, outcomes, error)
            await events.send(recorded if is_recorded else unrecorded)
        self._observation.superstep_ended("failed", outcomes)

    async def _failed(self, error: Exception) -> None:
        """Show a failure that is no superstep's: a limit, a value that cannot be stored, failing storage."""
        deliveries = self._events.failing(error, self._step, begun=self._begun)
        await self._finish_beside(error)
        self._events.done("failed")  # it may have come to rest before, and that could not be stored
        await self._events.send(deliveries)

    async def _cancelled(self) -> None:
        """Store that the run was cancelled for good, if it was: then it is not to be picked up."""
        if self._events.cancelling(self._step):
            with anyio.CancelScope(shield=True), contextlib.suppress(CheckpointError):
                await self._persistence.rest()
        await self._persistence.finish()

    async def _finish_beside(self, error: BaseException) -> None:
        """Store what waits, as an error ends the run. What fails in that becomes the error's note."""
        try:
            await self._persistence.rest()
        except CheckpointError as second:
            if second is error or self._graph.run.lease.durability == "sync":
                return  # it is what `error` is about, or as hopeless
            annotate(error, f"and what waited could not be stored: {with_notes(second)}")
