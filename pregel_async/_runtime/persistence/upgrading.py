"""Convert stored states and records by the rules that a graph declares.

Loaded only for graphs with rules. All functions are pure: the next transaction of the thread stores what they make.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import structs

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import TaskResult, questions_of
from checkpoint_savers.errors import CheckpointError, UnstorableValueError
from checkpoint_savers.patches import data_of, decode

from ..._core.fits import fits
from ..._core.ownership import own
from ..._core.program import BRANCH, JOIN, Program, is_state_key
from ...errors import MigrationError
from ...types import END, REMOVED, Migration, Overwrite, StoredState


def renamed_state(state: EncodedState, former: Mapping[str, str]) -> tuple[EncodedState, dict[str, str]]:
    """Return a state with the present names of its keys.

    Args:
        state: the state as it is stored; not changed.
        former: the present names of keys by their former ones, the newest first.

    Returns:
        The state, and the stored names of the keys whose names have changed.
    """
    sources: dict[str, str] = {}
    for old, now in former.items():
        if old in state.values:
            # A graph of a former version may have run in between: the value that was written last counts.
            known = sources.get(now, now)
            if known not in state.values or state.versions[old] > state.versions[known]:
                sources[now] = old
            else:
                sources.setdefault(now, known)
    if not sources:
        return state, sources
    dropped = {*former, *sources} - {*sources.values()}
    names = {old: now for now, old in sources.items()}

    def renamed(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in entries.items() if name not in dropped}

    made = state.copy()
    made.values, made.kinds = renamed(state.values), renamed(state.kinds)
    made.versions, made.seen = renamed(state.versions), renamed(state.seen)
    return made, sources


class Place(msgspec.Struct, frozen=True):
    """The graph whose rules apply, and the thread and checkpoint to which they apply, for errors."""

    program: Program
    thread_id: str
    checkpoint_id: str

    def apply(self, rule: str, call: Callable[[Any], Any], value: Any) -> Any:
        """Return what a rule's function makes of a value.

        Raises:
            MigrationError: the function raised.
            CheckpointError: the function looked at a value that is damaged, or whose class does not accept it.
        """
        try:
            return call(value)
        except CheckpointError:
            raise
        except Exception as error:
            raise MigrationError(rule, self.program.name, self.thread_id, self.checkpoint_id, error) from error


def retyped_value(place: Place, key: str, value: Any, *, stored_as: str, is_update: bool = False) -> Any:
    """Return a stored value, or a write, as a value of a retyped key; the same object if it fits already.

    Args:
        place: the graph, the thread and the checkpoint.
        key: the key.
        value: the value or the write.
        stored_as: the name under which it is stored; empty if it could not be decoded as an object of its class.
        is_update: it is a write.
    """
    rule = place.program.upgrades.retyped[key]
    if isinstance(value, Overwrite):
        return Overwrite(retyped_value(place, key, value.value, stored_as=stored_as))
    was = (rule.was,) if isinstance(rule.was, str) else rule.was
    if stored_as and stored_as not in was and fits(place.program.channels[key].typ, value):
        return value
    call = rule.update if is_update and rule.update is not None else rule.convert
    return place.apply(f"Retyped of key {key!r}", call, value)


def renamed_write(place: Place, name: str, value: Any) -> tuple[str, Any]:
    """Return a decoded write to a state key in terms of the graph's current code."""
    upgrades = place.program.upgrades
    now = upgrades.former.get(name, name)
    if now not in upgrades.retyped:
        return now, value
    return now, retyped_value(place, now, value, stored_as=name, is_update=True)


def migrated(
    place: Place, state: EncodedState, codec: Codec, version: int, pending: Callable[[], tuple[str, ...]]
) -> dict[str, Any]:
    """Return the keys that a graph's migrations change in a state, with their values or `REMOVED`.

    Args:
        place: the graph, the thread and the checkpoint.
        state: the state, with present names; not changed.
        codec: decodes the values.
        version: the version of the state.
        pending: returns the node names of the pending tasks.

    Raises:
        MigrationError: a migration raised, returned no mapping, or sets a key that the graph does not have.
    """
    program, upgrades = place.program, place.program.upgrades
    changed: dict[str, Any] = {}

    def decoded(key: str) -> Any:
        value: Any = decode(state.values[key], codec, channel=key)
        if key in upgrades.retyped:
            return retyped_value(place, key, value, stored_as=key)
        return value

    def plain(key: str) -> Any:
        if key in state.values and key not in changed:
            return codec.decode_plain(data_of(state.values[key]), channel=key)
        return values()[key]()

    def values() -> dict[str, Callable[[], Any]]:
        found: dict[str, Callable[[], Any]] = {}
        for key in [*state.values, *upgrades.added, *changed]:
            if changed.get(key) is REMOVED or not (key in program.keys or key in changed or is_state_key(key)):
                continue
            if key in changed:
                found[key] = partial(own, changed[key])
            elif key in state.values:
                found[key] = partial(decoded, key)
            else:
                found[key] = partial(own, upgrades.added[key])
        return found

    sets: dict[str, str] = {}
    for number, migration in upgrades.steps.items():
        if version < number <= program.version:
            rule = f"migrations[{number}]"
            before = StoredState(values(), version=number - 1, thread_id=place.thread_id, next=pending, plain=plain)
            made = place.apply(rule, partial(_mapping_of, migration), before)
            changed.update({key: value if value is REMOVED else own(value, key) for key, value in made.items()})
            sets.update(dict.fromkeys(made, rule))
    for key, value in changed.items():
        if value is not REMOVED and key not in program.keys and key not in upgrades.dropped:
            place.apply(sets[key], partial(_refuse_key, program), key)
    return {key: value for key, value in changed.items() if value is REMOVED or key in program.keys}


def _mapping_of(migration: Migration, before: StoredState) -> dict[str, Any]:
    """Return what a migration returned, as a dict. Raises `TypeError`."""
    made = migration(before)
    if not isinstance(cast("object", made), Mapping):
        raise TypeError(f"it returns a mapping of the keys that change, and returned {made!r}")
    return dict(made)


def _refuse_key(program: Program, key: str) -> None:
    there = ", ".join(sorted(program.keys))
    raise KeyError(
        f"it sets {key!r}, and the graph has {there}: take the key away in a later migration, or list it in removed="
    )


def renamed_record(place: Place, result: TaskResult, codec: Codec) -> TaskResult:
    """Return a task's record with writes in terms of the graph's current code.

    Args:
        place: the graph, the thread and the checkpoint.
        result: the record as it is stored.
        codec: decodes and encodes names of nodes, and writes to retyped keys.

    Raises:
        MigrationError: a rule's function raised, or makes a value that cannot be stored.
    """
    program, upgrades = place.program, place.program.upgrades
    nodes, former = upgrades.nodes, upgrades.former
    if result.interrupts and nodes.get(result.name) == END:  # no answer could reach it; the history shows its questions
        result = structs.replace(result, interrupts=(), asked=questions_of(result))
    writes: list[tuple[str, bytes]] = []
    for name, data in result.writes:
        if name.startswith(BRANCH):
            now = nodes.get(name.removeprefix(BRANCH))
            if now == END:
                continue
            writes.append((BRANCH + now if now else name, data))
        elif name.startswith(JOIN) and name not in program.channels:
            renamed, value = renamed_join(name, nodes), data
            if renamed in program.channels:
                start: Any = codec.decode(data, channel=name)
                name, value = renamed, codec.encode(nodes.get(start, start), channel=name)
            writes.append((name, value))
        elif former.get(name, name) in upgrades.retyped and name not in result.unfit:
            before: Any = codec.decode_stored(data, channel=name)
            now, after = renamed_write(place, name, before)
            if after is not before:
                try:
                    data = codec.encode(after, channel=now)
                except UnstorableValueError as error:
                    rule = f"Retyped of key {now!r}"
                    raise MigrationError(rule, program.name, place.thread_id, place.checkpoint_id, error) from error
            writes.append((now, data))
        else:
            writes.append((former.get(name, name), data))
    return structs.replace(result, writes=tuple(writes))


def renamed_join(name: str, nodes: Mapping[str, str]) -> str:
    """Return the name of a join's channel with present names for those of renamed nodes.

    Args:
        name: the channel's name.
        nodes: present names by former ones.
    """
    listed, _, target = name.removeprefix(JOIN).rpartition(":")
    starts = re.findall(r"(?:[^\\+]|\\.)+", listed)  # see `graph.compile._join_channel`
    plain = [re.sub(r"\\(.)", r"\1", start) for start in starts]
    now = [nodes.get(start, start).replace("\\", "\\\\").replace("+", "\\+") for start in plain]
    return f"{JOIN}{'+'.join(now)}:{nodes.get(target, target)}"
