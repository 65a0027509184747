"""Run work that no cancellation of the run stops: a transaction that has begun is finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..platform.event_loops import Loop, wait_out


class ShieldedTask:
    """Work in a task of the event loop's own, which no cancel scope reaches.

    Attributes:
        ended: set when the work has ended.
    """

    def __init__(self, loop: Loop, work: Callable[[], Awaitable[None]]) -> None:
        self.ended = loop.event()
        self._loop = loop
        self._work = [work]  # emptied at the start, so that the work's objects are freed at its end
        self._failures: list[BaseException] = []  # at most one
        self._begin()

    def _begin(self) -> None:
        self._task = self._loop.start(self._do, "storing", self._done)

    def _done(self, _: object) -> None:
        if self._work:
            self._begin()  # `asyncio.run` at its end, or other code, cancelled the task before it began

    async def _do(self) -> None:
        """Do the work and keep its exception for the waiters."""
        try:
            await self._work.pop()()
        except BaseException as error:
            self._failures.append(error)
        finally:
            self.ended.set()

    async def wait(self) -> None:
        """Wait until the work has ended. Raises the work's error."""
        await self.ended.wait()
        self.raise_failure()

    async def wait_out(self) -> None:
        """Wait until the work has ended, even if the waiter is cancelled meanwhile. Raises the work's error."""
        try:
            await wait_out(self.ended)
        finally:
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the work's error, if it has one."""
        for error in self._failures:
            raise error
