"""Read the annotations of classes with fields: TypedDicts, dataclasses, Structs, pydantic models, also generic ones."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from .._core.fits import is_typed_dict
from ..errors import GraphValidationError

# By name: typing has ReadOnly from Python 3.13 on, and before that typing_extensions, which need not be installed.
_KEY_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


def has_fields(kind: Any) -> bool:
    """Return True for a TypedDict, dataclass, Struct or pydantic model, also with type arguments (`Page[int]`)."""
    cls = class_of(kind)
    return (
        is_typed_dict(cls)
        or (isinstance(cls, type) and issubclass(cls, msgspec.Struct))
        or (isinstance(cls, type) and dataclasses.is_dataclass(cls))
        or is_model(cls)
    )


def is_model(cls: Any) -> bool:
    """Return True for a pydantic model."""
    return isinstance(cls, type) and hasattr(cls, "model_fields") and hasattr(cls, "model_validate")


def is_type(kind: Any) -> bool:
    """Return True for a class, a generic, a union, an alias or another type of `typing`; False for None."""
    return (
        (isinstance(kind, type) and kind is not NoneType)
        or get_origin(kind) is not None
        or kind is Any
        or isinstance(kind, NewType)
        or is_alias(kind)
    )


def looks_undecorated(kind: Any) -> bool:
    """Return True if a class has annotations but no fields, so that a decorator or a base was probably forgotten."""
    if not isinstance(kind, type) or get_origin(kind) is not None or has_fields(kind):
        return False
    if issubclass(kind, (tuple, Enum)):
        return False
    return any(not _is_class_variable(hint) for hint in inspect.get_annotations(kind).values())


def _is_class_variable(hint: object) -> bool:
    """Return True if an annotation, also a postponed one, is a ClassVar."""
    class_variable: object = ClassVar
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return class_variable in (hint, get_origin(hint))


def class_of(kind: Any) -> Any:
    """Return the class of a generic with arguments (`Page` of `Page[int]`); anything else unchanged."""
    origin = get_origin(kind)
    return origin if isinstance(origin, type) else kind


def resolve_alias(kind: Any) -> Any:
    """Return the type that a `type X = ...` alias stands for. Raises `GraphValidationError` if it does not resolve."""
    try:
        while is_alias(kind):
            kind = kind.__value__
    except NameError as error:  # Python evaluates the value of an alias only here, at its first use
        raise GraphValidationError(f"{kind!r} cannot be resolved ({error})") from error
    return kind


def is_alias(kind: Any) -> bool:
    """Return True for an alias made by `type X = ...`. Its value may contain the alias itself."""
    return type(kind).__name__ == "TypeAliasType"  # typing has it from Python 3.12 on, typing_extensions before


def without_qualifiers(hint: Any) -> Any:
    """Return an annotation without the qualifiers of its key: `T` for `Required[T]`."""
    while getattr(get_origin(hint), "_name", None) in _KEY_QUALIFIERS:
        hint = get_args(hint)[0]
    return hint


def is_required(kind: Any, name: str, hint: Any) -> bool:
    """Return True if a TypedDict requires a key."""
    # Look at the annotation before `__required_keys__`: with postponed annotations, `__required_keys__` was computed
    # when the class was made, without evaluating `Required` and `NotRequired`.
    while (origin := get_origin(hint)) is not None:
        if origin in (Required, NotRequired):
            return origin is Required
        if origin is not Annotated and getattr(origin, "_name", None) != "ReadOnly":
            break
        hint = get_args(hint)[0]
    return name in class_of(kind).__required_keys__


def named(hint: Any) -> str:
    """Return an annotation as text, for error messages."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__qualname__
    return str(hint).replace("typing.", "")


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields by name, with type arguments substituted for type parameters.

    Raises:
        GraphValidationError: an annotation cannot be resolved.
    """
    cls = class_of(kind)
    try:
        hints = _resolved_hints(kind)
    except NameError as error:
        raise GraphValidationError(
            f"an annotation of {cls.__qualname__} cannot be resolved ({error}). "
            "Define what it names at the top of its module."
        ) from error
    if is_typed_dict(cls):
        return hints
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    elif is_model(cls):
        names = list(cls.model_fields)
    else:
        names = list(cls.__struct_fields__)
    return {name: hints[name] for name in names if name in hints}


def _resolved_hints(kind: Any) -> dict[str, Any]:
    """Return all annotations of a class, with type arguments substituted.

    Type parameters of the class become its arguments, and those of a base become the arguments that the class passes to
    the base. Type parameters without an argument stay.
    """
    cls = class_of(kind)
    hints = get_type_hints(cls, include_extras=True)
    arguments = _arguments(kind)
    inherited: dict[str, Any] = {}
    for base in reversed(vars(cls).get("__orig_bases__", cls.__bases__)):
        if has_fields(base):
            plain = get_type_hints(class_of(base), include_extras=True)
            # A hint that differs from the base's plain one is a redeclaration, which wins over the base.
            inherited |= {name: hint for name, hint in _resolved_hints(base).items() if hints.get(name) == plain[name]}
    return {name: _substitute(inherited.get(name, hint), arguments) for name, hint in hints.items()}


def _arguments(kind: Any) -> dict[Any, Any]:
    """Return the arguments of a generic by type parameter: `{T: int}` for `Page[int]`."""
    made: Mapping[str, Any] | None = vars(kind).get("__pydantic_generic_metadata__") if is_model(kind) else None
    if made is not None and made["origin"] is not None:  # pydantic makes a new class for `Model[int]`
        return dict(zip(made["origin"].__pydantic_generic_metadata__["parameters"], made["args"], strict=False))
    return dict(zip(getattr(class_of(kind), "__parameters__", ()), get_args(kind), strict=False))


def _substitute(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    generic: Any = hint
    if isinstance(hint, TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not arguments or (isinstance(hint, type) and get_origin(hint) is None) or not isinstance(parameters, tuple):
        return hint
    if not any(parameter in arguments for parameter in parameters):
        return hint
    return generic[tuple(arguments.get(parameter, parameter) for parameter in parameters)]
