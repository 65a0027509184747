"""A channel whose value lives for exactly one superstep."""

from __future__ import annotations

from typing import Any, overload

from .abc import Value
from .single import GuardedValue


class EphemeralValue(GuardedValue[Value]):
    """Seen in the superstep after the write, by all that read it there, and gone after that one.

    What triggers a node, and what a graph's input enters through.
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
