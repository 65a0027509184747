"""The events of one graph's run, in one total order, turned into parts by the modes that somebody asked for.

Parts are made when the event happens, and go out (`send`) when it is as durable as the run promised: what belongs to a
superstep's commit is made before and sent after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import msgspec

from checkpoint_savers.records import CheckpointRow

from .._core.board import Board
from .._core.program import Program
from .._core.task import Failed, Finished, Outcome, Paused, Task
from .feed import Feed
from .modes import MODES, View
from .modes.mode import Coerce
from .part import Part

Told: TypeAlias = list[tuple[Feed, Part]]
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
        resumed, began, planned, wrote, spoke, finished, paused, stopped, failed, updated, stored: what to call with an
            event; None when no mode shows it, so that it costs nothing.
        waiting: around every wait for a reader, where a node around this graph's run has a timeout: that is not its
            time; None where none has.

    Args:
        views: by feed, what it sees of this graph.
    """

    waiting: Callable[[], AbstractContextManager[None]] | None = None

    resumed: Callable[[Board], Told] | None = None
    began: Callable[[Task, Finished], Told] | None = None
    planned: Callable[[Board, Sequence[Task]], Told] | None = None
    wrote: Callable[[Task, Any], Told] | None = None
    spoke: Callable[[Task, Any, Mapping[str, Any]], Told] | None = None
    finished: Callable[[Task, Finished], Told] | None = None
    paused: Callable[[Board, Sequence[tuple[Task, Paused]]], Told] | None = None
    stopped: Callable[[Board], Told] | None = None
    failed: Callable[[Sequence[Task], Sequence[Outcome]], Told] | None = None
    updated: Callable[[Board], Told] | None = None
    stored: Callable[[Board, CheckpointRow, Sequence[Task]], Told] | None = None

    def __init__(self, views: Sequence[tuple[Feed, View]], own: Feed | None) -> None:
        self.feeds = [feed for feed, _ in views]
        self.own = own
        self._modes = [(feed, mode(view)) for name, mode in MODES.items() for feed, view in views if name in feed.modes]
        for _, mode in self._modes:
            for event in mode.shows:
                setattr(self, event, getattr(self, f"_{event}"))

    async def send(self, told: Told) -> bool:
        """Let parts go out, in order; wait for readers that are behind.

        Returns:
            Whether a reader has been waiting for them: the event loop is due its turn.
        """
        if self.waiting is not None and told:
            with self.waiting():
                return await self._send(told)
        return await self._send(told)

    async def _send(self, told: Told) -> bool:
        awaited = False
        for feed, part in told:
            await feed.put(part)
            awaited = awaited or (len(feed.sinks) > 0 and feed.sinks[0].is_awaited)
        return awaited

    async def settle(self) -> None:
        """Wait until no reader is behind with what was shown at once."""
        for feed in self.feeds:
            if feed.lags:
                await feed.settle()

    def _resumed(self, board: Board) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.resumed(board)]

    def _began(self, task: Task, outcome: Finished) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.began(task, outcome)]

    def _planned(self, board: Board, tasks: Sequence[Task]) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.planned(board, tasks)]

    def _wrote(self, task: Task, chunk: Any) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.wrote(task, chunk)]

    def _spoke(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.spoke(task, message, metadata)]

    def _finished(self, task: Task, outcome: Finished) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.finished(task, outcome)]

    def _paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.paused(board, paused)]

    def _stopped(self, board: Board) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.stopped(board)]

    def _failed(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> Told:
        told: Told = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                told += [(feed, part) for feed, mode in self._modes for part in mode.failed(task, outcome)]
        return told

    def _updated(self, board: Board) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.updated(board)]

    def _stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Told:
        return [(feed, part) for feed, mode in self._modes for part in mode.stored(board, row, upcoming)]


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
                    returns=feed.returns,
                    said=feed.said,
                ),
            )
            for feed in feeds
        ],
        own,
    )
