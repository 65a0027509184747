"""P3, P5 and P10 for readers: chains, branches and segments."""

from __future__ import annotations

from ...abc import BaseCheckpointSaver
from ...records import CheckpointRow
from .suite import Suite, cid, commit, record, row, take, written


def numbers(rows: tuple[CheckpointRow, ...]) -> list[int]:
    """Return the numbers of rows that `row` has made."""
    return [one.step + 1 for one in rows]


class CheckpointReads(Suite):
    async def test_nothing_is_there(self, saver: BaseCheckpointSaver) -> None:
        """P3: reading an unknown thread, namespace or checkpoint returns nothing and raises nothing, also while a lease
        is held."""
        assert await saver.read("t") is None
        assert await saver.read("t", "ns", cid(1)) is None
        assert await saver.segment("t", "", cid(1)) == ((), ())
        await take(saver)
        assert await saver.read("t") is None
        await written(saver, row(1), row(2, ns="child"), thread="u")
        assert await saver.read("t") is None
        assert await saver.read("u", "other") is None
        assert await saver.read("u", "", cid(7)) is None
        assert await saver.read("u", "", cid(2)) is None, "another namespace's"
        assert await saver.read("u", "child", cid(1)) is None
        assert await saver.segment("u", "", cid(2)) == ((), ())

    async def test_rows_come_back_as_they_were(self, saver: BaseCheckpointSaver) -> None:
        """P11: `read`, `segment` and `scan` return every field of a row as it was stored."""
        rows = (row(1, metadata={"source": "input", "step": -1, "parents": {}}), row(2, 1, base=1, frame=b"\x00"))
        await written(saver, *rows)
        chain = await saver.read("t")
        assert chain is not None and chain.rows == rows and chain.head == cid(2)
        assert (await saver.segment("t", "", cid(1)))[0] == rows
        for header, one in zip(await saver.scan("t", ""), reversed(rows), strict=True):
            assert header.thread_id == "t"
            for field in ("ns", "checkpoint_id", "parent_id", "base_id", "step", "metadata"):
                assert getattr(header, field) == getattr(one, field)

    async def test_a_chain_starts_at_its_base(self, saver: BaseCheckpointSaver) -> None:
        """P10: a chain starts at the nearest keyframe and holds no row before it."""
        await written(saver, row(1), row(2, 1, base=1), row(3, 2), row(4, 3, base=3), row(5, 4, base=3))
        for asked, expected in ((None, [3, 4, 5]), (5, [3, 4, 5]), (4, [3, 4]), (3, [3]), (2, [1, 2]), (1, [1])):
            chain = await saver.read("t", "", None if asked is None else cid(asked))
            assert chain is not None
            assert numbers(chain.rows) == expected
            assert chain.head == cid(5), "the namespace's head, whichever checkpoint was asked for"

    async def test_branches(self, saver: BaseCheckpointSaver) -> None:
        """P2, P5: a fork shares its ancestors; rows of other branches may lie between; the head is the last committed
        row."""
        await written(saver, row(1), row(2, 1, base=1), row(3, 2, base=1), row(4, 2, base=1), row(5, 3, base=1))
        chain = await saver.read("t")
        assert chain is not None and numbers(chain.rows) == [1, 2, 3, 4, 5] and chain.head == cid(5)
        other = await saver.read("t", "", cid(4))
        assert other is not None and numbers(other.rows) == [1, 2, 3, 4]
        lease = await take(saver)
        await saver.commit(lease, commit(row(6, 4, base=1), head=5))  # continues the other branch
        chain = await saver.read("t")
        assert chain is not None and chain.head == cid(6)
        await saver.commit(lease, commit(row(7, 1), head=6))  # a branch that starts with a keyframe
        chain = await saver.read("t")
        assert chain is not None and numbers(chain.rows) == [7]
        rows, _ = await saver.segment("t", "", cid(1))
        assert numbers(rows) == [1, 2, 3, 4, 5, 6]

    async def test_segments(self, saver: BaseCheckpointSaver) -> None:
        """P10: a segment holds all rows of one base and all their records, by checkpoint and index: a listing reads it
        in one call."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "b", 1), record(1, "a", 0)]))
        await saver.commit(lease, commit(row(2, 1, base=1), head=1))
        await saver.commit(lease, commit(row(3, 2, base=1), head=2, records=[record(3, "a", 0)]))
        await saver.commit(lease, commit(row(4, 3), head=3, records=[record(4, "a", 0)]))
        rows, records = await saver.segment("t", "", cid(1))
        assert numbers(rows) == [1, 2, 3]
        assert records == (record(1, "a", 0), record(1, "b", 1), record(3, "a", 0))
        assert await saver.segment("t", "", cid(4)) == ((row(4, 3),), (record(4, "a", 0),))
        assert await saver.segment("t", "", cid(2)) == ((), ()), "no base"

    async def test_records_are_the_asked_checkpoints(self, saver: BaseCheckpointSaver) -> None:
        """P5: a chain holds the records of the checkpoint that was asked for, and not those of its ancestors."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
        await saver.commit(lease, commit(row(2, 1, base=1), head=1, records=[record(2, "b")]))
        chain, before = await saver.read("t"), await saver.read("t", "", cid(1))
        assert chain is not None and chain.records == (record(2, "b"),)
        assert before is not None and before.records == (record(1, "a"),)

    async def test_namespaces(self, saver: BaseCheckpointSaver) -> None:
        """P2: each namespace has its own head and its own rows, and two namespaces may use the same checkpoint ids."""
        await written(saver, row(1), row(1, ns="a"), row(2, 1, base=1, ns="a"), row(1, ns="a|b"), row(2, 1, base=1))
        for ns, expected in (("", [1, 2]), ("a", [1, 2]), ("a|b", [1])):
            chain = await saver.read("t", ns)
            assert chain is not None
            assert numbers(chain.rows) == expected
            assert {one.ns for one in chain.rows} == {ns}
