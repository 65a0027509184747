"""`values`: the state after each superstep that changed it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..._core.board import Board
from .mode import Mode


class Values(Mode):
    """The whole state; first the state that the run goes on from, when it resumes."""

    name: ClassVar[str] = "values"

    def resumed(self, board: Board) -> Iterable[Any]:
        yield board.show(self.view.shown)

    def updated(self, board: Board) -> Iterable[Any]:
        if not self.names.isdisjoint(board.changed):
            yield board.show(self.view.shown)
