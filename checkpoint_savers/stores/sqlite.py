"""`SqliteStore`: items in one SQLite file, which may be that of a `SqliteSaver`.

`schema.prepare` checks and sets up the file, as for a saver. The store's tables are next to the saver's and have a
version of their own. A store has its own connection, so that a long search blocks no run.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self

from ..bridge import callback_waiter
from ..codec import Codec
from ..errors import CorruptCheckpointError, SaverClosedError, StorageReadOnlyError, UnsupportedFormatError
from ..sqlite import schema
from ..sqlite.client import SqliteClient
from ..sqlite.worker import ClientKind, Job, Worker
from . import sqlite_rows as rows
from .abc import BaseStore
from .ops import TTLConfig
from .port import Batch, Done, Outcome


class SqliteStore(SqliteClient, BaseStore):
    """Stores items in one SQLite file, which any number of processes on one machine may use at once.

        async with SqliteStore.from_conn_string("runs.db") as store:
            ...

    The file may be one in which a `SqliteSaver` stores threads: both may have it open. With `synchronous="FULL"`, a put
    survives a power loss; with `"NORMAL"`, a crash of the process. SQLite's WAL mode is used, which needs a local disk.

    Args:
        path: a file, which is made if it is missing; `":memory:"`; or an SQLite URI (`file:runs.db?mode=ro`).
        codec: turns values into bytes, as for every store.
        ttl: how long items live, in minutes, as for every store.
        synchronous: "FULL" or "NORMAL"; see above.
        busy_timeout: seconds to wait for another process's lock, before `StorageLockedError`.
        clock: returns the time in unix seconds, as for every store.
        index: only None: there is no vector search.

    Raises:
        VectorSearchError: `index` was passed.
        TypeError, ValueError: an argument is not valid.
    """

    _client_kind = ClientKind("SqliteStore", "store", "inside 'async with SqliteStore(...)', or 'with open_sync(...)'")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        ttl: TTLConfig | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
        index: None = None,
    ) -> None:
        super().__init__(codec=codec, ttl=ttl, clock=clock, index=index)
        self._configure(path, busy_timeout, synchronous)
        self.synchronous: Literal["FULL", "NORMAL"] = synchronous

    @classmethod
    def from_conn_string(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        ttl: TTLConfig | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
        index: None = None,
    ) -> Self:
        """Return a store to be opened with `async with`.

        Args:
            path: as for the class.
            codec: as for the class.
            ttl: minutes, as for the class.
            synchronous: as for the class.
            busy_timeout: seconds, as for the class.
            clock: unix seconds, as for the class.
            index: only None, as for the class.

        Returns:
            The store, not open yet.

        Raises:
            VectorSearchError, TypeError, ValueError: as for the class.
        """
        return cls(
            path, codec=codec, ttl=ttl, synchronous=synchronous, busy_timeout=busy_timeout, clock=clock, index=index
        )

    async def __aenter__(self) -> Self:
        """Open the database, after a check which program made the file.

        Raises:
            CorruptCheckpointError: the file is damaged, or another program's.
            UnsupportedFormatError: a later version of this package made the file, or the store in it.
            StorageError: it cannot be opened; `StorageReadOnlyError`: there is no store in it, and it cannot be
                written.
            SaverClosedError: the store is open already.
        """
        await self._connect(
            partial(prepare, name=self.path, synchronous=self.synchronous, busy_timeout=self.busy_timeout),
            partial(upgraded_since, name=self.path),
        )
        return await super().__aenter__()

    def transact(self, batch: Batch, done: Done) -> None:
        _SqliteBatch(self._connection, batch, done).begin()


class _SqliteBatch:
    """A running batch. It does not reference the store.

    The worker holds the last batch, and must not keep the store alive.

    The reads are a job of their own, submitted first: jobs run in that order. So a long search runs before the write
    lock is taken, and blocks no other writer of the file.
    """

    __slots__ = ("_batch", "_done", "_reading", "_worker", "_writing")

    def __init__(self, worker: Worker, batch: Batch, done: Done) -> None:
        self._worker = worker
        self._batch = batch
        self._done = done
        self._reading: Job[rows.ReadResults] = Job(partial(rows.read, batch=batch), writes=False)
        size = sum([len(one.frame or b"") for one in batch.writes])
        self._writing: Job[int] = Job(self._write, writes=True, size=size)

    def begin(self) -> None:
        if not self._batch.writes and not self._batch.sweeps:
            self._submit(self._reading, self._read_only)
            return
        if self._batch.reads:
            self._submit(self._reading, None)
        self._submit(self._writing, self._end)

    def _submit(self, job: Job[Any], then: Callable[[], None] | None) -> None:
        self._worker.submit(job, None if then is None else callback_waiter(then))

    def _read_only(self) -> None:
        """Finish a batch without writes, unless rows were found whose ttl starts again."""
        found = self._reading.value
        if found is None or not found.due:
            self._end()
            return
        try:
            self._submit(self._writing, self._end)
        except SaverClosedError:
            self._end()

    def _write(self, db: sqlite3.Cursor) -> int:
        # The transaction then writes nothing: a batch is stored whole or not at all.
        if self._reading.error is not None:
            raise self._reading.error
        if self._reading.value is not None:
            rows.refresh(db, self._reading.value.due, self._batch.now)
        return rows.write(db, self._batch)

    def _end(self) -> None:
        error = self._reading.error or self._writing.error
        if isinstance(error, StorageReadOnlyError) and not self._batch.writes and not self._batch.sweeps:
            # The reads succeeded. On a read-only file, ttls cannot start again: the items expire as they were to.
            error = None
        if error is not None:
            self._done(error)
        else:
            found = self._reading.value
            self._done(Outcome([] if found is None else found.answers, self._writing.value or 0))


def prepare(
    connection: sqlite3.Connection, name: str, *, synchronous: Literal["FULL", "NORMAL"], busy_timeout: float
) -> None:
    """Prepare a new connection: check which program made the file, then add a store if there is none.

    Nothing is changed before the check.

    Args:
        connection: the new connection.
        name: how messages name the database.
        synchronous: "FULL" or "NORMAL", as for `SqliteStore`.
        busy_timeout: seconds to wait for another process's lock.

    Raises:
        CorruptCheckpointError, UnsupportedFormatError, StorageReadOnlyError: as `SqliteStore.__aenter__` raises them.
        sqlite3.OperationalError: the file is locked or full.
    """
    deadline = time.monotonic() + busy_timeout
    schema.prepare(connection, name, synchronous=synchronous, busy_timeout=busy_timeout)
    with schema.read_transaction(connection, deadline):
        is_ready = _is_ready(connection, name)
    if not is_ready:
        with schema.setup_transaction(
            connection, deadline, f"{name}: there is no store in it, and it cannot be written"
        ):
            if not _is_ready(connection, name):
                for statement in rows.TABLES.values():
                    connection.execute(statement)
                connection.execute("INSERT INTO store_version (version) VALUES (?)", (rows.VERSION,))


def upgraded_since(connection: sqlite3.Connection, name: str) -> UnsupportedFormatError | None:
    """Return an error if a later version has upgraded the store since it was opened, else None.

    Args:
        connection: an open connection.
        name: how messages name the database.

    Returns:
        The error to raise, or None.
    """
    try:
        _is_ready(connection, name)
    except UnsupportedFormatError as error:
        return error
    except CorruptCheckpointError:
        return None
    return None


def _is_ready(connection: sqlite3.Connection, name: str) -> bool:
    """Return True if the file has a store. Raise if this store must not use it."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    missing = sorted(rows.TABLES.keys() - names)
    if "store_version" in missing:
        theirs = sorted(one for one in names if one.lower() in rows.TABLES)
        if theirs:
            raise CorruptCheckpointError(name, f"it has {theirs} already, which no store has made", "Rename that")
        return False
    found = connection.execute("SELECT max(version) FROM store_version").fetchone()[0]
    if isinstance(found, int) and found > rows.VERSION:
        raise UnsupportedFormatError(f"{name}, its store", found, rows.VERSION)
    if found != rows.VERSION or missing:
        raise CorruptCheckpointError(name, f"its store's version is {found}, and these parts are missing: {missing}")
    return True
