"""Run plain functions in worker threads and processes, and wait for their end unless they may be abandoned."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import anyio

from ...errors import OutsideRunError
from ..platform.event_loops import is_cancelled_error, loop, on_asyncio, wait_out

T = TypeVar("T")


def do_nothing() -> None:
    """Do nothing: the default of callbacks."""


async def run_in_thread(call: Callable[[Any], Any], value: Any, stop: Callable[[], object] = do_nothing) -> Any:
    """Call a function in a worker thread, with a copy of the context. A cancelled caller waits for the function's end.

    Args:
        call: the function.
        value: its argument.
        stop: called before a cancelled caller waits, on asyncio: cancels tasks that the thread may be waiting for.
    """
    # Imported when used: graphs of async nodes do not need it.
    from anyio import to_thread

    if not on_asyncio():
        # In a tuple: trio rejects a function that returns an awaitable, and nodes may return one.
        return (await to_thread.run_sync(lambda: (call(value),)))[0]
    work = _ThreadCall(call, value)
    with anyio.CancelScope() as scope:
        try:
            return await to_thread.run_sync(work.run)
        except BaseException as error:
            if not is_cancelled_error(error):
                raise
            # A cancel scope waits for the thread; asyncio's own `Task.cancel()` does not, and gets here at once.
            if work.abandon():
                stop()
                scope.cancel()  # ends calls of the thread on this loop, such as a graph that it invoked
                await wait_out(work.ended)
            raise
    raise AssertionError("a scope never swallows a native cancellation")


class _ThreadCall:
    """A call in a thread that is either dropped before it starts, or waited for until it ends."""

    def __init__(self, call: Callable[[Any], Any], value: Any) -> None:
        self._call = call
        self._value = value
        self._lock = threading.Lock()
        self._is_closed = False
        self._started = False
        self._result: Any = None
        self._post = loop().threadsafe_caller()
        self.ended = anyio.Event()

    def run(self) -> Any:
        # The lock decides races between the start of the thread and the cancellation: exactly one of them wins.
        with self._lock:
            if self._is_closed:
                return None
            self._started = True
        try:
            self._result = self._call(self._value)
            return self._result
        finally:
            with self._lock:
                was_abandoned = self._is_closed
                self._is_closed = True
            if was_abandoned:
                _drop(self._result)
                self._post(self.ended.set)

    def abandon(self) -> bool:
        """Stop expecting the result. Return True if the call is running, so that the caller must wait for `ended`."""
        with self._lock:
            under_way = self._started and not self._is_closed
            self._is_closed = True
            if not under_way:
                _drop(self._result)
            return under_way


def _drop(result: Any) -> None:
    """Discard a result that has no receiver. A coroutine is closed: Python warns of one that is never awaited."""
    if isinstance(result, types.CoroutineType):
        result.close()


async def run_in_process(call: Callable[[Any], Any], value: Any, begin: Callable[[], None] = do_nothing) -> Any:
    """Call a function in a worker process. The process is killed if the caller is cancelled.

    Args:
        call: a function that the process can import.
        value: its argument, which must be picklable, as must the result and exceptions.
        begin: called when a process is available, before the function. Its exceptions are raised here.

    Raises:
        NotImplementedError: the event loop cannot start processes (Windows).
    """
    from anyio import to_process  # imported when used: the import takes time

    if sys.platform == "win32" and on_asyncio():
        import asyncio

        if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):  # asyncio's own error has no message
            raise NotImplementedError(
                "on Windows, asyncio's SelectorEventLoop starts no processes: use on_timeout='process' on the default "
                "event loop"
            )
    try:
        async with to_process.current_default_process_limiter():
            begin()
            # Processes are counted above, so that `begin` runs while a slot is reserved; this limiter must not limit.
            counted = anyio.CapacityLimiter(1)
            return await to_process.run_sync(call, value, cancellable=True, limiter=counted)
    except anyio.BrokenWorkerProcess as error:
        error.add_note(
            "the worker process imports the main module too: what a script does goes under `if __name__ == '__main__':`"
        )
        raise


async def run_in_abandonable_thread(call: Callable[[Any], Any], value: Any, fence: AbandonFence) -> Any:
    """Call a function in a worker thread, with a copy of the context. A cancelled caller abandons the thread.

    An abandoned thread no longer affects the run: its result is dropped, its work on the event loop has ended before
    this call raises, and the fence refuses more. A `ResourceWarning` names the thread.
    """
    from anyio import to_thread

    work = _AbandonableCall(call, value)
    await work.limiter.acquire_on_behalf_of(work)
    # Threads are counted here: on asyncio, anyio frees the slot of an abandoned thread while the thread still runs, so
    # repeated timeouts would start threads without limit.
    uncounted = anyio.CapacityLimiter(1)
    try:
        result = await to_thread.run_sync(work.run, abandon_on_cancel=True, limiter=uncounted)
    except BaseException:
        if work.abandon():
            await fence.close()
            warnings.warn(
                f"{fence.owner} was cancelled and its function continues in worker thread {work.thread!r}: it was "
                "declared as abandonable (abandon_on_cancel, on_timeout='abandon'), so the run does not wait for it, "
                "and drops its result",
                ResourceWarning,
                stacklevel=1,
            )
        raise
    return result[0]


class _AbandonableCall:
    """A call in a thread that is dropped before it starts, or runs on after its caller has left."""

    def __init__(self, call: Callable[[Any], Any], value: Any) -> None:
        from anyio import to_thread

        self.limiter = to_thread.current_default_thread_limiter()
        self.thread = ""
        self._call = call
        self._value = value
        self._lock = threading.Lock()
        self._started = False
        self._is_closed = False
        self._result: Any = None
        self._call_soon = loop().threadsafe_caller()

    def run(self) -> tuple[Any]:
        """Call the function, in the worker thread. Return its result in a tuple, because trio rejects awaitables."""
        with self._lock:
            if self._is_closed:
                return (None,)
            self._started = True
        thread = threading.current_thread()
        self.thread = f"{thread.name} ({thread.ident})"
        try:
            self._result = self._call(self._value)
        finally:
            with self._lock:
                abandoned, self._is_closed = self._is_closed, True
            if abandoned:
                _drop(self._result)
            # Limiters are not thread-safe, so the loop frees the slot. If the loop has ended, this raises in a thread
            # that has no caller any more.
            self._call_soon(self._release_slot)
        return (self._result,)

    def abandon(self) -> bool:
        """Stop expecting the result. Return True if the call is running, and will run on without a caller."""
        with self._lock:
            under_way = self._started and not self._is_closed
            if not self._started and not self._is_closed:
                self._release_slot()
            self._is_closed = True
            if not under_way:
                _drop(self._result)
            return under_way

    def _release_slot(self) -> None:
        self.limiter.release_on_behalf_of(self)


class Fence:
    """Admits operations of a worker thread to its run. This one admits all, because the run waits for the thread.

    Attributes:
        may_abandon: True if the run may abandon the thread.
    """

    may_abandon = False

    def check(self, what: str) -> None:
        """Raise `OutsideRunError` if the thread was abandoned."""

    def run(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` on the event loop while the calling thread waits."""
        from anyio import from_thread

        return from_thread.run(partial(self.admit, what, call))

    async def admit(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` on the event loop. It is cancelled when the thread is abandoned."""
        return await call()

    def register_stream(self, stream: Closable) -> None:
        """Have a stream that the thread reads closed when the thread is abandoned."""
        # Between two reads no operation of the stream runs on the loop, so cancelling operations would not end it.


NO_FENCE = Fence()


class AbandonFence(Fence):
    """Admits operations of a worker thread to its run until the run abandons the thread.

    Args:
        owner: names the node in messages.
    """

    may_abandon = True

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.closed = False
        self._running: dict[anyio.CancelScope, anyio.Event] = {}  # running operations, and their ends
        self._streams: WeakSet[Closable] = WeakSet()

    def check(self, what: str) -> None:
        if self.closed:
            raise self._refusal(what)

    def run(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self.check(what)
        try:
            return super().run(what, call)
        except BaseException:
            # The operation was cancelled because the thread was abandoned: the thread itself is not being cancelled.
            if self.closed:
                raise self._refusal(what) from None
            raise

    async def admit(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self.check(what)
        scope = anyio.CancelScope()
        ended = self._running[scope] = anyio.Event()
        try:
            with scope:
                return await call()
        finally:
            del self._running[scope]
            ended.set()
        raise self._refusal(what)

    def register_stream(self, stream: Closable) -> None:
        self._streams.add(stream)

    async def close(self) -> None:
        """Cancel the thread's operations on the event loop and close its streams, and wait for their ends."""
        # Set first: operations that the thread starts from here on are refused.
        self.closed = True
        for scope in self._running:
            scope.cancel()
        await wait_out(*self._running.values())
        with anyio.CancelScope(shield=True):
            for stream in list(self._streams):
                with contextlib.suppress(Exception):  # the abandoned thread was its reader
                    await stream.aclose()

    def _refusal(self, what: str) -> OutsideRunError:
        return OutsideRunError(
            f"{what} was called for {self.owner}, which was cancelled and has left its thread behind "
            "(abandon_on_cancel): operations of that thread no longer reach the run"
        )


class Closable(Protocol):
    """A stream that is read on the event loop, chunk by chunk."""

    def aclose(self) -> Awaitable[None]:
        """Close the stream, and return when it has ended."""
        ...
