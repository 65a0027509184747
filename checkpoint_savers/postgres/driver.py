"""The event loop on which psycopg runs, and the way to it from any other loop.

A pool of psycopg's belongs to one asyncio loop. For a pool that the saver made, that is the loop of a thread that the
saver starts. A pool that a user opened belongs to the user's loop, and one task of the saver's does the work there.
Either way, callers submit work from whichever loop they are on, and wait in `bridge.wait_until_woken`.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ..bridge import DriverThread, Hosted, Waiter, WorkItem, wait_until_woken, wake
from ..errors import SaverClosedError
from .connections import Source
from .failures import translate

T = TypeVar("T")


class Driver(Hosted):
    """The loop of a pool, while a saver is open.

    Args:
        source: opened there.
        prepare: awaited there, before the first work. If it raises, the saver does not open.
        closing: called there when the saver is about to close.
        class_name: the class that the loop belongs to, in the name of a thread that is started.

    Attributes:
        lock: makes "is the saver open?" and "submit the work" one step.
    """

    def __init__(
        self,
        source: Source,
        prepare: Callable[[], Awaitable[None]],
        closing: Callable[[], None],
        *,
        class_name: str = "PostgresSaver",
    ) -> None:
        self.source = source
        self.lock = threading.Lock()
        self._prepare = prepare
        self._on_closing = closing
        if source.user_pool is None:
            # On Windows, psycopg does not support the default loop (proactor).
            factory = asyncio.SelectorEventLoop if sys.platform == "win32" else None
            super().__init__(DriverThread(f"{class_name} {source.name}", self._drive, loop_factory=factory))
        else:
            super().__init__(GuestTask(self._drive))
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop's own context: in a caller's, libraries would take that caller's loop for the running one.
        self._context: contextvars.Context | None = None
        self._group: asyncio.TaskGroup | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = False
        self._open = self._was_open = False
        self._accepted: set[WorkItem[Any]] = set()

    # The methods down to `closed` are called from any thread, so what they share with the loop is under the lock.

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await something on the driver's loop, and return its value or raise its error, translated.

        Args:
            work: called and awaited on that loop.

        Returns:
            What it returned.

        Raises:
            SaverClosedError: the saver is not open, or belongs to another process.
        """
        job: WorkItem[T] = WorkItem()

        async def do() -> None:
            try:
                job.value = await work()
            except Exception as error:
                job.error = translate(error, self.source.name)
            self.complete((job,))

        await wait_until_woken(lambda waiter: self.submit(job, waiter, lambda: self.post(do)))
        return job.result()

    def submit(self, work: WorkItem[Any], waiter: Waiter, begin: Callable[[], None]) -> None:
        """Accept work, from any thread. `complete` must be called with it later.

        Args:
            work: the work.
            waiter: woken by `complete`.
            begin: called under the lock. If it raises, nothing was accepted.

        Raises:
            SaverClosedError: the saver is not open, or belongs to another process.
        """
        if self._host.forked:  # checked before the lock, which another thread of the parent may have held at the fork
            raise self.closed()
        with self.lock:
            if not self._open:
                raise self.closed()
            begin()
            work.waiter = waiter
            self._accepted.add(work)

    def start_in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start work for which no caller waits, from any thread.

        Args:
            work: called and awaited on the driver's loop.

        Raises:
            SaverClosedError: the saver is not open, or belongs to another process.
        """
        if self._host.forked:
            raise self.closed()
        with self.lock:
            if not self._open:
                raise self.closed()
            self.post(work)

    def complete(self, works: Iterable[WorkItem[Any]]) -> None:
        """Wake the callers of work that has its value or error.

        Args:
            works: the work; what is not accepted, or was completed before, is ignored.
        """
        with self.lock:
            # A waiter may be woken once only, and closing has failed and woken what was still accepted.
            done = self._accepted.intersection(works)
            self._accepted -= done
        wake([work.waiter for work in done if work.waiter is not None])

    def post(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start work on the loop, from any thread, under the lock.

        Args:
            work: called and awaited on the driver's loop.

        Raises:
            SaverClosedError: the loop has been closed.
        """
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self.begin, work, context=self._context)
        except RuntimeError as error:  # the user's loop was closed while the saver was open
            self._open = False
            raise self.closed() from error

    async def close(self) -> None:
        """Finish the work that was accepted, close what was opened, and wait until the loop's part has ended.

        Raises:
            StorageError: what ended that part before, if something did.
        """
        # The thread or loop exists in the parent process only: nothing would ever end the wait.
        if self._host.forked:
            return
        self.stop()
        await self._host.join()
        if self._was_open and self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin to close, without waiting. May be called from a finalizer: it takes no lock."""
        self._open = False
        self._stopped = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    @property
    def is_open(self) -> bool:
        """True from the end of `open` until `close` or `stop`, in the process that opened it."""
        return self._open and not self._host.forked

    def closed(self) -> SaverClosedError:
        """Return the error for a saver that is not open.

        Returns:
            The error.
        """
        return SaverClosedError(
            f"{self.source.name}: the saver is not open in this process: use it inside "
            "'async with PostgresSaver.from_conn_string(...)', or 'with open_sync(...)'"
        )

    # The two methods below run on the driver's loop.

    async def _drive(self) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._context = contextvars.copy_context()
            async with self.source.open():
                await self._prepare()
                # A group, so that closing waits for all running work, and the pool is closed after the last of it.
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    with self.lock:
                        # `stop` may have been called already, by a finalizer or a cancelled `open`.
                        self._open = self._was_open = not self._stopped
                    self._wake_opener()
                    if self._open:
                        await self._stop.wait()
                    self._on_closing()
        except Exception as error:
            self._failure = translate(error, self.source.name)
        except BaseException:  # the user's loop is ending: its tasks are cancelled
            if not self._was_open:
                self._failure = self.closed()
            raise
        finally:
            with self.lock:
                self._open = False
                left = tuple(self._accepted)
            # Whatever ended the loop, each accepted caller gets an error: no other code would wake it.
            for work in left:
                work.error = self.closed()
                work.error.__cause__ = self._failure
            self.complete(left)
            self._wake_opener()

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start work that closing waits for. Called on the loop itself, while other work is running.

        Args:
            work: called, and awaited in a task.
        """
        assert self._group is not None
        self._group.create_task(work())


class GuestTask:
    """A task on a user's event loop: the counterpart of `DriverThread`.

    Args:
        main: run once.
    """

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._waiting: list[Waiter] = []
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the task, on the running loop.

        Raises:
            SaverClosedError: no asyncio loop runs here.
        """
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise SaverClosedError(
                "a pool belongs to the loop of asyncio on which it was opened: open the saver there too. "
                "From then on it serves every loop, trio's as well"
            ) from error
        # Not in a task group: the code that opens the saver may end long before the code that closes it starts.
        self._task = self._loop.create_task(self._run())

    @property
    def forked(self) -> bool:
        """True if this process is a child of the one that started the task."""
        return os.getpid() != self._pid

    async def join(self) -> None:
        """Wait until the task has ended."""
        await wait_until_woken(self._wake_at_end)

    def _wake_at_end(self, waiter: Waiter) -> None:
        with self._lock:
            # A closed loop never runs the task's end, so waiting for it would never end.
            if not (self._ended or self._loop is None or self._loop.is_closed()):
                self._waiting.append(waiter)
                return
        wake((waiter,))

    async def _run(self) -> None:
        try:
            await self._main()
        finally:
            with self._lock:
                self._ended = True
            wake(self._waiting)
