"""Two applications in one process, each with a lifespan of its own."""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette

from pregel_async.serve import graph_lifespan

heard: list[int] = []


@pytest.fixture
def server() -> Generator[None]:
    """A server that handles SIGTERM."""
    heard.clear()
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_after_the_first_application_has_ended(backend: str) -> None:
    """docs/serving.md: "The drain starts with the signal in servers that handle signals in this process". If the
    application that had started first ended first, its listener stayed installed, and a later signal raised in it, on
    a loop that was closed: the server's own handler was no longer called."""

    async def serve(ends: anyio.Event, *, task_status: Any) -> None:
        async with graph_lifespan()(Starlette()):
            task_status.started()
            await ends.wait()

    async def run() -> None:
        first, second = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            for ends in (first, second):
                await group.start(serve, ends)
            first.set()
            await anyio.wait_all_tasks_blocked()
            second.set()

    anyio.run(run, backend=backend)
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
