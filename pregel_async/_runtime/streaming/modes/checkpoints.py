"""`checkpoints`: each checkpoint, once it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from checkpoint_savers.records import CheckpointId, CheckpointRow

from ...._core.board import Board
from ...._core.isolation import isolate
from ...._core.superstep import names_of
from ...._core.task import Task
from ....types import RunnableConfig
from ...persistence.namespaces import config_of, namespace_of, parents_of
from ..parts import RawPart
from .mode import Mode


class Checkpoints(Mode):
    """Parts `{"config", "parent_config", "values", "metadata", "next", "tasks"}`.

    They agree with `aget_state` before the next superstep, whose tasks have no results yet. A graph without a
    checkpointer has none.
    """

    name: ClassVar[str] = "checkpoints"

    def stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Iterable[RawPart]:
        coerce = None if any(task.node.hidden for task in upcoming) else self.view.coerce
        yield self.part(board.step, self.payload(board, row, upcoming), coerce=coerce)

    def payload(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> dict[str, Any]:
        view, parents = self.view, parents_of(row)
        # Sends come first, as in `aget_state`.
        listed = [task for task in upcoming if task.send >= 0] + [task for task in upcoming if task.send < 0]
        subgraphs = view.stored_subgraphs() if listed else {}
        return {
            "config": self._config(row.ns, row.checkpoint_id, parents),
            "parent_config": None if row.parent_id is None else self._config(row.ns, row.parent_id, parents),
            "values": board.show(view.program.shown),
            "metadata": isolate(row.metadata),
            "next": list(names_of(upcoming)),
            "tasks": [self._task(task, subgraphs, {**parents, row.ns: row.checkpoint_id}) for task in listed],
        }

    def _task(self, task: Task, subgraphs: Any, parents: dict[str, str]) -> dict[str, Any]:
        name, state = task.node.name, None
        if name in subgraphs:
            state = self._config(
                namespace_of(self.view.checkpoint_ns, task, keeps_state=subgraphs[name]), None, parents
            )
        return {"id": task.id, "name": name, "interrupts": (), "state": state}

    def _config(self, ns: str, checkpoint_id: CheckpointId | None, parents: dict[str, str]) -> RunnableConfig:
        assert self.view.thread_id is not None  # only a thread has stored checkpoints
        return config_of(self.view.thread_id, ns, checkpoint_id, parents)
