"""How an agent gets its answer in a form: by tools, by the provider's means, or by what the model supports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

import msgspec

from ...adapters.conversation import calls_of, is_langchain, role_of
from ...errors import GraphValidationError
from ..conversation import make_message, make_tool_message
from ..errors import MultipleStructuredOutputsError, StructuredOutputError, StructuredOutputValidationError
from ..function_schema import explain
from ..langchain_models import LangchainModel
from ..middleware.base import ModelResponse
from ..models import ChatModel, InvalidModelError, ModelCall
from ..usage import uncounted
from .schemas import RETRIES, OutputSchema, corrections, data_of, output_schema

__all__ = ["AutoStrategy", "ProviderStrategy", "ToolStrategy"]

HandleErrors: TypeAlias = bool | str | type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], str]

_COMPLETE: Final = "The answer is complete."


class ToolStrategy:
    """Get the answer as the arguments of a tool, which the model calls at the end.

    Args:
        schema: a pydantic model, Struct, dataclass, TypedDict or JSON Schema; or a union of them (`A | B`, or a JSON
            Schema with `oneOf`), of which each is a tool, and the model calls one.
        tool_message_content: the text of the tool message that answers a valid call.
        handle_errors: which errors the model is shown, to answer again: True for all; a text, which is shown for all;
            an exception class or a tuple of them, which the error or its cause is to be an instance of; a function of
            the error that returns the text, or raises. False for none. Other errors are raised.

    Attributes:
        schemas: the forms.

    Raises:
        GraphValidationError: a schema is none of these, two have the same name, or `handle_errors` is no such thing.
    """

    def __init__(
        self, schema: Any, *, tool_message_content: str | None = None, handle_errors: HandleErrors = True
    ) -> None:
        self.schema = schema
        self.tool_message_content = tool_message_content
        self.handle_errors = handle_errors
        self.schemas = _schemas_of(schema)
        kinds: tuple[Any, ...] = handle_errors if isinstance(handle_errors, tuple) else ()
        if isinstance(handle_errors, type):
            kinds = (handle_errors,)
        is_known = isinstance(handle_errors, (bool, str, tuple)) or callable(handle_errors)
        if not is_known or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise GraphValidationError(
                "handle_errors is True, False, a text, an exception class, a tuple of them or a function of the error, "
                f"not {handle_errors!r}"
            )

    def text_of(self, error: StructuredOutputError) -> str:
        """Return what the model is shown of an error.

        Args:
            error: the error.

        Returns:
            The text.

        Raises:
            StructuredOutputError: the error is not to be shown.
        """
        handle = self.handle_errors
        if isinstance(handle, str):
            return handle
        if isinstance(handle, (type, tuple)):
            if not any(isinstance(each, handle) for each in (error, error.source)):
                raise error
        elif callable(handle):
            return handle(error)
        elif not handle:
            raise error
        return error.correction


class ProviderStrategy:
    """Get the answer as the text of the model's message, which the provider makes follow a JSON Schema.

    An answer that does not fit nevertheless is shown to the model with the error, twice.

    Args:
        schema: a pydantic model, Struct, dataclass, TypedDict or JSON Schema.
        strict: True to ask the provider to enforce the schema, False not to; None to ask if the schema allows it.

    Attributes:
        schemas: the form.

    Raises:
        GraphValidationError: the schema is none of these, or a union.
    """

    def __init__(self, schema: Any, *, strict: bool | None = None) -> None:
        self.schema = schema
        self.strict = strict
        self.schemas = _schemas_of(schema)
        if len(self.schemas) > 1:
            names = ", ".join(form.name for form in self.schemas)
            raise GraphValidationError(f"a provider takes one schema, and this is a union of {names}: use ToolStrategy")


class AutoStrategy:
    """Get the answer by the provider's means if the model follows schemas, and else by a tool.

    A union is always got by tools. This is the strategy of a `response_format` that names none.

    Args:
        schema: as of `ToolStrategy`.

    Attributes:
        schemas: the forms.

    Raises:
        GraphValidationError: as of `ToolStrategy`.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.by_tools = ToolStrategy(schema)
        self.schemas = self.by_tools.schemas
        self.by_provider = ProviderStrategy(schema) if len(self.schemas) == 1 else None

    def strategy_for(self, model: ChatModel) -> ToolStrategy | ProviderStrategy:
        """Return the strategy for a model.

        Args:
            model: the model.

        Returns:
            The provider's means or tools.
        """
        follows = self.by_provider is not None and model.follows_schemas
        return self.by_provider if self.by_provider is not None and follows else self.by_tools


ResponseFormat: TypeAlias = ToolStrategy | ProviderStrategy | AutoStrategy


def strategy_of(given: Any) -> ResponseFormat:
    """Return a `response_format` as a strategy.

    Args:
        given: a strategy, or a schema.

    Raises:
        GraphValidationError: it is neither.
    """
    if isinstance(given, (ToolStrategy, ProviderStrategy, AutoStrategy)):
        return given
    kind = type(given)
    if kind.__module__.partition(".")[0] == "langchain" and kind.__name__ in __all__:
        raise GraphValidationError(
            f"response_format is {kind.__name__} of langchain. Use {kind.__name__} of pregel_async.prebuilt, which has "
            "its parameters"
        )
    return AutoStrategy(given)


def _schemas_of(schema: Any) -> tuple[OutputSchema, ...]:
    found = tuple([output_schema(each) for each in _variants(schema)])
    names = [form.name for form in found]
    if len(set(names)) < len(names):
        raise GraphValidationError(
            f"each schema of a union needs a name of its own, which is the title of a JSON Schema, not {names}"
        )
    return found


def _variants(schema: Any) -> Iterator[Any]:
    if get_origin(schema) in (Union, UnionType):
        parts = get_args(schema)
    elif isinstance(schema, dict) and schema.get("oneOf"):
        parts = tuple(schema["oneOf"])
    else:
        yield schema
        return
    for part in parts:
        yield from _variants(part)


def check_model(strategy: ResponseFormat, model: ChatModel) -> None:
    """Refuse a model that cannot answer by a strategy.

    Args:
        strategy: the strategy.
        model: the model.

    Raises:
        InvalidModelError: the provider's means are asked for, and the model does not follow schemas.
    """
    # A chat model of langchain-core may follow schemas without a profile that says so.
    if isinstance(strategy, ProviderStrategy) and not (
        model.follows_schemas or isinstance(uncounted(model), LangchainModel)
    ):
        raise InvalidModelError(model.name, "it follows no JSON Schema: use ToolStrategy instead of ProviderStrategy")


async def answer_in_form(strategy: ResponseFormat, model: ChatModel, call: ModelCall) -> ModelResponse:
    """Ask a model for the next message, which may be the answer in a form.

    Args:
        strategy: the strategy.
        model: the model.
        call: the call, without what the strategy adds.

    Returns:
        The model's answer, the messages that answer its calls of forms, and the object if it is valid.

    Raises:
        StructuredOutputError: the answer is not valid, and the error is not to be shown to the model, or has been.
        InvalidModelError: as `check_model`.
    """
    check_model(strategy, model)
    chosen = strategy.strategy_for(model) if isinstance(strategy, AutoStrategy) else strategy
    if isinstance(chosen, ProviderStrategy):
        return await _by_provider(chosen, model, call)
    return await _by_tools(chosen, model, call)


async def _by_provider(strategy: ProviderStrategy, model: ChatModel, call: ModelCall) -> ModelResponse:
    (form,) = strategy.schemas
    messages = list(call.messages)
    for attempt in range(RETRIES + 1):
        answer = await model.answer(
            dataclasses.replace(
                call, messages=messages, response_schema=form.json_schema, strict_schema=strategy.strict
            )
        )
        if calls_of(answer):
            return ModelResponse([answer])
        try:
            return ModelResponse([answer], _parsed(form, answer))
        except StructuredOutputValidationError as error:
            if attempt == RETRIES:
                raise
            messages += [answer, *corrections(answer, error.why)]
    raise AssertionError("the last attempt returns or raises")


async def _by_tools(strategy: ToolStrategy, model: ChatModel, call: ModelCall) -> ModelResponse:
    forms = {form.name: form for form in strategy.schemas}
    tools = [*call.tools, *(form.as_tool() for form in strategy.schemas)]
    messages = list(call.messages)
    for attempt in range(RETRIES + 1):
        answer = await model.answer(
            dataclasses.replace(call, messages=messages, tools=tools, tool_choice=call.tool_choice or "any")
        )
        calls = calls_of(answer)
        if calls:
            wanted = [each for each in calls if each["name"] in forms]
            return _answered(strategy, answer, wanted, forms, earlier=_attempts(call.messages, forms))
        # The provider has not obeyed `tool_choice`. The text may have the form; otherwise nothing in the conversation
        # would make the agent call the model again.
        try:
            if len(forms) == 1:
                return ModelResponse([answer], _parsed(strategy.schemas[0], answer))
            raise StructuredOutputValidationError(" or ".join(forms), "no tool was called", answer)
        except StructuredOutputValidationError as error:
            said = strategy.text_of(error)
            if attempt == RETRIES:
                raise
            messages += [answer, make_message("user", said, langchain=is_langchain(answer))]
    raise AssertionError("the last attempt returns or raises")


def _answered(
    strategy: ToolStrategy, answer: Any, calls: Sequence[Any], forms: dict[str, OutputSchema], *, earlier: int
) -> ModelResponse:
    """Return a response whose calls of forms are answered: other messages are made by the agent's tools."""
    if not calls:
        return ModelResponse([answer])
    langchain = is_langchain(answer)
    try:
        if len(calls) > 1:
            raise MultipleStructuredOutputsError([each["name"] for each in calls], answer)
        value = _parsed(forms[calls[0]["name"]], answer)
    except StructuredOutputError as error:
        said = strategy.text_of(error)
        if earlier >= RETRIES:  # a model that never corrects itself would be asked until the step limit
            raise
        return ModelResponse(
            [answer, *(make_tool_message(each, said, langchain=langchain, failed=True) for each in calls)]
        )
    said = strategy.tool_message_content or _COMPLETE
    return ModelResponse([answer, make_tool_message(calls[0], said, langchain=langchain)], value)


def _attempts(messages: Sequence[Any], forms: Collection[str]) -> int:
    """Return how many answers to the newest message of the user have called a form. All of them were invalid."""
    count = 0
    for message in reversed(messages):
        role = role_of(message)
        if role == "user":
            break
        if role == "assistant" and any(each["name"] in forms for each in calls_of(message)):
            count += 1
    return count


def _parsed(form: OutputSchema, answer: Any) -> Any:
    try:
        return form.parse(data_of(answer, form.name))
    except (ValueError, msgspec.ValidationError) as error:
        raise StructuredOutputValidationError(form.name, explain(error), answer, error) from error
