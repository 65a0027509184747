"""Run work together with a companion: a background coroutine that ends with the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from checkpoint_savers.children import start_soon

from .environment import Environment, SystemEnvironment
from .event_loops import sole_exception, wait_out

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


async def run_with_companion(companion: Callable[[], Coroutine[Any, Any, None]], work: Callable[[], Awaitable[T]]) -> T:
    """Await work in the calling task while a companion runs, and cancel the companion when the work has ended.

    Args:
        companion: the background coroutine. It must not raise.
        work: the work.

    Raises:
        BaseException: the error of the work, not wrapped in an exception group.
    """
    # The error is carried out of the task group in a list: raised inside the group, it would be wrapped.
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
            raise  # otherwise the work failed while it was being cancelled, and its failure is the result
    if failures:
        raise failures.pop()
    return done.pop()


def run_with_delayed_companion(
    environment: Environment,
    seconds: float,
    companion: Callable[[], Coroutine[Any, Any, None]],
    work: Callable[[], Awaitable[T]],
    *,
    is_on_asyncio: bool,
) -> Awaitable[T]:
    """Await work in the calling task, and start a companion if the work takes long.

    Args:
        environment: the clock that measures the time.
        seconds: seconds after which the companion starts.
        companion: the background coroutine, which is cancelled when the work has ended. It must not raise.
        work: the work.
        is_on_asyncio: True if the running event loop is asyncio's.

    Returns:
        An awaitable of the result, which must be awaited at once.
    """
    # On asyncio with the system's clock a timer is enough, which is much cheaper than a task for each run. Trio has no
    # timers, and a virtual clock moves only for coroutines that sleep on it, so both need a task.
    # No coroutine function: a waiting run would hold one more frame, which the garbage collector traverses.
    if is_on_asyncio and type(environment) is SystemEnvironment:
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
        running = work()
        del work  # a waiting run need not hold it, nor what it was called with
        return await running
    finally:
        await timer.end()


class DelayedCompanion:
    """A companion that a timer of asyncio starts, so that short work costs no task.

    Args:
        seconds: seconds until the companion starts.
        companion: the background coroutine. It must not raise.
    """

    def __init__(self, seconds: float, companion: Callable[[], Coroutine[Any, Any, None]]) -> None:
        import asyncio

        self._companion = companion
        self._tasks: tuple[asyncio.Task[None], ...] = ()  # the companion's task, once it is created
        self._scopes: tuple[anyio.CancelScope, ...] = ()  # the companion's scope, once it runs
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self)

    def __call__(self) -> None:
        """Start the companion. The event loop's timer calls this."""
        self._tasks = (self._loop.create_task(self._run()),)

    async def _run(self) -> None:
        with anyio.CancelScope() as scope:
            self._scopes = (scope,)
            # The work may end after the task is created and before its first step: then no scope could be cancelled.
            if not self._is_over:
                await self._companion()

    async def end(self) -> None:
        """End the companion, and wait until it has ended."""
        # By a scope, and not with `Task.cancel()`: that may interrupt a shielded section of the companion, such as a
        # transaction.
        self._is_over = True
        self._timer.cancel()
        for scope in self._scopes:
            scope.cancel()
        for task in self._tasks:
            await _end_of(task)


async def _end_of(task: asyncio.Task[None]) -> None:
    # By a callback and not by awaiting the task, which would cancel the task if this wait is cancelled.
    over = anyio.Event()
    task.add_done_callback(lambda _: over.set())
    await wait_out(over)
