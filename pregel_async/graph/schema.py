"""State schemas: reads a class's keys, the channel of each, and how the class's objects are made and read."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_args, get_origin

import msgspec

from .._checks.annotations import (
    class_of,
    fields_of,
    has_fields,
    is_model,
    is_type,
    looks_undecorated,
    named,
    resolve_alias,
    without_qualifiers,
)
from .._checks.values import Check, Misfit, compile_check, path_of, plain_type, refused_input, refused_update
from .._core.fits import is_typed_dict
from .._core.ownership import own
from .._core.program import Write
from .._runtime.tasks.injection import hints_of
from ..channels import MISSING, BaseChannel, BinaryOperatorAggregate, DeltaChannel, LastValue
from ..channels.abc import AnyChannel
from ..channels.overwrite import overwrite_value, unwrap_overwrite
from ..errors import EmptyChannelError, GraphValidationError, InvalidInputError, InvalidUpdateError
from ..managed import ManagedValue, Progress
from ..types import Added, Overwrite, Renamed, Retyped

if TYPE_CHECKING:
    from .model_values import ModelValues

Managed: TypeAlias = type[ManagedValue[Any]]

UPGRADE_MARKS: Final = (Renamed, Retyped, Added)
"""The classes of marks in annotations that declare how stored values become those of a key."""

ROOT: Final = "__root__"
"""The channel of a state that consists of one value."""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema as read from a class or type.

    A type without keys (`int`, `Annotated[list, operator.add]`) is a *root* schema. It has the single key `ROOT`: nodes
    get the value itself, and return the update of it.

    Attributes:
        role: the schema's purpose, for messages.
        type: the class; of a root schema the type as it was passed.
        hints: the keys with their annotations.
        channels: the channel of each key.
        managed: the managed values by field. These fields are not keys.
        root: True for a root schema.
        shape: makes a node's input from the mapping of the keys that have values, and of the managed values: an object
            of the class, or the root's value. None passes the mapping itself.
        fields_of: converts an instance of the class to a mapping, as an update; None for TypedDicts and roots, which
            have no instances of their own.
    """

    role: str
    type: Any
    hints: dict[str, Any]
    channels: dict[str, AnyChannel]
    managed: dict[str, Managed] = {}
    root: bool = False
    shape: Callable[[dict[str, Any]], Any] | None
    fields_of: Callable[[Any], dict[str, Any]] | None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order of the class."""
        return tuple(self.hints)

    @property
    def shown(self) -> str | tuple[str, ...]:
        """The channels of the schema that a run shows: `ROOT`, whose value is shown itself, or a tuple of the keys."""
        return ROOT if self.root else self.keys


def is_schema(kind: Any) -> bool:
    """Return True for a class with keys: a TypedDict, dataclass, msgspec.Struct or pydantic model.

    Args:
        kind: a type, with or without type arguments.

    Returns:
        False for any other type, which is a root schema.
    """
    return has_fields(resolve_alias(kind))


def read_schema(kind: Any, role: str, *, managed: bool = True) -> Schema:
    """Read a schema from a TypedDict, dataclass, msgspec.Struct or pydantic model, or from another type as a root.

    Args:
        kind: the class or type.
        role: the schema's purpose, for messages.
        managed: False refuses managed values, which inputs and outputs cannot have.

    Returns:
        The schema.

    Raises:
        GraphValidationError: `kind` is not a type, an annotation cannot be resolved, or a reducer does not take two
            arguments.
    """
    kind = resolve_alias(kind)
    if not has_fields(kind):
        return _read_root(kind, role)
    cls = class_of(kind)
    hints = {name: without_qualifiers(hint) for name, hint in fields_of(kind).items()}
    if ROOT in hints:
        raise GraphValidationError(
            f"a state key cannot be called {ROOT!r}: the name is reserved for a state of one value"
        )
    filled_in = {
        name: found
        for name, hint in hints.items()
        if (found := _managed_class(f"{cls.__qualname__}.{name}", hint)) is not None
    }
    if filled_in and not managed:
        raise GraphValidationError(
            f"the {role} has a managed value, {next(iter(filled_in))!r}: the runtime fills it in for nodes, and it is "
            "neither given to a run nor returned by it. Declare it in the state schema."
        )
    hints = {name: hint for name, hint in hints.items() if name not in filled_in}
    return Schema(
        role=role,
        type=cls,
        hints=hints,
        channels={name: _channel(f"{cls.__qualname__}.{name}", hint) for name, hint in hints.items()},
        managed=filled_in,
        shape=_object_factory(cls),
        fields_of=None if is_typed_dict(cls) else _fields_reader(cls, hints),
    )


def _read_root(kind: Any, role: str) -> Schema:
    if not is_type(kind):
        raise GraphValidationError(
            f"the {role} is a TypedDict, a dataclass, a msgspec.Struct or a pydantic model, or another type for a "
            f"state of one value, and {kind!r} is none of them"
        )
    if looks_undecorated(kind):
        raise GraphValidationError(
            f"the {role} {kind.__qualname__} annotates fields and is no dataclass: decorate it, or make it a "
            "TypedDict, a msgspec.Struct or a pydantic model. A state of one such object is "
            f"Annotated[{kind.__name__}, LastValue]."
        )
    if _managed_class(role, kind) is not None:
        raise GraphValidationError(f"the {role} is a managed value: declare it as a key of a state schema")
    return Schema(
        role=role,
        type=kind,
        hints={ROOT: kind},
        channels={ROOT: _channel(role, kind)},
        root=True,
        shape=_root_value,
        fields_of=None,
    )


def _root_value(values: dict[str, Any]) -> Any:
    if ROOT not in values:
        raise EmptyChannelError(ROOT)
    return values[ROOT]


def merge_channels(channels: dict[str, AnyChannel], more: Schema, managed: dict[str, Managed] | None = None) -> None:
    """Add a schema's channels to those of a graph.

    If several schemas declare a key, a declaration with a reducer or channel prevails over a plain one.

    Args:
        channels: the graph's channels by key, to which the schema's are added.
        more: the schema.
        managed: the graph's managed values, to which the schema's are added.

    Raises:
        GraphValidationError: a key is declared with two different channels, or as a channel and as a managed value; or
            one schema has keys and another is a root.
    """
    known_managed = {} if managed is None else managed
    if channels and more.hints and (ROOT in channels) is not more.root:
        raise GraphValidationError(
            f"the {more.role} is {named(more.type)}, {'a plain type' if more.root else 'with keys'}, and the graph has "
            f"{'a state of one value' if ROOT in channels else 'keys'}: all schemas of a graph have keys, or none has"
        )
    for name, kind in more.managed.items():
        if name in channels or known_managed.get(name, kind) is not kind:
            raise GraphValidationError(
                f"key {name!r} is declared twice, as the managed value {kind.__name__} in {named(more.type)} and "
                "differently elsewhere: a managed value is one in every schema"
            )
    for name in more.channels:
        if name in known_managed:
            raise GraphValidationError(
                f"key {name!r} is declared twice, as the managed value {known_managed[name].__name__} and as a plain "
                f"key in {named(more.type)}: a managed value is one in every schema"
            )
    known_managed.update(more.managed)
    for name, channel in more.channels.items():
        known = channels.get(name)
        if known is None or (type(known) is LastValue and type(channel) is not LastValue):
            channels[name] = channel
        elif type(channel) is not LastValue and not known.same_declaration(channel):
            raise GraphValidationError(
                f"key {name!r} is declared twice, as {type(known).__name__} and differently in "
                f"{named(more.type)}: give it one reducer or channel"
            )


def managed_readers(managed: Mapping[str, Managed]) -> tuple[tuple[str, Callable[[int, int], Any]], ...]:
    """Make the functions that compute the managed values of a node's or router's input.

    Args:
        managed: the managed values by field.

    Returns:
        Pairs of a field and a function of the superstep's number and the number of supersteps that remain.
    """

    def reader_of(kind: Managed) -> Callable[[int, int], Any]:
        return lambda step, remaining: kind.get(Progress(step, remaining))

    return tuple((name, reader_of(kind)) for name, kind in managed.items())


def input_reader(
    schema: Schema, channel: str, *, ignore_unknown: bool, validate: bool = True, state: Schema | None = None
) -> Callable[[Any], list[Write]]:
    """Make the function that checks a call's input and converts it to a write of the start channel.

    Args:
        schema: the input schema.
        channel: the name of the start channel.
        ignore_unknown: True drops keys that the schema does not have; False refuses them.
        validate: False checks only the keys, and no values.
        state: the state schema, if it is another one. If it is a pydantic model whose validators look at several
            fields, its values are checked later, by `Program.validate`.

    Returns:
        A function of the input, which raises `InvalidInputError` if it does not fit.
    """
    if schema.root:
        return _root_reader(schema, channel, validate=validate)
    hints = schema.hints
    instance = "" if schema.fields_of is None else ", or an instance of it"
    values_of = values_reader(schema) if validate else _unchecked
    models = [
        values
        for each in ((schema, state) if validate else ())
        if each is not None
        and (values := model_values(each)) is not None
        and (values.by_field or (each is schema and state is not None))
    ]

    def read(given: Any) -> list[Write]:
        values = as_mapping(schema, given)
        if values is None:
            raise InvalidInputError(
                f"the input is a mapping with keys of {schema.type.__qualname__} ({', '.join(schema.keys)}){instance}, "
                f"and what was given is of type {type(given).__name__}"
            )
        kept: dict[str, Any] = {}
        for key, value in values.items():
            if key not in hints:
                if ignore_unknown:
                    continue
                if key in schema.managed:
                    raise InvalidInputError(
                        f"the input has a key {key!r}, a managed value, which the runtime fills in: leave it out"
                    )
                raise InvalidInputError(
                    f"the input has a key {key!r} that {schema.type.__qualname__} does not know; it knows "
                    f"{', '.join(schema.keys)}. compile(unknown_keys='ignore') drops such keys, "
                    "set_defaults(unknown_keys='ignore') in all graphs."
                )
            kept[key] = value
        found = values_of(kept)
        for model in models:
            if isinstance(found, Misfit):
                break
            found = model.validate(found, {})
        if isinstance(found, Misfit):
            raise refused_input(found)
        return [(channel, found)]

    return read


def _root_reader(schema: Schema, channel: str, *, validate: bool) -> Callable[[Any], list[Write]]:
    check = key_check(schema.type, schema.channels[ROOT]) if validate else None

    def read(given: Any) -> list[Write]:
        wrong = None if check is None else check(given)
        if wrong is not None:
            path = path_of(wrong.path)
            where = f", at {path!r}," if path else ""
            raise InvalidInputError(f"the input{where} {wrong.reason}: the graph takes {named(schema.type)}", path=path)
        # The start channel has no fold and unwraps an overwrite. Wrap it once more, so that the root's channel gets it.
        return [(channel, Overwrite(given) if isinstance(given, Overwrite) else given)]

    return read


def key_check(hint: Any, channel: AnyChannel) -> Check | None:
    """Make the check of writes to a key.

    A plain key is checked against its annotation, in depth. None always passes, as graphs commonly use it for "not
    yet". A reducer's updates may have another type than its value, so only the annotation of its second parameter
    counts. Writes to other channels are not checked, as only the channel knows its type of writes.

    Args:
        hint: the annotation of the key.
        channel: the channel of the key.

    Returns:
        The check, or None if every value passes.
    """
    if type(channel) is LastValue:
        check = compile_check(hint)
        if check is None:
            return None
        plain = check
        return lambda value: None if value is None else _check_safely(plain, unwrap_overwrite(value))
    if isinstance(channel, BinaryOperatorAggregate):
        check = compile_check(_update_annotation(channel.op))
    elif isinstance(channel, DeltaChannel):  # its reducer takes a list of updates
        arguments = get_args(_update_annotation(channel.reducer))
        check = compile_check(arguments[0]) if len(arguments) == 1 else None
    else:
        check = None
    if check is None:
        return None
    taken = check
    return lambda value: None if value is None or overwrite_value(value) is not MISSING else _check_safely(taken, value)


def _update_annotation(reducer: Callable[..., Any]) -> Any:
    """Return the annotation of a reducer's second parameter; `Any` if it has none."""
    try:
        second = list(inspect.signature(reducer).parameters)[1]
    except (TypeError, ValueError, IndexError):  # a builtin without a signature, or `*arguments`
        return Any
    return hints_of(reducer).get(second, Any)


def _check_safely(check: Check, value: Any) -> Misfit | None:
    try:
        return check(value)
    # The value contains itself, or is nested too deeply to be stored: encoding it raises an error that says so.
    except RecursionError:
        return None


def _unchecked(values: dict[str, Any]) -> dict[str, Any]:
    return values


def values_reader(schema: Schema) -> Callable[[dict[str, Any]], dict[str, Any] | Misfit]:
    """Make the function that checks values for keys of a schema.

    Plain keys of a pydantic model are not checked here but by `ModelValues`.

    Args:
        schema: the schema.

    Returns:
        A function that returns the same mapping, without conversions, or the place and reason of the first misfit.
    """
    checks: dict[str, tuple[type | None, Check] | None] = {}
    for key, hint in schema.hints.items():
        plain = type(schema.channels[key]) is LastValue
        check = None if plain and is_model(schema.type) else key_check(hint, schema.channels[key])
        checks[key] = None if check is None else (plain_type(hint) if plain else None, check)

    def read(values: dict[str, Any]) -> dict[str, Any] | Misfit:
        for key, value in values.items():
            known = checks[key]
            if known is None:
                continue
            kind, check = known
            if type(value) is not kind and (wrong := check(value)) is not None:
                return wrong.prefixed(key)
        return values

    return read


def model_values(schema: Schema) -> ModelValues | None:
    """Make the validator of values for a pydantic model.

    Args:
        schema: the schema.

    Returns:
        The validator; None if the schema is not a pydantic model.
    """
    if schema.shape is None or not is_model(schema.type):
        return None
    from .model_values import ModelValues  # imported lazily, as most states are not pydantic models

    plain = frozenset(name for name, channel in schema.channels.items() if type(channel) is LastValue)
    return ModelValues(schema.type, schema.shape, schema.keys, plain)


def update_checker(
    schemas: Sequence[Schema], channels: Mapping[str, AnyChannel]
) -> Callable[[list[Write]], list[Write]]:
    """Make the function that checks the writes of a manual update (`Program.check_update`).

    Args:
        schemas: the graph's schemas, of which the first that has a key determines its annotation.
        channels: the graph's channels.

    Returns:
        A function that returns the writes, with a pydantic model's values, or raises `InvalidUpdateError`.
    """
    model = model_values(schemas[0])
    hints: dict[str, Any] = {}
    for schema in schemas:
        hints = {**schema.hints, **hints}
    others = {key: hint for key, hint in hints.items() if model is None or not model.validates(key)}
    checks = {key: check for key, hint in others.items() if (check := key_check(hint, channels[key])) is not None}

    def check_update(writes: list[Write]) -> list[Write]:
        for name, value in writes:
            check = checks.get(name)
            if check is not None and (wrong := check(value)) is not None:
                raise refused_update(wrong.prefixed(name))
        return writes if model is None or not model.by_field else model.validate_update(writes, {})

    return check_update


def start_writes(schema: Schema) -> Callable[[Any], list[Write]]:
    """Make the function that converts the value of the start channel, or a manual update as START, to writes.

    Args:
        schema: the input schema.

    Returns:
        A function of the value, which raises `InvalidUpdateError` for a manual update that is not a mapping.
    """
    if schema.root:
        return lambda given: [(ROOT, given)]

    def writes(given: Any) -> list[Write]:
        values = given if isinstance(given, dict) else {} if given is None else as_mapping(schema, given)
        if values is None:
            raise InvalidUpdateError(
                f"an update as the start is a mapping of {', '.join(schema.keys)} (or a {schema.type.__qualname__}), "
                f"not a {type(given).__name__}"
            )
        return list(values.items())

    return writes


def as_mapping(schema: Schema, given: Any) -> Mapping[str, Any] | None:
    """Convert an update to a mapping of keys.

    Args:
        schema: the schema.
        given: a mapping, or an instance of the schema's class; for a root schema, any value.

    Returns:
        The mapping. None if `given` is neither, or an awaitable for a root schema: an await was forgotten then.
    """
    if schema.root:
        return None if inspect.isawaitable(given) else {ROOT: given}
    if type(given) is dict or isinstance(given, Mapping):  # an ABC's check costs three calls
        return given
    if schema.fields_of is not None and isinstance(given, schema.type):
        return schema.fields_of(given)
    return None


def _managed_class(where: str, hint: Any) -> Managed | None:
    """Return the managed value's class in an annotation, or None. `where` names the key in messages."""
    if get_origin(hint) is not Annotated:
        return None
    for mark in get_args(hint)[1:]:
        if isinstance(mark, type) and issubclass(mark, ManagedValue):
            if inspect.isabstract(mark):
                raise GraphValidationError(f"{mark.__qualname__}, which is to fill in {where}, has no get()")
            return mark
        if isinstance(mark, ManagedValue):
            kind = type(mark).__name__
            raise GraphValidationError(f"{where} is to be filled in by a class: write {kind}, and not {kind}()")
    return None


def _channel(where: str, hint: Any) -> AnyChannel:
    """Make the channel that an annotation declares. `where` names the key in messages."""
    if get_origin(hint) is not Annotated:
        return LastValue(hint)
    base, *marks = get_args(hint)
    base = without_qualifiers(base)
    marks = [mark for mark in marks if not isinstance(mark, UPGRADE_MARKS)]
    for mark in marks:
        if isinstance(mark, DeltaChannel):
            if not _takes_two_arguments(mark.reducer):
                raise _reducer_error(where, "the current value and a list of updates", mark.reducer)
            return mark.of_type(base) if mark.typ is Any else mark.fresh()
        if isinstance(mark, BaseChannel):
            return mark.fresh()
        if isinstance(mark, type) and issubclass(mark, BaseChannel):
            return _instantiate_channel(where, mark, base)
    for mark in marks[:-1]:
        if inspect.isroutine(mark):
            raise GraphValidationError(
                f"the annotation of {where} has a function, {mark!r}, which is not its last item: a reducer goes last"
            )
    last = marks[-1] if marks else None
    if not callable(last) or isinstance(last, type):
        return LastValue(base)
    if not _takes_two_arguments(last):
        raise _reducer_error(where, "the current value and the update", last)
    return BinaryOperatorAggregate(base, last)


def _instantiate_channel(where: str, kind: type[AnyChannel], base: Any) -> AnyChannel:
    if issubclass(kind, DeltaChannel):  # its first parameter is the reducer, so it would use the type as that
        raise GraphValidationError(f"the DeltaChannel of {where} needs its reducer: write DeltaChannel(reducer)")
    try:
        return kind(base)
    except TypeError as error:
        raise GraphValidationError(
            f"the channel of {where} is not made of a type alone ({error}): write an object, {kind.__name__}(...)"
        ) from error


def _reducer_error(where: str, which: str, reducer: Any) -> GraphValidationError:
    return GraphValidationError(f"the reducer of {where} takes two arguments, {which}, and {reducer!r} does not")


def _takes_two_arguments(call: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return True  # a builtin without a signature
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needs_names = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    return len(required) <= 2 and (len(positional) >= 2 or variadic) and not needs_names


def state_coercer(schema: Schema) -> Callable[[Any], Any] | None:
    """Make the function that converts a mapping of the state to an object of the schema's class.

    Keys of the graph's other schemas, which the class does not have, are left out. A state that lacks a required field,
    or that the class refuses, is returned unchanged.

    Args:
        schema: the schema.

    Returns:
        The function; None for TypedDicts and root schemas, which need no conversion.
    """
    shape, keys = schema.shape, schema.keys
    if shape is None or schema.root:
        return None

    def coerce(state: Any) -> Any:
        try:
            return shape({key: state[key] for key in keys if key in state}) if isinstance(state, dict) else state
        except (TypeError, ValueError):
            return state

    return coerce


def state_completer(schema: Schema) -> Callable[[Any], Any] | None:
    """Make the function that adds a pydantic model's defaults and types to a state, for `aget_state`.

    A state that the model refuses is returned unchanged.

    Args:
        schema: the schema.

    Returns:
        A function from mapping to mapping; None if the schema is not a pydantic model.
    """
    coerce = state_coercer(schema) if is_model(schema.type) else None
    if coerce is None:
        return None

    def complete(state: Any) -> Any:
        made = coerce(state)
        if made is state:
            return state
        return {**state, **{name: getattr(made, name) for name in schema.keys}}

    return complete


def _object_factory(kind: Any) -> Callable[[dict[str, Any]], Any] | None:
    if is_typed_dict(kind):
        return None
    factories = _factories(kind)
    if is_model(kind):
        # Keys of the state are the names of the fields, not their aliases. pydantic before 2.11 accepts only aliases.
        by_name = "by_name" in inspect.signature(kind.model_validate).parameters
        aliases = {} if by_name else {name: field.alias for name, field in kind.model_fields.items() if field.alias}

        def validated(values: dict[str, Any]) -> Any:
            # pydantic's validators are compiled code and read the elements of a container directly, not through the
            # isolating subclasses of list and dict: they must get a copy at every depth.
            copies = {aliases.get(name, name): own(value) for name, value in dict.items(values)}
            model = kind.model_validate(copies, by_name=True, by_alias=False) if by_name else kind(**copies)
            # A default factory may return one shared object each time, so its value is replaced by a copy. The copy is
            # set afterwards: passed to the model, the field would count as set, and would be validated.
            for name in factories:
                if name in model.__dict__ and name not in values:
                    model.__dict__[name] = own(model.__dict__[name], name)
            for name in hidden:
                model.__pydantic_private__[name] = own(model.__pydantic_private__[name], name)
            return model

        hidden = [name for name, private in kind.__private_attributes__.items() if private.default_factory is not None]
        return validated
    make: Callable[..., Any] = kind
    if dataclasses.is_dataclass(kind):
        taken = {field.name for field in dataclasses.fields(kind) if field.init}
        later = tuple(field.name for field in dataclasses.fields(kind) if not field.init)
        defaults = {name: factory for name, factory in factories.items() if name in taken}

        def made(values: dict[str, Any]) -> Any:
            given = {name: values[name] for name in values if name in taken}
            instance = make(**_with_defaults(given, defaults))
            for name in later:
                if name in values:  # the written value prevails over the one that __post_init__ computes
                    object.__setattr__(instance, name, values[name])
                elif name in factories:
                    object.__setattr__(instance, name, own(getattr(instance, name), name))
            return instance

        return made
    return lambda values: make(**_with_defaults({name: values[name] for name in values}, factories))


def _with_defaults(given: dict[str, Any], factories: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Add copies of the default values of fields that are not given."""
    # Copies, as a factory may return one shared object each time. Added before the object is made, so that objects
    # which its `__post_init__` derives from the fields refer to the same copies.
    for name, factory in factories.items():
        if name not in given:
            given[name] = own(factory(), name)
    return given


_FRESH_FACTORIES: Final = frozenset((list, dict, set))
"""Factories that return a new object each time, so that no copy is needed."""


def _factories(kind: Any) -> dict[str, Callable[[], Any]]:
    """Return the default factories of a class by field, except those that return a new object each time."""
    found: dict[str, Any]
    if is_model(kind):
        found = {name: field.default_factory for name, field in kind.model_fields.items()}
    elif dataclasses.is_dataclass(kind):
        found = {field.name: field.default_factory for field in dataclasses.fields(kind)}
    else:
        found = {field.name: field.default_factory for field in msgspec.structs.fields(kind)}
    nothing = (None, dataclasses.MISSING, msgspec.NODEFAULT)
    return {name: made for name, made in found.items() if made not in nothing and made not in _FRESH_FACTORIES}


_NO_DEFAULT = object()
_NOT_SET = object()


def _fields_reader(kind: Any, keys: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Make the function that reads an instance as an update.

    A field counts unless it is None, None is its default, and it was not set explicitly (only pydantic models know). Of
    managed values, which the instance that a node gets has as fields, none are read: the node may return the instance.
    """
    defaults = {name: default for name, default in _defaults(kind).items() if name in keys}

    def fields_of(instance: Any) -> dict[str, Any]:
        chosen = getattr(instance, "model_fields_set", ())
        values = {name: getattr(instance, name, _NOT_SET) for name in defaults}
        return {
            name: value
            for name, value in values.items()
            if value is not _NOT_SET and (value is not None or defaults[name] is not None or name in chosen)
        }

    return fields_of


def _defaults(kind: Any) -> dict[str, Any]:
    if is_model(kind):
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
