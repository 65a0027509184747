"""One fixture for all event loops: `anyio_backend`.

`asyncio` and `trio` by default. A folder whose promises depend on the event loop itself (tests/runtime) overrides the fixture
with `ALL_LOOPS`; `--loops=all` does so everywhere.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # from Python 3.12 on
    return loop


FEW_LOOPS: list[Any] = [
    pytest.param(("asyncio", {"debug": False}), id="asyncio"),
    pytest.param(("trio", {"restrict_keyboard_interrupt_to_checkpoints": True}), id="trio"),
]

ALL_LOOPS: list[Any] = [
    FEW_LOOPS[0],
    *([pytest.param(("asyncio", {"loop_factory": _eager_loop}), id="asyncio+eager")] if sys.version_info >= (3, 12) else []),
    *([pytest.param(("asyncio", {"use_uvloop": True}), id="asyncio+uvloop")] if sys.platform != "win32" else []),
    FEW_LOOPS[1],
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--loops", choices=["few", "all"], default="few", help="event loops that every async test runs on")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `anyio_backend` its parameters: the folder's `LOOPS`, or all of them with `--loops=all`."""
    if "anyio_backend" in metafunc.fixturenames:
        everywhere = metafunc.config.getoption("--loops") == "all"
        here = "/tests/runtime/" in metafunc.module.__file__.replace("\\", "/")
        loops = ALL_LOOPS if everywhere or here else FEW_LOOPS
        metafunc.parametrize("anyio_backend", loops, indirect=True, scope="module")


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The event loop's name and options."""
    return request.param
