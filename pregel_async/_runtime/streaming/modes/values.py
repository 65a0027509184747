"""`values`: the state after each superstep that changed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ...._core.board import Board
from ...._core.isolation import isolate
from ...._core.task import Paused, Task
from ..parts import RawPart
from .mode import Mode


class Values(Mode):
    """The whole state. A resumed run first shows the state that it resumes from."""

    name: ClassVar[str] = "values"

    def resumed(self, board: Board) -> Iterable[RawPart]:
        yield self._state(board)

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        if not any(outcome.interrupts for _, outcome in paused):
            return  # a subgraph has stopped at a breakpoint, and asks nothing
        asked = tuple(isolate(question) for _, outcome in paused for question in outcome.interrupts)
        yield self.part(board.step + 1, board.show(self.view.shown), asked, self.view.coerce)

    def updated(self, board: Board) -> Iterable[RawPart]:
        if not self.names.isdisjoint(board.changed):
            yield self._state(board)

    def _state(self, board: Board) -> RawPart:
        return self.part(board.step, board.show(self.view.shown), coerce=self.view.coerce)
