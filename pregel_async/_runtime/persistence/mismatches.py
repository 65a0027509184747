"""Find what of a stored thread does not fit the graph's code, and refuse the calls that it prevents."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import structs

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import TaskResult
from checkpoint_savers.errors import StoredTypeChangedError, UnknownTypeError
from checkpoint_savers.patches import decode
from checkpoint_savers.records import VERSION

from ..._core.board import Board
from ..._core.fits import fits
from ..._core.program import BRANCH, JOIN, SENDS, Program, Write, is_state_key
from ..._core.task import Task
from ...channels import MISSING, BaseChannel, LastValue
from ...channels.overwrite import overwrite_value, unwrap_overwrite
from ...channels.reduced import ReducedValue
from ...channels.single import SingleValue
from ...errors import GraphChangedError, MigrationError
from ...types import START, Mismatch


def version_in(metadata: Mapping[str, Any], results: Iterable[TaskResult]) -> int:
    """Return the greatest version of the graph that has stored a checkpoint, or a record of the superstep after it."""
    # A later version may have run a part of a superstep that an earlier one planned. Its records are in its own terms.
    stored: int = metadata.get(VERSION, 1)
    return max([stored, *[each.version for each in results]])


def earlier_writes(program: Program, results: Iterable[TaskResult]) -> tuple[tuple[str, bytes], ...]:
    """Return the writes of recorded results that an earlier version of the graph has made; empty without migrations."""
    if not program.upgrades.steps:
        return ()
    return tuple([write for each in results if each.version < program.version for write in each.writes])


def of_version(program: Program, stored: int, ns: str) -> tuple[Mismatch, ...]:
    """Return the mismatch of a greater version of the graph (see `version_in`), as a tuple of one; else ()."""
    version = program.version or 1
    if stored <= version:
        return ()
    reason = f"version {stored} of graph {program.name!r} stored it, and this is version {version}"
    advice = "deploy the newer version"
    return (Mismatch(kind="version", name=program.name, namespace=ns, reason=reason, advice=advice, blocks="all"),)


def of_node(name: str, ns: str, reason: str) -> Mismatch:
    """Return the mismatch of a pending task whose node the graph does not have."""
    advice = f"add_node(..., was={name!r}) if it was renamed, or compile(retired={{{name!r}: END}}) if it was removed"
    return Mismatch(kind="node", name=name, namespace=ns, reason=reason, advice=advice, blocks="resume")


def of_key(name: str, ns: str, reason: str) -> Mismatch:
    advice = f"{name}: Annotated[..., Retyped(function)], where the function makes the new value of the stored one"
    return Mismatch(kind="key", name=name, namespace=ns, reason=reason, advice=advice, blocks="all")


def of_input(board: Board, task: Task, ns: str) -> tuple[Mismatch, ...]:
    """Return the mismatches of a pending task whose state cannot be made, because the thread lacks required fields.

    Args:
        board: the state, with the updates of the open superstep.
        task: the task.
        ns: the graph's namespace.
    """
    node = task.node
    if node.shape is None or node.hidden or task.send >= 0 or isinstance(node.reads, str):
        return ()
    lacking = {*node.reads}.difference(board.values, dict(node.managed))
    if not lacking:
        return ()
    try:
        board.input_of(node)
    except Exception as error:
        # Fields with defaults are lacking too: the errors of dataclasses, Structs and pydantic name the required ones.
        found = [name for name in sorted(lacking) if re.search(rf"\b{re.escape(name)}\b", str(error))]
        return tuple(
            [
                Mismatch(
                    kind="key",
                    name=name,
                    namespace=ns,
                    reason=f"node {node.name!r} is pending and requires key {name!r}, which is not stored",
                    advice=f"{name}: Annotated[..., Added(value)], or a default",
                    blocks="resume",
                )
                for name in found
            ]
        )
    return ()


def of_rule(error: MigrationError, ns: str) -> Mismatch:
    """Return the mismatch of a declared rule that raised an exception."""
    reason = f"{error.rule} raised {type(error.__cause__).__name__}: {error.__cause__}"
    advice = "correct the rule's function"
    return Mismatch(kind="key", name=error.rule, namespace=ns, reason=reason, advice=advice, blocks="all")


def of_unknown(name: str, ns: str, reason: str) -> Mismatch:
    advice = f"Renamed({name!r}) at the key that it has become, or compile(removed=({name!r},))"
    return Mismatch(kind="key", name=name, namespace=ns, reason=reason, advice=advice, blocks="all")


def of_records(
    program: Program,
    results: Iterable[TaskResult],
    state: EncodedState,
    codec: Codec,
    ns: str,
    migrated: Collection[str] = (),
) -> tuple[Mismatch, ...]:
    """Return the mismatches of the recorded results of an open superstep.

    These are edges to nodes that do not exist, joins that are complete and do not exist, values that do not fit their
    keys, and values of earlier versions for keys that migrations change.

    Args:
        program: the graph.
        results: the records of the superstep's tasks.
        state: the state on which the superstep was planned.
        codec: decodes the names of the nodes for which a join waits.
        ns: the graph's namespace.
        migrated: as in `Restored`.
    """
    joined: dict[str, set[str]] = {}
    found: list[Mismatch] = []
    for result in results:
        last = dict(result.writes)
        for name, data in result.writes:
            if not result.name and name in program.channels and data is not last[name]:
                continue  # a later update of the open superstep replaces it, or is checked for the same key
            if name in migrated and result.version < program.version and not _has_rule(program, name):
                migrates = of_migrated(name, ns, f"{_writer_of(result)} to", is_update=not result.name)
                found.append(_of_record(result, migrates))
            elif name == SENDS:
                node = node_of_send(data, codec)
                if node and node not in program.nodes and node not in program.upgrades.aliases:
                    found.append(_of_edge(result, node, ns))
            elif name in program.channels:
                found += _unfit_write(program, result, name, data, codec, ns)
            elif name.startswith(BRANCH):
                found.append(_of_edge(result, name.removeprefix(BRANCH), ns))
            elif is_unknown(program, name) and program.upgrades.unknown_stored == "error":
                reason = f"task {result.name!r} has written to key {name!r}, which the graph does not have"
                found.append(structs.replace(of_unknown(name, ns, reason), blocks="resume"))
            elif name.startswith(JOIN):
                joined.setdefault(name, set()).add(str(codec.decode(data, channel=name)))
    for name, names in joined.items():
        before: Any = decode(state.values[name], codec, channel=name) if name in state.values else []
        if is_complete(name, [*names.union(before[0] if isinstance(before, tuple) else before)]):
            node = name.rpartition(":")[2]
            reason = f"nodes have finished whose edge leads to node {node!r}, and there is no such edge"
            found.append(of_node(node, ns, reason))
    return tuple(dict.fromkeys(found))


def node_of_send(data: bytes, codec: Codec) -> str:
    """Return the node of a recorded send; "" if the send's argument cannot be decoded."""
    try:
        send: Any = codec.decode(data, channel=SENDS)
    except (StoredTypeChangedError, UnknownTypeError):
        return ""  # the error is raised when the record is used; a new input discards the record
    return str(send.node)


def _of_edge(result: TaskResult, node: str, ns: str) -> Mismatch:
    who = f"node {result.name!r} has finished and leads" if result.name else "an update of the open superstep leads"
    return of_node(node, ns, f"{who} to node {node!r}, and there is no such node")


def _has_rule(program: Program, name: str) -> bool:
    return name in program.upgrades.retyped or name in program.upgrades.dropped


def of_migrated(name: str, ns: str, what: str, *, is_update: bool = False) -> Mismatch:
    """Return the mismatch of a recorded value, in terms of the old version, of a key that a migration changes.

    Args:
        name: the key.
        ns: the graph's namespace.
        what: the beginning of the reason, up to the key: "an input has a value for".
        is_update: True for an update by `Command(update=...)`, which a new input does not discard.
    """
    reason = f"{what} key {name!r}, which a migration changes, and migrations do not apply to what is only recorded"
    advice = "let the version that wrote it end the superstep: Versions({...}, pin='open'); or give a new input"
    if is_update:  # with pin='open', the newest version would continue an idle thread
        advice = (
            "let the version that wrote it end the superstep, or take the next input: Versions({...}, pin='thread')"
        )
    return Mismatch(kind="key", name=name, namespace=ns, reason=reason, advice=advice, blocks="resume")


def _of_record(result: TaskResult, found: Mismatch) -> Mismatch:
    # An update of the open superstep is a part of the state, which a new input does not discard.
    return structs.replace(found, blocks="resume" if result.name else "all")


def _writer_of(result: TaskResult) -> str:
    return f"task {result.name!r} has written" if result.name else "an update of the open superstep has written"


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
    kind, typ = type(value).__name__, _named(channel.typ)
    reason = f"{who} and has written a value of type {kind} to key {name!r}, which does not fit {typ}"
    return [_of_record(result, of_key(name, ns, reason))]


def without_keys(mismatches: tuple[Mismatch, ...], replaced: Collection[str]) -> tuple[Mismatch, ...]:
    """Return the mismatches without those of keys whose values in the state are replaced."""
    # What blocks only a resume is no value of the state, but for example a recorded write.
    return tuple(
        [each for each in mismatches if (each.kind, each.blocks) != ("key", "all") or each.name not in replaced]
    )


def keys_of_update(program: Program, amended: TaskResult) -> set[str]:
    """Return the keys whose values the recorded updates of an open superstep replace.

    Args:
        program: the graph.
        amended: the `AMENDED` record.
    """
    return {name for name, _ in amended.writes if isinstance(program.channels.get(name), SingleValue)}


def replaced_keys(program: Program, writes: Iterable[Write]) -> set[str]:
    """Return the keys whose values these writes replace, whatever they hold.

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
        reason = "; ".join(each.reason for each in left)
        raise GraphChangedError(thread_id, first.name, reason, left, _accepted(program, left))


def _accepted(program: Program, mismatches: list[Mismatch]) -> str:
    """Return which input the thread accepts although it has these mismatches; empty if none."""
    keys = list(dict.fromkeys(each.name for each in mismatches if each.blocks == "all"))
    if not keys:
        return "give it a new input, which is accepted and discards what is pending"
    given: list[str] = []
    for name in keys:
        channel = program.channels.get(name)
        if isinstance(channel, SingleValue):
            given.append(f"key {name!r}")
        elif isinstance(channel, ReducedValue):
            given.append(f"an Overwrite for key {name!r}")
        else:
            return ""
    return f"give it a new input with {' and '.join(given)}: it replaces the value, and discards what is pending"


def is_unknown(program: Program, name: str) -> bool:
    """Return True if a stored channel is a state key that the graph does not have any more."""
    upgrades = program.upgrades
    if name in program.channels or name in upgrades.dropped or name in upgrades.former:
        return False
    return is_state_key(name)


def is_complete(name: str, stored: Any) -> bool:
    """Return True if a barrier has seen all nodes in its name."""
    # The names are joined with a plus; a plus in a node's name is escaped with a backslash.
    listed = name.removeprefix(JOIN).rpartition(":")[0]
    waits_for = 1 + len(re.findall(r"(?<!\\)(?:\\\\)*\+", listed))
    names = stored[0] if isinstance(stored, tuple) else stored
    return isinstance(names, list) and len(names) == waits_for


def misfit(name: str, channel: BaseChannel[Any, Any, Any], value: Any, verb: str = "holds", how: str = "") -> str:
    kind = type(value).__name__
    return f"channel {name!r} {verb} a value of type {kind}{how and ' '}{how}, which does not fit {_named(channel.typ)}"


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
