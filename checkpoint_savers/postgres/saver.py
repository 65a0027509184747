"""`PostgresSaver`: the port's verbs, each handed to the event loop on which psycopg runs."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Self, TypeVar

import anyio
import psycopg_pool

from ..abc import BaseCheckpointSaver
from ..codec import Codec
from ..errors import CheckpointError, SaverClosedError
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
from .acquire import AcquireStatement, LeaseRequest
from .client import PostgresClient
from .connections import with_defaults
from .open_saver import ConnectedSaver
from .reading import ReadStatements
from .rows import header_of, thread_of
from .run_searches import RunSearches
from .run_store import PostgresRuns
from .run_transactions import RunTransactions
from .schema import SAVER, quoted
from .upkeep import UpkeepAttempt, UpkeepStatements
from .writing import LeasedWrite, WriteNumbers, WriteStatements, notify_payload

T = TypeVar("T")


class PostgresSaver(PostgresClient, BaseCheckpointSaver):
    """Stores threads in PostgreSQL, which any number of processes on any number of machines may use at once.

        async with PostgresSaver.from_conn_string("postgresql://localhost/app") as saver:
            ...

    Its tables are made once: by `setup()`, by `setup=True`, or by running what `setup_script()` returns. The server
    decides what a commit survives: with its `synchronous_commit` at `on`, the default, a power loss of the server.

    Args:
        conn: a URL or another connection string of libpq's, or an open pool of psycopg's. A pool remains its owner's,
            who closes it after the saver; the saver must be opened on the asyncio loop on which the pool was opened.
            Either way the saver serves callers on any loop, and may be behind a pooler in transaction mode.
        schema: schema of the tables. Every statement names it; the search path is not used.
        codec: turns values into bytes, as for every saver.
        setup: True to make or upgrade the tables when the saver is opened.
        listen: a connection string that leads to the server itself and not to a pooler, or True if `conn` does. Runs
            that wait for a thread (`on_conflict="wait"`) are then notified when it is released, and need not poll. This
            takes one more connection, from the first wait on.
        pool_size: number of connections, at most, if `conn` is not a pool.
        writers: number of concurrent transactions for commits, at most; commits that arrive during them share the next
            one.
        busy_timeout: seconds to wait for another connection's lock, before `StorageLockedError`.
        reconnect_timeout: seconds for which a verb tries to reach the server again after the connection broke, or waits
            for a connection of the pool, before `StorageError`.
        clock: returns the time in unix seconds, as for every saver. None for the server's time, which is the same for
            all machines; leases are timed by it.

    Raises:
        ValueError: `schema` is not a schema's name, `conn` or `listen` cannot be read, or a number is out of its range.
    """

    commit_is_shielded = lease_is_shielded = True
    commits_others = True

    _layout = SAVER

    def __init__(
        self,
        conn: str | psycopg_pool.AsyncConnectionPool[Any],
        *,
        schema: str = "public",
        codec: Codec | None = None,
        setup: bool = False,
        listen: str | bool = False,
        pool_size: int = 10,
        writers: int = 2,
        busy_timeout: float = 5.0,
        reconnect_timeout: float = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        name = self._configure(
            conn,
            schema=schema,
            setup=setup,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            reconnect_timeout=reconnect_timeout,
        )
        super().__init__(codec=codec, clock=clock or self._server_clock)
        if writers < 1:
            raise ValueError("writers is 1 or more")
        direct = self._source.conninfo if listen is True else with_defaults(listen) if listen else ""
        if direct is None:
            raise ValueError("listen=True is for a pool that has its connection string: pass one here")
        self._direct = direct
        self._writers = writers
        self._reading = ReadStatements(name)
        self._writing = WriteStatements(name, schema, self._server_clock)
        self._upkeep = UpkeepStatements(name, schema, self._source.name, self.busy_timeout)
        self._open: ConnectedSaver | None = None
        self._numbers = WriteNumbers()
        # By thread and run: acquired by this saver and not released yet. Closing the saver releases them.
        self._held_leases: dict[tuple[str, str], Lease] = {}
        self._runs = _runs_of(self)

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        schema: str = "public",
        codec: Codec | None = None,
        setup: bool = False,
        listen: str | bool = False,
        pool_size: int = 10,
        writers: int = 2,
        busy_timeout: float = 5.0,
        reconnect_timeout: float = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Return a saver to be opened with `async with`.

        Args:
            conn_string: a URL or another connection string of libpq's.
            schema: as for the class.
            codec: as for the class.
            setup: as for the class.
            listen: as for the class.
            pool_size: number of connections, as for the class.
            writers: number of transactions, as for the class.
            busy_timeout: seconds, as for the class.
            reconnect_timeout: seconds, as for the class.
            clock: as for the class.

        Returns:
            The saver, not open yet.

        Raises:
            ValueError: as for the class.
        """
        return cls(
            conn_string,
            schema=schema,
            codec=codec,
            setup=setup,
            listen=listen,
            pool_size=pool_size,
            writers=writers,
            busy_timeout=busy_timeout,
            reconnect_timeout=reconnect_timeout,
            clock=clock,
        )

    async def vacuum(self, *, full: bool = False) -> None:
        """Free the space of deleted rows (`VACUUM`). The server does this by itself, too, at times of its own.

        Args:
            full: True to rewrite the tables (`VACUUM FULL`): deleted rows are then in no file of the database, and the
                space returns to the disk. All readers and writers wait meanwhile. Copies in the server's log (WAL), its
                replicas and backups remain until these are recycled.

        Raises:
            StorageError: the database failed, or the saver is not open.
        """
        await self._run(self._upkeep.vacuum, full)

    async def size(self) -> int:
        """Measure the tables and their indexes.

        Returns:
            Their size, in bytes.

        Raises:
            StorageError: the database failed, or the saver is not open.
        """
        return await self._run(self._upkeep.size)

    async def __aenter__(self) -> Self:
        """Connect, and check the tables, or make them if `setup` is set.

        Raises:
            CorruptCheckpointError: tables of these names are not a saver's.
            UnsupportedFormatError: a later version of this package made them.
            StorageError: there is no connection; or the tables are missing or older, and `setup` is not set.
            SaverClosedError: the saver is open already.
        """
        self._check_not_open()
        opened = _connected(self)
        await self._connect(opened.driver)
        self._open = opened
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish what was begun, and close. May be called on any thread and event loop.

        A run that has not ended can store nothing afterwards. Its lease is released, so that other runs need not wait
        until it expires.
        """
        opened, self._open = self._open, None
        releases = [LeasedWrite(lease, None, self._numbers.next) for lease in self._held_leases.values()]
        self._held_leases = {}
        await self._disconnect(None if opened is None else partial(opened.release_all, releases))

    @property
    def runs(self) -> PostgresRuns:
        return self._runs

    def _require_open(self) -> ConnectedSaver:
        opened = self._open  # read once: another thread may close the saver meanwhile
        if opened is None:
            raise SaverClosedError(
                f"{self._source.name}: the saver is not open: use it inside "
                "'async with PostgresSaver.from_conn_string(...)', or 'with open_sync(...)'"
            )
        return opened

    async def _run(
        self, work: Callable[..., Awaitable[T]], *args: Any, interrupted: Callable[[], None] | None = None
    ) -> T:
        """Run work with a cursor of one of the pool's connections."""
        return await self._require_open().driver.run(
            lambda: self._source.run_on_connection(lambda cursor: work(cursor, *args), interrupted=interrupted)
        )

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        wanted = LeaseRequest(thread_id, owner, now, expires_at)
        try:
            lease = await self._require_open().acquire(wanted)
            self._hold(lease)
            return lease
        except BaseException:
            # Cancelled, but the transaction may have been committed. The caller gets no lease to release, and the
            # thread would stay busy until the lease expires.
            if wanted.value is not None:
                with anyio.CancelScope(shield=True), contextlib.suppress(CheckpointError):
                    await self.release(wanted.value)
            raise

    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        await self._write(lease, Commit(rows=(), expected_head=None, expires_at=expires_at))

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self._write(lease, commit, shielded=True)
        if commit.releases:
            self._forget(lease)

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self._write(lease, Commit(rows=(), expected_head=None, records=tuple(records), expires_at=expires_at))

    async def release(self, lease: Lease) -> None:
        await self._write(lease, None, shielded=True)
        self._forget(lease)

    def _hold(self, lease: Lease) -> None:
        self._held_leases[lease.thread_id, lease.owner.run_id] = lease

    def _forget(self, lease: Lease) -> None:
        self._held_leases.pop((lease.thread_id, lease.owner.run_id), None)
        self._runs.forget(lease)

    async def _write(self, lease: Lease, commit: Commit | None, *, shielded: bool = False) -> None:
        await self._require_open().write(LeasedWrite(lease, commit, self._numbers.next), shielded=shielded)

    async def wait_for_release(self, thread_id: str) -> None:
        await self._require_open().wait_for_release(notify_payload(self.schema, thread_id))

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await self._run(self._upkeep.rewrite, lease, change, interrupted=UpkeepAttempt().interrupted)

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        attempt = UpkeepAttempt()
        await self._run(
            self._upkeep.update_thread, thread_id, dict(changes), self.clock(), interrupted=attempt.interrupted
        )

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        attempt = UpkeepAttempt()
        await self._run(self._upkeep.load, lease, dump, attempt, interrupted=attempt.interrupted)

    async def erase(self, lease: Lease) -> None:
        """Delete everything that is stored of the thread, its lease too, in one transaction.

        The rows are gone for every reader. PostgreSQL keeps their bytes in pages of its files until these are vacuumed
        and overwritten, and in its log (WAL) until that is recycled. `vacuum(full=True)` rewrites the tables;
        docs/postgres.md describes what else remains to do if the bytes matter.

        Args:
            lease: the lease on the thread.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
        """
        attempt = UpkeepAttempt()
        await self._run(self._upkeep.erase, lease, attempt, interrupted=attempt.interrupted)
        self._forget(lease)
        self.runs.notify(lease.thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._run(self._upkeep.delete, thread_id, self.clock(), interrupted=UpkeepAttempt().interrupted)
        self.runs.notify(thread_id)

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        async def page(after: str | None, size: int) -> list[ThreadHeader]:
            return [thread_of(row) for row in await self._run(self._reading.threads, after, size)]

        return await list_headers(page, after, attrgetter("thread_id"), limit, filter)

    async def heads(self, thread_id: str, ns: str | None = None) -> dict[str, CheckpointId]:
        return await self._run(self._reading.heads, thread_id, ns)

    async def dump(self, thread_id: str) -> ThreadDump | None:
        return await self._run(self._reading.dump, thread_id)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        return await self._run(self._reading.read, thread_id, ns, checkpoint_id)

    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        return await self._run(self._reading.segment, thread_id, ns, base_id)

    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        async def page(after: Cursor | None, size: int) -> list[Header]:
            return [header_of(row) for row in await self._run(self._reading.page, thread_id, ns, after, size)]

        return await list_headers(page, cursor_before(before), cursor_of, limit, filter)

    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        return await self._run(self._reading.events, thread_id, since, limit)


def _connected(saver: PostgresSaver) -> ConnectedSaver:
    """Return the parts of a saver that exist while it is open, not connected yet."""
    name, source, busy_timeout = quoted(saver.schema), saver._source, saver.busy_timeout
    clock = saver._server_clock
    return ConnectedSaver(
        source,
        saver._prepare,
        AcquireStatement(name, source.name, clock),
        saver._writing,
        RunTransactions(name, saver.schema, source.name, busy_timeout, writing=saver._writing, clock=clock),
        direct=saver._direct,
        writers=saver._writers,
        busy_timeout=busy_timeout,
    )


def _runs_of(saver: PostgresSaver) -> PostgresRuns:
    name = quoted(saver.schema)
    return PostgresRuns(
        saver._run,
        RunSearches(name),
        clock=lambda: None if saver.clock is saver._server_clock else saver.clock(),
        now=lambda: saver.clock(),
        number=saver._numbers.next,
        acquired=saver._hold,
        released=saver._forget,
        opened=saver._require_open,
        # No thread's id begins with NUL, in practice.
        payload=lambda name: notify_payload(saver.schema, f"\x00{name}"),
        conn_string=saver._source.conninfo,
    )
