"""`updates`: the update of each task when it finishes."""

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
    """Parts `{node: update}`, with `"__metadata__": {"cached": True}` if the result was recorded or cached earlier."""

    name: ClassVar[str] = "updates"

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        if task.node.hidden or outcome.ends_graph:  # its commands update another graph
            return
        chunk: dict[str, Any] = {task.node.name: as_update(outcome.writes, self.view.shown)}
        if outcome.replayed or outcome.cached:
            chunk["__metadata__"] = {"cached": True}
        yield self.part_of(task, chunk)

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        asked = [(task, outcome) for task, outcome in paused if outcome.interrupts]
        for task, outcome in asked:
            yield self.part_of(task, {INTERRUPT: isolate(outcome.interrupts)})
        # Tasks without questions run subgraphs that have stopped at a breakpoint. One part reports that the run has
        # stopped, at the called graph and not at each subgraph on the way, because it is the run that is resumed.
        if not asked and not self.view.ns:
            for task, _ in paused[:1]:
                yield self.part_of(task, {INTERRUPT: ()})

    def stopped(self, board: Board) -> Iterable[RawPart]:
        if not self.view.ns:  # else the part of the called graph reports it
            yield self.part(board.step + 1, {INTERRUPT: ()})


def as_update(writes: Sequence[Write], shown: str | tuple[str, ...], empty: Any = None) -> Any:
    """Return a task's writes as the update that its node returned.

    Args:
        writes: the writes of the task.
        shown: the channels that the stream shows: a single name for a bare value, or several for a mapping.
        empty: the result if several channels are shown and none of them was written.

    Returns:
        The bare value if one channel is shown, or if it is the result of a called task. Otherwise a mapping of the
        channels written, a list of mappings with one entry each if a channel was written repeatedly, or `empty`.
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
