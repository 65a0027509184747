"""One fixture for all event loops: `anyio_backend`.

It uses asyncio and trio by default, and all of `ALL_LOOPS` in tests/runtime and tests/kit, whose promises are about
event loops; `--loops=all` uses all of them everywhere. A test marked `one_loop` behaves the same on each loop, and runs
on asyncio. Of a test marked `pairwise`, every second case runs; outside of the folders in `LOOP_FOLDERS`, every fourth
case of a test runs on trio too, its first one among them. With `--loops=all` or `PREGEL_EVERY=1`, all run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from tests.helpers.sampling import leave_out

# No limit on the time of an example or on how long it takes to draw one: another test may have the processor.
settings.register_profile("few", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `--hypothesis-profile=many`, for a long look:
settings.register_profile("many", settings.get_profile("few"), max_examples=3000)
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


LOOP_FOLDERS = ("runtime", "kit", "tasks", "streams", "sync", "simulation")
"""Folders whose tests all run on trio: scheduling, cancellation and streams. The others see loops only through these."""


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests marked `pairwise`, and cases on trio."""
    leave_out(config, items, lambda item: is_left_out_of_pairs(item) or is_left_out_on_trio(item))


def is_left_out_on_trio(item: pytest.Item) -> bool:
    """Return True for three of four cases on trio outside of `LOOP_FOLDERS`. The first case of each test runs on trio."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    on_trio = item.callspec.params.get("anyio_backend") == ("trio", {})
    positions = {**item.callspec.indices, "anyio_backend": 0}
    return on_trio and folder not in LOOP_FOLDERS and sum(positions.values()) % 4 > 0


def is_left_out_of_pairs(item: pytest.Item) -> bool:
    """Return True for a case marked `pairwise` whose values' positions in the lists of their parameters have an odd sum.

    So each value of a parameter still meets each value of each other parameter, if there are at least three: the third one makes
    the sum even.
    """
    if not item.get_closest_marker("pairwise"):
        return False
    assert isinstance(item, pytest.Function)
    positions = item.callspec.indices
    if len(positions) < 3:
        raise pytest.UsageError(f"{item.nodeid} is marked pairwise, and has fewer than three parameters")
    return sum(positions.values()) % 2 == 1


ONLY_COMPILES = "PREGEL_ONLY_COMPILES"
"""Set in processes that import the test files, so that pytest compiles and stores them, and collect no test."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile the test files of a new checkout, once and in parallel: else each worker compiles all of them itself, which
    takes longer than everything else that it does before its first test."""
    tests = Path(__file__).parent
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or sys.dont_write_bytecode:
        return
    stored = f".{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    files = sorted(tests.rglob("test_*.py"))
    new = [path for path in files if not (path.parent / "__pycache__" / f"{path.stem}{stored}").exists()]
    if len(new) < len(files) / 2:
        return
    count = os.cpu_count() or 1
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    processes = [
        subprocess.Popen(
            [*command, *map(str, new[number::count])],
            env={**os.environ, ONLY_COMPILES: "1"},
            cwd=config.rootpath,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(count)
    ]
    for process in processes:
        process.wait()


def pytest_pycollect_makeitem() -> list[Any] | None:
    return [] if ONLY_COMPILES in os.environ else None


def pytest_collection() -> None:
    """Collect no garbage meanwhile: what pytest makes for each test stays, and the collector would visit all of it
    again and again, a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Drop the schemas that tests of PostgreSQL have shared."""
    if tools := sys.modules.get("tests.helpers.postgres_tools"):
        tools.drop_reused_schemas()


_finished = count(1)


def pytest_runtest_logfinish() -> None:
    if next(_finished) % 100 == 0:
        freeze()


def freeze() -> None:
    """Exclude pytest's data about the tests, which lives as long as the process, from garbage collection.

    Twenty thousand reports made each `gc.collect()` in a test take 0.1 seconds.
    """
    gc.collect()  # first, so that no garbage is frozen
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
