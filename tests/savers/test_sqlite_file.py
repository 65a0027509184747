"""SqliteSaver and its file: whether it belongs to a saver, is writable and is intact (P4, P11)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest

from checkpoint_savers import (
    CorruptCheckpointError,
    SqliteSaver,
    StorageError,
    StorageReadOnlyError,
    UnsupportedFormatError,
)
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    cid,
    commit,
    event,
    everything,
    head_of,
    here,
    record,
    row,
    take,
    written,
)
from checkpoint_savers.sqlite import schema
from checkpoint_savers.sqlite.schema import APPLICATION_ID, VERSION
from tests.savers.sqlite_tools import execute, saver_threads

pytestmark = pytest.mark.anyio


async def pragma(saver: SqliteSaver, name: str) -> Any:
    return await execute(saver, lambda db: db.execute(f"PRAGMA {name}").fetchone()[0])


def contents(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


async def make(path: Path, *, records: bool = False) -> None:
    async with SqliteSaver.from_conn_string(path) as saver:
        await written(saver, row(1), row(2, 1, base=1), row(3, ns="child"))
        if records:
            lease = await take(saver)
            await saver.record(lease, [record(2, "a")], expires_at=LATER)
            await saver.commit(lease, commit(events=[event(1), event(2), event(2, 3, "tail")]))


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_settings_that_durability_depends_on(path: Path, synchronous: Any, level: int) -> None:
    """P4: SQLite uses the `synchronous` setting that was requested; FULL is the default."""
    async with SqliteSaver.from_conn_string(path, synchronous=synchronous) as saver:
        assert await pragma(saver, "synchronous") == level
        assert await pragma(saver, "journal_mode") == "wal"
    for saver in (SqliteSaver.from_conn_string(path), SqliteSaver(path)):
        async with saver:
            assert await pragma(saver, "synchronous") == 2


async def test_invalid_arguments(path: Path) -> None:
    """They are refused before any file is touched."""
    with pytest.raises(ValueError, match="synchronous"):
        SqliteSaver.from_conn_string(path, synchronous="OFF")
    with pytest.raises(ValueError, match="busy_timeout"):
        SqliteSaver.from_conn_string(path, busy_timeout=-1)
    with pytest.raises(ValueError, match="busy_timeout"):
        SqliteSaver.from_conn_string(path, busy_timeout=float("nan"))
    assert not path.exists()


async def test_ways_to_name_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a text, a URI, `:memory:`, and an unusual name all work."""
    await make(path)
    for name in (path, str(path), f"file:{path}", f"file:{path}?mode=rw"):
        async with SqliteSaver.from_conn_string(name) as saver:
            assert await head_of(saver) == cid(2)
    async with SqliteSaver.from_conn_string(":memory:") as saver:
        await written(saver, row(1))
        assert await head_of(saver) == cid(1)
    odd = path.with_name("odd name; ?mode=ro #%41.db")
    await make(odd)
    assert odd.exists()
    monkeypatch.chdir(path.parent)
    async with SqliteSaver.from_conn_string("file:threads.db?mode=ro") as saver:
        assert await head_of(saver) == cid(2)


async def test_the_header_identifies_the_file(path: Path) -> None:
    """P11: application_id and user_version are set, where programs such as `file` look."""
    await make(path)
    header = path.read_bytes()[:100]
    assert header[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"PRGS"
    assert int.from_bytes(header[60:64], "big") == VERSION


async def test_an_empty_file(path: Path) -> None:
    """An empty file is set up like a new one."""
    path.touch()
    await make(path)
    async with SqliteSaver.from_conn_string(path) as saver:
        assert await head_of(saver) == cid(2)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE theirs (a)"],
        ["PRAGMA application_id = 252006674"],
        ["PRAGMA application_id = 252006674", "CREATE TABLE theirs (a)", "PRAGMA user_version = 1"],
        ["PRAGMA user_version = 3"],
        ["PRAGMA application_id = 1347568967", "PRAGMA user_version = 1"],  # before the first release
        ["CREATE VIEW theirs AS SELECT 1"],
        ["CREATE TABLE threads (thread_id)", "CREATE TABLE checkpoints (a)"],
    ],
    ids=" ".join,
)
async def test_a_foreign_database(path: Path, statements: list[str]) -> None:
    """P11: another program's file is refused and left unchanged; it is not even switched to WAL."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    before = contents(path.parent)
    with pytest.raises(CorruptCheckpointError, match="another program"):
        async with SqliteSaver.from_conn_string(path):
            pass
    assert contents(path.parent) == before
    assert not saver_threads()


async def test_a_newer_version(path: Path) -> None:
    """P11: a file of a later version of this package is neither read nor changed."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something_new (a)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    before = contents(path.parent)
    for name in (path, f"file:{path}?mode=ro"):
        with pytest.raises(UnsupportedFormatError) as caught:
            async with SqliteSaver.from_conn_string(name):
                pass
        assert (caught.value.found, caught.value.supported) == (VERSION + 1, VERSION)
    assert contents(path.parent) == before
    assert not saver_threads()


async def test_a_file_with_missing_parts(path: Path) -> None:
    """P11: a saver's file that lacks one of its parts is damaged, and the part is not created anew."""
    await make(path)
    for statement in (
        "DROP TABLE event",
        "DROP INDEX checkpoint_by_id",
        "DROP TABLE metadata",
        "DROP TABLE frame",
        "DROP TABLE space",
    ):
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
        before = path.read_bytes()
        with pytest.raises(CorruptCheckpointError, match=statement.split()[-1]):
            async with SqliteSaver.from_conn_string(path):
                pass
        assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database\n" * 100, b"\x00" * 4096, b"SQLite format 3\x00", os.urandom(5000)])
async def test_a_file_that_is_not_a_database(path: Path, content: bytes) -> None:
    """P11: the error has SQLite's own error as its cause."""
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError) as caught:
        async with SqliteSaver.from_conn_string(path):
            pass
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == content
    assert not saver_threads()


async def test_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    """A missing folder, and a folder in place of the file, raise StorageError with its cause, and nothing is left
    running."""
    for name in (tmp_path / "nowhere" / "x.db", tmp_path, f"file:{tmp_path}/missing.db?mode=ro"):
        with pytest.raises(StorageError) as caught:
            async with SqliteSaver.from_conn_string(name):
                pass
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert str(name) in str(caught.value)
        assert not saver_threads()
    with pytest.raises(ValueError, match="null"):
        async with SqliteSaver.from_conn_string("a\x00b"):
            pass
    assert not saver_threads()


async def test_read_only(path: Path) -> None:
    """Opened with mode=ro, an intact file is read, and every writing method raises StorageReadOnlyError."""
    async with SqliteSaver.from_conn_string(path) as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")], events=[event(1)]))
        before = await everything(saver)
    async with SqliteSaver.from_conn_string(f"file:{path}?mode=ro") as saver:
        assert await everything(saver) == before
        for attempt in (
            saver.acquire("t", here("run-2"), now=LATER, expires_at=LATER),
            saver.acquire("new", here("run-2"), now=LATER, expires_at=LATER),
            saver.renew(lease, expires_at=LATER),
            saver.commit(lease, commit(row(2, 1), head=1)),
            saver.commit(lease, commit(events=[event(2)])),
            saver.record(lease, [record(1, "b")], expires_at=LATER),
            saver.release(lease),
            saver.adelete_thread("u"),
        ):
            with pytest.raises(StorageReadOnlyError) as caught:
                await attempt
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert await everything(saver) == before
    async with SqliteSaver.from_conn_string(path) as saver:
        assert await everything(saver) == before


async def test_read_only_and_empty(path: Path) -> None:
    """Opening an empty file read-only fails: there is nothing to read, and nothing can be set up."""
    path.touch()
    with pytest.raises(StorageReadOnlyError) as caught:
        async with SqliteSaver.from_conn_string(f"file:{path}?mode=ro"):
            pass
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert path.read_bytes() == b""
    assert not saver_threads()


DAMAGE = {
    "metadata that are no JSON": "UPDATE metadata SET text = '{'",
    "metadata that are no object": "UPDATE metadata SET text = '[1]'",
    "metadata that are deep": f"UPDATE metadata SET text = '{'[' * 100_000}'",
    "metadata that are gone": "DELETE FROM metadata",
    "text that is not UTF-8": "UPDATE metadata SET text = CAST(x'fffe' AS TEXT)",
    "a parent that is no id": "UPDATE checkpoint SET parent = x'00' WHERE step = 1",
    "a parent that is a number": "UPDATE checkpoint SET parent = 5 WHERE step = 1",
    "an id that is not UTF-8": "UPDATE checkpoint SET id = id || x'fffe' WHERE step = 1",
    "an id that is stored otherwise": "UPDATE checkpoint SET parent = '000001-checkpoint' WHERE step = 1",
    "a base that is gone": "DELETE FROM checkpoint WHERE base = id",
    "a base that is another": "UPDATE checkpoint SET base = 'x'",
    "a head that is gone": "DELETE FROM checkpoint WHERE step = 1",
    "a frame that is gone": "DELETE FROM frame",
    "a frame that is another's": "UPDATE checkpoint SET frame = (SELECT max(key) FROM frame) WHERE step = 1",
    "a record of no kind": "UPDATE record SET kind = 'other'",
}


@pytest.mark.parametrize("name", DAMAGE)
async def test_damaged_rows(path: Path, name: str) -> None:
    """P11: reading rows that no saver has written raises CorruptCheckpointError, and no other error."""
    await make(path, records=True)
    with sqlite3.connect(path) as connection:
        connection.execute(DAMAGE[name])
    connection.close()
    async with SqliteSaver.from_conn_string(path) as saver:
        with pytest.raises(CorruptCheckpointError):
            await saver.read("t")
        for attempt in (
            saver.segment("t", "", cid(1)),
            saver.scan("t", None),
            saver.scan(None, None),
            saver.threads(),
            saver.dump("t"),
        ):
            with contextlib.suppress(CorruptCheckpointError):
                await attempt


@pytest.mark.parametrize("column", ["frame.data", "record.frame", "event.frame"])
async def test_a_frame_that_is_text(path: Path, column: str) -> None:
    """P11: it is damaged, and is not converted to bytes. (A strict table does not store text there.)"""
    await make(path, records=True)
    table, name = column.split(".")
    connection = sqlite3.connect(path)
    connection.executescript(
        "PRAGMA writable_schema = ON;"
        "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT,', ''), 'STRICT', '');"
        f"PRAGMA writable_schema = RESET; UPDATE {table} SET {name} = 'text';"
    )
    connection.close()
    async with SqliteSaver.from_conn_string(path) as saver:
        with pytest.raises(CorruptCheckpointError, match="frame|bytes"):
            await saver.read("t")
            await saver.events("t")


LAX = "DROP TABLE event; CREATE TABLE event (thread, checkpoint, epoch, position, kind, frame); "
"""A table that accepts values which the real one refuses, as damage of the file's bytes could put them there."""

EVENT_DAMAGE = {
    "a kind that is none": "UPDATE event SET kind = 'other' WHERE position = 3",
    "a kind that is empty": "UPDATE event SET kind = '' WHERE position = 3",
    "a kind that is not UTF-8": "UPDATE event SET kind = CAST(x'fffe' AS TEXT) WHERE position = 3",
    "an id that is not UTF-8": "UPDATE event SET checkpoint = CAST(x'fffe' AS TEXT) WHERE position = 3",
    "an id that is no id": "UPDATE event SET checkpoint = x'32' WHERE position = 3",
    "an id that is a number": "UPDATE event SET checkpoint = 2 WHERE position = 3",
    "an epoch that is a text": LAX + "INSERT INTO event VALUES (1, x'ff', 'one', 1, 'part', x'00')",
    "a position that is a fraction": LAX + "INSERT INTO event VALUES (1, '2', 1, 1.5, 'part', x'00')",
    "a kind that is missing": LAX + "INSERT INTO event VALUES (1, '2', 1, 1, NULL, x'00')",
    "a frame that is a text": LAX + "INSERT INTO event VALUES (1, '2', 1, 1, 'part', 'text')",
    "a frame that is missing": LAX + "INSERT INTO event VALUES (1, '2', 1, 1, 'part', NULL)",
    "a column that is missing": "ALTER TABLE event DROP COLUMN kind",
}


@pytest.mark.parametrize("name", EVENT_DAMAGE)
async def test_damaged_events(path: Path, name: str) -> None:
    """P11: damaged events are reported, too; what is stored next to them is read as it was."""
    await make(path, records=True)
    async with SqliteSaver.from_conn_string(path) as saver:
        chain = await saver.read("t")
    connection = sqlite3.connect(path)
    connection.executescript(EVENT_DAMAGE[name])
    connection.close()
    async with SqliteSaver.from_conn_string(path) as saver:
        with pytest.raises(CorruptCheckpointError):
            await saver.events("t")
        with contextlib.suppress(CorruptCheckpointError):
            await saver.events("t", since=event(2).key)
        assert await saver.read("t") == chain


@pytest.mark.parametrize("value", ["'{'", "'{}'", "'[]'", "CAST(x'ff' AS TEXT)", "'{\"host\": 1}'"])
async def test_a_damaged_owner(path: Path, value: str) -> None:
    """P11, P6: a lease whose owner cannot be read does not count as released."""
    await make(path, records=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE thread SET owner = {value}")
    connection.close()
    async with SqliteSaver.from_conn_string(path) as saver:
        with pytest.raises(CorruptCheckpointError):
            await take(saver, run="run-2")
        with pytest.raises(CorruptCheckpointError):
            await saver.adelete_thread("t")


async def test_a_damaged_file(path: Path) -> None:
    """P11: whichever bytes of the file are damaged, a read returns what was stored or reports damage: never another
    error.

    The saver does not check the bytes inside a frame: the codec does.
    """
    await make(path, records=True)
    whole = path.read_bytes()
    rng = random.Random(7)
    raised = 0
    for number in range(150):
        data = bytearray(whole)
        if number % 3 == 0:
            start = rng.randrange(len(data))
            data[start : start + 200] = rng.randbytes(200)
        elif number % 3 == 1:
            for _ in range(20):
                data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            del data[rng.randrange(len(data)) :]
        target = path.with_name(f"damaged-{number}.db")
        target.write_bytes(data)
        try:
            async with SqliteSaver.from_conn_string(target, busy_timeout=0) as saver:
                await everything(saver)
                await saver.adelete_thread("other")
        except (CorruptCheckpointError, UnsupportedFormatError):
            raised += 1
        assert not saver_threads()
    assert raised > 50


@pytest.mark.parametrize("theirs", [False, True])
async def test_a_file_that_another_process_sets_up_meanwhile(
    path: Path, theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13: if the file is empty at first, and under the lock no longer, the saver uses what the other process
    created, and checks it again."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    bring_up = schema._upgrade

    def created_by_the_other(*args: Any) -> int:
        for statement in ["CREATE TABLE theirs (a)"] if theirs else (*schema.MARKS, *schema.TABLES.values()):
            other.execute(statement)
        other.execute("COMMIT")
        other.close()
        return bring_up(*args)

    monkeypatch.setattr(schema, "_upgrade", created_by_the_other)
    if theirs:
        with pytest.raises(CorruptCheckpointError, match="another program"):
            async with SqliteSaver.from_conn_string(path):
                pass
    else:
        async with SqliteSaver.from_conn_string(path) as saver:
            await written(saver, row(1))


def test_busy_while_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: where SQLite reports busy without waiting, as it may while the file is switched to WAL, opening is tried
    again."""
    anyio.run(make, path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN")
    other.execute("SELECT * FROM thread").fetchall()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            other.execute("COMMIT")
            other.close()

    monkeypatch.setattr(schema.time, "sleep", sleep)
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        schema.prepare(connection, "a file", synchronous="FULL", busy_timeout=60)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    finally:
        connection.close()
    assert len(waited) == 2
