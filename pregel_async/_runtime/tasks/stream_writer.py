"""The stream writer of a node."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Generator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from ..._core.task import Task
from ...errors import OutsideRunError
from ..streaming.publisher import Deliveries, EventPublisher
from ..streaming.subscription import Subscription
from .worker_threads import Fence


class WritingAttempt(Protocol):
    """The part of `AttemptContext` that a writer needs.

    Attributes:
        task: the task that writes.
        owed: subscriptions whose readers have not yet taken everything that the attempt wrote.
        fence: refuses writes of an abandoned worker thread.
    """

    task: Task
    owed: tuple[Subscription, ...]
    fence: Fence

    @property
    def publisher(self) -> EventPublisher:
        """The publisher of the graph's run."""
        ...

    @property
    def loop_thread(self) -> int:
        """The id of the thread that runs the event loop."""
        ...

    async def wait_for_readers(self) -> None:
        """Wait until the readers of `owed` have caught up."""
        ...

    def check(self, what: str) -> None:
        """Raise `OutsideRunError` if the attempt has ended."""
        ...

    def record_activity(self) -> None:
        """Reset the idle timeouts."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Pause the timeouts during a wait for readers."""
        ...


class Writer:
    """The `StreamWriter` of an attempt."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: WritingAttempt) -> None:
        self._attempt = attempt

    def __call__(self, chunk: Any, /) -> Awaitable[None]:
        self._check()
        return self._show(self._attempt.publisher.wrote(self._attempt.task, chunk))

    def message(self, message: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        self._check()
        return self._show(self._attempt.publisher.emitted(self._attempt.task, message, metadata or {}))

    def _check(self) -> None:
        self._attempt.check("a stream writer")
        self._attempt.record_activity()

    def _show(self, deliveries: Deliveries) -> Awaitable[None]:
        attempt = self._attempt
        if not deliveries:
            return NO_WAIT
        if threading.get_ident() == attempt.loop_thread:
            # This call cannot wait, so the parts may exceed the buffer's capacity. The returned object waits if it
            # is awaited; if it is not, the node waits at its next await (`attempt._drive`).
            reserved: list[tuple[Subscription, int]] = []
            for subscription, part in deliveries:
                is_owed = subscription in attempt.owed
                reserved.append((subscription, subscription.put_nowait(part, owes=is_owed)))
                if not is_owed and subscription.is_backlogged:
                    attempt.owed = (*attempt.owed, subscription)
            return _BackPressure(attempt, reserved) if attempt.owed else NO_WAIT
        try:
            attempt.fence.run("a stream writer", partial(_put_all, attempt, deliveries))
        except OutsideRunError:
            raise
        except RuntimeError as error:
            raise OutsideRunError(
                "a stream writer was called in a thread of the node's own, from which the run cannot be reached: "
                "write in the node's function"
            ) from error
        return NO_WAIT


async def _put_all(attempt: WritingAttempt, deliveries: Deliveries) -> None:
    with attempt.waiting():
        for subscription, part in deliveries:
            await subscription.put(part)


class _BackPressure:
    """An awaitable that returns when the readers have caught up. Not awaiting it has no effect."""

    # An object and no coroutine: Python would warn of a coroutine that the node does not await.

    __slots__ = ("_attempt", "_reserved")

    def __init__(self, attempt: WritingAttempt, reserved: list[tuple[Subscription, int]]) -> None:
        self._attempt = attempt
        self._reserved = reserved

    def __await__(self) -> Generator[Any, Any, None]:
        while self._reserved:
            subscription, size = self._reserved.pop()
            subscription.release(size)
        return self._attempt.wait_for_readers().__await__()


class _NoWait:
    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


NO_WAIT: Awaitable[None] = _NoWait()
"""An awaitable that returns at once: the result of a write that need not wait. It is shared by all writers."""


class _SilentWriter:
    """The writer of a `Runtime` that a unit test has made: it drops what is written."""

    def __call__(self, chunk: Any, /) -> Awaitable[None]:
        return NO_WAIT

    def message(self, message: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        return NO_WAIT

    def __repr__(self) -> str:
        return "<a stream writer without a run>"


SILENT = _SilentWriter()
"""Shared: it has no state."""
