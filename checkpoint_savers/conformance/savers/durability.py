"""P4: acknowledged means durable."""

from __future__ import annotations

from .suite import OpenSaver, Suite, cid, commit, everything, record, row, take


class Durability(Suite):
    async def test_another_saver_sees_what_was_acknowledged(self, open_saver: OpenSaver) -> None:
        """P4: when a verb returns, a second saver on the same storage reads what the verb has stored."""
        async with open_saver() as first, open_saver() as second:
            lease = await take(first)
            await first.commit(lease, commit(row(1)))
            assert await everything(second) == await everything(first)
            await first.record(lease, [record(1, "a")], expires_at=lease.epoch + 1.0)
            chain = await second.read("t")
            assert chain is not None and chain.records == (record(1, "a"),)
            await first.commit(lease, commit(row(2, 1, base=1), head=1, releases=True))
            chain = await second.read("t")
            assert chain is not None and chain.head == cid(2)
            assert (await take(second, run="run-2")).newest == cid(2)

    async def test_what_is_stored_outlives_the_saver(self, open_saver: OpenSaver) -> None:
        """P4: after a saver was closed and opened again, everything that was stored is read as before."""
        async with open_saver() as saver:
            lease = await take(saver)
            await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
            await saver.commit(lease, commit(row(2, ns="child"), head=None))
            await saver.release(lease)
            before = await everything(saver)
        async with open_saver() as saver:
            assert await everything(saver) == before
            again = await take(saver, run="run-2")
            assert (again.epoch, again.newest) == (lease.epoch + 1, cid(2))
            await saver.commit(again, commit(row(3, 1, base=1), head=1))
