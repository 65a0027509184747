"""`messages`: messages and chunks of them, from models while they speak and from nodes when they return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ..._core.board import Board
from ..._core.isolation import isolate, own
from ..._core.task import Finished, Task
from ...messages import id_of, messages_in
from ..part import Part
from .mode import Mode, View
from .tasks import metadata_of

NO_STREAM = "nostream"
"""The tag of what is not to be shown here."""


class Messages(Mode):
    """`(message or chunk, metadata)`.

    What a node emits comes at once. What it returns comes when it has finished, unless a message of that id was shown
    before, by whatever graph of the run, or was in the graph's state already: each message is shown once.
    """

    name: ClassVar[str] = "messages"

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._known: set[Any] | None = None  # from before the run, or given to a node

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[Part]:
        if self._known is None:
            self._known = {id_of(message) for value in board.values.values() for message in messages_in(value)}
        return ()

    def began(self, task: Task, outcome: Finished) -> Iterable[Part]:
        return self.finished(task, outcome)  # the input's messages are known from then on

    def spoke(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Iterable[Part]:
        told = self._metadata(task, metadata)
        if NO_STREAM in told.get("tags", ()):
            return
        self.view.said.add(id_of(message))
        yield self.part(task.step, (isolate(own(message)), told))

    def finished(self, task: Task, outcome: Finished) -> Iterable[Part]:
        known, said = set[Any]() if self._known is None else self._known, self.view.said
        if task.send >= 0:
            known.update(id_of(message) for message in messages_in(task.arg))
        replayed = outcome.replayed and not self.view.returns  # a reader who comes back was told that it is void
        silent = task.node.hidden or replayed or NO_STREAM in task.node.tags
        told: dict[str, Any] | None = None
        for _, value in outcome.writes:
            for message in messages_in(value, named=True):
                key = id_of(message)
                if silent:
                    known.add(key)
                elif key not in known and key not in said:
                    said.add(key)
                    told = self._metadata(task, {}) if told is None else told
                    yield self.part(task.step, (isolate(message), dict(told)))

    def _metadata(self, task: Task, metadata: Mapping[str, Any]) -> dict[str, Any]:
        own_ns = f"{task.node.name}:{task.id}"
        ns = f"{self.view.checkpoint_ns}|{own_ns}" if self.view.checkpoint_ns else own_ns
        mine = metadata_of(task)
        given = isolate(own(dict(metadata)))
        tags = [*mine.get("tags", ()), *given.get("tags", ())]
        return {
            "langgraph_step": task.step,
            "langgraph_node": task.node.name,
            "langgraph_triggers": task.triggers,
            "langgraph_path": task.path,
            "langgraph_checkpoint_ns": ns,
            "checkpoint_ns": ns,
            "thread_id": self.view.thread_id,
            **mine,
            **given,
            **({"tags": tags} if tags else {}),
        }
