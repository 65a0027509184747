"""`rewrite` deletes and replaces parts of a thread in one transaction."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from ....abc import BaseCheckpointSaver
from ....errors import StorageError, ThreadBusyError
from ....records import CheckpointId, Rewrite, ThreadDump
from ..reading import numbers
from ..scenarios import CHANGE, HEAD, WHOLE, fill
from ..suite import (
    LATER,
    NOW,
    OpenSaver,
    Suite,
    cid,
    commit,
    elsewhere,
    event,
    everything,
    here,
    in_threads,
    record,
    refused,
    row,
    stored,
    take,
    written,
)


def at(*ids: int, ns: str = "") -> tuple[tuple[str, CheckpointId], ...]:
    """Return the keys of checkpoints of one namespace.

    Args:
        ids: the numbers of the checkpoints.
        ns: the namespace.
    """
    return tuple((ns, cid(number)) for number in ids)


async def dumped(saver: BaseCheckpointSaver, thread: str = "t") -> ThreadDump:
    """Return the dump of a thread that holds something."""
    dump = await saver.dump(thread)
    assert dump is not None
    return dump


class Rewriting(Suite):
    needed: ClassVar[tuple[str, ...]] = ("rewrite", "dump")

    async def test_checkpoints_go(self, saver: BaseCheckpointSaver) -> None:
        """P10: `gone` deletes these checkpoints with their records, and no other row, record, event, pin or thread;
        unknown ones are ignored."""
        await written(saver, *WHOLE.rows[:4], thread="other")
        other = await saver.dump("other")
        lease = await fill(saver)
        unknown = (*at(99), *at(4, ns="child"), *at(4, ns="unknown"), ("", CheckpointId("")))
        gone = (*at(4, 10, 11), *at(7, ns="child"))
        await saver.rewrite(lease, Rewrite(gone=(*gone, *unknown, *gone)))
        assert await dumped(saver) == replace(
            WHOLE,
            rows=tuple(one for one in WHOLE.rows if (one.ns, one.checkpoint_id) not in gone),
            records=tuple(one for one in WHOLE.records if (one.ns, one.checkpoint_id) not in gone),
        )
        for number in (4, 10, 11):
            assert await saver.read("t", "", cid(number)) is None
        assert [one.step + 1 for one in await saver.scan("t", "")] == [7, 6, 5, 3, 2, 1]
        assert await saver.segment("t", "", cid(3)) == await saver.segment("t", "", cid(10)) == ((), ())
        assert await saver.dump("other") == other

    async def test_rows_stand_in_the_place_of_others(self, saver: BaseCheckpointSaver) -> None:
        """P10: `rows` replace stored rows, pins included, byte for byte; their records stay, and chains follow the new
        bases."""
        lease = await fill(saver)
        rows = (
            replace(row(7, 5, frame=b"\x00 full now", metadata={"kind": "full"}), pinned=True),
            row(4, 2, base=1, frame=b""),
            replace(row(9, base=7, ns="child"), step=5),
        )
        await saver.rewrite(lease, Rewrite(rows=rows))
        new = {(one.ns, one.checkpoint_id): one for one in rows}
        expected = tuple(new.get((one.ns, one.checkpoint_id), one) for one in WHOLE.rows)
        assert await dumped(saver) == replace(WHOLE, rows=expected)
        chain = await saver.read("t")
        assert chain is not None and chain.rows == rows[:1]
        assert chain.records == tuple(one for one in WHOLE.records if (one.ns, one.checkpoint_id) == ("", cid(7)))
        chain = await saver.read("t", "", cid(4))
        assert chain is not None and numbers(chain.rows) == [1, 2, 3, 4]
        assert [one.step + 1 for one in (await saver.segment("t", "", cid(6)))[0]] == []
        headers = {(one.ns, one.checkpoint_id): one for one in await saver.scan("t", None)}
        for key, one in new.items():
            header = headers[key]
            for field in ("parent_id", "base_id", "step", "metadata", "pinned"):
                assert getattr(header, field) == getattr(one, field)
            assert header.size == len(one.frame)

    async def test_heads_move(self, saver: BaseCheckpointSaver) -> None:
        """P10: `heads` moves heads to stored checkpoints of their namespaces, and removes the head of a namespace that
        is deleted."""
        lease = await fill(saver)
        await saver.rewrite(lease, Rewrite(heads={"": cid(4), "child": cid(7)}))
        assert await dumped(saver) == replace(WHOLE, heads={"": cid(4), "child": cid(7)})
        await saver.rewrite(lease, Rewrite(gone=at(7, 9, ns="child"), heads={"child": None}))
        dump = await dumped(saver)
        assert dump.heads == {"": cid(4)} and {one.ns for one in dump.rows} == {""}
        assert [one.ns for one in dump.records] == [""] * 4
        assert await saver.read("t", "child") is None
        assert await saver.scan(None, "child") == ()
        await saver.commit(lease, commit(row(20, ns="child")))  # the namespace can be used again
        await saver.commit(lease, commit(row(21, 4, base=3), head=4))
        assert (await dumped(saver)).heads == {"": cid(21), "child": cid(20)}

    async def test_a_namespace_that_is_not_there_goes_without_a_word(self, saver: BaseCheckpointSaver) -> None:
        """P10: removing the head of an unknown namespace changes nothing and raises nothing."""
        lease = await fill(saver)
        await saver.rewrite(lease, Rewrite(heads={"unknown": None}))
        assert await dumped(saver) == WHOLE

    async def test_events_go(self, saver: BaseCheckpointSaver) -> None:
        """P10: `events` deletes all events of these checkpoints, of every epoch, and no others; deleting a checkpoint
        leaves its events."""
        lease = await fill(saver)
        await saver.rewrite(lease, Rewrite(gone=at(4)))
        assert await saver.events("t") == WHOLE.events
        await saver.rewrite(lease, Rewrite(events=(cid(7), cid(99), cid(4), cid(7))))
        assert await saver.events("t") == (await dumped(saver)).events == (event(1), event(1, 2, "tail"))
        assert len((await dumped(saver)).rows) == len(WHOLE.rows) - 1
        await saver.commit(lease, commit(events=[event(7, frame=b"new")]))  # the key can be used again
        assert (await saver.events("t"))[-1] == event(7, frame=b"new")

    async def test_pins(self, saver: BaseCheckpointSaver) -> None:
        """P10: pins are set and removed, returned by every verb that reads, and kept by other changes; a commit stores
        rows unpinned."""
        lease = await take(saver)
        await saver.commit(lease, commit(replace(row(1), pinned=True), replace(row(2, 1, base=1), pinned=True)))
        await saver.commit(lease, commit(replace(row(3, ns="child"), pinned=True)))

        async def pinned() -> list[list[int]]:
            chain = await saver.read("t")
            rows, _ = await saver.segment("t", "", cid(1))
            assert chain is not None
            found: list[list[int]] = []
            sources: tuple[tuple[Any, ...], ...] = (
                chain.rows,
                rows,
                await saver.scan("t", ""),
                (await dumped(saver)).rows,
            )
            for source in sources:
                assert all(type(one.pinned) is bool for one in source)
                found.append(sorted(one.step + 1 for one in source if one.pinned and not one.ns))
            return found

        assert await pinned() == [[], [], [], []]
        await saver.rewrite(lease, Rewrite(pins=dict.fromkeys((*at(1, 2), *at(3, ns="child")), True)))
        assert await pinned() == [[1, 2]] * 4
        assert [one.pinned for one in await saver.scan("t", "child")] == [True]
        await saver.rewrite(lease, Rewrite(pins={("", cid(1)): False, ("", cid(2)): True}))
        assert await pinned() == [[2]] * 4
        await saver.rewrite(lease, Rewrite(rows=(row(1, frame=b"other"),)))
        await saver.commit(lease, commit(row(4, 2, base=1), head=2))
        assert await pinned() == [[2]] * 4
        await saver.rewrite(lease, Rewrite(rows=(replace(row(4, 2, base=1), pinned=True), row(2, 1, base=1))))
        assert await pinned() == [[4]] * 4
        assert [one.pinned for one in await saver.scan("t", "child")] == [True]

    @pytest.mark.parametrize(
        "change",
        [
            Rewrite(gone=at(10), rows=(row(99),)),
            Rewrite(gone=at(10), rows=(row(6, ns="child"),)),
            Rewrite(gone=at(4, 10), rows=(row(3, 2, base=1, frame=b"new"), row(4, 3))),
            Rewrite(gone=at(10), heads={"": cid(99)}),
            Rewrite(gone=at(10), heads={"": cid(9)}),
            Rewrite(gone=at(10, 4), heads={"": cid(4)}),
            Rewrite(gone=at(10), heads={"new": cid(1)}),
            Rewrite(gone=at(10, HEAD)),
            Rewrite(gone=at(10), heads={"child": None}),
            Rewrite(gone=(*at(10), *at(9, ns="child")), heads={"child": None}),
            Rewrite(gone=at(10), pins={("", cid(1)): True, ("", cid(99)): True}),
            Rewrite(gone=at(10), pins={("", cid(1)): True, ("", cid(9)): True}),
            Rewrite(gone=at(10), pins={("", cid(10)): False}),
        ],
        ids=[
            "a missing row",
            "a row of another namespace",
            "a deleted row",
            "a missing head",
            "another namespace's head",
            "a deleted head",
            "a head of a new namespace",
            "a deleted head without a new one",
            "no head for a full namespace",
            "no head for a namespace with one checkpoint left",
            "a pin of a missing checkpoint",
            "a pin of another namespace",
            "a pin of a deleted checkpoint",
        ],
    )
    async def test_what_is_refused(self, saver: BaseCheckpointSaver, change: Rewrite) -> None:
        """P3: a rewrite of a missing row, head or pin, or one that leaves checkpoints without a head, is refused and
        changes nothing."""
        await written(saver, row(1), row(99, 1), thread="other")
        lease = await fill(saver)
        before = await stored(saver)
        with pytest.raises(StorageError):
            await saver.rewrite(lease, replace(change, events=(cid(1),)))
        assert await stored(saver) == before
        await saver.rewrite(lease, CHANGE)  # the refused call neither released the lease nor blocks the next one

    async def test_a_value_that_cannot_be_put_in_place(self, saver: BaseCheckpointSaver) -> None:
        """P3: a rewrite with a value that cannot be encoded changes nothing."""
        lease = await fill(saver)
        before = await stored(saver)
        with pytest.raises(ValueError):
            await saver.rewrite(lease, replace(CHANGE, rows=(*CHANGE.rows, row(7, 6, metadata={"note": "\ud800"}))))
        assert await stored(saver) == before

    async def test_all_of_it_in_one_transaction(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3, P4: when a rewrite returns, all of its changes are stored, and a second saver reads them."""
        lease = await fill(saver)
        await saver.rewrite(lease, CHANGE)
        new = {(one.ns, one.checkpoint_id): one for one in CHANGE.rows}
        rows = [
            replace(new.get((one.ns, one.checkpoint_id), one), pinned=(one.ns, one.checkpoint_id) in CHANGE.pins)
            for one in WHOLE.rows
            if (one.ns, one.checkpoint_id) not in CHANGE.gone
        ]
        expected = ThreadDump(
            heads={"": cid(3)},
            rows=tuple(rows),
            records=tuple(one for one in WHOLE.records if (one.ns, one.checkpoint_id) == ("", cid(7))),
            events=tuple(one for one in WHOLE.events if one.checkpoint_id == cid(7)),
            metadata=WHOLE.metadata,
        )
        assert await saver.dump("t") == expected
        async with open_saver() as other:
            assert await other.dump("t") == expected
            assert await everything(other) == await everything(saver)

    async def test_nothing_to_change(self, saver: BaseCheckpointSaver) -> None:
        """P10: an empty rewrite changes nothing."""
        lease = await fill(saver)
        before = await stored(saver)
        await saver.rewrite(lease, Rewrite())
        assert await stored(saver) == before

    async def test_what_is_deleted_was_the_newest(self, saver: BaseCheckpointSaver) -> None:
        """P6: after the newest checkpoint, or all of them, were deleted, a new lease still names the greatest id, so
        that no id is used twice."""
        lease = await fill(saver)
        await saver.rewrite(lease, Rewrite(gone=at(10, 11)))
        await saver.release(lease)
        lease = await take(saver, run="run-2")
        assert lease.newest == cid(11)
        keys = tuple((one.ns, one.checkpoint_id) for one in WHOLE.rows)
        await saver.rewrite(lease, Rewrite(gone=keys, heads={"": None, "child": None}, events=(cid(1), cid(4), cid(7))))
        assert await saver.dump("t") is None
        assert await saver.scan(None, None) == () and await saver.events("t") == ()
        again = await take(saver, run="run-2")
        assert again.newest == cid(11) and again.epoch == lease.epoch + 1
        await saver.commit(again, commit(row(12)))
        assert await saver.dump("t") == ThreadDump(
            heads={"": cid(12)}, rows=(row(12),), records=(), events=(), metadata=WHOLE.metadata
        )

    async def test_only_the_holder_rewrites(self, saver: BaseCheckpointSaver) -> None:
        """P6: an owner that lost or released its lease cannot rewrite, and a rewrite does not change the lease."""
        lost = await fill(saver)
        winner = await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
        before = await stored(saver)
        for change in (CHANGE, Rewrite(), Rewrite(gone=at(99))):
            with pytest.raises(ThreadBusyError) as caught:
                await saver.rewrite(lost, change)
            assert caught.value.lost and caught.value.holder is not None and "run-2" in caught.value.holder
        assert await stored(saver) == before
        await saver.rewrite(winner, CHANGE)
        with pytest.raises(ThreadBusyError) as busy:
            await saver.acquire("t", here("run-3"), now=LATER, expires_at=LATER + 60)
        assert busy.value.expires_at == LATER + 30
        await saver.release(winner)
        await refused(saver.rewrite(winner, Rewrite()))

    async def test_readers_of_a_rewrite(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: during rewrites, every reader sees a thread before or after one, never between."""
        first = [row(number, number - 1 or None, base=1, frame=b"0") for number in (1, 2, 3)]
        await written(saver, *first, row(4, 3, base=1))
        lease = await take(saver)
        ended = threading.Event()

        async def write() -> None:
            try:
                for turn in range(1, 40):
                    full, mark = turn % 2 == 1, b"%d" % turn
                    base = 2 if full else 1
                    change = Rewrite(
                        rows=(row(1, frame=mark), row(2, 1, base=base, frame=mark), row(3, 2, base=base, frame=mark)),
                        pins=dict.fromkeys(at(2, 3), full),
                        heads={"": cid(3 if full else 2)},
                    )
                    await saver.rewrite(lease, change)
            finally:
                ended.set()

        async def look(other: BaseCheckpointSaver) -> None:
            while True:
                last = ended.is_set()
                dump = await dumped(other)
                assert len({one.frame for one in dump.rows[:3]}) == 1, "rows of two moments"
                turn = int(dump.rows[0].frame)
                full = turn % 2 == 1
                assert [one.pinned for one in dump.rows] == [False, full, full, False]
                assert dump.heads == {"": cid(4 if not turn else 3 if full else 2)}
                chain = await other.read("t", "", cid(3))
                assert chain is not None and len({one.frame for one in chain.rows}) == 1
                assert numbers(chain.rows) == ([2, 3] if int(chain.rows[0].frame) % 2 else [1, 2, 3])
                chain = await other.read("t")
                assert chain is not None and chain.head == chain.rows[-1].checkpoint_id
                assert numbers(chain.rows) in ([1, 2, 3, 4], [2, 3], [1, 2])
                if last:
                    return

        async def look_there() -> None:
            async with open_saver() as other:
                await look(other)

        await in_threads(write, lambda: look(saver), look_there)

    async def test_much_goes_at_once(self, saver: BaseCheckpointSaver) -> None:
        """P10: one transaction deletes thousands of checkpoints and replaces hundreds."""
        count, kept = 5000, 500
        rows = [
            row(1, frame=b"base"),
            *(row(number, number - 1, base=1, frame=b"step %d" % number) for number in range(2, count + 1)),
        ]
        lease = await take(saver)
        await saver.commit(
            lease,
            commit(
                *rows,
                records=[record(number, "a") for number in range(1, count + 1)],
                events=[event(number) for number in range(1, count + 1)],
            ),
        )
        first = count - kept + 1
        await saver.rewrite(
            lease,
            Rewrite(
                gone=at(*range(1, first)),
                rows=(
                    row(first, first - 1, frame=b"full"),
                    *(row(n, n - 1, base=first) for n in range(first + 1, count + 1)),
                ),
                events=tuple(cid(number) for number in range(1, first)),
                pins={("", cid(number)): True for number in range(first, count + 1, 2)},
            ),
        )
        dump = await dumped(saver)
        assert [one.checkpoint_id for one in dump.rows] == [cid(number) for number in range(first, count + 1)]
        assert len(dump.records) == len(dump.events) == kept
        assert [one.pinned for one in dump.rows] == [True, False] * (kept // 2)
        chain = await saver.read("t")
        assert chain is not None and chain.rows == dump.rows

    async def test_other_threads_stay(self, saver: BaseCheckpointSaver) -> None:
        """P6: a rewrite changes one thread only, even if other threads have the same checkpoint ids."""
        await saver.release(await fill(saver, "other"))
        lease = await fill(saver)
        before = await saver.dump("other")
        await saver.rewrite(lease, CHANGE)
        assert await saver.dump("other") == before == WHOLE
        assert (await saver.acquire("other", here("run"), now=NOW, expires_at=LATER)).epoch == 2
