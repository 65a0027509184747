"""Models behind clients of OpenAI's and Anthropic's SDKs, which are imported only for models named by a string."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from .._runtime.tasks.worker_threads import run_in_thread
from ..adapters import as_anthropic, as_openai, as_openai_responses, stream_message
from .models import ChatModel, InvalidModelError, ModelCall
from .tools import Tool

__all__ = ["anthropic_messages", "openai_chat", "openai_responses"]


class SdkModel:
    """A model behind a provider's client, whose answers are streamed.

    Args:
        name: the provider's name of the model.
        create: the client's method. A plain one runs in a worker thread.
        arguments: makes the arguments of a call.
        settings: further arguments of each call.
        follows_schemas: as in `ChatModel`.
        provider: the provider's name in figures.

    Attributes:
        name, follows_schemas: as in `ChatModel`.
        provider: as the argument.
    """

    def __init__(
        self,
        name: str,
        create: Callable[..., Any],
        arguments: Callable[[ModelCall], dict[str, Any]],
        settings: Mapping[str, Any],
        *,
        follows_schemas: bool,
        provider: str = "openai",
    ) -> None:
        self.name = name
        self.provider = provider
        self.follows_schemas = follows_schemas
        self._create = create
        self._arguments = arguments
        self._settings = dict(settings)
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(create))  # the SDK wraps its methods

    async def answer(self, call: ModelCall) -> Any:
        given = {"model": self.name, **self._arguments(call), **self._settings, **call.settings, "stream": True}
        source = self._create(**given) if self._is_async else await run_in_thread(lambda _: self._create(**given), None)
        return await stream_message(source)


def openai_chat(client: Any, model: str, **settings: Any) -> ChatModel:
    """Make a model of OpenAI's chat completions, or of a server with the same API.

    Args:
        client: an `AsyncOpenAI`, or an `OpenAI`, whose calls run in worker threads.
        model: the provider's name of the model.
        **settings: further arguments of each call, such as `temperature`.

    Returns:
        The model. Its tokens are on the `messages` stream.
    """

    def arguments(call: ModelCall) -> dict[str, Any]:
        given: dict[str, Any] = {"messages": as_openai(call.messages), "stream_options": {"include_usage": True}}
        if call.tools:
            given["tools"] = [
                {"type": "function", "function": tool.definition()} if isinstance(tool, Tool) else tool
                for tool in call.tools
            ]
            if call.parallel_tool_calls is not None:
                given["parallel_tool_calls"] = call.parallel_tool_calls
        if call.tool_choice is not None:
            given["tool_choice"] = _openai_choice(call.tool_choice, lambda name: {"function": {"name": name}})
        if call.response_schema is not None:
            given["response_format"] = {"type": "json_schema", "json_schema": _openai_schema(call)}
        return given

    return SdkModel(model, client.chat.completions.create, arguments, settings, follows_schemas=True)


def openai_responses(client: Any, model: str, **settings: Any) -> ChatModel:
    """Make a model of OpenAI's responses.

    Args:
        client: an `AsyncOpenAI`, or an `OpenAI`, whose calls run in worker threads.
        model: the provider's name of the model.
        **settings: further arguments of each call, such as `reasoning`.

    Returns:
        The model. Its tokens are on the `messages` stream.
    """

    def arguments(call: ModelCall) -> dict[str, Any]:
        given: dict[str, Any] = {"input": as_openai_responses(call.messages)}
        if call.tools:
            given["tools"] = [
                {"type": "function", **tool.definition(), "strict": False} if isinstance(tool, Tool) else tool
                for tool in call.tools
            ]
            if call.parallel_tool_calls is not None:
                given["parallel_tool_calls"] = call.parallel_tool_calls
        if call.tool_choice is not None:
            given["tool_choice"] = _openai_choice(call.tool_choice, lambda name: {"name": name})
        if call.response_schema is not None:
            given["text"] = {"format": {"type": "json_schema", **_openai_schema(call)}}
        return given

    return SdkModel(model, client.responses.create, arguments, settings, follows_schemas=True)


def anthropic_messages(client: Any, model: str, *, max_tokens: int = 4096, **settings: Any) -> ChatModel:
    """Make a model of Anthropic's messages.

    Args:
        client: an `AsyncAnthropic`, or an `Anthropic`, whose calls run in worker threads.
        model: the provider's name of the model.
        max_tokens: the greatest number of tokens of an answer.
        **settings: further arguments of each call, such as `thinking`.

    Returns:
        The model. Its tokens are on the `messages` stream.
    """

    def arguments(call: ModelCall) -> dict[str, Any]:
        given: dict[str, Any] = {**as_anthropic(call.messages)}
        if call.tools:
            given["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.args_schema}
                if isinstance(tool, Tool)
                else tool
                for tool in call.tools
            ]
        if call.tool_choice is not None:
            given["tool_choice"] = _anthropic_choice(call.tool_choice)
        if call.tools and call.parallel_tool_calls is not None:
            choice = given.get("tool_choice", {"type": "auto"})
            if choice.get("type") != "none":  # which has no such field
                given["tool_choice"] = {**choice, "disable_parallel_tool_use": not call.parallel_tool_calls}
        return given

    create = client.messages.create
    given = {"max_tokens": max_tokens, **settings}
    return SdkModel(model, create, arguments, given, follows_schemas=False, provider="anthropic")


_AT_LEAST_ONE: Final = ("any", "required")


def _openai_choice(choice: Any, named: Callable[[str], dict[str, Any]]) -> Any:
    if choice in _AT_LEAST_ONE:
        return "required"
    if choice in ("auto", "none") or not isinstance(choice, str):
        return choice
    return {"type": "function", **named(choice)}


def _anthropic_choice(choice: Any) -> Any:
    if choice in _AT_LEAST_ONE:
        return {"type": "any"}
    if not isinstance(choice, str):
        return choice
    return {"type": choice} if choice in ("auto", "none") else {"type": "tool", "name": choice}


def _openai_schema(call: ModelCall) -> dict[str, Any]:
    schema = call.response_schema or {}
    strict = _is_strict(schema) if call.strict_schema is None else call.strict_schema
    return {"name": schema.get("title") or "response", "schema": schema, "strict": strict}


def _is_strict(schema: Any) -> bool:
    """Return True if a schema can be enforced: OpenAI requires objects without optional and without further fields."""
    if isinstance(schema, list):
        return all(_is_strict(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" and (
        schema.get("additionalProperties") is not False
        or set(schema.get("required", ())) != set(schema.get("properties", ()))
    ):
        return False
    return all(_is_strict(part) for part in schema.values())


def model_of_string(given: str) -> ChatModel:
    """Return the model that a string such as "openai:gpt-5" names.

    Args:
        given: provider and model.

    Returns:
        A model behind a client of the provider's SDK, which reads its key from the environment.

    Raises:
        InvalidModelError: the string names no provider, or the provider's SDK is not installed.
    """
    provider, _, model = given.partition(":")
    if not model:
        raise InvalidModelError(repr(given), "name the provider, too: 'openai:gpt-5'")
    if provider == "openai":
        return openai_chat(_client("openai", "AsyncOpenAI", given), model)
    if provider == "anthropic":
        return anthropic_messages(_client("anthropic", "AsyncAnthropic", given), model)
    from .langchain_models import LangchainModel

    try:
        chat_models: Any = import_module("langchain.chat_models")
    except ModuleNotFoundError as error:
        raise InvalidModelError(
            repr(given), f"the provider {provider!r} needs langchain: pip install langchain, or pass a model object"
        ) from error
    return LangchainModel(chat_models.init_chat_model(given))


def _client(package: str, name: str, given: str) -> Any:
    try:
        return getattr(import_module(package), name)()
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise InvalidModelError(repr(given), f"the SDK is not installed: pip install {package}") from error
