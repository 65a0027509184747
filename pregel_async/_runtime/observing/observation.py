"""The methods that report a run to its observers. Here they do nothing, for runs without observers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

from checkpoint_savers.abc import BaseCheckpointSaver

from ..._core.task import Failed, Outcome, Task
from ..platform.environment import Environment
from .observer import AttemptStarted, Event, Observer, RunStarted
from .observers import Observers


class RunOutcome(Protocol):
    """How a run that did not fail has ended."""

    @property
    def done(self) -> bool: ...

    @property
    def interrupts(self) -> Sequence[object]: ...


RunOutcomeT = TypeVar("RunOutcomeT", bound=RunOutcome)


class Observation:
    """Reports one graph's run to no observers: each method does nothing. `Observed` overrides all of them.

    Attributes:
        is_on: the run has observers.
        registered: the observers.
        runs: the run's `RunStarted` event; empty without observers.
    """

    # A null object, so that the code of a run calls these methods without asking whether there are observers.

    is_on = False
    registered: tuple[Observer, ...] = ()
    runs: tuple[RunStarted, ...] = ()

    def with_observers(self, registered: tuple[Observer, ...], environment: Environment) -> Observers:
        """Return the observers of a subgraph.

        Args:
            registered: the subgraph's observers, including those of this run.
            environment: its clock measures durations.
        """
        return Observers(registered, environment)

    def measure(self, saver: BaseCheckpointSaver, *, waits: bool) -> BaseCheckpointSaver:
        """Return the saver, wrapped so that its writes are reported.

        Args:
            saver: the saver of the run.
            waits: the run waits if another run has the thread's lease.
        """
        return saver

    def observe(self, work: Callable[[], Coroutine[Any, Any, RunOutcomeT]]) -> Coroutine[Any, Any, RunOutcomeT]:
        """Run `work`, and notify the observers of its start and end. Await the result at once."""
        # Not a coroutine of its own, which would be one more object per run for the collector to traverse.
        return work()

    def superstep_started(self, tasks: Sequence[Task]) -> None:
        """Report that the tasks of a superstep are about to run."""

    def superstep_ended(self, status: Literal["done", "interrupted", "failed"], outcomes: Sequence[Outcome]) -> None:
        """Report the end of a superstep, after its commit or records were passed to the saver."""

    def attempt(
        self, task: Task, *, number: int, caller: AttemptStarted | None, handles: bool, routes: bool
    ) -> AttemptObservation:
        """Report the start of an attempt. Call it in the context in which the attempt's code runs."""
        return UNOBSERVED_ATTEMPT

    def retried(self, task: Task, failed: Failed, number: int) -> None:
        """Report that a failed attempt will be retried."""

    def handled(self, task: Task, error: BaseException, handler: str | None) -> None:
        """Report a failure that is handled or collected, and does not fail the superstep."""

    def report(self, event: Event) -> None:
        """Pass on an event that code above the runtime has made, such as the call of a model."""

    def part_queued(self, mode: str, depth: int) -> None:
        """Report that a part was added to a stream's buffer, which now has `depth` unread parts."""


NOT_OBSERVED = Observation()


class AttemptObservation:
    """Reports one attempt to no observers."""

    # One shared instance for all attempts without observers: an attempt allocates nothing for them.
    __slots__ = ()

    started: AttemptStarted | None = None

    def end(self, outcome: Outcome | None) -> None:
        """Report that the attempt and all tasks that it had started have ended.

        Args:
            outcome: the outcome; None while an exception propagates instead.
        """


UNOBSERVED_ATTEMPT = AttemptObservation()
