"""What one superstep changed, and what became of a task: as records, and as frames hold them.

    delta = Entry(...)                       merge(delta, later) is the one that does what both do
    stored = as_stored(delta, before)        what is new in it, by the values that it changes
    frame = write_entry(stored);  stored = read_entry(frame, where)
    frame = write_record(task_entry);  task_entry = read_record(record, thread_id)

What a task wrote is mostly what its channel holds now, or a part of that: it is told by where it stands there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

import msgspec

from .codec import seal, unseal
from .errors import CorruptCheckpointError
from .patches import (
    EncodedValue,
    IncrementalValue,
    Patch,
    body,
    data_of,
    diff,
    is_map,
    length_of,
    literal_of,
    split_map,
)
from .records import CheckpointId, TaskRecord

Results: TypeAlias = dict[str, tuple[tuple[str, bytes | None], ...]]
"""Task id -> its writes as (channel, encoded value); None stands for the value that the channel has now."""

SENDS = "__pregel_tasks"
"""The channel of pending sends."""

SHORT = 32
"""Bytes up to which a result is rather stored than looked for."""


class Delta(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What one superstep changed.

    Attributes:
        keyframe: True when it replaces everything before it.
        ts: when, in unix seconds.
        clock: the version that all channels changed by this superstep got.
        values: the new value of each channel that changed and holds something, encoded.
        emptied: channels that held something and do no longer.
        kinds: the kind of each channel in `values` that the state before did not hold.
        versions: the version of each channel in `values` that has not `clock` (full entries only).
        seen: channel -> node -> version, for what nodes saw anew; only channels that hold something are kept.
        ran: names of the nodes whose tasks the superstep ran, in plan order.
        results: task id -> its writes as (channel, encoded value); None stands for the value that the channel has now.
            Only of tasks that have no record of their own.
        tips: namespace -> the checkpoint at which the state of a subgraph stands, for those that keep it from call to
            call and that this superstep moved. So a branch of the root has its own branch of each.
        spent: name of a budget -> the total as text, of those that changed: the digits of an int, or those of a Decimal
            and a "d".
    """

    keyframe: bool
    ts: float
    clock: int
    values: dict[str, EncodedValue]
    emptied: tuple[str, ...]
    kinds: dict[str, str]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    ran: tuple[str, ...]
    results: Results
    tips: dict[str, str] = {}
    spent: dict[str, str] = {}


class Tail(msgspec.Struct, array_like=True, tag="t", frozen=True, gc=False):
    """A result that is so many of the elements which a patch puts at the end of its channel's list."""

    first: int
    count: int


class Picked(msgspec.Struct, array_like=True, tag="p", frozen=True, gc=False):
    """A result that is some of the entries of the dict that its channel holds now; by their encoded keys."""

    keys: tuple[bytes, ...]


StoredWrite: TypeAlias = bytes | Tail | Picked | None
"""A result as it is stored: encoded, or where in its channel's value it stands; None: it is that value."""


class StoredDelta(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """An delta as a frame holds it. New fields go to the end, with a default. Those that `Delta` has too stand in the
    same order: one that holds no value in parts is stored as it is.

    Attributes: as in `Delta`, but for
        values: encoded, or what makes it of the value before.
        results: what a task wrote is not stored again where the channel's value shows it.
        since: of a milestone: the checkpoint whose state is before.
    """

    keyframe: bool
    ts: float
    clock: int
    values: dict[str, bytes | Patch]
    emptied: tuple[str, ...]
    kinds: dict[str, str]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    ran: tuple[str, ...]
    results: Mapping[str, tuple[tuple[str, StoredWrite], ...]]
    tips: dict[str, str] = {}
    spent: dict[str, str] = {}
    since: str = ""


class TaskResult(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """The payload of a `TaskRecord`.

    Attributes:
        name: the node.
        writes: its writes in order, each value encoded.
        routed: False when its routers have not run (they failed): a resume runs only them.
        error: type, message and time (unix seconds) of a failure; None for a result.
        interrupts: the questions that it stopped to ask, as (id, encoded value), in order; None when it did not.
        answers: question id -> encoded answer: all that it, or what it called, was ever given.
        handled: it has failed, and its error handler has begun: a resume goes on with that.
        spent: as in `Delta`: what it has spent, in all its attempts.
        subgraphs_spent: what graphs have spent, in all, that tasks run which have no result: task id,
            namespace and amounts.
        askers: question id -> the ids of the tasks whose result depends on its answer: the one that asked, and those
            that called it.
        call: of a task that a node calls, the digest of its arguments; empty for other tasks.
        asked: the questions that were answered, as (id, encoded value): an answer is given to no other question.
    """

    name: str
    writes: tuple[tuple[str, bytes], ...] = ()
    routed: bool = True
    error: tuple[str, str, float] | None = None
    interrupts: tuple[tuple[str, bytes], ...] | None = None
    answers: dict[str, bytes] = {}
    handled: bool = False
    spent: dict[str, str] = {}
    subgraphs_spent: tuple[tuple[str, str, dict[str, str]], ...] = ()
    askers: dict[str, tuple[str, ...]] = {}
    call: bytes = b""
    asked: tuple[tuple[str, bytes], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the task has a result, so that it need not run."""
        return self.routed and self.error is None and self.interrupts is None


def merge(first: Delta, second: Delta) -> Delta:
    """The one delta that does what two do, one after the other.

    It shows the results of the first: those of the tasks that were planned on the checkpoint before both. The tasks
    of the second were planned on one that is never stored.
    """
    results = _spelled_out(first, second)
    if second.keyframe:
        return msgspec.structs.replace(second, results=results)
    gone = set(second.emptied)
    values = {channel: data for channel, data in first.values.items() if channel not in gone} | second.values
    kinds = {channel: kind for channel, kind in first.kinds.items() if channel not in gone} | second.kinds
    versions = {channel: first.versions.get(channel, first.clock) for channel in first.values} | first.versions
    versions = {
        channel: version
        for channel, version in versions.items()
        if channel not in gone and channel not in second.values
    } | second.versions
    seen = {channel: nodes for channel, nodes in first.seen.items() if channel not in gone}
    for channel, nodes in second.seen.items():
        seen[channel] = {**seen.get(channel, {}), **nodes}
    return Delta(
        keyframe=first.keyframe,
        ts=second.ts,
        clock=second.clock,
        values=values,
        emptied=() if first.keyframe else tuple(dict.fromkeys((*first.emptied, *second.emptied))),
        kinds=kinds,
        versions=versions,
        seen=seen,
        ran=second.ran,
        results=results,
        tips={**first.tips, **second.tips},
        spent={**first.spent, **second.spent},
    )


def _spelled_out(first: Delta, second: Delta) -> Results:
    """The first delta's results, where "the value that the channel has now" is not what it has after the second."""

    def lasts(channel: str) -> bool:
        return not (second.keyframe or channel in second.values or channel in second.emptied)

    return {
        task: tuple(
            [
                (channel, data if data is not None or lasts(channel) else data_of(first.values[channel]))
                for channel, data in written
                if data is not None or lasts(channel) or channel in first.values
            ]
        )
        for task, written in first.results.items()
    }


def as_stored(
    delta: Delta, before: Mapping[str, EncodedValue], *, since: CheckpointId | None = None
) -> StoredDelta | Delta:
    """An delta as a frame holds it.

    Args:
        before: the values that it changes.
        since: of which checkpoint they are, if that is not the parent.
    """
    values: dict[str, bytes | Patch] = {}
    grown: dict[str, IncrementalValue] = {}
    literals: dict[str, _NewElements] = {}
    for name, value in delta.values.items():
        if isinstance(value, bytes):
            values[name] = value
            continue
        grown[name] = value
        patch = diff(value, before.get(name))
        values[name] = data_of(value) if patch is None else patch
        literal = None if patch is None or since is not None else literal_of(patch)
        if literal is not None:
            literals[name] = _NewElements(literal)
    if not grown and since is None:
        return delta
    results = {
        task: tuple([(name, _compact(data, literals.get(name), grown.get(name))) for name, data in written])
        for task, written in delta.results.items()
    }
    return StoredDelta(
        keyframe=delta.keyframe,
        ts=delta.ts,
        clock=delta.clock,
        values=values,
        emptied=delta.emptied,
        kinds=delta.kinds,
        versions=delta.versions,
        seen=delta.seen,
        ran=delta.ran,
        results=results,
        tips=delta.tips,
        spent=delta.spent,
        since=since or "",
    )


def _compact(data: StoredWrite, literal: _NewElements | None, value: IncrementalValue | None) -> StoredWrite:
    """A result as it is stored, of a channel that holds a value in parts."""
    if not isinstance(data, bytes) or len(data) < SHORT or value is None:
        return data
    if value.is_list:
        return (None if literal is None else literal.tail_of(data)) or data
    parts = value.parts if is_map(data) else None
    if isinstance(parts, dict):
        entries = split_map(data)
        if all(parts.get(key) == item for key, item in entries.items()):
            return Picked(tuple(entries))
    return data


class _NewElements:
    """The elements that a patch puts at the end of a list, and how many of them are accounted for."""

    def __init__(self, data: bytes) -> None:
        self._body = body(data)
        self._at = 0
        self._count = 0

    def tail_of(self, data: bytes) -> Tail | None:
        """Which of them the elements of an encoded list are, when they are the next ones."""
        length = length_of(data)
        if not length or not self._body.startswith(elements := body(data), self._at):
            return None
        first = self._count
        self._at, self._count = self._at + len(elements), first + length
        return Tail(first, length)


_T = TypeVar("_T")

_encode = msgspec.msgpack.Encoder().encode
_delta_decoder = msgspec.msgpack.Decoder(StoredDelta)
_result_decoder = msgspec.msgpack.Decoder(TaskResult)


def write_delta(delta: StoredDelta | Delta) -> bytes:
    """The frame of a checkpoint's row."""
    return seal(_encode(delta))


def read_delta(frame: bytes, where: str) -> StoredDelta:
    """What a row's frame says. Raises `CorruptCheckpointError`."""
    return _decode(_delta_decoder, unseal(frame, where), where)


def write_record(result: TaskResult) -> bytes:
    """The frame of a task's record."""
    return seal(_encode(result))


def read_record(record: TaskRecord, thread_id: str) -> TaskResult:
    """What a record's frame says. Raises `CorruptCheckpointError`."""
    where = f"thread {thread_id!r}, checkpoint {record.checkpoint_id}, record of task {record.task_id!r}"
    return _decode(_result_decoder, unseal(record.frame, where), where)


def timestamp(seconds: float) -> str:
    """ISO 8601 in UTC, of a stored time. Raises `CorruptCheckpointError` when it is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise CorruptCheckpointError("a checkpoint's time", f"{seconds!r} is no time ({error})") from error


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes | memoryview, where: str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        # msgspec raises ValidationError and DecodeError, and for some damage UnicodeDecodeError or RecursionError.
        raise CorruptCheckpointError(where, f"its frame cannot be read ({error})") from error
