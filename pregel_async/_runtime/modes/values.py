"""`values`: the state after each superstep that changed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ..._core.board import Board
from ..._core.isolation import isolate
from ..._core.task import Paused, Task
from ...types import INTERRUPT
from .mode import Mode


class Values(Mode):
    """The whole state; first the state that the run goes on from, when it resumes."""

    name: ClassVar[str] = "values"

    def resumed(self, board: Board) -> Iterable[Any]:
        yield board.show(self.view.shown)

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[Any]:
        if not any(outcome.interrupts for _, outcome in paused):
            return  # a graph inside has stopped at a breakpoint
        state = board.show(self.view.shown)
        asked = {INTERRUPT: tuple(isolate(question) for _, outcome in paused for question in outcome.interrupts)}
        yield {**state, **asked} if isinstance(state, dict) else asked

    def updated(self, board: Board) -> Iterable[Any]:
        if not self.names.isdisjoint(board.changed):
            yield board.show(self.view.shown)
