"""Make messages of both kinds, dicts and objects of langchain-core, and find messages in a conversation.

A conversation may hold both. What a tool or an agent adds has the kind of the message that it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypedDict, cast

from ..adapters.conversation import call_ids_of, calls_of, is_langchain, role_of
from ..adapters.fields import get_field
from .errors import UnansweredCallsError


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


def as_langchain(message: Any) -> Any:
    """Return the dict of a tool message as an object of langchain-core; any other message as it is."""
    if not isinstance(message, dict):
        return message
    call = {"name": message.get("name") or "", "id": message["tool_call_id"]}
    failed, artifact = message.get("status") == "error", message.get("artifact")
    return make_tool_message(call, message["content"], langchain=True, failed=failed, artifact=artifact)


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


def pending_calls(messages: Sequence[Any]) -> list[Any]:
    """Return the calls of the newest answer of a model that no tool message answers yet."""
    answer = last_answer(messages)
    if answer is None:
        return []
    calls = calls_of(answer)
    # Mostly the answer is the newest message, and no call is answered.
    answered = answered_calls(messages) if calls and messages[-1] is not answer else ()
    return [call for call in calls if call["id"] not in answered]


def check_answered(messages: Sequence[Any]) -> None:
    """Check that each tool call of a conversation is answered.

    Args:
        messages: the conversation.

    Raises:
        UnansweredCallsError: one is not.
    """
    asked: list[str] = []
    answered: set[Any] = set()
    for message in messages:
        if not isinstance(message, dict):
            asked += call_ids_of(message)
            answered.add(get_field(message, "tool_call_id"))
        elif "tool_call_id" in message:
            answered.add(dict.get(message, "tool_call_id"))
        elif "tool_calls" in message or "invalid_tool_calls" in message:
            asked += call_ids_of(message)
    missing = [id for id in asked if id not in answered]
    if missing:
        raise UnansweredCallsError(missing)
