"""P7: cancellation can be trusted: a commit that has begun is completed or rolled back before control returns."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from ....abc import BaseCheckpointSaver
from ..suite import (
    LATER,
    NOW,
    Suite,
    cancelled_natively,
    cid,
    commit,
    elsewhere,
    everything,
    head_of,
    here,
    record,
    row,
    take,
    written,
)

TURNS = 6
"""Turns of the event loop after which a clause cancels, from 0 up: before, during and after the commit."""


class Cancellation(Suite):
    async def test_a_commit_in_a_cancelled_scope(self, saver: BaseCheckpointSaver) -> None:
        """P7: a commit whose cancel scope is cancelled at any moment is stored whole or not at all, and nothing is
        stored later."""
        for turns in range(TURNS):
            thread = f"t{turns}"
            lease = await take(saver, thread)
            await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
            async with anyio.create_task_group() as group:
                group.start_soon(
                    saver.commit,
                    lease,
                    commit(row(2, 1), row(3, 2), head=1, records=[record(3, "b")], clears=[record(1, "a")]),
                )
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await self.check_whole(saver, thread)
            head = 3 if await head_of(saver, thread) == cid(3) else 1
            await saver.commit(lease, commit(row(4, head), head=head))

    async def test_a_commit_of_a_cancelled_task(self, saver: BaseCheckpointSaver, anyio_backend_name: str) -> None:
        """P7: a commit whose asyncio task is cancelled once or several times is stored whole or not at all, and the
        task ends as cancelled."""
        if anyio_backend_name != "asyncio":
            pytest.skip("trio has no cancellation of its own besides scopes")
        for turns in range(TURNS):
            for again in range(3):
                thread = f"t{turns}{again}"
                lease = await take(saver, thread)
                await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
                second = commit(row(2, 1), row(3, 2), head=1, records=[record(3, "b")], clears=[record(1, "a")])
                await cancelled_natively(saver.commit(lease, second), turns, again)
                await self.check_whole(saver, thread)

    async def check_whole(self, saver: BaseCheckpointSaver, thread: str) -> None:
        """Check that a thread holds the state before or after the commit, and that nothing is stored later.

        Args:
            saver: the saver.
            thread: the thread's id.
        """
        chain = await saver.read(thread)
        assert chain is not None
        if chain.head == cid(1):
            assert chain.records == (record(1, "a"),)
            assert await saver.read(thread, "", cid(2)) is None
        else:
            assert chain.head == cid(3) and chain.records == (record(3, "b"),)
            before = await saver.read(thread, "", cid(1))
            assert before is not None and before.records == ()
        await written(
            saver, row(1), thread=f"{thread}-other"
        )  # an abandoned write would be stored before these later ones
        assert await saver.read(thread) == chain

    async def test_a_cancelled_acquire_holds_no_lease(self, saver: BaseCheckpointSaver) -> None:
        """P7, P6: if a run is cancelled before it receives its lease, the lease is released, and the next run need not
        wait."""
        for turns in range(TURNS):
            leases: list[object] = []

            async def acquire(leases: list[object] = leases) -> None:
                leases.append(await saver.acquire("t", elsewhere("run-1"), now=NOW, expires_at=LATER))

            async with anyio.create_task_group() as group:
                group.start_soon(acquire)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            if not leases:
                mine = await saver.acquire("t", here("run-2"), now=NOW, expires_at=LATER)
            else:
                mine = await saver.acquire("t", here("run-2"), now=LATER, expires_at=LATER)
            await saver.release(mine)

    async def test_a_saver_in_a_cancelled_scope(self, saver: BaseCheckpointSaver) -> None:
        """P7: in a scope that is cancelled already, a commit stores all or nothing; in a shield, it works as usual."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await saver.commit(lease, commit(row(2, 1), head=1))
        head = 2 if await head_of(saver) == cid(2) else 1
        with anyio.CancelScope() as scope:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await saver.commit(lease, commit(row(3, head), head=head, releases=True))
        assert await head_of(saver) == cid(3)
        await take(saver, run="run-2")

    async def test_cancelled_readers(self, saver: BaseCheckpointSaver) -> None:
        """P7: reads may be cancelled at any moment, and the saver keeps working."""
        await written(saver, row(1), row(2, 1, base=1))
        before = await everything(saver)
        for turns in range(TURNS):
            async with anyio.create_task_group() as group:
                group.start_soon(saver.read, "t")
                group.start_soon(saver.segment, "t", "", cid(1))
                group.start_soon(saver.scan, "t", None)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
        assert await everything(saver) == before
        lease = await take(saver)
        await saver.commit(lease, commit(row(3, 2, base=1), head=2))
