"""Shared by the tests of prebuilt parts: messages with tool calls."""

from __future__ import annotations

from typing import Any


def call(name: str, id: str = "1", /, **args: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "args": args}


def asking(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    """A message of a model that asks for tools."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def contents(update: Any) -> list[Any]:
    """The contents of the messages of a state or an update."""
    return [message["content"] if isinstance(message, dict) else message.content for message in update["messages"]]
