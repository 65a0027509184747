"""A channel for several writers of equal values."""

from __future__ import annotations

from typing import Any, overload

from .abc import Value
from .single import SingleValue


class AnyValue(SingleValue[Value]):
    """Holds the last of a superstep's writes, which are assumed to be equal. A superstep without a write clears it.

    Args:
        typ: the type of the value.
        key: the channel's name.
    """

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
