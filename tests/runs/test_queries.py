"""What a filter of a search means."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers.runs.queries import contains

CASES: tuple[tuple[Any, Any, bool], ...] = (
    ({}, {}, True),
    ({"a": 1}, {}, True),
    ({"a": 1, "b": 2}, {"a": 1}, True),
    ({"a": 1}, {"a": 1, "b": 2}, False),
    ({"a": 1}, {"a": 1.0}, True),
    ({"a": 1}, {"a": True}, False),
    ({"a": False}, {"a": 0}, False),
    ({"a": None}, {"a": None}, True),
    ({}, {"a": None}, False),
    ({"a": "1"}, {"a": 1}, False),
    ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 1}}}, True),
    ({"a": {"b": 1}}, {"a": {}}, True),
    ({"a": []}, {"a": {}}, False),
    ({"a": {}}, {"a": []}, False),
    ({"a": 1}, {"a": []}, False),
    ({"a": [1, 2, 3]}, {"a": [3, 1, 1]}, True),
    ({"a": [1, 2]}, {"a": [True]}, False),
    ({"a": [1, 2]}, {"a": [4]}, False),
    ({"a": [1, 2]}, {"a": []}, True),
    ({"a": [1, 2]}, {"a": 1}, False),
    ({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]}, True),
    ({"a": [{"b": 1}, {"c": 2}]}, {"a": [{"b": 1, "c": 2}]}, False),
    ({"a": [1, [2, 3]]}, {"a": [[2]]}, True),
    ({"a": [1, [2, 3]]}, {"a": [2]}, False),
)
"""A stored value, a filter, and whether PostgreSQL's `stored @> filter` is true."""


@pytest.mark.parametrize(("found", "wanted", "expected"), CASES)
def test_containment(found: Any, wanted: Any, expected: bool) -> None:
    """It is as of `jsonb @>` on objects."""
    assert contains(found, wanted) is expected
