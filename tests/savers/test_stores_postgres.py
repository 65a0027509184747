"""PostgresStore: its table, which may share a schema with a saver's, other writers, broken connections, and closing."""

from __future__ import annotations

import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import psycopg_pool
import pytest

import checkpoint_savers
from checkpoint_savers import (
    CorruptCheckpointError,
    PostgresSaver,
    PostgresStore,
    SaverClosedError,
    StorageError,
    StorageLockedError,
    StorageReadOnlyError,
    UnsupportedFormatError,
    stores,
)
from checkpoint_savers.conformance import StoreConformance
from checkpoint_savers.conformance.caches.conformance import Clock
from checkpoint_savers.conformance.savers.suite import NOW, head_of, row, written
from checkpoint_savers.conformance.stores.suite import SPACE, OpenStore, facts, keys, put, there, value
from checkpoint_savers.postgres import outcomes
from checkpoint_savers.stores import GetOp, PutOp, SearchOp, postgres_rows
from pregel_async._api.sync_verbs import open_sync
from tests.helpers.postgres_tools import Pooler, Proxy, conninfo, empty, execute, new_schema, patience, pooler, unsynced
from tests.savers.dropped_objects import warned

pytestmark = pytest.mark.anyio


@pytest.fixture
def schema() -> Iterator[str]:
    """The name of a schema that does not exist."""
    with new_schema() as schema:
        yield schema


@pytest.fixture
def made(schema: str) -> str:
    """A schema with a store's table."""
    execute(PostgresStore.setup_script(schema=schema))
    return schema


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(made: str, clock: Clock) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(unsynced(), schema=made, clock=clock) as store:
        yield store


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if "Postgres" in one.name]


@asynccontextmanager
async def row_locked(schema: str, key: str) -> AsyncIterator[psycopg.Connection[Any]]:
    """Lock an item's row from another connection."""
    with psycopg.connect(conninfo()) as connection:
        connection.execute(f'SELECT 1 FROM "{schema}".pregel_items WHERE key = %s FOR UPDATE', (key.encode(),))
        yield connection


async def test_opening_creates_no_table(schema: str) -> None:
    """A store does not open without its table, and the error speaks of a store."""
    with pytest.raises(StorageError, match=r"there are no tables.*PostgresStore.setup_script"):
        await PostgresStore(unsynced(), schema=schema).__aenter__()
    plain: Any = PostgresStore(unsynced(), schema=schema)
    with pytest.raises(TypeError, match="PostgresStore is opened with 'async with'"), plain:
        pass
    assert execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema) == []
    assert not threads()


async def test_three_ways_to_create_the_table(schema: str) -> None:
    """The method, the argument, and the script work; a table that exists stays."""
    store = PostgresStore.from_conn_string(unsynced(), schema=schema)
    await store.setup()
    async with store:
        await put(store, "a")
        await store.setup()
    async with PostgresStore(unsynced(), schema=schema, setup=True) as store:
        assert await keys(store) == ["a"]
    execute(PostgresStore.setup_script(schema=schema, version=1))
    with new_schema() as other:
        execute(PostgresStore.setup_script(schema=other))
        async with PostgresStore(unsynced(), schema=other) as store:
            assert await keys(store) == []


@pytest.mark.parametrize("store_first", [True, False])
async def test_a_store_and_a_saver_share_a_schema(schema: str, store_first: bool) -> None:
    """Both may be in one schema, created in either order, and each uses its own tables."""
    makers: list[Any] = [PostgresStore, PostgresSaver]
    for maker in makers if store_first else makers[::-1]:
        await maker(conninfo(), schema=schema).setup()
    async with PostgresStore(unsynced(), schema=schema) as store, PostgresSaver(unsynced(), schema=schema) as saver:
        await put(store, "a")
        await written(saver, row(1))
        await saver.adelete_thread("t1")
        assert await keys(store) == ["a"]


async def test_both_are_created_at_the_same_moment(schema: str) -> None:
    """P13: stores and savers that set up a new schema at once cause each other no errors."""
    async with anyio.create_task_group() as group:
        for maker in (PostgresStore, PostgresSaver) * 4:
            group.start_soon(maker(conninfo(), schema=schema).setup)
    async with PostgresStore(unsynced(), schema=schema) as store, PostgresSaver(unsynced(), schema=schema) as saver:
        await put(store, "a")
        assert await head_of(saver) is None


async def test_foreign_tables(made: str) -> None:
    """P11: tables of another program or of a later version are refused and not changed."""
    execute(f'UPDATE "{made}".pregel_store_version SET version = 2')
    with pytest.raises(UnsupportedFormatError):
        await PostgresStore(unsynced(), schema=made, setup=True).__aenter__()
    execute(f'UPDATE "{made}".pregel_store_version SET version = 1')
    execute(f"ALTER TABLE \"{made}\".pregel_items ALTER COLUMN key TYPE text USING encode(key, 'hex')")
    with pytest.raises(CorruptCheckpointError, match=r"pregel_items\.key"):
        await PostgresStore(unsynced(), schema=made, setup=True).__aenter__()
    execute(f'DROP TABLE "{made}".pregel_store_version')
    with pytest.raises(CorruptCheckpointError, match="which no store has made"):
        await PostgresStore(unsynced(), schema=made, setup=True).__aenter__()
    assert not threads()


@pytest.mark.parametrize(
    "wrong", [{"busy_timeout": -1}, {"reconnect_timeout": float("nan")}, {"pool_size": 0}, {"schema": ""}]
)
def test_an_invalid_setting(wrong: dict[str, Any]) -> None:
    """It is refused when the store is created."""
    with pytest.raises(ValueError):
        PostgresStore("postgresql://localhost/app", **wrong)
    with pytest.raises(ValueError, match="not a connection string"):
        PostgresStore("postgresql://[")


async def test_a_search_uses_an_index(store: PostgresStore, made: str) -> None:
    """A page of one namespace is read in index order, and a search of a prefix reads its range; nothing scans the
    table."""
    await store.abatch([PutOp((f"{number % 50}",), str(number), {}) for number in range(5000)])
    execute(f'ANALYZE "{made}".pregel_items')
    rows = store._rows

    def plan(statement: bytes, *bound: object) -> str:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            found = connection.execute(b"EXPLAIN " + statement, bound).fetchall()
            return "\n".join(line for (line,) in found)

    start, end, now = b"7\0", b"7\0\xff", NOW + 1.0
    of_one = plan(rows._of_one, start, now, 10, 0)
    assert "Index Scan using pregel_items_by_age" in of_one and "Sort" not in of_one
    for statement, bound in (
        (rows._of_all, (start, end, now, 10, 0)),
        (rows._has_inner, (start, end)),
        (rows._spaces, (start, end, now, end, now, 100)),
        (rows._find, ([start], [b"7"], now)),
    ):
        assert "Seq Scan" not in plan(statement, *bound) and "Index" in plan(statement, *bound)


async def test_order_is_by_code_points(store: PostgresStore) -> None:
    """Whatever the database's collation, namespaces and keys sort as in Python."""
    names = ["a", "B", "b", "Z", "\x01", "\x7f", "é", "ß", "\uffff", "\U0001f600", "aa", "a b"]
    await store.abatch([PutOp((name,), "k", {}) for name in names] + [PutOp(("k",), name, {}) for name in names])
    assert await store.alist_namespaces() == sorted((name,) for name in [*names, "k"])
    assert await keys(store, ("k",)) == sorted(names)


async def test_many_namespaces(store: PostgresStore) -> None:
    """If there are more namespaces than one query reads, each is listed once, in order, by pages and by depth."""
    number = 2 * postgres_rows.SPACES + 5
    names = sorted((f"{n // 100}", f"{n:04}") for n in range(number))
    await store.abatch([PutOp(name, "k", {}) for name in names])
    assert await store.alist_namespaces(limit=number + 1) == names
    assert await store.alist_namespaces(offset=300, limit=3) == names[300:303]
    assert await store.alist_namespaces(max_depth=1) == [(str(n),) for n in range(6)]
    assert await store.alist_namespaces(suffix=(f"{number - 1:04}",)) == [names[-1]]


async def test_a_filter_reads_further_rows(store: PostgresStore) -> None:
    """Matches beyond the rows of one query are found, for each of two searches in one batch."""
    number = 3 * postgres_rows.SLICE
    await store.abatch([PutOp(SPACE, f"{n:04}", {"n": n, "odd": n % 2}) for n in range(number)])
    first, second, got = await store.abatch(
        [SearchOp(SPACE, {"odd": 1}, limit=5, offset=80), SearchOp((), {"n": number - 1}), GetOp(SPACE, "0000")]
    )
    assert [item.value["n"] for item in first] == list(range(161, 171, 2))
    assert [item.key for item in second] == [f"{number - 1:04}"]
    assert got.key == "0000"
    assert await keys(store, offset=number - 2) == [f"{number - 2:04}", f"{number - 1:04}"]


async def test_created_at_under_concurrent_writers(store: PostgresStore, made: str, clock: Clock) -> None:
    """If several stores put an item at the same time, it is created once, and keeps that creation time."""
    await put(store, "a")
    clock.now += 60
    async with PostgresStore(unsynced(), schema=made, clock=clock) as other:
        async with anyio.create_task_group() as group:
            for one in (store, other) * 10:
                group.start_soon(put, one, "a", "new")
        assert facts(await other.aget(SPACE, "a"))[2:] == (NOW, NOW + 60)
        assert facts(await other.aget(SPACE, "new"))[2:] == (NOW + 60, NOW + 60)


async def test_batches_do_not_deadlock(store: PostgresStore, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the same items lock them in the order of their keys, whatever the order of the operations."""
    await put(store, "0", "5", "9")
    write, begun = postgres_rows.StoreStatements.write, list[int]()

    async def counted(self: postgres_rows.StoreStatements, *args: Any) -> Any:
        begun.append(1)
        return await write(self, *args)

    monkeypatch.setattr(postgres_rows.StoreStatements, "write", counted)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    ops = [PutOp(SPACE, "0", {}), PutOp(SPACE, "5", None), PutOp(SPACE, "9", {})]
    async with PostgresStore(unsynced(), schema=made) as other, anyio.create_task_group() as group:
        async with row_locked(made, "5"):
            group.start_soon(store.abatch, ops)
            group.start_soon(other.abatch, ops[::-1])
            while len(execute(waiting, f"%{made}%")) < 2:
                await anyio.lowlevel.checkpoint()
    assert sorted(await keys(store)) == ["0", "9"]
    assert len(begun) == 2, "the server reported a deadlock"


async def test_another_connection_holds_a_lock(made: str, clock: Clock) -> None:
    """Reads work; a write raises after the busy timeout, nothing of its batch was done, and it can be repeated."""
    async with PostgresStore(unsynced(), schema=made, busy_timeout=0.05, clock=clock) as store:
        await put(store, "a", ttl=1)
        async with row_locked(made, "a"):
            assert await there(store, "a") == ["a"]
            for work in (lambda: put(store, "a"), lambda: store.adelete(SPACE, "a"), lambda: store.aget(SPACE, "a")):
                with pytest.raises(StorageLockedError) as caught:
                    await work()
                assert caught.value.retryable
            with pytest.raises(StorageLockedError):
                await store.abatch([PutOp(SPACE, "0", {}), PutOp(SPACE, "a", {})])
            clock.now += 120
            assert await store.asweep_ttl() == 0, "the locked item is skipped"
        assert await keys(store) == []
        assert await store.asweep_ttl() == 1


async def test_read_only(made: str, clock: Clock) -> None:
    """Items are read, even if a read should extend their lifetime; puts are refused."""
    async with PostgresStore(unsynced(), schema=made, clock=clock) as store:
        await put(store, "a", ttl=10)
    url = psycopg.conninfo.make_conninfo(conninfo(), options="-c default_transaction_read_only=on")
    async with PostgresStore(url, schema=made, clock=clock) as store:
        item = await store.aget(SPACE, "a")
        assert item is not None and item.value == {"key": "a"}
        assert [one.key for one in await store.asearch(SPACE, filter={"key": "a"})] == ["a"]
        with pytest.raises(StorageReadOnlyError):
            await put(store, "b")
        with pytest.raises(StorageReadOnlyError):
            await store.abatch([GetOp(SPACE, "a"), PutOp(SPACE, "a", None)])


@pytest.mark.parametrize("plan", ["lose the question", "lose the answer"])
@pytest.mark.parametrize("marker", ["INSERT INTO", "COMMIT"])
async def test_a_connection_breaks_while_it_writes(made: str, plan: Any, marker: str, clock: Clock) -> None:
    """P3, P4: whether the statement or the answer is lost, the put is done when it returns, and its results are
    right."""
    with Proxy(unsynced()) as proxy:
        async with PostgresStore(proxy.url, schema=made, clock=clock) as store:
            await put(store, "a")
            proxy.plan(plan, marker)
            clock.now += 60
            _, item = await store.abatch([PutOp(SPACE, "a", {"n": 2}), GetOp(SPACE, "a")])
            assert proxy.broke.is_set()
            assert facts(item)[2:] == (NOW, NOW)
            assert await value(store, "a") == {"n": 2}
            assert facts(await store.aget(SPACE, "a"))[2:] == (NOW, NOW + 60)


async def test_a_committed_put_is_not_repeated(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put whose answer was lost does not overwrite what another writer has put since."""
    was_committed = postgres_rows.was_committed

    async with PostgresStore(unsynced(), schema=made) as other:

        async def overtaken(*args: Any, **options: Any) -> bool:
            await other.aput(SPACE, "a", {"by": "other"})
            return await was_committed(*args, **options)

        monkeypatch.setattr(postgres_rows, "was_committed", overtaken)
        with Proxy(unsynced()) as proxy:
            async with PostgresStore(proxy.url, schema=made) as store:
                proxy.plan("lose the answer", "COMMIT\0")
                await store.aput(SPACE, "a", {"by": "first"})
                assert await value(store, "a") == {"by": "other"}


async def test_an_unreachable_server(made: str) -> None:
    """A store whose server cannot be reached says so; it also says where the outcome of a write is unknown."""
    with Proxy(unsynced()) as proxy:
        async with PostgresStore(proxy.url, schema=made, reconnect_timeout=30) as store:
            await put(store, "a")
            proxy.plan("lose the answer", "COMMIT\0")
            proxy.refuses = True
            with patience(store, 0.3):
                with pytest.raises(StorageError, match="whether it was stored is not known"):
                    await put(store, "b")
                with pytest.raises(StorageError, match="no connection to the server") as caught:
                    await there(store, "a")
            assert "not known" not in str(caught.value)
            proxy.refuses = False
            assert await there(store, "a", "b") == ["a", "b"]


async def test_a_number_that_a_crashed_server_uses_again(
    made: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: a put or a deletion that was lost in a crash of the server, which gave its number to another transaction, is
    made again."""

    monkeypatch.setattr(outcomes, "_STATUS", b"SELECT 'committed' WHERE %b::text IS NOT NULL")
    with Proxy(unsynced()) as proxy:
        async with PostgresStore(proxy.url, schema=made, clock=clock) as store:
            await put(store, "old")
            writes = [lambda: put(store, "new"), lambda: store.aput(SPACE, "old", {"n": 2})]
            for write in (*writes, lambda: store.adelete(SPACE, "old")):
                clock.now += 60
                proxy.plan("lose the question", "COMMIT\0")
                await write()
                assert proxy.broke.is_set()
            assert await keys(store) == ["new"]


async def test_no_connection_is_held_between_batches(made: str) -> None:
    """A pool with one connection serves a search that is followed by puts of many tasks."""
    async with PostgresStore(unsynced(), schema=made, pool_size=1) as store:
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(put, store, str(number))
                group.start_soon(partial(store.asearch, (), filter={"key": "1"}))
        pool = store._source.pool
        assert pool is not None
        assert len(await keys(store)) == 10
        assert pool.get_stats()["pool_size"] == pool.get_stats()["pool_available"] == 1


@pytest.fixture(scope="module")
def behind() -> Iterator[Pooler]:
    with pooler(conninfo()) as behind:
        yield behind


@pytest.fixture(scope="module")
def pooled_schema() -> Iterator[str]:
    with new_schema() as schema:
        execute(PostgresStore.setup_script(schema=schema))
        yield schema


class TestBehindAPooler(StoreConformance):
    """In transaction mode the store neither relies on a session's state nor leaves any."""

    @pytest.fixture
    def open_store(self, behind: Pooler, pooled_schema: str) -> OpenStore:
        empty(pooled_schema, "items")
        return partial(PostgresStore, behind.url, schema=pooled_schema, busy_timeout=60)


async def test_a_store_that_is_not_open(made: str) -> None:
    """Before it is opened and after it is closed, calls raise SaverClosedError with a store's message; it may be
    opened again, but not twice at once."""
    store = PostgresStore(unsynced(), schema=made)
    for _ in range(2):
        verbs: list[Callable[[], Any]] = [
            lambda: put(store, "a"),
            lambda: store.aget(SPACE, "a"),
            lambda: store.asweep_ttl(),
            lambda: anyio.to_thread.run_sync(store.get, SPACE, "a"),
        ]
        for verb in verbs:
            with pytest.raises(SaverClosedError, match="the store is not open.*PostgresStore"):
                await verb()
        async with store:
            await put(store, "b")
            with pytest.raises(SaverClosedError, match="open already"):
                await store.__aenter__()
    assert not threads()


async def test_closing_finishes_started_calls(made: str) -> None:
    """P7: a store that is closed during a call first completes the call."""
    store = PostgresStore(unsynced(), schema=made, busy_timeout=30)
    await store.__aenter__()
    await put(store, "a")
    async with anyio.create_task_group() as group:
        async with row_locked(made, "a"):
            group.start_soon(store.aput, SPACE, "a", {"n": 2})
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
            while not execute(waiting, f"%{made}%"):
                await anyio.lowlevel.checkpoint()
            group.start_soon(store.__aexit__, None, None, None)
            await anyio.lowlevel.checkpoint()
    async with store:
        assert await value(store, "a") == {"n": 2}


async def test_never_closed(made: str) -> None:
    """A store that is freed without closing warns, and its thread, which bears its name, ends."""
    store = PostgresStore(unsynced(), schema=made)
    await store.__aenter__()
    assert [name.partition(" ")[0] for name in threads()] == ["PostgresStore"]
    await put(store, "a")
    driver = store._driver
    assert driver is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del store
        await warned(caught)
    assert [str(one.message) for one in caught if one.category is ResourceWarning][0].endswith("use it in 'async with'")
    await driver.close()
    assert not threads()


async def test_a_users_pool(made: str, anyio_backend_name: str) -> None:
    """The store uses the pool on its loop and leaves it open; the sync methods work from threads."""
    if anyio_backend_name == "trio":
        pytest.skip("such a pool is asyncio's")
    async with psycopg_pool.AsyncConnectionPool(conninfo(), min_size=1, max_size=2, open=False) as pool:
        async with PostgresStore(pool, schema=made) as store:
            await put(store, "a")
            await anyio.to_thread.run_sync(store.put, SPACE, "b", {})
            assert len(await store.asearch(SPACE, filter={"key": "a"})) == 1
        assert not threads() and not pool.closed
        async with pool.connection() as connection:
            assert not connection.autocommit


def test_without_an_event_loop(made: str) -> None:
    """A sync program opens it with open_sync, and uses the sync methods from any thread."""
    with open_sync(PostgresStore(unsynced(), schema=made)) as store:
        workers = [threading.Thread(target=store.put, args=(SPACE, str(number), {})) for number in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(store.search(SPACE)) == 5


def test_the_module_is_imported_on_demand() -> None:
    """Both packages export the same class; a program without the driver does not import it."""
    assert stores.PostgresStore is checkpoint_savers.PostgresStore is PostgresStore
    assert "PostgresStore" not in checkpoint_savers.__all__ + stores.__all__
