"""What a run is told by its call: its settings, checked, and who is shown something of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.records import CheckpointId
from checkpoint_savers.upkeep.retention import Retention

from ..._core.superstep import Breakpoints
from ...policies import Budget, OnFailure
from ...types import ChangedQuestions, Durability, OnConflict, RunnableConfig, StreamWriter
from ..observing.observer import Observer
from ..persistence.namespace_writer import Thread
from ..persistence.spending import NO_LIMITS, Limits
from ..streaming.publisher import Shown
from ..streaming.subscription import Feed
from ..tasks.control import RunControl
from ..tasks.kept_results import Results


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `compile` and a call say of a run, checked. A graph has its own; a call's own take their place.

    Attributes:
        interrupt_before, interrupt_after: nodes before and after which to stop.
        on_conflict: what to do when another run owns the thread.
        durability: when supersteps are stored; a graph that a node runs has that of the run around it.
        debug: warn when a node changes its input in place.
        control: stops the run from outside; None for the one of the run around it.
        on_failure: what the others of a superstep do when a task has failed.
        budgets: by name, how much may be spent; of the called graph.
        limits: what may be spent besides.
        retention: what is kept of the thread when the run ends; None for everything. That of a graph that a node runs
            does not count.
        observers: who is told what the run does; those of the graphs around included.
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
    budgets: Mapping[str, Budget] = {}
    limits: Limits = NO_LIMITS
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

    def without_waiting(self) -> Self:
        return msgspec.structs.replace(self, on_conflict="reject")


class Settings(RunOptions, frozen=True, kw_only=True):
    """One call's settings, validated.

    Attributes:
        thread_id: None runs without a thread: nothing is stored.
        at: the checkpoint to go on from; None for the head.
        travels: namespace -> checkpoint, for a journey to a subgraph's checkpoint: `at` is the root's then.
        run_id: None to make one up.
        limit: how many supersteps the run may take.
        max_concurrency: how many tasks run at once; None for all.
        metadata: stored with each checkpoint.
        thread_metadata: what of the user's the thread's own metadata get, where they lack it; None for nothing.
        config: all of the call's settings, as nodes see them.
        results: of the graph's nodes, kept from run to run; None for those of the run around it.
    """

    thread_id: str | None
    at: CheckpointId | None
    travels: dict[str, CheckpointId]
    run_id: str | None
    limit: int
    max_concurrency: int | None
    metadata: dict[str, Any]
    thread_metadata: dict[str, Any] | None
    config: RunnableConfig
    results: Results | None


class Audience(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who is shown something of a run.

    Attributes:
        shown: how the graph shows itself.
        feed: of the call; None when nobody reads it.
        codec: what events are kept with.
        overhears: makes models that a node calls show what they say; see `Around`.
        begun: told when the run has its thread, before anything runs; whether to run at all.
    """

    shown: Shown
    feed: Feed | None = None
    codec: Callable[[], Codec] | None = None
    overhears: Callable[[StreamWriter], AbstractContextManager[None]] | None = None
    begun: Callable[[Thread], Awaitable[bool]] | None = None
