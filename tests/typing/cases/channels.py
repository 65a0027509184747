"""How type checkers see channels, built-in and user-defined. Read by mypy and pyright, and never run."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, Self, TypedDict, assert_type

from pregel_async import NodeBuilder, Pregel, StateGraph
from pregel_async.channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    Missing,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from pregel_async.errors import EmptyChannelError


class Best(BaseChannel[float, float, float]):
    """A user-defined channel: the highest value so far."""

    def __init__(self) -> None:
        super().__init__(float)
        self.best: float | Missing = MISSING

    def get(self) -> float:
        if self.best is MISSING:
            raise EmptyChannelError(self.key)
        assert_type(self.best, float)
        return self.best

    def update(self, values: Sequence[float]) -> bool:
        if not values:
            return False
        self.best = max(values)
        return True

    def from_checkpoint(self, stored: float | Missing) -> Self:
        twin = type(self)()
        twin.key, twin.best = self.key, stored
        return twin


class Average(BaseChannel[float, float, tuple[float, int]]):
    """A channel that stores another type than it shows."""

    total: float = 0.0
    count: int = 0

    def get(self) -> float:
        if not self.count:
            raise EmptyChannelError(self.key)
        return self.total / self.count

    def update(self, values: Sequence[float]) -> bool:
        self.total += sum(values)
        self.count += len(values)
        return bool(values)

    def checkpoint(self) -> tuple[float, int] | Missing:
        return (self.total, self.count) if self.count else MISSING

    def from_checkpoint(self, stored: tuple[float, int] | Missing) -> Self:
        twin = type(self)()
        if stored is not MISSING:
            twin.total, twin.count = stored
        return twin


class Wrong(BaseChannel[int, int, int]):
    """A channel whose methods do not match its declared types."""

    def get(self) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # wrong on purpose
        return ""

    def update(self, values: Sequence[str]) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # wrong on purpose
        return False

    def from_checkpoint(self, stored: int | Missing) -> Self:
        return self


class Unfinished(BaseChannel[int, int, int]):
    """A channel without some required methods."""


class State(TypedDict, total=False):
    best: Annotated[float, Best]
    average: Annotated[float, Average()]
    log: Annotated[list[str], operator.add]
    free: Annotated[object, UntrackedValue]


assert_type(LastValue(int), LastValue[int])
assert_type(LastValue(int).get(), int)
assert_type(AnyValue(str).get(), str)
assert_type(EphemeralValue(bytes, guard=False).get(), bytes)
assert_type(UntrackedValue(bytes), UntrackedValue[bytes])
assert_type(Topic(int, accumulate=True).get(), Sequence[int])
assert_type(BinaryOperatorAggregate(int, operator.add), BinaryOperatorAggregate[int])
assert_type(NamedBarrierValue(str, {"a", "b"}), NamedBarrierValue[str])
assert_type(LastValue(int | str).get(), Any)
assert_type(LastValue().get(), Any)
assert_type(Best().get(), float)
assert_type(Best().fresh(), Best)
assert_type(Average().checkpoint(), tuple[float, int] | Missing)
assert_type(Best().is_available(), bool)

LastValue(int).update(["a"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # wrong on purpose
Best().update(["a"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # wrong on purpose
Unfinished()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # wrong on purpose
BinaryOperatorAggregate(int)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # wrong on purpose

StateGraph(State)
mine: BaseChannel[Any, Any, Any] = Best()
Pregel(
    nodes={"n": NodeBuilder().subscribe_to("best")},
    channels={"best": Best(), "average": Average(), "topic": Topic(str)},
    input_channels="best",
    output_channels=["average"],
)
