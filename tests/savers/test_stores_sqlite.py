"""SqliteStore: its file, which may also be a saver's, other processes, damage, locks, and closing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from checkpoint_savers import (
    CorruptCheckpointError,
    SaverClosedError,
    SqliteSaver,
    SqliteStore,
    StorageError,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
    UnsupportedFormatError,
)
from checkpoint_savers.caches import SqliteCache
from checkpoint_savers.conformance.caches.conformance import Clock
from checkpoint_savers.conformance.savers.suite import NOW, cid, head_of, row, written
from checkpoint_savers.conformance.stores.suite import SPACE, keys, put, there, value
from checkpoint_savers.sqlite import schema
from checkpoint_savers.sqlite.worker import Job
from checkpoint_savers.stores import GetOp, PutOp, SearchOp, sqlite_rows
from checkpoint_savers.stores import sqlite as module
from pregel_async._api.sync_verbs import open_sync
from tests.savers.dropped_objects import warned
from tests.savers.sqlite_tools import ENV, held, locked, saver_threads, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "items.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    async with SqliteStore.from_conn_string(path, clock=clock) as store:
        yield store


def sql(path: Path, statement: str, *values: object) -> list[Any]:
    """Run a statement on the file as another program would."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def count(path: Path) -> int:
    found: int = sql(path, "SELECT count(*) FROM store_item")[0][0]
    return found


async def asked(store: SqliteStore, *names: str) -> list[Any]:
    """Read the settings of the store's connection."""
    assert store._worker is not None
    return await store._worker.run(
        Job(lambda db: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names], writes=False)
    )


async def test_items_outlive_the_store(path: Path, clock: Clock) -> None:
    """Items are there when the file is opened again, with their times, and expire when they should."""
    async with SqliteStore(path, clock=clock) as store:
        await put(store, "a", ttl=10)
        await put(store, "b")
    assert saver_threads() == []
    assert [file.name for file in path.parent.iterdir()] == [path.name], "the WAL was not checkpointed"
    clock.now += 60
    async with SqliteStore(str(path), clock=clock) as store:
        (found, other) = await store.asearch(SPACE, refresh_ttl=False)
        assert (found.key, found.created_at.timestamp(), found.updated_at.timestamp()) == ("a", NOW, NOW)
        await put(store, "b")
        clock.now = NOW + 600
        assert await keys(store) == ["b"]
        item = await store.aget(SPACE, "b")
        assert item is not None and (item.created_at, item.updated_at) == (
            other.created_at,
            other.created_at.fromtimestamp(NOW + 60, other.created_at.tzinfo),
        )


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_durability_of_a_put(path: Path, synchronous: Any, number: int) -> None:
    """P4: `synchronous` is FULL by default; with the WAL that is cheap, and readers do not wait for writers."""
    async with SqliteStore(path, synchronous=synchronous) as store:
        assert await asked(store, "journal_mode", "synchronous") == ["wal", number]
    async with SqliteStore(path) as store:
        assert await asked(store, "synchronous") == [2]


@pytest.mark.parametrize("wrong", [{"synchronous": "OFF"}, {"busy_timeout": -1}, {"busy_timeout": float("nan")}])
def test_an_invalid_setting(path: Path, wrong: dict[str, Any]) -> None:
    """It is refused when the store is created."""
    with pytest.raises(ValueError):
        SqliteStore(path, **wrong)


async def test_in_memory() -> None:
    """ ":memory:" is a store that ends when it is closed."""
    async with SqliteStore(":memory:") as store:
        await put(store, "a")
        assert await keys(store) == ["a"]
    async with store:
        assert await keys(store) == []


@pytest.mark.parametrize("store_first", [True, False])
async def test_a_store_and_a_saver_share_a_file(path: Path, store_first: bool) -> None:
    """Either may come first; both can be open at once, and neither affects the other's data."""
    first, second = (SqliteStore(path), SqliteSaver(path))[:: 1 if store_first else -1]
    async with first as one, second as other:
        saver, store = (other, one) if store_first else (one, other)
        assert isinstance(saver, SqliteSaver) and isinstance(store, SqliteStore)

        async def steps(thread: str) -> None:
            await written(saver, *(row(number, number - 1 or None) for number in range(1, 11)), thread=thread)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(steps, f"t{number}")
                group.start_soon(put, store, *(f"{number}-{step}" for step in range(10)))
        assert len(await keys(store)) == 50
        await saver.adelete_thread("t0")
        assert len(await keys(store)) == 50
        await saver.vacuum()
        await store.adelete(SPACE, "0-0")
        await saver.backup(path.with_name("copy.db"))
    for file in (path, path.with_name("copy.db")):
        async with SqliteSaver(file) as saver, SqliteStore(file) as store:
            assert [await head_of(saver, f"t{number}") for number in range(5)] == [None, *[cid(10)] * 4]
            assert len(await keys(store)) == 49


async def test_a_savers_file_gets_a_store(path: Path) -> None:
    """A file that only a saver has opened gets a store's tables in addition to its own."""
    async with SqliteSaver(path) as saver:
        await written(saver, row(1))
    before = sql(path, "SELECT name FROM sqlite_schema")
    assert not [name for (name,) in before if "store" in name]
    async with SqliteStore(path) as store:
        await put(store, "a")
    async with SqliteSaver(path) as saver:
        assert await head_of(saver) == cid(1)


async def test_a_search_uses_an_index(store: SqliteStore) -> None:
    """A page of one namespace is read in order without visiting other rows; no statement scans a table."""
    await store.abatch([PutOp((f"{number % 7}",), str(number), {}) for number in range(200)])
    assert store._worker is not None

    def plans(db: sqlite3.Cursor) -> dict[str, str]:
        db.execute("ANALYZE")
        found = dict[str, str]()
        for name in ("_FIND", "_OF_ONE", "_OF_ALL", "_SPACE", "_IS_ALONE", "_REFRESH", "_REMOVE", "_SWEEP"):
            statement = getattr(sqlite_rows, name)
            steps = db.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * statement.count("?")).fetchall()
            found[name] = "; ".join(step[3] for step in steps)
        return found

    said = await store._worker.run(Job(plans, writes=True))
    assert not [plan for name, plan in said.items() if "SCAN store_item" in plan.replace("SCAN CONSTANT ROW", "")]
    assert said["_OF_ONE"] == "SEARCH store_item USING COVERING INDEX store_item_by_age (namespace=?)"
    assert "COVERING INDEX store_item_by_age (namespace>? AND namespace<?)" in said["_OF_ALL"]
    assert "TEMP B-TREE" not in said["_SPACE"] and "COVERING INDEX" in said["_SPACE"]
    assert "store_item_by_expiry (expires_at<?)" in said["_SWEEP"]


WRITES = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver, SqliteStore
    from checkpoint_savers.conformance.savers.suite import row, written

    async def main():
        path, name = sys.argv[1:3]
        print("ready", flush=True)
        sys.stdin.readline()
        async with SqliteStore(path, busy_timeout=60) as store, SqliteSaver(path, busy_timeout=60) as saver:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: written(saver, *(row(n, n - 1 or None) for n in range(1, 21)), thread=name))
                for number in range(20):
                    await store.aput(("all",), f"{name}-{number}", {"n": number})
                    await store.aput(("shared",), "k", {"by": name})
                    item = await store.aget(("all",), f"{name}-{number}")
                    assert item.value == {"n": number}

    anyio.run(main, backend=sys.argv[3])
"""


async def test_processes_share_a_file(path: Path) -> None:
    """P13: processes that create the file, and use stores and savers in it at the same time, cause each other no
    errors."""
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
    async with SqliteStore(path) as store, SqliteSaver(path) as saver:
        assert len(await keys(store, ("all",))) == 60
        assert [await head_of(saver, str(number)) for number in range(3)] == [cid(20)] * 3


ACKNOWLEDGES = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteStore
    from checkpoint_savers.stores import PutOp

    async def main():
        async with SqliteStore(sys.argv[1]) as store:
            number = 0
            while True:
                await store.abatch([PutOp((name,), str(number), {"n": number}) for name in "ab"])
                print(number, flush=True)
                number += 1

    anyio.run(main)
"""


async def test_a_killed_process_loses_no_acknowledged_put(path: Path) -> None:
    """P4, P3: what a put has returned for is there after SIGKILL, and a batch is there completely or not at all."""
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", ACKNOWLEDGES, str(path)], env=ENV, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            acknowledged = [int(process.stdout.readline()) for _ in range(random.randint(1, 40))]
            process.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in process.stdout.read().splitlines()]
        async with SqliteStore(path) as store:
            stored = [sorted(map(int, await keys(store, (name,)))) for name in "ab"]
            assert stored[0] == stored[1] and len(stored[0]) in (len(acknowledged), len(acknowledged) + 1)
            await store.abatch([PutOp((name,), str(number), None) for name in "ab" for number in stored[0]])


async def test_another_process_holds_the_lock(path: Path) -> None:
    """Reads work; a write raises after the busy timeout, and can be repeated."""
    async with SqliteStore(path, busy_timeout=0.05) as store:
        await put(store, "a")
        with locked(path):
            assert await keys(store) == ["a"]
            with pytest.raises(StorageLockedError) as caught:
                await put(store, "b")
            assert caught.value.retryable
        await put(store, "b")
        assert sorted(await keys(store)) == ["a", "b"]


async def test_a_read_that_refreshes_needs_the_lock(path: Path, clock: Clock) -> None:
    """A read that should extend a lifetime and cannot raises an error; one with `refresh_ttl=False` works."""
    async with SqliteStore(path, busy_timeout=0.05, clock=clock) as store:
        await put(store, "a", ttl=1)
        with locked(path):
            with pytest.raises(StorageLockedError):
                await store.aget(SPACE, "a")
            assert await there(store, "a") == ["a"]


async def test_a_long_search_blocks_no_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search in a batch with puts runs before the lock is acquired: others write to the file meanwhile."""
    searching, go = threading.Event(), threading.Event()

    def slow(found: Any, wanted: Any) -> bool:
        searching.set()
        return go.wait(30)

    async with SqliteStore(path) as store, SqliteSaver(path, busy_timeout=0.01) as saver:
        await put(store, "a")
        monkeypatch.setattr("checkpoint_savers.stores.filters.equal", slow)
        async with anyio.create_task_group() as group:
            group.start_soon(store.abatch, [SearchOp(SPACE, {"key": "a"}), PutOp(SPACE, "b", {})])
            try:
                assert await anyio.to_thread.run_sync(searching.wait, 30)
                await written(saver, row(1))
            finally:
                go.set()
        assert sorted(await keys(store)) == ["a", "b"]


async def test_one_batch_is_one_job(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations of one iteration of the loop go to the database's thread as one job, and are committed once."""
    assert store._worker is not None
    submit, jobs = store._worker.submit, list[bool]()

    def seen(job: Job[Any], waiter: Any) -> None:
        jobs.append(job.writes)
        submit(job, waiter)

    monkeypatch.setattr(store._worker, "submit", seen)
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(put, store, str(number))
    assert jobs == [True]
    await store.abatch([GetOp(SPACE, str(number)) for number in range(20)])
    assert jobs == [True, False]


async def test_expired_rows_leave_the_file(path: Path, store: SqliteStore, clock: Clock) -> None:
    """Expired items do not accumulate in the file."""
    await put(store, "a", "b", ttl=1)
    await put(store, "c")
    clock.now += 60
    assert count(path) == 3
    assert await keys(store) == ["c"]
    await put(store, "d")  # within a minute of the last sweep by a put, which found nothing expired
    clock.now += 60
    await put(store, "e")
    assert count(path) == 3
    await put(store, "f", ttl=1)
    clock.now += 60
    assert await store.asweep_ttl() == 1
    assert sorted(await keys(store)) == ["c", "d", "e"]


async def test_an_open_store_sweeps_its_file(path: Path) -> None:
    """It does so together with other processes, and its thread ends with it."""
    async with SqliteStore(path) as other:
        await put(other, "a", ttl=0.0001)
    swept = threading.Semaphore(0)

    class Seen(SqliteStore):
        async def asweep_ttl(self) -> int:
            found = await super().asweep_ttl()
            swept.release()
            return found

    async with Seen(path, ttl={"sweep_interval_minutes": 0.0001}):
        while count(path):
            assert await anyio.to_thread.run_sync(swept.acquire, True, 30)
    assert not [one for one in threading.enumerate() if "sweeper" in one.name]


async def test_damage(path: Path, store: SqliteStore) -> None:
    """P11: whatever another program does to a row, its item is intact, missing, or raises CorruptCheckpointError."""
    await put(store, "a", "b")
    whole = {"key": "a"}
    (frame,) = sql(path, "SELECT frame FROM store_item WHERE key = ?", b"a")[0]
    damaged = [("frame", frame[:at] + bytes((frame[at] ^ 1 << at % 8,)) + frame[at + 1 :]) for at in range(len(frame))]
    damaged += [("frame", b""), ("frame", frame + b"\0"), ("key", b"c"), ("key", b"\xff"), ("namespace", b"x\0")]
    damaged += [("namespace", b"\xff\0"), ("namespace", b""), ("created_at", 1e300), ("updated_at", -1e300)]
    for column, given in damaged:
        (before,) = sql(path, f"SELECT {column} FROM store_item WHERE key = ?", b"a")[0]
        sql(path, f"UPDATE store_item SET {column} = ? WHERE id = 1", given)
        try:
            assert await value(store, "a") in (whole, None)
            assert column in ("key", "namespace")
        except CorruptCheckpointError:
            pass
        try:
            assert await keys(store) == ["b"]
            assert given == b"\xff\0"  # these bytes are no namespace
        except CorruptCheckpointError:
            pass
        assert await value(store, "b") == {"key": "b"}
        sql(path, f"UPDATE store_item SET {column} = ? WHERE id = 1", before)
    assert await value(store, "a") == whole


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database, but a text of some length" * 100)


def another_programs(path: Path) -> None:
    sql(path, "CREATE TABLE store_item (namespace, key)")


def a_cache(path: Path) -> None:
    with open_sync(SqliteCache(path)):
        pass


def a_savers(path: Path) -> None:
    with open_sync(SqliteSaver(path)):
        pass


def with_a_table_of_that_name(path: Path) -> None:
    a_savers(path)
    sql(path, "CREATE TABLE Store_Item (mine)")


def ours(path: Path) -> None:
    with open_sync(SqliteStore(path)):
        pass


def incomplete(path: Path) -> None:
    ours(path)
    sql(path, "DROP INDEX store_item_by_expiry")


def without_a_version(path: Path) -> None:
    ours(path)
    sql(path, "DELETE FROM store_version")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (no_database, "not an SQLite database"),
        (another_programs, "of another program.*Choose another file"),
        (a_cache, "of another program.*Choose another file"),
        (with_a_table_of_that_name, "has .'Store_Item'. already, which no store has made"),
        (incomplete, "these parts are missing: .'store_item_by_expiry'"),
        (without_a_version, "version is None"),
    ],
)
async def test_a_foreign_file(path: Path, make: Callable[[Path], None], match: str) -> None:
    """P11: it is refused when it is opened, with advice; it is not changed, and no thread is left."""
    await anyio.to_thread.run_sync(make, path)
    before = path.read_bytes()
    with pytest.raises(CorruptCheckpointError, match=match):
        async with SqliteStore(path):
            pass
    assert path.read_bytes() == before
    assert not saver_threads()


async def test_a_file_of_a_later_version(path: Path) -> None:
    """P11: whether the saver's part or the store's is of a later version, the file is refused and not changed."""
    await anyio.to_thread.run_sync(ours, path)
    sql(path, "UPDATE store_version SET version = 2")
    with pytest.raises(UnsupportedFormatError, match="its store: stored in format 2"):
        await SqliteStore(path).__aenter__()
    async with SqliteSaver(path) as saver:  # the threads in it can be read all the same
        await written(saver, row(1))
    sql(path, f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(UnsupportedFormatError):
        await SqliteStore(path).__aenter__()
    sql(path, f"PRAGMA user_version = {schema.VERSION}")
    sql(path, "UPDATE store_version SET version = 1")
    async with SqliteStore(path) as store:
        assert await keys(store) == []


async def test_a_store_that_is_upgraded_while_open(path: Path, store: SqliteStore) -> None:
    """A program of this version that has the store open gets an error that names the upgrade; other damage is
    reported as damage."""
    await put(store, "a")
    sql(path, "ALTER TABLE store_item RENAME TO elsewhere")
    with pytest.raises(CorruptCheckpointError):
        await store.aget(SPACE, "a")
    sql(path, "UPDATE store_version SET version = 2")
    with pytest.raises(UnsupportedFormatError, match="its store"):
        await store.aget(SPACE, "a")
    with pytest.raises(UnsupportedFormatError, match="its store"):
        await put(store, "b")


async def test_read_only(path: Path, clock: Clock) -> None:
    """Items are read, even if a read should extend their lifetime; puts are refused, and so is a file without a
    store."""
    uri = f"file:{path}?mode=ro"
    await anyio.to_thread.run_sync(a_savers, path)
    with pytest.raises(StorageReadOnlyError, match="no store in it"):
        await SqliteStore(uri).__aenter__()
    async with SqliteStore(path, clock=clock) as store:
        await put(store, "a", ttl=10)
    clock.now += 300
    async with SqliteStore(uri, clock=clock) as store:
        item = await store.aget(SPACE, "a")
        assert item is not None and item.value == {"key": "a"}
        assert [one.key for one in await store.asearch(SPACE)] == ["a"]
        with pytest.raises(StorageReadOnlyError):
            await put(store, "b")
        with pytest.raises(StorageReadOnlyError):
            await store.abatch([GetOp(SPACE, "a"), PutOp(SPACE, "b", None)])
        clock.now += 300
        assert await keys(store) == []
        with pytest.raises(StorageReadOnlyError):
            await store.asweep_ttl()


async def test_a_missing_folder(tmp_path: Path) -> None:
    """It raises a StorageError that says what to check."""
    with pytest.raises(StorageError, match="cannot be opened"):
        await SqliteStore(tmp_path / "no" / "items.db").__aenter__()


async def test_a_full_disk(store: SqliteStore) -> None:
    """A put without space raises and changes nothing; reads work, and so do puts when there is space again."""
    await put(store, "a")
    (pages,) = await asked(store, "page_count")
    await asked(store, f"max_page_count = {pages + 10}")
    with pytest.raises(StorageFullError):
        await store.abatch([PutOp(SPACE, "b", {}), PutOp(SPACE, "big", {"x": b"x" * 1_000_000}), GetOp(SPACE, "a")])
    assert await keys(store) == ["a"]
    await asked(store, f"max_page_count = {2**30}")
    await store.abatch([PutOp(SPACE, "b", {}), PutOp(SPACE, "big", {"x": b"x" * 1_000_000})])
    assert sorted(await keys(store)) == ["a", "b", "big"]


async def test_a_store_that_is_not_open(path: Path) -> None:
    """Before it is opened and after it is closed, calls raise SaverClosedError with a store's message; it may be
    opened again, but not twice at once."""
    store = SqliteStore(path)
    for _ in range(2):
        for verb in (
            lambda: put(store, "a"),
            lambda: store.aget(SPACE, "a"),
            lambda: store.asearch(()),
            lambda: store.alist_namespaces(),
            lambda: store.asweep_ttl(),
            lambda: anyio.to_thread.run_sync(store.get, SPACE, "a"),
        ):
            with pytest.raises(SaverClosedError, match="the store of .* is not open"):
                await verb()
        async with store:
            await put(store, "b")
            with pytest.raises(SaverClosedError, match="open already"):
                await store.__aenter__()
    assert not saver_threads()


async def test_closing_finishes_started_calls(path: Path) -> None:
    """P7: a store that is closed during calls first completes them, in order."""
    store = SqliteStore(path)
    await store.__aenter__()
    await put(store, "a", ttl=10)
    got: list[Any] = []

    async def ask(work: Callable[[], Any]) -> None:
        got.append(await work())

    async with anyio.create_task_group() as group:
        async with held(store):
            group.start_soon(ask, lambda: store.abatch([PutOp(SPACE, "b", {}), GetOp(SPACE, "a")]))
            await turns()
            group.start_soon(ask, lambda: store.aget(SPACE, "a"))
            await turns()
            group.start_soon(store.__aexit__, None, None, None)
            await turns()
    (answers,) = [one for one in got if isinstance(one, list)]
    (item,) = [one for one in got if not isinstance(one, list)]
    assert answers[1].value == item.value == {"key": "a"}
    async with SqliteStore(path) as store:
        assert sorted(await keys(store)) == ["a", "b"]


async def test_late_calls_are_refused(store: SqliteStore) -> None:
    """Calls during closing raise an error with a store's message."""
    refusals: list[str] = []

    async def ask() -> None:
        try:
            await put(store, "a")
        except SaverClosedError as error:
            refusals.append(str(error))

    worker = store._worker
    assert worker is not None
    async with anyio.create_task_group() as group:
        async with held(store):
            worker._queue.put(None)
            group.start_soon(ask)
            await turns()
    assert len(refusals) == 1 and refusals[0].startswith("the store of ")


async def test_a_closed_loop_does_not_affect_others(store: SqliteStore) -> None:
    """P13: if a loop is closed while one of its tasks waits for a put, all other callers are served as before."""
    for rounds in (1, 5):
        loop = asyncio.new_event_loop()

        def leave(loop: asyncio.AbstractEventLoop = loop, rounds: int = rounds) -> None:
            task = loop.create_task(put(store, "a"))
            for _ in range(rounds):
                loop.call_soon(loop.stop)
                loop.run_forever()
            loop.close()
            task._log_destroy_pending = False  # asyncio would log it

        async with held(store):
            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
        await put(store, "b")
        assert await there(store, "b") == ["b"]


async def test_never_closed(path: Path) -> None:
    """A store that is freed without closing warns, and its thread ends."""
    store = SqliteStore(path)
    await store.__aenter__()
    await put(store, "a")
    worker = store._worker
    assert worker is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del store
        await warned(caught)
    assert [str(one.message) for one in caught if one.category is ResourceWarning][0].endswith("use it in 'async with'")
    await worker.close()
    assert not saver_threads()


async def test_cancelled_while_it_opens_or_closes(path: Path) -> None:
    """P7: at whatever moment it is cancelled, no thread is left, and the store can be opened again."""
    for rounds in range(8):
        async with anyio.create_task_group() as group:

            async def use() -> None:
                async with SqliteStore(path, ttl={"sweep_interval_minutes": 60}) as store:
                    assert [one.name for one in saver_threads() if one.name == f"SqliteStore {path}"]
                    await put(store, "a")

            group.start_soon(use)
            await turns(rounds)
            group.cancel_scope.cancel()
        assert not saver_threads()
        assert not [one for one in threading.enumerate() if "sweeper" in one.name]


def test_without_an_event_loop(path: Path) -> None:
    """A sync program opens it with open_sync, and uses the sync methods from any thread."""
    with open_sync(SqliteStore(path)) as store:
        store.put(SPACE, "a", {"n": 1})
        threads = [threading.Thread(target=store.put, args=(SPACE, str(number), {})) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.search(SPACE)) == 6
    with pytest.raises(SaverClosedError):
        store.get(SPACE, "a")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork() here")
def test_in_a_forked_child(path: Path) -> None:
    """A child of a process with an open store gets an error that says to open its own; the parent's store still
    works."""
    code = f"""if True:
        import os, warnings
        from checkpoint_savers import SaverClosedError, SqliteStore
        from pregel_async._api.sync_verbs import open_sync

        with open_sync(SqliteStore({str(path)!r}, ttl={{"sweep_interval_minutes": 60}})) as store:
            store.put(("a",), "k", {{}})
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking with threads
            child = os.fork()
            if not child:
                try:
                    store.get(("a",), "k")
                except SaverClosedError:
                    os._exit(7)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), store.get(("a",), "k").key)
    """
    ran = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("7 k\n", "")


def test_the_module_is_imported_on_demand() -> None:
    """Both packages export the same class."""
    assert module.SqliteStore is SqliteStore
