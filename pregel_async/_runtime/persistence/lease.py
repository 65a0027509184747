"""A run's hold on its thread: the lease, kept alive while the run goes on, and given up at its end.

All graphs of one run share it: the root graph's, and those that its nodes run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import CheckpointError, StorageError, StorageReplacedError, ThreadBusyError, annotate
from checkpoint_savers.lease import LEASE_SECONDS, acquire, release
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import CheckpointId, Commit, EventRow, Lease, Owner, TaskRecord
from checkpoint_savers.scopes import is_done

from ...types import Durability, OnConflict
from ..observing.error_text import with_notes
from ..platform.companions import run_with_companion, run_with_delayed_companion
from ..platform.environment import Environment
from ..platform.event_loops import loop, wait_out
from .shielded_task import ShieldedTask
from .spending import Amounts, SpentBy

T = TypeVar("T")

_NO_SHIELD = contextlib.nullcontext()


def _note_nothing(commit: Commit) -> None:
    """Where nothing depends on what a transaction stored."""


class ThreadLease:
    """A leased thread. Use it in `async with`, which gives it up.

    Attributes:
        lease: what every write shows to the saver.
        durability: when supersteps are stored.
        metadata: what the next commit gives the thread's own metadata, where they lack it; nothing once it has.
        lasts: seconds for which the lease is renewed.
        failures: what the first transaction raised that failed; empty while none has. Nothing is written after it, and
            no node is to start.
        fresh: the thread held nothing when its lease was acquired.
        released: the lease was given up, with the last commit.
        lingers: the lease is not given up with the last commit, as something is left to do then.
        tips: namespace -> the checkpoint at which the state of a subgraph stands that keeps it from call to call, on
            the branch that this run is on.
        moved: those of them that changed since the root graph's last commit.
        visited: the namespaces that this run has written.
        spent_inside: what graphs that nodes run have spent since they were called, until the graph around counts that
            as the node's.
        askers: question id -> the tasks whose result depends on the answer: the one that asked, and those that called
            it. Of all questions of the root graph's open superstep whose record says so.
        kept: by namespace of a subgraph that keeps its state from call to call: the checkpoint and the task that ran it
            last, and whether it is running.
        ids: makes the ids of the thread's checkpoints, of all namespaces.
        event_listeners: called with rows of events once they are stored; none where no events are kept.
    """

    def __init__(
        self, saver: BaseCheckpointSaver, environment: Environment, lease: Lease, durability: Durability = "sync"
    ) -> None:
        self.saver = saver
        self.environment = environment
        self.token = lease
        self.durability: Durability = durability
        self.metadata: dict[str, Any] = {}
        self.lasts = LEASE_SECONDS
        self.failures: tuple[BaseException, ...] = ()
        self.ids = CheckpointIds(environment, lease.newest)
        self.fresh = not self.ids.begun
        self.released = False
        self.lingers = False
        self.tips: dict[str, CheckpointId] = {}
        self.moved: dict[str, CheckpointId] = {}
        self.visited: set[str] = set()
        self.spent_inside: dict[SpentBy, Amounts] = {}
        self.askers: dict[str, tuple[str, ...]] = {}
        self.kept: dict[str, tuple[tuple[str | None, str], bool]] = {}
        self.event_listeners: tuple[Callable[[Sequence[EventRow]], None], ...] = ()
        self._loop = loop()
        self._begun: list[ShieldedTask] = []

    @classmethod
    async def acquire(
        cls,
        saver: BaseCheckpointSaver,
        environment: Environment,
        thread_id: str,
        on_conflict: OnConflict,
        durability: Durability = "sync",
    ) -> ThreadLease:
        """Acquire a thread's lease for one run.

        Raises:
            ThreadBusyError: another run owns it, and `on_conflict` is "reject".
            StorageError
        """
        # The caller may have chosen the run's id, and may choose it twice: what tells owners apart is made here.
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
        """Raise what a transaction of the run has raised, if one has failed."""
        for error in self.failures:
            raise error

    def move_tip(self, ns: str, tip: CheckpointId) -> None:
        """Note the newest checkpoint of a subgraph that keeps its state from call to call."""
        self.tips[ns] = self.moved[ns] = tip

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See what was begun to its end, and give the thread up."""
        try:
            while begun := [task.over for task in self._begun if not task.over.is_set()]:
                await wait_out(*begun)
        finally:
            await self._give_up(error)

    async def _give_up(self, error: BaseException | None) -> None:
        """What fails in that becomes a note of the error that is on its way, if there is one."""
        if self.released:
            return
        self.released = True
        try:
            # Apart: no shield keeps `Task.cancel()` off, and the thread would stay leased until the lease lapses.
            await self.start(partial(self._release, adds=error is None)).wait_out()
        except CheckpointError as second:
            if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            annotate(error, f"and its thread could not be given up: {with_notes(second)}")

    async def _release(self, *, adds: bool) -> None:
        """Release the lease.

        Args:
            adds: with metadata that are left for the thread, as the run has recorded something, and committed nothing.
        """
        if not adds or not self.metadata or self.failures or not self.ids.begun:
            await self.saver.release(self.token)
            return
        try:
            await self.commit(Commit(rows=(), expected_head=None, expires_at=self.expiry(), releases=True))
        except ThreadBusyError:
            return  # lost meanwhile: there is nothing to release
        except CheckpointError:
            with contextlib.suppress(CheckpointError):  # the first is the one to report
                await self.saver.release(self.token)
            raise

    def keep_alive_during(self, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Work while the lease is kept alive, however long it takes. The work's own error leaves as it is, in no
        group."""
        return run_with_delayed_companion(self.environment, LEASE_SECONDS / 3, self._renew, work)

    async def _renew(self) -> None:
        while True:
            try:
                await self.saver.renew(self.token, expires_at=self.expiry())
            except ThreadBusyError:
                return  # lost: the next commit is refused, and says so
            except StorageReplacedError as error:
                self.fail(error)
                return
            except StorageError:
                pass  # the next commit meets it too, if it lasts
            except Exception as error:
                self.fail(error)
                return
            await self.environment.sleep(LEASE_SECONDS / 3)

    def start(self, work: Callable[[], Awaitable[None]]) -> ShieldedTask:
        """Begin work that ends before the run does, whatever becomes of the run."""
        task = ShieldedTask(self._loop, work)
        self._begun = [one for one in self._begun if not one.over.is_set()]
        self._begun.append(task)
        return task

    async def commit(self, commit: Commit, stored: Callable[[Commit], None] = _note_nothing) -> None:
        """Store a transaction, unless one of the run's has failed: then raise what that raised. What is begun is
        finished, whatever the saver makes of a cancellation.

        Args:
            stored: called when the transaction is stored. A native cancellation that came meanwhile is raised after
                that: else the run's next transaction would be compared with a head that is not the head any more.
        """
        if self.failures:
            raise self.failures[0]
        if self.metadata:
            commit, self.metadata = replace(commit, metadata=self.metadata), {}
        try:
            with _NO_SHIELD if self.saver.commit_is_shielded else anyio.CancelScope(shield=True):
                await self.saver.commit(self.token, commit)
        except BaseException as error:
            if not is_done(error):
                self.fail(error)
                raise
            stored(commit)
            raise
        stored(commit)

    async def record(self, records: Sequence[TaskRecord]) -> None:
        """Store records of tasks. As `commit`."""
        self.require_storage()
        try:
            with anyio.CancelScope(shield=True):
                await self.saver.record(self.token, records, expires_at=self.expiry())
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Storage has failed: nothing is written any more, no node starts, and nothing is tried again or handled."""
        if not isinstance(error, anyio.get_cancelled_exc_class()):  # else it was stored, or the run ends anyhow
            self.failures = self.failures or (error,)

    def expiry(self) -> float:
        """When a lease that is renewed now lapses, in unix seconds."""
        return self.environment.now() + self.lasts


_COUNTED = (1 << 60) - 1  # 48 bits of milliseconds and 12 of their fraction


class CheckpointIds:
    """Makes the ids of one thread's checkpoints, each greater than the last, even when the clock goes back.

    An id is a UUID of version 7: 48 bits of milliseconds, 12 of their fraction, the rest random; so ids sort by
    creation, as strings too. If the clock is not past the last id, the next one counts on from there.

    The random bits are drawn once, not for each id: ids of one thread differ in what is counted, and those of two
    owners of a thread in their random bits.

    Source: RFC 9562, 5.7 and 6.2 (method 3).

    Args:
        after: the newest id of the thread; None if it has none.
    """

    def __init__(self, environment: Environment, after: CheckpointId | None) -> None:
        self._ticks = -1 if after is None else _ticks_of(after)  # 1/4096 ms, of the last id
        tail = f"{0b10 << 62 | environment.entropy():016x}"
        self._tail = f"-{tail[:4]}-{tail[4:]}"

    @property
    def begun(self) -> bool:
        """Whether the thread has an id, or was to get one."""
        return self._ticks >= 0

    def next(self, now: float) -> CheckpointId:
        """Return a new id.

        Args:
            now: unix seconds.
        """
        ticks = self._ticks = max(int(now * 4_096_000), self._ticks + 1) & _COUNTED
        text = f"{ticks:015x}"
        return CheckpointId(f"{text[:8]}-{text[8:12]}-7{text[12:]}{self._tail}")


def _ticks_of(given: CheckpointId) -> int:
    return int(given[:8] + given[9:13] + given[15:18], 16)


async def _acquire(
    saver: BaseCheckpointSaver, environment: Environment, thread_id: str, owner_id: str, on_conflict: OnConflict
) -> Lease:
    owner = this_process(owner_id)
    try:
        return await _acquire_once(saver, environment, thread_id, owner)
    except ThreadBusyError:
        if on_conflict == "reject":
            raise
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
    """Take the lease; or, when the thread is busy, wait until it may have been released, or for `pause` seconds.

    Returns:
        The lease; empty if another owner has it.
    """
    taken: list[Lease] = []
    asleep = anyio.CancelScope()

    async def wait_for_release() -> None:
        await saver.wait_for_release(thread_id)
        asleep.cancel()

    async def attempt() -> None:
        with contextlib.suppress(ThreadBusyError):
            taken.append(await _acquire_once(saver, environment, thread_id, owner))
            return
        with asleep:
            await environment.sleep(pause)

    try:
        # Subscribe before trying: else a release in between is missed.
        await run_with_companion(wait_for_release, attempt)
    except BaseException:
        for lease in taken:
            await release(saver, lease)
        raise
    return taken


async def _acquire_once(saver: BaseCheckpointSaver, environment: Environment, thread_id: str, owner: Owner) -> Lease:
    now = environment.now()
    return await acquire(saver, thread_id, owner, now=now, expires_at=now + LEASE_SECONDS)
