"""Assign the events of one graph's run to units of work, if events are stored.

An event belongs to a unit of work (`parts.Unit`): a task or a called task, whose result is recorded as a whole. The
last events of a unit are stored in the transaction that records its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from checkpoint_savers.records import EventRow

from ..._core.task import Task
from .event_recorder import EventRecorder
from .parts import RawPart, Unit, routers_of
from .subscription import Subscription

Deliveries: TypeAlias = Sequence[tuple[Subscription, RawPart]]
"""Parts to publish, each with the subscription that it goes to."""

MID_TASK = frozenset(("custom", "messages", "tasks", "debug"))
"""The modes that publish parts of a task before it has finished."""


class Units:
    """The units of a run without stored events: each method does nothing.

    Attributes:
        are_stored: events are stored with this graph's own transactions.
        subscriptions: the subscription whose events are stored, if there is one.
        outer_units: the unit of the outer task that runs this graph, if there is one.
    """

    are_stored = False
    subscriptions: tuple[Subscription, ...] = ()
    outer_units: tuple[Unit, ...] = ()

    def of_task(self, task: Task) -> Sequence[Unit]:
        """Return all units that the events of a task may belong to: the task, its routers and its error handler."""
        return ()

    def ids_of(self, tasks: Iterable[Task]) -> list[str]:
        """Return the ids of all units that the events of these tasks may belong to."""
        return [unit.id for task in tasks for unit in self.of_task(task)]

    def current(self, task: Task) -> tuple[Unit, ...]:
        """Return the unit that the next events of a task belong to."""
        return ()

    def attribute(self, task: Task, id: str) -> None:
        """Assign the next events of a task to another unit, as its work so far is recorded."""

    async def open(self, task: Task, caller: Task) -> None:
        """Store that a called task has begun, if it may publish parts before it is recorded."""

    async def wait_for_flush(self) -> None:
        """Wait until no flushed event is on its way to storage that the next record may close."""

    async def wait_until_within_capacity(self) -> None:
        """Wait until no buffer exceeds its capacity because of parts that were published when they were stored."""

    def closer(self, ids: Sequence[str], last: Callable[[], Deliveries]) -> UnitCloser:
        """Return the closer of the units of a task that is being recorded.

        Args:
            ids: the ids of the units.
            last: makes the parts that report the end of the task.
        """
        return NO_CLOSER

    def close(
        self, ids: Iterable[str], deliveries: Deliveries, upcoming: Iterable[Task] = ()
    ) -> tuple[list[EventRow], Deliveries]:
        """Close the units of recorded work. Their last parts are published when the row is stored.

        Args:
            ids: the ids of the units.
            deliveries: the last parts of these units.
            upcoming: the tasks that may begin once the row is stored.

        Returns:
            The row for the transaction that records the work, and the parts of subscriptions without stored events.
        """
        return [], deliveries

    def assign_units(self, deliveries: Deliveries) -> Deliveries:
        """Assign the parts of an event to their units, and return them."""
        return deliveries

    def of_subgraph(self, task: Task, ns: tuple[str, ...], *, saved: bool) -> Units:
        """Return the units of a subgraph that a task runs.

        Args:
            task: the task that runs it.
            ns: the segments of the subgraph's namespace.
            saved: the subgraph records its own tasks.
        """
        return NO_UNITS


NO_UNITS = Units()


class StoredUnits(Units):
    """The units of a graph's run with stored events.

    Args:
        subscription: the subscription whose events are stored.
        recorder: stores the events.
        ns: the graph's namespace, relative to the graph that was called.
        outer_units: the unit of the outer task that runs this graph; empty for the called graph.
        saved: the graph records its own tasks.
    """

    def __init__(
        self,
        subscription: Subscription,
        recorder: EventRecorder,
        ns: tuple[str, ...],
        outer_units: tuple[Unit, ...],
        *,
        saved: bool,
    ) -> None:
        self.are_stored = saved
        self.subscriptions = (subscription,)
        self.outer_units = outer_units
        self._subscription = subscription
        self._recorder = recorder
        self._ns = ns
        # A unit needs a row of its own before it begins only if it may publish parts before it is recorded.
        self._opens = subscription.subgraphs or not MID_TASK.isdisjoint(subscription.modes)
        self._shares_outer_unit = bool(outer_units) and not saved  # its tasks are part of the outer task's unit
        self._units: dict[str, Unit] = {}
        self._current: dict[str, str] = {}

    def of_task(self, task: Task) -> list[Unit]:
        ids: list[str] = [task.id]
        if task.node.routers:
            ids.append(routers_of(task.id))
        units = [Unit(id, self._ns, task.node.name) for id in ids]
        handler = task.node.handler
        if handler is not None:
            units.append(Unit(task.handling(handler).id, self._ns, handler.name))
        return units

    def current(self, task: Task) -> tuple[Unit, ...]:
        if self._shares_outer_unit:
            return self.outer_units
        id = self._current.get(task.id, task.id)
        # Made once for each task, because a task may write thousands of chunks.
        if id not in self._units:
            self._units[id] = Unit(id, self._ns, task.node.name)
        return (self._units[id],)

    def attribute(self, task: Task, id: str) -> None:
        self._current[task.id] = id

    async def open(self, task: Task, caller: Task) -> None:
        if self._opens:
            await self._recorder.open_units(self.of_task(task), self.current(caller))

    async def wait_for_flush(self) -> None:
        await self._recorder.wait_for_flush()

    async def wait_until_within_capacity(self) -> None:
        await self._subscription.wait_until_within_capacity()

    def closer(self, ids: Sequence[str], last: Callable[[], Deliveries]) -> UnitCloser:
        return TaskUnitCloser(self, ids, last) if self.are_stored else NO_CLOSER

    def close(
        self, ids: Iterable[str], deliveries: Deliveries, upcoming: Iterable[Task] = ()
    ) -> tuple[list[EventRow], Deliveries]:
        rows, mine = self._closed(ids, deliveries, upcoming)
        # Without a row there is nothing whose storage the parts could wait for: with "exit", rows are made later.
        for row in rows:
            self._subscription.stage(row, mine)
        if not rows:
            self._show(mine)
        return rows, self._others(deliveries)

    def close_task(self, ids: Iterable[str], deliveries: Deliveries) -> tuple[list[EventRow], Deliveries]:
        """Close the units of a task that is being recorded.

        With durability "async" or "exit" its last parts are published at once, because the record is stored later.
        """
        rows, mine = self._closed(ids, deliveries, ())
        if rows and not self._recorder.shows_unstored:
            self._subscription.stage(rows[0], mine)
        else:
            self._show(mine)
        return rows, self._others(deliveries)

    def _closed(
        self, ids: Iterable[str], deliveries: Deliveries, upcoming: Iterable[Task]
    ) -> tuple[list[EventRow], list[RawPart]]:
        mine = [part for subscription, part in deliveries if subscription is self._subscription]
        opens = [unit for task in upcoming for unit in self.of_task(task)] if self._opens else []
        return self._recorder.close_units(ids, mine, opens, self.outer_units), mine

    def _show(self, parts: Iterable[RawPart]) -> None:
        for part in parts:
            self._subscription.put_over_capacity(part)

    def _others(self, deliveries: Deliveries) -> Deliveries:
        return [(subscription, part) for subscription, part in deliveries if subscription is not self._subscription]

    def assign_units(self, deliveries: Deliveries) -> Deliveries:
        finished = self._recorder.finished
        for subscription, part in deliveries:
            if subscription is not self._subscription:
                continue
            if part.task is not None:
                (part.unit,) = self.current(part.task)
                # A task with async routers ends with its routers' events, so that either unit may be the recorded one.
                part.is_repeat = bool(finished) and not finished.isdisjoint((part.unit.id, routers_of(part.unit.id)))
            elif self._shares_outer_unit:
                (part.unit,) = self.outer_units
        return deliveries

    def of_subgraph(self, task: Task, ns: tuple[str, ...], *, saved: bool) -> Units:
        if not self._subscription.subgraphs:
            return NO_UNITS
        return StoredUnits(
            self._subscription, self._recorder, ns[self._subscription.depth :], self.current(task), saved=saved
        )


class UnitCloser:
    """Closes the units of a task. Called as soon as it is certain that the task's record can be stored.

    Attributes:
        is_closed: it was called, so that the task's units are closed.
        unshown: the parts to publish once the record is stored.
    """

    is_closed = False
    unshown: Deliveries = ()

    def __call__(self) -> Sequence[EventRow]:
        """Return the rows of events for the transaction that stores the record."""
        return ()


NO_CLOSER = UnitCloser()


class TaskUnitCloser(UnitCloser):
    """Closes the units of one task."""

    def __init__(self, units: StoredUnits, ids: Sequence[str], last: Callable[[], Deliveries]) -> None:
        self._units = units
        self._ids = ids
        self._last = last

    def __call__(self) -> Sequence[EventRow]:
        self.is_closed = True
        rows, self.unshown = self._units.close_task(self._ids, self._last())
        return rows
