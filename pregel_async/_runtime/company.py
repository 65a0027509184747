"""Doing something with something else going on beside it, in one task group that shows nothing of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from .loops import alone

T = TypeVar("T")


async def beside(
    companion: Callable[[], Coroutine[Any, Any, None]],
    work: Callable[[], Awaitable[T]],
    begun: Callable[[TaskGroup], None] | None = None,
) -> T:
    """Work, in place, while the companion runs; it is cancelled when the work has ended. The work's own error leaves as
    it is, in no group.

    Args:
        begun: given the group before anything runs in it.
    """
    done: list[T] = []
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            if begun is not None:
                begun(group)
            group.start_soon(companion)
            try:
                done.append(await work())
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error
            finally:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise alone(several) from None
    except anyio.get_cancelled_exc_class():
        if failure is None:
            raise  # else the work failed while it was being cancelled, and that is told
    if failure is not None:
        raise failure
    return done[0]
