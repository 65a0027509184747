"""Each program of this folder runs with this library, and with LangGraph where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.langgraph_programs.libraries import load

LIBRARIES: list[Any] = ["pregel_async"]
if importlib.util.find_spec("langgraph") is not None:  # test_libraries.py reports it if not, once for all tests
    # LangGraph's own warnings are no failures of this project.
    LIBRARIES.append(pytest.param("langgraph", marks=pytest.mark.filterwarnings("ignore")))


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    """Return the names of one library."""
    return load(request.param)
