"""Rank files by a score: the sum of points, each with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .audit import FileAudit

EXPLAINED = (
    ("complexity", "1 point for each fork over 10 in the file's most complex function"),
    ("size", "1 point for each 50 lines over 500"),
    ("documentation", "1 point for each 2 public things without a docstring"),
    ("imports", "2 points for each import that nothing uses"),
    ("unreadable", "50 points for a file that cannot be analysed"),
)
"""The reasons for points, in words."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A file with its score.

    Attributes:
        path: relative to the tree's root.
        score: points; 0 is best, and there is no upper limit.
        why: the non-zero points by reason, as in `EXPLAINED`.
    """

    path: str
    score: float
    why: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all files."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    undocumented: int = 0
    unused_imports: int = 0
    not_analysed: int = 0


def score(audit: FileAudit) -> Ranked:
    """Return a file's score with its reasons."""
    complexity = 0 if audit.worst is None else audit.worst.complexity
    points = {
        "complexity": float(max(0, complexity - 10)),
        "size": round(max(0, audit.lines - 500) / 50, 1),
        "documentation": len(audit.undocumented) / 2,
        "imports": 2.0 * len(audit.unused),
        "unreadable": 50.0 if audit.problem is not None else 0.0,
    }
    why = {what: given for what, given in points.items() if given}
    return Ranked(audit.path, round(sum(why.values()), 1), why)


def rank(audits: Iterable[FileAudit], limit: int) -> list[Ranked]:
    """Return at most `limit` files, worst first. Files without points are left out."""
    ranked = sorted((score(audit) for audit in audits), key=lambda item: (-item.score, item.path))
    return [item for item in ranked[: max(0, limit)] if item.score]


def total(audits: Sequence[FileAudit]) -> Totals:
    """Return the sums over all files."""
    return Totals(
        files=len(audits),
        lines=sum(audit.lines for audit in audits),
        functions=sum(audit.functions for audit in audits),
        classes=sum(audit.classes for audit in audits),
        undocumented=sum(len(audit.undocumented) for audit in audits),
        unused_imports=sum(len(audit.unused) for audit in audits),
        not_analysed=sum(audit.problem is not None for audit in audits),
    )
