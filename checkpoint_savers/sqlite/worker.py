"""The thread that owns the connection: it takes jobs from any thread, and gives each a transaction.

    worker = Worker(path, ...);  await worker.open()
    value = await worker.run(job)        from any loop of any thread
    await worker.close()

aiosqlite is entered with one call, which serves jobs until the end, from a loop that lives as long as the
connection. Calling it once per transaction, from the callers' loops, would be as fast, but it answers every call on
the loop that made it, and when that loop has been closed, the answer's RuntimeError ends aiosqlite's thread, and
all other callers wait for ever. From one call of long duration there is nothing that a caller's loop could break;
it serves trio in the same way; and jobs that pile up while a commit waits for the disk can share the next one.

Jobs are taken in the order in which they were given, in batches of a bounded size: so nobody waits longer than for
what was given before, and for one batch. In a batch, readers come first, since in WAL mode nobody holds them up; then
the writers in one transaction, each inside a savepoint. A job that fails takes back only its own. When the shared
transaction fails (the disk is full), it is rolled back and each job gets a transaction of its own, so that each is told
what became of it. At last come jobs that can have no transaction around them (VACUUM): those that do the same are done
once for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple, cast

import aiosqlite

from ..bridge import DriverThread, Hosted, Waiter, tell, until
from ..errors import CheckpointError, SaverClosedError
from ..scopes import mark_done
from .failures import is_about_tables, is_busy, translate
from .files import file_of
from .open_file import OpenFile

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_JOBS = 128
"""Of a batch. A commit that waits for the disk has long paid for itself with so many."""

MOST_BYTES = 4_000_000
"""That the jobs of a batch write, unless a single job does: SQLite keeps what a transaction changes in memory."""


class Job(Generic[T]):
    """One transaction to be done, and then what came of it.

    Args:
        work: called in the connection's thread, inside the transaction, with a cursor and `args`. It may be called
            again after a rollback, so it changes nothing but the database.
        args: of a job that is made often: a closure over as many is as many objects for Python's collector.
        writes: whether it needs the write lock.
        size: bytes that it is going to write, about.
        bare: it is called outside of any transaction.
    """

    __slots__ = ("args", "bare", "error", "size", "value", "waiter", "work", "writes")

    def __init__(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        args: tuple[*Ts] = (),  # type: ignore[assignment]  # no arguments: an empty Ts
        *,
        writes: bool,
        size: int = 0,
        bare: bool = False,
    ) -> None:
        self.work: Callable[..., T] = work
        self.args: tuple[Any, ...] = args
        self.writes = writes
        self.size = size
        self.bare = bare
        self.value: T | None = None
        self.error: BaseException | None = None
        self.waiter: Waiter | None = None


class ServingConnection(sqlite3.Connection):
    """A connection on which `execute` runs a callable as well: so it gets into aiosqlite's thread by public means."""

    def execute(self, sql: Any, parameters: Any = (), /) -> sqlite3.Cursor:
        if callable(sql):
            sql(self)
            return self.cursor()
        return super().execute(sql, parameters)


class ClientKind(NamedTuple):
    """Whose connection it is.

    Attributes:
        kind: the class's name: the thread has it, too.
        what: it is: a saver, a store or a cache.
        use: how it is opened.
    """

    class_name: str
    noun: str
    usage: str

    def closed(self, name: str) -> SaverClosedError:
        return SaverClosedError(f"the {self.noun} of {name} is not open in this process: use it {self.usage}")


class Worker(Hosted):
    """One connection and its thread.

    Args:
        database: path or URI.
        name: how messages call the database.
        prepare: checks and sets up the connection before the first job.
        busy_timeout: seconds to wait for another process's lock.
        explain: what to say of a statement that does not fit the tables, where that is not damage.
        watched: whether `database` is the path of a file, which may be replaced while it is open.
        client_kind: whose connection it is.
    """

    def __init__(
        self,
        database: str,
        *,
        name: str,
        uri: bool,
        prepare: Callable[[sqlite3.Connection], object],
        busy_timeout: float,
        explain: Callable[[sqlite3.Connection], BaseException | None] | None = None,
        watched: bool = False,
        client_kind: ClientKind,
    ) -> None:
        self._watched = watched
        self._file: OpenFile | None = None
        self._database = database
        self._name = name
        self._uri = uri
        self._prepare = prepare
        self._busy_timeout = busy_timeout
        self._explain = explain
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()  # between asking whether the worker takes jobs, and giving it one
        self._open = False
        self._client_kind = client_kind
        super().__init__(DriverThread(f"{client_kind.class_name} {name}", self._drive))
        self._thread: threading.Thread | None = None  # aiosqlite's

    # ---- for callers, on any loop ----------------------------------------------------------------------------

    async def run(self, job: Job[T], *, shielded: bool = False) -> T:
        """Have a job done, and return its value or raise its error.

        Args:
            shielded: as in `until`.

        Raises:
            SaverClosedError: the worker is not open, or is in another process.
        """
        try:
            await until(partial(self.submit, job), shielded=shielded)
        except asyncio.CancelledError as cancelled:
            if shielded and job.error is None:
                mark_done(cancelled)
            raise
        if job.error is not None:
            try:
                raise job.error
            finally:
                job.error = None  # else the error's traceback holds this frame, and that the error
        return cast("T", job.value)

    async def close(self) -> None:
        """Let the jobs that were given finish, close the connection, and wait until both threads are gone."""
        if self._host.forked:
            return
        self.stop()
        await self._host.join()

    def stop(self) -> None:
        """Begin to close, without waiting. May be called from a finalizer: takes no lock."""
        self._open = False
        self._queue.put(None)

    @property
    def is_open(self) -> bool:
        return self._open and not self._host.forked

    def submit(self, job: Job[Any], waiter: Waiter | None) -> None:
        """Give a job, without waiting for it. What came of it is in the job when the waiter is told.

        Raises:
            SaverClosedError: as `run`.
        """
        job.waiter = waiter
        if self._host.forked:  # asked before the lock: another thread of the parent may have held it
            raise self._client_kind.closed(self._name)
        with self._lock:
            if not self._open:
                raise self._client_kind.closed(self._name)
            self._queue.put(job)

    # ---- in the driver's thread ------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            connection = aiosqlite.connect(
                self._database, factory=self._connect, isolation_level=None, uri=self._uri, timeout=self._busy_timeout
            )
            async with connection as database:
                await database.execute(cast("str", self._serve))
        except BaseException as error:
            self._failure = translate(error, self._name)
        finally:
            self._open = False
            if self._thread is not None:
                # aiosqlite's thread answers its last call after it has failed to connect, on a loop that has to be
                # there.
                self._thread.join()
            self._fail_queued_jobs()
            self._tell_opener()

    def _fail_queued_jobs(self) -> None:
        with self._lock:
            while not self._queue.empty():
                job = self._queue.get()
                if job is not None:
                    job.error = self._client_kind.closed(self._name)
                    _wake([job])

    # ---- in the connection's thread --------------------------------------------------------------------------

    def _connect(self, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        self._thread = threading.current_thread()
        return ServingConnection(*args, **kwargs)

    def _serve(self, connection: sqlite3.Connection) -> None:
        if self._watched:
            self._file = OpenFile(self._database)
        self._prepare(connection)
        cursor = connection.cursor()
        if self._file is not None:
            cursor.execute("SELECT 1 FROM sqlite_schema").fetchone()  # SQLite opens the log with a first transaction
            self._file.opened(file_of(cursor))
        self._open = True
        self._tell_opener()
        take, empty = self._queue.get, self._queue.empty
        while True:
            job = take()
            if job is None:
                return
            batch, size = [job], job.size
            while len(batch) < MOST_JOBS and size < MOST_BYTES and not empty():
                job = take()
                if job is None:
                    self._queue.put(None)
                    break
                batch.append(job)
                size += job.size
            self._run_batch(cursor, batch)

    def _run_batch(self, cursor: sqlite3.Cursor, batch: list[Job[Any]]) -> None:
        writers: list[Job[Any]] = []
        bare: dict[Callable[[sqlite3.Cursor], Any], list[Job[Any]]] = {}
        for job in batch:
            if job.bare:
                bare.setdefault(job.work, []).append(job)
            elif job.writes:
                writers.append(job)
            else:
                self._run_alone(cursor, job)
                _wake([job])
        if len(writers) < 2 or not self._run_together(cursor, writers):
            for job in writers:
                self._run_alone(cursor, job)
        _wake(writers)
        for work, jobs in bare.items():
            self._run_bare(cursor, work, jobs)
            _wake(jobs)

    def _run_alone(self, cursor: sqlite3.Cursor, job: Job[Any]) -> None:
        """Give a job a transaction of its own."""
        try:
            if job.writes:
                self._begin_writing(cursor)
            else:
                self._begin(cursor, "BEGIN")
            job.value = job.work(cursor, *job.args)
            cursor.execute("COMMIT")
        except BaseException as error:
            job.value = None
            _roll_back(cursor)
            job.error = self._translate(cursor, error)

    def _run_together(self, cursor: sqlite3.Cursor, jobs: list[Job[Any]]) -> bool:
        """Give jobs one transaction. False: it was rolled back, and the jobs are as before."""
        try:
            self._begin_writing(cursor)
        except (sqlite3.Error, CheckpointError) as error:
            _roll_back(cursor)
            for job in jobs:
                job.error = self._translate(cursor, error)
            return True
        try:
            for job in jobs:
                cursor.execute("SAVEPOINT job")
                try:
                    job.value = job.work(cursor, *job.args)
                except BaseException as error:
                    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                        raise  # SQLite may have rolled back all of it; what a constraint refuses is one statement
                    job.error = self._translate(cursor, error)
                    cursor.execute("ROLLBACK TO job")
                cursor.execute("RELEASE job")
            cursor.execute("COMMIT")
        except BaseException:
            _roll_back(cursor)
            for job in jobs:
                job.value = job.error = None
            return False
        return True

    def _run_bare(self, cursor: sqlite3.Cursor, work: Callable[[sqlite3.Cursor], Any], jobs: list[Job[Any]]) -> None:
        """Do outside of any transaction what all these jobs want."""
        try:
            if self._file is not None:
                self._file.check()
            value = self._retry_while_busy(cursor, lambda: work(cursor))
        except BaseException as error:
            for job in jobs:
                job.error = self._translate(cursor, error)
        else:
            for job in jobs:
                job.value = value

    def _begin_writing(self, cursor: sqlite3.Cursor) -> None:
        """Begin a transaction that writes, in a file that is still there: leases, heartbeats, commits.

        Reading transactions need no look. They harm nothing, and are what is left of a file that was removed.
        """
        self._begin(cursor, "BEGIN IMMEDIATE")
        if self._file is not None:
            self._file.check()

    def _begin(self, cursor: sqlite3.Cursor, sql: str) -> None:
        self._retry_while_busy(cursor, lambda: cursor.execute(sql))

    def _retry_while_busy(self, cursor: sqlite3.Cursor, act: Callable[[], T]) -> T:
        """Do what may have to wait for locks.

        SQLite waits by itself, except where it sees that waiting alone could be for ever, or while another process
        opens or recovers the file; then it says busy at once.
        """
        began = time.monotonic()
        if cursor.connection.in_transaction:  # a rollback that failed, too
            cursor.execute("ROLLBACK")
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() - began >= self._busy_timeout:
                    raise
            time.sleep(random.uniform(0.001, 0.02))  # apart from other processes that were told the same

    def _translate(self, cursor: sqlite3.Cursor, error: BaseException) -> BaseException:
        """The error to raise for one that a job has raised."""
        if self._explain is not None and isinstance(error, sqlite3.OperationalError) and is_about_tables(error):
            said = self._explain(cursor.connection)
            if said is not None:
                said.__cause__ = error
                return said
        return translate(error, self._name)


def _wake(jobs: list[Job[Any]]) -> None:
    tell([job.waiter for job in jobs if job.waiter is not None])


def _roll_back(cursor: sqlite3.Cursor) -> None:
    if cursor.connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):  # `_begin` tries again; the error that led here is the one to tell
            cursor.execute("ROLLBACK")
