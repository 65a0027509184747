"""A saver that reports when a task is recorded, and that can die."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from checkpoint_savers import BaseCheckpointSaver
from pregel_async.testing import FaultySaver


class ReportingSaver(FaultySaver):
    """Sets an event when the first task of a superstep is recorded by itself.

    Attributes:
        recorded: the event.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.recorded = anyio.Event()

    async def around(self, verb: Any, call: Callable[[], Awaitable[Any]]) -> Any:
        result = await super().around(verb, call)
        if verb == "record":
            self.recorded.set()
        return result
