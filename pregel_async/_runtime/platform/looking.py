"""Look for something again and again: for threads whose process is gone, or that have become due."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from .environment import Environment


async def look_repeatedly(
    look: Callable[[], Awaitable[object]], environment: Environment, pause: float, log: logging.Logger
) -> None:
    """Look now and after each pause, until this is cancelled.

    A failure is logged and not raised: it would end the process's other work, and the next look may succeed.

    Args:
        look: looks once.
        environment: the clock.
        pause: seconds between two looks, at most.
        log: gets the failures.
    """
    while True:
        try:
            await look()
        except Exception:
            log.exception("threads that need a worker cannot be looked for: trying again")
        # With jitter, so that many processes do not look at the same moment.
        await environment.sleep(pause * (0.5 + environment.jitter() / 2))
