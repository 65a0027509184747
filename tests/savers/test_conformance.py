"""All savers pass the conformance suite, on every event loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from checkpoint_savers import InMemorySaver, PostgresSaver, SqliteSaver
from checkpoint_savers.conformance import Cell, OpenSaver, SaverConformance
from pregel_async._runtime.observing.observed import ObservedUpdate, measure_writes
from pregel_async._runtime.observing.observers import Observers
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.observing import UpdateStarted
from pregel_async.testing import FaultySaver
from tests.helpers.postgres_tools import conninfo, empty, made_schema, unsynced
from tests.savers import postgres_cells, sqlite_cells

CRASHES = int(os.environ.get("PREGEL_CRASHES", "4"))
"""The number of processes that are killed for each saver and event loop."""

DAMAGES = int(os.environ.get("PREGEL_DAMAGES", "80"))
"""The number of values that are damaged for each saver and event loop."""


class TestInMemorySaver(SaverConformance):
    @pytest.fixture
    def open_saver(self) -> OpenSaver:
        saver = InMemorySaver()
        return lambda: nullcontext(saver)


@pytest.mark.one_loop  # it passes on what InMemorySaver does on each event loop
class TestFaultySaver(SaverConformance):
    """The test kit's own saver, without any faults."""

    @pytest.fixture
    def open_saver(self) -> OpenSaver:
        saver = FaultySaver(InMemorySaver())
        return lambda: nullcontext(saver)


@pytest.mark.one_loop  # the same
class TestMeasuredSaver(SaverConformance):
    """The wrapper that the runtime puts around the saver of an observed run."""

    @pytest.fixture
    def open_saver(self) -> OpenSaver:
        environment = SystemEnvironment()
        run = UpdateStarted(run_id="run", thread_id="t", namespace="", graph="graph", supersteps=1, updates=1)
        saver = measure_writes(InMemorySaver(), ObservedUpdate(Observers((), environment), run), waits=False)
        return lambda: nullcontext(saver)


class TestSqliteSaver(SaverConformance):
    crashes = CRASHES
    damages = DAMAGES

    @pytest.fixture
    def cells(self, tmp_path: Path) -> Iterator[Callable[[], list[Cell]]]:
        with sqlite_cells.cells_of(tmp_path / "threads.db") as cells:
            yield cells

    @pytest.fixture
    def files(self, tmp_path: Path) -> Callable[[], list[Path]]:
        return lambda: [tmp_path]

    @pytest.fixture
    def open_saver(self, tmp_path: Path) -> OpenSaver:
        # These tests lose no power, and without an fsync per commit they take a third of the time.
        return partial(SqliteSaver, tmp_path / "threads.db", synchronous="NORMAL", busy_timeout=60)


@pytest.fixture(scope="module")
def schema() -> Iterator[str]:
    """A schema with the tables of PostgresSaver."""
    with made_schema() as schema:
        yield schema


class TestPostgresSaver(SaverConformance):
    crashes = CRASHES
    damages = DAMAGES

    @pytest.fixture
    def cells(self, schema: str) -> Iterator[Callable[[], list[Cell]]]:
        with postgres_cells.cells_of(conninfo(), schema) as cells:
            yield cells

    @pytest.fixture
    def open_saver(self, schema: str) -> OpenSaver:
        empty(schema)
        return partial(PostgresSaver.from_conn_string, unsynced(), schema=schema, busy_timeout=60)
