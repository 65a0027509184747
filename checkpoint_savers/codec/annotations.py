"""Finds the classes that annotations name: in unions, containers, aliases and the fields of the classes themselves.

An annotation only suggests what a value may hold. One that does not resolve is ignored; a value of an unknown class is
refused when it is written, with advice on how to register the class.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, cast

_ELSEWHERE: tuple[object, ...] = (ClassVar, typing.get_origin(typing.Callable[[], None]), type)
"""Types whose arguments are not part of a value."""


_MADE_OF_FIELDS = ("__dataclass_fields__", "__struct_fields__", "_fields")


def classes(hints: Iterable[object]) -> Iterator[type]:
    """Find every class that annotations name, and those that the fields of these classes name, each once.

    Args:
        hints: the annotations.

    Yields:
        Each class.
    """
    # The objects are retained, not only their ids: a new object could get the id of one that was freed.
    todo, seen = list(hints), dict[int, object]()
    while todo:
        hint = todo.pop()
        if id(hint) in seen:
            continue
        seen[id(hint)] = hint
        if isinstance(hint, type) and typing.get_origin(hint) is None:
            yield hint
            todo.extend(fields(hint))
        else:
            todo.extend(_parts(hint))


def fields(cls: type) -> Iterable[object]:
    """Return the annotations of a class's fields, as far as they resolve; none for a class not defined by its fields.

    Args:
        cls: the class.
    """
    if has(cls, "__pydantic_fields_set__"):
        # Both sources: pydantic knows the arguments of a generic model, but has not resolved names that were defined
        # after the class.
        return [*(field.annotation for field in model_fields(cls).values()), *_hints(cls)]
    if not is_typed_dict(cls) and not any(has(cls, name) for name in _MADE_OF_FIELDS):
        return ()
    return _hints(cls)


def _hints(cls: type) -> Iterable[object]:
    try:
        return list(typing.get_type_hints(cls).values())
    except Exception:  # from any expression in the annotations; resolve one by one
        return list(_resolvable(cls))


def model_fields(cls: Any) -> Mapping[str, Any]:
    """Return the fields of a pydantic model.

    Args:
        cls: the model's class.
    """
    # The first is new in pydantic 2.10; later versions deprecate access to the second on an object.
    found: Mapping[str, Any] = cls.__pydantic_fields__ if hasattr(cls, "__pydantic_fields__") else cls.model_fields
    return found


def has(cls: type, name: str) -> bool:
    """Return True if a class defines an attribute. Unlike hasattr, this runs none of the class's code.

    Args:
        cls: the class.
        name: the attribute.
    """
    return any(name in vars(base) for base in cls.__mro__)


def is_typed_dict(cls: type) -> bool:
    """Return True for a TypedDict of typing or of typing_extensions.

    Args:
        cls: the class.
    """
    return has(cls, "__required_keys__") and issubclass(cls, dict)


def _parts(hint: object) -> Iterator[object]:
    """Yield the parts of an annotation that is not a class."""
    origin = typing.get_origin(hint)
    if origin in _ELSEWHERE:
        return
    if origin is typing.Literal:
        yield from map(type, typing.get_args(hint))
    elif origin is typing.Annotated:
        yield typing.get_args(hint)[0]  # the other arguments are metadata
    elif origin is not None:
        yield origin
        yield from typing.get_args(hint)
    elif isinstance(hint, typing.NewType):
        yield hint.__supertype__
    elif type(hint).__name__ == "TypeAliasType":  # `type X = ...`; typing has the class from 3.12 on
        try:
            yield cast("SimpleNamespace", hint).__value__
        except Exception:  # evaluated here for the first time: as above
            return


def _resolvable(cls: type) -> Iterator[object]:
    """Yield the annotations of a class that resolve."""
    for base in cls.__mro__:
        namespace = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, hint in _annotations(base).items():
            one = SimpleNamespace(__annotations__={name: hint})
            try:
                yield from typing.get_type_hints(one, namespace, dict(vars(base))).values()
            except Exception:  # skips only this annotation
                continue


def _annotations(cls: type) -> Mapping[str, object]:
    try:
        return inspect.get_annotations(cls)
    except Exception:  # from Python 3.14 on they are evaluated here
        return {}
