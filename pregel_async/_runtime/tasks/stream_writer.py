"""What a node writes to the stream with."""

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


class Writes(Protocol):
    """A node that writes.

    Attributes:
        fence: around its worker thread, when a cancellation may leave that behind.
        owed:  subscriptions that it has shown more than their readers take.
    """

    task: Task
    owed: list[Subscription]
    fence: Fence

    @property
    def publisher(self) -> EventPublisher:
        """Of its graph's run."""
        ...

    @property
    def loop_thread(self) -> int:
        """The thread that the run's event loop is in."""
        ...

    async def settle(self) -> None:
        """Wait until there are no owed."""
        ...

    def check(self, what: str) -> None:
        """Raise `OutsideRunError` when it has ended."""
        ...

    def sign(self) -> None:
        """It lives."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """It waits for a reader."""
        ...


class Writer:
    """A node's `StreamWriter`."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Writes) -> None:
        self._attempt = attempt

    def __call__(self, chunk: Any, /) -> Awaitable[None]:
        self._check()
        return self._show(self._attempt.publisher.wrote(self._attempt.task, chunk))

    def message(self, message: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        self._check()
        return self._show(self._attempt.publisher.emitted(self._attempt.task, message, metadata or {}))

    def _check(self) -> None:
        self._attempt.check("a stream writer")
        self._attempt.sign()

    def _show(self, deliveries: Deliveries) -> Awaitable[None]:
        attempt = self._attempt
        if not deliveries:
            return NOTHING
        if threading.get_ident() == attempt.loop_thread:
            charged: list[tuple[Subscription, int]] = []
            for subscription, part in deliveries:
                owes = subscription in attempt.owed
                charged.append((subscription, subscription.put_nowait(part, owes=owes)))
                if not owes and subscription.is_backlogged:
                    attempt.owed.append(subscription)
            return _Settled(attempt, charged) if attempt.owed else NOTHING
        try:
            attempt.fence.run("a stream writer", partial(_put, attempt, deliveries))
        except OutsideRunError:
            raise
        except RuntimeError as error:
            raise OutsideRunError(
                "a stream writer was called in a thread of the node's own, from which the run cannot be reached: "
                "write in the node's function"
            ) from error
        return NOTHING


async def _put(attempt: Writes, deliveries: Deliveries) -> None:
    with attempt.waiting():
        for subscription, part in deliveries:
            await subscription.put(part)


class _Settled:
    """Awaited: the readers have caught up. Not awaited: nothing."""

    __slots__ = ("_attempt", "_charged")

    def __init__(self, attempt: Writes, charged: list[tuple[Subscription, int]]) -> None:
        self._attempt = attempt
        self._charged = charged

    def __await__(self) -> Generator[Any, Any, None]:
        while self._charged:
            subscription, size = self._charged.pop()
            subscription.release(size)
        return self._attempt.settle().__await__()


class _Nothing:
    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


NOTHING: Awaitable[None] = _Nothing()
"""Awaited: goes on at once."""
