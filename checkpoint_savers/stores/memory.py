"""`InMemoryStore`: rows in dicts, for the lifetime of the process."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import ClassVar, NamedTuple

from ..codec import Codec
from .abc import BaseStore
from .ops import TTLConfig
from .port import Answer, Batch, Done, Find, Outcome, Row, Scan, Spaces, Write, page_of_rows, page_of_spaces


class _StoredRow(NamedTuple):
    row: Row
    expires_at: float | None

    def is_unexpired(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


class InMemoryStore(BaseStore):
    """Stores items for the lifetime of the process: for tests, and for memory that need not last.

    It needs no opening. `async with InMemoryStore(...) as store` works too; only then it sweeps by itself.

    Its verbs never wait, so the blocking ones may be called where an event loop runs. Threads exclude each other by a
    lock for the time that a batch takes.

    Args:
        codec: turns values into bytes, as for every store.
        ttl: how long items live, in minutes, as for every store.
        clock: returns the time in unix seconds, as for every store.
        index: only None: there is no vector search.

    Raises:
        VectorSearchError: `index` was passed.
        TypeError, ValueError: `ttl` is not a valid configuration.
    """

    waits: ClassVar[bool] = False

    def __init__(
        self,
        *,
        codec: Codec | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        index: None = None,
    ) -> None:
        super().__init__(codec=codec, ttl=ttl, clock=clock, index=index)
        self._lock = threading.Lock()
        self._spaces: dict[bytes, dict[bytes, _StoredRow]] = {}
        self._order: list[bytes] = []  # the keys of `_spaces`, sorted
        self._expiries: list[tuple[float, bytes, bytes]] = []  # a heap; outdated times are skipped
        self._expiring = 0  # number of rows that have an expiry

    def transact(self, batch: Batch, done: Done) -> None:
        now = batch.now
        with self._lock:
            answers = list[Answer]()
            for read in batch.reads:
                match read:
                    case Find():
                        answers.append(self._find(read, now))
                    case Scan():
                        answers.append(self._scan(read, now))
                    case Spaces():
                        answers.append(page_of_spaces(lambda at: self._space_from(at, now), read))
            # After the reads, which see what was stored before the batch.
            for write in batch.writes:
                self._write(write, now)
            swept = self._sweep(now, batch.sweeps)
        done(Outcome(answers, swept))

    # The methods below are called with the lock held.

    def _find(self, find: Find, now: float) -> Row | None:
        stored = self._spaces.get(find.namespace, {}).get(find.key)
        if stored is None or not stored.is_unexpired(now):
            return None
        if find.refresh:
            self._refresh(stored.row, now)
        return stored.row

    def _scan(self, scan: Scan, now: float) -> list[Row]:
        first, last = bisect_left(self._order, scan.start), bisect_left(self._order, scan.end)
        there = [
            stored.row
            for name in self._order[first:last]
            for stored in self._spaces[name].values()
            if stored.is_unexpired(now)
        ]
        there.sort(key=lambda row: (-row.updated_at, row.namespace, row.key))
        found = page_of_rows(there, scan)
        if scan.refresh:
            for row in found:
                self._refresh(row, now)
        return found

    def _space_from(self, at: bytes, now: float) -> bytes | None:
        for number in range(bisect_left(self._order, at), len(self._order)):
            name = self._order[number]
            if any(stored.is_unexpired(now) for stored in self._spaces[name].values()):
                return name
        return None

    def _write(self, write: Write, now: float) -> None:
        before = self._remove(write.namespace, write.key)
        if write.frame is None:
            return
        created_at = before.row.created_at if before is not None and before.is_unexpired(now) else now
        row = Row(write.namespace, write.key, created_at, now, write.ttl, write.frame)
        self._insert(_StoredRow(row, None if write.ttl is None else now + write.ttl))

    def _refresh(self, row: Row, now: float) -> None:
        if row.ttl is not None:
            self._remove(row.namespace, row.key)
            self._insert(_StoredRow(row, now + row.ttl))

    def _sweep(self, now: float, most: int) -> int:
        swept, expiries = 0, self._expiries
        while swept < most and expiries and expiries[0][0] <= now:
            _, namespace, key = heappop(expiries)
            stored = self._spaces.get(namespace, {}).get(key)
            if stored is not None and not stored.is_unexpired(now):
                self._remove(namespace, key)
                swept += 1
        return swept

    def _insert(self, stored: _StoredRow) -> None:
        row = stored.row
        if row.namespace not in self._spaces:
            self._spaces[row.namespace] = {}
            insort(self._order, row.namespace)
        self._spaces[row.namespace][row.key] = stored
        if stored.expires_at is None:
            return
        self._expiring += 1
        heappush(self._expiries, (stored.expires_at, row.namespace, row.key))
        # A row that is written again leaves its old time in the heap, since a heap cannot delete from its middle. It is
        # rebuilt when outdated times are the majority.
        if len(self._expiries) > 2 * self._expiring + 8:
            self._expiries[:] = self._times()
            heapify(self._expiries)

    def _times(self) -> Iterator[tuple[float, bytes, bytes]]:
        for namespace, rows in self._spaces.items():
            for key, stored in rows.items():
                if stored.expires_at is not None:
                    yield stored.expires_at, namespace, key

    def _remove(self, namespace: bytes, key: bytes) -> _StoredRow | None:
        rows = self._spaces.get(namespace)
        stored = None if rows is None else rows.pop(key, None)
        if rows is not None and not rows:
            del self._spaces[namespace]
            del self._order[bisect_left(self._order, namespace)]
        if stored is not None and stored.expires_at is not None:
            self._expiring -= 1
        return stored
