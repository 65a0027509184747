"""`InMemorySaver`: the rows and bytes that any saver stores, in dicts that end with the process."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from .abc import BaseCheckpointSaver
from .codec import Codec
from .errors import CorruptCheckpointError, StorageError, ThreadBusyError, ThreadNotFoundError
from .listing import Cursor, cursor_before, cursor_of, list_headers
from .metadata import TextRow, metadata_matches, read_metadata, text_row, with_changes, with_defaults, write_metadata
from .owner import is_live
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
    TaskId,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)
from .saver_port import PAGE

if TYPE_CHECKING:
    from .runs.memory import InMemoryRuns
    from .runs.port import RunStore


class _StoredThread(msgspec.Struct):
    """All that is stored of one thread. Each instance has its own containers: msgspec copies empty defaults."""

    epoch: int = 0
    owner: Owner | None = None
    expires_at: float = 0.0
    newest: CheckpointId | None = None
    heads: dict[str, CheckpointId] = {}
    metadata: str = "{}"
    rows: dict[tuple[str, CheckpointId], TextRow] = {}
    chains: dict[tuple[str, CheckpointId], list[CheckpointId]] = {}  # (ns, base) -> ids, sorted
    order: list[tuple[CheckpointId, str]] = []  # sorted
    records: dict[tuple[str, CheckpointId], dict[TaskId, TaskRecord]] = {}
    events: dict[EventKey, EventRow] = {}
    event_order: list[EventKey] = []  # sorted

    def header(self, thread_id: str) -> ThreadHeader:
        return ThreadHeader(
            thread_id=thread_id,
            epoch=self.epoch,
            owner=self.owner,
            expires_at=self.expires_at if self.owner is not None else 0.0,
            newest=self.newest,
            head=self.heads.get(""),
            metadata=read_metadata(self.metadata, f"thread {thread_id!r}"),
        )

    def next_lease(self, thread_id: str, owner: Owner, now: float) -> Lease:
        """Make the next lease, without storing it. Raises ThreadBusyError if another owner has a live one."""
        holder = self.owner
        if holder is not None and holder != owner and is_live(holder, self.expires_at, now=now):
            raise ThreadBusyError(thread_id, holder=str(holder), expires_at=self.expires_at)
        return Lease(thread_id=thread_id, epoch=self.epoch + 1, owner=owner, newest=self.newest)

    def store_lease(self, lease: Lease, expires_at: float) -> None:
        """Store a lease of `next_lease`."""
        self.epoch, self.owner, self.expires_at = lease.epoch, lease.owner, expires_at

    def rows_up_to(self, asked: TextRow) -> list[TextRow]:
        """Return the rows with the same base as a row, up to and including that row."""
        ids = self.chains[asked.ns, asked.base_id]
        return [self.rows[asked.ns, i] for i in ids[: bisect_left(ids, asked.checkpoint_id) + 1]]

    def records_of(self, ns: str, checkpoint_id: CheckpointId) -> list[TaskRecord]:
        found = self.records.get((ns, checkpoint_id), {})
        return sorted(found.values(), key=lambda record: (record.index, record.task_id))

    def commit(self, lease: Lease, commit: Commit) -> None:
        """Store a superstep under a lease that is held. All checks come before the first change."""
        rows: list[TextRow] = []
        heads: dict[str, CheckpointId] = {}
        for change in (*commit.others, commit) if commit.others else (commit,):
            if change.rows:
                last = change.rows[-1]
                ns, tip = last.ns, last.checkpoint_id
            elif change.head is None:
                continue
            else:
                ns, tip = change.head
                if (ns, tip) not in self.rows:
                    raise _lost(lease.thread_id, self)
            if (self.heads[ns] if ns in self.heads else None) != change.expected_head:
                raise _lost(lease.thread_id, self)
            heads[ns] = tip
            for row in change.rows:
                if (row.ns, row.checkpoint_id) in self.rows:
                    raise _taken(lease.thread_id, "a checkpoint with one of these ids")
                rows.append(text_row(row, pinned=False))
        # Two rows of the commit may have the same id. Most commits have one row and need no set.
        if rows[1:] and len({(row.ns, row.checkpoint_id) for row in rows}) < len(rows):
            raise _taken(lease.thread_id, "a checkpoint with one of these ids")
        if commit.events:
            shown = {event.key for event in commit.events}
            if len(shown) < len(commit.events) or not self.events.keys().isdisjoint(shown):
                raise _taken(lease.thread_id, "a row of events at one of these positions")
        if commit.metadata:
            self.set_defaults(lease.thread_id, commit.metadata)
        for stored in rows:
            self.insert(stored)
        self.heads |= heads
        for event in commit.events:
            self.add_event(event)
        for ns, checkpoint_id, task_id in commit.clears:
            records = self.records.get((ns, checkpoint_id))
            if records is not None and records.pop(task_id, None) is not None and not records:
                del self.records[ns, checkpoint_id]
        if commit.records:
            self.put_records(commit.records)
        self.expires_at = commit.expires_at

    def set_defaults(self, thread_id: str, metadata: Mapping[str, Any]) -> None:
        """Set keys of the thread's metadata which it lacks."""
        self.metadata = write_metadata(with_defaults(read_metadata(self.metadata, f"thread {thread_id!r}"), metadata))

    def insert(self, row: TextRow) -> None:
        ns, checkpoint_id, chain = row.ns, row.checkpoint_id, (row.ns, row.base_id)
        self.rows[ns, checkpoint_id] = row
        if chain in self.chains:
            insort(self.chains[chain], checkpoint_id)
        else:
            self.chains[chain] = [checkpoint_id]
        insort(self.order, (checkpoint_id, ns))
        if self.newest is None or checkpoint_id > self.newest:
            self.newest = checkpoint_id

    def remove(self, ns: str, checkpoint_id: CheckpointId) -> None:
        row = self.rows.pop((ns, checkpoint_id))
        chain = self.chains[ns, row.base_id]
        chain.remove(checkpoint_id)
        if not chain:
            del self.chains[ns, row.base_id]
        del self.order[bisect_left(self.order, (checkpoint_id, ns))]

    def put_records(self, records: Iterable[TaskRecord]) -> None:
        for record in records:
            self.records.setdefault((record.ns, record.checkpoint_id), {})[record.task_id] = record

    def add_event(self, event: EventRow) -> None:
        self.events[event.key] = event
        insort(self.event_order, event.key)


class InMemorySaver(BaseCheckpointSaver):
    """Stores threads as long as the process lives. For tests, and for runs that need state but no durability.

    It needs no opening; `async with InMemorySaver() as saver` works too, and changes nothing.

    Its methods never wait: a lock separates threads of the process for the microseconds that a dict access takes.

    Args:
        codec: turns values into bytes; see `BaseCheckpointSaver`.
        clock: returns the time in unix seconds.
    """

    commit_is_shielded = lease_is_shielded = True  # a coroutine that never waits cannot be cancelled
    commits_others = True

    def __init__(self, *, codec: Codec | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(codec=codec, clock=clock)
        self._lock = threading.Lock()
        self._threads: dict[str, _StoredThread] = {}
        self._runs: InMemoryRuns | None = None  # made when it is first asked for

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        # Raises for a lone surrogate, which no database stores: a test with this saver should fail like the others.
        thread_id.encode()
        with self._lock:
            thread = self._threads.get(thread_id) or _StoredThread()
            lease = thread.next_lease(thread_id, owner, now)
            thread.store_lease(lease, expires_at)
            self._threads[thread_id] = thread
            return lease

    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        with self._lock:
            self._held(lease).expires_at = expires_at

    async def commit(self, lease: Lease, commit: Commit) -> None:
        with self._lock:
            self._held(lease).commit(lease, commit)
            if commit.releases:
                self._release(lease)

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        with self._lock:
            thread = self._held(lease)
            thread.put_records(records)
            thread.expires_at = expires_at

    async def release(self, lease: Lease) -> None:
        with self._lock:
            self._release(lease)

    @property
    def runs(self) -> RunStore:
        if self._runs is None:
            self._runs = _runs_of(self)
        return self._runs

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        rows = {(row.ns, row.checkpoint_id): text_row(row, pinned=row.pinned) for row in change.rows}
        with self._lock:
            thread = self._held(lease)
            gone = set(change.gone) & thread.rows.keys()
            stays = thread.rows.keys() - gone
            missing = (rows.keys() | change.pins.keys()) - stays
            if missing:
                ns, checkpoint_id = min(missing)
                raise _refused(lease.thread_id, f"checkpoint {checkpoint_id} of namespace {ns!r} is not stored")
            named = {**thread.heads, **change.heads}
            heads = {ns: head for ns, head in named.items() if head is not None}
            wrong = _unfounded(heads, stays)
            if wrong is not None:
                raise _refused(lease.thread_id, wrong)
            for ns, checkpoint_id in gone:
                thread.remove(ns, checkpoint_id)
                thread.records.pop((ns, checkpoint_id), None)
            for (ns, checkpoint_id), row in rows.items():
                thread.remove(ns, checkpoint_id)
                thread.insert(row)
            for key, pinned in change.pins.items():
                thread.rows[key] = replace(thread.rows[key], pinned=pinned)
            thread.heads = heads
            void = set(change.events)
            thread.event_order = [key for key in thread.event_order if key[0] not in void]
            thread.events = {key: thread.events[key] for key in thread.event_order}

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None or (thread.newest is None and not self._has_runs(thread_id)):
                raise ThreadNotFoundError(thread_id)
            known = read_metadata(thread.metadata, f"thread {thread_id!r}")
            thread.metadata = write_metadata(with_changes(known, changes))
            if self._runs is not None:
                self._runs.touch(thread_id)

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        metadata = write_metadata(dump.metadata)
        rows = {(row.ns, row.checkpoint_id): text_row(row, pinned=row.pinned) for row in dump.rows}
        records = {(record.ns, record.checkpoint_id, record.task_id) for record in dump.records}
        events = {event.key for event in dump.events}
        with self._lock:
            thread = self._held(lease)
            if not dump.replaces and (thread.rows or thread.records or thread.events):
                raise _refused(lease.thread_id, "it holds something already")
            if (len(rows), len(records), len(events)) != (len(dump.rows), len(dump.records), len(dump.events)):
                raise _refused(lease.thread_id, "two of the rows to be loaded have one key")
            wrong = _unfounded(dump.heads, rows.keys())
            if wrong is not None:
                raise _refused(lease.thread_id, wrong)
            if dump.replaces:
                thread = _StoredThread(thread.epoch, thread.owner, thread.expires_at, thread.newest)
                self._threads[lease.thread_id] = thread
            for row in rows.values():
                thread.insert(row)
            thread.heads = dict(dump.heads)
            thread.metadata = metadata
            thread.put_records(dump.records)
            for event in dump.events:
                thread.add_event(event)

    async def erase(self, lease: Lease) -> None:
        with self._lock:
            self._held(lease)
            self._delete(lease.thread_id)

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        found: list[ThreadHeader] = []
        with self._lock:
            ids = sorted(self._threads)
            for thread_id in ids[0 if after is None else bisect_right(ids, after) :]:
                if len(found) >= limit:
                    break
                header = self._threads[thread_id].header(thread_id)
                if metadata_matches(header.metadata, filter):
                    found.append(header)
        return tuple(found)

    async def heads(self, thread_id: str, ns: str | None = None) -> dict[str, CheckpointId]:
        with self._lock:
            thread = self._threads.get(thread_id)
            heads = {} if thread is None else thread.heads
            return {name: head for name, head in heads.items() if ns is None or name == ns}

    async def dump(self, thread_id: str) -> ThreadDump | None:
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None or not thread.rows:
                return None
            # Everything is copied under the lock, so that the dump is of one moment; metadata of rows is decoded after
            # it.
            stored = [thread.rows[ns, checkpoint_id] for checkpoint_id, ns in thread.order]
            heads, metadata = dict(thread.heads), read_metadata(thread.metadata, f"thread {thread_id!r}")
            records = [
                record
                for ns, checkpoint_id in sorted(thread.records, key=lambda key: (key[1], key[0]))
                for record in thread.records_of(ns, checkpoint_id)
            ]
            events = [thread.events[key] for key in thread.event_order]
        rows = tuple(one.row() for one in stored)
        return ThreadDump(heads=heads, rows=rows, records=tuple(records), events=tuple(events), metadata=metadata)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None or ns not in thread.heads:
                return None
            head = thread.heads[ns]
            asked = thread.rows.get((ns, head if checkpoint_id is None else checkpoint_id))
            if asked is None:
                return None
            stored = thread.rows_up_to(asked)
            # The base of a delta may be a snapshot, whose own base is the keyframe: a chain has at most two segments.
            base = thread.rows.get((ns, asked.base_id))
            if base is not None and base.base_id != base.checkpoint_id:
                stored = [*thread.rows_up_to(base), *stored]
                base = thread.rows.get((ns, base.base_id))
            records = thread.records_of(ns, asked.checkpoint_id)
        if base is None or base.base_id != base.checkpoint_id:
            raise CorruptCheckpointError(
                f"thread {thread_id!r}, checkpoint {asked.checkpoint_id}",
                f"the base of its chain, {asked.base_id}, is missing, or leads to no keyframe",
            )
        return Chain(rows=tuple(one.row() for one in stored), records=tuple(records), head=head)

    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        with self._lock:
            thread = self._threads.get(thread_id)
            ids = [] if thread is None else thread.chains.get((ns, base_id), [])
            if thread is None or not ids:
                return (), ()
            stored = [thread.rows[ns, i] for i in ids]
            records = [record for i in ids for record in thread.records_of(ns, i)]
        return tuple(one.row() for one in stored), tuple(records)

    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        async def page(after: Cursor | None, size: int) -> list[Header]:
            with self._lock:
                rows = self._page(thread_id, ns, after, size)
            return [_header(stored, name) for name, stored in rows]

        return await list_headers(page, cursor_before(before), cursor_of, limit, filter)

    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None:
                return ()
            start = 0 if since is None else bisect_left(thread.event_order, since)
            return tuple(thread.events[key] for key in thread.event_order[start : start + max(limit, 0)])

    async def adelete_thread(self, thread_id: str) -> None:
        now = self.clock()
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None:
                return
            if thread.owner is not None and is_live(thread.owner, thread.expires_at, now=now):
                raise ThreadBusyError(thread_id, holder=str(thread.owner), expires_at=thread.expires_at)
            self._delete(thread_id)

    # The methods below are called with the lock held.

    def _held(self, lease: Lease) -> _StoredThread:
        """Return the thread of a lease that is held; raise ThreadBusyError if it was lost."""
        thread_id = lease.thread_id
        thread = self._threads[thread_id] if thread_id in self._threads else None
        if thread is None or thread.epoch != lease.epoch or thread.owner != lease.owner:
            raise _lost(thread_id, thread)
        return thread

    def _release(self, lease: Lease) -> None:
        thread = self._threads.get(lease.thread_id)
        if thread is not None and thread.epoch == lease.epoch and thread.owner == lease.owner:
            thread.owner = None
            # A thread whose first run stored nothing would be listed for ever.
            if thread.newest is None and not self._has_runs(lease.thread_id):
                del self._threads[lease.thread_id]

    def _has_runs(self, thread_id: str) -> bool:
        return self._runs is not None and self._runs.has(thread_id)

    def _delete(self, thread_id: str) -> None:
        del self._threads[thread_id]
        if self._runs is not None:
            self._runs.forget(thread_id)

    def _page(
        self, thread_id: str | None, ns: str | None, before: Cursor | None, size: int
    ) -> list[tuple[str, TextRow]]:
        """Return rows after a cursor, newest first."""
        names = self._threads if thread_id is None else [thread_id] if thread_id in self._threads else []

        def of(name: str) -> Iterable[tuple[str, str, str]]:
            order = self._threads[name].order
            end = len(order)
            if before is not None:
                end = bisect_left(order, before[0], key=lambda entry: entry[0])
                while end < len(order) and (order[end][0], name, order[end][1]) < before:
                    end += 1
            return ((order[i][0], name, order[i][1]) for i in range(end - 1, -1, -1))

        newest_first = merge(*(of(name) for name in names), reverse=True)
        wanted = (entry for entry in newest_first if ns is None or entry[2] == ns)
        return [
            (name, self._threads[name].rows[namespace, CheckpointId(checkpoint_id)])
            for checkpoint_id, name, namespace in islice(wanted, size)
        ]


class _ThreadsOfRuns:
    """The threads of a saver, as its run store uses them. All methods are called with the saver's lock.

    Args:
        threads: by id.
        check: raises ThreadBusyError if a lease is no longer held.
        release: releases a lease, if it is still held.
    """

    def __init__(
        self,
        threads: dict[str, _StoredThread],
        *,
        check: Callable[[Lease], object],
        release: Callable[[Lease], None],
    ) -> None:
        self._threads = threads
        self.check = check
        self.release = release

    def next_lease(self, thread_id: str, owner: Owner, now: float) -> Lease:
        return (self._threads.get(thread_id) or _StoredThread()).next_lease(thread_id, owner, now)

    def store_lease(self, lease: Lease, expires_at: float) -> None:
        self._threads[lease.thread_id].store_lease(lease, expires_at)

    def owner_of(self, thread_id: str) -> tuple[Owner | None, float]:
        thread = self._threads.get(thread_id)
        return (None, 0.0) if thread is None or thread.owner is None else (thread.owner, thread.expires_at)

    def metadata_of(self, thread_id: str) -> dict[str, Any]:
        thread = self._threads.get(thread_id)
        return {} if thread is None else read_metadata(thread.metadata, f"thread {thread_id!r}")

    def add(self, thread_id: str, metadata: Mapping[str, Any], lease: Lease | None, commit: Commit | None) -> None:
        thread_id.encode()  # as in `InMemorySaver.acquire`
        thread = self._threads.get(thread_id) or _StoredThread()
        before = thread.metadata
        try:
            thread.set_defaults(thread_id, metadata)
            if lease is not None and commit is not None:
                thread.commit(lease, commit)
        except BaseException:
            thread.metadata = before
            raise
        self._threads[thread_id] = thread


def _runs_of(saver: InMemorySaver) -> InMemoryRuns:
    from .runs.memory import InMemoryRuns  # imported late: few programs have a service

    threads = _ThreadsOfRuns(saver._threads, check=saver._held, release=saver._release)
    return InMemoryRuns(threads, saver._lock, clock=lambda: saver.clock())


def _header(row: TextRow, thread_id: str) -> Header:
    return Header(
        thread_id=thread_id,
        ns=row.ns,
        checkpoint_id=row.checkpoint_id,
        parent_id=row.parent_id,
        base_id=row.base_id,
        step=row.step,
        metadata=read_metadata(row.metadata, f"thread {thread_id!r}, checkpoint {row.checkpoint_id}"),
        size=len(row.frame),
        pinned=row.pinned,
    )


def _unfounded(heads: Mapping[str, CheckpointId], keys: Collection[tuple[str, CheckpointId]]) -> str | None:
    """Return why heads and stored checkpoints do not fit together; None if they do."""
    for ns, head in heads.items():
        if (ns, head) not in keys:
            return f"the head of namespace {ns!r} would be checkpoint {head}, which is not stored"
    for ns, checkpoint_id in keys:
        if ns not in heads:
            return f"namespace {ns!r} would hold checkpoint {checkpoint_id} and have no head"
    return None


def _refused(thread_id: str, reason: str) -> StorageError:
    return StorageError(f"thread {thread_id!r}: {reason}. Nothing was changed.")


def _taken(thread_id: str, what: str) -> StorageError:
    return StorageError(f"thread {thread_id!r}: {what} is stored already. Nothing was stored.")


def _lost(thread_id: str, thread: _StoredThread | None) -> ThreadBusyError:
    if thread is None or thread.owner is None:
        return ThreadBusyError(thread_id, lost=True)
    return ThreadBusyError(thread_id, holder=str(thread.owner), expires_at=thread.expires_at, lost=True)
