"""P3: a superstep is all or nothing."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from ...abc import BaseCheckpointSaver
from ...bridge import Waiter, loop_scheduler
from ...errors import CheckpointError, ThreadBusyError
from ...records import Commit, Lease
from .suite import OpenSaver, Suite, cid, commit, everything, in_threads, record, row, take


async def _begun(saver: BaseCheckpointSaver, lease: Lease, what: Commit) -> None:
    woken, times = anyio.Event(), 0

    def arrived() -> None:
        nonlocal times
        times += 1
        woken.set()

    result = saver.begin_commit(lease, what, Waiter(loop_scheduler(), arrived))
    with anyio.fail_after(30):
        await woken.wait()
    await anyio.lowlevel.checkpoint()
    assert times == 1
    result()


class AtomicCommits(Suite):
    async def test_a_commit_is_stored_whole(self, saver: BaseCheckpointSaver) -> None:
        """P3: when a commit returns, its rows, head and records are stored, and its cleared records are gone."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a"), record(1, "b", 1, "error")]))
        await saver.commit(
            lease,
            commit(row(2, 1, base=1), row(3, 2, base=1), head=1, records=[record(3, "c")], clears=[record(1, "b")]),
        )
        chain = await saver.read("t")
        assert chain is not None
        assert [one.checkpoint_id for one in chain.rows] == [cid(1), cid(2), cid(3)]
        assert chain.head == cid(3)
        assert chain.records == (record(3, "c"),)
        before = await saver.read("t", "", cid(1))
        assert before is not None and before.records == (record(1, "a"),)

    async def test_a_begun_commit(self, saver: BaseCheckpointSaver) -> None:
        """P3, P6: a commit that is handed over and not awaited is stored whole, or refused as any other, and its waiter
        is woken once. For savers that begin commits."""
        if not saver.begins_commits:
            pytest.skip("this saver has only `commit`")
        lease = await take(saver)
        await _begun(saver, lease, commit(row(1), records=[record(1, "a")]))
        with pytest.raises(ThreadBusyError) as caught:
            await _begun(saver, lease, commit(row(2, 1), head=7))
        assert caught.value.lost
        await _begun(saver, lease, commit(row(2, 1), head=1, clears=[record(1, "a")], releases=True))
        chain = await saver.read("t")
        assert chain is not None and chain.head == cid(2)
        before = await saver.read("t", "", cid(1))
        assert before is not None and before.records == ()
        with pytest.raises(ThreadBusyError):
            await _begun(saver, lease, commit(row(3, 2), head=2))

    async def test_a_refused_commit_changes_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P3: if the head is not the expected one, a commit stores no row and no record, clears no record, and keeps
        the lease."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
        before = await everything(saver)
        for wrong in (None, 7):
            refused = commit(row(2, 1), head=wrong, records=[record(1, "b")], clears=[record(1, "a")], releases=True)
            with pytest.raises(ThreadBusyError) as caught:
                await saver.commit(lease, refused)
            assert caught.value.lost
        assert await everything(saver) == before
        await saver.commit(lease, commit(row(2, 1), head=1))  # the lease was not released either

    async def test_a_commit_that_fails_half_way_changes_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P3: if the last row of a commit cannot be stored, since its id exists, neither are its other rows nor
        anything else, also where a saver needs several statements for the rows of a commit."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(2), records=[record(2, "a")]))
        before = await everything(saver)
        for rows in ((row(3, 2), row(2, 3)), (row(3, 2), row(4, 3), row(2, 4))):
            with pytest.raises(CheckpointError):
                await saver.commit(
                    lease, commit(*rows, head=2, records=[record(2, "b")], clears=[record(2, "a")], releases=True)
                )
        assert await everything(saver) == before
        await saver.commit(lease, commit(row(3, 2), head=2))

    async def test_a_value_that_no_database_takes_changes_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P3: if a commit contains a value that cannot be encoded, it stores nothing, and the next commit works."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        before = await everything(saver)
        with pytest.raises(ValueError):
            await saver.commit(lease, commit(row(2, 1), row(3, 2, metadata={"note": "\ud800"}), head=1))
        assert await everything(saver) == before
        await saver.commit(lease, commit(row(2, 1), head=1))

    async def test_readers_see_before_or_after(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: during commits every reader sees whole supersteps: a head, its rows and its record, and never an older
        one later."""
        steps, ended = 40, threading.Event()
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "task")]))

        async def write() -> None:
            try:
                for number in range(2, steps):
                    await saver.commit(
                        lease,
                        commit(
                            row(number, number - 1, base=1),
                            head=number - 1,
                            records=[record(number, "task")],
                            clears=[record(number - 1, "task")],
                        ),
                    )
            finally:
                ended.set()

        async def look(other: BaseCheckpointSaver) -> None:
            seen = cid(1)
            while True:
                last = ended.is_set()
                chain = await other.read("t")
                assert chain is not None
                number = len(chain.rows)
                assert chain.head == chain.rows[-1].checkpoint_id == cid(number)
                assert chain.records == (record(number, "task"),)
                assert seen <= chain.head, "a reader saw an older superstep after a newer one"
                seen = chain.head
                if last:
                    assert number == steps - 1
                    return

        async def look_here() -> None:
            await look(saver)

        async def look_there() -> None:
            async with open_saver() as other:
                await look(other)

        await in_threads(write, look_here, look_there, look_here)
