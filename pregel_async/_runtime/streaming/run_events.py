"""What one graph's run shows of itself, and what of that is stored with its transactions.

Four kinds:

    RunEvents        no readers: each method does nothing
    ShownEvents      readers; nothing is stored
    InnerEvents      readers; a graph inside closes the units of its tasks with its own commits
    RecordedEvents   readers that may reconnect: the called graph stores all that is shown (`keep_events=True`)

What belongs to a transaction is made before it is stored, goes with it, and is shown after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import anyio
import msgspec

from checkpoint_savers.records import CheckpointRow

from ..._core.board import Board
from ..._core.stop import Stop
from ..._core.task import Finished, Outcome, Paused, Task
from ...types import RunStatus
from ..observing.error_text import described
from ..persistence.namespace_writer import NamespaceWriter, Source
from ..persistence.unstored import Persistence
from ..platform.loop_turns import LoopTurns
from .event_recorder import EventRecorder
from .kept_units import NO_CLOSER, Deliveries, UnitCloser
from .parts import END, RawPart, Unit
from .publisher import NO_PUBLISHER, EventPublisher
from .subscription import Subscription

Planned = Callable[[bool], Iterator[Unit]]
"""Gives the units of the called graph that run again; if True, with those that are recorded."""


class Superstep(msgspec.Struct, frozen=True, kw_only=True):
    """A superstep that is being stored.

    Attributes:
        board: as the superstep leaves it.
        ran, outcomes: its tasks, and what became of them; for an input, the tasks that it discards.
        upcoming: the tasks of the next.
        source: a superstep of the loop, or an input.
        stops: the run stops at a breakpoint after it.
    """

    board: Board
    ran: Sequence[Task]
    outcomes: Sequence[Outcome]
    upcoming: Sequence[Task]
    source: Source = "loop"
    stops: bool = False


class RunEvents:
    """The events of a run that has no reader.

    Attributes:
        publisher: makes parts of them.
        are_shown: the run has readers.
    """

    publisher: EventPublisher = NO_PUBLISHER
    are_shown = False

    async def resumed(self, writer: NamespaceWriter, board: Board, planned: Planned, *, branched: bool) -> None:
        """The run continues from a stored board, on a branch of its own or from the thread's newest checkpoint."""

    def begin(self) -> None:
        """The run has its thread and its input."""

    def done(self, status: RunStatus) -> None:
        """The run has ended, and nothing is left to store of it."""

    def stopping(self, board: Board, stop: Stop) -> Deliveries:
        """The run stops between two supersteps: return what to show once that is stored."""
        return ()

    def failing(self, error: Exception, step: int, *, begun: bool) -> Deliveries:
        """The run fails with what is no superstep's own failure: return what to show once that is stored.

        Args:
            begun: the run has its thread and its input.
        """
        return ()

    def cancelling(self, step: int) -> bool:
        """The run is cancelled. Return True if that is to be stored, so that the run is not resumed."""
        return False

    async def send(self, deliveries: Deliveries) -> None:
        """Show parts."""

    def commit(self, persistence: Persistence, step: Superstep) -> Awaitable[object]:
        """Store a superstep with what it shows, and show it then. Await it at once."""
        return persistence.commit(step.board, step.ran, step.outcomes, step.upcoming, source=step.source)

    async def pausing(
        self, persistence: Persistence, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome], stop: Stop
    ) -> Deliveries:
        """A superstep stays open: return what to show once it is recorded."""
        return ()

    async def failing_superstep(
        self,
        persistence: Persistence,
        tasks: Sequence[Task],
        outcomes: Sequence[Outcome],
        error: BaseException,
        step: int,
    ) -> tuple[Deliveries, Deliveries]:
        """A superstep fails: return what to show then in any case, and what to show if it is recorded."""
        return (), ()

    def closer(self, task: Task, outcome: Finished) -> UnitCloser:
        """Return what closes the events of a task as its result is recorded."""
        return NO_CLOSER

    async def finished(self, task: Task, outcome: Finished, *, at_barrier: bool = False) -> None:
        """A task has finished, and its result is as durable as it is to be."""

    def finished_unstored(self, task: Task, outcome: Finished) -> None:
        """A task has finished, and the superstep's own commit stores its result: it is shown then."""

    async def closed(self, closer: UnitCloser) -> None:
        """A task's result is recorded, together with its events."""


NO_READER = RunEvents()


class ShownEvents(RunEvents):
    """The events of a run with readers, of this graph's call or of one around it.

    Args:
        own: the subscription of the call of this very graph, if it has a reader.
        turns: let a waiting reader run at once, instead of after the barrier.
    """

    are_shown = True

    def __init__(self, publisher: EventPublisher, own: Sequence[Subscription], turns: LoopTurns) -> None:
        self.publisher = publisher
        self._own = own
        self._turns = turns
        self._unreported: list[tuple[Task, Finished]] = []  # their results go with the superstep's own commit
        self._unshown: list[
            tuple[Subscription, RawPart]
        ] = []  # of tasks that have finished, cut off by a sibling's failure
        self._staged: Deliveries = ()  # what is shown when the checkpoints that wait are stored

    def set_committed(self, step: int) -> None:
        """This superstep is stored, and all before it."""
        for subscription in self._own:
            subscription.committed = step

    async def resumed(self, writer: NamespaceWriter, board: Board, planned: Planned, *, branched: bool) -> None:
        self.set_committed(board.step)
        if not any(subscription.reconnects for subscription in self._own):
            await self.publisher.send(self.publisher.resumed(board))

    def begin(self) -> None:
        for subscription in self._own:
            subscription.begin()

    def done(self, status: RunStatus) -> None:
        for subscription in self._own:
            subscription.status = status

    def stopping(self, board: Board, stop: Stop) -> Deliveries:
        deliveries = self._failures(stop.failures, board.step + 1)
        if not stop.errors and not any(
            subscription.status == "stopped" for subscription in self._own
        ):  # else it was shown before
            deliveries = self.publisher.stopped(board)
        self._end_run(deliveries, stop.status, board.step, stop.failures)
        return deliveries

    def failing(self, error: Exception, step: int, *, begun: bool) -> Deliveries:
        for subscription in self._own:
            subscription.discard_staged()
        deliveries = self._failures((error,), step)
        self._end_run(deliveries, "failed", step if deliveries else 0, (error,))
        return deliveries

    async def send(self, deliveries: Deliveries) -> None:
        if deliveries:
            await self.publisher.send(deliveries)

    async def commit(self, persistence: Persistence, step: Superstep) -> None:
        updated = self.publisher.updated(step.board) if step.source == "loop" else ()
        if not persistence.is_stored:
            if updated:
                await self._show(updated, at_barrier=True)
            return

        def made(row: CheckpointRow) -> None:
            stored = self.publisher.stored(step.board, row, step.upcoming)
            self._stage(persistence, [*self._pop_unreported(), *updated, *stored], row, step)

        await self.publisher.units.wait_for_flush()
        if await persistence.commit(step.board, step.ran, step.outcomes, step.upcoming, source=step.source, made=made):
            deliveries, self._staged = self._staged, ()
            await self._show(deliveries, at_barrier=True)
            await self._wait_for_readers()
        else:
            await self._on_deferred_commit(persistence, step.upcoming)

    def _stage(self, persistence: Persistence, deliveries: Deliveries, row: CheckpointRow, step: Superstep) -> None:
        """Keep what a new checkpoint shows until it is stored."""
        self._staged = [*self._staged, *deliveries]

    async def _wait_for_readers(self) -> None:
        """Wait for readers that are behind with what was shown as it was stored."""

    async def _on_deferred_commit(self, persistence: Persistence, upcoming: Sequence[Task]) -> None:
        """A checkpoint waits for the next commit."""

    async def pausing(
        self, persistence: Persistence, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome], stop: Stop
    ) -> Deliveries:
        asks = any(isinstance(each, Paused) and each.interrupts for each in outcomes)
        deliveries = await self._close_finished(persistence, tasks, outcomes, self._pop_unreported())
        paused = [
            (task, each)
            for task, each in zip(tasks, outcomes, strict=True)
            if isinstance(each, Paused) and (each.interrupts or not stop.errors)  # else a graph inside had to stop
        ]
        deliveries = [*deliveries, *self.publisher.paused(board, paused)]
        if asks:
            self._end_run(deliveries, "interrupted", board.step + 1)
        else:
            deliveries = [*deliveries, *self._failures(stop.failures, board.step + 1)]
            self._end_run(deliveries, stop.status, board.step + 1, stop.failures)
        return deliveries

    async def failing_superstep(
        self,
        persistence: Persistence,
        tasks: Sequence[Task],
        outcomes: Sequence[Outcome],
        error: BaseException,
        step: int,
    ) -> tuple[Deliveries, Deliveries]:
        unshown, self._unshown = self._unshown, []
        rest = await self._close_finished(persistence, tasks, outcomes, self._pop_unreported())
        failed = [*self.publisher.failed(tasks, outcomes), *self._failures((error,), step)]
        self._end_run([*unshown, *rest, *failed], "failed", tasks[0].step, (error,))
        return [*unshown, *failed], [*unshown, *rest, *failed]

    async def _close_finished(
        self, persistence: Persistence, tasks: Sequence[Task], outcomes: Sequence[Outcome], deliveries: Deliveries
    ) -> Deliveries:
        """Store the events of tasks that are recorded because their superstep stays open. Return what is left to
        show."""
        return deliveries

    def _pop_unreported(self) -> Deliveries:
        unreported, self._unreported = self._unreported, []
        publisher = self.publisher
        return [delivery for task, each in unreported for delivery in publisher.finished(each.by or task, each)]

    def _failures(self, errors: Sequence[BaseException], step: int) -> Deliveries:
        """Return the part that reports the run's failure to the readers of this call; only once."""
        deliveries: list[tuple[Subscription, RawPart]] = []
        for subscription in self._own:
            for error in errors:
                if subscription.reports_errors and not subscription.failed and isinstance(error, Exception):
                    subscription.failed = True
                    deliveries.append((subscription, subscription.error_part(error, step)))
        return deliveries

    def _end_run(
        self, deliveries: Deliveries, status: RunStatus, step: int, errors: Sequence[BaseException] = ()
    ) -> None:
        """The run ends here: store what is shown, and how it ends, with the next transaction."""
        for subscription in self._own:
            subscription.status = subscription.status or status

    def closer(self, task: Task, outcome: Finished) -> UnitCloser:
        return self.publisher.closer_of_finished(task, outcome)

    async def finished(self, task: Task, outcome: Finished, *, at_barrier: bool = False) -> None:
        deliveries = self.publisher.finished(outcome.by or task, outcome)
        try:
            await self._show(deliveries, at_barrier=at_barrier)
        except anyio.get_cancelled_exc_class():  # a sibling has failed while this one waited for the reader
            self._unshown += [
                (subscription, part) for subscription, part in deliveries if part.seq == 0 and part.cursor is None
            ]
            raise

    def finished_unstored(self, task: Task, outcome: Finished) -> None:
        self._unreported.append((task, outcome))

    async def closed(self, closer: UnitCloser) -> None:
        await self._show(closer.unshown, at_barrier=False)
        await self.publisher.units.wait_until_within_capacity()

    async def _show(self, deliveries: Deliveries, *, at_barrier: bool) -> None:
        """Show parts. A reader that waits for them runs at once, and not after the barrier.

        Args:
            at_barrier: nothing is awaited between here and the next superstep, so that this was the barrier's turn.
        """
        if deliveries and await self.publisher.send(deliveries):
            self._turns.is_taken = at_barrier
            await self._turns.turn()


class InnerEvents(ShownEvents):
    """The events of a graph inside, which closes the units of its tasks with its own commits."""

    def _stage(self, persistence: Persistence, deliveries: Deliveries, row: CheckpointRow, step: Superstep) -> None:
        upcoming = step.upcoming
        self._staged = [*self._staged, *deliveries]
        if _runs_routers(upcoming) or not (upcoming and upcoming[0].node.hidden):  # else it goes with the next commit
            units = self.publisher.units
            rows, self._staged = units.close(units.ids_of(step.ran), self._staged, upcoming)
            persistence.events.extend(rows)

    async def _wait_for_readers(self) -> None:
        await self.publisher.units.wait_until_within_capacity()

    async def _on_deferred_commit(self, persistence: Persistence, upcoming: Sequence[Task]) -> None:
        if _runs_routers(upcoming) and persistence.events:
            await persistence.spill()  # it has to be known that the routers have begun before they show anything

    async def _close_finished(
        self, persistence: Persistence, tasks: Sequence[Task], outcomes: Sequence[Outcome], deliveries: Deliveries
    ) -> Deliveries:
        units = self.publisher.units
        await units.wait_for_flush()
        done = [task for task, outcome in zip(tasks, outcomes, strict=True) if isinstance(outcome, Finished)]
        rows, left = units.close(units.ids_of(done), deliveries)
        persistence.events.extend(rows)
        return left


def _runs_routers(upcoming: Sequence[Task]) -> bool:
    """Return True if the hidden start follows and has routers, which may show something."""
    return bool(upcoming) and upcoming[0].node.hidden and bool(upcoming[0].node.routers)


class RecordedEvents(ShownEvents):
    """The events of a called graph, all of which are stored with its transactions.

    Args:
        recorder: stores them.
    """

    def __init__(
        self, publisher: EventPublisher, subscription: Subscription, recorder: EventRecorder, turns: LoopTurns
    ) -> None:
        super().__init__(publisher, (subscription,), turns)
        self._subscription = subscription
        self._recorder = recorder
        self._is_recording = True

    async def resumed(self, writer: NamespaceWriter, board: Board, planned: Planned, *, branched: bool) -> None:
        self.set_committed(board.step)
        if branched:
            self._recorder.move_to_tip()
        else:
            await self._resume_superstep(board, planned)
        if not self._subscription.reconnects:
            await self.publisher.send(self.publisher.resumed(board))

    async def _resume_superstep(self, board: Board, planned: Planned) -> None:
        """Store which units of the open superstep run again, and show them to a reader that saw them before."""
        subscription, recorder = self._subscription, self._recorder
        for part in await recorder.resume(planned, board.step + 1, subscription.shown_messages):
            subscription.resumes = recorder.has_earlier
            subscription.last = subscription.last or recorder.cursor  # of what is shown again, and not stored
            if subscription.shows_restart:
                await subscription.put(part)
            else:
                subscription.assign_cursor(part)

    def failing(self, error: Exception, step: int, *, begun: bool) -> Deliveries:
        if not begun:  # the thread's events are of an earlier run, which did not end this way
            self._is_recording = False
            self._subscription.stop_recording()
        return super().failing(error, step, begun=begun)

    def cancelling(self, step: int) -> bool:
        subscription = self._subscription
        if not self._is_recording or subscription.status is not None:
            return False
        self._recorder.void_open_units()
        if not subscription.dismissed:
            return False
        subscription.status = "cancelled"
        self._assign_cursors_and_status((), "cancelled", step)
        self._recorder.append_head_row()  # in the transaction that marks parts void
        return True

    def _stage(self, persistence: Persistence, deliveries: Deliveries, row: CheckpointRow, step: Superstep) -> None:
        subscription, recorder = self._subscription, self._recorder
        if recorder.stores_at_exit and step.upcoming:
            self._assign_cursors(deliveries)
            recorder.defer_superstep()
        else:
            if step.stops:  # shown with the superstep: a reader that reconnects must not run past a breakpoint
                deliveries = [*deliveries, *self.publisher.stopped(step.board)]
                subscription.status = "stopped"
            recorder.close_superstep(row.checkpoint_id)
            if step.upcoming and not step.stops:
                self._assign_cursors(deliveries)
            else:
                self._assign_cursors_and_status(deliveries, "stopped" if step.upcoming else "done", step.board.step)
            recorder.append_head_row()
        self._staged = [*self._staged, *deliveries]

    def _end_run(
        self, deliveries: Deliveries, status: RunStatus, step: int, errors: Sequence[BaseException] = ()
    ) -> None:
        if self._subscription.status is None and self._is_recording:
            self._assign_cursors_and_status(deliveries, status, step, errors)
            self._recorder.append_tail_row()
        super()._end_run(deliveries, status, step, errors)

    def _assign_cursors(self, deliveries: Deliveries) -> None:
        """Give parts that are to go out their places."""
        for subscription, part in deliveries:
            subscription.assign_cursor(part)

    def _assign_cursors_and_status(
        self, deliveries: Deliveries, status: RunStatus, step: int, errors: Sequence[BaseException] = ()
    ) -> None:
        """Give parts that are to go out their places, and say there how the run ends."""
        self._assign_cursors(deliveries)
        data: dict[str, object] = {"status": status}
        for error in errors[:1]:
            data["error"], data["message"] = described(error)
        self._subscription.assign_cursor(self._subscription.control_part(END, data, step))
