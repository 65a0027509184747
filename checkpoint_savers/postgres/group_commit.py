"""Group commit: writes that arrive during a transaction share the next one.

A batch takes the oldest write of each thread, in turn, until `MAX_WRITES` or `MAX_BATCH_BYTES` is reached. So the
writes of a thread are stored in their order, each in a later transaction than the one before, and a thread with many
writes has one write in each batch, like every other thread. Each caller is woken when its own write is durable.

A batch is one statement, which reports for each write whether it was stored (see `writing`). If the statement fails,
the whole batch was rolled back; it is halved, and each half tried, until the failing write is alone. A write whose
thread is locked by another connection is repeated after some milliseconds, and delays no other thread.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ..bridge import WorkItem, wait_until_woken
from ..errors import StorageLockedError
from .connections import PostgresCursor
from .driver import Driver
from .failures import affects_all_writes, translate

T = TypeVar("T")

MAX_WRITES = 256
"""Number of writes in a batch, at most."""

MAX_BATCH_BYTES = 4_000_000
"""Payload of a batch in bytes, at most; a larger write goes alone."""

PAUSE = (0.004, 0.02)
"""Seconds after which a write whose thread was locked is repeated: minimum and maximum."""


class QueuedWrite(WorkItem[T]):
    """A write that waits for its turn.

    Attributes:
        thread_id: the thread; the writes of one thread keep their order.
        size: bytes of its payload.
        unsure: True if the connection broke during a transaction with this write: the write may be stored already.
    """

    __slots__ = ("retry_until", "size", "thread_id", "unsure")

    kind = ""
    """All writes of a batch have the same kind: those of another kind are stored by other statements."""

    def __init__(self, thread_id: str, size: int = 0) -> None:
        super().__init__()
        self.thread_id = thread_id
        self.size = size
        self.unsure = False
        self.retry_until: float | None = None  # set when the thread is first found locked

    def queued(self) -> None:
        """Note that the write is in the queue, behind all writes that were queued before. Called under the lock."""


W = TypeVar("W", bound=QueuedWrite[Any])


class StoreBatch(Protocol[W]):
    """Stores a batch in one transaction, on a connection in autocommit mode."""

    async def __call__(self, cursor: PostgresCursor, writes: Sequence[W]) -> Sequence[W]:
        """Set each write's value or error, and return the writes whose threads were locked."""
        ...


class GroupCommit(Generic[W]):
    """Takes writes from any thread and event loop, and stores them in batches.

    Args:
        driver: the event loop that stores them.
        store: stores a batch.
        width: number of concurrent transactions, at most. No two of them have a thread in common.
        busy_timeout: seconds for which a write whose thread is locked is repeated.
    """

    def __init__(self, driver: Driver, store: StoreBatch[W], *, width: int, busy_timeout: float) -> None:
        self._driver = driver
        self._store = store
        self._width = width
        self._busy_timeout = busy_timeout

        # All of it under the driver's lock, since callers of any thread enqueue. The dict's order is the order of the
        # threads' turns.
        self._waiting: dict[str, deque[W]] = {}  # by thread
        self._under_way: set[str] = set()  # threads of running batches and of writes that wait for a retry
        self._workers = 0

    def store_write(self, write: W, *, shielded: bool = False) -> Awaitable[None]:
        """Store a write, and return when it is durable, or raise its error.

        Args:
            write: the write; queued at once.
            shielded: as for `bridge.wait_until_woken`: a cancel scope does not interrupt the wait.

        Returns:
            An awaitable of None.

        Raises:
            SaverClosedError: the saver is not open, or belongs to another process.
        """
        return wait_until_woken(
            lambda waiter: self._driver.submit(write, waiter, partial(self._queue, write)), shielded=shielded
        )

    def _queue(self, write: W) -> None:
        # Posted before the write is queued: if the loop has been closed, `post` raises and nothing was queued.
        if self._workers < self._width:
            self._driver.post(self._work)
            self._workers += 1
        self._waiting.setdefault(write.thread_id, deque()).append(write)
        write.queued()

    # The methods below run on the driver's loop. They take the lock too, as callers of other threads enqueue meanwhile.

    async def _work(self) -> None:
        while batch := self._next_batch():
            await self._store_batch(batch)

    def _next_batch(self) -> list[W]:
        """Return the next batch; an empty one if there is nothing to do, which ends this worker."""
        with self._driver.lock:
            batch: list[W] = []
            size = 0
            for thread_id, writes in list(self._waiting.items()):
                # Two concurrent transactions must not write one thread: both would compare the head that the other one
                # changes, and the writes' order would be lost.
                if thread_id in self._under_way:
                    continue
                # `store` would need two transactions for writes of two kinds. If the second one failed, its error would
                # be raised to the callers of the first one too, although their writes are stored. These callers would
                # also wait for the locks of the second one.
                if batch and writes[0].kind != batch[0].kind:
                    continue
                size += writes[0].size
                if batch and size > MAX_BATCH_BYTES:
                    break
                batch.append(writes.popleft())
                del self._waiting[thread_id]
                if writes:
                    # Removed and added again: the thread's next turn comes after the other threads'.
                    self._waiting[thread_id] = writes
                if len(batch) == MAX_WRITES:
                    break
            self._under_way.update(write.thread_id for write in batch)
            # Counted down under the lock in which the queue was found empty: a write that is queued right after starts
            # a new worker.
            if not batch:
                self._workers -= 1
            return batch

    async def _store_batch(self, batch: Sequence[W]) -> None:
        """Store a batch, in one transaction if possible, and wake its callers."""
        pieces = [batch]
        while pieces:
            piece = pieces.pop()
            try:
                locked = await self._driver.source.run_on_connection(
                    partial(self._store, writes=piece), interrupted=partial(_mark_unsure, piece)
                )
            except Exception as error:
                # Halving isolates a failing write among n in about 2 log2 n statements. An error of the server or
                # connection is not any write's fault: smaller batches would fail in the same way.
                if len(piece) > 1 and not affects_all_writes(error):
                    half = len(piece) // 2
                    pieces += (piece[half:], piece[:half])
                    continue
                for write in piece:
                    write.error = translate(error, self._driver.source.name)
                locked = ()
            again = [write for write in locked if self._may_retry(write)]
            for write in again:
                self._driver.begin(partial(self._requeue_later, write))
            done = [write for write in piece if write not in again]
            with self._driver.lock:
                self._under_way.difference_update(write.thread_id for write in done)
            self._driver.complete(done)

    def _may_retry(self, write: W) -> bool:
        """Return True if a write whose thread was locked may be repeated; else set its error."""
        now = time.monotonic()
        if write.retry_until is None:
            write.retry_until = now + self._busy_timeout
        if now < write.retry_until:
            return True
        write.error = StorageLockedError(
            f"{self._driver.source.name}: another connection holds the lock on thread {write.thread_id!r} for longer "
            "than the busy timeout. Nothing was stored. End what holds it, or pass a longer busy_timeout."
        )
        return False

    async def _requeue_later(self, write: W) -> None:
        """Queue a write again after a pause, at the front.

        Until then its thread counts as running, to keep the order of its writes.
        """
        await asyncio.sleep(random.uniform(*PAUSE))
        with self._driver.lock:
            self._under_way.discard(write.thread_id)
            writes = self._waiting.pop(write.thread_id, deque())
            writes.appendleft(write)
            self._waiting = {write.thread_id: writes, **self._waiting}
            # The last worker may have ended during the pause, when it found the queue empty.
            if self._workers < self._width:
                self._workers += 1
                self._driver.begin(self._work)


def _mark_unsure(writes: Sequence[QueuedWrite[Any]]) -> None:
    for write in writes:
        write.unsure = True
