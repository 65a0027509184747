"""The operations that differ between asyncio and trio. Each of them is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from checkpoint_savers.scopes import is_from_cancel_scope

if TYPE_CHECKING:
    import asyncio

    from anyio.abc import TaskGroup


def on_asyncio() -> bool:
    """Return True if the running task is a task of asyncio."""
    # Not imported here: with trio alone, the import of asyncio would cost start-up time.
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class WaitableEvent(Protocol):
    """The common interface of the events of asyncio, trio and anyio."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of the running event loop. A run looks them up once (`loop`).

    Attributes:
        is_asyncio: True for asyncio, False for trio.
        start: starts a task outside of any task group, given its work, name and callback. The work must not raise.
            The caller owns the task: it keeps the returned object while the task runs, cancels the task by a scope that
            the work enters, and waits until the task has ended. On asyncio the callback is called when the task is
            done, also if `Task.cancel()` hit it before its first step, so that the work never ran.
        turn: yields to the loop, and notices a cancellation.
        current_task: returns the running task.
        event: makes an event.
        cancel_scope: makes a cancel scope: the class of anyio's backend, so that no scope looks up the running loop.
        threadsafe_caller: returns a function that calls another one on this loop, from any thread. The call raises
            `RuntimeError` if the loop has ended.
    """

    # Why `start` exists, and not a task group: a reader's task cannot host its stream's run, nor a node the tasks that
    # it calls, because no group can stay open there. A commit with "async" is never cancelled, and its lease waits for
    # it: there a group with its scope would be most of the cost.

    is_asyncio: bool
    start: Callable[[Callable[[], Coroutine[Any, Any, None]], str, Callable[[object], object]], object]
    turn: Callable[[], Awaitable[None]]
    current_task: Callable[[], object]
    event: Callable[[], WaitableEvent]
    cancel_scope: Callable[[], anyio.CancelScope]
    threadsafe_caller: Callable[[], Callable[[Callable[[], object]], object]]


def loop() -> Loop:
    """Return the operations of the running event loop. Call it in a task; callbacks may use the result, too."""
    return _on_asyncio() if on_asyncio() else _on_trio()


@cache
def _on_asyncio() -> Loop:
    import asyncio

    def start(work: Callable[[], Coroutine[Any, Any, None]], name: str, done: Callable[[object], object]) -> object:
        task = asyncio.get_running_loop().create_task(work(), name=name)
        task.add_done_callback(done)
        return task

    return Loop(
        is_asyncio=True,
        start=start,
        turn=partial(asyncio.sleep, 0),  # anyio's `checkpoint` looks up the event loop in each call
        current_task=asyncio.current_task,
        event=asyncio.Event,
        cancel_scope=type(anyio.CancelScope()),
        threadsafe_caller=lambda: asyncio.get_running_loop().call_soon_threadsafe,
    )


@cache
def _on_trio() -> Loop:
    import trio

    def start(work: Callable[[], Coroutine[Any, Any, None]], name: str, done: Callable[[object], object]) -> object:
        # The callback is not needed: a system task of trio always begins, and so reports its own end.
        return trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())

    return Loop(
        is_asyncio=False,
        start=start,
        turn=anyio.lowlevel.checkpoint,
        current_task=trio.lowlevel.current_task,
        event=trio.Event,
        cancel_scope=type(anyio.CancelScope()),
        threadsafe_caller=lambda: trio.lowlevel.current_trio_token().run_sync_soon,
    )


class NativeCancellations:
    """Counts the cancellations of a task by asyncio's own `Task.cancel()` since this object was made; none on trio.

    Attributes:
        count: returns the current number of native cancellations of the task.
        before: the number when this object was made.
        host: the task whose cancellations are counted; None if none are.
    """

    # A scope raises its cancellation at each checkpoint. A native one is raised once, and a node may swallow it: then
    # `Task.cancelling()` is the only trace that the run was cancelled.

    def __init__(self, count: Callable[[], int] = int, host: object = None) -> None:
        self.count = count
        self.host = host
        self.before = count()

    def __call__(self) -> bool:
        """Return True if the task has been cancelled natively since this object was made."""
        return self.count() > self.before

    def discount_group_cancellations(self, thrown: Iterable[BaseException]) -> None:
        """Subtract the cancellations by which an `asyncio.TaskGroup` woke its own task after the failure of a child.

        Args:
            thrown: the native cancellations that were thrown into code that has ended since.
        """
        # They are no cancellations of the run, but before Python 3.13 the group leaves them in the task's count. Such a
        # cancellation ends where the group waits for its children. A cancellation of the run during that wait is raised
        # again afterwards, except if a child fails meanwhile: asyncio raises the failure instead, and it is subtracted
        # here, too.


NEVER_CANCELLED = NativeCancellations()
"""For work that has a task of the event loop to itself: no native cancellation there is one of the run."""


class _AsyncioCancellations(NativeCancellations):
    def __init__(self, task: asyncio.Task[Any]) -> None:
        super().__init__(task.cancelling, task)
        self._task = task

    def discount_group_cancellations(self, thrown: Iterable[BaseException]) -> None:
        for _ in _group_exits(thrown):
            self._task.uncancel()


def native_cancellations(loop: Loop) -> NativeCancellations:
    """Return a counter of the native cancellations of the running task from now on."""
    task: Any = loop.current_task()
    return _AsyncioCancellations(task) if loop.is_asyncio else NEVER_CANCELLED


def _group_exits(thrown: Iterable[BaseException]) -> set[FrameType]:
    """Return the calls of `asyncio.TaskGroup.__aexit__` in which cancellations ended; none from Python 3.13 on."""
    import asyncio

    # A set of frames: a group cancels its task only once, however many cancellations ended in its `__aexit__`.
    ends = set[FrameType]()
    if sys.version_info < (3, 13):
        for error in thrown:
            trace = error.__traceback__
            if trace is not None and trace.tb_frame.f_code is asyncio.TaskGroup.__aexit__.__code__:
                ends.add(trace.tb_frame)  # the outermost frame that the exception passed through
                error.__traceback__ = None  # an outer node receives the same exception, and must not subtract it again
    return ends


def is_native_cancellation(cancellation: BaseException) -> bool:
    """Whether a cancellation is asyncio's own, and not from a scope, which raises its cancellation again."""
    return is_cancelled_error(cancellation) and not is_from_cancel_scope(cancellation)


def is_cancelled_error(error: BaseException) -> bool:
    """Return True for asyncio's `CancelledError`, which scopes raise, too; always False on trio."""
    import asyncio

    return isinstance(error, asyncio.CancelledError)


def cancelled_error() -> BaseException:
    """Return a new `CancelledError` of asyncio."""
    import asyncio

    return asyncio.CancelledError()


def sole_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only exception of a group, or the group itself if it has several."""
    # The runtime's child tasks never raise. So its groups wrap only an exception of the waiting task: on trio, Ctrl-C.
    return group.exceptions[0] if len(group.exceptions) == 1 else group


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup, None]:
    """Open a task group whose tasks are one piece of work: a single exception is raised as it is, not in a group.

    Yields:
        The task group.
    """
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as several:
        raise sole_exception(several) from None


async def wait_out(*events: WaitableEvent) -> None:
    """Wait for all events, even if cancelled meanwhile. A native cancellation is raised after the wait."""
    # A shield alone is not enough: it stops scopes, but not `Task.cancel()`, which comes once and must be raised again.
    cancelled: list[BaseException] = []
    with anyio.CancelScope(shield=True):
        for event in events:
            while not event.is_set():
                try:
                    await event.wait()
                except BaseException as error:
                    if not is_cancelled_error(error):  # within the shield it can only be a native one
                        raise
                    cancelled.append(error)
    if cancelled:
        raise cancelled.pop()
