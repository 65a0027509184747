"""`SqliteSaver`: the port's verbs, each one job for the connection's thread."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import anyio

from ..abc import PAGE, BaseCheckpointSaver
from ..codec import Codec
from ..errors import SaverClosedError, StorageError
from ..ledger import metadata_matches
from ..metadata import write_metadata
from ..records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Claim,
    Commit,
    EventKey,
    EventRow,
    Header,
    Owner,
    TaskRecord,
)
from . import schema, transactions
from .worker import Job, Worker, closed

T = TypeVar("T")

SLICE = 1024
"""Rows that a filtered listing looks at in one go. Commits of others come in between."""


class SqliteSaver(BaseCheckpointSaver):
    """Keeps threads in one SQLite file, which any number of processes on one machine may use at once.

        async with SqliteSaver.from_conn_string("runs.db") as saver:
            ...

    What a commit survives: with `synchronous="FULL"`, a power loss; with `"NORMAL"`, a crash of the process, while
    a power loss may take the last commits (never part of one). SQLite's WAL mode is used, which needs a local disk.

    Args:
        path: a file, which is made if it is missing; `":memory:"`; or an SQLite URI (`file:runs.db?mode=ro`).
        codec: as for every saver.
        synchronous: see above.
        busy_timeout: seconds to wait for another process's lock, before `StorageLockedError`.
        clock: as for every saver.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(codec=codec, clock=clock)
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous is 'FULL' or 'NORMAL', not {synchronous!r}")
        if not busy_timeout >= 0:
            raise ValueError(f"busy_timeout is seconds, 0 or more, not {busy_timeout!r}")
        self.path = os.fspath(path)
        self._is_uri = isinstance(path, str) and path.startswith("file:")
        self.synchronous: Literal["FULL", "NORMAL"] = synchronous
        self.busy_timeout = busy_timeout
        self._worker: Worker | None = None
        self._taken: dict[tuple[str, str], Claim] = {}  # by thread and run: taken here, not given up yet

    @classmethod
    def from_conn_string(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: Codec | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """A saver to be opened with `async with`. Arguments as for the class."""
        return cls(path, codec=codec, synchronous=synchronous, busy_timeout=busy_timeout, clock=clock)

    # ---- opening and closing ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the database, checking first whose it is. A file of an earlier version is upgraded, unless it cannot be
        written: then it is read as it is, and has no events.

        Raises:
            CorruptCheckpointError: it is damaged, or another program's.
            UnsupportedFormatError: it is of a later version of this package.
            StorageError: it cannot be opened; `StorageReadOnlyError`: it is new, and cannot be written.
        """
        if self._worker is not None:
            raise SaverClosedError(f"the saver of {self.path} is open already: one 'async with' at a time")
        worker = self._worker = Worker(
            self.path,
            name=self.path,
            uri=self._is_uri,
            prepare=partial(
                schema.prepare, name=self.path, synchronous=self.synchronous, busy_timeout=self.busy_timeout
            ),
            busy_timeout=self.busy_timeout,
        )
        try:
            await worker.open()
        except BaseException:
            self._worker = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish what was begun, and close: on any thread and event loop, not just those it was opened on.

        A run that still goes on can store nothing any more; its thread is given up, so that nobody has to wait for it.
        """
        worker, self._worker = self._worker, None
        if worker is not None:
            left, self._taken = self._taken, {}
            with anyio.CancelScope(shield=True):  # else a cancelled scope would not even begin to close
                for claim in left.values():
                    with contextlib.suppress(StorageError):  # it lapses by itself then
                        await worker.run(Job(partial(transactions.release, claim=claim), writes=True))
                await worker.close()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        worker: Worker | None = getattr(self, "_worker", None)
        if worker is not None and worker.is_open:
            worker.stop()
            warn(f"{self!r} of {self.path} was never closed: use it in 'async with'", ResourceWarning, source=self)

    async def _run(self, work: Callable[..., T], *args: Any, writes: bool = True) -> T:
        return await self._do(Job(lambda db: work(db, *args), writes=writes))

    async def _do(self, job: Job[T]) -> T:
        worker = self._worker  # read once: another thread may close the saver meanwhile
        if worker is None:
            raise closed(self.path)
        return await worker.run(job)

    # ---- the port --------------------------------------------------------------------------------------------

    async def claim(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Claim:
        job = Job(lambda db: transactions.claim(db, thread_id, owner, now, expires_at), writes=True)
        try:
            claim = self._taken[thread_id, owner.run_id] = await self._do(job)
            return claim
        except BaseException:
            # Cancelled, and the claim may have been taken all the same. Its run will never hear of it, and would
            # leave the thread busy until it expires.
            if job.value is not None:
                with anyio.CancelScope(shield=True), contextlib.suppress(StorageError):
                    await self.release(job.value)
            raise

    async def renew(self, claim: Claim, *, expires_at: float) -> None:
        await self._run(transactions.renew, claim, expires_at)

    async def commit(self, claim: Claim, commit: Commit) -> None:
        thread_id = claim.thread_id
        await self._run(
            transactions.commit,
            claim,
            [_row(thread_id, row) for row in commit.rows],
            commit.expected_head,
            [_record(thread_id, record) for record in commit.records],
            [(thread_id, *key) for key in commit.clears],
            commit.expires_at,
            commit.releases,
            commit.head,
            [_event(thread_id, event) for event in commit.events],
        )
        if commit.releases:
            self._taken.pop((claim.thread_id, claim.owner.run_id), None)

    async def record(self, claim: Claim, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        rows = [_record(claim.thread_id, record) for record in records]
        await self._run(transactions.record, claim, rows, expires_at)

    async def release(self, claim: Claim) -> None:
        await self._run(transactions.release, claim)
        self._taken.pop((claim.thread_id, claim.owner.run_id), None)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        return await self._run(transactions.read, thread_id, ns, checkpoint_id, writes=False)

    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        return await self._run(transactions.segment, thread_id, ns, base_id, writes=False)

    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        # The filter is applied here and not in SQL: by the one definition that all savers share (SQL has other
        # ideas of when a bool equals a number, of floats, and of NUL), and no text of a filter can ever become text
        # of a query.
        found: list[Header] = []
        position = None if before is None else (before, "", "")
        while len(found) < limit:
            size = SLICE if filter else limit - len(found)
            rows = await self._run(transactions.page, thread_id, ns, position, size, writes=False)
            for header in transactions.headers(rows):
                if metadata_matches(header.metadata, filter):
                    found.append(header)
                    if len(found) == limit:
                        break
                position = (header.checkpoint_id, header.thread_id, header.ns)
            if len(rows) < size:
                break
        return tuple(found)

    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        return await self._run(transactions.events, thread_id, since, limit, writes=False)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._run(transactions.delete_thread, thread_id, self.clock())


def _row(thread_id: str, row: CheckpointRow) -> transactions.Row:
    return (
        thread_id,
        row.ns,
        row.base_id,
        row.checkpoint_id,
        row.parent_id,
        row.step,
        write_metadata(row.metadata),
        row.frame,
    )


def _record(thread_id: str, record: TaskRecord) -> transactions.Row:
    return (
        thread_id,
        record.ns,
        record.checkpoint_id,
        record.task_id,
        record.index,
        record.kind,
        record.frame,
    )


def _event(thread_id: str, event: EventRow) -> transactions.Row:
    return (thread_id, event.checkpoint_id, event.epoch, event.position, event.kind, event.frame)
