"""The event loops on which everything about savers is tried (P13)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


BACKENDS: list[Any] = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(
        ("asyncio", {"use_uvloop": True}),
        id="uvloop",
        marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows"),
    ),
    pytest.param(("trio", {}), id="trio"),
]
if sys.version_info >= (3, 12):
    BACKENDS.append(pytest.param(("asyncio", {"loop_factory": eager_loop}), id="eager"))


@pytest.fixture(params=BACKENDS, scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param
