"""What differs between the event loops, in one place. Each is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from checkpoint_savers.scopes import is_a_scopes

if TYPE_CHECKING:
    import asyncio


def on_asyncio() -> bool:
    """Whether the running task is one of asyncio's."""
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class WaitableEvent(Protocol):
    """What asyncio's, trio's and anyio's events have in common."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """How things are done on the event loop that is running. Looked up once for a run (`loop`), and not for each use.

    Attributes:
        is_asyncio: or else it is trio's.
        start: starts a task outside of any group, by its work and its name: the one place that does. Keep what it
            returns as long as the task runs. Whoever starts a task owns it: cancels it by a scope that the task enters,
            and waits until it has ended. A task of asyncio's that `Task.cancel()` meets before it has begun never does
            (so does `asyncio.run` when it ends): the third argument is called there when the task is done. A reader's
            task cannot host its stream's run, nor a node that of a task that it calls: no group can stay open there. A
            commit of "async" is cancelled by nobody, and its hold waits for it: there a group, and a scope in it, would
            be most of what it costs. The work keeps its failures to itself.
        turn: gives the loop its turn, and notices a cancellation.
        current_task: tells the running task.
        event: makes an event.
        threadsafe_caller: returns a function that calls another one on this loop, from any thread. The call raises
            `RuntimeError` if the loop has ended.
    """

    is_asyncio: bool
    start: Callable[[Callable[[], Coroutine[Any, Any, None]], str, Callable[[object], object]], object]
    turn: Callable[[], Awaitable[None]]
    current_task: Callable[[], object]
    event: Callable[[], WaitableEvent]
    threadsafe_caller: Callable[[], Callable[[Callable[[], object]], object]]


def loop() -> Loop:
    """The event loop's ways. Ask in a task; what is returned may be used in a callback too."""
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
        turn=partial(asyncio.sleep, 0),  # asyncio's own way: the neutral one looks up where it is every time
        current_task=asyncio.current_task,
        event=asyncio.Event,
        threadsafe_caller=lambda: asyncio.get_running_loop().call_soon_threadsafe,
    )


@cache
def _on_trio() -> Loop:
    import trio

    def start(work: Callable[[], Coroutine[Any, Any, None]], name: str, done: Callable[[object], object]) -> object:
        return trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())

    return Loop(
        is_asyncio=False,
        start=start,
        turn=anyio.lowlevel.checkpoint,
        current_task=trio.lowlevel.current_task,
        event=trio.Event,
        threadsafe_caller=lambda: trio.lowlevel.current_trio_token().run_sync_soon,
    )


class NativeCancellations:
    """Whether a task has been cancelled by asyncio's own `Task.cancel()` since this was made: never, on trio.

    A scope's cancellation is told again and again. One of these is told once, and a node may have swallowed it: what is
    left is asyncio's count.

    Attributes:
        count: gives asyncio's count.
        before: what it was.
    """

    def __init__(self, count: Callable[[], int] = int) -> None:
        self.count = count
        self.before = count()

    def __call__(self) -> bool:
        """Return True if the task has been cancelled since."""
        return self.count() > self.before

    def discount_group_cancellations(self, thrown: Iterable[BaseException]) -> None:
        """Take back those by which an `asyncio.TaskGroup` has cancelled the task that waits at its end, because a child
        has failed: they are no cancellations of the run. Before Python 3.13 the group does not do so itself.

        Such a cancellation ends where the group waits for its children. One from outside that comes while it waits is
        raised again when they have ended; unless one of them fails meanwhile, as asyncio's group raises that instead,
        which counts here too.

        Args:
            thrown: the native cancellations that were thrown into code which has ended since.
        """


NEVER_CANCELLED = NativeCancellations()
"""Of a task that has a task of the event loop to itself: a native cancellation is its own affair."""


class _AsyncioCancellations(NativeCancellations):
    def __init__(self, task: asyncio.Task[Any]) -> None:
        super().__init__(task.cancelling)
        self._task = task

    def discount_group_cancellations(self, thrown: Iterable[BaseException]) -> None:
        for _ in _group_exits(thrown):
            self._task.uncancel()


def native_cancellations(loop: Loop) -> NativeCancellations:
    """Return the native cancellations of the running task from now on."""
    task: Any = loop.current_task()
    return _AsyncioCancellations(task) if loop.is_asyncio else NEVER_CANCELLED


def _group_exits(thrown: Iterable[BaseException]) -> set[FrameType]:
    """The calls of `asyncio.TaskGroup.__aexit__` in which cancellations have ended, before Python 3.13."""
    import asyncio

    ends = set[FrameType]()
    if sys.version_info < (3, 13):
        for error in thrown:
            trace = error.__traceback__
            if trace is not None and trace.tb_frame.f_code is asyncio.TaskGroup.__aexit__.__code__:
                ends.add(trace.tb_frame)  # the outermost that it went through
                error.__traceback__ = None  # a node around this one was thrown it too, and is not to count it
    return ends


def is_native_cancellation(cancellation: BaseException) -> bool:
    """Whether a cancellation is asyncio's own, and not that of a scope, which is told again and again."""
    return is_cancelled_error(cancellation) and not is_a_scopes(cancellation)


def is_cancelled_error(error: BaseException) -> bool:
    """Whether it is asyncio's, which scopes raise too; never on trio."""
    import asyncio

    return isinstance(error, asyncio.CancelledError)


def cancelled_error() -> BaseException:
    """One of asyncio's."""
    import asyncio

    return asyncio.CancelledError()


def sole_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a task group's, out of the group; the group itself when there are several.

    The tasks here keep their failures to themselves, so that what a task group raises is what hit the task that waits
    in it: on trio, Ctrl-C.
    """
    return group.exceptions[0] if len(group.exceptions) == 1 else group


async def wait_out(*events: WaitableEvent) -> None:
    """Wait for all events even when cancelled meanwhile, by a scope or natively; a native one goes on afterwards."""
    cancelled: list[BaseException] = []
    with anyio.CancelScope(shield=True):
        for event in events:
            while not event.is_set():
                try:
                    await event.wait()
                except BaseException as error:
                    if not is_cancelled_error(error):  # asyncio's own: a scope's stop at the shield
                        raise
                    cancelled.append(error)
    if cancelled:
        raise cancelled.pop()
