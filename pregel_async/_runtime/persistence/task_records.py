"""Read the task records of an open superstep, and make the rows that store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypedDict

import msgspec

from checkpoint_savers.deltas import Delta, EncodedQuestions, TaskResult, questions_of, read_record, write_record
from checkpoint_savers.errors import UnstorableValueError
from checkpoint_savers.patches import MIN_INCREMENTAL, as_incremental, decode
from checkpoint_savers.records import TaskId, TaskRecord
from checkpoint_savers.sharing import filled_sends

from ..._core.program import NO_UPGRADES, PARENT, RETURN, SENDS, Program, Write
from ..._core.task import NEW, PATCH, Finished, Outcome, Paused, Recorded, Task, Unfinished
from ...channels import LastValue
from ...errors import RecordedFailureError
from ...types import END, Interrupt
from .commit_writers import CommitWriter, Key
from .digests import is_changed
from .encoder import EncodedWrites, Encoder
from .mismatches import is_unknown
from .records import (
    AMENDED,
    NOT_RECORDED,
    SUPERSTEP,
    handler_of,
    is_result,
    open_questions,
)
from .restore import UNFIT, warn_of_unknown


class Answered(Protocol):
    """The answers that a run has; see `context.RunContext`."""

    @property
    def answers(self) -> Mapping[str, Any]: ...

    @property
    def new_answers(self) -> Mapping[str, Any]: ...


class _NothingAnswered:
    """No answers, for reading a thread without resuming it."""

    answers: Mapping[str, Any] = {}
    new_answers: Mapping[str, Any] = {}


NOTHING_ANSWERED = _NothingAnswered()


class RecordedAnswers(TypedDict):
    """The fields of a `TaskResult` that outlive the task's attempts: answers, and the tasks that depend on them."""

    answers: dict[str, bytes]
    askers: dict[str, tuple[str, ...]]
    asked: tuple[tuple[str, bytes], ...]
    schemas: dict[str, bytes]


_NO_NAMES: Final[frozenset[str]] = frozenset()


class EarlierRecords:
    """The records that earlier runs have made in an open superstep, perhaps with other code.

    Args:
        records: the tasks that have a record, and the position that is stored with it.
        results: the records.
    """

    def __init__(self, records: Sequence[tuple[TaskId, int]], results: Mapping[TaskId, TaskResult]) -> None:
        self._records = records
        self._results = dict(results)

    @cached_property
    def calls(self) -> Mapping[tuple[str, bytes], Sequence[TaskId]]:
        """The recorded calls, by the name of the task and the digest of the arguments."""
        calls: dict[tuple[str, bytes], list[TaskId]] = {}
        for task_id, result in self._results.items():
            if result.call:
                calls.setdefault((result.name, result.call), []).append(task_id)
        return calls

    def has(self, task: Task) -> bool:
        """Return True if there is a record of a planned task, or of a task that it has called.

        Its failure, its questions and results of its calls count, and its `patched()` decisions do not.
        """
        return task.index in self._begun[0] or task.written_as() in self._begun[1]

    @cached_property
    def _begun(self) -> tuple[set[int], set[str]]:
        positions: set[int] = set()
        tasks: set[str] = set()
        for task_id, position in self._records:
            result = self._results[task_id]
            if result.name.startswith(PATCH):
                continue
            # A called task's record has the position of the planned task. A record with an answer has another one, but
            # names all tasks that depend on the answer.
            if result.askers:
                tasks.update(*result.askers.values())
            else:
                positions.add(position)
            tasks.add(task_id)
        return positions, tasks


NOTHING_EARLIER: Final = EarlierRecords((), {})
"""The earlier records of a superstep that this run began."""


class TaskRecords:
    """The task records of one namespace's open superstep.

    Attributes:
        results: the records by task, as they are stored or queued.
        names: the names of the tasks that have a record, or had one in this run.
        earlier: the records that earlier runs have made in the open superstep.
        version: the graph's version, if an earlier version has planned the open superstep; else 0.
    """

    version = 0  # of the class: few records have one, and each waiting run would hold it

    def __init__(self, program: Program, encoder: Encoder, writer: CommitWriter) -> None:
        self.results: dict[TaskId, TaskResult] = {}
        self.names = _NO_NAMES
        self.earlier = NOTHING_EARLIER
        self._program = program
        self._encoder = encoder
        self._writer = writer

    @property
    def totals(self) -> Mapping[str, str]:
        """The amounts spent up to the last superstep, as stored text."""
        return self._writer.chain.state.spent

    def use(self, program: Program) -> None:
        """Read the records for this program from now on."""
        self._program = program

    def load(self, records: Sequence[TaskRecord]) -> None:
        """Load stored records. Writes to unknown keys stay in them; see `keep_unknown`."""
        thread_id = self._writer.lease.thread_id
        self.results = {record.task_id: read_record(record, thread_id) for record in records}
        if self._program.upgrades is not NO_UPGRADES:
            from .upgrading import Place, renamed_record  # imported lazily: few graphs declare rules

            place, codec = Place(self._program, thread_id, self._writer.tip), self._encoder.codec
            self.results = {id: renamed_record(place, each, codec) for id, each in self.results.items()}
        self.names = frozenset([result.name for result in self.results.values()])
        if records:
            self.earlier = EarlierRecords([(record.task_id, record.index) for record in records], self.results)
        for result in self.results.values():
            self._writer.lease.askers.update(result.askers)
            for channel, _ in result.writes:
                warn_of_unknown(self._program, channel, thread_id)

    def has_result(self, task_id: TaskId) -> bool:
        """Return True if the task has finished, so that it need not run."""
        return self.results.get(task_id, NOT_RECORDED).finished

    @property
    def fold_failed(self) -> bool:
        """Whether the superstep has failed although all of its tasks have results."""
        return SUPERSTEP in self.results

    def recorded(self, task: Task, run: Answered) -> Recorded:
        """Return a task's recorded result (or its error handler's), its unanswered questions, or where it starts.

        Args:
            task: the task.
            run: the answers that the run has.
        """
        result = self.results.get(task.id, NOT_RECORDED) if self.results else NOT_RECORDED
        if result is NOT_RECORDED:
            return NEW
        handler = handler_of(task, result)
        if handler is None:
            return self._outcome_in(result, run, handler) or (
                NEW if result.routed else Unfinished(self._decoded(result))
            )
        kind, message, _ = result.error or ("", "", 0.0)
        left = Unfinished(failures=(RecordedFailureError(kind, message),))
        return self._outcome_in(self.results.get(handler.id, NOT_RECORDED), run, handler) or left

    def _outcome_in(self, result: TaskResult, run: Answered, handler: Task | None) -> Finished | Paused | None:
        """Return the result or the open questions in a record; None if the task has to run."""
        if result.finished:
            writes = self._decoded(result)
            ends_graph = any(name == PARENT for name, _ in writes)
            return Finished(writes, replayed=True, own=len(writes), ends_graph=ends_graph, handler_task=handler)
        # A call that answers other tasks' questions does not run this one: it would only ask again.
        if run.new_answers and result.interrupts and not any(key in run.new_answers for key, _ in result.interrupts):
            codec = self._encoder.codec
            asked = tuple([each for each in open_questions(result, codec) if each.id not in run.answers])
            if asked:
                return Paused(asked, None if result.routed else self._decoded(result), handler)
        return None

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the task that is recorded in a call's position if it is another call; else None.

        Args:
            task: the called task, with its digest.
        """
        if not self.results:
            return None
        if task.id in self.results:
            result = self.results[task.id]
            return result.name if is_changed(result.call, task.digest) else None
        # Task ids contain the task's name. So try the id that each recorded name would have in this position.
        names = sorted(self.names)
        return next((name for name in names if name != task.node.name and task.id_as(name) in self.results), None)

    def close(self) -> None:
        """Forget all records, because the superstep has closed."""
        self.results, self.earlier, self.version = {}, NOTHING_EARLIER, 0

    def patch(self, task: Task, name: str) -> tuple[bool, ...]:
        """Return the recorded `patched()` decision of a planned task, as a tuple of one; empty if there is none."""
        result = self.results.get(task.id_of_patch(name), NOT_RECORDED)
        return tuple([bool(self._encoder.codec.decode(data, channel=name)) for _, data in result.writes])

    def new_patch(self, name: str, *, is_new: bool) -> TaskResult:
        """Return the record of a `patched()` decision. It has the form of a called task's result."""
        return TaskResult(name=f"{PATCH}:{name}", writes=self._encoder.writes([(RETURN, is_new)]))

    def _decoded(self, result: TaskResult) -> list[Write]:
        channels, codec, writer = self._program.channels, self._encoder.codec, self._writer
        known = [write for write in result.writes if write[0] in channels or write[0] in (PARENT, RETURN)]
        writes = [(channel, codec.decode(data, channel=channel)) for channel, data in known]
        if not any(channel == SENDS for channel, _ in writes):
            return writes
        values = (
            writer.chain.state.values
        )  # a recorded send may refer to values of this state instead of repeating them

        def value_of(channel: str) -> Any:
            return decode(values[channel], codec, channel=channel)

        where = f"thread {writer.lease.thread_id!r}, task {result.name!r}"
        return [
            (channel, filled_sends([value], value_of, where)[0] if channel == SENDS else value)
            for channel, value in writes
        ]

    def questions(self) -> list[Interrupt]:
        """Return the open questions of the tasks, in plan order."""
        codec = self._encoder.codec
        return [question for result in self.results.values() for question in open_questions(result, codec)]

    def retired_questions(self) -> dict[str, str]:
        """Return the nodes that are retired without a successor, by the ids of their unanswered questions."""
        nodes = self._program.upgrades.nodes
        retired = [result for result in self.results.values() if nodes.get(result.name) == END]
        return {key: each.name for each in retired for key, _ in each.asked if key not in each.answers}

    def answers(self) -> dict[str, Any]:
        """Return all recorded answers, by question id."""
        codec = self._encoder.codec
        return {
            key: codec.decode(data, channel="an answer")
            for result in self.results.values()
            for key, data in result.answers.items()
        }

    def answered_questions(self) -> dict[str, Any]:
        """Return the values of the answered questions, by question id."""
        codec = self._encoder.codec
        return {
            key: codec.decode(data, channel="interrupt()")
            for result in self.results.values()
            for key, data in result.asked
        }

    def is_same(self, one: Any, other: Any) -> bool:
        """Return True if two values are equal, types included, as the graph's codec stores them."""
        canonical = self._encoder.codec.canonical
        try:
            return canonical(one, channel="interrupt()") == canonical(other, channel="interrupt()")
        except UnstorableValueError:
            return False

    def with_answers(self, answers: Mapping[str, Any]) -> dict[TaskId, TaskResult]:
        """Return the changed records of the tasks whose questions are answered now.

        Raises:
            UnstorableValueError: an answer cannot be encoded.
        """
        changed: dict[TaskId, TaskResult] = {}
        for task_id, result in self.results.items():
            asked = {key for key, _ in result.interrupts or ()}
            given = {
                key: self._encoder.codec.encode(value, channel=f"the answer to {key}")
                for key, value in answers.items()
                if key in asked
            }
            if given:
                questions = tuple([(key, data) for key, data in result.interrupts or () if key in given])
                changed[task_id] = msgspec.structs.replace(
                    result, answers={**result.answers, **given}, asked=(*result.asked, *questions)
                )
        return changed

    def answers_to_repeat(self, task_id: TaskId, questions: Sequence[Interrupt] = ()) -> RecordedAnswers:
        """Return the answers that a task's next record has to repeat, and the tasks that depend on them.

        Args:
            task_id: the task.
            questions: the questions that it asks now.
        """
        # A record replaces the task's earlier one. Answers must survive it: an attempt after a failure gets them again.
        before, askers = self.results.get(task_id, NOT_RECORDED), self._writer.lease.askers
        refused = self._writer.lease.refused
        keys = [*before.answers, *(each.id for each in questions)]
        return RecordedAnswers(
            answers={key: data for key, data in before.answers.items() if key not in refused},
            askers={key: askers[key] for key in keys if key in askers},
            asked=tuple([each for each in before.asked if each[0] not in refused]),
            schemas={**before.schemas, **self._encoder.schemas(questions)},
        )

    def reopened(self, task_id: TaskId) -> EncodedQuestions | None:
        """Return a task's open questions if this run has refused the answer to one of them; else None.

        The questions with refused answers are open again. The unanswered ones stay open.
        """
        refused, before = self._writer.lease.refused, self.results.get(task_id, NOT_RECORDED)
        questions = questions_of(before)
        if not any(key in refused for key, _ in questions):
            return None
        return tuple([each for each in questions if each[0] in refused or each[0] not in before.answers])

    def unknown_writes(self, task_id: TaskId) -> EncodedWrites:
        """Return a task's recorded writes to keys that the graph does not have."""
        result = self.results.get(task_id, NOT_RECORDED)
        return tuple([each for each in result.writes if is_unknown(self._program, each[0])])

    def keep_unknown(self, ran: Sequence[Task], outcomes: Sequence[Outcome], delta: Delta) -> None:
        """Add to a superstep's delta what its tasks have recorded for keys that the graph does not have any more.

        Args:
            ran: the superstep's tasks.
            outcomes: their outcomes, in the same order.
            delta: the superstep's delta.
        """
        # A last-value channel is overwritten by the write. Other channels have a reducer, which went with the code:
        # their updates stay in the superstep's records.
        acting = [
            (each.handler_task or task).id
            for task, each in zip(ran, outcomes, strict=True)
            if isinstance(each, Finished)
        ]
        kinds = self._writer.chain.state.kinds
        for task_id in (AMENDED, *acting):
            for name, data in self.unknown_writes(task_id):
                if name not in kinds:
                    delta.kinds[name] = LastValue.kind
                if kinds.get(name, LastValue.kind).removesuffix(UNFIT) == LastValue.kind:
                    delta.values[name] = data if len(data) < MIN_INCREMENTAL else as_incremental(data)

    def marked(self, result: TaskResult) -> TaskResult:
        """Return a new record with the version that makes it, if an earlier one has planned the superstep."""
        # A failure without writes holds nothing in terms of the code: the earlier version may try again after it.
        if self.version and (result.writes or result.interrupts):
            return msgspec.structs.replace(result, version=self.version)
        return result

    def row(self, task_id: TaskId, index: int, result: TaskResult) -> TaskRecord:
        """Return the row that stores a record."""
        counts = result.finished or not result.routed
        return TaskRecord(
            ns=self._writer.ns,
            checkpoint_id=self._writer.tip,
            task_id=task_id,
            index=index,
            kind="result" if counts else "error" if result.error else "interrupt",
            frame=write_record(result),
        )

    def failures(self, ran: Sequence[Task], outcomes: Sequence[Outcome]) -> tuple[list[Key], list[TaskRecord]]:
        """Return the keys of the records to delete when the superstep closes, and the records to store instead.

        Results, handled failures and questions are part of the history. Of a record with questions, only these stay:
        its answers and failures belong to a superstep that has to run again.
        """
        handled = {
            task.id
            for task, outcome in zip(ran, outcomes, strict=True)
            if isinstance(outcome, Finished) and outcome.handler_task is not None
        }
        ns, tip = self._writer.ns, self._writer.tip
        over: list[Key] = []
        asked: list[TaskRecord] = []
        for index, (task_id, result) in enumerate(self.results.items()):
            if is_result(result) or task_id in handled:
                continue
            if questions := questions_of(result):
                asked.append(self.row(task_id, index, _questions_only(result, questions)))
            else:
                over.append((ns, tip, task_id))
        return over, asked


def _questions_only(result: TaskResult, questions: EncodedQuestions) -> TaskResult:
    return TaskResult(name=result.name, routed=False, asked=questions, schemas=result.schemas)
