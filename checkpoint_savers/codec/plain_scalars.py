"""Subclasses of plain scalars that hold nothing else: the plain value is stored for them.

Libraries return such objects in the place of a `str`, for example to give it a method that used to be a property.
Storing the plain value loses nothing. An Enum's member is more than its value, and an object with a `__dict__` or slots
may hold
more: those are stored by registration only.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Final

Plain = Callable[[Any], object]

_MAKERS: Final[tuple[tuple[type, Plain], ...]] = (
    # The built-in type's own methods, so that no override of the subclass runs.
    (str, str.__str__),
    (int, int.__pos__),
    (float, float.__pos__),
    (bytes, lambda value: bytes(memoryview(value))),
)


def plain_maker(kind: Any) -> Plain | None:
    """Return a function that creates the plain value of an object of this class; None if the class is no such subclass.

    Args:
        kind: the class.
    """
    return _maker_of(kind)


@cache
def _maker_of(kind: Any) -> Plain | None:
    for base, make in _MAKERS:
        if issubclass(kind, base):
            bare = kind is not base and kind is not bool and not issubclass(kind, Enum) and not kind.__dictoffset__
            return make if bare and not any(vars(each).get("__slots__") for each in kind.__mro__) else None
    return None
