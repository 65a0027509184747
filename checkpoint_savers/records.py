"""The records that cross the saver port: what a run leases, commits and records, and what is read back.

A saver stores rows whose payload is a *frame*: opaque bytes, sealed by the codec with a format number, a length and
a checksum. A saver interprets keys, heads and leases, and never a value.

How a thread is laid out
    Every namespace of a thread (`""` is the root graph's) is a tree of checkpoints, linked by `parent_id`; the
    namespace's *head* is the tip of the branch that was run or edited last. A checkpoint's row stores what its
    superstep changed. Its state is read from the rows of its *chain*, which starts at its base. There are three kinds
    of rows:

        keyframe    holds the complete state, and is its own base
        snapshot    holds all changes since the snapshot before it; its base is a keyframe
        delta       holds the changes since its parent; its base is the nearest snapshot or keyframe

    So a chain is a keyframe, the snapshots after it, and the deltas after the last of them: `read` returns it with one
    query of two ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import msgspec

CheckpointId = NewType("CheckpointId", str)
"""A UUID in its canonical spelling: 36 characters, in lower case. Unique; sorts, as a string, by creation, and is
greater than the id of its parent. Events that were shown before the first checkpoint have the empty string instead."""

_is_uuid = re.compile("[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch


def is_checkpoint_id(text: str) -> bool:
    """Return True if a text is spelled like a checkpoint id. Any other text names no checkpoint of any thread.

    Args:
        text: the text to check.

    Returns:
        True for 36 characters of a UUID in lower case.
    """
    return _is_uuid(text) is not None


TaskId = NewType("TaskId", str)
"""An id computed from the task's position in the run: equal on every attempt, replay, resume and fork."""

FORMAT = 1
"""The number of the stored format that this version writes. It reads this format and all earlier ones."""

CALLER = "__task__"
"""The metadata key that names the task that ran a stateful subgraph, whose namespace contains no task id."""

GIVEN = "__given__"
"""The metadata key that identifies a subgraph call: the graph's name, and a digest of its input in hex."""

MADE_IN = "__thread__"
"""The metadata key of a checkpoint whose superstep's task ids are not computed from its thread's id. Its value is the
id that they are computed from: of the thread that the checkpoint was copied from, or of a thread that a node began."""

RUN = "__run__"
"""The metadata key under which a checkpoint holds what a service knows of the run that made it: a dict, separate from
the user's own keys."""

VERSION = "__version__"
"""The metadata key of a checkpoint that holds the version of the graph that made it: the `version=` of `compile`. A
checkpoint without it counts as version 1."""

FOLLOWED = "__followed__"
"""The metadata key of a checkpoint whose children were pruned: `CLOSED` if one of them closed its superstep, `BRANCHED`
if they were only copies. Without it the checkpoint would look like the tip of a branch."""

CLOSED = "closed"
BRANCHED = "branched"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a lease: one run in one process.

    Attributes:
        host: the machine's name.
        boot: an id that changes when the machine boots; "" if unknown.
        pid: the process id.
        started: when the process started, in the system's own notation; distinguishes it from a later process that has
            the same pid.
        run_id: the run; unique.
    """

    host: str
    boot: str
    pid: int
    started: str
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} of process {self.pid} on {self.host}"


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to write one thread, as `SaverPort.acquire` returned it.

    Attributes:
        thread_id: the thread.
        epoch: the fencing token: greater by one than that of the lease before. Every write compares it.
        owner: the run that holds the lease.
        newest: the greatest checkpoint id of the thread, of any namespace and branch; None for a new thread. The next
            id must be greater.
    """

    thread_id: str
    epoch: int
    owner: Owner
    newest: CheckpointId | None


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One checkpoint as it is stored.

    Attributes:
        ns: the namespace, "" for the root graph.
        checkpoint_id: the checkpoint.
        parent_id: the checkpoint that it was made from; None for the first.
        base_id: the first row of the segment that it is read with; see the module's docstring. Equal to `checkpoint_id`
            for a keyframe.
        step: the superstep's number: -1 for the first input, 0 for the hidden start.
        metadata: JSON values that listings of checkpoints filter by: source, step, parents, run_id, and the scalars
            that the user passed to the call that made the checkpoint.
        frame: the payload, sealed.
        pinned: True if retention must not delete the checkpoint. Rows are committed without a pin; `rewrite` pins.
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


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one task of the superstep that follows a checkpoint.

    A task has at most one record: a later record of the same task replaces the earlier one (a result replaces an
    error).

    Attributes:
        ns, checkpoint_id: the checkpoint on which the task was planned.
        task_id: the task. The id `""` is reserved for the superstep itself (its fold failed).
        index: the task's position in the plan. Records are read back in this order.
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
"""The key of a row of events in its thread: checkpoint id, epoch, position. Compared from left to right."""

EventKind = Literal["head", "part", "tail"]


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stream events of one superstep that were stored in one transaction.

    Positions of rows may interleave: a row has the events of work that was recorded together. A superstep that several
    leases run, one after the other, has the events of each under its epoch. Savers store rows in the order of their
    keys, and interpret neither kinds nor frames.

    Attributes:
        checkpoint_id: the root graph's checkpoint on which the superstep was planned.
        epoch: the epoch of the lease under which the events were shown.
        position: the position of the first event in the frame, counted from 1 for each (checkpoint_id, epoch).
        kind: `"head"`: stored by the transaction that made the checkpoint, or that recorded the work that emitted the
            events. `"part"`: stored before that; void unless a later row closes it. `"tail"`: stored by the transaction
            that closed the superstep, or that recorded where it stopped.
        frame: the payload, sealed.
    """

    checkpoint_id: CheckpointId
    epoch: int
    position: int
    kind: EventKind
    frame: bytes

    @property
    def key(self) -> EventKey:
        """The row's key, which is unique in its thread."""
        return self.checkpoint_id, self.epoch, self.position


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class NamespaceChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a commit changes in one namespace: new checkpoints, or another head.

    Without rows and without `head` it changes nothing, and expects no head.

    Attributes:
        rows: the new checkpoints, oldest first, all of one namespace; the last becomes the namespace's head.
        expected_head: the namespace's current head; None if it has none.
        head: without rows: a namespace, and the stored checkpoint that becomes its head (the tip of another branch).
    """

    rows: tuple[CheckpointRow, ...]
    expected_head: CheckpointId | None
    head: tuple[str, CheckpointId] | None = None


class Commit(NamespaceChange, frozen=True, kw_only=True, gc=False):
    """One transaction: what it changes in a namespace, or in several, and what else it stores.

    Without rows, `head` and `others` it stores only records and events.

    Attributes:
        records: records of tasks of the superstep that this commit closes, or of the one that it opens.
        clears: keys of records that this commit deletes, as (ns, checkpoint_id, task_id).
        expires_at: the lease's new expiry, in unix seconds.
        releases: True to release the lease in the same transaction.
        events: stream events to store. If the key of a row is taken, in the thread or among these, the commit fails:
            events that were shown are never replaced by others.
        metadata: entries of the thread's metadata. Each is set if the thread lacks its key, and ignored otherwise.
        others: the changes of other namespaces, at most one for each. A run with durability "exit" stores the
            checkpoints of all its graphs like this: its end is one transaction. See `SaverPort.commits_others`.
    """

    records: tuple[TaskRecord, ...] = ()
    clears: tuple[tuple[str, CheckpointId, TaskId], ...] = ()
    expires_at: float
    releases: bool = False
    events: tuple[EventRow, ...] = ()
    metadata: dict[str, Any] = {}
    others: tuple[NamespaceChange, ...] = ()


class Waiter(NamedTuple):
    """A caller that waits in `bridge.wait_until_woken`, or a function that is called in its place.

    Pass it to `bridge.wake` exactly once, from any thread.

    Attributes:
        post: schedules a function on the waiter's event loop.
        arrived: the function to call there.
    """

    post: Callable[..., object]
    arrived: Callable[[], object]


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """What `read` returns: the rows from which a checkpoint's state is read.

    Attributes:
        rows: in the order of their ids. They are all rows between the checkpoint's base and the checkpoint that have
            this base; preceded, if the base is a snapshot, by all rows between its keyframe and it that have the
            keyframe as base. The first row is a keyframe, the last the requested checkpoint. Unneeded rows may lie in
            between, of other branches too.
        records: the records of the requested checkpoint, by index.
        head: the namespace's head.
    """

    rows: tuple[CheckpointRow, ...]
    records: tuple[TaskRecord, ...]
    head: CheckpointId


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its payload, as `scan` lists it. Attributes not listed here are those of `CheckpointRow`.

    Attributes:
        thread_id: the checkpoint's thread.
        size: the length of its frame, in bytes.
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


class ThreadHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A thread without its rows, as `threads` lists it.

    Attributes:
        thread_id: the thread.
        epoch: the epoch of its last lease.
        owner: the run that holds its lease, or held it until it expired; None if it was released.
        expires_at: when that lease expires, in unix seconds; 0 without an owner.
        newest: its greatest checkpoint id, of any namespace; None if it holds no checkpoint.
        head: the head of the root graph's namespace; None if it has none.
        metadata: the thread's metadata: what its calls passed, changed by `update_thread`.
    """

    thread_id: str
    epoch: int
    owner: Owner | None
    expires_at: float
    newest: CheckpointId | None
    head: CheckpointId | None
    metadata: dict[str, Any]


class ThreadDump(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored of a thread except its lease, byte for byte, read as of one moment.

    Attributes:
        heads: head by namespace.
        rows: in the order of (id, namespace).
        records: in the order of (checkpoint id, namespace, index, task id).
        events: in the order of their keys.
        metadata: the thread's metadata.
        replaces: True to delete all that the thread holds, in the transaction that loads the dump; False to refuse a
            thread that holds something.
    """

    heads: dict[str, CheckpointId]
    rows: tuple[CheckpointRow, ...]
    records: tuple[TaskRecord, ...]
    events: tuple[EventRow, ...]
    metadata: dict[str, Any] = {}
    replaces: bool = False


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction of upkeep: what it deletes from a thread, and what it changes in the remaining rows.

    It makes no checkpoint.

    Attributes:
        gone: checkpoints to delete, as (ns, checkpoint_id), with their records. Unknown ones are ignored.
        rows: replace the stored rows with the same ns and checkpoint_id, which must exist.
        heads: namespace -> the stored checkpoint that becomes its head; None removes the namespace, which must then
            hold no checkpoint.
        events: ids of checkpoints of the root graph whose rows of events are deleted.
        pins: (ns, checkpoint_id) -> whether it is pinned; the checkpoint must exist.
    """

    gone: tuple[tuple[str, CheckpointId], ...] = ()
    rows: tuple[CheckpointRow, ...] = ()
    heads: dict[str, CheckpointId | None] = {}
    events: tuple[CheckpointId, ...] = ()
    pins: dict[tuple[str, CheckpointId], bool] = {}


class CheckpointMetadata(TypedDict, total=False):
    """What is known about a checkpoint besides its state, and the caller's own scalar metadata.

    Keys:
        source: what made it: an `input`, a superstep (`loop`), an `update` by hand, or a `fork`.
        step: the superstep's number.
        parents: namespace -> checkpoint id, of the enclosing graphs.
        run_id: the run that made it.
    """

    source: Literal["input", "loop", "update", "fork"]
    step: int
    parents: dict[str, str]
    run_id: str


class Checkpoint(TypedDict):
    """A thread's state between two supersteps, decoded.

    Keys:
        v: the stored format's number.
        id: the checkpoint's id.
        ts: when it was made; ISO 8601, UTC.
        channel_values: the values of the channels that are not empty.
        channel_versions: the versions of the same channels.
        versions_seen: by node, the version of each channel at which the node ran last.
        pending_sends: pending sends, in order: `Send`s if the codec has that class, otherwise `StoredObject`s.
    """

    v: int
    id: CheckpointId
    ts: str
    channel_values: dict[str, Any]
    channel_versions: dict[str, int]
    versions_seen: dict[str, dict[str, int]]
    pending_sends: list[Any]


class StoredObject(msgspec.Struct, frozen=True, order=False):
    """An object that was read without its class: its fields as data.

    `Codec.decode` reads only the runtime's own classes like this (`Send`, `Interrupt`, ...): an object of a user's
    class that is not registered raises `UnknownTypeError`. `Codec.decode_stored` reads objects of users' classes like
    this if it does not have the class, and `Codec.decode_plain` reads all objects like this.

    Attributes:
        type: the tag of the class, such as `"pregel_async.Send"`.
        fields: its fields by name, decoded; of a send, `node`, `arg` and `timeout`. For an object that is not stored by
            fields (an enum's member, a subclass of list), the stored value under `"value"`.
    """

    type: str
    fields: dict[str, Any]

    def __hash__(self) -> int:
        # The object may have been a member of a set or a key of a dict. Its fields are a dict, and may hold lists.
        return _hash_of((self.type, self.fields))


def _hash_of(value: Any) -> int:
    """Return a hash of decoded data, equal for equal values."""
    if isinstance(value, dict):
        entries: dict[Any, Any] = value
        return hash(frozenset((key, _hash_of(part)) for key, part in entries.items()))
    if isinstance(value, (list, tuple)):
        parts: Sequence[Any] = value
        return hash(tuple(map(_hash_of, parts)))
    try:
        members: Any = value
        return hash(frozenset(members) if isinstance(value, set) else value)
    except TypeError:  # a deque, an object that has no hash
        return hash(type(value).__name__)


class Shared(msgspec.Struct, frozen=True):
    """A reference, in a stored send, to a value that a channel of the same checkpoint holds. See `sharing`.

    Attributes:
        channel: the channel.
        count: number of elements taken from the start of the channel's list; None for the whole value.
        rest: the elements that follow them, which the channel's list does not have.
    """

    channel: str
    count: int | None = None
    rest: list[Any] = []


class CheckpointTuple(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, with its config, metadata and pending writes.

    Attributes:
        config: addresses this checkpoint: `{"configurable": {"thread_id", "checkpoint_ns", "checkpoint_id"}}`.
        checkpoint: the state.
        metadata: the checkpoint's metadata.
        parent_config: addresses its parent; None for the first.
        pending_writes: what is recorded of tasks of the following superstep, as (task id, channel, value): their
            writes; failures under `"__error__"`, as text; and under `"__interrupt__"` the list of the questions that a
            task has asked, as `Interrupt`s if the codec has that class, otherwise as `StoredObject`s.
    """

    config: Mapping[str, Any]
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent_config: Mapping[str, Any] | None
    pending_writes: tuple[tuple[TaskId, str, Any], ...]
