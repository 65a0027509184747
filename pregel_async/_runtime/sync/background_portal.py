"""Run coroutines for sync code: on the process's background loop, or on the loop of a worker thread.

A plain thread has no event loop. Its coroutines run on the background loop: an asyncio loop in a thread of its own,
which the first call starts and the end of the interpreter stops. A worker thread of anyio or trio has a loop that waits
for it. Its coroutines run on that loop, so that they end with the task for which the thread works.

A thread that runs a loop itself also uses the background loop, and blocks its own loop meanwhile (`blocked_loop.py`).
Two kinds of calls are refused before anything runs:

- Calls in the thread of the background loop: it would wait for itself. A second background loop was considered. The
  call would work, but block the runs of all other threads, with their leases and timeouts.
- Calls of a node's code in the thread of its run's loop. The called graph is a part of the run: it commits to the run's
  thread, publishes to the run's readers and waits for them, and may wait for a commit that the run has begun. All of
  that needs the loop that would be blocked.

Each call waits for its coroutine in any case: Ctrl-C cancels the coroutine, and is raised when the coroutine has ended.
So each task that is started here has an owner that outlives it: the waiting thread.
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

PortalWork = Callable[[], Awaitable[T]]
"""A callable whose result is awaited. Both happen on the loop."""

EXIT_GRACE = 5.0
"""Seconds that the end of the interpreter waits for the cancelled runs of daemon threads."""


def portal_for_thread(called: str, instead: str) -> Portal | WorkerLoop:
    """Return the object that runs coroutines for the calling thread.

    Args:
        called: the user's call, for the message.
        instead: the async code to write instead.

    Raises:
        SyncCallError: the thread runs the background loop, or the loop of the run whose node calls.
    """
    check_thread(called, instead)
    for fence in _abandonable_fences(_current_attempts()):
        fence.check(called)
    if _process.forked_thread == threading.get_ident():
        return _current()  # the loop for which this thread may have worked is in the parent process
    if "trio" in sys.modules:
        import trio

        with contextlib.suppress(RuntimeError):  # raised if this is no worker thread of trio
            trio.from_thread.run_sync(_nothing)  # trio's own check would use up a Ctrl-C
            return WorkerLoop(trio.from_thread.run)
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:  # raised if this is no worker thread of anyio
        return _current()
    except asyncio.CancelledError:
        pass  # the call raises it, after it has decided whether it must run nevertheless (`closes`)
    return WorkerLoop(anyio.from_thread.run)


def _nothing() -> None:
    return None


def _current_attempts() -> Sequence[AttemptContext]:
    """Return the attempt that the running code belongs to, or nothing outside of nodes."""
    attempt = CURRENT.get()
    return () if attempt is None else (attempt,)


def _abandonable_fences(attempts: Iterable[AttemptContext]) -> list[Fence]:
    """Return the fences of attempts that may abandon their worker threads."""
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
        self._lock = threading.Lock()  # makes the check of `_open` and the submission of a job atomic
        self._open = True
        self._silent = False
        self._jobs: set[_Job[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        # A daemon: otherwise the interpreter would wait for it before `atexit` could stop it. anyio's worker threads
        # inherit that.
        self._thread = threading.Thread(target=self._run, name="pregel-async loop", daemon=True)

    def start(self) -> None:
        """Start the thread of the loop."""
        try:
            self._thread.start()
        except BaseException:
            self._loop.close()
            raise

    @property
    def is_open(self) -> bool:
        """True if the loop accepts calls."""
        return self._open

    @property
    def is_current_thread(self) -> bool:
        """True in the thread that runs this loop."""
        return self._thread.ident == threading.get_ident()

    def call(self, work: PortalWork[T], *, closes: bool = False, blocked: WaitingThread = NO_LOOP) -> T:
        """Run work with a copy of the caller's context, wait, and return its result or raise its error.

        Args:
            work: the work.
            closes: not used here; see `WorkerLoop.call`.
            blocked: describes the calling thread, whose own event loop may be blocked during the wait.
        """
        job = _Job(work, self._on_job_end, blocked)
        with blocked.interruptible():
            try:
                self._submit(job)
                job.wait()
            except BaseException as error:  # Ctrl-C, an error of a signal handler, or a warning turned error
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
        """Cancel a job, and wait until it has ended. With a blocked loop, a second Ctrl-C ends the wait."""
        # The exception may have come at any moment of `_submit`. If the start of the job was posted at all, the post
        # came before this cancellation, and the loop runs both in this order: the job has started by then, or never
        # will.
        while not job.done:
            try:
                self._loop.call_soon_threadsafe(job.cancel)
                job.wait()
            except RuntimeError:
                if self._loop.is_closed():
                    return
            # A warning turned error, issued by the job: it does not end the wait.
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
        """Cancel all jobs, and wait until the thread has ended, at most `grace` seconds. For the interpreter's end.

        Args:
            grace: the maximum wait, in seconds.

        Returns:
            True if the thread has ended.
        """
        # Only daemon threads can be waiting for a run at this time. They are not woken: Python ends them silently, and
        # the errors that they would raise are noise.
        self._silent = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(grace)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # From Python 3.12 on, closing an executor fails at the interpreter's end, because no thread can start any more.
        with contextlib.suppress(RuntimeError):
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends remaining tasks and generators
                main = runner.get_loop().create_task(self._main(), name="pregel-async loop")
                while not main.done():
                    # Raised by a user's task, these leave `run_until_complete`, too. The code that awaits the task has
                    # received them, and the loop must go on for the other threads.
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
    """A coroutine on the loop, and the thread that waits for it.

    `wait`, `result` and `annotate` are for the waiting thread, and the other methods for the loop.
    """

    def __init__(
        self, work: PortalWork[T], on_end: Callable[[_Job[Any]], None], blocked: WaitingThread = NO_LOOP
    ) -> None:
        self.done = False
        self._work = work
        self._blocked = blocked
        self._on_end = on_end
        self._context = _context_for_asyncio()
        # A lock, and no `Event`: Ctrl-C may raise in the middle of `Event.wait`, which is Python code, and break it.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._warnings: Sequence[str] = ()  # the last warning that is to be issued
        self._cancelled = False
        self._ended = False
        self._tasks: Sequence[asyncio.Task[None]] = ()  # the job's task, once it has started
        self._scopes: Sequence[anyio.CancelScope] = ()  # the scope of the work, once it runs
        self._values: list[T] = []  # the result of the work
        self._errors: list[BaseException] = []  # or its error

    def wait(self) -> None:
        while not self.done:
            self._gate.acquire()
            messages, self._warnings = self._warnings, ()
            for message in messages:
                warn(message)

    def result(self) -> T:
        if self._errors:
            raise self._errors.pop()  # removed: its traceback refers to this frame, and would form a cycle
        return self._values.pop()

    def annotate(self, error: BaseException) -> None:
        """Add the failure of the run as a note to another error that the thread raises instead."""
        while self._errors:
            failure = self._errors.pop()
            if isinstance(failure, Exception):
                annotate(error, f"and the call that was waited for had failed: {with_notes(failure)}")

    def start(self) -> None:
        if not self._ended:
            loop = asyncio.get_running_loop()
            self._tasks = (loop.create_task(self._host(), name="pregel-async call", context=self._context),)

    def cancel(self) -> Sequence[asyncio.Task[None]]:
        """Cancel the job. Return its task, if it has started, so that the caller can wait for it."""
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
            self._errors.append(error)  # kept from the loop, which Ctrl-C or SystemExit would end
        finally:
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._on_end(self)

    def release(self) -> None:
        """Wake the waiting thread, because the job has ended."""
        self.done = True
        self._open_gate()

    def notify(self, message: str) -> None:
        """Have the waiting thread issue a warning."""
        # Not here: only the waiting thread has the user's line on its stack, and can raise a warning turned error.
        self._warnings = (message,)
        self._open_gate()

    def _open_gate(self) -> None:
        with contextlib.suppress(RuntimeError):  # the gate is open: the thread has not woken yet, and will see both
            self._gate.release()


def _context_for_asyncio() -> Context:
    """Return a copy of the context that is fit for asyncio."""
    context = copy_context()
    # A context copied in a trio task says that trio runs, and anyio would believe it.
    if "sniffio" in sys.modules:
        context.run(sys.modules["sniffio"].current_async_library_cvar.set, "asyncio")
    return context


class WorkerLoop:
    """The event loop for one of whose tasks the calling thread works.

    Coroutines on it see the thread's context variables, are cancelled with the task, and end before the thread
    continues, so before the task ends.

    Args:
        run: runs an async function on the loop, and waits.
    """

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> None:
        self._run = run
        self._home: list[object] = []  # the loop, once something has run there

    def call(self, work: PortalWork[T], *, closes: bool = False, blocked: WaitingThread = NO_LOOP) -> T:
        """Run work as `Portal.call` does. A cancellation of the task is raised unchanged, for the task to receive it.

        Args:
            work: the work.
            closes: True if the work closes something, so that it runs even if the task has been cancelled.
            blocked: not used here: the thread waits in anyio or trio, and could not be woken to issue a warning.
        """
        values: list[T] = []
        errors: list[BaseException] = []
        fences = _abandonable_fences(
            attempt for attempt in _current_attempts() if attempt.worker == threading.get_ident()
        )
        for fence in fences:
            work = partial(fence.admit, "a graph", work)

        async def boxed() -> None:
            # Errors travel in a list: anyio replaces a cancellation by an exception that `except Exception` catches.
            try:
                self._check()
                if not closes and on_asyncio() and anyio.current_effective_deadline() == float("-inf"):
                    # anyio cancels only calls that are running when the cancellation comes, and not later ones.
                    return
                with _LentThreadSlot():
                    values.append(await work())
            except BaseException as error:
                errors.append(error)

        try:
            self._run(boxed)
        except concurrent.futures.CancelledError:  # raised before the start, while the loop is being closed
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
        """Return an object for the same loop, but for another worker thread. `call` checks that the loop is the same.

        Args:
            worker: the object for the other thread.
        """
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
    """Return an object that identifies the running loop."""
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


class _LentThreadSlot:
    """Raises the limit of the loop's worker threads while one of them waits for a coroutine."""

    # If all threads waited for runs whose nodes need a thread, too, none of them would ever continue.

    def __enter__(self) -> None:
        self._limiter = anyio.to_thread.current_default_thread_limiter()
        self._limiter.total_tokens += 1

    def __exit__(self, *_: object) -> None:
        self._limiter.total_tokens -= 1


class _Process:
    """The state of this module: one background loop for each process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.portals: tuple[Portal, ...] = ()  # the one that was started last; none at the end of the process
        self.ending = False
        self.registered = False
        self.inherited: list[Portal] = []  # portals of parent processes
        self.forked_thread: int | None = None

    def reset_after_fork(self) -> None:
        """Forget the loop of the parent process, in a child after `fork()`, which has only the forking thread."""
        # A new lock: another thread of the parent may have held the old one, and does not exist here to release it.
        self.lock = threading.Lock()
        self.forked_thread = threading.get_ident()
        # The reference keeps Python from finalizing the loop, which shares its selector with the parent's.
        self.inherited += self.portals
        self.portals = ()


_process = _Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.reset_after_fork)


def _current() -> Portal:
    """Return the process's portal, and start one if there is none."""
    for portal in _process.portals:
        if portal.is_open and not _process.ending:
            return portal
    if _process.ending and threading.current_thread().daemon:
        # Python is about to end this daemon thread. An error raised here would only be noise.
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
