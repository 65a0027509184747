"""A model that answers from a script."""

from __future__ import annotations

from typing import Any


class Script:
    """Gives the answer of the script for the number of answers in the conversation, so that a replay gets the same.

    Attributes:
        seen: the messages of each call.
        tools: the tools of each call.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.seen: list[list[Any]] = []
        self.tools: list[list[Any]] = []

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.seen.append(messages)
        self.tools.append(tools)
        given = [message for message in messages if isinstance(message, dict) and message.get("role") == "assistant"]
        return self.answers[min(len(given), len(self.answers) - 1)]
