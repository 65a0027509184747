"""`BaseCheckpointSaver`: what all savers have in common.

A custom saver subclasses it, implements the abstract methods of `SaverPort` (`saver_port.py` has the contract) over
rows and bytes, and runs the tests of `checkpoint_savers.conformance`. What users call to read (`aget_tuple`, `alist`)
is written once, on top of `read`, `segment` and `scan` (`history.py`), and so is what looks after threads (`upkeep`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from . import upkeep
from .chain import ChainReader
from .codec import Codec
from .history import list_checkpoints, named, tuple_of
from .metadata import checked_changes
from .records import CheckpointTuple, ThreadHeader
from .saver_port import SaverPort
from .upkeep.retention import Pruned, Retention


class BaseCheckpointSaver(SaverPort):
    """Keeps threads: one lease at a time, one transaction per superstep.

    Args:
        codec: turns values into bytes; give types of your own here (`Codec().with_types(Invoice)`).
        clock: unix seconds, for what users call outside of a run (deleting a thread asks whether a lease is live).
    """

    def __init__(self, *, codec: Codec | None = None, clock: Callable[[], float] = time.time) -> None:
        self.codec = Codec() if codec is None else codec
        self.clock = clock

    async def aget_tuple(
        self, config: Mapping[str, Any] | str, *, codec: Codec | None = None
    ) -> CheckpointTuple | None:
        """The checkpoint that `config` addresses: by its `checkpoint_id`, else the namespace's head; None if there is
        none.

        Args:
            config: `{"configurable": {"thread_id": ..., "checkpoint_ns": "", "checkpoint_id": ...}}`, or a thread id.
            codec: decodes instead of the saver's own. A codec without the runtime's classes, which the saver's own is
                by default, reads their objects as `StoredObject`s.

        Raises:
            CorruptCheckpointError, UnknownTypeError, UnsupportedFormatError, StorageError
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
        """Checkpoints, newest first.

        Args:
            config: a thread (all its namespaces, or the one that it names), or a checkpoint; None for all threads.
            filter: metadata entries, all of which must be equal.
            before: a config with a `checkpoint_id`; only older ones.
            limit: at most so many, counted after filtering; None for all.

        Raises:
            ValueError: `before` names what no checkpoint's id can be.
        """
        found = list_checkpoints(self, config, filter, before, limit, codec or self.codec)
        async with aclosing(found):
            async for each in found:
                yield each

    # ---- looking after threads: what users call ----------------------------------------------------------------
    #
    # All of it that writes takes the thread's lease: `ThreadBusyError` when a run owns the thread. What it changes of
    # one thread is one transaction.

    async def alist_threads(
        self, *, filter: Mapping[str, Any] | None = None, after: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[ThreadHeader, None]:
        """Threads, in the order of their ids.

        Args:
            filter: entries of a thread's metadata, all of which must be equal. A thread has what the `metadata` of its
                calls' configs gave it, each key from the first call that had it, and what `aupdate_thread` has changed.
            after: only ids greater than this; to go on after a page, its last id. Threads that come and go meanwhile
                do not shift the others.
            limit: at most so many; None for all.
        """
        async with aclosing(upkeep.list_threads(self, filter=filter, after=after, limit=limit)) as threads:
            async for header in threads:
                yield header

    async def acount_threads(self, *, filter: Mapping[str, Any] | None = None) -> int:
        """How many threads there are; `filter` as in `alist_threads`."""
        count = 0
        async with aclosing(upkeep.list_threads(self, filter=filter)) as threads:
            async for _ in threads:
                count += 1
        return count

    async def aupdate_thread(self, config: Mapping[str, Any] | str, metadata: Mapping[str, Any]) -> None:
        """Change a thread's metadata, by which `alist_threads` filters: set these keys, whether the thread has them or
        not. A run may have the thread meanwhile.

        Args:
            config: `{"configurable": {"thread_id": ...}}`, or a thread id.
            metadata: text, numbers and bools by key; None deletes a key.

        Raises:
            ThreadNotFoundError: nothing is stored of the thread.
            ValueError: a key or a value is none that a thread's metadata may have; nothing was changed.
            NotImplementedError: the saver keeps no metadata of threads.
        """
        await self.update_thread(named(config)[0], checked_changes(metadata))

    async def acopy_thread(self, source: str, target: str) -> None:
        """Copy a thread, with all namespaces, checkpoints, records, events and pins, under the same checkpoint ids.

        The copy can be gone on with as the other: what is recorded there does not run again, and open questions are
        asked in both. Tasks of the superstep that was open keep their ids if something is recorded of them; all that
        are planned later have ids of their own.

        Raises:
            ThreadNotFoundError: nothing is stored of the one.
            ThreadExistsError: something is stored of the other.
            ThreadBusyError: a run owns one of them.
        """
        await upkeep.copy_thread(self, source, target)

    async def aerase_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread, so that no byte of it is left; see `erase`. Nothing happens when there
        is nothing.

        Raises:
            ThreadBusyError: a run owns the thread; nothing was deleted.
        """
        await upkeep.erase_thread(self, thread_id)

    async def adelete_for_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints that these runs have made, of all threads and namespaces, with what is recorded on
        them and their events. What other runs have made stays and can be read; a thread that stood on one that goes
        stands where it did before. Pins do not count. A thread of which nothing is left is deleted.

        Raises:
            ThreadBusyError: a run owns one of the threads; those before it, in the order of their ids, are done.
        """
        await upkeep.delete_for_runs(self, run_ids)

    async def aprune(
        self,
        thread_ids: str | Sequence[str] | None = None,
        *,
        retention: Retention | None = None,
        strategy: Literal["keep_latest", "delete"] | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Take out of threads what is not needed any more.

        Checkpoints that something still needs stay, whatever the limits say: heads and the tips of branches with what
        is recorded on them and the questions that are open there, pins, and the states of graphs inside that one of
        those refers to. What stays reads as before. See docs/retention.md.

        Args:
            thread_ids: one or several, of which unknown ones are passed over; None for all, of which those are passed
                over that a run owns.
            retention: what is kept.
            strategy: instead: "keep_latest" for `Retention(keep=1)`; "delete" deletes the threads, pins too.
            dry_run: only tell. No lease is taken.

        Raises:
            ThreadBusyError: a run owns one of the threads that were named; those before it are done.
            ValueError: neither retention nor strategy, or both.
        """
        return await upkeep.prune(self, thread_ids, retention=retention, strategy=strategy, dry_run=dry_run)

    async def apin(self, config: Mapping[str, Any] | str) -> None:
        """Make a checkpoint stay when its thread is pruned; the head when the config names none. See `aget_tuple`.

        Raises:
            CheckpointNotFoundError, ThreadNotFoundError: there is none.
            ThreadBusyError: a run owns the thread.
        """
        await upkeep.pin(self, *named(config), pinned=True)

    async def aunpin(self, config: Mapping[str, Any] | str) -> None:
        """Let a checkpoint go again that was pinned. As `apin`."""
        await upkeep.pin(self, *named(config), pinned=False)

    async def aexport_thread(self, thread_id: str, target: upkeep.Place) -> None:
        """Write a thread to a file, byte for byte as it is stored, as of one moment. A run may go on meanwhile.

        Args:
            target: a path, where the file appears when it is complete, and replaces another of that name, whose
                permissions it takes over; or an open file, in binary mode.

        Raises:
            ThreadNotFoundError: nothing is stored of it.
            CorruptCheckpointError: what is stored is damaged.
            OSError: the file's.
        """
        await upkeep.export_threads(self, [thread_id], target)

    async def aimport_thread(self, source: upkeep.Place | bytes, *, thread_id: str | None = None) -> str:
        """Make a thread of a file that `aexport_thread` wrote, of any saver; its id.

        Args:
            source: a path, an open file that can be read twice, or the file's bytes.
            thread_id: what it is to be called, instead of its name; it is a copy then, see `acopy_thread`.

        Raises:
            CorruptCheckpointError: the file is damaged, truncated, or none of these; nothing was stored.
            UnsupportedFormatError: it is of a later version of this package; nothing was stored.
            ThreadExistsError: something is stored of the thread.
            ValueError: the file has several threads.
        """
        return await upkeep.import_thread(self, source, thread_id=thread_id)
