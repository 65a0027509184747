"""How a thread's states are laid out in frames: what each superstep changed, and from time to time everything.

    chain = ChainWriter.start(...) or ChainWriter.resume(reader, checkpoint_id)
    row = chain.append(delta, ...)          writing: a delta becomes a row
    state = reader.state(checkpoint_id)      reading: rows become a state

A `Delta` says what one superstep changed. `EncodedState.apply(delta)` is the only way from one state to the next, for
the writer and for readers: the state of a live run and a state that is read back are made by the same code.

In a frame, a value that has grown is a patch of the one before (see `patches`). Which one is before, is the row's kind
    step        the parent's
    milestone   that of the milestone before it, or of the full row: each `SNAPSHOT_INTERVAL` rows there is one
    full        none: everything is in it. One is written when what has to be read has outgrown what it says

After a small full row there is no milestone: after `SNAPSHOT_INTERVAL` rows another full row is as good. After a large
one a milestone follows at once, so that what stands beside the full row are milestones alone. So a thread of n appended
messages is stored twice and a bit, in a step and in a milestone, and is read from n / STEPS milestones and at most
STEPS steps. A read costs at most about twice the state.

Values stay encoded here. Each is encoded by itself, so that a value nobody can decode any more (a removed key of a
removed class) is carried along untouched.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from .codec import Codec
from .deltas import (
    SENDS,
    Delta,
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
"""Bytes that a chain may take before the size of what it says is asked."""

LARGE = 4096
"""Bytes from which on a full row is large."""

SNAPSHOT_INTERVAL = 32
"""Rows from one milestone to the next. More make reading dearer, fewer make milestones that are hardly worth a row."""


class EncodedState(msgspec.Struct, gc=False):
    """A namespace's state at one checkpoint, with values still encoded. `apply` makes the next one of a copy.

    Attributes: as in `Delta`, for all channels that hold something.
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
        return cls(0.0, 0, {}, {}, {}, {}, (), {}, {})

    def copy(self) -> EncodedState:
        """A copy that `apply` may change; encoded values are shared, as they are never changed in place."""
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
        """Go on to the next state, in place.

        Args:
            values: the delta's.
        """
        if delta.keyframe:
            self.values, self.kinds, self.versions, self.seen, self.tips, self.spent = {}, {}, {}, {}, {}, {}
        for channel in delta.emptied:
            self.values.pop(channel, None)
            self.kinds.pop(channel, None)
            self.versions.pop(channel, None)
            self.seen.pop(channel, None)
        self.values.update(values)
        clock, versions = delta.clock, self.versions
        for channel in values:
            versions[channel] = clock
        for channel, nodes in delta.seen.items():
            self.seen[channel] = {**self.seen.get(channel, {}), **nodes}
        if delta.kinds:
            self.kinds.update(delta.kinds)
        if delta.versions:
            versions.update(delta.versions)
        if delta.tips:
            self.tips.update(delta.tips)
        if delta.spent:
            self.spent.update(delta.spent)
        self.ts, self.clock, self.ran = delta.ts, clock, delta.ran

    def delta_since(self, before: EncodedState, results: Results) -> Delta:
        """The delta that gives this state when it is applied to an earlier one of the same branch."""
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
        """The channels of both that were emptied and written again, as far as that can be seen: they stand elsewhere
        than if not, or fewer nodes have seen them."""
        stood = iter([name for name in before.values if name in self.values])
        moved: list[str] = []
        for name in self.values:
            if name in before.values:
                fewer = not before.seen.get(name, {}).keys() <= self.seen.get(name, {}).keys()
                if moved or fewer or next(stood, None) != name:
                    moved.append(name)
            else:
                stood = iter(())  # what comes after a new one was written after it
        return moved

    def as_keyframe(self, results: Results) -> Delta:
        """The delta that gives this state by itself."""
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
        """By node, as the record that is handed out has it."""
        by_node: dict[str, dict[str, int]] = {}
        for channel, nodes in sorted(self.seen.items()):
            for node, version in nodes.items():
                by_node.setdefault(node, {})[channel] = version
        return dict(sorted(by_node.items()))

    def decode(self, checkpoint_id: CheckpointId, codec: Codec) -> Checkpoint:
        """The record that users get."""
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
        rows: of one namespace; the chain of each that is asked for must be among them.
        keeps: hold on to the states on the way, as others are asked for.

    Raises:
        CorruptCheckpointError: a row of a chain is missing, or a frame is damaged.
    """

    def __init__(self, thread_id: str, ns: str, rows: Iterable[CheckpointRow], *, keeps: bool = False) -> None:
        self.thread_id = thread_id
        self.ns = ns
        self.rows: dict[CheckpointId, CheckpointRow] = {row.checkpoint_id: row for row in rows}
        self._keeps = keeps
        self._place = f"thread {thread_id!r}{f', namespace {ns!r}' if ns else ''}, checkpoint "
        self._states: dict[CheckpointId, EncodedState] = {}
        self._deltas: dict[CheckpointId, StoredDelta] = {}

    def add(self, rows: Iterable[CheckpointRow]) -> None:
        """More rows."""
        self.rows.update([(row.checkpoint_id, row) for row in rows])

    def state(self, checkpoint_id: CheckpointId) -> EncodedState:
        """The state at a checkpoint. Do not change it: copy it first."""
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
            if at != checkpoint_id and (self._keeps or stored.keyframe or at == snapshot):  # others start there
                self._states[at] = state.copy()
        self._states[checkpoint_id] = state
        return state

    def path(self, checkpoint_id: CheckpointId, known: Container[CheckpointId] = ()) -> list[CheckpointId]:
        """The rows that a checkpoint is read from, it first, back to a full one, or to one of those that are known."""
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
            if before is None or before >= at:
                raise CorruptCheckpointError(self._where(checkpoint_id), f"the chain of {at} leads to no full row")
            at = before

    def stored(self, checkpoint_id: CheckpointId) -> StoredDelta:
        """What a row's frame says."""
        known = self._deltas.get(checkpoint_id)
        if known is None:
            frame = self.rows[checkpoint_id].frame
            known = self._deltas[checkpoint_id] = read_delta(frame, self._where(checkpoint_id))
        return known

    def results(self, checkpoint_id: CheckpointId) -> Results:
        """The results of the superstep before this checkpoint, of the tasks that have no record of their own."""
        return {
            task: self._resolve_all(checkpoint_id, writes)
            for task, writes in self.stored(checkpoint_id).results.items()
        }

    def result(self, checkpoint_id: CheckpointId, task: TaskId) -> tuple[tuple[str, bytes | None], ...] | None:
        """That of one task; None when it is not among them."""
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
        """A checkpoint's row made anew, with the same state and results.

        Args:
            parent_id: what it came from.
            base_id: what it is read with; itself makes it a full row.
            since: makes it a milestone: the milestone before it, or their full row.
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
        """The values that a row changes in the state that it was made on."""
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


class DeferredCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Checkpoints that are not stored one by one: what they changed together, and the last of them.

    Attributes:
        delta: merged.
        checkpoint_id, step, metadata: of the last.
    """

    delta: Delta
    checkpoint_id: CheckpointId
    step: int
    metadata: dict[str, Any]

    @property
    def root(self) -> str | None:
        """The root graph's checkpoint that the last was made on; None for the root graph's own."""
        made_on: str | None = self.metadata.get("parents", {}).get("")
        return made_on

    def then(self, later: DeferredCheckpoint) -> DeferredCheckpoint:
        """These and those that came later."""
        return DeferredCheckpoint(merge(self.delta, later.delta), later.checkpoint_id, later.step, later.metadata)


class ChainWriter:
    """Appends checkpoints to one branch of a namespace.

    Attributes:
        state: the branch's state, encoded.
        tip: the branch's last checkpoint; None before the first.
        put: what was put off, oldest first: at most two, of which the last is of the newest checkpoint of the root.
    """

    def __init__(self, ns: str, state: EncodedState, tip: CheckpointId | None, parent: CheckpointId | None) -> None:
        self.ns = ns
        self.state = state
        self.tip = tip
        self.deferred: list[DeferredCheckpoint] = []
        self._parent = parent
        self._keyframe: CheckpointId | None = None  # of the chain that it goes on with; None before the first row
        self._is_large = False  # whether that is
        self._base: CheckpointId | None = None  # the last milestone, or the full row,
        self._base_state = EncodedState.empty()  # the state there,
        self._deltas_since_base = 0  # how many rows have followed it,
        self._delta_bytes = 0  # with how many bytes,
        self._read_bytes = 0  # and what full row and milestones take
        self._keyframe_bytes = 0  # what a full row would take, about: what the last took, and what has grown since
        self._before_deferred: tuple[EncodedState, CheckpointId | None] = (
            self.state,
            None,
        )  # where it stood before what was put off

    @classmethod
    def start(cls, ns: str) -> ChainWriter:
        """A namespace that holds nothing yet."""
        return cls(ns, EncodedState.empty(), None, None)

    @classmethod
    def resume(cls, reader: ChainReader, checkpoint_id: CheckpointId) -> ChainWriter:
        """The branch that ends at a stored checkpoint."""
        row = reader.rows[checkpoint_id]
        path = reader.path(checkpoint_id)
        made = cls(reader.ns, reader.state(checkpoint_id).copy(), checkpoint_id, row.parent_id)
        marks = [at for at in path if reader.stored(at).keyframe or reader.stored(at).since]
        made._keyframe, made._base = path[-1], marks[0]
        made._is_large = len(reader.rows[path[-1]].frame) >= LARGE
        made._base_state = reader.state(marks[0])
        made._deltas_since_base = path.index(marks[0])
        made._delta_bytes = sum([len(reader.rows[at].frame) for at in path[: made._deltas_since_base]])
        made._read_bytes = sum([len(reader.rows[at].frame) for at in marks])
        made._keyframe_bytes = len(reader.rows[path[-1]].frame)
        full = reader.state(path[-1]).values
        made._weigh(full, made.state.values, full.keys() | made.state.values.keys())
        return made

    def sibling(self) -> ChainWriter:
        """A branch that starts beside the last checkpoint: with its state, and with its parent."""
        return ChainWriter(self.ns, self.state.copy(), self._parent, None)

    def append(
        self, delta: Delta, *, checkpoint_id: CheckpointId, step: int, metadata: dict[str, Any]
    ) -> CheckpointRow:
        """The row of the next checkpoint. It is stored when a commit with it returns; if that fails, drop this
        chain."""
        before = self.state.values
        stored = as_stored(delta, before) if self._base is not None else None
        self._weigh(before, delta.values, {*delta.emptied, *delta.values} if delta.emptied else delta.values)
        self.state.apply(delta, delta.values)
        parent, self._parent, self.tip = self.tip, self.tip, checkpoint_id
        return self._row(stored, delta.results, parent, checkpoint_id, step, metadata)

    def _row(
        self,
        stored: StoredDelta | Delta | None,
        results: Results,
        parent: CheckpointId | None,
        checkpoint_id: CheckpointId,
        step: int,
        metadata: dict[str, Any],
    ) -> CheckpointRow:
        """The row of the state as it stands: of the kind that is due.

        Args:
            stored: what is new since the parent; None when a full row is due.
        """
        frame = b"" if stored is None else write_delta(stored)
        read = self._read_bytes + self._delta_bytes + len(frame)
        is_first = self._base == self._keyframe  # of the rows after the full one
        is_due = self._deltas_since_base >= SNAPSHOT_INTERVAL or (is_first and self._is_large)
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
            self._delta_bytes += len(frame)
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

    def _weigh(self, before: Mapping[str, EncodedValue], now: Mapping[str, EncodedValue], names: Iterable[str]) -> None:
        """Count what these channels take more than before, or less, in a full row."""
        for name in names:
            old, new = before.get(name, b""), now.get(name, b"")
            if type(old) is IncrementalValue or type(new) is IncrementalValue:
                self._keyframe_bytes += size_of(new) - size_of(old)

    def _start_segment(self, checkpoint_id: CheckpointId) -> None:
        self._base, self._base_state = checkpoint_id, self.state.copy()
        self._deltas_since_base = self._delta_bytes = 0

    def defer(self, delta: Delta, *, checkpoint_id: CheckpointId, step: int, metadata: dict[str, Any]) -> None:
        """Go on to the next checkpoint, and store it later, as one with others: what is held of them does not grow
        with their number.

        Those that were made on one checkpoint of the root become one row, and all that are older another: the root's
        state may say where those had got to.
        """
        made = DeferredCheckpoint(delta, checkpoint_id, step, metadata)
        if not self.deferred:
            self._before_deferred = self.state.copy(), self.tip
            self.deferred = [made]
        elif self.deferred[-1].root == made.root:
            self.deferred[-1] = self.deferred[-1].then(made)
        else:
            self.deferred = [_merge_all(self.deferred), made]
        self.state.apply(delta, delta.values)
        self._parent, self.tip = self.tip, checkpoint_id

    def take_deferred(self, *, all_closed: bool = True) -> tuple[CheckpointRow, ...]:
        """The rows of what was put off. They are stored when a commit with them returns.

        Args:
            all_closed: all were made on checkpoints that the root has left behind: they become one row.
        """
        if not self.deferred:
            return ()
        taken = [_merge_all(self.deferred)] if all_closed else self.deferred
        self.deferred = []
        self.state, self.tip = self._before_deferred
        rows: list[CheckpointRow] = []
        for put in taken:
            held = self.state.values.keys() | self.state.seen.keys()
            delta = msgspec.structs.replace(
                put.delta, emptied=tuple([name for name in put.delta.emptied if name in held])
            )
            rows.append(self.append(delta, checkpoint_id=put.checkpoint_id, step=put.step, metadata=put.metadata))
        return tuple(rows)

    @property
    def deferred_parent(self) -> CheckpointId | None:
        """The checkpoint that what was put off is made on: the last one that is stored, or waits by itself."""
        return self._before_deferred[1] if self.deferred else self.tip

    @property
    def stored_checkpoints(self) -> frozenset[CheckpointId | None]:
        """The checkpoints that are stored, or will be: what is recorded on others is of no use to anybody."""
        return frozenset((self.deferred_parent, *[put.checkpoint_id for put in self.deferred]))


def _merge_all(put: Sequence[DeferredCheckpoint]) -> DeferredCheckpoint:
    made = put[0]
    for later in put[1:]:
        made = made.then(later)
    return made
