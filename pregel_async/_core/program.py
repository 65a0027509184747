"""Describe a compiled graph as data: nodes, channels, and the tables that planning needs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import structs

from checkpoint_savers.deltas import SENDS

from ..channels import BaseChannel, BinaryOperatorAggregate, DeltaChannel, Topic
from ..errors import GraphValidationError
from ..messages import add_messages
from ..policies import CachePolicy, RetryPolicy, TimeoutPolicy
from ..types import END, RESERVED, START, Command, Migration, Retyped, Send, UnknownStored
from .isolation import Copies, isolate
from .ownership import own, own_fold

__all__ = [
    "BRANCH",
    "INPUT_MARK",
    "JOIN",
    "PARENT",
    "PURE_REDUCERS",
    "RETURN",
    "SENDS",
    "Node",
    "Program",
    "Router",
    "Write",
    "build_program",
]

Write: TypeAlias = tuple[str, Any]
"""A write: a channel's name, and a value for the channel."""


def no_writes(result: Any) -> list[Write]:
    """Return no writes: the `Node.writes` of a node whose result is ignored."""
    return []


BRANCH = "branch:to:"
"""The prefix of a channel that triggers one node of a `StateGraph`."""

JOIN = "join:"
"""The prefix of a channel that waits for several nodes."""

PARENT = "__parent__"
"""The target of a command for an outer graph. It is no channel: the graph ends with such a write."""

RETURN = "__return__"
"""The target of a called task's result. It is no channel: the caller gets the value."""

INPUT_MARK = "__pregel_input"
"""The channel of a `Pregel` graph that each input writes, so that its version marks the last input.

It triggers no node and is never shown (`Program.input_mark`). The input channels cannot mark the input, because a node
may consume them or write them itself.
"""

Flavour: TypeAlias = Literal["async", "sync", "inline", "process"]
"""How a callable is run: awaited ("async"), in a worker thread ("sync"), in place because it never blocks ("inline"),
or in a worker process, which can be killed ("process")."""


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """A conditional edge: a function that chooses the next nodes by the state after its node.

    Attributes:
        name: the function's name; unique per node.
        call: the function of the state. A function without `async` is called in place.
        reads: the state keys that the function gets.
        whole: as in `Node`.
        shape: turns the mapping of keys into the schema's object; None passes the mapping.
        route: turns the function's result into writes. Raises `InvalidUpdateError` for an unknown destination.
        injects, managed: as in `Node`.
    """

    name: str
    call: Callable[[Any], Any]
    reads: tuple[str, ...]
    whole: bool = False
    shape: Callable[[dict[str, Any]], Any] | None
    route: Callable[[Any], list[Write]]
    injects: tuple[tuple[str, str], ...] = ()
    managed: tuple[tuple[str, Callable[[int, int], Any]], ...] = ()


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled node.

    Attributes:
        name: the name; unique in the graph.
        triggers: the channels whose new versions make the node run, sorted.
        reads: the channel whose bare value is the input, or the channels of which the input is a mapping.
        whole: True if `reads` covers all state keys, so that the input is a copy of the board's values.
        shape: turns the mapping into the schema's object; None passes the mapping.
        call: the user's function.
        flavour: how the function is run.
        writes: turns the result into writes. Raises `InvalidUpdateError` for a result that is no update.
        edges: the writes that follow each finished run.
        routers: the conditional edges, called in order after each finished run.
        hidden: the node is not shown in streams and not counted as a superstep.
        injects: the function's other keyword arguments: pairs of a parameter and the `AttemptContext` attribute that it
            receives.
        managed: input keys whose values the runtime makes (`RemainingSteps`), with a function of the superstep's number
            and the number of supersteps that the run may still take, this one included.
        commands: `writes` accepts commands for the node's own graph.
        tags, metadata: set by the user; shown in streams.
        abandons: a cancellation does not wait for the function, and leaves its worker thread behind. "sync" only.
        retry: the retry policies; the first one that covers a failure applies.
        timeout: the timeout of one attempt; None for no limit.
        cache: the cache policy; None caches no results.
        handler: the error handler, which runs on the same input after the node has failed; None for none.
        spread: the input is a pair of arguments and keyword arguments: the node is a task that another node calls.
        identity: the name in the ids of the node's tasks, and in namespaces: its own, or the name under which another
            version of the code has planned the task.
        was: the names that the node had in other versions of the code, newest first.
        identity_repr: the repr of `identity`, a part of the text from which task ids are computed. Computed.
        plain: the node has no retry, cache or handler, so that it has one attempt. Computed.
        function_fingerprint: distinguishes the function from others of the same name; empty until the cache is used.
    """

    name: str
    triggers: tuple[str, ...]
    reads: str | tuple[str, ...]
    whole: bool = False
    shape: Callable[[dict[str, Any]], Any] | None = None
    call: Callable[[Any], Any]
    flavour: Flavour
    writes: Callable[[Any], list[Write]]
    edges: tuple[Write, ...] = ()
    routers: tuple[Router, ...] = ()
    hidden: bool = False
    injects: tuple[tuple[str, str], ...] = ()
    managed: tuple[tuple[str, Callable[[int, int], Any]], ...] = ()
    commands: bool = False
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    abandons: bool = False
    retry: tuple[RetryPolicy, ...] = ()
    timeout: TimeoutPolicy | None = None
    cache: CachePolicy | None = None
    handler: Node | None = None
    spread: bool = False
    identity: str = ""
    was: tuple[str, ...] = ()
    identity_repr: str = ""
    plain: bool = True
    function_fingerprint: bytes = b""

    def __post_init__(self) -> None:
        if not self.identity:
            structs.force_setattr(self, "identity", self.name)
        structs.force_setattr(self, "identity_repr", repr(self.identity))
        structs.force_setattr(self, "plain", not self.retry and self.handler is None and self.cache is None)

    def cache_key(self, key_func: Callable[..., Any], value: Any) -> Any:
        """Return the cache key that `key_func` makes of the input."""
        return key_func(*value[0], **value[1]) if self.spread else key_func(value)

    @property
    def interruptible(self) -> bool:
        """Whether a timeout can end an attempt. Python cannot stop a function in a worker thread that is waited for."""
        return self.flavour in ("async", "process") or self.abandons


def is_state_key(name: str) -> bool:
    """Return True if a channel of a `StateGraph` or a record's write is a state key, of any version of the graph."""
    # Not state keys: the channels of edges, and the empty name that separates two updates (`BETWEEN`).
    return bool(name) and name not in (START, END) and name not in RESERVED and not name.startswith(_CONTROL)


_CONTROL = (BRANCH, JOIN, "__pregel_")


class Upgrades(msgspec.Struct, frozen=True, kw_only=True):
    """The declared rules by which a graph takes what other versions of its code have stored.

    Attributes:
        dropped: stored keys whose values the next superstep of a thread removes.
        former: the present name of each renamed key, by the former ones; of several for one key the newest first.
        retyped: how stored values of other types become values of a key, by key.
        added: the values of keys in threads in which they were never written.
        aliases: the nodes that run pending tasks of nodes that were renamed or retired, by the name under which the
            tasks were planned. Such a node has that name as its identity, and a trigger of that name. If it was
            renamed, it has the triggers of the present node too.
        steps: functions that make a state of a version of a state of the version before, by version.
        unknown_stored: what happens if a thread holds keys, or kept states, that the graph does not know.
        nodes: the present names of renamed and retired nodes, by the old ones; END for nodes without a successor.
    """

    dropped: frozenset[str] = frozenset()
    former: Mapping[str, str] = {}
    retyped: Mapping[str, Retyped] = {}
    added: Mapping[str, Any] = {}
    aliases: Mapping[str, Node] = {}
    nodes: Mapping[str, str] = {}
    steps: Mapping[int, Migration] = {}
    unknown_stored: UnknownStored = "warn"


NO_UPGRADES = Upgrades()
"""The rules of a graph that declares none."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph.

    Attributes:
        nodes: the nodes by name, sorted.
        channels: an empty channel for each name.
        keys: the channels that hold state, which `Board.values` shows. The other channels only trigger.
        initial: the values of state keys before the first write, for example an empty list.
        restless: the channels that are available before their first write and may change in a superstep that does not
            write to them.
        foreign: the channels of the user's own classes. Their values are copied, because the class may change them.
        triggered: the names of the nodes that a channel triggers, by channel, sorted.
        finishing: the channels that become available when nothing else is left to run, sorted.
        untracked: the state keys whose values are never stored.
        assigns_message_ids: a reducer is `add_messages`, or a user's that may call it, so that folds have to make ids
            for messages without one.
        inputs: the channel that takes the whole input, or the channels that take the entries of a mapping.
        outputs: the result of a call: one channel's bare value, or a mapping of several.
        shown: the values that a thread's state, its history and task results show, in the form of `outputs`.
        input_mark: the channel that each input writes. A call returns only values written since then, so that a run
            without output does not return that of an earlier run. None returns all values of the outputs.
        check_update: checks the writes of an update (`aupdate_state`, a call's command) against the annotations of
            their keys and returns them, with the model's values for a pydantic state. Raises `InvalidUpdateError`.
        validate: checks the writes of an input or an update together with the current values, and returns them with
            the state class's own values; None if values are checked one by one. Raises `InvalidInputError`,
            `InvalidUpdateError`.
        step_timeout: the timeout of one superstep in seconds; None for no limit.
        version: the version of the graph's code, from 1; 0 if none was given, which counts as 1.
        upgrades: the rules for what other versions of the code have stored.
        warned: unknown stored keys for which an `UnknownStoredKeyWarning` was issued.
        stored_kinds: a cache of the kinds of channels that encoders have stored, by name. A `LastValue` is absent,
            because its kind depends on its value.
        read_input: turns a call's input into writes. Raises `InvalidInputError`.
        read_command: turns the update and goto of a call's command into writes. Raises `InvalidUpdateError`.
    """

    name: str
    nodes: dict[str, Node]
    channels: dict[str, BaseChannel[Any, Any, Any]]
    keys: frozenset[str]
    initial: dict[str, Any]
    restless: tuple[str, ...]
    foreign: frozenset[str]
    triggered: dict[str, tuple[str, ...]]
    finishing: tuple[str, ...]
    assigns_message_ids: bool = False
    untracked: frozenset[str] = frozenset()
    inputs: str | tuple[str, ...]
    outputs: str | tuple[str, ...]
    shown: str | tuple[str, ...]
    input_mark: str | None = None
    read_input: Callable[[Any], list[Write]]
    read_command: Callable[[Command], list[Write]]
    check_update: Callable[[list[Write]], list[Write]]
    validate: Callable[[Mapping[str, Any], list[Write]], list[Write]] | None = None
    step_timeout: float | None = None
    version: int = 0
    upgrades: Upgrades = NO_UPGRADES
    # Each program has its own set and dict: msgspec copies an empty default.
    warned: set[str] = set()
    stored_kinds: dict[str, str] = {}

    @property
    def is_timed(self) -> bool:
        """Whether supersteps have a timeout."""
        return self.step_timeout is not None

    def validated(self, values: Mapping[str, Any], writes: list[Write]) -> list[Write]:
        """Return the writes of an input or an update, checked together with the current values; see `validate`."""
        return writes if self.validate is None or not writes else self.validate(values, writes)


def build_program(
    *,
    name: str,
    nodes: Iterable[Node],
    channels: Mapping[str, BaseChannel[Any, Any, Any]],
    keys: Iterable[str],
    inputs: str | tuple[str, ...],
    outputs: str | tuple[str, ...],
    shown: str | tuple[str, ...],
    input_mark: str | None = None,
    read_input: Callable[[Any], list[Write]],
    read_command: Callable[[Command], list[Write]],
    check_update: Callable[[list[Write]], list[Write]] = list,
    validate: Callable[[Mapping[str, Any], list[Write]], list[Write]] | None = None,
) -> Program:
    """Build a program from nodes and channels that the caller has validated.

    Channels are copied: a program shares none with its builder or with another program. `Program` describes the
    arguments.

    Raises:
        GraphValidationError: a channel uses the reserved name of pending sends.
    """
    # Sorted, so that plans and folds have the same order in every process, whatever the order of the builder's calls.
    prepared = {channel: _prepare(channel, channels[channel]) for channel in sorted(channels)}
    sends = prepared.get(SENDS)
    if sends is None:
        sends = prepared[SENDS] = Topic(Send)
        sends.key = SENDS
    if not isinstance(sends, Topic):
        raise GraphValidationError(f"channel {SENDS!r} is reserved for pending sends")
    by_name = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
    state = frozenset(keys)
    triggered: dict[str, list[str]] = {}
    for node in by_name.values():
        for trigger in node.triggers:
            triggered.setdefault(trigger, []).append(node.name)
    return Program(
        name=name,
        nodes={name: _with_whole(node, state) for name, node in by_name.items()},
        channels=prepared,
        keys=state,
        initial={key: own(prepared[key].get()) for key in sorted(state) if prepared[key].is_available()},
        restless=tuple(key for key in prepared if prepared[key].expires and prepared[key].is_available()),
        foreign=frozenset(key for key in prepared if not type(prepared[key]).__module__.startswith(_BUILT_IN)),
        triggered={channel: tuple(names) for channel, names in triggered.items()},
        finishing=tuple(channel for channel, prototype in prepared.items() if prototype.finishes),
        untracked=frozenset(key for key in state if not prepared[key].tracked),
        assigns_message_ids=any(_may_assign_ids(channel) for channel in channels.values()),
        inputs=inputs,
        outputs=outputs,
        shown=shown,
        input_mark=input_mark,
        read_input=read_input,
        read_command=read_command,
        check_update=check_update,
        validate=validate,
    )


def _with_whole(node: Node, state: frozenset[str]) -> Node:
    """Return the node with `whole` computed for it and for its routers."""
    routers = tuple(msgspec.structs.replace(router, whole=state <= set(router.reads)) for router in node.routers)
    whole = not isinstance(node.reads, str) and state <= set(node.reads)
    return msgspec.structs.replace(node, whole=whole, routers=routers)


PURE_REDUCERS: frozenset[Callable[[Any, Any], Any]] = frozenset(
    (operator.add, operator.concat, operator.or_, operator.and_, operator.mul, operator.sub, min, max, add_messages)
)
"""Reducers that are known not to change or keep their arguments, so that these need not be copied."""


_BUILT_IN = BaseChannel.__module__.rpartition(".")[0] + "."


def _may_assign_ids(channel: BaseChannel[Any, Any, Any]) -> bool:
    """Return True if the channel's fold may give ids to messages."""
    if isinstance(channel, BinaryOperatorAggregate):
        return channel.op is add_messages or channel.op not in PURE_REDUCERS
    return isinstance(channel, DeltaChannel) or not type(channel).__module__.startswith(_BUILT_IN)


def _prepare(name: str, channel: BaseChannel[Any, Any, Any]) -> BaseChannel[Any, Any, Any]:
    copied = channel.fresh()
    copied.key = name
    if isinstance(copied, BinaryOperatorAggregate) and copied.op not in PURE_REDUCERS:
        copied.op = _isolated_reducer(copied.op)
    if isinstance(copied, DeltaChannel):
        copied.reducer = _isolated_batch_reducer(copied.reducer)
    return copied


def _isolated_reducer(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a reducer, so that changes it makes to its arguments in place reach no other code."""

    def fold(current: Any, update: Any) -> Any:
        copies = Copies()
        return own_fold(reducer(isolate(current, copies), isolate(update, copies)), copies, current, update)

    return fold


def _isolated_batch_reducer(reducer: Callable[[Any, list[Any]], Any]) -> Callable[[Any, list[Any]], Any]:
    """Wrap a reducer of all of a superstep's writes, as `_isolated_reducer` does."""

    def fold(current: Any, updates: list[Any]) -> Any:
        copies = Copies()
        folded = reducer(isolate(current, copies), [isolate(update, copies) for update in updates])
        return own_fold(folded, copies, current, *updates)

    return fold
