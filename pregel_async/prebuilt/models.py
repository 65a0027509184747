"""The port by which agents call any model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ..errors import GraphValidationError
from .tools import Tool

__all__ = ["ChatModel", "InvalidModelError", "ModelCall"]


class InvalidModelError(GraphValidationError, TypeError):
    """A value that was given as a model cannot be one. Nothing has run.

    Attributes:
        given: the name of the value's class, or the string.
    """

    def __init__(self, given: str, why: str) -> None:
        self.given = given
        super().__init__(f"model {given}: {why}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCall:
    """What an agent asks of a model.

    Attributes:
        messages: the conversation, a system message first if there is one. Messages are dicts, or those of
            langchain-core.
        tools: the tools that the model may call; a dict is a tool that the provider itself runs, in the provider's
            form.
        tool_choice: "auto", "none", "any" for at least one call, or the name of the tool to call; None for the
            provider's default.
        parallel_tool_calls: False if an answer may have one tool call at most, True if it may have several; None for
            the provider's default. Models without such a setting ignore it.
        response_schema: the JSON Schema that the text of the answer must have; None for none. Only for a model whose
            `follows_schemas` is True.
        strict_schema: True to ask the provider to enforce the schema, False not to; None to ask if the schema allows
            that.
        settings: further arguments of the provider's call, which override those of the model.
        config: the config of the node; None outside of a run.
    """

    messages: Sequence[Any]
    tools: Sequence[Tool | dict[str, Any]] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_schema: dict[str, Any] | None = None
    strict_schema: bool | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict[str, Any]())
    config: Any = None


@runtime_checkable
class ChatModel(Protocol):
    """A model as agents call it. `openai_chat`, `anthropic_messages` and others make one; a class of yours may be one.

    Attributes:
        name: the name in messages and figures.
        follows_schemas: True if the provider can make the text of the answer follow a JSON Schema.
    """

    name: str
    follows_schemas: bool

    async def answer(self, call: ModelCall) -> Any:
        """Return the next message of the conversation.

        Args:
            call: the conversation, the tools and the options.

        Returns:
            A message: a dict with the role "assistant", in the form of `adapters.Message`, or a message of
            langchain-core.
        """
        ...
