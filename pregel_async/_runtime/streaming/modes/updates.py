"""`updates`: what each task wrote, as it finishes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ...._core.board import Board
from ...._core.isolation import isolate
from ...._core.program import RETURN, Write
from ...._core.task import Finished, Paused, Task
from ....types import INTERRUPT
from ..parts import RawPart
from .mode import Mode


class Updates(Mode):
    """`{node: update}`; a result that was recorded earlier carries `"__metadata__": {"cached": True}`."""

    name: ClassVar[str] = "updates"

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        if task.node.hidden or outcome.leaves:  # commands for another graph update nothing here
            return
        chunk: dict[str, Any] = {task.node.name: as_update(outcome.writes, self.view.shown)}
        if outcome.replayed or outcome.cached:
            chunk["__metadata__"] = {"cached": True}
        yield self.part_of(task, chunk)

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        for task, outcome in paused:
            yield self.part_of(task, {INTERRUPT: isolate(outcome.interrupts)})

    def stopped(self, board: Board) -> Iterable[RawPart]:
        yield self.part(board.step + 1, {INTERRUPT: ()})


def as_update(writes: Sequence[Write], shown: str | tuple[str, ...], empty: Any = None) -> Any:
    """A task's writes as the update that its node returned.

    Args:
        empty: the update that writes none of several channels.

    Returns:
        The bare value when one channel is shown, or when it is a call's result; else a mapping of the channels written,
        a list of one-entry mappings when a channel was written more than once, or `empty` when none of them was
        written.
    """
    if len(writes) == 1 and writes[0][0] == RETURN:
        return isolate(writes[0][1])
    if isinstance(shown, str):
        values = [isolate(value) for name, value in writes if name == shown]
        return values if len(values) > 1 else values[0] if values else None
    mine = [(name, isolate(value)) for name, value in writes if name in shown]
    update = dict(mine)
    if len(update) < len(mine):
        return [{name: value} for name, value in mine]
    return update or empty
