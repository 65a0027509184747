"""The records that pass through the savers' port: what a run leases, commits and records, and what is read back.

A saver stores rows whose payload is a *frame*: opaque bytes, sealed by the codec with a format number, a length and
a checksum. It needs to understand keys, heads and leases, and never a value.

How a thread is laid out
    Every namespace of a thread (`""` is the root graph's) is a tree of checkpoints, linked by `parent_id`; the
    namespace's *head* is the tip of the branch that was last run or made. A checkpoint's row says what its superstep
    changed. Its state is read from the rows of its *chain*, which starts at its base. There are three kinds of rows:

        full        it holds everything, and is its own base
        milestone   it holds all that has changed since the milestone before it; its base is a full row
        step        it holds what has changed since its parent; its base is the nearest milestone or full row

    So a chain is a full row, the milestones after it, and the steps after the last of them: `read` returns it with one
    query of two ranges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NewType, TypedDict

import msgspec

CheckpointId = NewType("CheckpointId", str)
"""A UUID in its canonical spelling: 36 characters, in lower case. Unique; sorts, as a string, by creation, and is
greater than its parent's. Events that were shown before there was a checkpoint have the empty text in its place."""

_is_uuid = re.compile("[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch


def is_checkpoint_id(text: str) -> bool:
    """Return True if a text is spelled as the ids of checkpoints are. Any other names no checkpoint of any thread."""
    return _is_uuid(text) is not None


TaskId = NewType("TaskId", str)
"""Structural: the same work has the same id on every attempt, replay, resume and fork."""

FORMAT = 1
"""The number of the stored format that this version writes. Readers for all numbers up to it are kept."""

CALLER = "__task__"
"""The metadata key that says which task ran a graph whose namespace does not: one that keeps its state."""

GIVEN = "__given__"
"""The metadata key that says what a node ran: the graph's name, and a digest of its input in hex."""

MADE_IN = "__thread__"
"""The metadata key of a checkpoint that was copied from another thread, whose id is there: the ids of the tasks under
which something is recorded on it are made of that id."""

RUN = "__run__"
"""The metadata key under which a checkpoint has what a service knows of the run that made it: a dict, apart from the
user's own keys."""

FOLLOWED = "__followed__"
"""The metadata key of a checkpoint whose children are gone: `CLOSED` when one of them closed its superstep, `BRANCHED`
when they were copies only. So it is not taken for the tip of a branch."""

CLOSED = "closed"
BRANCHED = "branched"


class Owner(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who holds a lease: one run in one process.

    Attributes:
        host: the machine's name.
        boot: an id that changes when the machine boots; "" where there is none.
        pid: the process.
        started: when the process started, as the system counts it, so that a reused pid is told apart.
        run_id: the run; unique.
    """

    host: str
    boot: str
    pid: int
    started: str
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} of process {self.pid} on {self.host}"


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to write one thread, as `BaseCheckpointSaver.lease` gave it.

    Attributes:
        thread_id: the thread.
        epoch: greater by one than the lease before it. Every write compares it.
        owner: who holds it.
        newest: the greatest checkpoint id of the thread, of any namespace and branch; None on a new thread. The next
            id must be greater.
    """

    thread_id: str
    epoch: int
    owner: Owner
    newest: CheckpointId | None


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One checkpoint as it is stored.

    Attributes:
        ns: the namespace, "" for the root graph.
        parent_id: the checkpoint it came from; None for the first.
        base_id: the row that it is read with: see above. Equal to `checkpoint_id` when this row holds everything.
        step: the superstep's number: -1 for the first input, 0 for the hidden start.
        metadata: what listings of checkpoints filter by: source, step, parents, run_id, and the user's own scalars that
            the call was given which made it. JSON values.
        frame: the payload, sealed.
        pinned: retention leaves it alone. Rows are committed without a pin; `rewrite` pins.
    """

    ns: str
    checkpoint_id: CheckpointId
    parent_id: CheckpointId | None
    base_id: CheckpointId
    step: int
    metadata: dict[str, Any]
    frame: bytes
    pinned: bool = False


RecordKind = Literal["result", "error", "interrupt"]


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one task of the superstep that follows a checkpoint.

    One is kept per task: a later record of the same task replaces the earlier one (a result that of an error).

    Attributes:
        ns, checkpoint_id: the checkpoint on which the task was planned.
        task_id: the task. The id `""` stands for the superstep itself (its fold failed).
        index: the task's place in the plan. Records are read back in this order.
        kind: what the frame holds.
        frame: the payload, sealed.
    """

    ns: str
    checkpoint_id: CheckpointId
    task_id: TaskId
    index: int
    kind: RecordKind
    frame: bytes


EventKey = tuple[CheckpointId, int, int]
"""Where a row of events stands in its thread: checkpoint id, epoch, position. Compared from left to right."""

EventKind = Literal["head", "part", "tail"]


class EventRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Stream events of one superstep that belong together: they were stored in one transaction. Positions of rows may
    interleave: a row has the events of work that was recorded together.

    A superstep that is run by several leases, one after the other, has the events of each, under its epoch. Savers
    keep rows in the order of their keys, and interpret neither kinds nor frames.

    Attributes:
        checkpoint_id: the root graph's checkpoint on which the superstep was planned.
        epoch: that of the lease under which the events were shown.
        position: of the first event in the frame, counted from 1 for each (checkpoint_id, epoch).
        kind: `"head"`: stored by the transaction that made the checkpoint, or that recorded what the events are of.
            `"part"`: stored before that; void unless a later row closes it. `"tail"`: stored by the transaction that
            closed the superstep, or recorded where it stopped.
        frame: the payload, sealed.
    """

    checkpoint_id: CheckpointId
    epoch: int
    position: int
    kind: EventKind
    frame: bytes

    @property
    def key(self) -> EventKey:
        """No two rows of a thread have the same."""
        return self.checkpoint_id, self.epoch, self.position


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transaction: the checkpoints that it adds, and what it expects to find.

    Without rows and without `head` it expects no head: records and events alone are stored under the lease.

    Attributes:
        rows: the new checkpoints, oldest first, all of one namespace; the last becomes the namespace's head.
        expected_head: the namespace's head now; None when it has none.
        head: without rows: a namespace, and the stored checkpoint that becomes its head (the tip of another branch).
        records: records of tasks of the superstep that this commit closes, or of the one that it opens.
        clears: keys of records that this commit makes void, as (ns, checkpoint_id, task_id).
        expires_at: the lease's new expiry, in unix seconds.
        releases: give the lease up in the same transaction.
        events: stream events to be kept beside. A row whose key is taken, in the thread or among these, makes the
            commit fail: events that were shown are not replaced by others.
        metadata: entries of the thread's metadata. Each is set if the thread lacks its key, and changes nothing if not.
    """

    rows: tuple[CheckpointRow, ...]
    expected_head: CheckpointId | None
    records: tuple[TaskRecord, ...] = ()
    clears: tuple[tuple[str, CheckpointId, TaskId], ...] = ()
    expires_at: float
    releases: bool = False
    head: tuple[str, CheckpointId] | None = None
    events: tuple[EventRow, ...] = ()
    metadata: dict[str, Any] = {}


class Chain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What `read` returns.

    Attributes:
        rows: in the order of their ids: every row between the asked one's base and the asked one that has that base;
            before them, where that base is no full row, every row between its own base and it that has that. The first
            is a full row, the last the asked one. Rows that are of no use may lie between, those of other branches too.
        records: those of the asked checkpoint, by index.
        head: the namespace's head.
    """

    rows: tuple[CheckpointRow, ...]
    records: tuple[TaskRecord, ...]
    head: CheckpointId


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A checkpoint without its payload, as `scan` lists it.

    Attributes:
        size: bytes of its frame.
        pinned: as in `CheckpointRow`.
    """

    thread_id: str
    ns: str
    checkpoint_id: CheckpointId
    parent_id: CheckpointId | None
    base_id: CheckpointId
    step: int
    metadata: dict[str, Any]
    size: int = 0
    pinned: bool = False


class ThreadHeader(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A thread without its rows, as `threads` lists it.

    Attributes:
        epoch: of its last lease.
        owner: who holds its lease, or did until it lapsed; None when it was given up.
        expires_at: when that lease lapses, in unix seconds; 0 without an owner.
        newest: its greatest checkpoint id, of any namespace; None when it holds none.
        head: the checkpoint at which the root graph stands; None when it has none.
        metadata: the thread's own: what its calls were given and `update_thread` has made of it.
    """

    thread_id: str
    epoch: int
    owner: Owner | None
    expires_at: float
    newest: CheckpointId | None
    head: CheckpointId | None
    metadata: dict[str, Any]


class ThreadDump(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored of a thread, but for its lease: as of one moment, and byte for byte.

    Attributes:
        heads: by namespace.
        rows: in the order of (id, namespace).
        records: in the order of (checkpoint id, namespace, index, task id).
        events: in the order of their keys.
        metadata: the thread's own.
    """

    heads: dict[str, CheckpointId]
    rows: tuple[CheckpointRow, ...]
    records: tuple[TaskRecord, ...]
    events: tuple[EventRow, ...]
    metadata: dict[str, Any] = {}


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction of upkeep: what is taken out of a thread, and what is left put in order. It makes no checkpoint.

    Attributes:
        gone: checkpoints that are deleted, as (ns, checkpoint_id), with what is recorded on them. Unknown ones are
            passed over.
        rows: stand in the place of the stored rows with the same ns and checkpoint_id, which must be there.
        heads: namespace -> the stored checkpoint at which it now stands; None: the namespace is no more, and must hold
            nothing any more.
        events: ids of checkpoints of the root graph whose rows of events are deleted.
        pins: (ns, checkpoint_id) -> whether it is pinned from now on; it must be there.
    """

    gone: tuple[tuple[str, CheckpointId], ...] = ()
    rows: tuple[CheckpointRow, ...] = ()
    heads: dict[str, CheckpointId | None] = {}
    events: tuple[CheckpointId, ...] = ()
    pins: dict[tuple[str, CheckpointId], bool] = {}


class CheckpointMetadata(TypedDict, total=False):
    """What is known about a checkpoint besides its state.

    Keys:
        source: what made it: an `input`, a superstep (`loop`), an `update` by hand, or a `fork`.
        step: the superstep's number.
        parents: namespace -> checkpoint id, of the enclosing graphs.
        run_id: of the run that made it.

    And the caller's own scalar metadata.
    """

    source: Literal["input", "loop", "update", "fork"]
    step: int
    parents: dict[str, str]
    run_id: str


class Checkpoint(TypedDict):
    """A thread's state at a superstep's boundary, decoded.

    Keys:
        v: the stored format's number.
        id: the checkpoint's.
        ts: when it was made; ISO 8601, UTC.
        channel_values: of the channels that hold something.
        channel_versions: of the same.
        versions_seen: by node, the version of each channel at which it ran last.
        pending_sends: what was sent, in order: `Send`s where the codec knows that class, else `StoredObject`s.
    """

    v: int
    id: CheckpointId
    ts: str
    channel_values: dict[str, Any]
    channel_versions: dict[str, int]
    versions_seen: dict[str, dict[str, int]]
    pending_sends: list[Any]


class StoredObject(msgspec.Struct, frozen=True, order=False):
    """An object read by a codec that does not have its class: its fields as data.

    `Codec.decode` reads only what the runtime stores by itself like this (`Send`, `Interrupt`, ...): an object of a
    user's class that is not registered is an `UnknownTypeError`. `Codec.decode_stored` reads objects of users' classes
    like this too.

    Attributes:
        type: the tag of the class, such as `"pregel_async.Send"`.
        fields: its fields by name, decoded; of a send, `node`, `arg` and `timeout`. Of an object that is not stored by
            fields (an enum's member, a subclass of list), what is stored for it, under `"value"`.
    """

    type: str
    fields: dict[str, Any]


class Shared(msgspec.Struct, frozen=True):
    """Stands, in a stored send, for a value that a channel of the same checkpoint holds. See `sharing`.

    Attributes:
        channel: the channel.
        count: so many of the first elements of its list; None for its whole value.
        rest: the elements that follow them, which the channel's list does not have.
    """

    channel: str
    count: int | None = None
    rest: list[Any] = []


class CheckpointTuple(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, and what belongs to it.

    Attributes:
        config: addresses this checkpoint: `{"configurable": {"thread_id", "checkpoint_ns", "checkpoint_id"}}`.
        parent_config: addresses its parent; None for the first.
        pending_writes: what tasks of the superstep after it have left, as (task id, channel, value).
    """

    config: Mapping[str, Any]
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent_config: Mapping[str, Any] | None
    pending_writes: tuple[tuple[TaskId, str, Any], ...]
