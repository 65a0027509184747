"""A channel that holds its value for exactly one superstep."""

from __future__ import annotations

from typing import Any, overload

from .abc import Value
from .single import GuardedValue


class EphemeralValue(GuardedValue[Value]):
    """Holds a value for the superstep after the write; all nodes that read it there get it.

    Edges trigger nodes through this channel, and a graph's input enters through it.

    Args:
        typ: the type of the value.
        guard: True refuses a second write in one superstep; False keeps the last one.
    """

    __slots__ = ()

    kind = "EphemeralValue"
    expires = True

    @overload
    def __init__(self, typ: type[Value], guard: bool = True) -> None: ...
    @overload
    def __init__(self: EphemeralValue[Any], typ: object = Any, guard: bool = True) -> None: ...
    def __init__(self, typ: object = Any, guard: bool = True) -> None:
        super().__init__(typ, guard)
