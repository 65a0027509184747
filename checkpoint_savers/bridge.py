"""Waiting, on any event loop, for work that another thread does, and never returning before it is done.

A driver such as aiosqlite belongs to asyncio, and to one loop. A saver serves every loop of the process, so the driver
gets a thread with a loop of its own (`DriverThread`), and callers submit work to it and wait here (`wait_until_woken`).
Only this module knows how to wait on asyncio and how on trio.

Cancelling the waiting task does not end its wait: submitted work cannot be withdrawn, and a caller that sees its
cancellation must be able to rely on nothing being written any more. The cancellation is raised afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

import anyio
import anyio.lowlevel

from .records import Waiter as Waiter  # drivers import it from here, with the functions that use it
from .scopes import is_from_cancel_scope

T = TypeVar("T")


class WorkItem(Generic[T]):
    """Work that a caller waits for, and its result.

    Attributes:
        value: the value; None before the work has ended, and if it fails.
        error: the error; None if there is none.
        waiter: the caller that waits; None if no caller does.
    """

    __slots__ = ("error", "value", "waiter")

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: BaseException | None = None
        self.waiter: Waiter | None = None

    def result(self) -> T:
        """Return the value, or raise the error. The work has ended.

        Returns:
            The value.
        """
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else the error's traceback references this frame, and the frame the error: a cycle
        return cast("T", self.value)


def wake(waiters: Sequence[Waiter]) -> None:
    """Wake waiters, from any thread.

    Waiters of one loop are woken together, since each wake-up of a loop costs a system call.

    A waiter whose loop is closed is ignored.

    Args:
        waiters: callers that wait in `wait_until_woken`.
    """
    by_loop: dict[Callable[..., object], list[Callable[[], object]]] = {}
    for waiter in waiters:
        by_loop.setdefault(waiter.post, []).append(waiter.arrived)
    for post, arrived in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: its tasks are gone
            post(_call_all, arrived)


def _call_all(functions: list[Callable[[], object]]) -> None:
    for function in functions:
        function()


def loop_scheduler() -> Callable[..., object]:
    """Return a function that schedules calls on the running event loop, from any thread.

    Returns:
        The function. It raises RuntimeError if the loop has ended.
    """
    if _on_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def call_soon(function: Callable[[], object]) -> None:
    """Call a function in the next turn of the running event loop, in a context of its own.

    Args:
        function: the function, without arguments.
    """
    if _on_trio():
        loop_scheduler()(function)
    else:
        asyncio.get_running_loop().call_soon(function, context=Context())


def current_loop() -> object:
    """Return an object that identifies the running event loop; None outside of a task.

    Returns:
        asyncio's loop, or trio's token.
    """
    if _on_trio():
        import trio

        return trio.lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def running_library() -> str | None:
    """Return the kind of event loop that runs in this thread: "asyncio" or "trio"; None if none does."""
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            return "trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return "asyncio"


def block(start: Callable[[Waiter], None]) -> None:
    """Like `wait_until_woken`, for a thread in which no event loop runs.

    KeyboardInterrupt (Ctrl-C) is raised after the wait, too.

    Args:
        start: called with the waiter; hands it to the code that calls `wake`.
    """
    # A lock and no threading.Event, which is Python code: a KeyboardInterrupt in the middle of it may leave it in an
    # inconsistent state.
    gate, over = threading.Lock(), False
    gate.acquire()

    def arrived() -> None:
        nonlocal over
        over = True
        gate.release()

    start(callback_waiter(arrived))
    interrupted: BaseException | None = None
    while not over:
        try:
            gate.acquire()
        except BaseException as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


def callback_waiter(function: Callable[[], object]) -> Waiter:
    """Return a waiter that calls a function instead of waking a task.

    Args:
        function: called by `wake`, in the thread that calls it; must not raise.
    """
    return Waiter(_call_at_once, function)


def _call_at_once(
    function: Callable[[list[Callable[[], object]]], object], arrived: list[Callable[[], object]]
) -> None:
    function(arrived)


def wait_until_woken(start: Callable[[Waiter], None], *, shielded: bool = False) -> Awaitable[None]:
    """Call `start(waiter)`, and wait until `wake` is called with the waiter. Await the result at once.

    A cancellation of the caller, native or by a cancel scope, any number of times, is raised after the wait. If the
    caller's scope is cancelled already, `start` is not called.

    Args:
        start: hands the waiter to the code that calls `wake`. Its exceptions are raised to the caller.
        shielded: behave as inside a shielded cancel scope, for a tenth of its cost: `start` is called in a cancelled
            scope too, and the scope's cancellation is raised at the caller's next await.

    Returns:
        An awaitable of None.
    """
    return _wait_on_trio(start, shielded) if _on_trio() else _wait_on_asyncio(start, shielded)


def _on_trio() -> bool:
    """Return True if the caller is a trio task."""
    # Trio decides, and not asyncio: in trio's guest mode an asyncio loop runs in the same thread. A program that has
    # not imported trio need not import it for this.
    if "trio" not in sys.modules:
        return False
    import trio

    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


class _Arrival:
    """The state of a waiting asyncio task, which may be woken for another reason and then waits again."""

    __slots__ = ("over", "waiter")

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self.waiter = waiter
        self.over = False

    def __call__(self) -> None:
        self.over = True
        if not self.waiter.done():
            self.waiter.set_result(None)


async def _wait_on_asyncio(start: Callable[[Waiter], None], shielded: bool) -> None:
    if not shielded:
        await anyio.lowlevel.checkpoint_if_cancelled()
    loop = asyncio.get_running_loop()
    arrival = _Arrival(loop.create_future())
    start(Waiter(loop.call_soon_threadsafe, arrival))
    # Thousands of tasks may wait here at once, and the garbage collector traverses all that they hold again and again:
    # the closure and what it holds must not be among it.
    del start
    try:
        await arrival.waiter
    except asyncio.CancelledError as first:
        cancelled = first
    else:
        return
    # The shield stops anyio, which otherwise cancels the task in every turn of the loop until the task ends. It does
    # not stop `Task.cancel()`, which ends the await; the loop starts another. `Task.uncancel()` is never called, so
    # that `Task.cancelling()` counts correctly for `asyncio.timeout` and task groups. The last cancellation is raised:
    # a native one must not be mistaken for a scope's, since a scope swallows its own.
    with anyio.CancelScope(shield=True):
        while not arrival.over:
            arrival.waiter = loop.create_future()
            try:
                await arrival.waiter
            except asyncio.CancelledError as again:
                cancelled = again
    if not (shielded and is_from_cancel_scope(cancelled)):
        raise cancelled


async def _wait_on_trio(start: Callable[[Waiter], None], shielded: bool) -> None:
    import trio

    if not shielded:
        await trio.lowlevel.checkpoint_if_cancelled()
    token = trio.lowlevel.current_trio_token()
    arrived = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())

    def abort(_: object) -> trio.lowlevel.Abort:
        # A shielded scope would not do: Ctrl-C passes through it.
        return trio.lowlevel.Abort.FAILED

    start(Waiter(token.run_sync_soon, arrived))
    await trio.lowlevel.wait_task_rescheduled(abort)
    if not shielded:
        await trio.lowlevel.checkpoint_if_cancelled()


class DriverThread:
    """A thread with an asyncio loop of its own, which runs one coroutine and then ends.

    It is a daemon thread, and so are the threads that a driver starts from it: a program that forgot to close its saver
    can still exit. Acknowledged transactions are durable by then.

    Args:
        name: the thread's name.
        main: run once, on the thread's loop.
        loop_factory: creates the loop, if the driver needs a certain kind.
    """

    def __init__(
        self,
        name: str,
        main: Callable[[], Awaitable[None]],
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._main = main
        self._loop_factory = loop_factory
        self._lock = threading.Lock()
        self._ended = False
        self._waiting: list[Waiter] = []
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def forked(self) -> bool:
        """True if this process is a fork of the one that started the thread: the thread does not exist here."""
        return os.getpid() != self._pid

    async def join(self) -> None:
        """Wait until the coroutine and the thread have ended."""
        await wait_until_woken(self._wake_at_end)
        self._thread.join()  # blocks the loop, but only for microseconds: the thread's work is done

    def _wake_at_end(self, waiter: Waiter) -> None:
        with self._lock:
            if not self._ended:
                self._waiting.append(waiter)
                return
        wake((waiter,))

    def _run(self) -> None:
        async def main() -> None:
            await self._main()

        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(main())
        finally:
            with self._lock:
                self._ended = True
            wake(self._waiting)


class Host(Protocol):
    """What runs a driver: a `DriverThread`, or an event loop that the caller owns."""

    def start(self) -> None: ...

    @property
    def forked(self) -> bool: ...

    async def join(self) -> None: ...


class Hosted:
    """A driver that runs in a host, and is opened from any event loop.

    The code that runs there sets `_failure` if it could not open, and calls `_wake_opener` once it has opened or
    failed.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._failure: BaseException | None = None
        self._opener: Waiter | None = None  # the caller that waits in `open`
        self._started = False

    async def open(self) -> None:
        """Start the host, connect, and prepare. After an error or a cancellation nothing is left running.

        Raises:
            CheckpointError: the database could not be opened.
        """
        try:
            await wait_until_woken(self._start)
        except BaseException:  # cancelled: the wait above has ended, so the driver is open or has failed
            if self._started:
                with anyio.CancelScope(shield=True):
                    await self.close()
            raise
        if self._failure is not None:
            with anyio.CancelScope(shield=True):
                await self._host.join()
            raise self._failure

    async def close(self) -> None:
        """Finish the submitted work, and wait until the host has ended."""
        raise NotImplementedError

    def _start(self, waiter: Waiter) -> None:
        self._opener = waiter
        self._host.start()
        self._started = True

    def _wake_opener(self) -> None:
        waiter, self._opener = self._opener, None
        if waiter is not None:
            wake((waiter,))
