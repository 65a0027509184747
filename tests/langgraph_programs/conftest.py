"""Each program of this folder runs with this library, and with LangGraph where it is installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.langgraph_programs.libraries import load

LIBRARIES = [
    "pregel_async",
    # LangGraph's own warnings are no failures of this project.
    pytest.param("langgraph", marks=pytest.mark.filterwarnings("ignore")),
]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    """Return the names of one library, or skip the test if the library is not installed."""
    if request.param == "langgraph":
        pytest.importorskip("langgraph.graph", reason="langgraph is not installed here: nox -s langgraph installs it")
    return load(request.param)
