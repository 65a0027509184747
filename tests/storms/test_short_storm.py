"""A storm of some seconds; `nox -s storms` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from .storm import Storm

DISTURBANCES = 24


@pytest.mark.slow
def test_a_short_storm(tmp_path: Path) -> None:
    """P6, P7, P16: whatever happens to the workers, each accepted run ends once; its input is applied once; what it
    stored does not run again; and each thread has what its runs give, in order."""
    storm = Storm(f"sqlite:{tmp_path / 'runs.db'}", tmp_path, "short", conversations=8)
    report = anyio.run(storm.report, storm.rage(DISTURBANCES, patience=120.0, runs=50))
    assert report.found == [], report
    assert report.runs >= 50 and report.retaken > 0
    assert {"kill", "stop", "drain"} == report.disturbances.keys()
    assert {"success", "cancelled", "hidden", "interrupted"} == report.statuses.keys()
