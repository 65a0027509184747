"""The base class of stream modes, which turn events of a run into parts of a stream."""

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
    """One reader's view of one graph's run.

    Attributes:
        program: the compiled graph.
        shown: the channels that the stream shows: a single name for a bare value, or several for a mapping.
        ns: the graph's namespace, relative to the graph that was called.
        checkpoint_ns: the graph's namespace in storage.
        thread_id: the thread of the run; None if it has none.
        metadata: the metadata of the call's config, with its tags under "tags".
        now: the run's clock, in Unix seconds.
        coerce: converts a state to the schema's class; None leaves it a mapping.
        stored_subgraphs: returns the nodes that run a subgraph which stores its state, each with True if the subgraph
            keeps its state from call to call.
        reconnects: the reader has reconnected, and has discarded the parts of the open superstep as void.
        shown_messages: the ids of the messages that the reader has received, from all graphs of the run.
    """

    program: Program
    shown: str | tuple[str, ...]
    ns: tuple[str, ...]
    checkpoint_ns: str
    thread_id: str | None
    metadata: Mapping[str, Any]
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
"""The names of the events: each is a method of `Mode`."""


class Mode:
    """A stream mode. Each event's method returns the parts that show the event, in order.

    Payloads are isolated copies, as the reader may change them.

    Attributes:
        name: its name in `stream_mode`.
        shows: the names of the events whose methods it overrides.
    """

    name: ClassVar[str]
    shows: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        # Found by overriding, so that a mode cannot forget to declare an event that it shows.
        cls.shows = frozenset(event for event in EVENTS if getattr(cls, event) is not getattr(Mode, event))

    def __init__(self, view: View) -> None:
        self.view = view
        shown = view.shown
        self._is_bare = isinstance(shown, str)
        self.names = frozenset((shown,) if self._is_bare else shown)

    def part(
        self, step: int, data: Any, interrupts: tuple[Interrupt, ...] = (), coerce: Coerce | None = None
    ) -> RawPart:
        """Return a part that shows an event of the graph."""
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
        """Return a part that shows an event of a task."""
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
        """Show that the run resumes from a stored board, without new input."""
        return ()

    def began(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        """Show that the hidden start, which has no routers, has written the input to the state."""
        return ()

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[RawPart]:
        """Show that a superstep begins with these tasks."""
        return ()

    def wrote(self, task: Task, chunk: Any) -> Iterable[RawPart]:
        """Show a chunk that a task has written to the stream."""
        return ()

    def emitted(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Iterable[RawPart]:
        """Show a message, or a chunk of one, that a task has emitted."""
        return ()

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        """Show a finished task, whose result is as durable as the run promises. Called in the order of finishing."""
        return ()

    def paused(self, board: Board, paused: Sequence[tuple[Task, Paused]]) -> Iterable[RawPart]:
        """Show tasks, in plan order, whose questions are recorded; the run ends with the superstep open."""
        return ()

    def stopped(self, board: Board) -> Iterable[RawPart]:
        """Show that the run has stopped at a breakpoint."""
        return ()

    def failed(self, task: Task, outcome: Failed) -> Iterable[RawPart]:
        """Show a failed task, whose failure is recorded; the superstep ends with its error. Called in plan order."""
        return ()

    def updated(self, board: Board) -> Iterable[RawPart]:
        """Show the state after a superstep, which is as durable as the run promises."""
        return ()

    def stored(self, board: Board, row: CheckpointRow, upcoming: Sequence[Task]) -> Iterable[RawPart]:
        """Show a stored checkpoint."""
        return ()
