"""The port between the runtime and storage: the methods that a saver implements, over rows and bytes.

The contract, for every saver:

- Each writing method is one transaction: all of it is stored, or nothing. It is durable when the method returns.
- `commit`, `record`, `renew` and the methods for upkeep compare the lease's epoch and owner inside the
  transaction; `commit` also compares the namespace's head. A mismatch raises `ThreadBusyError(lost=True)` and
  changes nothing.
- Cancelling the caller does not interrupt the transaction: it commits or rolls back before control returns.
- An open saver serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
- Exceptions of the database driver are raised as `StorageError`, with the driver's exception as cause. Damaged rows
  raise `CorruptCheckpointError`, a newer format raises `UnsupportedFormatError`.
- Frames, also those of records and events, are returned byte for byte.
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
    Waiter,
)

PAGE = 256
"""Default number of rows or headers per page."""

LEASE_SECONDS = 30.0
"""Seconds after which a lease expires by default, unless it is renewed or its process is known to have ended."""


class SaverPort(ABC):
    """The methods over rows and bytes. `BaseCheckpointSaver` adds those that users call, on top of these.

    Attributes:
        codec: turns values into bytes.
        clock: returns the time in unix seconds, by which leases are acquired, renewed and compared. Processes that
            share a storage need the same.
        lease_seconds: seconds after which a lease expires unless it is renewed. Runs renew theirs three times in that
            time. Set it before the saver is used, to the same number in all processes.
        commit_is_shielded: True if a cancel scope cannot interrupt `commit`, even a scope that is cancelled before the
            call: the cancellation is raised at the caller's next await. The runtime wraps `commit` of all other savers
            in a shielded scope. A subclass that overrides `commit` must set this attribute again; otherwise it is
            False.
        lease_is_shielded: True if no cancellation of the caller, by a cancel scope or by asyncio's `Task.cancel()`, can
            leave a thread leased. An `acquire` that raises holds no lease: if it is cancelled after its transaction, it
            releases the lease first, or returns it. `release` completes even in a cancelled scope, before the
            cancellation is raised. The runtime calls these methods of all other savers in a child task. A subclass that
            overrides one of them must set this attribute again; otherwise it is False.
        begins_commits: True if the saver implements `begin_commit`. A subclass that overrides `commit` must override
            `begin_commit` and set this attribute again, too; otherwise it is False.
        commits_others: True if `commit` stores `Commit.others`. Runs of graphs with subgraphs and durability "exit"
            need it, and are refused otherwise: a saver that was written before this field existed would drop the
            states of subgraphs.
    """

    codec: Codec
    clock: Callable[[], float]
    lease_seconds: float = LEASE_SECONDS
    commits_others: bool = False  # no `ClassVar`: a saver that wraps another one has the other's

    commit_is_shielded: ClassVar[bool] = False
    lease_is_shielded: ClassVar[bool] = False
    begins_commits: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A subclass that overrides `commit` may await where its base class does not. An inherited True would then leave
        # its commit without any shield, so the class that defines `commit` has to make the claim itself. The same holds
        # for `acquire` and `release`.
        cls.commit_is_shielded = cls.commit_is_shielded and _is_claimed_with(cls, "commit_is_shielded", "commit")
        cls.lease_is_shielded &= _is_claimed_with(cls, "lease_is_shielded", "acquire", "release")
        # An inherited `begin_commit` would bypass the subclass's `commit`.
        cls.begins_commits = cls.begins_commits and _is_claimed_with(cls, "begins_commits", "commit")

    @abstractmethod
    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        """Acquire the thread's lease for one run: compare-and-set of epoch + 1, owner and expiry.

        A lease of another owner is live unless it was released, it has expired at `now`, or its process ran on this
        host and has ended (`owner.is_gone`). A lease of the same owner is replaced. An unknown thread is created. The
        lease is durable when this returns.

        Args:
            thread_id: the thread.
            owner: the run that acquires the lease.
            now: the current time, in unix seconds.
            expires_at: when the lease expires unless it is renewed, in unix seconds.

        Returns:
            The lease. Its epoch is greater by one than that of the thread's previous lease.

        Raises:
            ThreadBusyError: another lease is live; nothing was changed.
            StorageError: the database failed; the lease was not acquired.
        """

    @abstractmethod
    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        """Set a new expiry for the lease. It is durable when this returns.

        Args:
            lease: the lease of the calling run.
            expires_at: the new expiry, in unix seconds.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: the database failed; the expiry is unchanged.
        """

    @abstractmethod
    async def commit(self, lease: Lease, commit: Commit) -> None:
        """Store a superstep in one transaction. All of it is durable when this returns.

        The transaction holds the new rows, records and events, clears records, sets missing keys of the thread's
        metadata, sets the namespaces' heads and the lease's expiry, and releases the lease if `commit.releases` is set.

        Args:
            lease: the lease of the calling run.
            commit: what to store, and the heads that the namespaces are expected to have.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held, a head is not the expected one, or a
                checkpoint that is to become a head is not stored.
            StorageError: a checkpoint or a row of events with one of these keys is stored already, or the database
                failed. Nothing was stored.
        """

    def begin_commit(self, lease: Lease, commit: Commit, waiter: Waiter) -> Callable[[], None]:
        """Begin what `commit` does, and return at once. Commits of one lease are stored in the order of these calls.

        The runtime calls it with durability "async" if `begins_commits` is True, and saves a task of the event loop for
        each superstep. Nothing can interrupt a commit that has begun.

        Args:
            lease: the lease of the calling run.
            commit: what to store, and the head that the namespace is expected to have.
            waiter: woken exactly once, when the commit is durable or has failed.

        Returns:
            A function to be called when the waiter was woken. It returns None, or raises what `commit` raises.

        Raises:
            StorageError: the commit could not begin; the waiter is not woken.
            NotImplementedError: the saver has only `commit`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not offer begin_commit()")

    @abstractmethod
    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        """Store the outcomes of tasks of an open superstep, and renew the lease. They are durable when this returns.

        Args:
            lease: the lease of the calling run.
            records: one record per task. A stored record of the same task is replaced.
            expires_at: the lease's new expiry, in unix seconds.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was stored.
            StorageError: the database failed; nothing was stored.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Release the lease. Do nothing if it is no longer held.

        A thread that holds no checkpoint is deleted, unless the saver's run store has a row of it. The release is
        durable when this returns.

        Args:
            lease: the lease to release.

        Raises:
            StorageError: the database failed; the lease remains until it expires.
        """

    async def wait_for_release(self, thread_id: str) -> None:
        """Wait until the thread may have been released. May return early or never; callers also poll.

        Callers subscribe before they try to acquire the lease, and cancel this call before they try again: a release
        between a failed attempt and a later subscription would be missed. The default never returns.

        Args:
            thread_id: the thread.
        """
        await anyio.sleep_forever()

    # The methods for upkeep, `threads` and `dump` are not abstract: runs do not need them, and a saver may do without
    # upkeep (a log that is never rewritten, for example). Such a saver passes their names to the conformance suite
    # (`lacks`), and calls of them raise NotImplementedError.

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        """Delete rows of a thread, and replace rows that depended on them, in one transaction.

        `newest` of the thread does not change, whatever is deleted, so that checkpoint ids are never used twice. The
        change is durable when this returns.

        Args:
            lease: the lease under which the thread is pruned.
            change: what to delete, replace and pin; see `Rewrite`.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: a row, head or pin names a checkpoint that is not stored (after the deletions), a namespace
                without a head would hold checkpoints, or the database failed. Nothing was changed.
            NotImplementedError: the saver has no upkeep.
        """
        raise self._lacks("rewrite")

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        """Change a thread's metadata, in one transaction. The change is durable when this returns.

        It needs no lease, and works while a run holds one: commits of a run only set keys that the thread lacks. The
        thread's row in the run store, if it has one, is `updated_at` this time.

        Args:
            thread_id: the thread.
            changes: JSON values by key; None deletes the key, if the thread has it.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoint, and the saver's run store has no row of it; nothing was
                stored.
            StorageError: the database failed; nothing was changed.
            NotImplementedError: the saver stores no metadata of threads.
        """
        raise self._lacks("update_thread")

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        """Store a dumped thread, byte for byte, in one transaction. It is durable when this returns.

        Args:
            lease: the lease of the thread, which must hold no rows, records or events, unless `dump.replaces` is set.
                Then all of them, and the thread's metadata, are deleted in the same transaction. `newest` never
                decreases, so that checkpoint ids are never used twice.
            dump: what `dump` returned, from any saver.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held.
            StorageError: the thread holds something, two rows have the same key, a head names a checkpoint that is not
                among the rows, a namespace of rows has no head, or the database failed. Nothing was stored.
            NotImplementedError: the saver has no upkeep.
        """
        raise self._lacks("load")

    async def erase(self, lease: Lease) -> None:
        """Delete all that is stored of the thread, including its lease, and overwrite the deleted bytes.

        When this returns, none of the thread's bytes are left in what the saver writes: no row, no free page, no log. A
        saver whose database retains deleted bytes for longer documents it.

        Args:
            lease: the lease of the thread.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
            ErasureIncompleteError: the thread is deleted, but bytes of it may be left in the database's files.
            StorageError: the database failed.
            NotImplementedError: the saver has no upkeep.
        """
        raise self._lacks("erase")

    async def drop(self, lease: Lease) -> None:
        """Delete all that is stored of the thread, including its lease. The deletion is durable when this returns.

        Unlike `erase`, this may leave deleted bytes in free pages or logs. The default calls `erase`; override it if
        deleting alone is cheaper.

        Args:
            lease: the lease of the thread.

        Raises:
            ThreadBusyError: with `lost=True`: the lease is no longer held; nothing was deleted.
            StorageError: the database failed.
            NotImplementedError: the saver has no upkeep.
        """
        await self.erase(lease)

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        """Return up to `limit` threads, in the order of their ids' code points.

        Threads that hold no checkpoint yet are included.

        Args:
            after: return ids strictly greater than this (keyset pagination); None starts at the first.
            limit: maximum number of threads.
            filter: entries of the threads' metadata, all of which must be equal. Bind them as parameters; never put
                them into the text of a query.

        Returns:
            The headers; fewer than `limit` at the end of the list.

        Raises:
            CorruptCheckpointError: a thread's metadata cannot be read.
            StorageError: the database failed.
            NotImplementedError: the saver does not list threads.
        """
        raise self._lacks("threads")

    async def dump(self, thread_id: str) -> ThreadDump | None:
        """Return all that is stored of a thread, read as of one moment.

        Args:
            thread_id: the thread.

        Returns:
            The thread without its lease; None if it holds no checkpoint.

        Raises:
            CorruptCheckpointError: metadata of the thread or of a row cannot be read.
            StorageError: the database failed.
            NotImplementedError: the saver has no upkeep.
        """
        raise self._lacks("dump")

    async def heads(self, thread_id: str, ns: str | None = None) -> dict[str, CheckpointId]:
        """Return the heads of a thread's namespaces. Listings check that the rows of these heads are stored.

        The default returns the head of one namespace: the given one, or the root.

        Args:
            thread_id: the thread.
            ns: only this namespace; None for all.

        Returns:
            The head's checkpoint id by namespace; empty for an unknown thread.

        Raises:
            CorruptCheckpointError: a row cannot be read.
            StorageError: the database failed.
        """
        chain = await self.read(thread_id, ns or "")
        return {} if chain is None else {ns or "": chain.head}

    @abstractmethod
    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        """Return the rows from which one checkpoint's state is read.

        Args:
            thread_id: the thread.
            ns: the namespace; "" for the root graph's.
            checkpoint_id: the checkpoint; None for the namespace's head.

        Returns:
            The checkpoint's chain, with the records of its tasks; None if the checkpoint is not stored.

        Raises:
            CorruptCheckpointError: a row of the chain is missing or cannot be read.
            StorageError: the database failed.
        """

    @abstractmethod
    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        """Return all rows that have one base, and their records.

        Args:
            thread_id: the thread.
            ns: the namespace; "" for the root graph's.
            base_id: the rows' `base_id`.

        Returns:
            The rows by checkpoint id, and the records by checkpoint id and index; two empty tuples if there are none.

        Raises:
            CorruptCheckpointError: a row cannot be read.
            StorageError: the database failed.
        """

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
            thread_id: only this thread; None for all.
            ns: only this namespace; None for all.
            before: return ids strictly smaller than this.
            limit: maximum number of headers.
            filter: metadata entries, all of which must be equal. Bind them as parameters; never put them into the text
                of a query.

        Returns:
            The headers; fewer than `limit` at the end of the list.

        Raises:
            CorruptCheckpointError: a row's metadata cannot be read.
            StorageError: the database failed.
        """

    # Abstract, although savers that were written before stream events existed lack it: their `commit` would drop
    # events, and no default could detect that. Without this method they cannot be instantiated, so authors notice.
    @abstractmethod
    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        """Return up to `limit` rows of a thread's stream events, ordered by key; none for an unknown thread.

        For the next page, pass the last row's key with the position increased by one. Rows that are stored meanwhile
        may have smaller keys: a run that starts from an older checkpoint stores its first events there.

        Args:
            thread_id: the thread.
            since: return rows whose key (checkpoint id, epoch, position) is equal or greater; None for all. It need not
                be the key of a stored row. A row has the position of its first event, so that a later event of it has
                a greater position than its row.
            limit: maximum number of rows, not of events; 0 or less returns none.

        Returns:
            The rows, in the order of their keys.

        Raises:
            CorruptCheckpointError: a row cannot be read.
            StorageError: the database failed.
        """

    @abstractmethod
    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread, in all namespaces, including events. Ignore an unknown thread.

        The deletion is durable when this returns.

        Args:
            thread_id: the thread.

        Raises:
            ThreadBusyError: a run holds the thread's lease; nothing was deleted.
            StorageError: the database failed; nothing was deleted.
        """

    def _lacks(self, verb: str) -> NotImplementedError:
        """Return the error for a method that this saver does not implement."""
        return NotImplementedError(
            f"{type(self).__qualname__} does not offer {verb}(), which looking after threads needs (listing, their "
            "metadata, copying, pruning, pinning, exporting, erasing). Implement it, or pass it on where the saver "
            "wraps another"
        )


def _is_claimed_with(saver: type[SaverPort], claim: str, *methods: str) -> bool:
    """Return True if no class overrides one of the methods below the class that sets the attribute `claim`."""
    definer = next(each for each in saver.__mro__ if {claim, *methods} & each.__dict__.keys())
    return claim in definer.__dict__
