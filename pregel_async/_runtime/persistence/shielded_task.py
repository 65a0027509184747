"""Work of a run that ends whatever becomes of the run: a transaction that was begun is finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..platform.event_loops import Loop, wait_out


class ShieldedTask:
    """Work that runs in a task of its own, which no scope cancels.

    Attributes:
        over: set when the work has ended.
    """

    def __init__(self, loop: Loop, work: Callable[[], Awaitable[None]]) -> None:
        self.ended = loop.event()
        self._loop = loop
        self._work = [work]  # until it begins: then what it holds is freed with its end
        self._failures: list[BaseException] = []  # at most one
        self._begin()

    def _begin(self) -> None:
        self._task = self._loop.start(self._do, "storing", self._done)

    def _done(self, _: object) -> None:
        if self._work:
            self._begin()  # cancelled before it began

    async def _do(self) -> None:
        """Do the work, and keep its exception for the waiters."""
        try:
            await self._work.pop()()
        except BaseException as error:
            self._failures.append(error)
        finally:
            self.ended.set()

    async def wait(self) -> None:
        """Wait until the work has ended. Raises what the work raised."""
        await self.ended.wait()
        self.raise_failure()

    async def wait_out(self) -> None:
        """Do as `wait`, however often the waiter is cancelled."""
        try:
            await wait_out(self.ended)
        finally:
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what the work raised, if it did."""
        for error in self._failures:
            raise error
