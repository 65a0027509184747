"""Savers with a defect, and the clauses that must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from checkpoint_savers import InMemorySaver

S = TypeVar("S", bound=type[InMemorySaver])

BROKEN: list[tuple[type[InMemorySaver], str]] = []
"""Each defective saver with each clause that must fail on it."""


def caught_by(*clauses: str) -> Callable[[S], S]:
    """Register a defective saver, and the clauses of the conformance suite that must fail on it."""

    def add(saver: S) -> S:
        BROKEN.extend((saver, clause) for clause in clauses)
        return saver

    return add
