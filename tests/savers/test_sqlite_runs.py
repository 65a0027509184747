"""Accepted runs in a SQLite file: plans, damage, and other connections."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import anyio
import pytest
from msgspec.structs import replace

from checkpoint_savers import SqliteSaver
from checkpoint_savers.conformance.runs.suite import request, take_run
from checkpoint_savers.conformance.savers.suite import NOW
from checkpoint_savers.errors import CorruptCheckpointError, SaverClosedError, UnsupportedFormatError
from checkpoint_savers.runs.decisions import Changes, Found
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.queries import RunQuery, ThreadQuery
from checkpoint_savers.runs.rows import RunRow, RunStatus, RunThreadRow, ThreadStatus
from checkpoint_savers.sqlite import runs as statements
from checkpoint_savers.sqlite.schema import VERSION
from tests.savers.sqlite_cells import cells_of

pytestmark = pytest.mark.anyio

MANY = 10_000


@contextmanager
def traced(connection: sqlite3.Connection) -> Generator[list[str]]:
    """The statements that a connection executes, with bound values."""
    found: list[str] = []
    connection.set_trace_callback(found.append)
    yield found
    connection.set_trace_callback(None)


def many_rows(db: sqlite3.Cursor) -> None:
    """Store 10 000 threads with a run each."""
    statuses: tuple[RunStatus, ...] = ("success", "success", "error", "pending")
    rests: tuple[ThreadStatus, ...] = ("idle", "idle", "error", "busy")
    for number in range(MANY):
        kind = number % 4
        name = f"t{number}"
        run = RunRow(
            request=request(f"r{number}", metadata={"n": number % 7}),
            thread_id=name,
            seq=1,
            status=statuses[kind],
            created_at=NOW + number,
        )
        thread = RunThreadRow(
            thread_id=name,
            status=rests[kind],
            assistant="graph",
            values={"n": number},
            created_at=NOW + number,
            updated_at=NOW + number,
            activation="queued" if kind == 3 and number % 3 else "active" if kind == 3 else "none",
            activation_at=NOW + number,
            wake_at=NOW + number if number % 50 == 0 else 0.0,
        )

        def write(found: Found, thread: RunThreadRow = thread, run: RunRow = run) -> Changes[None]:
            return Changes(None, thread, (run,), {"n": int(run.run_id[1:]) % 7})

        statements.transact(
            db, statements.Transaction(name, write, None, None, None, None, None, lambda: NOW, lambda db: None)
        )


@pytest.mark.one_loop
async def test_no_listing_scans_a_table(tmp_path: Path) -> None:
    """P14: with 10 000 threads and runs, listings and searches use indexes, and sort nothing but threads that are named;
    what they read does not grow with the tables."""
    path = tmp_path / "runs.db"
    async with SqliteSaver(path) as saver:
        assert saver.runs is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        db = connection.cursor()
        db.execute("BEGIN")
        many_rows(db)
        db.execute("COMMIT")
        runs = [
            RunQuery(),
            RunQuery(thread_id="t7"),
            RunQuery(thread_id="t7", status=("pending", "error")),
            RunQuery(status=("pending",)),
            RunQuery(status=("pending", "error"), assistant="graph"),
            RunQuery(metadata={"n": 3}),
        ]
        queries = (
            ThreadQuery(),
            ThreadQuery(status=("idle",)),
            ThreadQuery(status=("idle", "error"), assistant="graph"),
            ThreadQuery(assistant="graph"),
            ThreadQuery(metadata={"n": 3}),
            ThreadQuery(thread_ids=("t7", "t8")),
        )
        orders: tuple[Literal["updated_at", "created_at"], ...] = ("updated_at", "created_at")
        threads = [
            replace(query, sort_by=sort_by, descending=descending)
            for sort_by in orders
            for descending in (True, False)
            for query in queries
        ]
        with traced(connection) as executed:
            for query in runs:
                first = statements.find_runs(db, query, None, 10)
                statements.find_runs(db, query, first.end, 10)
                statements.count_runs(db, query, None)
            for asked in threads:
                page = statements.find_threads(db, asked, None, 10)
                statements.find_threads(db, asked, page.end, 10)
                statements.count_threads(db, asked, None)
            statements.queued(db, ("graph",), 10)
            statements.active(db, 10)
            statements.due(db, NOW + MANY, 10)
            statements.get_run(db, "r7")
            statements.get_runs(db, ("r7", "r8"))
            statements.get_thread(db, "t7")
            for run_id, key in (("r7", None), (None, "key")):
                statements.transact(
                    db,
                    statements.Transaction(
                        "t7", lambda found: Changes(None), run_id, key, None, None, None, lambda: NOW, lambda db: None
                    ),
                )
        found = {text for text in executed if text.startswith("SELECT")}
        assert len(found) > 50
        looks: set[str] = set()
        used: set[str] = set()
        for text in found:
            plan = [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {text}")]
            scans = [
                step for step in plan if step.startswith("SCAN") and "json_each" not in step and "INDEX" not in step
            ]
            sorts = [step for step in plan if "TEMP B-TREE" in step]
            assert not scans and not sorts, (text, plan)
            used.update(re.findall(r"INDEX (run_\w+)", " ".join(plan)))
            if text.startswith("SELECT count(") and "r.assistant" not in text and "r.thread =" not in text:
                assert "COVERING INDEX" in plan[0] and len(plan) == 1, (text, plan)
            # A keeper's look, and a dispatcher's: each by the index of such threads alone.
            for index in ("run_thread_queued", "run_thread_active", "run_thread_due"):
                if f"INDEXED BY {index}" in text:
                    assert index in plan[0], plan
                    looks.add(index)
            for index in ("run_by_age", "run_thread_by_update", "run_thread_by_creation"):
                if f"INDEXED BY {index}" in text and "count(" not in text:
                    assert "LIMIT" in text
        assert len(looks) == 3
        made = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql NOT NULL")}
        assert used == {name for name in made if name.startswith("run_")}  # each index serves a statement


async def test_damaged_runs_are_reported(tmp_path: Path) -> None:
    """P11: a flipped bit in any stored value of a run is reported with the run or thread."""
    async with SqliteSaver(tmp_path / "runs.db", clock=lambda: NOW) as saver:
        runs = saver.runs
        await runs.start("t", request("a", metadata={"user": "ada"}, idempotency_key="k"), metadata={"n": 1})
        await runs.start("u", request("b", due=NOW + 5))
        await take_run(saver, 1)
        before = await everything(runs)
        reported = 0
        with cells_of(tmp_path / "runs.db") as cells:
            for cell in cells():
                if not cell.place.startswith("run"):
                    continue
                value = cell.get()
                for damaged in flipped(value):
                    try:
                        cell.put(damaged)
                    except sqlite3.IntegrityError:
                        continue  # the key of a table is always a number
                    with pytest.raises(
                        CorruptCheckpointError, match="run '|run b'|run None|thread '|a listing of runs"
                    ):
                        await everything(runs)
                        pytest.fail(f"{cell.place}: {value!r} was replaced by {damaged!r}")
                    reported += 1
                    cell.put(value)
        assert reported > 500
        assert await everything(runs) == before


def flipped(value: object) -> Sequence[object]:
    """A value with one bit changed, for some bits."""
    if isinstance(value, bytes):
        return [value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :] for at in range(len(value))]
    if isinstance(value, str):
        return [value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :] for at in range(len(value))] + [b"x", None]
    if isinstance(value, int):
        return [value ^ 1, value ^ 64, -value - 1, "x"]
    if isinstance(value, float):
        return [value + 1, None, "x"]
    return [1, "x"]


async def everything(runs: RunStore) -> tuple[object, ...]:
    """All that can be read."""
    return (
        [await runs.get_run(name) for name in ("a", "b")],
        [await runs.get_thread(name) for name in ("t", "u")],
        await runs.search_runs(RunQuery()),
        await runs.search_threads(ThreadQuery()),
    )


async def test_a_file_with_runs_that_is_read_only(tmp_path: Path) -> None:
    """Runs can be read from a file that cannot be written."""
    path = tmp_path / "runs.db"
    async with SqliteSaver(path) as saver:
        await saver.runs.start("t", request("a"))
    async with SqliteSaver(f"file:{path}?immutable=1") as saver:
        assert (await saver.runs.search_runs(RunQuery())).items[0].run_id == "a"


async def test_many_transactions_share_one(tmp_path: Path) -> None:
    """P3: in a shared transaction, a decision that raises rolls back its own changes only."""
    async with SqliteSaver(tmp_path / "runs.db") as saver:
        failed: list[str] = []

        async def start(number: int) -> None:
            try:
                await saver.runs.start(
                    "t", request(f"r{number // 2}", multitask="reject" if number == 7 else "enqueue")
                )
            except Exception as error:
                failed.append(f"{type(error).__name__} {number}")

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(start, number)
        assert len(failed) in (20, 21), failed
        page = await saver.runs.search_runs(RunQuery(thread_id="t"))
        assert {run.run_id for run in page.items} == {f"r{number}" for number in range(20)}
        thread = await saver.runs.get_thread("t")
        assert thread is not None and thread.pending == 20


async def test_a_file_that_a_later_version_has_upgraded(tmp_path: Path) -> None:
    """P11: a program that has the file open writes nothing more of runs."""
    path = tmp_path / "runs.db"
    async with SqliteSaver(path) as saver:
        await saver.runs.start("t", request("a"))
        with closing(sqlite3.connect(path, isolation_level=None)) as later:
            later.execute(f"PRAGMA user_version = {VERSION + 1}")
        with pytest.raises(UnsupportedFormatError):
            await saver.runs.start("t", request("b"))
        with closing(sqlite3.connect(path, isolation_level=None)) as later:
            assert later.execute("SELECT id FROM run").fetchall() == [("a",)]


async def test_a_saver_that_is_closed(tmp_path: Path) -> None:
    """Its run store says so, and works again when the saver is opened again."""
    saver = SqliteSaver(tmp_path / "runs.db")
    with pytest.raises(SaverClosedError):
        await saver.runs.start("t", request("a"))
    async with saver:
        await saver.runs.start("t", request("a"))
    with pytest.raises(SaverClosedError):
        await saver.runs.get_run("a")
    async with saver:
        run = await saver.runs.get_run("a")
        assert run is not None and run.seq == 1
