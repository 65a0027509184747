"""Acquire and release a thread's lease without leaking it on cancellation, for runs and for upkeep."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

import anyio
import anyio.lowlevel

from .children import start_soon
from .errors import CorruptCheckpointError
from .owner import this_process
from .records import Lease, Owner, is_checkpoint_id
from .saver_port import SaverPort


async def acquire(saver: SaverPort, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
    """Acquire a thread's lease, and release it again if the caller is cancelled meanwhile.

    Args:
        saver: stores the thread.
        thread_id: the thread.
        owner: the run that acquires the lease.
        now: the current time, in unix seconds.
        expires_at: when the lease expires, in unix seconds.

    Returns:
        The lease.

    Raises:
        ThreadBusyError: another lease is live.
        CorruptCheckpointError: the id of the thread's newest checkpoint is damaged.
        StorageError: the database failed.
    """
    # Fast path: most savers shield `acquire` themselves, and a task group with a child task costs as much as half a
    # superstep. Running the coroutine up to its first await here, and only the rest in a child task, would be wrong:
    # trio's waits and anyio's cancel scopes note which task they were entered in.
    acquire_from = saver.acquire if saver.lease_is_shielded else partial(_acquire_in_child, saver)
    lease = await acquire_from(thread_id, owner, now=now, expires_at=expires_at)
    # Checked here, for all savers: the next checkpoint ids are computed from this one, as numbers.
    if lease.newest is not None and not is_checkpoint_id(lease.newest):
        await release(saver, lease)
        raise CorruptCheckpointError(f"thread {thread_id!r}", f"its newest checkpoint is {lease.newest!r}, no id")
    return lease


async def _acquire_in_child(saver: SaverPort, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
    """Acquire a lease in a child task, which a cancellation of the caller does not interrupt.

    Without it, `acquire` of a saver that does not shield it could be cancelled after its transaction: the lease would
    be stored, and no caller would have it to release it.
    """
    lease: Lease | None = None

    async def do() -> None:
        nonlocal lease
        lease = await saver.acquire(thread_id, owner, now=now, expires_at=expires_at)

    try:
        await run_to_completion(do)
    except BaseException:
        if lease is not None:
            await release(saver, lease)
        raise
    assert lease is not None
    return lease


async def release(saver: SaverPort, lease: Lease) -> None:
    """Release a lease, even if the caller is cancelled meanwhile: otherwise it would block the thread until it expires.

    Args:
        saver: stores the thread.
        lease: the lease.

    Raises:
        StorageError: the database failed.
    """
    if saver.lease_is_shielded:  # the same fast path as in `acquire`
        await saver.release(lease)
    else:
        await run_to_completion(lambda: saver.release(lease))


async def run_to_completion(work: Callable[[], Awaitable[None]]) -> None:
    """Await work to its end, even in a cancelled scope. Raise the caller's cancellation, if any, afterwards.

    Args:
        work: returns the awaitable.
    """
    # The work runs in a task of its own: a shielded scope only blocks the cancellation of cancel scopes, and asyncio's
    # `Task.cancel()` would interrupt it.
    begun = False
    failure: BaseException | None = None
    cancelled: BaseException | None = None

    async def do() -> None:
        nonlocal begun, failure
        begun = True
        with anyio.CancelScope(shield=True):
            try:
                await work()
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # raised below: the task group would wrap it in an exception group
                failure = error

    # `asyncio.run` cancels all tasks that are left when its own has ended. A child task that is cancelled before it has
    # begun never runs, so it is started again.
    while not begun:
        try:
            async with anyio.create_task_group() as group:
                start_soon(group, do)
        except anyio.get_cancelled_exc_class() as error:
            if begun:
                raise
            cancelled = error
    if cancelled is not None:
        raise cancelled
    if failure is not None:
        raise failure


class UpkeepLease:
    """A thread's lease for upkeep, timed by the saver's clock. Use it in `async with`, which releases it.

        async with UpkeepLease(saver, "t") as lease:
            await saver.rewrite(lease.token, ...)

    Args:
        saver: stores the thread.
        thread_id: the thread.

    Attributes:
        token: the lease, for the saver's methods.

    Raises:
        ThreadBusyError: on entry: a run, or other upkeep, holds the thread.
    """

    token: Lease

    def __init__(self, saver: SaverPort, thread_id: str) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._owner = this_process(f"upkeep {os.urandom(8).hex()}")
        self._until = 0.0

    async def __aenter__(self) -> Self:
        # With a saver that never waits, a loop of upkeep would block all other tasks and could not be cancelled. Yield
        # before the lease is acquired: a cancellation then leaves no lease to release.
        await anyio.lowlevel.checkpoint()
        await self._acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        await release(self._saver, self.token)

    async def renew_if_due(self) -> None:
        """Renew the lease if a third of its time is over. Call it between the steps of long work."""
        now = self._saver.clock()
        seconds = self._saver.lease_seconds
        if now > self._until - seconds * 2 / 3:
            await self._saver.renew(self.token, expires_at=now + seconds)
            self._until = now + seconds

    async def advance_epoch(self, epoch: int) -> None:
        """Acquire the lease again until its epoch is at least a given one.

        Events that are stored under that epoch then come before those of the thread's next runs.

        Args:
            epoch: the smallest epoch to reach.
        """
        while self.token.epoch < epoch:
            await self._acquire()

    async def _acquire(self) -> None:
        now = self._saver.clock()
        until = now + self._saver.lease_seconds
        self.token = await acquire(self._saver, self._thread_id, self._owner, now=now, expires_at=until)
        self._until = until
