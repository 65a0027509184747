"""Convert conversations to pydantic-ai's messages and back, so that an agent of pydantic-ai is a node's code."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from .conversation import calls_of, content_of, text_of
from .fields import get_field, to_builtins
from .outgoing import image_url, inline_image, role_of_outgoing

__all__ = ["as_pydantic_ai", "from_pydantic_ai"]


def as_pydantic_ai(messages: Sequence[Any]) -> list[Any]:
    """Convert messages to the `message_history` of pydantic-ai's `Agent.run`.

    If the conversation ends with the user's message, run the agent without a prompt of its own:
    `await agent.run(message_history=as_pydantic_ai(messages))`.

    Args:
        messages: as in `as_openai`.

    Returns:
        A list of `ModelRequest` and `ModelResponse`. System messages are part of it; pydantic-ai adds `instructions` of
        the agent to a history, and no `system_prompt`.

    Raises:
        InvalidSourceError: a message has a role that models do not know.
        ModuleNotFoundError: pydantic-ai is not installed.
    """
    kinds: Any = import_module("pydantic_ai.messages")
    made: list[Any] = []
    names: dict[str, str] = {}
    for message in messages:
        role = role_of_outgoing(message)
        if role == "assistant":
            calls = calls_of(message)
            names |= {call["id"]: call["name"] for call in calls}
            text = text_of(message)
            parts = [kinds.TextPart(text)] if text else []
            parts += [kinds.ToolCallPart(call["name"], call["args"], tool_call_id=call["id"]) for call in calls]
            made.append(kinds.ModelResponse(parts=parts))
            continue
        part = _request_part(message, role, names, kinds)
        # What comes between two answers of the model is one request.
        if made and made[-1].kind == "request":
            made[-1].parts.append(part)
        else:
            made.append(kinds.ModelRequest(parts=[part]))
    return made


def _request_part(message: Any, role: str, names: Mapping[str, str], kinds: Any) -> Any:
    if role == "system":
        return kinds.SystemPromptPart(text_of(message))
    content = content_of(message)
    if isinstance(content, list):
        content = [_user_content(block, kinds) for block in content]
    if role == "user":
        return kinds.UserPromptPart(content)
    id = get_field(message, "tool_call_id")
    name = get_field(message, "name") or names.get(id, "")
    if get_field(message, "status") != "error":
        return kinds.ToolReturnPart(name, content, tool_call_id=id)
    return kinds.ToolReturnPart(name, content, tool_call_id=id, outcome="failed")


def _user_content(block: Any, kinds: Any) -> Any:
    if isinstance(block, str):
        return block
    if block.get("type") == "text":
        return block["text"]
    if block.get("type") == "image_url":
        kind, data = inline_image(block)
        if not data:
            return kinds.ImageUrl(image_url(block))
        return kinds.BinaryContent(base64.b64decode(data), media_type=kind)
    return json.dumps(block)


def from_pydantic_ai(messages: Iterable[Any], *, name: str | None = None) -> list[dict[str, Any]]:
    """Convert messages of pydantic-ai to dicts for a state: `from_pydantic_ai(result.new_messages())`.

    Args:
        messages: `ModelRequest` and `ModelResponse` objects.
        name: the speaker of the answers; None for no name.

    Returns:
        Messages with text, tool calls and usage. Results of tools are texts. Thinking is under `reasoning`, and is not
        sent again.
    """
    made: list[dict[str, Any]] = []
    for message in messages:
        if message.kind == "response":
            made.append(_answer(message, name))
        else:
            made += [found for part in message.parts if (found := _of_request_part(part)) is not None]
    return made


def _answer(message: Any, name: str | None) -> dict[str, Any]:
    parts = list(message.parts)
    made: dict[str, Any] = {"role": "assistant", "content": _joined(parts, "text")}
    if message.provider_response_id:
        made["id"] = message.provider_response_id
    if name is not None:
        made["name"] = name
    if reasoning := _joined(parts, "thinking"):
        made["reasoning"] = reasoning
    calls = [_call(part) for part in parts if part.part_kind == "tool-call"]
    if valid := [call for call in calls if call["type"] == "tool_call"]:
        made["tool_calls"] = valid
    if invalid := [call for call in calls if call["type"] != "tool_call"]:
        made["invalid_tool_calls"] = invalid
    usage = message.usage
    if usage.input_tokens or usage.output_tokens:
        total = usage.input_tokens + usage.output_tokens
        made["usage"] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": total,
        }
    return made


def _joined(parts: Sequence[Any], kind: str) -> str:
    return "".join(part.content for part in parts if part.part_kind == kind)


def _call(part: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "tool_call", "id": part.tool_call_id, "name": part.tool_name}
    try:
        return {**made, "args": part.args_as_dict(raise_if_invalid=True)}
    except (ValueError, AssertionError) as error:
        return {**made, "type": "invalid_tool_call", "args": str(part.args), "error": str(error)}


def _of_request_part(part: Any) -> dict[str, Any] | None:
    """Return a part of a request as a message; None for instructions, which the agent adds to each request itself."""
    kind = part.part_kind
    if kind == "user-prompt":
        content = part.content
        return {"role": "user", "content": content if isinstance(content, str) else [_block(each) for each in content]}
    if kind == "tool-return" or (kind == "retry-prompt" and part.tool_name is not None):
        has_failed = kind == "retry-prompt" or part.outcome != "success"
        text = part.model_response() if kind == "retry-prompt" else part.model_response_str()
        made = {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name, "content": text}
        return {**made, "status": "error"} if has_failed else made
    if kind in ("retry-prompt", "retry-feedback"):
        return {"role": "user", "content": part.model_response()}
    return None


def _block(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.kind
    if kind == "image-url":
        return {"type": "image_url", "image_url": {"url": part.url}}
    if kind == "binary" and part.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.data_uri}}
    if kind == "text-content" or hasattr(part, "content"):
        return {"type": "text", "text": str(part.content)}
    return {"type": "text", "text": json.dumps(to_builtins({"kind": kind, "url": getattr(part, "url", None)}))}
