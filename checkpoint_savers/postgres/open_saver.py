"""What there is of a saver while it is open: the driver's loop, the lanes of its writes, and who listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import anyio

from ..children import start_soon
from ..errors import CheckpointError
from ..records import Lease
from ..scopes import mark_done
from .acquire import AcquireStatement, LeaseRequest
from .connections import Source
from .driver import Driver
from .group_commit import GroupCommit
from .listening import Listener
from .writing import LeasedWrite, WriteStatements


class OpenSaver:
    """
    Args:
        source, prepare: as for `Driver`.
        claiming, writing: store what the lanes take.
        direct: connection string of a direct connection to listen on, or "".
        writers: transactions at most at the same time for commits.
        busy_timeout: as for `GroupCommit`.

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
        *,
        direct: str,
        writers: int,
        busy_timeout: float,
    ) -> None:
        self.listener = Listener(source, direct) if direct else None
        self.driver = Driver(source, prepare, self._on_closing)
        # Apart from each other: no commit waits for a lease, which may wait for another process's.
        self._leases: GroupCommit[LeaseRequest] = GroupCommit(
            self.driver, acquire_statement.store, width=1, busy_timeout=busy_timeout
        )
        self._writes: GroupCommit[LeasedWrite] = GroupCommit(
            self.driver, write_statements.store, width=writers, busy_timeout=busy_timeout
        )

    async def acquire(self, wanted: LeaseRequest) -> Lease:
        await self._leases.store_write(wanted)
        return wanted.result()

    async def write(self, write: LeasedWrite, *, shielded: bool = False) -> None:
        try:
            await self._writes.store_write(write, shielded=shielded)
        except asyncio.CancelledError as cancelled:
            if shielded and write.error is None:
                mark_done(cancelled)
            raise
        write.result()

    async def release_all(self, releases: Iterable[LeasedWrite]) -> None:
        """Release leases, many at the same time, before the driver closes."""
        async with anyio.create_task_group() as group:
            for release in releases:
                start_soon(group, self._release_quietly, release)

    async def _release_quietly(self, release: LeasedWrite) -> None:
        with contextlib.suppress(CheckpointError):  # the lease lapses by itself then
            await self.write(release)

    def _on_closing(self) -> None:
        if self.listener is not None:
            self.listener.stop()
