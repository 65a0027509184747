"""Listing threads: each comes once, in one order, page by page, whatever is stored or deleted meanwhile."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import anyio
from msgspec.structs import replace

from ....abc import BaseCheckpointSaver
from ....records import ThreadHeader
from ....saver_port import PAGE
from ..stored_bytes import HOSTILE
from ..suite import LATER, MANY, NOW, Suite, cid, commit, elsewhere, here, row, take, written
from .checkpoint_listing import COMPARED


async def all_pages(saver: BaseCheckpointSaver, limit: int, **options: Any) -> list[str]:
    """Read all pages of the listing, each after the last id of the one before.

    Args:
        saver: the saver.
        limit: the size of a page, in threads.
        options: further options of `threads`.

    Returns:
        The ids of the threads.
    """
    found: list[str] = []
    after: str | None = None
    while page := await saver.threads(after=after, limit=limit, **options):
        assert len(page) <= limit
        assert after is None or page[0].thread_id > after, "a page repeats earlier results"
        found += [one.thread_id for one in page]
        after = found[-1]
    return found


class ThreadListing(Suite):
    needed: ClassVar[tuple[str, ...]] = ("threads",)

    async def test_in_the_order_of_their_ids(self, saver: BaseCheckpointSaver) -> None:
        """P11: threads come in the order in which Python sorts their ids, whatever the order in which they were
        made."""
        ids = [*HOSTILE, "a", "B", "b", "ab", "aB", "a-b", "a b", "A", "Z", "\u00e4", "\ud7ff", "\ue000", "\U00010000"]
        for thread in ids:
            await written(saver, row(1), thread=thread)
        assert await saver.threads(limit=MANY) == tuple(
            ThreadHeader(thread_id=one, epoch=1, owner=None, expires_at=0.0, newest=cid(1), head=cid(1), metadata={})
            for one in sorted(set(ids))
        )

    async def test_what_is_said_of_a_thread(self, saver: BaseCheckpointSaver) -> None:
        """P6: a header has the thread's owner and expiry (after the expiry, too), its newest checkpoint, the head of
        its root graph, and its own metadata."""
        lease = await take(saver)
        expected = ThreadHeader(
            thread_id="t", epoch=1, owner=here("run-1"), expires_at=LATER, newest=None, head=None, metadata={}
        )
        assert await saver.threads() == (expected,)
        await saver.commit(lease, commit(row(5, ns="child"), expires_at=LATER + 0.125))
        expected = replace(expected, expires_at=LATER + 0.125, newest=cid(5))
        assert await saver.threads() == (expected,)
        await saver.commit(lease, commit(row(1, metadata={"at": 1}), metadata={"of": "the thread"}))
        expected = replace(expected, expires_at=LATER, head=cid(1), metadata={"of": "the thread"})
        assert await saver.threads() == (expected,)
        await saver.commit(lease, commit(row(6, 1, metadata={"at": [6]}), head=1))
        expected = replace(expected, newest=cid(6), head=cid(6))
        assert await saver.threads() == (expected,)
        await saver.commit(lease, commit(head=6, moves=("", 1), releases=True))
        expected = replace(expected, owner=None, expires_at=0.0, head=cid(1))
        assert await saver.threads() == (expected,)
        await saver.acquire("t", elsewhere("run-2"), now=NOW, expires_at=NOW)
        assert await saver.threads() == (replace(expected, epoch=2, owner=elsewhere("run-2"), expires_at=NOW),)

    async def test_a_thread_without_checkpoints(self, saver: BaseCheckpointSaver) -> None:
        """P6: a thread without a checkpoint is listed while it is leased, not after its release, and only a filter
        without entries matches it."""
        leases = [await take(saver, thread, f"run-{thread}") for thread in ("b", "a")]
        assert [one.thread_id for one in await saver.threads()] == ["a", "b"]
        assert [one.thread_id for one in await saver.threads(filter={})] == ["a", "b"]
        assert await saver.threads(filter={"source": None}) == ()
        await saver.release(leases[0])
        assert [one.thread_id for one in await saver.threads()] == ["a"]

    async def test_after_and_limit(self, saver: BaseCheckpointSaver) -> None:
        """P11: a page starts after `after`, whether a thread of that id exists or not, and holds at most `limit`
        threads."""
        ids = ["", "a", "a\uffff", "b", "c", "\U0001f9f5"]
        for thread in reversed(ids):
            await written(saver, row(1), thread=thread)
        for after in [*ids, "0", "aa", "b ", "\uffff", "\U0010ffff"]:
            rest = [one for one in ids if one > after]
            for limit in (0, 1, 2, len(rest), PAGE):
                found = await saver.threads(after=after, limit=limit)
                assert [one.thread_id for one in found] == rest[:limit], (after, limit)
        assert [one.thread_id for one in await saver.threads(limit=2)] == ids[:2]

    async def test_pages_of_threads_add_up(self, saver: BaseCheckpointSaver) -> None:
        """P11: successive pages hold each thread once, with a filter too, whatever the size of a page."""
        ids = [f"{number:03d}" for number in range(PAGE + 30)]
        async with anyio.create_task_group() as group:
            for number, thread in enumerate(ids):
                metadata = {"odd": number % 2, "rare": number % 90 == 0}
                group.start_soon(partial(written, saver, row(1), thread=thread, metadata=metadata))
        for limit in (7, PAGE, PAGE + 30, MANY):
            assert await all_pages(saver, limit) == ids
            assert await all_pages(saver, limit, filter={"odd": 1}) == ids[1::2]
            assert await all_pages(saver, limit, filter={"rare": True, "odd": 0}) == ids[::90]
        assert len(await saver.threads()) == PAGE

    async def test_pages_stay_while_threads_come_and_go(self, saver: BaseCheckpointSaver) -> None:
        """P11: a thread that exists throughout a listing is listed once, whatever is added or deleted between two
        pages, the thread named by `after` included."""
        steady = [f"m{number:02d}" for number in range(12)]
        for thread in [*steady, *(f"{thread}-goes" for thread in steady)]:
            await written(saver, row(1), thread=thread)
        found: list[str] = []
        after: str | None = None
        turn = 0
        while page := await saver.threads(after=after, limit=3):
            assert after is None or page[0].thread_id > after, "a page repeats earlier results"
            after = page[-1].thread_id
            found += [one.thread_id for one in page]
            await written(saver, row(1), thread=f"a{turn}")
            await written(saver, row(1), thread=f"z{turn // 4}-{turn}") if turn < 8 else None
            for one in page:
                if one.thread_id.endswith("goes"):
                    await saver.adelete_thread(one.thread_id)
            if turn == 2:
                await saver.adelete_thread("m11-goes")
            turn += 1
        assert [one for one in found if one in steady] == steady
        assert found == sorted(set(found)), "in order, and none twice"
        assert "m11-goes" not in found, "deleted before the page with it was read"
        assert [one for one in found if one.startswith("a")] == [], "added before the page that the reader had reached"

    async def test_a_filter_of_threads_compares_values(self, saver: BaseCheckpointSaver) -> None:
        """P11: a filter of threads compares like a filter of checkpoints: as Python does, but a bool never equals a
        number at any depth, and a missing key equals nothing."""
        there = {f"key {number}": value for number, (value, _, _) in enumerate(COMPARED)}
        await written(saver, row(1), thread="with", metadata=there)
        await written(saver, row(1), thread="without", metadata={"other": 1})
        for number, (value, wanted, matches) in enumerate(COMPARED):
            found = await saver.threads(filter={f"key {number}": wanted})
            assert [one.thread_id for one in found] == (["with"] if matches else []), (value, wanted)

    async def test_all_entries_of_a_filter_of_threads(self, saver: BaseCheckpointSaver) -> None:
        """P11: a thread must match all entries of a filter; a filter without entries matches every thread."""
        await written(saver, row(1), thread="one", metadata={"a": 1, "b": 1})
        await written(saver, row(1), thread="two", metadata={"a": 1, "b": 2})
        assert [one.thread_id for one in await saver.threads(filter={"a": 1})] == ["one", "two"]
        assert [one.thread_id for one in await saver.threads(filter={"b": 2, "a": 1})] == ["two"]
        assert await saver.threads(filter={"a": 2, "b": 2}) == ()
        assert len(await saver.threads(filter={})) == 2

    async def test_a_filter_asks_the_threads_own_metadata(self, saver: BaseCheckpointSaver) -> None:
        """P11: a filter of threads matches the threads' own metadata, and not those of checkpoints, the head
        included."""
        await written(saver, row(1, metadata={"at": "head"}), row(3, ns="child", metadata={"at": "inside"}))
        await written(saver, row(1, metadata={"at": "head"}), thread="u", metadata={"at": "thread"})
        for at, found in (("head", []), ("inside", []), ("thread", ["u"])):
            assert [one.thread_id for one in await saver.threads(filter={"at": at})] == found

    async def test_hostile_filters_of_threads(self, saver: BaseCheckpointSaver) -> None:
        """P11: keys and values of filters, and `after`, are data, whatever text they are."""
        await written(saver, row(1), thread="all", metadata={text: text for text in HOSTILE})
        await written(saver, row(1), thread="nested", metadata={"a": {"b": 1}, "c": [1]})
        for text in HOSTILE:
            assert [one.thread_id for one in await saver.threads(filter={text: text})] == ["all"]
            assert await saver.threads(filter={text: f"{text}x"}) == ()
            assert await saver.threads(filter={f"{text}x": text}) == ()
            assert [one.thread_id for one in await saver.threads(after=text)] == [
                one for one in ("all", "nested") if one > text
            ]
        for key in ("a.b", "$.a.b", "c[0]", "$.c[0]", "a.b' OR '1'='1", "x') OR 1=1 --"):
            assert await saver.threads(filter={key: 1}) == ()
        assert [one.thread_id for one in await saver.threads(filter={"a": {"b": 1}})] == ["nested"]

    async def test_deleted_threads_are_gone(self, saver: BaseCheckpointSaver) -> None:
        """P6: a deleted thread is not listed, and a new thread of its name is listed without its past."""
        await written(saver, row(1), row(2, 1), thread="t")
        await written(saver, row(1), thread="u")
        await saver.adelete_thread("t")
        assert [one.thread_id for one in await saver.threads()] == ["u"]
        await take(saver, "t", "run-2")
        (new, _) = await saver.threads()
        assert (new.thread_id, new.newest, new.head, new.metadata) == ("t", None, None, {})
