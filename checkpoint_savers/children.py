"""Starting a child of a task group so that nothing warns if it never begins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from anyio.abc import TaskGroup

Work = Callable[..., Coroutine[Any, Any, object]]

_WRAPS = hasattr(TaskGroup, "create_task")
"""Whether this version of anyio awaits a child's coroutine in one of its own: from 4.14 on."""


def start_soon(group: TaskGroup, work: Work, *args: Any) -> None:
    """Start a child task that awaits `work(*args)`. Use it in place of `group.start_soon(work, *args)`.

    asyncio's `Task.cancel()`, which `asyncio.run` calls on every task that is left, ends a task that has not begun
    without running any of it. From 4.14 on anyio awaits a child's coroutine in one of its own, and drops the inner one
    then: "coroutine ... was never awaited". Here the inner one is made when anyio awaits it.
    """
    if _WRAPS:
        group.create_task(DeferredCoroutine(work, args), name=getattr(work, "__qualname__", None) or repr(work))
    else:  # the task runs the child's own coroutine, which asyncio closes
        group.start_soon(work, *args)


class DeferredCoroutine(Coroutine[Any, Any, object]):
    """A coroutine that calls its function when it is first awaited or sent to."""

    __slots__ = ("_args", "_begun", "_work")

    def __init__(self, work: Work, args: tuple[Any, ...]) -> None:
        self._work = work
        self._args = args
        self._begun: Generator[Any, Any, object] | None = None

    def __await__(self) -> Generator[Any, Any, object]:
        self._begun = self._work(*self._args).__await__()
        return self._begun

    def send(self, value: Any) -> Any:
        return (self._begun or self.__await__()).send(value)

    def throw(self, *error: Any) -> Any:
        return (self._begun or self.__await__()).throw(*error)

    def close(self) -> None:
        if self._begun is not None:
            self._begun.close()
