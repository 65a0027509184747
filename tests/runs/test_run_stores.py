"""All run stores pass the conformance suite, on every event loop."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.conformance.caches.conformance import Clock
from checkpoint_savers.conformance.runs.conformance import OpenSaverAt, RunStoreConformance


class TestInMemoryRuns(RunStoreConformance):
    @pytest.fixture
    def open_saver(self) -> OpenSaverAt:
        savers: list[InMemorySaver] = []

        def open_saver(clock: Clock) -> AbstractAsyncContextManager[InMemorySaver]:
            savers.append(savers[0] if savers else InMemorySaver(clock=clock))
            return nullcontext(savers[0])

        return open_saver
