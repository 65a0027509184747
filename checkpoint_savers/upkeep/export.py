"""Threads in a file: byte for byte as they are stored, for import into any saver.

    magic (8) | format (2) | checksum (4)                       the file's header
    tag (1) | length (8) | checksum (4) | body | checksum (4)   blocks, one after the other

A block is a thread (T: its id, its heads and how many blocks of each kind follow), a checkpoint (C), a task's record
(R), a row of events (E), or the end of the file (Z: the number of threads). A checksum covers all of the file before
it, so that a block that is damaged, missing, duplicated or misplaced is detected at its position; a file without an end
block was truncated. Bodies are MessagePack. They contain frames as they are stored.

An import reads the file twice: nothing is stored before the whole file has been checked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from io import BufferedReader, BufferedWriter, BytesIO, FileIO
from struct import Struct
from threading import Thread
from typing import BinaryIO, Final, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from ..atomic_file import AtomicFile, is_regular_or_new
from ..bridge import Waiter, wait_until_woken, wake
from ..codec import unseal
from ..errors import CorruptCheckpointError, ThreadExistsError, ThreadNotFoundError, UnsupportedFormatError
from ..listing import check_parents
from ..metadata import TextRow, read_metadata, text_row, write_metadata
from ..records import CheckpointId, EventRow, TaskRecord, ThreadDump
from ..saver_port import SaverPort
from .threads import load_thread, renamed

MAGIC: Final = b"\x89PREGT\r\n"
"""No text file begins like this, and a transfer in text mode would change it."""

EXPORT_FORMAT: Final = 1
"""The number of the layout above, which this version writes."""

Place: TypeAlias = str | os.PathLike[str] | BinaryIO
"""A file by its path, or open in binary mode."""

T = TypeVar("T")

_BEGIN = Struct(">8sH")
_BLOCK = Struct(">cQ")
_SUM = Struct(">I")

_ADVICE = "Export the thread again"


class _ThreadBlock(msgspec.Struct, array_like=True, frozen=True):
    """The block with which a thread begins. Here and below: new fields are appended, with a default."""

    thread_id: str
    heads: dict[str, CheckpointId]
    rows: int
    records: int
    events: int
    metadata: str


class _RecordBlock(TaskRecord, array_like=True, frozen=True, kw_only=True):
    pass


class _EventBlock(EventRow, array_like=True, frozen=True, kw_only=True):
    pass


_encode = msgspec.msgpack.Encoder().encode


class ExportWriter:
    """Writes threads to a file. The file is complete when `end` has returned.

    Args:
        file: open in binary mode.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = 0
        self._threads = 0
        start = _BEGIN.pack(MAGIC, EXPORT_FORMAT)
        self._write(start)
        self._check()

    def add(self, thread_id: str, dump: ThreadDump) -> None:
        """Write a thread.

        Args:
            thread_id: the thread's id.
            dump: what is stored of it.

        Raises:
            CorruptCheckpointError: what is stored is damaged. The file is useless then.
            UnsupportedFormatError: a frame is in a format of a later version.
        """
        check_frames(thread_id, dump)
        counts = len(dump.rows), len(dump.records), len(dump.events)
        self._block(b"T", _encode(_ThreadBlock(thread_id, dump.heads, *counts, write_metadata(dump.metadata))))
        for row in dump.rows:
            self._block(b"C", _encode(text_row(row, pinned=row.pinned)))
        for record in dump.records:
            self._block(b"R", _encode(_RecordBlock(**msgspec.structs.asdict(record))))
        for event in dump.events:
            self._block(b"E", _encode(_EventBlock(**msgspec.structs.asdict(event))))
        self._threads += 1

    def end(self) -> None:
        """Write the end block, and flush the file's buffer."""
        self._block(b"Z", _encode(self._threads))
        self._file.flush()

    def _block(self, tag: bytes, body: bytes) -> None:
        self._write(_BLOCK.pack(tag, len(body)))
        self._check()
        self._write(body)
        self._check()

    def _write(self, data: bytes) -> None:
        self._sum = crc32(data, self._sum)
        self._file.write(data)

    def _check(self) -> None:
        self._write(_SUM.pack(self._sum))


def check_frames(thread_id: str, dump: ThreadDump) -> None:
    """Check that all frames of a thread are complete, and in a format that this version reads.

    Args:
        thread_id: the thread's id, for errors.
        dump: what is stored of it.

    Raises:
        CorruptCheckpointError: a frame is damaged.
        UnsupportedFormatError: a frame is in a format of a later version.
    """
    where = f"thread {thread_id!r}"
    for row in dump.rows:
        unseal(row.frame, f"{where}, checkpoint {row.checkpoint_id}")
    for record in dump.records:
        unseal(record.frame, f"{where}, checkpoint {record.checkpoint_id}, record of task {record.task_id!r}")
    for event in dump.events:
        unseal(event.frame, f"{where}, the events on checkpoint {event.checkpoint_id}")


def read_file(file: BinaryIO, where: str) -> Iterator[tuple[str, ThreadDump]]:
    """Read the threads of a file, one after the other.

    Args:
        file: open in binary mode, at the beginning of the export.
        where: what is being read, for errors.

    Yields:
        Id and dump of each thread.

    Raises:
        CorruptCheckpointError: the file is not an export, or is damaged or truncated.
        UnsupportedFormatError: the file, or a frame in it, is in a format of a later version.
    """
    blocks = _Blocks(file, where)
    known: set[str] = set()
    while True:
        tag, body = blocks.next()
        if tag == b"Z":
            if _decoded(body, int, where) != len(known):
                raise _damaged(where, f"it ends after {len(known)} threads, and there were more")
            if file.read(1):
                raise _damaged(where, "something follows its end")
            return
        if tag != b"T":
            raise _damaged(where, f"a block {tag!r} is where a thread should begin")
        begin = _decoded(body, _ThreadBlock, where)
        here = f"{where}, thread {begin.thread_id!r}"
        if begin.thread_id in known:
            raise _damaged(here, "the file has it twice")
        rows = [_decoded(blocks.of(b"C"), TextRow, here).row(f"{here}, ") for _ in range(begin.rows)]
        records = [_decoded(blocks.of(b"R"), _RecordBlock, here) for _ in range(begin.records)]
        events = [_decoded(blocks.of(b"E"), _EventBlock, here) for _ in range(begin.events)]
        dump = ThreadDump(
            heads=begin.heads,
            rows=tuple(rows),
            records=tuple([TaskRecord(**msgspec.structs.asdict(record)) for record in records]),
            events=tuple([EventRow(**msgspec.structs.asdict(event)) for event in events]),
            metadata=read_metadata(begin.metadata, here),
        )
        check_frames(begin.thread_id, dump)
        known.add(begin.thread_id)
        yield begin.thread_id, dump


class _Blocks:
    """Reads the blocks of a file, and verifies their checksums."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._where = where
        self._sum = 0
        start = self._file.read(_BEGIN.size)
        if len(start) < _BEGIN.size or not start.startswith(MAGIC):
            raise _damaged(where, "it does not begin like an export of threads")
        self._sum = crc32(start)
        self._check()
        _, number = _BEGIN.unpack(start)
        if number > EXPORT_FORMAT:
            raise UnsupportedFormatError(where, number, EXPORT_FORMAT)

    def next(self) -> tuple[bytes, bytes]:
        """Return the next block's tag and body."""
        start = self._read(_BLOCK.size)
        self._check()  # a damaged length would make the next read allocate any amount of memory
        tag, length = _BLOCK.unpack(start)
        body = self._read(length)
        self._check()
        return tag, body

    def of(self, tag: bytes) -> bytes:
        """Return the body of the next block, which must have this tag."""
        found, body = self.next()
        if found != tag:
            raise _damaged(self._where, f"a block {found!r} is where a block {tag!r} should be")
        return body

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise _damaged(self._where, "it was truncated: its end is missing")
        self._sum = crc32(data, self._sum)
        return data

    def _check(self) -> None:
        expected = self._sum
        if _SUM.unpack(self._read(_SUM.size))[0] != expected:
            raise _damaged(self._where, "a checksum is wrong: it is damaged")


def _decoded(body: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise _damaged(where, f"a block cannot be read ({error})") from error


def _damaged(where: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(where, reason, _ADVICE)


async def export_threads(saver: SaverPort, thread_ids: Iterable[str], target: Place) -> int:
    """Write threads to a file, one after the other: only one is held in memory at a time.

    Args:
        saver: stores the threads.
        thread_ids: the threads; each is written once.
        target: a path, at which the file appears when it is complete, and replaces another of that name, whose
            permissions it takes over; or an open file. Two concurrent exports to one path both succeed, and the last
            one remains.

    Returns:
        The number of threads written.

    Raises:
        ThreadNotFoundError: nothing is stored of one of them.
        CorruptCheckpointError: stored data of a thread is damaged.
        StorageError: storage failed.
        OSError: the file could not be written.
    """
    count = 0
    async with _written(target) as file:
        writer = await _in_worker_thread(lambda: ExportWriter(file))
        for thread_id in dict.fromkeys(thread_ids):
            dump = await saver.dump(thread_id)
            if dump is None:
                raise ThreadNotFoundError(thread_id)
            check_parents(thread_id, dump.rows)
            await _in_worker_thread(partial(writer.add, thread_id, dump))
            count += 1
        await _in_worker_thread(writer.end)
    return count


async def import_threads(saver: SaverPort, source: Place | bytes, *, thread_id: str | None = None) -> list[str]:
    """Create threads from a file.

    Args:
        saver: stores the new threads.
        source: a path, an open file that can be read twice, or the file's bytes.
        thread_id: the id of the file's only thread; None for the ids in the file.

    Returns:
        The ids of the new threads.

    Raises:
        CorruptCheckpointError, UnsupportedFormatError: as `read_file`; nothing was stored.
        ThreadExistsError: a thread with one of these ids holds something; nothing was stored.
        ValueError: an id is given, and the file does not have exactly one thread; nothing was stored.
        ThreadBusyError, StorageError: the threads before that one are stored.
        OSError: the file could not be read.
    """
    return await _import(saver, source, thread_id, alone=thread_id is not None)


async def import_thread(saver: SaverPort, source: Place | bytes, *, thread_id: str | None = None) -> str:
    """Create a thread from a file that has exactly one.

    Args:
        saver: stores the new thread.
        source: a path, an open file that can be read twice, or the file's bytes.
        thread_id: the thread's id; None for the one in the file.

    Returns:
        The thread's id.

    Raises:
        ValueError: the file does not have exactly one thread; nothing was stored.
        CorruptCheckpointError, UnsupportedFormatError, ThreadExistsError, ThreadBusyError, StorageError, OSError: as
            `import_threads`.
    """
    return (await _import(saver, source, thread_id, alone=True))[0]


async def _import(saver: SaverPort, source: Place | bytes, thread_id: str | None, *, alone: bool) -> list[str]:
    async with _opened(source) as (file, where):
        start = await _in_worker_thread(file.tell)
        names = await _in_worker_thread(lambda: [name for name, _ in read_file(file, where)])
        if alone and len(names) != 1:
            raise ValueError(
                f"{where} has {len(names)} threads, and not one. Import all, under their own names: "
                "'pregel-async threads import' without --as, or checkpoint_savers.upkeep.export.import_threads()"
            )
        made = names if thread_id is None else [thread_id]
        for name in made:
            if await saver.scan(name, None, limit=1):
                raise ThreadExistsError(name)
        await _in_worker_thread(lambda: file.seek(start))
        threads = read_file(file, where)
        for target in made:
            name, dump = await _in_worker_thread(lambda: _next(threads, where))
            await load_thread(saver, target, dump if target == name else renamed(dump, name))
    return made


@asynccontextmanager
async def _written(target: Place) -> AsyncGenerator[BinaryIO, None]:
    if not isinstance(target, (str, os.PathLike)):
        yield target
        return
    made = _Target(target)
    try:
        yield await _in_worker_thread(made.open)
        await _in_worker_thread(made.finish)
    except BaseException:
        made.discard()
        raise


class _Target:
    """A file that is written by its path. Its state is kept here, as a cancelled caller sees no return value."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file: BufferedWriter | None = None
        self._atomic: AtomicFile | None = None

    def open(self) -> BufferedWriter:
        # Pipes and devices, such as /dev/stdout, are written directly: a rename would replace them with a file.
        if is_regular_or_new(self._path):
            self._atomic = AtomicFile(self._path)
            self._file = BufferedWriter(FileIO(self._atomic.create(), "wb"))
        else:
            self._file = BufferedWriter(FileIO(self._path, "wb"))
        return self._file

    def finish(self) -> None:
        assert self._file is not None
        self._file.flush()
        if self._atomic is not None:
            os.fsync(self._file.fileno())
        self._file.close()
        if self._atomic is not None:
            self._atomic.finish()

    def discard(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # flushing the rest of its buffer may fail like the write did
                self._file.close()
        if self._atomic is not None:
            self._atomic.discard()


@asynccontextmanager
async def _opened(source: Place | bytes) -> AsyncGenerator[tuple[BinaryIO, str], None]:
    if isinstance(source, bytes):
        yield BytesIO(source), "the bytes to be imported"
    elif isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        # A list and not a return value: a cancelled caller never sees the latter, and could not close the file.
        files: list[BufferedReader] = []
        try:
            await _in_worker_thread(lambda: files.append(BufferedReader(FileIO(path))))
            yield files[0], f"file {path!r}"
        finally:
            for file in files:
                file.close()
    else:
        yield source, f"file {getattr(source, 'name', 'to be imported')!r}"


def _next(threads: Iterator[tuple[str, ThreadDump]], where: str) -> tuple[str, ThreadDump]:
    found = next(threads, None)
    if found is None:
        raise _damaged(where, "it was changed while it was read")
    return found


async def _in_worker_thread(work: Callable[[], T]) -> T:
    """Call a function in a worker thread: disk I/O would block the event loop.

    It has ended when this returns or raises, even if the caller is cancelled: so the file may then be closed and
    deleted.
    """
    values: list[T] = []
    failures: list[BaseException] = []

    def run(waiter: Waiter) -> None:
        try:
            values.append(work())
        except BaseException as error:
            failures.append(error)
        finally:
            wake((waiter,))

    await wait_until_woken(
        lambda waiter: Thread(target=run, args=(waiter,), name="file of threads", daemon=True).start()
    )
    if failures:
        try:
            raise failures[0]
        finally:
            failures.clear()  # breaks the reference cycle: error, traceback, this frame, error
    return values[0]
