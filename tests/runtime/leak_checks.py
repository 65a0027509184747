"""The tasks and threads that are alive now, and a check that none is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import sniffio
import trio


def tasks() -> set[Any]:
    """Return the tasks of the running event loop."""
    if sniffio.current_async_library() == "asyncio":
        return {task for task in asyncio.all_tasks() if not task.done()}
    root = trio.lowlevel.current_root_task()
    found: set[Any] = set()

    def walk(task: Any) -> None:
        found.add(task)
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                walk(child)

    walk(root)
    return found


def threads() -> set[threading.Thread]:
    """Return the threads of the process, except idle workers that anyio and trio keep for the next call."""
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(("AnyIO worker thread", "Trio thread", "ThreadPoolExecutor", "asyncio_"))
    }


def after_turns(turns: int, call: Callable[[], object]) -> None:
    """Call a function after the running event loop has made the given number of turns."""
    if sniffio.current_async_library() == "asyncio":
        asyncio.get_running_loop().call_soon(call if turns == 0 else partial(after_turns, turns - 1, call))
        return

    async def wait() -> None:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        call()

    trio.lowlevel.spawn_system_task(wait)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Check that all tasks and threads started inside the block have ended at its end."""
    before, threads_before = tasks(), threads()
    yield
    assert tasks() - before == set()
    assert threads() - threads_before == set()
