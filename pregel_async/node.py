"""Nodes of the low level: what they subscribe to, what they do, and what they write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, Self, TypeVar, get_args

import msgspec

from ._core.program import Flavour, Node, Write, no_writes
from ._runtime.injection import injections_of
from ._runtime.worker import in_thread
from .errors import GraphValidationError
from .policies import CachePolicy, OnTimeout, RetryPolicy, TimeoutPolicy, retry_policies, timeout_policy

__all__ = [
    "PASSTHROUGH",
    "ChannelWriteEntry",
    "NodeBuilder",
    "NodePolicies",
    "PregelNode",
    "RetryPolicies",
    "Timeout",
    "abandons",
    "check_abandonable",
    "check_on_timeout",
    "flavour_of",
    "node_policies",
    "seconds_of",
]

T = TypeVar("T")

RetryPolicies = RetryPolicy | Sequence[RetryPolicy]
"""One policy, or several: the first that is for a failure counts."""

Timeout = TimeoutPolicy | float | timedelta
"""A policy, or how long one attempt may take: seconds, or a timedelta."""


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


class NodePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of failures, time and repetition, checked.

    Attributes:
        retry: when and how often it is tried again.
        timeout: how long one attempt may take; None for as long as it likes.
        cache: keep its result for equal inputs; None does not.
        on_timeout: what becomes of a plain function whose time is up; None: it cannot have a timeout.
    """

    retry: tuple[RetryPolicy, ...] = ()
    timeout: TimeoutPolicy | None = None
    cache: CachePolicy | None = None
    on_timeout: OnTimeout | None = None

    def over(self, defaults: NodePolicies) -> NodePolicies:
        """These, and what they leave open as the defaults say."""
        return NodePolicies(
            retry=self.retry or defaults.retry,
            timeout=self.timeout or defaults.timeout,
            cache=self.cache or defaults.cache,
            on_timeout=self.on_timeout or defaults.on_timeout,
        )

    def flavour(self, call: Callable[..., Any], *, blocking: bool) -> Flavour:
        """How the node's function is to be run."""
        found = flavour_of(call, blocking=blocking or self.on_timeout is not None)
        return "process" if found == "sync" and self.on_timeout == "process" else found

    def check(
        self,
        call: Callable[..., Any],
        flavour: Flavour,
        what: str,
        *,
        injects: Sequence[object],
        abandons: bool,
        decorated: bool = False,
        by_default: bool = False,
    ) -> None:
        """Refuse what a function cannot have.

        Args:
            injects: what it gets besides its input.
            abandons: a cancellation may leave its thread behind.
            by_default: its timeout is that of `set_node_defaults`.
            decorated: the function is being decorated: its name is yet to be given, to what becomes of it.

        Raises:
            GraphValidationError
        """
        if flavour == "process":
            _check_importable(call, what, decorated=decorated)
            if injects:
                raise GraphValidationError(
                    f"{what} has on_timeout='process', and in a process of its own it gets its input alone: no writer, "
                    "runtime, config or store"
                )
            if abandons:
                raise GraphValidationError(f"{what} has on_timeout='process' and abandon_on_cancel: say one of them")
        interruptible = flavour in ("async", "process") or abandons or self.on_timeout == "abandon"
        if self.timeout is not None and not interruptible:
            whose = " (that of set_node_defaults)" if by_default else ""
            instead = "; or give timeouts to the nodes that are to have them, and none by default" if by_default else ""
            raise GraphValidationError(
                f"{what} has a timeout{whose} and is a plain function, which nothing can stop in its thread: make it "
                "async, or say on_timeout='abandon' (the thread is left behind) or on_timeout='process' (it runs in a "
                f"worker process, which is killed){instead}"
            )


def node_policies(
    what: str,
    *,
    retry_policy: RetryPolicies | None = None,
    timeout: Timeout | None = None,
    cache_policy: CachePolicy | None = None,
    on_timeout: OnTimeout | None = None,
) -> NodePolicies:
    """The policies of a node. Raises `GraphValidationError` for what is none, or out of range."""

    def read(reader: Callable[[], T]) -> T:
        try:
            return reader()
        except (TypeError, ValueError) as error:
            raise GraphValidationError(f"{what}: {error}") from error

    if cache_policy is not None and type(cache_policy) is not CachePolicy:
        raise GraphValidationError(f"{what}: a cache policy is a CachePolicy, not {cache_policy!r}")
    if on_timeout is not None and on_timeout not in get_args(OnTimeout):
        raise GraphValidationError(f"{what}: on_timeout is 'abandon' or 'process', not {on_timeout!r}")
    return NodePolicies(
        retry=read(lambda: retry_policies(retry_policy, what)),
        timeout=read(lambda: timeout_policy(timeout)),
        cache=cache_policy,
        on_timeout=on_timeout,
    )


def seconds_of(
    name: str, given: float | timedelta | None, refusal: type[Exception] = GraphValidationError
) -> float | None:
    """A time in seconds. Raises `refusal` for what is none."""
    try:
        policy = None if given is None else TimeoutPolicy(run_timeout=given)
    except (TypeError, ValueError) as error:
        raise refusal(str(error).replace("run_timeout", name)) from error
    return None if policy is None else policy.run_seconds


def _check_importable(call: Callable[..., Any], what: str, *, decorated: bool) -> None:
    """Refuse what a worker process could not find."""
    name = getattr(call, "__qualname__", "<nowhere>")
    found: Any = sys.modules.get(getattr(call, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    if "<" in name or (found is not call and not decorated):
        raise GraphValidationError(
            f"{what} has on_timeout='process', and a worker process cannot import {call!r}: use a function that is "
            "defined at the top of a module"
        )


def compile_node(name: str, node: PregelNode, *, blocking: bool, defaults: NodePolicies) -> Node:
    """A public node as the algorithm takes it."""
    what = f"node {name!r}"
    if node.abandon_on_cancel:
        check_abandonable(node.bound, what)
    check_on_timeout(node.bound, node.on_timeout, what)
    policies = node_policies(
        what,
        retry_policy=node.retry_policy,
        timeout=node.timeout,
        cache_policy=node.cache_policy,
        on_timeout=node.on_timeout,
    ).over(defaults)
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


def abandons(flavour: Flavour, policies: NodePolicies, on_cancel: bool) -> bool:
    """Whether a worker thread may be left behind."""
    return flavour == "sync" and (on_cancel or policies.on_timeout == "abandon")


def flavour_of(call: Callable[..., Any], *, blocking: bool) -> Flavour:
    """How a callable is to be run."""
    if iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004  # an instance's
        return "async"
    return "sync" if blocking else "inline"


def check_on_timeout(call: Callable[..., Any], on_timeout: OnTimeout | None, what: str) -> None:
    """Refuse `on_timeout` for what runs on the event loop. Raises `GraphValidationError`."""
    if on_timeout is not None and flavour_of(call, blocking=True) == "async":
        raise GraphValidationError(
            f"{what} is async, and on_timeout is for plain functions: what is async is cancelled where it awaits"
        )


def check_abandonable(call: Callable[..., Any], what: str) -> None:
    """Refuse to leave behind what runs on the event loop. Raises `GraphValidationError`."""
    if flavour_of(call, blocking=True) == "async":
        raise GraphValidationError(
            f"{what} is async, and abandon_on_cancel is for plain functions, whose threads cannot be cancelled: leave "
            "it out, what is async is cancelled where it awaits"
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
                value = await in_thread(step, value)
            else:
                value = step(value)
            if isawaitable(value):
                value = await value
        return value

    return sequence


def _identity(value: Any) -> Any:
    return value
