"""Looking after threads over the verbs of any saver: listing, copying, erasing and pinning.

What writes takes the thread's lease, as a run does: a thread that a run owns is left alone (`ThreadBusyError`). What it
changes of one thread is one transaction. These are `BaseCheckpointSaver`'s methods of the same names.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
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
"""Threads that are erased at the same time."""


async def list_threads(
    saver: SaverPort, *, filter: Mapping[str, Any] | None = None, after: str | None = None, limit: int | None = None
) -> AsyncGenerator[ThreadHeader, None]:
    """See `BaseCheckpointSaver.alist_threads`."""
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


async def headers_of(saver: SaverPort, thread_id: str) -> list[Header]:
    """List all checkpoints of a thread, of all namespaces, newest first.

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
    """See `BaseCheckpointSaver.acopy_thread`."""
    if source == target:
        raise ThreadExistsError(target)
    async with UpkeepLease(saver, source):
        dump = await saver.dump(source)
        if dump is None:
            raise ThreadNotFoundError(source)
        check_parents(source, dump.rows)
        await load_thread(saver, target, renamed(dump, source))


async def load_thread(saver: SaverPort, thread_id: str, dump: ThreadDump) -> None:
    """Make a thread of a dump.

    Raises:
        ThreadExistsError: it holds something already.
        ThreadBusyError: a run owns it.
        StorageError: nothing was stored.
    """
    async with UpkeepLease(saver, thread_id) as lease:
        if lease.token.newest is not None:
            raise ThreadExistsError(thread_id)
        await lease.advance_epoch(max([event.epoch for event in dump.events], default=0))
        await saver.load(lease.token, dump)


def renamed(dump: ThreadDump, source: str) -> ThreadDump:
    """A thread's dump, for a thread of another name.

    Ids of tasks are made of the thread's. What was recorded of tasks, what they gave and what they asked, stands under
    the ids that they have in `source`: the checkpoints on which they were planned say so. Tasks that are planned in the
    other thread have ids of its own: services that know them as keys are not to take the work of two threads for one.
    """
    begun = {(row.ns, row.parent_id) for row in dump.rows} | {(one.ns, one.checkpoint_id) for one in dump.records}
    begun |= {(ns, made_on) for row in dump.rows for ns, made_on in row.metadata.get("parents", {}).items()}
    rows = [
        replace(row, metadata={MADE_IN: source, **row.metadata}) if (row.ns, row.checkpoint_id) in begun else row
        for row in dump.rows
    ]
    return replace(dump, rows=tuple(rows))


async def erase_thread(saver: SaverPort, thread_id: str) -> None:
    """See `BaseCheckpointSaver.aerase_thread`."""
    async with UpkeepLease(saver, thread_id) as lease:
        await saver.erase(lease.token)


async def erase_threads(saver: SaverPort, thread_ids: Sequence[str]) -> None:
    """Erase several threads, many at the same time: a saver that rewrites its files for it does so once for these.

    Raises: as `erase_thread`: the first error in their order. The others are erased.
    """
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
    """See `BaseCheckpointSaver.apin`."""
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
