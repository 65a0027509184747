"""One fixture for all event loops: `anyio_backend`.

It uses asyncio and trio by default, and all of `ALL_LOOPS` in tests/runtime and tests/kit, whose promises are about
event loops; `--loops=all` uses all of them everywhere. A test marked `one_loop` behaves the same on each loop, and runs
on asyncio.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver

settings.register_profile("few", max_examples=25)
settings.register_profile("many", max_examples=3000, deadline=None)  # --hypothesis-profile=many, for a long look
settings.load_profile("few")


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # from Python 3.12 on
    return loop


FEW_LOOPS: list[Any] = [
    pytest.param(("asyncio", {}), id="asyncio"),
    pytest.param(("trio", {}), id="trio"),
]

ALL_LOOPS: list[Any] = [
    FEW_LOOPS[0],
    *(
        [pytest.param(("asyncio", {"loop_factory": _eager_loop}), id="asyncio+eager")]
        if sys.version_info >= (3, 12)
        else []
    ),
    *([pytest.param(("asyncio", {"use_uvloop": True}), id="asyncio+uvloop")] if sys.platform != "win32" else []),
    FEW_LOOPS[1],
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--loops", choices=["few", "all"], default="few", help="event loops that every async test runs on")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Set the parameters of `anyio_backend`: the folder's, or all with `--loops=all`."""
    if "anyio_backend" in metafunc.fixturenames:
        everywhere = metafunc.config.getoption("--loops") == "all"
        path = metafunc.module.__file__.replace("\\", "/")
        here = "/tests/runtime/" in path or "/tests/kit/" in path
        loops = ALL_LOOPS if everywhere or here else FEW_LOOPS
        if metafunc.definition.get_closest_marker("one_loop"):
            loops = loops[:1]
        metafunc.parametrize("anyio_backend", loops, indirect=True, scope="module")


def pytest_collection_finish() -> None:
    """Exclude pytest's data about twenty thousand tests, which lives as long as the process, from garbage
    collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Return the event loop's name and options."""
    return request.param


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    """Open each saver."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as opened:
        yield opened
