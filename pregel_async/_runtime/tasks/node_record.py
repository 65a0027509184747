"""The record of a node's own writes, which is stored before anything that depends on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ..persistence.lease import ThreadLease
from ..persistence.shielded_task import ShieldedWork


class NodeRecord:
    """The record of a node's writes while its async routers run. It is stored at most once.

    Args:
        lease: the lease of the run's thread.
        record: stores the record.

    Attributes:
        scope: the scope of the router that runs. It is cancelled if storing fails.
    """

    __slots__ = ("_lease", "_record", "_storing", "scope")

    def __init__(self, lease: ThreadLease, record: Callable[[], Awaitable[None]]) -> None:
        self.scope = anyio.CancelScope()
        self._lease = lease
        self._record = record
        self._storing: ShieldedWork | None = None

    def begin(self) -> ShieldedWork:
        """Start to store the record, unless that has begun. Return the task that stores it."""
        if self._storing is None:
            self._storing = self._lease.start(self._store)
        return self._storing

    async def _store(self) -> None:
        try:
            await self._record()
        except BaseException:
            # At once: what the router waits for may never come.
            self.scope.cancel()
            raise

    async def store(self) -> None:
        """Store the record, or wait until it is stored. Raises the error of the transaction."""
        await self.begin().wait_out()

    def raise_failure(self) -> None:
        """Raise the error of the transaction, if it has failed."""
        if self._storing is not None:
            self._storing.raise_failure()

    @property
    def is_stored(self) -> bool:
        """True once the record has been stored."""
        return self._storing is not None and self._storing.ended.is_set()
