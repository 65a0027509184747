"""Turn the events of one graph's run into stream parts, in one total order, for the subscribed stream modes.

Parts are made when the event happens. They are published (`send`) when the event is as durable as the run's durability
promises: parts of a superstep's commit are made before the commit and sent after it.
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
from .modes import MODES, View
from .modes.mode import Coerce, Mode
from .parts import RawPart, routers_of
from .stored_units import NO_UNITS, Deliveries, StoredUnits, UnitCloser, Units
from .subscription import Subscription

__all__ = ["NO_PUBLISHER", "Deliveries", "EventPublisher", "StreamView", "publisher_of", "publisher_of_subgraph"]


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a graph's definition that its streams need.

    Attributes:
        channels: the channels that streams show: a single name for a bare value, or several for a mapping.
        coerce: converts a state to the schema's class; None leaves it a mapping.
        stored_subgraphs: returns the nodes that run a subgraph which stores its state, each with True if the subgraph
            keeps its state from call to call.
    """

    channels: str | tuple[str, ...]
    coerce: Coerce | None
    stored_subgraphs: Callable[[], Mapping[str, bool]]


class EventPublisher:
    """Makes parts of the events of one graph's run, one method per event (see `modes.mode.Mode`).

    Attributes:
        subscriptions: the subscriptions that receive parts of the run.
        units: the units of work that the events belong to.
        shows_writes: parts that a task's code writes are published: chunks or messages.
        shows_messages: messages of models that a task calls are published.

    Args:
        views: each subscription with its view of this graph.
        units: the units of work of this graph's tasks.
        timeout_pauses: context managers to enter around each wait for a reader. They pause the timeout of an outer
            node, because a slow reader is not the node's fault.
    """

    def __init__(
        self,
        views: Sequence[tuple[Subscription, View]],
        units: Units = NO_UNITS,
        timeout_pauses: Sequence[Callable[[], AbstractContextManager[None]]] = (),
    ) -> None:
        self.subscriptions = tuple([subscription for subscription, _ in views])
        self.units = units
        self._timeout_pauses = timeout_pauses
        # By event, so that an event without a subscribed mode costs one lookup.
        self._modes: dict[str, tuple[tuple[Subscription, Mode], ...]] = {}
        for name, mode in MODES.items():
            for subscription, view in views:
                if name in subscription.modes:
                    pair = subscription, mode(view)
                    for event in mode.shows:
                        self._modes[event] = (*self._modes[event], pair) if event in self._modes else (pair,)
        self.shows_messages = "emitted" in self._modes
        self.shows_writes = self.shows_messages or "wrote" in self._modes

    def _modes_for(self, event: str) -> Sequence[tuple[Subscription, Mode]]:
        return self._modes.get(event, ())

    async def send(self, deliveries: Deliveries) -> bool:
        """Publish parts in order. Waits for readers whose buffers block.

        Returns:
            True if a reader was waiting for the parts, so that the event loop should run that reader next.
        """
        for pause in self._timeout_pauses:
            with pause():
                return await self._send(deliveries)
        return await self._send(deliveries)

    async def _send(self, deliveries: Deliveries) -> bool:
        awaited = False
        for subscription, part in deliveries:
            await subscription.put(part)
            awaited = awaited or (subscription.sinks != [] and subscription.sinks[0].is_awaited)
        return awaited

    async def wait_until_drained(self) -> None:
        """Wait until no reader is behind with parts of code that could not wait."""
        for subscription in self.subscriptions:
            if subscription.is_backlogged:
                await subscription.wait_until_drained()

    def closer(self, task: Task) -> UnitCloser:
        """Return the closer of a task whose writes or failure are recorded before its routers or error handler run."""
        # `tuple()` is the empty list of last parts: the task has not finished yet.
        return self.units.closer([task.id], tuple)

    def closer_of_finished(self, task: Task, outcome: Finished) -> UnitCloser:
        """Return the closer of the units of a task whose result is recorded."""
        acting = outcome.handler_task or task
        ids = [task.id, routers_of(task.id), acting.id, routers_of(acting.id)] if self.units.are_stored else []
        return self.units.closer(ids, lambda: self.finished(acting, outcome))

    def resumed(self, board: Board) -> Deliveries:
        deliveries = self.units.assign_units(
            [(subscription, part) for subscription, mode in self._modes_for("resumed") for part in mode.resumed(board)]
        )
        for subscription, part in deliveries:
            # The earlier attempt has published and stored the same state.
            part.is_repeat = subscription in self.units.subscriptions and subscription.resumes
        return deliveries

    def began(self, task: Task, outcome: Finished) -> Deliveries:
        if "began" not in self._modes:  # a fast path: each run calls this, and few modes show it
            return ()
        return self.units.assign_units(
            [
                (subscription, part)
                for subscription, mode in self._modes_for("began")
                for part in mode.began(task, outcome)
            ]
        )

    def planned(self, board: Board, tasks: Sequence[Task]) -> Deliveries:
        # Each superstep calls this, and most streams do not show it.
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
        deliveries = [
            (subscription, part)
            for subscription, mode in self._modes_for("emitted")
            for part in mode.emitted(task, message, metadata)
        ]
        return self.units.assign_units(deliveries)

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
"""The publisher of a run without readers."""


def publisher_of(
    program: Program,
    shown: StreamView,
    subscriptions: Sequence[Subscription],
    *,
    thread_id: str | None,
    now: Callable[[], float],
) -> EventPublisher:
    """Return the publisher of the graph that was called.

    Args:
        program: the compiled graph.
        shown: what its streams show.
        subscriptions: the subscriptions of the call: that of its reader, and that which prints.
        thread_id: the thread of the run; None if it has none.
        now: the clock, in Unix seconds.
    """
    if not subscriptions:
        return NO_PUBLISHER
    units: Units = NO_UNITS
    views: tuple[tuple[Subscription, View], ...] = ()
    for subscription in subscriptions:
        if subscription.recorder is not None:
            units = StoredUnits(subscription, subscription.recorder, (), (), saved=True)
        views = (*views, (subscription, _own_view(program, shown, subscription, "", thread_id, now)))
    return EventPublisher(views, units)


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
    """Return the publisher of a subgraph.

    Args:
        program: the compiled subgraph.
        shown: what its streams show.
        subscriptions: the subscriptions of the subgraph's own call.
        outer: the publisher of the outer graph. Its subscriptions may include subgraphs.
        ns: the namespace of the subgraph.
        task: the task that runs it.
        saved: the subgraph records its own tasks.
        timeout_pauses: as in `EventPublisher`.
        thread_id: the thread of the run; None if it has none.
        now: the clock, in Unix seconds.
    """
    outer_subscriptions = [subscription for subscription in outer.subscriptions if subscription.subgraphs]
    if not subscriptions and not outer_subscriptions:
        return NO_PUBLISHER
    parts = tuple(ns.split("|"))
    for subscription in subscriptions:
        subscription.depth = len(parts)
    views = [
        (subscription, _own_view(program, shown, subscription, ns, thread_id, now)) for subscription in subscriptions
    ]
    for subscription in outer_subscriptions:
        view = View(
            program=program,
            shown=shown.channels,
            ns=parts[subscription.depth :],
            checkpoint_ns=ns,
            thread_id=thread_id,
            metadata=subscription.metadata,
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
    """Return the view that the reader of a call has of the called graph."""
    return View(
        program=program,
        shown=shown.channels if subscription.channels is None else subscription.channels,
        ns=(),
        checkpoint_ns=ns,
        thread_id=thread_id,
        metadata=subscription.metadata,
        now=now,
        coerce=shown.coerce if subscription.channels is None else None,
        stored_subgraphs=shown.stored_subgraphs,
        reconnects=subscription.reconnects,
        shown_messages=subscription.shown_messages,
    )
