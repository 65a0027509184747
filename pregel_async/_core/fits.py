"""Whether a value plainly is not what an annotation says.

Deliberately lax: it answers False only where nobody could call the value an instance. What is inside containers, and
whatever needs a validator, is the business of the schema's own class.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin


def fits(hint: Any, value: Any) -> bool:
    """False when `value` cannot be meant by `hint`. None always fits: it is how many say "not yet"."""
    if type(value) is hint:  # the ordinary case, asked once per key of each input
        return True
    if value is None or hint is None or hint is Any or isinstance(hint, (str, TypeVar)):
        return True
    origin = get_origin(hint)
    if origin in (Annotated, Required, NotRequired):
        return fits(get_args(hint)[0], value)
    if origin in (Union, types.UnionType):
        return any(fits(option, value) for option in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(hint))
    kind = hint if origin is None else origin
    if is_typed_dict(kind):
        return isinstance(value, dict)
    if kind is Callable or not isinstance(kind, type):
        return True
    if kind is float:
        return isinstance(value, (float, int)) and not isinstance(value, bool)
    if kind is complex:
        return isinstance(value, (complex, float, int)) and not isinstance(value, bool)
    if kind is int and isinstance(value, bool):
        return True
    if getattr(kind, "_is_protocol", False):
        return True
    if (
        hasattr(kind, "__pydantic_fields__")
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__dataclass_fields__")
    ):
        return isinstance(value, (kind, dict))  # a mapping that the schema's class may make into one
    return isinstance(value, kind)


def is_typed_dict(kind: Any) -> bool:
    """Whether a class is a TypedDict, of `typing` or of `typing_extensions` (which has one of its own before 3.13)."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")
