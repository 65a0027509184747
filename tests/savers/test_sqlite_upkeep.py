"""Maintenance of SqliteSaver's file: copying during runs, vacuuming, measuring, and the errors if it cannot be
opened, read or written (P3, P4, P11)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import (
    CorruptCheckpointError,
    SqliteSaver,
    StorageError,
    StorageFullError,
    StorageLockedError,
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
from checkpoint_savers.records import Rewrite
from checkpoint_savers.sqlite import files
from checkpoint_savers.sqlite.files import DatabaseSize
from checkpoint_savers.sqlite.schema import VERSION
from tests.savers.sqlite_tools import ENV, held, locked, saver_threads, turns

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[SqliteSaver]:
    async with SqliteSaver.from_conn_string(path, synchronous="NORMAL") as saver:
        yield saver


async def read(path: Path) -> Any:
    async with SqliteSaver.from_conn_string(f"file:{path}?mode=ro") as saver:
        return await everything(saver)


@pytest.mark.parametrize("memory", [False, True])
async def test_a_backup_is_a_database(tmp_path: Path, memory: bool) -> None:
    """P4: a backup is a database of its own, in one file, with all that is stored; leases, too."""
    target = tmp_path / "backup.db"
    async with SqliteSaver.from_conn_string(":memory:" if memory else tmp_path / "threads.db") as saver:
        await written(saver, row(1), row(2, 1, base=1), row(3, ns="child"), thread="u")
        lease = await take(saver)
        await saver.commit(lease, commit(row(1, frame=bytes(100_000)), records=[record(1, "a")], events=[event(1)]))
        await saver.backup(target)
        expected = await everything(saver)
        await saver.commit(lease, commit(row(2, 1, base=1), head=1))
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    async with SqliteSaver.from_conn_string(target) as saver:
        assert await everything(saver) == expected
        assert (await take(saver)).epoch == lease.epoch + 1
        await saver.vacuum()
    assert {file.name for file in tmp_path.iterdir()} - {"threads.db"} == {"backup.db"}


async def test_a_backup_of_a_read_only_file(path: Path, tmp_path: Path) -> None:
    """P4: read permission is enough."""
    async with SqliteSaver.from_conn_string(path) as saver:
        await written(saver, row(1))
    before = path.read_bytes()
    for number, options in enumerate(("mode=ro", "immutable=1")):
        async with SqliteSaver.from_conn_string(f"file:{path}?{options}") as saver:
            await saver.backup(str(tmp_path / f"backup{number}.db"))
            assert await read(tmp_path / f"backup{number}.db") == await everything(saver)
    assert path.read_bytes() == before


class Gate:
    """Pauses a backup after its snapshot is taken, and before it writes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.waiting = 0
        copy_now = files.copy_now

        def stopped(*args: Any) -> None:
            self.waiting += 1
            self.reached.set()
            self.go.wait()
            copy_now(*args)

        patch.setattr(files, "copy_now", stopped)

    async def passed(self) -> None:
        while not self.reached.is_set():
            await anyio.lowlevel.checkpoint()


async def test_a_backup_blocks_no_calls(saver: SqliteSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3, P4: during a backup, threads are written, read, deleted and erased without waiting; the backup has the
    state at its start."""
    monkeypatch.setattr(files, "PAGES", 1)
    await written(saver, *(row(n, n - 1 or None, base=1, frame=bytes(3000)) for n in range(1, 50)), thread="u")
    lease = await take(saver)
    await saver.commit(lease, commit(row(1)))
    before = await everything(saver)
    gate = Gate(monkeypatch)
    async with anyio.create_task_group() as group:
        group.start_soon(saver.backup, tmp_path / "backup.db")
        await gate.passed()
        for number in range(2, 30):
            await saver.commit(lease, commit(row(number, number - 1, base=1), head=number - 1))
        await saver.adelete_thread("u")
        await saver.vacuum()
        assert await head_of(saver) == cid(29) and await head_of(saver, "u") is None
        assert not (tmp_path / "backup.db").exists()
        gate.go.set()
    assert await read(tmp_path / "backup.db") == before
    assert await head_of(saver) == cid(29)


async def test_a_backup_never_tears(saver: SqliteSaver, path: Path, tmp_path: Path) -> None:
    """P3: during commits of this process and of another, each backup has every superstep completely or not at all,
    and all that was acknowledged before it began."""
    lease = await take(saver)
    await saver.commit(lease, commit(row(1), records=[record(1, "r")], events=[event(1)]))
    stored = [1]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline().strip() == b"ready"

        async def write() -> None:
            while True:
                await anyio.lowlevel.checkpoint()  # commit has no checkpoint of its own
                last = stored[0]
                await saver.commit(
                    lease,
                    commit(
                        row(last + 1, last, base=1, frame=bytes(2000)),
                        head=last,
                        records=[record(last + 1, "r")],
                        clears=[record(last, "r")],
                        events=[event(last + 1)],
                    ),
                )
                stored[0] += 1

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            for number in range(10):
                target, known = tmp_path / f"backup{number}.db", stored[0]
                await saver.backup(target)
                with closing(sqlite3.connect(target)) as connection:
                    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                async with SqliteSaver.from_conn_string(target) as copy:
                    for thread in ("t", "other"):
                        dump = await copy.dump(thread)
                        assert dump is not None
                        last = len(dump.rows)
                        assert dump.heads == {"": cid(last)} and dump.rows[-1].checkpoint_id == cid(last)
                        assert [one.checkpoint_id for one in dump.records] == [cid(last)]
                        assert len(dump.events) == last
                        assert thread == "other" or last >= known
            group.cancel_scope.cancel()
        other.kill()


WRITER = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.conformance.savers.suite import commit, event, record, row, take

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1], synchronous="NORMAL", busy_timeout=60) as saver:
            claim = await take(saver, "other")
            await saver.commit(claim, commit(row(1), records=[record(1, "r")], events=[event(1)]))
            print("ready", flush=True)
            n = 1
            while True:
                new = row(n + 1, n, base=1, frame=bytes(2000))
                records, events = [record(n + 1, "r")], [event(n + 1)]
                await saver.commit(claim, commit(new, head=n, records=records, clears=[record(n, "r")], events=events))
                n += 1

    anyio.run(main)
"""


async def test_a_cancelled_copy_leaves_no_file(
    saver: SqliteSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: copying has ended when control returns, and no file is left."""
    monkeypatch.setattr(files, "PAGES", 1)
    await written(saver, row(1, frame=bytes(1_000_000)))
    gate = Gate(monkeypatch)
    async with anyio.create_task_group() as group:
        group.start_soon(saver.backup, tmp_path / "backup.db")
        await gate.passed()
        group.cancel_scope.cancel()
        threading.Timer(0, gate.go.set).start()
    assert gate.go.is_set()
    assert [file.name for file in tmp_path.iterdir() if "backup" in file.name] == []
    assert not [one for one in threading.enumerate() if "backup" in one.name]
    monkeypatch.undo()
    await saver.backup(tmp_path / "backup.db")


KILLED = """if True:
    import anyio, sys
    from checkpoint_savers import SqliteSaver
    from checkpoint_savers.atomic_file import AtomicFile
    from checkpoint_savers.conformance.savers.suite import row, written

    def finish(self, *, replace):
        print("whole, and without its name", flush=True)
        sys.stdin.read()

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
            await written(saver, row(1))
            AtomicFile.finish = finish
            await saver.backup(sys.argv[2])

    anyio.run(main)
"""


async def test_killed_during_a_backup(path: Path, tmp_path: Path) -> None:
    """P3: no file has the backup's name, and the next backup is not affected by the one file that is left."""
    target = tmp_path / "backup.db"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENV,
    ) as process:
        assert process.stdout is not None
        assert b"without its name" in process.stdout.readline()
        process.kill()
    assert not target.exists()
    async with SqliteSaver.from_conn_string(path) as saver:
        (left,) = tmp_path.glob("backup.db*")
        await saver.backup(target)
        assert set(tmp_path.glob("backup.db*")) == {left, target}
        assert await read(target) == await everything(saver)


async def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """P4: not even SQLite's journal, which SQLite leaves behind when the disk fails. Later backups work."""
    resource = pytest.importorskip("resource", reason="this system limits no files")
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db") as saver:
        await written(saver, row(1, frame=os.urandom(3_000_000)))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(StorageError, match=r"backup\.db"):
                await saver.backup(tmp_path / "backup.db")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(tmp_path.glob("backup.db*")) == []
        await saver.backup(tmp_path / "backup.db")
    assert list(tmp_path.glob("backup.db*")) == [tmp_path / "backup.db"]


async def test_two_backups_to_one_path(saver: SqliteSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: one backup is complete. The other is refused, as no file is overwritten."""
    await written(saver, row(1))
    gate = Gate(monkeypatch)
    refused: list[str] = []

    async def back_up() -> None:
        try:
            await saver.backup(tmp_path / "backup.db")
        except StorageError as error:
            refused.append(str(error))

    async with anyio.create_task_group() as group:
        group.start_soon(back_up)
        group.start_soon(back_up)
        while gate.waiting < 2:
            await anyio.lowlevel.checkpoint()
        gate.go.set()
    assert len(refused) == 1 and "exists already" in refused[0]
    assert list(tmp_path.glob("backup.db*")) == [tmp_path / "backup.db"]
    assert await read(tmp_path / "backup.db") == await everything(saver)


async def test_paths_where_a_backup_cannot_be_written(saver: SqliteSaver, path: Path, tmp_path: Path) -> None:
    """P4: nothing is overwritten, and each error names its file."""
    await written(saver, row(1))
    there = tmp_path / "there"
    there.write_text("mine")
    for target in (there, path, tmp_path):
        with pytest.raises(StorageError, match="exists already"):
            await saver.backup(target)
    for target in (tmp_path / "nowhere" / "backup.db", there / "backup.db"):
        with pytest.raises(StorageError) as caught:
            await saver.backup(target)
        assert str(target) in str(caught.value) and caught.value.__cause__ is not None
    assert there.read_text() == "mine"
    assert await head_of(saver) == cid(1)


async def test_vacuum_frees_space(saver: SqliteSaver, path: Path) -> None:
    """P10: only on request; what is stored stays."""
    await written(saver, *(row(n, n - 1 or None, base=1, frame=bytes(20_000)) for n in range(1, 60)), thread="u")
    await written(saver, row(1), row(2, 1, base=1))
    assert (await saver.size()).log > 0
    await saver.vacuum()
    before = await saver.size()
    assert before == DatabaseSize(database=path.stat().st_size, log=0, free=0)
    await saver.adelete_thread("u")
    after = await saver.size()
    assert after.free > 1_000_000 and after.database == before.database
    stored = await everything(saver)
    await saver.vacuum()
    last = await saver.size()
    assert (last.free, last.log, last.database) == (0, 0, path.stat().st_size)
    assert last.database < before.database - 1_000_000
    assert await everything(saver) == stored


async def test_the_size_of_a_database_in_memory() -> None:
    """It has no log."""
    async with SqliteSaver.from_conn_string(":memory:") as saver:
        await written(saver, row(1, frame=bytes(100_000)))
        size = await saver.size()
        assert size.database > 100_000 and size.log == 0
        await saver.adelete_thread("t")
        await saver.vacuum()
        assert (await saver.size()).database < size.database


async def test_vacuum_with_readers_and_writers(saver: SqliteSaver, path: Path) -> None:
    """P4: a reader and a vacuum do not block each other; a writer blocks a vacuum, until the busy timeout."""
    await written(saver, row(1, frame=bytes(100_000)))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM thread").fetchall()
        await saver.vacuum()
        assert len(other.execute("SELECT * FROM thread").fetchall()) == 1
    async with SqliteSaver.from_conn_string(path, busy_timeout=0.05) as short:
        with locked(path):
            with pytest.raises(StorageLockedError):
                await short.vacuum()
            assert await head_of(short) == cid(1)
        await short.vacuum()


async def test_an_upgrade_by_a_later_version_meanwhile(path: Path) -> None:
    """P11: a saver that has the file open raises UnsupportedFormatError from every method, and changes nothing."""
    async with SqliteSaver.from_conn_string(path) as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1)))
        with closing(sqlite3.connect(path, isolation_level=None)) as later:
            later.execute("BEGIN IMMEDIATE")
            for table in ("thread", "space", "checkpoint", "record", "event"):
                later.execute(f"ALTER TABLE {table} RENAME TO {table}_4")
            later.execute(f"PRAGMA user_version = {VERSION + 1}")
            later.execute("COMMIT")
            before = later.execute("SELECT * FROM thread_4").fetchall()
            for attempt in (
                saver.acquire("new", here("run-2"), now=0.0, expires_at=LATER),
                saver.renew(lease, expires_at=LATER),
                saver.commit(lease, commit(row(2, 1), head=1)),
                saver.record(lease, [record(1, "a")], expires_at=LATER),
                saver.release(lease),
                saver.rewrite(lease, Rewrite()),
                saver.erase(lease),
                saver.read("t"),
                saver.segment("t", "", cid(1)),
                saver.scan(None, None),
                saver.threads(),
                saver.dump("t"),
                saver.events("t"),
            ):
                with pytest.raises(UnsupportedFormatError) as caught:
                    await attempt
                assert (caught.value.found, caught.value.supported) == (VERSION + 1, VERSION)
                assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
            with pytest.raises(UnsupportedFormatError):  # the format is checked first
                await saver.adelete_thread("t")
            assert later.execute("SELECT * FROM thread_4").fetchall() == before


PRIVILEGES = """if True:
    import os, sys
    import anyio
    from checkpoint_savers import SqliteSaver, StorageError
    from checkpoint_savers.conformance.savers.suite import take

    async def main():
        async with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
            assert len(await saver.scan(None, None)) == 1
            print("read", flush=True)
            await take(saver, "new")

    async def load():  # all that is needed later: no file of the superuser's can be read then
        async with SqliteSaver.from_conn_string(":memory:") as saver:
            await take(saver)

    anyio.run(load)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        anyio.run(main)
    except StorageError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are another matter there")
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "options", "said"),
    [
        (0o755, 0o444, "", ["read", "StorageReadOnlyError"]),
        (0o555, 0o644, "", ["StorageReadOnlyError", "immutable=1"]),
        (0o555, 0o444, "?mode=ro", ["StorageReadOnlyError", "immutable=1"]),
        (0o555, 0o444, "?immutable=1", ["read", "StorageReadOnlyError"]),
        (0o755, 0o000, "", ["StorageError", "may it be read"]),
        (0o000, 0o644, "", ["StorageError", "may it be read"]),
    ],
)
def test_without_permission(folder_mode: int, file_mode: int, options: str, said: list[str]) -> None:
    """P4: with a file or folder that lacks a permission, what can be read is read, and other calls say why they
    fail."""
    with _folder() as folder:
        path = folder / "threads.db"

        async def make() -> None:
            async with SqliteSaver.from_conn_string(path) as saver:
                await written(saver, row(1))

        anyio.run(make)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
            os.chown(folder, 65534, 65534)
        path.chmod(file_mode)
        folder.chmod(folder_mode)
        found = subprocess.run(
            [sys.executable, "-c", PRIVILEGES, f"file:{path}{options}"], env=ENV, capture_output=True, check=True
        )
        folder.chmod(0o755)
        output = found.stdout.decode()
        assert [one in output for one in said] == [True] * len(said), output + found.stderr.decode()
        assert ("read\n" in output) == ("read" in said)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by the superuser of Linux only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    """P3, P4: every method refuses what does not fit as a whole, with that error; what fits is stored; with free
    space again all calls work."""
    path = small_disk / "threads.db"
    async with SqliteSaver.from_conn_string(path) as saver:
        lease = await take(saver)
        await saver.commit(lease, commit(row(1), records=[record(1, "a")]))
        before = await everything(saver)
        large = row(2, 1, frame=os.urandom(2_000_000))
        for attempt in (
            saver.commit(lease, commit(large, head=1)),
            saver.record(lease, [record(1, "b", frame=bytes(2_000_000))], expires_at=LATER),
            saver.commit(lease, commit(events=[event(1, frame=bytes(2_000_000))])),
            saver.rewrite(lease, Rewrite(rows=(row(1, frame=bytes(2_000_000)),))),
        ):
            with pytest.raises(StorageFullError):
                await attempt
            assert await everything(saver) == before
        head = 1
        with pytest.raises(StorageFullError):
            while True:
                await saver.commit(lease, commit(row(head + 1, head, base=1, frame=bytes(20_000)), head=head))
                head += 1
        assert head > 5 and await head_of(saver) == cid(head)
        with pytest.raises(StorageFullError):
            await saver.vacuum()
        with pytest.raises(StorageFullError) as caught:
            await saver.backup(small_disk / "backup.db")
        assert "backup.db" in str(caught.value)
        assert not [file.name for file in small_disk.iterdir() if "backup" in file.name]
        await saver.backup(tmp_path / "backup.db")
        assert await read(tmp_path / "backup.db") == await everything(saver)
        subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
        await saver.commit(lease, commit(row(head + 1, head, frame=bytes(2_000_000)), head=head))
        await saver.vacuum()
    assert saver_threads() == []


async def test_the_disk_is_full_at_the_start(small_disk: Path) -> None:
    """P4: no file can be set up, and nothing is left running."""
    (small_disk / "filler").write_bytes(bytes(1_000_000))
    with pytest.raises(StorageFullError):
        async with SqliteSaver.from_conn_string(small_disk / "threads.db"):
            pass
    assert saver_threads() == []


@pytest.mark.parametrize("pages", [1, 3, 10])
async def test_a_truncated_file(path: Path, pages: int) -> None:
    """P11: a file that an interrupted copy has truncated is reported as damaged, when it is opened or when the
    missing part is read."""
    async with SqliteSaver.from_conn_string(path) as saver:
        await written(saver, *(row(n, n - 1 or None, base=1, frame=bytes(3000)) for n in range(1, 30)))
    path.write_bytes(path.read_bytes()[: pages * 4096])
    with pytest.raises(CorruptCheckpointError):
        async with SqliteSaver.from_conn_string(path) as saver:
            await saver.read("t")
            await saver.scan("t", "")
    assert saver_threads() == []


async def test_maintenance_calls_after_closing(saver: SqliteSaver, tmp_path: Path) -> None:
    """P7: calls that were submitted before are completed, as others are, and later ones are refused."""
    await written(saver, row(1))
    found: list[DatabaseSize] = []

    async def size() -> None:
        found.append(await saver.size())

    async with anyio.create_task_group() as group, held(saver):
        group.start_soon(size)
        group.start_soon(saver.vacuum)
        await turns()
        group.start_soon(saver.__aexit__, None, None, None)
        await turns()
        for attempt in (saver.size(), saver.vacuum(), saver.backup(tmp_path / "late.db")):
            with pytest.raises(StorageError, match="not open"):
                await attempt
    assert len(found) == 1
