"""Hold the checked settings of a call, and the readers of its run."""

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
from ..tasks.context import AttemptTracer
from ..tasks.result_cache import NodeResultCache
from ..tasks.run_options import RunOptions


class Settings(RunOptions, frozen=True, kw_only=True):
    """One call's settings, validated.

    Attributes:
        thread_id: the thread; None to run without one and store nothing.
        at: the checkpoint to continue from; None for the head.
        travels: the checkpoints to continue subgraphs from, by namespace (time travel). `at` is then the root's.
        run_id: the run's id; None for a new one.
        limit: the greatest number of supersteps of the run.
        max_concurrency: the greatest number of tasks that run at once; None for no limit.
        metadata: stored with each checkpoint.
        thread_metadata: entries for the thread's own metadata. Keys that the thread has already are not changed.
        config: the settings of the call as nodes see them.
        results: the cached results of the graph's nodes; None to use the outer graph's.
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


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class Audience(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The readers of a run.

    Attributes:
        shown: how the graph appears in streams.
        subscriptions: the call's subscriptions: that which prints, and that of its reader. Empty if there are none.
        codec: makes the codec that encodes stored events.
        token_listener: shows the output of models that a node calls; see `GraphContext`.
        tracer: shows the run to the callbacks of langchain-core; see `GraphContext`.
        begun: callbacks, called in turn once the thread is leased and loaded. The run stops if one returns False.
    """

    shown: StreamView
    subscriptions: tuple[Subscription, ...] = ()
    codec: Callable[[], Codec]
    token_listener: Callable[[StreamWriter], AbstractContextManager[None]] | None = None
    tracer: AttemptTracer | None = None
    begun: tuple[Callable[[NamespaceWriter], Awaitable[bool]], ...] = ()
