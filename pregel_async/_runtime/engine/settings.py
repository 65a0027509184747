"""What a run is told by its call: its settings, checked, and who is shown something of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.records import CheckpointId

from ...types import RunnableConfig, StreamWriter
from ..persistence.namespace_writer import NamespaceWriter
from ..streaming.publisher import StreamView
from ..streaming.subscription import Subscription
from ..tasks.result_cache import NodeResultCache
from ..tasks.run_options import RunOptions


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
        thread_metadata: what of the user's the thread's own metadata get, where they lack it.
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
    thread_metadata: dict[str, Any]
    config: RunnableConfig
    results: NodeResultCache | None


class Audience(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The readers of a run.

    Attributes:
        shown: how the graph shows itself.
        subscriptions: that of the call, if it has a reader.
        codec: what events are kept with.
        overhears: makes models that a node calls show what they say; see `GraphContext`.
        begun: called in turn when the run has its thread, before anything runs: whether to run at all.
    """

    shown: StreamView
    subscriptions: tuple[Subscription, ...] = ()
    codec: Callable[[], Codec]
    overhears: Callable[[StreamWriter], AbstractContextManager[None]] | None = None
    begun: tuple[Callable[[NamespaceWriter], Awaitable[bool]], ...] = ()
