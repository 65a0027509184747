"""P10: what upkeep takes out of a thread was needed by nobody: all that stays reads as before, on this saver too."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO
from typing import ClassVar

import pytest

from ....abc import BaseCheckpointSaver
from ....errors import ThreadBusyError
from ....memory import InMemorySaver
from ....records import Rewrite
from ....upkeep.retention import Retention
from ..random_threads import BEGAN, Growing, Key, tuples
from ..suite import LATER, MANY, NOW, OpenSaver, Suite, elsewhere, in_threads, stored, take

SEEDS = (0, 3)

SUPERSTEPS = 70
"""More than a chain has rows from one milestone to the next."""


async def grown(saver: BaseCheckpointSaver, seed: int, thread: str = "t") -> Growing:
    """A thread that has grown, as of two hours after its last superstep by the saver's clock."""
    memory = InMemorySaver(codec=saver.codec)
    growing = Growing(memory, thread, seed)
    await growing.grow(SUPERSTEPS)
    dump = await memory.dump(thread)
    assert dump is not None
    lease = await take(saver, thread)
    await saver.load(lease, dump)
    await saver.release(lease)
    growing.saver = saver
    saver.clock = lambda: BEGAN + 60 * (2 * SUPERSTEPS + 120)
    return growing


def some(growing: Growing) -> dict[Key, bool]:
    """Pins of checkpoints here and there."""
    keys = sorted(growing.states, key=lambda key: (key[1], key[0]))
    return dict.fromkeys(keys[3::23], True)


class Pruning(Suite):
    needed: ClassVar[tuple[str, ...]] = ("rewrite", "load", "erase", "threads", "dump")

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_what_was_grown_is_read(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P10: every checkpoint of every branch and namespace, one by one and in a listing."""
        growing = Growing(saver, "t", seed)
        await growing.grow(SUPERSTEPS)
        found = await tuples(saver)
        assert {key: one.checkpoint["channel_values"] for key, one in found.items()} == growing.states
        for ns, checkpoint_id in growing.states:
            place = {"thread_id": "t", "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
            assert await saver.aget_tuple({"configurable": place}) == found[ns, checkpoint_id]

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize(
        "retention",
        [
            Retention(keep=1),
            Retention(keep=7),
            Retention(max_bytes=0),
            Retention(max_age=timedelta(minutes=150)),
            Retention(keep=30, max_bytes=20_000, max_age=timedelta(minutes=180)),
        ],
        ids=lambda retention: str(retention).partition("(")[2].rstrip(")"),
    )
    async def test_what_stays_reads_as_before(
        self, saver: BaseCheckpointSaver, retention: Retention, seed: int
    ) -> None:
        """P10: states, versions, what is recorded, open questions and where the thread stands, of each checkpoint that
        stays; the others are gone, with their events, and no more of them than was told."""
        growing = await grown(saver, seed)
        pins = some(growing)
        lease = await take(saver)
        await saver.rewrite(lease, Rewrite(pins=pins))
        await saver.release(lease)
        before, dump = await tuples(saver), await saver.dump("t")
        told = await saver.aprune("t", retention=retention)
        after, left = await tuples(saver), await saver.dump("t")
        assert dump is not None and left is not None
        assert after.keys() == before.keys() - {key for thread in told.threads for key in thread.gone}
        for key, one in after.items():
            assert one.checkpoint == before[key].checkpoint
            assert one.pending_writes == before[key].pending_writes
        assert after.keys() >= {("", tip) for tip in growing.tips} | pins.keys()
        assert left.heads[""] == dump.heads[""]
        assert left.records == tuple(one for one in dump.records if (one.ns, one.checkpoint_id) in after)
        assert [one.checkpoint_id for one in left.events] == sorted(id for ns, id in after if ns == "")
        assert [(one.ns, one.checkpoint_id) for one in left.rows if one.pinned] == list(pins)
        assert len(await saver.scan("t", None, limit=MANY)) == len(left.rows) == len(after)

    async def test_what_was_pruned_is_not_pruned_again(self, saver: BaseCheckpointSaver) -> None:
        """P10: the same limits find nothing more."""
        await grown(saver, 1)
        assert (await saver.aprune("t", retention=Retention(keep=5))).checkpoints > 0
        before = await saver.dump("t")
        assert (await saver.aprune("t", retention=Retention(keep=5))).checkpoints == 0
        assert await saver.dump("t") == before

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_a_thread_goes_on_afterwards(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P10: from where it stands, and from every checkpoint that stays: the next superstep's state is right."""
        growing = await grown(saver, seed)
        await saver.aprune("t", retention=Retention(keep=5))
        left = await tuples(saver)
        lease = await take(saver)
        for ns, checkpoint_id in left:
            if ns == "":
                await growing.go_on_from(lease, checkpoint_id)
        await saver.release(lease)
        after = await tuples(saver)
        assert len(after) >= len(left) + len([ns for ns, _ in left if ns == ""])
        for key, one in after.items():
            assert one.checkpoint["channel_values"] == growing.states[key]

    async def test_a_dry_run_tells_and_does_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P10: what would go is told, and is what goes."""
        await grown(saver, 1)
        before = await stored(saver)
        told = await saver.aprune("t", retention=Retention(keep=3), dry_run=True)
        assert told.dry_run and told.checkpoints > 0
        assert await stored(saver) == before
        done = await saver.aprune("t", retention=Retention(keep=3))
        assert done.threads == told.threads and not done.dry_run

    async def test_a_run_is_not_disturbed(self, saver: BaseCheckpointSaver) -> None:
        """P6: a thread that a run owns is not pruned, and among all threads it is passed over."""
        for thread in ("busy", "free"):
            await grown(saver, 2, thread)
        lease = await saver.acquire("busy", elsewhere("run-2"), now=NOW, expires_at=LATER)
        before = await saver.dump("busy")
        with pytest.raises(ThreadBusyError):
            await saver.aprune("busy", retention=Retention(keep=1))
        told = await saver.aprune(retention=Retention(keep=1))
        assert told.busy == ("busy",) and [one.thread_id for one in told.threads] == ["free"]
        assert await saver.dump("busy") == before
        await saver.release(lease)

    async def test_readers_beside_it(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: while a thread is pruned, every reader of its head finds its state, before and after."""
        growing = await grown(saver, 3)
        head = await saver.aget_tuple("t")
        assert head is not None
        ended: list[bool] = []

        async def prune() -> None:
            try:
                for keep in (60, 50, 40, 30, 20, 10, 5, 2, 1):
                    await saver.aprune("t", retention=Retention(keep=keep))
            finally:
                ended.append(True)

        async def look() -> None:
            async with open_saver() as other:
                while True:
                    last = bool(ended)
                    found = await other.aget_tuple("t")
                    assert found is not None
                    assert (found.config, found.checkpoint) == (head.config, head.checkpoint)
                    assert found.pending_writes == head.pending_writes
                    if last:
                        return

        await in_threads(prune, look, look)
        assert len(await tuples(saver)) < len(growing.states)

    async def test_copies_and_exports(self, saver: BaseCheckpointSaver) -> None:
        """P11: a copy, and what was exported and imported by a saver of another kind, reads as the thread it is of."""
        await grown(saver, 0)
        await saver.aprune("t", retention=Retention(keep=10))
        whole = {key: (one.checkpoint, one.pending_writes) for key, one in (await tuples(saver)).items()}
        await saver.acopy_thread("t", "copy")
        copied = await tuples(saver, "copy")
        assert {key: (one.checkpoint, one.pending_writes) for key, one in copied.items()} == whole
        memory = InMemorySaver()
        file = BytesIO()
        await saver.aexport_thread("t", file)
        await memory.aimport_thread(file.getvalue())
        assert await memory.dump("t") == await saver.dump("t")
        again = BytesIO()
        await memory.aexport_thread("t", again)
        assert again.getvalue() == file.getvalue()
        await saver.aerase_thread("t")
        await saver.aimport_thread(file.getvalue())
        assert {key: (one.checkpoint, one.pending_writes) for key, one in (await tuples(saver)).items()} == whole

    async def test_what_runs_have_made_goes(self, saver: BaseCheckpointSaver) -> None:
        """P10: with the run that made it; what others have made reads as before."""
        await grown(saver, 1)
        before = await tuples(saver)
        runs = sorted({str(one.metadata.get("run_id")) for one in before.values()})
        doomed = runs[1::2]
        await saver.adelete_for_runs(doomed)
        after = await tuples(saver)
        assert after.keys() == {key for key, one in before.items() if one.metadata.get("run_id") not in doomed}
        for key, one in after.items():
            assert one.checkpoint == before[key].checkpoint
        assert len(await saver.scan("t", None, limit=MANY)) == len(after)
