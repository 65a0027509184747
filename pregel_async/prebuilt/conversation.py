"""Read and make messages of both kinds: dicts, and objects of langchain-core.

A conversation may hold both. What a tool or an agent adds has the kind of the message that it answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypedDict, cast

from ..adapters.fields import get_field
from ..adapters.shapes import InvalidToolCall, ToolCall

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "developer": "system"}
"""Names of roles in langchain-core and in OpenAI's API, and the names that are used here."""


class ToolMessage(TypedDict, total=False):
    """The result of a tool call, as a dict.

    Keys:
        role: "tool".
        tool_call_id: the id of the call.
        name: the tool's name.
        content: the result, for the model: a text, or a list of content blocks.
        status: "error" if the call failed; else absent.
        artifact: data that the model does not see; absent if there is none.
    """

    role: str
    tool_call_id: str
    name: str
    content: Any
    status: str
    artifact: Any


def role_of(message: Any) -> str:
    """Return a message's role: "user", "assistant", "system", "tool", or another one as it is written."""
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


def uses_langchain(messages: Sequence[Any]) -> bool:
    """Return True if the newest message that a model wrote is langchain-core's; without one, the newest of all."""
    answer = last_answer(messages)
    return is_langchain(answer if answer is not None else messages[-1] if messages else None)


def last_answer(messages: Sequence[Any]) -> Any:
    """Return the newest message that a model wrote; None if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if role_of(messages[index]) == "assistant":
            return messages[index]
    return None


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


def _invalid_call(call: Mapping[str, Any]) -> InvalidToolCall:
    return {
        "type": "invalid_tool_call",
        "id": call["id"],
        "name": call.get("name") or "",
        "args": call.get("args") or "",
        "error": call.get("error") or "the arguments are no JSON object",
    }


def _read_call(call: Mapping[str, Any]) -> ToolCall | InvalidToolCall:
    function = call.get("function")
    if not isinstance(function, Mapping):
        args = call.get("args")
        return {
            "type": "tool_call",
            "id": call.get("id") or "",
            "name": call["name"],
            "args": dict(args) if isinstance(args, Mapping) else {},
        }
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


def answered_calls(messages: Sequence[Any]) -> set[str]:
    """Return the ids of the calls that the tool messages after the newest answer of a model belong to."""
    ids: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        role = role_of(messages[index])
        if role == "assistant":
            break
        if role == "tool":
            ids.add(get_field(messages[index], "tool_call_id"))
    return ids


def make_tool_message(
    call: Mapping[str, Any], content: Any, *, langchain: bool, failed: bool = False, artifact: Any = None
) -> Any:
    """Make the message that answers a call.

    Args:
        call: the tool call.
        content: a text, or a list of content blocks.
        langchain: True for a message object of langchain-core.
        failed: True if the call failed.
        artifact: data that the model does not see; None for none.
    """
    if langchain:
        made: Any = import_module("langchain_core.messages")
        return made.ToolMessage(
            content=content,
            name=call["name"],
            tool_call_id=call["id"],
            status="error" if failed else "success",
            artifact=artifact,
        )
    message: ToolMessage = {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": content}
    if failed:
        message["status"] = "error"
    if artifact is not None:
        message["artifact"] = artifact
    return message


def is_tool_message(value: Any) -> bool:
    """Return True for a message that answers a tool call."""
    if isinstance(value, dict):
        return value.get("role", value.get("type")) == "tool" and "tool_call_id" in value
    return is_langchain(value) and value.type == "tool"


def is_message(value: Any) -> bool:
    """Return True for a message dict with role and content, and for a message object of langchain-core."""
    return is_langchain(value) or (isinstance(value, dict) and "role" in value and "content" in value)


def with_fields(message: Any, **changes: Any) -> Any:
    """Return a copy of a message with other values of some fields."""
    if isinstance(message, dict):
        return {**message, **changes}
    return message.model_copy(update=changes)


def as_dict(message: Any) -> Any:
    """Return a tool message of langchain-core as a dict; any other message as it is."""
    if not is_langchain(message) or message.type != "tool":
        return message
    call = {"name": message.name or "", "id": message.tool_call_id}
    failed, artifact = message.status == "error", message.artifact
    return make_tool_message(call, message.content, langchain=False, failed=failed, artifact=artifact)


def make_message(role: str, content: Any, *, langchain: bool, **more: Any) -> Any:
    """Make a message of a role, as a dict or as an object of langchain-core.

    Args:
        role: "user", "assistant" or "system".
        content: a text, or a list of content blocks.
        langchain: True for an object of langchain-core.
        more: further fields of both forms.
    """
    if not langchain:
        return {"role": role, "content": content, **more}
    made: Any = import_module("langchain_core.messages")
    kinds = {"user": made.HumanMessage, "assistant": made.AIMessage, "system": made.SystemMessage}
    return kinds[role](content=content, **more)


def messages_of(state: Any, key: str) -> list[Any]:
    """Return the messages of a state: of a mapping, an object, or a list that is the whole state."""
    if isinstance(state, list):
        return state
    found = get_field(state, key)
    return [] if found is None else cast("list[Any]", found)


def join_texts(parts: Iterable[str]) -> str:
    """Join the parts of a prompt that are not empty, with an empty line between them."""
    return "\n\n".join(part for part in parts if part)
