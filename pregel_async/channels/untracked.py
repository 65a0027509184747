"""A channel whose value is never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

from .abc import MISSING, BaseChannel, Missing, Value
from .overwrite import written
from .single import SingleValue, too_many


class UntrackedValue(SingleValue[Value]):
    """The value written last, for as long as the run lasts: for connections and other things that no checkpoint can
    hold.

    A `Send` may carry it, as an entry of the dict or a field of the state's object that is sent. It is not stored with
    the send either: a run that is resumed in the send's superstep takes the value that its state has then (give it one
    with `Command(update=...)`), or raises `UntrackedValueLostError`.

    Attributes:
        guard: True refuses a second write in one superstep; False keeps the last.
    """

    __slots__ = ("guard",)

    kind = "UntrackedValue"
    expires = False
    tracked = False

    guard: bool

    @overload
    def __init__(self, typ: type[Value], guard: bool = True) -> None: ...
    @overload
    def __init__(self: UntrackedValue[Any], typ: object = Any, guard: bool = True) -> None: ...
    def __init__(self, typ: object = Any, guard: bool = True) -> None:
        super().__init__(typ)
        self.guard = guard

    def update(self, values: Sequence[Value]) -> bool:
        if not values:
            return False
        if self.guard and len(values) > 1:
            raise too_many(self, len(values))
        self._value = written(values[-1])
        return True

    def checkpoint(self) -> Missing:
        return MISSING

    def from_checkpoint(self, stored: Value | Missing) -> Self:
        # Nothing is ever stored; a value here was stored by a channel that this one has replaced, and is let go.
        return self.fresh()

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.guard = self.guard
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return super().same_declaration(other) and isinstance(other, UntrackedValue) and self.guard == other.guard
