"""Answers in a given form: the schema of `response_format`, and the calls of a model that fill it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ..._checks.annotations import has_fields
from ...adapters.conversation import calls_of, is_langchain, text_of
from ...errors import GraphValidationError
from ..conversation import make_message, make_tool_message
from ..errors import InvalidToolError, StructuredOutputError
from ..function_schema import explain, json_schema_of, read_docstring, validator_of
from ..models import ChatModel, ModelCall
from ..tools import Tool

RETRIES: Final = 2
"""How often a model is shown its error before `StructuredOutputError` is raised."""


class OutputSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an answer.

    Attributes:
        name: the name of the class, or the schema's title.
        description: what it is, for the model.
        json_schema: the JSON Schema.
        kind: the class, or `dict` for a JSON Schema.
        parse: converts data to the class. Raises `ValueError` for data that does not fit.
    """

    name: str
    description: str
    json_schema: dict[str, Any]
    kind: Any
    parse: Callable[[Any], Any]

    def as_tool(self) -> Tool:
        """Return a tool whose arguments have this form."""

        async def run(call: Any, injected: dict[str, Any], config: Any) -> Any:
            return self.parse(call["args"])

        schema = {key: value for key, value in self.json_schema.items() if key not in ("title", "description")}
        return Tool(name=self.name, description=self.description, args_schema=schema, source=self.kind, _run=run)


def output_schema(given: Any) -> OutputSchema:
    """Return the form that a `response_format` describes.

    Args:
        given: a pydantic model, Struct, dataclass or TypedDict, or a JSON Schema of an object.

    Raises:
        GraphValidationError: it is none of these, or a field has no JSON Schema.
    """
    if isinstance(given, dict):
        name = str(given.get("title") or "response")
        return OutputSchema(
            name=name, description=str(given.get("description", "")), json_schema=given, kind=dict, parse=_as_dict
        )
    if not isinstance(given, type) or not has_fields(given):
        raise GraphValidationError(
            "response_format is a pydantic model, Struct, dataclass, TypedDict, a union of these (A | B), or a JSON "
            f"Schema as a dict, not {given!r}"
        )
    try:
        schema = json_schema_of(given, given.__name__)
    except InvalidToolError as error:
        raise GraphValidationError(f"response_format {given.__name__!r} has no JSON Schema: {error}") from error
    doc = str(given.__dict__.get("__doc__") or "")
    description = "" if doc.startswith(f"{given.__name__}(") else read_docstring(doc).text
    parse = validator_of(given)
    return OutputSchema(name=given.__name__, description=description, json_schema=schema, kind=given, parse=parse)


def _as_dict(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"an object is expected, not {type(data).__name__}")
    return data


async def ask_for(
    schema: OutputSchema, model: ChatModel, messages: Sequence[Any], config: Any, settings: dict[str, Any]
) -> Any:
    """Ask a model for an answer in a form: by the provider's means, or by a tool whose arguments have that form.

    Args:
        schema: the form.
        model: the model.
        messages: the conversation, a system message included.
        config: the config of the node.
        settings: further arguments of the provider's call.

    Returns:
        The object.

    Raises:
        StructuredOutputError: the model gave no valid data, although it was shown its error twice.
    """
    conversation = list(messages)
    for attempt in range(RETRIES + 1):
        if model.follows_schemas:
            call = ModelCall(
                messages=conversation, response_schema=schema.json_schema, config=config, settings=settings
            )
        else:
            call = ModelCall(
                messages=conversation,
                tools=[schema.as_tool()],
                tool_choice=schema.name,
                config=config,
                settings=settings,
            )
        answer = await model.answer(call)
        try:
            return schema.parse(data_of(answer, schema.name))
        except (ValueError, msgspec.ValidationError) as error:
            if attempt == RETRIES:
                raise StructuredOutputError(schema.name, explain(error), answer, error) from error
            conversation += [answer, *corrections(answer, explain(error))]
    raise AssertionError("the last attempt returns or raises")


def data_of(answer: Any, name: str) -> Any:
    """Return the data of an answer: the arguments of the call of a tool, or the text as JSON.

    Args:
        answer: the model's message.
        name: the name of the tool.

    Raises:
        ValueError: there is neither.
    """
    for call in calls_of(answer):
        if call["name"] == name:
            if call["type"] == "invalid_tool_call":
                raise ValueError(call["error"])
            return call["args"]
    text = text_of(answer)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"the answer is no JSON: {error}") from error


def corrections(answer: Any, why: str) -> list[Any]:
    """Return the messages that show a model its error: one for each of its calls, or one of the user."""
    langchain, said = is_langchain(answer), f"The answer is not valid: {why}. Answer again."
    calls = calls_of(answer)
    if not calls:
        return [make_message("user", said, langchain=langchain)]
    return [make_tool_message(call, said, langchain=langchain, failed=True) for call in calls]
