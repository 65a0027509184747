"""Both caches pass the conformance suite on every event loop; and the rules of the cache in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest

from checkpoint_savers import caches
from checkpoint_savers.caches import BaseCache, FullKey, InMemoryCache, SqliteCache
from checkpoint_savers.conformance import CacheConformance
from checkpoint_savers.conformance.caches.conformance import Clock, OpenCache, key, present_keys, put_entries
from checkpoint_savers.conformance.savers.suite import NOW, in_threads, repeated
from tests.savers.sqlite_tools import ENV


class TestInMemoryCache(CacheConformance):
    @pytest.fixture
    def open_cache(self) -> OpenCache:
        caches: list[BaseCache] = []

        def open_cache(clock: Clock) -> nullcontext[BaseCache]:
            if not caches:
                caches.append(InMemoryCache(clock=clock))
            return nullcontext(caches[0])

        return open_cache


class TestSqliteCache(CacheConformance):
    @pytest.fixture
    def open_cache(self, tmp_path: Path) -> OpenCache:
        return lambda clock: SqliteCache(tmp_path / "cache.db", busy_timeout=60, clock=clock)


class TestSqliteCacheInMemory(CacheConformance):
    @pytest.fixture
    def open_cache(self) -> OpenCache:
        return lambda clock: SqliteCache(":memory:", clock=clock)


def numbered(*numbers: int) -> list[FullKey]:
    return [key(str(number)) for number in numbers]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(work: object) -> None:
    anyio.run(work)


def test_the_least_recently_used_entry_is_evicted() -> None:
    """A cache in memory never holds more than its limit; it evicts the entry that was not read or written for the
    longest time."""

    async def main() -> None:
        async with InMemoryCache(max_entries=3) as cache:
            await put_entries(cache, *numbered(1, 2, 3))
            assert await present_keys(cache, numbered(1)) == numbered(1)
            await put_entries(cache, *numbered(2))
            await put_entries(cache, *numbered(4))
            assert len(cache) == 3
            assert await present_keys(cache, numbered(1, 2, 3, 4)) == numbered(1, 2, 4)
            await put_entries(cache, *numbered(*range(10)))
            assert len(cache) == 3
            assert await present_keys(cache, numbered(*range(10))) == numbered(7, 8, 9)

    run(main)


def test_expired_entries_are_evicted_first(clock: Clock) -> None:
    """A write evicts expired entries before any others."""

    async def main() -> None:
        cache = InMemoryCache(max_entries=3, clock=clock)
        await put_entries(cache, *numbered(1))
        await put_entries(cache, *numbered(2, 3), ttl=10)
        clock.now = NOW + 10
        assert len(cache) == 3
        await put_entries(cache, *numbered(4))
        assert len(cache) == 2
        await put_entries(cache, *numbered(5))
        assert await present_keys(cache, numbered(1, 4, 5)) == numbered(1, 4, 5)

    run(main)


def test_reading_removes_an_expired_entry(clock: Clock) -> None:
    """An expired entry is removed when a read finds it."""

    async def main() -> None:
        cache = InMemoryCache(clock=clock)
        await put_entries(cache, *numbered(1, 2), ttl=10)
        clock.now = NOW + 10
        assert await present_keys(cache, numbered(1)) == []
        assert len(cache) == 1

    run(main)


def test_a_cache_does_not_grow_by_being_used(clock: Clock) -> None:
    """An entry written ten thousand times, and ten thousand entries that are cleared, leave no memory behind."""

    async def main() -> None:
        cache = InMemoryCache(clock=clock, max_entries=100)
        for number in range(10_000):
            await put_entries(cache, *numbered(0), ttl=1000 + number)
        assert len(cache._expiries) < 20
        for number in range(10_000):
            await put_entries(cache, *numbered(number), ttl=1000)
        assert len(cache._expiries) < 3 * 100
        await cache.aclear()
        await put_entries(cache, *numbered(1))
        assert len(cache) == 1 and not cache._expiries

    run(main)


def test_rewritten_entries_expire_in_time(clock: Clock) -> None:
    """Expired entries are removed, however often each was rewritten, and in whatever order they expire."""

    async def main() -> None:
        cache = InMemoryCache(clock=clock)
        written = 0
        while written < 20 or len(cache._expiries) > 10:  # until outdated expiry times have been cleaned up
            await put_entries(cache, *numbered(written % 10), ttl=91 + written % 10)
            written += 1
        clock.now = NOW + 95
        await put_entries(cache, key("new"))
        assert len(cache) == 5 + 1

    run(main)


@pytest.mark.parametrize("room", [2, 200])
@pytest.mark.anyio
async def test_threads_that_evict_one_anothers_entries(clock: Clock, room: int) -> None:
    """P13: threads that evict, expire and clear each other's entries at the same time cause no error."""
    cache = InMemoryCache(max_entries=room, clock=clock)

    async def use(number: int) -> None:
        for step in range(400):
            mine = key(str(step % (2 * room)), str(number % 2))
            await put_entries(cache, mine, ttl=1 + step % room)
            await present_keys(cache, [mine, key("0", "0")])
            await cache.aclear([("nothing",)])
            if step % 7 == 0:
                clock.now += 0.5
                await cache.aclear([(str(number % 2), mine[1])])
            assert len(cache) <= room

    await in_threads(*repeated(use, 6))


def test_a_cache_without_room_is_refused() -> None:
    """The limit of a cache is at least one entry."""
    with pytest.raises(ValueError, match="max_entries"):
        InMemoryCache(max_entries=0)


def test_importing_the_caches_loads_no_driver() -> None:
    """SQLite is loaded only when SqliteCache is used, and the public names of the package exist and are sorted."""
    code = "import sys, json, checkpoint_savers.caches; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENV)
    loaded = json.loads(ran.stdout)
    assert not [name for name in loaded if name.split(".")[0] in ("sqlite3", "aiosqlite", "trio")]
    assert not [name for name in loaded if "sqlite" in name]
    assert caches.__all__ == sorted(caches.__all__)
    assert all(getattr(caches, name) is not None for name in caches.__all__)
    with pytest.raises(AttributeError, match="no attribute 'RedisCache'"):
        caches.RedisCache  # noqa: B018  # what is not there
