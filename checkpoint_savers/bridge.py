"""Waiting, on any event loop, for something that another thread does, and never leaving before it is done.

A driver such as aiosqlite belongs to asyncio, and to one loop. A saver serves every loop of the process, so the
driver gets a thread with a loop of its own (`DriverThread`), and callers hand work to it and wait here
(`wait_until_woken`).
This is the one place that knows how to wait on asyncio and how on trio.

Cancelling the waiting task does not end its wait: what was handed over cannot be taken back, and whoever is told
"cancelled" must be able to rely on nothing being written any more. The cancellation goes on afterwards.
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
from typing import NamedTuple, Protocol

import anyio
import anyio.lowlevel

from .scopes import is_from_cancel_scope


class Waiter(NamedTuple):
    """Somebody who waits in `wait_until_woken`. To be given to `wake` once, from any thread.

    Attributes:
        post: has something called on the waiter's loop.
        arrived: is to be called there.
    """

    post: Callable[..., object]
    arrived: Callable[[], object]


def wake(waiters: Sequence[Waiter]) -> None:
    """Let waiters go on. Those of one loop are woken together: a wake-up costs a system call."""
    by_loop: dict[Callable[..., object], list[Callable[[], object]]] = {}
    for waiter in waiters:
        by_loop.setdefault(waiter.post, []).append(waiter.arrived)
    for post, arrived in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed under its tasks: nobody is left to be told
            post(_call_all, arrived)


def _call_all(functions: list[Callable[[], object]]) -> None:
    for function in functions:
        function()


def loop_scheduler() -> Callable[..., object]:
    """What calls a function on the running event loop, from any thread. It raises RuntimeError when the loop has
    ended."""
    if _on_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def call_soon(function: Callable[[], object]) -> None:
    """Have a function called in the next turn of the running event loop, in a context of its own."""
    if _on_trio():
        loop_scheduler()(function)
    else:
        asyncio.get_running_loop().call_soon(function, context=Context())


def current_loop() -> object:
    """What identifies the event loop of the running task: asyncio's loop, or trio's token; None outside of a task."""
    if _on_trio():
        import trio

        return trio.lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def running_library() -> str | None:
    """Which kind of event loop runs in this thread, "asyncio" or "trio"; None if none does."""
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
    """As `wait_until_woken`, for a thread in which no event loop runs. Ctrl-C is raised after that, too."""
    gate, over = threading.Lock(), False  # no Event, which is not made for exceptions that come in the midst of it
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
    """A waiter that is no task: who tells it calls the function, which raises nothing."""
    return Waiter(_call_at_once, function)


def _call_at_once(
    function: Callable[[list[Callable[[], object]]], object], arrived: list[Callable[[], object]]
) -> None:
    function(arrived)


def wait_until_woken(start: Callable[[Waiter], None], *, shielded: bool = False) -> Awaitable[None]:
    """Call `start(waiter)`, and return when `wake` has been called with the waiter. Await it at once.

    Whatever cancels the caller meanwhile, natively or by a cancel scope, any number of times, is raised after that.
    A caller that is in a cancelled scope already never gets to `start`. What `start` raises goes to the caller.

    Args:
        shielded: as inside a shielded cancel scope, for a tenth of its price: `start` is called in a cancelled scope
            too, whose cancellation is told where the caller waits next.
    """
    return _wait_on_trio(start, shielded) if _on_trio() else _wait_on_asyncio(start, shielded)


def _on_trio() -> bool:
    """Whether the caller is a trio task. Trio is asked: where it is a guest of asyncio, there is an asyncio loop
    too."""
    if "trio" not in sys.modules:
        return False
    import trio

    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


class _Arrival:
    """What a task of asyncio's waits for. The task may be woken for another reason, and wait again."""

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
    del start  # thousands may wait here at once, and what they hold Python's collector goes through again and again
    try:
        await arrival.waiter
    except asyncio.CancelledError as first:
        cancelled = first
    else:
        return
    # The shield stops anyio, which cancels the task in every turn of the loop until it gives in. It has no hold
    # over `Task.cancel()`: those end the await, and it starts again. Nothing is uncancelled, so `Task.cancelling()`
    # counts right for `asyncio.timeout` and task groups. The last one is raised: a native one must not be mistaken
    # for a scope's, which swallows its own.
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
        return trio.lowlevel.Abort.FAILED  # not even Ctrl-C, which goes through a shield

    start(Waiter(token.run_sync_soon, arrived))
    await trio.lowlevel.wait_task_rescheduled(abort)
    if not shielded:
        await trio.lowlevel.checkpoint_if_cancelled()


class DriverThread:
    """A thread with an asyncio loop of its own, for as long as one coroutine runs there.

    It is a daemon, and so are the threads that a driver starts from it: a program that forgot to close its saver still
    ends. What was acknowledged is durable by then.

    Args:
        name: of the thread.
        main: run once, on the thread's loop.
        loop_factory: makes the loop, where it has to be of a certain kind.
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
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that started the thread: there is no thread here."""
        return os.getpid() != self._pid

    async def join(self) -> None:
        """Wait until the coroutine has ended and the thread is gone."""
        await wait_until_woken(self._wake_at_end)
        self._thread.join()  # it has nothing left to do: this takes microseconds

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
    """Where a driver runs: a `DriverThread`, or an event loop that the caller owns."""

    def start(self) -> None: ...

    @property
    def forked(self) -> bool: ...

    async def join(self) -> None: ...


class Hosted:
    """A driver that runs in a host, and is opened from any event loop.

    What runs there sets `_failure` if it could not open, and calls `_wake_opener` when it has opened or failed.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._failure: BaseException | None = None
        self._opener: Waiter | None = None  # the caller that waits in `open`
        self._started = False

    async def open(self) -> None:
        """Start the host, connect, and prepare. After an error nothing is left running."""
        try:
            await wait_until_woken(self._start)
        except BaseException:  # cancelled
            if self._started:
                with anyio.CancelScope(shield=True):
                    await self.close()
            raise
        if self._failure is not None:
            with anyio.CancelScope(shield=True):
                await self._host.join()
            raise self._failure

    async def close(self) -> None:
        """Let what was handed in finish, and wait until the host has ended."""
        raise NotImplementedError

    def _start(self, waiter: Waiter) -> None:
        self._opener = waiter
        self._host.start()
        self._started = True

    def _wake_opener(self) -> None:
        waiter, self._opener = self._opener, None
        if waiter is not None:
            wake((waiter,))
