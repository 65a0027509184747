"""Write a namespace with durability "async": store a finished superstep while the next one runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from checkpoint_savers.errors import CheckpointError
from checkpoint_savers.records import Commit, EventRow, TaskRecord

from .commit_writers import CommitWriter
from .lease import ThreadLease
from .shielded_task import ShieldedWork


class OverlappedWriter(CommitWriter):
    """Write one namespace with durability "async": at most one transaction in progress.

    A superstep's transaction starts when the previous one is stored, so that at most one superstep is at risk. Task
    records wait for the superstep's transaction. Questions, failures and the end of the run are stored before the verb
    returns.
    """

    def __init__(
        self, lease: ThreadLease, ns: str, outer: tuple[CommitWriter, ...] = (), *, keeps_state: bool = False
    ) -> None:
        super().__init__(lease, ns, outer, keeps_state=keeps_state)
        self._running: tuple[ShieldedWork, ...] = ()  # at most one
        self._due = False  # False if the queue holds only deferred rows

    async def commit(self, *, ends: bool) -> None:
        self._due = True
        await self._wait_for_transaction()
        self._start_transaction(releases=ends and not self.outer)
        # A reader of stored events must not see events of a task before the row is stored that lets the task start: a
        # crash in between would leave events of a task that never ran.
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
        """Start a transaction of everything queued: in the saver's hands if it can begin commits, else in a task."""
        assert not self._running
        self._due = False
        # A subgraph has to wait until its outer graph's checkpoints are stored, so it needs a task.
        if self.outer:
            transaction = self.lease.start(partial(self._run_transaction, self.store_queued))
        else:
            # Built here and not in the task: a row that is queued before the task runs belongs to the next transaction,
            # which may be the last one, and release the lease.
            commit = self._build_commit(releases=releases)
            if self.lease.saver.begins_commits:
                transaction = self.lease.begin(commit, self._end_transaction)
            else:
                transaction = self.lease.start(partial(self._run_transaction, partial(self._store, commit)))
        # It may have ended already: with asyncio's eager task factory, or if it could not begin.
        if not transaction.ended.is_set():
            self._running = (transaction,)

    def _end_transaction(self, commit: Commit, error: BaseException | None) -> None:
        self._running = ()
        if error is None:
            self._mark_stored(commit)
        elif isinstance(error, CheckpointError):
            self.explain(error, commit)

    async def _run_transaction(self, store: Callable[[], Awaitable[None]]) -> None:
        try:
            await store()
        except BaseException as error:
            # Noted at once: no task waits for this transaction now, and no node may start after it has failed.
            self.lease.fail(error)
            raise
        finally:
            self._running = ()

    async def _wait_for_transaction(self) -> None:
        """Wait until no transaction is in progress. Raises the error of a failed transaction of the run."""
        # A loop: another task that waited here may have started the next transaction first.
        while self._running:
            await self._running[0].wait()
        self.lease.require_storage()
