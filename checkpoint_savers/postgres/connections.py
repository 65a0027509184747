"""Connections: from a pool of the saver's own, or the user's; and what happens if they break."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Literal, Self, TypeAlias, TypeVar

import psycopg
import psycopg.conninfo
import psycopg.rows
import psycopg_pool
from psycopg.pq import TransactionStatus

from ..errors import SaverClosedError
from .failures import UnreachableError, is_connection_lost, is_retryable, is_unprepared

T = TypeVar("T")

Connection: TypeAlias = psycopg.AsyncConnection[Any]
PostgresCursor: TypeAlias = psycopg.AsyncCursor[tuple[Any, ...]]
Pool: TypeAlias = psycopg_pool.AsyncConnectionPool[Any]

# A server that has disappeared silently is noticed within a minute, and not after TCP's default of hours.
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
    "fallback_application_name": "pregel_async",
}
_OPTIONS = {"autocommit": True, "prepare_threshold": None}
"""Options of connections: each statement is a transaction, and none is prepared unless `_allow_prepared` permits it."""

_PREPARE_AFTER = 3
"""A connection prepares a statement after so many executions. If the best plan depends on the values, the statement is
executed with `prepare=False`, and never prepared."""

# Several short waits instead of one long one: after a failed connect, the pool (see `open`) connects again only when a
# connection is requested.
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 2.0
"""Seconds of the first wait for a connection of the pool, and of the longest."""


class Source:
    """The source of connections. Its methods are called on one event loop, that of the pool.

    Args:
        conn: a URL or another connection string, of which a pool is made; or a pool, which remains the user's.
        schema: named in messages.
        pool_size: number of connections of the pool that is made, at most.
        reconnect_timeout: seconds to wait for a connection, in all, while the server is unreachable.

    Attributes:
        user_pool: the pool that was passed, or None.
        pool: the pool in use, while open.
        name: how messages name the database.
        conninfo: the connection string; None if a user's pool computes it.
    """

    def __init__(self, conn: str | Pool, *, schema: str, pool_size: int, reconnect_timeout: float) -> None:
        self.user_pool = None if isinstance(conn, str) else conn
        self.reconnect_timeout = reconnect_timeout
        self.pool: Pool | None = None
        self._size = pool_size
        if isinstance(conn, str):
            self.conninfo: str | None = with_defaults(conn)
        else:
            self.conninfo = conn.conninfo if isinstance(conn.conninfo, str) else None
        self.name = _description(self.conninfo, schema)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Provide a pool for the length of a block. A user's pool is neither opened nor closed.

        Returns:
            A context manager; `pool` is set in its block.

        Raises:
            SaverClosedError: the user's pool is not open.
        """
        if self.user_pool is not None:
            if self.user_pool.closed:
                raise SaverClosedError(f"{self.name}: the pool is not open. Open it first, and close it last")
            self.pool = self.user_pool
            yield
            return
        assert self.conninfo is not None
        # `reconnect_timeout=0`: the pool stops at the first failed connect, and retries when a connection is next
        # requested. By itself it would retry at ever longer intervals, and come back long after the server has.
        self.pool = psycopg_pool.AsyncConnectionPool(
            self.conninfo,
            kwargs=_OPTIONS,
            min_size=1,
            max_size=self._size,
            open=False,
            reconnect_timeout=0.0,
            configure=_allow_prepared,
        )
        try:
            await self.pool.open()
            yield
        finally:
            await self.pool.close()

    async def run_on_new_connection(self, work: Callable[[PostgresCursor], Awaitable[T]]) -> T:
        """Run work on a new connection, so that a failure to connect is raised at once.

        With a user's pool, the connection is one of the pool's.

        Args:
            work: called with a cursor, and awaited.

        Returns:
            What it returned.

        Raises:
            UnreachableError: the server cannot be reached.
        """
        if self.user_pool is not None or self.conninfo is None:
            return await self.run_on_connection(work)
        async with await self.connect(self.conninfo) as connection:
            return await work(new_cursor(connection))

    async def connect(self, conninfo: str) -> Connection:
        """Open a connection that belongs to no pool.

        Args:
            conninfo: the connection string.

        Returns:
            The connection, in autocommit mode.

        Raises:
            UnreachableError: the server cannot be reached.
        """
        try:
            return await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise UnreachableError(f"no connection to the server ({_in_a_line(error)})") from error

    async def run_on_connection(
        self, work: Callable[[PostgresCursor], Awaitable[T]], *, interrupted: Callable[[], None] | None = None
    ) -> T:
        """Run work on a connection of the pool, and again on another if that breaks.

        Args:
            work: called with a cursor, and awaited; perhaps several times. It leaves no transaction open, unless it
                raises.
            interrupted: called if the connection broke during the work: what it was to write may be stored or not.

        Returns:
            What `work` returned.

        Raises:
            UnreachableError: there was no connection for `reconnect_timeout` seconds.
        """
        assert self.pool is not None
        deadline = time.monotonic() + self.reconnect_timeout
        wait, broke = _FIRST_WAIT, False
        while True:
            connection: Connection | None = None
            try:
                left = max(deadline - time.monotonic(), 0.01)
                borrowed: Connection = await self.pool.getconn(timeout=min(wait, left))
                connection = borrowed
                return await _run_on(borrowed, work, is_of_user=self.user_pool is not None)
            except (psycopg_pool.PoolTimeout, psycopg_pool.TooManyRequests):
                wait = min(wait * 1.5, _LONGEST_WAIT)
                failure: Exception | None = None
            except psycopg.Error as error:
                failure = error
                if connection is not None and is_unprepared(error) and time.monotonic() < deadline:
                    await connection.close()  # the pool replaces it by one that has prepared nothing
                elif not is_connection_lost(error, connection):
                    if not is_retryable(error) or time.monotonic() >= deadline:
                        raise
                elif connection is not None:
                    # The server may have committed before the connection broke, so `work` is repeated only after
                    # `interrupted` has noted it.
                    broke = True
                    if interrupted is not None:
                        interrupted()
            finally:
                if connection is not None:
                    await self.pool.putconn(connection)
            if time.monotonic() >= deadline:
                await self._raise_unreachable(failure, unknown=broke and interrupted is not None)
            if failure is not None:
                # Random, so that the callers of a restarted server do not all come at the same moment.
                await asyncio.sleep(random.uniform(0.01, 0.05))

    async def _raise_unreachable(self, failure: Exception | None, *, unknown: bool) -> None:
        seconds = f"{self.reconnect_timeout:g} s"
        message = f"the server could not be reached for {seconds}"
        if failure is None:
            message = f"the pool had no connection for {seconds}"
            if self.user_pool is None and self.conninfo is not None:
                try:
                    await (await self.connect(self.conninfo)).close()
                except UnreachableError as error:  # the pool does not report the reason
                    failure, message = error, f"{message}: {error}"
                else:
                    message = f"{message}, while the server takes connections: all are in use. Make the pool larger"
        else:
            message = f"{message} ({_in_a_line(failure)})"
        if unknown:
            message = (
                f"{message}. The connection broke while a transaction was under way, and whether it was stored is not "
                "known yet: the thread's state shows it, and a resume continues from there"
            )
        raise UnreachableError(f"{message}.") from failure


async def _allow_prepared(connection: Connection) -> None:
    """Permit prepared statements on a connection, unless it leads to a pooler."""
    # When a client connects, a server sends the id of the process that serves it, and a pooler sends some other number.
    # Behind a pooler, the next statement may run on another server connection. The prepared statement does not exist
    # there, or its name is that of another client's statement.
    row = await (await new_cursor(connection).execute(b"SELECT pg_backend_pid()")).fetchone()
    if row is not None and row[0] == connection.info.backend_pid:
        connection.prepare_threshold = _PREPARE_AFTER


async def _run_on(connection: Connection, work: Callable[[PostgresCursor], Awaitable[T]], *, is_of_user: bool) -> T:
    """Run work on a borrowed connection, with the options that statements here expect, and restore its own options.

    Args:
        connection: the connection.
        work: what to run.
        is_of_user: True if the connection is of a user's pool. Nothing is prepared on it.
    """
    # The options are restored afterwards, as a user's own code borrows the connections of a user's pool, too.
    autocommit, threshold = connection.autocommit, connection.prepare_threshold
    if is_of_user:
        connection.prepare_threshold = None
    if not autocommit:
        await connection.set_autocommit(True)
    try:
        return await work(new_cursor(connection))
    finally:
        connection.prepare_threshold = threshold
        if not connection.closed:
            with contextlib.suppress(psycopg.Error):  # a broken connection is replaced by the pool
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    await connection.rollback()
                if not autocommit:
                    await connection.set_autocommit(False)


class _UnpreparedCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """A cursor that plans a statement for its values each time, unless it is executed with `prepare=None`.

    The plan of a prepared statement is kept. For several rows of a small table, it reads the whole table, and would do
    so when the table has grown. So only statements that read by keys of one thread or of one write may be prepared.
    """

    async def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = False, binary: bool | None = None
    ) -> Self:
        return await super().execute(query, params, prepare=prepare, binary=binary)


def new_cursor(connection: Connection) -> PostgresCursor:
    """Return a cursor whose rows are tuples, whatever a user's pool has set.

    Args:
        connection: the connection.

    Returns:
        The cursor.
    """
    return _UnpreparedCursor(connection, row_factory=psycopg.rows.tuple_row)


async def fetch(
    cursor: PostgresCursor, statement: bytes, *parameters: object, prepare: Literal[False] | None = False
) -> list[tuple[Any, ...]]:
    """Execute a statement, and return its rows.

    Args:
        cursor: executes it.
        statement: with placeholders for binary parameters.
        parameters: their values.
        prepare: None if the statement may be prepared; see `_UnpreparedCursor`.

    Returns:
        The rows.
    """
    await cursor.execute(statement, parameters, prepare=prepare, binary=True)
    return await cursor.fetchall()


def new_client_cursor(connection: Connection) -> PostgresCursor:
    """Return a cursor that sends several statements as one query, with the parameters as literals.

    The server executes them one after the other, each with a snapshot of its own, and skips the rest after an error.

    Args:
        connection: the connection.

    Returns:
        The cursor. Its placeholders are `%s`, and its results are texts that psycopg converts.
    """
    return psycopg.AsyncClientCursor(connection, row_factory=psycopg.rows.tuple_row)


def with_defaults(conninfo: str) -> str:
    """Add defaults to a connection string, and UTF-8 as client encoding, whatever the environment says.

    Args:
        conninfo: a URL or another connection string of libpq's.

    Returns:
        The connection string.

    Raises:
        ValueError: it cannot be read.
    """
    given = _read(conninfo)
    more = {k: v for k, v in _DEFAULTS.items() if k not in given}
    return psycopg.conninfo.make_conninfo(conninfo, **more, client_encoding="UTF8")


def _read(conninfo: str) -> dict[str, Any]:
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError as error:
        raise ValueError(f"not a connection string: {str(error).strip()}") from error


def _description(conninfo: str | None, schema: str) -> str:
    """Describe a database in an error message, without its password."""
    if conninfo is None:
        return f"PostgreSQL, schema {schema!r}"
    known = _read(conninfo)
    database = known.get("dbname") or known.get("service") or known.get("user") or ""
    place = known.get("host") or known.get("hostaddr") or "this machine"
    port = f":{known['port']}" if known.get("port") else ""
    return f"PostgreSQL database {database!r} on {place}{port}, schema {schema!r}"


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())
