"""`SqliteSaver`: the port's verbs and those for operators, each as a job for the connection's thread."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, TypeVarTuple

import anyio

from ..abc import BaseCheckpointSaver
from ..bridge import Waiter
from ..codec import Codec
from ..errors import CheckpointError, ErasureIncompleteError
from ..listing import Cursor, cursor_before, cursor_of, list_headers
from ..records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Commit,
    EventKey,
    EventRow,
    Header,
    Lease,
    Owner,
    Rewrite,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)
from ..saver_port import PAGE
from . import files, reading, rows, schema, supersteps, upkeep, writing
from .client import SqliteClient
from .files import DatabaseSize
from .ids import write_id
from .worker import ClientKind, Job

if TYPE_CHECKING:
    from .run_store import SqliteRuns

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SqliteSaver(SqliteClient, BaseCheckpointSaver):
    """Stores threads in one SQLite file, which any number of processes on one machine may use at once.

        async with SqliteSaver.from_conn_string("runs.db") as saver:
            ...

    With `synchronous="FULL"`, a commit survives a power loss. With `"NORMAL"`, it survives a crash of the process,
    while a power loss may destroy the last commits (never part of one). SQLite's WAL mode is used, which needs a local
    disk.

    Args:
        path: a file, which is made if it is missing; `":memory:"`; or an SQLite URI (`file:runs.db?mode=ro`).
        codec: turns values into bytes, as for every saver.
        synchronous: "FULL" or "NORMAL"; see above.
        busy_timeout: seconds to wait for another process's lock, before `StorageLockedError`.
        clock: returns the time in unix seconds, as for every saver.

    Raises:
        ValueError: `synchronous` is neither "FULL" nor "NORMAL", or `busy_timeout` is out of range.
    """

    commit_is_shielded = lease_is_shielded = True
    begins_commits = True
    commits_others = True

    _client_kind = ClientKind(
        "SqliteSaver", "saver", "inside 'async with SqliteSaver.from_conn_string(...)', or 'with open_sync(...)'"
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(codec=codec, clock=clock)
        self._configure(path, busy_timeout, synchronous)
        self.synchronous: Literal["FULL", "NORMAL"] = synchronous
        self._refuse_newer = partial(schema.refuse_newer, name=self.path)
        self._held_leases: dict[tuple[str, str], Lease] = {}  # by thread and run: not released yet
        self._acquiring: set[Job[Lease]] = set()  # jobs whose callers do not have their leases yet
        self._runs: SqliteRuns | None = None  # made when it is first asked for

    @classmethod
    def from_conn_string(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Return a saver to be opened with `async with`.

        Args:
            path: a file, `":memory:"` or an SQLite URI, as for the class.
            codec: as for the class.
            synchronous: as for the class.
            busy_timeout: seconds, as for the class.
            clock: unix seconds, as for the class.

        Returns:
            The saver, not open yet.

        Raises:
            ValueError: as for the class.
        """
        return cls(path, codec=codec, synchronous=synchronous, busy_timeout=busy_timeout, clock=clock)

    async def __aenter__(self) -> Self:
        """Open the database, after checking which program made the file.

        Raises:
            CorruptCheckpointError: the file is damaged, or another program's.
            UnsupportedFormatError: a later version of this package made it.
            StorageError: it cannot be opened; `StorageReadOnlyError`: it is new, and cannot be written.
            SaverClosedError: the saver is open already.
        """
        await self._connect(
            # No method: the worker would reference the saver, and Python would not free a saver that was never closed.
            partial(_prepare, name=self.path, synchronous=self.synchronous, busy_timeout=self.busy_timeout),
            partial(schema.other_version, name=self.path),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish the transactions that were begun, and close. May be called on any thread and event loop.

        A run that has not ended can store nothing afterwards. Its lease is released, so that other runs need not wait
        until it expires.
        """
        left = tuple(self._held_leases.values())
        for lease in left:
            self._released(lease)
        # The acquisitions were submitted before and so have ended when these jobs run.
        begun = [Job(_release_acquired, (job,), writes=True) for job in self._acquiring]
        await self._disconnect(*[Job(writing.release, (lease,), writes=True) for lease in left], *begun)

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        job = self._write_job(writing.acquire, (thread_id, owner, now, expires_at, self._refuse_newer))
        self._acquiring.add(job)
        try:
            lease = await self._connection.run(job)
            self._acquired(lease)
            return lease
        except BaseException:
            # Cancelled, but the transaction may have been committed. The caller gets no lease to release, and the
            # thread would stay busy until the lease expires.
            if job.value is not None:
                with anyio.CancelScope(shield=True), contextlib.suppress(CheckpointError):
                    await self.release(job.value)
            raise
        finally:
            self._acquiring.discard(job)

    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        await self._connection.run(self._write_job(writing.renew, (lease, expires_at)))

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self._connection.run(self._commit_job(lease, commit), shielded=True)
        if commit.releases:
            self._released(lease)

    def begin_commit(self, lease: Lease, commit: Commit, waiter: Waiter) -> Callable[[], None]:
        job = self._commit_job(lease, commit)
        self._connection.submit(job, waiter)

        def result() -> None:
            job.result()
            if commit.releases:
                self._released(lease)

        return result

    def _commit_job(self, lease: Lease, commit: Commit) -> Job[None]:
        # Encoded in the caller's thread: the connection's thread, which all callers share, only executes statements.
        columns = writing.bind_commit(lease, commit)
        return Job.of_group(writing.commit, columns, size=columns.size)

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        new = [rows.bind_record(record) for record in records]
        await self._connection.run(self._write_job(writing.record, (lease, new, expires_at), size=_size_of(new)))

    async def release(self, lease: Lease) -> None:
        await self._connection.run(self._write_job(writing.release, (lease,)), shielded=True)
        self._released(lease)

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        gone = [(ns, write_id(id)) for ns, id in change.gone]
        new = [rows.bind_row(row, pinned=row.pinned) for row in change.rows]
        heads = {ns: None if head is None else write_id(head) for ns, head in change.heads.items()}
        events = [write_id(id) for id in change.events]
        pins = {(ns, write_id(id)): pinned for (ns, id), pinned in change.pins.items()}
        job = self._write_job(upkeep.rewrite, (lease, gone, new, heads, events, pins), size=_size_of(new))
        await self._connection.run(job)

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        from . import runs  # imported late: few programs have a service, or change threads

        arguments = (thread_id, dict(changes), self.clock(), self._refuse_newer)
        await self._connection.run(self._write_job(runs.update_thread, arguments))

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        new = [rows.bind_row(row, pinned=row.pinned) for row in dump.rows]
        records = [rows.bind_record(record) for record in dump.records]
        events = [rows.bind_event(event) for event in dump.events]
        heads = {ns: write_id(head) for ns, head in dump.heads.items()}
        size = _size_of(new) + _size_of(records) + _size_of(events)
        columns = lease, heads, new, records, events, dict(dump.metadata), dump.replaces
        job = self._write_job(upkeep.load, columns, size=size)
        await self._connection.run(job)

    async def erase(self, lease: Lease) -> None:
        """Delete everything that is stored of the thread, and rewrite the file so that no byte of it is left.

        The rewrite takes seconds per GB; other processes that write wait as long, up to their `busy_timeout`. Erasures
        that wait at the same time share it.

        Args:
            lease: the lease on the thread.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
            ErasureIncompleteError: the thread is deleted, but the file could not be rewritten, or another connection
                has been reading from the log for longer than the busy timeout. Its message says what to do.
        """
        await self.drop(lease)
        # Once the rows are deleted, a cancellation must not skip the rewrite: a second call would find no thread to
        # erase.
        with anyio.CancelScope(shield=True):
            await self._scrub(lease.thread_id)

    async def drop(self, lease: Lease) -> None:
        """Delete everything that is stored of the thread, without rewriting the file: later writes reuse the space.

        Args:
            lease: the lease on the thread.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
        """
        await self._connection.run(self._write_job(upkeep.erase, (lease,)))
        self._released(lease)
        self._runs_changed(lease.thread_id)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        return await self._read(reading.read, thread_id, ns, checkpoint_id)

    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        return await self._read(reading.segment, thread_id, ns, base_id)

    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        async def page(after: Cursor | None, size: int) -> Sequence[Header]:
            return await self._read(reading.page, thread_id, ns, after, size)

        return await list_headers(page, cursor_before(before), cursor_of, limit, filter)

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        async def page(after: str | None, size: int) -> Sequence[ThreadHeader]:
            return await self._read(reading.threads, after, size)

        return await list_headers(page, after, attrgetter("thread_id"), limit, filter)

    async def heads(self, thread_id: str, ns: str | None = None) -> dict[str, CheckpointId]:
        return await self._read(reading.heads, thread_id, ns)

    async def dump(self, thread_id: str) -> ThreadDump | None:
        return await self._read(reading.dump, thread_id)

    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        return await self._read(reading.events, thread_id, since, limit)

    async def adelete_thread(self, thread_id: str) -> None:
        now = self.clock()
        await self._connection.run(self._write_job(writing.delete_thread, (thread_id, now, self._refuse_newer)))
        self._runs_changed(thread_id)

    async def size(self) -> DatabaseSize:
        """Measure the file, its log, and its free pages.

        Returns:
            The sizes, in bytes.

        Raises:
            StorageError: the database failed, or the saver is not open.
        """
        return await self._connection.run(Job(files.size, writes=False))

    async def vacuum(self) -> None:
        """Rewrite the file without free pages.

        This takes seconds per GB, and as much space on the disk as the file has. Other processes that write wait as
        long, up to their `busy_timeout`.

        Raises:
            StorageFullError, StorageLockedError, StorageReadOnlyError: the file is unchanged.
        """
        await self._connection.run(Job(files.vacuum, writes=True, bare=True))

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the database, as of one moment, to a new file. Runs may continue meanwhile.

        The copy is a database of its own: open it as any other. It gets its name when it is complete; leases in it
        expire in time.

        Args:
            path: path of the new file; nothing may exist there.

        Raises:
            StorageError: something exists there, or the copy cannot be read or written. Nothing was copied.
        """
        target = files.new_file(path)
        file = await self._connection.run(Job(files.file_of, writes=False))
        if not file:  # in memory: no second connection can read it
            await self._connection.run(Job(lambda db: files.copy_now(db.connection, target), writes=False, bare=True))
            return
        name = self.path if self._is_uri else f"{Path(file).as_uri()}?mode=ro"
        await files.copy(
            lambda: sqlite3.connect(name, uri=True, timeout=self.busy_timeout, isolation_level=None), self.path, target
        )

    @property
    def runs(self) -> SqliteRuns:
        if self._runs is None:
            self._runs = _runs_of(self)
        return self._runs

    def _runs_changed(self, thread_id: str) -> None:
        if self._runs is not None:
            self._runs.notify(thread_id)

    def _acquired(self, lease: Lease) -> None:
        self._held_leases[lease.thread_id, lease.owner.run_id] = lease

    def _released(self, lease: Lease) -> None:
        self._held_leases.pop((lease.thread_id, lease.owner.run_id), None)
        if self._runs is not None:
            self._runs.forget(lease)

    def _read(self, work: Callable[[sqlite3.Cursor, *Ts], T], *args: *Ts) -> Coroutine[Any, Any, T]:
        return self._connection.run(Job(work, args, writes=False))

    def _write_job(self, work: Callable[[sqlite3.Cursor, *Ts], T], args: tuple[*Ts], *, size: int = 0) -> Job[T]:
        return Job(work, args, writes=True, size=size)

    async def _scrub(self, thread_id: str) -> None:
        """Rewrite the file, so that no byte of deleted rows is left. Raises `ErasureIncompleteError`."""
        try:
            emptied = await self._vacuum_and_truncate()
        except CheckpointError as error:
            raise ErasureIncompleteError(thread_id, str(error)) from error
        if not emptied:
            raise ErasureIncompleteError(thread_id, "another connection still reads an earlier state of the file")

    async def _vacuum_and_truncate(self) -> bool:
        """Rewrite the file and empty its log.

        Returns False if others read from the log for longer than the busy timeout.
        """
        emptied = await self._connection.run(Job(files.vacuum, writes=True, bare=True))
        deadline = time.monotonic() + self.busy_timeout
        while not emptied and time.monotonic() < deadline:
            # Waits here and not in the connection's thread, so that other jobs run between two attempts.
            await anyio.sleep(random.uniform(0.001, 0.02))
            emptied = await self._connection.run(Job(files.truncate, writes=True, bare=True))
        return emptied


def _runs_of(saver: SqliteSaver) -> SqliteRuns:
    from .run_store import SqliteRuns  # imported late: few programs have a service

    return SqliteRuns(
        lambda: saver._connection,
        acquired=saver._acquired,
        released=saver._released,
        clock=lambda: saver.clock(),
        refuse_newer=saver._refuse_newer,
    )


def _prepare(
    connection: sqlite3.Connection, name: str, *, synchronous: Literal["FULL", "NORMAL"], busy_timeout: float
) -> None:
    schema.prepare(connection, name, synchronous=synchronous, busy_timeout=busy_timeout)
    supersteps.prepare(connection, time.monotonic() + busy_timeout)


def _release_acquired(db: sqlite3.Cursor, acquired: Job[Lease]) -> None:
    """Release the lease that an ended job has acquired, if it has acquired one."""
    if acquired.value is not None:
        writing.release(db, acquired.value)


class _HasFrame(Protocol):
    @property
    def frame(self) -> bytes: ...


def _size_of(frames: Sequence[_HasFrame]) -> int:
    """Return the bytes of all frames."""
    return sum([len(one.frame) for one in frames]) if frames else 0
