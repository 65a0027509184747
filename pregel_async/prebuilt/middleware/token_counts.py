"""Count the tokens of messages: roughly for any model, and by the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from ...adapters.conversation import calls_of, content_of, role_of
from ...adapters.fields import get_field
from ..langchain_models import definition_of, to_langchain
from ..usage import uncounted

__all__ = ["count_tokens_approximately"]

TokenCounter: TypeAlias = Callable[[Sequence[Any]], int]
"""Returns the number of tokens of a list of messages."""

_CHARACTERS: Final = 4
"""Characters of a token, on average of English text."""

_OF_MESSAGE: Final = 3
"""Tokens that providers add to each message."""

_OF_MEDIA: Final = 85
"""Tokens of an image or another block without text. The length of its data would count a picture as a book."""

_TEXT_TYPES: Final = (
    "text",
    "output_text",
    "reasoning",
    "thinking",
    "summary_text",
    "refusal",
    "tool_use",
    "tool_result",
)


def count_tokens_approximately(messages: Sequence[Any]) -> int:
    """Estimate the number of tokens of messages: a quarter of their characters, and a few for each message.

    Args:
        messages: messages of any kind.

    Returns:
        The estimate. Texts in scripts with short words, such as Chinese, have up to four times as many tokens.
    """
    return sum(_tokens_of(message) for message in messages)


def _tokens_of(message: Any) -> int:
    content = content_of(message)
    blocks: Sequence[Any] = content if isinstance(content, list) else [content]
    characters = len(role_of(message)) + sum(_characters_of(block) for block in blocks)
    if not isinstance(message, (str, tuple, list)):
        characters += len(get_field(message, "name") or "") + len(get_field(message, "tool_call_id") or "")
        characters += sum(len(call["name"]) + len(call["id"]) + _length_of(call["args"]) for call in calls_of(message))
    return -(-characters // _CHARACTERS) + _OF_MESSAGE


def _characters_of(block: Any) -> int:
    if isinstance(block, str):
        return len(block)
    if isinstance(block, Mapping) and (block.get("type") in _TEXT_TYPES or "text" in block):
        return _length_of({key: value for key, value in block.items() if key not in ("type", "id", "signature")})
    return 0 if block is None else _OF_MEDIA * _CHARACTERS


def _length_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError):
        return len(str(value))


def reported_tokens(messages: Sequence[Any]) -> int:
    """Return the total number of tokens that the newest answer's provider has reported; 0 if it reported none."""
    for message in reversed(messages):
        if role_of(message) == "assistant":
            usage = get_field(message, "usage_metadata") or get_field(message, "usage")
            found = get_field(usage, "total_tokens")
            return found if isinstance(found, int) else 0
    return 0


def counter_of_model(model: Any, system_message: Any, tools: Sequence[Any]) -> TokenCounter | None:
    """Return the token counter of a model, which may ask the provider; None if the model has none.

    Args:
        model: the model. A counter is a method `get_num_tokens_from_messages(messages, tools)`, as chat models of
            langchain-core have it.
        system_message: counted with the messages; None for none.
        tools: counted with the messages.
    """
    model = uncounted(model)
    own = getattr(model, "get_num_tokens_from_messages", None)
    count = own or getattr(getattr(model, "model", None), "get_num_tokens_from_messages", None)
    if count is None:
        return None
    before = [] if system_message is None else [system_message]

    def counter(messages: Sequence[Any]) -> int:
        given = [*before, *messages]
        if own is not None:
            return int(count(given, list(tools)))
        return int(count([to_langchain(each) for each in given], [definition_of(tool) for tool in tools] or None))

    return counter
