"""Make a board of a stored state, with the graph's current code.

A stored key that the code does not have any more stays stored, with one warning. A new key starts unwritten. What does
not fit the code is returned as `Mismatch`es: readers show them, and runs refuse the thread before any node runs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_origin

import msgspec
from msgspec import structs

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import SENDS, TaskResult
from checkpoint_savers.errors import StoredTypeChangedError, UnknownTypeError
from checkpoint_savers.patches import data_of, decode
from checkpoint_savers.records import VERSION
from checkpoint_savers.sharing import filled_sends

from ..._core.board import Board
from ..._core.fits import fits
from ..._core.program import BRANCH, JOIN, Node, Program, Write, is_state_key, no_writes
from ...channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
)
from ...channels.overwrite import overwrite_value, unwrap_overwrite
from ...channels.reduced import ReducedValue
from ...channels.single import SingleValue
from ...errors import GraphChangedError, UnknownStoredKeyWarning
from ...types import REMOVED, START, Mismatch

UNFIT = "[~]"
"""Follows the kind of a channel whose value does not fit its annotation.

Nodes' writes are not checked against annotations, so such a value may be stored. Without the mark, it would look as if
the graph had changed.
"""


def kind_of(channel: BaseChannel[Any, Any, Any], value: Any = None) -> str:
    """Return a channel's kind as it is stored. A reducer's includes the type that it folds into, if that is built in.

    Args:
        channel: the channel.
        value: the channel's value.
    """
    if type(channel) is LastValue:
        fitting = type(value) is channel.typ or fits(channel.typ, value)
        return channel.kind if fitting else channel.kind + UNFIT
    if isinstance(channel, ReducedValue):
        kind = get_origin(channel.typ) or channel.typ
        if isinstance(kind, type) and kind.__module__ == "builtins":
            return f"{channel.kind}[{kind.__qualname__}]"
    return channel.kind


class Restored(msgspec.Struct, frozen=True):
    """A stored state in terms of the graph's current code.

    Attributes:
        board: the board.
        program: the graph, with a placeholder for each pending task whose node the code does not have. Placeholders can
            be planned and discarded, but not run.
        mismatches: what does not fit the code.
        converted: the stored names whose values a declared rule has converted or removed.
    """

    board: Board
    program: Program
    mismatches: tuple[Mismatch, ...]
    converted: frozenset[str]


def restore(
    program: Program,
    state: EncodedState,
    step: int,
    codec: Codec,
    *,
    thread_id: str,
    ns: str = "",
    at: str = "",
    version: int = 1,
) -> Restored:
    """Make the board of a stored state.

    A stored value that does not fit its key is on the board as it is stored, if the key's channel can hold it. All
    callers except readers refuse the thread then; see `require_fit`.

    Args:
        program: the graph.
        state: the stored state.
        step: the superstep that made it.
        codec: decodes the values.
        thread_id: the thread, for messages.
        ns: the graph's namespace.
        at: the checkpoint, for messages.
        version: the version of the graph that made the checkpoint.

    Raises:
        MigrationError: a declared rule raised an exception.
        StoredTypeChangedError: a stored object does not fit its class any more.
        CorruptCheckpointError: a value cannot be decoded.
    """
    stored: dict[str, Any] = {}
    mismatches: list[Mismatch] = []
    control: list[str] = []
    upgrades, start, raw = program.upgrades, program.nodes.get(START), state.values
    converted = [name for name in upgrades.dropped if name in raw] if upgrades.dropped else []
    sources: Mapping[str, str] = {}
    if upgrades.aliases:
        program = _with_nodes(program, upgrades.aliases.values())
    if upgrades.former:
        from .upgrading import renamed_state  # imported lazily: few graphs declare rules

        state, sources = renamed_state(state, upgrades.former)
        converted += [*sources, *[name for name in upgrades.former if name in raw]]
    changed: Mapping[str, Any] = {}
    if upgrades.steps and version < program.version:
        from .upgrading import Place, migrated

        before, place = state, Place(program, thread_id, at)
        changed = migrated(place, state, codec, version, lambda: _pending(program, before, codec))
        converted += changed
    for name, data in state.values.items():
        channel = program.channels.get(name)
        if name in changed:
            if changed[name] is not REMOVED:
                stored[name] = changed[name]
            continue
        if channel is None:
            if name.startswith((BRANCH, JOIN)):
                control.append(name)
            elif is_unknown(program, name) and upgrades.unknown_stored == "error":
                mismatches.append(
                    _of_unknown(name, ns, f"the thread holds key {name!r}, which the graph does not have")
                )
            else:
                warn_of_unknown(program, name, thread_id)
            continue
        kind = state.kinds.get(name, "")
        if name.startswith((BRANCH, JOIN)) and kind != channel.kind:
            stored[name] = _as_control(channel, decode(data, codec, channel=name))
            continue
        is_same = kind == channel.kind or _same_kind(kind, kind_of(channel))
        if not is_same and not _hold_one_value(channel, kind, is_converted=name in upgrades.retyped):
            mismatches.append(_of_key(name, ns, _other_kind(channel, name, kind)))
            continue
        try:
            value = decode(data, codec, channel=name)  # no copy needed: readers of a board get isolated values
        except (StoredTypeChangedError, UnknownTypeError) as error:
            if name not in upgrades.retyped:
                error.add_note(f"channel {name!r} of thread {thread_id!r} holds it")
                raise
            value = _UNDECODED
        if name in upgrades.retyped and not kind.endswith(UNFIT):
            from .upgrading import Place, retyped_value

            place, stored_as = Place(program, thread_id, at), sources.get(name, name)
            if value is _UNDECODED:
                value = codec.decode_stored(data_of(data), channel=name)
                after = retyped_value(place, name, value, stored_as="")
            else:
                after = retyped_value(place, name, value, stored_as=stored_as)
            if after is not value:
                converted.append(name)
                value = after
        if not is_same or (type(channel) is LastValue and not kind.endswith(UNFIT)):
            if not fits(channel.typ, value):
                reason = _misfit(name, channel, value)
                if not is_same:
                    reason = f"{_other_kind(channel, name, kind)}: {reason}"
                mismatches.append(_of_key(name, ns, reason))
            elif value is None and not is_same and channel.is_available():
                continue  # "not yet" for a key without a reducer; with one, the key starts with its empty value
        stored[name] = value
    if stored.get(SENDS):

        def value_of(name: str) -> Any:
            """Return a channel's value, also if the graph does not have the channel any more."""
            known = name in stored and name not in converted
            return stored[name] if known else decode(raw[name], codec, channel=name)

        stored[SENDS] = filled_sends(stored[SENDS], value_of, f"thread {thread_id!r}")
    versions = state.versions
    absent: dict[str, str] = {}
    if control or changed:
        versions = {**versions}
        for name, value in changed.items():
            if value is not REMOVED:
                stored[name] = value
                versions.setdefault(name, state.clock)
                channel = program.channels[name]
                if not fits(channel.typ, value):
                    mismatches.append(_of_key(name, ns, _misfit(name, channel, value, "gets", "from a migration")))
        for name in control:
            value = decode(state.values[name], codec, channel=name)
            if name.startswith(BRANCH):
                node = name.removeprefix(BRANCH)
            elif _is_complete(name, value):
                node = name.rpartition(":")[2]
                converted += [name, BRANCH + node]
            elif upgrades.nodes:  # nodes of the present code complete it under its new name
                from .upgrading import renamed_join

                renamed, now = renamed_join(name, upgrades.nodes), upgrades.nodes
                if renamed in program.channels and renamed not in state.values:
                    held = value[0] if isinstance(value, tuple) else value
                    channel = program.channels[renamed]
                    stored[renamed] = _as_control(channel, [now.get(each, each) for each in held])
                    versions[renamed] = versions[name]
                    converted += [name, renamed]
                continue
            else:
                continue
            # What is pending runs, also if the edges that have triggered it do not exist any more.
            trigger = BRANCH + node
            if node not in program.nodes:
                absent[node] = f"a task of node {node!r} is pending, and there is no such node"
                stored[trigger] = None
            elif trigger not in state.values:
                stored[trigger] = _as_control(program.channels[trigger], value)
            versions.setdefault(trigger, versions[name])
    for send in stored.get(SENDS, ()):
        if send.node not in program.nodes:
            absent[send.node] = f"a send to node {send.node!r} is pending, and there is no such node"
    if absent:
        program = _with_nodes(program, map(_placeholder, absent))
        mismatches += [of_node(node, ns, reason) for node, reason in absent.items()]
    if isinstance(stored.get(START), dict) and (upgrades.former or upgrades.retyped):
        from .upgrading import Place, renamed_write

        place = Place(program, thread_id, at)
        stored[START] = dict([renamed_write(place, key, value) for key, value in stored[START].items()])
        converted.append(START)
    board = Board.restore(
        program,
        step=step,
        clock=state.clock,
        stored=stored,
        versions=versions,
        seen=state.seen,
        ran=tuple([upgrades.nodes.get(name, name) for name in state.ran]) if upgrades.nodes else state.ran,
    )
    board.amended.update(converted)
    fitting = tuple(mismatches)
    if fitting and start and START in stored:  # an input that is not applied yet
        fitting = without_keys(fitting, replaced_keys(program, start.writes(stored[START])))
    return Restored(board, program, fitting, frozenset(converted))


_UNDECODED = object()
"""The value of a retyped key that its class cannot restore."""


def _as_control(channel: BaseChannel[Any, Any, Any], value: Any) -> Any:
    """Return the stored value of a channel that triggers a node in the form that another kind of such a channel has.

    Args:
        channel: the channel as the code has it: of an edge or of a join, whose node may be deferred.
        value: the value as it is stored.
    """
    # A deferred node's channels store a pair of the value and of whether nothing else was left to run.
    held, is_due = value if isinstance(value, tuple) else (value, True)
    if isinstance(channel, NamedBarrierValueAfterFinish):
        return held, is_due and len(held) == len(channel.names)
    if isinstance(channel, LastValueAfterFinish):
        return None, is_due
    return held if isinstance(channel, NamedBarrierValue) else None


def replaced_keys(program: Program, writes: Iterable[Write]) -> set[str]:
    """Return the keys whose values these writes replace, whatever the keys hold.

    Args:
        program: the graph.
        writes: the writes of an input or of an update.
    """
    found: set[str] = set()
    for name, value in writes:
        channel = program.channels.get(name)
        if name == START and START in program.nodes:
            found |= replaced_keys(program, program.nodes[START].writes(value))
        elif isinstance(channel, SingleValue) or overwrite_value(value) is not MISSING:
            found.add(name)
    return found


def _with_nodes(program: Program, more: Iterable[Node]) -> Program:
    """Return the program with nodes that only one channel triggers, and with that channel."""
    channels, nodes, triggered = {**program.channels}, {**program.nodes}, {**program.triggered}
    finishing = [*program.finishing]
    for node in more:
        (trigger,) = node.triggers
        known = program.channels.get(BRANCH + node.name)
        channels[trigger] = known.fresh() if known else EphemeralValue(object, guard=False)
        if channels[trigger].finishes:
            finishing.append(trigger)
        nodes[node.identity] = node
        triggered[trigger] = (node.identity,)
    return structs.replace(
        program, channels=channels, nodes=nodes, triggered=triggered, finishing=tuple(sorted(finishing))
    )


def _placeholder(name: str) -> Node:
    """Return a node that only stands in for a node that the code does not have."""
    return Node(name=name, triggers=(BRANCH + name,), reads=(), call=no_writes, flavour="inline", writes=no_writes)


def _misfit(name: str, channel: BaseChannel[Any, Any, Any], value: Any, verb: str = "holds", how: str = "") -> str:
    kind = type(value).__name__
    return f"channel {name!r} {verb} a {kind}{how and ' '}{how}, which does not fit {_named(channel.typ)}"


def _of_unknown(name: str, ns: str, reason: str) -> Mismatch:
    advice = f"Renamed({name!r}) at the key that it has become, or compile(removed=({name!r},))"
    return Mismatch(kind="key", name=name, namespace=ns, reason=reason, advice=advice, blocks="all")


def _pending(program: Program, state: EncodedState, codec: Codec) -> tuple[str, ...]:
    """Return the node names of the pending tasks of a stored state: sends by index, then triggered nodes by name."""
    nodes: set[str] = {START} if START in state.values else set()
    sends: list[str] = []
    for name, data in state.values.items():
        if name.startswith(BRANCH):
            nodes.add(name.removeprefix(BRANCH))
        elif name.startswith(JOIN) and _is_complete(name, decode(data, codec, channel=name)):
            nodes.add(name.rpartition(":")[2])
        elif name == SENDS:
            sends += [send.node for send in decode(data, codec, channel=name)]
    former = program.upgrades.nodes
    return tuple([former.get(name, name) for name in (*sends, *sorted(nodes))])


def _of_key(name: str, ns: str, reason: str) -> Mismatch:
    advice = f"{name}: Annotated[..., Retyped(function)], where the function makes the new value of the stored one"
    return Mismatch(kind="key", name=name, namespace=ns, reason=reason, advice=advice, blocks="all")


def of_node(name: str, ns: str, reason: str) -> Mismatch:
    """Return the mismatch of a pending task whose node the graph does not have."""
    advice = f"add_node(..., was={name!r}) if it was renamed, or compile(retired={{{name!r}: END}}) if it was removed"
    return Mismatch(kind="node", name=name, namespace=ns, reason=reason, advice=advice, blocks="resume")


def of_version(program: Program, metadata: Mapping[str, Any], ns: str) -> tuple[Mismatch, ...]:
    """Return the mismatch of a checkpoint that a greater version of the graph has made, as a tuple of one; else ()."""
    stored, version = metadata.get(VERSION, 1), program.version or 1
    if stored <= version:
        return ()
    reason = f"version {stored} of graph {program.name!r} stored it, and this is version {version}"
    advice = "deploy the newer version"
    return (Mismatch(kind="version", name=program.name, namespace=ns, reason=reason, advice=advice, blocks="all"),)


def of_records(
    program: Program, results: Iterable[TaskResult], state: EncodedState, codec: Codec, ns: str
) -> tuple[Mismatch, ...]:
    """Return the mismatches of the recorded results of an open superstep.

    These are edges to nodes that do not exist, joins that are complete and do not exist, and values that do not fit
    their keys.

    Args:
        program: the graph.
        results: the records of the superstep's tasks.
        state: the state on which the superstep was planned.
        codec: decodes the names of the nodes for which a join waits.
        ns: the graph's namespace.
    """
    joined: dict[str, set[str]] = {}
    found: list[Mismatch] = []
    for result in results:
        for name, data in result.writes:
            if name in program.channels:
                found += _unfit_write(program, result, name, data, codec, ns)
            elif name.startswith(BRANCH):
                node = name.removeprefix(BRANCH)
                reason = f"node {result.name!r} has finished and leads to node {node!r}, and there is no such node"
                found.append(of_node(node, ns, reason))
            elif is_unknown(program, name) and program.upgrades.unknown_stored == "error":
                reason = f"task {result.name!r} has written to key {name!r}, which the graph does not have"
                found.append(structs.replace(_of_unknown(name, ns, reason), blocks="resume"))
            elif name.startswith(JOIN):
                joined.setdefault(name, set()).add(str(codec.decode(data, channel=name)))
    for name, names in joined.items():
        before: Any = decode(state.values[name], codec, channel=name) if name in state.values else []
        if _is_complete(name, [*names.union(before[0] if isinstance(before, tuple) else before)]):
            node = name.rpartition(":")[2]
            reason = f"nodes have finished whose edge leads to node {node!r}, and there is no such edge"
            found.append(of_node(node, ns, reason))
    return tuple(found)


def _unfit_write(program: Program, result: TaskResult, name: str, data: bytes, codec: Codec, ns: str) -> list[Mismatch]:
    """Return the mismatch of a recorded write that does not fit its key, as a list of one; else an empty one."""
    channel = program.channels[name]
    if type(channel) is not LastValue or channel.typ is Any or name in result.unfit:
        return []
    try:
        value = unwrap_overwrite(codec.decode(data, channel=name))
    except (StoredTypeChangedError, UnknownTypeError):
        return []  # raised when the record is used, which a new input does not
    if fits(channel.typ, value):
        return []
    who = f"task {result.name!r} has finished" if result.name else "an update of the open superstep"
    reason = f"{who} and has written a {type(value).__name__} to key {name!r}, which does not fit {_named(channel.typ)}"
    found = _of_key(name, ns, reason)
    return [structs.replace(found, blocks="resume")]


def without_keys(mismatches: tuple[Mismatch, ...], replaced: Collection[str]) -> tuple[Mismatch, ...]:
    """Return the mismatches without those of keys whose values are replaced."""
    return tuple([each for each in mismatches if each.kind != "key" or each.name not in replaced])


def require_fit(
    thread_id: str, program: Program, mismatches: tuple[Mismatch, ...], writes: Iterable[Write], *, discards: bool
) -> None:
    """Raise `GraphChangedError` if something of a thread does not fit the graph and is in the way of a call.

    Args:
        thread_id: the thread.
        program: the graph.
        mismatches: what does not fit.
        writes: the writes of the call's input or update. Values that they replace are not in the way.
        discards: the call discards pending tasks.
    """
    kept = without_keys(mismatches, replaced_keys(program, writes))
    left = [each for each in kept if each.blocks == "all" or (each.blocks == "resume" and not discards)]
    for first in left:
        raise GraphChangedError(thread_id, first.name, "; ".join(each.reason for each in left), left)


_ONE_VALUE = frozenset(each.kind for each in (LastValue, AnyValue, BinaryOperatorAggregate, DeltaChannel))
"""The kinds of channels that hold and store one value, which users read."""


def _hold_one_value(channel: BaseChannel[Any, Any, Any], kind: str, *, is_converted: bool) -> bool:
    """Return True if a channel can take a value that is stored as another kind.

    Args:
        channel: the channel.
        kind: the kind as it is stored.
        is_converted: the key declares a function of the stored value.
    """
    return channel.kind in _ONE_VALUE and (is_converted or kind.partition("[")[0] in _ONE_VALUE)


def _other_kind(channel: BaseChannel[Any, Any, Any], name: str, kind: str) -> str:
    return f"channel {name!r} was a {kind or None} and is a {kind_of(channel)}"


def is_unknown(program: Program, name: str) -> bool:
    """Return True if a stored channel is a state key that the graph does not have any more."""
    upgrades = program.upgrades
    if name in program.channels or name in upgrades.dropped or name in upgrades.former:
        return False
    return is_state_key(name)


def warn_of_unknown(program: Program, name: str, thread_id: str) -> None:
    """Warn about a stored key that the graph does not have, once per graph and key."""
    if is_unknown(program, name) and name not in program.warned:
        program.warned.add(name)
        if program.upgrades.unknown_stored == "warn":
            warnings.warn(UnknownStoredKeyWarning(thread_id, program.name, name), stacklevel=2)


def unknown_values(
    program: Program, state: EncodedState, codec: Codec, converted: Collection[str] = ()
) -> dict[str, Any]:
    """Return the stored values of keys that the graph does not have, decoded as far as their classes are known.

    Args:
        program: the graph.
        state: the stored state.
        codec: decodes the values.
        converted: names that declared rules have converted or removed, which are not returned.

    Raises:
        CorruptCheckpointError: a value is damaged.
    """
    return {
        name: codec.decode_stored(data_of(value), channel=name)
        for name, value in state.values.items()
        if name not in converted and is_unknown(program, name)
    }


def _same_kind(stored: str, now: str) -> bool:
    """Return True if a stored kind is the channel's. Types are compared only if both kinds include one."""
    (kind, _, type_then), (other, _, type_now) = stored.partition("["), now.partition("[")
    return kind == other and (not type_then or not type_now or type_then == type_now)


def _is_complete(name: str, stored: Any) -> bool:
    """Return True if a barrier has seen all nodes in its name."""
    # The names are joined with a plus; a plus in a node's name is escaped with a backslash.
    listed = name.removeprefix(JOIN).rpartition(":")[0]
    waits_for = 1 + len(re.findall(r"(?<!\\)(?:\\\\)*\+", listed))
    names = stored[0] if isinstance(stored, tuple) else stored
    return isinstance(names, list) and len(names) == waits_for


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
