"""Queue threads again whose worker is gone, and threads that have become due.

Every worker has a keeper, and there is no leader: each change is a transaction that does nothing if the thread has
changed since it was seen.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.owner import is_live
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import assistant_of

from .._api.compiled import Graph
from .._runtime.platform.environment import Environment
from .._runtime.platform.looking import look_repeatedly
from .dispatch.port import Dispatcher
from .routes import refuses, route_of, routes_of

log = logging.getLogger("pregel_async.service")

LOOK_EVERY = 1.0
"""Seconds between two looks, at most. A worker that was killed on the same machine is noticed at the next look; on
another machine, when its lease has lapsed."""

MAX_ROUTES = 1_000
"""Number of queued threads whose routes a look checks at most, once in a lease's length."""

MAX_ACTIVE = 100_000
"""Number of active threads that a look reads at most: more than all workers together have slots."""


class Keeper:
    """Looks after the threads of a service.

    Args:
        saver: has the leases of the threads.
        runs: has their runs.
        environment: the clock.
        dispatcher: knows which queued threads no worker will be brought.
        graphs: the worker's graphs, by name, bound to the saver.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        runs: RunStore,
        environment: Environment,
        dispatcher: Dispatcher,
        graphs: Mapping[str, Graph[Any, Any]],
    ) -> None:
        self._saver = saver
        self._runs = runs
        self._environment = environment
        self._dispatcher = dispatcher
        self._graphs = graphs
        self._routes = [route for name, graph in graphs.items() for route in routes_of(name, graph)]
        self._routes_checked_at = -math.inf  # monotonic

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
        # Of its own routes: threads that wait for another version may wait for weeks, and would fill the page.
        queue = await self._runs.queued(routes=self._routes)
        waiting = [thread for thread in queue if thread.activation_at < long_ago]
        for thread in await self._dispatcher.unannounced(waiting):
            queued += await self._runs.requeue(thread)
        now = self._environment.monotonic()
        if now - self._routes_checked_at >= self._saver.lease_seconds:
            self._routes_checked_at = now
            queued += await self._correct_routes(long_ago)
        return queued

    async def _correct_routes(self, long_ago: float) -> int:
        """Queue threads under another route that wait for a version which they do not need, or no longer.

        A thread is queued for the version that is to run it as the process sees it that queues it. A deployment may
        have removed that version since, and a call outside of the service may have moved the thread.
        """
        queued = 0
        for thread in await self._runs.queued(limit=MAX_ROUTES):
            name = assistant_of(thread.route)
            graph = self._graphs.get(name)
            if graph is None or thread.route in self._routes or thread.activation_at >= long_ago:
                continue
            route = await route_of(name, graph, thread.thread_id)
            if route in self._routes and not refuses(thread.route, graph):
                # A route without a version could bring the thread to a worker that refuses it, and so back to here.
                route = routes_of(name, graph)[-1] if route == name else route
                queued += await self._runs.requeue(thread, route=route)
        return queued
