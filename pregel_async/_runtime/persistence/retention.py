"""Prune a thread when a run ends, under the run's own lease, as the graph's retention says."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from typing import TypeVar

from checkpoint_savers.errors import annotate
from checkpoint_savers.upkeep.pruning import prune_with_lease
from checkpoint_savers.upkeep.retention import Retention

from ...errors import RetentionWarning
from ..observing.error_text import described
from .lease import ThreadLease

T = TypeVar("T")


class RunPruner:
    """Prunes a thread after a run.

    Args:
        lease: the run's lease.
        retention: what to keep.
        keeps_events: the run stores its events: keep everything since the last input, so that readers can replay them.
    """

    def __init__(self, lease: ThreadLease, retention: Retention, *, keeps_events: bool) -> None:
        # The pruning needs the lease after the last commit. A lease that the commit released could be lost to another
        # run before the pruning.
        lease.outlives_commit = True
        self._lease = lease
        self._retention = retention
        self._keeps_events = keeps_events

    async def prune_after(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run the graph, then prune its thread, unless the run was cancelled or storage has failed.

        A pruning error does not change the run's result or error: it becomes a `RetentionWarning`.
        """
        try:
            result = await run()
        except Exception as error:
            try:
                await self._prune()
            except RetentionWarning as warning:  # where warnings are errors
                annotate(error, str(warning))
            raise
        await self._prune()
        return result

    async def _prune(self) -> None:
        lease = self._lease
        if lease.failures:
            return
        try:
            await prune_with_lease(
                lease.saver, lease.token, self._retention, now=lease.environment.now(), since_input=self._keeps_events
            )
        except Exception as error:
            kind, message = described(error)
            warning = RetentionWarning(
                f"thread {lease.thread_id!r} was not pruned at the end of a run: {kind}: {message}. The run is "
                "stored; the next run's end tries again"
            )
            warning.__cause__ = error
            warnings.warn(warning, stacklevel=2)
