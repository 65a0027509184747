"""PostgresSaver when connections break, are missing, or belong to the user's pool (P3, P4, P6, P13)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import psycopg.rows
import psycopg_pool
import pytest

from checkpoint_savers import PostgresSaver, SaverClosedError, StorageError, ThreadBusyError
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    NOW,
    change,
    cid,
    commit,
    elsewhere,
    event,
    everything,
    head_of,
    here,
    in_threads,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.records import Rewrite
from tests.helpers.postgres_tools import ENV, Plan, Proxy, conninfo, free_port, patience, unsynced
from tests.savers.dropped_objects import warned

pytestmark = pytest.mark.anyio

LOST: tuple[Plan, ...] = ("lose the question", "lose the answer")
"""The ways to lose a statement when its connection breaks: it never arrived, or it was executed and its answer was lost."""


@pytest.fixture
async def saver(proxy: Proxy, schema: str) -> AsyncIterator[PostgresSaver]:
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, reconnect_timeout=30) as saver:
        yield saver


@pytest.fixture
async def other(schema: str) -> AsyncIterator[PostgresSaver]:
    """A saver with a direct connection to the server."""
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        yield saver


@pytest.mark.parametrize("plan", LOST)
async def test_a_write_whose_connection_breaks(
    plan: Plan, saver: PostgresSaver, other: PostgresSaver, proxy: Proxy
) -> None:
    """P3, P4: whether the broken connection's statement was executed or not, each write is stored once when it
    returns, and it returns without an error."""
    lease = await take(saver)
    writes = [
        commit(row(1), records=[record(1, "a")], events=[event(1)]),
        commit(row(2, 1, base=1), head=1, records=[record(2, "b")], clears=[record(1, "a")], events=[event(2)]),
        commit(events=[event(2, 2, "tail")]),
        commit(head=2, moves=("", 1)),
        commit(records=[record(1, "c")]),
        commit(head=1, moves=("", 1), others=[change(row(4, ns="child")), change(row(5, ns="new"))]),
    ]
    for one in writes:
        proxy.plan(plan, "pregel_threads")
        await saver.commit(lease, one)
        assert proxy.broke.is_set()
    proxy.plan(plan, "pregel_threads")
    await saver.record(lease, [record(1, "d", 1)], expires_at=LATER)
    proxy.plan(plan, "pregel_threads")
    await saver.renew(lease, expires_at=LATER + 7)
    assert proxy.broke.is_set()
    chain = await other.read("t")
    assert chain is not None and chain.head == cid(1) and [one.task_id for one in chain.records] == ["c", "d"]
    assert [one.key[0] for one in await other.events("t")] == [cid(1), cid(2), cid(2)]
    assert len(await other.scan("t", None)) == 4
    with pytest.raises(ThreadBusyError) as caught:
        await take(other, run="run-2")
    assert caught.value.expires_at == LATER + 7
    proxy.plan(plan, "pregel_threads")
    await saver.commit(lease, commit(row(3, 1), head=1, releases=True))
    assert proxy.broke.is_set()
    again = await take(other, run="run-2")
    assert (again.epoch, again.newest) == (2, cid(5))


@pytest.mark.parametrize("plan", LOST)
async def test_an_acquire_or_release_whose_connection_breaks(
    plan: Plan, saver: PostgresSaver, other: PostgresSaver, proxy: Proxy
) -> None:
    """P6: a lease is held when `acquire` returns; a released thread is free, and leaves no trace if it is empty."""
    proxy.plan(plan, "pregel_threads")
    lease = await take(saver)
    assert proxy.broke.is_set()
    with pytest.raises(ThreadBusyError):
        await take(other, run="run-2")
    await saver.renew(lease, expires_at=LATER)
    proxy.plan(plan, "pregel_threads")
    await saver.release(lease)
    assert proxy.broke.is_set()
    assert await other.threads() == ()
    lease = await take(saver)
    proxy.plan(plan, "pregel_threads")
    await saver.commit(lease, commit(records=[record(1, "a")], releases=True))
    assert proxy.broke.is_set()
    assert await other.threads() == ()


@pytest.mark.parametrize("plan", LOST)
@pytest.mark.parametrize("at", ["pregel_", "COMMIT\0"])
async def test_upkeep_whose_connection_breaks(
    at: str, plan: Plan, saver: PostgresSaver, other: PostgresSaver, proxy: Proxy
) -> None:
    """P3: if the connection breaks at the first statement or at COMMIT, before or after its execution, the change is
    made once, and the call returns without an error."""
    await written(other, row(1), row(2, 1, base=1), row(3, 2, base=1))
    dump = await other.dump("t")
    assert dump is not None
    lease = await take(saver)
    proxy.plan(plan, at)
    await saver.rewrite(lease, Rewrite(gone=(("", cid(3)),), heads={"": cid(2)}, pins={("", cid(1)): True}))
    assert proxy.broke.is_set()
    assert [(one.step + 1, one.pinned) for one in await other.scan("t", "")] == [(2, False), (1, True)]
    proxy.plan(plan, at)
    await saver.erase(lease)
    assert proxy.broke.is_set()
    assert await other.threads() == ()
    lease = await take(saver)
    proxy.plan(plan, at)
    await saver.load(lease, dump)
    assert proxy.broke.is_set()
    assert await other.dump("t") == dump
    await saver.release(lease)
    proxy.plan(plan, at)
    await saver.adelete_thread("t")
    assert proxy.broke.is_set()
    assert await other.threads() == ()


async def test_readers_whose_connections_break(saver: PostgresSaver, other: PostgresSaver, proxy: Proxy) -> None:
    """P4: reads are repeated."""
    await written(other, row(1), row(2, 1, base=1))
    before = await everything(other), await other.dump("t"), await other.threads()
    for plan in LOST:
        for _ in range(4):
            proxy.plan(plan, "pregel_")
        assert (await everything(saver), await saver.dump("t"), await saver.threads()) == before


async def test_a_batch_whose_connection_breaks(saver: PostgresSaver, other: PostgresSaver, proxy: Proxy) -> None:
    """P4: if the answer is lost, all callers of the batch learn that their writes are stored, and nothing is stored
    twice."""
    leases = [await take(saver, f"t{number}") for number in range(30)]
    for step in (1, 2, 3):
        proxy.plan("lose the answer", "pregel_threads")
        proxy.plan("lose the answer", "pregel_threads")
        async with anyio.create_task_group() as group:
            for lease in leases:
                one = commit(row(step, step - 1 or None), head=step - 1 or None, events=[event(step)])
                group.start_soon(saver.commit, lease, one)
    for lease in leases:
        assert await head_of(other, lease.thread_id) == cid(3)
        assert len(await other.events(lease.thread_id)) == 3


async def test_a_delayed_statement_changes_nothing(saver: PostgresSaver, other: PostgresSaver, proxy: Proxy) -> None:
    """P3, P5: a statement that the server executes long after its connection broke, and after later statements of
    the same lease, changes nothing."""
    lease = await take(saver)
    await saver.commit(lease, commit(row(1)))
    for late in (
        saver.record(lease, [record(1, "a", frame=b"late")], expires_at=LATER + 1),
        saver.commit(lease, commit(row(2, 1), head=1)),
        saver.commit(lease, commit(head=2, moves=("", 1), records=[record(1, "b")])),
        saver.renew(lease, expires_at=LATER + 99),
    ):
        proxy.plan("deliver late", "pregel_threads")
        await late
        assert proxy.broke.is_set()
        await saver.commit(lease, commit(clears=[record(1, "a"), record(1, "b")]))
        before = await everything(other)
        proxy.deliver()
        assert await everything(other) == before
    with pytest.raises(ThreadBusyError) as caught:
        await take(other, run="run-2")
    assert caught.value.expires_at == LATER


@pytest.mark.parametrize("ns", ["", "child"])
async def test_taken_over_while_the_server_was_away(
    ns: str, saver: PostgresSaver, other: PostgresSaver, proxy: Proxy
) -> None:
    """P4, P6: if the lease is taken over before the owner could check whether its superstep was stored, the owner
    learns that it was; if it was not, that the lease is lost."""
    for plan in LOST:
        lease = await take(saver, plan)
        await saver.commit(lease, commit(row(1)))
        what = commit(others=[change(row(2, ns=ns))]) if ns else commit(row(2, 1), head=1)
        results: list[BaseException | None] = []

        async def last(lease: Any = lease, results: list[BaseException | None] = results) -> None:
            try:
                await saver.commit(lease, what)
            except ThreadBusyError as error:
                results.append(error)
            else:
                results.append(None)

        proxy.refuses = True
        proxy.plan(plan, "pregel_threads")
        async with anyio.create_task_group() as group:
            group.start_soon(last)
            await anyio.to_thread.run_sync(proxy.broke.wait)
            proxy.cut()
            head = await head_of(other, plan, ns)
            winner = await other.acquire(plan, elsewhere("run-2"), now=LATER, expires_at=LATER + 30)
            number = 2 if head == cid(2) and not ns else 1
            await other.commit(winner, commit(row(7, number), head=number))
            proxy.refuses = False
        (result,) = results
        if plan == "lose the answer":
            assert head == cid(2) and result is None
        else:
            assert (
                head == (None if ns else cid(1))
                and isinstance(result, ThreadBusyError)
                and result.lost
                and "run-2" in str(result)
            )
        assert await head_of(other, plan) == cid(7)


async def test_idle_connections_that_broke(saver: PostgresSaver, proxy: Proxy) -> None:
    """Pooled connections that broke while they were idle are detected and replaced."""
    lease = await take(saver)
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(saver.read, "t")
    for step in range(1, 4):
        proxy.cut()
        await saver.commit(lease, commit(row(step, step - 1 or None), head=step - 1 or None))
        proxy.cut()
        assert await head_of(saver) == cid(step)


async def test_no_server_when_the_saver_is_opened() -> None:
    """Opening fails at once, and leaves nothing running."""
    url = f"postgresql://stranger:secret@127.0.0.1:{free_port()}/nowhere"
    with pytest.raises(StorageError, match="no connection") as caught:
        async with PostgresSaver.from_conn_string(url, reconnect_timeout=60):
            pass
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert "nowhere" in str(caught.value) and "secret" not in str(caught.value)
    assert not [one for one in threading.enumerate() if "PostgresSaver" in one.name]
    with pytest.raises(StorageError, match="no connection"):
        await PostgresSaver.from_conn_string(url).setup()


async def test_the_server_goes_away(proxy: Proxy, schema: str, other: PostgresSaver) -> None:
    """P4: after `reconnect_timeout` a call raises, says that the server is away and, if a transaction was in
    progress, that its outcome is unknown; when the server is back, the same saver works."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, pool_size=1, reconnect_timeout=30) as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        proxy.refuses = True
        proxy.plan("lose the answer", "pregel_threads")
        with patience(saver, 0.3):
            with pytest.raises(StorageError, match="could not be reached|had no connection") as caught:
                await saver.commit(lease, commit(row(2, 1), head=1))
            assert "is not known" in str(caught.value)
            proxy.cut()
            for call in (
                saver.read("t"),
                saver.renew(lease, expires_at=LATER),
                saver.acquire("u", here("run-2"), now=NOW, expires_at=LATER),
            ):
                with pytest.raises(StorageError, match="could not be reached|had no connection"):
                    await call
        proxy.refuses = False
        assert await head_of(saver) == cid(2) == await head_of(other)
        await saver.commit(lease, commit(row(3, 2), head=2))


async def test_a_pool_that_is_too_small(schema: str) -> None:
    """The error says that all connections are in use, and not that the server is away."""
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema, pool_size=1, reconnect_timeout=30) as saver:
        assert saver._source.pool is not None and saver._open is not None
        pool, held = saver._source.pool, threading.Event()
        go = asyncio.Event()

        async def lease() -> None:
            async with pool.connection():
                held.set()
                await go.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(saver._open.driver.run, lease)
            await anyio.to_thread.run_sync(held.wait)
            with patience(saver, 0.3), pytest.raises(StorageError, match="all are in use"):
                await saver.read("nothing")

            async def let_go() -> None:
                go.set()

            await saver._open.driver.run(let_go)
        assert await saver.read("nothing") is None


async def test_errors_of_the_server(schema: str) -> None:
    """Each error says what is wrong and what to do, and has psycopg's error as its cause."""
    readonly = psycopg.conninfo.make_conninfo(conninfo(), options="-c default_transaction_read_only=on")
    async with PostgresSaver.from_conn_string(readonly, schema=schema) as saver:
        with pytest.raises(StorageError, match="read-only") as caught:
            await take(saver)
        assert isinstance(caught.value.__cause__, psycopg.errors.ReadOnlySqlTransaction)
        assert await saver.read("nothing") is None
    hasty = psycopg.conninfo.make_conninfo(conninfo(), options="-c statement_timeout=1000")
    async with PostgresSaver.from_conn_string(hasty, schema=schema) as saver:

        async def wait(cursor: Any) -> None:
            await cursor.execute("SELECT pg_sleep(60)")

        with pytest.raises(StorageError, match="cancelled the statement"):
            await saver._run(wait)


def test_an_invalid_connection_argument() -> None:
    """An invalid argument is refused when the saver is created."""
    for wrong in (
        {"conn_string": "postgresql://[/x"},
        {"conn_string": "no such=thing"},
        {"listen": "no such=thing"},
        {"pool_size": 0},
        {"writers": 0},
        {"busy_timeout": -1},
        {"reconnect_timeout": float("nan")},
        {"schema": ""},
    ):
        with pytest.raises(ValueError):
            PostgresSaver.from_conn_string(**{"conn_string": conninfo(), **wrong})


@pytest.fixture
def asyncio_only(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("a pool of psycopg's is opened on asyncio")


@pytest.mark.usefixtures("asyncio_only")
async def test_a_users_pool(schema: str) -> None:
    """A user's pool serves callers on other loops and threads, asyncio and trio; its connections are returned
    unchanged; and the saver does not close the pool."""
    options = {"row_factory": psycopg.rows.dict_row, "prepare_threshold": 0}
    async with psycopg_pool.AsyncConnectionPool(conninfo(), kwargs=options, min_size=2, max_size=4, open=False) as pool:
        async with PostgresSaver(pool, schema=schema) as saver:
            await written(saver, row(1), thread="own loop")

            async def elsewhere_too(number: int) -> None:
                await written(saver, row(1), row(2, 1, base=1), thread=f"t{number}")
                assert await head_of(saver, f"t{number}") == cid(2)

            await in_threads(*(partial(elsewhere_too, number) for number in range(8)))
            assert not [one for one in threading.enumerate() if "PostgresSaver" in one.name]
        assert not pool.closed
        async with pool.connection() as connection:
            assert not connection.autocommit
            cursor = await connection.execute("SELECT count(*) AS n FROM pg_prepared_statements")
            assert await cursor.fetchone() == {"n": 1}, "the user's own statement, and none of the saver's"
        with pytest.raises(SaverClosedError):
            await saver.read("t")
        async with saver:
            assert await head_of(saver, "own loop") == cid(1)


@pytest.mark.usefixtures("asyncio_only")
async def test_a_users_pool_that_is_not_open(schema: str) -> None:
    """The error says that the pool is not open, also if it is closed while the saver is open."""
    pool = psycopg_pool.AsyncConnectionPool(conninfo(), open=False, min_size=1)
    with pytest.raises(SaverClosedError, match="not open"):
        async with PostgresSaver(pool, schema=schema):
            pass
    await pool.open()
    async with PostgresSaver(pool, schema=schema) as saver:
        await pool.close()
        with pytest.raises(SaverClosedError, match="not open"):
            await saver.read("t")
        with pytest.raises(SaverClosedError, match="not open"):
            await take(saver)


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
async def test_another_encoding_of_connections(
    schema: str, encoding: str, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    """P11: the saver's own connections can transfer ids with any characters, whatever encoding the environment or
    the connection string sets; a user's pool that cannot is refused when the saver is opened."""
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    url = f"{conninfo()}{'&' if '?' in conninfo() else '?'}client_encoding={encoding}"
    for own in (conninfo(), url):
        async with PostgresSaver(own, schema=schema) as saver:
            await saver.release(await take(saver, "日本"))
            assert await saver.read("日本") is None
    if anyio_backend_name == "trio":
        return  # psycopg pools need asyncio
    async with psycopg_pool.AsyncConnectionPool(url, open=False, min_size=1) as pool:
        with pytest.raises(StorageError, match="client_encoding=UTF8"):
            async with PostgresSaver(pool, schema=schema):
                pass


async def test_a_users_pool_away_from_its_loop(schema: str, anyio_backend_name: str) -> None:
    """On trio a user's pool has no loop: opening a saver is refused with an error that says so."""
    if anyio_backend_name != "trio":
        pytest.skip("on asyncio it may be the pool's loop")

    class Acquired(psycopg_pool.AsyncConnectionPool[Any]):
        closed = False

    pool = Acquired.__new__(Acquired)
    pool.conninfo = conninfo()
    with pytest.raises(SaverClosedError, match="loop of asyncio"):
        async with PostgresSaver(pool, schema=schema):
            pass


def test_the_loop_of_a_users_pool_ends(schema: str) -> None:
    """Callers on other loops get an error, whatever they were doing, and so do later callers; no call waits for
    ever."""
    asked = threading.Event()
    savers: list[PostgresSaver] = []
    errors: list[type[BaseException]] = []

    async def sleep(cursor: Any) -> None:
        asked.set()
        await cursor.execute("SELECT pg_sleep(60)")

    async def caller() -> None:
        for _ in range(2):
            try:
                await savers[0]._run(sleep)
            except Exception as error:
                errors.append(type(error))
        await savers[0].__aexit__(None, None, None)

    async def owner() -> None:
        async with psycopg_pool.AsyncConnectionPool(conninfo(), min_size=1, open=False) as pool:
            savers.append(await PostgresSaver(pool, schema=schema).__aenter__())
            thread.start()
            await asyncio.to_thread(asked.wait)
            raise RuntimeError("the program ends here")

    thread = threading.Thread(target=anyio.run, args=(caller,))
    with pytest.raises(RuntimeError, match="ends here"):
        asyncio.run(owner())
    thread.join(30)
    assert not thread.is_alive()
    assert errors == [SaverClosedError] * 2


def test_a_program_that_never_closes_ends(schema: str) -> None:
    """The saver's thread does not keep the interpreter alive, and acknowledged writes are stored."""
    code = """if True:
        import asyncio, sys
        from checkpoint_savers import PostgresSaver
        from checkpoint_savers.conformance.savers.suite import row, written

        async def main():
            global saver
            saver = await PostgresSaver.from_conn_string(sys.argv[1], schema=sys.argv[2]).__aenter__()
            await written(saver, row(1), thread="never closed")

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", code, conninfo(), schema], check=True, env=ENV, timeout=60)

    async def head() -> object:
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
            return await head_of(saver, "never closed")

    assert anyio.run(head) == cid(1)


def test_after_fork(schema: str) -> None:
    """In a forked child no loop serves the saver: a call raises an error instead of waiting, and the parent's saver
    still works."""
    code = """if True:
        import asyncio, os, sys, warnings
        from checkpoint_savers import SaverClosedError, PostgresSaver
        from checkpoint_savers.conformance.savers.suite import head_of, row, written

        warnings.simplefilter("ignore")  # Python 3.12 and later warn of fork() in a process with threads, which this test is about
        saver = PostgresSaver.from_conn_string(sys.argv[1], schema=sys.argv[2])

        async def use():
            try:
                await saver.read("forked")
            except SaverClosedError:
                await saver.__aexit__(None, None, None)
                async with saver:
                    return await head_of(saver, "forked") is not None
            return False

        async def main():
            await saver.__aenter__()
            await written(saver, row(1), thread="forked")

        async def end():
            assert await head_of(saver, "forked") is not None
            await saver.__aexit__(None, None, None)

        asyncio.run(main())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if asyncio.run(use()) else 2
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asyncio.run(end())
        raise SystemExit(status)
    """
    subprocess.run([sys.executable, "-c", code, conninfo(), schema], check=True, env=ENV, timeout=60)


async def test_a_saver_that_is_never_closed(schema: str) -> None:
    """The saver warns when it is freed, and its thread ends."""
    saver = await PostgresSaver.from_conn_string(unsynced(), schema=schema).__aenter__()
    await head_of(saver, "nothing")
    (thread,) = [one for one in threading.enumerate() if "PostgresSaver" in one.name]
    with pytest.warns(ResourceWarning, match="never closed") as caught:
        del saver
        await warned(caught)
    await anyio.to_thread.run_sync(thread.join)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_another_isolation_level_by_default(level: str, schema: str) -> None:
    """P3, P6: if a database's default isolation level is stricter, the server aborts conflicting transactions: the
    saver repeats them, without an error."""
    strict = psycopg.conninfo.make_conninfo(
        conninfo(), options=f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    )
    async with PostgresSaver.from_conn_string(strict, schema=schema, writers=3) as one:
        async with PostgresSaver.from_conn_string(strict, schema=schema, writers=3) as other:

            async def count(saver: PostgresSaver, thread: str, run: str) -> None:
                done = 0
                while done < 4:
                    try:
                        lease = await take(saver, thread, f"{run} {done}")
                    except ThreadBusyError:
                        await anyio.lowlevel.checkpoint()
                        continue
                    head = await head_of(saver, thread)
                    last = 0 if head is None else int(head.split("-")[0])
                    await saver.commit(lease, commit(row(last + 1, last or None), head=last or None))
                    await saver.record(lease, [record(last + 1, "a")], expires_at=LATER)
                    await saver.release(lease)
                    done += 1

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(count, one, f"{level}{number}", "run-1")
                    group.start_soon(count, other, f"{level}{number}", "run-2")
            for number in range(8):
                assert len(await one.scan(f"{level}{number}", "")) == 8
                await one.adelete_thread(f"{level}{number}")


def test_without_psycopg() -> None:
    """The error names the missing extra, and nothing else needs it."""
    code = """if True:
        import sys
        sys.modules["psycopg"] = None
        from checkpoint_savers import *
        try:
            from checkpoint_savers import PostgresSaver
        except ImportError as error:
            assert "pregel-async[postgres]" in str(error), error
        else:
            raise SystemExit("imported")
    """
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=ENV)
