"""Convert conversations to the forms that providers' APIs take: `as_openai`, `as_openai_responses`, `as_anthropic`.

Images in results of tools reach the model, too, where the API has a place for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from .conversation import calls_of, content_of, role_of, text_of
from .errors import InvalidSourceError
from .fields import get_field
from .shapes import InvalidToolCall, ToolCall

__all__ = ["AnthropicConversation", "as_anthropic", "as_openai", "as_openai_responses"]

_ROLES: Final = ("user", "assistant", "system", "tool")

_NOT_IN_NAMES: Final = re.compile(r"[\s<|\\/>]+")
"""Characters that chat completions refuse in the names of speakers, which agents may have."""

_RESPONSE_ITEMS: Final = frozenset(("message", "reasoning", "function_call", "custom_tool_call"))


class AnthropicConversation(TypedDict, total=False):
    """The arguments of Anthropic's `messages.create` that hold a conversation.

    Keys:
        messages: the messages, which begin with a user's and alternate between user and assistant.
        system: the texts of the system messages; absent if there are none.
    """

    messages: list[dict[str, Any]]
    system: str


def as_openai(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert messages to the `messages` of OpenAI's chat completions.

    Args:
        messages: dicts (those of `stream_message` among them), messages of langchain-core, `(role, content)` pairs, or
            strings from the user.

    Returns:
        New dicts. Tool calls whose arguments could not be parsed keep their text, so that their answers belong to them.

    Raises:
        InvalidSourceError: a message has a role that the API does not know.
    """
    made: list[dict[str, Any]] = []
    images: list[Any] = []
    for message in messages:
        role = role_of_outgoing(message)
        if images and role != "tool":
            made.append({"role": "user", "content": images})
            images = []
        if role == "tool":
            # The API takes only text in results of tools. All results must follow the calls, so images come after them.
            images = [*images, *_images_of(message)]
        made.append(_for_chat(message))
    return [*made, {"role": "user", "content": images}] if images else made


def _images_of(message: Any) -> list[Any]:
    content = content_of(message)
    return [part for part in content if _is_image(part)] if isinstance(content, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def _for_chat(message: Any) -> dict[str, Any]:
    role = role_of_outgoing(message)
    if role == "tool":
        return {"role": "tool", "tool_call_id": get_field(message, "tool_call_id"), "content": _tool_text(message)}
    made: dict[str, Any] = {"role": role, "content": _chat_content(message)}
    name = get_field(message, "name") if not isinstance(message, (str, tuple, list)) else None
    if name:
        made["name"] = _NOT_IN_NAMES.sub("_", name)
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": _arguments(call)}}
        for call in calls_of(message)
    ]
    if calls:
        made["tool_calls"] = calls
    return made


def _chat_content(message: Any) -> Any:
    content = content_of(message)
    if not isinstance(content, list) or role_of(message) == "assistant":
        return text_of(message)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]


def as_openai_responses(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert messages to the `input` of OpenAI's responses.

    Args:
        messages: as in `as_openai`.

    Returns:
        New items. A message that the same API has made is returned as the API's own items, reasoning included.

    Raises:
        InvalidSourceError: a message has a role that the API does not know.
    """
    return [item for message in messages for item in _for_responses(message)]


def _for_responses(message: Any) -> list[dict[str, Any]]:
    role = role_of_outgoing(message)
    if role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": get_field(message, "tool_call_id"),
                "output": _responses_content(message) if _images_of(message) else _tool_text(message),
            }
        ]
    if role != "assistant":
        return [{"role": role, "content": _responses_content(message)}]
    blocks = get_field(message, "blocks")
    if blocks and all(_is_response_item(block) for block in blocks):
        return [dict(block) for block in blocks]
    text = text_of(message)
    items: list[dict[str, Any]] = [{"role": "assistant", "content": text}] if text else []
    items += [
        {"type": "function_call", "call_id": call["id"], "name": call["name"], "arguments": _arguments(call)}
        for call in calls_of(message)
    ]
    return items or [{"role": "assistant", "content": ""}]


def _is_response_item(block: Mapping[str, Any]) -> bool:
    kind = str(block.get("type"))
    return kind in _RESPONSE_ITEMS or kind.endswith("_call")


def _responses_content(message: Any) -> Any:
    content = content_of(message)
    if not isinstance(content, list):
        return text_of(message)
    parts: list[Any] = []
    for part in content:
        if isinstance(part, str) or part.get("type") == "text":
            parts.append({"type": "input_text", "text": part if isinstance(part, str) else part["text"]})
        elif part.get("type") == "image_url":
            parts.append({"type": "input_image", "image_url": image_url(part)})
        else:
            parts.append(part)
    return parts


def as_anthropic(messages: Sequence[Any]) -> AnthropicConversation:
    """Convert messages to the arguments of Anthropic's `messages.create`: `create(**as_anthropic(messages), ...)`.

    Args:
        messages: as in `as_openai`.

    Returns:
        The messages, and the texts of system messages. Results of tools are part of a user's message there, and
        messages of one role in a row are joined.

    Raises:
        InvalidSourceError: a message has a role that the API does not know.
    """
    system: list[str] = []
    joined: list[dict[str, Any]] = []
    for message in messages:
        role = role_of_outgoing(message)
        if role == "system":
            system.append(text_of(message))
            continue
        blocks = _anthropic_blocks(message, role)
        role = "assistant" if role == "assistant" else "user"
        if not blocks:
            continue  # the API refuses messages without content
        if joined and joined[-1]["role"] == role:
            joined[-1]["content"] += blocks
        else:
            joined.append({"role": role, "content": blocks})
    made: AnthropicConversation = {"messages": joined}
    if system:
        made["system"] = "\n\n".join(system)
    return made


def _anthropic_blocks(message: Any, role: str) -> list[dict[str, Any]]:
    if role == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": get_field(message, "tool_call_id"),
            "content": _anthropic_result(message),
        }
        return [{**result, "is_error": True} if get_field(message, "status") == "error" else result]
    blocks = get_field(message, "blocks") if not isinstance(message, (str, tuple, list)) else None
    if blocks and not all(_is_response_item(block) for block in blocks):
        return [dict(block) for block in blocks]
    content = content_of(message)
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content or ""]:
        if isinstance(part, str):
            parts += [{"type": "text", "text": part}] if part else []
        elif part.get("type") == "image_url":
            parts.append(_anthropic_image(part))
        elif part.get("type") not in ("tool_use", "tool_call"):  # langchain-core has calls in both places
            parts.append(dict(part))
    for call in calls_of(message):
        args = call["args"] if isinstance(call["args"], dict) else {"invalid_arguments": call["args"]}
        parts.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": args})
    return parts


def _anthropic_image(part: Mapping[str, Any]) -> dict[str, Any]:
    kind, data = inline_image(part)
    if not data:
        return {"type": "image", "source": {"type": "url", "url": image_url(part)}}
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def inline_image(part: Mapping[str, Any]) -> tuple[str, str]:
    """Return the media type and the data, in base64, of an image in the block itself; empty for one behind a URL."""
    url = image_url(part)
    if not url.startswith("data:"):
        return "", ""
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return kind, data


def image_url(part: Mapping[str, Any]) -> str:
    """Return the URL of a content block of type "image_url"."""
    image = part["image_url"]
    return str(image["url"] if isinstance(image, Mapping) else image)


def role_of_outgoing(message: Any) -> str:
    """Return the role of a message for a model: "user", "assistant", "system" or "tool".

    Raises:
        InvalidSourceError: it has another role.
    """
    role = role_of(message)
    if role not in _ROLES:
        raise InvalidSourceError(
            f"a message of the role {role!r}", f"cannot be sent to a model: its role must be one of {', '.join(_ROLES)}"
        )
    return role


def _arguments(call: ToolCall | InvalidToolCall) -> str:
    args = call["args"]
    return args if isinstance(args, str) else json.dumps(args)


def _tool_text(message: Any) -> str:
    content = content_of(message)
    return text_of(message) if isinstance(content, (str, list)) else json.dumps(content)


def _anthropic_result(message: Any) -> Any:
    content = content_of(message)
    if isinstance(content, list):
        return [_anthropic_image(part) if _is_image(part) else part for part in content]
    return content if isinstance(content, str) else json.dumps(content)
