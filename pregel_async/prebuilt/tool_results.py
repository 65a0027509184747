"""Turn what a tool returns into messages and commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from ..errors import InvalidUpdateError
from ..messages import REMOVE_ALL_MESSAGES
from ..types import Command
from .conversation import as_dict, as_langchain, is_message, is_tool_message, make_tool_message, with_fields
from .langchain_tools import is_langchain_tool
from .tools import Tool

Result: TypeAlias = "list[Any]"
"""The messages and commands that one tool call adds, in order."""

_BLOCKS: Final = frozenset(
    (
        "text",
        "image_url",
        "image",
        "json",
        "search_result",
        "custom_tool_call_output",
        "document",
        "file",
        "audio",
        "video",
    )
)
"""Types of content blocks that may be the result of a tool."""


def as_results(
    returned: Any, tool: Tool | None, call: Mapping[str, Any], *, langchain: bool, messages_key: str, in_list: bool
) -> Result:
    """Return the messages and commands of a call.

    Args:
        returned: what the tool returned: a value, a tool message, a `Command`, or a list of messages and commands.
        tool: the tool; None for a result that a wrapper made.
        call: the tool call.
        langchain: True if messages are made as objects of langchain-core.
        messages_key: the state key of the messages.
        in_list: True if the state is a list of messages, so that a command's update is one, too.

    Raises:
        InvalidUpdateError: a list or a command does not answer the call with exactly one tool message.
    """
    if isinstance(returned, Command):
        command, answers = _named_command(returned, call, messages_key)
        if returned.graph is None and answers is not None and answers != 1:
            raise _unanswered(call, answers, in_list=in_list, messages_key=messages_key)
        return [command]
    if is_tool_message(returned):
        # What a tool of langchain-core makes itself has its kind; a message that a function returns is left as it is.
        if tool is None and langchain:
            returned = as_langchain(returned)  # of a wrapper, which need not know the kind of the conversation
        converts = not langchain and tool is not None and is_langchain_tool(tool.source)
        return [_named(as_dict(returned) if converts else returned, call)]
    if isinstance(returned, list) and any(isinstance(each, Command) or is_tool_message(each) for each in returned):
        return _as_list(returned, call, messages_key, in_list=in_list)
    content, artifact = returned, None
    if tool is not None and tool.response_format == "content_and_artifact":
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise InvalidUpdateError(
                f"tool {tool.name!r} has response_format='content_and_artifact', so it must return a pair of both, "
                f"not {type(returned).__name__}"
            )
        content, artifact = returned
    return [make_tool_message(call, as_content(content), langchain=langchain, artifact=artifact)]


def _as_list(returned: Sequence[Any], call: Mapping[str, Any], messages_key: str, *, in_list: bool) -> Result:
    results: Result = []
    count = 0
    for each in returned:
        if isinstance(each, Command):
            each, answers = _named_command(each, call, messages_key)
            count += answers or 0
        elif is_message(each) or is_tool_message(each):
            each = _named(each, call)
            count += _answers(each, call)
        else:
            raise InvalidUpdateError(
                f"tool {call['name']!r} returned a list of messages and commands with a {type(each).__name__} in it"
            )
        results.append(each)
    if count != 1:
        raise _unanswered(call, count, in_list=in_list, messages_key=messages_key)
    return results


def _named_command(command: Command, call: Mapping[str, Any], messages_key: str) -> tuple[Command, int | None]:
    """Return a command whose tool messages have the tool's name, and how many of them answer the call.

    The number is None if the command removes all messages, so that none is left to answer.
    """
    update = command.update
    written = update.get(messages_key, ()) if isinstance(update, Mapping) else update
    messages = written if isinstance(written, (list, tuple)) else [] if written is None else [written]
    named = [_named(each, call) for each in messages]
    if any(isinstance(each, Mapping) and each.get("id") == REMOVE_ALL_MESSAGES for each in named) or any(
        getattr(each, "id", None) == REMOVE_ALL_MESSAGES for each in named
    ):
        return command, None
    count = sum(_answers(each, call) for each in named)
    if count:
        changed = {**update, messages_key: named} if isinstance(update, Mapping) else named
        command = dataclasses.replace(command, update=changed)
    return command, count


def _answers(message: Any, call: Mapping[str, Any]) -> bool:
    if not is_tool_message(message):
        return False
    return bool((message["tool_call_id"] if isinstance(message, dict) else message.tool_call_id) == call["id"])


def _named(message: Any, call: Mapping[str, Any]) -> Any:
    """Return the message that answers the call with the tool's name, and with content that models accept."""
    if not _answers(message, call):
        return message
    content = message["content"] if isinstance(message, dict) else message.content
    return with_fields(message, name=call["name"], content=as_content(content))


def _unanswered(call: Mapping[str, Any], count: int, *, in_list: bool, messages_key: str) -> InvalidUpdateError:
    message = f'{{"role": "tool", "tool_call_id": {call["id"]!r}, "content": ...}}'
    update = f"[{message}]" if in_list else f'{{"{messages_key}": [{message}]}}'
    return InvalidUpdateError(
        f"tool {call['name']!r} answered call {call['id']!r} with {count} tool messages: providers refuse a "
        f"conversation in which a call has not exactly one. For a command write Command(update={update})"
    )


def as_content(value: Any) -> Any:
    """Return a value as the content of a tool message: texts and content blocks as they are, others as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, Mapping) and each.get("type") in _BLOCKS for each in value):
        return value
    try:
        return msgspec.json.encode(value, enc_hook=_encode).decode()
    except (TypeError, ValueError):
        return str(value)


def _encode(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON")
