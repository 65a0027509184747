"""SqliteSaver and files that earlier versions of it have made: upgraded in place, or read as they are (P3, P4, P11)."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from checkpoint_savers import (
    CorruptCheckpointError,
    SqliteSaver,
    StorageFullError,
    StorageLockedError,
    StorageReadOnlyError,
)
from checkpoint_savers.conformance.savers.suite import (
    LATER,
    NOW,
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
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit, Rewrite, ThreadDump
from checkpoint_savers.sqlite import schema, upgrade
from checkpoint_savers.sqlite.schema import APPLICATION_ID, VERSION
from checkpoint_savers.sqlite.upgrade import BARRIERS
from tests.savers.sqlite_earlier import OPENINGS, TABLES, connected, write_earlier
from tests.savers.sqlite_tools import ENV, locked, saver_threads, turns

pytestmark = pytest.mark.anyio


def rows_of(path: Path, version: int) -> list[Any]:
    with connected(path) as connection:
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES[version]]


def layout_of(path: Path) -> list[Any]:
    """Tables, index and trigger as they were made; how the statements were indented does not matter."""
    with connected(path) as connection:
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()
    return [(*names, " ".join(sql.split()).replace(" )", ")")) for *names, sql in found if sql is not None]


def version_of(path: Path) -> int:
    with connected(path) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def make(path: Path) -> None:
    async with SqliteSaver.from_conn_string(path) as saver:
        await written(saver, row(1), row(2, 1, base=1), row(3, 1), row(4, ns="child"))
        await written(
            saver,
            row(1, metadata={"name": "日本語"}, frame=bytes(range(256)) * 100),
            thread="u",
            metadata={"name": "日本語"},
        )
        await real(saver, "v")
        await written(saver, row(1, metadata={"step": 0, "z": None, "a": 1e300}), thread="it's", metadata={"a": 1e300})
        await take(saver, "bare", "run-bare")
        claim = await take(saver)
        records = [record(3, "a"), record(3, "b", 1, "error"), record(4, "c", ns="child"), record(9, "d", ns="other")]
        await saver.record(claim, records, expires_at=LATER)
        await saver.commit(claim, commit(events=[event(1), event(3), event(3, 2, "tail"), event(3, 1, epoch=2)]))


UUIDS = tuple(
    CheckpointRow(
        ns="",
        checkpoint_id=CheckpointId(f"0193a1b2-0000-7000-8000-00000000000{number}"),
        parent_id=CheckpointId(f"0193a1b2-0000-7000-8000-00000000000{number - 1}") if number else None,
        base_id=CheckpointId("0193a1b2-0000-7000-8000-000000000000"),
        step=number - 1,
        metadata={"source": "loop", "step": number - 1, "parents": {}, "run_id": "r"},
        frame=b"frame" * number,
    )
    for number in range(5)
)
"""Rows as runs make them."""


async def real(saver: SqliteSaver, thread: str) -> None:
    claim = await take(saver, thread, "run-setup")
    await saver.commit(claim, Commit(rows=UUIDS, expected_head=None, expires_at=LATER, releases=True))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A file of this version: a thread that a run holds, with branches, namespaces, records and events; and more."""
    path = tmp_path / "new.db"
    anyio.run(make, path)
    return path


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture
def old(new: Path, version: int) -> Path:
    """The same, in a file of an earlier version."""
    path = new.with_name("old.db")
    anyio.run(write_earlier, version, new, path)
    return path


async def read(path: Path | str) -> Any:
    """All that can be read; events apart, which version 1 has not."""
    async with SqliteSaver.from_conn_string(path) as saver:
        *rest, events = await everything(saver)
        headers = await saver.threads(limit=1000)
        dumps = [await saver.dump(one.thread_id) for one in headers]
    return rest, headers, [dump and replace(dump, events=()) for dump in dumps], events, dumps


def but_events(found: Any, version: int) -> Any:
    return found if version > 1 else found[:3]


async def test_what_an_earlier_version_has_stored_reads_the_same(old: Path, new: Path, version: int) -> None:
    """P4: all that can be read is the same before and after, in a file that is as if it had been made now."""
    expected = await read(new)
    assert but_events(await read(f"file:{old}?mode=ro"), version) == but_events(expected, version)
    assert version_of(old) == version
    assert but_events(await read(old), version) == but_events(expected, version)
    assert version_of(old) == VERSION == 4
    assert [one for one in layout_of(old) if one[1] not in BARRIERS] == layout_of(new)
    with connected(old) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    again = digest(old)
    assert but_events(await read(old), version) == but_events(expected, version)
    assert digest(old) == again, "upgraded once"


async def test_an_upgraded_file_is_smaller(tmp_path: Path) -> None:
    """P10: after a vacuum, which is up to whoever runs it; and nothing has changed by that."""
    new, old = tmp_path / "new.db", tmp_path / "old.db"
    async with SqliteSaver.from_conn_string(new) as saver:
        for number in range(400):
            await real(saver, f"a thread with a long name, number {number}")
    await write_earlier(2, new, old)
    expected, before = await read(new), old.stat().st_size
    async with SqliteSaver.from_conn_string(old) as saver:
        assert (await saver.size()).free > 0 == (await saver.size()).log
        await saver.vacuum()
        assert (await saver.size()).free == 0
    assert await read(old) == expected
    assert old.stat().st_size < 0.6 * before


async def test_an_upgraded_file_is_written(old: Path, version: int) -> None:
    """P4, P6: the run that held its thread holds it still, and goes on with what is stored."""
    async with SqliteSaver.from_conn_string(old) as saver:
        events = await saver.events("t")
        assert len(events) == (0 if version == 1 else 4)
        claim = await take(saver)
        assert (claim.epoch, claim.newest) == (3, cid(4))
        new = [event(3, 9, "tail", epoch=3), event(5, epoch=3)]
        await saver.commit(claim, commit(row(5, 3, base=3), head=3, events=new, clears=[record(3, "a")]))
        assert await saver.events("t") == (*events, *new)
        chain = await saver.read("t", "", cid(3))
        assert chain is not None and [one.task_id for one in chain.records] == ["b"]
    async with SqliteSaver.from_conn_string(old) as saver:
        assert len(await saver.events("t")) == len(events) + 2
        await saver.release(claim)
        await saver.adelete_thread("t")
        assert await saver.events("t") == () and await saver.dump("t") is None


async def test_what_damage_has_left_without_a_thread(old: Path, new: Path) -> None:
    """P11: it is not dropped, and can be deleted."""
    with connected(old) as connection:
        connection.execute("DELETE FROM heads WHERE thread_id = 'v'")
        connection.execute("DELETE FROM threads WHERE thread_id IN ('u', 'v')")
    async with SqliteSaver.from_conn_string(old) as saver, SqliteSaver.from_conn_string(new) as other:
        assert await saver.read("u") == await other.read("u")
        assert (await saver.dump("u"), len(await saver.scan("v", ""))) == (await other.dump("u"), len(UUIDS))
        assert (await take(saver, "u")).epoch == 2
        await saver.adelete_thread("v")
        assert await saver.scan("v", "") == ()


@pytest.mark.parametrize("text", ["{", "[1]", "5", "{'single': 1}"])
async def test_metadata_that_are_damaged(old: Path, new: Path, text: str) -> None:
    """P11: they do not keep the file from being upgraded, and are damaged as before. The thread has none of its own."""
    async with SqliteSaver.from_conn_string(new) as saver:
        await saver.aupdate_thread("u", {"name": None})
    expected = await read(new)
    with connected(old) as connection:
        connection.execute("UPDATE checkpoints SET metadata = ? WHERE thread_id = 'u'", (text,))
    for name in (f"file:{old}?mode=ro", old, old):
        async with SqliteSaver.from_conn_string(name) as saver:
            with pytest.raises(CorruptCheckpointError):
                await saver.read("u")
            await saver.read("t")
    with connected(old) as connection:
        connection.execute("UPDATE metadata SET text = ? WHERE text = ?", ('{"name":"日本語"}', text))
    assert (await read(old))[:3] == expected[:3]


def test_earlier_versions_refuse_an_upgraded_file(old: Path, version: int) -> None:
    """P11: its number is greater than the one that they know, and they open no such file."""
    anyio.run(read, old)
    assert int.from_bytes(old.read_bytes()[60:64], "big") > version


@pytest.mark.parametrize("options", ["mode=ro", "immutable=1"])
async def test_read_only(old: Path, new: Path, version: int, options: str) -> None:
    """P4: it is read as it is, and is not touched; writing is refused as ever."""
    before, expected = digest(old), await read(new)
    claim = await _held_by(new)
    async with SqliteSaver.from_conn_string(f"file:{old}?{options}") as saver:
        assert (await everything(saver))[:3] == tuple(expected[0])
        (events,) = [dump.events for dump in expected[4] if dump and version > 1 and dump.events] or [()]
        assert len(events) == (4 if version > 1 else 0)
        assert await saver.events("t") == events
        assert await saver.events("t", since=event(3).key, limit=2) == events[1:3]
        assert await saver.threads(after="t", limit=2) == expected[1][-2:]
        assert await saver.threads(filter={"name": "日本語"}) == expected[1][-2:-1]
        assert await saver.scan("t", None, before=cid(4), limit=2, filter={"source": "loop"}) == tuple(
            one for one in expected[0][0] if one.thread_id == "t" and one.checkpoint_id in (cid(3), cid(2))
        )
        assert await saver.read("nobody") is await saver.dump("nobody") is await saver.read("u", "", cid(9)) is None
        for attempt in (
            saver.claim("w", here("run-2"), now=NOW, expires_at=LATER),
            saver.renew(claim, expires_at=LATER),
            saver.commit(claim, commit(row(5, 3), head=3, events=[event(5)])),
            saver.commit(claim, commit(events=[event(5)])),
            saver.record(claim, [record(3, "c")], expires_at=LATER),
            saver.release(claim),
            saver.rewrite(claim, Rewrite()),
            saver.load(claim, ThreadDump(heads={}, rows=(), records=(), events=())),
            saver.erase(claim),
            saver.adelete_thread("u"),
            saver.update_thread("u", {"a": 1}),
            saver.vacuum(),
        ):
            with pytest.raises(StorageReadOnlyError):
                await attempt
        assert (await everything(saver))[:3] == tuple(expected[0])
    assert digest(old) == before and version_of(old) == version


async def _held_by(path: Path) -> Any:
    """A claim that is like the one in the file, of the run that holds the thread there."""
    async with SqliteSaver.from_conn_string(path) as saver:
        return await take(saver)


async def test_a_reader_sees_the_upgrade_of_another(old: Path, new: Path, version: int) -> None:
    """P4: opened read-only before the upgrade, a saver reads after it what is stored then, events too."""
    expected = await read(new)
    async with SqliteSaver.from_conn_string(f"file:{old}?mode=ro") as reader:
        before = await everything(reader)
        assert before[:3] == tuple(expected[0])
        assert await reader.events("u") == ()
        async with SqliteSaver.from_conn_string(old) as saver:
            assert await everything(reader) == before
            assert but_events((before[:3], await reader.threads(limit=1000)), version) == (before[:3], expected[1])
            claim = await take(saver, "u")
            await saver.commit(claim, commit(events=[event(1, 1, "tail")]))
            assert await reader.events("u") == (event(1, 1, "tail"),)
            assert await reader.dump("u") == await saver.dump("u")


# ---- an earlier version has the file open ------------------------------------------------------------------------


@pytest.mark.parametrize("verb", OPENINGS)
async def test_an_earlier_version_has_the_file_open_meanwhile(old: Path, version: int, verb: str) -> None:
    """P3, P4: it reads what it was reading, to the end of that transaction; after that every verb of it is refused,
    with SQLite's error that says why, and changes nothing."""
    if (version, verb) == (1, "events"):
        pytest.skip("files of version 1 have no events")
    values = (1,) * OPENINGS[verb].count("?")
    with connected(old) as theirs:
        theirs.execute(OPENINGS[verb], values)
        theirs.execute("BEGIN")
        assert len(theirs.execute("SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'v'").fetchall()) == 5
        async with SqliteSaver.from_conn_string(old) as saver:
            await take(saver, "v")
            before = await everything(saver)
            assert len(theirs.execute("SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'v'").fetchall()) == 5
            theirs.execute("COMMIT")
            theirs.execute("BEGIN IMMEDIATE" if OPENINGS[verb].startswith("UPDATE") else "BEGIN")
            with pytest.raises(sqlite3.OperationalError, match="upgraded by a later version of pregel-async"):
                theirs.execute(OPENINGS[verb], values)
            theirs.execute("ROLLBACK")
            assert await everything(saver) == before


async def test_an_earlier_version_holds_the_lock(old: Path, new: Path) -> None:
    """P4: what it stores before the upgrade gets the lock is in the upgraded file."""
    with connected(old) as theirs:
        theirs.execute("BEGIN IMMEDIATE")
        theirs.execute("UPDATE heads SET checkpoint_id = ? WHERE thread_id = 'v'", (UUIDS[1].checkpoint_id,))
        opened: list[object] = []

        async def open_it() -> None:
            async with SqliteSaver.from_conn_string(old, busy_timeout=60) as saver:
                opened.append(await head_of(saver, "v"))

        async with anyio.create_task_group() as group:
            group.start_soon(open_it)
            await turns(50)
            assert not opened
            theirs.execute("COMMIT")
        assert opened == [UUIDS[1].checkpoint_id]


async def test_upgraded_by_another_meanwhile(
    old: Path, new: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13: found in an earlier version, and under the lock in this one: it is done, and not done again."""
    bring_up = schema._bring_up
    expected = but_events(await read(new), version)
    with closing(sqlite3.connect(old, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")

        def upgraded_by_the_other(*args: Any) -> int:
            for statement in (*schema.MARKS, *schema.TABLES.values()):
                other.execute(statement)
            upgrade.upgrade(other, version)
            other.execute("COMMIT")
            return bring_up(*args)

        monkeypatch.setattr(schema, "_bring_up", upgraded_by_the_other)
        assert but_events(await read(old), version) == expected


RACE = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.conformance.savers.suite import commit, event, row, take

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
            assert (await everything(saver))[:3] == (await everything(unraced))[:3]

    anyio.run(check)
    assert [one for one in layout_of(old) if one[1] not in BARRIERS] == layout_of(new)


async def test_half_an_upgrade(old: Path, new: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: what fails on the way leaves the file as it was, and the next one upgrades it."""
    before, expected = rows_of(old, version), but_events(await read(new), version)
    layout = layout_of(old)
    for count in range(len(BARRIERS) + 1):
        with monkeypatch.context() as patch:
            done = list(BARRIERS.values())[:count]
            patch.setattr(upgrade, "BARRIERS", dict(enumerate([*done, "SELECT no_such_function()"])))
            with pytest.raises(CorruptCheckpointError, match="no_such_function"):
                await read(old)
        assert (version_of(old), layout_of(old), rows_of(old, version)) == (version, layout, before)
    assert not saver_threads()
    assert but_events(await read(old), version) == expected


async def test_no_room_to_upgrade(old: Path, new: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: on a full disk it says so, and the file stays as it was; it can be read."""
    before, expected = rows_of(old, version), but_events(await read(new), version)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MARKS", ("PRAGMA max_page_count = 20", *schema.MARKS))
        with pytest.raises(StorageFullError):
            await read(old)
    assert (version_of(old), rows_of(old, version)) == (version, before)
    assert but_events(await read(f"file:{old}?mode=ro"), version) == expected
    assert but_events(await read(old), version) == expected


@pytest.mark.parametrize("name", ["thread", "checkpoint_by_id", "FRAME"])
async def test_a_name_that_is_taken(old: Path, version: int, name: str) -> None:
    """P11: somebody's own table in the file, of the name that is needed: it is not taken for ours."""
    with connected(old) as connection:
        connection.execute(f"CREATE TABLE {name} (theirs)")
    before, layout = rows_of(old, version), layout_of(old)
    with pytest.raises(CorruptCheckpointError, match=f"{name}.*another name"):
        await read(old)
    assert (version_of(old), layout_of(old), rows_of(old, version)) == (version, layout, before)
    await read(f"file:{old}?mode=ro")


@pytest.mark.parametrize("version", [1])
async def test_a_table_of_theirs_called_events(old: Path) -> None:
    """P11: version 1 had none of that name, and it stays theirs."""
    with connected(old) as connection:
        connection.execute("CREATE TABLE events (theirs)")
        connection.execute("INSERT INTO events VALUES (7)")
    with pytest.raises(CorruptCheckpointError, match="events.*another name"):
        await read(old)
    assert version_of(old) == 1
    with connected(old) as connection:
        assert connection.execute("SELECT * FROM events").fetchall() == [(7,)]


async def test_a_damaged_file(old: Path, version: int) -> None:
    """P11: what is missing is not made up for."""
    with connected(old) as connection:
        connection.execute("DROP TABLE records")
    layout = layout_of(old)
    with pytest.raises(CorruptCheckpointError, match="records"):
        await read(old)
    assert (version_of(old), layout_of(old)) == (version, layout)


async def test_locked_for_too_long(old: Path, new: Path, version: int) -> None:
    """P4: while another program writes, opening waits, and then says so; reading it is possible meanwhile."""
    expected = but_events(await read(new), version)
    with locked(old):
        with pytest.raises(StorageLockedError):
            async with SqliteSaver.from_conn_string(old, busy_timeout=0.05):
                pass
        assert not saver_threads()
        assert but_events(await read(f"file:{old}?mode=ro"), version) == expected
    assert version_of(old) == version
    assert but_events(await read(old), version) == expected


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


# ---- version 3: the same tables, without metadata of threads --------------------------------------------------------


@pytest.fixture
def third(new: Path) -> Path:
    """The same in a file of version 3."""
    with connected(new) as connection:
        connection.execute("ALTER TABLE thread DROP COLUMN metadata")
        connection.execute("PRAGMA user_version = 3")
    return new


async def test_threads_of_version_3_get_what_their_heads_say(tmp_path: Path, third: Path) -> None:
    """P4: a file of version 3 reads the same before and after, and as one of this version; its threads have the metadata
    that the user gave, in the listing and in a dump."""
    here = tmp_path / "here.db"
    await make(here)
    expected = await read(here)
    assert await read(f"file:{third}?mode=ro") == expected
    assert version_of(third) == 3
    assert await read(third) == expected
    assert version_of(third) == VERSION
    assert sorted(layout_of(third)) == sorted(layout_of(here))
    again = digest(third)
    assert await read(third) == expected
    assert digest(third) == again, "upgraded once"
    async with SqliteSaver.from_conn_string(third) as saver:
        await saver.aupdate_thread("u", {"name": None, "title": "x"})
        assert [one.thread_id async for one in saver.alist_threads(filter={"title": "x"})] == ["u"]


async def test_half_an_upgrade_of_version_3(third: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: it is one transaction: where it ends before its time, the file is of version 3."""

    def fails(*_: object) -> None:
        raise RuntimeError("no further")

    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "write_metadata", fails)
        with pytest.raises(RuntimeError, match="no further"):
            await read(third)
    assert version_of(third) == 3
    with connected(third) as connection:
        assert "metadata" not in {column[1] for column in connection.execute("PRAGMA table_info(thread)")}
    await read(third)
    assert version_of(third) == VERSION


async def test_damaged_metadata_of_version_3(third: Path) -> None:
    """P11: a damaged text is no hindrance to the upgrade, and stays what it is; its thread has no metadata."""
    with connected(third) as connection:
        connection.execute("UPDATE metadata SET text = '{' WHERE text LIKE '%name%'")
    async with SqliteSaver.from_conn_string(third) as saver:
        assert {one.thread_id: one.metadata for one in await saver.threads()}["u"] == {}
        with pytest.raises(CorruptCheckpointError):
            await saver.read("u")
