"""SqliteSaver's commits: one transaction per call, shared transactions, a full disk, a lock (P3, P4)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import (
    SqliteSaver,
    StorageFullError,
    StorageLockedError,
    ThreadBusyError,
)
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    NOW,
    cid,
    commit,
    elsewhere,
    event,
    everything,
    head_of,
    record,
    row,
    take,
)
from checkpoint_savers.sqlite import supersteps
from checkpoint_savers.sqlite.worker import ServingConnection
from tests.savers.sqlite_tools import execute, held, locked, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path) as saver:
        yield saver


@asynccontextmanager
async def traced(saver: SqliteSaver) -> AsyncIterator[list[str]]:
    """The SQL statements of a block, from its first BEGIN to its last COMMIT."""
    found: list[str] = []
    await execute(saver, lambda db: db.connection.set_trace_callback(found.append))
    try:
        yield found
    finally:
        await execute(saver, lambda db: db.connection.set_trace_callback(None))
        del found[0], found[-1]  # left over from the jobs that set the callback: COMMIT, and BEGIN


async def test_a_superstep_is_one_transaction(saver: SqliteSaver) -> None:
    """P3: rows, head, records, cleared records, events, expiry and release are between one BEGIN and one COMMIT."""
    lease = await take(saver)
    await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
    async with traced(saver) as statements:
        await saver.commit(
            lease,
            commit(
                row(2, 1),
                row(3, 2),
                head=1,
                records=[record(3, "b")],
                clears=[record(1, "a")],
                releases=True,
                events=[event(1, 2, "tail"), event(3)],
            ),
        )
    assert (statements[0], statements[-1]) == ("BEGIN IMMEDIATE", "COMMIT")
    assert {one.split()[0] for one in statements[1:-1]} <= {"INSERT", "UPDATE", "DELETE", "SELECT"}


class CountingCursor(sqlite3.Cursor):
    """A cursor that records the texts of its statements. SQLite's own trace shows those of triggers, too."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.statements: list[str] = []

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        self.statements.append(sql.split()[0])
        return super().execute(sql, parameters)


@pytest.mark.parametrize("ns", ["", "inner"])
async def test_statements_do_not_grow_with_the_number_of_commits(
    path: Path, ns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supersteps of 128 threads take the one statement that the superstep of one takes: each statement may have to
    wait for Python's GIL."""
    cursors: list[CountingCursor] = []

    def cursor(connection: sqlite3.Connection) -> CountingCursor:
        cursors.append(CountingCursor(connection))
        return cursors[-1]

    monkeypatch.setattr(ServingConnection, "cursor", cursor)
    async with SqliteSaver.from_conn_string(path, synchronous="NORMAL") as saver:
        for number in (1, 8, 128):
            leases = [await take(saver, f"{number}-{one}") for one in range(number)]
            for lease in leases:
                await saver.commit(lease, commit(row(1, ns=ns)))
            async with anyio.create_task_group() as group, held(saver):
                for lease in leases:
                    group.start_soon(saver.commit, lease, commit(row(2, 1, base=1, ns=ns), head=1))
                await turns()
                cursors[0].statements.clear()
            shared = ["BEGIN", "SAVEPOINT", "INSERT", "RELEASE", "COMMIT"]
            assert cursors[0].statements == ["COMMIT", *(["BEGIN", "INSERT", "COMMIT"] if number == 1 else shared)]
            assert [await head_of(saver, lease.thread_id, ns) for lease in leases] == [cid(2)] * number


async def test_commits_of_a_batch_see_each_other(saver: SqliteSaver) -> None:
    """P6: of commits of one thread that share a statement, the second one expects the head of the first, and a third
    one fails if the second has released the lease; commits of other threads are stored."""
    lease, other = await take(saver), await take(saver, "other")
    lost: list[ThreadBusyError] = []

    async def late() -> None:
        try:
            await saver.commit(lease, commit(row(3, 2, base=1), head=2))
        except ThreadBusyError as error:
            lost.append(error)

    async with anyio.create_task_group() as group, held(saver):
        group.start_soon(saver.commit, lease, commit(row(1)))
        await turns()
        group.start_soon(saver.commit, lease, commit(row(2, 1, base=1), head=1, releases=True))
        await turns()
        group.start_soon(late)
        await turns()
        group.start_soon(saver.commit, other, commit(row(1)))
        await turns()
    assert [(error.lost, error.thread_id) for error in lost] == [(True, "t")]
    assert (await head_of(saver), await head_of(saver, "other")) == (cid(2), cid(1))


async def test_metadata_texts_with_one_key(saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: metadata texts whose hashes are equal are stored under different keys, alone and in a shared transaction,
    and equal texts are stored once."""
    monkeypatch.setattr(supersteps, "metadata_key", lambda text: supersteps.METADATA_KEYS - 1)
    leases = [await take(saver, f"t{number}") for number in range(8)]

    for turn in range(1, 5):
        new = row(turn, turn - 1 or None, base=1, metadata={"turn": turn % 2})
        async with anyio.create_task_group() as group, held(saver):
            for lease in leases:
                group.start_soon(saver.commit, lease, commit(new, head=turn - 1 or None))
            await turns()
    await saver.commit(leases[0], commit(row(5, 4, base=1, metadata={"turn": 5}), head=4))
    for lease in leases:
        found = [header.metadata["turn"] for header in await saver.scan(lease.thread_id, "")]
        assert found == [5, 0, 1, 0, 1][-4 if lease is not leases[0] else 0 :]
    keys = await execute(saver, lambda db: db.execute("SELECT key FROM metadata WHERE thread = 1").fetchall())
    assert sorted(keys) == [(0,), (1,), (supersteps.METADATA_KEYS - 1,)]


@pytest.mark.parametrize("large", ["frame", "metadata"])
async def test_large_rows_take_statements_of_their_own(saver: SqliteSaver, large: str) -> None:
    """SQLite copies the rows of a statement that has several: large payloads and large metadata are not among them."""
    lease, half = await take(saver), supersteps.MOST_BYTES * 2 // 3
    big: Any = {"frame": bytes(half)} if large == "frame" else {"metadata": {"note": "x" * half}}
    both = supersteps.bind(lease, commit(row(1, **big), row(2, 1, **big)))
    assert supersteps._statement_size(both, supersteps.MOST_ROWS) == 1
    one = supersteps.bind(lease, commit(row(1, **big), row(2, 1)))
    assert supersteps._statement_size(one, supersteps.MOST_ROWS) == 2
    await saver.commit(lease, commit(row(1, **big), row(2, 1, **big)))
    assert await head_of(saver) == cid(2)


async def test_listings_use_their_index(saver: SqliteSaver) -> None:
    """P10: neither a read nor a page of a listing visits more rows than it returns, or sorts a thread; listings read
    no payload."""
    from checkpoint_savers.sqlite import reading

    async def plan(statement: str) -> str:
        values = {name: None for name in ("thread", "ns", "id", "after", "after_thread", "after_ns", "limit")}
        bound: Any = values if ":" in statement else (None,) * statement.count("?")
        rows = await execute(saver, lambda db: db.execute(f"EXPLAIN QUERY PLAN {statement}", bound).fetchall())
        return "; ".join(row[3] for row in rows)

    chain = await plan(reading._CHAIN)
    assert chain.startswith("SEARCH c USING PRIMARY KEY (thread=? AND space=? AND base=? AND id<?)")
    assert "TEMP B-TREE" not in chain and "SCAN" not in chain
    page = await plan(reading._PAGE_OF_THREAD)
    assert "SEARCH c USING INDEX checkpoint_by_id (thread=? AND id<?)" in page
    assert "SCAN" not in page and page.count("TEMP B-TREE") == page.count("TEMP B-TREE FOR RIGHT PART OF ORDER BY")
    everybodys = await plan(reading._PAGE_OF_ALL)
    assert "SCAN c USING COVERING INDEX checkpoint_by_id" in everybodys
    assert everybodys.count("SCAN") == 2 and "SCAN k" in everybodys
    for listing in (page, everybodys, await plan(reading._THREADS)):
        assert " f " not in listing
    assert await plan(reading._EVENTS) == (
        "SEARCH event USING PRIMARY KEY (thread=? AND (checkpoint,epoch,position)>(?,?,?))"
    )
    for statement in (
        reading._NAMESPACE,
        reading._BASES,
        reading._RECORDS,
        reading._SEGMENT_RECORDS,
        reading._THREADS,
        reading._ALL_ROWS,
        reading._ALL_RECORDS,
    ):  # string names
        assert "SCAN" not in await plan(statement), statement


async def test_waiting_commits_share_a_transaction(saver: SqliteSaver) -> None:
    """Commits of many threads that wait for the disk share a transaction, and each caller gets its own result."""
    leases = [await take(saver, f"t{number}") for number in range(20)]
    for number in (3, 7):
        await saver.release(leases[number])
    lost: list[int] = []

    async def run(number: int) -> None:
        try:
            await saver.commit(leases[number], commit(row(1)))
        except ThreadBusyError as error:
            assert error.lost and error.thread_id == f"t{number}"
            lost.append(number)

    async with traced(saver) as statements:
        async with anyio.create_task_group() as group, held(saver):
            for number in range(20):
                group.start_soon(run, number)
            await turns()
    assert sorted(lost) == [3, 7]
    assert statements.count("BEGIN IMMEDIATE") == 1
    assert statements.count("ROLLBACK TO job") == 1 + 2, "that of all commits, and of those that fail one by one"
    assert [await head_of(saver, f"t{number}") for number in range(20)] == [
        None if number in lost else cid(1) for number in range(20)
    ]


async def test_a_full_database(saver: SqliteSaver) -> None:
    """P3, P4: a commit that does not fit is refused as a whole; one that fits is stored; with free space again all
    commits work."""
    lease = await take(saver)
    await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
    before = await everything(saver)
    pages = await execute(saver, lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    await execute(saver, lambda db: db.execute(f"PRAGMA max_page_count = {pages + 20}").fetchall())
    large = commit(row(2, 1, frame=bytes(1_000_000)), head=1, records=[record(2, "b")], clears=[record(1, "a")])
    shown = [event(1), event(1, 2, frame=bytes(1_000_000))]
    for attempt in (large, commit(row(2, 1), head=1, events=shown), large, commit(events=shown)):
        with pytest.raises(StorageFullError) as caught:
            await saver.commit(lease, attempt)
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert await everything(saver) == before
    with pytest.raises(StorageFullError):
        await saver.record(lease, [record(1, "c", frame=bytes(1_000_000))], expires_at=LATER)
    assert await everything(saver) == before
    await saver.commit(lease, commit(row(2, 1), head=1))
    await execute(saver, lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())
    await saver.commit(lease, commit(row(3, 2, frame=bytes(1_000_000)), head=2))
    assert await head_of(saver) == cid(3)


async def test_a_full_database_and_shared_commits(saver: SqliteSaver) -> None:
    """P3: of commits that share a transaction, one that does not fit does not affect the others."""
    leases = [await take(saver, f"t{number}") for number in range(5)]
    pages = await execute(saver, lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    await execute(saver, lambda db: db.execute(f"PRAGMA max_page_count = {pages + 20}").fetchall())
    full: list[int] = []

    async def run(number: int) -> None:
        try:
            await saver.commit(leases[number], commit(row(1, frame=bytes(1_000_000 if number == 2 else 10))))
        except StorageFullError:
            full.append(number)

    async with anyio.create_task_group() as group, held(saver):
        for number in range(5):
            group.start_soon(run, number)
        await turns()
    assert full == [2]
    assert [one.thread_id for one in await saver.scan(None, None)] == ["t4", "t3", "t1", "t0"]


async def test_another_program_holds_the_lock(path: Path) -> None:
    """P4: after the busy timeout a write raises StorageLockedError, and nothing is stored; reads work."""
    async with SqliteSaver.from_conn_string(path, busy_timeout=0.05) as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        before = await everything(saver)
        with locked(path):
            for attempt in (
                saver.acquire("new", elsewhere("run-2"), now=NOW, expires_at=LATER),
                saver.commit(lease, commit(row(2, 1), head=1)),
                saver.record(lease, [record(1, "a")], expires_at=LATER),
                saver.release(lease),
                saver.adelete_thread("other"),
            ):
                with pytest.raises(StorageLockedError) as caught:
                    await attempt
                assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
                assert await everything(saver) == before
            errors: list[StorageLockedError] = []

            async def run() -> None:
                try:
                    await saver.renew(lease, expires_at=LATER)
                except StorageLockedError as error:
                    errors.append(error)

            async with anyio.create_task_group() as group, held(saver):
                for _ in range(3):
                    group.start_soon(run)
                await turns()
            assert len(errors) == len(set(map(id, errors))) == 3, "each caller has an error of its own"
        await saver.commit(lease, commit(row(2, 1), head=1))


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_lock_that_is_released_in_time(path: Path, at_once: bool) -> None:
    """P4: within the busy timeout a writer waits, also where SQLite reports busy at once without waiting."""
    async with SqliteSaver.from_conn_string(path, busy_timeout=60) as saver:
        if at_once:
            await execute(saver, lambda db: db.execute("PRAGMA busy_timeout = 0").fetchall())
        leases: list[object] = []

        async def acquire() -> None:
            leases.append(await take(saver))

        async with anyio.create_task_group() as group:
            with locked(path):
                group.start_soon(acquire)
                await turns(20)
                assert not leases
        assert leases
