"""How a thread's states are laid out in frames: what each superstep changed, and from time to time everything.

    ledger = Ledger.start(...) or Ledger.resume(reader, checkpoint_id)
    row = ledger.append(entry, ...)          writing: an entry becomes a row
    state = reader.state(checkpoint_id)      reading: rows become a state

An `Entry` says what one superstep changed. `State.apply(entry)` is the only way from one state to the next, on both
sides: what a run holds and what is read back are made by the same code. An entry that replaces everything (`full`)
    starts a new
chain; one is written when the entries since the last have outgrown it. So a read costs at most about twice the state,
and storage about twice what was written.

Values stay encoded here. Each is encoded by itself, so that a value nobody can decode any more (a removed key of a
removed class) is carried along untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import msgspec

from .codec import Codec, seal, unseal
from .errors import CorruptCheckpointError
from .records import FORMAT, Checkpoint, CheckpointId, CheckpointRow, TaskRecord

SENDS = "__pregel_tasks"
"""The channel of pending sends."""

SMALL = 2048
"""Bytes that entries may take before the size of their base is asked."""


class Entry(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What one superstep changed, in the order in which it is stored. New fields go to the end, with a default.

    Attributes:
        full: True when it replaces everything before it.
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
    """

    full: bool
    ts: float
    clock: int
    values: dict[str, bytes]
    emptied: tuple[str, ...]
    kinds: dict[str, str]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    ran: tuple[str, ...]
    results: dict[str, tuple[tuple[str, bytes | None], ...]]
    tips: dict[str, str] = {}


class TaskEntry(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The payload of a `TaskRecord`.

    Attributes:
        name: the node.
        writes: its writes in order, each value encoded.
        routed: False when its routers have not run (they failed): a resume runs only them.
        error: type, message and time (unix seconds) of a failure; None for a result.
        interrupts: the questions that it stopped to ask, as (id, encoded value), in order; None when it did not.
        answers: question id -> encoded answer: all that it, or what it called, was ever given.
        handled: it has failed, and its error handler has begun: a resume goes on with that.
    """

    name: str
    writes: tuple[tuple[str, bytes], ...] = ()
    routed: bool = True
    error: tuple[str, str, float] | None = None
    interrupts: tuple[tuple[str, bytes], ...] | None = None
    answers: dict[str, bytes] = {}
    handled: bool = False

    @property
    def finished(self) -> bool:
        """Whether the task has a result, so that it need not run."""
        return self.routed and self.error is None and self.interrupts is None


_T = TypeVar("_T")

_encode = msgspec.msgpack.Encoder().encode
_entry = msgspec.msgpack.Decoder(Entry)
_task_entry = msgspec.msgpack.Decoder(TaskEntry)


class State(msgspec.Struct):
    """A namespace's state at one checkpoint, with values still encoded. `apply` makes the next one of a copy.

    Attributes: as in `Entry`, for all channels that hold something.
    """

    ts: float
    clock: int
    values: dict[str, bytes]
    kinds: dict[str, str]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    ran: tuple[str, ...]
    tips: dict[str, str]

    @classmethod
    def empty(cls) -> Self:
        return cls(0.0, 0, {}, {}, {}, {}, (), {})

    def copy(self) -> State:
        """A copy that `apply` may change; encoded values are shared, as they are never changed in place."""
        return State(
            self.ts,
            self.clock,
            self.values.copy(),
            self.kinds.copy(),
            self.versions.copy(),
            self.seen.copy(),
            self.ran,
            self.tips.copy(),
        )

    def apply(self, entry: Entry) -> None:
        """Go on to the next state, in place."""
        if entry.full:
            self.values, self.kinds, self.versions, self.seen, self.tips = {}, {}, {}, {}, {}
        for channel in entry.emptied:
            self.values.pop(channel, None)
            self.kinds.pop(channel, None)
            self.versions.pop(channel, None)
            self.seen.pop(channel, None)
        self.values.update(entry.values)
        self.kinds.update(entry.kinds)
        clock, versions = entry.clock, self.versions
        for channel in entry.values:
            versions[channel] = clock
        versions.update(entry.versions)
        for channel, nodes in entry.seen.items():
            self.seen[channel] = {**self.seen.get(channel, {}), **nodes}
        self.tips.update(entry.tips)
        self.ts, self.clock, self.ran = entry.ts, clock, entry.ran

    def whole(self, results: dict[str, tuple[tuple[str, bytes | None], ...]]) -> Entry:
        """The entry that gives this state by itself."""
        return Entry(
            full=True,
            ts=self.ts,
            clock=self.clock,
            values=self.values,
            emptied=(),
            kinds=self.kinds,
            versions={channel: version for channel, version in self.versions.items() if version != self.clock},
            seen=self.seen,
            ran=self.ran,
            results=results,
            tips=self.tips,
        )

    def versions_seen(self) -> dict[str, dict[str, int]]:
        """By node, as the record that is handed out has it."""
        by_node: dict[str, dict[str, int]] = {}
        for channel, nodes in sorted(self.seen.items()):
            for node, version in nodes.items():
                by_node.setdefault(node, {})[channel] = version
        return dict(sorted(by_node.items()))

    def decode(self, checkpoint_id: CheckpointId, codec: Codec) -> Checkpoint:
        """The record that users get."""
        values = {channel: codec.decode(self.values[channel], channel=channel) for channel in sorted(self.values)}
        sends: Any = values.get(SENDS, ())
        if not isinstance(sends, (list, tuple)):
            raise CorruptCheckpointError(f"checkpoint {checkpoint_id}, channel {SENDS!r}", "it holds no list of sends")
        return Checkpoint(
            v=FORMAT,
            id=checkpoint_id,
            ts=timestamp(self.ts),
            channel_values=values,
            channel_versions=dict(sorted(self.versions.items())),
            versions_seen=self.versions_seen(),
            pending_sends=list(sends),
        )


class Reader:
    """Restores states from rows that share a base.

    Args:
        rows: in the order of their ids, the base first.

    Raises:
        CorruptCheckpointError: no base among them, or later an ancestor is missing or a frame is damaged.
    """

    def __init__(self, thread_id: str, ns: str, rows: Sequence[CheckpointRow]) -> None:
        self.thread_id = thread_id
        self.ns = ns
        self.rows: dict[CheckpointId, CheckpointRow] = {row.checkpoint_id: row for row in rows}
        self._states: dict[CheckpointId, State] = {}
        self._entries: dict[CheckpointId, Entry] = {}

    def state(self, checkpoint_id: CheckpointId) -> State:
        """The state at a checkpoint. Do not change it: copy it first."""
        path: list[CheckpointId] = []
        at: CheckpointId = checkpoint_id
        while at not in self._states:
            row = self.rows.get(at)
            if row is None:
                raise CorruptCheckpointError(self._where(checkpoint_id), f"its ancestor {at} is missing")
            path.append(at)
            if row.base_id == at:
                break
            if row.parent_id is None or row.parent_id >= at:
                raise CorruptCheckpointError(self._where(checkpoint_id), f"the chain of {at} leads to no base")
            at = row.parent_id
        for step in reversed(path):
            entry = self.entry(step)
            base = self.rows[step].base_id == step
            if base != entry.full:
                raise CorruptCheckpointError(self._where(step), "its row and its frame disagree about its base")
            parent = self.rows[step].parent_id
            state = State.empty() if base or parent is None else self._states[parent].copy()
            state.apply(entry)
            self._states[step] = state
        return self._states[checkpoint_id]

    def entry(self, checkpoint_id: CheckpointId) -> Entry:
        """What the superstep before this checkpoint changed."""
        known = self._entries.get(checkpoint_id)
        if known is None:
            where = self._where(checkpoint_id)
            body = unseal(self.rows[checkpoint_id].frame, where)
            known = self._entries[checkpoint_id] = _decode(_entry, body, where)
        return known

    def chain_bytes(self, checkpoint_id: CheckpointId) -> tuple[int, int]:
        """Bytes of the base, and of the entries from it to this checkpoint."""
        after = 0
        row = self.rows[checkpoint_id]
        while row.base_id != row.checkpoint_id:
            after += len(row.frame)
            assert row.parent_id is not None  # `state` has walked this path
            row = self.rows[row.parent_id]
        return len(row.frame), after

    def _where(self, checkpoint_id: CheckpointId) -> str:
        ns = f", namespace {self.ns!r}" if self.ns else ""
        return f"thread {self.thread_id!r}{ns}, checkpoint {checkpoint_id}"


class Ledger:
    """Appends checkpoints to one branch of a namespace.

    Attributes:
        state: the branch's state, encoded.
        tip: the branch's last checkpoint; None before the first.
    """

    def __init__(self, ns: str, state: State, tip: CheckpointRow | None, base_bytes: int, chain_bytes: int) -> None:
        self.ns = ns
        self.state = state
        self.tip = None if tip is None else tip.checkpoint_id
        self._parent = None if tip is None else tip.parent_id
        self._base = None if tip is None else tip.base_id
        self._base_bytes = base_bytes
        self._chain_bytes = chain_bytes

    @classmethod
    def start(cls, ns: str) -> Ledger:
        """A namespace that holds nothing yet."""
        return cls(ns, State.empty(), None, 0, 0)

    @classmethod
    def resume(cls, reader: Reader, checkpoint_id: CheckpointId) -> Ledger:
        """The branch that ends at a stored checkpoint."""
        state = reader.state(checkpoint_id).copy()
        return cls(reader.ns, state, reader.rows[checkpoint_id], *reader.chain_bytes(checkpoint_id))

    def beside(self) -> Ledger:
        """A branch that starts beside the last checkpoint: with its state, and with its parent."""
        made = Ledger(self.ns, self.state.copy(), None, 0, 0)
        made.tip = self._parent
        return made

    def append(
        self, entry: Entry, *, checkpoint_id: CheckpointId, step: int, metadata: dict[str, Any]
    ) -> CheckpointRow:
        """The row of the next checkpoint. It is stored when a commit with it returns; if that fails, drop this
        ledger."""
        self.state.apply(entry)
        frame = b"" if self._base is None else seal(_encode(entry))
        if self._base is None or self._chain_bytes + len(frame) > max(self._base_bytes, SMALL):
            frame = seal(_encode(self.state.whole(entry.results)))
            self._base, self._base_bytes, self._chain_bytes = checkpoint_id, len(frame), 0
        else:
            self._chain_bytes += len(frame)
        row = CheckpointRow(
            ns=self.ns,
            checkpoint_id=checkpoint_id,
            parent_id=self.tip,
            base_id=self._base,
            step=step,
            metadata=metadata,
            frame=frame,
        )
        self._parent, self.tip = self.tip, checkpoint_id
        return row


def write_record(entry: TaskEntry) -> bytes:
    """The frame of a task's record."""
    return seal(_encode(entry))


def read_record(record: TaskRecord, thread_id: str) -> TaskEntry:
    """What a record's frame says. Raises `CorruptCheckpointError`."""
    where = f"thread {thread_id!r}, checkpoint {record.checkpoint_id}, record of task {record.task_id!r}"
    return _decode(_task_entry, unseal(record.frame, where), where)


def timestamp(seconds: float) -> str:
    """ISO 8601 in UTC, of a stored time. Raises `CorruptCheckpointError` when it is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise CorruptCheckpointError("a checkpoint's time", f"{seconds!r} is no time ({error})") from error


def metadata_matches(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Whether all entries of a filter are equal in the metadata. A bool is not a number here."""
    if not filter:
        return True
    for key, wanted in filter.items():
        if key not in metadata:
            return False
        found = metadata[key]
        if found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
            return False
    return True


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes | memoryview, where: str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        # msgspec raises ValidationError and DecodeError, and for some damage UnicodeDecodeError or RecursionError.
        raise CorruptCheckpointError(where, f"its frame cannot be read ({error})") from error
