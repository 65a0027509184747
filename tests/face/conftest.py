"""Savers for the tests of what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    """Each saver."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as opened:
        yield opened
