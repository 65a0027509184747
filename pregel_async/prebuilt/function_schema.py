"""The JSON Schema of a function's arguments, from annotations and docstring, and the validation of arguments.

msgspec reads the annotations; pydantic does, if one of them is a model or has pydantic's `Field`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final, TypeAlias, cast, get_args

import msgspec

from .._checks.annotations import is_model
from .errors import InvalidToolError

Validate: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Checks and converts arguments. Raises `ValueError` for those that do not fit."""

_SECTION: Final = re.compile(r"^\s*(Args|Arguments|Parameters|Params):\s*$")
_NEXT_SECTION: Final = re.compile(
    r"^\s*(Returns|Return|Yields|Raises|Examples?|Notes?|Attributes|See Also|Source):\s*$"
)
_ENTRY: Final = re.compile(r"^(\s*)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class ArgumentSchema(msgspec.Struct, frozen=True):
    """The arguments that a tool takes.

    Attributes:
        schema: a JSON Schema, of type object.
        validate: checks and converts arguments.
    """

    schema: dict[str, Any]
    validate: Validate


def schema_of_function(
    name: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], docs: Mapping[str, str]
) -> ArgumentSchema:
    """Return the schema of the parameters that a model sets.

    Args:
        name: the tool's name.
        parameters: these parameters.
        hints: annotations, with `Annotated`.
        docs: descriptions by parameter, from the docstring.

    Raises:
        InvalidToolError: a parameter has no JSON Schema.
    """
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidToolError(
                repr(name), f"models cannot set {parameter}: name the parameters, or pass args_schema= to tool()"
            )
        if isinstance(hints.get(parameter.name), str):
            raise InvalidToolError(
                repr(name),
                f"the annotation {hints[parameter.name]!r} of {parameter.name!r} cannot be resolved: name what a "
                "module defines or imports at run time",
            )
    types = {each: hints.get(each, Any) for each in parameters}
    optional = {each for each, one in parameters.items() if one.default is not one.empty}
    make = _with_pydantic if any(_needs_pydantic(hint) for hint in types.values()) else _with_msgspec
    made = make(name, types, optional)
    properties = made.schema["properties"]
    for each, parameter in parameters.items():
        described = docs.get(each) or next((mark for mark in _marks(types[each]) if isinstance(mark, str)), None)
        if described and "description" not in properties[each]:
            properties[each] = {**properties[each], "description": described}
        if each in optional and _is_json(parameter.default):
            properties[each] = {**properties[each], "default": parameter.default}
    return made


def schema_of_class(kind: type, name: str) -> ArgumentSchema:
    """Return the schema of a class with fields: a pydantic model, Struct, dataclass or TypedDict.

    Args:
        kind: the class.
        name: the tool's name.

    Raises:
        InvalidToolError: a field has no JSON Schema.
    """
    validate = validator_of(kind)
    return ArgumentSchema(json_schema_of(kind, name), lambda args: {"value": validate(args)})


def json_schema_of(kind: Any, name: str) -> dict[str, Any]:
    """Return the JSON Schema of a type.

    Args:
        kind: a class or another type.
        name: names the type in error messages.

    Raises:
        InvalidToolError: the type has no JSON Schema.
    """
    if is_model(kind):
        return _without_titles(kind.model_json_schema())
    try:
        schemas, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    except (TypeError, NotImplementedError) as error:
        raise InvalidToolError(repr(name), f"its arguments have no JSON Schema: {error}") from error
    return _resolved(dict(schemas[0]), components)


def validator_of(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts plain data to a type.

    Args:
        kind: a pydantic model, or a type that msgspec knows.

    Returns:
        A function that raises `ValueError` for data that does not fit.
    """
    if is_model(kind):
        model: Any = kind
        return lambda value: model.model_validate(value)
    return lambda value: msgspec.convert(value, kind, strict=False)  # models write "3" where a number is asked for


def explain(error: Exception) -> str:
    """Return what is wrong with a value, in one line."""
    if not hasattr(error, "errors"):
        return str(error)
    # pydantic's text has the name of a class that the reader has not seen, and links.
    listed: list[Any] = cast("Any", error).errors()
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in listed)


def _with_msgspec(name: str, types: Mapping[str, Any], optional: set[str]) -> ArgumentSchema:
    # A missing argument is left to the function's own default, which may be an object without a schema.
    fields: list[Any] = []
    for each, given in types.items():
        hint = _without_text(given)
        if each not in optional:
            fields.append((each, hint))
        else:
            fields.append((each, hint if hint is Any else hint | msgspec.UnsetType, msgspec.UNSET))
    try:
        kind = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise InvalidToolError(repr(name), f"its parameters cannot be read: {error}") from error
    schema = json_schema_of(kind, name)
    schema.pop("title", None)

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        made = msgspec.convert(args, kind, strict=False)
        return {each: value for each in types if (value := getattr(made, each)) is not msgspec.UNSET}

    return ArgumentSchema({"type": "object", "properties": {}, **schema}, validate)


def _with_pydantic(name: str, types: Mapping[str, Any], optional: set[str]) -> ArgumentSchema:
    pydantic: Any = import_module("pydantic")
    fields: dict[str, Any] = {each: (hint, None if each in optional else ...) for each, hint in types.items()}
    try:
        kind = pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
        schema = _without_titles(kind.model_json_schema())
    except pydantic.errors.PydanticUserError as error:
        raise InvalidToolError(repr(name), f"its parameters cannot be read: {error}") from error
    for each in optional:
        schema["properties"][each].pop("default", None)

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        made = kind.model_validate(args)
        return {each: getattr(made, each) for each in types if each in made.model_fields_set}

    return ArgumentSchema({"properties": {}, **schema}, validate)


def _needs_pydantic(hint: Any) -> bool:
    return is_model(hint) or any(
        _needs_pydantic(part) or type(part).__module__.partition(".")[0] in ("pydantic", "annotated_types")
        for part in (*get_args(hint), *_marks(hint))
    )


def _marks(hint: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    return found


def _without_text(hint: Any) -> Any:
    """Return an annotation without the strings of its `Annotated`."""
    marks = [mark for mark in _marks(hint) if not isinstance(mark, str)]
    if len(marks) == len(_marks(hint)):
        return hint
    kind = get_args(hint)[0]
    return Annotated[(kind, *marks)] if marks else kind


def _resolved(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its own definition at the top, because providers look for its properties there."""
    definitions = dict(components)
    reference = schema.get("$ref", "")
    if reference:
        own = reference.rpartition("/")[2]
        schema = dict(definitions[own])
        if not _mentions(definitions, reference):
            del definitions[own]
    return {**schema, "$defs": definitions} if definitions else schema


def _mentions(value: Any, reference: str) -> bool:
    if isinstance(value, Mapping):
        return value.get("$ref") == reference or any(_mentions(part, reference) for part in value.values())
    return isinstance(value, (list, tuple)) and any(_mentions(part, reference) for part in value)


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return pydantic's schema without the titles that it derives from the names of fields."""
    made = {key: value for key, value in schema.items() if key != "title"}
    for key in ("properties", "$defs"):
        if key in made:
            made[key] = {name: _without_titles(part) for name, part in made[key].items()}
    return made


def _is_json(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


class Docstring(msgspec.Struct, frozen=True):
    """A docstring.

    Attributes:
        text: the text before its sections.
        args: the descriptions of its `Args:` section.
    """

    text: str
    args: Mapping[str, str]


def read_docstring(doc: str | None) -> Docstring:
    """Read a docstring in Google's style."""
    text: list[str] = []
    args: dict[str, list[str]] = {}
    lines = inspect.cleandoc(doc or "").splitlines()
    for section, line in _by_section(lines):
        if section == "":
            text.append(line)
        elif section == "Args" and line.strip():
            entry = _ENTRY.match(line)
            if entry and len(entry[1]) <= 4:
                args[entry[2]] = [entry[3]]
            elif args:
                args[list(args)[-1]].append(line.strip())
    return Docstring("\n".join(text).strip(), {name: " ".join(parts).strip() for name, parts in args.items()})


def _by_section(lines: list[str]) -> Iterator[tuple[str, str]]:
    section = ""
    for line in lines:
        if _SECTION.match(line):
            section = "Args"
        elif _NEXT_SECTION.match(line):
            section = "other"
        else:
            yield section, line
