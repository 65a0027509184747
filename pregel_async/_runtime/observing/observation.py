"""Observation of one graph's run that has no observers: the methods that the run calls, which do nothing here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

from checkpoint_savers.abc import BaseCheckpointSaver

from ..._core.task import Failed, Outcome, Task
from ..platform.environment import Environment
from .observer import AttemptStarted, Observer, RunStarted
from .observers import Observers


class RunOutcome(Protocol):
    """How a run has ended that did not fail."""

    @property
    def done(self) -> bool: ...

    @property
    def interrupts(self) -> Sequence[object]: ...


RunOutcomeT = TypeVar("RunOutcomeT", bound=RunOutcome)


class Observation:
    """Observation of a run without observers: each method does nothing. `Observed` overrides all of them.

    Attributes:
        is_on: the run has observers.
        registered: the observers.
        runs: the run as its observers know it; empty without observers.
    """

    is_on = False
    registered: tuple[Observer, ...] = ()
    runs: tuple[RunStarted, ...] = ()

    def with_observers(self, registered: tuple[Observer, ...], environment: Environment) -> Observers:
        """Return the observers of a graph that a node of this run runs: these, and the ones of this run.

        Args:
            registered: all of them.
        """
        return Observers(registered, environment)

    def measure(self, saver: BaseCheckpointSaver, *, waits: bool) -> BaseCheckpointSaver:
        """Return the run's saver, whose writes the observers see.

        Args:
            waits: the run waits when another owns the thread.
        """
        return saver

    def observe(self, work: Callable[[], Coroutine[Any, Any, RunOutcomeT]]) -> Coroutine[Any, Any, RunOutcomeT]:
        """Run, and notify the observers of the start and the end. Await it at once."""
        return work()

    def superstep_started(self, tasks: Sequence[Task]) -> None:
        """The tasks are about to run."""

    def superstep_ended(self, status: Literal["done", "interrupted", "failed"], outcomes: Sequence[Outcome]) -> None:
        """What is to be stored of the superstep has been handed to storage."""

    def attempt(
        self, task: Task, *, number: int, caller: AttemptStarted | None, handles: bool, routes: bool
    ) -> AttemptObservation:
        """An attempt begins, in the context of its code."""
        return UNOBSERVED_ATTEMPT

    def retried(self, task: Task, failed: Failed, number: int) -> None:
        """A failed attempt will be followed by another."""

    def handled(self, task: Task, error: BaseException, handler: str | None) -> None:
        """A failure does not fail the superstep."""

    def part_queued(self, mode: str, depth: int) -> None:
        """A part was put in a stream's queue, and so many wait now."""


NOT_OBSERVED = Observation()


class AttemptObservation:
    """Observation of an attempt without observers."""

    __slots__ = ()

    started: AttemptStarted | None = None

    def end(self, outcome: Outcome | None) -> None:
        """The attempt has ended, and all that it had started.

        Args:
            outcome: None when something is being raised instead.
        """


UNOBSERVED_ATTEMPT = AttemptObservation()
