"""Chains of two levels: keyframes, snapshots and deltas (P10: the cost of a read does not grow with the thread)."""

from __future__ import annotations

import pytest

from ...abc import BaseCheckpointSaver
from ...errors import CorruptCheckpointError, StorageError
from ...records import CheckpointRow, Rewrite
from .reading import numbers
from .suite import Suite, cid, commit, needs, record, row, take, written

TREE: tuple[CheckpointRow, ...] = (
    row(1),
    row(2, 1, base=1),
    row(3, 2, base=1, frame=b"milestone"),
    row(4, 3, base=3),
    row(5, 4, base=3),
    row(6, 5, base=1, frame=b"milestone"),
    row(7, 6, base=6),
    row(8, 4, base=3),  # a fork between two snapshots
    row(9, 8, base=1, frame=b"milestone of the fork"),
    row(10, 9, base=9),
    row(11, 7, base=6),
    row(12, 11),  # a keyframe within a branch
    row(13, 12, base=12),
    row(14, 10, base=9),
    row(15, 3, base=3),  # a fork at a snapshot
    row(16, 1, base=1),  # a fork at a keyframe
    row(17, 13, base=12, frame=b"milestone"),
    row(18, 17, base=17),
)
"""Keyframes: 1 and 12. Snapshots: 3 and 6 of one branch, 9 of another, and 17. All others are deltas."""

CHAINS: dict[int, list[int]] = {
    1: [1],
    2: [1, 2],
    3: [1, 2, 3],
    4: [1, 2, 3, 4],
    5: [1, 2, 3, 4, 5],
    6: [1, 2, 3, 6],
    7: [1, 2, 3, 6, 7],
    8: [1, 2, 3, 4, 5, 8],
    9: [1, 2, 3, 6, 9],
    10: [1, 2, 3, 6, 9, 10],
    11: [1, 2, 3, 6, 7, 11],
    12: [12],
    13: [12, 13],
    14: [1, 2, 3, 6, 9, 10, 14],
    15: [1, 2, 3, 4, 5, 8, 15],
    16: [1, 2, 3, 6, 9, 16],
    17: [12, 13, 17],
    18: [12, 13, 17, 18],
}
"""The chain of each checkpoint: rows based on the keyframe up to the snapshot, then rows based on the snapshot."""


class Chains(Suite):
    async def test_every_chain_is_whole(self, saver: BaseCheckpointSaver) -> None:
        """P10: a chain holds the rows based on the keyframe up to the snapshot, and those based on the snapshot up to
        the asked row: of every branch, byte for byte, and no others."""
        await written(saver, *TREE)
        for asked, expected in CHAINS.items():
            chain = await saver.read("t", "", cid(asked))
            assert chain is not None and numbers(chain.rows) == expected, asked
            assert chain.rows == tuple(TREE[number - 1] for number in expected)
            assert chain.head == cid(18)
        newest = await saver.read("t")
        assert newest is not None and numbers(newest.rows) == CHAINS[18]

    async def test_segments_of_milestones(self, saver: BaseCheckpointSaver) -> None:
        """P10: the segment of a keyframe holds the keyframe, its snapshots and its deltas; that of a snapshot holds its
        deltas; that of a delta is empty. Each row is in one segment, with its records."""
        await written(saver, *TREE)
        lease = await take(saver)
        kept = [record(number, f"task {number}") for number in (1, 3, 4, 9, 14, 17, 18)]
        await saver.commit(lease, commit(records=list(reversed(kept)), releases=True))
        bases = {
            1: [1, 2, 3, 6, 9, 16],
            3: [4, 5, 8, 15],
            6: [7, 11],
            9: [10, 14],
            12: [12, 13, 17],
            17: [18],
            2: [],
            18: [],
        }
        for base, expected in bases.items():
            rows, records = await saver.segment("t", "", cid(base))
            assert rows == tuple(TREE[number - 1] for number in expected)
            assert records == tuple(one for one in kept if one.checkpoint_id in {cid(number) for number in expected})
        assert sorted(number for base in bases.values() for number in base) == list(CHAINS), "each row in one segment"

    async def test_records_are_the_asked_rows(self, saver: BaseCheckpointSaver) -> None:
        """P5: a chain that leads through a snapshot holds the records of the asked row, and not those of the snapshot
        or the keyframe."""
        await written(saver, *TREE)
        lease = await take(saver)
        await saver.commit(lease, commit(records=[record(number, "a") for number in (1, 3, 4)]))
        for asked, expected in ((4, (record(4, "a"),)), (5, ()), (3, (record(3, "a"),)), (6, ())):
            chain = await saver.read("t", "", cid(asked))
            assert chain is not None and chain.records == expected

    async def test_namespaces_have_chains_of_their_own(self, saver: BaseCheckpointSaver) -> None:
        """P10: rows with the same ids in another namespace or thread are not part of a chain."""
        await written(saver, *TREE[:7])
        inside = [row(number, number - 1 or None, base=1, ns="child") for number in range(1, 8)]
        await written(saver, *inside)
        await written(saver, row(1), row(3, 1, base=1), row(7, 3, base=3), thread="other")
        for thread, ns, expected in (
            ("t", "", CHAINS[7]),
            ("t", "child", [1, 2, 3, 4, 5, 6, 7]),
            ("other", "", [1, 3, 7]),
        ):
            chain = await saver.read(thread, ns, cid(7))
            assert chain is not None and numbers(chain.rows) == expected
            assert {one.ns for one in chain.rows} == {ns}

    @pytest.mark.parametrize(
        ("rows", "asked"),
        [
            ((row(1), row(3, 1, base=2)), 3),
            ((row(1), row(3, 1, base=2), row(4, 3, base=3)), 4),
            ((row(1), row(3, 1, base=1), row(5, 3, base=4)), 5),
            ((row(1), row(2, 1, base=1), row(3, 2, base=2), row(4, 3, base=3)), 4),
            ((row(1), row(2, 1, base=1, ns="child"), row(3, 1, base=2)), 3),
        ],
        ids=["a base", "a milestone's base", "a milestone", "three levels", "another namespace's"],
    )
    async def test_what_leads_to_no_full_row(
        self, saver: BaseCheckpointSaver, rows: tuple[CheckpointRow, ...], asked: int
    ) -> None:
        """P11: a chain whose keyframe or snapshot is missing raises CorruptCheckpointError, and is never returned in
        part; other chains are read as before. (A saver may refuse to store such a row.)"""
        try:
            await written(saver, *rows)
        except StorageError:
            return
        before = await saver.scan(None, None)
        with pytest.raises(CorruptCheckpointError) as caught:
            await saver.read("t", "", cid(asked))
        assert "t" in caught.value.where and caught.value.reason
        chain = await saver.read("t", "", cid(1))
        assert chain is not None and chain.rows == rows[:1]
        assert await saver.scan(None, None) == before

    @needs("rewrite")
    async def test_a_chain_through_what_was_deleted(self, saver: BaseCheckpointSaver) -> None:
        """P11: a delta whose snapshot was deleted raises CorruptCheckpointError; all other chains are read without the
        deleted row."""
        await written(saver, *TREE)
        lease = await take(saver)
        try:
            await saver.rewrite(lease, Rewrite(gone=(("", cid(9)),)))
        except StorageError:
            return
        for asked in (10, 14):
            with pytest.raises(CorruptCheckpointError):
                await saver.read("t", "", cid(asked))
        for asked, expected in CHAINS.items():
            if asked not in (9, 10, 14):
                chain = await saver.read("t", "", cid(asked))
                assert chain is not None and numbers(chain.rows) == [one for one in expected if one != 9]
        assert await saver.read("t", "", cid(9)) is None
