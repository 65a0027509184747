"""Shared by the tests of prebuilt parts: messages with tool calls, and tools of which one asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pregel_async import interrupt


def call(name: str, id: str = "1", /, **args: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "args": args}


def asking(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    """A message of a model that asks for tools."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def contents(update: Any) -> list[Any]:
    """The contents of the messages of a state or an update."""
    return [message["content"] if isinstance(message, dict) else message.content for message in update["messages"]]


LOOK_SEND_LOOK = [call("look", "1", what="a"), call("send_email", "2", to="ada"), call("look", "3", what="b")]
"""Three calls of `looking_and_sending`, of which the second one asks."""


def looking_and_sending(ran: list[str]) -> list[Callable[..., Any]]:
    """A tool that answers at once, and one that asks first. They record what has run."""

    async def look(what: str) -> str:
        ran.append(what)
        return f"saw {what}"

    def send_email(to: str) -> str:
        answer = interrupt({"send to": to})
        ran.append(f"email to {to}")
        return str(answer)

    return [look, send_email]
