"""Running a plain function in a worker thread, and never leaving before it has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread

from .loops import on_asyncio, wait_out


async def in_thread(call: Callable[[Any], Any], value: Any, stop: Callable[[], object] | None = None) -> Any:
    """Call the function in a worker thread, with a copy of the context; a cancelled caller waits for its end.

    Args:
        stop: called before that, on asyncio: what the thread waits for may have to be told.
    """
    if not on_asyncio():
        # Boxed: trio takes a function that returns an awaitable for a mistake, and here it may be meant.
        return (await anyio.to_thread.run_sync(lambda: (call(value),)))[0]
    work = _Work(call, value)
    with anyio.CancelScope() as scope:
        try:
            return await anyio.to_thread.run_sync(work.run)
        except asyncio.CancelledError:
            # A cancel scope waits for the thread; asyncio's own `Task.cancel()` does not, and gets here at once.
            if work.give_up():
                if stop is not None:
                    stop()
                scope.cancel()  # what the thread in turn waits for on this loop: a graph that it invoked
                await wait_out(work.ended)
            raise
    raise AssertionError("a native cancellation is none of the scope's")


class _Work:
    """A call that is either given up before it starts, or waited for to its end."""

    def __init__(self, call: Callable[[Any], Any], value: Any) -> None:
        self._call = call
        self._value = value
        self._lock = threading.Lock()
        self._given_up = False
        self._started = False
        self._loop = asyncio.get_running_loop()
        self.ended = anyio.Event()

    def run(self) -> Any:
        with self._lock:
            if self._given_up:
                return None
            self._started = True
        try:
            return self._call(self._value)
        finally:
            with self._lock:
                told = self._given_up
                self._given_up = True
            if told:
                self._loop.call_soon_threadsafe(self.ended.set)

    def give_up(self) -> bool:
        """Whether the call is under way, so that its end has to be waited for."""
        with self._lock:
            under_way = self._started and not self._given_up
            self._given_up = True
            return under_way
