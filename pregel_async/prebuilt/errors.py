"""Errors of tools, models and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GraphValidationError, PregelError

__all__ = [
    "InvalidToolError",
    "McpToolError",
    "StructuredOutputError",
    "ToolInjectionError",
    "ToolInvocationError",
    "UnansweredCallsError",
]


class InvalidToolError(GraphValidationError, TypeError):
    """A value that was given as a tool cannot be one. Nothing has run.

    Attributes:
        given: the tool's name, or `repr()` of the value if it has none.
    """

    def __init__(self, given: str, why: str) -> None:
        self.given = given
        super().__init__(f"tool {given}: {why}")


class McpToolError(PregelError, RuntimeError):
    """An MCP server has died, has not answered, or has said that a call failed.

    By default a `ToolNode` gives this error to the model as the result of the call.

    Attributes:
        server: the server's name.
        tool_name: the name of the tool, on the server.
        source: the error of the connection; None if there is none.
        message: what the model is shown.
    """

    def __init__(self, server: str, tool_name: str, why: str, source: BaseException | None) -> None:
        self.server = server
        self.tool_name = tool_name
        self.source = source
        self.message = f"The call of {tool_name!r} on the server {server!r} failed: {why}"
        super().__init__(self.message)


class ToolInjectionError(PregelError, LookupError, ValueError):
    """A tool wants a value that the run does not have: a store, or a key of the state.

    A model cannot correct that, so this error is never given to it as a tool message.

    Attributes:
        tool_name: the name of the tool.
        parameter: the parameter that gets the value.
    """

    def __init__(self, tool_name: str, parameter: str, why: str) -> None:
        self.tool_name = tool_name
        self.parameter = parameter
        super().__init__(f"tool {tool_name!r} cannot get its parameter {parameter!r}: {why}")


class ToolInvocationError(PregelError, ValueError):
    """The arguments of a tool call do not fit the tool's parameters. The tool has not run.

    By default a `ToolNode` gives this error to the model as the result of the call.

    Attributes:
        tool_name: the name of the tool.
        tool_kwargs: the arguments, as the model wrote them.
        source: the error of the validation; None if the arguments could not be parsed at all.
        message: what the model is shown.
    """

    def __init__(
        self, tool_name: str, why: str, tool_kwargs: Mapping[str, Any], source: Exception | None = None
    ) -> None:
        self.tool_name = tool_name
        self.tool_kwargs = dict(tool_kwargs)
        self.source = source
        self.message = (
            f"The call of {tool_name!r} is invalid: {why}. The arguments were {self.tool_kwargs!r}. "
            "Call the tool again with valid arguments."
        )
        super().__init__(self.message)


class UnansweredCallsError(PregelError, ValueError):
    """The conversation has tool calls without a tool message. Providers refuse such conversations.

    Attributes:
        ids: the ids of the calls.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(
            f"no tool message answers the tool calls {', '.join(map(repr, self.ids))}. Add a message with the role "
            "'tool' and the tool_call_id for each of them, or remove the message with the calls"
        )


class StructuredOutputError(PregelError, ValueError):
    """The model has not given an answer in the form of `response_format`, also after it was shown its error.

    Attributes:
        schema: the name of the form.
        message: the model's last answer.
        source: the error of the validation; None if the model gave no data.
    """

    def __init__(self, schema: str, why: str, message: Any, source: Exception | None = None) -> None:
        self.schema = schema
        self.message = message
        self.source = source
        super().__init__(f"the model gave no valid {schema!r}: {why}")
