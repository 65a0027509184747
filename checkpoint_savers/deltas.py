"""The changes of one superstep (`Delta`) and the outcome of a task (`TaskResult`), as structs and as stored frames.

    delta = Delta(...)                       merge(delta, later) returns one delta with the effect of both
    stored = as_stored(delta, before)        values that have grown become patches of those before
    frame = write_delta(stored);  stored = read_delta(frame, where)
    frame = write_record(result);  result = read_record(record, thread_id)

Task results usually duplicate channel values, so a reference into the channel's value is stored instead of the bytes.
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
    join_list,
    length_of,
    literal_of,
    split,
    split_map,
)
from .records import CheckpointId, TaskRecord


class ListSlice(msgspec.Struct, frozen=True):
    """A result that equals some of the elements that its superstep appends to the channel's list.

    Attributes:
        elements: the encoded list of the appended elements.
        first: index of the first element of the result.
        count: number of elements.
    """

    elements: bytes
    first: int
    count: int

    @property
    def data(self) -> bytes:
        """The encoded list of the result's elements."""
        if self.count == length_of(self.elements):
            return self.elements
        return join_list(split(self.elements)[self.first : self.first + self.count])


Results: TypeAlias = dict[str, tuple[tuple[str, bytes | None], ...]]
"""Task id -> its writes as (channel, encoded value); None means the value that the channel has now."""

NewResults: TypeAlias = Mapping[str, tuple[tuple[str, bytes | ListSlice | None], ...]]
"""`Results` before they are stored: a write may be a part of what the same delta appends to the channel's list."""

SENDS = "__pregel_tasks"
"""The channel of pending sends."""

SHORT = 32
"""Bytes below which a result is stored as it is: a reference would save nothing."""


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class Delta(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What one superstep changed.

    Attributes:
        keyframe: True if it replaces everything before it.
        ts: when, in unix seconds.
        clock: the version that this superstep gave to all channels that it changed.
        values: the new value of each channel that changed and is not empty, encoded.
        emptied: channels that became empty.
        kinds: the kind of each channel in `values` that was empty before.
        versions: the version of each channel in `values` whose version is not `clock` (keyframes only).
        seen: channel -> node -> version, for versions that nodes have newly seen; only channels that are not empty.
        ran: names of the nodes whose tasks the superstep ran, in plan order.
        results: task id -> its writes as (channel, encoded value); None means the value that the channel has now, and
            a slice a part of what the delta appends to the channel's list. Only of tasks that have no record of their
            own.
        tips: namespace -> the checkpoint of a stateful subgraph's current state, for those that this superstep moved.
            So each branch of the root has its own branch of each subgraph.
        spent: name of a budget -> its total as text, for budgets that changed: the digits of an int, or those of a
            Decimal followed by "d".
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
    results: NewResults
    tips: dict[str, str] = {}
    spent: dict[str, str] = {}


class Tail(msgspec.Struct, array_like=True, tag="t", frozen=True):
    """A result that equals some of the elements that a patch appends to its channel's list.

    Attributes:
        first: index of the first of them among the appended elements.
        count: number of elements.
    """

    first: int
    count: int


class Picked(msgspec.Struct, array_like=True, tag="p", frozen=True):
    """A result that equals some entries of the dict that its channel holds now.

    Attributes:
        keys: the entries' keys, encoded.
    """

    keys: tuple[bytes, ...]


StoredWrite: TypeAlias = bytes | Tail | Picked | None
"""A result as it is stored: its bytes, a reference into its channel's value, or None if it equals that value."""


class StoredDelta(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A delta as a frame holds it.

    New fields are appended, with a default. The fields that `Delta` has too are in the same order, so that a delta
    without incremental values is stored as it is.

    Attributes: as in `Delta`, except for
        values: encoded, or a patch of the value before.
        results: references where the channel's value has the same bytes.
        since: of a snapshot: the checkpoint whose values the patches extend.
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


class TaskResult(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The payload of a `TaskRecord`.

    Attributes:
        name: the node.
        writes: its writes in order, each value encoded.
        routed: False if its routers have not run (they failed): a resume runs only them.
        error: type, message and time (unix seconds) of a failure; None for a result.
        interrupts: the questions for which it paused, as (id, encoded value), in order; None if it did not pause.
        answers: question id -> encoded answer: all answers that it, or a task that it called, was ever given.
        handled: True if it has failed and its error handler has begun: a resume continues with the handler.
        spent: as in `Delta`: its spending in all attempts.
        subgraphs_spent: total spending of subgraphs run by tasks that have no result, as (task id, namespace, amounts).
        askers: question id -> the ids of the tasks whose result depends on its answer: the one that asked, and its
            callers.
        call: of a task that a node calls, the digest of its arguments; empty for other tasks.
        asked: the questions that were answered, as (id, encoded value): an answer is used for no other question.
        schemas: question id -> the encoded JSON schema of its answer, for questions that have one.
        unfit: the keys whose writes did not fit their annotations when the task ran.
        version: the version of the graph that made the record, if an earlier one planned the superstep; else 0.
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
    schemas: dict[str, bytes] = {}
    unfit: tuple[str, ...] = ()
    version: int = 0

    @property
    def finished(self) -> bool:
        """True if the task has a result, so that it need not run."""
        return self.routed and self.error is None and self.interrupts is None


EncodedQuestions: TypeAlias = tuple[tuple[str, bytes], ...]
"""Questions as (id, encoded value)."""


def questions_of(result: TaskResult) -> EncodedQuestions:
    """Return all questions of a task's record, answered ones first.

    Args:
        result: the record's content.
    """
    answered = {key for key, _ in result.asked}
    return (*result.asked, *[each for each in result.interrupts or () if each[0] not in answered])


def merge(first: Delta, second: Delta) -> Delta:
    """Return one delta with the effect of two consecutive ones.

    It has the results of the first: those of the tasks that were planned on the checkpoint before both. The tasks
    of the second were planned on a checkpoint that is never stored.

    Args:
        first: the earlier delta.
        second: the delta that follows it.
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
    """Return the first delta's results, with bytes instead of None for channels that the second delta changes again."""

    def lasts(channel: str) -> bool:
        return not (second.keyframe or channel in second.values or channel in second.emptied)

    return {
        task: tuple(
            [
                (channel, _bytes_of(data) if data is not None or lasts(channel) else data_of(first.values[channel]))
                for channel, data in written
                if data is not None or lasts(channel) or channel in first.values
            ]
        )
        for task, written in first.results.items()
    }


def _bytes_of(write: bytes | ListSlice | None) -> bytes | None:
    return write.data if isinstance(write, ListSlice) else write


def as_stored(
    delta: Delta, before: Mapping[str, EncodedValue], *, since: CheckpointId | None = None
) -> StoredDelta | Delta:
    """Return a delta as a frame holds it: values as patches, results as references where that saves bytes.

    Args:
        delta: the delta.
        before: the values that it changes, which the patches extend.
        since: the checkpoint of these values, if it is not the parent.
    """
    values: dict[str, bytes | Patch] = {}
    grown: dict[str, IncrementalValue] = {}
    literals: dict[str, bytes] = {}
    for name, value in delta.values.items():
        if type(value) is not IncrementalValue:
            values[name] = value
            continue
        grown[name] = value
        patch = diff(value, before.get(name))
        values[name] = data_of(value) if patch is None else patch
        # A snapshot's patch may append elements of many supersteps: only a delta's are those that its own tasks have
        # written.
        literal = None if patch is None or since is not None else literal_of(patch)
        if literal is not None:
            literals[name] = literal
    if not grown and since is None:
        return delta  # without lists that grow, no result is a slice
    results: dict[str, tuple[tuple[str, StoredWrite], ...]] = {}
    new: dict[str, _NewElements] = {}
    for task, written in delta.results.items():
        stored: list[tuple[str, StoredWrite]] = []
        for name, data in written:
            literal = literals.get(name)
            if isinstance(data, ListSlice) and literal is data.elements:
                stored.append((name, Tail(data.first, data.count)))
                continue
            if literal is not None and data is not None and name not in new:
                new[name] = _NewElements(literal)
            stored.append((name, _compact(_bytes_of(data), new.get(name), grown.get(name))))
        results[task] = tuple(stored)
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
    """Return a result as it is stored, of a channel with an incremental value."""
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
    """The elements that a patch appends to a list, consumed in order by the results that wrote them."""

    def __init__(self, data: bytes) -> None:
        self._body = body(data)
        self._at = 0
        self._count = 0

    def tail_of(self, data: bytes) -> Tail | None:
        """Return a reference to the next elements if an encoded list consists of exactly these; else None.

        Args:
            data: the encoded list.
        """
        length = length_of(data)
        # Compared as bytes, without splitting the list: results in plan order are consecutive runs of what a reducer
        # appended. A reducer with another order gives no match, and the result is stored as it is.
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
    """Return the frame of a checkpoint's row.

    Args:
        delta: the row's content.
    """
    return seal(_encode(delta))


def read_delta(frame: bytes, where: str) -> StoredDelta:
    """Return the content of a row's frame.

    Args:
        frame: the frame.
        where: what is being read, for errors.

    Raises:
        CorruptCheckpointError: the frame is damaged.
        UnsupportedFormatError: a later version wrote it.
    """
    return _decode(_delta_decoder, unseal(frame, where), where)


def write_record(result: TaskResult) -> bytes:
    """Return the frame of a task's record.

    Args:
        result: the record's content.
    """
    # Few records have the last fields. The others take no byte for them, and are as version 0.1.0 wrote them.
    if result.version:
        return seal(_encode(result))
    absent = 1 if result.unfit else 2 if result.schemas else 3
    return seal(_encode(msgspec.structs.astuple(result)[:-absent]))


def read_record(record: TaskRecord, thread_id: str) -> TaskResult:
    """Return the content of a task's record.

    Args:
        record: the record.
        thread_id: its thread, for errors.

    Raises:
        CorruptCheckpointError: the frame is damaged.
        UnsupportedFormatError: a later version wrote it.
    """
    where = f"thread {thread_id!r}, checkpoint {record.checkpoint_id}, record of task {record.task_id!r}"
    return _decode(_result_decoder, unseal(record.frame, where), where)


def timestamp(seconds: float) -> str:
    """Return a stored time in ISO 8601, in UTC.

    Args:
        seconds: unix seconds.

    Raises:
        CorruptCheckpointError: it is outside of the range of a datetime.
    """
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
