"""Make a board of a stored state, with the graph's current code.

A stored key that the code does not have any more stays stored, with one warning. A new key starts unwritten. What does
not fit the code is returned as `Mismatch`es: readers show them, and runs refuse the thread before any node runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_origin

import msgspec
from msgspec import structs

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import SENDS, TaskResult
from checkpoint_savers.errors import CheckpointError, StoredTypeChangedError, UnknownTypeError
from checkpoint_savers.patches import EncodedValue, data_of, decode
from checkpoint_savers.records import TaskId
from checkpoint_savers.sharing import filled_sends

from ..._core.board import Board
from ..._core.fits import fits
from ..._core.program import BRANCH, JOIN, NO_UPGRADES, Node, Program, is_state_key, no_writes
from ...channels import (
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
from ...channels.reduced import ReducedValue
from ...errors import MigrationError, UnknownStoredKeyWarning
from ...types import REMOVED, START, Mismatch
from .mismatches import (
    is_complete,
    is_unknown,
    misfit,
    of_key,
    of_migrated,
    of_node,
    of_unknown,
    replaced_keys,
    without_keys,
)
from .records import MIGRATED, migrated_state

if TYPE_CHECKING:
    from .upgrading import Place

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
        state: the stored state. In an open superstep, with what `amigrate_threads` has stored for its row.
        converted: the stored names whose values a declared rule has converted, removed or added.
        migrated: the keys that migrations change in this state, or would change with the recorded writes in it.
    """

    board: Board
    program: Program
    mismatches: tuple[Mismatch, ...]
    state: EncodedState
    converted: frozenset[str]
    migrated: frozenset[str]


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
    results: Mapping[TaskId, TaskResult] = {},
    recorded: Sequence[tuple[str, bytes]] = (),
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
        results: the records of the superstep after it.
        recorded: the writes that earlier versions of the graph have recorded for the open superstep.

    Raises:
        MigrationError: a declared rule raised an exception.
        StoredTypeChangedError: a stored object does not fit its class any more.
        CorruptCheckpointError: a value cannot be decoded.
    """
    stored_names: set[str] = set()
    if MIGRATED in results:
        migrated, where = results[MIGRATED], f"thread {thread_id!r}, checkpoint {at}, record {MIGRATED!r}"
        state, stored_names = migrated_state(state, migrated, where)
        version = max(version, migrated.version)
    restoring = _Restoring(program, state, codec, thread_id, ns, at)
    restoring.recorded = recorded
    restored = restoring.restored(step, version)
    if stored_names:
        restored.board.amended = frozenset((*restored.board.amended, *stored_names))
    return restored


class _Restoring:
    """One state on its way to a board.

    Attributes:
        stored: the checkpoint values of channels that the board gets.
        versions: the versions of these.
        converted: the names whose stored values the next superstep replaces or removes.
        mismatches: what does not fit.
        control: stored channels of edges and joins that the program does not have.
        recorded: as in `restore`.
        migrated: as in `Restored`.
    """

    recorded: Sequence[tuple[str, bytes]] = ()
    migrated: frozenset[str] = frozenset()

    def __init__(self, program: Program, state: EncodedState, codec: Codec, thread_id: str, ns: str, at: str) -> None:
        self.program = program
        self.upgrades = program.upgrades
        self.raw = self.state = state
        self.codec = codec
        self.thread_id = thread_id
        self.ns = ns
        self.at = at
        self.stored: dict[str, Any] = {}
        self.versions = state.versions
        self.converted: list[str] = []
        self.mismatches: list[Mismatch] = []
        self.control: list[str] = []
        self.sources: Mapping[str, str] = {}

    def restored(self, step: int, version: int) -> Restored:
        """Return the board and what does not fit."""
        changed: Mapping[str, Any] = {}
        if self.upgrades is not NO_UPGRADES:
            changed = self._apply_rules(version)
        for name, data in self.state.values.items():
            if name in changed:
                self.stored[name] = changed[name]  # here, as nodes see keys in this order
            elif name in self.program.channels:
                self._take_value(name, data)
            else:
                self._take_unknown(name)
        if changed:
            self._take_changed(changed)
        stored, state, nodes = self.stored, self.state, self.upgrades.nodes
        if stored.get(SENDS):
            stored[SENDS] = filled_sends(stored[SENDS], self._value_of, f"thread {self.thread_id!r}")
        if self.control or SENDS in stored:
            self._take_pending()
        # The input of a state of one value is that value.
        if (
            isinstance(stored.get(START), dict)
            and START in self.program.nodes
            and isinstance(self.program.shown, tuple)
        ):
            self._take_input(stored[START])
        board = Board.restore(
            self.program,
            step=step,
            clock=state.clock,
            stored=stored,
            versions=self.versions,
            seen=state.seen,
            ran=tuple([nodes.get(name, name) for name in state.ran]) if nodes else state.ran,
        )
        if self.converted:
            board.amended = frozenset((*board.amended, *self.converted))
        converted = frozenset(board.amended)
        return Restored(board, self.program, tuple(self.mismatches), self.raw, converted, migrated=self.migrated)

    def _apply_rules(self, version: int) -> Mapping[str, Any]:
        """Apply what the graph declares for whole states. Return the keys that migrations change."""
        from .upgrading import migrated, renamed_state  # imported lazily: few graphs declare rules

        upgrades, raw = self.upgrades, self.raw.values
        if upgrades.aliases:  # a program of its own costs each load a tenth
            self.program = _with_nodes(self.program, upgrades.aliases.values())
        self.state, self.sources = renamed_state(self.raw, upgrades.former)
        self.versions = {**self.state.versions}
        self.converted += [*self.sources, *[name for name in (*upgrades.dropped, *upgrades.former) if name in raw]]
        if not upgrades.steps or version >= self.program.version:
            return {}
        pending = partial(_pending, self.program, self.state, self.codec)
        changed = migrated(self._place, self.state, self.codec, version, pending)
        self.converted += changed
        self.migrated = frozenset([*changed, *self._would_change(version, pending)])
        return changed

    def _would_change(self, version: int, pending: Callable[[], tuple[str, ...]]) -> Collection[str]:
        """Return the keys that migrations would change if values that are only recorded were in the state."""
        from .upgrading import migrated

        state, codec = self.state, self.codec
        found = {name: data for name, data in self.recorded if is_state_key(name) and name not in state.values}
        if START in state.values:
            given: Any = decode(state.values[START], codec, channel=START)
            for name, value in given.items() if isinstance(given, dict) else ():
                if is_state_key(name) and name not in state.values:
                    found[name] = codec.encode(value, channel=name)
        if not found:
            return ()
        state = state.copy()
        state.values = {**state.values, **found}
        try:
            return migrated(self._place, state, codec, version, pending)
        except (MigrationError, CheckpointError):  # of a state that never was; its keys are refused
            return found

    @property
    def _place(self) -> Place:
        from .upgrading import Place

        return Place(self.program, self.thread_id, self.at)

    def _take_value(self, name: str, data: EncodedValue) -> None:
        """Take the value of a channel that the program has."""
        channel, kind, upgrades = self.program.channels[name], self.state.kinds.get(name, ""), self.upgrades
        if kind != channel.kind and name.startswith((BRANCH, JOIN)):
            self.stored[name] = _as_control(channel, decode(data, self.codec, channel=name))
            return
        is_same = kind == channel.kind or _same_kind(kind, kind_of(channel))
        if not is_same and not _hold_one_value(channel, kind, is_converted=name in upgrades.retyped):
            self.mismatches.append(of_key(name, self.ns, _other_kind(channel, name, kind)))
            return
        # No copy is needed: readers of a board get isolated values.
        value = self._retyped(name, data, kind) if name in upgrades.retyped else self._decoded(name, data)
        if not is_same or (type(channel) is LastValue and not kind.endswith(UNFIT)):
            if not fits(channel.typ, value):
                reason = misfit(name, channel, value)
                reason = reason if is_same else f"{_other_kind(channel, name, kind)}: {reason}"
                self.mismatches.append(of_key(name, self.ns, reason))
            elif value is None and not is_same and channel.is_available():
                return  # "not yet" for a key without a reducer; with one, the key starts with its empty value
        self.stored[name] = value

    def _decoded(self, name: str, data: EncodedValue) -> Any:
        try:
            return decode(data, self.codec, channel=name)
        except (StoredTypeChangedError, UnknownTypeError) as error:
            error.add_note(f"channel {name!r} of thread {self.thread_id!r} holds it")
            raise

    def _retyped(self, name: str, data: EncodedValue, kind: str) -> Any:
        """Return the value of a key that declares a function of stored values."""
        from .upgrading import retyped_value

        value: Any
        try:
            value, stored_as = decode(data, self.codec, channel=name), self.sources.get(name, name)
        except (StoredTypeChangedError, UnknownTypeError):
            value, stored_as = self.codec.decode_stored(data_of(data), channel=name), ""
        if stored_as and kind.endswith(UNFIT):
            return value
        after = retyped_value(self._place, name, value, stored_as=stored_as)
        if after is not value:
            self.converted.append(name)
        return after

    def _take_unknown(self, name: str) -> None:
        """Note a stored channel that the program does not have."""
        if name.startswith((BRANCH, JOIN)):
            self.control.append(name)
        elif self.upgrades.unknown_stored == "error" and is_unknown(self.program, name):
            reason = f"the thread holds key {name!r}, which the graph does not have"
            self.mismatches.append(of_unknown(name, self.ns, reason))
        else:
            warn_of_unknown(self.program, name, self.thread_id)

    def _take_changed(self, changed: Mapping[str, Any]) -> None:
        """Take the values that migrations have made."""
        for name, value in changed.items():
            if value is REMOVED:
                self.stored.pop(name, None)
                continue
            self.stored[name] = value
            self.versions.setdefault(name, self.state.clock)
            channel = self.program.channels[name]
            if not fits(channel.typ, value):
                reason = misfit(name, channel, value, "gets", "from a migration")
                self.mismatches.append(of_key(name, self.ns, reason))

    def _value_of(self, name: str) -> Any:
        """Return a channel's value as it is stored, to which a pending send refers."""
        known = name in self.stored and name not in self.converted
        return self.stored[name] if known else decode(self.raw.values[name], self.codec, channel=name)

    def _take_pending(self) -> None:
        """Plan what is pending: also tasks whose edges or nodes do not exist any more."""
        stored, absent = self.stored, dict[str, str]()
        versions = self.versions = {**self.versions}
        for name in self.control:
            value: Any = decode(self.state.values[name], self.codec, channel=name)
            if name.startswith(BRANCH):
                node = name.removeprefix(BRANCH)
            elif is_complete(name, value):
                node = name.rpartition(":")[2]
                self.converted += [name, BRANCH + node]
            else:
                if self.upgrades.nodes:
                    self._take_incomplete(name, value)
                continue
            # What is pending runs, also if the edges that have triggered it do not exist any more.
            trigger = BRANCH + node
            if node not in self.program.nodes:
                absent[node] = f"a task of node {node!r} is pending, and there is no such node"
                stored[trigger] = None
            elif trigger not in self.state.values:
                stored[trigger] = _as_control(self.program.channels[trigger], value)
            versions.setdefault(trigger, versions[name])
        for send in stored.get(SENDS, ()):
            if send.node not in self.program.nodes:
                absent[send.node] = f"a send to node {send.node!r} is pending, and there is no such node"
        if absent:
            self.program = _with_nodes(self.program, map(_placeholder, absent))
            self.mismatches += [of_node(node, self.ns, reason) for node, reason in absent.items()]

    def _take_incomplete(self, name: str, value: Any) -> None:
        """Take a join that renamed nodes complete, or that leads to one, under its present name."""
        from .upgrading import renamed_join

        nodes = self.upgrades.nodes
        renamed, held = renamed_join(name, nodes), value[0] if isinstance(value, tuple) else value
        if renamed in self.program.channels and renamed not in self.state.values:
            channel = self.program.channels[renamed]
            self.stored[renamed] = _as_control(channel, [nodes.get(each, each) for each in held])
            self.versions[renamed] = self.versions[name]
            self.converted += [name, renamed]

    def _take_input(self, given: dict[str, Any]) -> None:
        """Take an input that is not applied yet. Values that it replaces need not fit."""
        if self.upgrades.former or self.upgrades.retyped:
            from .upgrading import renamed_write

            given = dict([renamed_write(self._place, key, value) for key, value in given.items()])
            self.converted.append(START)
        for key in self.migrated.intersection(given) - {*self.upgrades.retyped} - self.upgrades.dropped:
            self.mismatches.append(of_migrated(key, self.ns, "an input that is not applied yet has a value for"))
        for key in [key for key in given if key not in self.program.channels]:
            if key in self.upgrades.dropped:
                given = {each: value for each, value in given.items() if each != key}
            else:
                reason = f"an input that is not applied yet holds key {key!r}, which the graph does not have"
                self.mismatches.append(structs.replace(of_unknown(key, self.ns, reason), blocks="resume"))
        self.stored[START] = given
        if self.mismatches:
            replaced = replaced_keys(self.program, self.program.nodes[START].writes(given))
            self.mismatches = [*without_keys(tuple(self.mismatches), replaced)]


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


def _with_nodes(program: Program, more: Iterable[Node]) -> Program:
    """Return the program with nodes that an edge to their identity triggers, and with the channels of these edges."""
    channels, nodes, triggered = {**program.channels}, {**program.nodes}, {**program.triggered}
    finishing = [*program.finishing]
    for node in more:
        trigger = BRANCH + node.identity
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
    """Return a placeholder for a node that the code does not have."""
    return Node(name=name, triggers=(BRANCH + name,), reads=(), call=no_writes, flavour="inline", writes=no_writes)


def _pending(program: Program, state: EncodedState, codec: Codec) -> tuple[str, ...]:
    """Return the node names of the pending tasks of a stored state: sends by index, then triggered nodes by name."""
    nodes: set[str] = {START} if START in state.values else set()
    sends: list[str] = []
    for name, data in state.values.items():
        if name.startswith(BRANCH):
            nodes.add(name.removeprefix(BRANCH))
        elif name.startswith(JOIN) and is_complete(name, decode(data, codec, channel=name)):
            nodes.add(name.rpartition(":")[2])
        elif name == SENDS:
            sends += [send.node for send in decode(data, codec, channel=name)]
    former = program.upgrades.nodes
    return tuple([former.get(name, name) for name in (*sends, *sorted(nodes))])


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
    return f"channel {name!r} had {_in_words(kind)} and has {_in_words(kind_of(channel))}"


def _in_words(kind: str) -> str:
    """Return a kind as users write it: a key of a state has no reducer, or one, or is annotated with a channel."""
    name, _, typ = kind.removesuffix(UNFIT).partition("[")
    of_type = f" for {typ.removesuffix(']')}" if typ else ""
    if name in ("", LastValue.kind):
        return "no reducer"
    if name == BinaryOperatorAggregate.kind:
        return f"a reducer{of_type}"
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}{of_type}"


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
