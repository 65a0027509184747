"""Act at exactly the n-th step of an event loop's tasks, and list these tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import sniffio
import trio


class Steps:
    """Counts the steps of all tasks that start while it is active.

    Args:
        at: before which step to act, counted from 1; 0 for none.

    Attributes:
        act: what to do.
        count: the steps so far.
        again: do it before every later step, too.
        acted: whether it was done.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.again = False
        self.acted = False
        self.act: Callable[[], object] = int

    def step(self) -> None:
        self.count += 1
        if self.count == self.at or (self.again and self.acted):
            self.acted = True
            self.act()

    @contextmanager
    def watch(self) -> Iterator[None]:
        with self._watch_trio() if sniffio.current_async_library() == "trio" else self._watch_asyncio():
            yield

    @contextmanager
    def _watch_asyncio(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()

        def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
            return asyncio.Task(_counted(coroutine, self.step), loop=loop, **kwargs)

        loop.set_task_factory(make)
        try:
            yield
        finally:
            loop.set_task_factory(before)

    @contextmanager
    def _watch_trio(self) -> Iterator[None]:
        steps, others = self, tasks_now()

        class Counting(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                if task not in others:
                    steps.step()

        counting = Counting()
        trio.lowlevel.add_instrument(counting)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(counting)


async def _counted(coroutine: Coroutine[Any, Any, Any], step: Callable[[], None]) -> Any:
    return await _Counted(coroutine, step)


class _Counted:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], step: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._step = step

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._coroutine.send
        sent: Any = None
        while True:
            self._step()
            try:
                wish = resume(sent)
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield wish
                resume = self._coroutine.send
            except BaseException as error:
                sent, resume = error, self._coroutine.throw


def tasks_now() -> set[Any]:
    """Return all unfinished tasks of this event loop."""
    if sniffio.current_async_library() == "trio":
        found: set[Any] = set()
        waiting = [trio.lowlevel.current_root_task()]
        while waiting:
            task = waiting.pop()
            if task is not None and task not in found:
                found.add(task)
                waiting.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
        return found
    return set(asyncio.all_tasks())
