"""A saver that reports when a task is recorded, and that can die; and an observer of calls of models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from checkpoint_savers import BaseCheckpointSaver
from pregel_async.observing import Event, ModelCalled, Observer
from pregel_async.testing import FaultySaver


class ReportingSaver(FaultySaver):
    """Reports when the first task of a superstep is recorded by itself."""

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self._recorded = anyio.Event()

    async def around(self, verb: Any, call: Callable[[], Awaitable[Any]]) -> Any:
        result = await super().around(verb, call)
        if verb == "record":
            self._recorded.set()
        return result

    async def recorded(self) -> None:
        """Wait for the first record, for at most 30 seconds: a task that is never recorded fails its test."""
        with anyio.fail_after(30):
            await self._recorded.wait()


class ModelCalls(Observer):
    """Records the calls of models.

    Attributes:
        seen: the events, in order.
    """

    def __init__(self) -> None:
        self.seen: list[ModelCalled] = []

    def observe(self, event: Event, /) -> None:
        if isinstance(event, ModelCalled):
            self.seen.append(event)
