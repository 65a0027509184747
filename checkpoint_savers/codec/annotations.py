"""Which classes annotations name: through unions, containers, aliases and the fields of the classes themselves.

An annotation is a hint of what a value may hold, never a demand. What does not resolve is passed over; when such a
value is written, it is refused with the way to register its class.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, cast

_ELSEWHERE: tuple[object, ...] = (ClassVar, typing.get_origin(typing.Callable[[], None]), type)
"""What stands in the brackets of these is not part of a value."""


_MADE_OF_FIELDS = ("__dataclass_fields__", "__struct_fields__", "_fields")


def classes(hints: Iterable[object]) -> Iterator[type]:
    """Every class that annotations name, and those that the fields of these classes name, each once."""
    todo, seen = list(hints), dict[int, object]()  # the objects are kept: else another could get the id of one of them
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
    """The annotations of a class's fields, as far as they resolve; none for a class not defined by its fields."""
    if has(cls, "__pydantic_fields_set__"):
        # Both: pydantic knows the arguments of a generic model, and has not resolved what was defined after the class.
        return [*(field.annotation for field in model_fields(cls).values()), *_hints(cls)]
    if not is_typed_dict(cls) and not any(has(cls, name) for name in _MADE_OF_FIELDS):
        return ()
    return _hints(cls)


def _hints(cls: type) -> Iterable[object]:
    try:
        return list(typing.get_type_hints(cls).values())
    except Exception:  # a NameError, or whatever the module's own expressions raise; it spoils all fields for one
        return list(_resolvable(cls))


def model_fields(cls: Any) -> Mapping[str, Any]:
    """The fields of a pydantic model."""
    # The first is new in 2.10, where the second may not be asked of an object any more.
    found: Mapping[str, Any] = cls.__pydantic_fields__ if hasattr(cls, "__pydantic_fields__") else cls.model_fields
    return found


def has(cls: type, name: str) -> bool:
    """Whether a class defines an attribute. Unlike hasattr it runs none of the class's code."""
    return any(name in vars(base) for base in cls.__mro__)


def is_typed_dict(cls: type) -> bool:
    """Of typing or of typing_extensions."""
    return has(cls, "__required_keys__") and issubclass(cls, dict)


def _parts(hint: object) -> Iterator[object]:
    """What an annotation that is no class is made of."""
    origin = typing.get_origin(hint)
    if origin in _ELSEWHERE:
        return
    if origin is typing.Literal:
        yield from map(type, typing.get_args(hint))
    elif origin is typing.Annotated:
        yield typing.get_args(hint)[0]  # the rest says something about the value
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
    """The annotations of a class, without those that do not resolve."""
    for base in cls.__mro__:
        namespace = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, hint in _annotations(base).items():
            one = SimpleNamespace(__annotations__={name: hint})
            try:
                yield from typing.get_type_hints(one, namespace, dict(vars(base))).values()
            except Exception:  # as above, but now it spoils only this one
                continue


def _annotations(cls: type) -> Mapping[str, object]:
    try:
        return inspect.get_annotations(cls)
    except Exception:  # from Python 3.14 on they are evaluated here
        return {}
