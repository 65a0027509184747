"""The event loop on which psycopg works, and the way to it from any other.

A pool of psycopg's belongs to one loop of asyncio. For a pool of the saver's own that is the loop of a thread that the
saver starts. A pool that a user has opened belongs to the user's loop, and the work is done there, by one task of the
saver's. Either way callers hand in what is to be done, from whichever loop they are on, and wait as `bridge` has it.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar, cast

from ..bridge import DriverThread, Hosted, Waiter, tell, until
from ..errors import SaverClosedError
from .connections import Source
from .failures import translate

T = TypeVar("T")


class WorkItem(Generic[T]):
    """Something that a caller waits for, and what came of it."""

    __slots__ = ("error", "value", "waiter")

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: BaseException | None = None
        self.waiter: Waiter | None = None

    def result(self) -> T:
        """What came of it: the value, or the error is raised."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else the error's traceback holds this frame, and that the error
        return cast("T", self.value)


class Driver(Hosted):
    """The loop of a pool, while a saver is open.

    Args:
        source: opened there.
        prepare: awaited there, before the first work. What it raises keeps the saver from opening.
        closing: called there when the saver is about to close.
        maker: the class whose loop it is: a thread that is started has its name.

    Attributes:
        lock: between asking whether the saver is open, and handing in work.
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
            # On Windows, psycopg cannot do with the kind of loop that is usual there.
            factory = asyncio.SelectorEventLoop if sys.platform == "win32" else None
            super().__init__(DriverThread(f"{class_name} {source.name}", self._drive, loop_factory=factory))
        else:
            super().__init__(GuestTask(self._drive))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None  # the loop's own: a caller's would say that this is his loop
        self._group: asyncio.TaskGroup | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = False
        self._open = self._was_open = False
        self._accepted: set[WorkItem[Any]] = set()

    # ---- for callers, on any loop ----------------------------------------------------------------------------

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have something awaited on the driver's loop, and return its value or raise its error, translated.

        Raises:
            SaverClosedError: the saver is not open, or is in another process.
        """
        job: WorkItem[T] = WorkItem()

        async def do() -> None:
            try:
                job.value = await work()
            except Exception as error:
                job.error = translate(error, self.source.name)
            self.complete((job,))

        await until(lambda waiter: self.submit(job, waiter, lambda: self.post(do)))
        return job.result()

    def submit(self, work: WorkItem[Any], waiter: Waiter, begin: Callable[[], None]) -> None:
        """Take something in, from any thread: somebody will call `complete` with it.

        Args:
            begin: called under the lock. When it raises, nothing was taken in.

        Raises:
            SaverClosedError
        """
        if self._host.forked:  # asked before the lock: another thread of the parent may have held it
            raise self.closed()
        with self.lock:
            if not self._open:
                raise self.closed()
            begin()
            work.waiter = waiter
            self._accepted.add(work)

    def start_in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin something for which nobody waits, from any thread.

        Raises:
            SaverClosedError
        """
        if self._host.forked:
            raise self.closed()
        with self.lock:
            if not self._open:
                raise self.closed()
            self.post(work)

    def complete(self, works: Iterable[WorkItem[Any]]) -> None:
        """Let those go on who wait for these: what came of them is known."""
        with self.lock:
            done = self._accepted.intersection(works)
            self._accepted -= done
        tell([work.waiter for work in done if work.waiter is not None])

    def post(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin work on the loop, from any thread, under the lock.

        Raises:
            SaverClosedError
        """
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self.begin, work, context=self._context)
        except RuntimeError as error:  # the user's loop was closed under its tasks
            self._open = False
            raise self.closed() from error

    async def close(self) -> None:
        """Let what was handed in finish, close what was opened, and wait until all of that has ended. Raises what ended
        it before, if something did."""
        if self._host.forked:
            return
        self.stop()
        await self._host.join()
        if self._was_open and self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin to close, without waiting. May be called from a finalizer: takes no lock."""
        self._open = False
        self._stopped = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    @property
    def is_open(self) -> bool:
        return self._open and not self._host.forked

    def closed(self) -> SaverClosedError:
        return SaverClosedError(
            f"{self.source.name}: the saver is not open in this process: use it inside "
            "'async with PostgresSaver.from_conn_string(...)', or 'with open_sync(...)'"
        )

    # ---- on the driver's loop --------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._context = contextvars.copy_context()
            async with self.source.open():
                await self._prepare()
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    with self.lock:
                        self._open = self._was_open = not self._stopped
                    self._tell_opener()
                    if self._open:
                        await self._stop.wait()
                    self._on_closing()
        except Exception as error:
            self._failure = translate(error, self.source.name)
        except BaseException:  # the user's loop comes to its end
            if not self._was_open:
                self._failure = self.closed()
            raise
        finally:
            with self.lock:
                self._open = False
                left = tuple(self._accepted)
            for work in left:
                work.error = self.closed()
                work.error.__cause__ = self._failure
            self.complete(left)
            self._tell_opener()

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin work that the saver waits for when it closes. On the loop itself, and while other work is going on."""
        assert self._group is not None
        self._group.create_task(work())


class GuestTask:
    """A task on an event loop that is somebody else's: the counterpart of `DriverThread`.

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
        """Begin, on the running loop.

        Raises:
            SaverClosedError: there is no loop of asyncio here.
        """
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise SaverClosedError(
                "a pool belongs to the loop of asyncio on which it was opened: open the saver there too. "
                "From then on it serves every loop, trio's as well"
            ) from error
        # Not in a task group: what opens the saver may end long before what closes it begins.
        self._task = self._loop.create_task(self._run())

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    async def join(self) -> None:
        """Wait until it has ended."""
        await until(self._wake_at_end)

    def _wake_at_end(self, waiter: Waiter) -> None:
        with self._lock:
            if not (self._ended or self._loop is None or self._loop.is_closed()):
                self._waiting.append(waiter)
                return
        tell((waiter,))

    async def _run(self) -> None:
        try:
            await self._main()
        finally:
            with self._lock:
                self._ended = True
            tell(self._waiting)
