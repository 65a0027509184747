"""A stream: what a reader holds while a run goes on in a task of its own.

The run is started here and nowhere else, and the stream owns it: it ends before `aclose()`, the end of `async with`, or
    the
last `__anext__` returns. Reader and run share a pipe of bounded capacity. The stream itself is held by the reader
alone, so that Python drops it with the reader's last reference; the run is cancelled then.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio

from .log import Sink
from .loops import on_asyncio, starter, wait_out

T = TypeVar("T")

CAPACITY = 64
"""Chunks that wait for the reader; a run that is further ahead waits for it."""

Work = Callable[[Sink], Awaitable[Any]]
"""A run, given where to put its chunks."""


class GraphStream(Generic[T]):
    """The chunks of one run: an async iterator, best used as an async context manager too.

        async with graph.astream(input) as chunks:
            async for chunk in chunks:
                ...

    The run starts with the first read, or on entering. When the run fails, its exception follows the last chunk. When
    the stream is closed, or a read is cancelled, the run is cancelled, and has ended and cleaned up before control
    returns. A stream that is only dropped is cancelled too, but ends a little later, and warns.
    """

    def __init__(self, work: Work) -> None:
        self._pipe = _Pipe(work)
        self._reading = False

    def __aiter__(self) -> GraphStream[T]:
        return self

    async def __anext__(self) -> T:
        pipe = self._pipe
        if self._reading:
            raise RuntimeError("this stream is being read by another task: give each reader a stream of its own")
        self._reading = True
        try:
            while not pipe.chunks:
                if pipe.ended:
                    pipe.raise_failure()
                    raise StopAsyncIteration
                if not pipe.started:
                    pipe.start()
                    continue  # an eager task may have ended in there
                try:
                    await pipe.wait_for_chunk()
                except BaseException as error:
                    await self.__aexit__(type(error), error, None)
                    raise
            return pipe.take()  # type: ignore[no-any-return]  # the pipe carries what the modes make
        finally:
            self._reading = False

    async def __aenter__(self) -> GraphStream[T]:
        if not self._pipe.started:
            self._pipe.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Exception as failure:
            if error is None:
                raise
            with contextlib.suppress(Exception):  # an exception that refuses attributes
                error.add_note(f"and the stream's run had failed: {type(failure).__name__}: {failure}")

    async def aclose(self) -> None:
        """Cancel the run if it still goes on, and wait until it has ended. Chunks left unread are dropped.

        Raises:
            Exception: the run's failure, if it failed and nobody has been told.
        """
        await self._pipe.close()

    def __del__(self) -> None:
        self.drop("Use 'async with graph.astream(...) as chunks', or call aclose().")

    def drop(self, advice: str) -> None:
        """Cancel the run without waiting for it, and warn, if it still goes on. For finalizers, on any thread."""
        pipe = getattr(self, "_pipe", None)
        if pipe is not None and pipe.started and not pipe.ended and not pipe.dropped:
            pipe.cancel_soon()
            warnings.warn(
                f"a graph's stream was dropped before its end: its run is being cancelled. {advice}",
                ResourceWarning,
                stacklevel=3,
                source=self,
            )


class _Pipe:
    """What reader and run share. The run's task holds it, and not the stream."""

    def __init__(self, work: Work) -> None:
        self.chunks: deque[Any] = deque()
        self.started = False
        self.ended = False
        self.dropped = False
        self._work = work
        self._failure: BaseException | None = None
        self._filled: anyio.Event | None = None  # the reader waits
        self._waiting: deque[anyio.Event] = deque()  # tasks of the run that wait for room, one event each
        self._over: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._call_soon: Callable[[Callable[[], object]], object] | None = None

    # ---- the run's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the run in a task of its own."""
        self.started = True
        self._over = anyio.Event()
        self._scope = anyio.CancelScope()
        if on_asyncio():
            self._call_soon = asyncio.get_running_loop().call_soon_threadsafe
        else:
            import trio

            self._call_soon = trio.lowlevel.current_trio_token().run_sync_soon
        self._task = starter()(self._host, "pregel-async run")

    async def _host(self) -> None:
        assert self._scope is not None and self._over is not None
        try:
            with self._scope:
                await self._work(self)
        except BaseException as error:
            # It goes to the reader, who raises it. A cancellation that came from outside the stream does so on asyncio;
            # trio's must not cross tasks, and reaches the reader by its own.
            if on_asyncio() or not isinstance(error, anyio.get_cancelled_exc_class()):
                self._failure = error
        finally:
            self.ended = True
            self._over.set()
            if self._filled is not None:
                self._filled.set()

    def push(self, chunk: Any) -> None:
        """Take a chunk at once: its writer cannot wait. The run waits for the reader at its next own chunk."""
        self.chunks.append(chunk)
        if self._filled is not None:
            self._filled.set()

    async def put(self, chunk: Any) -> None:
        """Take a chunk when there is room for it."""
        while len(self.chunks) >= CAPACITY:
            room = anyio.Event()
            self._waiting.append(room)
            try:
                await room.wait()
            except BaseException:
                if room.is_set():
                    self._wake_one()  # the place that this one was given goes to another
                else:
                    self._waiting.remove(room)
                raise
        self.chunks.append(chunk)
        if self._filled is not None:
            self._filled.set()

    # ---- the reader's side -------------------------------------------------------------------------------------------

    async def wait_for_chunk(self) -> None:
        self._filled = anyio.Event()
        try:
            await self._filled.wait()
        finally:
            self._filled = None

    def take(self) -> Any:
        chunk = self.chunks.popleft()
        self._wake_one()
        return chunk

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()

    def raise_failure(self) -> None:
        """Raise what ended the run, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Cancel the run and wait until it has ended, come what may."""
        if not self.started:
            self.started = self.ended = True
            return
        assert self._scope is not None and self._over is not None
        if not self.ended:
            self._scope.cancel()
            await wait_out(self._over)
        self.chunks.clear()
        self.raise_failure()

    def cancel_soon(self) -> None:
        """Cancel the run from wherever Python drops the stream, a finaliser in another thread included."""
        assert self._scope is not None and self._call_soon is not None
        self.dropped = True
        try:
            self._call_soon(self._scope.cancel)
        except RuntimeError:
            return  # the loop is closed, and its tasks with it
