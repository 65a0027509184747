"""The port of long-term memory: items under namespaces, shared by all threads and all graphs.

A custom store subclasses `BaseStore`, implements `transact`, and passes
`checkpoint_savers.conformance.StoreConformance`. All other behaviour is implemented here once.

The contract, for every store
    - Operations that are started in the same turn of an event loop form one batch, and so do the operations of one call
      of `abatch`. A batch is one transaction: all of it is stored, or nothing. Its reads see what was stored before it.
      Of several puts and deletes of one item in a batch, only the last takes effect. A caller that awaits one operation
      before it starts the next sees the first one's effect.
    - Arguments are captured when the verb is called. Returned values belong to the caller.
    - Expired items are never returned, whether or not they have been removed.
    - A store serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
    - Cancelling a caller does not tear its batch, nor the batches of others: the batch ends before control returns.
    - A database's own exceptions are translated to `StorageError`s, with their cause. Damaged rows raise
      `CorruptCheckpointError`, a newer format `UnsupportedFormatError`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Self

import anyio
import anyio.lowlevel

from ..bridge import Waiter, block, running_library, wait_until_woken
from ..codec import Codec
from ..codec.codec import DEFAULT_CODEC
from ..errors import CheckpointError, SaverClosedError, SyncCallError, VectorSearchError
from .batching import BatchCollector, PendingBatch, Request
from .ops import (
    NOT_PROVIDED,
    GetOp,
    Item,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    StoreNamespace,
    TTLConfig,
)
from .port import SWEEP_LIMIT, Batch, Done
from .sweeper import Sweeper
from .validation import check_of, list_operation, read_ttl_config, request_of

SWEEP_SPACING = 60.0
"""Seconds between two batches of puts that also remove expired items, at least."""


class BaseStore(ABC):
    """Stores items: dicts, each under a namespace and a key.

        await store.aput(("memories", "ann"), "food", {"likes": "pizza"})
        item = await store.aget(("memories", "ann"), "food")
        found = await store.asearch(("memories",), filter={"likes": "pizza"})

    Each verb has a blocking twin without the `a`, for plain functions, in worker threads or where no event loop runs.
    In a thread whose event loop it would block, it raises `SyncCallError` and does nothing.

    Args:
        codec: turns values into bytes; give types of your own here (`Codec().with_types(Invoice)`).
        ttl: how long items live, in minutes (see `TTLConfig`); None for ever.
        clock: returns the time in unix seconds: when an item is put, and whether an item has expired.
        index: only None: there is no vector search.

    Raises:
        VectorSearchError: `index` was passed.
        TypeError, ValueError: `ttl` is not a valid configuration.
    """

    supports_ttl: ClassVar[bool] = True

    waits: ClassVar[bool] = True
    """True if `transact` may return before the batch has ended."""

    def __init__(
        self,
        *,
        codec: Codec | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        index: None = None,
    ) -> None:
        if index is not None:
            raise VectorSearchError("index=")
        self.codec = DEFAULT_CODEC if codec is None else codec
        self.clock = clock
        self.ttl_config = ttl
        self._lifetimes = read_ttl_config(ttl)
        self._collector = BatchCollector()
        self._swept_at = -math.inf
        self._sweeper: Sweeper | None = None

    @abstractmethod
    def transact(self, batch: Batch, done: Done) -> None:
        """Execute a batch in one transaction, and call `done` with its outcome.

        Return without waiting: hand the batch on, to a thread for example, which calls `done` later. `transact` may be
        called in any thread, also in one in which an event loop runs. Once it has returned, the batch must run to its
        end, even if every caller is cancelled.

        Args:
            batch: the reads and writes; `port.py` defines them.
            done: to be called exactly once, with an `Outcome` or an exception. Each waiting caller gets a copy of the
                exception.

        Raises:
            StorageError: the batch was refused, and `done` will not be called.
        """

    async def aget(self, namespace: StoreNamespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Return the item of a key, or None if there is none.

        Args:
            namespace: the item's namespace: one label or more.
            key: the item's key in the namespace.
            refresh_ttl: True if the item's ttl starts again now, False if not; None for the store's `refresh_on_read`
                (see `TTLConfig`).

        Returns:
            The item, as it was when it was read. It is the caller's own.

        Raises:
            InvalidNamespaceError: `namespace` is not an item's namespace.
            InvalidKeyError: `key` cannot be an item's key.
            TypeError: `key` is not a str, or `refresh_ttl` not a bool or None.
            CorruptCheckpointError, UnknownTypeError, UnsupportedFormatError: the item cannot be read.
            StoredTypeChangedError: a stored object does not fit its class as it is now, nor do its upcasters make it
                fit.
            StorageError: the database failed, or the store is not open.
        """
        item: Item | None = await self._run_one(GetOp(namespace, key, refresh_ttl))
        return item

    async def aput(
        self,
        namespace: StoreNamespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store an item, and replace the item that the key had. The item is durable when this returns.

        Args:
            namespace: the item's namespace: one label or more.
            key: the item's key in the namespace.
            value: a dict of storable values. None deletes the item.
            index: only False or None: there is no vector search.
            ttl: minutes for which the item lives from now on; None for ever. The default is the store's `default_ttl`
                (see `TTLConfig`).

        Raises:
            UnstorableItemError: the value cannot be stored.
            InvalidNamespaceError: `namespace` is not an item's namespace.
            InvalidKeyError: `key` cannot be an item's key.
            VectorSearchError: `index` is neither False nor None.
            TypeError: the value is not a dict, the key not a str, or the ttl not a number.
            ValueError: the ttl is not positive and finite.
            StorageError: the database failed, or the store is not open.
        """
        await self._run_one(PutOp(namespace, key, value, index, ttl))

    async def adelete(self, namespace: StoreNamespace, key: str) -> None:
        """Delete an item; do nothing if there is none.

        Args:
            namespace: the item's namespace: one label or more.
            key: the item's key in the namespace.

        Raises:
            InvalidNamespaceError: `namespace` is not an item's namespace.
            InvalidKeyError: `key` cannot be an item's key.
            TypeError: `key` is not a str.
            StorageError: the database failed, or the store is not open.
        """
        await self._run_one(PutOp(namespace, key, None))

    async def asearch(
        self,
        namespace_prefix: StoreNamespace,
        /,
        *,
        query: None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return items of a namespace and of all namespaces inside it, the last put first.

        Items that were put at the same time are ordered by namespace and key.

        Args:
            namespace_prefix: ("memories",) means ("memories",), ("memories", "ann") and so on; () for all
                namespaces.
            query: only None: there is no vector search.
            filter: entries that the items' values must have; `filters.py` defines what matches. Items are read first
                and filtered then, so name a namespace that narrows the search.
            limit: number of items to return, at most.
            offset: number of matching items to skip.
            refresh_ttl: as for `aget`, for the items that are returned.

        Returns:
            The items found. They are the caller's own.

        Raises:
            InvalidNamespaceError: `namespace_prefix` is not a tuple of labels.
            VectorSearchError: `query` was passed.
            TypeError, ValueError: `filter` is not a valid filter, or `limit` or `offset` is not a number of 0 or more.
            UnstorableValueError: the filter has a value that no item can have.
            CorruptCheckpointError, UnknownTypeError, UnsupportedFormatError, StoredTypeChangedError: an item is
                unreadable; it matches every filter.
            StorageError: the database failed, or the store is not open.
        """
        found: list[SearchItem] = await self._run_one(
            SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        )
        return found

    async def alist_namespaces(
        self,
        *,
        prefix: StoreNamespace | None = None,
        suffix: StoreNamespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[StoreNamespace]:
        """Return the namespaces that hold items, sorted.

        Args:
            prefix: labels with which the namespaces begin; "*" stands for any one label. None for all.
            suffix: labels with which the namespaces end; "*" stands for any one label. None for all.
            max_depth: number of labels to which namespaces are truncated, 1 or more; namespaces that are equal then are
                returned once. None for whole namespaces.
            limit: number of namespaces to return, at most.
            offset: number of namespaces to skip.

        Returns:
            The namespaces, in the order of their labels.

        Raises:
            InvalidNamespaceError: `prefix` or `suffix` is not a tuple of labels.
            TypeError, ValueError: `max_depth`, `limit` or `offset` is not a number, or too small.
            CorruptCheckpointError: a stored namespace is damaged.
            StorageError: the database failed, or the store is not open.
        """
        found: list[StoreNamespace] = await self._run_one(list_operation(prefix, suffix, max_depth, limit, offset))
        return found

    async def acheck(self, namespace_prefix: StoreNamespace = (), /, *, limit: int = 100) -> list[CheckpointError]:
        """Return the errors that reading would raise, of items of a namespace and of all namespaces inside it.

        Call it with the codec of new code before you deploy that: it finds stored objects that their classes do not
        accept, and those whose upcaster fails. It reads all items of the namespaces, changes nothing, and refreshes no
        ttl.

        Args:
            namespace_prefix: as for `asearch`; () for all namespaces.
            limit: number of errors to return, at most.

        Returns:
            The errors, each of which names its item; those of the items that were put last come first.

        Raises:
            InvalidNamespaceError: `namespace_prefix` is not a tuple of labels.
            TypeError, ValueError: `limit` is not a number of 0 or more.
            StorageError: the database failed, or the store is not open.
        """
        (found,) = await self._answers([check_of(namespace_prefix, limit, self.codec)])
        errors: list[CheckpointError] = found
        return errors

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute several operations in one transaction.

        Reads see what was stored before the transaction. Of several puts and deletes of one item, only the last takes
        effect. If an operation is refused, nothing is done.

        Args:
            ops: the operations: `GetOp`, `PutOp`, `SearchOp`, `ListNamespacesOp`.

        Returns:
            One result for each operation, in their order: what the verb of that operation returns.

        Raises:
            TypeError: an element of `ops` is not an operation, or an argument of one is of the wrong type.
            InvalidNamespaceError, InvalidKeyError, VectorSearchError: as the verbs raise them.
            UnstorableValueError, ValueError: as the verbs raise them.
            StorageError: the database failed, or the store is not open; nothing was stored.
        """
        return await self._run_all(ops)

    async def asweep_ttl(self) -> int:
        """Remove all expired items.

        Returns:
            The number of items removed.

        Raises:
            StorageError: the database failed, or the store is not open. Part of the expired items may have been
                removed.
        """
        total = 0
        while True:
            # One transaction per `SWEEP_LIMIT` rows, not one for all: other writers wait for the duration of one of
            # them only.
            pending = PendingBatch(sweeps=SWEEP_LIMIT)
            await wait_until_woken(partial(self._begin_alone, pending))
            count = pending.result().swept
            total += count
            if count < SWEEP_LIMIT:
                return total

    def get(self, namespace: StoreNamespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Return the item of a key, or None if there is none. Blocking twin of `aget`.

        Args:
            namespace: as for `aget`.
            key: as for `aget`.
            refresh_ttl: as for `aget`.

        Returns:
            What `aget` returns.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `aget` raises.
        """
        item: Item | None = self._run_one_blocking("get", GetOp(namespace, key, refresh_ttl))
        return item

    def put(
        self,
        namespace: StoreNamespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store an item, and replace the item that the key had. Blocking twin of `aput`.

        Args:
            namespace: as for `aput`.
            key: as for `aput`.
            value: as for `aput`.
            index: as for `aput`.
            ttl: minutes, as for `aput`.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `aput` raises.
        """
        self._run_one_blocking("put", PutOp(namespace, key, value, index, ttl))

    def delete(self, namespace: StoreNamespace, key: str) -> None:
        """Delete an item; do nothing if there is none. Blocking twin of `adelete`.

        Args:
            namespace: as for `adelete`.
            key: as for `adelete`.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `adelete` raises.
        """
        self._run_one_blocking("delete", PutOp(namespace, key, None))

    def search(
        self,
        namespace_prefix: StoreNamespace,
        /,
        *,
        query: None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return items of a namespace and of all namespaces inside it. Blocking twin of `asearch`.

        Args:
            namespace_prefix: as for `asearch`.
            query: as for `asearch`.
            filter: as for `asearch`.
            limit: number of items, as for `asearch`.
            offset: number of items, as for `asearch`.
            refresh_ttl: as for `asearch`.

        Returns:
            What `asearch` returns.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `asearch` raises.
        """
        search = SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        found: list[SearchItem] = self._run_one_blocking("search", search)
        return found

    def list_namespaces(
        self,
        *,
        prefix: StoreNamespace | None = None,
        suffix: StoreNamespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[StoreNamespace]:
        """Return the namespaces that hold items, sorted. Blocking twin of `alist_namespaces`.

        Args:
            prefix: as for `alist_namespaces`.
            suffix: as for `alist_namespaces`.
            max_depth: number of labels, as for `alist_namespaces`.
            limit: number of namespaces, as for `alist_namespaces`.
            offset: number of namespaces, as for `alist_namespaces`.

        Returns:
            What `alist_namespaces` returns.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `alist_namespaces` raises.
        """
        wanted = list_operation(prefix, suffix, max_depth, limit, offset)
        found: list[StoreNamespace] = self._run_one_blocking("list_namespaces", wanted)
        return found

    def check(self, namespace_prefix: StoreNamespace = (), /, *, limit: int = 100) -> list[CheckpointError]:
        """Return the errors that reading would raise. Blocking twin of `acheck`.

        Args:
            namespace_prefix: as for `acheck`.
            limit: number of errors, as for `acheck`.

        Returns:
            What `acheck` returns.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `acheck` raises.
        """
        self._refuse_blocking("check")
        (found,) = self._answers_blocking([check_of(namespace_prefix, limit, self.codec)])
        errors: list[CheckpointError] = found
        return errors

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute several operations in one transaction. Blocking twin of `abatch`.

        Args:
            ops: as for `abatch`.

        Returns:
            What `abatch` returns.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: and the other exceptions that `abatch` raises.
        """
        return self._run_all_blocking("batch", ops)

    def sweep_ttl(self) -> int:
        """Remove all expired items. Blocking twin of `asweep_ttl`.

        Returns:
            The number of items removed.

        Raises:
            SyncCallError: an event loop runs in this thread.
            StorageError: as `asweep_ttl` raises it.
        """
        self._refuse_blocking("sweep_ttl")
        total = 0
        while True:
            pending = PendingBatch(sweeps=SWEEP_LIMIT)
            block(partial(self._begin_alone, pending))
            count = pending.result().swept
            total += count
            if count < SWEEP_LIMIT:
                return total

    async def __aenter__(self) -> Self:
        """Start the sweeper, if `sweep_interval_minutes` is set. Stores with a connection open it first.

        Raises:
            SaverClosedError: the store is open already.
        """
        every = self._lifetimes.sweep_every
        if every is not None:
            if self._sweeper is not None:
                raise SaverClosedError("the store is open already: one 'async with' at a time")
            self._sweeper = Sweeper(self, every)
            self._sweeper.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish the batches that were begun, and close. May be called on any thread and event loop."""
        sweeper, self._sweeper = self._sweeper, None
        try:
            if sweeper is not None:
                with anyio.CancelScope(shield=True):
                    await sweeper.stop()
        finally:  # a cancellation that interrupts stopping the sweeper must not leave the connection open
            await self._disconnect()

    async def _disconnect(self) -> None:  # noqa: B027  # a store without a connection has nothing to close
        """Close what the store has opened."""

    async def _run_one(self, op: Op) -> Any:
        (answer,) = await self._run_all([op])
        return answer

    async def _run_all(self, ops: Iterable[Op]) -> list[Any]:
        return await self._answers(self._requests(ops))

    async def _answers(self, requests: list[Request]) -> list[Any]:
        if not requests:
            # No operation, no batch; but an awaited verb is always a checkpoint, so that a loop of such calls can be
            # cancelled.
            await anyio.lowlevel.checkpoint()
            return []
        # A list, because `wait_until_woken` returns nothing: `join` runs inside it, once the caller is certain to wait.
        joined = list[PendingBatch]()
        await wait_until_woken(lambda waiter: joined.append(self._collector.join(requests, waiter, self._begin)))
        return joined[0].answers(requests)

    def _run_one_blocking(self, verb: str, op: Op) -> Any:
        (answer,) = self._run_all_blocking(verb, [op])
        return answer

    def _run_all_blocking(self, verb: str, ops: Iterable[Op]) -> list[Any]:
        self._refuse_blocking(verb)
        return self._answers_blocking(self._requests(ops))

    def _answers_blocking(self, requests: list[Request]) -> list[Any]:
        # A blocking call has no event loop whose other operations could join, so its batch starts at once.
        pending = PendingBatch()
        pending.add(requests)
        if requests:
            block(partial(self._begin_alone, pending))
            return pending.answers(requests)
        return []

    def _requests(self, ops: Iterable[Op]) -> list[Request]:
        return [request_of(op, self.codec, self._lifetimes) for op in ops]

    def _refuse_blocking(self, verb: str) -> None:
        library = running_library() if self.waits else None
        if library is not None:
            raise SyncCallError(f"{verb}()", f"await store.a{verb}(...)", library)

    def _begin_alone(self, pending: PendingBatch, waiter: Waiter) -> None:
        pending.waiters.append(waiter)
        self._begin(pending)

    def _begin(self, pending: PendingBatch) -> None:
        """Hand a batch to the backend."""
        try:
            now = self.clock()
            sweeps = pending.sweeps
            # Puts remove expired rows in passing, so that a store without a sweeper does not grow for ever. The lower
            # bound is for a clock that was set back: without it, no batch would sweep until the clock has caught up.
            if pending.writes and not 0 <= now - self._swept_at < SWEEP_SPACING:
                self._swept_at, sweeps = now, SWEEP_LIMIT
            reads, writes = tuple(pending.reads.values()), tuple(pending.writes.values())
            batch = Batch(now=now, reads=reads, writes=writes, sweeps=sweeps)
            self.transact(batch, pending.finish)
        except BaseException as error:  # of any class: without an outcome, the callers would wait for ever
            pending.finish(error)
