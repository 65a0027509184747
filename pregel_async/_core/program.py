"""A compiled graph as data: nodes, channels, and the tables that planning needs. Nothing here runs."""

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
from ..types import Command, Send
from .isolation import isolate, own, own_fold

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
"""A channel's name, and a value for it."""


def no_writes(result: Any) -> list[Write]:
    """The `Node.writes` of a node that can write nothing, whatever it returns."""
    return []


BRANCH = "branch:to:"
"""How the channel begins that triggers one node of a `StateGraph`."""

JOIN = "join:"
"""How the channel begins that waits for several nodes."""

PARENT = "__parent__"
"""Where a command for a graph around this one is written. It is no channel: the graph ends with it."""

RETURN = "__return__"
"""Where the result of a call is written. It is no channel: the caller has it."""

INPUT_MARK = "__pregel_input"
"""The channel of a `Pregel` graph that each input writes. It triggers nothing and is shown nowhere: only its version
counts (`Program.input_mark`). The input channels cannot serve: a node may use them up, or write them itself."""

Flavour: TypeAlias = Literal["async", "sync", "inline", "process"]
"""How a callable is run: awaited, in a worker thread, called in place because it never blocks, or in a worker process,
which can be killed."""


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """A conditional edge: looks at the state after its node and says where to go.

    Attributes:
        name: the function's name; unique per node.
        call: the function, given the state; sync ones run in place.
        reads: the state keys that it sees.
        whole: as in `Node`.
        shape: makes the schema's object of what was read; None leaves the mapping.
        route: turns what it returned into writes. Raises `InvalidUpdateError` for an unknown destination.
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
    """A node, compiled.

    Attributes:
        name: unique in the graph.
        triggers: channels whose new versions make it run, sorted.
        reads: the channel whose bare value it gets, or the channels of which it gets a mapping.
        whole: True when `reads` covers all state keys, so that its input is a copy of the board's values.
        shape: makes the schema's object of the mapping; None leaves the mapping.
        call: the user's function.
        flavour: how it is run.
        writes: turns its result into writes. Raises `InvalidUpdateError` for a result that is no update.
        edges: written after each finished run.
        routers: asked after each finished run, in order.
        hidden: not shown in streams, and not counted as a superstep.
        injects: what else it gets, by keyword: (parameter, what).
        managed: keys of its input that the runtime itself makes (`RemainingSteps`), and how: of the superstep's number,
            and of how many the run may still take, this one included.
        commands: `writes` takes commands for the node's own graph.
        tags, metadata: the user's own; shown in streams.
        abandons: a cancellation does not wait for its function, and leaves the worker thread behind. Of flavour "sync".
        retry: when and how often it is tried again; the first policy that is for a failure counts.
        timeout: how long one attempt may take; None for as long as it likes.
        cache: keep its result for equal inputs; None does not.
        handler: runs in its place when it has failed, on the same input.
        spread: its input is (arguments, keyword arguments): it is a task that a node calls.
        plain: it is attempted once, and nothing of it is kept or handled. Computed.
        known_by: distinguishes its function from others of the same name; empty until its results are looked up.
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
    plain: bool = True
    function_fingerprint: bytes = b""

    def __post_init__(self) -> None:
        structs.force_setattr(self, "plain", not self.retry and self.handler is None and self.cache is None)

    def keyed(self, key_func: Callable[..., Any], value: Any) -> Any:
        """What a cache policy's `key_func` makes of the input."""
        return key_func(*value[0], **value[1]) if self.spread else key_func(value)

    @property
    def interruptible(self) -> bool:
        """Whether a timeout can end an attempt at it: a function in a worker thread that is waited for cannot be."""
        return self.flavour in ("async", "process") or self.abandons


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph.

    Attributes:
        nodes: by name, sorted.
        channels: an empty channel of each name.
        keys: channels that hold state: what `Board.values` shows. The others only control.
        initial: values that channels have before the first write (an empty list, say).
        restless: channels that are available before the first write, and may change in a superstep without one.
        foreign: channels of the user's own classes: what they give is copied, as they may change it in place later.
        triggered: channel -> names of the nodes that it triggers, sorted.
        finishing: channels that react when nothing else is left to run, sorted.
        untracked: state keys whose values are never stored.
        names_messages: a reducer is `add_messages`, or one of the user's, which may call it: folds have to say what
            messages without an id are called.
        inputs: the channel that takes the input as it is, or the channels that take a mapping's entries.
        outputs: what a call returns: one channel bare, or several as a mapping.
        shown: what the state of a thread shows, its history and the results of its tasks: in the same form.
        input_mark: a channel that holds something since the last input. A call returns only what was written after it,
            so that a run that has written no output does not return that of the run before. None returns what the
            outputs hold.
        check_update: checks the writes of an update by hand (`aupdate_state`, a call's command) against the annotations
            of their keys, and returns them; of a pydantic state with the model's values. Raises `InvalidUpdateError`.
        validate: checks the writes of an input or an update together with what the keys hold, and returns them with the
            state class's own values; None if values are checked by themselves. Raises `InvalidInputError`,
            `InvalidUpdateError`.
        step_timeout: seconds that one superstep may take; None for as long as it likes.
        warned: stored keys that it does not have and of which an `UnknownStoredKeyWarning` was issued: one each.
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
    names_messages: bool = False
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
    warned: set[str] = set()  # of each program its own: msgspec copies an empty default

    @property
    def is_timed(self) -> bool:
        """Whether a superstep may run out of time."""
        return self.step_timeout is not None

    def validated(self, values: Mapping[str, Any], writes: list[Write]) -> list[Write]:
        """The writes of an input or an update, checked together with what the keys hold; see `validate`."""
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
    """Make the tables of nodes and channels that fit each other; whoever calls has validated them.

    Channels are copied: a program shares none with its builder or with another program.
    """
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
        nodes={name: _widened(node, state) for name, node in by_name.items()},
        channels=prepared,
        keys=state,
        initial={key: own(prepared[key].get()) for key in sorted(state) if prepared[key].is_available()},
        restless=tuple(key for key in prepared if prepared[key].expires and prepared[key].is_available()),
        foreign=frozenset(key for key in prepared if not type(prepared[key]).__module__.startswith(_BUILT_IN)),
        triggered={channel: tuple(names) for channel, names in triggered.items()},
        finishing=tuple(channel for channel, prototype in prepared.items() if prototype.finishes),
        untracked=frozenset(key for key in state if not prepared[key].tracked),
        names_messages=any(_may_name(channel) for channel in channels.values()),
        inputs=inputs,
        outputs=outputs,
        shown=shown,
        input_mark=input_mark,
        read_input=read_input,
        read_command=read_command,
        check_update=check_update,
        validate=validate,
    )


def _widened(node: Node, state: frozenset[str]) -> Node:
    """The node, knowing whether it and its routers read all that there is."""
    routers = tuple(msgspec.structs.replace(router, whole=state <= set(router.reads)) for router in node.routers)
    whole = not isinstance(node.reads, str) and state <= set(node.reads)
    return msgspec.structs.replace(node, whole=whole, routers=routers)


PURE_REDUCERS: frozenset[Callable[[Any, Any], Any]] = frozenset(
    (operator.add, operator.concat, operator.or_, operator.and_, operator.mul, operator.sub, min, max, add_messages)
)
"""Reducers known to change neither argument and to keep nothing of them."""


_BUILT_IN = BaseChannel.__module__.rpartition(".")[0] + "."


def _may_name(channel: BaseChannel[Any, Any, Any]) -> bool:
    """Whether its fold may give ids to messages."""
    if isinstance(channel, BinaryOperatorAggregate):
        return channel.op is add_messages or channel.op not in PURE_REDUCERS
    return isinstance(channel, DeltaChannel) or not type(channel).__module__.startswith(_BUILT_IN)


def _prepare(name: str, channel: BaseChannel[Any, Any, Any]) -> BaseChannel[Any, Any, Any]:
    made = channel.fresh()
    made.key = name
    if isinstance(made, BinaryOperatorAggregate) and made.op not in PURE_REDUCERS:
        made.op = _guarded(made.op)
    if isinstance(made, DeltaChannel):
        made.reducer = _guarded_batch(made.reducer)
    return made


def _guarded(reducer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A reducer that may change its arguments in place, and nobody notices."""

    def fold(current: Any, update: Any) -> Any:
        return own_fold(reducer(isolate(current), isolate(update)), current, update)

    return fold


def _guarded_batch(reducer: Callable[[Any, list[Any]], Any]) -> Callable[[Any, list[Any]], Any]:
    """The same for a reducer that takes all of a superstep's writes at once."""

    def fold(current: Any, updates: list[Any]) -> Any:
        return own_fold(reducer(isolate(current), [isolate(update) for update in updates]), current, *updates)

    return fold
