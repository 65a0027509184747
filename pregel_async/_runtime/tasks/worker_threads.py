"""Running a plain function in a worker thread, and never leaving before it has ended, unless it may be left behind."""

from __future__ import annotations

import contextlib
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
    """Do nothing: of what may be called at a certain moment."""


async def run_in_thread(call: Callable[[Any], Any], value: Any, stop: Callable[[], object] = do_nothing) -> Any:
    """Call the function in a worker thread, with a copy of the context; a cancelled caller waits for its end.

    Args:
        stop: called before that, on asyncio: what the thread waits for may have to be was_abandoned.
    """
    from anyio import to_thread

    if not on_asyncio():
        # Boxed: trio takes a function that returns an awaitable for a mistake, and here it may be meant.
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
                scope.cancel()  # what the thread in turn waits for on this loop: a graph that it invoked
                await wait_out(work.ended)
            raise
    raise AssertionError("a native cancellation is none of the scope's")


class _ThreadCall:
    """A call that is either given up before it starts, or waited for to its end."""

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
        """Whether the call is under way, so that its end has to be waited for."""
        with self._lock:
            under_way = self._started and not self._is_closed
            self._is_closed = True
            if not under_way:
                _drop(self._result)
            return under_way


def _drop(result: Any) -> None:
    """Drop what a call has returned and its caller will not get: a coroutine warns unless it is closed."""
    if isinstance(result, types.CoroutineType):
        result.close()


async def run_in_process(call: Callable[[Any], Any], value: Any, begin: Callable[[], None] = do_nothing) -> Any:
    """Call the function in a worker process, which is killed when the caller is cancelled.

    Args:
        call: a function that the process can import.
        value: what can be pickled; so can what it returns and raises.
        begin: called when a process is to be had, before the function; what it raises is raised here.
    """
    from anyio import to_process  # imported when used: it takes time

    try:
        async with to_process.current_default_process_limiter():
            begin()
            counted = anyio.CapacityLimiter(1)  # above
            return await to_process.run_sync(call, value, cancellable=True, limiter=counted)
    except anyio.BrokenWorkerProcess as error:
        error.add_note(
            "the worker process imports the main module too: what a script does goes under `if __name__ == '__main__':`"
        )
        raise


async def run_in_abandonable_thread(call: Callable[[Any], Any], value: Any, fence: AbandonFence) -> Any:
    """Call the function in a worker thread, with a copy of the context; a cancelled caller leaves the thread behind.

    Nothing of the thread reaches the run then: its result is dropped, its work on the event loop has ended before this
    call raises, and the fence refuses more. A `ResourceWarning` names the thread.
    """
    from anyio import to_thread

    work = _AbandonableCall(call, value)
    await work.limiter.acquire_on_behalf_of(work)
    # The places are counted here: on asyncio, anyio gives that of an abandoned thread away while the thread goes on.
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
    """A call that is given up before it starts, or goes on alone."""

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
        """In the thread. Boxed: trio takes a function that returns an awaitable for a mistake."""
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
            self._call_soon(self._release_slot)  # raises when the loop has ended; nobody is there to hear it then
        return (self._result,)

    def abandon(self) -> bool:
        """Whether the call is under way, so that it goes on alone."""
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
    """Between a run and a worker thread that it waits for: everything passes.

    Attributes:
        may_abandon: the thread may be left behind.
    """

    may_abandon = False

    def check(self, what: str) -> None:
        """Raise `OutsideRunError` when the thread was left behind."""

    def run(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do something on the event loop; for the thread, which waits."""
        from anyio import from_thread

        return from_thread.run(partial(self.admit, what, call))

    async def admit(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do it, on the event loop, and be cancelled with it when the thread is left behind."""
        return await call()

    def register_stream(self, stream: Closable) -> None:
        """The thread reads this stream; between its chunks, no code of the stream runs."""


NO_FENCE = Fence()


class AbandonFence(Fence):
    """Between a run and a worker thread that it may leave behind.

    What the thread does on the event loop goes through here. So it can be ended when the thread is left, and the thread
    does no more of it.

    Args:
        owner: the node, for messages.
    """

    may_abandon = True

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.closed = False
        self._running: dict[anyio.CancelScope, anyio.Event] = {}  # what is done, and its end
        self._streams: WeakSet[Closable] = WeakSet()

    def check(self, what: str) -> None:
        if self.closed:
            raise self._refusal(what)

    def run(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self.check(what)
        try:
            return super().run(what, call)
        except BaseException:
            if self.closed:
                raise self._refusal(what) from None
            raise

    async def admit(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self.check(what)
        scope = anyio.CancelScope()
        over = self._running[scope] = anyio.Event()
        try:
            with scope:
                return await call()
        finally:
            del self._running[scope]
            over.set()
        raise self._refusal(what)

    def register_stream(self, stream: Closable) -> None:
        self._streams.add(stream)

    async def close(self) -> None:
        """End what the thread does on the event loop, and wait until it has ended."""
        self.closed = True
        for scope in self._running:
            scope.cancel()
        await wait_out(*self._running.values())
        with anyio.CancelScope(shield=True):
            for stream in list(self._streams):
                with contextlib.suppress(Exception):  # its reader is gone
                    await stream.aclose()

    def _refusal(self, what: str) -> OutsideRunError:
        return OutsideRunError(
            f"{what} was called for {self.owner}, which was cancelled and has left its thread behind "
            "(abandon_on_cancel): operations of that thread no longer reach the run"
        )


class Closable(Protocol):
    """What is read on the event loop, chunk by chunk."""

    def aclose(self) -> Awaitable[None]:
        """End it; return when it has ended."""
        ...
