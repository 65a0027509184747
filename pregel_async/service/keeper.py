"""Queue threads again whose worker is gone, and threads that have become due.

Every worker has a keeper, and there is no leader: each change is a transaction that does nothing if the thread has
changed since it was seen.
"""

from __future__ import annotations

import logging

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.owner import is_live
from checkpoint_savers.runs.port import RunStore

from .._runtime.platform.environment import Environment
from .._runtime.platform.looking import look_repeatedly
from .dispatch.port import Dispatcher

log = logging.getLogger("pregel_async.service")

LOOK_EVERY = 1.0
"""Seconds between two looks, at most. A worker that was killed on the same machine is noticed at the next look; on
another machine, when its lease has lapsed."""

MAX_ACTIVE = 100_000
"""Number of active threads that a look reads at most: more than all workers together have slots."""


class Keeper:
    """Looks after the threads of a service.

    Args:
        saver: has the leases of the threads.
        runs: has their runs.
        environment: the clock.
        dispatcher: knows which queued threads no worker will be brought.
    """

    def __init__(
        self, saver: BaseCheckpointSaver, runs: RunStore, environment: Environment, dispatcher: Dispatcher
    ) -> None:
        self._saver = saver
        self._runs = runs
        self._environment = environment
        self._dispatcher = dispatcher

    async def keep(self) -> None:
        """Look again and again, until this is cancelled."""
        await look_repeatedly(self.look, self._environment, min(self._saver.lease_seconds / 3, LOOK_EVERY), log)

    async def look(self) -> int:
        """Queue all threads that a worker is to take.

        Returns:
            The number of threads that were queued.
        """
        queued = 0
        for active in await self._runs.active(limit=MAX_ACTIVE):
            owner = active.owner
            if owner is None or not is_live(owner, active.expires_at, now=self._saver.clock()):
                queued += await self._runs.requeue(active.thread)
        for thread in await self._runs.due():
            queued += await self._runs.requeue(thread)
        long_ago = self._saver.clock() - self._saver.lease_seconds / 3
        waiting = [thread for thread in await self._runs.queued() if thread.activation_at < long_ago]
        for thread in await self._dispatcher.unannounced(waiting):
            queued += await self._runs.requeue(thread)
        return queued
