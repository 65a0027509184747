"""`task_group`: a task group that raises a single exception without an `ExceptionGroup` around it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from .._runtime.platform.event_loops import sole_exception


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup, None]:
    """Open a task group whose tasks do parts of one job, so that the caller handles the error of any part as its own.

    Yields:
        The task group.

    Raises:
        BaseException: the exception of the block or of a task, if there is only one.
        BaseExceptionGroup: several exceptions.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as several:
        raise sole_exception(several) from None
