"""With durability "async": a finished superstep is stored while the next one runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from checkpoint_savers.records import EventRow, TaskRecord

from .commit_writers import CommitWriter
from .lease import ThreadLease
from .shielded_task import ShieldedTask


class OverlappedWriter(CommitWriter):
    """What one namespace has to store: one superstep at a time.

    A superstep is handed over when the one before it is stored, so that one at most is at risk. What becomes of tasks
    goes with it. Questions, failures and the end are stored before control returns.
    """

    def __init__(
        self, lease: ThreadLease, ns: str, outer: tuple[CommitWriter, ...] = (), *, keeps: bool = False
    ) -> None:
        super().__init__(lease, ns, outer, keeps=keeps)
        self._running: tuple[ShieldedTask, ...] = ()  # at most one
        self._due = False  # not only checkpoints that wait for another

    async def commit(self, *, ends: bool) -> None:
        self._due = True
        await self._wait_for_transaction()
        self._start_transaction(releases=ends and not self.outer)
        # Where events are kept, a reader must not see what tasks show of which no stored row says that they may begin.
        if ends or (self.outer and self.lease.event_listeners):
            await self._wait_for_transaction()

    async def record(self, record: TaskRecord, on_stored: Callable[[], None], events: Sequence[EventRow] = ()) -> None:
        self.lease.require_storage()
        self.stage(record)
        self.events += events
        on_stored()

    async def record_outcomes(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            self.stage(record)
        await self.close()

    async def flush_checkpoints(self) -> None:
        await self._wait_for_transaction()
        if self._rows:
            self._start_transaction()
            await self._wait_for_transaction()

    async def flush_events(self) -> None:
        self._due = True
        await self.close()

    async def flush(self) -> None:
        await self.close()

    async def close(self) -> None:
        if self.discarded:
            return
        if self._running or self._due or self._staged or self.events:
            await self.lease.start(self._flush_all).wait_out()
        else:
            self.lease.require_storage()

    async def _flush_all(self) -> None:
        await self._wait_for_transaction()
        if self._due or self._staged or self.events:
            self._start_transaction()
            await self._wait_for_transaction()

    def _start_transaction(self, *, releases: bool = False) -> None:
        """Begin a transaction with all that waits, in a task of the run's own."""
        assert not self._running
        self._due = False
        transaction = self.lease.start(partial(self._run_transaction, releases))
        if not transaction.ended.is_set():  # as it may be, where asyncio's tasks begin eagerly
            self._running = (transaction,)

    async def _run_transaction(self, releases: bool) -> None:
        try:
            await self.store_queued(releases=releases)
        except BaseException as error:
            self.lease.fail(error)
            raise
        finally:
            self._running = ()

    async def _wait_for_transaction(self) -> None:
        """Wait until nothing is under way. Raises what a transaction of the run has raised."""
        while self._running:
            await self._running[0].wait()
        self.lease.require_storage()
