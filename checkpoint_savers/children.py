"""Starting a child of a task group without a warning if it is cancelled before it begins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from anyio.abc import TaskGroup

Work = Callable[..., Coroutine[Any, Any, object]]

_WRAPS = hasattr(TaskGroup, "create_task")
"""True if this version of anyio (4.14 or later) awaits a child's coroutine in one of its own."""


def start_soon(group: TaskGroup, work: Work, *args: Any) -> None:
    """Start a child task that awaits `work(*args)`. Use it in place of `group.start_soon(work, *args)`.

    Args:
        group: the task group.
        work: the coroutine function.
        args: its positional arguments.
    """
    # asyncio's `Task.cancel()`, which `asyncio.run` calls on every remaining task, ends a task that has not begun
    # without running any of it. From 4.14 on, anyio awaits a child's coroutine in one of its own, and then drops the
    # inner one: Python warns that it "was never awaited". A deferred coroutine does not exist before anyio awaits it.
    if _WRAPS:
        group.create_task(DeferredCoroutine(work, args), name=getattr(work, "__qualname__", None) or repr(work))
    else:  # the task runs the child's own coroutine, which asyncio closes
        group.start_soon(work, *args)


class DeferredCoroutine(Coroutine[Any, Any, object]):
    """A coroutine that calls its function when it is first awaited or sent to.

    Args:
        work: the coroutine function.
        args: its positional arguments.
    """

    __slots__ = ("_args", "_begun", "_work")

    def __init__(self, work: Work, args: tuple[Any, ...]) -> None:
        self._work = work
        self._args = args
        self._begun: Generator[Any, Any, object] | None = None

    def __await__(self) -> Generator[Any, Any, object]:
        self._begun = self._work(*self._args).__await__()
        return self._begun

    def send(self, value: Any) -> Any:
        """Resume the coroutine, creating it first if necessary.

        Args:
            value: the value to send.
        """
        return (self._begun or self.__await__()).send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the coroutine, creating it first if necessary.

        Args:
            error: the exception, as in `Coroutine.throw`.
        """
        return (self._begun or self.__await__()).throw(*error)

    def close(self) -> None:
        """Close the coroutine if it was created."""
        if self._begun is not None:
            self._begun.close()
