"""Acquire a run's lease on its thread, renew the lease while the run lasts, and release it at the end.

All graphs of a run share the lease: the root graph and its subgraphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import anyio
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import CheckpointError, StorageError, StorageReplacedError, ThreadBusyError, annotate
from checkpoint_savers.lease import acquire, release
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import CheckpointId, Commit, EventRow, Header, Lease, Owner, TaskRecord, Waiter
from checkpoint_savers.scopes import is_done

from ..._message_ids import TASK
from ...types import Durability, OnConflict
from ..observing.error_text import with_notes
from ..platform.companions import run_with_companion, run_with_delayed_companion
from ..platform.environment import Environment, SystemEnvironment
from ..platform.event_loops import loop, wait_out
from .shielded_task import BegunCommit, ShieldedTask, ShieldedWork
from .spending import Amounts, SpentBy

T = TypeVar("T")


def _ignore(commit: Commit) -> None:
    """The default `stored` callback of `ThreadLease.commit`."""


def _explain_nothing(error: CheckpointError, commit: Commit) -> None:
    """The default `explain` callback of `ThreadLease.commit`."""


def _scope_in_node(lease: Lease) -> str:
    """Return the scope of task ids for a thread that code of a node begins.

    The ids of messages are derived from task ids. A node may call an agent on an empty thread of the same name each
    time, in a new saver or after a deletion, and return its messages to the outer graph. With equal ids, the outer
    graph's `add_messages` would replace the messages of the earlier call.
    """
    return f"{lease.thread_id} {lease.owner.run_id}"


class ThreadLease:
    """A run's lease on its thread. Use it in `async with`, which releases the lease.

    Attributes:
        token: the lease that every write passes to the saver.
        durability: when supersteps are stored.
        metadata: entries that the next commit adds to the thread's own metadata, unless it has the keys; empty after
            that commit.
        duration: seconds until a renewed lease lapses.
        failures: the error of the first failed transaction, as a tuple of one; empty if none has failed. After a
            failure nothing is written and no node starts.
        fresh: the thread was empty when the lease was acquired.
        scope: the first part of the scope of task ids: the thread's id. For a thread that a node begins, also this
            lease's own id; see `_scope_in_node`.
        released: the lease was released, by the last commit or at the end of `async with`.
        outlives_commit: the last commit does not release the lease, because the run still has to prune its thread.
        tips: the newest checkpoint of each subgraph that keeps its state from call to call, by namespace, on this
            run's branch.
        moved_tips: the entries of `tips` that changed since the root graph's last commit.
        visited: the namespaces that this run has written.
        spent_in_subgraphs: amounts spent by subgraphs since they were called, until the outer graph counts them as the
            calling task's.
        askers: the tasks whose result depends on the answer to a question, by question id: the task that asked, and
            the tasks that called it. For all recorded questions of the root graph's open superstep.
        earlier_graphs: the newest checkpoints that earlier runs made in the root's open superstep, by the subgraph's
            namespace.
        refused: the ids of the questions whose answers this run has refused, because they do not fit.
        kept_graphs: the last run of each subgraph that keeps its state, by namespace: the outer checkpoint and the
            task that ran it, and whether it is still running.
        ids: makes the checkpoint ids of all namespaces of the thread.
        event_listeners: called with event rows once they are stored; empty if the run stores no events.
        loop: the operations of the event loop.
    """

    # Replaced on the first use, which few runs have.
    refused: frozenset[str] = frozenset()
    earlier_graphs: Mapping[str, Header] = MappingProxyType({})

    def __init__(
        self, saver: BaseCheckpointSaver, environment: Environment, lease: Lease, durability: Durability = "sync"
    ) -> None:
        self.saver = saver
        self.environment = environment
        self.token = lease
        self.durability: Durability = durability
        self.metadata: dict[str, Any] = {}
        self.duration = saver.lease_seconds
        self.failures: tuple[BaseException, ...] = ()
        self.ids = CheckpointIds(environment, lease.newest)
        self.fresh = not self.ids.begun
        self.scope = _scope_in_node(lease) if self.fresh and TASK.get() is not None else lease.thread_id
        self.released = False
        self.outlives_commit = False
        self.tips: dict[str, CheckpointId] = {}
        self.moved_tips: dict[str, CheckpointId] = {}
        self.visited: set[str] = set()
        self.spent_in_subgraphs: dict[SpentBy, Amounts] = {}
        self.askers: dict[str, tuple[str, ...]] = {}
        self.kept_graphs: dict[str, tuple[tuple[str | None, str], bool]] = {}
        self.event_listeners: tuple[Callable[[Sequence[EventRow]], None], ...] = ()
        self.loop = loop()
        self._clock = _clock_of(saver, environment)
        self._started: tuple[ShieldedWork, ...] = ()

    @classmethod
    async def acquire(
        cls,
        saver: BaseCheckpointSaver,
        environment: Environment,
        thread_id: str,
        on_conflict: OnConflict,
        durability: Durability = "sync",
        *,
        yields_first: bool = True,
    ) -> ThreadLease:
        """Acquire a thread's lease for one run.

        Args:
            saver: stores the thread.
            environment: the run's clock, ids and randomness.
            thread_id: the thread.
            on_conflict: "reject" raises if another run owns the lease; "wait" waits for its release.
            durability: when supersteps are stored.
            yields_first: True to yield to the event loop first. Otherwise, with a saver that never waits, a loop of
                edits would block all other tasks and could not be cancelled. False if the caller always yields.

        Raises:
            ThreadBusyError: another run owns the lease, and `on_conflict` is "reject".
            StorageError: the saver failed.
        """
        if yields_first:  # before the lease is acquired: a cancellation then leaves no lease to release
            await loop().turn()
        # A new id and not the run's: callers may choose equal ids for two runs, and two owners must never have one id.
        return cls(
            saver,
            environment,
            await _acquire(saver, environment, thread_id, environment.new_id(), on_conflict),
            durability,
        )

    @property
    def thread_id(self) -> str:
        return self.token.thread_id

    def require_storage(self) -> None:
        """Raise the error of the run's failed transaction, if one has failed."""
        for error in self.failures:
            raise error

    def move_tip(self, ns: str, tip: CheckpointId) -> None:
        """Note the newest checkpoint of a subgraph that keeps its state from call to call.

        The root graph's next commit stores it.
        """
        self.tips[ns] = self.moved_tips[ns] = tip

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all transactions that were started, and release the lease."""
        # A transaction that is still in progress when the lease is released would be refused, although the run has
        # reported it as begun. New ones may start while this waits, hence the loop.
        try:
            while running := [task.ended for task in self._started if not task.ended.is_set()]:
                await wait_out(*running)
        finally:
            await self._release_once(error)

    async def _release_once(self, error: BaseException | None) -> None:
        """Release the lease. If that fails while `error` propagates, the failure becomes its note."""
        if self.released:
            return
        self.released = True
        try:
            # In a task of its own: anyio's shields do not stop asyncio's `Task.cancel()`, which would leave the thread
            # leased until the lease lapses.
            await self.start(partial(self._release, stores_metadata=error is None)).wait_out()
        except CheckpointError as second:
            if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            annotate(error, f"and its lease could not be released: {with_notes(second)}")

    async def _release(self, *, stores_metadata: bool) -> None:
        """Release the lease.

        Args:
            stores_metadata: first store the thread metadata, if the run has recorded something but committed nothing.
        """
        if not stores_metadata or not self.metadata or self.failures or not self.ids.begun:
            await self.saver.release(self.token)
            return
        try:
            await self.commit(Commit(rows=(), expected_head=None, expires_at=self.expiry(), releases=True))
        except ThreadBusyError:
            return  # the lease was lost, so there is nothing to release
        except CheckpointError:
            with contextlib.suppress(CheckpointError):  # the first is the one to report
                await self.saver.release(self.token)
            raise

    def keep_alive_during(self, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Run `work` and renew the lease meanwhile. The work's error is raised as it is, in no exception group."""
        # Three renewals per lease: two may fail or be late before the lease lapses.
        return run_with_delayed_companion(
            self.environment, self.duration / 3, self._renew, work, is_on_asyncio=self.loop.is_asyncio
        )

    async def _renew(self) -> None:
        while True:
            try:
                await self.saver.renew(self.token, expires_at=self.expiry())
            except ThreadBusyError:
                return  # the lease was lost: the next commit is refused, and raises the error that reports it
            except StorageReplacedError as error:
                self.fail(error)
                return
            except StorageError:
                pass  # may pass before the lease lapses; if it lasts, the next commit raises it
            except Exception as error:
                self.fail(error)
                return
            await self.environment.sleep(self.duration / 3)

    def start(self, work: Callable[[], Awaitable[None]]) -> ShieldedWork:
        """Start work that no cancellation of the run stops. The run waits for it before it releases the lease."""
        return self._wait_for(ShieldedTask(self.loop, work))

    def _wait_for(self, work: ShieldedWork) -> ShieldedWork:
        """Have the end of `async with` wait for this work, too."""
        # Ended work is dropped here, so that a long run does not collect one object per superstep.
        self._started = (*[each for each in self._started if not each.ended.is_set()], work)
        return work

    def begin(self, commit: Commit, on_end: Callable[[Commit, BaseException | None], None]) -> ShieldedWork:
        """Hand a transaction to a saver that can store it without a caller that waits. See `SaverPort.begins_commits`.

        The run waits for it before it releases the lease.

        Args:
            commit: the transaction.
            on_end: called when the transaction is stored, or with its error, which is noted by then.
        """
        if self.metadata:
            commit, self.metadata = replace(commit, metadata=self.metadata), {}

        def begin(waiter: Waiter) -> Callable[[], None]:
            self.require_storage()
            return self.saver.begin_commit(self.token, commit, waiter)

        def end(error: BaseException | None) -> None:
            if error is not None:
                # At once: no task waits for this transaction now, and no node may start. It is no cancellation, which
                # `fail` would look for: the saver's own thread has the transaction.
                self.failures = self.failures or (error,)
            on_end(commit, error)

        return self._wait_for(BegunCommit(self.loop, begin, end))

    async def commit(
        self,
        commit: Commit,
        stored: Callable[[Commit], None] = _ignore,
        explain: Callable[[CheckpointError, Commit], None] = _explain_nothing,
    ) -> None:
        """Store a transaction. If an earlier transaction of the run has failed, raise its error instead.

        A transaction that has begun is finished even if the run is cancelled.

        Args:
            commit: the transaction.
            stored: called when the transaction is stored.
            explain: called with a `CheckpointError` and the transaction before the error is raised, to add a note.

        Raises:
            CheckpointError: this transaction or an earlier one of the run failed.
        """
        try:
            if self.failures:
                raise self.failures[0]
            if self.metadata:
                commit, self.metadata = replace(commit, metadata=self.metadata), {}
            await (self.saver.commit if self.saver.commit_is_shielded else self._shielded_commit)(self.token, commit)
        except BaseException as error:
            if not is_done(error):
                self.fail(error)
                if isinstance(error, CheckpointError):
                    explain(error, commit)
                raise
            # A native cancellation arrived, and the transaction is stored all the same. Without the callback the next
            # transaction would expect a head that is not the head any more.
            stored(commit)
            raise
        stored(commit)

    async def _shielded_commit(self, token: Lease, commit: Commit) -> None:
        with anyio.CancelScope(shield=True):
            await self.saver.commit(token, commit)

    async def record(self, records: Sequence[TaskRecord]) -> None:
        """Store task records without a checkpoint. Raises and is shielded as `commit`."""
        self.require_storage()
        try:
            with anyio.CancelScope(shield=True):
                await self.saver.record(self.token, records, expires_at=self.expiry())
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Note that storage has failed: nothing is written and no node starts after it.

        Storage errors are never retried and never reach error handlers.
        """
        # After a cancellation the transaction was stored, or the run ends in any case.
        if not isinstance(error, anyio.get_cancelled_exc_class()):
            self.failures = self.failures or (error,)

    def expiry(self) -> float:
        """Return the time at which a lease renewed now lapses, in unix seconds."""
        return self._clock() + self.duration


_TICK_MASK = (1 << 60) - 1  # the bits of `_ticks`: 48 of milliseconds, 12 of their fraction


class CheckpointIds:
    """Makes the checkpoint ids of one thread, each greater than the last, even if the clock goes back.

    An id is a UUID of version 7: 48 bits of milliseconds, 12 bits of their fraction, the rest random. So ids sort by
    creation, also as strings. If the clock has not passed the last id, the next id is the last one plus one tick.

    Source: RFC 9562, 5.7 and 6.2 (method 3).

    Args:
        environment: the clock and the random bits.
        after: the newest id of the thread; None if it has none.
    """

    def __init__(self, environment: Environment, after: CheckpointId | None) -> None:
        self._ticks = -1 if after is None else _ticks_of(after)  # 1/4096 ms, of the last id
        # The ids of one millisecond differ in three digits. `_format` has the other digits for the millisecond `_ms`: a
        # run often makes several ids in one millisecond.
        self._ms, self._format = -1, ""
        # Random bits once per owner instead of once per id: ids of one owner differ in their ticks, and ids of two
        # owners of a thread in these bits.
        tail = f"{0b10 << 62 | environment.entropy():016x}"
        self._tail = f"-{tail[:4]}-{tail[4:]}"

    @property
    def begun(self) -> bool:
        """Whether the thread has a checkpoint id, or one was made for it."""
        return self._ticks >= 0

    def next(self, now: float) -> CheckpointId:
        """Return a new id.

        Args:
            now: unix seconds.
        """
        ticks = int(now * 4_096_000)
        if ticks <= self._ticks:
            ticks = self._ticks + 1
        self._ticks = ticks = ticks & _TICK_MASK
        ms = ticks >> 12
        if ms != self._ms:
            text = f"{ms:012x}"
            self._ms, self._format = ms, f"{text[:8]}-{text[8:]}-7%03x{self._tail}"
        return CheckpointId(self._format % (ticks & 0xFFF))


def _ticks_of(checkpoint_id: CheckpointId) -> int:
    return int(checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18], 16)


async def _acquire(
    saver: BaseCheckpointSaver, environment: Environment, thread_id: str, owner_id: str, on_conflict: OnConflict
) -> Lease:
    owner = this_process(owner_id)
    try:
        return await _acquire_once(saver, environment, thread_id, owner)
    except ThreadBusyError:
        if on_conflict == "reject":
            raise
    # A release by another process may not be announced here, so waiters also poll: every 20 ms at first, at most one
    # second apart later, with jitter, so that many waiters do not try at the same moment.
    pause = 0.02
    while True:
        for lease in await _acquire_or_pause(
            saver, environment, thread_id, owner, pause * (0.5 + environment.jitter())
        ):
            return lease
        pause = min(pause * 1.5, 1.0)


async def _acquire_or_pause(
    saver: BaseCheckpointSaver, environment: Environment, thread_id: str, owner: Owner, pause: float
) -> Sequence[Lease]:
    """Try to acquire the lease. If the thread is busy, wait for a release, or for at most `pause` seconds.

    Returns:
        The lease, as a sequence of one; empty if another owner has it.
    """
    taken: list[Lease] = []
    pause_scope = anyio.CancelScope()

    async def wait_for_release() -> None:
        await saver.wait_for_release(thread_id)
        pause_scope.cancel()

    async def attempt() -> None:
        with contextlib.suppress(ThreadBusyError):
            taken.append(await _acquire_once(saver, environment, thread_id, owner))
            return
        with pause_scope:
            await environment.sleep(pause)

    try:
        # Subscribe before trying: otherwise a release between the two is missed.
        await run_with_companion(wait_for_release, attempt)
    except BaseException:
        # Cancelled after the lease was acquired: without the release the thread would be busy until the lease lapses.
        for lease in taken:
            await release(saver, lease)
        raise
    return taken


def _clock_of(saver: BaseCheckpointSaver, environment: Environment) -> Callable[[], float]:
    """Return the function that returns the time by which leases expire, in unix seconds."""
    # By the saver's clock, which is the same for all machines that share a database: theirs may differ by minutes. An
    # environment that has a clock of its own, as in a simulation, decides when leases lapse.
    clock: object = type(environment).now
    return saver.clock if clock is SystemEnvironment.now else environment.now


async def _acquire_once(saver: BaseCheckpointSaver, environment: Environment, thread_id: str, owner: Owner) -> Lease:
    now = _clock_of(saver, environment)()
    return await acquire(saver, thread_id, owner, now=now, expires_at=now + saver.lease_seconds)
