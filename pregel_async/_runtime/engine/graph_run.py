"""The port that the algorithm asks of the world: execute, checkpoint, pause, give up; and what is shown of each.

A superstep's tasks are the runner's, what is stored the thread's, and what is shown the log's. Here they meet, in the
order that durability asks for: what belongs to a commit is shown after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import anyio
import msgspec

from checkpoint_savers.errors import CheckpointError, annotate
from checkpoint_savers.records import CheckpointRow, TaskId

from ..._core import superstep
from ..._core.board import Board
from ..._core.isolation import NO_CLASSES, REGISTERED
from ..._core.program import Program, Write
from ..._core.task import NEW, Cancelled, Finished, Outcome, Paused, Task
from ..._core.untracked import filled, missing
from ...errors import BudgetExceededError, GraphDrained, InvalidInputError, UntrackedValueLostError
from ...types import Interrupt, RunStatus
from ..observing.error_text import described, with_notes
from ..observing.observed import Observed
from ..persistence.digests import AnsweredQuestions
from ..persistence.namespace_writer import NOTHING_ANSWERED, Thread
from ..persistence.namespaces import ids_in
from ..streaming.event_recorder import Keeper
from ..streaming.parts import END, Unit
from ..streaming.publisher import Log, Told
from ..streaming.subscription import Feed
from ..tasks.context import Around, Running, Session
from ..tasks.slots import Places
from .call_input import Given, answers_to
from .runner import Runner
from .settings import Audience, Settings


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


def _status(
    stopped: GraphDrained | BudgetExceededError | None, step: int
) -> tuple[RunStatus, int, BudgetExceededError | None]:
    """How a run ends that stops with work left, in which superstep, and its failure, if that is one."""
    if isinstance(stopped, BudgetExceededError):
        return "failed", step, stopped
    return ("stopped" if stopped is None else "drained"), step, None


class GraphRun:
    """One run of one graph: puts the input on the board, lets the algorithm run, and is the port that it asks."""

    def __init__(
        self,
        program: Program,
        settings: Settings,
        session: Session,
        log: Log | None,
        thread: Thread | None,
        ns: str,
        outer: Running | None,
        caller: TaskId | None = None,
        *,
        audience: Audience,
        observed: Observed | None,
    ) -> None:
        self._program = program
        self._settings = settings
        self._session = session
        self._scope = (session.scope, ns if caller is None else ids_in(ns, caller))
        self._thread = thread
        self._log = log
        self._feed = None if log is None else log.own
        if self._feed is not None:
            self._feed.observed = observed
        width = settings.max_concurrency
        self._control = outer.around.control if settings.control is None and outer is not None else settings.control
        fresh = thread is None and self._feed is not None and self._feed.fresh
        self._runner = Runner(thread, log, width, session.loop, on_failure=settings.on_failure, fresh=fresh)
        self._runner.around = Around(
            session=session,
            program=program,
            ns=ns,
            thread=thread,
            config=settings.config,
            context=settings.context,
            store=settings.store,
            log=log,
            outer=outer,
            places=None if width is None else Places(width),
            control=self._control,
            call=self._runner.call,
            debug=settings.debug,
            budgets=settings.budgets,
            running=None if program.step_timeout is None else set(),
            results=outer.around.results if settings.results is None and outer is not None else settings.results,
            overhears=None if log is None or log.spoke is None else audience.overhears,
            observed=observed,
            changed_questions=settings.changed_questions,
        )
        if log is not None and outer is not None and outer.is_timed:
            log.waiting = outer.waiting
        self._interrupts: tuple[Interrupt, ...] = ()
        self._paused = False
        self._board: Board | None = None
        self._upcoming: list[Task] | None = None  # after an input, or when they were planned in another thread
        self._told: Told = []  # what is shown when the checkpoints that wait are stored
        if thread is not None and self._feed is not None:
            thread.acknowledge(partial(setattr, self._feed, "committed"))

    async def go(self, call: Given) -> Ended:
        resumed = call.writes is None and self._thread is not None and self._thread.board is not None
        # A graph inside another of which nothing is stored gives its result to that one: what that one stores, stays.
        scalars = NO_CLASSES if self._thread is None else self._thread.codec.kept_scalars
        token = REGISTERED.set(scalars) if scalars else None
        try:
            board = self._board = await self._begin(call)
            done = await superstep.run(
                self._program,
                board,
                self,
                scope=self._scope,
                limit=self._settings.limit,
                tasks=self._upcoming,
                breakpoints=self._settings.breakpoints,
                resumed=resumed,
                barrier=self._barrier if self._control is not None or self._session.spending is not None else None,
            )
            if self._feed is not None:
                self._feed.begin()  # if it has not
                self._feed.status = "done" if done else self._feed.status
            if not done and not self._paused:
                await self._stopped(board)
            if self._thread is not None:
                await self._thread.finish()
        except Exception as error:
            await self._failed(error)
            raise
        except anyio.get_cancelled_exc_class():
            await self._dismissed()
            raise
        except GeneratorExit:
            raise
        except BaseException as error:  # what ends a process, or the graph around
            await self._finish_beside(error)
            raise
        finally:
            if token is not None:
                REGISTERED.reset(token)
            self._runner.end()
        return Ended(board, done, self._interrupts)

    def _barrier(self, board: Board, tasks: Sequence[Task]) -> bool:
        """Whether to stop before these tasks: as it was asked to, or as more was spent than may be."""
        session = self._session
        if self._control is not None and self._control.drain_reason is not None:
            session.stopped = GraphDrained(self._control.drain_reason)
        elif session.spending is not None:
            session.stopped = session.spending.exceeded(board.step, superstep.names_of(tasks))
        return session.stopped is not None

    async def _begin(self, call: Given) -> Board:
        """The board to run from: the stored one, with the input written on it if there is one.

        A new input discards what was pending: those tasks count as run, with nothing written.
        """
        thread = self._thread
        stored = None if thread is None else thread.board
        if call.writes is not None or stored is None:
            return await self._enter(Board(self._program) if stored is None else stored, call)
        assert thread is not None
        if call.command is not None:
            answers: dict[str, Any] = {}
            if call.answers:
                answers = answers_to(call.command.resume, thread.questions(), thread.thread_id)
            await thread.resume(stored, answers, self._validated(stored, call.edits))
            self._session.given = answers
        if thread.ns == "":
            await thread.find_kept()
        loaded = thread.tip
        thread.branch_off(stored)
        if thread.scope != thread.thread_id:
            self._upcoming = superstep.plan(self._program, stored, self._open_scope)
        if thread.ns == "":
            self._session.answers = thread.answers()
            self._session.asked = AnsweredQuestions(thread.answered_questions(), thread.is_same)
        if self._feed is not None:
            self._feed.committed = stored.step
            keeper = self._feed.keeper
            if keeper is not None and thread.tip != loaded:
                keeper.move()  # to a branch of its own
            elif keeper is not None:
                await self._begin_events(thread, self._feed, keeper, stored)
        if self._log is not None and self._log.resumed is not None and not (self._feed and self._feed.returns):
            await self._log.send(self._log.resumed(stored))
        return stored

    def _validated(self, board: Board, writes: list[Write]) -> list[Write]:
        validate = self._program.validate
        return writes if validate is None or not writes else validate(board.values, writes)

    async def _begin_events(self, thread: Thread, feed: Feed, keeper: Keeper, board: Board) -> None:
        """Keep, and show to a reader who was there, what of the open superstep runs again."""

        def planned(everything: bool) -> Iterator[Unit]:
            assert self._log is not None
            for task in superstep.plan(self._program, board, self._open_scope):
                recorded = thread.recorded(task, NOTHING_ANSWERED)
                if everything:
                    yield from self._log.units_of(task)
                elif not isinstance(recorded, Finished):
                    over = set() if recorded == NEW else {task.id}  # else its routers or its error handler are left
                    yield from (unit for unit in self._log.units_of(task) if unit.id not in over)

        part = await keeper.begin(planned, board.step + 1, feed.said)
        if part is None:
            return
        feed.resumes = keeper.has_earlier
        if feed.last is None:
            feed.last = keeper.place  # of what is shown again, and not kept
        if feed.shows_restart:
            await feed.put(part)
        else:
            feed.label(part)

    @property
    def _open_scope(self) -> tuple[str, str]:
        """What the ids of the loaded superstep's tasks are made of."""
        return self._scope if self._thread is None else (self._thread.scope, self._scope[1])

    async def _enter(self, board: Board, call: Given) -> Board:
        writes = call.edits if call.writes is None else call.writes
        if self._program.validate is not None and writes:
            writes = self._program.validate(board.values, writes)
        discarded = superstep.plan(self._program, board, self._open_scope) if board.updated else []
        each = [*[[] for _ in discarded], writes] if discarded else [writes]
        superstep.update(self._program, board, discarded, each, scope=self._scope)
        board.ran = ()
        upcoming = self._upcoming = superstep.plan(self._program, board, self._scope)
        if call.writes is None and not upcoming:
            raise InvalidInputError(
                f"the command given to graph {self._program.name!r} only updates, and nothing is stored to go on "
                "with: pass an input, or say goto="
            )
        if self._thread is not None:
            nothing = [Cancelled()] * len(discarded)
            await self._commit(self._thread, board, discarded, nothing, upcoming, source="input")
        return board

    # ---- superstep.Port ----------------------------------------------------------------------------------------------

    def execute(self, board: Board, tasks: Sequence[Task]) -> Awaitable[Sequence[Outcome]]:
        hold = self._session.hold
        if hold is not None and hold.broken is not None:  # "async": the last superstep could not be stored
            raise hold.broken
        if self._program.untracked and self._thread is not None:
            self._fill_in(self._thread, board, tasks)
        if self._feed is not None and not tasks[0].node.hidden:
            self._feed.begin()
        if self._log is not None and self._log.planned is not None:
            return self._execute_shown(self._log, self._log.planned(board, tasks), board, tasks)
        return self._runner.execute(board, tasks)

    def _fill_in(self, thread: Thread, board: Board, tasks: Sequence[Task]) -> None:
        """Give the tasks of sends that were stored what was not stored of them, as far as the state has it.

        Raises:
            UntrackedValueLostError: it has not; nothing of the superstep has run.
        """
        for task in tasks:
            lost = missing(task.arg) if task.send >= 0 else ()
            if lost and not isinstance(thread.recorded(task, NOTHING_ANSWERED), Finished):
                for key in lost:
                    if key not in board.values:
                        raise UntrackedValueLostError(task.node.name, key, thread.thread_id, task.step)
                task.arg = filled(task.arg, {key: board.values[key] for key in lost})

    async def _execute_shown(self, log: Log, planned: Told, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        await log.send(planned)
        return await self._runner.execute(board, tasks)

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        if self._thread is not None and self._log is None:
            await self._thread.commit(board, ran, outcomes, upcoming)
        elif self._thread is not None:
            await self._commit(self._thread, board, ran, outcomes, upcoming, source="loop")
        elif self._log is not None and self._log.updated is not None:
            await self._runner.show(self._log.updated(board), at_barrier=True)

    async def pause(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        stopped = self._session.stopped
        asked = [question for outcome in outcomes if isinstance(outcome, Paused) for question in outcome.interrupts]
        told = self._runner.take_rest()
        await self._close_finished(tasks, outcomes, told)
        if self._log is not None and self._log.paused is not None:
            paused = [
                (task, each)
                for task, each in zip(tasks, outcomes, strict=True)
                if isinstance(each, Paused) and (each.interrupts or stopped is None)  # else a graph inside had to stop
            ]
            told += self._log.paused(board, paused)
        if asked or stopped is None:
            self._rest(told, "interrupted" if asked else "stopped", board.step + 1)
        else:
            told += self._failure(stopped) if isinstance(stopped, BudgetExceededError) else []
            self._rest(told, *_status(stopped, board.step + 1))
        if self._thread is not None:
            await self._thread.pause(tasks, outcomes)
        self._interrupts, self._paused = tuple(asked), True
        await self._send(told)

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        if self._thread is not None and tasks[0].node.hidden and not tasks[0].node.routers:
            self._thread.forget()  # the state refuses the input: nothing has run, and nothing is stored
            return
        unshown, rest = self._runner.take_unshown(), self._runner.take_rest()
        await self._close_finished(tasks, outcomes, rest)
        told: Told = []
        if self._log is not None and self._log.failed is not None:
            told = self._log.failed(tasks, outcomes)
        told += self._failure(error)
        self._rest([*unshown, *rest, *told], "failed", tasks[0].step, error)
        if self._thread is not None and await self._thread.give_up(tasks, outcomes, error):
            told = [*rest, *told]
        await self._send([*unshown, *told])

    async def _close_finished(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], told: Told) -> None:
        """Keep the events of tasks inside that are recorded because their superstep stays open. (Those of the called
        graph are kept with the run's rest.)"""
        log, thread = self._log, self._thread
        if log is None or thread is None or self._feed is not None or not log.keeps:
            return
        await log.settle_events()
        done = [task for task, outcome in zip(tasks, outcomes, strict=True) if isinstance(outcome, Finished)]
        events = log.close([unit.id for task in done for unit in log.units_of(task)], told)
        if events is not None:
            thread.events.append(events)

    # ---- what is shown, and kept -------------------------------------------------------------------------------------

    async def _commit(
        self,
        thread: Thread,
        board: Board,
        ran: Sequence[Task],
        outcomes: Sequence[Outcome],
        upcoming: Sequence[Task],
        *,
        source: Literal["input", "loop"],
    ) -> None:
        """Store a superstep; what it shows is kept with it, and shown after it."""
        log = self._log
        if log is None:
            await thread.commit(board, ran, outcomes, upcoming, source=source)
            return

        asks = self._feed is None and bool(upcoming) and upcoming[0].node.hidden and bool(upcoming[0].node.routers)

        def made(row: CheckpointRow) -> None:
            told = self._runner.take_rest()
            if source == "loop" and log.updated is not None:
                told += log.updated(board)
            if log.stored is not None:
                told += log.stored(board, row, upcoming)
            feed = self._feed
            if feed is None and log.keeps:
                told = [*self._told, *told]
                self._told = []
                if asks or not (upcoming and upcoming[0].node.hidden):  # else it is stored with the next commit
                    events = log.close([unit.id for task in ran for unit in log.units_of(task)], told, upcoming)
                    if events is not None:
                        thread.events.append(events)
            elif feed is not None and feed.keeper is not None and feed.keeper.is_late and upcoming:
                self._label(told, None, board.step)
                feed.keeper.superstep_over()
            elif feed is not None and feed.keeper is not None:
                stops = source == "loop" and self._stops_between(ran, upcoming)
                if stops:  # told with the superstep: who comes back must not run past a breakpoint
                    told += [] if log.stopped is None else log.stopped(board)
                    feed.status = "stopped"
                feed.keeper.close(row.checkpoint_id)
                self._label(told, feed.status if upcoming else "done", board.step)
                feed.keeper.stage_head()
            self._told += told

        if log.keeps:
            await log.settle_events()
        if await thread.commit(board, ran, outcomes, upcoming, source=source, made=made):
            told, self._told = self._told, []
            await self._runner.show(told, at_barrier=True)
            if self._feed is None and log.keeps:
                await log.catch_up()
        elif asks and thread.events:
            await thread.spill()  # it has to be known that the routers have begun before they show anything

    def _stops_between(self, ran: Sequence[Task], upcoming: Sequence[Task]) -> bool:
        breakpoints = self._settings.breakpoints
        return bool(upcoming) and breakpoints is not None and breakpoints.between(ran, upcoming)

    async def _stopped(self, board: Board) -> None:
        """The run stops between two supersteps: at a breakpoint, or because it drains."""
        stopped, log = self._session.stopped, self._log
        told: Told = []
        if stopped is not None:
            told += self._failure(stopped) if isinstance(stopped, BudgetExceededError) else []
        elif self._feed is not None and self._feed.status == "stopped":
            pass  # it was told with the superstep
        elif log is not None and log.stopped is not None:
            told = log.stopped(board)
        self._rest(told, *_status(stopped, board.step))
        if self._thread is not None:
            await self._thread.rest()
        await self._send(told)

    async def _failed(self, error: Exception) -> None:
        """Show a failure that is no superstep's: a limit, a value that cannot be stored, failing storage."""
        feed = self._feed
        if feed is not None:
            feed.abandon()
        if feed is not None and self._board is None:
            feed.keeper = None  # it has not begun: this is not how the run ended that the thread's events tell of
        told = self._failure(error)
        step = told[0][1].step if told else 0
        self._rest(told, "failed", step, error)
        await self._finish_beside(error)
        if feed is not None:
            feed.status = "failed"  # it may have come to rest before, and that could not be stored
        await self._send(told)

    async def _dismissed(self) -> None:
        """Keep that the run was cancelled for good, if it was: nobody is to pick it up."""
        feed, thread = self._feed, self._thread
        if thread is None:
            return
        if feed is not None and feed.keeper is not None and feed.status is None:
            feed.keeper.cut_off()
        if feed is not None and feed.dismissed and feed.keeper is not None and feed.status is None:
            feed.status = "cancelled"
            self._label([], "cancelled", 0 if self._board is None else self._board.step + 1)
            feed.keeper.stage_head()  # beside what is void
            with anyio.CancelScope(shield=True), contextlib.suppress(CheckpointError):
                await thread.rest()
        await thread.finish()

    async def _finish_beside(self, error: BaseException) -> None:
        """Store what waits, as an error ends the run. What fails in that becomes the error's note."""
        if self._thread is None:
            return
        try:
            await self._thread.rest()
        except CheckpointError as second:
            hold = self._thread.hold
            if second is error or hold.durability == "sync":  # what `error` is about, or as hopeless
                return
            annotate(error, f"and what waited could not be stored: {with_notes(second)}")

    def _failure(self, error: BaseException) -> Told:
        """The part that tells of a failure; once."""
        feed = self._feed
        if feed is None or not feed.tells or feed.failed or not isinstance(error, Exception):
            return []
        feed.failed = True
        step = 0 if self._board is None else self._board.step + 1
        return [(feed, feed.fail(error, step))]

    def _rest(self, told: Told, status: RunStatus, step: int, error: BaseException | None = None) -> bool:
        """Keep what is shown, and how the run ends, with the next transaction. Whether there is anything to keep."""
        feed = self._feed
        if feed is None or feed.status is not None:
            return False
        feed.status = status
        if feed.keeper is None:
            return False
        self._label(told, status, step, error)
        feed.keeper.rest()
        return True

    def _label(self, told: Told, status: RunStatus | None, step: int, error: BaseException | None = None) -> None:
        """Give parts that are to go out their places, and say there how the run ends, if it does."""
        for feed, part in told:
            feed.label(part)
        if status is not None and self._feed is not None:
            why = {} if error is None else dict(zip(("error", "message"), described(error), strict=True))
            self._feed.label(self._feed.tell(END, {"status": status, **why}, step))

    async def _send(self, told: Told) -> None:
        if told and self._log is not None:
            await self._log.send(told)


class ObservedGraphRun(GraphRun):
    """The port of a run that somebody observes: tells when supersteps start and end.

    What is told stands here, beside the port and not in it: a run that nobody observes does not even ask.
    """

    @property
    def _observed(self) -> Observed:
        observed = self._runner.around.observed
        assert observed is not None  # see `port_for`
        return observed

    def execute(self, board: Board, tasks: Sequence[Task]) -> Awaitable[Sequence[Outcome]]:
        self._observed.superstep_started(tasks)
        return super().execute(board, tasks)

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        await super().checkpoint(board, ran, outcomes, upcoming)
        self._observed.superstep_ended("done", outcomes)

    async def pause(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        await super().pause(board, tasks, outcomes)
        self._observed.superstep_ended("interrupted", outcomes)

    async def give_up(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        await super().give_up(tasks, outcomes, error)
        self._observed.superstep_ended("failed", outcomes)


def port_for(observed: Observed | None) -> type[GraphRun]:
    """The kind of port that a run needs."""
    return GraphRun if observed is None else ObservedGraphRun
