"""What `compile` and a call say of a run, in one record."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from checkpoint_savers.upkeep.retention import Retention

from ..._core.superstep import Breakpoints
from ...policies import OnFailure
from ...types import ChangedQuestions, Durability, OnConflict
from ..observing.observer import Observer
from ..persistence.spending import NO_LIMITS, SpendingLimits
from .control import RunControl


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `compile` and a call say of a run, checked. A graph has its own; a call's own take their place.

    Attributes:
        interrupt_before, interrupt_after: nodes before and after which to stop.
        on_conflict: what to do when another run owns the thread.
        durability: when supersteps are stored; a graph that a node runs has that of the run around it.
        debug: warn when a node changes its input in place.
        control: stops the run from outside; None for the one of the run around it.
        on_failure: what the others of a superstep do when a task has failed.
        limits: what may be spent; of the called graph.
        retention: what is kept of the thread when the run ends; None for everything. That of a graph that a node runs
            does not count.
        observers: receive the run's events; those of the graphs around included.
        changed_questions: see `StateGraph.compile`.
        context, store: what nodes get besides.
    """

    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    on_conflict: OnConflict = "reject"
    durability: Durability = "sync"
    debug: bool = False
    control: RunControl | None = None
    on_failure: OnFailure = "fail_fast"
    limits: SpendingLimits = NO_LIMITS
    retention: Retention | None = None
    observers: tuple[Observer, ...] = ()
    changed_questions: ChangedQuestions = "error"
    context: Any = None
    store: Any = None

    @property
    def breakpoints(self) -> Breakpoints | None:
        """Where to stop; None for nowhere."""
        if not self.interrupt_before and not self.interrupt_after:
            return None
        return Breakpoints(self.interrupt_before, self.interrupt_after)

    @property
    def waits(self) -> bool:
        """Whether to wait when another run owns the thread."""
        return self.on_conflict == "wait"

    def of_edit(self, outer: RunOptions) -> RunOptions:
        """Return what the routers of an edit get.

        Args:
            outer: those of the called graph. A graph inside has its store, unless it has its own.
        """
        return RunOptions(store=outer.store if self.store is None else self.store)

    def without_waiting(self) -> Self:
        return msgspec.structs.replace(self, on_conflict="reject")
