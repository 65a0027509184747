"""`PostgresRuns`: accepted runs, in the tables and on the connections of a `PostgresSaver`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from ..errors import SaverClosedError
from ..records import Commit, Lease
from ..runs.changes import TOPICS, ChangeSignal, Topic
from ..runs.decisions import Found, WantedLease
from ..runs.known_rows import KnownRows, LeasedRows, MarkedWrite, RunChange
from ..runs.port import PAGE, ActiveThread, Decide, RunStore, check_commit
from ..runs.queries import RowPosition, RunQuery, ThreadQuery
from ..runs.rows import RunRow, RunThreadRow
from .open_saver import ConnectedSaver
from .run_mark import RunMark
from .run_searches import RunSearches
from .run_transactions import OnQueued, RunAttempt, is_queued
from .writing import LeasedWrite

T = TypeVar("T")

LOOK_EVERY = 1.0
"""Seconds after which waiting callers look, although they would be notified."""


class RunWork(Protocol):
    """Runs work with a cursor of one of the saver's connections; see `PostgresSaver`."""

    async def __call__(
        self, work: Callable[..., Awaitable[T]], *args: Any, interrupted: Callable[[], None] | None = None
    ) -> T:
        """Run `work(cursor, *args)`, perhaps several times."""
        ...


class _MarkedStatement(NamedTuple):
    """A superstep with its run's mark. See `MarkedWrite`."""

    write: LeasedWrite
    frames: Mapping[str, bytes]
    saver: ConnectedSaver

    @property
    def is_stored(self) -> bool:
        return self.write.is_stored

    async def store(self) -> None:
        await self.saver.write(self.write)


class PostgresRuns(RunStore):
    """The runs of a `PostgresSaver`: `saver.runs`.

    Concurrent changes of several threads share a transaction; those of one thread wait for each other.

    Args:
        run: runs work on a connection.
        searches: the statements that read.
        clock: returns the time in unix seconds, or None for the server's time.
        now: returns the time in unix seconds, without a query.
        number: returns the number of a write.
        acquired: called when a transaction has acquired a lease.
        released: called when a transaction has released a lease.
        opened: returns the parts of the saver that exist while it is open.
        payload: returns what announces a kind of change to other processes, by its name.
        conn_string: the connection string of the saver's connections; None if a user's pool computes it.

    Attributes:
        conn_string: see above.
        on_queued: called in each transaction that queues a thread, with its connection and the thread's new row, so
            that a queue in the same database gets its job in the same transaction. If it raises, the transaction is
            rolled back. None for nothing.
    """

    def __init__(
        self,
        run: RunWork,
        searches: RunSearches,
        *,
        clock: Callable[[], float | None],
        now: Callable[[], float],
        number: Callable[[], int],
        acquired: Callable[[Lease], None],
        released: Callable[[Lease], None],
        opened: Callable[[], ConnectedSaver],
        payload: Callable[[str], str],
        conn_string: str | None,
    ) -> None:
        super().__init__()
        self.conn_string = conn_string
        self.on_queued: OnQueued | None = None
        self._run = run
        self._searches = searches
        self._clock = clock
        self._now = now
        self._number = number
        self._known = LeasedRows(self._marked_write, now=now, notify=self.notify, released=released)
        self._acquired = acquired
        self._opened = opened
        self._payload = payload
        self._payloads = {topic: payload(topic) for topic in TOPICS}
        self._callbacks = {topic: partial(self.changes.notify, (topic,)) for topic in TOPICS}
        self._is_notified = False
        self._next_look = 0.0

    async def transact(
        self,
        thread_id: str,
        decide: Decide[T],
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        lease: Lease | None = None,
        commit: Commit | None = None,
        wants: WantedLease | None = None,
        is_new: bool = False,
    ) -> T:
        check_commit(lease, commit)
        if lease is not None and commit is not None:
            changes = await self._known.store(decide, run_id, lease, commit)
            if changes is not None:
                return changes.result
        # Not with a key: a run of another thread may have the same key. Not with `on_queued`: it is called only in the
        # transaction that locks and reads.
        may_assume = is_new and idempotency_key is None and self.on_queued is None
        assumed = self._assumed(thread_id, wants) if may_assume else None
        attempt = RunAttempt(
            thread_id,
            decide,
            assumed=assumed,
            run_id=run_id,
            idempotency_key=idempotency_key,
            lease=lease,
            commit=commit,
            wants=wants,
            clock=self._clock,
            on_queued=self.on_queued,
        )
        try:
            await self._opened().transact(attempt)
            return attempt.result()
        finally:
            # Also if the caller was cancelled while it waited: the transaction has ended all the same.
            if attempt.committed:
                released = lease if attempt.released else None
                self._known.note(thread_id, attempt.known_rows, attempt.topics, released)
                if attempt.acquired is not None:
                    self._acquired(attempt.acquired)

    def _assumed(self, thread_id: str, wants: WantedLease | None) -> Found:
        """Return what a decision finds if nothing is stored of a thread.

        Args:
            thread_id: the thread.
            wants: the lease to acquire; it is the thread's first one. None for no lease.
        """
        lease = None if wants is None else Lease(thread_id=thread_id, epoch=1, owner=wants.owner, newest=None)
        return Found(thread_id, None, (), None, self._now(), lease)

    def _marked_write(self, known: KnownRows, change: RunChange, lease: Lease, commit: Commit) -> MarkedWrite | None:
        """Return the write of a superstep and the change of its run: one statement. See `LeasedRows`."""
        # `on_queued` is called only in the transaction that locks and reads.
        if self.on_queued is not None and is_queued(change.thread_before, change.thread_after):
            return None
        mark = RunMark.of(change, known.frames)
        return _MarkedStatement(LeasedWrite(lease, commit, self._number, mark=mark), mark.frames, self._opened())

    def forget(self, lease: Lease) -> None:
        """Forget the rows that this process has written under a lease. Call it when the lease is no longer held.

        Args:
            lease: the lease.
        """
        self._known.forget(lease)

    def notify(self, thread_id: str, topics: tuple[Topic, ...] = TOPICS) -> None:
        self.changes.notify(topics)
        self.announce(thread_id, topics)

    def announce(self, thread_id: str, topics: tuple[Topic, ...] = ()) -> None:
        super().announce(thread_id)
        # Together: what comes after a message that was sent waits for the next one. A cancellation does not wait: a
        # caller waits for it, and there are few.
        payloads = [self._payload_of(thread_id), *[self._payloads[topic] for topic in topics]]
        with contextlib.suppress(SaverClosedError):  # others find the change when they look
            self._opened().announce(payloads, urgent="cancel" in topics)

    def _payload_of(self, thread_id: str) -> str:
        return self._payload(f"events\x00{thread_id}")

    async def wait_for_change(self, seen: int = 0, topic: Topic | None = None) -> int:
        opened = self._opened()
        for each in TOPICS if topic is None else (topic,):
            self._is_notified = opened.subscribe(self._payloads[each], self._callbacks[each])
        return await super().wait_for_change(seen, topic)

    @contextmanager
    def watch(self, thread_id: str) -> Generator[ChangeSignal, None, None]:
        with super().watch(thread_id) as signal:
            payload = self._payload_of(thread_id)
            self._is_notified = self._opened().subscribe(payload, signal.notify)
            try:
                yield signal
            finally:
                with contextlib.suppress(SaverClosedError):
                    self._opened().unsubscribe(payload, signal.notify)

    async def has_changed_elsewhere(self) -> bool:
        now = time.monotonic()
        if now < self._next_look:
            return False
        # With a listener, only announcements that were lost are found so.
        self._next_look = now + (LOOK_EVERY if self._is_notified else 0.0)
        return True

    async def get_run(self, run_id: str) -> RunRow | None:
        return await self._run(self._searches.get_run, run_id)

    async def get_runs(self, run_ids: Collection[str]) -> tuple[RunRow, ...]:
        return await self._run(self._searches.get_runs, run_ids)

    async def get_thread(self, thread_id: str) -> RunThreadRow | None:
        return await self._run(self._searches.get_thread, thread_id)

    async def queued(self, *, routes: Collection[str] = (), limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        return await self._run(self._searches.queued, routes, limit)

    async def due(self, *, limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        return await self._run(self._searches.due, self._clock(), limit)

    async def active(self, *, limit: int = PAGE) -> tuple[ActiveThread, ...]:
        return await self._run(self._searches.active, limit)

    async def find_runs(self, query: RunQuery, *, after: RowPosition | None, limit: int) -> Sequence[RunRow]:
        return await self._run(self._searches.find_runs, query, after, limit)

    async def find_threads(
        self, query: ThreadQuery, *, after: RowPosition | None, limit: int
    ) -> Sequence[RunThreadRow]:
        return await self._run(self._searches.find_threads, query, after, limit)

    async def count_runs(self, query: RunQuery) -> int:
        return await self._run(self._searches.count_runs, query)

    async def count_threads(self, query: ThreadQuery) -> int:
        return await self._run(self._searches.count_threads, query)
