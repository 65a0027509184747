"""Make the encoded records of tasks' outcomes: results, failures and questions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from checkpoint_savers.deltas import TaskResult, questions_of
from checkpoint_savers.errors import UnstorableValueError
from checkpoint_savers.records import TaskId, TaskRecord

from ..._core.program import Write
from ..._core.task import Failed, Finished, Outcome, Paused, Task
from ..observing.error_text import described
from ..platform.environment import Environment
from .encoder import EncodedWrites, Encoder
from .records import NOT_RECORDED, SUPERSTEP, handler_of
from .spending_counter import SpendingCounter
from .task_records import RecordedAnswers, TaskRecords

_NOTHING_ASKED = RecordedAnswers(answers={}, askers={}, asked=(), schemas={})


class OutcomeRecords:
    """Makes the records of one namespace's tasks."""

    def __init__(
        self, records: TaskRecords, encoder: Encoder, counter: SpendingCounter, environment: Environment
    ) -> None:
        self._records = records
        self._encoder = encoder
        self._counter = counter
        self._environment = environment

    def result(self, task: Task, writes: Sequence[Write], *, routed: bool) -> TaskResult:
        """Return the record of a task's writes.

        Raises:
            UnstorableValueError: a write cannot be encoded; a note names the task.
        """
        try:
            data = self._encoder.writes(writes)
        except UnstorableValueError as error:
            error.add_note(f"written by {_named(task)}")
            raise
        asked = self._asked(task.id) if routed else self._records.answers_to_repeat(task.id)
        unknown = self._records.unknown_writes(task.id)
        unfit = self._encoder.unfit(writes)
        return TaskResult(name=task.node.identity, writes=(*data, *unknown), routed=routed, unfit=unfit, **asked)

    def by_hand(self, task: Task, writes: Sequence[Write]) -> TaskResult:
        """Return the record of writes that an update makes as a pending task. Raises `UnstorableValueError`."""
        data, unfit = self._encoder.writes(writes), self._encoder.unfit(writes)
        return TaskResult(name=task.node.identity, writes=data, unfit=unfit, **self._asked(task.id))

    def handled_failure(self, task: Task, error: BaseException) -> TaskResult:
        """Return the record of a task that failed and has an error handler to run."""
        failed = self._failure(task.node.identity, error)
        return msgspec.structs.replace(failed, handled=True, **self._records.answers_to_repeat(task.id))

    def superstep_failure(self, error: BaseException) -> TaskRecord:
        """Return the row for a superstep that failed although all of its tasks have results."""
        return self._records.row(SUPERSTEP, -1, self._failure("", error))

    def open_superstep(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> list[TaskRecord]:
        """Record the outcomes of a superstep that stays open, as far as they are not recorded yet.

        Returns:
            The rows, which the caller stores.
        """
        results: list[tuple[Task, TaskResult]] = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                results.append(self._failed(task, outcome))
            elif isinstance(outcome, Paused):
                results.append(self._paused(outcome.handler_task or task, outcome))
            elif isinstance(outcome, Finished):
                results += self._finished(outcome.handler_task or task, outcome)
        if self._records.version:
            results = [(task, self._records.marked(result)) for task, result in results]
        self._counter.with_unrecorded(results)
        rows = [self._records.row(task.id, task.index, result) for task, result in results]
        # Before `publish`, which sums up the records.
        self._records.results.update({task.id: result for task, result in results})
        self._counter.publish()
        return rows

    def _finished(self, task: Task, outcome: Finished) -> list[tuple[Task, TaskResult]]:
        """Return the record of a result; empty if it has one, or cannot be encoded, so that the task runs again."""
        if self._records.has_result(task.id):
            return []
        try:
            writes = self._encoder.writes(outcome.writes)
        except UnstorableValueError:
            return []
        unfit = self._encoder.unfit(outcome.writes)
        result = TaskResult(name=task.node.identity, writes=writes, unfit=unfit, **self._asked(task.id))
        return [(task, self._counter.with_spent(task.id, result))]

    def _asked(self, task_id: TaskId) -> RecordedAnswers:
        """Return the part of a finished task's record that shows its questions in the history, without the answers."""
        before = self._records.results.get(task_id, NOT_RECORDED)
        return (
            _NOTHING_ASKED
            if before is NOT_RECORDED
            else RecordedAnswers(answers={}, askers={}, asked=questions_of(before), schemas=before.schemas)
        )

    def _paused(self, task: Task, outcome: Paused) -> tuple[Task, TaskResult]:
        writes, _ = self._own_writes(outcome)
        result = TaskResult(
            name=task.node.identity,
            writes=writes,
            routed=not outcome.has_run,
            interrupts=self._encoder.questions(outcome.interrupts),
            unfit=self._encoder.unfit(outcome.writes or ()),
            **self._records.answers_to_repeat(task.id, outcome.interrupts),
        )
        return task, self._counter.with_spent(task.id, result)

    def _failed(self, task: Task, outcome: Failed) -> tuple[Task, TaskResult]:
        """Return the record of a failure."""
        # Once the error handler has begun, the failure is the handler's. The node's own failure stays recorded, so that
        # a resume starts at the handler and does not run the node again.
        records = self._records
        acting = handler_of(task, records.results.get(task.id, NOT_RECORDED)) or task
        writes, runs_again = self._own_writes(outcome)
        if outcome.has_run:
            writes = (*writes, *records.unknown_writes(acting.id))
        failed = self._failure(acting.node.identity, outcome.error, writes, runs_again=runs_again)
        # A refused answer is not kept: its question is open again, and the failure is recorded.
        reopened = records.reopened(acting.id)
        failed = msgspec.structs.replace(failed, **records.answers_to_repeat(acting.id), interrupts=reopened)
        return acting, self._counter.with_spent(acting.id, failed)

    def _own_writes(self, outcome: Failed | Paused) -> tuple[EncodedWrites, bool]:
        """Return the node's own writes if only a router failed or asks, and whether the node has to run again.

        It has to run again, too, if its writes cannot be stored.
        """
        try:
            return self._encoder.writes(outcome.writes or ()), not outcome.has_run
        except UnstorableValueError:
            return (), True

    def _failure(
        self, name: str, error: BaseException, writes: EncodedWrites = (), *, runs_again: bool = True
    ) -> TaskResult:
        error_fields = (*described(error), self._environment.now())
        return TaskResult(name=name, writes=writes, routed=runs_again, error=error_fields)

    def refused(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: UnstorableValueError) -> list[Outcome]:
        """Return the outcomes with each task failed that wrote an unstorable value. Notes of `error` name them."""
        refused: list[Outcome] = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if (
                isinstance(outcome, Finished)
                and not self._records.has_result((outcome.handler_task or task).id)
                and not self._can_be_stored(outcome.writes)
            ):
                error.add_note(f"written by {_named(task)}")
                refused.append(Failed(error, outcome.writes[: outcome.own]))
            else:
                refused.append(outcome)
        return refused

    def _can_be_stored(self, writes: Sequence[Write]) -> bool:
        try:
            self._encoder.writes(writes)
        except UnstorableValueError:
            return False
        return True

    def check(self, task: Task, asked: Paused) -> None:
        """Check that a task's questions can be stored, and the node's writes if a router asks.

        Raises:
            UnstorableValueError: they cannot; a note names the task.
        """
        try:
            self._encoder.writes(asked.writes or ())
            self._encoder.questions(asked.interrupts)
            self._encoder.schemas(asked.interrupts)
        except UnstorableValueError as error:
            error.add_note(f"of {_named(task)}")
            raise


def _named(task: Task) -> str:
    return f"node {task.node.name!r}, superstep {task.step}, task {task.id}"
