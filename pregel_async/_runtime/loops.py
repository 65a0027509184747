"""What differs between the event loops, in one place."""

from __future__ import annotations

import asyncio
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


def native_cancellations() -> Callable[[], int]:
    """How often the running task has been cancelled by asyncio's own `Task.cancel()`; never on trio, which has none.

    A scope's cancellation is told again and again. One of these is told once, and a node may have swallowed it.
    """
    task = asyncio.current_task() if on_asyncio() else None
    return _never if task is None else task.cancelling


def _never() -> int:
    return 0


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
