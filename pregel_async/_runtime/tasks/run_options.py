"""The options of `compile` and of a call, in one record."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from checkpoint_savers.upkeep.retention import Retention

from ..._core.program import Node
from ..._core.stop import Breakpoints
from ...policies import OnFailure
from ...types import ChangedQuestions, Durability, OnConflict
from ..observing.observer import Observer
from ..persistence.spending import NO_LIMITS, SpendingLimits
from .control import RunControl


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a run. Options of a call take precedence over those of the graph.

    Attributes:
        interrupt_before, interrupt_after: names of nodes before and after which the run stops.
        on_conflict: what to do if another run owns the thread.
        durability: when supersteps are stored; a subgraph has the durability of the outer run.
        debug: warn if a node changes its input in place.
        control: drains the run on request; None for the control of the outer run.
        on_failure: what happens to the other tasks of a superstep if one fails.
        limits: budgets and time limits of the root graph's run.
        retention: which checkpoints of the thread are kept when the run ends; None for all. Only the root graph's
            retention applies.
        observers: receive the run's events; the observers of outer graphs are included.
        changed_questions: see `StateGraph.compile`.
        context, store: passed to nodes that have a parameter for them.
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
        """The breakpoints of the run; None if it has none."""
        if not self.interrupt_before and not self.interrupt_after:
            return None
        return Breakpoints(self.interrupt_before, self.interrupt_after)

    def stops_before(self, node: Node) -> bool:
        """Return True if the run stops before this node."""
        return node.name in self.interrupt_before

    @property
    def waits(self) -> bool:
        """True if the run waits while another run owns the thread."""
        return self.on_conflict == "wait"

    def of_edit(self, outer: RunOptions) -> RunOptions:
        """Return the options for the routers of an edit.

        Args:
            outer: the options of the called graph. A subgraph without a store of its own gets the store from them.
        """
        return RunOptions(store=outer.store if self.store is None else self.store)

    def without_waiting(self) -> Self:
        """Return the options with `on_conflict="reject"`."""
        return msgspec.structs.replace(self, on_conflict="reject")
