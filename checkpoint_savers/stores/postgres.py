"""`PostgresStore`: items in PostgreSQL, in the schema of a `PostgresSaver` or in one of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

try:
    import psycopg
    import psycopg_pool

    from ..postgres.client import PostgresClient, do_nothing
    from ..postgres.connections import PostgresCursor
    from ..postgres.driver import Driver
    from ..postgres.failures import UnreachableError, translate
    from .postgres_rows import LAYOUT, BatchAttempt, ItemKey, StoreStatements
except ModuleNotFoundError as error:
    if (error.name or "") not in ("psycopg", "psycopg_pool"):
        raise
    raise ImportError(
        f"PostgresStore needs {error.name}, which is not installed: pip install 'pregel-async[postgres]'",
        name=error.name,
    ) from error

from ..bridge import WorkItem, callback_waiter
from ..codec import Codec
from ..errors import SaverClosedError, StorageError, StorageReadOnlyError
from .abc import BaseStore
from .ops import TTLConfig
from .port import Answer, Batch, Done, Outcome


class PostgresStore(PostgresClient, BaseStore):
    """Stores items in PostgreSQL, which any number of processes on any number of machines may use at once.

        async with PostgresStore.from_conn_string("postgresql://localhost/app") as store:
            ...

    Its table is made once: by `setup()`, by `setup=True`, or by running what `setup_script()` returns. It may share the
    schema of a `PostgresSaver`. The server decides what a put survives: with its `synchronous_commit` at `on`, the
    default, a power loss of the server. No connection is held between batches.

    Args:
        conn: a connection string, or an open pool of psycopg's, which remains its owner's; as for `PostgresSaver`.
        schema: schema of the table. Every statement names it; the search path is not used.
        codec: turns values into bytes, as for every store.
        ttl: how long items live, in minutes, as for every store.
        setup: True to make or upgrade the table when the store is opened.
        pool_size: number of connections, at most, if `conn` is not a pool.
        busy_timeout: seconds to wait for another connection's lock, before `StorageLockedError`.
        reconnect_timeout: seconds for which a batch tries to reach the server again after the connection broke, or
            waits for a connection of the pool, before `StorageError`.
        clock: returns the time in unix seconds, as for every store. Clocks of machines that share a store should agree:
            they decide when an item was put, and whether it has expired.
        index: only None: there is no vector search.

    Raises:
        ValueError: `schema` is not a schema's name, `conn` cannot be read, or a number is out of its range.
        VectorSearchError: `index` was passed.
        TypeError: `ttl` is not a valid configuration.
    """

    _layout = LAYOUT

    def __init__(
        self,
        conn: str | psycopg_pool.AsyncConnectionPool[Any],
        *,
        schema: str = "public",
        codec: Codec | None = None,
        ttl: TTLConfig | None = None,
        setup: bool = False,
        pool_size: int = 10,
        busy_timeout: float = 5.0,
        reconnect_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
        index: None = None,
    ) -> None:
        super().__init__(codec=codec, ttl=ttl, clock=clock, index=index)
        quoted = self._configure(
            conn,
            schema=schema,
            setup=setup,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            reconnect_timeout=reconnect_timeout,
        )
        self._rows = StoreStatements(quoted, self._source.name, self.busy_timeout)

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        schema: str = "public",
        codec: Codec | None = None,
        ttl: TTLConfig | None = None,
        setup: bool = False,
        pool_size: int = 10,
        busy_timeout: float = 5.0,
        reconnect_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
        index: None = None,
    ) -> Self:
        """Return a store to be opened with `async with`.

        Args:
            conn_string: a URL or another connection string of libpq's.
            schema: as for the class.
            codec: as for the class.
            ttl: minutes, as for the class.
            setup: as for the class.
            pool_size: number of connections, as for the class.
            busy_timeout: seconds, as for the class.
            reconnect_timeout: seconds, as for the class.
            clock: unix seconds, as for the class.
            index: only None, as for the class.

        Returns:
            The store, not open yet.

        Raises:
            ValueError, VectorSearchError, TypeError: as for the class.
        """
        return cls(
            conn_string,
            schema=schema,
            codec=codec,
            ttl=ttl,
            setup=setup,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            reconnect_timeout=reconnect_timeout,
            clock=clock,
            index=index,
        )

    async def __aenter__(self) -> Self:
        """Connect, and check the table, or make it if `setup` is set.

        Raises:
            CorruptCheckpointError: tables of these names are not a store's.
            UnsupportedFormatError: a later version of this package made the table.
            StorageError: there is no connection; or the table is missing or older, and `setup` is not set.
            SaverClosedError: the store is open already.
        """
        self._check_not_open()
        await self._connect(Driver(self._source, self._prepare, do_nothing, class_name=LAYOUT.class_name))
        return await super().__aenter__()

    def transact(self, batch: Batch, done: Done) -> None:
        driver = self._driver  # read once: another thread may close the store meanwhile
        if driver is None:
            raise _closed(self._source.name)
        _PostgresBatch(driver, self._rows, batch, done).begin()


class _PostgresBatch:
    """A running batch. It does not reference the store, and so does not keep it alive."""

    __slots__ = ("_answers", "_attempt", "_batch", "_done", "_driver", "_due", "_rows", "_work")

    def __init__(self, driver: Driver, rows: StoreStatements, batch: Batch, done: Done) -> None:
        self._driver = driver
        self._rows = rows
        self._batch = batch
        self._done = done
        self._work: WorkItem[Outcome] = WorkItem()
        self._attempt = BatchAttempt()
        self._answers: list[Answer] | None = None
        self._due: list[ItemKey] = []

    def begin(self) -> None:
        driver = self._driver
        try:
            driver.submit(self._work, callback_waiter(self._end), lambda: driver.post(self._run))
        except SaverClosedError as error:  # its message names a saver
            raise _closed(driver.source.name) from error

    async def _run(self) -> None:
        work, source = self._work, self._driver.source
        try:
            work.value = await source.run_on_connection(self._do)
        except UnreachableError as error:
            work.error = translate(error, source.name)
            if self._attempt.outcome is not None:
                work.error = StorageError(
                    f"{work.error} The connection broke while a transaction was being committed, and whether it was "
                    "stored is not known. Read what is stored before you write it again."
                )
                work.error.__cause__ = error.__cause__
        except Exception as error:
            work.error = translate(error, source.name)
        self._driver.complete((work,))

    async def _do(self, cursor: PostgresCursor) -> Outcome:
        """Run on one connection; run again on another if that breaks."""
        batch = self._batch
        # Reads are not repeated with the writes: an attempt that was committed would change what they see.
        if self._answers is None:
            self._answers, self._due = await self._rows.read(cursor, batch) if batch.reads else ([], [])
        if not batch.writes and not batch.sweeps and not self._due:
            return Outcome(self._answers, 0)
        try:
            return await self._rows.write(cursor, batch, self._answers, self._due, self._attempt)
        except psycopg.Error as error:
            if batch.writes or batch.sweeps or not isinstance(translate(error, ""), StorageReadOnlyError):
                raise
            # The reads succeeded. On a read-only server, ttls cannot start again: the items expire as they were to.
            return Outcome(self._answers, 0)

    def _end(self) -> None:
        error = self._work.error
        if isinstance(error, SaverClosedError) and not isinstance(error.__cause__, psycopg_pool.PoolClosed):
            cause, error = error.__cause__, _closed(self._driver.source.name)
            error.__cause__ = cause
        outcome = self._work.value
        if error is not None:
            self._done(error)
        elif outcome is not None:
            self._done(outcome)


def _closed(name: str) -> SaverClosedError:
    return SaverClosedError(
        f"{name}: the store is not open in this process: use it inside "
        "'async with PostgresStore.from_conn_string(...)', or 'with open_sync(...)'"
    )
