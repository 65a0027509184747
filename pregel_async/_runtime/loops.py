"""What differs between the event loops, in one place."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel


def on_asyncio() -> bool:
    """Whether the running task is one of asyncio's."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


Start = Callable[[Callable[[], Coroutine[Any, Any, None]], str], object]
"""Starts a task, by its work and its name. Keep what it returns as long as the task runs."""


def starter() -> Start:
    """How to start a task outside of any group: the one place that does. Ask in a task of the event loop; what is
    returned may be called in a callback too.

    Whoever starts a task owns it: cancels it by a scope that the task enters, and waits until it has ended. A reader's
    task cannot host its stream's run, nor a node that of a task that it calls: no group can stay open there. The work
    keeps its failures to itself.
    """
    if on_asyncio():
        return _start_on_asyncio
    return _start_on_trio


def _start_on_asyncio(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> object:
    return asyncio.get_running_loop().create_task(work(), name=name)


def _start_on_trio(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> object:
    import trio

    return trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())


def turn() -> Callable[[], Awaitable[None]]:
    """How to give the event loop its turn. asyncio's own way where it runs: the neutral one looks it up every time."""
    return partial(asyncio.sleep, 0) if on_asyncio() else anyio.lowlevel.checkpoint


def current_task() -> Callable[[], object]:
    """How to tell the event loop's running task. Ask in a task; what is returned may be called in a callback too."""
    if on_asyncio():
        return asyncio.current_task
    import trio

    return trio.lowlevel.current_task


class NativeCancellations:
    """Whether the running task has been cancelled by asyncio's own `Task.cancel()` since this was made; never on trio.

    A scope's cancellation is told again and again. One of these is told once, and a node may have swallowed it: what is
    left is asyncio's count.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task() if on_asyncio() else None
        self._before = 0 if self._task is None else self._task.cancelling()

    def __call__(self) -> bool:
        return self._task is not None and self._task.cancelling() > self._before

    def take_back(self) -> None:
        """Forget one, which was no cancellation of the run."""
        if self._task is not None:
            self._task.uncancel()


def is_native(cancellation: BaseException) -> bool:
    """Whether a cancellation is asyncio's own, and not that of a scope, which is told again and again."""
    told = cancellation.args[0] if cancellation.args else None
    return isinstance(cancellation, asyncio.CancelledError) and not (isinstance(told, str) and " cancel scope " in told)


def broken_group(coroutine: Any) -> asyncio.TaskGroup | None:
    """The `asyncio.TaskGroup` at whose end a coroutine waits, if it has cancelled the coroutine's task itself because a
    child has failed. Before Python 3.13 it does not take that back, and the task counts as cancelled ever after.
    """
    while coroutine is not None and sys.version_info < (3, 13):
        if getattr(coroutine, "cr_code", None) is asyncio.TaskGroup.__aexit__.__code__ and coroutine.cr_frame:
            group: asyncio.TaskGroup = coroutine.cr_frame.f_locals["self"]
            return group if getattr(group, "_parent_cancel_requested", False) else None
        coroutine = getattr(coroutine, "cr_await", None)
    return None


def alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a task group's, out of the group; the group itself when there are several.

    The tasks here keep their failures to themselves, so that what a task group raises is what hit the task that waits
    in
    it: on trio, Ctrl-C.
    """
    return group.exceptions[0] if len(group.exceptions) == 1 else group


async def wait_out(event: anyio.Event) -> None:
    """Wait for an event even when cancelled meanwhile, by a scope or natively; a native one goes on afterwards."""
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except asyncio.CancelledError as error:  # asyncio's own: a scope's stop at the shield
                cancelled = error
    if cancelled is not None:
        raise cancelled
