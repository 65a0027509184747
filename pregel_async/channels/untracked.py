"""A channel whose value is never stored."""

from __future__ import annotations

from typing import Any, Self, overload

from .abc import MISSING, Missing, Value
from .single import GuardedValue


class UntrackedValue(GuardedValue[Value]):
    """The value written last, for as long as the run lasts: for connections and other things that no checkpoint can
    hold.

    A `Send` may carry it, as an entry of the dict or a field of the state's object that is sent. It is not stored with
    the send either: a run that is resumed in the send's superstep takes the value that its state has then (give it one
    with `Command(update=...)`), or raises `UntrackedValueLostError`.
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
        # Nothing is ever stored; a value here was stored by a channel that this one has replaced, and is let go.
        return self.fresh()
