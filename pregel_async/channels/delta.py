"""A channel that merges all writes of one superstep with one call of its reducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast, overload

from ..errors import GraphValidationError
from .abc import BaseChannel, Value
from .reduced import ReducedValue, empty_value_factory, same_reducer

BatchReducer = Callable[[Any, list[Any]], Any]
"""Takes the value and a superstep's writes in plan order, and returns the new value."""


class DeltaChannel(ReducedValue[Value, Any]):
    """Calls `reducer(value, [first, second, ...])` once per superstep, where other reducers are called once per write.

    The value is read and stored as with other reducers. LangGraph has this class for checkpoints that do not repeat a
    long list; here savers do this for every channel, by storing the new part of a value.

    Args:
        reducer: must not depend on how writes are split into supersteps: `r(r(s, a), b) == r(s, a + b)`. The runtime
            passes it copies, which it may change in place.
        typ: the type of the value. None takes that of the annotation, in `Annotated[list, DeltaChannel(reducer)]`.
        snapshot_frequency: number of supersteps, at least 1. Accepted for compatibility, and without effect: every
            checkpoint can be read by itself.

    Raises:
        GraphValidationError: the reducer is not a function, or the frequency is not an integer of at least 1.
    """

    __slots__ = ("reducer", "snapshot_frequency")

    # The value is stored in the same form, so a stored thread remains readable when a key's reducer is replaced by a
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

    def of_type(self, typ: object) -> Self:
        """Make a new channel with the declaration of this one and another type.

        Args:
            typ: the type of the new channel's value.

        Returns:
            The new channel, which holds nothing.
        """
        twin = self.fresh()
        twin.typ = typ
        twin._make_empty = empty_value_factory(typ)
        return twin

    def _fold(self, value: Value, updates: Sequence[Any]) -> Value:
        # A new list, as the reducer may keep or change it and `updates` belongs to the caller.
        return cast("Value", self.reducer(value, [*updates]))

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.reducer = self.reducer
        twin.snapshot_frequency = self.snapshot_frequency
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        # The frequency does not count, as it has no effect.
        return (
            super().same_declaration(other)
            and isinstance(other, DeltaChannel)
            and same_reducer(self.reducer, other.reducer)
        )
