"""What is recorded of the tasks of a superstep that is open: what runs read of it, and the rows that store it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypedDict

import msgspec

from checkpoint_savers.deltas import Delta, TaskResult, read_record, write_record
from checkpoint_savers.errors import UnstorableValueError
from checkpoint_savers.patches import WORTH, decode, in_parts
from checkpoint_savers.records import TaskId, TaskRecord
from checkpoint_savers.sharing import filled_sends

from ..._core.program import BRANCH, PARENT, RETURN, SENDS, Program, Write
from ..._core.task import NEW, Finished, Outcome, Paused, Recorded, Task, Unfinished
from ...channels import LastValue
from ...errors import GraphChangedError, RecordedFailureError
from ...types import Interrupt
from .commit_writers import CommitWriter, Key
from .digests import is_changed
from .encoder import Encoder, Written
from .records import AMENDED, NOT_RECORDED, SUPERSTEP, handler_of, is_result, open_questions
from .restore import UNFIT, is_unknown, warn_of_unknown


class Answered(Protocol):
    """Which answers there are; see `context.RunContext`."""

    @property
    def answers(self) -> Mapping[str, Any]: ...

    @property
    def new_answers(self) -> Mapping[str, Any]: ...


class _NothingAnswered:
    """No answers: of a thread that is looked at, and not resumed."""

    answers: Mapping[str, Any] = {}
    new_answers: Mapping[str, Any] = {}


NOTHING_ANSWERED = _NothingAnswered()


class Asked(TypedDict):
    """Fields of a `TaskResult`: the answers to a task, and the tasks that depend on them."""

    answers: dict[str, bytes]
    askers: dict[str, tuple[str, ...]]
    asked: tuple[tuple[str, bytes], ...]


_NO_NAMES: Final[frozenset[str]] = frozenset()


class TaskRecords:
    """The records of one namespace's open superstep.

    Attributes:
        entries: by task, as they are or will be stored.
        names: of the tasks that something is or was recorded of.
    """

    def __init__(self, program: Program, encoder: Encoder, out: CommitWriter) -> None:
        self.entries: dict[TaskId, TaskResult] = {}
        self.names = _NO_NAMES
        self._program = program
        self._encoder = encoder
        self._out = out

    @property
    def totals(self) -> Mapping[str, str]:
        """What was spent until the last superstep, as it is stored."""
        return self._out.chain.state.spent

    def load(self, records: Sequence[TaskRecord]) -> None:
        """Take what is stored, checked against the graph's code as it is now.

        Raises:
            GraphChangedError: a record leads to a node that does not exist.
        """
        self.entries = {record.task_id: self._fitting(record) for record in records}
        self.names = frozenset([entry.name for entry in self.entries.values()])
        for entry in self.entries.values():
            self._out.lease.askers.update(entry.askers)

    def _fitting(self, record: TaskRecord) -> TaskResult:
        """What it wrote to a key that the graph does not have stays in it; see `keep_unknown`."""
        thread_id = self._out.lease.thread_id
        entry = read_record(record, thread_id)
        for channel, _ in entry.writes:
            if channel.startswith(BRANCH) and channel not in self._program.channels:
                node = channel.removeprefix(BRANCH)
                reason = f"node {entry.name!r} has finished and leads to node {node!r}, and there is no such node"
                raise GraphChangedError(thread_id, node, reason)
            warn_of_unknown(self._program, channel, thread_id)
        return entry

    def has_result(self, task_id: TaskId) -> bool:
        """Return True if the task has finished, so that it need not run."""
        return self.entries.get(task_id, NOT_RECORDED).finished

    @property
    def fold_failed(self) -> bool:
        """Whether the superstep could not be closed with the results that its tasks have."""
        return SUPERSTEP in self.entries

    def recorded(self, task: Task, run: Answered) -> Recorded:
        """Return what is recorded of a task: its result or its error handler's, questions that this call leaves
        unanswered, or the point from which it has to run."""
        entry = self.entries.get(task.id, NOT_RECORDED) if self.entries else NOT_RECORDED
        if entry is NOT_RECORDED:
            return NEW
        by = handler_of(task, entry)
        if by is None:
            return self._reached(entry, run, by) or (NEW if entry.routed else Unfinished(self._decoded(entry)))
        kind, message, _ = entry.error or ("", "", 0.0)
        left = Unfinished(failures=(RecordedFailureError(kind, message),))
        return self._reached(self.entries.get(by.id, NOT_RECORDED), run, by) or left

    def _reached(self, entry: TaskResult, run: Answered, by: Task | None) -> Finished | Paused | None:
        """The result or the open questions that a record holds; None when the task has to run."""
        if entry.finished:
            writes = self._decoded(entry)
            leaves = any(name == PARENT for name, _ in writes)
            return Finished(writes, replayed=True, own=len(writes), leaves=leaves, by=by)
        if run.new_answers and entry.interrupts and not any(key in run.new_answers for key, _ in entry.interrupts):
            codec = self._encoder.codec
            asked = tuple([each for each in open_questions(entry, codec) if each.id not in run.answers])
            if asked:
                return Paused(asked, None if entry.routed else self._decoded(entry), by)
        return None

    def recorded_instead(self, task: Task) -> str | None:
        """Return the name of the task that is recorded in the place of a call if it was another call; else None.

        Args:
            task: the call's, with its digest.
        """
        if not self.entries:
            return None
        if task.id in self.entries:
            entry = self.entries[task.id]
            return entry.name if is_changed(entry.call, task.digest) else None
        # An id is made of the task's name, too: another task's record has the id that its name gives in this place.
        names = sorted(self.names)
        return next((name for name in names if name != task.node.name and task.id_as(name) in self.entries), None)

    def _decoded(self, entry: TaskResult) -> list[Write]:
        channels, codec, out = self._program.channels, self._encoder.codec, self._out
        known = [write for write in entry.writes if write[0] in channels or write[0] in (PARENT, RETURN)]
        writes = [(channel, codec.decode(data, channel=channel)) for channel, data in known]
        if not any(channel == SENDS for channel, _ in writes):
            return writes
        values = out.chain.state.values  # the superstep was planned on it, and a recorded send may refer to it

        def value_of(channel: str) -> Any:
            return decode(values[channel], codec, channel=channel)

        where = f"thread {out.lease.thread_id!r}, task {entry.name!r}"
        return [
            (channel, filled_sends([value], value_of, where)[0] if channel == SENDS else value)
            for channel, value in writes
        ]

    def questions(self) -> list[Interrupt]:
        """The open questions of the tasks, in plan order."""
        codec = self._encoder.codec
        return [question for entry in self.entries.values() for question in open_questions(entry, codec)]

    def answers(self) -> dict[str, Any]:
        """All answers that were given, by question id."""
        codec = self._encoder.codec
        return {
            key: codec.decode(data, channel="an answer")
            for entry in self.entries.values()
            for key, data in entry.answers.items()
        }

    def answered_questions(self) -> dict[str, Any]:
        """The values of the questions that were answered, by id."""
        codec = self._encoder.codec
        return {
            key: codec.decode(data, channel="interrupt()")
            for entry in self.entries.values()
            for key, data in entry.asked
        }

    def is_same(self, one: Any, other: Any) -> bool:
        """Return True if two values are equal, types included, as the graph's codec stores them."""
        canonical = self._encoder.codec.canonical
        try:
            return canonical(one, channel="interrupt()") == canonical(other, channel="interrupt()")
        except UnstorableValueError:
            return False

    def answered(self, answers: Mapping[str, Any]) -> dict[TaskId, TaskResult]:
        """The records of the tasks that asked what is answered now, with the answers. Raises `UnstorableValueError`."""
        changed: dict[TaskId, TaskResult] = {}
        for task_id, entry in self.entries.items():
            asked = {key for key, _ in entry.interrupts or ()}
            given = {
                key: self._encoder.codec.encode(value, channel=f"the answer to {key}")
                for key, value in answers.items()
                if key in asked
            }
            if given:
                questions = tuple([(key, data) for key, data in entry.interrupts or () if key in given])
                changed[task_id] = msgspec.structs.replace(
                    entry, answers={**entry.answers, **given}, asked=(*entry.asked, *questions)
                )
        return changed

    def asked_of(self, task_id: TaskId, questions: Sequence[Interrupt] = ()) -> Asked:
        """Return the answers that a task's next record keeps, and the tasks that depend on them.

        Args:
            questions: that it asks now.
        """
        before, askers = self.entries.get(task_id, NOT_RECORDED), self._out.lease.askers
        keys = [*before.answers, *(each.id for each in questions)]
        return Asked(
            answers=before.answers, askers={key: askers[key] for key in keys if key in askers}, asked=before.asked
        )

    def unknown_writes(self, task_id: TaskId) -> Written:
        """What is recorded of a task for keys that the graph does not have."""
        entry = self.entries.get(task_id, NOT_RECORDED)
        return tuple([each for each in entry.writes if is_unknown(self._program, each[0])])

    def keep_unknown(self, ran: Sequence[Task], outcomes: Sequence[Outcome], entry: Delta) -> None:
        """Add to a superstep's entry what finished tasks have recorded for keys that the graph does not have.

        A write takes the place of the stored value where the channel held the last value that was written. Of other
        kinds the fold is not known without the code: their updates stay in the records of the superstep.
        """
        by = [(each.by or task).id for task, each in zip(ran, outcomes, strict=True) if isinstance(each, Finished)]
        kinds = self._out.chain.state.kinds
        for task_id in (AMENDED, *by):
            for name, data in self.unknown_writes(task_id):
                if name not in kinds:
                    entry.kinds[name] = LastValue.kind
                if kinds.get(name, LastValue.kind).removesuffix(UNFIT) == LastValue.kind:
                    entry.values[name] = data if len(data) < WORTH else in_parts(data)

    def row(self, task_id: TaskId, index: int, entry: TaskResult) -> TaskRecord:
        """The row of a record."""
        result = entry.finished or not entry.routed
        return TaskRecord(
            ns=self._out.ns,
            checkpoint_id=self._out.tip,
            task_id=task_id,
            index=index,
            kind="result" if result else "error" if entry.error else "interrupt",
            frame=write_record(entry),
        )

    def failures(self, ran: Sequence[Task], outcomes: Sequence[Outcome]) -> list[Key]:
        """The records that are void when the superstep closes: all but results, and failures that were handled. Those
        are part of what happened."""
        handled = {
            task.id
            for task, outcome in zip(ran, outcomes, strict=True)
            if isinstance(outcome, Finished) and outcome.by is not None
        }
        ns, tip = self._out.ns, self._out.tip
        return [
            (ns, tip, task_id)
            for task_id, entry in self.entries.items()
            if not is_result(entry) and task_id not in handled
        ]
