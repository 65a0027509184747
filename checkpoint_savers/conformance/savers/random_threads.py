"""Random threads in the format of the runtime, with branches and nested graphs; each is reproducible by its seed."""

from __future__ import annotations

import random
from typing import Any, Final

from msgspec.structs import replace

from ...abc import BaseCheckpointSaver
from ...chain import ChainReader, ChainWriter
from ...codec import seal
from ...deltas import Delta, TaskResult, write_record
from ...patches import as_incremental
from ...records import CheckpointId, CheckpointTuple, Commit, Lease, TaskId, TaskRecord
from .suite import LATER, event, take

STARTED_AT: Final = 1_760_000_000.0
"""The time of the first superstep, in unix seconds. Supersteps follow at intervals of a minute."""

NamespacedId = tuple[str, CheckpointId]


def checkpoint_id_at(number: int) -> CheckpointId:
    """Return a checkpoint id as the runtime makes them, with the time of creation in its first digits.

    Args:
        number: the number of the checkpoint, counted in minutes from `STARTED_AT`.
    """
    moment = f"{int((STARTED_AT + 60 * number) * 1000):012x}"
    return CheckpointId(f"{moment[:8]}-{moment[8:]}-7000-8000-{number:012x}")


class RandomThread:
    """A thread that grows by random supersteps.

    Args:
        saver: the saver that stores the thread.
        thread: the thread's id.
        seed: the seed of all random choices.
        first: the number of the first checkpoint.

    Attributes:
        saver: the saver that stores the thread; it may be replaced between two calls.
        states: the channel values that `aget_tuple` must return, by namespace and checkpoint id.
        tips: the root's checkpoints without a successor, whose supersteps are open.
    """

    def __init__(self, saver: BaseCheckpointSaver, thread: str, seed: int, *, first: int = 0) -> None:
        self.saver = saver
        self._thread = thread
        self._chance = random.Random(seed)
        self._number = first
        self._heads: dict[str, CheckpointId] = {}
        self.states: dict[NamespacedId, dict[str, Any]] = {}
        self.tips: set[CheckpointId] = set()

    async def grow(self, supersteps: int) -> None:
        """Run supersteps under several leases, of up to eleven supersteps each; some leases start a branch.

        Args:
            supersteps: the number of supersteps of the root graph. Supersteps of nested graphs come on top.
        """
        chain = ChainWriter.start("")
        while supersteps > 0:
            lease = await take(self.saver, self._thread, f"run-{self._number}")
            if self.states and self._chance.random() < 0.5:
                chain = await self._branch(self._chance.choice(sorted(id for ns, id in self.states if ns == "")))
            for _ in range(min(supersteps, self._chance.randrange(1, 12))):
                await self._superstep(lease, chain)
                supersteps -= 1
            await self._pause(lease, chain)
            await self.saver.release(lease)

    async def continue_from(self, lease: Lease, at: CheckpointId) -> None:
        """Run one more superstep on a checkpoint of the root.

        Args:
            lease: the lease on the thread.
            at: the checkpoint.
        """
        await self._superstep(lease, await self._branch(at))

    async def _branch(self, at: CheckpointId) -> ChainWriter:
        chain = await self.saver.read(self._thread, "", at)
        assert chain is not None
        return ChainWriter.resume(ChainReader(self._thread, "", chain.rows), at)

    async def _superstep(self, lease: Lease, chain: ChainWriter, ns: str = "", on: CheckpointId | None = None) -> None:
        before = {} if chain.tip is None else self.states[ns, chain.tip]
        values = {**before, "steps": before.get("steps", 0) + 1}
        values["log"] = [*before.get("log", []), {"said": "word " * self._chance.randrange(8), "step": values["steps"]}]
        emptied: tuple[str, ...] = ()
        if self._chance.random() < 0.3:
            values["note"] = self._chance.choice(["x", None, 2**70, {"a": [1.5, True]}])
        elif "note" in values:
            del values["note"]
            emptied = ("note",)
        encode = self.saver.codec.encode
        new = {name: value for name, value in values.items() if value != before.get(name, ())}
        changed = {name: as_incremental(encode(value, channel=name)) for name, value in new.items()}
        entry = Delta(
            keyframe=not before,
            ts=STARTED_AT + 60 * self._number,
            clock=values["steps"],
            values=changed,
            emptied=emptied,
            kinds={name: "LastValue" for name in changed if name not in before},
            versions={},
            seen={"steps": {"node": values["steps"]}},
            ran=("node",),
            results={f"task-{self._number}": (("steps", None),)},
        )
        checkpoint_id = checkpoint_id_at(self._number)
        metadata: dict[str, Any] = {"source": "loop", "step": values["steps"], "run_id": lease.owner.run_id}
        metadata["parents"] = {} if on is None else {"": on}
        parent = chain.tip
        row = chain.append(entry, checkpoint_id=checkpoint_id, step=values["steps"], metadata=metadata)
        shown = () if ns else (replace(event(1), checkpoint_id=checkpoint_id, frame=seal(checkpoint_id.encode())),)
        await self.saver.commit(
            lease, Commit(rows=(row,), expected_head=self._heads.get(ns), expires_at=LATER, events=shown)
        )
        self._heads[ns] = checkpoint_id
        self.states[ns, checkpoint_id] = values
        self._number += 1
        if ns == "":
            self.tips = {one for one in self.tips if one != parent} | {checkpoint_id}
            if self._chance.random() < 0.2:
                inside = ChainWriter.start(f"node:{self._number}")
                for _ in range(self._chance.randrange(1, 4)):
                    await self._superstep(lease, inside, inside.ns, checkpoint_id)

    async def _pause(self, lease: Lease, chain: ChainWriter) -> None:
        """Record a result and a question in the open superstep."""
        assert chain.tip is not None
        encoded = self.saver.codec.encode("yes?", channel="asked")
        entries = (
            TaskResult(name="node", writes=(("asked", encoded),)),
            TaskResult(name="other", interrupts=(("question", encoded),)),
        )
        records = [
            TaskRecord(
                ns="",
                checkpoint_id=chain.tip,
                task_id=TaskId(entry.name),
                index=index,
                kind="interrupt" if entry.interrupts else "result",
                frame=write_record(entry),
            )
            for index, entry in enumerate(entries)
        ]
        await self.saver.record(lease, records, expires_at=LATER)


async def checkpoint_tuples(saver: BaseCheckpointSaver, thread: str = "t") -> dict[NamespacedId, CheckpointTuple]:
    """Read what users get of a thread, by namespace and checkpoint id."""
    found: dict[NamespacedId, CheckpointTuple] = {}
    async for one in saver.alist(thread):
        place = one.config["configurable"]
        found[place["checkpoint_ns"], place["checkpoint_id"]] = one
    return found
