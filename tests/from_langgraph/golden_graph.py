"""The graph of the golden file, for command lines."""

from __future__ import annotations

from tests.from_langgraph.programs import OURS, review

graph = review(OURS)
