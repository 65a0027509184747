"""`PostgresRuns` when backends are killed, connections break, and transactions meet: whole or not at all, once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import psycopg.rows
import pytest
from msgspec.structs import replace

from checkpoint_savers import PostgresSaver, StorageError, StorageFullError, StorageLockedError, ThreadBusyError
from checkpoint_savers.conformance.runs.suite import SUCCESS, request, take_run
from checkpoint_savers.conformance.savers.suite import LATER, cid, commit, head_of, here, row
from checkpoint_savers.postgres import outcomes, run_transactions
from checkpoint_savers.postgres.connections import Connection
from checkpoint_savers.postgres.writing import LeasedWrite
from checkpoint_savers.records import Commit, Lease
from checkpoint_savers.runs.decisions import Changes, Found, WantedLease
from checkpoint_savers.runs.rows import RunRow, RunThreadRow
from tests.helpers.postgres_tools import Plan, Proxy, conninfo, empty, execute, patience, unsynced

pytestmark = pytest.mark.anyio


@pytest.fixture
async def saver(proxy: Proxy, schema: str) -> AsyncIterator[PostgresSaver]:
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, reconnect_timeout=30) as saver:
        yield saver


async def acquire(saver: PostgresSaver, thread_id: str = "t") -> Lease:
    return await saver.acquire(thread_id, here("worker"), now=saver.clock(), expires_at=LATER)


async def taken(saver: PostgresSaver, thread_id: str) -> Lease:
    """Start runs "a" and "b" of a thread and take the first one. Return the lease."""
    await saver.runs.start(thread_id, request(f"{thread_id}-a"))
    await saver.runs.start(thread_id, request(f"{thread_id}-b"))
    return (await take_run(saver, 1, at=thread_id)).lease


async def start(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    asked = request(f"{thread_id}-new", multitask="interrupt", metadata={"n": 1})
    return lambda: saver.runs.start(thread_id, asked, metadata={"user": "ada"})


async def start_in_a_new_thread(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    return lambda: saver.runs.start(thread_id, request(f"{thread_id}-new"), metadata={"user": "ada"}, is_new=True)


async def start_and_take_in_a_new_thread(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    wants = WantedLease(here("worker"), saver.clock(), LATER)

    async def act() -> RunRow:
        asked = request(f"{thread_id}-new", metadata={"n": 1})
        started = await saver.runs.start_and_take(thread_id, asked, wants, worker="w", is_new=True)
        assert started.taken is not None
        return started.taken.run

    return act


async def start_again(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    await taken(saver, thread_id)
    return await start(saver, thread_id)


async def cancel(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    await taken(saver, thread_id)
    return lambda: saver.runs.cancel(f"{thread_id}-b")


async def take(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    await saver.runs.start(thread_id, request(f"{thread_id}-a"))

    async def act() -> RunRow:
        return (await take_run(saver, 1, at=thread_id)).run

    return act


async def begin(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    lease = await taken(saver, thread_id)
    return lambda: saver.runs.begin(lease, f"{thread_id}-a", commit(row(1), metadata={"from": "commit"}))


async def begin_in_a_transaction(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    """As `begin`, but by the transaction that locks and reads the run's rows."""
    work = await begin(saver, thread_id)
    for lease in saver._held_leases.values():
        saver.runs.forget(lease)
    return work


async def finish(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    lease = await taken(saver, thread_id)
    return lambda: saver.runs.end(lease, f"{thread_id}-a", SUCCESS, commit(row(1)))


async def end(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    lease = await taken(saver, thread_id)
    return lambda: saver.runs.end(lease, f"{thread_id}-a", SUCCESS)


async def give_back(saver: PostgresSaver, thread_id: str) -> Callable[[], Awaitable[Any]]:
    lease = await taken(saver, thread_id)
    return lambda: saver.runs.give_back(lease, f"{thread_id}-a")


CALLS = (start, start_again, cancel, take, begin_in_a_transaction, end, give_back)


async def stored(saver: PostgresSaver, thread_id: str) -> tuple[object, ...]:
    """All that is stored of a thread, without times and ids of the thread."""
    runs = [await saver.runs.get_run(f"{thread_id}-{name}") for name in ("a", "b", "new")]
    thread = await saver.runs.get_thread(thread_id)
    facts = [(run.status, run.seq, run.attempt, run.stalls, run.begun, run.cancel) for run in runs if run is not None]
    (header,) = [one for one in await saver.threads() if one.thread_id == thread_id] or [None]
    return (
        facts,
        thread and (thread.status, thread.activation, thread.activation_no, thread.runs, thread.pending, thread.values),
        header and (header.epoch, header.owner is None, header.head, header.metadata),
    )


def facts_of(result: object) -> object:
    return (result.run_id[-1], result.status, result.attempt) if isinstance(result, RunRow) else result


class Killer:
    """Ends the backend of a transaction of runs before or after its statement with some number, once."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at = at
        self.after = after
        self.count = 0
        self.killed = False

    def cursor(
        self, connection: Connection, base: type[psycopg.AsyncCursor[Any]] = psycopg.AsyncCursor
    ) -> psycopg.AsyncCursor[Any]:
        killer = self

        class Cursor(base):
            async def execute(self, *args: Any, **options: Any) -> Any:
                number, killer.count = killer.count, killer.count + 1
                strikes = number == killer.at and not killer.killed
                if strikes and not killer.after:
                    killer.kill(connection)
                done = await super().execute(*args, **options)
                if strikes and killer.after:
                    killer.kill(connection)
                return done

        return Cursor(connection, row_factory=psycopg.rows.tuple_row)

    def client_cursor(self, connection: Connection) -> psycopg.AsyncCursor[Any]:
        return self.cursor(connection, psycopg.AsyncClientCursor)

    def kill(self, connection: Connection) -> None:
        self.killed = True
        execute("SELECT pg_terminate_backend(%s, 10000)", connection.info.backend_pid)


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.parametrize("call", CALLS)
async def test_a_backend_that_is_killed_at_each_statement(
    call: Callable[[PostgresSaver, str], Awaitable[Callable[[], Awaitable[Any]]]],
    saver: PostgresSaver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3, P4: each change of runs is stored once, if its server process ends before or after any of its statements."""
    # Without a pipeline, each statement is a round trip, so that each can be the last one that is executed.
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    expected = facts_of(await (await call(saver, "right"))()), await stored(saver, "right")
    at, kills = 0, 0
    while True:
        for after in (False, True):
            name = f"t{at}{after}"
            work = await call(saver, name)
            killer = Killer(at, after=after)
            with monkeypatch.context() as patch:
                patch.setattr(run_transactions, "new_cursor", killer.cursor)
                patch.setattr(run_transactions, "new_client_cursor", killer.client_cursor)
                found = facts_of(await work())
            assert (found, await stored(saver, name)) == expected, (at, after)
            kills += killer.killed
        if not killer.killed:
            break
        at += 1
    assert kills >= 6


LOST: tuple[Plan, ...] = ("lose the question", "lose the answer")


@pytest.mark.parametrize("plan", LOST)
@pytest.mark.parametrize("at", ["pregel_run_threads", "COMMIT\0"])
async def test_a_connection_that_breaks(plan: Plan, at: str, saver: PostgresSaver, proxy: Proxy) -> None:
    """P3, P4: a round trip is lost before or after its execution, that of COMMIT too: the change is stored once, and
    the call returns its result."""
    for call in CALLS:
        expected = facts_of(await (await call(saver, "right"))()), await stored(saver, "right")
        work = await call(saver, "t")
        proxy.plan(plan, at)
        found = facts_of(await work())
        assert proxy.broke.is_set()
        assert (found, await stored(saver, "t")) == expected, call
        empty(saver.schema)


async def test_a_number_that_a_crashed_server_uses_again(
    saver: PostgresSaver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3, P4: a transaction was lost in a crash of the server, and another one with its number was committed: the change
    is made again."""

    monkeypatch.setattr(outcomes, "_STATUS", b"SELECT 'committed' WHERE %b::text IS NOT NULL")
    for call in CALLS:
        expected = facts_of(await (await call(saver, "right"))()), await stored(saver, "right")
        work = await call(saver, "t")
        proxy.plan("lose the question", "COMMIT\0")
        found = facts_of(await work())
        assert proxy.broke.is_set()
        assert (found, await stored(saver, "t")) == expected, call
        empty(saver.schema)


@pytest.mark.parametrize("plan", LOST)
@pytest.mark.parametrize("call", [begin, finish])
async def test_a_connection_that_breaks_at_a_mark(
    call: Callable[[PostgresSaver, str], Awaitable[Callable[[], Awaitable[Any]]]],
    plan: Plan,
    saver: PostgresSaver,
    proxy: Proxy,
) -> None:
    """P3, P4, P16: the statement that stores a superstep with the change of its run is lost before or after its
    execution: both are stored, once."""
    expected = facts_of(await (await call(saver, "right"))()), await stored(saver, "right")
    work = await call(saver, "t")
    proxy.plan(plan, "updated_runs")
    found = facts_of(await work())
    assert proxy.broke.is_set()
    assert (found, await stored(saver, "t")) == expected
    assert await head_of(saver, "t") == cid(1)


@pytest.mark.parametrize("plan", LOST)
@pytest.mark.parametrize("call", [start_in_a_new_thread, start_and_take_in_a_new_thread])
async def test_a_connection_that_breaks_at_a_new_thread(
    call: Callable[[PostgresSaver, str], Awaitable[Callable[[], Awaitable[Any]]]],
    plan: Plan,
    saver: PostgresSaver,
    proxy: Proxy,
) -> None:
    """P3, P4: if the connection breaks before or after the statement that stores a new thread is executed, the thread
    and its run are stored once."""
    expected = facts_of(await (await call(saver, "right"))()), await stored(saver, "right")
    work = await call(saver, "t")
    proxy.plan(plan, "added_run_threads")
    found = facts_of(await work())
    assert proxy.broke.is_set()
    assert (found, await stored(saver, "t")) == expected


async def test_a_stored_run_of_a_new_thread_that_has_ended_since(
    saver: PostgresSaver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: a run whose answer was lost is not stored again, also if others have taken and ended it since."""
    add, tries = run_transactions.RunTransactions._store_new_threads, list[int]()
    async with PostgresSaver.from_conn_string(unsynced(), schema=saver.schema) as other:

        async def overtaken(self: Any, cursor: Any, attempts: Any) -> None:
            tries.extend([len(attempts)] * bool(attempts))  # `attempts` is empty for the calls of the other saver
            if attempts and len(tries) == 2:
                lease, _ = await take_run(other, 1, at="t")
                await other.runs.end(lease, "t-new", SUCCESS)
            await add(self, cursor, attempts)

        monkeypatch.setattr(run_transactions.RunTransactions, "_store_new_threads", overtaken)
        proxy.plan("lose the answer", "added_run_threads")
        run = await (await start_in_a_new_thread(saver, "t"))()
        assert tries == [1, 1] and (run.status, run.seq) == ("pending", 1)
        thread, now = await other.runs.get_thread("t"), await other.runs.get_run("t-new")
        assert thread is not None and now is not None and (thread.runs, now.status) == (1, "success")


async def test_the_outcome_of_a_commit_is_asked_for(
    saver: PostgresSaver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: a change whose answer was lost is not made again, also if others have changed the thread since."""
    lease = await taken(saver, "t")
    was_committed = run_transactions.was_committed
    async with PostgresSaver.from_conn_string(unsynced(), schema=saver.schema) as other:

        async def overtaken(*args: Any, **options: Any) -> bool:
            await other.runs.start("t", request("t-new"))
            await other.runs.cancel("t-b")
            return await was_committed(*args, **options)

        monkeypatch.setattr(run_transactions, "was_committed", overtaken)
        proxy.plan("lose the answer", "COMMIT\0")
        await saver.runs.end(lease, "t-a", SUCCESS)
        thread = await other.runs.get_thread("t")
        assert thread is not None and (thread.pending, thread.activation, thread.runs) == (1, "queued", 3)


async def test_an_unknown_outcome(proxy: Proxy, schema: str) -> None:
    """P4: if the server cannot be asked, the error says that the outcome is unknown."""
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, reconnect_timeout=30) as saver:
        await saver.runs.start("t", request("a"))
        proxy.plan("lose the answer", "COMMIT\0")
        proxy.refuses = True
        with patience(saver, 0.3), pytest.raises(StorageError, match="whether it was stored is not known"):
            await saver.runs.start("t", request("b"))
        proxy.refuses = False
        assert (await saver.runs.get_run("b")) is not None


class Batches:
    """Counts transactions of runs. The first one waits until the test has queued others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.go = threading.Event()
        new_client_cursor = run_transactions.new_client_cursor

        def counting(connection: Connection) -> Any:
            self.count += 1
            return new_client_cursor(connection)

        monkeypatch.setattr(run_transactions, "new_client_cursor", counting)

    async def call_at_once(
        self, saver: PostgresSaver, calls: dict[str, Callable[[], Awaitable[Any]]]
    ) -> dict[str, Any]:
        """Make calls that are queued together. Return their results, or errors."""
        found: dict[str, Any] = {}
        inside = threading.Event()

        def wait(found: Found) -> Changes[None]:
            inside.set()
            assert self.go.wait(30)
            return Changes(None)

        async def call(name: str, work: Callable[[], Awaitable[Any]]) -> None:
            try:
                found[name] = await work()
            except Exception as error:
                found[name] = error

        async with anyio.create_task_group() as group:
            group.start_soon(saver.runs.transact, "first", wait)
            await anyio.to_thread.run_sync(inside.wait)
            self.count = 0
            for name, work in calls.items():
                group.start_soon(call, name, work)
            await anyio.wait_all_tasks_blocked()
            self.go.set()
        return found


async def test_changes_of_several_threads_share_a_transaction(
    saver: PostgresSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: calls that wait at the same time are one transaction, with their supersteps; a call that is refused gets its
    own error, and stores nothing."""
    batches, leases = Batches(monkeypatch), {name: await taken(saver, name) for name in "defgh"}
    lost = replace(leases["h"], epoch=7)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "start": lambda: saver.runs.start("a", request("a-a"), metadata={"user": "ada"}),
        "start 2": lambda: saver.runs.start("b", request("b-a")),
        "cancel": lambda: saver.runs.cancel("d-b"),
        "begin": lambda: saver.runs.begin(leases["e"], "e-a", commit(row(1))),
        "end": lambda: saver.runs.end(leases["f"], "f-a", SUCCESS, commit(row(1))),
        "give back": lambda: saver.runs.give_back(leases["g"], "g-a"),
    }
    await batches.call_at_once(saver, calls)
    assert batches.count <= 2
    runs = [await saver.runs.get_run(run_id) for run_id in ("a-a", "b-a", "d-b", "e-a", "f-a", "g-a")]
    assert [run and (run.status, run.begun) for run in runs] == [
        ("pending", False),
        ("pending", False),
        ("cancelled", False),
        ("running", True),
        ("success", False),
        ("pending", False),
    ]
    assert [await head_of(saver, name) for name in "ef"] == [cid(1), cid(1)]
    owners = {header.thread_id: header.owner is None for header in await saver.threads()}
    assert owners == {"a": True, "b": True, "d": False, "e": False, "f": True, "g": True, "h": False}

    batches.go.clear()
    found = await batches.call_at_once(
        saver,
        {
            "same id": lambda: saver.runs.start("x", request("a-a")),
            "busy": lambda: saver.runs.start("d", request("d-c", multitask="reject")),
            "no such": lambda: saver.runs.transact("y", lambda found: Changes("nothing")),
            "lost": lambda: saver.runs.end(lost, "h-a", SUCCESS),
            "head": lambda: saver.runs.begin(leases["e"], "e-a", commit(row(3), head=2)),
            "key": lambda: saver.runs.start("z1", request("z1-a", idempotency_key="k")),
            "key 2": lambda: saver.runs.start("z2", request("z2-a", idempotency_key="k")),
            "start": lambda: saver.runs.start("c", request("c-a")),
        },
    )
    assert isinstance(found["same id"], StorageError)
    assert [type(found[name]) for name in ("busy", "lost", "head")] == [ThreadBusyError] * 3
    assert found["no such"] == "nothing" and found["key"].run_id == found["key 2"].run_id
    assert await saver.runs.get_run("c-a") is not None
    threads = {header.thread_id for header in await saver.threads()}
    assert threads == {*"abcdefgh", f"{found['key'].run_id[:2]}"}


async def test_new_threads_share_a_statement(saver: PostgresSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: starts in new threads that wait at the same time share a statement. A start whose thread exists, and one that
    is refused, do not affect the others."""
    await saver.runs.start("t2", request("t2-a"))
    batches, add, sizes = Batches(monkeypatch), run_transactions.RunTransactions._store_new_threads, list[int]()

    async def noting(self: Any, cursor: Any, attempts: Any) -> None:
        sizes.append(len(attempts))
        await add(self, cursor, attempts)

    monkeypatch.setattr(run_transactions.RunTransactions, "_store_new_threads", noting)
    names = [f"t{number}" for number in range(6)]
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        name: partial(saver.runs.start, name, request(f"{name}-b"), is_new=True) for name in names
    }
    calls["same id"] = partial(saver.runs.start, "u", request("t2-a"), is_new=True)
    found = await batches.call_at_once(saver, calls)
    assert isinstance(found.pop("same id"), StorageError) and max(sizes) >= 3
    assert {name: run.seq for name, run in found.items()} == {name: 2 if name == "t2" else 1 for name in names}
    assert sorted([thread.thread_id for thread in await saver.runs.queued()]) == names
    assert batches.count <= 4  # for "t2" and "same id" alone


async def test_new_threads_do_not_get_errors_of_known_ones(
    saver: PostgresSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: new threads and known threads that wait at the same time are not one batch. If the server's disk is full when
    the known ones are to be stored, the callers of the new ones get their runs all the same."""
    batches, execute = Batches(monkeypatch), run_transactions.RunTransactions._execute

    async def failing(self: Any, connection: Connection, attempts: Any) -> None:
        if "known" in [attempt.thread_id for attempt in attempts]:
            raise psycopg.errors.DiskFull
        await execute(self, connection, attempts)

    monkeypatch.setattr(run_transactions.RunTransactions, "_execute", failing)
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "known": lambda: saver.runs.start("known", request("a")),
        "new": lambda: saver.runs.start("new", request("b"), is_new=True),
    }
    found = await batches.call_at_once(saver, calls)
    assert isinstance(found["known"], StorageFullError) and await saver.runs.get_run("a") is None
    assert found["new"] == await saver.runs.get_run("b")


@pytest.mark.parametrize("are_new", [False, True], ids=["known threads", "new threads"])
async def test_a_thread_that_is_locked_delays_no_other(
    proxy: Proxy, schema: str, monkeypatch: pytest.MonkeyPatch, are_new: bool
) -> None:
    """P3: a call whose thread another connection has locked waits, and those that wait at the same time do not."""
    batches = Batches(monkeypatch)
    async with PostgresSaver.from_conn_string(proxy.url, schema=schema, busy_timeout=40) as saver:
        await saver.runs.start("t", request("t-a"))
        await check_locked(saver, batches, are_new=are_new)


async def check_locked(saver: PostgresSaver, batches: Batches, *, are_new: bool) -> None:
    with psycopg.connect(conninfo()) as holder, anyio.fail_after(30):
        schema = saver.schema
        holder.execute(f"SELECT FROM {schema}.pregel_run_threads WHERE thread_id = 't' FOR UPDATE".encode())

        async def unlock_after(name: str) -> None:
            await saver.runs.start(name, request(f"{name}-a"), is_new=are_new)
            if name == "z":
                holder.rollback()

        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "t": lambda: saver.runs.start("t", request("t-b")),
            **{name: partial(unlock_after, name) for name in "xyz"},
        }
        found = await batches.call_at_once(saver, calls)
    assert found["t"].seq == 2


@pytest.mark.slow
@pytest.mark.one_loop
async def test_a_process_that_stops_in_a_transaction(saver: PostgresSaver) -> None:
    """P3: the server ends its transaction after some seconds, so that it holds no lock for longer. When the process
    continues, it finds that nothing was stored, and repeats the transaction."""
    await saver.runs.start("t", request("t-a"))
    inside, go = threading.Event(), threading.Event()
    seen: list[int] = []

    def stop(found: Found) -> Changes[int]:
        assert found.thread is not None
        seen.append(found.thread.runs)
        inside.set()
        go.wait(60)
        return Changes(found.thread.runs, replace(found.thread, priority=9))

    async with (
        PostgresSaver.from_conn_string(unsynced(), schema=saver.schema, busy_timeout=60) as other,
        anyio.create_task_group() as group,
    ):
        group.start_soon(saver.runs.transact, "t", stop)
        await anyio.to_thread.run_sync(inside.wait)
        await other.runs.start("t", request("t-b"))
        go.set()
    thread = await saver.runs.get_thread("t")
    assert seen == [1, 2] and thread is not None and (thread.runs, thread.priority) == (2, 9)


class Gate:
    """Stops the transactions that queue a thread before they are committed."""

    def __init__(self, saver: PostgresSaver) -> None:
        self.queued: list[RunThreadRow] = []
        self.go = False
        self.pids: list[int] = []
        saver.runs.on_queued = self

    async def __call__(self, connection: Connection, thread: RunThreadRow) -> None:
        self.queued.append(thread)
        cursor = await connection.execute("SELECT pg_backend_pid()")
        ((pid,),) = await cursor.fetchall()
        self.pids.append(pid)
        while not self.go:
            await anyio.sleep(0.002)

    async def is_inside(self) -> None:
        while not self.pids:
            await anyio.sleep(0.002)

    async def blocks(self, count: int = 1) -> None:
        """Return when as many other transactions wait for the one that is stopped."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
        while execute(waiting, self.pids[0]) != [(count,)]:
            await anyio.sleep(0.002)


async def test_end_waits_for_start(saver: PostgresSaver) -> None:
    """A run that is accepted while the worker ends the one before queues the thread: what `end` reads is read after it
    has locked the thread's row, with a snapshot of its own."""
    await saver.runs.start("t", request("a"))
    lease, _ = await take_run(saver, 1)
    async with PostgresSaver.from_conn_string(unsynced(), schema=saver.schema) as other:
        with psycopg.connect(conninfo()) as blocker, anyio.fail_after(30):
            blocker.execute(f'SELECT 1 FROM "{saver.schema}".pregel_run_threads FOR UPDATE'.encode())
            async with anyio.create_task_group() as group:
                group.start_soon(other.runs.start, "t", request("b"))
                await waiting_for_lock(saver.schema, 1)
                group.start_soon(saver.runs.end, lease, "a", SUCCESS)
                await waiting_for_lock(saver.schema, 2)
                blocker.rollback()
    thread = await saver.runs.get_thread("t")
    assert thread is not None and (thread.pending, thread.activation) == (1, "queued")


async def waiting_for_lock(schema: str, count: int) -> None:
    """Return when so many statements about a schema wait for a lock. Other tests use the same server."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    while execute(waiting, f"%{schema}%pregel_run_threads%") != [(count,)]:
        await anyio.lowlevel.checkpoint()


async def test_one_key_on_two_threads(saver: PostgresSaver) -> None:
    """A key belongs to one run, also if two threads are asked for it at the same time: the second one waits."""
    gate = Gate(saver)
    runs: list[RunRow] = []

    async def start(thread_id: str, run_id: str) -> None:
        runs.append(await saver.runs.start(thread_id, request(run_id, idempotency_key="k")))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(start, "t", "a")
            await gate.is_inside()
            group.start_soon(start, "other", "b")
            await gate.blocks()
            gate.go = True
    assert [run.run_id for run in runs] == ["a", "a"]
    assert await saver.runs.get_thread("other") is None
    assert [one.thread_id for one in await saver.threads()] == ["t"]


async def test_the_hook_of_queued_threads(saver: PostgresSaver) -> None:
    """It is called in the transaction, whenever a thread is queued or queued again. If it raises, nothing is stored."""
    queued: list[tuple[str, int]] = []
    schema = saver.schema

    async def on_queued(connection: Connection, thread: RunThreadRow) -> None:
        queued.append((thread.thread_id, thread.activation_no))
        settings = "current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"
        cursor = await connection.execute(f'SELECT count(*), {settings} FROM "{schema}".pregel_runs'.encode())
        assert await cursor.fetchall() == [(len(queued), "5s", "5s")]
        assert execute(f'SELECT count(*) FROM "{schema}".pregel_runs') == [(len(queued) - 1,)], (
            "it is not committed yet"
        )

    saver.runs.on_queued = on_queued
    await saver.runs.start("t", request("a"))
    await saver.runs.start("t", request("b", priority=5))
    assert queued == [("t", 1), ("t", 2)]

    async def count(connection: Connection, thread: RunThreadRow) -> None:
        queued.append((thread.thread_id, thread.activation_no))

    saver.runs.on_queued = count
    await saver.runs.start("t", request("c"))
    lease, _ = await take_run(saver, 2)
    assert len(queued) == 2
    await saver.runs.end(lease, "b", SUCCESS)
    assert queued[2:] == [("t", 3)]
    lease, _ = await take_run(saver, 3)
    await saver.runs.give_back(lease, "a")
    assert queued[3:] == [("t", 4)]
    thread = await saver.runs.get_thread("t")
    assert thread is not None and await saver.runs.requeue(thread) and queued[4:] == [("t", 5)]

    async def fail(connection: Connection, thread: RunThreadRow) -> None:
        await connection.execute("SELECT 1")
        raise LookupError("no queue")

    saver.runs.on_queued = fail
    with pytest.raises(LookupError, match="no queue"):
        await saver.runs.start("u", request("d"))
    assert await saver.runs.get_run("d") is None and await saver.runs.get_thread("u") is None
    assert len(await saver.threads()) == 1


async def test_a_lock_that_is_held_for_too_long(schema: str) -> None:
    """P3: the error says so, after the busy timeout, and nothing is stored."""
    empty(schema)
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema, busy_timeout=0.05) as saver:
        await saver.runs.start("t", request("a"))
        for table in ("run_threads", "threads"):
            with psycopg.connect(conninfo()) as blocker:
                blocker.execute(f'SELECT 1 FROM "{schema}".pregel_{table} FOR UPDATE'.encode())
                with pytest.raises(StorageLockedError):
                    await saver.runs.start("t", request("b"))
                with pytest.raises(StorageLockedError):
                    await take_run(saver, 1)
        assert await saver.runs.get_run("b") is None
        await take_run(saver, 1)


async def test_writes_that_were_numbered_before(saver: PostgresSaver) -> None:
    """P5: a write that was queued before a run's transaction, and is stored after it, is not taken for a late one."""
    lease = await taken(saver, "t")
    record = LeasedWrite(lease, Commit(rows=(), expected_head=None, expires_at=LATER + 5), saver._numbers.next)
    record.queued()
    saver.runs.forget(lease)
    await saver.runs.begin(lease, "t-a", commit(row(1)))
    assert await saver._run(saver._writing.store, [record]) == [] and record.error is None
    ((thread,),) = execute(f'SELECT expires_at FROM "{saver.schema}".pregel_threads')
    assert thread == LATER + 5
    await saver.commit(lease, commit(row(2, 1, base=1), head=1))
    assert await head_of(saver, "t") == cid(2)


async def test_a_release_that_meets_the_first_run(saver: PostgresSaver) -> None:
    """A thread whose first run is being accepted is not deleted by the release of a lease under which nothing was
    stored."""
    lease = await acquire(saver)
    gate = Gate(saver)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(saver.runs.start, "t", request("a"))
            await gate.is_inside()
            release = LeasedWrite(lease, None, saver._numbers.next)
            release.queued()
            assert await saver._run(saver._writing.store, [release]) == [release], "locked: to be repeated"
            gate.go = True
        await saver.release(lease)
    ((header,),) = [await saver.threads()]
    assert (header.epoch, header.owner) == (1, None)
    assert (await acquire(saver)).epoch == 2
