"""The savers of services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from checkpoint_savers import BaseCheckpointSaver
from tests.helpers.each_saver import SAVERS, opened


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver
