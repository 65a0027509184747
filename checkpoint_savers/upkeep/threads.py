"""Upkeep of threads over the methods of any saver: listing, copying, erasing and pinning.

Writing functions acquire the thread's lease, as a run does, and raise `ThreadBusyError` if a run holds it. What they
change of one thread is one transaction. `BaseCheckpointSaver` has methods of the same names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
from msgspec.structs import replace

from ..children import start_soon
from ..errors import CheckpointNotFoundError, ThreadExistsError, ThreadNotFoundError
from ..lease import UpkeepLease
from ..listing import GapFinder, check_gaps, check_parents
from ..records import MADE_IN, CheckpointId, Header, Rewrite, ThreadDump, ThreadHeader
from ..saver_port import PAGE, SaverPort

CONCURRENT_ERASURES = 64
"""Number of threads that are erased at the same time."""


async def list_threads(
    saver: SaverPort, *, filter: Mapping[str, Any] | None = None, after: str | None = None, limit: int | None = None
) -> AsyncGenerator[ThreadHeader, None]:
    """List threads in the order of their ids. See `BaseCheckpointSaver.alist_threads`.

    Args:
        saver: stores the threads.
        filter: entries of a thread's metadata, all of which must be equal.
        after: list only ids strictly greater than this.
        limit: maximum number of threads; None for all.

    Yields:
        The header of each thread.
    """
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = await saver.threads(after=after, limit=size, filter=filter)
        for header in page:
            yield header
        if len(page) < size:
            return
        after = page[-1].thread_id
        left = None if left is None else left - size


async def count_threads(saver: SaverPort, *, filter: Mapping[str, Any] | None = None) -> int:
    """Count threads. See `BaseCheckpointSaver.acount_threads`.

    Args:
        saver: stores the threads.
        filter: entries of a thread's metadata, all of which must be equal.

    Returns:
        The number of threads that match.
    """
    count = 0
    async with aclosing(list_threads(saver, filter=filter)) as threads:
        async for _ in threads:
            count += 1
    return count


async def headers_of(saver: SaverPort, thread_id: str) -> list[Header]:
    """List all checkpoints of a thread, of all namespaces, newest first.

    Args:
        saver: stores the thread.
        thread_id: the thread.

    Raises:
        CorruptCheckpointError: a row's parent is missing.
    """
    found: list[Header] = []
    gaps = GapFinder()
    before: CheckpointId | None = None
    while True:
        page = await saver.scan(thread_id, None, before=before, limit=PAGE)
        for header in page:
            await check_gaps(saver, gaps.add(header))
        found += page
        if len(page) < PAGE:
            await check_gaps(saver, gaps.end())
            return found
        before = page[-1].checkpoint_id


async def copy_thread(saver: SaverPort, source: str, target: str) -> None:
    """Copy a thread. See `BaseCheckpointSaver.acopy_thread`.

    Args:
        saver: stores both threads.
        source: the id of the thread to copy.
        target: the id of the copy.

    Raises:
        ThreadNotFoundError: nothing is stored of `source`.
        ThreadExistsError: something is stored of `target`, or both are the same.
        ThreadBusyError: a run holds one of them.
    """
    if source == target:
        raise ThreadExistsError(target)
    async with UpkeepLease(saver, source):
        dump = await saver.dump(source)
        if dump is None:
            raise ThreadNotFoundError(source)
        check_parents(source, dump.rows)
        await load_thread(saver, target, renamed(dump, source))


async def load_thread(saver: SaverPort, thread_id: str, dump: ThreadDump) -> None:
    """Create a thread from a dump, or replace it in one transaction if `dump.replaces` is set.

    Args:
        saver: stores the thread.
        thread_id: the id of the new thread.
        dump: what to store.

    Raises:
        ThreadExistsError: the thread holds a checkpoint already, and the dump does not replace it.
        ThreadBusyError: a run holds it.
        StorageError: nothing was stored.
    """
    async with UpkeepLease(saver, thread_id) as lease:
        if lease.token.newest is not None and not dump.replaces:
            raise ThreadExistsError(thread_id)
        # Events of the dump keep their epochs. Runs of the new thread must have greater ones, since events are ordered
        # by epoch.
        await lease.advance_epoch(max([event.epoch for event in dump.events], default=0))
        await saver.load(lease.token, dump)


def renamed(dump: ThreadDump, source: str) -> ThreadDump:
    """Return a thread's dump for a thread with another id.

    Args:
        dump: the dump.
        source: the id of the thread from which it was made.
    """
    # Task ids are computed from the thread's id. Records, answers and questions are stored under the ids that the tasks
    # have in `source`, so the checkpoints on which these tasks were planned are marked with it. Tasks that the new
    # thread plans get ids of its own: services that use them as idempotency keys must not confuse the work of two
    # threads.
    begun = {(row.ns, row.parent_id) for row in dump.rows} | {(one.ns, one.checkpoint_id) for one in dump.records}
    begun |= {(ns, made_on) for row in dump.rows for ns, made_on in row.metadata.get("parents", {}).items()}
    rows = [
        replace(row, metadata={MADE_IN: source, **row.metadata}) if (row.ns, row.checkpoint_id) in begun else row
        for row in dump.rows
    ]
    return replace(dump, rows=tuple(rows))


async def erase_thread(saver: SaverPort, thread_id: str) -> None:
    """Erase a thread. See `BaseCheckpointSaver.aerase_thread`.

    Args:
        saver: stores the thread.
        thread_id: the thread.

    Raises:
        ThreadBusyError: a run holds the thread; nothing was deleted.
    """
    async with UpkeepLease(saver, thread_id) as lease:
        await saver.erase(lease.token)


async def erase_threads(saver: SaverPort, thread_ids: Sequence[str]) -> None:
    """Erase several threads, many at the same time.

    Args:
        saver: stores the threads.
        thread_ids: the threads.

    Raises:
        ThreadBusyError, StorageError: the first error in the order of the ids. The other threads are erased.
    """
    # At the same time, since a saver that rewrites its files for an erasure does so once for all that are waiting. An
    # error must not cancel the others, so it is raised when all have ended.
    failures: dict[str, Exception] = {}
    limiter = anyio.CapacityLimiter(CONCURRENT_ERASURES)

    async def one(thread_id: str) -> None:
        async with limiter:
            try:
                await erase_thread(saver, thread_id)
            except Exception as error:
                failures[thread_id] = error

    async with anyio.create_task_group() as group:
        for thread_id in dict.fromkeys(thread_ids):
            start_soon(group, one, thread_id)
    for thread_id in thread_ids:
        if thread_id in failures:
            raise failures[thread_id]


async def pin(saver: SaverPort, thread_id: str, ns: str, checkpoint_id: CheckpointId | None, *, pinned: bool) -> None:
    """Pin or unpin a checkpoint. See `BaseCheckpointSaver.apin`.

    Args:
        saver: stores the thread.
        thread_id: the thread.
        ns: the namespace.
        checkpoint_id: the checkpoint; None for the namespace's head.
        pinned: True to pin, False to unpin.

    Raises:
        CheckpointNotFoundError: the thread does not have the checkpoint.
        ThreadNotFoundError: no checkpoint is named, and the thread does not exist.
        ThreadBusyError: a run holds the thread.
    """
    async with UpkeepLease(saver, thread_id) as lease:
        chain = await saver.read(thread_id, ns, checkpoint_id)
        if chain is None:
            raise (
                ThreadNotFoundError(thread_id)
                if checkpoint_id is None
                else CheckpointNotFoundError(thread_id, checkpoint_id)
            )
        row = chain.rows[-1]
        if row.pinned is not pinned:
            await saver.rewrite(lease.token, Rewrite(pins={(ns, row.checkpoint_id): pinned}))
