"""Deleting a thread (P6: a live lease prevents it)."""

from __future__ import annotations

import pytest

from ....abc import BaseCheckpointSaver
from ....errors import ThreadBusyError
from ....records import Owner
from ..suite import LATER, NOW, Suite, commit, elsewhere, everything, here, record, refused, row, take, written


class Deleting(Suite):
    async def test_all_of_a_thread_goes(self, saver: BaseCheckpointSaver) -> None:
        """P6: deleting a thread deletes its rows and records in all namespaces and nothing of other threads; the thread
        can then be created again."""
        await written(saver, row(1), row(2, ns="child"), thread="other")
        others = await everything(saver)
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
        await saver.commit(lease, commit(row(2, ns="child"), records=[record(2, "a", ns="child")], releases=True))
        await saver.adelete_thread("t")
        assert await everything(saver) == others
        lease = await take(saver)
        assert lease.newest is None
        await saver.commit(lease, commit(row(1)))
        chain = await saver.read("t")
        assert chain is not None and chain.records == ()

    async def test_nothing_to_delete(self, saver: BaseCheckpointSaver) -> None:
        """P6: deleting an unknown thread raises nothing, once or twice."""
        await saver.adelete_thread("t")
        await written(saver, row(1))
        await saver.adelete_thread("t")
        await saver.adelete_thread("t")
        assert await saver.scan(None, None) == ()

    async def test_a_run_owns_the_thread(self, saver: BaseCheckpointSaver) -> None:
        """P6: under a live lease nothing is deleted, and the run continues."""
        for owner in (here("run-1"), elsewhere("run-2")):
            lease = await saver.acquire("t", owner, now=NOW, expires_at=LATER)
            await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
            before = await everything(saver)
            with pytest.raises(ThreadBusyError) as caught:
                await saver.adelete_thread("t")
            assert caught.value.holder is not None and owner.run_id in caught.value.holder
            assert await everything(saver) == before
            await saver.commit(lease, commit(row(2, 1), head=1, releases=True))
            await saver.adelete_thread("t")

    async def test_a_lease_that_has_lapsed_is_not_in_the_way(
        self, saver: BaseCheckpointSaver, dead_owner: Owner
    ) -> None:
        """P6: a thread can be deleted once its lease has expired or its owner's process has ended; the old owner's next
        write is refused."""
        for owner, expires_at in ((here("run-1"), 1.0), (dead_owner, LATER)):
            lease = await saver.acquire("t", owner, now=0.0, expires_at=expires_at)
            await saver.commit(lease, commit(row(1), expires_at=expires_at))
            await saver.adelete_thread("t")
            assert await saver.scan(None, None) == ()
            await refused(saver.commit(lease, commit(row(2, 1), head=1)))
            assert await saver.scan(None, None) == ()
