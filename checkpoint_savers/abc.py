"""`BaseCheckpointSaver`: the public methods that all savers share.

A custom saver subclasses it, implements the abstract methods of `SaverPort` (`saver_port.py` has the contract) over
rows and bytes, and runs the tests of `checkpoint_savers.conformance`. The public reads (`aget_tuple`, `alist`) are
written once, on top of `read`, `segment` and `scan` (`history.py`), and so is upkeep (`upkeep/`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from . import upkeep
from .chain import ChainReader
from .codec import Codec
from .codec.codec import DEFAULT_CODEC
from .history import list_checkpoints, named, tuple_of
from .metadata import checked_changes
from .records import CheckpointTuple, ThreadHeader
from .saver_port import SaverPort
from .upkeep.retention import Pruned, Retention

if TYPE_CHECKING:
    from .runs.port import RunStore  # loaded by programs with a service only


class BaseCheckpointSaver(SaverPort):
    """Stores threads: one lease at a time per thread, one transaction per superstep.

    Args:
        codec: turns values into bytes; register your own types here (`Codec().with_types(Invoice)`).
        clock: returns the time in unix seconds, by which leases are acquired, renewed and compared. Processes that
            share a storage need the same.
    """

    def __init__(self, *, codec: Codec | None = None, clock: Callable[[], float] = time.time) -> None:
        self.codec = DEFAULT_CODEC if codec is None else codec
        self.clock = clock

    @property
    def runs(self) -> RunStore | None:
        """The store of accepted runs, on the saver's own connection; None if the saver has none."""
        return None

    async def aget_tuple(
        self, config: Mapping[str, Any] | str, *, codec: Codec | None = None
    ) -> CheckpointTuple | None:
        """Return one checkpoint: the one with the config's `checkpoint_id`, or the head of the namespace.

        Args:
            config: `{"configurable": {"thread_id": ..., "checkpoint_ns": "", "checkpoint_id": ...}}`, or a thread id.
            codec: decodes instead of the saver's own codec. A codec without the runtime's classes, such as the saver's
                default, reads their objects as `StoredObject`s.

        Returns:
            The checkpoint, or None if it does not exist.

        Raises:
            ValueError: the config has no thread id.
            CorruptCheckpointError: stored bytes are damaged.
            UnknownTypeError: a stored value's type is not registered with the codec.
            UnsupportedFormatError: the checkpoint is in a format of a later version.
            StorageError: the database failed.
        """
        thread_id, ns, checkpoint_id = named(config)
        chain = await self.read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        reader = ChainReader(thread_id, ns, chain.rows)
        return tuple_of(reader, chain.rows[-1], chain.records, codec or self.codec)

    async def alist(
        self,
        config: Mapping[str, Any] | str | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
        limit: int | None = None,
        codec: Codec | None = None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        """List checkpoints, newest first.

        Args:
            config: a thread (all its namespaces, or the one that it names), or a checkpoint; None for all threads.
            filter: metadata entries, all of which must be equal.
            before: a config with a `checkpoint_id`; list only older ones.
            limit: maximum number of checkpoints, counted after filtering; None for all.
            codec: decodes instead of the saver's own codec; see `aget_tuple`.

        Yields:
            Each checkpoint, with its metadata and pending writes.

        Raises:
            ValueError: the id in `before` is not a valid checkpoint id.
            CorruptCheckpointError: stored bytes are damaged, or a row is missing.
            StorageError: the database failed.
        """
        found = list_checkpoints(self, config, filter, before, limit, codec or self.codec)
        async with aclosing(found):
            async for each in found:
                yield each

    # Upkeep. All writing methods except `aupdate_thread` acquire the thread's lease, as a run does: rewriting rows
    # under a live run would remove rows from which the run's next checkpoint is read. Each thread is one transaction.

    async def alist_threads(
        self, *, filter: Mapping[str, Any] | None = None, after: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[ThreadHeader, None]:
        """List threads, in the order of their ids.

        Args:
            filter: entries of a thread's metadata, all of which must be equal. A thread's metadata comes from the
                `metadata` of its calls' configs, each key from the first call that had it, and from `aupdate_thread`.
            after: list only ids strictly greater than this (keyset pagination): pass a page's last id for the next
                page. Threads that are added or deleted meanwhile do not shift the others.
            limit: maximum number of threads; None for all.

        Yields:
            The header of each thread.
        """
        async with aclosing(upkeep.list_threads(self, filter=filter, after=after, limit=limit)) as threads:
            async for header in threads:
                yield header

    async def acount_threads(self, *, filter: Mapping[str, Any] | None = None) -> int:
        """Count threads.

        Args:
            filter: as in `alist_threads`.

        Returns:
            The number of threads that match.
        """
        return await upkeep.count_threads(self, filter=filter)

    async def aupdate_thread(self, config: Mapping[str, Any] | str, metadata: Mapping[str, Any]) -> None:
        """Set keys of a thread's metadata, by which `alist_threads` filters.

        It overwrites keys that the thread has, and works while a run holds the thread. The change is durable when this
        returns.

        Args:
            config: `{"configurable": {"thread_id": ...}}`, or a thread id.
            metadata: text, numbers and bools by key; None deletes a key.

        Raises:
            ThreadNotFoundError: nothing is stored of the thread.
            ValueError: a key or a value is not allowed in a thread's metadata; nothing was changed.
            NotImplementedError: the saver stores no metadata of threads.
        """
        await self.update_thread(named(config)[0], checked_changes(metadata))

    async def acopy_thread(self, source: str, target: str) -> None:
        """Copy a thread, with all namespaces, checkpoints, records, events and pins, under the same checkpoint ids.

        Both threads can be continued: recorded results do not run again, and open questions are asked in both. Tasks of
        the open superstep keep their ids if the superstep has records; tasks that are planned later get ids of the
        copy.

        Args:
            source: the id of the thread to copy.
            target: the id of the copy.

        Raises:
            ThreadNotFoundError: nothing is stored of `source`.
            ThreadExistsError: something is stored of `target`.
            ThreadBusyError: a run holds one of them.
        """
        await upkeep.copy_thread(self, source, target)

    async def aerase_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread, so that none of its bytes are left; see `SaverPort.erase`.

        An unknown thread is ignored.

        Args:
            thread_id: the thread.

        Raises:
            ThreadBusyError: a run holds the thread; nothing was deleted.
        """
        await upkeep.erase_thread(self, thread_id)

    async def adelete_for_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints that these runs have made, with their records and events.

        It applies to all threads and namespaces.

        Checkpoints of other runs remain and can be read. If a namespace's head is deleted, the namespace returns to an
        earlier checkpoint. Pins do not protect a checkpoint. A thread of which nothing remains is deleted, unless the
        saver's run store has a row of it.

        Args:
            run_ids: the runs.

        Raises:
            TypeError: `run_ids` is a single string.
            ThreadBusyError: a run holds one of the threads; those before it, in the order of their ids, are done.
        """
        await upkeep.delete_for_runs(self, run_ids, self.runs)

    async def aprune(
        self,
        thread_ids: str | Sequence[str] | None = None,
        *,
        retention: Retention | None = None,
        strategy: Literal["keep_latest", "delete"] | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete checkpoints that are no longer needed.

        Checkpoints that something still needs are retained, whatever the limits say: heads and the tips of branches
        with their records and open questions, pinned checkpoints, and the states of subgraphs that one of those refers
        to. What is retained reads as before. See docs/retention.md.

        Args:
            thread_ids: one or several threads, of which unknown ones are ignored; None for all threads except those
                that a run holds.
            retention: the limits.
            strategy: instead of `retention`: "keep_latest" for `Retention(keep=1)`; "delete" deletes the threads,
                pinned checkpoints too.
            dry_run: only report what would be deleted. No lease is acquired.

        Returns:
            What was deleted, or would be, and what was retained against the limits.

        Raises:
            ThreadBusyError: a run holds one of the named threads; those before it are done.
            ValueError: neither retention nor strategy was passed, or both; or the strategy is unknown.
        """
        return await upkeep.prune(self, thread_ids, retention=retention, strategy=strategy, dry_run=dry_run)

    async def apin(self, config: Mapping[str, Any] | str) -> None:
        """Pin a checkpoint: pruning does not delete it.

        Args:
            config: addresses the checkpoint, as in `aget_tuple`; the head if it names none.

        Raises:
            CheckpointNotFoundError: the thread does not have the checkpoint that the config names.
            ThreadNotFoundError: the config names no checkpoint, and the thread does not exist.
            ThreadBusyError: a run holds the thread.
        """
        await upkeep.pin(self, *named(config), pinned=True)

    async def aunpin(self, config: Mapping[str, Any] | str) -> None:
        """Remove the pin of a checkpoint.

        Args:
            config: addresses the checkpoint, as in `apin`.

        Raises:
            CheckpointNotFoundError, ThreadNotFoundError, ThreadBusyError: as in `apin`.
        """
        await upkeep.pin(self, *named(config), pinned=False)

    async def aexport_thread(self, thread_id: str, target: upkeep.Place) -> None:
        """Write a thread to a file, byte for byte as it is stored, as of one moment. A run may continue meanwhile.

        Args:
            thread_id: the thread.
            target: a path, at which the file appears when it is complete. It replaces a file of that name and takes
                over its permissions. Or an open file, in binary mode.

        Raises:
            ThreadNotFoundError: nothing is stored of the thread.
            CorruptCheckpointError: what is stored is damaged.
            OSError: the file could not be written.
        """
        await upkeep.export_threads(self, [thread_id], target)

    async def aimport_thread(self, source: upkeep.Place | bytes, *, thread_id: str | None = None) -> str:
        """Create a thread from a file that `aexport_thread` wrote, with any saver.

        Args:
            source: a path, an open file that can be read twice, or the file's bytes.
            thread_id: the id of the new thread; None for the exported one. Under another id it is a copy; see
                `acopy_thread`.

        Returns:
            The thread's id.

        Raises:
            CorruptCheckpointError: the file is damaged, truncated, or not an export; nothing was stored.
            UnsupportedFormatError: a later version of this package wrote it; nothing was stored.
            ThreadExistsError: something is stored of the thread.
            ValueError: the file does not have exactly one thread.
        """
        return await upkeep.import_thread(self, source, thread_id=thread_id)
