"""Describe a graph's input, output and context by pydantic models. Imported at the first use: it needs pydantic."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, ConfigDict, RootModel, create_model
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from .._checks.annotations import fields_of, has_fields, is_model, is_required, resolve_alias, without_qualifiers
from .._core.fits import is_typed_dict
from ..types import RunnableConfig
from .definition import Definition


class _LenientModel(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)


class _Root(RootModel[Any]):
    model_config = ConfigDict(arbitrary_types_allowed=True)


class _JsonSchema(GenerateJsonSchema):
    """Describes what has no JSON schema, such as an object of a class that pydantic does not know, as any value."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as its base class has it

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def input_model(graph: Definition) -> type[BaseModel]:
    """Return the model of a graph's input."""
    return _model(f"{graph.name}_input", _known(graph, graph.input_type))


def output_model(graph: Definition) -> type[BaseModel]:
    """Return the model of a graph's output, in which every key may be missing."""
    kind, name = _known(graph, graph.output_type), f"{graph.name}_output"
    if not has_fields(kind):
        return _model(name, kind)
    fields: dict[str, Any] = {key: (without_qualifiers(hint), None) for key, hint in fields_of(kind).items()}
    return create_model(name, __base__=_LenientModel, **fields)


def config_model(graph: Definition, include: Sequence[str] | None, called: str) -> type[BaseModel]:
    """Return the model of a config: its `configurable` is the graph's context. Warn that `called` is deprecated."""
    warnings.warn(f"{called} is deprecated: use get_context_jsonschema()", DeprecationWarning, stacklevel=3)
    hints = fields_of(RunnableConfig)
    fields: dict[str, Any] = {
        key: (hints[key], None) for key in include or () if key in hints and key != "configurable"
    }
    if graph.context_schema is not None:
        fields["configurable"] = (_described(graph.context_schema, ()), None)
    return create_model(f"{graph.name}_config", __base__=_LenientModel, **fields)


def json_schema(graph: Definition, part: str) -> dict[str, Any] | None:
    """Return the JSON schema of a graph's "input", "output" or "context"; None if it has no context schema."""
    if part != "context":
        kind = _known(graph, graph.input_type if part == "input" else graph.output_type)
    elif graph.context_schema is None:
        return None
    else:
        kind = _described(graph.context_schema, ())
    return schema_of(_model(f"{graph.name}_{part}", kind))


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model."""
    schema = model.model_json_schema(schema_generator=_JsonSchema)
    reference = schema.get("$ref")
    if reference is None:
        return schema
    # A `RootModel` of a class refers to the class, while readers of a schema look for its properties at the top.
    name = reference.rpartition("/")[2]
    definitions = schema["$defs"]
    top = definitions[name] if reference in json.dumps(definitions) else definitions.pop(name)
    return {"$defs": definitions, **top} if definitions else dict(top)


def _model(name: str, kind: Any) -> type[BaseModel]:
    return kind if is_model(kind) else create_model(name, __base__=_Root, root=(kind, ...))


def _known(graph: Definition, kind: Any) -> Any:
    """Return an annotation as pydantic can read it, without the keys of a state that the runtime provides."""
    described = _described(kind, ())
    if (
        not graph.schemas
        or not is_typed_dict(described)
        or all(name in graph.program.channels for name in fields_of(described))
    ):
        return described
    fields = {name: hint for name, hint in fields_of(described).items() if name in graph.program.channels}
    return _typed_dict(described.__name__, fields, described.__doc__)


def _described(kind: Any, inside: tuple[Any, ...]) -> Any:
    """Return an annotation as pydantic can read it: with other TypedDicts for Structs and, before 3.12, TypedDicts.

    Args:
        kind: the annotation.
        inside: the classes of which it is a part. A class inside of itself is described as any value.
    """
    kind = resolve_alias(kind)
    if is_typed_dict(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        if kind in inside:
            return Any
        native = is_typed_dict(kind) and (sys.version_info >= (3, 12) or type(kind).__module__ == "typing_extensions")
        hints = {name: _described(hint, (*inside, kind)) for name, hint in fields_of(kind).items()}
        fields = {
            name: Required[without_qualifiers(hint)]
            if _is_required(kind, name)
            else NotRequired[without_qualifiers(hint)]
            for name, hint in hints.items()
        }
        return kind if native and hints == fields_of(kind) else _typed_dict(kind.__name__, fields, kind.__doc__)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None or not arguments:
        return kind
    if origin is Annotated:
        return Annotated[(_described(arguments[0], inside), *kind.__metadata__)]
    made = tuple([_described(each, inside) if not isinstance(each, list) else each for each in arguments])
    if made == arguments:
        return kind
    return reduce(or_, made) if origin in (UnionType, Union) else origin[made]


def _is_required(kind: Any, name: str) -> bool:
    if is_typed_dict(kind):
        return is_required(kind, name, fields_of(kind)[name])
    fields = msgspec.structs.fields(kind)
    return next(field.required for field in fields if field.name == name)


def _typed_dict(name: str, fields: dict[str, Any], doc: str | None) -> Any:
    make: Any = TypedDict  # with names that a type checker cannot know
    made = make(name, fields)
    made.__doc__ = doc
    return made
