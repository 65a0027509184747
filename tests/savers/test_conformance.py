"""Both savers keep every promise of the port, on every event loop."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.conformance import SaverConformance
from checkpoint_savers.conformance.suite import OpenSaver


class TestInMemorySaver(SaverConformance):
    @pytest.fixture
    def open_saver(self) -> OpenSaver:
        saver = InMemorySaver()
        return lambda: nullcontext(saver)


class TestSqliteSaver(SaverConformance):
    @pytest.fixture
    def open_saver(self, tmp_path: Path) -> OpenSaver:
        # No test of these loses power: without an fsync per commit they take a third of the time.
        return lambda: SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL", busy_timeout=60)
