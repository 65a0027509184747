"""What a run has in place of a thread when nothing is stored of it: each method does nothing, and returns at once.

So a run always has a persistence, and asks nowhere whether it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TypeAlias

from checkpoint_savers.deltas import TaskResult
from checkpoint_savers.records import CheckpointRow, EventRow, TaskId

from ..._core.board import Board
from ..._core.isolation import NO_CLASSES
from ..._core.program import Program, Write
from ..._core.task import NEW, Outcome, Paused, Recorded, Task
from .digests import UNSTORED, Digests, fleeting_keys
from .namespace_writer import NamespaceWriter, Source
from .spending import Amounts
from .task_records import Answered


class NoLease:
    """In place of a leased thread's lease. Storage that is not there does not fail."""

    thread_id: None = None
    durability: None = None
    failures: tuple[BaseException, ...] = ()
    askers: MappingProxyType[str, tuple[str, ...]] = MappingProxyType({})

    def require_storage(self) -> None:
        """Raise what storage has failed with, if it has."""


NO_LEASE = NoLease()


class NoRecords:
    """In place of what is recorded of the open superstep's tasks: nothing."""

    results: MappingProxyType[TaskId, TaskResult] = MappingProxyType({})

    def recorded(self, task: Task, run: Answered) -> Recorded:
        return NEW


NO_RECORDS = NoRecords()


class Unstored:
    """The persistence of a graph's run of which nothing is stored.

    Args:
        scope: what ids of tasks are made in.
        around: the persistence of the graph around this one, and the task that runs this one; none for the graph that
            was called. What is spent here is spent by that task.

    Attributes:
        start: the board to run from, which is empty.
    """

    is_stored = False
    task_records = NO_RECORDS
    is_new = True
    continues = False
    tip: None = None
    kept_scalars = NO_CLASSES

    def __init__(self, program: Program, scope: str, outer: Sequence[tuple[Persistence, TaskId]] = ()) -> None:
        self.start = Board(program)
        self.scope = scope
        self.events: list[EventRow] = []
        self._program = program
        self._outer = outer

    @property
    def digests(self) -> Digests:
        """What a retry of a node recognises by what its earlier attempts called."""
        return Digests(UNSTORED, fleeting_keys(self._program))

    def spent_by(self, task: TaskId) -> Amounts:
        """What a task spends, to be added to."""
        for persistence, outer_task in self._outer:
            return persistence.spent_by(outer_task)
        return {}

    def hand_over_spent(self) -> None:
        """What was spent is the task's already that runs this graph."""

    def recorded(self, task: Task, run: Answered) -> Recorded:
        return NEW

    def recorded_instead(self, task: Task) -> str | None:
        return None

    def add_types(self, *hints: object) -> None:
        """Values are not encoded, whatever their types."""

    def check(self, task: Task, asked: Paused) -> None:
        """What is not stored need not be storable."""

    def acknowledge(self, stored: Callable[[int], None]) -> None:
        """No superstep is ever stored."""

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
        made: Callable[[CheckpointRow], None] | None = None,
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
"""Where a graph's run is stored, or that it is not."""
