"""Measurements by round, and their medians, and medians of the rounds' ratios."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engines import LIMIT, OURS, PEER
from .rows import AtMost, CellId, Faster, Grows, Row, Target, Within

Round = dict[str, dict[str, Any]]  # figures by engine, or `cannot`


@dataclass
class Results:
    """Rounds of each cell.

    Attributes:
        about: when, where and of what they are.
        rounds: the rounds, by cell.
    """

    about: dict[str, str] = field(default_factory=dict[str, str])
    rounds: dict[CellId, list[Round]] = field(default_factory=dict[CellId, list[Round]])

    @classmethod
    def load(cls, path: Path) -> Results:
        found = json.loads(path.read_text("utf-8"))
        return cls(about=found["about"], rounds=found["rounds"])

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"about": self.about, "rounds": self.rounds}, indent=1) + "\n", "utf-8")

    def _figures(self, row: Row, engine: str) -> list[float | None]:
        return [each.get(engine, {}).get(row.figure) for each in self.rounds.get(row.cell.id, ())]

    def median(self, row: Row, engine: str) -> float | None:
        found = [each for each in self._figures(row, engine) if each is not None]
        return statistics.median(found) if found else None

    def cannot(self, row: Row, engine: str) -> str:
        """Return the reason why there is no figure, if there is one."""
        reasons = [each.get(engine, {}).get("cannot", "") for each in self.rounds.get(row.cell.id, ())]
        return next(filter(None, reasons), "")

    def _ratio(self, over: list[float | None], under: list[float | None]) -> float | None:
        found = [a / b for a, b in zip(over, under, strict=False) if a is not None and b]
        return statistics.median(found) if found else None

    def _cost(self, row: Row, one: str, other: str) -> float | None:
        """Return how much more one engine takes than the other."""
        one, other = (other, one) if row.more_is_better else (one, other)
        return self._ratio(self._figures(row, one), self._figures(row, other))

    def faster(self, row: Row) -> float | None:
        """Return how many times faster than LangGraph."""
        return self._cost(row, PEER, OURS)

    def over_limit(self, row: Row) -> float | None:
        """Return how many times the limit's cost."""
        return self._cost(row, OURS, LIMIT)

    def measured(self, target: Target) -> float | None:
        match target:
            case Faster(row):
                return self.faster(row)
            case Within(row):
                return self.over_limit(row)
            case AtMost(row):
                return self.median(row, OURS)
            case Grows(row, under):
                return self._ratio(self._figures(row, OURS), self._figures(under, OURS))

    def reached(self, target: Target) -> bool | None:
        """Return whether the target is reached; None if it was not measured."""
        found = self.measured(target)
        if found is None:
            return None
        return found >= target.bound if isinstance(target, Faster) else found <= target.bound
