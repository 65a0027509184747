"""Expiry: an expired item is invisible to every caller, and is removed later."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ...stores.abc import SWEEP_SPACING, BaseStore
from ...stores.ops import GetOp, PutOp, SearchOp
from ...stores.port import SWEEP_LIMIT
from ..caches.conformance import Clock
from ..savers.suite import NOW
from .suite import SPACE, OpenStore, StoreSuite, facts, keys, put, there, value

MINUTE = 60.0


class Expiry(StoreSuite):
    async def test_an_item_expires(self, store: BaseStore, clock: Clock) -> None:
        """A ttl is in minutes; the item exists for that time, and at its end for no verb."""
        await put(store, "short", ttl=10)
        await put(store, "long", ttl=20.5)
        await put(store, "ever", space=("other",))
        clock.now = NOW + 10 * MINUTE - 1
        assert await there(store, "short", "long") == ["short", "long"]
        assert sorted(await keys(store)) == ["ever", "long", "short"]
        clock.now = NOW + 10 * MINUTE
        assert await there(store, "short", "long") == ["long"]
        assert sorted(await keys(store)) == ["ever", "long"]
        assert await keys(store, filter={"key": "short"}) == []
        assert await keys(store, SPACE, limit=1) == ["long"]
        clock.now = NOW + 20.5 * MINUTE
        assert await there(store, "short", "long") == []
        assert await store.alist_namespaces() == [("other",)]
        assert await store.alist_namespaces(max_depth=1) == [("other",)]
        clock.now = NOW + 1e9
        assert await keys(store) == ["ever"]

    async def test_an_item_put_again_has_a_time_of_its_own(self, store: BaseStore, clock: Clock) -> None:
        """The lifetime counts from the last put, whether the new one is longer, shorter or unlimited; created_at
        stays."""
        await put(store, "longer", "shorter", "ever", ttl=10)
        clock.now = NOW + 5 * MINUTE
        for key, ttl in (("longer", 10), ("shorter", 1), ("ever", None)):
            await put(store, key, ttl=ttl)
        clock.now = NOW + 6 * MINUTE
        assert await there(store, "longer", "shorter", "ever") == ["longer", "ever"]
        clock.now = NOW + 14 * MINUTE
        assert facts(await store.aget(SPACE, "longer", refresh_ttl=False))[2:] == (NOW, NOW + 5 * MINUTE)
        clock.now = NOW + 15 * MINUTE
        assert await there(store, "longer", "shorter", "ever") == ["ever"]

    async def test_an_expired_item_may_come_again(self, store: BaseStore, clock: Clock) -> None:
        """An item that is put after the old one expired is new, created_at included."""
        await store.aput(SPACE, "k", {"old": 1}, ttl=1)
        clock.now = NOW + 2 * MINUTE
        await put(store, "k")
        assert facts(await store.aget(SPACE, "k"))[2:] == (NOW + 2 * MINUTE, NOW + 2 * MINUTE)
        assert await value(store, "k") == {"key": "k"}
        clock.now = NOW + 1e9
        assert await there(store, "k") == ["k"]

    async def test_the_default(self, open_store: OpenStore, clock: Clock) -> None:
        """An item that is put without a ttl has the store's default; a ttl of None means no expiry."""
        async with open_store(clock=clock, ttl={"default_ttl": 10}) as store:
            await store.aput(SPACE, "default", {})
            await store.abatch([PutOp(SPACE, "in a batch", {})])
            await put(store, "own", ttl=20)
            await put(store, "ever", ttl=None)
            clock.now = NOW + 10 * MINUTE
            assert sorted(await keys(store)) == ["ever", "own"]
            clock.now = NOW + 20 * MINUTE
            assert await keys(store) == ["ever"]

    async def test_reading_begins_the_time_anew(self, store: BaseStore, clock: Clock) -> None:
        """Reading an item restarts its lifetime; updated_at stays."""
        await put(store, "got", "found", "unread", "asked not to", ttl=10)
        await put(store, "ever")
        clock.now = NOW + 5 * MINUTE
        await store.aget(SPACE, "got")
        await store.aget(SPACE, "ever")
        await store.aget(SPACE, "asked not to", refresh_ttl=False)
        await store.asearch(SPACE, filter={"key": "asked not to"}, refresh_ttl=False)
        await store.asearch(SPACE, filter={"key": "found"})
        clock.now = NOW + 10 * MINUTE
        assert await there(store, "got", "found", "unread", "asked not to", "ever") == ["got", "found", "ever"]
        assert facts(await store.aget(SPACE, "got", refresh_ttl=False))[2:] == (NOW, NOW)
        clock.now = NOW + 15 * MINUTE
        assert await there(store, "got", "found", "unread", "asked not to", "ever") == ["ever"]

    async def test_a_search_refreshes_what_it_returns(self, store: BaseStore, clock: Clock) -> None:
        """A search restarts the lifetimes of the items that it returns, and not of those on other pages or without a
        match."""
        for number in range(5):
            clock.now = NOW + number
            await put(store, str(number), ttl=10)
        clock.now = NOW + 5 * MINUTE
        assert [item.key for item in await store.asearch(SPACE, limit=2, offset=1)] == ["3", "2"]
        clock.now = NOW + 11 * MINUTE
        assert await there(store, *"01234") == ["2", "3"]

    async def test_a_store_that_does_not_refresh(self, open_store: OpenStore, clock: Clock) -> None:
        """`refresh_on_read` applies to calls that do not pass `refresh_ttl`."""
        async with open_store(clock=clock, ttl={"refresh_on_read": False, "default_ttl": 10}) as store:
            await store.abatch([PutOp(SPACE, key, {"key": key}) for key in "abcde"])
            clock.now = NOW + 5 * MINUTE
            await store.aget(SPACE, "a")
            await store.abatch([GetOp(SPACE, "b"), SearchOp(SPACE, {"key": "c"})])
            await store.aget(SPACE, "d", refresh_ttl=True)
            await store.asearch(SPACE, filter={"key": "e"}, refresh_ttl=True)
            clock.now = NOW + 10 * MINUTE
            assert await there(store, *"abcde") == ["d", "e"]

    async def test_a_read_and_a_put_in_one_batch(self, store: BaseStore, clock: Clock) -> None:
        """If a batch reads and puts the same item, the ttl of the put applies."""
        await put(store, "shorter", "ever", "gone", ttl=10)
        await store.abatch(
            [
                GetOp(SPACE, "shorter"),
                GetOp(SPACE, "ever"),
                GetOp(SPACE, "gone"),
                PutOp(SPACE, "shorter", {}, ttl=5),
                PutOp(SPACE, "ever", {}, ttl=None),
                PutOp(SPACE, "gone", None),
            ]
        )
        assert sorted(await keys(store)) == ["ever", "shorter"]
        clock.now = NOW + 5 * MINUTE
        assert await keys(store) == ["ever"]
        clock.now = NOW + 1e9
        assert await keys(store) == ["ever"]

    async def test_sweeping(self, store: BaseStore, clock: Clock) -> None:
        """A sweep removes the expired items and nothing else, and returns their number."""
        assert await store.asweep_ttl() == 0
        await put(store, "a", "b", ttl=10)
        await put(store, "c", ttl=20)
        await put(store, "d")
        assert await store.asweep_ttl() == 0
        clock.now = NOW + 10 * MINUTE
        assert await store.asweep_ttl() == 2
        assert await store.asweep_ttl() == 0
        assert sorted(await keys(store)) == ["c", "d"]
        clock.now = NOW  # a clock that goes back does not restore swept items
        assert sorted(await keys(store)) == ["c", "d"]

    async def test_sweeping_very_many(self, store: BaseStore, clock: Clock) -> None:
        """A sweep removes all expired items, in as many transactions as needed."""
        for number in (2 * SWEEP_LIMIT + 17, SWEEP_LIMIT):
            await store.abatch([PutOp(SPACE, str(at), {}, ttl=1 + at % 3) for at in range(number)])
            await put(store, "ever")
            clock.now += 3 * MINUTE
            assert await store.asweep_ttl() == number
            assert await keys(store) == ["ever"]

    async def test_puts_sweep(self, store: BaseStore, clock: Clock) -> None:
        """Expired items are removed by later puts, even without a sweep."""
        await put(store, "a", "b", ttl=1)
        clock.now = NOW + MINUTE + SWEEP_SPACING
        await put(store, "c")
        assert await store.asweep_ttl() == 0
        assert await keys(store) == ["c"]

    @pytest.mark.parametrize("ttl", [0, -1, math.inf, math.nan, 10**400, "1", True, [1]], ids=lambda ttl: repr(ttl)[:9])
    async def test_what_is_no_ttl(self, open_store: OpenStore, clock: Clock, store: BaseStore, ttl: Any) -> None:
        """A ttl must be a finite number of minutes greater than zero."""
        with pytest.raises((TypeError, ValueError)):
            await store.aput(SPACE, "k", {}, ttl=ttl)
        assert await keys(store) == []
        for wrong in ({"default_ttl": ttl}, {"sweep_interval_minutes": ttl}):
            with pytest.raises((TypeError, ValueError)):
                open_store(clock=clock, ttl=wrong)
