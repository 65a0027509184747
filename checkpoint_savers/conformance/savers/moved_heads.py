"""P5: the head of a namespace moves to another branch's tip without a new checkpoint, so that no work runs again."""

from __future__ import annotations

import pytest

from ...abc import BaseCheckpointSaver
from ...errors import ThreadBusyError
from .suite import (
    LATER,
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


class MovedHeads(Suite):
    async def test_the_head_moves(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P5: a head moves between stored checkpoints in both directions; reads then start there, rows and records
        stay, and the next row continues from the new head."""
        await written(saver, row(1), row(2, 1, base=1), row(3, 1))
        lease = await take(saver)
        rows = [await saver.read("t", "", cid(number)) for number in (1, 2, 3)]
        headers = await saver.scan("t", "")
        for number, before in ((2, 3), (1, 2), (3, 1), (2, 3)):
            await saver.commit(lease, commit(head=before, moves=("", number)))
            assert await head_of(saver) == cid(number)
            chain = await saver.read("t")
            assert chain is not None and chain.rows[-1].checkpoint_id == cid(number)
            async with open_saver() as other:
                assert await head_of(other) == cid(number)
        again = [await saver.read("t", "", cid(number)) for number in (1, 2, 3)]
        assert [chain and (chain.rows, chain.records) for chain in again] == [
            chain and (chain.rows, chain.records) for chain in rows
        ]
        assert await saver.scan("t", "") == headers
        await saver.commit(lease, commit(row(4, 2, base=1), head=2))
        assert await head_of(saver) == cid(4)

    async def test_it_moves_to_where_it_is(self, saver: BaseCheckpointSaver) -> None:
        """P5: moving the head to where it is already raises nothing, and stores the commit's records."""
        await written(saver, row(1), row(2, 1, base=1))
        lease = await take(saver)
        await saver.commit(lease, commit(head=2, moves=("", 2), records=[record(2, "a")]))
        chain = await saver.read("t")
        assert chain is not None and (chain.head, chain.records) == (cid(2), (record(2, "a"),))

    async def test_the_newest_id_stays_the_newest(self, saver: BaseCheckpointSaver) -> None:
        """P6: after the head has moved back, a new lease still names the greatest stored checkpoint id."""
        await written(saver, row(1), row(2, 1, base=1))
        lease = await take(saver)
        await saver.commit(lease, commit(head=2, moves=("", 1), releases=True))
        assert (await take(saver, run="run-2")).newest == cid(2)

    async def test_namespaces_have_heads_of_their_own(self, saver: BaseCheckpointSaver) -> None:
        """P5: moving one namespace's head leaves the others; a checkpoint of another namespace or thread is refused."""
        await written(saver, row(1), row(2, 1, base=1), row(3, ns="child"), row(4, 3, base=3, ns="child"))
        await written(saver, row(7), thread="other")
        lease = await take(saver)
        await saver.commit(lease, commit(head=4, moves=("child", 3)))
        assert (await head_of(saver), await head_of(saver, ns="child")) == (cid(2), cid(3))
        before = await everything(saver)
        for head, moves in ((2, ("", 3)), (2, ("", 4)), (3, ("child", 1)), (2, ("", 7)), (None, ("new", 1))):
            await refused(saver.commit(lease, commit(head=head, moves=moves)))
        assert await everything(saver) == before

    async def test_the_head_is_compared_before_it_moves(self, saver: BaseCheckpointSaver) -> None:
        """P6: if the head is not the expected one, it does not move."""
        await written(saver, row(1), row(2, 1, base=1), row(3, 1))
        lease = await take(saver)
        before = await everything(saver)
        for head in (None, 1, 2, 9):
            await refused(saver.commit(lease, commit(head=head, moves=("", 2))))
        assert await everything(saver) == before

    async def test_a_checkpoint_that_is_missing(self, saver: BaseCheckpointSaver) -> None:
        """P3: moving the head to a missing checkpoint is refused, and nothing of that commit is stored."""
        await written(saver, row(1), row(2, 1, base=1))
        lease = await take(saver)
        await saver.record(lease, [record(2, "a")], expires_at=LATER)
        before = await everything(saver)
        missing = commit(
            head=2,
            moves=("", 9),
            records=[record(2, "b")],
            clears=[record(2, "a")],
            releases=True,
            expires_at=LATER + 9,
        )
        await refused(saver.commit(lease, missing))
        assert await everything(saver) == before
        with pytest.raises(ThreadBusyError) as busy:
            await saver.acquire("t", elsewhere("run-2"), now=LATER - 1, expires_at=LATER + 60)
        assert busy.value.expires_at == LATER, "neither released nor renewed"
        await saver.commit(lease, commit(head=2, moves=("", 1)))

    async def test_a_lease_that_is_not_held(self, saver: BaseCheckpointSaver) -> None:
        """P6: an owner that lost or released its lease cannot move a head."""
        await written(saver, row(1), row(2, 1, base=1))
        lost = await take(saver)
        winner = await saver.acquire("t", here("run-2"), now=LATER, expires_at=LATER + 30)
        before = await everything(saver)
        with pytest.raises(ThreadBusyError) as caught:
            await saver.commit(lost, commit(head=2, moves=("", 1)))
        assert caught.value.lost and caught.value.holder is not None and "run-2" in caught.value.holder
        await saver.release(winner)
        await refused(saver.commit(winner, commit(head=2, moves=("", 1))))
        assert await everything(saver) == before

    async def test_in_one_transaction(self, saver: BaseCheckpointSaver) -> None:
        """P3: the new head, records, cleared records, the expiry and the release are stored together."""
        await written(saver, row(1), row(2, 1, base=1), row(3, 1))
        lease = await take(saver)
        await saver.record(lease, [record(2, "old"), record(3, "stays")], expires_at=LATER)
        await saver.commit(
            lease,
            commit(
                head=3, moves=("", 2), records=[record(2, "new", 1)], clears=[record(2, "old")], expires_at=LATER + 9
            ),
        )
        chain, other = await saver.read("t"), await saver.read("t", "", cid(3))
        assert chain is not None and (chain.head, chain.records) == (cid(2), (record(2, "new", 1),))
        assert other is not None and (other.head, other.records) == (cid(2), (record(3, "stays"),))
        with pytest.raises(ThreadBusyError) as caught:
            await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 60)
        assert caught.value.expires_at == LATER + 9
        await saver.commit(lease, commit(head=2, moves=("", 3), releases=True))
        await take(saver, run="run-2")

    async def test_one_of_many_moves_wins(self, saver: BaseCheckpointSaver) -> None:
        """P6: if several commits expect the same head at the same moment, exactly one moves it."""
        await written(saver, row(1), *(row(number, 1) for number in range(2, 10)))
        lease = await take(saver)
        won: list[int] = []
        refused: list[ThreadBusyError] = []

        async def move(number: int) -> None:
            try:
                await saver.commit(lease, commit(head=9, moves=("", number + 2)))
            except ThreadBusyError as error:
                refused.append(error)
            else:
                won.append(number + 2)

        await in_threads(*repeated(move, 6))
        assert [await head_of(saver)] == [cid(number) for number in won]
        assert [error.lost for error in refused] == [True] * 5
