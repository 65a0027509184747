"""Check whether a value can be an instance of an annotation.

The check is deliberately lax: it fails only for values that are clearly no instance. It does not look into containers,
and leaves validators to the schema's own class.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin


def fits(hint: Any, value: Any) -> bool:
    """Return False if `value` cannot be an instance of `hint`. None always fits: many states use it for "not yet"."""
    if type(value) is hint:  # the usual case first: this is called for each key of each input
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
        return isinstance(value, (kind, dict))  # the schema's class may accept a mapping
    return isinstance(value, kind)


def is_typed_dict(kind: Any) -> bool:
    """Return True if a class is a TypedDict, of `typing` or of `typing_extensions`."""
    # Not `typing.is_typeddict`: before Python 3.13 `typing_extensions` has a TypedDict of its own.
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")
