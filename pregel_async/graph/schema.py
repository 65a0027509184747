"""From a state schema to channels: which keys it has, how each is folded, and how a node gets them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

import msgspec

from .._core.fits import fits, is_typed_dict
from .._core.isolation import own
from .._core.program import Write
from ..channels import BaseChannel, BinaryOperatorAggregate, LastValue
from ..errors import GraphValidationError, InvalidInputError

Channel = BaseChannel[Any, Any, Any]


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema, read.

    Attributes:
        type: the class.
        hints: its keys, with annotations as they were written.
        channels: one of each key.
        shape: makes the class's object of a mapping of the keys that hold something; None leaves the mapping.
        fields_of: the mapping that an instance stands for, as an update; None when the class is a TypedDict.
    """

    type: Any
    hints: dict[str, Any]
    channels: dict[str, Channel]
    shape: Callable[[dict[str, Any]], Any] | None
    fields_of: Callable[[Any], dict[str, Any]] | None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.hints)


def is_schema(kind: Any) -> bool:
    """Whether a class can be a state schema."""
    return (
        is_typed_dict(kind)
        or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
        or (isinstance(kind, type) and dataclasses.is_dataclass(kind))
        or _is_model(kind)
    )


def read_schema(kind: Any, role: str) -> Schema:
    """Read a TypedDict, dataclass, msgspec.Struct or pydantic model.

    Args:
        role: what it is for, as messages say it.

    Raises:
        GraphValidationError: it is none of these, an annotation cannot be resolved, or a reducer has no two arguments.
    """
    if not is_schema(kind):
        raise GraphValidationError(
            f"the {role} is a TypedDict, a dataclass, a msgspec.Struct or a pydantic model, "
            f"and {kind!r} is none of them"
        )
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise GraphValidationError(
            f"an annotation of {kind.__qualname__} cannot be resolved ({error}). "
            "Define what it names at the top of its module."
        ) from error
    names = _field_names(kind)
    hints = {name: _bare(hints[name]) for name in (hints if names is None else names) if name in hints}
    return Schema(
        type=kind,
        hints=hints,
        channels={name: _channel(kind, name, hint) for name, hint in hints.items()},
        shape=_shape(kind),
        fields_of=None if is_typed_dict(kind) else _fields_reader(kind),
    )


def merge_channels(channels: dict[str, Channel], more: Schema) -> None:
    """Add a schema's channels to a graph's. A plain declaration takes nothing away from one with a reducer or a
    channel.

    Raises:
        GraphValidationError: one key is declared with two different channels.
    """
    for name, channel in more.channels.items():
        known = channels.get(name)
        if known is None or (type(known) is LastValue and type(channel) is not LastValue):
            channels[name] = channel
        elif type(channel) is not LastValue and not known.same_declaration(channel):
            raise GraphValidationError(
                f"key {name!r} is declared twice, as {type(known).__name__} and differently in "
                f"{more.type.__qualname__}: give it one reducer or channel"
            )


def input_reader(schema: Schema, channel: str, *, ignore_unknown: bool) -> Callable[[Any], list[Write]]:
    """Checks a call's input against the input schema, and puts it on the start channel."""

    def read(given: Any) -> list[Write]:
        values = as_mapping(schema, given)
        if values is None:
            raise InvalidInputError(
                f"the input is a mapping of {', '.join(schema.keys)} (or a {schema.type.__qualname__}), "
                f"not a {type(given).__name__}"
            )
        kept: dict[str, Any] = {}
        for key, value in values.items():
            if key not in schema.hints:
                if ignore_unknown:
                    continue
                raise InvalidInputError(
                    f"the input has a key {key!r} that {schema.type.__qualname__} does not know; it knows "
                    f"{', '.join(schema.keys)}. compile(unknown_keys='ignore') drops such keys."
                )
            validated = _is_model(schema.type)  # by the model itself
            if not validated and type(schema.channels[key]) is LastValue and not fits(schema.hints[key], value):
                raise InvalidInputError(
                    f"input {key!r} is a {type(value).__name__}, and {schema.type.__qualname__} says "
                    f"{_named(schema.hints[key])}"
                )
            kept[key] = value
        return [(channel, kept)]

    return read


def _named(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def as_mapping(schema: Schema, given: Any) -> Mapping[str, Any] | None:
    """An update given as a mapping or as an instance of the schema; None when it is neither."""
    if isinstance(given, Mapping):
        return given
    if schema.fields_of is not None and isinstance(given, schema.type):
        return schema.fields_of(given)
    return None


# ---- keys ----------------------------------------------------------------------------------------------------------


def _field_names(kind: Any) -> list[str] | None:
    """The names that count as keys; None for all annotated ones."""
    if is_typed_dict(kind):
        return None
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if _is_model(kind):
        return list(kind.model_fields)
    return list(kind.__struct_fields__)


def _bare(hint: Any) -> Any:
    while get_origin(hint) in (Required, NotRequired):
        hint = get_args(hint)[0]
    return hint


def _channel(kind: Any, name: str, hint: Any) -> Channel:
    if get_origin(hint) is not Annotated:
        return LastValue(hint)
    base, *marks = get_args(hint)
    base = _bare(base)
    for mark in marks:
        if isinstance(mark, BaseChannel):
            return mark.fresh()
        if isinstance(mark, type) and issubclass(mark, BaseChannel):
            return mark(base)
    for mark in marks[:-1]:
        if inspect.isroutine(mark):
            raise GraphValidationError(
                f"the annotation of {kind.__qualname__}.{name} has a function, {mark!r}, which is not its last "
                "item: a reducer goes last"
            )
    last = marks[-1]
    if not callable(last) or isinstance(last, type):
        return LastValue(base)
    if not _takes_two(last):
        raise GraphValidationError(
            f"the reducer of {kind.__qualname__}.{name} takes two arguments, the current value and the update, "
            f"and {last!r} does not"
        )
    return BinaryOperatorAggregate(base, last)


def _takes_two(call: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return True  # a builtin that tells nothing about itself
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needs_names = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    return len(required) <= 2 and (len(positional) >= 2 or variadic) and not needs_names


# ---- to and from the schema's class --------------------------------------------------------------------------------


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields") and hasattr(kind, "model_validate")


def _shape(kind: Any) -> Callable[[dict[str, Any]], Any] | None:
    if is_typed_dict(kind):
        return None
    if _is_model(kind):
        # Keys are the fields' names, whatever aliases they have. Before 2.11 pydantic took only the aliases.
        by_name = "by_name" in inspect.signature(kind.model_validate).parameters
        aliases = {} if by_name else {name: field.alias for name, field in kind.model_fields.items() if field.alias}

        def validated(values: dict[str, Any]) -> Any:
            # A validator is compiled code: it takes containers apart by itself, and must get a copy at every depth.
            copies = {aliases.get(name, name): own(value) for name, value in dict.items(values)}
            return kind.model_validate(copies, by_name=True, by_alias=False) if by_name else kind(**copies)

        return validated
    make: Callable[..., Any] = kind
    if dataclasses.is_dataclass(kind):
        taken = {field.name for field in dataclasses.fields(kind) if field.init}
        return lambda values: make(**{name: values[name] for name in values if name in taken})
    return lambda values: make(**{name: values[name] for name in values})


_NO_DEFAULT = object()


def _fields_reader(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """How an instance is read as an update: a field counts unless it is None and None is its default, unset."""
    defaults = _defaults(kind)

    def fields_of(instance: Any) -> dict[str, Any]:
        chosen = getattr(instance, "model_fields_set", ())
        values = {name: getattr(instance, name) for name in defaults}
        return {
            name: value
            for name, value in values.items()
            if value is not None or defaults[name] is not None or name in chosen
        }

    return fields_of


def _defaults(kind: Any) -> dict[str, Any]:
    if _is_model(kind):
        return {
            name: _NO_DEFAULT if field.is_required() or field.default_factory is not None else field.default
            for name, field in kind.model_fields.items()
        }
    if dataclasses.is_dataclass(kind):
        return {
            field.name: _NO_DEFAULT if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(kind)
        }
    return {
        field.name: _NO_DEFAULT if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
    }
