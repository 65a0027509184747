"""The events of one graph's run, in one total order, turned into parts by the modes that somebody asked for.

Parts are made when the event happens, and go out (`send`) when it is as durable as the run promised: what belongs to a
superstep's commit is made before and sent after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from checkpoint_savers.records import CheckpointRow

from ..._core.board import Board
from ..._core.program import Program
from ..._core.task import Failed, Finished, Outcome, Paused, Task
from .kept_units import NOT_KEPT, Deliveries, KeptUnits, UnitCloser, Units
from .modes import MODES, View
from .modes.mode import Coerce, Mode
from .parts import RawPart, routers_of
from .subscription import Subscription

__all__ = ["NO_PUBLISHER", "Deliveries", "EventPublisher", "StreamView", "publisher_of", "publisher_of_subgraph"]


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """How a graph shows itself in streams.

    Attributes:
        channels: one bare, or several as a mapping.
        coerce: makes the schema's own object of a state; None leaves the mapping.
        stored_subgraphs: node -> whether its graph keeps its state, for nodes that run a graph which stores it.
    """

    channels: str | tuple[str, ...]
    coerce: Coerce | None
    stored_subgraphs: Callable[[], Mapping[str, bool]]


class EventPublisher:
    """Makes parts of the events of one graph's run.

    Attributes:
        subscriptions: who is shown something of it.
        units: the recorded work that its events belong to.
        shows_writes: a task may show something that it writes itself.
        shows_messages: what models that a task calls say is shown.

    Args:
        views: by feed, what it sees of this graph.
        timeout_pauses: what to enter around every wait for a reader, where a node around this graph's run has a timeout: that
            is not its time.
    """

    def __init__(
        self,
        views: Sequence[tuple[Subscription, View]],
        units: Units = NOT_KEPT,
        timeout_pauses: Sequence[Callable[[], AbstractContextManager[None]]] = (),
    ) -> None:
        self.subscriptions = tuple([subscription for subscription, _ in views])
        self.units = units
        self._timeout_pauses = timeout_pauses
        self._modes: dict[
            str, list[tuple[Subscription, Mode]]
        ] = {}  # by event, the modes that show it, with their feeds
        for name, mode in MODES.items():
            for subscription, view in views:
                if name in subscription.modes:
                    shown = subscription, mode(view)
                    for event in mode.shows:
                        self._modes.setdefault(event, []).append(shown)
        self.shows_messages = "emitted" in self._modes
        self.shows_writes = self.shows_messages or "wrote" in self._modes

    def _modes_for(self, event: str) -> Sequence[tuple[Subscription, Mode]]:
        return self._modes.get(event, ())

    async def send(self, deliveries: Deliveries) -> bool:
        """Let parts go out, in order; wait for readers that are behind.

        Returns:
            Whether a reader has been timeout_pauses for them: the event loop is due its turn.
        """
        for pause in self._timeout_pauses:
            with pause():
                return await self._send(deliveries)
        return await self._send(deliveries)

    async def _send(self, deliveries: Deliveries) -> bool:
        awaited = False
        for subscription, part in deliveries:
            await subscription.put(part)
            awaited = awaited or (len(subscription.sinks) > 0 and subscription.sinks[0].is_awaited)
        return awaited

    async def wait_until_drained(self) -> None:
        """Wait until no reader is behind with what was shown at once."""
        for subscription in self.subscriptions:
            if subscription.is_backlogged:
                await subscription.wait_until_drained()

    def closer(self, task: Task) -> UnitCloser:
        """Return what closes the unit of a task that is recorded while its routers or its error handler are to run."""
        return self.units.closer([task.id], tuple)  # which closes with nothing to show

    def closer_of_finished(self, task: Task, outcome: Finished) -> UnitCloser:
        """Return what closes the units of a task as its result is recorded."""
        by = outcome.by or task
        ids = [task.id, routers_of(task.id), by.id, routers_of(by.id)] if self.units.are_stored else []
        return self.units.closer(ids, lambda: self.finished(by, outcome))

    def resumed(self, board: Board) -> Deliveries:
        deliveries = self.units.assign_units(
            [(subscription, part) for subscription, mode in self._modes_for("resumed") for part in mode.resumed(board)]
        )
        for subscription, part in deliveries:
            part.is_repeat = (
                subscription in self.units.subscriptions and subscription.resumes
            )  # it was shown when it was stored
        return deliveries

    def began(self, task: Task, outcome: Finished) -> Deliveries:
        return self.units.assign_units(
            [
                (subscription, part)
                for subscription, mode in self._modes_for("began")
                for part in mode.began(task, outcome)
            ]
        )

    def planned(self, board: Board, tasks: Sequence[Task]) -> Deliveries:
        if "planned" not in self._modes:
            return ()
        return self.units.assign_units(
            [
                (subscription, part)
                for subscription, mode in self._modes_for("planned")
                for part in mode.planned(board, tasks)
            ]
        )

    def wrote(self, task: Task, chunk: Any) -> Deliveries:
        return self.units.assign_units(
            [
                (subscription, part)
                for subscription, mode in self._modes_for("wrote")
                for part in mode.wrote(task, chunk)
            ]
        )

    def emitted(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Deliveries:
        spoken = [
            (subscription, part)
            for subscription, mode in self._modes_for("emitted")
            for part in mode.emitted(task, message, metadata)
        ]
        return self.units.assign_units(spoken)

    def finished(self, task: Task, outcome: Finished) -> Deliveries:
        return self.units.assign_units(
            [
                (subscription, part)
                for subscription, mode in self._modes_for("finished")
                for part in mode.finished(task, outcome)
            ]
        )

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Deliveries:
        return self.units.assign_units(
            [
                (subscription, part)
                for subscription, mode in self._modes_for("paused")
                for part in mode.paused(board, paused)
            ]
        )

    def stopped(self, board: Board) -> Deliveries:
        return self.units.assign_units(
            [(subscription, part) for subscription, mode in self._modes_for("stopped") for part in mode.stopped(board)]
        )

    def failed(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> Deliveries:
        deliveries: list[tuple[Subscription, RawPart]] = []
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Failed):
                deliveries += [
                    (subscription, part)
                    for subscription, mode in self._modes_for("failed")
                    for part in mode.failed(task, outcome)
                ]
        return self.units.assign_units(deliveries)

    def updated(self, board: Board) -> Deliveries:
        if "updated" not in self._modes:
            return ()
        return self.units.assign_units(
            [(subscription, part) for subscription, mode in self._modes_for("updated") for part in mode.updated(board)]
        )

    def stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Deliveries:
        stored = [
            (subscription, part)
            for subscription, mode in self._modes_for("stored")
            for part in mode.stored(board, row, upcoming)
        ]
        return self.units.assign_units(stored)


NO_PUBLISHER = EventPublisher(())
"""The log of a run without readers."""


def publisher_of(
    program: Program,
    shown: StreamView,
    subscriptions: Sequence[Subscription],
    *,
    thread_id: str | None,
    now: Callable[[], float],
) -> EventPublisher:
    """Return the log of the graph that was called.

    Args:
        subscriptions: that of the call, if it has a reader.
    """
    if not subscriptions:
        return NO_PUBLISHER
    (subscription,) = subscriptions
    units = (
        KeptUnits(subscription, subscription.recorder, (), (), saved=True)
        if subscription.recorder is not None
        else NOT_KEPT
    )
    return EventPublisher([(subscription, _own_view(program, shown, subscription, "", thread_id, now))], units)


def publisher_of_subgraph(
    program: Program,
    shown: StreamView,
    subscriptions: Sequence[Subscription],
    outer: EventPublisher,
    *,
    ns: str,
    task: Task,
    saved: bool,
    timeout_pauses: Sequence[Callable[[], AbstractContextManager[None]]],
    thread_id: str | None,
    now: Callable[[], float],
) -> EventPublisher:
    """Return the log of a graph that a node runs.

    Args:
        subscriptions: that of the call of this very graph, if it has a reader.
        outer: that of the graph around it. Its feeds may show this graph too.
        ns: the graph's namespace.
        task: that runs it.
        saved: the graph records its own tasks.
        timeout_pauses: as in `EventPublisher`.
    """
    around = [subscription for subscription in outer.subscriptions if subscription.subgraphs]
    if not subscriptions and not around:
        return NO_PUBLISHER
    parts = tuple(ns.split("|"))
    for subscription in subscriptions:
        subscription.depth = len(parts)
    views = [
        (subscription, _own_view(program, shown, subscription, ns, thread_id, now)) for subscription in subscriptions
    ]
    for subscription in around:
        view = View(
            program=program,
            shown=shown.channels,
            ns=parts[subscription.depth :],
            checkpoint_ns=ns,
            thread_id=thread_id,
            now=now,
            coerce=shown.coerce,
            stored_subgraphs=shown.stored_subgraphs,
            reconnects=subscription.reconnects,
            shown_messages=subscription.shown_messages,
        )
        views.append((subscription, view))
    return EventPublisher(views, outer.units.of_subgraph(task, parts, saved=saved), timeout_pauses)


def _own_view(
    program: Program,
    shown: StreamView,
    subscription: Subscription,
    ns: str,
    thread_id: str | None,
    now: Callable[[], float],
) -> View:
    """What the reader of a call sees of the graph that was called."""
    return View(
        program=program,
        shown=shown.channels if subscription.channels is None else subscription.channels,
        ns=(),
        checkpoint_ns=ns,
        thread_id=thread_id,
        now=now,
        coerce=shown.coerce if subscription.channels is None else None,
        stored_subgraphs=shown.stored_subgraphs,
        reconnects=subscription.reconnects,
        shown_messages=subscription.shown_messages,
    )
