"""The reader's stream, and the task in which it runs its graph.

Only the stream starts the run, and it owns the run: the run has ended before `aclose()`, the end of `async with`, or
the last `__anext__` returns. Reader and run share a bounded buffer (`buffer.py`).
"""

# The task refers to `_RunTask` and the buffer, never to the stream. So the stream is finalized with the reader's last
# reference, and its finalizer can cancel a run that was abandoned.

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
from ..observing.error_text import shorten_traceback, with_notes
from ..platform.event_loops import cancelled_error, loop, wait_out
from .buffer import Buffer
from .parts import Shape, labelled_dict
from .subscription import Subscription

T = TypeVar("T")

StreamWork = Callable[[Buffer], Awaitable[Any]]
"""Runs a graph, and adds its parts to the buffer."""


class GraphStream(Generic[T]):
    """The chunks of one run: an async iterator, best used as an async context manager too.

        async with graph.astream(input) as chunks:
            async for chunk in chunks:
                ...

    The run starts with the first read or on entering the context. If the run fails, its exception is raised after the
    last chunk. Closing the stream, or cancelling a read, cancels the run and waits until it has ended and cleaned up.
    Dropping the stream without closing it cancels the run without waiting, and warns.

    Attributes:
        cursor: the cursor of the last chunk that was read, for `astream(after=...)`. Before the first read it is the
            cursor that the stream was opened with; None without one, and if events are not stored
            (`keep_events=True`).
        run_id: the id of the run; None before it has begun, and if it is not known because the run belongs to another
            process.
    """

    def __init__(
        self, work: StreamWork, buffer: Buffer, shape: Shape, subscription: Subscription, cursor: str | None = None
    ) -> None:
        self._run: _UnstartedRun | _RunTask = _UnstartedRun(work, buffer)
        self._subscription = subscription
        self._buffer = buffer
        self._shape = shape
        self._reading = False
        self.cursor = cursor

    @property
    def status(self) -> RunStatus | None:
        """How the run has ended; None while it is running, and if it never ran (because of an invalid input, say)."""
        status = self._subscription.status
        return "cancelled" if status is None and self._run.was_cancelled else status

    def __aiter__(self) -> GraphStream[T]:
        return self

    async def __anext__(self) -> T:
        buffer = self._buffer
        # Two readers would share the chunks by chance, each with gaps that it could not recognise.
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
                    continue  # an eager task may have published parts, or ended, while it was started
                try:
                    await buffer.wait_for_part()
                except BaseException as error:
                    # Only the reader knows of the run: after a cancelled read it may never come back to close it.
                    await self.__aexit__(type(error), error, None)
                    raise
            part = buffer.pop()
            if part.cursor is not None and part.seq:  # otherwise the part is a repeated one, which the cursor is past
                self.cursor = str(part.cursor)
            return self._shape(part)  # type: ignore[no-any-return]  # the caller's options decide both T and the shape
        finally:
            self._reading = False

    @property
    def run_id(self) -> str | None:
        return self._buffer.run_id

    @property
    def is_labelled(self) -> bool:
        """True if its chunks are dicts that have a type (`version="v2"`)."""
        return self._shape is labelled_dict

    def _repr_html_(self) -> str:
        """Return the stream as HTML for a notebook: its run's status, and its run id, thread and cursor."""
        from checkpoint_savers.notebook import details_table

        state = self.status or ("running" if self._run.started else "not started")
        waiting = len(self._buffer.parts) or None
        about = [("run", state), ("run_id", self.run_id), ("cursor", self.cursor), ("unread chunks", waiting)]
        return details_table(type(self).__name__, about)

    def recall(self) -> None:
        """After a reconnect (`after=`), first repeat the parts of the cursor's superstep, with `seq` 0.

        For readers that accumulate chunks and have lost the result. Call it before reading.
        """
        self._buffer.recalls = True

    async def begin(self) -> None:
        """Start the run, and wait until it has acquired its thread and applied its input.

        From then on, `cursor` is the cursor before the first part. With durability "sync" the input is stored by then.
        With "async" its transaction has begun: if the process dies before that ends, call again with the input.

        Raises:
            Exception: the run failed before it began, so that no node has run.
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
            # Raising would replace the exception of the `async with` body, so the failure becomes a note of it.
            if error is None:
                raise
            annotate(error, f"and the stream's run had failed: {with_notes(failure)}")

    async def aclose(self) -> None:
        """Cancel the run if it is still running, and wait until it has ended. Unread chunks are dropped.

        Raises:
            Exception: the run's failure, if it has failed and no read has raised that.
        """
        await self._run.close()

    def dismiss(self) -> None:
        """Make a later cancellation of the run final: it is stored with the events, and no service resumes the run.

        A reader that reconnects resumes the run all the same. Does nothing if events are not stored.
        """
        self._subscription.dismissed = True

    @property
    def has_ended(self) -> bool:
        """True once the run has ended, or if the stream was closed before it began."""
        return self._buffer.ended

    async def store_early(self) -> None:
        """Store the events of the superstep in progress that are not stored yet. Does nothing if events are not stored.

        Raises:
            CheckpointError: storage has failed, now or earlier.
        """
        recorder = self._subscription.recorder
        if recorder is not None:
            await recorder.flush_early()

    async def finish(self) -> None:
        """Stop reading, and wait until the run has ended by itself. Its remaining chunks are dropped.

        Cancelling this call cancels the run, and waits until it has ended.

        Raises:
            Exception: the run's failure, if it has failed and no read has raised that.
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
        """Cancel the run without waiting for it, and warn, if it is still running. For finalizers, on any thread.

        Args:
            advice: the end of the warning: how to close the stream.
        """
        if self._run.drop():
            warnings.warn(
                f"a graph's stream was dropped before its end: its run is being cancelled. {advice}",
                ResourceWarning,
                stacklevel=3,
                source=self,
            )


class _UnstartedRun(msgspec.Struct):
    """A run whose stream has not been read yet. If the stream is closed first, the run never starts."""

    started: ClassVar = False
    was_cancelled: ClassVar = False
    work: StreamWork
    buffer: Buffer

    def start(self) -> _UnstartedRun | _RunTask:
        """Start the run in a task of its own."""
        return self if self.buffer.ended else _RunTask(self.work, self.buffer)

    async def close(self) -> None:
        """End the stream of a run that never starts."""
        self.buffer.end()

    async def finish(self) -> None:
        """Do nothing: the stream was closed before the run started."""

    def drop(self) -> bool:
        """Return False: there is nothing to cancel."""
        return False


class _RunTask:
    """The task of a run, owned by the run's stream."""

    started: ClassVar = True

    def __init__(self, work: StreamWork, buffer: Buffer) -> None:
        self._work = work
        self._buffer = buffer
        self._dropped = False
        self._cancelled = False
        here = self._loop = loop()
        # The event loop's own class: anyio would look up the running loop for each event.
        buffer.event = here.event
        self._over = here.event()
        # Cancelled by a scope, as trio's tasks have no `cancel`, and asyncio's cancels only once.
        self._scope = here.cancel_scope()
        self._call_soon = here.threadsafe_caller()
        self._task = here.start(self._host, "pregel-async run", self._done)

    @property
    def was_cancelled(self) -> bool:
        """True if the run has ended after its stream was closed."""
        return self._cancelled and self._buffer.ended

    def start(self) -> _RunTask:
        """Return itself: the run has started."""
        return self

    async def _host(self) -> None:
        failure: tuple[BaseException, ...] = ()
        try:
            with self._scope:
                await self._work(self._buffer)
        except BaseException as error:
            # The reader raises the failure. On asyncio that includes a cancellation from outside of the stream. Trio's
            # Cancelled belongs to one task and must not be raised in another; trio cancels the reader's task itself.
            if self._loop.is_asyncio or not isinstance(error, anyio.get_cancelled_exc_class()):
                shorten_traceback(error)
                failure = (error,)
        finally:
            self._over.set()
            self._buffer.end(*failure)

    def _done(self, _: object) -> None:
        # A task that asyncio cancels before its first step never enters `_host`, so nothing else would end the buffer.
        if not self._over.is_set():
            self._over.set()
            self._buffer.end(cancelled_error())

    async def close(self) -> None:
        """Cancel the run and wait until it has ended, even if this wait is cancelled."""
        if not self._buffer.ended:
            self._cancelled = True
            self._scope.cancel()
        # A node may be waiting for the reader inside a shield, where the cancellation does not reach it.
        self._buffer.stop_reading()
        await wait_out(self._over)
        self._buffer.raise_failure()

    async def finish(self) -> None:
        """Wait until the run has ended by itself. Its parts are dropped."""
        self._buffer.stop_reading()
        await self._over.wait()
        self._buffer.raise_failure()

    def drop(self) -> bool:
        """Cancel the run from a finalizer, on any thread.

        Returns:
            True if the run was still running, and is cancelled for the first time.
        """
        if self._buffer.ended or self._dropped:
            return False
        self._dropped = True
        # A scope may only be cancelled on its own event loop. If the loop is closed, its tasks have ended with it.
        with contextlib.suppress(RuntimeError):
            self._call_soon(self._cancel)
        return True

    def _cancel(self) -> None:
        self._scope.cancel()
        self._buffer.stop_reading()
