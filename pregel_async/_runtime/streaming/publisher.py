"""The events of one graph's run, in one total order, turned into parts by the modes that somebody asked for.

Parts are made when the event happens, and go out (`send`) when it is as durable as the run promised: what belongs to a
superstep's commit is made before and sent after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import msgspec

from checkpoint_savers.records import CheckpointRow, EventRow

from ..._core.board import Board
from ..._core.program import Program
from ..._core.task import Failed, Finished, Outcome, Paused, Task
from .event_recorder import Keeper
from .modes import MODES, View
from .modes.mode import Coerce
from .parts import Part, Unit, routers_of
from .subscription import Feed

Told: TypeAlias = list[tuple[Feed, Part]]
"""Parts, and whose they are."""

MID_TASK = frozenset(("custom", "messages", "tasks", "debug"))
"""The modes that show something of a task before it has finished."""


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
        kept: among them the one whose events are kept with the run's transactions; None for none.
        opens: tasks show something before they are recorded, so that it has to be known which have begun.
        resumed, began, planned, wrote, spoke, finished, paused, stopped, failed, updated, stored: what to call with an
            event; None when no mode shows it, so that it costs nothing.
        waiting: around every wait for a reader, where a node around this graph's run has a timeout: that is not its
            time; None where none has.

    Args:
        views: by feed, what it sees of this graph.
        within: the recorded work that runs this graph; None for the called graph.
        saved: the graph records its own tasks.
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

    def __init__(
        self, views: Sequence[tuple[Feed, View]], own: Feed | None, *, within: Unit | None, saved: bool
    ) -> None:
        self.feeds = [feed for feed, _ in views]
        self.own = own
        self.kept: Feed | None = None
        for feed, view in views:
            if feed.keeps:
                self.kept, self._ns = feed, view.ns
                self.opens = feed.subgraphs or not MID_TASK.isdisjoint(feed.modes)
                self._within = within
                self._saved = saved
                self._units: dict[str, Unit] = {}
                self._current: dict[str, str] = {}
        self._modes = [(feed, mode(view)) for name, mode in MODES.items() for feed, view in views if name in feed.modes]
        for _, mode in self._modes:
            for event in mode.shows:
                make = getattr(self, f"_{event}")
                setattr(self, event, make if self.kept is None else partial(self._with_units, make))

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

    async def catch_up(self) -> None:
        """Wait until no reader is behind with what was shown as it was stored."""
        if self.kept is not None:
            await self.kept.catch_up()

    async def settle(self) -> None:
        """Wait until no reader is behind with what was shown at once."""
        for feed in self.feeds:
            if feed.lags:
                await feed.settle()

    # ---- units of recorded work --------------------------------------------------------------------------------------

    def unit_of(self, task: Task) -> Unit:
        """Return the recorded work that events of a task belong to: the task's own where its result is recorded, else
        that of the task around this graph."""
        if self._within is not None and not self._saved:
            return self._within
        id = self._current.get(task.id, task.id)
        unit = self._units.get(id)
        if unit is None:
            unit = self._units[id] = Unit(id, self._ns, task.node.name)
        return unit

    def parent_of(self, task: Task | None) -> str | None:
        """Return the id of the unit that a task is part of, the task being called by `task`; None for none."""
        if task is not None:
            return self.unit_of(task).id
        return None if self._within is None else self._within.id

    def attribute(self, task: Task, id: str) -> None:
        """Let the events of a task belong to another unit from here on, as what it did before is recorded."""
        if self.kept is not None:
            self._current[task.id] = id

    def units_of(self, task: Task) -> list[Unit]:
        """Return all units that the events of a task may belong to."""
        ids: list[str] = [task.id]
        if task.node.routers:
            ids.append(routers_of(task.id))
        units = [Unit(id, self._ns, task.node.name) for id in ids]
        handler = task.node.handler
        if handler is not None:
            units.append(Unit(task.handling(handler).id, self._ns, handler.name))
        return units

    async def open(self, task: Task, caller: Task) -> None:
        """Note that a task is called, where it may show something before it is recorded; return when that is stored."""
        if self._keeper is not None and self.opens:
            await self._keeper.open(self.units_of(task), self.parent_of(caller))

    async def settle_events(self) -> None:
        """Wait until no event is on its way to storage that the next record may close."""
        if self._keeper is not None:
            await self._keeper.settle()

    def close(
        self, ids: Iterable[str], told: Told, upcoming: Iterable[Task] = (), *, waits: bool = True
    ) -> EventRow | None:
        """Take the last events of recorded work, and return the row for the transaction that records the work. Their
        parts are shown when the row is stored; those of other feeds stay in `told`.

        Args:
            ids: of the units.
            upcoming: the tasks that may begin then.
            waits: False to show the parts at once, as the transaction may come later.
        """
        kept, keeper = self.kept, self._keeper
        assert kept is not None and keeper is not None
        mine = [part for feed, part in told if feed is kept]
        opens = [unit for task in upcoming for unit in self.units_of(task)] if self.opens else []
        row = keeper.close_units(ids, mine, opens, self.parent_of(None))
        if row is not None and waits:
            kept.stage(row, mine)
        else:
            for part in mine:
                kept.show(part)
        told[:] = [(feed, part) for feed, part in told if feed is not kept]
        return row

    def closing(self, task: Task, outcome: Finished | None = None) -> Closing | None:
        """Return what closes the unit of a task as it is recorded; None where no events are kept.

        Args:
            outcome: of a task that has finished; None for one whose routers or error handler are still to run.
        """
        return None if self._keeper is None or not self._saved else Closing(self, task, outcome)

    @property
    def keeps(self) -> bool:
        """Whether events of this graph's run are kept with transactions of its own."""
        return self._keeper is not None and self._saved

    @property
    def _keeper(self) -> Keeper | None:
        return None if self.kept is None else self.kept.keeper

    def _with_units(self, make: Callable[..., Told], *event: Any) -> Told:
        """Make the parts of an event that is kept, and say to which work they belong."""
        told, kept = make(*event), self.kept
        if kept is None or kept.keeper is None:
            return told
        finished = kept.keeper.finished
        for feed, part in told:
            if feed is not kept:
                continue
            if part.task is not None:
                part.unit = self.unit_of(part.task)
                # The last events of a task with async routers are those of its routers.
                part.again = bool(finished) and not finished.isdisjoint((part.unit.id, routers_of(part.unit.id)))
            elif not self._saved:
                part.unit = self._within
        return told

    # ---- events ------------------------------------------------------------------------------------------------------

    def _resumed(self, board: Board) -> Told:
        told = [(feed, part) for feed, mode in self._modes for part in mode.resumed(board)]
        for feed, part in told:
            part.again = feed is self.kept and feed.resumes  # it was shown when it was stored
        return told

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


class Closing:
    """The last events of a task that is being recorded. Called when it is sure that the record can be stored.

    Attributes:
        begun: it was called.
        rest: the parts that are left to show, once the record is stored.
    """

    def __init__(self, log: Log, task: Task, outcome: Finished | None) -> None:
        self.begun = False
        self.rest: Told = []
        self._log = log
        self._task = task
        self._outcome = outcome

    def __call__(self) -> EventRow | None:
        log, task, outcome = self._log, self._task, self._outcome
        self.begun = True
        ids: list[str] = [task.id]
        if outcome is not None:
            by = outcome.by or task
            ids += [routers_of(task.id), by.id, routers_of(by.id)]
            if log.finished is not None:
                self.rest = log.finished(by, outcome)
        assert log.kept is not None and log.kept.keeper is not None
        return log.close(ids, self.rest, waits=not log.kept.keeper.is_ahead)


def log_of(
    program: Program,
    shown: Shown,
    own: Feed | None,
    outer: Log | None,
    *,
    ns: str,
    thread_id: str | None,
    now: Callable[[], float],
    within: Task | None = None,
    saved: bool = True,
) -> Log | None:
    """The log of a graph's run; None when nobody reads it.

    Args:
        own: of the call of this very graph.
        outer: the log of the graph around it, whose feeds may show this one too.
        within: the task that runs the graph; None for a graph that was called.
        saved: whether the graph records its own tasks.
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
        within=None if within is None or outer is None or outer.kept is None else outer.unit_of(within),
        saved=saved,
    )
