"""Exporting and importing threads (P11): they move between savers byte for byte; a file that is damaged, truncated
or newer is refused, and nothing of it is stored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import anyio
import pytest
from msgspec.structs import replace

import checkpoint_savers.upkeep.export as module
from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.atomic_file import AtomicFile
from checkpoint_savers.codec import seal
from checkpoint_savers.errors import (
    CorruptCheckpointError,
    PregelError,
    ThreadBusyError,
    ThreadExistsError,
    ThreadNotFoundError,
    UnsupportedFormatError,
)
from checkpoint_savers.lease import UpkeepLease
from checkpoint_savers.records import ThreadDump
from checkpoint_savers.upkeep.export import _BEGIN, _SUM, MAGIC, ExportWriter, export_threads, import_threads, read_file
from checkpoint_savers.upkeep.threads import load_thread
from pregel_async import Command
from tests.savers.upkeep_graphs import KINDS, Ran, nested, opened, steps

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


async def filled(saver: BaseCheckpointSaver, name: str = "t") -> Any:
    """A thread with a question in a subgraph, records, events and a pin."""
    graph = nested(saver, Ran(), keeps=True)
    async for _ in graph.astream({"log": ["in"]}, name, keep_events=True, version="v2"):
        pass
    await saver.apin(name)
    return graph


async def bytes_of(saver: BaseCheckpointSaver, *names: str) -> bytes:
    file = BytesIO()
    assert await export_threads(saver, names, file) == len(names)
    return file.getvalue()


@pytest.mark.parametrize("target", KINDS)
async def test_from_one_saver_to_another(saver: BaseCheckpointSaver, target: str, tmp_path: Path) -> None:
    """P11: an imported thread equals the exported one byte for byte; readers' cursors are valid, and runs can
    continue it."""
    await filled(saver)
    dump = await saver.dump("t")
    path = tmp_path / "t.thread"
    await saver.aexport_thread("t", path)
    async with opened(target, tmp_path, "other.db") as other:
        assert await other.aimport_thread(path) == "t"
        assert await other.dump("t") == dump
        assert await other.aimport_thread(path.read_bytes(), thread_id="named") == "named"
        renamed = await other.dump("named")
        assert renamed is not None and dump is not None
        assert [row.frame for row in renamed.rows] == [row.frame for row in dump.rows]
        for name in ("t", "named"):
            ran = Ran()
            again = nested(other, ran, keeps=True)
            assert (await again.ainvoke(Command(resume="yes"), name))["log"][-2:] == ["yes", "after"]
            assert ran.names == ["inner ask", "after"]


async def test_cursors_are_valid_in_an_imported_thread(saver: BaseCheckpointSaver) -> None:
    """P4: a reader reconnects there with a cursor from here; the events of the thread's next run come after."""
    graph = nested(saver, Ran())
    for _ in range(3):
        await graph.ainvoke({"log": ["in"]}, "t")
    shown = [
        part
        async for part in graph.astream({"log": ["in"]}, "t", keep_events=True, version="v2", stream_mode="updates")
    ]
    other = InMemorySaver()
    await other.aimport_thread(await bytes_of(saver, "t"))
    again = nested(other, Ran())
    how: Any = {"keep_events": True, "version": "v2", "stream_mode": "updates"}
    more = [part async for part in again.astream(Command(resume="x"), "t", **how)]
    back = [
        part async for part in again.astream(None, "t", after=shown[0]["cursor"], version="v2", stream_mode="updates")
    ]
    assert [part["data"] for part in back] == [part["data"] for part in [*shown[1:], *more]]


async def test_many_threads_in_one_file(saver: BaseCheckpointSaver, tmp_path: Path) -> None:
    """Several threads are written one after the other, unchanged; importing several under one new name is refused."""
    for name in ("a", "b", "ü"):
        await filled(saver, name)
    path = str(tmp_path / "all")
    assert await export_threads(saver, ["a", "b", "ü"], path) == 3
    other = InMemorySaver()
    for wrong in (lambda: other.aimport_thread(path), lambda: import_threads(other, path, thread_id="x")):
        with pytest.raises(ValueError, match="3 threads"):
            await wrong()
    assert await other.threads() == ()
    assert await import_threads(other, path) == ["a", "b", "ü"]
    for name in ("a", "b", "ü"):
        assert await other.dump(name) == await saver.dump(name)
    assert await import_threads(InMemorySaver(), await bytes_of(saver)) == []


async def test_each_thread_once(saver: BaseCheckpointSaver) -> None:
    """P3: a thread that is requested twice is exported once; a file that has one twice is refused before anything is
    stored."""
    for name in ("a", "b"):
        await filled(saver, name)
    data = BytesIO()
    assert await export_threads(saver, ["a", "b", "a"], data) == 2
    assert await import_threads(InMemorySaver(), data.getvalue()) == ["a", "b"]
    dump = await saver.dump("a")
    assert dump is not None
    doubled = BytesIO()
    writer = ExportWriter(doubled)
    for _ in range(2):
        writer.add("a", dump)
    writer.end()
    other = InMemorySaver()
    with pytest.raises(CorruptCheckpointError, match="'a': the file has it twice"):
        await import_threads(other, doubled.getvalue())
    assert await other.threads() == ()


async def test_importing_over_existing_threads(saver: BaseCheckpointSaver, tmp_path: Path) -> None:
    """P3: nothing of a file is stored if one of its thread names exists; a leased thread is busy."""
    for name in ("a", "b"):
        await filled(saver, name)
    data = await bytes_of(saver, "a", "b")
    other = InMemorySaver()
    await steps(other).ainvoke({"log": ["in"]}, "b")
    before = await other.dump("b")
    with pytest.raises(ThreadExistsError, match="'b'"):
        await import_threads(other, data)
    assert await other.dump("a") is None and await other.dump("b") == before
    alone = await bytes_of(saver, "a")
    async with UpkeepLease(other, "a"):
        with pytest.raises(ThreadBusyError):
            await other.aimport_thread(alone)
    assert await other.aimport_thread(BytesIO(alone)) == "a"
    with pytest.raises(ThreadNotFoundError):
        await saver.aexport_thread("never", tmp_path / "never")
    assert list(tmp_path.glob("never*")) == []


async def test_a_file_appears_when_complete(saver: BaseCheckpointSaver, tmp_path: Path) -> None:
    """P4: the existing file stays until then, and no partial file is left."""
    await filled(saver)
    path = tmp_path / "t.thread"
    path.write_bytes(b"the one before")
    with pytest.raises(ThreadNotFoundError):
        await export_threads(saver, ["t", "never"], path)
    assert path.read_bytes() == b"the one before" and not list(tmp_path.glob("*.partial"))
    await saver.aexport_thread("t", path)
    assert [name for name, _ in read_file(BytesIO(path.read_bytes()), "here")] == ["t"]
    with pytest.raises(FileNotFoundError):
        await saver.aexport_thread("t", tmp_path / "no folder" / "t")
    with pytest.raises(FileNotFoundError):
        await saver.aimport_thread(tmp_path / "never")


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files, so that writing more is an error, as on a full disk."""
    resource = pytest.importorskip("resource", reason="this system limits no files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_no_space_for_a_file(saver: BaseCheckpointSaver, tmp_path: Path) -> None:
    """P4: the error is the disk's, and no partial file is left, neither under the file's name nor under another."""
    await filled(saver)
    folder = tmp_path / "exports"
    folder.mkdir()
    with files_of_at_most(100), pytest.raises(OSError, match="too large"):
        await saver.aexport_thread("t", folder / "t")
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX have names")
async def test_a_special_file_is_written_and_not_replaced(saver: BaseCheckpointSaver, tmp_path: Path) -> None:
    """P4: otherwise the superuser would have a file in place of /dev/stdout. (Tested with a pipe, which costs less
    if it fails.)"""
    await filled(saver)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    await saver.aexport_thread("t", pipe)
    assert pipe.is_fifo() and [each.name for each in tmp_path.glob("pipe*")] == ["pipe"]
    reader.join()
    assert read == [await bytes_of(saver, "t")]


class PausedSaver(InMemorySaver):
    """A saver whose `dump` waits for the test's permission."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = anyio.Event(), anyio.Event()

    async def dump(self, thread_id: str) -> ThreadDump | None:
        self.asked.set()
        await self.go_on.wait()
        return await super().dump(thread_id)


async def test_two_exports_to_one_path(tmp_path: Path) -> None:
    """P4: each export writes a file of its own, and the last to finish replaces the other's, complete."""
    path = tmp_path / "t.thread"
    slow, fast = PausedSaver(), InMemorySaver()
    await steps(slow).ainvoke({"log": ["slow"]}, "slow")
    await steps(fast).ainvoke({"log": ["fast"]}, "fast")
    async with anyio.create_task_group() as group:
        group.start_soon(export_threads, slow, ["slow"], path)
        await slow.asked.wait()
        await export_threads(fast, ["fast"], path)
        assert [name for name, _ in read_file(BytesIO(path.read_bytes()), "here")] == ["fast"]
        slow.go_on.set()
    assert [name for name, _ in read_file(BytesIO(path.read_bytes()), "here")] == ["slow"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
async def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private file stays private, also while it is written; a link still leads to its target."""
    saver = InMemorySaver()
    await steps(saver).ainvoke({"log": ["in"]}, "t")
    private, link, new = tmp_path / "private", tmp_path / "link", tmp_path / "new"
    private.write_bytes(b"the one before")
    private.chmod(0o600)
    link.symlink_to(private)
    seen: list[int] = []
    create = AtomicFile.create

    def watched(file: AtomicFile) -> int:
        made = create(file)
        seen.append(file.temporary.stat().st_mode & 0o777)
        return made

    monkeypatch.setattr(AtomicFile, "create", watched)
    await saver.aexport_thread("t", link)
    assert link.is_symlink() and private.read_bytes() != b"the one before"
    assert private.stat().st_mode & 0o777 == 0o600 and seen == [0o600]
    private.chmod(0o664)
    await saver.aexport_thread("t", private)
    assert private.stat().st_mode & 0o777 == 0o664
    await saver.aexport_thread("t", new)
    (tmp_path / "plain").touch()
    assert new.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("verb", ["create", "finish"])
def test_an_export_that_is_cancelled_natively(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: when it returns, its worker thread has finished its step. The file is complete, or there is none."""
    path = tmp_path / "t"
    reached, go_on = threading.Event(), threading.Event()
    method = getattr(AtomicFile, verb)

    def gated(file: AtomicFile) -> Any:
        reached.set()
        go_on.wait()
        return method(file)

    monkeypatch.setattr(AtomicFile, verb, gated)

    async def main() -> None:
        saver = InMemorySaver()
        await steps(saver).ainvoke({"log": ["in"]}, "t")
        export = asyncio.create_task(saver.aexport_thread("t", path))
        while not reached.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            export.cancel()
            await asyncio.sleep(0)
        assert not export.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await export

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == ([path] if verb == "finish" else [])


@pytest.fixture(scope="module")
def small() -> bytes:
    """A file of two small threads."""

    async def made() -> bytes:
        saver = InMemorySaver()
        graph = steps(saver)
        for name in ("a", "b"):
            await graph.ainvoke({"log": ["in"]}, name)
        return await bytes_of(saver, "a", "b")

    return anyio.run(made)


async def refused(data: bytes, error: type[PregelError] = CorruptCheckpointError) -> PregelError:
    saver = InMemorySaver()
    with pytest.raises(error) as caught:
        await import_threads(saver, data)
    assert type(caught.value) is error
    assert await saver.threads() == ()
    return caught.value


def test_truncated_anywhere(small: bytes) -> None:
    """P11: a file that is truncated at any byte is refused."""
    for length in range(len(small)):
        with pytest.raises(CorruptCheckpointError):
            list(read_file(BytesIO(small[:length]), "here"))
    assert len(list(read_file(BytesIO(small), "here"))) == 2


def test_damaged_anywhere(small: bytes) -> None:
    """P11: each byte is changed in one of several ways; no other exception is raised, and no thread is stored."""
    luck = random.Random(0)
    for place in range(len(small)):
        changed = bytearray(small)
        changed[place] ^= luck.choice((0x01, 0x80, 0xFF, luck.randint(1, 255)))
        with pytest.raises(CorruptCheckpointError):
            list(read_file(BytesIO(bytes(changed)), "here"))


def test_misplaced_pieces(small: bytes) -> None:
    """P11: files with missing, repeated or moved pieces are refused."""
    luck = random.Random(1)
    for _ in range(400):
        first, second, third = sorted(luck.sample(range(len(small)), 3))
        a, b, c, d = small[:first], small[first:second], small[second:third], small[third:]
        for other in (a + c + d, a + b + b + c + d, a + c + b + d, small + a):
            if other != small:
                with pytest.raises(CorruptCheckpointError):
                    list(read_file(BytesIO(other), "here"))


async def test_a_file_that_is_no_export(small: bytes) -> None:
    """P11: the error says so, and nothing is stored."""
    for data in (b"", b"{}", MAGIC[:-1], b"\x89PREGEL\n" + small[8:], b"SQLite format 3\0" * 9, small[8:]):
        assert "does not begin like an export" in str(await refused(data))
    assert "truncated" in str(await refused(small[:-1]))
    assert "follows its end" in str(await refused(small + b"x"))
    assert "Export the thread again" in str(await refused(small[:50] + b"\0\0" + small[52:]))


async def test_an_export_of_a_later_version() -> None:
    """P11: the error says to upgrade."""
    start = _BEGIN.pack(MAGIC, 2)
    error = await refused(start + _SUM.pack(crc32(start)) + b"whatever", UnsupportedFormatError)
    assert "Upgrade" in str(error)


class PermissiveWriter(ExportWriter):
    """Writes what `ExportWriter` would refuse."""

    def add(self, thread_id: str, dump: Any) -> None:
        check, module.check_frames = module.check_frames, lambda *_: None
        try:
            super().add(thread_id, dump)
        finally:
            module.check_frames = check


async def test_damaged_frames_in_exports() -> None:
    """P11: a damaged frame is refused by exports and by imports; a newer one by imports."""
    saver = InMemorySaver()
    await filled(saver)
    dump = await saver.dump("t")
    assert dump is not None
    newer = bytearray(seal(b"body"))
    newer[2] = 99
    newer[11:15] = crc32(b"body", crc32(bytes(newer[:11]))).to_bytes(4, "big")
    kinds: dict[str, tuple[Any, ...]] = {"rows": dump.rows, "records": dump.records, "events": dump.events}
    for name, each in kinds.items():
        for frame, error in ((b"no frame", CorruptCheckpointError), (bytes(newer), UnsupportedFormatError)):
            wrong = replace(dump, **{name: (*each[:-1], replace(each[-1], frame=frame))})
            file = BytesIO()
            writer = PermissiveWriter(file)
            writer.add("t", wrong)
            writer.end()
            await refused(file.getvalue(), error)
            other = InMemorySaver()
            await load_thread(other, "t", wrong)
            with pytest.raises(error):
                await other.aexport_thread("t", BytesIO())


async def test_a_file_that_changes(small: bytes) -> None:
    """P11: a file that changes between the check and the import is refused."""

    class Changing(BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            self.truncate(80)
            return super().seek(offset, whence)

    saver = InMemorySaver()
    file: BinaryIO = Changing(small)
    with pytest.raises(CorruptCheckpointError):
        await import_threads(saver, file)
    assert await saver.threads() == ()
