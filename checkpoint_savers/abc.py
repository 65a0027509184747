"""The port between the runtime and storage: what a saver must do.

A saver of one's own subclasses `BaseCheckpointSaver`, implements the abstract methods over rows and bytes, and runs
`checkpoint_savers.conformance` on the result. What users call to read (`aget_tuple`, `alist`) is written here once, on
top of `read`, `segment` and `scan`.

The contract, for every saver
    - Every writing verb is one transaction: all of it is stored, or nothing. When it returns, what it wrote is durable.
    - `commit`, `record`, `renew` compare the claim's epoch and owner; `commit` compares the namespace's head too, all
      inside the transaction. A mismatch raises `ThreadBusyError(lost=True)` and changes nothing.
    - Cancelling a verb's caller does not tear the transaction: it ends, one way or the other, before control returns.
    - An open saver serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
    - A database's own exceptions are translated to `StorageError`s, with their cause. Damaged rows give
      `CorruptCheckpointError`, a newer format `UnsupportedFormatError`.
    - Frames come back byte for byte, those of records and events too.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from .codec import Codec
from .ledger import Reader, read_record
from .records import (
    Chain,
    Checkpoint,
    CheckpointId,
    CheckpointMetadata,
    CheckpointRow,
    CheckpointTuple,
    Claim,
    Commit,
    EventKey,
    EventRow,
    Header,
    Owner,
    TaskRecord,
)

PAGE = 256
"""Headers per `scan` when listing, and rows per `events` where no other number is asked for."""


class BaseCheckpointSaver(ABC):
    """Keeps threads: one claim at a time, one transaction per superstep.

    Args:
        codec: turns values into bytes; give types of your own here (`Codec().with_types(Invoice)`).
        clock: unix seconds, for what users call outside of a run (deleting a thread asks whether a claim is live).
    """

    def __init__(self, *, codec: Codec | None = None, clock: Callable[[], float] = time.time) -> None:
        self.codec = Codec() if codec is None else codec
        self.clock = clock

    # ---- writing: the verbs of a run -------------------------------------------------------------------------

    @abstractmethod
    async def claim(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Claim:
        """Take the thread for one run: compare-and-set of epoch + 1, owner and expiry.

        A claim that another owner holds is live unless it has been released, `now` is at or past its expiry, or its
        process on this host is gone (`owner.is_gone`).

        Raises:
            ThreadBusyError: another claim is live; nothing was changed.
        """

    @abstractmethod
    async def renew(self, claim: Claim, *, expires_at: float) -> None:
        """Move the claim's expiry. Raises `ThreadBusyError(lost=True)` when the claim is no longer held."""

    @abstractmethod
    async def commit(self, claim: Claim, commit: Commit) -> None:
        """Store a superstep: rows, records, cleared records, events, the new head, the expiry, perhaps the release.

        Raises:
            ThreadBusyError: with `lost=True`: the claim is no longer held, the head is not the expected one, or the
                checkpoint that is to become the head is not stored.
            StorageError: among others: a checkpoint or a row of events with one of these keys is stored already.
        """

    @abstractmethod
    async def record(self, claim: Claim, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        """Store what became of tasks of an open superstep; a record of the same task is replaced.

        Raises:
            ThreadBusyError: with `lost=True`: the claim is no longer held.
        """

    @abstractmethod
    async def release(self, claim: Claim) -> None:
        """Give the claim up. Does nothing when it is no longer held. A thread that holds no checkpoint leaves no
        trace."""

    # ---- reading: rows ---------------------------------------------------------------------------------------

    @abstractmethod
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        """The chain of a checkpoint, or of the head when no id is given; None when there is none."""

    @abstractmethod
    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        """All rows that have this base, in the order of their ids, and all their records, by checkpoint id and
        index."""

    @abstractmethod
    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        """Up to `limit` headers, newest first by checkpoint id.

        Args:
            thread_id, ns: None stands for all.
            before: only ids smaller than this.
            filter: metadata entries, all of which must be equal. Bound parameters, never text in a query.
        """

    # Abstract, although a saver written before there were events lacks it: its `commit` would drop them, and no default
    # here could notice. So it cannot be made any more until it keeps them, which is where its author hears of it.
    @abstractmethod
    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        """Up to `limit` rows of a thread's stream events, in the order of their keys; none of an unknown thread.

        To go on after the last row of a page, ask for its key with a position greater by one. Rows that are stored
        meanwhile may stand before it: a run that goes on from an older checkpoint has its first events there.

        Args:
            since: only rows whose key (checkpoint id, epoch, position) is equal to this or greater; None for all. It
                need not be the key of a stored row, and its numbers may be any. A row has the position of its first
                event: the row that an event in its midst is in stands before that event's own position.
            limit: rows, not events; at 0 or less there are none.

        Raises:
            CorruptCheckpointError, StorageError
        """

    @abstractmethod
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread, in all namespaces, events too; nothing happens when there is nothing.

        Raises:
            ThreadBusyError: a run owns the thread; nothing was deleted.
        """

    # ---- reading: what users call ----------------------------------------------------------------------------

    async def aget_tuple(
        self, config: Mapping[str, Any] | str, *, codec: Codec | None = None
    ) -> CheckpointTuple | None:
        """The checkpoint that `config` addresses: by its `checkpoint_id`, else the namespace's head; None if there is
        none.

        Args:
            config: `{"configurable": {"thread_id": ..., "checkpoint_ns": "", "checkpoint_id": ...}}`, or a thread id.
            codec: decodes instead of the saver's own.

        Raises:
            CorruptCheckpointError, UnknownTypeError, UnsupportedFormatError, StorageError
        """
        thread_id, ns, checkpoint_id = address(config)
        if thread_id is None:
            raise ValueError("config has no thread_id: pass {'configurable': {'thread_id': ...}} or the thread's id")
        chain = await self.read(thread_id, ns or "", checkpoint_id)
        if chain is None:
            return None
        reader = Reader(thread_id, ns or "", chain.rows)
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
            config: a thread (all its namespaces, or the one that it names); None for all threads.
            filter: metadata entries, all of which must be equal.
            before: a config with a `checkpoint_id`; only older ones.
            limit: at most so many, counted after filtering; None for all.
        """
        thread_id, ns, checkpoint_id = (None, None, None) if config is None else address(config)
        bound = address(before)[2] if before is not None else None
        walk = self.walk(thread_id, ns, before=bound, limit=limit, filter=filter)
        async with aclosing(walk):
            async for header, reader, records in walk:
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

        Neighbours share a reader, so that a listing decodes each row once.
        """
        left = limit
        segments: dict[tuple[str, str, CheckpointId], tuple[Reader, dict[CheckpointId, list[TaskRecord]]]] = {}
        while left is None or left > 0:
            page = await self.scan(
                thread_id, ns, before=before, limit=PAGE if left is None else min(PAGE, left), filter=filter
            )
            for header in page:
                key = (header.thread_id, header.ns, header.base_id)
                found = segments.get(key)
                if found is None:
                    rows, records = await self.segment(*key)
                    if not any(row.checkpoint_id == header.checkpoint_id for row in rows):
                        continue  # deleted between the two reads
                    by_checkpoint: dict[CheckpointId, list[TaskRecord]] = {}
                    for record in records:
                        by_checkpoint.setdefault(record.checkpoint_id, []).append(record)
                    found = Reader(header.thread_id, header.ns, rows), by_checkpoint
                    while len(segments) >= 8:
                        del segments[next(iter(segments))]
                    segments[key] = found
                reader, mine = found
                if header.checkpoint_id in reader.rows:
                    yield header, reader, tuple(mine.get(header.checkpoint_id, ()))
            if len(page) < (PAGE if left is None else min(PAGE, left)):
                return
            if left is not None:
                left -= len(page)
            before = page[-1].checkpoint_id


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
    writes = [
        (record.task_id, channel, codec.decode(data, channel=channel))
        for record in records
        for channel, data in read_record(record, reader.thread_id).writes
    ]

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
