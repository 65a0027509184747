"""The run's log of events, in one total order, turned into chunks by the modes that somebody asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import anyio.from_thread

from .._core.board import Board
from .._core.isolation import isolate, own
from .._core.task import Failed, Finished, Outcome, Paused, Task
from ..errors import OutsideRunError
from .modes import CUSTOM, MODES, Mode, View


class Sink(Protocol):
    """Where chunks go."""

    async def put(self, chunk: Any) -> None:
        """Take a chunk; return when there is room for the next."""
        ...

    def push(self, chunk: Any) -> None:
        """Take a chunk at once, from code on the event loop that cannot wait."""
        ...


class Log:
    """Feeds a sink with what the modes make of each event.

    Attributes:
        on_resumed, on_planned, on_finished, on_paused, on_stopped, on_failed, on_updated: what to call with an event;
            None when no mode shows it, so that it costs nothing.
        write: puts a chunk of a node's own on the stream, from any thread of the run; None when nobody reads those.

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
        self.on_paused = self._paused if self._shows("paused") else None
        self.on_stopped = self._stopped if self._shows("stopped") else None
        self.on_failed = self._failed if self._shows("failed") else None
        self.on_updated = self._updated if self._shows("updated") else None
        self.write = self._write if CUSTOM in modes else None
        self._loop_thread = threading.get_ident()

    def _shows(self, event: str) -> bool:
        return any(getattr(type(mode), event) is not getattr(Mode, event) for mode in self._modes)

    async def _resumed(self, board: Board) -> None:
        for mode in self._modes:
            for payload in mode.resumed(board):
                await self._put(mode, payload)

    async def _planned(self, board: Board, tasks: Sequence[Task]) -> None:
        for mode in self._modes:
            for payload in mode.planned(board, tasks):
                await self._put(mode, payload)

    async def _finished(self, task: Task, outcome: Finished) -> None:
        for mode in self._modes:
            for payload in mode.finished(task, outcome):
                await self._put(mode, payload)

    async def _paused(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        paused = [(task, each) for task, each in zip(tasks, outcomes, strict=True) if isinstance(each, Paused)]
        for mode in self._modes:
            for payload in mode.paused(board, paused):
                await self._put(mode, payload)

    async def _stopped(self, board: Board) -> None:
        for mode in self._modes:
            for payload in mode.stopped(board):
                await self._put(mode, payload)

    def _write(self, chunk: Any, /) -> None:
        mine = isolate(own(chunk))
        labelled = (CUSTOM, mine) if self._labelled else mine
        if threading.get_ident() == self._loop_thread:
            self._sink.push(labelled)
        else:
            try:
                anyio.from_thread.run(self._sink.put, labelled)
            except RuntimeError as error:
                raise OutsideRunError(
                    "a stream writer was called in a thread of the node's own, from which the run cannot be reached: "
                    "write in the node's function"
                ) from error

    async def _put(self, mode: Mode, payload: Any) -> None:
        await self._sink.put((mode.name, payload) if self._labelled else payload)

    async def _failed(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                for mode in self._modes:
                    for payload in mode.failed(task, outcome):
                        await self._put(mode, payload)

    async def _updated(self, board: Board) -> None:
        for mode in self._modes:
            for payload in mode.updated(board):
                await self._put(mode, payload)
