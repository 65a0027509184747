"""A graph's retention: its thread is pruned when a run ends, under the run's own lease."""

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


class Retaining:
    """Prunes a thread after a run.

    Args:
        keeps_events: the run keeps its events: what was made since the last input stays, so that their readers can come
            back to them.
    """

    def __init__(self, lease: ThreadLease, retention: Retention, *, keeps_events: bool) -> None:
        lease.lingers = True
        self._lease = lease
        self._retention = retention
        self._keeps_events = keeps_events

    async def after(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run, and prune the thread when the run has come to rest: is done, has stopped, asked or failed. Not when it
        was cancelled, or when storage has failed.

        What fails in pruning changes nothing of what the run has done and gives: it is told as a warning.
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
