"""P10: pruning deletes only what no remaining checkpoint needs: everything that stays reads as before."""

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
from ..random_threads import STARTED_AT, NamespacedId, RandomThread, checkpoint_tuples
from ..suite import LATER, MANY, NOW, OpenSaver, Suite, elsewhere, in_threads, stored, take

SEEDS = (0, 3)

SUPERSTEPS = 70
"""More supersteps than a chain has rows from one snapshot to the next."""


async def stored_thread(saver: BaseCheckpointSaver, seed: int, thread: str = "t") -> RandomThread:
    """Store a random thread, and set the saver's clock to two hours after the last superstep.

    Args:
        saver: the saver; its clock is replaced.
        seed: the seed of the thread.
        thread: the thread's id.
    """
    memory = InMemorySaver(codec=saver.codec)
    random_thread = RandomThread(memory, thread, seed)
    await random_thread.grow(SUPERSTEPS)
    dump = await memory.dump(thread)
    assert dump is not None
    lease = await take(saver, thread)
    await saver.load(lease, dump)
    await saver.release(lease)
    random_thread.saver = saver
    saver.clock = lambda: STARTED_AT + 60 * (2 * SUPERSTEPS + 120)
    return random_thread


def some_pins(random_thread: RandomThread) -> dict[NamespacedId, bool]:
    """Choose checkpoints to pin.

    Args:
        random_thread: the thread.
    """
    keys = sorted(random_thread.states, key=lambda key: (key[1], key[0]))
    return dict.fromkeys(keys[3::23], True)


class Pruning(Suite):
    plan: ClassVar[tuple[str, ...]] = ("rewrite", "load", "erase", "threads", "dump")

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_what_was_grown_is_read(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P10: every checkpoint of every branch and namespace reads as it was stored, alone and in a listing."""
        random_thread = RandomThread(saver, "t", seed)
        await random_thread.grow(SUPERSTEPS)
        found = await checkpoint_tuples(saver)
        assert {key: one.checkpoint["channel_values"] for key, one in found.items()} == random_thread.states
        for ns, checkpoint_id in random_thread.states:
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
        """P10: states, records, open questions, pins and heads of the checkpoints that stay are unchanged; exactly the
        reported checkpoints are deleted, with their events."""
        random_thread = await stored_thread(saver, seed)
        pins = some_pins(random_thread)
        lease = await take(saver)
        await saver.rewrite(lease, Rewrite(pins=pins))
        await saver.release(lease)
        before, dump = await checkpoint_tuples(saver), await saver.dump("t")
        report = await saver.aprune("t", retention=retention)
        after, left = await checkpoint_tuples(saver), await saver.dump("t")
        assert dump is not None and left is not None
        assert after.keys() == before.keys() - {key for thread in report.threads for key in thread.gone}
        for key, one in after.items():
            assert one.checkpoint == before[key].checkpoint
            assert one.pending_writes == before[key].pending_writes
        assert after.keys() >= {("", tip) for tip in random_thread.tips} | pins.keys()
        assert left.heads[""] == dump.heads[""]
        assert left.records == tuple(one for one in dump.records if (one.ns, one.checkpoint_id) in after)
        assert [one.checkpoint_id for one in left.events] == sorted(id for ns, id in after if ns == "")
        assert [(one.ns, one.checkpoint_id) for one in left.rows if one.pinned] == list(pins)
        assert len(await saver.scan("t", None, limit=MANY)) == len(left.rows) == len(after)

    async def test_what_was_pruned_is_not_pruned_again(self, saver: BaseCheckpointSaver) -> None:
        """P10: pruning again with the same limits deletes nothing."""
        await stored_thread(saver, 1)
        assert (await saver.aprune("t", retention=Retention(keep=5))).checkpoints > 0
        before = await saver.dump("t")
        assert (await saver.aprune("t", retention=Retention(keep=5))).checkpoints == 0
        assert await saver.dump("t") == before

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_a_thread_goes_on_afterwards(self, saver: BaseCheckpointSaver, seed: int) -> None:
        """P10: a run can continue from every checkpoint that stays, and its next state is right."""
        random_thread = await stored_thread(saver, seed)
        await saver.aprune("t", retention=Retention(keep=5))
        left = await checkpoint_tuples(saver)
        lease = await take(saver)
        for ns, checkpoint_id in left:
            if ns == "":
                await random_thread.continue_from(lease, checkpoint_id)
        await saver.release(lease)
        after = await checkpoint_tuples(saver)
        assert len(after) >= len(left) + len([ns for ns, _ in left if ns == ""])
        for key, one in after.items():
            assert one.checkpoint["channel_values"] == random_thread.states[key]

    async def test_a_dry_run_reports_and_changes_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P10: a dry run changes nothing and reports exactly what pruning then deletes."""
        await stored_thread(saver, 1)
        before = await stored(saver)
        report = await saver.aprune("t", retention=Retention(keep=3), dry_run=True)
        assert report.dry_run and report.checkpoints > 0
        assert await stored(saver) == before
        done = await saver.aprune("t", retention=Retention(keep=3))
        assert done.threads == report.threads and not done.dry_run

    async def test_a_run_is_not_disturbed(self, saver: BaseCheckpointSaver) -> None:
        """P6: a leased thread is not pruned; pruning all threads skips it and reports it as busy."""
        for thread in ("busy", "free"):
            await stored_thread(saver, 2, thread)
        lease = await saver.acquire("busy", elsewhere("run-2"), now=NOW, expires_at=LATER)
        before = await saver.dump("busy")
        with pytest.raises(ThreadBusyError):
            await saver.aprune("busy", retention=Retention(keep=1))
        report = await saver.aprune(retention=Retention(keep=1))
        assert report.busy == ("busy",) and [one.thread_id for one in report.threads] == ["free"]
        assert await saver.dump("busy") == before
        await saver.release(lease)

    async def test_readers_during_pruning(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: while a thread is pruned, every reader of its head gets the same state."""
        random_thread = await stored_thread(saver, 3)
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
        assert len(await checkpoint_tuples(saver)) < len(random_thread.states)

    async def test_copies_and_exports(self, saver: BaseCheckpointSaver) -> None:
        """P11: a copy of a thread, and an export that another kind of saver imported, read as the original."""
        await stored_thread(saver, 0)
        await saver.aprune("t", retention=Retention(keep=10))
        whole = {key: (one.checkpoint, one.pending_writes) for key, one in (await checkpoint_tuples(saver)).items()}
        await saver.acopy_thread("t", "copy")
        copied = await checkpoint_tuples(saver, "copy")
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
        assert {
            key: (one.checkpoint, one.pending_writes) for key, one in (await checkpoint_tuples(saver)).items()
        } == whole

    async def test_what_runs_have_made_goes(self, saver: BaseCheckpointSaver) -> None:
        """P10: deleting runs deletes exactly the checkpoints that they made; those of other runs read as before."""
        await stored_thread(saver, 1)
        before = await checkpoint_tuples(saver)
        runs = sorted({str(one.metadata.get("run_id")) for one in before.values()})
        doomed = runs[1::2]
        await saver.adelete_for_runs(doomed)
        after = await checkpoint_tuples(saver)
        assert after.keys() == {key for key, one in before.items() if one.metadata.get("run_id") not in doomed}
        for key, one in after.items():
            assert one.checkpoint == before[key].checkpoint
        assert len(await saver.scan("t", None, limit=MANY)) == len(after)
