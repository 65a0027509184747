"""Run jobs in transactions, in the one thread that owns the connection. Jobs may be submitted from any thread.

    worker = Worker(path, ...);  await worker.open()
    value = await worker.run(job)        from any loop of any thread
    await worker.close()

aiosqlite is entered with one call, which serves jobs until the end, from a loop that lives as long as the connection.
One call per transaction, from the callers' loops, would be as fast. But aiosqlite answers each call on the loop that
made it: when that loop has been closed, the answer's RuntimeError ends aiosqlite's thread, and all other callers wait
for ever. With one long call, no caller's loop can break the thread, callers on trio are served in the same way, and
jobs that are queued while a commit waits for the disk can share the next commit.

Jobs are taken in the order in which they were submitted, in batches of bounded size, so a job waits only for those
before it and for its batch. In a batch, readers run first, since in WAL mode nothing blocks them; then all writers in
one transaction, each inside a savepoint. A failing job rolls back only its own changes. Jobs that can share their
statements (commits) run as one, and one by one if that fails. If the shared transaction fails (the disk is full), it is
rolled back and each job gets a transaction of its own, so that each caller gets its own result. Last come jobs that
cannot run in a transaction (VACUUM): equal ones run once for all their callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, cast

import aiosqlite

from ..bridge import DriverThread, Hosted, Waiter, WorkItem, wait_until_woken, wake
from ..errors import CheckpointError, SaverClosedError
from ..scopes import mark_done
from .failures import is_about_tables, is_busy, translate
from .files import file_of
from .open_file import OpenFile

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Args = TypeVar("Args", bound=tuple[Any, ...])

MAX_JOBS = 128
"""Number of jobs in a batch, at most. With so many, one wait for the disk is cheap per job."""

MAX_BYTES = 4_000_000
"""Bytes that the jobs of a batch write, at most, unless a single job writes more: SQLite holds a transaction's changes
in memory."""


class Job(WorkItem[T]):
    """One transaction to run, and then its result.

    Args:
        work: called in the connection's thread, inside the transaction, with a cursor and `args`. It may be called
            again after a rollback, so it must change nothing but the database.
        args: arguments for `work`.
        writes: True if it needs the write lock.
        size: bytes that it is going to write, approximately.
        bare: True to call it outside of any transaction.

    Attributes:
        grouped: True if `work` takes the arguments of any number of jobs, as one sequence: see `of_group`.
    """

    __slots__ = ("args", "bare", "grouped", "size", "work", "writes")

    def __init__(
        self,
        work: Callable[[sqlite3.Cursor, *Ts], T],
        # Arguments instead of a closure, which is an object more for each variable: waiting jobs are many, and Python's
        # collector traverses them all.
        args: tuple[*Ts] = (),  # type: ignore[assignment]  # no arguments: an empty Ts
        *,
        writes: bool,
        size: int = 0,
        bare: bool = False,
    ) -> None:
        super().__init__()
        self.work: Callable[..., T] = work
        self.args: tuple[Any, ...] = args
        self.writes = writes
        self.size = size
        self.bare = bare
        self.grouped = False

    @classmethod
    def of_group(cls, work: Callable[[sqlite3.Cursor, Sequence[Args]], None], args: Args, *, size: int) -> Job[None]:
        """Return a writing job that shares its statements with the jobs around it that have the same `work`.

        Args:
            work: called as for other jobs, with the arguments of one or more jobs, in order. If it raises for several,
                their changes are rolled back and it is called for each of them.
            args: the arguments of this job.
            size: bytes that it is going to write, approximately.

        Returns:
            The job.
        """
        callable_with_all: Any = work
        job: Job[None] = Job(callable_with_all, args, writes=True, size=size)
        job.grouped = True
        return job


class ServingConnection(sqlite3.Connection):
    """A connection whose `execute` also calls a callable: a way into aiosqlite's thread by its public methods."""

    def execute(self, sql: Any, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement, or call `sql` with the connection.

        Args:
            sql: the statement, or a callable.
            parameters: values to bind.

        Returns:
            A cursor.
        """
        if callable(sql):
            sql(self)
            return self.cursor()
        return super().execute(sql, parameters)


class ClientKind(NamedTuple):
    """The kind of client that a connection belongs to, for messages.

    Attributes:
        class_name: the class's name; also in the name of the thread.
        noun: "saver", "store" or "cache".
        usage: how the client is opened.
    """

    class_name: str
    noun: str
    usage: str

    def closed(self, name: str) -> SaverClosedError:
        """Return the error for a client that is not open.

        Args:
            name: how messages name the database.

        Returns:
            The error.
        """
        return SaverClosedError(f"the {self.noun} of {name} is not open in this process: use it {self.usage}")


class Worker(Hosted):
    """One connection and its thread.

    Args:
        database: path or URI.
        name: how messages name the database.
        uri: True if `database` is a URI.
        prepare: checks and sets up the connection before the first job.
        busy_timeout: seconds to wait for another process's lock.
        explain: returns the error for a statement that does not fit the tables, if the cause is not damage; else None.
        watched: True if `database` is the path of a file, which may be replaced while it is open.
        client_kind: the kind of client that the connection belongs to.
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
        self._lock = threading.Lock()  # makes "is the worker open?" and "enqueue the job" one step
        self._open = False
        self._client_kind = client_kind
        super().__init__(DriverThread(f"{client_kind.class_name} {name}", self._drive))
        self._thread: threading.Thread | None = None  # aiosqlite's

    # The methods down to `submit` are called from any thread: they share only the queue and the lock with the others.

    async def run(self, job: Job[T], *, shielded: bool = False) -> T:
        """Run a job, and return its value or raise its error.

        Args:
            job: the job; it is run once.
            shielded: as for `bridge.wait_until_woken`: a cancel scope does not interrupt the wait.

        Returns:
            What the job's work returned.

        Raises:
            SaverClosedError: the worker is not open, or belongs to another process.
        """
        try:
            await wait_until_woken(partial(self.submit, job), shielded=shielded)
        except asyncio.CancelledError as cancelled:
            # The transaction was committed, and only its caller was cancelled. The mark reports that to the code that
            # handles the cancellation.
            if shielded and job.error is None:
                mark_done(cancelled)
            raise
        return job.result()

    async def close(self) -> None:
        """Finish the submitted jobs, close the connection, and wait until both threads have ended."""
        # After a fork, the threads exist in the parent process only: the child would wait for ever.
        if self._host.forked:
            return
        self.stop()
        await self._host.join()

    def stop(self) -> None:
        """Begin to close, without waiting. May be called from a finalizer: it takes no lock."""
        self._open = False
        # A finalizer may run in the midst of `submit`, in the same thread, which then holds the lock already.
        # `SimpleQueue.put` is reentrant.
        self._queue.put(None)

    @property
    def is_open(self) -> bool:
        """True from the end of `open` until `close` or `stop`, in the process that opened it."""
        return self._open and not self._host.forked

    def submit(self, job: Job[Any], waiter: Waiter | None) -> None:
        """Enqueue a job without waiting. The job holds its result when the waiter is woken.

        Args:
            job: the job.
            waiter: woken when the job has ended; None to wake nothing.

        Raises:
            SaverClosedError: the worker is not open, or belongs to another process.
        """
        job.waiter = waiter
        if self._host.forked:  # checked before the lock, which another thread of the parent may have held at the fork
            raise self._client_kind.closed(self._name)
        with self._lock:
            if not self._open:
                raise self._client_kind.closed(self._name)
            self._queue.put(job)

    # The next two run on the driver's loop, which exists only because aiosqlite needs one to be entered from.

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
                # After a failed connect, aiosqlite's thread still answers its last call, on this loop: the loop must
                # not end before.
                self._thread.join()
            self._fail_queued_jobs()
            self._wake_opener()

    def _fail_queued_jobs(self) -> None:
        """Fail the jobs that are still queued. Their callers would wait for ever otherwise."""
        with self._lock:
            while not self._queue.empty():
                job = self._queue.get()
                if job is not None:
                    job.error = self._client_kind.closed(self._name)
                    _wake([job])

    # All that follows runs in the connection's thread, one call after the other: it needs no lock.

    def _connect(self, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        self._thread = threading.current_thread()
        return ServingConnection(*args, **kwargs)

    def _serve(self, connection: sqlite3.Connection) -> None:
        if self._watched:
            self._file = OpenFile(self._database)
        self._prepare(connection)
        cursor = connection.cursor()
        if self._file is not None:
            cursor.execute("SELECT 1 FROM sqlite_schema").fetchone()  # SQLite opens the log in the first transaction
            self._file.opened(file_of(cursor))
        self._open = True
        self._wake_opener()
        take, empty = self._queue.get, self._queue.empty
        while True:
            job = take()
            if job is None:
                return
            # Only jobs that are queued by now join the batch: waiting for more would delay each commit by that time.
            batch, size = [job], job.size
            while len(batch) < MAX_JOBS and size < MAX_BYTES and not empty():
                job = take()
                if job is None:
                    # The sentinel ends the next round of the loop: the jobs before it still have to run.
                    self._queue.put(None)
                    break
                batch.append(job)
                size += job.size
            self._run_batch(cursor, batch)
            del job, batch  # an idle worker must not hold the bytes of its last transaction

    def _run_batch(self, cursor: sqlite3.Cursor, batch: list[Job[Any]]) -> None:
        """Run readers, then writers in one transaction, then bare jobs, and wake their callers as soon as possible."""
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
        # A single writer needs no savepoint. If the group fails, each job runs alone, to get a result of its own.
        if len(writers) < 2 or not self._run_together(cursor, writers):
            for job in writers:
                self._run_alone(cursor, job)
        _wake(writers)
        for work, jobs in bare.items():
            self._run_bare(cursor, work, jobs)
            _wake(jobs)

    def _run_alone(self, cursor: sqlite3.Cursor, job: Job[Any]) -> None:
        """Run a job in a transaction of its own."""
        try:
            if job.writes:
                self._begin_writing(cursor)
            else:
                self._begin(cursor, "BEGIN")
            _call(cursor, [job])
            cursor.execute("COMMIT")
        except BaseException as error:
            # The work may have returned a value before COMMIT failed.
            job.value = None
            _roll_back(cursor)
            job.error = self._translate(cursor, error)

    def _run_together(self, cursor: sqlite3.Cursor, jobs: list[Job[Any]]) -> bool:
        """Run jobs in one transaction. Return False if it was rolled back and no job has a result or an error."""
        try:
            self._begin_writing(cursor)
        except (sqlite3.Error, CheckpointError) as error:
            _roll_back(cursor)
            # The write lock could not be acquired, so each job gets this error. A retry of each job would wait for the
            # lock again.
            for job in jobs:
                job.error = self._translate(cursor, error)
            return True
        try:
            for _, group in groupby(jobs, lambda job: job.work if job.grouped else job):
                self._run_group(cursor, list(group))
            cursor.execute("COMMIT")
        except BaseException:
            _roll_back(cursor)
            for job in jobs:
                job.value = job.error = None
            return False
        return True

    def _run_group(self, cursor: sqlite3.Cursor, jobs: list[Job[Any]]) -> None:
        """Run jobs that share their statements, or a single job, in the shared transaction."""
        failed = False
        cursor.execute("SAVEPOINT job")
        try:
            _call(cursor, jobs)
        except BaseException as error:
            # SQLite may have rolled back the whole transaction, except on a constraint violation, which undoes only its
            # own statement.
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise
            failed = True
            if len(jobs) == 1:
                jobs[0].error = self._translate(cursor, error)
            cursor.execute("ROLLBACK TO job")
        cursor.execute("RELEASE job")
        if failed and len(jobs) > 1:
            for job in jobs:
                self._run_group(cursor, [job])

    def _run_bare(self, cursor: sqlite3.Cursor, work: Callable[[sqlite3.Cursor], Any], jobs: list[Job[Any]]) -> None:
        """Run the work of equal jobs once, outside of any transaction."""
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
        """Begin a writing transaction, if the file is still in place.

        Reading transactions are not checked: they harm nothing, and can still read a file that was removed.
        """
        # IMMEDIATE takes the write lock now. A transaction that upgrades from reading to writing fails with SQLITE_BUSY
        # at once if another process has written meanwhile, and would have to be repeated.
        self._begin(cursor, "BEGIN IMMEDIATE")
        if self._file is not None:
            self._file.check()

    def _begin(self, cursor: sqlite3.Cursor, sql: str) -> None:
        """Begin a transaction."""
        self._retry_while_busy(cursor, lambda: cursor.execute(sql))

    def _retry_while_busy(self, cursor: sqlite3.Cursor, act: Callable[[], T]) -> T:
        """Call `act`, and repeat it while the database is locked.

        SQLite waits by itself, except where waiting might never end (a deadlock) or while another process opens or
        recovers the file: then it reports SQLITE_BUSY at once.
        """
        began = time.monotonic()
        if cursor.connection.in_transaction:  # left by a rollback that failed
            cursor.execute("ROLLBACK")
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() - began >= self._busy_timeout:
                    raise
            time.sleep(random.uniform(0.001, 0.02))  # random, so that processes that collided do not collide again

    def _translate(self, cursor: sqlite3.Cursor, error: BaseException) -> BaseException:
        """Return the error to raise for one that a job raised."""
        # "no such column" may mean that a later version upgraded the file while it was open: then the user needs an
        # update of this package, not a repair.
        if self._explain is not None and isinstance(error, sqlite3.OperationalError) and is_about_tables(error):
            explained = self._explain(cursor.connection)
            if explained is not None:
                explained.__cause__ = error
                return explained
        return translate(error, self._name)


def _call(cursor: sqlite3.Cursor, jobs: list[Job[Any]]) -> None:
    """Call the work of jobs that share their statements, or of a single job."""
    first = jobs[0]
    if first.grouped:
        first.work(cursor, [job.args for job in jobs])
    else:
        first.value = first.work(cursor, *first.args)


def _wake(jobs: list[Job[Any]]) -> None:
    wake([job.waiter for job in jobs if job.waiter is not None])


def _roll_back(cursor: sqlite3.Cursor) -> None:
    if cursor.connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):  # `_begin` tries again; the caller needs the error that led here
            cursor.execute("ROLLBACK")
