"""All run stores pass the conformance suite, on every event loop."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.conformance.caches.conformance import Clock
from checkpoint_savers.conformance.runs.conformance import OpenSaverAt, RunStoreConformance
from checkpoint_savers.conformance.runs.search import RunSearch
from checkpoint_savers.sqlite import runs as sqlite_runs


class TestInMemoryRuns(RunStoreConformance):
    @pytest.fixture
    def open_saver(self) -> OpenSaverAt:
        savers: list[InMemorySaver] = []

        def open_saver(clock: Clock) -> AbstractAsyncContextManager[InMemorySaver]:
            savers.append(savers[0] if savers else InMemorySaver(clock=clock))
            return nullcontext(savers[0])

        return open_saver


def open_sqlite(path: Path, clock: Clock) -> SqliteSaver:
    # These tests lose no power, and without an fsync per commit they take a third of the time.
    return SqliteSaver(path, synchronous="NORMAL", busy_timeout=60, clock=clock)


class TestSqliteRuns(RunStoreConformance):
    @pytest.fixture
    def open_saver(self, tmp_path: Path) -> OpenSaverAt:
        return partial(open_sqlite, tmp_path / "threads.db")


class TestSqliteRunsInSmallSlices(RunSearch):
    """The same searches, if a job reads three rows and not a thousand."""

    @pytest.fixture
    def open_saver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenSaverAt:
        monkeypatch.setattr(sqlite_runs, "SLICE", 3)
        return partial(open_sqlite, tmp_path / "threads.db")
