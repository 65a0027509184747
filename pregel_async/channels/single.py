"""Channels that hold one value or nothing: the shared base, and the base of those without a fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self

from ..errors import ConcurrentUpdateError, EmptyChannelError
from ..types import Overwrite
from .abc import MISSING, BaseChannel, Missing, Update, Value


class OptionalValue(BaseChannel[Value, Update, Value], Generic[Value, Update]):
    """Holds one value or nothing, and stores it unchanged. Subclasses implement `get` and `update`."""

    __slots__ = ("_value",)

    _value: Value | Missing

    def __init__(self, typ: object = Any, key: str = "") -> None:
        super().__init__(typ, key)
        self._value = MISSING

    def checkpoint(self) -> Value | Missing:
        return self._value

    def from_checkpoint(self, stored: Value | Missing) -> Self:
        twin = self.fresh()
        twin._value = stored
        return twin

    def fresh(self) -> Self:
        twin = self._blank()
        twin._value = MISSING
        return twin

    def copy(self) -> Self:
        twin = self.fresh()
        twin._value = self._value
        return twin


class SingleValue(OptionalValue[Value, Value]):
    """Holds the last of a superstep's writes.

    An `Overwrite` is unwrapped and counts as a normal write, as there is no fold to bypass. For the same reason a dict
    in the form of an overwrite is data.

    Attributes:
        expires: True if a superstep without a write clears the value.
        takes_several: True if a superstep may have several writes, of which the last one counts.
    """

    __slots__ = ()

    takes_several: bool = False  # no ClassVar: for some it depends on a parameter

    def get(self) -> Value:
        value = self._value
        if value is MISSING:
            raise EmptyChannelError(self.key)
        return value

    def is_available(self) -> bool:
        return self._value is not MISSING

    def update(self, values: Sequence[Value]) -> bool:
        if not values:
            had_one = self.expires and self._value is not MISSING
            if had_one:
                self._value = MISSING
            return had_one
        if len(values) > 1 and not self.takes_several:
            raise ConcurrentUpdateError(self.key, len(values))
        value = values[-1]
        self._value = value.value if isinstance(value, Overwrite) else value
        return True


class GuardedValue(SingleValue[Value]):
    """A `SingleValue` whose declaration decides about a second write in one superstep.

    Attributes:
        guard: True refuses a second write in one superstep; False keeps the last one.
    """

    __slots__ = ("guard",)

    guard: bool

    def __init__(self, typ: object = Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard

    @property
    def takes_several(self) -> bool:  # type: ignore[override]  # of others it is a constant
        """True if a superstep may have several writes."""
        return not self.guard

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.guard = self.guard
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return super().same_declaration(other) and isinstance(other, GuardedValue) and self.guard == other.guard
