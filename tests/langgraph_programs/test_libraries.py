"""The names that programs import are there in both libraries."""

import pytest

from tests.langgraph_programs.libraries import load


def test_all_names_can_be_imported_here() -> None:
    """Each name of LangGraph that these programs use has its place in this project."""
    assert load("pregel_async").StateGraph.__module__.startswith("pregel_async")


def test_programs_run_with_langgraph_too() -> None:
    """Where LangGraph is installed, each program of this folder runs with it as well."""
    pytest.importorskip("langgraph.graph", reason="langgraph is not installed here: nox -s langgraph installs it")
    assert load("langgraph").StateGraph.__module__.startswith("langgraph")
