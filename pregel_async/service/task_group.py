"""A task group whose tasks are parts of one piece of work, so that the error of one is the error of the work."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from .._runtime.platform.event_loops import sole_exception


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup, None]:
    """Open a task group. If one exception ends it, that is raised, and not a group of one.

    Yields:
        The task group.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as several:
        raise sole_exception(several) from None
