"""Read messages of any kind: dicts, `(role, content)` pairs, strings, and objects of langchain-core."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final, cast

from .fields import get_field
from .shapes import InvalidToolCall, ToolCall

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "developer": "system"}
"""Names of roles in langchain-core and in OpenAI's API, and the names that are used here."""


def role_of(message: Any) -> str:
    """Return a message's role: "user", "assistant", "system", "tool", or another one as it is written."""
    if isinstance(message, dict):
        # By the method of `dict`, also for a dict that isolates its values: text needs no isolation, and agents ask for
        # the role of each message in each turn.
        role = dict.get(message, "role") or dict.get(message, "type")
        return str(_ROLES.get(role, role)) if isinstance(role, str) else ""
    if isinstance(message, str):
        return "user"
    if isinstance(message, (tuple, list)):
        return str(_ROLES.get(message[0], message[0])) if message else ""
    role = get_field(message, "role") or get_field(message, "type")
    return str(_ROLES.get(role, role))


def content_of(message: Any) -> Any:
    """Return a message's content: a text, or a list of content blocks."""
    if isinstance(message, str):
        return message
    if isinstance(message, (tuple, list)):
        return message[1]
    return get_field(message, "content")


def text_of(message: Any) -> str:
    """Return the text of a message; content blocks of other types are left out."""
    content = content_of(message)
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "".join(
        block if isinstance(block, str) else str(block.get("text", ""))
        for block in content
        if isinstance(block, str) or block.get("type") in ("text", "output_text")
    )


def is_langchain(message: Any) -> bool:
    """Return True for a message object of langchain-core."""
    langchain: Any = sys.modules.get("langchain_core.messages")
    return langchain is not None and isinstance(message, langchain.BaseMessage)


def calls_of(message: Any) -> list[ToolCall | InvalidToolCall]:
    """Return the tool calls of a message: first the valid ones, then those whose arguments could not be parsed.

    Dicts in the form of OpenAI's API (`{"function": {"name": ..., "arguments": ...}}`) are converted. Invalid calls
    without an id are left out, because no message could answer them.
    """
    calls: list[ToolCall | InvalidToolCall] = []
    invalid: list[ToolCall | InvalidToolCall] = []
    for call in get_field(message, "tool_calls") or ():
        read = _read_call(call)
        (calls if read["type"] == "tool_call" else invalid).append(read)
    broken = get_field(message, "invalid_tool_calls") or ()
    return [*calls, *invalid, *(_invalid_call(call) for call in broken if call.get("id"))]


def call_ids_of(message: Any) -> list[str]:
    """Return the ids of the tool calls of `calls_of`, in any order, without reading the calls.

    Agents ask for them of each message in each turn.
    """
    if isinstance(message, dict):
        # The values that are there, and not isolated copies of them: nothing is changed.
        calls, broken = dict.get(message, "tool_calls"), dict.get(message, "invalid_tool_calls")
    else:
        calls, broken = get_field(message, "tool_calls"), get_field(message, "invalid_tool_calls")
    if not calls and not broken:
        return []
    found = [call.get("id") or "" for call in calls or ()]
    return [*found, *(id for call in broken if (id := call.get("id")))] if broken else found


def _read_call(call: Mapping[str, Any]) -> ToolCall | InvalidToolCall:
    if "function" not in call or not isinstance(call["function"], Mapping):
        args = call.get("args")
        return {
            "type": "tool_call",
            "id": call.get("id") or "",
            "name": call["name"],
            "args": dict(args) if isinstance(args, (dict, Mapping)) else {},
        }
    function: Mapping[str, Any] = call["function"]
    text = function.get("arguments") or "{}"
    try:
        args = json.loads(text) if isinstance(text, str) else text
        error = "" if isinstance(args, dict) else "the arguments are no JSON object"
    except ValueError as wrong:
        args, error = {}, f"the arguments are no JSON: {wrong}"
    id, name = str(call.get("id") or ""), str(function["name"])
    if error:
        return {"type": "invalid_tool_call", "id": id, "name": name, "args": text, "error": error}
    return {"type": "tool_call", "id": id, "name": name, "args": cast("dict[str, Any]", args)}


def _invalid_call(call: Mapping[str, Any]) -> InvalidToolCall:
    return {
        "type": "invalid_tool_call",
        "id": call["id"],
        "name": call.get("name") or "",
        "args": call.get("args") or "",
        "error": call.get("error") or "the arguments are no JSON object",
    }
