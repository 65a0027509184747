"""Decide when the events of one graph's run are made, stored and published.

    RunEvents        the run has no readers: each method does nothing
    ShownEvents      the run has readers; no events are stored
    InnerEvents      a subgraph whose events are stored: its own commits close the units of its tasks
    RecordedEvents   the called graph with `keep_events=True`: all events are stored with its transactions

Parts that belong to a transaction are made before it, stored with it, and published after it.
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
from .parts import END, RawPart, Unit
from .publisher import NO_PUBLISHER, EventPublisher
from .stored_units import NO_CLOSER, Deliveries, UnitCloser
from .subscription import Subscription

ListUnits = Callable[[bool], Iterator[Unit]]
"""Yields the units of the open superstep that run again. If called with True, also the recorded ones."""


class Superstep(msgspec.Struct, frozen=True, kw_only=True):
    """A superstep that is being stored.

    Attributes:
        board: the board after the superstep.
        ran, outcomes: its tasks and their outcomes; for an input, the tasks that the input discards.
        upcoming: the tasks of the next superstep.
        source: whether it is a superstep of the loop or an input.
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
        publisher: makes parts of the events.
        are_shown: the run has readers.
    """

    publisher: EventPublisher = NO_PUBLISHER
    are_shown = False

    async def resumed(self, writer: NamespaceWriter, board: Board, planned: ListUnits, *, branched: bool) -> None:
        """Publish that the run resumes from a stored board: on a new branch, or from the thread's newest checkpoint."""

    def begin(self) -> None:
        """Mark the run as begun: it has acquired its thread and stored its input."""

    def done(self, status: RunStatus) -> None:
        """Set the status of a run that has ended and has nothing left to store."""

    def stopping(self, board: Board, stop: Stop) -> Deliveries:
        """Return the parts to publish once it is stored that the run stops between two supersteps."""
        return ()

    def failing(self, error: Exception, step: int, *, begun: bool) -> Deliveries:
        """Return the parts to publish once a failure outside of a superstep's tasks is stored.

        Args:
            error: the failure.
            step: the number of the superstep in which the run fails.
            begun: the run has acquired its thread and stored its input.
        """
        return ()

    def cancelling(self, step: int) -> bool:
        """Return True if the cancellation of the run must be stored, so that no service resumes it."""
        return False

    async def send(self, deliveries: Deliveries) -> None:
        """Publish parts."""

    def commit(self, persistence: Persistence, step: Superstep) -> Awaitable[object]:
        """Store a superstep with its events, then publish its parts. Await the result at once."""
        return persistence.commit(step.board, step.ran, step.outcomes, step.upcoming, source=step.source)

    async def pausing(
        self, persistence: Persistence, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome], stop: Stop
    ) -> Deliveries:
        """Return the parts to publish once the outcomes of a superstep that stays open are recorded."""
        return ()

    async def failing_superstep(
        self,
        persistence: Persistence,
        tasks: Sequence[Task],
        outcomes: Sequence[Outcome],
        error: BaseException,
        step: int,
    ) -> tuple[Deliveries, Deliveries]:
        """Return the parts to publish if the failure of a superstep could not be recorded, and if it was."""
        return (), ()

    def closer(self, task: Task, outcome: Finished) -> UnitCloser:
        """Return the closer of the units of a task whose result is recorded."""
        return NO_CLOSER

    async def finished(self, task: Task, outcome: Finished, *, at_barrier: bool = False) -> None:
        """Publish that a task has finished and its result is as durable as the run promises."""

    def finished_unstored(self, task: Task, outcome: Finished) -> None:
        """Remember a finished task whose result is stored by the superstep's commit, to publish it then."""

    async def closed(self, closer: UnitCloser) -> None:
        """Publish the remaining parts of a task whose result and events have been recorded."""


NO_READER = RunEvents()


class ShownEvents(RunEvents):
    """The events of a run with readers: of this graph's call, or of an outer graph's.

    Args:
        publisher: makes and sends the parts.
        own: the subscription of this graph's own call, if it has a reader.
        turns: lets a waiting reader run at once instead of after the barrier.
    """

    are_shown = True

    def __init__(self, publisher: EventPublisher, own: Sequence[Subscription], turns: LoopTurns) -> None:
        self.publisher = publisher
        self._own = own
        self._turns = turns
        self._unreported: list[tuple[Task, Finished]] = []  # their results are stored by the commit
        # Parts of finished tasks that were waiting for a reader when a sibling's failure cancelled the wait.
        self._unshown: list[tuple[Subscription, RawPart]] = []
        self._staged: Deliveries = ()  # parts of checkpoints that are not stored yet

    def set_committed(self, step: int) -> None:
        """Set the newest stored superstep, which later parts report as `committed`."""
        for subscription in self._own:
            subscription.committed = step

    async def resumed(self, writer: NamespaceWriter, board: Board, planned: ListUnits, *, branched: bool) -> None:
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
        # A breakpoint that follows a commit was published with the commit (see `RecordedEvents._stage`).
        if not stop.errors and not any(subscription.status == "stopped" for subscription in self._own):
            deliveries = self.publisher.stopped(board)
        self._end_run(deliveries, stop.status, board.step, stop.failures)
        return deliveries

    def failing(self, error: Exception, step: int, *, begun: bool) -> Deliveries:
        # Storage may have failed. Parts that wait for their rows would hold back the report of the failure forever.
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
        # Without a thread nothing has to be stored first.
        if not persistence.is_stored:
            if updated:
                await self._show(updated, at_barrier=True)
            return

        def on_row(row: CheckpointRow) -> None:
            stored = self.publisher.stored(step.board, row, step.upcoming)
            self._stage(persistence, [*self._pop_unreported(), *updated, *stored], row, step)

        # A flush in progress must be stored first: the commit's row closes the units whose events are being flushed.
        await self.publisher.units.wait_for_flush()
        # `on_row` runs as soon as the row exists, so that the row's events join the same transaction.
        if await persistence.commit(
            step.board, step.ran, step.outcomes, step.upcoming, source=step.source, on_row=on_row
        ):
            deliveries, self._staged = self._staged, ()
            await self._show(deliveries, at_barrier=True)
            await self._wait_for_readers()
        else:
            await self._on_deferred_commit(persistence, step.upcoming)

    def _stage(self, persistence: Persistence, deliveries: Deliveries, row: CheckpointRow, step: Superstep) -> None:
        """Hold the parts of a new checkpoint until it is stored."""
        self._staged = [*self._staged, *deliveries]

    async def _wait_for_readers(self) -> None:
        """Wait for readers whose buffers exceed their capacity."""

    async def _on_deferred_commit(self, persistence: Persistence, upcoming: Sequence[Task]) -> None:
        """Handle a checkpoint that is stored with the next commit."""

    async def pausing(
        self, persistence: Persistence, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome], stop: Stop
    ) -> Deliveries:
        asks = any(isinstance(each, Paused) and each.interrupts for each in outcomes)
        deliveries = await self._close_finished(persistence, tasks, outcomes, self._pop_unreported())
        paused = [
            (task, each)
            for task, each in zip(tasks, outcomes, strict=True)
            if isinstance(each, Paused) and (each.interrupts or not stop.errors)  # otherwise a subgraph had to stop
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
        """Add the events of tasks that are recorded because their superstep stays open. Return the other parts."""
        return deliveries

    def _pop_unreported(self) -> Deliveries:
        unreported, self._unreported = self._unreported, []
        publisher = self.publisher
        return [
            delivery for task, each in unreported for delivery in publisher.finished(each.handler_task or task, each)
        ]

    def _failures(self, errors: Sequence[BaseException], step: int) -> Deliveries:
        """Return the parts that report the run's failure to this call's readers. A failure is reported once."""
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
        """Add the run's last events and its status to the next transaction."""
        for subscription in self._own:
            subscription.status = subscription.status or status

    def closer(self, task: Task, outcome: Finished) -> UnitCloser:
        return self.publisher.closer_of_finished(task, outcome)

    async def finished(self, task: Task, outcome: Finished, *, at_barrier: bool = False) -> None:
        deliveries = self.publisher.finished(outcome.handler_task or task, outcome)
        try:
            await self._show(deliveries, at_barrier=at_barrier)
        except anyio.get_cancelled_exc_class():
            # A sibling failed while this task waited for a reader. The task's result is stored and will not run again,
            # so its parts must not be lost; those with a number or a cursor have been published.
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
        """Publish parts. A reader that waits for them runs at once instead of after the barrier.

        Args:
            deliveries: the parts.
            at_barrier: nothing is awaited between here and the next superstep, so that this turn of the event loop
                counts as the barrier's.
        """
        if deliveries and await self.publisher.send(deliveries):
            self._turns.is_taken = at_barrier
            await self._turns.turn()


class InnerEvents(ShownEvents):
    """The events of a subgraph, whose own commits close the units of its tasks."""

    def _stage(self, persistence: Persistence, deliveries: Deliveries, row: CheckpointRow, step: Superstep) -> None:
        upcoming = step.upcoming
        self._staged = [*self._staged, *deliveries]
        # Before a hidden start without routers nothing can be published: its parts join the next commit's row.
        if _runs_routers(upcoming) or not (upcoming and upcoming[0].node.hidden):
            units = self.publisher.units
            rows, self._staged = units.close(units.ids_of(step.ran), self._staged, upcoming)
            persistence.events.extend(rows)

    async def _wait_for_readers(self) -> None:
        await self.publisher.units.wait_until_within_capacity()

    async def _on_deferred_commit(self, persistence: Persistence, upcoming: Sequence[Task]) -> None:
        if _runs_routers(upcoming) and persistence.events:
            # Otherwise routers could publish parts before a row says that they have begun, and a crash would lose that.
            await persistence.flush_events()

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
    """Return True if the hidden start runs next and has routers, which may publish parts."""
    return bool(upcoming) and upcoming[0].node.hidden and bool(upcoming[0].node.routers)


class RecordedEvents(ShownEvents):
    """The events of a called graph with `keep_events=True`: all are stored with its transactions.

    Args:
        publisher: makes and sends the parts.
        subscription: the subscription of the call.
        recorder: stores the events.
        turns: lets a waiting reader run at once instead of after the barrier.
    """

    def __init__(
        self, publisher: EventPublisher, subscription: Subscription, recorder: EventRecorder, turns: LoopTurns
    ) -> None:
        super().__init__(publisher, (subscription,), turns)
        self._subscription = subscription
        self._recorder = recorder
        self._is_recording = True

    async def resumed(self, writer: NamespaceWriter, board: Board, planned: ListUnits, *, branched: bool) -> None:
        self.set_committed(board.step)
        if branched:
            self._recorder.move_to_tip()
        else:
            await self._resume_superstep(board, planned)
        if not self._subscription.reconnects:
            await self.publisher.send(self.publisher.resumed(board))

    async def _resume_superstep(self, board: Board, planned: ListUnits) -> None:
        """Store which units of the open superstep run again, and report them to a reader that received their parts."""
        subscription, recorder = self._subscription, self._recorder
        for part in await recorder.resume(planned, board.step + 1, subscription.shown_messages):
            subscription.resumes = recorder.has_earlier
            subscription.last = (
                subscription.last or recorder.cursor
            )  # for parts that are published again and not stored
            if subscription.shows_restart:
                await subscription.put(part)
            else:
                subscription.record_unshown(part)

    def begin(self) -> None:
        super().begin()
        self._recorder.is_running = self._subscription.status is None

    async def commit(self, persistence: Persistence, step: Superstep) -> None:
        self._recorder.is_running = False
        await super().commit(persistence, step)

    async def _close_finished(
        self, persistence: Persistence, tasks: Sequence[Task], outcomes: Sequence[Outcome], deliveries: Deliveries
    ) -> Deliveries:
        await self._recorder.end_early_rows()
        return deliveries

    def failing(self, error: Exception, step: int, *, begun: bool) -> Deliveries:
        self._recorder.is_running = False
        if not begun:
            # The call was refused before it began. The thread's stored events belong to the run before it, and must
            # not say that the earlier run failed this way.
            self._is_recording = False
            self._subscription.stop_recording()
        return super().failing(error, step, begun=begun)

    def cancelling(self, step: int) -> bool:
        subscription, self._recorder.is_running = self._subscription, False
        if not self._is_recording or subscription.status is not None:
            return False
        self._recorder.void_open_units()
        if not subscription.dismissed:
            return False
        subscription.status = "cancelled"
        self._assign_cursors_and_status((), "cancelled", step)
        # In the transaction that marks the open units as void: both or neither is stored.
        self._recorder.append_head_row()
        return True

    def _stage(self, persistence: Persistence, deliveries: Deliveries, row: CheckpointRow, step: Superstep) -> None:
        subscription, recorder = self._subscription, self._recorder
        if recorder.stores_at_exit and step.upcoming:
            self._assign_cursors(deliveries)
            recorder.defer_superstep()
        else:
            if step.stops:
                # Stored with the superstep itself. In a later transaction, a crash in between would let a reader that
                # reconnects run past the breakpoint.
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
        self._recorder.is_running = False
        if self._subscription.status is None and self._is_recording:
            self._assign_cursors_and_status(deliveries, status, step, errors)
            self._recorder.append_tail_row()
        super()._end_run(deliveries, status, step, errors)

    def _assign_cursors(self, deliveries: Deliveries) -> None:
        """Assign cursors to parts that will be published."""
        for subscription, part in deliveries:
            subscription.assign_cursor(part)

    def _assign_cursors_and_status(
        self, deliveries: Deliveries, status: RunStatus, step: int, errors: Sequence[BaseException] = ()
    ) -> None:
        """Assign cursors to parts that will be published, and add the event that says how the run ends."""
        self._assign_cursors(deliveries)
        data: dict[str, object] = {"status": status}
        for error in errors[:1]:
            data["error"], data["message"] = described(error)
        self._subscription.assign_cursor(self._subscription.control_part(END, data, step))
