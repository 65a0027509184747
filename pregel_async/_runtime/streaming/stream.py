"""A stream: what a reader holds while a run goes on in a task of its own.

The run is started here and nowhere else, and the stream owns it: it ends before `aclose()`, the end of `async with`, or
the last `__anext__` returns. Reader and run share a buffer of bounded capacity (`buffer.py`). Only the reader
holds the stream, so that Python drops it with the reader's last reference; the run is cancelled then.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import anyio
import msgspec

from checkpoint_savers.errors import annotate

from ...types import RunStatus
from ..observing.error_text import with_notes
from ..platform.event_loops import cancelled_error, loop, wait_out
from .buffer import Buffer
from .parts import Shape, labelled_dict
from .subscription import Subscription

T = TypeVar("T")

Work = Callable[[Buffer], Awaitable[Any]]
"""A run, given where to put what it shows."""


class GraphStream(Generic[T]):
    """The chunks of one run: an async iterator, best used as an async context manager too.

        async with graph.astream(input) as chunks:
            async for chunk in chunks:
                ...

    The run starts with the first read, or on entering. When the run fails, its exception follows the last chunk. When
    the stream is closed, or a read is cancelled, the run is cancelled, and has ended and cleaned up before control
    returns. A stream that is only dropped is cancelled too, but ends a little later, and warns.

    Attributes:
        cursor: the place of the last chunk that was read, for `astream(after=...)`, or that the stream came back to;
            None before the first, and where no events are kept (`keep_events=True`).
        run_id: of the run; None before it has begun, and where it is not known: a run elsewhere that was come back to.
    """

    def __init__(
        self, work: Work, buffer: Buffer, shape: Shape, subscription: Subscription, cursor: str | None = None
    ) -> None:
        self._run: _UnstartedRun | _RunTask = _UnstartedRun(work, buffer)
        self._subscription = subscription
        self._buffer = buffer
        self._shape = shape
        self._reading = False
        self.cursor = cursor

    @property
    def status(self) -> RunStatus | None:
        """How the run has ended; None while it goes on, and where it was not run (a bad input, say)."""
        status = self._subscription.status
        return "cancelled" if status is None and self._run.was_cancelled else status

    def __aiter__(self) -> GraphStream[T]:
        return self

    async def __anext__(self) -> T:
        buffer = self._buffer
        if self._reading:
            raise RuntimeError("this stream is being read by another task: give each reader a stream of its own")
        self._reading = True
        try:
            while not buffer.parts:
                if buffer.ended:
                    buffer.raise_failure()
                    raise StopAsyncIteration
                if not self._run.started:
                    self._run = self._run.start()
                    continue  # an eager task may have ended in there
                try:
                    await buffer.wait_for_part()
                except BaseException as error:
                    await self.__aexit__(type(error), error, None)
                    raise
            part = buffer.pop()
            if part.cursor is not None and part.seq:  # else it was read before
                self.cursor = str(part.cursor)
            return self._shape(part)  # type: ignore[no-any-return]  # what the shape makes is what T says
        finally:
            self._reading = False

    @property
    def run_id(self) -> str | None:
        return self._buffer.run_id

    @property
    def is_labelled(self) -> bool:
        """Whether its chunks say of what type they are (`version="v2"`)."""
        return self._shape is labelled_dict

    def recall(self) -> None:
        """Coming back (`after=`): show again, first, what was read of the superstep that the place is in; with `seq` 0.

        For readers who add chunks up and have lost their sums. Call it before reading.
        """
        self._buffer.recalls = True

    async def begin(self) -> None:
        """Start the run, and wait until it has its thread and its input, or has failed before: then nothing was run.

        From here on, `cursor` is the place before the first part.

        Raises:
            Exception: what the run has failed with.
        """
        self._run = self._run.start()
        buffer = self._buffer
        try:
            while not buffer.has_begun:
                await buffer.wait_for_part(or_begun=True)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        if buffer.ended and not buffer.begun and not buffer.has_output:
            buffer.raise_failure()
        if self.cursor is None:
            self.cursor = buffer.start

    async def __aenter__(self) -> GraphStream[T]:
        self._run = self._run.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Exception as failure:
            if error is None:
                raise
            annotate(error, f"and the stream's run had failed: {with_notes(failure)}")

    async def aclose(self) -> None:
        """Cancel the run if it still goes on, and wait until it has ended. Chunks left unread are dropped.

        Raises:
            Exception: the run's failure, if it failed and nobody has been told.
        """
        await self._run.close()

    def dismiss(self) -> None:
        """If the run is cancelled from here on, that is for good: its events say so, so that no service picks it up.

        A reader who comes back goes on with it all the same. Does nothing where no events are kept.
        """
        self._subscription.dismissed = True

    async def finish(self) -> None:
        """Read no more, and let the run go on to its end: nothing waits for this reader.

        When cancelled, the run is cancelled, and has ended before control returns.

        Raises:
            Exception: the run's failure, if it failed and nobody has been told.
        """
        self._run = self._run.start()
        try:
            await self._run.finish()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise

    def __del__(self) -> None:
        self.drop("Use 'async with graph.astream(...) as chunks', or call aclose().")

    def drop(self, advice: str) -> None:
        """Cancel the run without waiting for it, and warn, if it still goes on. For finalizers, on any thread."""
        if self._run.drop():
            warnings.warn(
                f"a graph's stream was dropped before its end: its run is being cancelled. {advice}",
                ResourceWarning,
                stacklevel=3,
                source=self,
            )


class _UnstartedRun(msgspec.Struct):
    """A run before the first part is requested. If its stream is closed first, it never begins."""

    started: ClassVar = False
    was_cancelled: ClassVar = False
    work: Work
    buffer: Buffer

    def start(self) -> _UnstartedRun | _RunTask:
        """Start the run in a task of its own."""
        return self if self.buffer.ended else _RunTask(self.work, self.buffer)

    async def close(self) -> None:
        """End the stream of a run that never begins."""
        self.buffer.end()

    async def finish(self) -> None:
        """Read no more: the stream was closed before."""

    def drop(self) -> bool:
        """Return False: there is nothing to cancel."""
        return False


class _RunTask:
    """The run's task, as the stream owns it. The task holds this, and not the stream."""

    started: ClassVar = True

    def __init__(self, work: Work, buffer: Buffer) -> None:
        self._work = work
        self._buffer = buffer
        self._dropped = False
        self._cancelled = False
        here = self._loop = loop()
        buffer.event = here.event
        self._over = here.event()
        self._scope = anyio.CancelScope()
        self._call_soon = here.caller()
        self._task = here.start(self._host, "pregel-async run", self._done)

    @property
    def was_cancelled(self) -> bool:
        """Return True if the run has ended, and its stream was closed before."""
        return self._cancelled and self._buffer.ended

    def start(self) -> _RunTask:
        """It has started."""
        return self

    async def _host(self) -> None:
        failure: tuple[BaseException, ...] = ()
        try:
            with self._scope:
                await self._work(self._buffer)
        except BaseException as error:
            # It goes to the reader, who raises it. A cancellation that came from outside the stream does so on asyncio;
            # trio's must not cross tasks, and reaches the reader by its own.
            if self._loop.is_asyncio or not isinstance(error, anyio.get_cancelled_exc_class()):
                failure = (error,)
        finally:
            self._over.set()
            self._buffer.end(*failure)

    def _done(self, _: object) -> None:
        if not self._over.is_set():  # cancelled before it began
            self._over.set()
            self._buffer.end(cancelled_error())

    async def close(self) -> None:
        """Cancel the run and wait until it has ended, come what may."""
        if not self._buffer.ended:
            self._cancelled = True
            self._scope.cancel()
        self._buffer.stop_reading()  # a node may wait for the reader behind a shield
        await wait_out(self._over)
        self._buffer.raise_failure()

    async def finish(self) -> None:
        """Let the run go on to its end; what it shows is dropped."""
        self._buffer.stop_reading()
        await self._over.wait()
        self._buffer.raise_failure()

    def drop(self) -> bool:
        """Cancel the run from wherever Python drops the stream, a finaliser in another thread included.

        Returns:
            True if it went on, and is cancelled for the first time.
        """
        if self._buffer.ended or self._dropped:
            return False
        self._dropped = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
            self._call_soon(self._cancel)
        return True

    def _cancel(self) -> None:
        self._scope.cancel()
        self._buffer.stop_reading()
