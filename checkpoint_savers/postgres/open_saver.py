"""The parts of a saver that exist while it is open: the driver's loop, the queues of its writes, and the listener."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import anyio

from ..children import start_soon
from ..errors import CheckpointError
from ..records import Lease
from ..scopes import mark_done
from .acquire import AcquireStatement, LeaseRequest
from .connections import Source
from .driver import Driver
from .group_commit import GroupCommit
from .listening import Announcer, Callback, Listener
from .run_transactions import RunAttempt, RunTransactions
from .writing import LeasedWrite, WriteStatements


class ConnectedSaver:
    """The parts of an open saver.

    Args:
        source, prepare: as for `Driver`.
        acquire_statement, write_statements, run_transactions: store the batches of the three queues.
        direct: connection string of a direct connection to listen on, or "".
        writers: number of concurrent transactions for commits, at most.
        busy_timeout: seconds, as for `GroupCommit`.

    Attributes:
        driver: to be opened, and closed.
        listener: None without a direct connection.
    """

    def __init__(
        self,
        source: Source,
        prepare: Callable[[], Awaitable[None]],
        acquire_statement: AcquireStatement,
        write_statements: WriteStatements,
        run_transactions: RunTransactions,
        *,
        direct: str,
        writers: int,
        busy_timeout: float,
    ) -> None:
        self.listener = Listener(source, direct) if direct else None
        self._announcer = Announcer(source, self.listener)
        self.driver = Driver(source, prepare, self._on_closing)
        # Two queues: no commit waits behind a lease, which may wait for another process's.
        self._leases: GroupCommit[LeaseRequest] = GroupCommit(
            self.driver, acquire_statement.store, width=1, busy_timeout=busy_timeout
        )
        self._writes: GroupCommit[LeasedWrite] = GroupCommit(
            self.driver, write_statements.store, width=writers, busy_timeout=busy_timeout
        )

        self._runs: GroupCommit[RunAttempt[Any]] = GroupCommit(
            self.driver, run_transactions.store, width=writers, busy_timeout=busy_timeout
        )

    async def acquire(self, wanted: LeaseRequest) -> Lease:
        """Acquire a lease.

        Args:
            wanted: the request.

        Returns:
            The lease.

        Raises:
            ThreadBusyError: another run holds the thread.
            StorageError: the database failed, or the saver is not open.
        """
        await self._leases.store_write(wanted)
        return wanted.result()

    async def write(self, write: LeasedWrite, *, shielded: bool = False) -> None:
        """Store a write.

        Args:
            write: the write.
            shielded: as for `bridge.wait_until_woken`.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: the database failed, or the saver is not open.
        """
        try:
            await self._writes.store_write(write, shielded=shielded)
        except asyncio.CancelledError as cancelled:
            # The transaction was committed, and only its caller was cancelled: the mark says so to the code that
            # handles the cancellation.
            if shielded and write.error is None:
                mark_done(cancelled)
            raise
        write.result()

    async def transact(self, attempt: RunAttempt[Any]) -> None:
        """Change the runs of a thread. See `RunStore.transact`.

        Args:
            attempt: the call. Its result, or its error, is set when this returns.

        Raises:
            SaverClosedError: the saver is not open.
        """
        await self._runs.store_write(attempt)

    async def wait_for_release(self, payload: str) -> None:
        """Wait until a thread may have been released. Without a listener, it never returns: callers also poll.

        Args:
            payload: what `notify_payload` makes of the thread.

        Raises:
            SaverClosedError: the saver is not open.
        """
        if self.listener is None:
            await anyio.sleep_forever()
        else:
            await self.listener.wait_for_release(payload, self.driver)

    def announce(self, payloads: Sequence[str], *, urgent: bool = False) -> None:
        """Notify the listeners of all processes soon, outside of any transaction.

        Args:
            payloads: what they subscribe to.
            urgent: now, as for `Announcer`.

        Raises:
            SaverClosedError: the saver is not open.
        """
        self._announcer.announce(payloads, self.driver, urgent=urgent)

    def subscribe(self, payload: str, callback: Callback) -> bool:
        """Call a function whenever a payload is announced.

        Args:
            payload: what is announced.
            callback: called on the driver's loop.

        Returns:
            False if there is no listener.

        Raises:
            SaverClosedError: the saver is not open.
        """
        if self.listener is None:
            return False
        self.listener.subscribe(payload, callback, self.driver)
        return True

    def unsubscribe(self, payload: str, callback: Callback) -> None:
        """Undo `subscribe`.

        Args:
            payload: what is announced.
            callback: the function.
        """
        if self.listener is not None:
            self.listener.unsubscribe(payload, callback)

    async def release_all(self, releases: Iterable[LeasedWrite]) -> None:
        """Release leases concurrently, before the driver closes.

        Args:
            releases: the releases.
        """
        async with anyio.create_task_group() as group:
            for release in releases:
                start_soon(group, self._release_quietly, release)

    async def _release_quietly(self, release: LeasedWrite) -> None:
        with contextlib.suppress(CheckpointError):  # the lease expires by itself then
            await self.write(release)

    def _on_closing(self) -> None:
        if self.listener is not None:
            self.listener.stop()
