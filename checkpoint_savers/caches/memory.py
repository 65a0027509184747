"""`InMemoryCache`: entries in a dict, for the lifetime of the process."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Self

from .abc import BaseCache, CacheEntry, FullKey, Namespace, checked_entries, checked_keys, checked_namespaces


class InMemoryCache(BaseCache):
    """Stores entries for the lifetime of the process.

    It needs no opening; `async with InMemoryCache() as cache` works too, and changes nothing.

    Its methods never wait: threads exclude each other by a lock, for the microseconds that a dict needs.

    Args:
        max_entries: number of entries to store. Beyond it, expired entries are removed first, and then those that were
            neither read nor written for the longest time.
        clock: returns the time in unix seconds, as for every cache.

    Raises:
        ValueError: `max_entries` is less than 1.
    """

    def __init__(self, *, max_entries: int = 10_000, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock=clock)
        if max_entries < 1:
            raise ValueError(f"max_entries is 1 or more, not {max_entries!r}")
        self.max_entries = max_entries
        self._lock = threading.Lock()
        self._entries: OrderedDict[FullKey, CacheEntry] = OrderedDict()  # the last used one is last
        self._expiries: list[tuple[float, FullKey]] = []  # a heap; outdated times are skipped

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Do nothing: no resource is open."""

    def __len__(self) -> int:
        with self._lock:
            # Under the lock: `aset` adds an entry before it evicts another, and would be seen with one too many.
            return len(self._entries)

    async def aget(self, keys: Iterable[FullKey]) -> dict[FullKey, bytes]:
        wanted, now = checked_keys(keys), self.clock()
        found = dict[FullKey, bytes]()
        with self._lock:
            for key in wanted:
                entry = self._entries.get(key)
                if entry is None:
                    continue
                if entry.expires_at <= now:
                    del self._entries[key]
                    continue
                self._entries.move_to_end(key)
                found[key] = entry.value
        return found

    async def aset(self, pairs: Mapping[FullKey, tuple[bytes, float | None]]) -> None:
        now = self.clock()
        entries = checked_entries(pairs, now)
        with self._lock:
            for key, entry in entries.items():
                self._entries[key] = entry
                self._entries.move_to_end(key)
                if entry.expires_at != math.inf:
                    heappush(self._expiries, (entry.expires_at, key))
            self._remove_expired(now)
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)

    async def aclear(self, namespaces: Iterable[Namespace] | None = None) -> None:
        cleared = checked_namespaces(namespaces)
        with self._lock:
            for key in [key for key in self._entries if any(key[0][: len(one)] == one for one in cleared)]:
                del self._entries[key]

    def _remove_expired(self, now: float) -> None:
        entries, expiries = self._entries, self._expiries
        while expiries and expiries[0][0] <= now:
            _, key = heappop(expiries)
            if key in entries and entries[key].expires_at <= now:
                del entries[key]
        # An entry that is written again leaves its old time in the heap, since a heap cannot delete from its middle. It
        # is rebuilt when outdated times are the majority.
        if len(expiries) > 2 * len(entries) + 8:
            expiries[:] = [(one.expires_at, key) for key, one in entries.items() if one.expires_at != math.inf]
            heapify(expiries)
