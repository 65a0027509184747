"""The port of long-term memory: items under namespaces, for all threads and all graphs.

A store of one's own subclasses `BaseStore`, implements `transact`, and runs
`checkpoint_savers.conformance.StoreConformance` on the result. Everything else is written here once.

The contract, for every store
    - Operations that are asked in the same turn of an event loop are one batch, and so are those of one call of
      `abatch`: one transaction, of which all is stored or nothing. Its reads see what was stored before it. Of several
      puts and deletes of one item in it, the last is done. Who waits for one operation before asking the next sees what
      it did.
    - What is passed in is captured when the verb is called; what is given back is the caller's own.
    - Expired items are not there, swept away or not.
    - A store serves concurrent calls from any thread and any event loop of the process, asyncio and trio.
    - Cancelling a caller does not tear its batch, nor those of others: it ends before control returns.
    - A database's own exceptions are translated to `StorageError`s, with their cause. Damaged rows give
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

from ..bridge import Waiter, block, running_library, until
from ..codec import Codec
from ..errors import SaverClosedError, SyncCallError, VectorSearchError
from .batching import BatchCollector, PendingBatch, Request
from .ops import NOT_PROVIDED, GetOp, Item, Namespace, NotProvided, Op, PutOp, Result, SearchItem, SearchOp, TTLConfig
from .port import SWEEP_LIMIT, Batch, Done
from .sweeper import Sweeper
from .validation import list_operation, read_ttl_config, request_of

SWEEP_SPACING = 60.0
"""Seconds that lie at least between two batches of puts that remove expired items as well."""


class BaseStore(ABC):
    """Keeps items: dicts, each under a namespace and a key.

        await store.aput(("memories", "ann"), "food", {"likes": "pizza"})
        item = await store.aget(("memories", "ann"), "food")
        found = await store.asearch(("memories",), filter={"likes": "pizza"})

    Each verb has a twin without the `a`, for plain functions, in worker threads or where there is no event loop at all.
    Where an event loop runs that it would block, it raises `SyncCallError`, and does nothing.

    Args:
        codec: turns values into bytes; give types of your own here (`Codec().with_types(Invoice)`).
        ttl: how long items are kept; for ever without.
        clock: unix seconds; says when an item was put, and when it has expired.
        index: not offered: there is no vector search.

    Raises:
        VectorSearchError: an index was passed.
        TypeError, ValueError: the ttl is no configuration of one.
    """

    supports_ttl: ClassVar[bool] = True

    waits: ClassVar[bool] = True
    """Whether `transact` may return before the batch has ended."""

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
        self.codec = Codec() if codec is None else codec
        self.clock = clock
        self.ttl_config = ttl
        self._lifetimes = read_ttl_config(ttl)
        self._collector = BatchCollector()
        self._swept_at = -math.inf
        self._sweeper: Sweeper | None = None

    @abstractmethod
    def transact(self, batch: Batch, done: Done) -> None:
        """Do what a batch says, in one transaction, and tell `done` what came of it.

        It does not wait: it hands the batch on, to a thread of its own, say, which calls `done`. It may be called in
        any thread, also in one in which an event loop runs. Once it has returned, the batch runs to its end, whatever
        becomes of those who asked.

        Args:
            batch: what to do. `port.py` says what each part of it means.
            done: to be called once. Of an exception, each who waits is given a copy.

        Raises:
            StorageError: the batch was not taken, and `done` will not be called.
        """

    async def aget(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """The item of a key; None if there is none.

        Args:
            refresh_ttl: whether its time begins anew; None for what the store was told (`TTLConfig`).

        Raises:
            InvalidNamespaceError, InvalidKeyError
            CorruptCheckpointError, UnknownTypeError, UnsupportedFormatError, StorageError
        """
        item: Item | None = await self._run_one(GetOp(namespace, key, refresh_ttl))
        return item

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Keep an item, in the place of the one before it under that key. When this returns, it is durable.

        Args:
            value: a dict of what can be stored. (None deletes the item.)
            index: False or None: there is no vector search.
            ttl: minutes for which it is kept from now on; None for ever. See `TTLConfig`.

        Raises:
            UnstorableItemError: the value cannot be stored.
            InvalidNamespaceError, InvalidKeyError, VectorSearchError
            TypeError, ValueError: the value is no dict, or the ttl no time that is positive and finite.
            StorageError
        """
        await self._run_one(PutOp(namespace, key, value, index, ttl))

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """Delete an item; nothing happens when there is none. Raises: as `aput`."""
        await self._run_one(PutOp(namespace, key, None))

    async def asearch(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Items in a namespace and in all namespaces inside it: those first that were put last, and by namespace and
        key where that is the same.

        Args:
            namespace_prefix: ("memories",) stands for ("memories",), ("memories", "ann") and so on; () for all.
            query: not offered: there is no vector search.
            filter: what their values have; `filters.py` says what matches. Items are read first and filtered then, so
                name a namespace that narrows the search.
            limit, offset: of all that match, leave out so many, and return so many at most.
            refresh_ttl: as of `aget`, for the items that are returned.

        Raises:
            InvalidNamespaceError, VectorSearchError
            TypeError, ValueError: the filter is none, or a number is below zero.
            UnstorableValueError: the filter has a value that no item can have.
            CorruptCheckpointError, UnknownTypeError, UnsupportedFormatError: an item cannot be read. Such an item
                matches every filter.
            StorageError
        """
        found: list[SearchItem] = await self._run_one(
            SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        )
        return found

    async def alist_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """The namespaces in which there are items, sorted.

        Args:
            prefix, suffix: how they begin, and end; "*" stands for any one label.
            max_depth: the first so many labels of each; namespaces that begin alike are one then.
            limit, offset: as of `asearch`.

        Raises:
            InvalidNamespaceError
            TypeError, ValueError: a number is none, or too small.
            CorruptCheckpointError, StorageError
        """
        found: list[Namespace] = await self._run_one(list_operation(prefix, suffix, max_depth, limit, offset))
        return found

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations in one transaction: their answers, in their order. Reads see what was stored before.

        Raises: as the verbs. If an operation is refused, nothing was done.
        """
        return await self._run_all(ops)

    async def asweep_ttl(self) -> int:
        """Remove all expired items, and return how many there were. Raises `StorageError`."""
        total = 0
        while True:
            pending = PendingBatch(sweeps=SWEEP_LIMIT)
            await until(partial(self._begin_alone, pending))
            count = pending.result().swept
            total += count
            if count < SWEEP_LIMIT:
                return total

    def get(self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """As `aget`. Raises `SyncCallError`, too."""
        item: Item | None = self._run_one_blocking("get", GetOp(namespace, key, refresh_ttl))
        return item

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """As `aput`. Raises `SyncCallError`, too."""
        self._run_one_blocking("put", PutOp(namespace, key, value, index, ttl))

    def delete(self, namespace: Namespace, key: str) -> None:
        """As `adelete`. Raises `SyncCallError`, too."""
        self._run_one_blocking("delete", PutOp(namespace, key, None))

    def search(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """As `asearch`. Raises `SyncCallError`, too."""
        search = SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        found: list[SearchItem] = self._run_one_blocking("search", search)
        return found

    def list_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """As `alist_namespaces`. Raises `SyncCallError`, too."""
        wanted = list_operation(prefix, suffix, max_depth, limit, offset)
        found: list[Namespace] = self._run_one_blocking("list_namespaces", wanted)
        return found

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """As `abatch`. Raises `SyncCallError`, too."""
        return self._run_all_blocking("batch", ops)

    def sweep_ttl(self) -> int:
        """As `asweep_ttl`. Raises `SyncCallError`, too."""
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
        """Begin to sweep, if the store was told to. A store that has to be opened does so first."""
        every = self._lifetimes.sweep_every
        if every is not None:
            if self._sweeper is not None:
                raise SaverClosedError("the store is open already: one 'async with' at a time")
            self._sweeper = Sweeper(self, every)
            self._sweeper.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Finish what was begun, and close: on any thread and event loop, not just those it was opened on."""
        sweeper, self._sweeper = self._sweeper, None
        try:
            if sweeper is not None:
                with anyio.CancelScope(shield=True):
                    await sweeper.stop()
        finally:  # however the end of the sweeping was cancelled
            await self._disconnect()

    async def _disconnect(self) -> None:  # noqa: B027  # there is nothing to close in a store without a connection
        """Close what the store has opened."""

    async def _run_one(self, op: Op) -> Any:
        (answer,) = await self._run_all([op])
        return answer

    async def _run_all(self, ops: Iterable[Op]) -> list[Any]:
        requests = self._requests(ops)
        if not requests:
            await anyio.lowlevel.checkpoint()
            return []
        joined = list[PendingBatch]()
        await until(lambda waiter: joined.append(self._collector.join(requests, waiter, self._begin)))
        return joined[0].answers(requests)

    def _run_one_blocking(self, verb: str, op: Op) -> Any:
        (answer,) = self._run_all_blocking(verb, [op])
        return answer

    def _run_all_blocking(self, verb: str, ops: Iterable[Op]) -> list[Any]:
        self._refuse_blocking(verb)
        requests = self._requests(ops)
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
        """Hand a gathering to the backend."""
        try:
            now = self.clock()
            sweeps = pending.sweeps
            if pending.writes and not 0 <= now - self._swept_at < SWEEP_SPACING:
                self._swept_at, sweeps = now, SWEEP_LIMIT
            reads, writes = tuple(pending.reads.values()), tuple(pending.writes.values())
            batch = Batch(now=now, reads=reads, writes=writes, sweeps=sweeps)
            self.transact(batch, pending.finish)
        except BaseException as error:  # whatever it is: those who wait have to be told
            pending.finish(error)
