"""Where a coroutine runs that plain code waits for: on the process's one background loop, or on its worker's own.

A plain thread has no loop. Its coroutines run on an asyncio loop in a thread of its own, which is started by the first
call that needs it and stopped when the interpreter ends. A worker thread of anyio's or trio's has one: the loop that
waits for it. A coroutine runs there, so that it ends with the task that the thread works for.

A thread that runs a loop itself waits for the background loop too, and blocks its own meanwhile (`blocked_loop.py`).
Two threads may not, and are refused before anything runs:

- That of the background loop. It would wait for itself. A second background loop for it was considered: it would let
  such a call work, and stop the runs of all other threads, with the leases and timeouts of those runs.
- That of the loop which a node's run is on, for that node's code. The graph that it calls is a part of the run: it
  commits to the run's thread, shows its chunks to the run's readers and waits for them, and may have to wait for a
  commit that the run has begun. All of that belongs to the loop which would be blocked.

Each call waits for its coroutine, whatever happens: Ctrl-C cancels the coroutine, and is raised when it has ended. So
each task that is started here has an owner that outlives it: the thread that waits.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from checkpoint_savers.bridge import running_library
from checkpoint_savers.errors import annotate

from ...errors import SyncCallError
from ..observing.error_text import with_notes
from ..platform.event_loops import on_asyncio
from ..tasks.context import CURRENT, AttemptContext
from ..tasks.worker_threads import Fence
from .blocked_loop import NO_LOOP, WaitingThread, warn

T = TypeVar("T")

Work = Callable[[], Awaitable[T]]
"""Called on the loop, and awaited there."""

EXIT_GRACE = 5.0
"""Seconds that the end of the interpreter waits for runs of daemon threads, once they are cancelled."""


def portal_for_thread(called: str, instead: str) -> Portal | WorkerLoop:
    """Return where coroutines run for the calling thread.

    Args:
        called: what the user called, for the message.
        instead: what to write in async code.

    Raises:
        SyncCallError: the thread runs the background loop, or the loop of the run whose node has called.
    """
    check_thread(called, instead)
    for fence in _abandonable_fences(_current_attempts()):
        fence.check(called)
    if _process.forked_thread == threading.get_ident():
        return _current()  # the loop that this thread may have worked for is in another process
    if "trio" in sys.modules:
        import trio

        with contextlib.suppress(RuntimeError):  # no worker thread of trio's
            trio.from_thread.run_sync(_nothing)  # trio's own check would use up a Ctrl-C
            return WorkerLoop(trio.from_thread.run)
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:  # no worker thread of anyio's
        return _current()
    except asyncio.CancelledError:
        pass  # the call itself will be told
    return WorkerLoop(anyio.from_thread.run)


def _nothing() -> None:
    return None


def _current_attempts() -> Sequence[AttemptContext]:
    """The node that the running code belongs to; nothing outside of nodes."""
    attempt = CURRENT.get()
    return () if attempt is None else (attempt,)


def _abandonable_fences(attempts: Iterable[AttemptContext]) -> list[Fence]:
    """What is between nodes and worker threads that they may leave behind."""
    return [attempt.fence for attempt in attempts if attempt.fence.may_abandon]


def check_thread(called: str, instead: str) -> None:
    """Raise `SyncCallError` in a thread that must not wait for a coroutine."""
    library = running_library()
    if library is None:
        return
    for attempt in _current_attempts():
        if attempt.loop_thread == threading.get_ident():
            task = attempt.task
            raise SyncCallError(
                called,
                instead,
                library,
                node=task.node.name,
                reason=f"by node {task.node.name!r} (superstep {task.step}, task {task.id}) on the event loop "
                f"({library}) that its run is on, and would stop that run",
            )
    if any(portal.is_current_thread for portal in _process.portals):
        raise SyncCallError(
            called, instead, library, reason="on the background loop that it would run on, and would wait for itself"
        )


class Portal:
    """An asyncio loop in a daemon thread, which runs coroutines for any number of other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # between asking whether it is open, and giving it a job
        self._open = True
        self._silent = False
        self._jobs: set[_Job[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        # A daemon: else the interpreter would wait for it before it calls `atexit`. anyio's workers inherit that.
        self._thread = threading.Thread(target=self._run, name="pregel-async loop", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def is_current_thread(self) -> bool:
        """True in the thread that runs this loop."""
        return self._thread.ident == threading.get_ident()

    def call(self, work: Work[T], *, closes: bool = False, blocked: WaitingThread = NO_LOOP) -> T:
        """Run it with a copy of the caller's context, wait, and give back its result or raise what it raised.

        Args:
            blocked: the loop that runs in the calling thread, which stands still while it waits here.
        """
        job = _Job(work, self._on_job_end, blocked)
        with blocked.interruptible():
            try:
                self._submit(job)
                job.wait()
            except BaseException as error:  # Ctrl-C, what another signal's handler raised, or a warning made an error
                self._wait_out(job, blocked)
                job.annotate(error)
                raise
        return job.result()

    def _submit(self, job: _Job[Any]) -> None:
        with self._lock:
            if not self._open:
                raise RuntimeError("the background loop was stopped: the interpreter is ending")
            self._jobs.add(job)
            self._loop.call_soon_threadsafe(job.start)

    def _wait_out(self, job: _Job[Any], blocked: WaitingThread) -> None:
        """Cancel a job, and wait until it has ended, however often Ctrl-C is pressed; where a loop is blocked, once.

        The exception may have come at any moment of `_submit`. If the job's start was posted at all, that was before
        this cancellation is; so it has started by then, or never will.
        """
        while not job.done:
            try:
                self._loop.call_soon_threadsafe(job.cancel)
                job.wait()
            except RuntimeError:
                if self._loop.is_closed():
                    return
            except Warning:
                continue
            except BaseException:
                if blocked.abandons_run():
                    return

    def _on_job_end(self, job: _Job[Any]) -> None:
        with self._lock:
            self._jobs.discard(job)
            if not self._silent:
                job.release()

    def stop(self, grace: float) -> bool:
        """Cancel all that runs, and wait until the thread has ended, but no longer than `grace` seconds.

        To be called when the interpreter ends. Only daemon threads can be waiting for a run then. They are not told
        that it has ended: Python ends them in silence, and what they would say about it would come as noise.

        Returns:
            Whether the thread has ended.
        """
        self._silent = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(grace)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # From Python 3.12 on, closing an executor fails at this time: it would take a new thread.
        with contextlib.suppress(RuntimeError):
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends tasks and generators that are left
                main = runner.get_loop().create_task(self._main(), name="pregel-async loop")
                while not main.done():
                    # What somebody's task raised has reached whoever awaits that task. The loop has others to serve.
                    with contextlib.suppress(KeyboardInterrupt, SystemExit):
                        self._loop.run_until_complete(main)

    async def _main(self) -> None:
        await self._stopping.wait()
        with self._lock:
            self._open = False
            jobs = list(self._jobs)
        tasks = [task for job in jobs for task in job.cancel()]
        if tasks:
            await asyncio.wait(tasks)


class _Job(Generic[T]):
    """A coroutine on the loop, and the thread that waits for it."""

    def __init__(self, work: Work[T], on_end: Callable[[_Job[Any]], None], blocked: WaitingThread = NO_LOOP) -> None:
        self.done = False
        self._work = work
        self._blocked = blocked
        self._on_end = on_end
        self._context = _context_for_asyncio()
        # Not an `Event`, which is not made for exceptions that come in the middle of it, as Ctrl-C does.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._warnings: Sequence[str] = ()  # the last that is to be issued
        self._cancelled = False
        self._ended = False
        self._tasks: Sequence[asyncio.Task[None]] = ()  # its own, once it has started
        self._scopes: Sequence[anyio.CancelScope] = ()  # around the work, once it has begun
        self._values: list[T] = []  # what it gives
        self._errors: list[BaseException] = []  # or raises

    # ---- the waiting thread ------------------------------------------------------------------------------------------

    def wait(self) -> None:
        while not self.done:
            self._gate.acquire()
            messages, self._warnings = self._warnings, ()
            for message in messages:
                warn(message)

    def result(self) -> T:
        if self._errors:
            raise self._errors.pop()  # taken out: its traceback holds this frame
        return self._values.pop()

    def annotate(self, error: BaseException) -> None:
        """Tell what nobody would hear of: the run failed, and the thread raises something else."""
        while self._errors:
            failure = self._errors.pop()
            if isinstance(failure, Exception):
                annotate(error, f"and the call that was waited for had failed: {with_notes(failure)}")

    # ---- on the loop -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._ended:
            loop = asyncio.get_running_loop()
            self._tasks = (loop.create_task(self._host(), name="pregel-async call", context=self._context),)

    def cancel(self) -> Sequence[asyncio.Task[None]]:
        """Cancel it. Returns the task that has to end yet, if it has started."""
        self._cancelled = True
        for scope in self._scopes:
            scope.cancel()
        if not (self._tasks or self._ended):
            self._end()
        return self._tasks

    async def _host(self) -> None:
        try:
            if not self._cancelled:
                with anyio.CancelScope() as scope:
                    self._scopes = (scope,)
                    self._values.append(await self._blocked.watch(self._work, self.notify))
        except BaseException as error:
            self._errors.append(error)  # whatever it is: to the loop, Ctrl-C or a SystemExit would be its own end
        finally:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._on_end(self)

    def release(self) -> None:
        """Let the waiting thread go on."""
        self.done = True
        self._open_gate()

    def notify(self, message: str) -> None:
        """Have the waiting thread issue a warning: at the user's line, and where it can be made an error."""
        self._warnings = (message,)
        self._open_gate()

    def _open_gate(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open: the thread has not looked yet, and will see both
            self._gate.release()


def _context_for_asyncio() -> Context:
    """A copy of the context, which may be one that was copied in a trio task and says so."""
    context = copy_context()
    if "sniffio" in sys.modules:
        context.run(sys.modules["sniffio"].current_async_library_cvar.set, "asyncio")
    return context


class WorkerLoop:
    """The loop that waits for the calling thread, which works for one of its tasks.

    What runs there sees the thread's context variables, is cancelled with the task, and has ended when the thread goes
    on: so it has ended before the task does.
    """

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> None:
        self._run = run
        self._home: list[object] = []  # the loop, once something has run there

    def call(self, work: Work[T], *, closes: bool = False, blocked: WaitingThread = NO_LOOP) -> T:
        """As `Portal.call`. The cancellation error of the loop is raised as it is, for the waiting task to get it.

        Args:
            closes: the work ends something, so that it is done even when the task has been cancelled.
            blocked: a loop that the worker thread runs itself. It is not watched: the thread waits in anyio or trio,
                and cannot be woken there to issue a warning.
        """
        values: list[T] = []
        errors: list[BaseException] = []
        fences = _abandonable_fences(
            attempt for attempt in _current_attempts() if attempt.worker == threading.get_ident()
        )
        for fence in fences:
            work = partial(fence.admit, "a graph", work)

        async def boxed() -> None:
            # Boxed, because anyio makes another exception of a cancellation, one that `except Exception` catches.
            try:
                self._check()
                if not closes and on_asyncio() and anyio.current_effective_deadline() == float("-inf"):
                    return  # anyio tells a cancellation to those who are there, and nobody who comes later
                with _LentThreadSlot():
                    values.append(await work())
            except BaseException as error:
                errors.append(error)

        try:
            self._run(boxed)
        except concurrent.futures.CancelledError:  # before it began: the loop is being closed
            raise asyncio.CancelledError from None
        finally:
            for fence in fences:
                fence.check("a graph")
        if errors:
            raise errors.pop()
        if not values:
            anyio.from_thread.check_cancelled()
            raise asyncio.CancelledError
        return values[0]

    def rebound(self, worker: WorkerLoop) -> WorkerLoop:
        """The same loop, reached from another of its worker threads. `call` looks whether it is the same."""
        again = WorkerLoop(worker._run)
        again._home = self._home
        return again

    def _check(self) -> None:
        loop = _running()
        if not self._home:
            self._home.append(loop)
        if self._home[0] is not loop:
            raise RuntimeError(WRONG_LOOP_MESSAGE)


WRONG_LOOP_MESSAGE = (
    "this stream's run was started in a worker thread of an event loop, and belongs to that loop: "
    "read and close it in worker threads of the same loop"
)


def _running() -> object:
    """What identifies the running loop."""
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


class _LentThreadSlot:
    """A thread that waits for a coroutine lends its place among the loop's worker threads.

    Their number is limited. If all of them waited for runs whose nodes need one too, all would wait for ever.
    """

    def __enter__(self) -> None:
        self._limiter = anyio.to_thread.current_default_thread_limiter()
        self._limiter.total_tokens += 1

    def __exit__(self, *_: object) -> None:
        self._limiter.total_tokens -= 1


class _Process:
    """What there is once in a process, and therefore in a module."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.portals: tuple[Portal, ...] = ()  # the one that was started last, until the process ends
        self.ending = False
        self.registered = False
        self.inherited: list[Portal] = []  # those of processes that this one was forked of
        self.forked_thread: int | None = None

    def reset_after_fork(self) -> None:
        """In a child process after `fork()`: no thread but this one is here, and so no loop that another one ran."""
        self.lock = threading.Lock()
        self.forked_thread = threading.get_ident()
        # Kept, so that Python does not finalize the loop: it shares its selector with the parent's.
        self.inherited += self.portals
        self.portals = ()


_process = _Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.reset_after_fork)


def _current() -> Portal:
    """The process's portal, started if there is none."""
    for portal in _process.portals:
        if portal.is_open and not _process.ending:
            return portal
    if _process.ending and threading.current_thread().daemon:
        # Python is about to end this thread, wherever it is. Nothing that could be said here would be of use.
        while True:
            threading.Event().wait()
    with _process.lock:
        for portal in _process.portals:
            if portal.is_open:
                return portal
        portal = Portal()
        portal.start()
        _process.portals = (portal,)
        if not _process.registered:
            _process.registered = True
            atexit.register(_at_exit)
    return portal


def _at_exit() -> None:
    _process.ending = True
    with _process.lock:
        portals, _process.portals = _process.portals, ()
    for portal in portals:
        if not portal.stop(EXIT_GRACE):
            warnings.warn(
                f"a run of a daemon thread was cancelled and has not ended after {EXIT_GRACE:g} seconds: "
                "a function that it runs in a worker thread is left behind",
                ResourceWarning,
                stacklevel=1,
            )
