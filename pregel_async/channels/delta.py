"""A channel whose writes of one superstep are merged by one call of its reducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast, overload

from ..errors import GraphValidationError
from .abc import BaseChannel, Value
from .reduced import ReducedValue, empty_value_factory, same_reducer

BatchReducer = Callable[[Any, list[Any]], Any]
"""Given the value and a superstep's writes in plan order, returns the new value."""


class DeltaChannel(ReducedValue[Value, Any]):
    """`reducer(value, [first, second, ...])` once per superstep, where other reducers are called once per write.

    It shows and stores its value as they do. What this class is for elsewhere, checkpoints that do not repeat a long
    list, every channel has here: a saver stores what is new of a value.

    Args:
        reducer: must not depend on how writes are split into supersteps: `r(r(s, a), b) == r(s, a + b)`. May change its
            arguments in place where the runtime calls it, which gives it copies.
        typ: the value's type; in `Annotated[list, DeltaChannel(reducer)]` the annotation's.
        snapshot_frequency: at least 1. Kept, and of no effect: every checkpoint can be read by itself.

    Raises:
        GraphValidationError: the reducer is no function, or the frequency no number from 1 on.
    """

    __slots__ = ("reducer", "snapshot_frequency")

    # The form in which the value is stored is the same, so that a thread goes on when its key's reducer becomes a
    # batch reducer.
    kind = "BinaryOperatorAggregate"

    reducer: BatchReducer
    snapshot_frequency: int

    @overload
    def __init__(self, reducer: BatchReducer, typ: type[Value], *, snapshot_frequency: int = 1000) -> None: ...
    @overload
    def __init__(
        self: DeltaChannel[Any], reducer: BatchReducer, typ: object = None, *, snapshot_frequency: int = 1000
    ) -> None: ...
    def __init__(self, reducer: BatchReducer, typ: object = None, *, snapshot_frequency: int = 1000) -> None:
        given: Any = reducer
        if not callable(given) or isinstance(given, type):
            raise GraphValidationError(
                f"a DeltaChannel needs its reducer, a function of the value and a list of writes, and got {given!r}"
            )
        frequency: Any = snapshot_frequency
        if not isinstance(frequency, int) or frequency < 1:
            raise GraphValidationError(f"snapshot_frequency is a number from 1 on, not {frequency!r}")
        super().__init__(Any if typ is None else typ)
        self.reducer = reducer
        self.snapshot_frequency = snapshot_frequency

    def with_type(self, typ: object) -> Self:
        """A new channel that is declared like this one, and holds values of another type."""
        twin = self.fresh()
        twin.typ = typ
        twin._make_empty = empty_value_factory(typ)
        return twin

    def _fold(self, value: Value, updates: Sequence[Any]) -> Value:
        # A list of its own: the reducer may keep it or change it.
        return cast("Value", self.reducer(value, [*updates]))

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.reducer = self.reducer
        twin.snapshot_frequency = self.snapshot_frequency
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        # Not the frequency: it makes no difference.
        return (
            super().same_declaration(other)
            and isinstance(other, DeltaChannel)
            and same_reducer(self.reducer, other.reducer)
        )
