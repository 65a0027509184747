"""Describe why a run stops with tasks left to run."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import BudgetExceededError, GraphDrained


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
