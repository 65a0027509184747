"""Models and agents of several speakers, for the tests of supervisors and swarms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pregel_async.prebuilt import create_agent
from tests.prebuilt.calls import asking, call


class Speaker:
    """A model that answers from a script, by the number of answers with its name in the conversation.

    So a replay gets the same answers. An answer may be a function of the messages.

    Attributes:
        seen: the messages of each call.
    """

    def __init__(self, name: str, *answers: Any) -> None:
        self.name = name
        self.answers = answers
        self.seen: list[list[Any]] = []

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.seen.append(messages)
        mine = [each for each in messages if each["role"] == "assistant" and each.get("name") == self.name]
        answer = self.answers[min(len(mine), len(self.answers) - 1)]
        return answer(messages) if callable(answer) else answer


def agent(name: str, *answers: Any, tools: Any = (), **options: Any) -> Any:
    """An agent that answers from a script."""
    return create_agent(Speaker(name, *answers), list(tools), name=name, **options)


def to(*names: str) -> dict[str, Any]:
    """A message that hands over to agents."""
    return asking(*(call(f"transfer_to_{name}", f"to-{name}") for name in names))


def newest(message: str) -> Callable[[list[Any]], str]:
    """An answer that quotes the newest message."""
    return lambda messages: message.format(messages[-1]["content"])


def said(state: Any) -> list[tuple[str, Any]]:
    """The speakers and texts of a conversation; for a message with calls, the names of these."""
    return [
        (
            each.get("name") or each["role"],
            [one["name"] for one in each.get("tool_calls", ())] or each["content"],
        )
        for each in state["messages"]
    ]
