"""Nodes of the low-level API: the channels that a node subscribes to, its function, and the channels that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Self, TypeAlias

import msgspec

from ._checks.node_policies import (
    NodePolicies,
    RetryPolicies,
    TimeoutOption,
    abandons,
    check_abandonable,
    check_on_timeout,
    flavour_of,
    node_policies,
)
from ._core.program import Node, Write, no_writes
from ._runtime.tasks.injection import as_function, injections_of
from ._runtime.tasks.worker_threads import run_in_thread
from .errors import GraphValidationError
from .policies import CachePolicy, OnTimeout, RetryPolicy

__all__ = ["PASSTHROUGH", "ChannelWriteEntry", "NodeBuilder", "PregelNode", "compile_node"]


class _Passthrough:
    def __repr__(self) -> str:
        return "PASSTHROUGH"


PASSTHROUGH: Final = _Passthrough()
"""The `ChannelWriteEntry.value` that stands for the node's result."""


class ChannelWriteEntry(msgspec.Struct, frozen=True):
    """One write of a node.

    Attributes:
        channel: the name of the channel.
        value: the value to write; `PASSTHROUGH` for the node's result.
        skip_none: True to write nothing if the value is None.
        mapper: a function that is applied to the value first; None for none.
    """

    channel: str
    value: Any = PASSTHROUGH
    skip_none: bool = False
    mapper: Callable[[Any], Any] | None = None


NodeWriter: TypeAlias = ChannelWriteEntry | Callable[[Any], list[Write]]
"""A write of a node, or a function that turns the node's result into pairs of channel and value."""


class PregelNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a compiled graph.

    Attributes:
        name: the name, unique within the graph; "" until the node is added to a graph.
        channels: the channel whose bare value the node gets, or the channels of which it gets a mapping.
        triggers: the channels whose update makes the node run.
        bound: the function that runs.
        writers: what the node writes: an entry for each channel. Of a node of a compiled `StateGraph`: the function
            that turns its result into pairs of channel and value, and an entry for each edge. (`get_graph` shows
            conditional edges.)
        tags, metadata: the user's own.
        abandon_on_cancel: as in `NodeBuilder.abandon_on_cancel`.
        retry_policy, timeout, cache_policy, on_timeout: as in `StateGraph.add_node`.
        subgraphs: in `Graph.nodes`, the graph that the node runs and that stores its state, as `Graph.get_subgraphs`
            finds it; else empty.
    """

    name: str = ""
    channels: str | tuple[str, ...]
    triggers: tuple[str, ...]
    bound: Callable[[Any], Any]
    writers: tuple[NodeWriter, ...] = ()
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    abandon_on_cancel: bool = False
    retry_policy: RetryPolicies | None = None
    timeout: TimeoutOption | None = None
    cache_policy: CachePolicy | None = None
    on_timeout: OnTimeout | None = None
    subgraphs: tuple[Any, ...] = ()

    @property
    def action(self) -> Callable[[Any], Any]:
        """The function that runs."""
        return self.bound

    @property
    def trigger_channels(self) -> list[str]:
        """The channels whose update makes the node run."""
        return list(self.triggers)

    @property
    def read_channels(self) -> list[str]:
        """The channels that the node gets as input."""
        return [self.channels] if isinstance(self.channels, str) else list(self.channels)


class NodeBuilder:
    """Describes a node step by step. Each method but `build` returns the builder, for chaining.

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
        self._timeout: TimeoutOption | None = None
        self._on_timeout: OnTimeout | None = None

    def subscribe_only(self, channel: str) -> Self:
        """Run the node when a channel is updated, with the channel's bare value as input.

        Args:
            channel: the only channel that the node subscribes to and reads.

        Returns:
            The builder.

        Raises:
            GraphValidationError: the node already subscribes to or reads a channel.
        """
        if self._only is not None or self._reads or self._triggers:
            raise GraphValidationError(f"cannot subscribe only to {channel!r}: the node subscribes to other channels")
        self._only = channel
        self._triggers.append(channel)
        return self

    def subscribe_to(self, *channels: str, read: bool = True) -> Self:
        """Run the node when one of several channels is updated.

        Args:
            *channels: names of the channels, added to earlier ones.
            read: True to include the channels in the mapping that the node gets as input.

        Returns:
            The builder.

        Raises:
            GraphValidationError: the node uses `subscribe_only`.
        """
        self._require_mapping("subscribe to", channels)
        self._triggers.extend(channel for channel in channels if channel not in self._triggers)
        if read:
            self._reads.extend(channel for channel in channels if channel not in self._reads)
        return self

    def read_from(self, *channels: str) -> Self:
        """Include channels in the node's input that do not trigger the node.

        Args:
            *channels: names of the channels, added to earlier ones.

        Returns:
            The builder.

        Raises:
            GraphValidationError: the node uses `subscribe_only`.
        """
        self._require_mapping("read from", channels)
        self._reads.extend(channel for channel in channels if channel not in self._reads)
        return self

    def _require_mapping(self, what: str, channels: Sequence[str]) -> None:
        if self._only is not None:
            raise GraphValidationError(
                f"cannot {what} {', '.join(channels)}: the node subscribes only to {self._only!r}"
            )

    def do(self, action: Callable[[Any], Any]) -> Self:
        """Add a function to run. A function that is added later gets the result of the one before.

        Args:
            action: a function or coroutine function of one argument, or a runnable of langchain-core.

        Returns:
            The builder.

        Raises:
            GraphValidationError: `action` is not callable.
        """
        action = as_function(action)
        if not callable(action):
            raise GraphValidationError(f"a node's action is callable, and {action!r} is not")
        self._steps.append(action)
        return self

    def write_to(self, *channels: str | ChannelWriteEntry, **named: Any) -> Self:
        """Write the node's result to channels.

        Args:
            *channels: names of channels that take the result as it is, or write entries.
            **named: by channel, a function of the result whose value is written, or a constant to write.

        Returns:
            The builder.
        """
        for channel in channels:
            self._writes.append(ChannelWriteEntry(channel) if isinstance(channel, str) else channel)
        for channel, value in named.items():
            entry = ChannelWriteEntry(channel, mapper=value) if callable(value) else ChannelWriteEntry(channel, value)
            self._writes.append(entry)
        return self

    def meta(self, *tags: str, **metadata: Any) -> Self:
        """Add tags and metadata to the node, which streams show.

        Args:
            *tags: tags, added to earlier ones. The tag "nostream" keeps the node's messages off the stream.
            **metadata: entries, merged over earlier ones.

        Returns:
            The builder.
        """
        self._tags.extend(tags)
        self._metadata.update(metadata)
        return self

    def abandon_on_cancel(self) -> Self:
        """Do not wait for the node's plain function when the run is cancelled; see `StateGraph.add_node`.

        Returns:
            The builder.
        """
        self._abandon_on_cancel = True
        return self

    def add_retry_policies(self, *policies: RetryPolicy) -> Self:
        """Retry the node after a failure.

        Args:
            *policies: policies, added to earlier ones. The first policy that selects the failure applies.

        Returns:
            The builder.

        Raises:
            GraphValidationError: an argument is no `RetryPolicy`.
        """
        self._retry.extend(node_policies("the node", retry_policy=policies).retry)
        return self

    def add_cache_policy(self, policy: CachePolicy) -> Self:
        """Cache the node's results, and use a result again for an equal input.

        Args:
            policy: the policy, which replaces an earlier one.

        Returns:
            The builder.

        Raises:
            GraphValidationError: `policy` is no `CachePolicy`.
        """
        self._cache = node_policies("the node", cache_policy=policy).cache
        return self

    def set_timeout(self, timeout: TimeoutOption | None, *, on_timeout: OnTimeout | None = None) -> Self:
        """Limit the duration of one attempt; see `StateGraph.add_node`.

        Args:
            timeout: the limit in seconds, a timedelta, or a `TimeoutPolicy`; None for no limit.
            on_timeout: what happens to a plain function at its timeout: "abandon" or "process".

        Returns:
            The builder.

        Raises:
            GraphValidationError: the timeout is not positive and finite, or `on_timeout` is unknown.
        """
        node_policies("the node", timeout=timeout, on_timeout=on_timeout)
        self._timeout, self._on_timeout = timeout, on_timeout
        return self

    def build(self) -> PregelNode:
        """Make the node.

        Returns:
            The node, for `Pregel(nodes=...)`.

        Raises:
            GraphValidationError: the node subscribes to no channel, or `abandon_on_cancel` is used with an async
                function.
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
    """Read the policies of a node, without defaults.

    Args:
        name: the node's name, for error messages.
        node: the node.

    Returns:
        The policies.

    Raises:
        GraphValidationError: a policy is invalid.
    """
    return node_policies(
        f"node {name!r}",
        retry_policy=node.retry_policy,
        timeout=node.timeout,
        cache_policy=node.cache_policy,
        on_timeout=node.on_timeout,
    )


def entries_of(node: PregelNode) -> tuple[ChannelWriteEntry, ...]:
    """Return the writes of a node of a `Pregel`.

    Args:
        node: the node.

    Returns:
        The entries.

    Raises:
        GraphValidationError: a writer is a function, as nodes of a compiled `StateGraph` have.
    """
    entries = tuple([each for each in node.writers if isinstance(each, ChannelWriteEntry)])
    if len(entries) < len(node.writers):
        raise GraphValidationError(f"the writers of node {node.name!r} are ChannelWriteEntry objects, and no functions")
    return entries


def shown_node(node: Node, subgraph: object) -> PregelNode:
    """Return a compiled node as users see it.

    Args:
        node: the compiled node.
        subgraph: the graph that it runs and that stores its state; None for none.

    Returns:
        The public node.
    """
    return PregelNode(
        name=node.name,
        channels=node.reads,
        triggers=node.triggers,
        bound=node.call,
        writers=(*_writers_of(node), *[ChannelWriteEntry(channel, value) for channel, value in node.edges]),
        tags=node.tags,
        metadata=dict(node.metadata),
        abandon_on_cancel=node.abandons,
        retry_policy=node.retry or None,
        timeout=node.timeout,
        cache_policy=node.cache,
        subgraphs=() if subgraph is None else (subgraph,),
    )


def _writers_of(node: Node) -> tuple[NodeWriter, ...]:
    if node.writes is no_writes:
        return ()
    if isinstance(node.writes, partial) and node.writes.func is _written:
        return tuple(node.writes.args[0])
    return (node.writes,)


def compile_node(name: str, node: PregelNode, *, blocking: bool, defaults: NodePolicies) -> Node:
    """Compile a public node to a node of the algorithm.

    Args:
        name: the node's name in the graph.
        node: the node.
        blocking: True if plain functions run in worker threads; False if they run on the event loop.
        defaults: the policies that apply where the node has none.

    Returns:
        The compiled node.

    Raises:
        GraphValidationError: a policy is invalid, or does not fit the node's function.
    """
    what = f"node {name!r}"
    if node.abandon_on_cancel:
        check_abandonable(node.bound, what)
    check_on_timeout(node.bound, node.on_timeout, what)
    policies = own_policies(name, node).with_defaults(defaults)
    flavour = policies.flavour(node.bound, blocking=blocking or node.abandon_on_cancel)
    injects = injections_of(node.bound, after=1)
    policies.check(node.bound, flavour, what, injects=injects, abandons=node.abandon_on_cancel)
    return Node(
        name=name,
        triggers=tuple(sorted(node.triggers)),
        reads=node.channels,
        call=node.bound,
        flavour=flavour,
        writes=_writes(entries_of(node)),
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

    return partial(_written, tuple(entries))  # a partial, and no closure: `_writers_of` finds the entries in it


def _written(entries: Sequence[ChannelWriteEntry], result: Any) -> list[Write]:
    made: list[Write] = []
    for entry in entries:
        value = result if entry.value is PASSTHROUGH else entry.value
        if entry.mapper is not None:
            value = entry.mapper(value)
        if value is not None or not entry.skip_none:
            made.append((entry.channel, value))
    return made


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
