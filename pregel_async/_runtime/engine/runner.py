"""One superstep's execution: all its tasks at once, joined at the barrier.

Several tasks run in a task group. Each has a task of the event loop to itself from when the first of them waits for
something; until then they need none (`_Group`). A single one is awaited in place, which is a task group of one, written
out:
    1. it has a context of its own, so what it sets in context variables stays there (`attempt.in_own_context`);
    2. the event loop gets its turn, and a cancellation is noticed, at every barrier;
    3. outcome, error and cancellation are what one task in a group would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from checkpoint_savers.children import start_soon
from checkpoint_savers.records import EventRow

from ..._core.board import Board
from ..._core.isolation import isolate
from ..._core.program import Write
from ..._core.task import (
    NEW,
    Cancelled,
    Failed,
    Finished,
    NotStarted,
    Outcome,
    Paused,
    Recorded,
    Settled,
    Task,
    Unfinished,
)
from ...errors import (
    NodeCancelledError,
    NodeError,
    StepTimeoutError,
    UnstorableValueError,
)
from ...policies import Collect, OnFailure
from ..observing.error_text import described
from ..platform.event_loops import Loop, NativeCancellations, alone
from ..streaming.parts import routers_of
from ..streaming.publisher import Closing, Log, Told
from ..tasks.attempt import Recorder, attempt, noticed, start
from ..tasks.context import Around, Refusal, Running, Session
from ..tasks.policies import Records, can_be_handled, collected, guarded
from ..tasks.retries import Tries
from ..tasks.timeouts import Stopwatch


class Storage(Records, Protocol):
    """What the runner needs of a thread's storage."""

    def recorded(self, task: Task, run: Session) -> Recorded:
        """What is recorded of a task: its result, questions that the answers of this call leave open, or where it has
        to start."""
        ...

    def check(self, task: Task, asked: Paused) -> None:
        """Refuse what cannot be stored of a task that has asked. Raises `UnstorableValueError`, with a note."""
        ...

    async def record(
        self, task: Task, writes: list[Write], *, routed: bool, events: Callable[[], EventRow | None] | None = None
    ) -> None:
        """Store what a task wrote, with the row that `events` makes; return when it is durable."""
        ...


class Runner:
    """Executes supersteps.

    Args:
        storage: None when nothing is stored of the run.
        log: told of each task that has finished, once its result is stored; None when nobody listens.
        max_concurrency: how many tasks run at once; None for all.
        loop: that runs.
        on_failure: what the others of a superstep do when a task has failed.
        fresh: the run's task has just begun, and has awaited nothing: the event loop has had its turn, and a
            cancellation would have been noticed.

    Attributes:
        around: what the nodes reach; set before the first superstep.
    """

    around: Around

    def __init__(
        self,
        storage: Storage | None,
        log: Log | None,
        max_concurrency: int | None,
        loop: Loop,
        *,
        on_failure: OnFailure = "fail_fast",
        fresh: bool = False,
    ) -> None:
        self.storage = storage
        self.on_failure = on_failure
        self.max_concurrency = max_concurrency
        self.log = log
        self.loop = loop
        self._untold: list[tuple[Task, Finished]] = []
        self._unshown: Told = []
        self._turn = loop.turn
        self._turned = fresh  # the event loop has had its turn in this superstep
        self._natively_cancelled = NativeCancellations(loop)
        self._broken: BaseException | None = None  # storage's failure to record what a called task did

    def end(self) -> None:
        """The run is over. What its nodes reach, reaches the runner too: the circle is opened, so that all of it goes
        at once, and not when Python's collector comes by."""
        del self.around

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """Run the tasks on the board as it is. See `superstep.Port.execute`."""
        if tasks[0].node.hidden and not tasks[0].node.routers:  # nothing is awaited, and a barrier follows
            began = start(board, tasks[0])
            if self.log is not None and self.log.began is not None and isinstance(began, Finished):
                await self.log.send(self.log.began(tasks[0], began))
            return (began,)
        if self._turned:
            self._turned = False
        else:
            await self._turn()
        timeout = self.around.program.step_timeout
        if timeout is not None:
            return await self._within(timeout, board, tasks)
        if len(tasks) > 1:
            return await _Group(self, board, tasks).execute()
        (task,) = tasks
        outcome = await self.attempt(board, task, self._natively_cancelled, contained=False)
        if isinstance(outcome, Finished):
            if self._natively_cancelled():
                # The node has swallowed its caller's cancellation. A group would end with it all the same. A scope
                # tells it again; what asyncio's `Task.cancel()` told has to be raised here.
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise anyio.get_cancelled_exc_class()
            if self.log is not None:
                alone = self.storage is None
                await self.tell(task, outcome, stored=alone or outcome.replayed, at_barrier=alone)
        return (outcome,)

    async def _within(self, timeout: float, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        """All tasks in a group, however many, which is stopped when the superstep's time is up."""
        group = _Group(self, board, tasks)
        watch = Stopwatch(self.around.session.world, run=timeout, expire=group.expire)
        outcomes = await watch.over(group.execute)
        return group.timed_out(timeout) if outcomes is None else outcomes

    async def show(self, told: Told, *, at_barrier: bool) -> None:
        """Let parts go out. A reader who has been waiting for them gets its turn at once, and not after the barrier.

        Args:
            at_barrier: nothing is awaited between here and the next superstep, so that this was the barrier's turn.
        """
        if told and self.log is not None and await self.log.send(told):
            self._turned = at_barrier
            await self._turn()

    async def attempt(
        self, board: Board, task: Task, natively_cancelled: NativeCancellations | None, *, contained: bool
    ) -> Settled:
        """Run one task, unless its result is recorded, or it waits for an answer that is not among those given."""
        around = self.around
        recorded: Recorded = NEW if self.storage is None else self.storage.recorded(task, around.session)
        if not isinstance(recorded, Unfinished):
            return recorded
        record: Recorder | None = None if self.storage is None else self._record_unrouted
        if recorded.has_run and self.log is not None:
            self.log.attribute(task, routers_of(task.id))
        if task.node.plain:
            outcome = await attempt(
                around, board, task, recorded.writes, record, natively_cancelled=natively_cancelled, contained=contained
            )
        else:
            outcome = await self._by_policies(board, task, recorded, record, natively_cancelled, contained=contained)
        if (
            isinstance(outcome, Failed)
            and isinstance(self.on_failure, Collect)
            and can_be_handled(outcome, self._is_final)
            and isinstance(outcome.error, Exception)
        ):
            writes = collected(task, outcome.error, self.on_failure.channel)
            if around.observed is not None:
                around.observed.handled(task, outcome.error, None)
            outcome = await attempt(
                around, board, task, writes, None, natively_cancelled=natively_cancelled, contained=contained
            )
        if self._broken is not None:  # whatever the node made of it: the superstep ends with that error alone
            raise self._broken
        if isinstance(outcome, Paused) and self.storage is not None:
            try:
                self.storage.check(task, outcome)
            except UnstorableValueError as error:
                return Failed(error, outcome.writes)
        return outcome

    async def _by_policies(
        self,
        board: Board,
        task: Task,
        recorded: Unfinished,
        record: Recorder | None,
        natively_cancelled: NativeCancellations | None,
        *,
        contained: bool,
    ) -> Settled:
        """Run one task by its node's policies. A plain node needs none of it, and gets the same from its attempt."""
        around = self.around
        attempts = _Attempts(self, board, record, natively_cancelled, contained=contained)
        return await guarded(
            attempts, task, recorded, around.session.world, self.storage, around.results, self._is_final
        )

    def _is_final(self, error: BaseException) -> bool:
        """Return True if a failure is neither retried nor handled: storage has failed in this run, the node was
        refused what it asks for, or the task is being cancelled."""
        hold = self.around.session.hold
        if self._broken is not None or (hold is not None and hold.broken is not None):
            return True
        if isinstance(error, Refusal):  # it would be the same in every attempt
            return True
        return anyio.current_effective_deadline() == float("-inf") or self._natively_cancelled()

    async def call(self, caller: Running, task: Task) -> Settled:
        """Run a task that a node calls, in a task of its own; its result is recorded before anybody has it.

        When storing it fails, the caller is told, and nothing more is called: the superstep ends with that error.
        """
        if self._broken is not None:
            return Failed(self._broken)
        recorded: Recorded = NEW if self.storage is None else self.storage.recorded(task, self.around.session)
        if not isinstance(recorded, Unfinished):
            return recorded
        if self.storage is None and (done := caller.done_before(task)) is not None:
            return done
        log, board = self.log, caller.board
        if log is not None and log.keeps:
            try:
                await log.open(task, caller.task)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                self._broken = error
                return Failed(error)
        if log is not None and log.planned is not None:
            with caller.waiting():
                await log.send(log.planned(board, (task,)))
        if task.node.plain:
            outcome = await attempt(self.around, board, task, None, None, natively_cancelled=None, contained=True)
        else:
            outcome = await self._by_policies(board, task, recorded, None, None, contained=True)
        if isinstance(outcome, Failed) and log is not None and log.failed is not None:
            with caller.waiting():
                await log.send(log.failed((task,), (outcome,)))
        if isinstance(outcome, Finished):
            try:
                closing = None
                if self.storage is None:
                    caller.keep_done(task, outcome)
                else:
                    closing = await self.closing(task, outcome)
                    await self.storage.record(task, outcome.writes, routed=True, events=closing)
                await self.tell(task, outcome, stored=True, closing=closing)
            except UnstorableValueError as error:
                return Failed(error)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # nothing else may leave: no task group is there to take it
                self._broken = error
                return Failed(error)
        return outcome

    async def closing(self, task: Task, outcome: Finished | None) -> Closing | None:
        """What closes the events of a task that is about to be recorded."""
        log = self.log
        if log is None or not log.keeps:
            return None
        await log.settle_events()
        return log.closing(task, outcome)

    async def tell(
        self,
        task: Task,
        outcome: Finished,
        *,
        stored: bool,
        at_barrier: bool = False,
        closing: Closing | None = None,
    ) -> None:
        """Tell of a task that has finished: now when its result is stored, else with the superstep's own commit."""
        log = self.log
        if log is not None and closing is not None and closing.begun:
            await self.show(closing.rest, at_barrier=False)
            await log.catch_up()
            return
        if log is not None and log.finished is not None:
            if not stored:
                self._untold.append((task, outcome))
                return
            told = log.finished(outcome.by or task, outcome)
            try:
                await self.show(told, at_barrier=at_barrier)
            except anyio.get_cancelled_exc_class():  # a sibling has failed while this one waited for the reader
                self._unshown += [(feed, part) for feed, part in told if part.seq == 0 and part.cursor is None]
                raise

    def take_unshown(self) -> Told:
        """What was to be shown of tasks that have finished, and was cut off by a failure."""
        unshown, self._unshown = self._unshown, []
        return unshown

    def take_rest(self) -> Told:
        """What to tell of the tasks whose results the superstep's own transaction stores."""
        untold, self._untold = self._untold, []
        log = self.log
        if log is None or log.finished is None:
            return []
        return [told for task, outcome in untold for told in log.finished(outcome.by or task, outcome)]

    async def _record_unrouted(self, task: Task, writes: list[Write]) -> None:
        assert self.storage is not None
        closing = await self.closing(task, None)
        await self.storage.record(task, writes, routed=False, events=closing)
        if self.log is not None:
            self.log.attribute(task, routers_of(task.id))


class _Attempts:
    """The attempts at one task, and what is told of them."""

    def __init__(
        self,
        runner: Runner,
        board: Board,
        record: Recorder | None,
        natively_cancelled: NativeCancellations | None,
        *,
        contained: bool,
    ) -> None:
        self._runner = runner
        self._board = board
        self._record = record
        self._natively_cancelled = natively_cancelled
        self._contained = contained

    async def once(
        self, task: Task, given: list[Write] | None, tries: Tries | None, failure: NodeError | None
    ) -> Settled:
        return await attempt(
            self._runner.around,
            self._board,
            task,
            given,
            self._record,
            natively_cancelled=self._natively_cancelled,
            contained=self._contained,
            tries=tries,
            failure=failure,
        )

    @property
    def context(self) -> Any:
        return self._runner.around.context

    def answered(self, task: Task) -> bool:
        return self._runner.around.session.answered(task.id)

    def input_of(self, task: Task) -> Any:
        return self._board.input_of(task.node) if task.send < 0 else isolate(task.arg)

    async def closing(self, task: Task) -> Closing | None:
        return await self._runner.closing(task, None)

    async def failed(self, task: Task, failed: Failed, number: int) -> None:
        """What the node wrote before its routers failed is recorded: the wait may be long, and the process may die."""
        observed = self._runner.around.observed
        if observed is not None:
            observed.retried(task, failed, number)
        storage, writes = self._runner.storage, failed.writes
        if storage is not None and self._record is not None and writes is not None:
            recorded = storage.recorded(task, self._runner.around.session)
            if isinstance(recorded, Unfinished) and not recorded.has_run:
                await self._record(task, writes)

    async def handled(self, task: Task, failed: Failed, handler: Task) -> None:
        log, observed = self._runner.log, self._runner.around.observed
        if observed is not None:
            observed.handled(task, failed.error, handler.node.name)
        if log is not None:
            log.attribute(task, handler.id)  # what the task did before is recorded with its failure
        if log is not None and log.failed is not None:
            await log.send(log.failed((task,), (failed,)))
        if log is not None and log.planned is not None:
            await log.send(log.planned(self._board, (handler,)))


class _Group:
    """The tasks of one superstep, when there are several.

    They begin in plan order, in one task of the group, which they share as long as none waits for anything: of ten
    thousand that compute, none needs a place in the event loop. As soon as one waits, each of the rest gets a task.
    """

    def __init__(self, runner: Runner, board: Board, tasks: Sequence[Task]) -> None:
        self._runner = runner
        self._board = board
        self._tasks = tasks
        self._outcomes: list[Outcome | None] = [None] * len(tasks)
        self._places = iter(range(len(tasks)))
        self._open = len(tasks)
        self._broken: BaseException | None = None
        self._fails_fast = runner.on_failure == "fail_fast"
        self._group: TaskGroup | None = None
        self._context: Context | None = None  # without the node that runs when another task of the group is started
        self._late: list[Exception] | None = None

    async def execute(self) -> Sequence[Outcome]:
        width = self._runner.max_concurrency
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                if width is None or width >= len(self._tasks):
                    self._context = copy_context()
                    start_soon(group, self._in_turn)
                else:
                    for _ in range(width):
                        start_soon(group, self._several)
        except BaseExceptionGroup as several:
            raise alone(several) from None
        except anyio.get_cancelled_exc_class():
            failed = [outcome.error for outcome in self._outcomes if isinstance(outcome, Failed)]
            if all(isinstance(error, NodeCancelledError) for error in failed):
                raise  # else a node failed while it was being cancelled, and that is told
        if self._broken is not None:
            raise self._broken
        return [Cancelled() if outcome is None else outcome for outcome in self._outcomes]

    async def _several(self) -> None:
        assert self._group is not None
        for place in self._places:
            if self._group.cancel_scope.cancel_called:
                return  # a sibling has failed; a node that never awaits would not notice
            await self._one(place)

    async def _in_turn(self) -> None:
        cancelled = NativeCancellations(self._runner.loop)
        for place in self._places:
            await noticed(self._one(place), self._part)
            if cancelled():  # by the node, which has a task of its own as far as it knows
                self._part()

    def _part(self) -> None:
        """Give each task that has not begun a task of the group to itself."""
        assert self._group is not None and self._context is not None
        for place in self._places:
            self._context.run(start_soon, self._group, partial(self._one, place, contained=True))

    async def _one(self, place: int, *, contained: bool = False) -> None:
        """Run one task, and keep what became of it. Nothing but a cancellation leaves here."""
        runner, task = self._runner, self._tasks[place]
        try:
            outcome = await runner.attempt(self._board, task, None, contained=contained)
            if self._late is not None and self._is_late(outcome, self._late):
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
            stored = runner.storage is None or outcome.replayed
            closing: Closing | None = None
            if not stored and self._open:
                # The last to finish needs no record: the superstep's commit holds its writes.
                closing = None if runner.log is None else runner.log.closing(task, outcome)
                try:
                    stored = await self._record(place, task, outcome, closing)
                except anyio.get_cancelled_exc_class():  # a sibling has failed: this is stored with the failure
                    if closing is None or not closing.begun:
                        await runner.tell(task, outcome, stored=False)
                    raise
            if self._outcomes[place] is outcome:
                await runner.tell(task, outcome, stored=stored, closing=closing)
        except anyio.get_cancelled_exc_class():
            raise
        except Exception as error:
            # Storage failed: the superstep ends with that error, and with it alone.
            self._broken = error
            self._stop()

    async def _record(self, place: int, task: Task, outcome: Finished, closing: Closing | None) -> bool:
        assert self._runner.storage is not None
        try:
            if closing is not None and self._runner.log is not None:
                await self._runner.log.settle_events()
            await self._runner.storage.record(outcome.by or task, outcome.writes, routed=True, events=closing)
        except UnstorableValueError as error:
            self._outcomes[place] = Failed(error, None if outcome.by else outcome.writes[: outcome.own])
            if self._fails_fast:
                self._stop()
            return False
        return True

    def expire(self) -> None:
        """The superstep's time is up: whatever becomes of the tasks that go on does not count any more, and whatever
        they do reaches nothing."""
        self._late = []
        for running in list(self._runner.around.running or ()):
            running.stop()

    def _is_late(self, outcome: Outcome, failures: list[Exception]) -> bool:
        """Whether an outcome comes after the time, and does not end the process. A failure is told with the timeout."""
        if not isinstance(outcome, Failed):
            return True
        if isinstance(outcome.error, Exception):
            failures.append(outcome.error)
            return True
        return False

    def timed_out(self, timeout: float) -> Sequence[Outcome]:
        """The outcomes, when the superstep's time was up: what had not finished has failed with that."""
        unfinished = [
            task.node.name for task, outcome in zip(self._tasks, self._outcomes, strict=True) if outcome is None
        ]
        error = StepTimeoutError(self._tasks[0].step, timeout, tuple(unfinished))
        for late in self._late or ():
            error.__context__ = error.__context__ or late
            where = next((note for note in getattr(late, "__notes__", ()) if note.startswith("in node ")), "")
            error.add_note(f"and while it was stopped: {': '.join(described(late))} ({where})")
        return [Failed(error) if outcome is None else outcome for outcome in self._outcomes]

    def _stop(self) -> None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
