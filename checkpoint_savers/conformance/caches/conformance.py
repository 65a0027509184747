"""The suite for caches: entries come back byte for byte until they expire or are cleared, on both event loops."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from ...caches.abc import BaseCache, FullKey, Namespace
from ..savers.loops.cancellation import TURNS
from ..savers.stored_bytes import HOSTILE, noise
from ..savers.suite import NOW, in_a_loop_each, in_threads, repeated

OpenCache = Callable[[Callable[[], float]], AbstractAsyncContextManager[BaseCache]]
"""Opens a cache whose clock is the given function, which returns unix seconds."""

THREADS = 10

ALL: tuple[Namespace, ...] = (
    *((), ("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a\x00",), ("a\x00", "b"), ("",), ("b",)),
)
"""Namespaces, some inside others and some next to each other."""


class Clock:
    """A clock that shows the time that the test sets, in unix seconds."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def key(name: str = "k", *namespace: str) -> FullKey:
    """Make the key of an entry.

    Args:
        name: the key within the namespace.
        namespace: the labels of the namespace; none for ("ns",).
    """
    return (namespace or ("ns",), name)


async def put_entries(cache: BaseCache, *keys: FullKey, ttl: float | None = None) -> None:
    """Store an entry under each key. The value contains the key.

    Args:
        cache: the cache.
        keys: the keys.
        ttl: the lifetime, in seconds; None for no expiry.
    """
    await cache.aset({one: (repr(one).encode(), ttl) for one in keys})


async def present_keys(cache: BaseCache, keys: Iterable[FullKey]) -> list[FullKey]:
    """Return those of the keys that have an entry, and check the value of each.

    Args:
        cache: the cache.
        keys: the keys.
    """
    found = await cache.aget(keys)
    assert all(value == repr(one).encode() for one, value in found.items())
    return list(found)


class CacheConformance:
    """All clauses for caches. Override the fixture `open_cache`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def open_cache(self) -> OpenCache:
        """Return a function that opens a cache with a clock, as an async context manager. Override it.

        Within one test, all caches that it opens must share one storage, with room for 2000 entries.
        """
        raise NotImplementedError("override the fixture open_cache")

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def cache(self, open_cache: OpenCache, clock: Clock) -> AsyncIterator[BaseCache]:
        async with open_cache(clock) as cache:
            yield cache

    async def test_values_come_back_byte_for_byte(self, cache: BaseCache) -> None:
        """P11: values of any size, empty ones too, and with any byte come back unchanged."""
        sizes = (0, 1, 2, 255, 256, 4095, 4096, 4097, 65_536, 1_000_000)
        values = [noise(size) for size in sizes] + [bytes(range(256)), b"\x00" * 100, b"\xff" * 100]
        pairs = {key(str(number)): value for number, value in enumerate(values)}
        await cache.aset({one: (value, None) for one, value in pairs.items()})
        found = await cache.aget(pairs)
        assert found == pairs
        assert all(type(value) is bytes for value in found.values())

    async def test_what_is_not_there(self, cache: BaseCache) -> None:
        """P11: keys without an entry are missing in the result; reading and storing nothing does nothing."""
        assert await cache.aget([]) == {}
        assert await cache.aget([key()]) == {}
        await cache.aset({})
        await put_entries(cache, key("a"))
        assert await present_keys(cache, [key("a"), key("b"), key("a")]) == [key("a")]
        assert await cache.aget(iter([key("a")])) == await cache.aget([key("a")])

    async def test_the_last_value_is_kept(self, cache: BaseCache) -> None:
        """P11: a new entry replaces the old one."""
        for value in (b"first", b"second", b""):
            await cache.aset({key(): (value, None)})
            assert await cache.aget([key()]) == {key(): value}

    async def test_every_text_is_a_name(self, cache: BaseCache) -> None:
        """P11: namespaces and keys may be any text, and two different ones are never confused."""
        texts = [*HOSTILE, "\ud800", "a\x00b", "a\x00", "a\x00\x00", "\x00", "A", "a"]
        keys: list[FullKey] = [
            (namespace, text) for text in texts for namespace in ((text,), (text, text), ("ns",), ())
        ]
        keys += [(("a", "b"), "c"), (("a",), "bc"), (("ab",), "c"), (("", ""), ""), (("", "", ""), "")]
        for one in set(keys):
            await put_entries(cache, one)
        assert await present_keys(cache, keys) == list(dict.fromkeys(keys))

    async def test_many_at_once(self, cache: BaseCache) -> None:
        """P11: one call stores and reads as many entries as a wide superstep has tasks."""
        keys = [key(str(number)) for number in range(1500)]
        await put_entries(cache, *keys)
        assert await present_keys(cache, keys) == keys

    async def test_nothing_that_is_passed_or_returned_is_shared(self, cache: BaseCache) -> None:
        """P1: changing a mapping that was passed in or returned does not change what is stored."""
        pairs: dict[FullKey, tuple[bytes, float | None]] = {key(): (b"x", None)}
        await cache.aset(pairs)
        pairs.clear()
        found = await cache.aget([key()])
        found.clear()
        assert await cache.aget([key()]) == {key(): b"x"}

    @pytest.mark.parametrize(
        ("pair", "error"),
        [
            (("text", (b"", None)), TypeError),
            ((("ns", "k"), (b"", None)), TypeError),
            (((("ns",), 1), (b"", None)), TypeError),
            ((((1,), "k"), (b"", None)), TypeError),
            (((("ns",), "k", 1), (b"", None)), TypeError),
            ((key(), ("text", None)), TypeError),
            ((key(), (bytearray(b"x"), None)), TypeError),
            ((key(), (b"", "1")), TypeError),
            ((key(), (b"", 0)), ValueError),
            ((key(), (b"", -1.0)), ValueError),
            ((key(), (b"", math.inf)), ValueError),
            ((key(), (b"", math.nan)), ValueError),
        ],
        ids=repr,
    )
    async def test_what_cannot_be_kept(self, cache: BaseCache, pair: Any, error: type[Exception]) -> None:
        """P11: an invalid entry is refused, and the other entries of the call are not stored either."""
        name, entry = pair
        with pytest.raises(error):
            await cache.aset({key("other"): (b"", None), name: entry})
        assert await cache.aget([key(), key("other")]) == {}

    async def test_what_cannot_be_asked_for(self, cache: BaseCache) -> None:
        """P11: an invalid key is refused instead of being a miss."""
        for mistake in ("text", ("ns", "k"), (("ns",), 1), ((1,), "k")):
            with pytest.raises(TypeError):
                await cache.aget(cast("Any", [mistake]))

    async def test_an_entry_expires(self, cache: BaseCache, clock: Clock) -> None:
        """P5: an entry exists for its ttl and no longer at the end of it; an entry without a ttl stays."""
        await put_entries(cache, key("short"), ttl=10)
        await put_entries(cache, key("long"), ttl=20.5)
        await put_entries(cache, key("ever"))
        keys = [key("short"), key("long"), key("ever")]
        clock.now = NOW + 9.5
        assert await present_keys(cache, keys) == keys
        clock.now = NOW + 10
        assert await present_keys(cache, keys) == keys[1:]
        clock.now = NOW + 20.5
        assert await present_keys(cache, keys) == keys[2:]
        clock.now = NOW + 1e9
        assert await present_keys(cache, keys) == keys[2:]

    async def test_an_entry_written_again_has_a_time_of_its_own(self, cache: BaseCache, clock: Clock) -> None:
        """P5: the lifetime counts from the last write, whether the new one is longer, shorter or unlimited."""
        keys = [key("longer"), key("shorter"), key("ever")]
        await put_entries(cache, *keys, ttl=10)
        clock.now = NOW + 5
        for one, ttl in zip(keys, (10, 1, None), strict=True):
            await put_entries(cache, one, ttl=ttl)
        await put_entries(cache, key("another"))
        clock.now = NOW + 6
        assert await present_keys(cache, keys) == [keys[0], keys[2]]
        clock.now = NOW + 14
        await put_entries(cache, key("another"))
        assert await present_keys(cache, keys) == [keys[0], keys[2]]
        clock.now = NOW + 15
        assert await present_keys(cache, keys) == [keys[2]]

    async def test_an_expired_entry_may_come_again(self, cache: BaseCache, clock: Clock) -> None:
        """P5: the key of an expired entry can be used again."""
        await put_entries(cache, key(), ttl=1)
        clock.now = NOW + 2
        assert await present_keys(cache, [key()]) == []
        await put_entries(cache, key(), ttl=1)
        assert await present_keys(cache, [key()]) == [key()]

    @pytest.mark.parametrize(
        ("namespaces", "cleared"),
        [
            (None, ALL),
            ([()], ALL),
            ([], ()),
            ([("a",)], (("a",), ("a", "b"), ("a", "b", "c"))),
            ([("a", "b")], (("a", "b"), ("a", "b", "c"))),
            ([("a", "b", "c")], (("a", "b", "c"),)),
            ([("a\x00",)], (("a\x00",), ("a\x00", "b"))),
            ([("",)], (("",),)),
            ([("b",), ("a", "b")], (("b",), ("a", "b"), ("a", "b", "c"))),
            ([("unknown",), ("%",), ("_",), ("*",)], ()),
        ],
        ids=repr,
    )
    async def test_clearing(
        self, cache: BaseCache, namespaces: list[Namespace] | None, cleared: tuple[Namespace, ...]
    ) -> None:
        """P5: clearing a namespace removes the entries in it and inside it, and no others."""
        keys = [(namespace, name) for namespace in ALL for name in ("k", "")]
        await put_entries(cache, *keys)
        await cache.aclear(namespaces)
        assert await present_keys(cache, keys) == [one for one in keys if one[0] not in cleared]
        await put_entries(cache, *keys)
        assert await present_keys(cache, keys) == keys

    @pytest.mark.parametrize("mistake", ["ns", ["ns"], [["ns"]], [("ns", 1)], [None]], ids=repr)
    async def test_what_is_no_namespace_clears_nothing(self, cache: BaseCache, mistake: Any) -> None:
        """P11: a text instead of a namespace is refused, and not read as a tuple of its letters."""
        keys = [key("k", "ns"), key("k", "n")]
        await put_entries(cache, *keys)
        with pytest.raises(TypeError):
            await cache.aclear(mistake)
        assert await present_keys(cache, keys) == keys

    async def test_one_cache_in_many_threads(self, cache: BaseCache) -> None:
        """P13: one open cache serves ten OS threads at once, each with its own event loop, asyncio or trio."""

        async def run(number: int) -> None:
            for step in range(20):
                mine = key(str(step), "thread", str(number))
                await put_entries(cache, mine, key("shared"))
                assert await present_keys(cache, [mine, key("shared")]) == [mine, key("shared")]
                if step == 10:
                    await cache.aclear([("thread", str(number))])
            all_of_them = [key(str(step), "thread", str(number)) for step in range(20)]
            assert await present_keys(cache, all_of_them) == all_of_them[11:]

        await in_threads(*repeated(run, THREADS))

    async def test_opened_on_one_loop_and_closed_on_another(self, open_cache: OpenCache, clock: Clock) -> None:
        """P13: a cache may be opened on one event loop, used on another and closed on a third, after the earlier ones
        have ended."""
        manager = open_cache(clock)
        opened: list[BaseCache] = []

        async def enter() -> None:
            opened.append(await manager.__aenter__())
            await put_entries(opened[0], key())

        async def use() -> None:
            assert await present_keys(opened[0], [key()]) == [key()]

        async def leave() -> None:
            await manager.__aexit__(None, None, None)

        await in_a_loop_each(enter, use, leave)

    async def test_cancelled_callers(self, cache: BaseCache) -> None:
        """P7: if a write is cancelled at any moment, it has happened or not, and the cache keeps serving others."""
        for turns in range(TURNS):
            await cache.aset({key(): (b"before", None)})
            async with anyio.create_task_group() as group:
                group.start_soon(cache.aset, {key(): (b"after", None)})
                group.start_soon(cache.aget, [key()])
                group.start_soon(cache.aclear, [("other",)])
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            assert (await cache.aget([key()]))[key()] in (b"before", b"after")
            await put_entries(cache, key())
            assert await present_keys(cache, [key()]) == [key()]

    async def test_ten_callers_compute_once(self, cache: BaseCache) -> None:
        """P5: of ten callers in ten threads that need the same value at the same time, one computes it."""
        computed: list[int] = []

        async def run(number: int) -> None:
            async def compute() -> bytes:
                found = await cache.aget([key()])
                if key() not in found:
                    computed.append(number)
                    await anyio.lowlevel.checkpoint()
                    found[key()] = b"value"
                    await cache.aset({key(): (found[key()], None)})
                return found[key()]

            value, _ = await cache.flights.share(key(), compute)
            assert value == b"value"

        await in_threads(*repeated(run, THREADS))
        assert len(computed) == 1
        assert len(cache.flights) == 0
