"""Group commit: writes that arrive while a transaction is under way share the next one.

A batch takes the oldest write of each thread, of the threads in turn, up to a number and a size. So a thread's writes
are stored in their order, each in a transaction after the last one's, and a thread that writes without end takes one
place in each batch, like the others. Each caller is told when the transaction of its own write is durable.

A batch is one statement, which says for each write whether it was done (see `writing`). When the statement fails, the
batch was rolled back whole; it is halved, and each half tried, until the write that is to blame stands alone.
A write whose thread is locked by another connection is put aside for some milliseconds, and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ..bridge import until
from ..errors import StorageLockedError
from .connections import Cursor
from .driver import Driver, WorkItem
from .failures import affects_all_writes, translate

T = TypeVar("T")

MAX_WRITES = 256
"""Writes in a batch."""

MAX_BATCH_BYTES = 4_000_000
"""Payload of a batch, in bytes; a write that is larger goes alone."""

PAUSE = (0.004, 0.02)
"""Seconds after which a write is tried again whose thread was locked, at least and at most."""


class QueuedWrite(WorkItem[T]):
    """A write that waits for its turn.

    Attributes:
        thread_id: whose writes it keeps its order with.
        size: of its payload, in bytes.
        unsure: a transaction with it was under way when a connection broke: it may be stored already.
    """

    __slots__ = ("retry_until", "size", "thread_id", "unsure")

    def __init__(self, thread_id: str, size: int = 0) -> None:
        super().__init__()
        self.thread_id = thread_id
        self.size = size
        self.unsure = False
        self.retry_until: float | None = None  # until when it is tried again, once it was locked out

    def queued(self) -> None:
        """It has its place now, behind all that were taken in before."""


W = TypeVar("W", bound=QueuedWrite[Any])


class StoreBatch(Protocol[W]):
    """How a batch is done, in one transaction on a connection in autocommit mode."""

    async def __call__(self, cursor: Cursor, writes: Sequence[W]) -> Sequence[W]:
        """Give each write its value or its error, and return those that were locked out."""
        ...


class GroupCommit(Generic[W]):
    """Takes writes from any thread and event loop, and stores them in batches.

    Args:
        driver: whose loop does it.
        store: does a batch.
        width: how many transactions may be under way at the same time. They never have a thread in common.
        busy_timeout: seconds for which a write that is locked out is tried again.
    """

    def __init__(self, driver: Driver, store: StoreBatch[W], *, width: int, busy_timeout: float) -> None:
        self._driver = driver
        self._store = store
        self._width = width
        self._busy_timeout = busy_timeout
        # All of it under the driver's lock.
        self._waiting: dict[str, deque[W]] = {}  # by thread, in the order of their turns
        self._under_way: set[str] = set()  # threads
        self._workers = 0

    def store_write(self, write: W, *, shielded: bool = False) -> Awaitable[None]:
        """Have a write stored, and return when it is durable, or raise its error.

        Args:
            shielded: as in `until`.

        Raises:
            SaverClosedError: the saver is not open, or is in another process.
        """
        return until(lambda waiter: self._driver.submit(write, waiter, partial(self._queue, write)), shielded=shielded)

    def _queue(self, write: W) -> None:
        if self._workers < self._width:
            self._driver.post(self._work)
            self._workers += 1
        self._waiting.setdefault(write.thread_id, deque()).append(write)
        write.queued()

    # ---- on the driver's loop --------------------------------------------------------------------------------

    async def _work(self) -> None:
        while batch := self._next_batch():
            await self._store_batch(batch)

    def _next_batch(self) -> list[W]:
        """The next batch; an empty one when there is nothing to do, and then this server has ended."""
        with self._driver.lock:
            batch: list[W] = []
            size = 0
            for thread_id, writes in list(self._waiting.items()):
                if thread_id in self._under_way:
                    continue
                size += writes[0].size
                if batch and size > MAX_BATCH_BYTES:
                    break
                batch.append(writes.popleft())
                del self._waiting[thread_id]
                if writes:
                    self._waiting[thread_id] = writes  # its next turn comes after the others'
                if len(batch) == MAX_WRITES:
                    break
            self._under_way.update(write.thread_id for write in batch)
            if not batch:
                self._workers -= 1
            return batch

    async def _store_batch(self, batch: Sequence[W]) -> None:
        """Do a batch, in one transaction if it can be, and tell its callers."""
        pieces = [batch]
        while pieces:
            piece = pieces.pop()
            try:
                locked = await self._driver.source.run_on_connection(
                    partial(self._store, writes=piece), interrupted=partial(_mark_unsure, piece)
                )
            except Exception as error:
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
        """Put a write back in its place after a pause. Until then its thread counts as under way, to keep its order."""
        await asyncio.sleep(random.uniform(*PAUSE))
        with self._driver.lock:
            self._under_way.discard(write.thread_id)
            writes = self._waiting.pop(write.thread_id, deque())
            writes.appendleft(write)
            self._waiting = {write.thread_id: writes, **self._waiting}
            if self._workers < self._width:
                self._workers += 1
                self._driver.begin(self._work)


def _mark_unsure(writes: Sequence[QueuedWrite[Any]]) -> None:
    for write in writes:
        write.unsure = True
