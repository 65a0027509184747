"""`RowDispatcher`: workers look at the rows of queued threads, whenever something may have changed."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection

import anyio

from checkpoint_savers.errors import StorageError
from checkpoint_savers.runs.rows import RunThreadRow

from .port import Crew, Dispatcher

log = logging.getLogger("pregel_async.service")

LOOK_EVERY = 1.0
"""Seconds after which a worker looks for queued threads, even if no change was announced."""

CHOICE = 64
"""Number of queued threads that a look reads at least, so that workers need not all try the same one."""


class RowDispatcher(Dispatcher):
    """Finds queued threads by their rows: in memory, in an SQLite file that several processes share, or in PostgreSQL.

    The row of a queued thread is its job: there is no second queue.
    """

    async def work(self, crew: Crew) -> None:
        seen = 0
        while True:
            try:
                await self._fill_slots(crew)
            except StorageError:
                log.exception("the queue cannot be read: trying again")
                await crew.environment.sleep(LOOK_EVERY)
            with anyio.move_on_after(LOOK_EVERY):
                seen = await crew.runs.wait_for_change(seen, "queue")

    async def _fill_slots(self, crew: Crew) -> None:
        if crew.free:
            queued = await crew.runs.queued(routes=crew.routes, limit=max(CHOICE, crew.free))
            crew.fill(queued if len(queued) <= crew.free else _mixed(queued))


def _mixed(queued: Collection[RunThreadRow]) -> list[RunThreadRow]:
    """Return queued threads, the most urgent ones first, and equally urgent ones in an order by chance.

    There are more than this worker can take, so that others take some at the same time.
    """
    return sorted(queued, key=lambda thread: (-thread.priority, random.random()))
