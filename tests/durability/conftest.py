"""Savers of both kinds, on the clock of a `SeededEnvironment`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from tests.helpers.environments import SeededEnvironment


@pytest.fixture
def environment() -> SeededEnvironment:
    return SeededEnvironment()


@pytest.fixture(params=["memory", "sqlite"])
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path, environment: SeededEnvironment
) -> AsyncIterator[BaseCheckpointSaver]:
    """No test that uses this fixture loses power, so SQLite need not wait for the disk."""
    if request.param == "memory":
        yield InMemorySaver(clock=environment.now)
    else:
        async with SqliteSaver(tmp_path / "threads.db", synchronous="NORMAL", clock=environment.now) as saver:
            yield saver
