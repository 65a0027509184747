"""A channel for writers that all bring the same value."""

from __future__ import annotations

from typing import Any, overload

from .abc import Value
from .single import SingleValue


class AnyValue(SingleValue[Value]):
    """The last of a superstep's values, which are taken to be equal. A superstep without a write clears it."""

    __slots__ = ()

    kind = "AnyValue"
    expires = True
    takes_several = True

    @overload
    def __init__(self, typ: type[Value], key: str = "") -> None: ...
    @overload
    def __init__(self: AnyValue[Any], typ: object = Any, key: str = "") -> None: ...
    def __init__(self, typ: object = Any, key: str = "") -> None:
        super().__init__(typ, key)
