"""What a stream mode is: from events of the run to payloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from ..._core.board import Board
from ..._core.program import Program
from ..._core.task import Failed, Finished, Paused, Task


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader asked to see.

    Attributes:
        program: the graph that runs.
        shown: the channels that the stream shows: one bare, or several as a mapping.
    """

    program: Program
    shown: str | tuple[str, ...]


class Mode:
    """A view of the log. Each method answers with payloads, in order; they are the reader's to change.

    Attributes:
        name: what `stream_mode` calls it.
    """

    name: ClassVar[str]

    def __init__(self, view: View) -> None:
        self.view = view
        shown = view.shown
        self.names = frozenset((shown,) if isinstance(shown, str) else shown)

    def resumed(self, board: Board) -> Iterable[Any]:
        """The run goes on from a stored board, without new input."""
        return ()

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[Any]:
        """A superstep begins: these tasks are its own, and none of them has run yet."""
        return ()

    def finished(self, task: Task, outcome: Finished) -> Iterable[Any]:
        """A task has finished; its result is as durable as the run promised. In the order in which they finish."""
        return ()

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[Any]:
        """Tasks have asked, and that is recorded; the run ends with their superstep open. In plan order."""
        return ()

    def stopped(self, board: Board) -> Iterable[Any]:
        """The run has stopped at a breakpoint."""
        return ()

    def failed(self, task: Task, outcome: Failed) -> Iterable[Any]:
        """A task has failed, and that is recorded; the superstep ends with its error. In plan order."""
        return ()

    def updated(self, board: Board) -> Iterable[Any]:
        """A superstep has been folded and is as durable as the run promised."""
        return ()
