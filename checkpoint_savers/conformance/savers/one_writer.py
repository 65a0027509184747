"""P6: one writer per thread."""

from __future__ import annotations

import threading

import pytest

from ...abc import BaseCheckpointSaver
from ...errors import ThreadBusyError
from ...records import Owner
from .suite import (
    LATER,
    NOW,
    OpenSaver,
    Suite,
    cid,
    commit,
    elsewhere,
    everything,
    head_of,
    here,
    in_threads,
    record,
    refused,
    repeated,
    row,
    take,
    written,
)


class OneWriter(Suite):
    async def test_a_lease(self, saver: BaseCheckpointSaver) -> None:
        """P6: a lease names its thread, its owner and the newest stored checkpoint id; each new lease's epoch is
        greater by one."""
        lease = await take(saver)
        assert (lease.thread_id, lease.owner, lease.newest) == ("t", here("run-1"), None)
        await saver.commit(lease, commit(row(5)))
        await saver.commit(lease, commit(row(7, ns="child")))
        await saver.commit(lease, commit(row(6, 5), head=5))
        await saver.release(lease)
        again = await take(saver, run="run-2")
        assert again.epoch == lease.epoch + 1
        assert again.newest == cid(7), "the greatest of any namespace and branch"

    async def test_a_live_lease_refuses_others(self, saver: BaseCheckpointSaver) -> None:
        """P6: while a lease is live, others get a ThreadBusyError with its owner and its expiry; the owner continues
        undisturbed."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        for rival in (here("run-2"), elsewhere("run-2")):
            with pytest.raises(ThreadBusyError) as caught:
                await saver.acquire("t", rival, now=LATER - 0.001, expires_at=LATER + 60)
            assert not caught.value.lost
            assert caught.value.expires_at == LATER
            assert caught.value.holder is not None and "run-1" in caught.value.holder
        await saver.commit(lease, commit(row(2, 1), head=1))

    async def test_threads_do_not_disturb_each_other(self, saver: BaseCheckpointSaver) -> None:
        """P6: a lease covers one thread; runs on other threads are not affected."""
        first, second = await take(saver, "t1"), await take(saver, "t2", "run-2")
        await saver.commit(first, commit(row(1)))
        await saver.commit(second, commit(row(1, frame=b"other")))
        assert await head_of(saver, "t1") == await head_of(saver, "t2") == cid(1)
        one, other = await saver.read("t1"), await saver.read("t2")
        assert one is not None and other is not None and one.rows != other.rows

    async def test_a_lease_lapses_at_its_expiry(self, saver: BaseCheckpointSaver) -> None:
        """P6: a lease is live before its expiry, and no longer live at its expiry."""
        await saver.acquire("t", elsewhere("run-1"), now=NOW, expires_at=LATER)
        with pytest.raises(ThreadBusyError):
            await saver.acquire("t", here("run-2"), now=LATER - 0.001, expires_at=LATER + 30)
        await saver.acquire("t", here("run-2"), now=LATER, expires_at=LATER + 30)

    async def test_a_lease_lapses_when_its_process_is_gone(self, saver: BaseCheckpointSaver, dead_owner: Owner) -> None:
        """P6: after a SIGKILL of the owner's process, the next run on the same host acquires the lease without
        waiting."""
        dead = await saver.acquire("t", dead_owner, now=NOW, expires_at=LATER)
        await saver.commit(dead, commit(row(1)))
        lease = await take(saver)
        assert lease.epoch == dead.epoch + 1 and lease.newest == cid(1)
        with pytest.raises(ThreadBusyError):
            await saver.commit(dead, commit(row(2, 1), head=1))

    async def test_what_cannot_be_known_counts_as_alive(self, saver: BaseCheckpointSaver, dead_owner: Owner) -> None:
        """P6: an owner on another host, whose process cannot be checked, counts as alive until the expiry."""
        await saver.acquire("t", elsewhere("run-1"), now=NOW, expires_at=LATER)
        with pytest.raises(ThreadBusyError):
            await take(saver, run="run-2")

    async def test_its_own_run_may_acquire_again(self, saver: BaseCheckpointSaver) -> None:
        """P6: a run may acquire its own lease again; the older lease is void: it writes nothing and releases
        nothing."""
        first = await take(saver)
        second = await take(saver)
        assert second.epoch == first.epoch + 1
        with pytest.raises(ThreadBusyError):
            await saver.commit(first, commit(row(1)))
        await saver.commit(second, commit(row(1)))
        before = await everything(saver)
        await refused(saver.commit(first, commit(row(2, 1), head=1)))
        await refused(saver.commit(first, commit(records=[record(1, "a")])))
        await refused(saver.record(first, [record(1, "a")], expires_at=LATER + 99))
        await refused(saver.renew(first, expires_at=LATER + 99))
        await saver.release(first)
        assert await everything(saver) == before
        with pytest.raises(ThreadBusyError):
            await saver.acquire("t", here("run-2"), now=LATER - 1, expires_at=LATER + 60)
        await saver.commit(second, commit(row(2, 1), head=1))

    async def test_an_owner_that_was_taken_over(self, saver: BaseCheckpointSaver) -> None:
        """P6: an owner that lost its lease cannot release it; each of its writes fails with lost=True and changes
        nothing."""
        lost = await take(saver)
        await saver.commit(lost, commit(row(1)))
        winner = await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
        before = await everything(saver)
        for error in (
            await refused(saver.commit(lost, commit(row(2, 1), head=1))),
            await refused(saver.record(lost, [record(1, "a")], expires_at=LATER + 99)),
            await refused(saver.renew(lost, expires_at=LATER + 99)),
        ):
            assert error.holder is not None and "run-2" in error.holder
        await saver.release(lost)
        assert await everything(saver) == before
        with pytest.raises(ThreadBusyError):
            await saver.acquire("t", here("run-3"), now=LATER + 29, expires_at=LATER + 60)
        await saver.commit(winner, commit(row(2, 1), head=1))

    async def test_epoch_and_owner_are_both_compared(self, saver: BaseCheckpointSaver) -> None:
        """P6: the lease of a thread that was deleted is void on a new thread of that name, though both have the same
        epoch."""
        old = await take(saver)
        await saver.release(old)  # without a checkpoint the thread is removed, and its epoch with it
        new = await take(saver, run="run-2")
        await refused(saver.commit(old, commit(row(1))))
        await saver.release(old)
        await saver.commit(new, commit(row(1)))

    async def test_a_lapsed_lease_is_held_until_it_is_taken_over(self, saver: BaseCheckpointSaver) -> None:
        """P6: a commit compares the lease and not the clock: an expired lease that no run has taken over is still
        valid."""
        lease = await saver.acquire("t", here("run-1"), now=NOW, expires_at=NOW)
        await saver.commit(lease, commit(row(1)))

    async def test_renewing(self, saver: BaseCheckpointSaver) -> None:
        """P6: renew, record and commit each move the expiry."""
        lease = await take(saver)

        async def lapses_at(moment: float) -> None:
            with pytest.raises(ThreadBusyError) as caught:
                await saver.acquire("t", elsewhere("run-2"), now=moment - 0.001, expires_at=moment + 30)
            assert caught.value.expires_at == moment

        await saver.renew(lease, expires_at=LATER + 10)
        await lapses_at(LATER + 10)
        await saver.commit(lease, commit(row(1), expires_at=LATER + 20))
        await lapses_at(LATER + 20)
        await saver.record(lease, [record(1, "a")], expires_at=LATER + 30)
        await lapses_at(LATER + 30)
        await saver.renew(lease, expires_at=LATER)
        await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)

    async def test_giving_up(self, saver: BaseCheckpointSaver) -> None:
        """P6: a released lease is free for the next run; a second release does nothing, and the old owner can no longer
        write."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        await saver.release(lease)
        await saver.release(lease)
        await refused(saver.commit(lease, commit(row(2, 1), head=1)))
        await take(saver, run="run-2")

    async def test_a_commit_can_give_up(self, saver: BaseCheckpointSaver) -> None:
        """P6: a commit can release the lease in the same transaction as the last superstep."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), releases=True))
        with pytest.raises(ThreadBusyError):
            await saver.commit(lease, commit(row(2, 1), head=1))
        assert (await take(saver, run="run-2")).newest == cid(1)

    async def test_a_thread_without_checkpoints_leaves_no_trace(self, saver: BaseCheckpointSaver) -> None:
        """P6: a thread whose lease is released before a checkpoint is stored leaves nothing, neither records nor an
        epoch."""
        before = await everything(saver)
        lease = await take(saver)
        await saver.record(lease, [record(1, "a")], expires_at=LATER)
        await saver.release(lease)
        assert await everything(saver) == before
        lease = await take(saver)
        assert lease.newest is None and lease.epoch == 1
        await saver.commit(lease, commit(row(1)))
        assert (await saver.segment("t", "", cid(1)))[1] == ()

    async def test_the_head_is_compared(self, saver: BaseCheckpointSaver) -> None:
        """P6: a commit is refused if the head of its namespace differs from the expected one; the first commit expects
        none."""
        await written(saver, row(1), row(2, 1, base=1), row(3, ns="child"))
        lease = await take(saver)
        for wrong in (commit(row(9), head=None), commit(row(9), head=1), commit(row(9, ns="child"), head=2)):
            await refused(saver.commit(lease, wrong))
        with pytest.raises(ThreadBusyError):
            await saver.commit(lease, commit(row(9, ns="new"), head=3))
        await saver.commit(lease, commit(row(4, 2, base=1), head=2))
        await saver.commit(lease, commit(row(5, 3, base=3, ns="child"), head=3))
        await saver.commit(lease, commit(row(6, ns="new")))

    async def test_one_of_many_leases_wins(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P6: if several runs acquire one thread at the same moment, through one saver or several, exactly one
        succeeds."""
        won: list[int] = []
        refused: list[ThreadBusyError] = []
        everybody = threading.Barrier(8)

        async def acquire(number: int) -> None:
            async def one(saver: BaseCheckpointSaver) -> None:
                try:
                    await saver.acquire("t", here(f"run-{number}"), now=NOW, expires_at=LATER)
                except ThreadBusyError as error:
                    refused.append(error)
                else:
                    won.append(number)
                finally:
                    everybody.wait(60)  # closing a saver releases its leases: wait until all have tried

            if number % 2:
                await one(saver)
            else:
                async with open_saver() as other:
                    await one(other)

        await in_threads(*repeated(acquire, 8))
        assert len(won) == 1
        assert len(refused) == 7 and not any(error.lost for error in refused)
