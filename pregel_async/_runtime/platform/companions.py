"""Doing something with something else going on beside it, which shows nothing of itself and ends with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from checkpoint_savers.children import start_soon

from .environment import Environment, SystemEnvironment
from .event_loops import on_asyncio, sole_exception, wait_out

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


async def run_with_companion(companion: Callable[[], Coroutine[Any, Any, None]], work: Callable[[], Awaitable[T]]) -> T:
    """Work, in place, while the companion runs; it is cancelled when the work has ended. The work's own error leaves as
    it is, in no group."""
    done: list[T] = []
    failures: list[BaseException] = []
    try:
        async with anyio.create_task_group() as group:
            start_soon(group, companion)
            try:
                done.append(await work())
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failures.append(error)
            finally:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise sole_exception(several) from None
    except anyio.get_cancelled_exc_class():
        if not failures:
            raise  # else the work failed while it was being cancelled, and that is told
    if failures:
        raise failures.pop()
    return done.pop()


def run_with_delayed_companion(
    environment: Environment,
    seconds: float,
    companion: Callable[[], Coroutine[Any, Any, None]],
    work: Callable[[], Awaitable[T]],
) -> Awaitable[T]:
    """Work, in place, and start the companion when the work has taken so many seconds of the environment's time.

    With the system's clock on asyncio, which has timers, that costs a timer. A virtual clock moves only for those that
    sleep on it, and trio has no timers: there it costs a task.

    Args:
        companion: cancelled when the work has ended; keeps its failures to itself.

    Returns:
        What is to be awaited, at once. (No coroutine around it: a run would hold one more while it waits.)
    """
    if on_asyncio() and type(environment) is SystemEnvironment:
        return _run_with_timer(seconds, companion, work)

    async def later() -> None:
        await environment.sleep(seconds)
        await companion()

    return run_with_companion(later, work)


async def _run_with_timer(
    seconds: float, companion: Callable[[], Coroutine[Any, Any, None]], work: Callable[[], Awaitable[T]]
) -> T:
    timer = DelayedCompanion(seconds, companion)
    try:
        return await work()
    finally:
        await timer.end()


class DelayedCompanion:
    """A companion that begins when the work beside it has taken so many seconds: most takes less, and then there is a
    timer, and no task. For asyncio, whose loop has timers.

    Args:
        companion: keeps its failures to itself.
    """

    def __init__(self, seconds: float, companion: Callable[[], Coroutine[Any, Any, None]]) -> None:
        import asyncio

        self._companion = companion
        self._tasks: tuple[asyncio.Task[None], ...] = ()  # the companion's, once the time has come
        self._scopes: tuple[anyio.CancelScope, ...] = ()  # around it, once it has begun
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self)

    def __call__(self) -> None:
        """It has taken that long."""
        self._tasks = (self._loop.create_task(self._run()),)

    async def _run(self) -> None:
        with anyio.CancelScope() as scope:
            self._scopes = (scope,)
            if not self._is_over:
                await self._companion()

    async def end(self) -> None:
        """The work is over: so is the companion, when this returns."""
        self._is_over = True
        self._timer.cancel()
        for scope in self._scopes:
            scope.cancel()
        for task in self._tasks:
            await _end_of(task)


async def _end_of(task: asyncio.Task[None]) -> None:
    over = anyio.Event()
    task.add_done_callback(lambda _: over.set())
    await wait_out(over)
