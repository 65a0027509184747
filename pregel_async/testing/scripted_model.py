"""`ScriptedModel`: a model of an agent with prescribed answers, for tests and examples that need no key.

model = ScriptedModel(calls("weather", city="Oslo"), "Oslo is sunny.")
agent = create_agent(model, [weather])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec


class ToolCalls(msgspec.Struct, frozen=True):
    """The answer made by `calls`: an answer that calls tools, each by its name and arguments."""

    of: tuple[tuple[str, dict[str, Any]], ...]

    def __and__(self, other: ToolCalls) -> ToolCalls:
        """Return an answer with the calls of both."""
        return ToolCalls(self.of + other.of)


ModelAnswer: TypeAlias = str | ToolCalls | dict[str, Any] | Callable[[list[Any]], Any]
"""A text; calls of tools; a message; or a function of the conversation that returns one of them."""


def calls(name: str, /, **args: Any) -> ToolCalls:
    """Make an answer in which the model calls a tool. `calls(...) & calls(...)` calls several at once.

    Args:
        name: the tool's name.
        **args: its arguments.

    Returns:
        The answer.
    """
    return ToolCalls(((name, args),))


class ScriptedModel:
    """A model that gives prescribed answers, and records what it was asked.

    Which answer is given depends on the conversation alone: the n-th one if the conversation has n - 1 answers of a
    model. So a call that runs again after a crash gets the same answer, and each thread begins with the first one. The
    last answer is repeated. In a supervisor or a swarm, the answers of the other agents count too: pass a function of
    the conversation there.

    Args:
        answers: the answers, in order.

    Attributes:
        seen: the messages of each call.
        tools: the definitions of the tools of each call.

    Raises:
        ValueError: there is no answer.
    """

    def __init__(self, *answers: ModelAnswer) -> None:
        if not answers:
            raise ValueError("a scripted model needs an answer: ScriptedModel('hello')")
        self._answers = answers
        self.seen: list[list[Any]] = []
        self.tools: list[list[Any]] = []

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        """Answer a conversation.

        Args:
            messages: the conversation.
            tools: the definitions of the tools that the model may call.

        Returns:
            A message, or a text.
        """
        self.seen.append(messages)
        self.tools.append(tools)
        turn = sum(1 for message in messages if _is_answer(message))
        answer: Any = self._answers[min(turn, len(self._answers) - 1)]
        if callable(answer):
            answer = answer(messages)
        if not isinstance(answer, ToolCalls):
            return answer
        # Ids are unique in a conversation, and the same whenever the call runs again.
        named = [
            {"type": "tool_call", "id": f"call-{turn + 1}-{index}", "name": name, "args": args}
            for index, (name, args) in enumerate(answer.of, 1)
        ]
        return {"role": "assistant", "content": "", "tool_calls": named}


def _is_answer(message: Any) -> bool:
    """Return True for a message that a model wrote, as a dict or as an object of langchain-core."""
    if isinstance(message, dict):
        return message.get("role") == "assistant"
    return getattr(message, "type", None) == "ai"
