"""Work that no cancellation of the run stops: a transaction that has begun is finished.

`BegunCommit` is a transaction that the saver has been handed, and needs no task of the event loop. `ShieldedTask` is
for all other work, and for savers that only have `commit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from checkpoint_savers.records import Waiter

from ..platform.event_loops import Loop, wait_out


class ShieldedWork:
    """Work that ends by itself, whatever happens to those who wait for it.

    Attributes:
        ended: set when the work has ended.
    """

    def __init__(self, loop: Loop) -> None:
        self.ended = loop.event()
        self._failures: list[BaseException] = []  # at most one

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


class BegunCommit(ShieldedWork):
    """A transaction in the hands of the saver.

    Args:
        loop: the running event loop.
        begin: hands the transaction to the saver; see `SaverPort.begin_commit`.
        on_end: called on the event loop when the transaction is stored, or with its error.
    """

    def __init__(
        self,
        loop: Loop,
        begin: Callable[[Waiter], Callable[[], None]],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__(loop)
        self._on_end = [on_end]  # emptied at the end, so that the transaction's objects are freed then
        try:
            self._result = [begin(Waiter(loop.threadsafe_caller(), self._end))]
        except BaseException as error:
            self._finish(error)

    def _end(self) -> None:
        try:
            self._result.pop()()
        except BaseException as error:
            self._finish(error)
        else:
            self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        if error is not None:
            self._failures.append(error)
        try:
            self._on_end.pop()(error)
        except BaseException as second:  # from a listener: raised where the transaction is waited for
            self._failures.append(second)
        finally:
            self.ended.set()


class ShieldedTask(ShieldedWork):
    """Work in a task of the event loop's own, which no cancel scope reaches."""

    def __init__(self, loop: Loop, work: Callable[[], Awaitable[None]]) -> None:
        super().__init__(loop)
        self._loop = loop
        self._work = [work]  # emptied at the start, so that the work's objects are freed at its end
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
