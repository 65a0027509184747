"""`tasks`: each task twice, when it is planned and when it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ...._core.board import Board
from ...._core.ids import PUSH
from ...._core.isolation import isolate
from ...._core.program import RETURN, Write
from ...._core.task import Failed, Finished, Paused, Task
from ..parts import Part
from .mode import Mode
from .updates import as_update


class Tasks(Mode):
    """`{"id", "name", "input", "triggers"}` of every task of a superstep before any of them runs, and
    `{"id", "name", "error", "result", "interrupts"}` of each that has run, as it ends.

    A task whose result was recorded earlier is planned and does not run, so that its second event never comes; its
    `updates` chunk does. `error` is the live exception. A task that a node calls has `((args), {keyword args})` as
    input and `{"__return__": value}` as result.
    """

    name: ClassVar[str] = "tasks"

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[Part]:
        for task in tasks:
            if not task.node.hidden:
                planned: dict[str, Any] = {
                    "id": task.id,
                    "name": task.node.name,
                    "input": _input_of(board, task),
                    "triggers": task.triggers if task.send < 0 else (PUSH,),
                }
                told = metadata_of(task)
                yield self.part(task.step, {**planned, "metadata": told} if told else planned, task=task)

    def finished(self, task: Task, outcome: Finished) -> Iterable[Part]:
        if not (task.node.hidden or outcome.replayed or outcome.cached):
            yield self.part(task.step, self._ended(task, outcome.writes, None), task=task)

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[Part]:
        for task, outcome in paused:
            asked = [{"value": isolate(question.value), "id": question.id} for question in outcome.interrupts]
            payload = {**self._ended(task, (), None), "result": {}, "interrupts": asked}
            yield self.part(task.step, payload, task=task)

    def failed(self, task: Task, outcome: Failed) -> Iterable[Part]:
        if not task.node.hidden:
            yield self.part(task.step, self._ended(task, outcome.writes or (), outcome.error), task=task)

    def _ended(self, task: Task, writes: Sequence[Write], error: BaseException | None) -> dict[str, Any]:
        shown = self.view.shown
        update = as_update(writes, shown)
        result = {} if update is None and not isinstance(shown, str) else update
        if task.caller is not None and error is None:
            result = {RETURN: update}
        return {"id": task.id, "name": task.node.name, "error": error, "result": result, "interrupts": []}


def metadata_of(task: Task) -> dict[str, Any]:
    """What the user has said of the node; its tags under "tags"."""
    node = task.node
    told = isolate(dict(node.metadata))
    return {**told, "tags": list(node.tags)} if node.tags else told


def _input_of(board: Board, task: Task) -> Any:
    """What the node will get; None when that cannot be made (the task then fails with the reason)."""
    if task.send >= 0:
        return isolate(task.arg)
    try:
        return board.input_of(task.node)
    except Exception:  # an empty channel, or whatever the user's schema raises
        return None
