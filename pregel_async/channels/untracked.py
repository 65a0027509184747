"""A channel whose value is never stored."""

from __future__ import annotations

from typing import Any, Self, overload

from .abc import MISSING, Missing, Value
from .single import GuardedValue


class UntrackedValue(GuardedValue[Value]):
    """Holds the value written last until the run ends: for connections and other objects that cannot be stored.

    A `Send` may carry the value, as an entry of the dict or a field of the state object that is sent. The stored send
    does not contain it. A run that is resumed in the send's superstep uses the value that the state has then (write one
    with `Command(update=...)`), or raises `UntrackedValueLostError` if it has none.

    Args:
        typ: the type of the value.
        guard: True refuses a second write in one superstep; False keeps the last one.
    """

    __slots__ = ()

    kind = "UntrackedValue"
    expires = False
    tracked = False

    @overload
    def __init__(self, typ: type[Value], guard: bool = True) -> None: ...
    @overload
    def __init__(self: UntrackedValue[Any], typ: object = Any, guard: bool = True) -> None: ...
    def __init__(self, typ: object = Any, guard: bool = True) -> None:
        super().__init__(typ, guard)

    def checkpoint(self) -> Missing:
        return MISSING

    def from_checkpoint(self, stored: Value | Missing) -> Self:
        # This class stores nothing: a stored value is that of a channel which this one has replaced, and is dropped.
        return self.fresh()
