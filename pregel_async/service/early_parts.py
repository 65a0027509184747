"""Store stream parts of a running superstep before its end, while a process without the run follows it.

A follower notes in the run's row until when it follows (`followed_until`), again and again. The worker reads the row
when it looks for requests to cancel the run, so that it makes no query of its own. A note that is lost, late or too old
costs or saves transactions, and nothing else: the end of the superstep stores all its parts in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .._checks.options import names_of_modes
from .._runtime.streaming.stored_units import MID_TASK
from .._runtime.streaming.stream import GraphStream
from ..types import StreamMode

log = logging.getLogger("pregel_async.service")

STORE_EVERY = 0.03
"""Seconds between two transactions that store parts of a run early."""

FOLLOWED_FOR = 15.0
"""Seconds for which a follower's note is valid. It is renewed when a third of them has passed."""


def are_early(stream_mode: StreamMode | Sequence[StreamMode], *, subgraphs: bool) -> bool:
    """Return True if parts that a follower shows may be published before their superstep or task ends.

    Args:
        stream_mode, subgraphs: as for `RunService.follow`.

    Raises:
        ConfigError: a mode is unknown.
    """
    return subgraphs or not MID_TASK.isdisjoint(names_of_modes(stream_mode))


class EarlyParts:
    """The parts of one run in progress.

    Args:
        stream: the run's stream.
        clock: returns the saver's time, in unix seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self, stream: GraphStream[Any], clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._sleep = sleep
        self._until = 0.0
        self._is_storing = False

    def extend(self, until: float) -> bool:
        """Note until when the run is followed.

        Args:
            until: unix seconds by the saver's clock.

        Returns:
            True if the caller has to start `store`: parts are to be stored, and it is not running.
        """
        self._until = max(self._until, until)
        starts = not self._is_storing and self._until > self._clock()
        self._is_storing = self._is_storing or starts
        return starts

    async def store(self) -> None:
        """Store parts early until the run has ended or is no longer followed. Never raises an error."""
        try:
            while self._until > self._clock() and not self._stream.has_ended:
                await self._stream.store_early()
                await self._sleep(STORE_EVERY)
        except Exception:
            # Storage has failed or the lease is lost. The run raises that when it next stores something.
            log.debug("parts of a run could not be stored early", exc_info=True)
        finally:
            self._is_storing = False
