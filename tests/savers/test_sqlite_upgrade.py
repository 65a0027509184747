"""SqliteSaver and files that earlier versions of it have made: upgraded in place, or read as they are (P3, P4, P11)."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlite_tools import ENV, locked, saver_threads

from checkpoint_savers import CorruptCheckpointError, SqliteSaver, StorageLockedError, StorageReadOnlyError
from checkpoint_savers.conformance.suite import (
    LATER,
    NOW,
    cid,
    commit,
    event,
    everything,
    here,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.sqlite import schema
from checkpoint_savers.sqlite.schema import APPLICATION_ID, VERSION

pytestmark = pytest.mark.anyio

VERSION_1 = """
    CREATE TABLE threads (
        thread_id TEXT NOT NULL PRIMARY KEY,
        epoch INTEGER NOT NULL,
        run_id TEXT,
        owner TEXT,
        expires_at REAL,
        newest TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE heads (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        PRIMARY KEY (thread_id, ns)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE checkpoints (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        base_id TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        parent_id TEXT,
        step INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, ns, base_id, checkpoint_id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX checkpoints_by_id ON checkpoints (thread_id, checkpoint_id, ns, base_id);
    CREATE TABLE records (
        thread_id TEXT NOT NULL,
        ns TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        kind TEXT NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (thread_id, ns, checkpoint_id, task_id)
    ) STRICT, WITHOUT ROWID;
    PRAGMA application_id = 1347568967;
    PRAGMA user_version = 1;
    PRAGMA journal_mode = WAL;
"""
"""What version 1 made of an empty file, to the letter. It never changes any more."""

TABLES_1 = ("threads", "heads", "checkpoints", "records")

DELETED_BY_VERSION_1 = tuple(
    f"DELETE FROM {table} WHERE thread_id = ?" for table in ("records", "checkpoints", "heads", "threads")
)
"""How version 1 deletes a thread."""


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def rows_of(path: Path) -> list[Any]:
    with connected(path) as connection:
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES_1]


def layout_of(path: Path) -> list[Any]:
    """Tables, index and trigger as they were made; how the statements were indented does not matter."""
    with connected(path) as connection:
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()
    return [(*names, " ".join(sql.split())) for *names, sql in found]


def version_of(path: Path) -> int:
    with connected(path) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def make(path: Path) -> None:
    async with SqliteSaver.from_conn_string(path) as saver:
        await written(saver, row(1), row(2, 1, base=1), row(3, 1), row(4, ns="child"))
        await written(saver, row(1, metadata={"name": "日本語"}, frame=bytes(range(256)) * 100), thread="u")
        await written(saver, row(1), thread="v")
        claim = await take(saver)
        await saver.record(claim, [record(3, "a"), record(3, "b", 1, "error")], expires_at=LATER)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A file of this version: a thread that a run holds, with branches, a namespace and records; and two more."""
    path = tmp_path / "new.db"
    anyio.run(make, path)
    return path


@pytest.fixture
def old(new: Path) -> Path:
    """The same, in a file of version 1."""
    path = new.with_name("old.db")
    with connected(path) as connection:
        connection.executescript(VERSION_1)
        connection.execute("ATTACH ? AS new", (str(new),))
        for table in TABLES_1:
            connection.execute(f"INSERT INTO {table} SELECT * FROM new.{table}")
    return path


async def read(path: Path | str) -> Any:
    async with SqliteSaver.from_conn_string(path) as saver:
        return await everything(saver)


async def test_what_version_1_has_stored_reads_the_same(old: Path, new: Path) -> None:
    """P4: every row is the same before and after, and what is read of it; the file is as if it had been made now."""
    before = rows_of(old)
    assert before == rows_of(new) and all(before)
    assert await read(old) == await read(new)
    assert rows_of(old) == before
    assert version_of(old) == VERSION == 2
    assert layout_of(old) == layout_of(new)
    with connected(old) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    again = digest(old)
    assert await read(old) == await read(new)
    assert digest(old) == again, "upgraded once"


async def test_an_upgraded_file_keeps_events(old: Path) -> None:
    """P4, P6: the run that held its thread holds it still, and a superstep's events go with its checkpoint."""
    async with SqliteSaver.from_conn_string(old) as saver:
        assert await saver.events("t") == ()
        claim = await take(saver)
        assert claim.epoch == 3
        await saver.commit(claim, commit(row(5, 3, base=3), head=3, events=[event(3, 1, "tail"), event(5)]))
        assert await saver.events("t") == (event(3, 1, "tail"), event(5))
    async with SqliteSaver.from_conn_string(old) as saver:
        assert len(await saver.events("t")) == 2
        await saver.release(claim)
        await saver.adelete_thread("t")
        assert await saver.events("t") == ()


def test_version_1_refuses_an_upgraded_file(old: Path) -> None:
    """P11: its number is greater than the one that version 1 knows, which opens no such file."""
    anyio.run(read, old)
    assert int.from_bytes(old.read_bytes()[60:64], "big") > 1


@pytest.mark.parametrize("options", ["mode=ro", "immutable=1"])
async def test_read_only(old: Path, new: Path, options: str) -> None:
    """P4: it is read as it is, has no events, and is not touched; writing is refused as ever."""
    before, expected = digest(old), await read(new)
    async with SqliteSaver.from_conn_string(f"file:{old}?{options}") as saver:
        assert await everything(saver) == expected
        assert await saver.events("t") == await saver.events("t", since=event(1).key, limit=1) == ()
        claim = await _held_by(new)
        for attempt in (
            saver.claim("w", here("run-2"), now=NOW, expires_at=LATER),
            saver.commit(claim, commit(row(5, 3), head=3, events=[event(5)])),
            saver.commit(claim, commit(events=[event(5)])),
            saver.record(claim, [record(3, "c")], expires_at=LATER),
            saver.release(claim),
            saver.adelete_thread("u"),
        ):
            with pytest.raises(StorageReadOnlyError):
                await attempt
        assert await everything(saver) == expected
    assert digest(old) == before and version_of(old) == 1


async def _held_by(path: Path) -> Any:
    """A claim that is like the one in the file, of the run that holds the thread there."""
    async with SqliteSaver.from_conn_string(path) as saver:
        return await take(saver)


async def test_a_reader_sees_the_upgrade_of_another(old: Path) -> None:
    """P4: opened read-only before the upgrade, a saver reads after it what is stored then, events too."""
    async with SqliteSaver.from_conn_string(f"file:{old}?mode=ro") as reader:
        before = await everything(reader)
        assert await reader.events("u") == ()
        async with SqliteSaver.from_conn_string(old) as saver:
            assert await everything(reader) == before
            claim = await take(saver, "u")
            await saver.commit(claim, commit(events=[event(1, 1, "tail")]))
            assert await reader.events("u") == (event(1, 1, "tail"),)


async def test_version_1_has_the_file_open_meanwhile(old: Path) -> None:
    """P13: it reads what it was reading, goes on to write, and what it deletes is deleted, events too."""
    with connected(old) as theirs:
        ids = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'v'"
        theirs.execute("BEGIN")
        assert theirs.execute(ids).fetchall() == [(cid(1),)]
        async with SqliteSaver.from_conn_string(old) as saver:
            claim = await take(saver, "v")
            await saver.commit(claim, commit(row(2, 1, base=1), head=1, events=[event(1, 1, "tail")], releases=True))
            claim = await take(saver, "u")
            await saver.commit(claim, commit(events=[event(1)], releases=True))
            assert theirs.execute(ids).fetchall() == [(cid(1),)]
            theirs.execute("COMMIT")
            assert theirs.execute(ids).fetchall() == [(cid(1),), (cid(2),)]
            theirs.execute(
                "INSERT INTO checkpoints (thread_id, ns, base_id, checkpoint_id, parent_id, step, metadata, frame) "
                "VALUES ('v', '', ?, ?, ?, 2, '{}', x'00')",
                (cid(1), cid(3), cid(2)),
            )
            chain = await saver.read("v", "", cid(3))
            assert chain is not None and len(chain.rows) == 3
            theirs.execute("BEGIN IMMEDIATE")
            for statement in DELETED_BY_VERSION_1:
                theirs.execute(statement, ("v",))
            theirs.execute("COMMIT")
            assert await saver.events("v") == ()
            assert await saver.events("u") == (event(1),)


async def test_upgraded_by_another_meanwhile(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: found in version 1, and under the lock in version 2: it is done, and not done again."""
    bring_up = schema._bring_up
    expected = await read(new)
    with closing(sqlite3.connect(old, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        def upgraded_by_the_other(*args: Any) -> None:
            for statement in (*schema.MARKS, *schema.MISSING[1]):
                other.execute(statement)
            other.execute("COMMIT")
            bring_up(*args)

        monkeypatch.setattr(schema, "_bring_up", upgraded_by_the_other)
        assert await read(old) == expected


RACE = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.conformance.suite import commit, event, row, take

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1], busy_timeout=60) as saver:
            assert len(await saver.segment("t", "", "000001-checkpoint")) == 2
            claim = await take(saver, sys.argv[2])
            await saver.commit(claim, commit(row(1), events=[event(1)], releases=True))

    print("ready", flush=True)
    sys.stdin.readline()
    anyio.run(main)
"""


def test_eight_processes_open_one_old_file(old: Path, new: Path) -> None:
    """P13: at the same moment; one of them upgrades it, and each stores its thread and its events."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", RACE, str(old), f"race{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * 8

    async def check() -> None:
        async with SqliteSaver.from_conn_string(old) as saver, SqliteSaver.from_conn_string(new) as unraced:
            for number in range(8):
                assert await saver.events(f"race{number}") == (event(1),)
                await saver.adelete_thread(f"race{number}")
            assert await everything(saver) == await everything(unraced)

    anyio.run(check)
    assert layout_of(old) == layout_of(new)


async def test_half_an_upgrade(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: what fails on the way leaves a file of version 1, which the next one upgrades."""
    before, expected = rows_of(old), await read(new)
    layout = layout_of(old)
    for count in range(len(schema.MISSING[1]) + 1):
        with monkeypatch.context() as patch:
            patch.setitem(schema.MISSING, 1, (*schema.MISSING[1][:count], "SELECT no_such_function()"))
            with pytest.raises(CorruptCheckpointError, match="no_such_function"):
                await read(old)
        assert (version_of(old), layout_of(old), rows_of(old)) == (1, layout, before)
    assert not saver_threads()
    assert await read(old) == expected


@pytest.mark.parametrize("name", ["events", "events_go_with_their_thread", "EVENTS"])
async def test_a_name_that_is_taken(old: Path, name: str) -> None:
    """P11: somebody's own table in the file, of the name that is needed: it is not taken for ours."""
    with connected(old) as connection:
        connection.execute(f"CREATE TABLE {name} (theirs)")
    before, layout = rows_of(old), layout_of(old)
    with pytest.raises(CorruptCheckpointError, match=f"{name}.*another name"):
        await read(old)
    assert (version_of(old), layout_of(old), rows_of(old)) == (1, layout, before)
    await read(f"file:{old}?mode=ro")


async def test_a_damaged_file_of_version_1(old: Path) -> None:
    """P11: what is missing is not made up for."""
    with connected(old) as connection:
        connection.execute("DROP TABLE records")
    layout = layout_of(old)
    with pytest.raises(CorruptCheckpointError, match="records"):
        await read(old)
    assert (version_of(old), layout_of(old)) == (1, layout)


async def test_locked_for_too_long(old: Path, new: Path) -> None:
    """P4: while another program writes, opening waits, and then says so; reading it is possible meanwhile."""
    expected = await read(new)
    with locked(old):
        with pytest.raises(StorageLockedError):
            async with SqliteSaver.from_conn_string(old, busy_timeout=0.05):
                pass
        assert not saver_threads()
        assert await read(f"file:{old}?mode=ro") == expected
    assert version_of(old) == 1
    assert await read(old) == expected


def test_busy_while_upgrading(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: where SQLite says busy without waiting, at the beginning or at the end, it is tried again.

    In a file that is not in WAL mode, a reader lets a writer begin, and holds up its COMMIT.
    """
    with connected(old) as first:
        first.execute("PRAGMA journal_mode = DELETE")
    writer, reader = (sqlite3.connect(old, isolation_level=None) for _ in range(2))
    writer.execute("BEGIN IMMEDIATE")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM threads").fetchall()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            writer.execute("ROLLBACK")
        if len(waited) == 4:
            reader.execute("COMMIT")

    monkeypatch.setattr(schema.time, "sleep", sleep)
    with closing(sqlite3.connect(old, isolation_level=None, timeout=0)) as connection:
        schema.prepare(connection, "a file", synchronous="FULL", busy_timeout=60)
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    writer.close()
    reader.close()
    assert len(waited) == 4
