"""The run's log of events, in one total order, turned into chunks by the modes that somebody asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .._core.board import Board
from .._core.task import Failed, Finished, Outcome, Task
from .modes import MODES, Mode, View

Sink = Callable[[Any], Awaitable[None]]
"""Takes a chunk; returns when there is room for the next."""


class Log:
    """Feeds a sink with what the modes make of each event.

    Attributes:
        on_resumed, on_planned, on_finished, on_failed, on_updated: what to call with an event; None when no mode shows
            it, so that it costs nothing.

    Args:
        modes: names of modes.
        labelled: chunks are `(mode, payload)` instead of bare payloads.
    """

    def __init__(self, modes: Sequence[str], view: View, sink: Sink, *, labelled: bool) -> None:
        self._modes = [mode(view) for name, mode in MODES.items() if name in modes]
        self._sink = sink
        self._labelled = labelled
        self.on_resumed = self._resumed if self._shows("resumed") else None
        self.on_planned = self._planned if self._shows("planned") else None
        self.on_finished = self._finished if self._shows("finished") else None
        self.on_failed = self._failed if self._shows("failed") else None
        self.on_updated = self._updated if self._shows("updated") else None

    def _shows(self, event: str) -> bool:
        return any(getattr(type(mode), event) is not getattr(Mode, event) for mode in self._modes)

    async def _resumed(self, board: Board) -> None:
        for mode in self._modes:
            for payload in mode.resumed(board):
                await self._sink((mode.name, payload) if self._labelled else payload)

    async def _planned(self, board: Board, tasks: Sequence[Task]) -> None:
        for mode in self._modes:
            for payload in mode.planned(board, tasks):
                await self._sink((mode.name, payload) if self._labelled else payload)

    async def _finished(self, task: Task, outcome: Finished) -> None:
        for mode in self._modes:
            for payload in mode.finished(task, outcome):
                await self._sink((mode.name, payload) if self._labelled else payload)

    async def _failed(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                for mode in self._modes:
                    for payload in mode.failed(task, outcome):
                        await self._sink((mode.name, payload) if self._labelled else payload)

    async def _updated(self, board: Board) -> None:
        for mode in self._modes:
            for payload in mode.updated(board):
                await self._sink((mode.name, payload) if self._labelled else payload)
