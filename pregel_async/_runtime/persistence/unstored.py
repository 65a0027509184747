"""Stand in for a thread in a run without one: the same methods, which store nothing and return at once.

So a run always has a `Persistence`, and no code tests whether it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import TypeAlias

from checkpoint_savers.deltas import TaskResult
from checkpoint_savers.records import CheckpointRow, EventRow, TaskId

from ..._core.board import Board
from ..._core.ownership import NO_CLASSES
from ..._core.program import Program, Write
from ..._core.task import NEW, Outcome, Paused, Recorded, Task
from .digests import UNSTORED, Digests, fleeting_keys
from .namespace_writer import NamespaceWriter, Source
from .spending import Amounts
from .task_records import NOTHING_EARLIER, Answered


class NoLease:
    """The lease of a run without a thread. Its storage never fails."""

    thread_id: None = None
    durability: None = None
    failures: tuple[BaseException, ...] = ()
    askers: MappingProxyType[str, tuple[str, ...]] = MappingProxyType({})

    def require_storage(self) -> None:
        """Return: there is no storage that could have failed."""


NO_LEASE = NoLease()


class NoRecords:
    """The task records of a run without a thread: none."""

    results: MappingProxyType[TaskId, TaskResult] = MappingProxyType({})
    earlier = NOTHING_EARLIER

    def recorded(self, task: Task, run: Answered) -> Recorded:
        return NEW


NO_RECORDS = NoRecords()


class Unstored:
    """The persistence of a graph's run that stores nothing.

    Args:
        program: the graph.
        scope: the first part of the scope of task ids: the thread's id, or the run's.
        outer: the outer graph's persistence and the task that runs this graph, as a sequence of one; empty for the
            graph that was called. Amounts spent here are spent by that task.

    Attributes:
        start: the empty board to run from.
        program: the graph.
    """

    is_stored = False
    has_other_version = False
    task_records = NO_RECORDS
    is_new = True
    continues = False
    tip: None = None
    kept_scalars = NO_CLASSES

    def __init__(self, program: Program, scope: str, outer: Sequence[tuple[Persistence, TaskId]] = ()) -> None:
        self.start = Board(program)
        self.scope = scope
        self.program = program
        self._outer = outer

    @property
    def events(self) -> list[EventRow]:
        """The event rows of the next transaction: what is added to the list is never stored."""
        return []

    @property
    def digests(self) -> Digests:
        """The digests by which a retry of a node recognises the calls of its earlier attempts."""
        return Digests(UNSTORED, fleeting_keys(self.program))

    def spent_by(self, task: TaskId) -> Amounts:
        """Return the amounts that a task has spent. The caller adds to them."""
        for persistence, outer_task in self._outer:
            return persistence.spent_by(outer_task)
        return {}

    def hand_over_spent(self) -> None:
        """Return: `spent_by` counts for the task that runs this graph already."""

    def recorded(self, task: Task, run: Answered) -> Recorded:
        return NEW

    def recorded_instead(self, task: Task) -> str | None:
        return None

    def decide_patch(self, task: Task, name: str) -> bool:
        return True  # nothing outlives a run, so that the running code began each task

    def add_types(self, *hints: object) -> None:
        """Return: values are never encoded."""

    def require_fit(self, writes: Iterable[Write] = (), *, discards: bool = False) -> None:
        """Return: nothing is loaded."""

    def check(self, task: Task, asked: Paused) -> None:
        """Return: values that are never stored need not be storable."""

    def acknowledge(self, stored: Callable[[int], None]) -> None:
        """Return: no superstep is ever stored."""

    async def record(
        self, task: Task, writes: list[Write], *, routed: bool, events: Callable[[], Sequence[EventRow]]
    ) -> None: ...

    async def record_failure(self, task: Task, error: Exception, events: Callable[[], Sequence[EventRow]]) -> None: ...

    async def commit(
        self,
        board: Board,
        ran: Sequence[Task],
        outcomes: Sequence[Outcome],
        upcoming: Sequence[Task],
        *,
        source: Source = "loop",
        on_row: Callable[[CheckpointRow], None] | None = None,
    ) -> bool:
        return True

    async def pause(self, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None: ...

    async def fail(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> bool:
        return False

    def discard(self) -> None: ...

    async def flush_events(self) -> None: ...

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


Persistence: TypeAlias = NamespaceWriter | Unstored
"""Where a graph's run is stored: a namespace of a thread, or nowhere."""
