"""The storage of a simulation: `RecordingSaver` records what was stored, and functions check and compare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import SENDS, TaskResult, read_record
from checkpoint_savers.history import walk
from checkpoint_savers.patches import data_of
from checkpoint_savers.records import CheckpointId, Commit, Header, Lease, Owner, TaskRecord

from .saver import PassingSaver

THREAD_ID = "simulated"
"""The id of the thread of every simulation."""


class RecordingSaver(PassingSaver):
    """Records what all processes of a simulation have stored.

    Faults are injected by savers outside of this one, so that it sees only operations that take effect.

    Args:
        inner: the saver that stores.
        trace: receives a line for each stored write.

    Attributes:
        recorded: ids of the tasks whose result is stored.
        committed: ids of the stored checkpoints.
        answered: ids of the questions whose answers are stored.
        epoch: the epoch of the newest lease.
        held: True while the thread is leased.
        on_takeover: called when a process acquires a thread whose lease was not released.
        trace: the lines so far, for people to read.
    """

    def __init__(self, inner: BaseCheckpointSaver, trace: list[str]) -> None:
        super().__init__(inner)
        self.recorded: set[str] = set()
        self.committed: set[str] = set()
        self.answered: set[str] = set()
        self.epoch = 0
        self.held = False
        self.on_takeover: Callable[[], object] | None = None
        self.trace = trace

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        # Not the real host and process: a ThreadBusyError names them, and one seed gives one trace on every machine.
        owner = Owner(host="the simulation", boot="", pid=0, started="", run_id=owner.run_id)
        lease = await self.inner.acquire(thread_id, owner, now=now, expires_at=expires_at)
        if self.held and self.on_takeover is not None:
            self.on_takeover()
        self.epoch, self.held = lease.epoch, True
        self.trace.append(f"the thread is leased, epoch {lease.epoch}")
        return lease

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self.inner.commit(lease, commit)
        self._note_records(commit.records)
        for row in [row for change in (*commit.others, commit) for row in change.rows]:
            entry = ChainReader(lease.thread_id, row.ns, (row,)).stored(row.checkpoint_id)
            self.recorded.update(entry.results)
            self.committed.add(row.checkpoint_id)
            self.trace.append(
                f"stored: step {row.step}{_of_namespace(row.ns)}, after {', '.join(entry.ran) or 'an input'}"
            )
        if commit.releases:
            self.held = False
            self.trace.append("the thread is released, with that commit")

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self.inner.record(lease, records, expires_at=expires_at)
        self._note_records(records)

    async def release(self, lease: Lease) -> None:
        await self.inner.release(lease)
        # A process that has lost the thread releases an old lease, which leaves the new one in force.
        self.held = self.held and lease.epoch != self.epoch
        self.trace.append("the thread is released")

    def _note_records(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            entry = read_record(record, THREAD_ID)
            self.answered.update(entry.answers)
            if entry.finished:
                self.recorded.add(record.task_id)
            self.trace.append(
                f"recorded: {entry.name or 'the superstep'} {_describe_record(entry)}{_of_namespace(record.ns)}"
            )


def _describe_record(entry: TaskResult) -> str:
    if entry.error is not None:
        return f"failed, {entry.error[0]}: {entry.error[1]}"
    if entry.interrupts is not None:
        return f"asks {len(entry.interrupts)}, answered {len(entry.answers)}"
    return "finished" if entry.routed else "finished, but for its routers"


def _of_namespace(ns: str) -> str:
    return f" of {short_namespace(ns)}" if ns else ""


def short_namespace(ns: str) -> str:
    """Shorten the task ids of a checkpoint namespace to 8 digits, for messages.

    Args:
        ns: the namespace.

    Returns:
        The shortened namespace.
    """
    return "|".join(
        name if not rest else f"{name}:{rest[:8]}" for name, _, rest in (part.partition(":") for part in ns.split("|"))
    )


StoredCheckpoints = dict[str, list[dict[str, Any]]]
"""Checkpoints by namespace, oldest first, in the form that `read_checkpoints` gives them."""


async def read_checkpoints(saver: BaseCheckpointSaver) -> StoredCheckpoints:
    """Read the parts of all checkpoints that P2 requires to be equal in each run of the same work.

    For each checkpoint these are: the step, the positions of its parent and of the enclosing graphs' checkpoints, the
    values of its channels (still encoded), their versions and the versions that nodes have seen, the nodes that ran,
    and the results and errors of the tasks that were planned on it.

    Args:
        saver: the saver of the simulation.

    Returns:
        The checkpoints. Ids of checkpoints are replaced by positions, because they differ from run to run.
    """
    found: list[tuple[Header, ChainReader, tuple[TaskRecord, ...]]] = [
        each async for each in walk(saver, THREAD_ID, None)
    ]
    found.reverse()
    positions: dict[str, tuple[str, int]] = {}
    made: StoredCheckpoints = {}
    rows: dict[str, dict[str, Any]] = {}
    for header, reader, records in found:
        state = reader.state(header.checkpoint_id)
        values = {name: data_of(value) for name, value in state.values.items()}
        listed = made.setdefault(header.ns, [])
        positions[header.checkpoint_id] = (header.ns, len(listed))
        parents: Mapping[str, str] = header.metadata.get("parents") or {}
        row: dict[str, Any] = {
            "step": header.step,
            "parent": positions.get(header.parent_id or ""),
            "made on": {ns: positions.get(at) for ns, at in parents.items()},
            "values": values,
            "versions": state.versions,
            "seen": {name: seen for name, seen in state.seen.items() if name in state.values},
            "ran": state.ran,
            "tips": {ns: positions.get(at) for ns, at in state.tips.items()},
            "results": {},
            "errors": {},
        }
        listed.append(row)
        rows[header.checkpoint_id] = row
        # A commit holds the results of the tasks that it closes: they belong to the checkpoint on which these were
        # planned. A task record of an open superstep is stored with that checkpoint already, below.
        if header.parent_id is not None and header.parent_id in rows:
            results = rows[header.parent_id]["results"]
            for task_id, writes in reader.results(header.checkpoint_id).items():
                results[task_id] = [(name, values.get(name) if data is None else data) for name, data in writes]
        for record in records:
            entry = read_record(record, THREAD_ID)
            if entry.finished:
                row["results"][record.task_id] = [write for write in entry.writes if not _is_wiring(write[0])]
            elif entry.error is not None:
                row["errors"][record.task_id] = entry.error[:2]
    return made


def _is_wiring(channel: str) -> bool:
    """Return True for a channel of a state graph's edges. Task records have such writes, commits may leave them out."""
    return channel.startswith(("branch:to:", "join:", SENDS))


def find_chain_error(found: StoredCheckpoints, *, gaps: bool) -> str | None:
    """Check that the root graph's checkpoints form one chain without gaps (P6).

    Args:
        found: the checkpoints of the thread.
        gaps: True allows steps without a checkpoint, as `durability="exit"` stores only the last one of each run.

    Returns:
        A message that names the first error, or None.
    """
    for place, row in enumerate(found.get("", [])):
        parent = row["parent"]
        if (parent is None) != (place == 0) or (parent is not None and parent != ("", place - 1)):
            return f"checkpoint {place} of the root graph does not follow the one before it: {parent}"
        before = found[""][place - 1]["step"] if place else -2
        if row["step"] != before + 1 and not (gaps and row["step"] > before):
            return f"step {row['step']} follows step {before}"
    return None


def describe_difference(one: Any, other: Any, codec: Codec, path: str = "") -> str:
    """Describe the first difference between two values.

    Args:
        one: the undisturbed run's.
        other: the disturbed run's.
        codec: decodes bytes for the message.
        path: the path of the values in what is compared.

    Returns:
        A message with the path and both values.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            here = f"{path}[{short_namespace(key) if isinstance(key, str) else key!r}]"
            if key not in other:
                return f"{here} is {_show_value(one[key], codec)} in the undisturbed run, and missing"
            if key not in one:
                return f"{here} is {_show_value(other[key], codec)}, and missing in the undisturbed run"
            if one[key] != other[key]:
                return describe_difference(one[key], other[key], codec, here)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        for place, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return describe_difference(left, right, codec, f"{path}[{place}]")
        return f"{path} has {len(one)} entries in the undisturbed run, and {len(other)} here"
    return f"{path} is {_show_value(one, codec)} in the undisturbed run, and {_show_value(other, codec)} here"


def _show_value(value: Any, codec: Codec) -> str:
    if isinstance(value, bytes):
        try:
            return repr(codec.decode(value, channel="it"))
        except Exception as error:
            return f"{len(value)} bytes ({error})"
    return repr(value)


def checkpoint_of_chunk(chunk: Mapping[str, Any]) -> CheckpointId | None:
    """Read the checkpoint id of a chunk of the stream mode `checkpoints`.

    Args:
        chunk: the chunk.

    Returns:
        The id, or None if the chunk has none.
    """
    found = (chunk.get("config") or {}).get("configurable", {}).get("checkpoint_id")
    return None if found is None else CheckpointId(found)
