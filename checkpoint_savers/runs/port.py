"""`RunStore`: the port of accepted runs. A saver that has one stores runs and threads in one database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from ..errors import RunNotFoundError
from ..records import Commit, Lease, Owner
from . import decisions
from .changes import TOPICS, ChangeSignal, ThreadSignals, Topic
from .decisions import Changes, Found, RunOutcome, StartedRun, TakenRun, WantedLease
from .queries import RUN_ORDER, Page, RowPosition, RunQuery, ThreadQuery, page_of, read_cursor, run_position
from .rows import CancelAction, RunRequest, RunRow, RunThreadRow

T = TypeVar("T")

Decide: TypeAlias = Callable[[Found], Changes[T]]

PAGE = 100
"""Number of rows that a listing returns at most, by default."""


class ActiveThread(NamedTuple):
    """A thread on which a worker works, or worked until it died.

    Attributes:
        thread: its row.
        owner: the owner of its lease; None if the lease was released.
        expires_at: when that lease expires, in unix seconds; 0 without an owner.
    """

    thread: RunThreadRow
    owner: Owner | None
    expires_at: float


class RunStore(ABC):
    """Stores the runs that a service has accepted, on the connection of a saver.

    An implementation has one writing method, `transact`, and a few listings. What happens to runs is decided by the
    functions of `decisions.py`, the same for all databases.

    A thread's metadata are those of the saver's thread, and so is its end: deleting or erasing a thread deletes its
    runs and its row here in the same transaction.

    Attributes:
        look_every: seconds after which `wait_for_change` looks whether another process has changed something.
        look_at_thread_every: the same for `wait_for_thread`.
    """

    look_every: ClassVar[float] = 0.25
    look_at_thread_every: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self.changes = ChangeSignal()
        self.watched = ThreadSignals()

    @abstractmethod
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
        """Change the runs of a thread in one transaction.

        It locks the thread, reads its rows, calls `decide`, and writes the changes. They are durable when it returns.

        If the changes have a row or metadata of a thread that the saver does not know, they make the saver's thread,
        too: with epoch 0, and without an owner or a checkpoint. A thread with a row here remains when a lease on it is
        released.

        An implementation calls `self.notify(thread_id, topics)` after each transaction that wrote rows of runs or
        threads, with its `topics_of`, and without topics after one that deleted them.

        Args:
            thread_id: the thread.
            decide: the decision. It may be called in another thread, and again if the transaction is repeated.
            run_id: a run that the decision needs.
            idempotency_key: or the key of that run; ignored if there is none.
            lease: compared in the transaction. It is released there, too, if it is not that of an active thread
                afterwards: the work under it is done.
            commit: a superstep to store in the same transaction, as the saver's `commit` does. It needs `lease`, and
                may release it.
            wants: a lease to acquire, in place of `lease`. `Found.lease` is this lease; or None if another one is live
                and this one is not required. It is acquired only if the thread is active under it afterwards.
            is_new: True if the caller has just made the thread's id, so that nothing is stored of the thread. An
                implementation may then decide without reading. If the thread exists all the same, it must store nothing
                by that decision, read the rows, and decide again.

        Returns:
            The result of the decision.

        Raises:
            ThreadBusyError: another lease is live, and `wants` is required; or, with `lost=True`: the lease is no
                longer held, or the commit's head is not the expected one. Nothing was written.
            StorageError: the database failed, or a row of the commit or a new run's id is stored already. Nothing was
                written.
            ValueError: a commit without a lease.
        """

    @abstractmethod
    async def get_run(self, run_id: str) -> RunRow | None:
        """Return a run; None if there is none with this id. Rolled back ones are returned, too."""

    @abstractmethod
    async def get_runs(self, run_ids: Collection[str]) -> tuple[RunRow, ...]:
        """Return those of these runs that there are, in any order. Rolled back ones are returned, too."""

    @abstractmethod
    async def get_thread(self, thread_id: str) -> RunThreadRow | None:
        """Return the row of a thread; None if no run of it was ever accepted."""

    @abstractmethod
    async def queued(self, *, routes: Collection[str] = (), limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        """List threads that wait for a worker: by priority, and then those that have waited longest.

        Args:
            routes: only threads with one of these routes; empty for all.
            limit: maximum number of threads.
        """

    @abstractmethod
    async def due(self, *, limit: int = PAGE) -> tuple[RunThreadRow, ...]:
        """List threads without an activation whose `wake_at` has come, the longest due ones first."""

    @abstractmethod
    async def active(self, *, limit: int = PAGE) -> tuple[ActiveThread, ...]:
        """List active threads, the longest active ones first, with the owners of their leases."""

    @abstractmethod
    async def find_runs(self, query: RunQuery, *, after: RowPosition | None, limit: int) -> Sequence[RunRow]:
        """Return up to `limit` runs, newest first, whose positions are smaller than `after`. See `search_runs`."""

    @abstractmethod
    async def find_threads(
        self, query: ThreadQuery, *, after: RowPosition | None, limit: int
    ) -> Sequence[RunThreadRow]:
        """Return up to `limit` threads behind `after`, in the query's order. See `search_threads`."""

    @abstractmethod
    async def count_runs(self, query: RunQuery) -> int:
        """Return the number of runs that `search_runs` finds on all pages."""

    @abstractmethod
    async def count_threads(self, query: ThreadQuery) -> int:
        """Return the number of threads that `search_threads` finds on all pages."""

    async def search_runs(self, query: RunQuery, *, limit: int = PAGE, after: str | None = None) -> Page[RunRow]:
        """Return a page of runs, newest first, by the time at which they were accepted and then by id.

        Args:
            query: which runs.
            limit: maximum number of runs.
            after: `next` of the page before; None for the first page.

        Raises:
            ValueError: `after` is malformed.
        """
        rows = await self.find_runs(query, after=read_cursor(after, RUN_ORDER), limit=limit + 1)
        return page_of(rows, limit, RUN_ORDER, run_position)

    async def search_threads(
        self, query: ThreadQuery, *, limit: int = PAGE, after: str | None = None
    ) -> Page[RunThreadRow]:
        """Return a page of threads, in the query's order.

        Args:
            query: which threads, and their order.
            limit: maximum number of threads.
            after: `next` of the page before, of the same order; None for the first page.

        Raises:
            ValueError: `after` is malformed, or of another order.
        """
        rows = await self.find_threads(query, after=read_cursor(after, query.order), limit=limit + 1)
        return page_of(rows, limit, query.order, query.position)

    async def wait_for_change(self, seen: int = 0, topic: Topic | None = None) -> int:
        """Wait until runs or threads may have changed, in any process.

        Callers look at what they wait for between two calls, and pass the number that the call before returned: no
        change is missed then. The first call, with 0, returns at once.

        Args:
            seen: the number that was returned before, for the same topic; 0 at first.
            topic: what the caller looks for; None for any change.

        Returns:
            Another number.
        """
        while (number := await self.changes.wait(seen, self.look_every, topic)) == seen:
            await self._look_elsewhere()
        return number

    @contextmanager
    def watch(self, thread_id: str) -> Generator[ChangeSignal, None, None]:
        """Count the changes of a thread during a block: of its runs, and of its events, in any process.

        Args:
            thread_id: the thread.

        Yields:
            A signal for `wait_for_thread`.
        """
        signal = self.watched.add(thread_id)
        try:
            yield signal
        finally:
            self.watched.remove(thread_id, signal)

    async def wait_for_thread(self, signal: ChangeSignal, seen: int = 0) -> int:
        """Wait until a watched thread may have changed, in any process.

        Args:
            signal: what `watch` has yielded.
            seen: the number that was returned before; 0 at first, which returns at once.

        Returns:
            Another number. Look at the thread between two calls: no change is missed then.
        """
        while (number := await signal.wait(seen, self.look_at_thread_every)) == seen:
            await self._look_elsewhere()
        return number

    async def _look_elsewhere(self) -> None:
        if await self.has_changed_elsewhere():
            self.changes.notify()
            self.watched.notify()

    def notify(self, thread_id: str, topics: tuple[Topic, ...] = TOPICS) -> None:
        """Notify those who wait for changes of runs, or for this thread, in this process now and in others soon.

        Args:
            thread_id: the thread whose runs have changed.
            topics: what has changed; all by default.
        """
        self.changes.notify(topics)
        self.announce(thread_id)

    def announce(self, thread_id: str) -> None:
        """Notify those who wait for a thread: events of it were stored, and no row of runs has changed.

        Stores whose `has_changed_elsewhere` does not find that by itself also notify other processes.

        Args:
            thread_id: the thread.
        """
        self.watched.notify(thread_id)

    async def has_changed_elsewhere(self) -> bool:
        """Return True if another process may have changed something since the last call. The default assumes so."""
        return True

    async def start(
        self,
        thread_id: str,
        request: RunRequest,
        *,
        metadata: dict[str, Any] | None = None,
        route: str = "",
        is_new: bool = False,
    ) -> RunRow:
        """Accept a run. See `decisions.start`, also for the errors.

        Args:
            thread_id: its thread, which may be new.
            request: what is asked for.
            metadata: for the thread: keys that its metadata lacks are set.
            route: the thread's route for runs of the request's assistant; "" to keep the one that is stored.
            is_new: True if the caller has just made the thread's id; see `transact`.

        Returns:
            The run, or the first one with the same idempotency key.
        """
        key = request.idempotency_key
        decide = partial(decisions.start, request=request, metadata=metadata, route=route)
        return await self.transact(thread_id, decide, idempotency_key=key, is_new=is_new)

    async def start_and_take(
        self,
        thread_id: str,
        request: RunRequest,
        wants: WantedLease,
        *,
        worker: str,
        metadata: dict[str, Any] | None = None,
        route: str = "",
        is_new: bool = False,
    ) -> StartedRun:
        """Accept a run, and take it in the same transaction if its thread has no other open run.

        See `decisions.start_and_take`, also for the errors.

        Args:
            thread_id, request, metadata, route, is_new: as for `start`.
            wants: the lease. Its `required` is ignored: it is always False here.
            worker: the id of the worker that takes the run.

        Returns:
            The run. If it was not taken, it waits for its time or for a worker.
        """
        decide = partial(decisions.start_and_take, request=request, metadata=metadata, route=route, worker=worker)
        wants = wants._replace(required=False)
        key = request.idempotency_key
        return await self.transact(thread_id, decide, idempotency_key=key, wants=wants, is_new=is_new)

    async def cancel(self, run_id: str, *, action: CancelAction = "interrupt", reason: str = "user") -> RunRow:
        """Cancel a run, or ask its worker to do so. See `decisions.cancel`, also for the errors.

        Args:
            run_id: the run.
            action: what to cancel.
            reason: who or what cancels it.

        Returns:
            The run: `cancelled`, or open and with a request.
        """
        run = await self.get_run(run_id)
        if run is None:
            raise RunNotFoundError(run_id)
        decide = partial(decisions.cancel, run_id=run_id, action=action, reason=reason)
        return await self.transact(run.thread_id, decide, run_id=run_id)

    async def follow(self, run: RunRow, seconds: float) -> None:
        """Ask the worker of a run to store events of its running superstep early. See `decisions.follow`.

        Args:
            run: the run.
            seconds: how long.
        """
        decide = partial(decisions.follow, seconds=seconds)
        await self.transact(run.thread_id, decide, run_id=run.run_id)

    async def acquire_and_take(
        self, thread_id: str, activation_no: int, wants: WantedLease, *, worker: str
    ) -> TakenRun | None:
        """Acquire the lease of a queued thread and begin to work on it, in one transaction. See `decisions.take`.

        Args:
            thread_id: the thread.
            activation_no: the number that the wake-up carries.
            wants: the lease.
            worker: the worker's id.

        Returns:
            The run to execute, and the lease. None if there is nothing to do: no lease was acquired.

        Raises:
            ThreadBusyError: another lease is live.
        """
        decide = partial(decisions.acquire_and_take, activation_no=activation_no, worker=worker)
        return await self.transact(thread_id, decide, wants=wants)

    async def begin(self, lease: Lease, run_id: str, commit: Commit | None = None, *, first_event: str = "") -> None:
        """Note that a run's input is stored, and that it makes progress. See `decisions.begin`.

        Args:
            lease: the lease under which it was taken.
            run_id: the run.
            commit: the superstep with the input, which is stored in the same transaction.
            first_event: the cursor before the run's first event.
        """
        decide = partial(decisions.begin, epoch=lease.epoch, first_event=first_event)
        await self.transact(lease.thread_id, decide, run_id=run_id, lease=lease, commit=commit)

    async def end(self, lease: Lease, run_id: str, outcome: RunOutcome, commit: Commit | None = None) -> bool:
        """End a run, and release the lease. See `decisions.end`.

        Args:
            lease: the lease under which it was taken.
            run_id: the run.
            outcome: how it ended.
            commit: its last superstep, or the questions for which it pauses, stored in the same transaction. Not for a
                run that ends as cancelled.

        Returns:
            False if the run's checkpoints are to be deleted first; the lease is held still.
        """
        decide = partial(decisions.end, outcome=outcome, epoch=lease.epoch)
        return await self.transact(lease.thread_id, decide, run_id=run_id, lease=lease, commit=commit)

    async def give_back(self, lease: Lease, run_id: str, *, last_event: str = "", route: str = "") -> None:
        """Return a run that was stopped in order, and release the lease. See `decisions.give_back`.

        Args:
            lease: the lease under which it was taken.
            run_id: the run.
            last_event: a cursor after the run's last event so far.
            route: the thread's route for this run; "" to keep the one that is stored.
        """
        decide = partial(decisions.give_back, epoch=lease.epoch, last_event=last_event, route=route)
        await self.transact(lease.thread_id, decide, run_id=run_id, lease=lease)

    async def requeue(self, seen: RunThreadRow, *, route: str = "") -> bool:
        """Queue a thread whose worker is gone, whose wake-up is lost, or which is due. See `decisions.requeue`.

        Args:
            seen: its row, as one of the listings returned it.
            route: its route from now on; "" to keep the one that is stored.

        Returns:
            False if it has changed since, or if nothing of it is due.
        """
        return await self.transact(seen.thread_id, partial(decisions.requeue, seen=seen, route=route))


def check_commit(lease: Lease | None, commit: Commit | None) -> None:
    """Refuse a superstep without the lease that it needs.

    Args:
        lease: the lease that was passed to `transact`.
        commit: the superstep.

    Raises:
        ValueError: there is a commit and no lease.
    """
    if commit is not None and lease is None:
        raise ValueError("a commit is stored under a lease: pass lease=, too")


def topics_of(changes: Changes[Any]) -> tuple[Topic, ...]:
    """Return what a transaction changes.

    Args:
        changes: what it writes.
    """
    topics: list[Topic] = []
    if changes.thread is not None and changes.thread.activation == "queued":
        topics.append("queue")
    # Also when it has ended, so that the caller that waits for it is notified at once.
    if any(run.cancel is not None or (run.is_open and run.followed_until) for run in changes.runs):
        topics.append("cancel")
    if any(run.begun or not run.is_open for run in changes.runs):
        topics.append("run")
    if not topics and (changes.thread is not None or changes.runs):
        topics.append("other")
    return tuple(topics)


def ends_work(found: Found, changes: Changes[Any], lease: Lease) -> bool:
    """Return True if the work under a lease is done after a transaction, so that the lease is to be released.

    Args:
        found: the rows before it.
        changes: what it writes.
        lease: the lease.
    """
    thread = changes.thread or found.thread
    return thread is None or thread.activation != "active" or thread.epoch != lease.epoch
