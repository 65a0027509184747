"""`BaseCheckpointSaver`: what all savers have in common.

A custom saver subclasses it, implements the abstract methods of `SaverPort` (`saver_port.py` has the contract) over
rows and bytes, and runs the tests of `checkpoint_savers.conformance`. What users call to read (`aget_tuple`, `alist`)
is written here once, on top of `read`, `segment` and `scan`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, NamedTuple

from . import upkeep
from .codec import Codec
from .entries import SENDS, read_record
from .errors import CorruptCheckpointError
from .ledger import Reader
from .listing import GapFinder, check_gaps, is_listed
from .metadata import checked_changes, metadata_matches
from .records import (
    Checkpoint,
    CheckpointId,
    CheckpointMetadata,
    CheckpointRow,
    CheckpointTuple,
    Header,
    TaskId,
    TaskRecord,
    ThreadHeader,
    is_checkpoint_id,
)
from .saver_port import PAGE, SaverPort
from .sharing import filled_sends
from .upkeep.retention import Pruned, Retention


class BaseCheckpointSaver(SaverPort):
    """Keeps threads: one claim at a time, one transaction per superstep.

    Args:
        codec: turns values into bytes; give types of your own here (`Codec().with_types(Invoice)`).
        clock: unix seconds, for what users call outside of a run (deleting a thread asks whether a claim is live).
    """

    def __init__(self, *, codec: Codec | None = None, clock: Callable[[], float] = time.time) -> None:
        self.codec = Codec() if codec is None else codec
        self.clock = clock

    # ---- reading ---------------------------------------------------------------------------------------------

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
        thread_id, ns, checkpoint_id = _place(config)
        chain = await self.read(thread_id, ns, checkpoint_id)
        if chain is None:
            return None
        reader = Reader(thread_id, ns, chain.rows)
        return _tuple(reader, chain.rows[-1], chain.records, codec or self.codec)

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
        thread_id, ns, checkpoint_id = (None, None, None) if config is None else address(config)
        bound = address(before)[2] if before is not None else None
        if bound is not None and not is_checkpoint_id(bound):
            raise ValueError(f"before names {bound!r}, and a checkpoint's id is a UUID in lower case")
        if checkpoint_id is not None:
            if not is_checkpoint_id(checkpoint_id):
                return
            bound = min(bound or _after(checkpoint_id), _after(checkpoint_id))  # where it comes first
        walk = self.walk(thread_id, ns, before=bound, limit=limit, filter=filter)
        async with aclosing(walk):
            async for header, reader, records in walk:
                if checkpoint_id is not None and header.checkpoint_id < checkpoint_id:
                    return
                if checkpoint_id is None or header.checkpoint_id == checkpoint_id:
                    yield _tuple(reader, reader.rows[header.checkpoint_id], records, codec or self.codec)

    async def walk(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[tuple[Header, Reader, tuple[TaskRecord, ...]], None]:
        """Headers newest first, each with the reader that can restore its state and its records.

        Neighbours share a reader, so that a listing decodes each row once. The filter is applied here and not by
        `scan`: rows that it does not let through are needed to see that none is missing.

        Raises:
            CorruptCheckpointError: a row's parent is missing, or a namespace's head.
        """
        if limit is not None and limit <= 0:
            return
        left = limit
        gaps = GapFinder()
        if thread_id is not None:
            for name, head in (await self.heads(thread_id, ns)).items():
                if before is None or head < before:
                    gaps.await_head(thread_id, name, head)
        readers: dict[tuple[str, str], _Listed] = {}
        seen: set[tuple[str, str, CheckpointId]] = set()  # and listed again: a copy of a thread has the same ids
        while left is None or left > 0:
            size = (PAGE if left is None or filter else min(PAGE, left)) + len(seen)
            page = await self.scan(thread_id, ns, before=before, limit=size)
            for header in page:
                if (header.thread_id, header.ns, header.checkpoint_id) in seen:
                    continue
                await check_gaps(self, gaps.add(header))
                if not metadata_matches(header.metadata, filter):
                    continue
                key = (header.thread_id, header.ns)
                listed = readers.get(key)
                if listed is None or len(listed.reader.rows) > 16 * PAGE:
                    while len(readers) >= 8:
                        del readers[next(iter(readers))]
                    listed = readers[key] = _Listed(Reader(*key, (), keeps=True), {}, set())
                if header.base_id not in listed.bases:
                    await self._fetch(listed, header.base_id)
                reader, records = listed.reader, tuple(listed.records.get(header.checkpoint_id, ()))
                if header.checkpoint_id not in reader.rows:
                    # Since the page was read it was deleted, or others were, and it is read with another base.
                    chain = await self.read(*key, header.checkpoint_id)
                    if chain is None:
                        if await is_listed(self, *key, header.checkpoint_id):
                            where = f"thread {key[0]!r}, namespace {key[1]!r}, checkpoint {header.checkpoint_id}"
                            raise CorruptCheckpointError(where, "it is listed, and its key finds nothing")
                        continue
                    reader, records = Reader(*key, chain.rows), chain.records
                left = None if left is None else left - 1
                yield header, reader, records
                if left == 0:
                    await self._check_behind(gaps, header.checkpoint_id)
                    return
            if len(page) < size:
                break
            before = _after(page[-1].checkpoint_id)
            seen = {(one.thread_id, one.ns, one.checkpoint_id) for one in page if one.checkpoint_id < before}

        await check_gaps(self, gaps.end())

    async def _check_behind(self, gaps: GapFinder, last: CheckpointId) -> None:
        """Check at the end of a page that what comes next is there: the next page does not know what this one awaits.

        Args:
            last: the last row of the page. Heads that are older come in a later page, which awaits them too.
        """
        for gap in gaps.end():
            if gap.checkpoint_id is None and gap.parent_id < last:
                continue
            found = await self.scan(gap.thread_id, gap.ns, before=_after(gap.parent_id), limit=1)
            if not found or found[0].checkpoint_id != gap.parent_id:
                await check_gaps(self, [gap])

    async def _fetch(self, listed: _Listed, base_id: CheckpointId) -> None:
        """Read all rows of a base, and what it is itself read with."""
        reader = listed.reader
        listed.bases.add(base_id)
        rows, records = await self.segment(reader.thread_id, reader.ns, base_id)
        if base_id not in reader.rows and all(row.checkpoint_id != base_id for row in rows):
            # A milestone: its chain has the milestones before it too.
            chain = await self.read(reader.thread_id, reader.ns, base_id)
            if chain is None:
                return  # it has gone meanwhile: nothing is read with it any more
            reader.add(chain.rows)
        reader.add(rows)
        for record in records:
            listed.records.setdefault(record.checkpoint_id, []).append(record)

    # ---- looking after threads: what users call ----------------------------------------------------------------
    #
    # All of it that writes takes the thread's claim: `ThreadBusyError` when a run owns the thread. What it changes of
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
        await self.update_thread(_place(config)[0], checked_changes(metadata))

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
            dry_run: only tell. No claim is taken.

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
        await upkeep.pin(self, *_place(config), pinned=True)

    async def aunpin(self, config: Mapping[str, Any] | str) -> None:
        """Let a checkpoint go again that was pinned. As `apin`."""
        await upkeep.pin(self, *_place(config), pinned=False)

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


def _after(checkpoint_id: CheckpointId) -> CheckpointId:
    """A bound before which a checkpoint is listed, and none that is greater: the next UUID."""
    digits = f"{int(checkpoint_id.replace('-', ''), 16) + 1:032x}"
    return CheckpointId("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


class _Listed(NamedTuple):
    """What a listing has read of a namespace: rows and their records, and the bases of which it has all rows."""

    reader: Reader
    records: dict[CheckpointId, list[TaskRecord]]
    bases: set[CheckpointId]


def _place(config: Mapping[str, Any] | str) -> tuple[str, str, CheckpointId | None]:
    thread_id, ns, checkpoint_id = address(config)
    if thread_id is None:
        raise ValueError("config has no thread_id: pass {'configurable': {'thread_id': ...}} or the thread's id")
    return thread_id, ns or "", checkpoint_id


def address(config: Mapping[str, Any] | str) -> tuple[str | None, str | None, CheckpointId | None]:
    """Thread, namespace and checkpoint that a config names; None for each that it does not."""
    if isinstance(config, str):
        return config, None, None
    known = config.get("configurable") or {}
    thread_id, ns, checkpoint_id = known.get("thread_id"), known.get("checkpoint_ns"), known.get("checkpoint_id")
    return None if thread_id is None else str(thread_id), ns, checkpoint_id


def _tuple(reader: Reader, row: CheckpointRow, records: Sequence[TaskRecord], codec: Codec) -> CheckpointTuple:
    state = reader.state(row.checkpoint_id)
    checkpoint: Checkpoint = state.decode(row.checkpoint_id, codec)
    where, values = f"thread {reader.thread_id!r}, checkpoint {row.checkpoint_id}", checkpoint["channel_values"]
    writes: list[tuple[TaskId, str, Any]] = []
    for record in records:
        for channel, data in read_record(record, reader.thread_id).writes:
            value = codec.decode(data, channel=channel)
            if channel == SENDS:
                (value,) = filled_sends([value], values.__getitem__, where)
            writes.append((record.task_id, channel, value))

    def config(checkpoint_id: CheckpointId) -> dict[str, Any]:
        return {
            "configurable": {
                "thread_id": reader.thread_id,
                "checkpoint_ns": row.ns,
                "checkpoint_id": checkpoint_id,
            }
        }

    metadata: CheckpointMetadata = row.metadata  # type: ignore[assignment]  # a stored dict, checked when written
    return CheckpointTuple(
        config=config(row.checkpoint_id),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=None if row.parent_id is None else config(row.parent_id),
        pending_writes=tuple(writes),
    )
