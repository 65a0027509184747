"""The port between the runtime and storage: the verbs that a saver implements, over rows and bytes.

The contract, for every saver
    - Every writing verb is one transaction: all of it is stored, or nothing. When it returns, what it wrote is durable.
    - `commit`, `record`, `renew` compare the lease's epoch and owner; `commit` compares the namespace's head too, all
      inside the transaction. A mismatch raises `ThreadBusyError(lost=True)` and changes nothing.
    - Cancelling a verb's caller does not tear the transaction: it ends, one way or the other, before control returns.
    - An open saver serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
    - A database's own exceptions are translated to `StorageError`s, with their cause. Damaged rows give
      `CorruptCheckpointError`, a newer format `UnsupportedFormatError`.
    - Frames come back byte for byte, those of records and events too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import anyio

from .codec import Codec
from .records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Commit,
    EventKey,
    EventRow,
    Header,
    Lease,
    Owner,
    Rewrite,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)

PAGE = 256
"""Rows or headers that are read at a time when no other number is given."""


class SaverPort(ABC):
    """The verbs over rows and bytes. `BaseCheckpointSaver` has those that users call, on top of these.

    Attributes:
        codec: turns values into bytes.
        clock: unix seconds, for what users call outside of a run.
    """

    codec: Codec
    clock: Callable[[], float]

    commit_is_shielded: ClassVar[bool] = False
    """True if a cancel scope cannot interrupt `commit`, even one that is cancelled already: the cancellation is raised
    at the caller's next await. The runtime wraps `commit` of all other savers in a shielded scope. A subclass that
    overrides `commit` must set this again; otherwise it is False.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        says = next(each for each in cls.__mro__ if {"commit", "commit_is_shielded"} & each.__dict__.keys())
        if "commit_is_shielded" not in says.__dict__:
            cls.commit_is_shielded = False

    # ---- writing: the verbs of a run -------------------------------------------------------------------------

    @abstractmethod
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        """Take the thread for one run: compare-and-set of epoch + 1, owner and expiry.

        A lease that another owner holds is live unless it has been released, `now` is at or past its expiry, or its
        process on this host is gone (`owner.is_gone`).

        Raises:
            ThreadBusyError: another lease is live; nothing was changed.
        """

    @abstractmethod
    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        """Move the lease's expiry. Raises `ThreadBusyError(lost=True)` when the lease is no longer held."""

    @abstractmethod
    async def commit(self, lease: Lease, commit: Commit) -> None:
        """Store a superstep: rows, records, cleared records, events, the thread's metadata, the new head, the expiry,
        perhaps the release.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held, the head is not the expected one, or the
                checkpoint that is to become the head is not stored.
            StorageError: among others: a checkpoint or a row of events with one of these keys is stored already.
        """

    @abstractmethod
    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        """Store what became of tasks of an open superstep; a record of the same task is replaced.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Release the lease; do nothing if it is no longer held. A thread without a checkpoint is removed."""

    async def wait_for_release(self, thread_id: str) -> None:
        """Wait until the thread may have been released. May return early or never; callers also poll.

        Callers subscribe before they try the lease, and cancel this when they try it again.
        """
        await anyio.sleep_forever()

    # ---- writing: upkeep. Under a lease, as a run's verbs are --------------------------------------------------
    #
    # Not abstract, nor are `threads` and `dump`: runs do not need them, and a saver may do without upkeep (a log that
    # is never rewritten, say). Such a saver names them to the conformance kit (`lacks`), and calling them raises.

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        """Delete rows of a thread, and replace rows that depended on them. See `Rewrite`.

        `newest` stays what it was, whatever is deleted: ids are never given twice.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: among others: a row, head or pin is of a checkpoint that is not stored (after `gone`), or a
                namespace without a head holds checkpoints. Nothing was changed.
        """
        raise self._lacks("rewrite")

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        """Change a thread's metadata, in one transaction.

        No lease is needed, and a live one does not prevent it. Commits of a run set only keys that the thread lacks.

        Args:
            changes: JSON values by key; None deletes the key, if the thread has it.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoint; nothing was stored.
            StorageError
        """
        raise self._lacks("update_thread")

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        """Store a dumped thread, byte for byte. The thread must be empty.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: among others: the thread holds something, two rows have one key, or a head is of a checkpoint
                that is not among the rows. Nothing was stored.
        """
        raise self._lacks("load")

    async def erase(self, lease: Lease) -> None:
        """Delete all that is stored of the thread, its lease too, so that no byte of it is left in what the saver
        writes: no row, no free page, no log. Where a database keeps deleted bytes for longer, its saver says so.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
        """
        raise self._lacks("erase")

    async def drop(self, lease: Lease) -> None:
        """Delete all that is stored of the thread, its lease too.

        Unlike `erase`, this may leave deleted bytes in free pages or logs. Override it if that is cheaper.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
        """
        await self.erase(lease)

    # ---- reading: rows ---------------------------------------------------------------------------------------

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        """Return up to `limit` threads, in the order of their ids' code points. Threads without a checkpoint count.

        Args:
            after: return ids strictly greater than this (keyset pagination).
            filter: entries of the threads' metadata, all of which must be equal. Bound parameters, never text in a
                query.
        """
        raise self._lacks("threads")

    async def dump(self, thread_id: str) -> ThreadDump | None:
        """Return all that is stored of a thread, as of one moment; None if it holds no checkpoint."""
        raise self._lacks("dump")

    async def heads(self, thread_id: str, ns: str | None = None) -> dict[str, CheckpointId]:
        """Return the heads of a thread's namespaces, by namespace. Listings check that the rows of these are stored.

        The default returns the head of one namespace: the root, if none is given.

        Args:
            ns: only this namespace; None for all.
        """
        chain = await self.read(thread_id, ns or "")
        return {} if chain is None else {ns or "": chain.head}

    @abstractmethod
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        """Return the chain of a checkpoint, or of the head if no id is given; None if it does not exist."""

    @abstractmethod
    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        """Return the rows that have this base, by id, and their records, by checkpoint id and index."""

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
        """Return up to `limit` headers, newest first by checkpoint id.

        Args:
            thread_id, ns: None for all.
            before: return ids strictly smaller than this.
            filter: metadata entries, all of which must be equal. Bound parameters, never text in a query.
        """

    # Abstract, although savers that were written before there were events lack it: their `commit` would drop events,
    # and no default could notice that. Without this method they cannot be instantiated, which informs their authors.
    @abstractmethod
    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        """Return up to `limit` rows of a thread's stream events, by key; none for an unknown thread.

        For the next page, pass the last row's key with the position increased by one. Rows that are stored meanwhile
        may have smaller keys: a run that starts from an older checkpoint stores its first events there.

        Args:
            since: return rows whose key (checkpoint id, epoch, position) is equal or greater; None for all. It need not
                be the key of a stored row. A row has the position of its first event, so that a later event of it has
                a greater position than its row.
            limit: rows, not events; at 0 or less there are none.

        Raises:
            CorruptCheckpointError, StorageError
        """

    @abstractmethod
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread, in all namespaces, events too. An unknown thread is no error.

        Raises:
            ThreadBusyError: a run owns the thread; nothing was deleted.
        """

    def _lacks(self, verb: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__qualname__} does not offer {verb}(), which looking after threads needs (listing, their "
            "metadata, copying, pruning, pinning, exporting, erasing). Implement it, or pass it on where the saver "
            "wraps another"
        )
