"""Describe where and why a run stops with tasks left to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..errors import BudgetExceededError, GraphDrained
from .task import Finished, Outcome, Task


class Breakpoints(msgspec.Struct, frozen=True):
    """Where a run stops between two supersteps.

    Attributes:
        before: stop before nodes with these names.
        after: stop after nodes or error handlers with these names.
    """

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()

    def between(self, ran: Sequence[Task], upcoming: Sequence[Task], outcomes: Sequence[Outcome] = ()) -> bool:
        """Return True if the run stops between the tasks `ran`, with these outcomes, and `upcoming`."""
        if any(task.node.name in self.before for task in upcoming):
            return True
        finished = [outcome for outcome in outcomes if isinstance(outcome, Finished)]
        handlers = [outcome.handler_task for outcome in finished if outcome.handler_task is not None]
        return any(task.node.name in self.after for task in (*ran, *handlers))


class Stop(msgspec.Struct, frozen=True):
    """The reason why a run stops with tasks left to run.

    Attributes:
        status: the status with which the run ends.
        errors: the error that the call raises, as a tuple of one; empty at a breakpoint.
    """

    status: Literal["stopped", "drained", "failed"]
    errors: tuple[GraphDrained | BudgetExceededError, ...] = ()

    @property
    def failures(self) -> tuple[GraphDrained | BudgetExceededError, ...]:
        """The errors that count as a failure of the run. A drained run has not failed."""
        return self.errors if self.status == "failed" else ()


AT_BREAKPOINT = Stop("stopped")
"""The default: a run that was not drained, has not overspent and has tasks left has stopped at a breakpoint."""


def drained(reason: str) -> Stop:
    """Return the stop of a run that was asked to drain."""
    return Stop("drained", (GraphDrained(reason),))


def overspent(error: BudgetExceededError) -> Stop:
    """Return the stop of a run that has exceeded a budget or its time limit."""
    return Stop("failed", (error,))
