"""Check a call's `context=` against the graph's context schema, and convert it to the schema's class."""

from __future__ import annotations

import dataclasses
import types
from collections import abc
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from .._core.fits import fits, is_typed_dict
from ..errors import GraphValidationError, InvalidContextError
from .annotations import class_of, fields_of, has_fields, is_model, is_type, named, resolve_alias, without_qualifiers
from .value_columns import required_fields


def context_reader(schema: Any) -> Callable[[Any], Any]:
    """Return the function that converts a call's context to the context that nodes get.

    A mapping becomes an object of the schema's class (dataclass, msgspec.Struct, pydantic model), at any depth where
    fields are annotated with such classes; for a TypedDict it stays a dict. An instance of the class is passed
    unchanged. Values are checked loosely against annotations; a pydantic model validates its own.

    None stands for a call without context: it becomes an object of the schema's defaults, or an empty dict if the
    schema is `dict`, and stays None if the schema allows None.

    Args:
        schema: a class with fields, or any other type; None passes every context as it is.

    Returns:
        A function of the context. It raises `InvalidContextError` for a context that does not fit, and for None if a
        field of the schema has no default.

    Raises:
        GraphValidationError: the schema is no type, or one of its annotations cannot be resolved.
    """
    if schema is None:
        return _unchanged
    kind = resolve_alias(schema)
    if not is_type(kind):
        raise GraphValidationError(f"the context schema is a class or another type, and {schema!r} is none")
    if has_fields(kind):
        fields_of(kind)  # raises for unresolvable annotations now, when the graph is built, and not in the first call

    def read(given: Any) -> Any:
        return _default_context(kind) if given is None else _convert(kind, given, "")

    return read


def _default_context(kind: Any) -> Any:
    """Return the context of a call that passes none."""
    hint = resolve_alias(without_qualifiers(kind))
    while get_origin(hint) is Annotated:
        hint = resolve_alias(get_args(hint)[0])
    if has_fields(hint):
        try:
            return _build(hint, {}, "")
        except InvalidContextError as error:
            raise InvalidContextError(f"no context was given, and {error}: pass context=", path=error.path) from error
    if hint in (Any, object) or (get_origin(hint) in (Union, types.UnionType) and types.NoneType in get_args(hint)):
        return None
    if class_of(hint) in (dict, abc.Mapping):
        return {}
    raise InvalidContextError(f"no context was given, and the context schema is {named(kind)}: pass context=")


def _unchanged(given: Any) -> Any:
    return given


def _convert(hint: Any, given: Any, path: str) -> Any:
    """Convert the value at `path` in the context to its annotation."""
    hint = resolve_alias(without_qualifiers(hint))
    if get_origin(hint) is Annotated:
        return _convert(get_args(hint)[0], given, path)
    if isinstance(given, Mapping):
        kind = _class_for_mapping(hint)
        if kind is not None:
            return _build(kind, given, path)
    if not fits(class_of(hint) if has_fields(hint) else hint, given):
        place = f", at {path!r}," if path else ""
        raise InvalidContextError(
            f"the context{place} is of type {type(given).__name__}, and its schema says {named(hint)}", path=path
        )
    return given


def _class_for_mapping(hint: Any) -> Any:
    """Return the class that a mapping must be meant for; None if there is no such class, or several.

    It is the annotation, if that has fields; or in a union the only class with fields, if no other option takes a dict.
    """
    if has_fields(hint):
        return hint
    if get_origin(hint) not in (Union, types.UnionType):
        return None
    options = [resolve_alias(option) for option in get_args(hint)]
    kinds = [option for option in options if has_fields(option)]
    others = [option for option in options if not has_fields(option) and option is not types.NoneType]
    return kinds[0] if len(kinds) == 1 and not any(fits(option, {}) for option in others) else None


def _build(kind: Any, given: Mapping[Any, Any], path: str) -> Any:
    cls = class_of(kind)
    if is_model(cls):
        return _construct(cls, lambda: cls.model_validate(dict(given)), path)
    hints = fields_of(kind)
    for key in given:
        if key not in hints or key not in _accepted_fields(cls, hints):
            raise InvalidContextError(
                f"the context has {_join_path(path, key)!r}, which {cls.__qualname__} does not know; it knows "
                f"{', '.join(_accepted_fields(cls, hints))}",
                path=_join_path(path, key),
            )
    for key in required_fields(kind, hints):
        if key not in given:
            raise InvalidContextError(
                f"the context lacks {_join_path(path, key)!r}, which {cls.__qualname__} requires",
                path=_join_path(path, key),
            )
    values = {key: _convert(hints[key], value, _join_path(path, key)) for key, value in given.items()}
    return values if is_typed_dict(cls) else _construct(cls, lambda: cls(**values), path)


def _construct(cls: type, make: Callable[[], Any], path: str) -> Any:
    try:
        return make()
    except Exception as error:  # validators and `__post_init__` may raise anything to refuse the context
        place = f" at {path!r}" if path else ""
        raise InvalidContextError(
            f"the context{place} cannot be converted to {cls.__qualname__}: {error}", path=path
        ) from error


def _accepted_fields(cls: Any, hints: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that a mapping may contain."""
    if not dataclasses.is_dataclass(cls):
        return list(hints)
    return [field.name for field in dataclasses.fields(cls) if field.init]


def _join_path(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
