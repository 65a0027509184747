"""`PostgresSaver`: the port's verbs, each handed to the loop on which psycopg works."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Self, TypeVar

import anyio
import psycopg_pool

from ..abc import BaseCheckpointSaver
from ..codec import Codec
from ..errors import CheckpointError, SaverClosedError
from ..listing import Place, listed, place_before, place_of
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
from .open_saver import OpenSaver
from .reading import ReadStatements
from .rows import header_of, thread_of
from .schema import SAVER
from .upkeep import UpkeepAttempt, UpkeepStatements
from .writing import LeasedWrite, WriteStatements, notify_payload

T = TypeVar("T")

SPACING = 1024
"""Numbers between two writes; see `writing`."""


class PostgresSaver(PostgresClient, BaseCheckpointSaver):
    """Keeps threads in PostgreSQL, which any number of processes on any number of machines may use at once.

        async with PostgresSaver.from_conn_string("postgresql://localhost/app") as saver:
            ...

    Its tables are made once, by `setup()`, by `setup=True`, or by running what `setup_script()` returns. What a commit
    survives is what the server says: with its `synchronous_commit` at `on`, the default, a power loss of the server.

    Args:
        conn: a URL or another connection string of libpq's, or a pool of psycopg's that is open. A pool stays its
            owner's, who closes it after the saver; and the saver is opened on the loop of asyncio on which the pool
            was. Either way the saver serves callers on any loop, and may be behind a pooler in transaction mode.
        schema: where the tables are. It is named in every statement; the search path is not asked.
        codec: as for every saver.
        setup: make or upgrade the tables when the saver is opened.
        listen: a connection string that leads to the server itself and not to a pooler, or True if `conn` does so: runs
            that wait for a thread (`on_conflict="wait"`) then hear when it is given up, and do not have to poll. It
            takes one connection more, from the first wait on.
        pool_size: connections at most, where `conn` is no pool.
        writers: transactions at most that may be under way at the same time for commits; those that arrive meanwhile
            share the next one.
        busy_timeout: seconds to wait for a lock of another connection's, before `StorageLockedError`.
        reconnect_timeout: seconds for which a verb tries to reach the server again when the connection broke, or waits
            for one of the pool, before `StorageError`.
        clock: as for every saver.

    Raises:
        ValueError: `schema` is no name, `conn` or `listen` cannot be read, or a number is out of its range.
    """

    commit_is_shielded = True

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(codec=codec, clock=clock)
        quoted = self._configure(
            conn,
            schema=schema,
            setup=setup,
            pool_size=pool_size,
            busy_timeout=busy_timeout,
            reconnect_timeout=reconnect_timeout,
        )
        if writers < 1:
            raise ValueError("writers is 1 or more")
        direct = self._source.conninfo if listen is True else with_defaults(listen) if listen else ""
        if direct is None:
            raise ValueError("listen=True is for a pool that has its connection string: pass one here")
        self._direct = direct
        self._writers = writers
        self._reading = ReadStatements(quoted)
        self._writing = WriteStatements(quoted, schema)
        self._acquiring = AcquireStatement(quoted, self._source.name)
        self._upkeep = UpkeepStatements(quoted, schema, self._source.name, self.busy_timeout)
        self._open: OpenSaver | None = None
        self._number = 0
        self._held_leases: dict[tuple[str, str], Lease] = {}  # by thread and run: taken here, not given up yet

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
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """A saver to be opened with `async with`. Arguments as for the class."""
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
        """Make room of what was deleted (`VACUUM`), which the server also does by itself, in its own time.

        Args:
            full: write the tables anew, so that deleted rows are in no file of the database any more, and give the room
                back to the disk (`VACUUM FULL`). Nobody can read or write meanwhile. What the server's log (WAL), its
                replicas and backups have of them stays there until it is recycled.

        Raises:
            StorageError
        """
        await self._run(self._upkeep.vacuum, full)

    async def size(self) -> int:
        """Bytes that the tables and their indexes take."""
        return await self._run(self._upkeep.size)

    async def __aenter__(self) -> Self:
        """Connect, and look whether the tables are there, and whose they are.

        Raises:
            CorruptCheckpointError: tables of these names are not a saver's.
            UnsupportedFormatError: they are of a later version of this package.
            StorageError: there is no connection; or no tables, or older ones, and `setup` is not set.
        """
        self._check_not_open()
        opened = OpenSaver(
            self._source,
            self._prepare,
            self._acquiring,
            self._writing,
            direct=self._direct,
            writers=self._writers,
            busy_timeout=self.busy_timeout,
        )
        await self._connect(opened.driver)
        self._open = opened
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish what was begun, and close: on any thread and event loop, not just those it was opened on.

        A run that still goes on can store nothing any more; its thread is given up, so that nobody has to wait for it.
        """
        opened, self._open = self._open, None
        releases = [LeasedWrite(lease, None, self._next) for lease in self._held_leases.values()]
        self._held_leases = {}
        await self._disconnect(None if opened is None else partial(opened.release_all, releases))

    def _require_open(self) -> OpenSaver:
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
        """Have something done with a cursor of a connection of the pool's."""
        return await self._require_open().driver.run(
            lambda: self._source.run_on_connection(lambda cursor: work(cursor, *args), interrupted=interrupted)
        )

    def _next(self) -> int:
        """A number for a write: greater than all before it, of this saver, and of others in this process."""
        self._number = max(self._number, time.monotonic_ns() & -SPACING) + SPACING
        return self._number

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        wanted = LeaseRequest(thread_id, owner, now, expires_at)
        try:
            lease = self._held_leases[thread_id, owner.run_id] = await self._require_open().acquire(wanted)
            return lease
        except BaseException:
            # Cancelled, and the lease may have been taken all the same. Its run will never hear of it, and would
            # leave the thread busy until it expires.
            if wanted.value is not None:
                with anyio.CancelScope(shield=True), contextlib.suppress(CheckpointError):
                    await self.release(wanted.value)
            raise

    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        await self._write(lease, Commit(rows=(), expected_head=None, expires_at=expires_at))

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self._write(lease, commit, shielded=True)
        if commit.releases:
            self._held_leases.pop((lease.thread_id, lease.owner.run_id), None)

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self._write(lease, Commit(rows=(), expected_head=None, records=tuple(records), expires_at=expires_at))

    async def release(self, lease: Lease) -> None:
        await self._write(lease, None)
        self._held_leases.pop((lease.thread_id, lease.owner.run_id), None)

    async def _write(self, lease: Lease, commit: Commit | None, *, shielded: bool = False) -> None:
        await self._require_open().write(LeasedWrite(lease, commit, self._next), shielded=shielded)

    async def wait_for_release(self, thread_id: str) -> None:
        opened = self._require_open()
        if opened.listener is None:
            await anyio.sleep_forever()
        else:
            await opened.listener.wait_for_release(notify_payload(self.schema, thread_id), opened.driver)

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await self._run(self._upkeep.rewrite, lease, change, interrupted=UpkeepAttempt().interrupted)

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        await self._run(self._upkeep.update_thread, thread_id, dict(changes), interrupted=UpkeepAttempt().interrupted)

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        attempt = UpkeepAttempt()
        await self._run(self._upkeep.load, lease, dump, attempt, interrupted=attempt.interrupted)

    async def erase(self, lease: Lease) -> None:
        """Delete all that is stored of the thread, its lease too, in one transaction.

        The rows are gone for every reader. PostgreSQL keeps their bytes in pages of its files until these are vacuumed
        and written over, and in its log (WAL) until that is recycled: `vacuum(full=True)` writes the tables anew, and
        docs/postgres.md says what else there is to do where bytes matter.
        """
        attempt = UpkeepAttempt()
        await self._run(self._upkeep.erase, lease, attempt, interrupted=attempt.interrupted)
        self._held_leases.pop((lease.thread_id, lease.owner.run_id), None)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._run(self._upkeep.delete, thread_id, self.clock(), interrupted=UpkeepAttempt().interrupted)

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        async def page(after: str | None, size: int) -> list[ThreadHeader]:
            return [thread_of(row) for row in await self._run(self._reading.threads, after, size)]

        return await listed(page, after, attrgetter("thread_id"), limit, filter)

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
        async def page(after: Place | None, size: int) -> list[Header]:
            return [header_of(row) for row in await self._run(self._reading.page, thread_id, ns, after, size)]

        return await listed(page, place_before(before), place_of, limit, filter)

    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        return await self._run(self._reading.events, thread_id, since, limit)
