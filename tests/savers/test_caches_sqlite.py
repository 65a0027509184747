"""SqliteCache: its file, other processes, and damage."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import (
    CorruptCheckpointError,
    SaverClosedError,
    SqliteSaver,
    StorageError,
    StorageLockedError,
    StorageReadOnlyError,
    UnsupportedFormatError,
)
from checkpoint_savers.caches import SqliteCache
from checkpoint_savers.caches import sqlite as module
from checkpoint_savers.codec import frame as frames
from checkpoint_savers.conformance.caches.conformance import Clock, key, present_keys, put_entries
from checkpoint_savers.conformance.savers.suite import NOW
from tests.savers.dropped_objects import warned
from tests.savers.sqlite_tools import ENV, locked, saver_threads

pytestmark = pytest.mark.anyio

KEYS = [key("a"), key("b"), key("a", "other")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cache(path: Path, clock: Clock) -> AsyncIterator[SqliteCache]:
    async with SqliteCache(path, clock=clock) as cache:
        yield cache


def sql(path: Path, statement: str, *values: object) -> list[Any]:
    """Run a statement on the file as another program would."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def count(path: Path) -> int:
    found: int = sql(path, "SELECT count(*) FROM entries")[0][0]
    return found


async def test_entries_outlive_the_cache(path: Path, clock: Clock) -> None:
    """Entries are there when the file is opened again, and expire when they should."""
    async with SqliteCache(path, clock=clock) as cache:
        await put_entries(cache, *KEYS[:2], ttl=10)
        await put_entries(cache, KEYS[2])
    assert not saver_threads()
    async with SqliteCache(str(path), clock=clock) as cache:
        assert await present_keys(cache, KEYS) == KEYS
        clock.now = NOW + 10
        assert await present_keys(cache, KEYS) == KEYS[2:]


WRITES = """if True:
    import anyio, sys
    from checkpoint_savers.caches import SqliteCache

    async def main():
        name = sys.argv[2]
        print("ready", flush=True)
        sys.stdin.readline()
        async with SqliteCache(sys.argv[1], busy_timeout=60) as cache:
            shared = (("shared",), "k")
            for number in range(20):
                key = ((name,), str(number))
                await cache.aset({key: (repr(key).encode(), None), shared: (b"value", None)})
                assert await cache.aget([shared]) == {shared: b"value"}
                if number == 9:
                    await cache.aclear([(name,)])

    anyio.run(main, backend=sys.argv[3])
"""


async def test_processes_share_a_file(path: Path) -> None:
    """Processes that create the file, write, read and clear at the same time cause each other no errors."""
    ran = [
        subprocess.Popen(
            [sys.executable, "-c", WRITES, str(path), str(number), ("asyncio", "trio")[number % 2]],
            env=ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(3)
    ]
    for process in ran:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    for process in ran:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in ran:
        process.communicate(timeout=120)
        assert process.returncode == 0
    keys = [key(str(number), str(name)) for name in range(3) for number in range(20)]
    async with SqliteCache(path) as cache:
        assert await present_keys(cache, keys) == [one for one in keys if int(one[1]) > 9]


async def test_writes_remove_expired_rows(path: Path, cache: SqliteCache, clock: Clock) -> None:
    """Expired rows do not accumulate: each write removes many of them, up to a limit."""
    await put_entries(cache, *(key(str(number)) for number in range(3)), ttl=1000)
    await put_entries(cache, *(key(str(number), "old") for number in range(module.SWEEP_LIMIT + 500)), ttl=10)
    await put_entries(cache, key("ever"))
    clock.now = NOW + 10
    assert count(path) == module.SWEEP_LIMIT + 504
    await put_entries(cache, key("new"))
    assert count(path) == 504 + 1 - 1
    await put_entries(cache, key("new"))
    assert count(path) == 5
    assert len(await present_keys(cache, [key(name) for name in ("0", "1", "2", "ever", "new")])) == 5


async def test_wal_and_no_fsync_for_each_write(path: Path, cache: SqliteCache) -> None:
    """A cache may lose entries in a crash: it does not wait for the disk."""

    def ask(db: sqlite3.Cursor) -> list[Any]:
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert await cache._run(ask, writes=False) == ["wal", 1]


async def test_another_process_holds_the_lock(path: Path) -> None:
    """While another process holds the lock, reads work; a write raises an error after the busy timeout."""
    async with SqliteCache(path, busy_timeout=0.05) as cache:
        await put_entries(cache, *KEYS)
        with locked(path):
            assert await present_keys(cache, KEYS) == KEYS
            with pytest.raises(StorageLockedError):
                await put_entries(cache, key("more"))
        await put_entries(cache, key("more"))
        assert await present_keys(cache, [key("more")]) == [key("more")]


async def test_a_damaged_entry_is_a_miss(path: Path, cache: SqliteCache) -> None:
    """Whichever byte is wrong or missing, no wrong value is returned; that row is removed, and no other."""
    await put_entries(cache, KEYS[1], KEYS[2])
    for ttl in (None, 10.0):
        await put_entries(cache, KEYS[0], ttl=ttl)
        where = "namespace = ? AND key = ?"
        columns = module._columns(KEYS[0])
        (frame,) = sql(path, f"SELECT frame FROM entries WHERE {where}", *columns)[0]
        damaged = [frame[:at] + bytes((frame[at] ^ 1 << at % 8,)) + frame[at + 1 :] for at in range(len(frame))]
        for one in [*damaged, frame[:-1], frame + b"x", b""]:
            await put_entries(cache, KEYS[0], ttl=ttl)
            sql(path, f"UPDATE entries SET frame = ? WHERE {where}", one, *columns)
            assert await present_keys(cache, KEYS) == KEYS[1:]
            assert count(path) == 2
    await put_entries(cache, KEYS[0])
    assert await present_keys(cache, KEYS) == KEYS


async def test_a_row_under_another_key_is_a_miss(path: Path, cache: SqliteCache) -> None:
    """A frame under a key for which it was not written is not used."""
    await put_entries(cache, key("a", "ns"))
    sql(path, "UPDATE entries SET key = ?", b"b")
    assert await cache.aget([key("a", "ns"), key("b", "ns")]) == {}
    assert count(path) == 0


async def test_an_entry_that_replaced_a_damaged_one_stays(path: Path, cache: SqliteCache) -> None:
    """Removing a damaged row does not remove an entry that has replaced it meanwhile."""
    await put_entries(cache, KEYS[0])
    await cache._remove_damaged([(*module._columns(KEYS[0]), b"damaged")])
    assert await present_keys(cache, KEYS[:1]) == KEYS[:1]


async def test_an_entry_of_a_later_version_is_a_miss_and_stays(
    path: Path, cache: SqliteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This version cannot read the entry, but the version that wrote it can."""
    with monkeypatch.context() as later:
        later.setattr(frames, "FORMAT", frames.FORMAT + 1)
        await put_entries(cache, KEYS[0])
    assert await cache.aget(KEYS) == {}
    assert count(path) == 1
    await put_entries(cache, KEYS[0])
    assert await present_keys(cache, KEYS) == KEYS[:1]


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database, but a text of some length" * 100)


def another_programs(path: Path) -> None:
    sql(path, "CREATE TABLE entries (namespace, key)")


def incomplete(path: Path) -> None:
    sql(path, f"PRAGMA application_id = {module.APPLICATION_ID}")
    sql(path, "PRAGMA user_version = 1")


@pytest.mark.parametrize(
    ("make", "advice"),
    [(no_database, "Delete it"), (incomplete, "Delete it"), (another_programs, "Choose another file")],
)
async def test_a_file_that_is_not_a_cache(path: Path, make: Callable[[Path], None], advice: str) -> None:
    """Such a file is refused when it is opened, with advice; it is not changed, and no thread is left."""
    make(path)
    before = path.read_bytes()
    with pytest.raises(CorruptCheckpointError, match=advice):
        async with SqliteCache(path):
            pass
    assert path.read_bytes() == before
    assert not saver_threads()


async def test_a_cache_may_be_opened_again_after_an_error(path: Path) -> None:
    """After the damaged file is removed, the same object creates a new one."""
    no_database(path)
    cache = SqliteCache(path)
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError):
            await cache.__aenter__()
    path.unlink()
    async with cache:
        await put_entries(cache, *KEYS)


async def test_a_savers_file_is_no_cache_and_the_other_way_round(path: Path, tmp_path: Path) -> None:
    """A cache and a saver refuse each other's files: neither deletes what the other has stored."""
    async with SqliteSaver.from_conn_string(path):
        pass
    with pytest.raises(CorruptCheckpointError, match="no cache.*Choose another file"):
        await SqliteCache(path).__aenter__()
    async with SqliteCache(tmp_path / "other.db"):
        pass
    with pytest.raises(CorruptCheckpointError, match="another program"):
        await SqliteSaver.from_conn_string(tmp_path / "other.db").__aenter__()


async def test_a_file_of_a_later_version(path: Path) -> None:
    """A file of a later version is refused, and not changed."""
    async with SqliteCache(path):
        pass
    sql(path, "PRAGMA user_version = 2")
    with pytest.raises(UnsupportedFormatError) as caught:
        await SqliteCache(path).__aenter__()
    assert (caught.value.found, caught.value.supported) == (2, 1)


async def test_damage_that_sqlite_detects(path: Path, cache: SqliteCache) -> None:
    """The error says that the file is unreliable and advises to delete it: a cache needs no backup."""
    await put_entries(cache, *KEYS)
    sql(path, "ALTER TABLE entries RENAME TO something_else")
    with pytest.raises(CorruptCheckpointError, match="Delete it: what a cache holds can be computed again") as caught:
        await cache.aget(KEYS)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)


async def test_a_read_only_cache(path: Path, clock: Clock) -> None:
    """A read-only cache returns its entries; a damaged entry is a miss there, too; writing to it and creating it are
    errors."""
    async with SqliteCache(path, clock=clock) as cache:
        await put_entries(cache, *KEYS)
    sql(path, "UPDATE entries SET frame = ? WHERE key = ?", b"damaged", b"b")
    async with SqliteCache(f"file:{path}?mode=ro", clock=clock) as cache:
        assert await present_keys(cache, KEYS) == [KEYS[0], KEYS[2]]
        for write in (lambda: put_entries(cache, *KEYS), cache.aclear):
            with pytest.raises(StorageReadOnlyError):
                await write()
    path.with_name("empty.db").touch()
    with pytest.raises(StorageReadOnlyError, match="the database is empty"):
        await SqliteCache(f"file:{path.with_name('empty.db')}?mode=ro").__aenter__()


async def test_a_missing_folder(tmp_path: Path) -> None:
    """The error says what SQLite could not open."""
    with pytest.raises(StorageError, match="nowhere"):
        await SqliteCache(tmp_path / "nowhere" / "cache.db").__aenter__()
    assert not saver_threads()


async def test_a_cache_that_is_not_open(path: Path) -> None:
    """Before opening and after closing, and when opened twice: the error says how to open it, and that it is a
    cache."""
    cache = SqliteCache(path)
    for _ in range(2):
        for use in (lambda: cache.aget(KEYS), lambda: put_entries(cache, *KEYS), cache.aclear):
            with pytest.raises(SaverClosedError, match="the cache of .* 'async with SqliteCache"):
                await use()
        async with cache:
            await put_entries(cache, *KEYS)
            with pytest.raises(SaverClosedError, match="open already"):
                await cache.__aenter__()
            assert await present_keys(cache, KEYS) == KEYS


async def test_closed_while_in_use(path: Path) -> None:
    """A call that comes too late gets an error which says that the cache is closed, and does not speak of a saver."""
    async with SqliteCache(path) as cache:
        worker = cache._worker
        assert worker is not None
    cache._worker = worker  # as seen by a call that began before the end of the block
    with pytest.raises(SaverClosedError, match="the cache of"):
        await cache.aget(KEYS)
    cache._worker = None


async def test_a_cache_that_was_never_closed(path: Path) -> None:
    """Python's warning names the cache, and its threads end."""
    cache = SqliteCache(path)
    await cache.__aenter__()
    threads = saver_threads()
    with pytest.warns(ResourceWarning, match="never closed") as caught:
        del cache
        await warned(caught)
    for thread in threads:
        thread.join(60)
    assert not saver_threads()


async def test_an_invalid_timeout(path: Path) -> None:
    """An invalid timeout raises where the cache is created."""
    for mistake in (-1, float("nan")):
        with pytest.raises(ValueError, match="busy_timeout"):
            SqliteCache(path, busy_timeout=mistake)
