"""`tasks`: each task when it is planned and when it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ...._core.board import Board
from ...._core.isolation import isolate
from ...._core.program import RETURN, Write
from ...._core.task import PUSH, Failed, Finished, Paused, Task
from ....types import Interrupt
from ..parts import RawPart
from .mode import Mode
from .updates import as_update


class Tasks(Mode):
    """Two parts for each task.

    `{"id", "name", "input", "triggers"}` of all tasks of a superstep before any of them runs, and
    `{"id", "name", "error", "result", "interrupts"}` of each task when it ends.

    A task whose result was recorded earlier is planned but does not run: it has no second part here, and a part in
    `updates`. `result` maps the channels that the task wrote to their values, or to `{"$writes": [value, ...]}` if it
    wrote a channel repeatedly, also where `updates` shows the bare value of one channel. `error` is the exception
    object. A task that a node calls has `((args), {keyword args})` as input and `{"__return__": value}` as result.
    """

    name: ClassVar[str] = "tasks"

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[RawPart]:
        for task in tasks:
            if not task.node.hidden:
                planned: dict[str, Any] = {
                    "id": task.id,
                    "name": task.node.name,
                    "input": _input_of(board, task),
                    "triggers": task.triggers if task.send < 0 else (PUSH,),
                }
                metadata = metadata_of(task, self.view.metadata)
                yield self.part_of(task, {**planned, "metadata": metadata} if metadata else planned)

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        if not (task.node.hidden or outcome.replayed or outcome.cached):
            yield self.part_of(task, self._ended(task, self._result(task, outcome.writes)))

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        for task, outcome in paused:
            asked = [_as_dict(question) for question in outcome.interrupts]
            yield self.part_of(task, {**self._ended(task, {}), "interrupts": asked})

    def failed(self, task: Task, outcome: Failed) -> Iterable[RawPart]:
        if not task.node.hidden:
            result = _as_result(outcome.writes or (), self.view.shown)
            yield self.part_of(task, {**self._ended(task, result), "error": outcome.error})

    def _result(self, task: Task, writes: Sequence[Write]) -> Any:
        if task.is_called:
            return {RETURN: as_update(writes, self.view.shown)}
        return _as_result(writes, self.view.shown)

    def _ended(self, task: Task, result: Any) -> dict[str, Any]:
        return {"id": task.id, "name": task.node.name, "error": None, "result": result, "interrupts": []}


def _as_result(writes: Sequence[Write], shown: str | tuple[str, ...]) -> Any:
    """Return a task's writes as a mapping of the channels shown, with `{"$writes": [...]}` if a channel has several."""
    update = as_update(writes, (shown,) if isinstance(shown, str) else shown, {})
    if not isinstance(update, list):
        return update
    values: dict[str, list[Any]] = {}
    for each in update:
        for key, value in each.items():
            values.setdefault(key, []).append(value)
    return {key: each[0] if len(each) == 1 else {"$writes": each} for key, each in values.items()}


def metadata_of(task: Task, of_call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the metadata of a call and of a task's node, with the tags of both under "tags"."""
    node = task.node
    metadata = isolate({**of_call, **node.metadata})
    tags = [*of_call.get("tags", ()), *node.tags]
    return {**metadata, "tags": tags} if tags else metadata


def _input_of(board: Board, task: Task) -> Any:
    """Return the node's input; None if making it fails, because the task then fails with the reason."""
    if task.send >= 0:
        return isolate(task.arg)
    try:
        return board.input_of(task.node)
    except Exception:  # an empty channel, or any error of the user's schema
        return None


def _as_dict(question: Interrupt) -> dict[str, Any]:
    # Not `dataclasses.asdict`: it would make other objects of the classes of isolated dicts and lists.
    asked = isolate(question)
    return {"value": asked.value, "id": asked.id, "response_schema": asked.response_schema}
