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
        self, lease: ThreadLease, ns: str, around: tuple[CommitWriter, ...] = (), *, keeps: bool = False
    ) -> None:
        super().__init__(lease, ns, around, keeps=keeps)
        self._under_way: tuple[ShieldedTask, ...] = ()  # at most one
        self._due = False  # not only checkpoints that wait for another

    async def commit(self, *, ends: bool) -> None:
        self._due = True
        await self._landed()
        self._depart(releases=ends and not self.around)
        # Where events are kept, a reader must not see what tasks show of which no stored row says that they may begin.
        if ends or (self.around and self.lease.event_listeners):
            await self._landed()

    async def record(self, record: TaskRecord, noted: Callable[[], None], events: Sequence[EventRow] = ()) -> None:
        self.lease.require_storage()
        self.stage(record)
        self.events += events
        noted()

    async def put(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            self.stage(record)
        await self.finish()

    async def flush(self) -> None:
        await self._landed()
        if self._rows:
            self._depart()
            await self._landed()

    async def spill(self) -> None:
        self._due = True
        await self.finish()

    async def rest(self) -> None:
        await self.finish()

    async def finish(self) -> None:
        if self.forgotten:
            return
        if self._under_way or self._due or self._staged or self.events:
            await self.lease.start(self._store_rest).wait_out()
        else:
            self.lease.require_storage()

    async def _store_rest(self) -> None:
        await self._landed()
        if self._due or self._staged or self.events:
            self._depart()
            await self._landed()

    def _depart(self, *, releases: bool = False) -> None:
        """Begin a transaction with all that waits, in a task of the run's own."""
        assert not self._under_way
        self._due = False
        flight = self.lease.start(partial(self._fly, releases))
        if not flight.over.is_set():  # as it may be, where asyncio's tasks begin eagerly
            self._under_way = (flight,)

    async def _fly(self, releases: bool) -> None:
        try:
            await self.transact(releases=releases)
        except BaseException as error:
            self.lease.fail(error)
            raise
        finally:
            self._under_way = ()

    async def _landed(self) -> None:
        """Wait until nothing is under way. Raises what a transaction of the run has raised."""
        while self._under_way:
            await self._under_way[0].wait()
        self.lease.require_storage()
