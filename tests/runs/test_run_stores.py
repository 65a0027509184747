"""All run stores pass the conformance suite, on every event loop."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.conformance.runs.conformance import OpenSaverAt, RunStoreConformance


class TestInMemoryRuns(RunStoreConformance):
    @pytest.fixture
    def open_saver(self) -> OpenSaverAt:
        return lambda clock: nullcontext(InMemorySaver(clock=clock))
