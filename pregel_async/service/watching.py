"""Wait for changes of runs: one query for all tasks that wait, however many they are."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec

from checkpoint_savers.errors import RunNotFoundError, StorageError
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunRow

from .._runtime.platform.environment import Environment
from .activation import log

PAUSE = 0.002
"""Seconds between two looks, so that changes which come together cost one look."""

RETRY_AFTER = 0.5
"""Seconds after which a look is repeated if storage has failed."""


class _Waiting(msgspec.Struct, eq=False):
    """A task that waits for a run."""

    run_id: str
    is_awaited: Callable[[RunRow], bool]
    arrived: anyio.Event
    row: RunRow | None = None


class RunWatcher:
    """Wakes tasks that wait for runs.

    Args:
        runs: the run store.
        environment: the clock.
    """

    def __init__(self, runs: RunStore, environment: Environment) -> None:
        self._runs = runs
        self._environment = environment
        self._waiting: set[_Waiting] = set()

    async def until(self, run_id: str, is_awaited: Callable[[RunRow], bool]) -> RunRow:
        """Return the row of a run once it is an awaited one.

        Args:
            run_id: the run.
            is_awaited: returns True for an awaited row.

        Raises:
            RunNotFoundError: there is no such run, or it was rolled back.
        """
        waiting = _Waiting(run_id, is_awaited, anyio.Event())
        # Before the row is read: a change after that wakes this task.
        self._waiting.add(waiting)
        try:
            row = await self._runs.get_run(run_id)
            if row is not None and not row.hidden and not is_awaited(row):
                await waiting.arrived.wait()
                row = waiting.row
        finally:
            self._waiting.discard(waiting)
        if row is None or row.hidden:
            raise RunNotFoundError(run_id)
        return row

    async def watch(self) -> None:
        """Look whenever something may have changed, until this is cancelled."""
        seen = 0
        while True:
            seen = await self._runs.wait_for_change(seen, "run")
            try:
                await self._look()
                await self._environment.sleep(PAUSE)
            except StorageError:
                log.exception("runs that are waited for cannot be read: trying again")
                await self._environment.sleep(RETRY_AFTER)
                seen = 0

    async def _look(self) -> None:
        asked = tuple(self._waiting)
        if not asked:
            return
        rows = {row.run_id: row for row in await self._runs.get_runs({each.run_id for each in asked})}
        for each in asked:
            row = rows.get(each.run_id)
            if row is None or row.hidden or each.is_awaited(row):
                each.row = row
                each.arrived.set()
