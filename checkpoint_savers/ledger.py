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
        spent: name of a budget -> the total as text, of those that changed: the digits of an int, or those of a Decimal
            and a "d".
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
    spent: dict[str, str] = {}


def merge(first: Entry, second: Entry) -> Entry:
    """The one entry that does what two do, one after the other.

    It shows the results of the first: those of the tasks that were planned on the checkpoint before both. The tasks
    of the second were planned on one that is never stored.
    """
    results = _spelled_out(first, second)
    if second.full:
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
    return Entry(
        full=first.full,
        ts=second.ts,
        clock=second.clock,
        values=values,
        emptied=() if first.full else tuple(dict.fromkeys((*first.emptied, *second.emptied))),
        kinds=kinds,
        versions=versions,
        seen=seen,
        ran=second.ran,
        results=results,
        tips={**first.tips, **second.tips},
        spent={**first.spent, **second.spent},
    )


def _spelled_out(first: Entry, second: Entry) -> dict[str, tuple[tuple[str, bytes | None], ...]]:
    """The first entry's results, where "the value that the channel has now" is not what it has after the second."""

    def lasts(channel: str) -> bool:
        return not (second.full or channel in second.values or channel in second.emptied)

    return {
        task: tuple(
            [
                (channel, data if data is not None or lasts(channel) else first.values[channel])
                for channel, data in written
                if data is not None or lasts(channel) or channel in first.values
            ]
        )
        for task, written in first.results.items()
    }


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
        spent: as in `Entry`: what it has spent, in all its attempts.
        inside: what graphs have spent, in all, that tasks run which have no result: task id, namespace and amounts.
    """

    name: str
    writes: tuple[tuple[str, bytes], ...] = ()
    routed: bool = True
    error: tuple[str, str, float] | None = None
    interrupts: tuple[tuple[str, bytes], ...] | None = None
    answers: dict[str, bytes] = {}
    handled: bool = False
    spent: dict[str, str] = {}
    inside: tuple[tuple[str, str, dict[str, str]], ...] = ()

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
    spent: dict[str, str]

    @classmethod
    def empty(cls) -> Self:
        return cls(0.0, 0, {}, {}, {}, {}, (), {}, {})

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
            self.spent.copy(),
        )

    def apply(self, entry: Entry) -> None:
        """Go on to the next state, in place."""
        if entry.full:
            self.values, self.kinds, self.versions, self.seen, self.tips, self.spent = {}, {}, {}, {}, {}, {}
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
        self.spent.update(entry.spent)
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
            spent=self.spent,
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


class PutOff(msgspec.Struct, frozen=True):
    """Checkpoints that are not stored one by one: what they changed together, and the last of them.

    Attributes:
        entry: merged.
        checkpoint_id, step, metadata: of the last.
    """

    entry: Entry
    checkpoint_id: CheckpointId
    step: int
    metadata: dict[str, Any]

    @property
    def root(self) -> str | None:
        """The root graph's checkpoint that the last was made on; None for the root graph's own."""
        made_on: str | None = self.metadata.get("parents", {}).get("")
        return made_on

    def then(self, later: PutOff) -> PutOff:
        """These and those that came later."""
        return PutOff(merge(self.entry, later.entry), later.checkpoint_id, later.step, later.metadata)


class Ledger:
    """Appends checkpoints to one branch of a namespace.

    Attributes:
        state: the branch's state, encoded.
        tip: the branch's last checkpoint; None before the first.
        put: what was put off, oldest first: at most two, of which the last is of the newest checkpoint of the root.
    """

    def __init__(self, ns: str, state: State, tip: CheckpointRow | None, base_bytes: int, chain_bytes: int) -> None:
        self.ns = ns
        self.state = state
        self.tip = None if tip is None else tip.checkpoint_id
        self._parent = None if tip is None else tip.parent_id
        self._base = None if tip is None else tip.base_id
        self._base_bytes = base_bytes
        self._chain_bytes = chain_bytes
        self.put: list[PutOff] = []
        self._above: CheckpointId | None = None  # the checkpoint that what was put off comes after,
        self._held: set[str] = set()  # and the channels that it knows

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

    # ---- checkpoints that are not stored one by one ------------------------------------------------------------------

    def put_off(self, entry: Entry, *, checkpoint_id: CheckpointId, step: int, metadata: dict[str, Any]) -> None:
        """Go on to the next checkpoint, and store it later, as one with others: what is held of them does not grow
        with their number.

        Those that were made on one checkpoint of the root become one row, and all that are older another: the root's
        state may say where those had got to.
        """
        made = PutOff(entry, checkpoint_id, step, metadata)
        if not self.put:
            self._above = self.tip
            self._held = {*self.state.values, *self.state.seen}
            self.put = [made]
        elif self.put[-1].root == made.root:
            self.put[-1] = self.put[-1].then(made)
        else:
            self.put = [_together(self.put), made]
        self.state.apply(entry)
        self._parent, self.tip = self.tip, checkpoint_id

    def take_put_off(self, *, all_closed: bool = True) -> tuple[CheckpointRow, ...]:
        """The rows of what was put off. They are stored when a commit with them returns.

        Args:
            all_closed: all were made on checkpoints that the root has left behind: they become one row.
        """
        if not self.put:
            return ()
        rows: list[CheckpointRow] = []
        for put in [_together(self.put)] if all_closed else self.put:
            last = put.checkpoint_id == self.tip
            entry = msgspec.structs.replace(
                put.entry, emptied=tuple([name for name in put.entry.emptied if name in self._held])
            )
            self._held.update(entry.values, entry.seen)
            frame = seal(_encode(entry if self._base is not None else msgspec.structs.replace(entry, full=True)))
            if self._base is None:  # the first of all: nothing was before it
                self._base, self._base_bytes, self._chain_bytes = put.checkpoint_id, len(frame), 0
            elif last and self._chain_bytes + len(frame) > max(self._base_bytes, SMALL):
                frame = seal(_encode(self.state.whole(entry.results)))
                self._base, self._base_bytes, self._chain_bytes = put.checkpoint_id, len(frame), 0
            else:
                self._chain_bytes += len(frame)
            rows.append(
                CheckpointRow(
                    ns=self.ns,
                    checkpoint_id=put.checkpoint_id,
                    parent_id=self._above,
                    base_id=self._base,
                    step=put.step,
                    metadata=put.metadata,
                    frame=frame,
                )
            )
            self._parent, self._above = self._above, put.checkpoint_id
        self.put, self._held = [], set()
        return tuple(rows)

    @property
    def stands(self) -> frozenset[CheckpointId | None]:
        """The checkpoints that are stored, or will be: what is recorded on others is of no use to anybody."""
        above = self._above if self.put else self.tip
        return frozenset((above, *[put.checkpoint_id for put in self.put]))


def _together(put: Sequence[PutOff]) -> PutOff:
    made = put[0]
    for later in put[1:]:
        made = made.then(later)
    return made


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
