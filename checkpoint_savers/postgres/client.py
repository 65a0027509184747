"""`PostgresClient`: the tables, connections and driver that saver and store in PostgreSQL share."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

import anyio

from ..durations import LONGEST_LOCK_WAIT, read_seconds
from ..errors import SaverClosedError
from ..opening import OpenedAsync, never_closed
from . import schema as tables
from .connections import Pool, PostgresCursor, Source
from .driver import Driver
from .server_clock import ServerClock


class PostgresClient(OpenedAsync):
    """One driver at a time, and a `ResourceWarning` if it is never closed.

    Attributes:
        schema: the schema of the tables, as it was passed.
        busy_timeout: seconds to wait for another connection's lock.
        reconnect_timeout: seconds for which an unreachable server is retried.
    """

    _layout: ClassVar[tables.Layout]
    schema: str
    busy_timeout: float
    reconnect_timeout: float
    _source: Source
    _sets_up: bool
    _driver: Driver | None = None

    def _configure(
        self,
        conn: str | Pool,
        *,
        schema: str,
        setup: bool,
        pool_size: int,
        busy_timeout: float,
        reconnect_timeout: float,
    ) -> str:
        """Check and set the common arguments. Return the schema's name, quoted.

        Raises:
            ValueError, TypeError: an argument is not valid.
        """
        if pool_size < 1:
            raise ValueError("pool_size is 1 or more")
        quoted = tables.quoted(schema)
        self.schema = schema
        self.busy_timeout = min(read_seconds("busy_timeout", busy_timeout, zero=True), LONGEST_LOCK_WAIT)
        self.reconnect_timeout = read_seconds("reconnect_timeout", reconnect_timeout, zero=True, endless=True)
        self._source = Source(conn, schema=schema, pool_size=pool_size, reconnect_timeout=self.reconnect_timeout)
        self._sets_up = setup
        self._server_clock = ServerClock()
        return quoted

    @classmethod
    def setup_script(cls, *, schema: str = "public", version: int = 0) -> str:
        """Return what `setup` does as SQL: one transaction, for a database owner to read, keep and run.

        Args:
            schema: name of the schema of the tables.
            version: version of the existing tables; 0 if there are none.

        Returns:
            The script, for psql.

        Raises:
            ValueError: `schema` cannot be a schema's name.
        """
        return tables.script(schema, version, cls._layout)

    async def setup(self) -> None:
        """Make the tables, or upgrade those of an earlier version; do nothing if they are current.

        Any number of processes may call it at the same time. It may be called before the client is opened, and does not
        open it.

        Raises:
            CorruptCheckpointError: the schema has tables of these names that are another program's.
            UnsupportedFormatError: a later version of this package made the tables.
            StorageError: there is no connection, or the role may not make tables.
        """
        driver, work = self._driver, self._preparing(sets_up=True)
        if driver is not None:
            await driver.run(lambda: self._source.run_on_connection(work))
            return
        driver = Driver(
            self._source,
            partial(self._source.run_on_new_connection, work),
            do_nothing,
            class_name=self._layout.class_name,
        )
        await driver.open()
        # A cancellation must not leave the temporary driver's thread and connection open.
        with anyio.CancelScope(shield=True):
            await driver.close()

    @property
    def _prepare(self) -> Callable[[], Awaitable[None]]:
        """What a driver runs first.

        It does not reference the client, so that one that is never closed is collected while its loop runs.
        """
        return partial(self._source.run_on_new_connection, self._preparing(sets_up=self._sets_up))

    def _preparing(self, *, sets_up: bool) -> Callable[[PostgresCursor], Awaitable[None]]:
        return partial(_prepare, sets_up, self._server_clock, self.schema, self._source.name, self._layout)

    def _check_not_open(self) -> None:
        if self._driver is not None:
            raise SaverClosedError(
                f"{self._source.name}: the {self._layout.kind} is open already: one 'async with' at a time"
            )

    async def _connect(self, driver: Driver) -> None:
        """Connect, and check or make the tables."""
        self._driver = driver
        try:
            await driver.open()
        except BaseException:
            self._driver = None
            raise

    @property
    def is_open(self) -> bool:
        """True while it is open: within its `async with`."""
        return self._driver is not None

    async def _disconnect(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Finish what was begun, and close. May be called on any thread and event loop.

        Args:
            last: awaited before.
        """
        # Unset first: no new work is accepted while the last runs.
        driver, self._driver = self._driver, None
        if driver is not None:
            with anyio.CancelScope(shield=True):  # else a cancelled scope would not even begin to close
                if last is not None:
                    await last()
                await driver.close()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        driver = self._driver
        if driver is not None and driver.is_open:
            # A finalizer must not block, so it asks the loop to close the connections and does not join it.
            driver.stop()
            warn(never_closed(self, self._source.name), ResourceWarning, source=self)


async def _prepare(
    sets_up: bool, clock: ServerClock, schema: str, name: str, layout: tables.Layout, cursor: PostgresCursor
) -> None:
    await (tables.setup if sets_up else tables.check)(cursor, schema, name, layout)
    await clock.read(cursor)


def do_nothing() -> None:
    """Stop nothing: the hook of clients without a listener."""
