"""`as_model`: choose the adapter for whatever was given as a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .function_models import FunctionModel
from .langchain_models import LangchainModel, is_langchain_model
from .models import ChatModel, InvalidModelError
from .sdk_models import model_of_string
from .usage import CountedModel, Price, check_prices

__all__ = ["as_model"]


def as_model(given: Any, *, prices: Mapping[str, Price] | None = None) -> CountedModel:
    """Return what was given as a model as a `ChatModel`, whose calls are counted.

    In the code of a node, each call adds its tokens to the budgets "input_tokens" and "output_tokens" of the graph, and
    its cost to "cost_usd", as far as the graph has these budgets. Observers get a `ModelCalled` of each call.

    Args:
        given: a `ChatModel`; a chat model of langchain-core, or another Runnable of messages; a function of messages
            and tools; or a string such as "openai:gpt-5", for the providers "openai" and "anthropic" and, if langchain
            is installed, those that it knows.
        prices: prices by the name of the model, as the provider names it in its answer or as it is asked for; other
            models count tokens alone. Within an agent, the prices of the agent apply as well.

    Returns:
        The model.

    Raises:
        InvalidModelError: it cannot be a model.
        GraphValidationError: `prices` is no such mapping.
    """
    checked = check_prices(prices)
    if isinstance(given, CountedModel):
        return CountedModel(given.model, {**given.prices, **checked}) if checked else given
    return CountedModel(_adapt(given), checked)


def speaks_langchain(given: Any) -> bool:
    """Return True for a model whose messages are langchain-core's.

    Args:
        given: anything that `as_model` takes.
    """
    return isinstance(as_model(given).model, LangchainModel)


def _adapt(given: Any) -> ChatModel:
    if is_langchain_model(given):
        return LangchainModel(given)
    if isinstance(given, str):
        return model_of_string(given)
    if isinstance(given, ChatModel):
        return given
    for path, function in (("chat.completions", "openai_chat"), ("messages.create", "anthropic_messages")):
        if _has_path(given, path):
            raise InvalidModelError(
                type(given).__name__,
                f"a client does not say which model is meant: pass {function}(client, 'the model')",
            )
    if callable(given):
        return FunctionModel(given)
    raise InvalidModelError(
        type(given).__name__,
        "a model is a chat model of langchain-core, a function of messages and tools, a string such as 'openai:gpt-5', "
        "or the result of openai_chat(), openai_responses() or anthropic_messages()",
    )


def _has_path(given: Any, path: str) -> bool:
    for name in path.split("."):
        given = getattr(given, name, None)
    return given is not None
