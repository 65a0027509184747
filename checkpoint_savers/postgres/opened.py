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
from .acquiring import Acquiring, Wanted
from .connecting import Source
from .driver import Driver
from .lane import Lane
from .listening import Listener
from .writing import UnderLease, Writing


class Opened:
    """
    Args:
        source, prepare: as for `Driver`.
        claiming, writing: store what the lanes take.
        direct: connection string of a direct connection to listen on, or "".
        writers: transactions at most at the same time for commits.
        busy_timeout: as for `Lane`.

    Attributes:
        driver: to be opened, and closed.
        listener: None without a direct connection.
    """

    def __init__(
        self,
        source: Source,
        prepare: Callable[[], Awaitable[None]],
        acquiring: Acquiring,
        writing: Writing,
        *,
        direct: str,
        writers: int,
        busy_timeout: float,
    ) -> None:
        self.listener = Listener(source, direct) if direct else None
        self.driver = Driver(source, prepare, self._closing)
        # Apart from each other: no commit waits for a lease, which may wait for another process's.
        self._leases: Lane[Wanted] = Lane(self.driver, acquiring.store, width=1, busy_timeout=busy_timeout)
        self._writes: Lane[UnderLease] = Lane(self.driver, writing.store, width=writers, busy_timeout=busy_timeout)

    async def acquired(self, wanted: Wanted) -> Lease:
        await self._leases.do(wanted)
        return wanted.told()

    async def written(self, write: UnderLease, *, shielded: bool = False) -> None:
        try:
            await self._writes.do(write, shielded=shielded)
        except asyncio.CancelledError as cancelled:
            if shielded and write.error is None:
                mark_done(cancelled)
            raise
        write.told()

    async def release_all(self, releases: Iterable[UnderLease]) -> None:
        """Release leases, many at the same time, before the driver closes."""
        async with anyio.create_task_group() as group:
            for release in releases:
                start_soon(group, self._try, release)

    async def _try(self, release: UnderLease) -> None:
        with contextlib.suppress(CheckpointError):  # the lease lapses by itself then
            await self.written(release)

    def _closing(self) -> None:
        if self.listener is not None:
            self.listener.stop()
