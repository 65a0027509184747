"""Taking a thread's lease so that nobody loses track of it, for runs and for upkeep alike."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from .children import start_soon
from .owner import this_process
from .records import Lease, Owner
from .saver_port import SaverPort

LEASE_SECONDS = 30.0
"""How long a lease lasts after it was taken or renewed, when its process cannot be seen to be gone."""


async def acquire(saver: SaverPort, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
    """Acquire a thread's lease in a task of its own, so that a caller that is cancelled knows whether it has it and
    releases it.

    Args:
        now, expires_at: in unix seconds.

    Raises:
        ThreadBusyError: another lease is live.
        StorageError
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
    """Release a lease, however often the caller is cancelled meanwhile: else it would be kept until it lapses.

    Raises:
        StorageError
    """
    await run_to_completion(lambda: saver.release(lease))


async def run_to_completion(work: Callable[[], Awaitable[None]]) -> None:
    """Await work in a task of its own, to its end, in a cancelled scope too. A caller that is cancelled natively, any
    number of times, is so after that: a shield alone keeps off scopes, and no `Task.cancel()`."""
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
            except BaseException as error:  # which is to leave as it is, and in no group
                failure = error

    while not begun:  # `asyncio.run` cancels this task too, when its own has ended, and it may not have begun
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
    """A thread's lease, for upkeep: by the saver's clock. Use it in `async with`, which gives it up.

        async with Held(saver, "t") as held:
            await saver.rewrite(held.token, ...)

    Raises:
        ThreadBusyError: a run owns the thread, or somebody else who looks after it.
    """

    token: Lease

    def __init__(self, saver: SaverPort, thread_id: str) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._owner = this_process(f"upkeep {os.urandom(8).hex()}")
        self._until = 0.0

    async def __aenter__(self) -> Self:
        await self._acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        await release(self._saver, self.token)

    async def renew_if_due(self) -> None:
        """Renew the lease when a third of its time is over. To be called now and then where something takes long."""
        now = self._saver.clock()
        if now > self._until - LEASE_SECONDS * 2 / 3:
            await self._saver.renew(self.token, expires_at=now + LEASE_SECONDS)
            self._until = now + LEASE_SECONDS

    async def advance_epoch(self, epoch: int) -> None:
        """Take the lease again until its epoch is no smaller than one given: events that are stored under that one come
        before those of the thread's next runs."""
        while self.token.epoch < epoch:
            await self._acquire()

    async def _acquire(self) -> None:
        now = self._saver.clock()
        until = now + LEASE_SECONDS
        self.token = await acquire(self._saver, self._thread_id, self._owner, now=now, expires_at=until)
        self._until = until
