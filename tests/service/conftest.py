"""The savers of services, and a limit of time for each test: a service that loses a run waits for it for ever."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from tests.helpers.each_saver import SAVERS, opened

SECONDS = 120
"""Seconds that a test may take."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Around the test itself: the scope of a fixture would not cancel it.
        if (
            isinstance(item, pytest.Function)
            and Path(__file__).parent in item.path.parents
            and inspect.iscoroutinefunction(item.obj)
        ):
            item.obj = _limited(item.obj)


def _limited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    @wraps(test)
    async def within_time(*args: Any, **kwargs: Any) -> None:
        with anyio.fail_after(SECONDS):
            await test(*args, **kwargs)

    return within_time


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver
