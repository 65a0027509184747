"""What a stream mode is: from events of the run to parts of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from checkpoint_savers.records import CheckpointRow

from ...._core.board import Board
from ...._core.program import Program
from ...._core.task import Failed, Finished, Paused, Task
from ....types import Interrupt
from ..parts import RawPart

Coerce = Callable[[Any], Any]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader sees of one graph's run.

    Attributes:
        program: the graph.
        shown: the channels that the stream shows: one bare, or several as a mapping.
        ns: the graph's namespace, as the reader is told it.
        checkpoint_ns: as it is stored.
        thread_id: None when the run has none.
        now: the run's clock, in unix seconds.
        coerce: makes the schema's own object of a state; None leaves the mapping.
        stored_subgraphs: node -> whether its graph keeps its state, for nodes that run a graph which stores it.
        reconnects: the reader has been here before, and was told that what it had seen of the superstep is void.
        shown_messages: the ids of the messages that the reader was shown, of this graph and of all others.
    """

    program: Program
    shown: str | tuple[str, ...]
    ns: tuple[str, ...]
    checkpoint_ns: str
    thread_id: str | None
    now: Callable[[], float]
    coerce: Coerce | None
    stored_subgraphs: Callable[[], Mapping[str, bool]]
    reconnects: bool
    shown_messages: set[Any]


EVENTS = (
    "resumed",
    "began",
    "planned",
    "wrote",
    "emitted",
    "finished",
    "paused",
    "stopped",
    "failed",
    "updated",
    "stored",
)
"""What is told of a run: a method of `Mode` each."""


class Mode:
    """A view of the log. Each method answers with parts, in order; what they hold is the reader's to change.

    Attributes:
        name: what `stream_mode` calls it.
        shows: the events that it overrides.
    """

    name: ClassVar[str]
    shows: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        cls.shows = frozenset(event for event in EVENTS if getattr(cls, event) is not getattr(Mode, event))

    def __init__(self, view: View) -> None:
        self.view = view
        shown = view.shown
        self.names = frozenset((shown,) if isinstance(shown, str) else shown)
        self._is_bare = isinstance(shown, str)

    def part(
        self, step: int, data: Any, interrupts: tuple[Interrupt, ...] = (), coerce: Coerce | None = None
    ) -> RawPart:
        """Return a part of an event of the graph."""
        return RawPart(
            mode=self.name,
            ns=self.view.ns,
            data=data,
            step=step,
            interrupts=interrupts,
            coerce=coerce,
            untracked=self.view.program.untracked,
            is_keyed=not self._is_bare,
        )

    def part_of(self, task: Task, data: Any) -> RawPart:
        """Return a part of an event of a task."""
        return RawPart(
            mode=self.name,
            ns=self.view.ns,
            data=data,
            step=task.step,
            task=task,
            untracked=self.view.program.untracked,
            is_keyed=not (self._is_bare or task.is_called),
        )

    def resumed(self, board: Board) -> Iterable[RawPart]:
        """The run goes on from a stored board, without new input."""
        return ()

    def began(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        """The hidden start has written the input to the state, and no router is asked. (Else: `finished`.)"""
        return ()

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[RawPart]:
        """A superstep begins: these tasks are its own, and none of them has run yet."""
        return ()

    def wrote(self, task: Task, chunk: Any) -> Iterable[RawPart]:
        """A task has written to the stream."""
        return ()

    def emitted(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Iterable[RawPart]:
        """A task has emitted a message, or a chunk of one."""
        return ()

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        """A task has finished; its result is as durable as the run promised. In the order in which they finish."""
        return ()

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        """Tasks have asked, and that is recorded; the run ends with their superstep open. In plan order."""
        return ()

    def stopped(self, board: Board) -> Iterable[RawPart]:
        """The run has stopped at a breakpoint."""
        return ()

    def failed(self, task: Task, outcome: Failed) -> Iterable[RawPart]:
        """A task has failed, and that is recorded; the superstep ends with its error. In plan order."""
        return ()

    def updated(self, board: Board) -> Iterable[RawPart]:
        """A superstep has been folded and is as durable as the run promised."""
        return ()

    def stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Iterable[RawPart]:
        """A checkpoint has been stored."""
        return ()
