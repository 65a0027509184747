"""Nodes of the low level: what they subscribe to, what they do, and what they write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Self

import msgspec

from ._checks.node_policies import (
    NodePolicies,
    RetryPolicies,
    Timeout,
    abandons,
    check_abandonable,
    check_on_timeout,
    flavour_of,
    node_policies,
)
from ._core.program import Node, Write, no_writes
from ._runtime.tasks.injection import injections_of
from ._runtime.tasks.worker_threads import run_in_thread
from .errors import GraphValidationError
from .policies import CachePolicy, OnTimeout, RetryPolicy

__all__ = ["PASSTHROUGH", "ChannelWriteEntry", "NodeBuilder", "PregelNode", "compile_node"]


class _Passthrough:
    def __repr__(self) -> str:
        return "PASSTHROUGH"


PASSTHROUGH: Final = _Passthrough()
"""Stands for the node's result."""


class ChannelWriteEntry(msgspec.Struct, frozen=True):
    """One write of a node.

    Attributes:
        channel: where to.
        value: what; `PASSTHROUGH` for the node's result.
        skip_none: do not write None.
        mapper: applied to the value first.
    """

    channel: str
    value: Any = PASSTHROUGH
    skip_none: bool = False
    mapper: Callable[[Any], Any] | None = None


class PregelNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a compiled graph.

    Attributes:
        name: unique within the graph; "" until a graph has it.
        channels: the channel whose bare value it gets, or those of which it gets a mapping.
        triggers: the channels that make it run when they are updated.
        bound: the function that runs.
        writers: what becomes of its result.
        tags, metadata: the user's own.
        abandon_on_cancel: as in `NodeBuilder.abandon_on_cancel`.
        retry_policy, timeout, cache_policy, on_timeout: as in `StateGraph.add_node`.
    """

    name: str = ""
    channels: str | tuple[str, ...]
    triggers: tuple[str, ...]
    bound: Callable[[Any], Any]
    writers: tuple[ChannelWriteEntry, ...] = ()
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    abandon_on_cancel: bool = False
    retry_policy: RetryPolicies | None = None
    timeout: Timeout | None = None
    cache_policy: CachePolicy | None = None
    on_timeout: OnTimeout | None = None

    @property
    def action(self) -> Callable[[Any], Any]:
        """The function that runs."""
        return self.bound

    @property
    def trigger_channels(self) -> list[str]:
        """The channels that trigger the node when updated."""
        return list(self.triggers)

    @property
    def read_channels(self) -> list[str]:
        """The channels that the node reads when triggered."""
        return [self.channels] if isinstance(self.channels, str) else list(self.channels)


class NodeBuilder:
    """Describes a node, step by step.

    NodeBuilder().subscribe_only("a").do(double).write_to("b")
    """

    def __init__(self) -> None:
        self._only: str | None = None
        self._reads: list[str] = []
        self._triggers: list[str] = []
        self._steps: list[Callable[[Any], Any]] = []
        self._writes: list[ChannelWriteEntry] = []
        self._tags: list[str] = []
        self._metadata: dict[str, Any] = {}
        self._abandon_on_cancel = False
        self._retry: list[RetryPolicy] = []
        self._cache: CachePolicy | None = None
        self._timeout: Timeout | None = None
        self._on_timeout: OnTimeout | None = None

    def subscribe_only(self, channel: str) -> Self:
        """Run when this channel is updated, on its bare value. Excludes other subscriptions."""
        if self._only is not None or self._reads or self._triggers:
            raise GraphValidationError(f"cannot subscribe only to {channel!r}: the node subscribes to other channels")
        self._only = channel
        self._triggers.append(channel)
        return self

    def subscribe_to(self, *channels: str, read: bool = True) -> Self:
        """Run when one of these is updated; with `read`, get a mapping of them."""
        self._require_mapping("subscribe to", channels)
        self._triggers.extend(channel for channel in channels if channel not in self._triggers)
        if read:
            self._reads.extend(channel for channel in channels if channel not in self._reads)
        return self

    def read_from(self, *channels: str) -> Self:
        """Get these too, without being triggered by them."""
        self._require_mapping("read from", channels)
        self._reads.extend(channel for channel in channels if channel not in self._reads)
        return self

    def _require_mapping(self, what: str, channels: Sequence[str]) -> None:
        if self._only is not None:
            raise GraphValidationError(
                f"cannot {what} {', '.join(channels)}: the node subscribes only to {self._only!r}"
            )

    def do(self, action: Callable[[Any], Any]) -> Self:
        """What to run, a function or a coroutine function. Called again, the next gets the result of the one before."""
        if not callable(action):
            raise GraphValidationError(f"a node's action is callable, and {action!r} is not")
        self._steps.append(action)
        return self

    def write_to(self, *channels: str | ChannelWriteEntry, **named: Any) -> Self:
        """Write the result to channels; `name=function` writes what it makes of the result, `name=constant` the
        constant."""
        for channel in channels:
            self._writes.append(ChannelWriteEntry(channel) if isinstance(channel, str) else channel)
        for channel, value in named.items():
            entry = ChannelWriteEntry(channel, mapper=value) if callable(value) else ChannelWriteEntry(channel, value)
            self._writes.append(entry)
        return self

    def meta(self, *tags: str, **metadata: Any) -> Self:
        """Tags and metadata of the user's own."""
        self._tags.extend(tags)
        self._metadata.update(metadata)
        return self

    def abandon_on_cancel(self) -> Self:
        """A cancellation does not wait for the node's plain function; see `StateGraph.add_node`."""
        self._abandon_on_cancel = True
        return self

    def add_retry_policies(self, *policies: RetryPolicy) -> Self:
        """Try the node again when it has failed; the first policy that is for the failure counts."""
        self._retry.extend(node_policies("the node", retry_policy=policies).retry)
        return self

    def add_cache_policy(self, policy: CachePolicy) -> Self:
        """Keep what the node makes of an input, and use it again for an equal one."""
        self._cache = node_policies("the node", cache_policy=policy).cache
        return self

    def set_timeout(self, timeout: Timeout | None, *, on_timeout: OnTimeout | None = None) -> Self:
        """How long one attempt may take, and what becomes of a plain function then; see `StateGraph.add_node`."""
        node_policies("the node", timeout=timeout, on_timeout=on_timeout)
        self._timeout, self._on_timeout = timeout, on_timeout
        return self

    def build(self) -> PregelNode:
        """The node.

        Raises:
            GraphValidationError: it subscribes to nothing; or it is to be abandoned, and is no plain function.
        """
        if not self._triggers:
            raise GraphValidationError("the node subscribes to no channel, so that it would never run")
        bound = _sequence(self._steps)
        if self._abandon_on_cancel:
            check_abandonable(bound, "node")
        return PregelNode(
            channels=self._only if self._only is not None else tuple(self._reads),
            triggers=tuple(self._triggers),
            bound=bound,
            writers=tuple(self._writes),
            tags=tuple(self._tags),
            metadata=dict(self._metadata),
            abandon_on_cancel=self._abandon_on_cancel,
            retry_policy=tuple(self._retry) or None,
            timeout=self._timeout,
            cache_policy=self._cache,
            on_timeout=self._on_timeout,
        )


def own_policies(name: str, node: PregelNode) -> NodePolicies:
    """What a node says itself of failures, time and repetition."""
    return node_policies(
        f"node {name!r}",
        retry_policy=node.retry_policy,
        timeout=node.timeout,
        cache_policy=node.cache_policy,
        on_timeout=node.on_timeout,
    )


def compile_node(name: str, node: PregelNode, *, blocking: bool, defaults: NodePolicies) -> Node:
    """A public node as the algorithm takes it."""
    what = f"node {name!r}"
    if node.abandon_on_cancel:
        check_abandonable(node.bound, what)
    check_on_timeout(node.bound, node.on_timeout, what)
    policies = own_policies(name, node).over(defaults)
    flavour = policies.flavour(node.bound, blocking=blocking or node.abandon_on_cancel)
    injects = injections_of(node.bound, after=1)
    policies.check(node.bound, flavour, what, injects=injects, abandons=node.abandon_on_cancel)
    return Node(
        name=name,
        triggers=tuple(sorted(node.triggers)),
        reads=node.channels,
        call=node.bound,
        flavour=flavour,
        writes=_writes(node.writers),
        injects=injects,
        tags=node.tags,
        metadata=node.metadata,
        abandons=abandons(flavour, policies, node.abandon_on_cancel),
        retry=policies.retry,
        timeout=policies.timeout,
        cache=policies.cache,
    )


def _writes(entries: Sequence[ChannelWriteEntry]) -> Callable[[Any], list[Write]]:
    if not entries:
        return no_writes

    def writes(result: Any) -> list[Write]:
        made: list[Write] = []
        for entry in entries:
            value = result if entry.value is PASSTHROUGH else entry.value
            if entry.mapper is not None:
                value = entry.mapper(value)
            if value is not None or not entry.skip_none:
                made.append((entry.channel, value))
        return made

    return writes


def _sequence(steps: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if not steps:
        return _identity
    if len(steps) == 1:
        return steps[0]
    if all(flavour_of(step, blocking=True) == "sync" for step in steps):

        def sync_sequence(value: Any) -> Any:
            for step in steps:
                value = step(value)
            return value

        return sync_sequence

    async def sequence(value: Any) -> Any:
        for step in steps:
            if flavour_of(step, blocking=True) == "sync":
                value = await run_in_thread(step, value)
            else:
                value = step(value)
            if isawaitable(value):
                value = await value
        return value

    return sequence


def _identity(value: Any) -> Any:
    return value
