"""The thread that owns the connection: it takes jobs from any thread, and gives each a transaction.

    worker = Worker(path, ...);  await worker.open()
    value = await worker.run(job)        from any loop of any thread
    await worker.close()

aiosqlite is entered with one call, which serves jobs until the end, from a loop that lives as long as the
connection. Calling it once per transaction, from the callers' loops, would be as fast, but it answers every call on
the loop that made it, and when that loop has been closed, the answer's RuntimeError ends aiosqlite's thread, and
all other callers wait for ever. From one call of long duration there is nothing that a caller's loop could break;
it serves trio in the same way; and jobs that pile up while a commit waits for the disk can share the next one.

Jobs of one batch: readers first, since in WAL mode nobody holds them up; then the writers in one transaction, each
inside a savepoint. A job that fails takes back only its own. When the shared transaction fails (the disk is full),
it is rolled back and each job gets a transaction of its own, so that each is told what became of it.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import aiosqlite
import anyio

from ..bridge import DriverThread, Waiter, tell, until
from ..errors import SaverClosedError
from .failures import is_busy, translate

T = TypeVar("T")


class Job(Generic[T]):
    """One transaction to be done, and then what came of it.

    Args:
        work: called in the connection's thread, inside the transaction, with a cursor. It may be called again after a
            rollback, so it changes nothing but the database.
        writes: whether it needs the write lock.
    """

    __slots__ = ("error", "value", "waiter", "work", "writes")

    def __init__(self, work: Callable[[sqlite3.Cursor], T], *, writes: bool) -> None:
        self.work = work
        self.writes = writes
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


class Worker:
    """One connection and its thread.

    Args:
        database: path or URI.
        name: how messages call the database.
        prepare: checks and sets up the connection before the first job.
        busy_timeout: seconds to wait for another process's lock.
    """

    def __init__(
        self,
        database: str,
        *,
        name: str,
        uri: bool,
        prepare: Callable[[sqlite3.Connection], None],
        busy_timeout: float,
    ) -> None:
        self._database = database
        self._name = name
        self._uri = uri
        self._prepare = prepare
        self._busy_timeout = busy_timeout
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()  # between asking whether the worker takes jobs, and giving it one
        self._open = False
        self._driver = DriverThread(f"SqliteSaver {name}", self._drive)
        self._thread: threading.Thread | None = None  # aiosqlite's
        self._failure: BaseException | None = None
        self._opener: Waiter | None = None  # who waits in `open`
        self._started = False

    # ---- for callers, on any loop ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the thread, open and check the database. After an error nothing is left running."""
        try:
            await until(self._start)
        except BaseException:  # cancelled
            if self._started:
                with anyio.CancelScope(shield=True):
                    await self.close()
            raise
        if self._failure is not None:
            with anyio.CancelScope(shield=True):
                await self._driver.join()
            raise self._failure

    async def run(self, job: Job[T]) -> T:
        """Have a job done, and return its value or raise its error.

        Raises:
            SaverClosedError: the worker is not open, or is in another process.
        """
        await until(lambda waiter: self._submit(job, waiter))
        if job.error is not None:
            try:
                raise job.error
            finally:
                job.error = None  # else the error's traceback holds this frame, and that the error
        return cast("T", job.value)

    async def close(self) -> None:
        """Let the jobs that were given finish, close the connection, and wait until both threads are gone."""
        if self._driver.forked:
            return
        self.stop()
        await self._driver.join()

    def stop(self) -> None:
        """Begin to close, without waiting. May be called from a finalizer: takes no lock."""
        self._open = False
        self._queue.put(None)

    @property
    def is_open(self) -> bool:
        return self._open and not self._driver.forked

    def _start(self, waiter: Waiter) -> None:
        self._opener = waiter
        self._driver.start()
        self._started = True

    def _submit(self, job: Job[Any], waiter: Waiter) -> None:
        job.waiter = waiter
        if self._driver.forked:  # asked before the lock: another thread of the parent may have held it
            raise closed(self._name)
        with self._lock:
            if not self._open:
                raise closed(self._name)
            self._queue.put(job)

    # ---- in the driver's thread ------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            connection = aiosqlite.connect(
                self._database,
                factory=self._connect,
                isolation_level=None,
                uri=self._uri,
                timeout=self._busy_timeout,
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
            self._refuse_rest()
            self._tell_opener()

    def _refuse_rest(self) -> None:
        with self._lock:
            while not self._queue.empty():
                job = self._queue.get()
                if job is not None:
                    job.error = closed(self._name)
                    _tell([job])

    def _tell_opener(self) -> None:
        waiter, self._opener = self._opener, None
        if waiter is not None:
            tell((waiter,))

    # ---- in the connection's thread --------------------------------------------------------------------------

    def _connect(self, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        self._thread = threading.current_thread()
        return ServingConnection(*args, **kwargs)

    def _serve(self, connection: sqlite3.Connection) -> None:
        self._prepare(connection)
        cursor = connection.cursor()
        self._open = True
        self._tell_opener()
        take, empty = self._queue.get, self._queue.empty
        while True:
            job = take()
            if job is None:
                return
            if empty():
                self._alone(cursor, job)
                _tell([job])
                continue
            batch = [job]
            while not empty():
                job = take()
                if job is None:
                    self._queue.put(None)
                    break
                batch.append(job)
            self._batch(cursor, batch)

    def _batch(self, cursor: sqlite3.Cursor, batch: list[Job[Any]]) -> None:
        writers: list[Job[Any]] = []
        for job in batch:
            if job.writes:
                writers.append(job)
            else:
                self._alone(cursor, job)
                _tell([job])
        if len(writers) < 2 or not self._together(cursor, writers):
            for job in writers:
                self._alone(cursor, job)
        _tell(writers)

    def _alone(self, cursor: sqlite3.Cursor, job: Job[Any]) -> None:
        """Give a job a transaction of its own."""
        try:
            self._begin(cursor, "BEGIN IMMEDIATE" if job.writes else "BEGIN")
            job.value = job.work(cursor)
            cursor.execute("COMMIT")
        except BaseException as error:
            job.value = None
            job.error = translate(error, self._name)
            _roll_back(cursor)

    def _together(self, cursor: sqlite3.Cursor, jobs: list[Job[Any]]) -> bool:
        """Give jobs one transaction. False: it was rolled back, and the jobs are as before."""
        try:
            self._begin(cursor, "BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            for job in jobs:
                job.error = translate(error, self._name)
            return True
        try:
            for job in jobs:
                cursor.execute("SAVEPOINT job")
                try:
                    job.value = job.work(cursor)
                except sqlite3.Error:
                    raise
                except BaseException as error:
                    job.error = translate(error, self._name)
                    cursor.execute("ROLLBACK TO job")
                cursor.execute("RELEASE job")
            cursor.execute("COMMIT")
        except BaseException:
            _roll_back(cursor)
            for job in jobs:
                job.value = job.error = None
            return False
        return True

    def _begin(self, cursor: sqlite3.Cursor, sql: str) -> None:
        """Begin, waiting for locks.

        SQLite waits by itself, except where it sees that waiting alone could be for ever, or while another process
        opens or recovers the file; then it says busy at once.
        """
        began = time.monotonic()
        if cursor.connection.in_transaction:  # a rollback that failed, too
            cursor.execute("ROLLBACK")
        while True:
            try:
                cursor.execute(sql)
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() - began >= self._busy_timeout:
                    raise
            time.sleep(random.uniform(0.001, 0.02))  # apart from other processes that were told the same


def closed(name: str) -> SaverClosedError:
    return SaverClosedError(
        f"the saver of {name} is not open in this process: use it inside "
        "'async with SqliteSaver.from_conn_string(...)', or 'with open_sync(...)'"
    )


def _tell(jobs: list[Job[Any]]) -> None:
    tell([job.waiter for job in jobs if job.waiter is not None])


def _roll_back(cursor: sqlite3.Cursor) -> None:
    if cursor.connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):  # `_begin` tries again; the error that led here is the one to tell
            cursor.execute("ROLLBACK")
