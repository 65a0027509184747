"""Why a run stops with work left."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import BudgetExceededError, GraphDrained


class Stop(msgspec.Struct, frozen=True):
    """Why a run stops with work left.

    Attributes:
        status: how it ends by that.
        errors: what its call raises; none at a breakpoint.
    """

    status: Literal["stopped", "drained", "failed"]
    errors: tuple[GraphDrained | BudgetExceededError, ...] = ()

    @property
    def failures(self) -> tuple[GraphDrained | BudgetExceededError, ...]:
        """Those that count as a failure of the run."""
        return self.errors if self.status == "failed" else ()


AT_BREAKPOINT = Stop("stopped")
"""Of a run that neither was asked to stop nor has spent too much: if work is left, it has stopped at a breakpoint."""


def drained(reason: str) -> Stop:
    """Return the stop of a run that was asked to."""
    return Stop("drained", (GraphDrained(reason),))


def overspent(error: BudgetExceededError) -> Stop:
    """Return the stop of a run that has spent more than it may."""
    return Stop("failed", (error,))
