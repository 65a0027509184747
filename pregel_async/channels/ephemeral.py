"""A channel whose value lives for exactly one superstep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

from .abc import BaseChannel, Value
from .overwrite import written
from .single import SingleValue, too_many


class EphemeralValue(SingleValue[Value]):
    """Seen in the superstep after the write, by all that read it there, and gone after that one.

    What triggers a node, and what a graph's input enters through.

    Attributes:
        guard: True refuses a second write in one superstep; False keeps the last.
    """

    __slots__ = ("guard",)

    kind = "EphemeralValue"
    expires = True

    guard: bool

    @overload
    def __init__(self, typ: type[Value], guard: bool = True) -> None: ...
    @overload
    def __init__(self: EphemeralValue[Any], typ: object = Any, guard: bool = True) -> None: ...
    def __init__(self, typ: object = Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard

    def update(self, values: Sequence[Value]) -> bool:
        if not values:
            return self._clear()
        if self.guard and len(values) > 1:
            raise too_many(self, len(values))
        self._value = written(values[-1])
        return True

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.guard = self.guard
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return super().same_declaration(other) and isinstance(other, EphemeralValue) and self.guard == other.guard
