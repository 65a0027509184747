"""The events of one graph's run, in one total order, turned into parts by the modes that somebody asked for.

Parts are made when the event happens, and go out (`send`) when it is as durable as the run promised: what belongs to a
superstep's commit is made before and sent after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from checkpoint_savers.records import CheckpointRow

from .._core.board import Board
from .._core.program import Program
from .._core.task import Failed, Finished, Outcome, Paused, Task
from .feed import Feed
from .modes import MODES, Mode, View
from .modes.mode import Coerce
from .part import Part

Told: TypeAlias = "list[tuple[Feed, Part]]"
"""Parts, and whose they are."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """How a graph shows itself in streams.

    Attributes:
        channels: one bare, or several as a mapping.
        coerce: makes the schema's own object of a state; None leaves the mapping.
        inside: node -> whether its graph keeps its state, for nodes that run a graph which stores it.
    """

    channels: str | tuple[str, ...]
    coerce: Coerce | None
    inside: Callable[[], Mapping[str, bool]]


class Log:
    """Makes parts of the events of one graph's run.

    Attributes:
        feeds: who is shown something of it.
        own: among them that of the call of this very graph; None when nobody reads that.
        resumed, planned, wrote, spoke, finished, paused, stopped, failed, updated, stored: what to call with an event;
            None when no mode shows it, so that it costs nothing.

    Args:
        views: by feed, what it sees of this graph.
    """

    def __init__(self, views: Sequence[tuple[Feed, View]], own: Feed | None) -> None:
        self.feeds = [feed for feed, _ in views]
        self.own = own
        self._modes = [(feed, mode(view)) for name, mode in MODES.items() for feed, view in views if name in feed.modes]
        self.resumed = self._resumed if self._shows("resumed") else None
        self.planned = self._planned if self._shows("planned") else None
        self.wrote = self._wrote if self._shows("wrote") else None
        self.spoke = self._spoke if self._shows("spoke") else None
        self.finished = self._finished if self._shows("finished") else None
        self.paused = self._paused if self._shows("paused") else None
        self.stopped = self._stopped if self._shows("stopped") else None
        self.failed = self._failed if self._shows("failed") else None
        self.updated = self._updated if self._shows("updated") else None
        self.stored = self._stored if self._shows("stored") else None

    def _shows(self, event: str) -> bool:
        return any(getattr(type(mode), event) is not getattr(Mode, event) for _, mode in self._modes)

    async def send(self, told: Told) -> None:
        """Let parts go out, in order; wait for readers that are behind."""
        for feed, part in told:
            await feed.put(part)

    async def settle(self) -> None:
        """Wait until no reader is behind with what was shown at once."""
        for feed in self.feeds:
            if feed.lags:
                await feed.settle()

    def _resumed(self, board: Board) -> Told:
        return self._told(mode.resumed(board) for _, mode in self._modes)

    def _planned(self, board: Board, tasks: Sequence[Task]) -> Told:
        return self._told(mode.planned(board, tasks) for _, mode in self._modes)

    def _wrote(self, task: Task, chunk: Any) -> Told:
        return self._told(mode.wrote(task, chunk) for _, mode in self._modes)

    def _spoke(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Told:
        return self._told(mode.spoke(task, message, metadata) for _, mode in self._modes)

    def _finished(self, task: Task, outcome: Finished) -> Told:
        return self._told(mode.finished(task, outcome) for _, mode in self._modes)

    def _paused(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome], *, drained: bool) -> Told:
        paused = [
            (task, each)
            for task, each in zip(tasks, outcomes, strict=True)
            if isinstance(each, Paused) and (each.interrupts or not drained)  # else a graph inside was asked to stop
        ]
        return self._told(mode.paused(board, paused) for _, mode in self._modes)

    def _stopped(self, board: Board) -> Told:
        return self._told(mode.stopped(board) for _, mode in self._modes)

    def _failed(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> Told:
        told: Told = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                told += self._told(mode.failed(task, outcome) for _, mode in self._modes)
        return told

    def _updated(self, board: Board) -> Told:
        return self._told(mode.updated(board) for _, mode in self._modes)

    def _stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Told:
        return self._told(mode.stored(board, row, upcoming) for _, mode in self._modes)

    def _told(self, by_mode: Iterable[Iterable[Part]]) -> Told:
        return [(feed, part) for (feed, _), parts in zip(self._modes, by_mode, strict=True) for part in parts]


def log_of(
    program: Program,
    shown: Shown,
    own: Feed | None,
    outer: Log | None,
    *,
    ns: str,
    thread_id: str | None,
    now: Callable[[], float],
) -> Log | None:
    """The log of a graph's run; None when nobody reads it.

    Args:
        own: of the call of this very graph.
        outer: the log of the graph around it, whose feeds may show this one too.
    """
    around = [] if outer is None else [feed for feed in outer.feeds if feed.subgraphs]
    feeds = around if own is None else [own, *around]
    if not feeds:
        return None
    parts = tuple(ns.split("|")) if ns else ()
    if own is not None:
        own.depth = len(parts)
    return Log(
        [
            (
                feed,
                View(
                    program=program,
                    shown=shown.channels if feed is not own or feed.channels is None else feed.channels,
                    ns=parts[feed.depth :],
                    checkpoint_ns=ns,
                    thread_id=thread_id,
                    now=now,
                    coerce=shown.coerce if feed is not own or feed.channels is None else None,
                    inside=shown.inside,
                    said=feed.said,
                ),
            )
            for feed in feeds
        ],
        own,
    )
