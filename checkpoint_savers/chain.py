"""Store a namespace's states as a chain of rows: the delta of each superstep, with snapshots and keyframes in between.

    chain = ChainWriter.start(...) or ChainWriter.resume(reader, checkpoint_id)
    row = chain.append(delta, ...)          writing: a delta becomes a row
    state = reader.state(checkpoint_id)      reading: rows become a state

A `Delta` holds the changes of one superstep. `EncodedState.apply(delta)` is the only way from one state to the next,
for the writer and for readers: the same code makes the state of a live run and a state that is read back.

In a frame, a value that has grown is a patch of an earlier value (see `patches`). The row's kind decides which value it
patches:

    delta       the parent's value
    snapshot    the value in the snapshot before it, or in the keyframe; every `SNAPSHOT_INTERVAL` rows there is one
    keyframe    none: it holds the complete state. One is written when reading the chain would cost more than about
                twice the state

A small keyframe is not followed by snapshots: after `SNAPSHOT_INTERVAL` rows, another keyframe is as cheap. A large one
is followed by a snapshot at once, so that only snapshots, and no deltas, have the keyframe as their base. So a thread
of n appended messages stores each of them about twice, in a delta and in a snapshot, and is read from
n / SNAPSHOT_INTERVAL snapshots and at most SNAPSHOT_INTERVAL deltas. A read costs at most about twice the state.

Values are not decoded here. Each is encoded by itself, so that a value that can no longer be decoded (a removed key of
a removed class) is carried along unchanged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from .codec import Codec
from .deltas import (
    SENDS,
    Delta,
    NewResults,
    Results,
    StoredDelta,
    StoredWrite,
    Tail,
    as_stored,
    merge,
    read_delta,
    timestamp,
    write_delta,
)
from .errors import CorruptCheckpointError
from .patches import (
    EncodedValue,
    IncrementalValue,
    apply_patch,
    as_incremental,
    data_of,
    join_list,
    join_map,
    length_of,
    literal_of,
    size_of,
    split,
)
from .records import FORMAT, Checkpoint, CheckpointId, CheckpointRow, TaskId
from .sharing import filled_sends

SMALL = 2048
"""Bytes that a chain may take beyond twice the state before a keyframe is due."""

LARGE = 4096
"""Bytes from which a keyframe counts as large."""

SNAPSHOT_INTERVAL = 32
"""Number of rows from one snapshot to the next. A larger interval makes reads more expensive; with a smaller one, a
snapshot saves too little to be worth a row."""


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class EncodedState(msgspec.Struct, gc=False):
    """A namespace's state at one checkpoint, with values still encoded. `apply` turns it into the next one, in place.

    Attributes: as in `Delta`, for all channels that are not empty.
    """

    ts: float
    clock: int
    values: dict[str, EncodedValue]
    kinds: dict[str, str]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    ran: tuple[str, ...]
    tips: dict[str, str]
    spent: dict[str, str]

    @classmethod
    def empty(cls) -> Self:
        """Return the state of a namespace without a checkpoint."""
        return cls(0.0, 0, {}, {}, {}, {}, (), {}, {})

    def copy(self) -> EncodedState:
        """Return a copy that `apply` may change. It shares the encoded values, which are never changed in place."""
        return EncodedState(
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

    def apply(self, delta: Delta | StoredDelta, values: dict[str, EncodedValue]) -> None:
        """Advance to the next state, in place.

        Args:
            delta: what the next superstep changed.
            values: the delta's values, with patches applied.
        """
        if delta.keyframe:
            self.values, self.kinds, self.versions, self.seen, self.tips, self.spent = {}, {}, {}, {}, {}, {}
        clock, versions = delta.clock, self.versions
        for channel in delta.emptied:
            # No loop over the dicts, and `in` and `del` instead of `pop`: each superstep empties channels of edges, and
            # a call costs more than a test.
            if channel in self.values:
                del self.values[channel]
            if channel in self.kinds:
                del self.kinds[channel]
            if channel in versions:
                del versions[channel]
            if channel in self.seen:
                del self.seen[channel]
        self.values |= values
        for channel in values:
            versions[channel] = clock
        for channel in delta.seen:
            self.seen[channel] = {**self.seen.get(channel, {}), **delta.seen[channel]}
        # These are usually empty, and testing an empty dict costs less than merging it.
        if delta.kinds:
            self.kinds |= delta.kinds
        if delta.versions:
            versions |= delta.versions
        if delta.tips:
            self.tips |= delta.tips
        if delta.spent:
            self.spent |= delta.spent
        self.ts, self.clock, self.ran = delta.ts, clock, delta.ran

    def delta_since(self, before: EncodedState, results: NewResults) -> Delta:
        """Return the delta that turns an earlier state of the same branch into this one.

        Args:
            before: the earlier state.
            results: the results to store in the delta.
        """
        emptied = (*[name for name in before.values if name not in self.values], *self._rewritten(before))
        anew = {*emptied, *[name for name in self.values if name not in before.values]}
        values = {
            name: value
            for name, value in self.values.items()
            if name in anew or value is not before.values[name] or self.versions[name] != before.versions[name]
        }
        return Delta(
            keyframe=False,
            ts=self.ts,
            clock=self.clock,
            values=values,
            emptied=emptied,
            kinds={name: kind for name, kind in self.kinds.items() if name in anew or before.kinds.get(name) != kind},
            versions={name: self.versions[name] for name in values if self.versions[name] != self.clock},
            seen={name: nodes for name, nodes in self.seen.items() if name in anew or before.seen.get(name) != nodes},
            ran=self.ran,
            results=results,
            tips={ns: tip for ns, tip in self.tips.items() if before.tips.get(ns) != tip},
            spent={name: total for name, total in self.spent.items() if before.spent.get(name) != total},
        )

    def _rewritten(self, before: EncodedState) -> list[str]:
        """Return the channels of both states that were emptied and written again, as far as that can be seen.

        Such a channel has moved in the order of channels, or fewer nodes have seen it.
        """
        expected = iter([name for name in before.values if name in self.values])
        moved: list[str] = []
        for name in self.values:
            if name in before.values:
                fewer = not before.seen.get(name, {}).keys() <= self.seen.get(name, {}).keys()
                if moved or fewer or next(expected, None) != name:
                    moved.append(name)
            else:
                expected = iter(())  # channels are in write order: all after a new one moved
        return moved

    def as_keyframe(self, results: NewResults) -> Delta:
        """Return the delta that gives this state by itself.

        Args:
            results: the results to store in it.
        """
        return Delta(
            keyframe=True,
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
        """Return the versions that nodes have seen, by node and channel, both sorted.

        Returns:
            Node -> channel -> version, as `Checkpoint` has it.
        """
        by_node: dict[str, dict[str, int]] = {}
        for channel, nodes in sorted(self.seen.items()):
            for node, version in nodes.items():
                by_node.setdefault(node, {})[channel] = version
        return dict(sorted(by_node.items()))

    def decode(self, checkpoint_id: CheckpointId, codec: Codec) -> Checkpoint:
        """Return the checkpoint as users get it.

        Args:
            checkpoint_id: the checkpoint's id.
            codec: decodes the values.

        Raises:
            CorruptCheckpointError: a value is damaged, or a send refers to a value that is not stored.
            UnknownTypeError: a value's type is not registered.
        """
        values = {
            channel: codec.decode(data_of(self.values[channel]), channel=channel) for channel in sorted(self.values)
        }
        sends: Any = values.get(SENDS, ())
        if not isinstance(sends, (list, tuple)):
            raise CorruptCheckpointError(f"checkpoint {checkpoint_id}, channel {SENDS!r}", "it holds no list of sends")
        if sends:
            sends = values[SENDS] = filled_sends(sends, values.__getitem__, f"checkpoint {checkpoint_id}")
        return Checkpoint(
            v=FORMAT,
            id=checkpoint_id,
            ts=timestamp(self.ts),
            channel_values=values,
            channel_versions=dict(sorted(self.versions.items())),
            versions_seen=self.versions_seen(),
            pending_sends=list(sends),
        )


class ChainReader:
    """Restores states from rows.

    Args:
        thread_id: the thread, for errors.
        ns: the namespace.
        rows: rows of the namespace; the chain of each requested checkpoint must be among them.
        keeps_states: retain the states between a keyframe and the requested one, for requests that follow.

    Raises:
        CorruptCheckpointError: by its methods: a row of a chain is missing, or a frame is damaged.
    """

    def __init__(self, thread_id: str, ns: str, rows: Iterable[CheckpointRow], *, keeps_states: bool = False) -> None:
        self.thread_id = thread_id
        self.ns = ns
        self.rows: dict[CheckpointId, CheckpointRow] = {row.checkpoint_id: row for row in rows}
        self._keeps_states = keeps_states
        self._place = f"thread {thread_id!r}{f', namespace {ns!r}' if ns else ''}, checkpoint "
        self._states: dict[CheckpointId, EncodedState] = {}
        self._deltas: dict[CheckpointId, StoredDelta] = {}

    def add(self, rows: Iterable[CheckpointRow]) -> None:
        """Add rows.

        Args:
            rows: further rows of the namespace.
        """
        self.rows.update([(row.checkpoint_id, row) for row in rows])

    def state(self, checkpoint_id: CheckpointId) -> EncodedState:
        """Return the state at a checkpoint. Do not change it: copy it first.

        Args:
            checkpoint_id: a checkpoint whose chain is among the rows.

        Raises:
            CorruptCheckpointError: a row of its chain is missing or damaged.
        """
        known = self._states.get(checkpoint_id)
        if known is not None:
            return known
        path = self.path(checkpoint_id, self._states)
        start = self._states.get(path[-1])
        state = EncodedState.empty() if start is None else start.copy()
        snapshot = next((at for at in path[:-1] if self._deltas[at].since), None)  # the last one
        for at in reversed(path if start is None else path[:-1]):
            stored = self._deltas[at]
            state.apply(stored, self._values(at, stored, state))
            # Other checkpoints of the chain are read from its keyframe and its last snapshot: these two are worth a
            # copy of the state. All others are copied only on request, since a copy takes time in proportion to the
            # state.
            if at != checkpoint_id and (self._keeps_states or stored.keyframe or at == snapshot):
                self._states[at] = state.copy()
        self._states[checkpoint_id] = state
        return state

    def path(self, checkpoint_id: CheckpointId, known: Container[CheckpointId] = ()) -> list[CheckpointId]:
        """Return the checkpoints that a state is read from: the requested one, back to a keyframe or to a known state.

        Args:
            checkpoint_id: the requested checkpoint.
            known: checkpoints at which the path may end.

        Raises:
            CorruptCheckpointError: a row is missing, or row and frame disagree about the base.
        """
        path: list[CheckpointId] = []
        at = checkpoint_id
        while True:
            row = self.rows.get(at)
            if row is None:
                raise CorruptCheckpointError(self._where(checkpoint_id), f"its ancestor {at} is missing")
            path.append(at)
            if at in known:
                return path
            stored = self.stored(at)
            if stored.keyframe is not (row.base_id == at):
                raise CorruptCheckpointError(self._where(at), "its row and its frame disagree about its base")
            if stored.keyframe:
                return path
            before = CheckpointId(stored.since) if stored.since else row.parent_id
            # Ids grow along a branch. Without this check, damaged links could form a cycle, and the loop would not end.
            if before is None or before >= at:
                raise CorruptCheckpointError(self._where(checkpoint_id), f"the chain of {at} leads to no keyframe")
            at = before

    def stored(self, checkpoint_id: CheckpointId) -> StoredDelta:
        """Return the content of a row's frame, decoded once.

        Args:
            checkpoint_id: a checkpoint among the rows.

        Raises:
            CorruptCheckpointError: the frame is damaged.
        """
        known = self._deltas.get(checkpoint_id)
        if known is None:
            frame = self.rows[checkpoint_id].frame
            known = self._deltas[checkpoint_id] = read_delta(frame, self._where(checkpoint_id))
        return known

    def results(self, checkpoint_id: CheckpointId) -> Results:
        """Return the results of the superstep before a checkpoint, of the tasks that have no record of their own.

        Args:
            checkpoint_id: a checkpoint among the rows.
        """
        return {
            task: self._resolve_all(checkpoint_id, writes)
            for task, writes in self.stored(checkpoint_id).results.items()
        }

    def result(self, checkpoint_id: CheckpointId, task: TaskId) -> tuple[tuple[str, bytes | None], ...] | None:
        """Return the result of one task of the superstep before a checkpoint; None if the row does not hold it.

        Args:
            checkpoint_id: a checkpoint among the rows.
            task: the task's id.
        """
        writes = self.stored(checkpoint_id).results.get(task)
        return None if writes is None else self._resolve_all(checkpoint_id, writes)

    def row(
        self,
        checkpoint_id: CheckpointId,
        *,
        parent_id: CheckpointId | None,
        base_id: CheckpointId,
        since: CheckpointId | None = None,
    ) -> CheckpointRow:
        """Return a checkpoint's row written again with another base, with the same state and results.

        Args:
            checkpoint_id: a checkpoint among the rows.
            parent_id: its parent.
            base_id: its base; `checkpoint_id` itself for a keyframe.
            since: for a snapshot: the snapshot before it, or their keyframe.
        """
        row, results = self.rows[checkpoint_id], self.results(checkpoint_id)
        state = self.state(checkpoint_id)
        if since is None:
            stored = as_stored(state.as_keyframe(results), {})
        else:
            mark = self.state(since)
            stored = as_stored(state.delta_since(mark, results), mark.values, since=since)
        frame = write_delta(stored)
        return msgspec.structs.replace(row, parent_id=parent_id, base_id=base_id, frame=frame)

    def _resolve_all(
        self, checkpoint_id: CheckpointId, writes: tuple[tuple[str, StoredWrite], ...]
    ) -> tuple[tuple[str, bytes | None], ...]:
        return tuple([(channel, self._resolve(write, channel, checkpoint_id)) for channel, write in writes])

    def _resolve(self, write: StoredWrite, channel: str, checkpoint_id: CheckpointId) -> bytes | None:
        if write is None or isinstance(write, bytes):
            return write
        if isinstance(write, Tail):
            patch = self.stored(checkpoint_id).values.get(channel, b"")
            literal = None if isinstance(patch, bytes) else literal_of(patch)
            if literal is not None:
                if write.first == 0 and write.count == length_of(literal):
                    return literal
                return join_list(split(literal)[write.first : write.first + write.count])
        else:
            value = self.state(checkpoint_id).values.get(channel)
            parts = value.parts if isinstance(value, IncrementalValue) else None
            if isinstance(parts, dict) and parts.keys() >= set(write.keys):
                return join_map({key: parts[key] for key in write.keys})
        raise CorruptCheckpointError(self._where(checkpoint_id), f"a result refers to what {channel!r} does not hold")

    def _values(
        self, checkpoint_id: CheckpointId, stored: StoredDelta, before: EncodedState
    ) -> dict[str, EncodedValue]:
        """Return the values that a row changes, with patches applied to the state before it."""
        values: dict[str, EncodedValue] = {}
        for name, data in stored.values.items():
            if isinstance(data, bytes):
                values[name] = as_incremental(data)
                continue
            try:
                values[name] = apply_patch(before.values.get(name), data)
            except ValueError as error:
                raise CorruptCheckpointError(self._where(checkpoint_id), str(error)) from error
        return values

    def _where(self, checkpoint_id: CheckpointId) -> str:
        return self._place + checkpoint_id


class DeferredCheckpoint(msgspec.Struct, frozen=True):
    """Checkpoints that are not stored one by one: their merged delta, and the last of them.

    Attributes:
        delta: the merged delta.
        checkpoint_id, step, metadata: those of the last checkpoint.
    """

    delta: Delta
    checkpoint_id: CheckpointId
    step: int
    metadata: dict[str, Any]

    @property
    def root(self) -> str | None:
        """The root graph's checkpoint that the last one was made on; None in the root's namespace."""
        made_on: str | None = self.metadata.get("parents", {}).get("")
        return made_on

    def then(self, later: DeferredCheckpoint) -> DeferredCheckpoint:
        """Return these checkpoints merged with later ones.

        Args:
            later: checkpoints that follow these.
        """
        return DeferredCheckpoint(merge(self.delta, later.delta), later.checkpoint_id, later.step, later.metadata)


class ChainWriter:
    """Appends checkpoints to one branch of a namespace.

    Attributes:
        ns: the namespace.
        state: the branch's state, encoded.
        tip: the branch's last checkpoint; None before the first.
        deferred: deferred checkpoints, oldest first: at most two, of which the last belongs to the newest checkpoint of
            the root.
    """

    def __init__(self, ns: str, state: EncodedState, tip: CheckpointId | None, parent: CheckpointId | None) -> None:
        self.ns = ns
        self.state = state
        self.tip = tip
        self.deferred: list[DeferredCheckpoint] = []
        self._parent = parent
        self._keyframe: CheckpointId | None = None  # of the current chain; None before the first row
        self._is_large = False  # the keyframe's size is at least LARGE
        self._base: CheckpointId | None = None  # the last snapshot, or the keyframe
        self._base_state = EncodedState.empty()
        self._deltas_since_base = 0  # number of rows
        self._delta_bytes = 0  # of these rows
        self._read_bytes = 0  # of the keyframe and the snapshots
        # Estimate of a new keyframe's size: the last keyframe's, plus the growth since. Encoding the state to measure
        # it would cost as much as the keyframe itself, at every superstep.
        self._keyframe_bytes = 0
        # State and tip before the first deferred checkpoint: merged deltas are appended to these.
        self._before_deferred: tuple[EncodedState, CheckpointId | None] = (self.state, None)
        # True once the branch has had an incremental value. Before, `as_stored` and `_weigh` would change nothing.
        self._has_incremental = IncrementalValue in map(type, state.values.values())

    @classmethod
    def start(cls, ns: str) -> ChainWriter:
        """Return a writer for a namespace that holds no checkpoint.

        Args:
            ns: the namespace.
        """
        return cls(ns, EncodedState.empty(), None, None)

    @classmethod
    def resume(cls, reader: ChainReader, checkpoint_id: CheckpointId) -> ChainWriter:
        """Return a writer for the branch that ends at a stored checkpoint.

        It writes the same rows as a writer that had made the branch itself.

        Args:
            reader: has the checkpoint's chain.
            checkpoint_id: the branch's last checkpoint.
        """
        row = reader.rows[checkpoint_id]
        path = reader.path(checkpoint_id)
        writer = cls(reader.ns, reader.state(checkpoint_id).copy(), checkpoint_id, row.parent_id)
        marks = [at for at in path if reader.stored(at).keyframe or reader.stored(at).since]
        writer._keyframe, writer._base = path[-1], marks[0]
        writer._is_large = len(reader.rows[path[-1]].frame) >= LARGE
        writer._base_state = reader.state(marks[0])
        writer._deltas_since_base = path.index(marks[0])
        writer._delta_bytes = sum([len(reader.rows[at].frame) for at in path[: writer._deltas_since_base]])
        writer._read_bytes = sum([len(reader.rows[at].frame) for at in marks])
        writer._keyframe_bytes = len(reader.rows[path[-1]].frame)
        full = reader.state(path[-1]).values
        writer._weigh(full, writer.state.values, full)
        return writer

    def sibling(self) -> ChainWriter:
        """Return a writer for a branch beginning at the parent of the last checkpoint, with the last one's state."""
        return ChainWriter(self.ns, self.state.copy(), self._parent, None)

    def append(
        self, delta: Delta, *, checkpoint_id: CheckpointId, step: int, metadata: dict[str, Any]
    ) -> CheckpointRow:
        """Append a checkpoint and return its row.

        The row is stored when a commit with it returns. If the commit fails, discard this writer: its state is ahead of
        what is stored.

        Args:
            delta: what the superstep changed.
            checkpoint_id: the new checkpoint.
            step: the superstep's number.
            metadata: the checkpoint's metadata.
        """
        before, values = self.state.values, delta.values
        stored: StoredDelta | Delta | None = delta
        if self._has_incremental or IncrementalValue in map(type, values.values()):
            self._has_incremental = True
            stored = as_stored(delta, before)
            self._weigh(before, values, delta.emptied)
        self.state.apply(delta, values)
        if self._base is None:
            stored = None  # the first row is a keyframe, which is made of the state
        parent, self._parent, self.tip = self.tip, self.tip, checkpoint_id
        return self._row(stored, delta.results, parent, checkpoint_id, step, metadata)

    def _row(
        self,
        stored: StoredDelta | Delta | None,
        results: NewResults,
        parent: CheckpointId | None,
        checkpoint_id: CheckpointId,
        step: int,
        metadata: dict[str, Any],
    ) -> CheckpointRow:
        """Return the row of the current state, of the kind that is due.

        Args:
            stored: the changes since the parent; None if a keyframe is due.
        """
        frame = b"" if stored is None else write_delta(stored)
        size = len(frame)
        read = self._read_bytes + self._delta_bytes + size
        is_first = self._base == self._keyframe  # since the keyframe
        is_due = self._deltas_since_base >= SNAPSHOT_INTERVAL or (is_first and self._is_large)
        # A keyframe is due when reading the chain would cost more than about twice the state, or instead of the first
        # snapshot after a small keyframe, which would save little.
        if stored is None or read > 2 * self._keyframe_bytes + SMALL or (is_due and is_first and not self._is_large):
            frame = write_delta(as_stored(self.state.as_keyframe(results), {}))
            self._keyframe, self._read_bytes, self._keyframe_bytes = checkpoint_id, len(frame), len(frame)
            self._is_large = len(frame) >= LARGE
            base = checkpoint_id
            self._start_segment(checkpoint_id)
        elif is_due:
            assert self._keyframe is not None and self._base is not None
            delta = as_stored(
                self.state.delta_since(self._base_state, results), self._base_state.values, since=self._base
            )
            frame = write_delta(delta)
            self._read_bytes += len(frame)
            base = self._keyframe
            self._start_segment(checkpoint_id)
        else:
            assert self._base is not None
            self._deltas_since_base += 1
            self._delta_bytes += size
            base = self._base
        return CheckpointRow(
            ns=self.ns,
            checkpoint_id=checkpoint_id,
            parent_id=parent,
            base_id=base,
            step=step,
            metadata=metadata,
            frame=frame,
        )

    def _weigh(
        self, before: Mapping[str, EncodedValue], now: Mapping[str, EncodedValue], emptied: Iterable[str]
    ) -> None:
        """Update the estimated size of a keyframe by what channels have grown or shrunk.

        Args:
            before: the values before.
            now: the values that changed.
            emptied: channels that became empty, unless they are in `now`.
        """
        for name in emptied:
            if name not in now and name in before and type(old := before[name]) is IncrementalValue:
                self._keyframe_bytes -= size_of(old)
        for name, new in now.items():
            old = before[name] if name in before else b""
            if type(old) is IncrementalValue or type(new) is IncrementalValue:
                self._keyframe_bytes += size_of(new) - size_of(old)

    def _start_segment(self, checkpoint_id: CheckpointId) -> None:
        """Use the row that was just written as the base of the rows that follow."""
        self._base, self._base_state = checkpoint_id, self.state.copy()
        self._deltas_since_base = self._delta_bytes = 0

    def defer(self, delta: Delta, *, checkpoint_id: CheckpointId, step: int, metadata: dict[str, Any]) -> None:
        """Advance to the next checkpoint without a row; `take_deferred` makes rows of all deferred ones.

        Memory does not grow with their number: checkpoints made on one checkpoint of the root are merged into one, and
        all older ones into another.

        Args:
            delta: what the superstep changed.
            checkpoint_id: the new checkpoint.
            step: the superstep's number.
            metadata: the checkpoint's metadata.
        """
        # Two merged checkpoints and not one: the root's stored state may refer to this namespace's tip on the
        # root's previous checkpoint (`Delta.tips`).
        made = DeferredCheckpoint(delta, checkpoint_id, step, metadata)
        if not self.deferred:
            self._before_deferred = self.state.copy(), self.tip
            self.deferred = [made]
        elif self.deferred[-1].root == made.root:
            self.deferred[-1] = self.deferred[-1].then(made)
        else:
            self.deferred = [_merge_all(self.deferred), made]
        self.state.apply(delta, delta.values)
        self._has_incremental = self._has_incremental or IncrementalValue in map(type, delta.values.values())
        self._parent, self.tip = self.tip, checkpoint_id

    def take_deferred(self, *, all_closed: bool = True) -> tuple[CheckpointRow, ...]:
        """Return the rows of the deferred checkpoints. They are stored when a commit with them returns.

        Args:
            all_closed: True if the root has closed the supersteps that they were all made in: they become one row.
        """
        if not self.deferred:
            return ()
        taken = [_merge_all(self.deferred)] if all_closed else self.deferred
        self.deferred = []
        self.state, self.tip = self._before_deferred
        rows: list[CheckpointRow] = []
        for deferred in taken:
            # A merged delta may empty channels that no stored state ever held: these are dropped.
            held = self.state.values.keys() | self.state.seen.keys()
            delta = msgspec.structs.replace(
                deferred.delta, emptied=tuple([name for name in deferred.delta.emptied if name in held])
            )
            rows.append(
                self.append(delta, checkpoint_id=deferred.checkpoint_id, step=deferred.step, metadata=deferred.metadata)
            )
        return tuple(rows)

    @property
    def deferred_parent(self) -> CheckpointId | None:
        """The checkpoint that the deferred ones follow: the last one that has a row."""
        return self._before_deferred[1] if self.deferred else self.tip

    @property
    def stored_checkpoints(self) -> frozenset[CheckpointId | None]:
        """The checkpoints that are stored, or will be. Records on any other checkpoint of the branch are of no use."""
        return frozenset((self.deferred_parent, *[deferred.checkpoint_id for deferred in self.deferred]))


def _merge_all(deferred: Sequence[DeferredCheckpoint]) -> DeferredCheckpoint:
    made = deferred[0]
    for later in deferred[1:]:
        made = made.then(later)
    return made
