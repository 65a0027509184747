"""`dump` and `load` copy a thread from one saver to another, byte for byte."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
from msgspec.structs import replace

from ....abc import BaseCheckpointSaver
from ....errors import StorageError, ThreadBusyError
from ....memory import InMemorySaver
from ....records import Rewrite, ThreadDump
from ..scenarios import HEAD, NEXT, WHOLE, fill, fill_by_commits
from ..stored_bytes import noise
from ..suite import (
    LATER,
    MANY,
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
    needs,
    record,
    row,
    stored,
    take,
    written,
)

PINS = (("", cid(3)), ("child", cid(7)))

PINNED = replace(WHOLE, rows=tuple(replace(one, pinned=(one.ns, one.checkpoint_id) in PINS) for one in WHOLE.rows))
"""`WHOLE` with two pins."""

EMPTY = ThreadDump(heads={}, rows=(), records=(), events=())


async def seen(saver: BaseCheckpointSaver, thread: str) -> object:
    """Read what readers get of a thread, without its id.

    Args:
        saver: the saver.
        thread: the thread's id.
    """
    headers = await saver.scan(thread, None, limit=MANY)
    return (
        [replace(one, thread_id="") for one in headers],
        [await saver.read(thread, one.ns, one.checkpoint_id) for one in headers],
        [await saver.segment(thread, *key) for key in sorted({(one.ns, one.base_id) for one in headers})],
        await saver.events(thread, limit=MANY),
    )


class DumpAndLoad(Suite):
    needed: ClassVar[tuple[str, ...]] = ("dump",)

    async def test_a_dump_is_all_that_is_stored(self, saver: BaseCheckpointSaver) -> None:
        """P11: a dump holds the heads, rows, records and events of all namespaces and branches, byte for byte and in
        order, and nothing of other threads."""
        lease = await fill_by_commits(saver)
        await written(saver, row(1), row(2, 1, base=1), row(3, ns="child"), thread="other")
        assert await saver.dump("t") == WHOLE
        await saver.release(lease)
        assert await saver.dump("t") == WHOLE
        other = await saver.dump("other")
        assert other is not None and (len(other.rows), other.records, other.events) == (3, (), ())
        await saver.adelete_thread("t")
        assert await saver.dump("t") is None
        assert await saver.dump("other") == other

    @needs("rewrite")
    async def test_a_dump_includes_pins(self, saver: BaseCheckpointSaver) -> None:
        """P11: a dump includes which rows are pinned."""
        lease = await fill(saver)
        await saver.rewrite(lease, Rewrite(pins=dict.fromkeys(PINS, True)))
        assert await saver.dump("t") == PINNED

    async def test_a_dump_of_nothing(self, saver: BaseCheckpointSaver) -> None:
        """P11: dumping a thread that is unknown or holds no checkpoint returns None and leaves no trace."""
        assert await saver.dump("t") is None
        lease = await take(saver)
        assert lease.epoch == 1
        assert await saver.dump("t") is None
        await saver.record(lease, [record(1, "a")], expires_at=LATER)
        await saver.commit(lease, commit(events=[event(1)]))
        assert await saver.dump("t") is None

    async def test_a_dump_is_of_one_moment(self, saver: BaseCheckpointSaver, open_saver: OpenSaver) -> None:
        """P3: a dump during commits holds whole supersteps: row, head, record and events."""
        ended, looked = threading.Event(), [threading.Event(), threading.Event()]
        last = 1  # the number of the last superstep
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "task")], events=[event(1)]))

        async def write() -> None:
            nonlocal last
            try:
                # Write until each reader has read a dump, however slow the readers are.
                while last < 40 or not all(each.is_set() for each in looked):
                    number = last + 1
                    await saver.commit(
                        lease,
                        commit(
                            row(number, number - 1, base=1),
                            head=number - 1,
                            records=[record(number, "task")],
                            clears=[record(number - 1, "task")],
                            events=[event(number - 1, 2, "tail"), event(number)],
                        ),
                    )
                    last = number
            finally:
                ended.set()

        async def look(other: BaseCheckpointSaver, once: threading.Event) -> None:
            try:
                while True:
                    is_last = ended.is_set()
                    dump = await other.dump("t")
                    assert dump is not None
                    number = len(dump.rows)
                    assert dump.heads == {"": cid(number)}
                    assert [one.checkpoint_id for one in dump.rows] == [cid(n) for n in range(1, number + 1)]
                    assert dump.records == (record(number, "task"),)
                    assert len(dump.events) == 2 * number - 1 and dump.events[-1] == event(number)
                    once.set()
                    if is_last:
                        assert number == last
                        return
            finally:
                once.set()

        async def look_there() -> None:
            async with open_saver() as other:
                await look(other, looked[1])

        await in_threads(write, lambda: look(saver, looked[0]), look_there)

    @needs("load")
    async def test_a_dump_is_loaded_byte_for_byte(self, saver: BaseCheckpointSaver) -> None:
        """P11: a loaded thread is dumped, read and listed like the original, and a run can continue it."""
        await fill_by_commits(saver)
        lease = await take(saver, "copy")
        await saver.load(lease, WHOLE)
        assert await saver.dump("copy") == WHOLE
        assert await seen(saver, "copy") == await seen(saver, "t")
        await saver.commit(lease, NEXT)
        await saver.release(lease)
        assert (await take(saver, "copy", "run-2")).newest == cid(13)
        assert await saver.dump("t") == WHOLE, "a copy is another thread"

    @needs("load")
    async def test_between_two_savers(self, saver: BaseCheckpointSaver) -> None:
        """P11: a thread that was copied to another kind of saver and back is the same byte for byte, pins included."""
        memory = InMemorySaver()
        await saver.load(await take(saver), PINNED)
        dump = await saver.dump("t")
        assert dump is not None and dump == PINNED
        await memory.load(await take(memory), dump)
        assert await memory.dump("t") == PINNED
        assert await seen(memory, "t") == await seen(saver, "t")
        back = await memory.dump("t")
        assert back is not None
        await saver.load(await take(saver, "back"), back)
        assert await saver.dump("back") == PINNED

    @needs("load")
    async def test_much_is_loaded_at_once(self, saver: BaseCheckpointSaver) -> None:
        """P11: a load stores thousands of rows, and frames of any size."""
        sizes = (0, 1, 255, 4096, 65_536, 3_000_000)
        rows = tuple(
            row(number, number - 1 or None, base=1, frame=noise(sizes[number - 1] if number <= len(sizes) else 40))
            for number in range(1, 2001)
        )
        records = tuple(record(number, "a", frame=noise(number % 50)) for number in range(1, 2001))
        events = tuple(event(number, frame=noise(number % 70)) for number in range(1, 2001))
        dump = ThreadDump(heads={"": cid(2000)}, rows=rows, records=records, events=events)
        await saver.load(await take(saver), dump)
        assert await saver.dump("t") == dump

    @needs("load")
    async def test_newest_is_of_what_was_loaded(self, saver: BaseCheckpointSaver) -> None:
        """P6: after a load, a new lease names the greatest loaded checkpoint id, of any namespace and branch."""
        for thread, newest in (("root", row(13, 11)), ("inside", row(13, 9, ns="child"))):
            lease = await take(saver, thread)
            await saver.load(lease, replace(WHOLE, rows=(*WHOLE.rows, newest)))
            await saver.release(lease)
            assert (await take(saver, thread, "run-2")).newest == cid(13)

    @needs("load")
    async def test_a_thread_that_holds_something(self, saver: BaseCheckpointSaver) -> None:
        """P3: a load into a thread that holds a checkpoint is refused, and what the thread holds stays."""
        for thread, held in (("rows", commit(row(20))), ("inside", commit(row(20, ns="other"))), ("whole", None)):
            lease = await take(saver, thread)
            if held is None:
                await saver.load(lease, WHOLE)
            else:
                await saver.commit(lease, held)
            before = await stored(saver)
            for dump in (WHOLE, replace(EMPTY, rows=(row(90),), heads={"": cid(90)})):
                with pytest.raises(StorageError):
                    await saver.load(lease, dump)
                assert await stored(saver) == before

    @needs("load")
    async def test_a_dump_may_replace_what_a_thread_holds(self, saver: BaseCheckpointSaver) -> None:
        """P3: a load that replaces deletes all that the thread holds, its heads and metadata too, or changes nothing if
        the dump is refused. Other threads, the lease and `newest` stay."""
        other = await fill(saver, "other")
        lease = await take(saver)
        await saver.commit(lease, commit(row(20, ns="gone")))
        await saver.commit(
            lease, commit(row(20), records=[record(20, "a")], events=[event(20)], metadata={"user": "Grace"})
        )
        before = await stored(saver)
        with pytest.raises(StorageError):
            await saver.load(lease, replace(PINNED, heads={**WHOLE.heads, "": cid(99)}, replaces=True))
        assert await stored(saver) == before
        for dump in (PINNED, replace(EMPTY, rows=(row(9, ns="child"),), heads={"child": cid(9)}), WHOLE):
            await saver.load(lease, replace(dump, replaces=True))
            assert await saver.dump("t") == dump
        await saver.commit(lease, commit(row(21, HEAD), head=HEAD, releases=True))
        assert (await take(saver, "t", "run-2")).newest == cid(21)
        await saver.release(other)
        assert await saver.dump("other") == WHOLE

    @needs("load")
    async def test_newest_stays_if_a_thread_is_replaced(self, saver: BaseCheckpointSaver) -> None:
        """P6: after a load that replaces, a new lease names the greatest checkpoint id that the thread ever had."""
        lease = await take(saver)
        await saver.commit(lease, commit(row(20)))
        await saver.load(lease, replace(WHOLE, replaces=True))
        await saver.release(lease)
        assert (await take(saver, "t", "run-2")).newest == cid(20)

    @needs("load")
    @pytest.mark.parametrize(
        "dump",
        [
            replace(WHOLE, rows=(*WHOLE.rows, row(9, ns="child", frame=b"again"))),
            replace(WHOLE, events=(*WHOLE.events, event(7, frame=b"again"))),
            replace(WHOLE, records=(*WHOLE.records, record(9, "d", 5, ns="child"))),
            replace(WHOLE, heads={**WHOLE.heads, "": cid(99)}),
            replace(WHOLE, heads={**WHOLE.heads, "child": cid(6)}),
            replace(WHOLE, heads={**WHOLE.heads, "missing": cid(1)}),
        ],
        ids=["a row twice", "events twice", "a record twice", "a head", "another namespace's head", "a new namespace"],
    )
    async def test_what_cannot_be_loaded(self, saver: BaseCheckpointSaver, dump: ThreadDump) -> None:
        """P3: a dump with two rows of one key, or with a head that is not among its rows, is refused, and nothing is
        stored."""
        await written(saver, row(1), thread="other")
        lease = await take(saver)
        before = await stored(saver)
        with pytest.raises(StorageError):
            await saver.load(lease, dump)
        assert await stored(saver) == before
        assert await saver.dump("t") is None
        await saver.load(lease, WHOLE)  # the refused call neither released the lease nor blocks the next one
        assert await saver.dump("t") == WHOLE

    @needs("load")
    async def test_a_value_that_cannot_be_loaded(self, saver: BaseCheckpointSaver) -> None:
        """P3: a load of a value that cannot be encoded stores nothing."""
        lease = await take(saver)
        before = await stored(saver)
        bad = row(10, 4, metadata={"note": "\ud800"})
        rows = tuple(bad if one.checkpoint_id == bad.checkpoint_id else one for one in WHOLE.rows)
        with pytest.raises(ValueError):
            await saver.load(lease, replace(WHOLE, rows=rows))
        assert await stored(saver) == before
        await saver.load(lease, WHOLE)

    @needs("load")
    async def test_only_the_holder_loads(self, saver: BaseCheckpointSaver) -> None:
        """P6: an owner that lost its lease cannot load, and a load does not change the lease."""
        lost = await saver.acquire("t", here("run-1"), now=NOW, expires_at=LATER)
        winner = await saver.acquire("t", elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
        before = await stored(saver)
        with pytest.raises(ThreadBusyError) as caught:
            await saver.load(lost, WHOLE)
        assert caught.value.lost and caught.value.holder is not None and "run-2" in caught.value.holder
        assert await stored(saver) == before
        await saver.load(winner, WHOLE)
        with pytest.raises(ThreadBusyError) as busy:
            await saver.acquire("t", here("run-3"), now=LATER, expires_at=LATER + 60)
        assert busy.value.expires_at == LATER + 30
        await saver.commit(winner, replace(NEXT, releases=True))

    @needs("load")
    async def test_one_of_many_loads_wins(self, saver: BaseCheckpointSaver) -> None:
        """P3: if several loads into one thread run at once, one stores its whole dump, and the others store nothing."""
        lease = await take(saver)
        dumps = [replace(WHOLE, rows=tuple(replace(one, frame=b"%d" % n) for one in WHOLE.rows)) for n in range(4)]
        refused: list[StorageError] = []

        async def load(dump: ThreadDump) -> None:
            try:
                await saver.load(lease, dump)
            except StorageError as error:
                refused.append(error)

        await in_threads(*(lambda dump=dump: load(dump) for dump in dumps))
        assert len(refused) == 3
        assert await saver.dump("t") in dumps

    @needs("load")
    async def test_another_saver_sees_what_was_loaded(self, open_saver: OpenSaver) -> None:
        """P4: when `load` returns, the thread is durable: a second saver reads it at once, and also after both were
        closed."""
        async with open_saver() as first, open_saver() as second:
            lease = await take(first)
            await first.load(lease, PINNED)
            assert await second.dump("t") == PINNED
            await first.release(lease)
            before = await everything(first)
        async with open_saver() as saver:
            assert await saver.dump("t") == PINNED
            assert await everything(saver) == before

    @needs("load")
    async def test_an_id_of_any_text(self, saver: BaseCheckpointSaver) -> None:
        """P11: a dump orders namespaces and tasks by code points, whatever the database's collation."""
        names = sorted(["a", "B", "\ue000", "\U0001f9f5", "\uffff", "z", "a\u0301", "%", "'"])
        rows = tuple(row(number, ns=ns) for number in range(1, 10) for ns in names)
        records = tuple(
            replace(record(1, "x", index), ns=one.ns, checkpoint_id=one.checkpoint_id, task_id=task)
            for one in rows[:20]
            for index in (0, 1)
            for task in (f"{index}\ue000", f"{index}\U0001f9f5")
        )
        events = tuple(event(number) for number in range(1, 10))
        dump = ThreadDump(heads=dict.fromkeys(names, cid(4)), rows=rows, records=records, events=events)
        await saver.load(await take(saver), dump)
        assert await saver.dump("t") == dump
