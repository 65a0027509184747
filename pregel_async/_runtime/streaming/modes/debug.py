"""`debug`: the parts of `checkpoints` and `tasks`, each with its superstep and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from checkpoint_savers.deltas import timestamp
from checkpoint_savers.records import CheckpointRow

from ...._core.board import Board
from ...._core.task import Failed, Finished, Paused, Task
from ..parts import RawPart
from .checkpoints import Checkpoints
from .mode import Mode, View
from .tasks import Tasks


class Debug(Mode):
    """Parts `{"step", "timestamp", "type", "payload"}` of type "checkpoint", "task" or "task_result"."""

    name: ClassVar[str] = "debug"

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._tasks = Tasks(view)
        self._checkpoints = Checkpoints(view)

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[RawPart]:
        return self._dated("task", self._tasks.planned(board, tasks))

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        return self._dated("task_result", self._tasks.finished(task, outcome))

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        return self._dated("task_result", self._tasks.paused(board, paused))

    def failed(self, task: Task, outcome: Failed) -> Iterable[RawPart]:
        return self._dated("task_result", self._tasks.failed(task, outcome))

    def stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Iterable[RawPart]:
        return self._dated("checkpoint", self._checkpoints.stored(board, row, upcoming))

    def _dated(self, kind: str, parts: Iterable[RawPart]) -> Iterable[RawPart]:
        for part in parts:
            dated = {"step": part.step, "timestamp": timestamp(self.view.now()), "type": kind, "payload": part.data}
            yield replace(part, mode=self.name, data=dated)
