"""What a simulation sees of its storage: what was stored, when, and what must therefore never run again."""

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

THREAD = "simulated"
"""The id of the thread that simulations run."""


class Seen(PassingSaver):
    """Stands before the storage itself, and notes what has been stored there, whoever stored it.

    Attributes:
        recorded: ids of the tasks that have a result.
        unrouted: of those of which only the routers are left to run.
        committed: ids of the checkpoints.
        answered: ids of the questions whose answers are stored.
        epoch: of the newest lease.
        held: the thread is leased, and was not given up.
        taken: told when somebody takes the thread over from somebody who has not given it up.
        told: what happened, to be read: appended to by whoever makes the simulation.
    """

    def __init__(self, inner: BaseCheckpointSaver, told: list[str]) -> None:
        super().__init__(inner)
        self.recorded: set[str] = set()
        self.unrouted: set[str] = set()
        self.committed: set[str] = set()
        self.answered: set[str] = set()
        self.epoch = 0
        self.held = False
        self.taken: Callable[[], object] | None = None
        self.told = told

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        owner = Owner(host="the simulation", boot="", pid=0, started="", run_id=owner.run_id)  # the same in each
        lease = await self.inner.acquire(thread_id, owner, now=now, expires_at=expires_at)
        if self.held and self.taken is not None:
            self.taken()
        self.epoch, self.held = lease.epoch, True
        self.told.append(f"the thread is leased, epoch {lease.epoch}")
        return lease

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self.inner.commit(lease, commit)
        self._note(commit.records)
        for row in commit.rows:
            entry = ChainReader(lease.thread_id, row.ns, (row,)).stored(row.checkpoint_id)
            self.recorded.update(entry.results)
            self.committed.add(row.checkpoint_id)
            self.told.append(f"stored: step {row.step}{_of(row.ns)}, after {', '.join(entry.ran) or 'an input'}")
        if commit.releases:
            self.held = False
            self.told.append("the thread is given up, with that commit")

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self.inner.record(lease, records, expires_at=expires_at)
        self._note(records)

    async def release(self, lease: Lease) -> None:
        await self.inner.release(lease)
        self.held = self.held and lease.epoch != self.epoch
        self.told.append("the thread is given up")

    def _note(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            entry = read_record(record, THREAD)
            self.answered.update(entry.answers)
            if entry.finished:
                self.recorded.add(record.task_id)
            elif not entry.routed:
                self.unrouted.add(record.task_id)
            self.told.append(f"recorded: {entry.name or 'the superstep'} {_what(entry)}{_of(record.ns)}")


def _what(entry: TaskResult) -> str:
    if entry.error is not None:
        return f"failed, {entry.error[0]}: {entry.error[1]}"
    if entry.interrupts is not None:
        return f"asks {len(entry.interrupts)}, answered {len(entry.answers)}"
    return "finished" if entry.routed else "finished, but for its routers"


def _of(ns: str) -> str:
    return f" of {short(ns)}" if ns else ""


def short(ns: str) -> str:
    """A namespace, to be read."""
    return "|".join(
        name if not rest else f"{name}:{rest[:8]}" for name, _, rest in (part.partition(":") for part in ns.split("|"))
    )


Stored = dict[str, list[dict[str, Any]]]
"""By namespace: its checkpoints, oldest first."""


async def stored_in(saver: BaseCheckpointSaver) -> Stored:
    """P2: what has to be the same in every run of the same work, with values still encoded.

    Of each checkpoint: its number and parent, on which checkpoints of the graphs around it was made, what its channels
    hold, in which version and who saw it, what ran, and the results of the tasks that were planned on it.
    """
    found: list[tuple[Header, ChainReader, tuple[TaskRecord, ...]]] = [each async for each in walk(saver, THREAD, None)]
    found.reverse()
    places: dict[str, tuple[str, int]] = {}
    made: Stored = {}
    rows: dict[str, dict[str, Any]] = {}
    for header, reader, records in found:
        state = reader.state(header.checkpoint_id)
        values = {name: data_of(value) for name, value in state.values.items()}
        listed = made.setdefault(header.ns, [])
        places[header.checkpoint_id] = (header.ns, len(listed))
        parents: Mapping[str, str] = header.metadata.get("parents") or {}
        row: dict[str, Any] = {
            "step": header.step,
            "parent": places.get(header.parent_id or ""),
            "made on": {ns: places.get(at) for ns, at in parents.items()},
            "values": values,
            "versions": state.versions,
            "seen": {name: seen for name, seen in state.seen.items() if name in state.values},
            "ran": state.ran,
            "tips": {ns: places.get(at) for ns, at in state.tips.items()},
            "results": {},
            "errors": {},
        }
        listed.append(row)
        rows[header.checkpoint_id] = row
        if header.parent_id is not None and header.parent_id in rows:
            results = rows[header.parent_id]["results"]
            for task_id, writes in reader.results(header.checkpoint_id).items():
                results[task_id] = [(name, values.get(name) if data is None else data) for name, data in writes]
        for record in records:
            told = read_record(record, THREAD)
            if told.finished:
                row["results"][record.task_id] = [write for write in told.writes if not _is_wiring(write[0])]
            elif told.error is not None:
                row["errors"][record.task_id] = told.error[:2]
    return made


def _is_wiring(channel: str) -> bool:
    """Whether it is a channel of a state graph's edges. A task's own record has them, a commit's need not."""
    return channel.startswith(("branch:to:", "join:", SENDS))


def chain_of(found: Stored, *, gaps: bool) -> str | None:
    """P6: what is wrong with the root graph's chain of checkpoints: gaps, or more than one branch; None if nothing.

    Args:
        gaps: not every step has a checkpoint: only those at which runs ended.
    """
    for place, row in enumerate(found.get("", [])):
        parent = row["parent"]
        if (parent is None) != (place == 0) or (parent is not None and parent != ("", place - 1)):
            return f"checkpoint {place} of the root graph does not follow the one before it: {parent}"
        before = found[""][place - 1]["step"] if place else -2
        if row["step"] != before + 1 and not (gaps and row["step"] > before):
            return f"step {row['step']} follows step {before}"
    return None


def diff(one: Any, other: Any, codec: Codec, path: str = "") -> str:
    """The first place in which two of them differ, to be read."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            here = f"{path}[{short(key) if isinstance(key, str) else key!r}]"
            if key not in other:
                return f"{here} is {_shown(one[key], codec)} in the undisturbed run, and missing"
            if key not in one:
                return f"{here} is {_shown(other[key], codec)}, and missing in the undisturbed run"
            if one[key] != other[key]:
                return diff(one[key], other[key], codec, here)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        for place, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return diff(left, right, codec, f"{path}[{place}]")
        return f"{path} has {len(one)} entries in the undisturbed run, and {len(other)} here"
    return f"{path} is {_shown(one, codec)} in the undisturbed run, and {_shown(other, codec)} here"


def _shown(value: Any, codec: Codec) -> str:
    if isinstance(value, bytes):
        try:
            return repr(codec.decode(value, channel="it"))
        except Exception as error:
            return f"{len(value)} bytes ({error})"
    return repr(value)


def checkpoint_in(chunk: Mapping[str, Any]) -> CheckpointId | None:
    """The checkpoint that a chunk of the `checkpoints` mode tells of."""
    found = (chunk.get("config") or {}).get("configurable", {}).get("checkpoint_id")
    return None if found is None else CheckpointId(found)
