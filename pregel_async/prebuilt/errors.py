"""Errors of tools, models and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GraphValidationError, PregelError

__all__ = [
    "InvalidToolError",
    "McpToolError",
    "MultipleStructuredOutputsError",
    "StructuredOutputError",
    "StructuredOutputValidationError",
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
        why: what is wrong.
        message: the model's last answer; also as `ai_message`.
        source: the error of the validation; None if the model gave no data.
        correction: what the model is shown by default.
    """

    def __init__(self, schema: str, why: str, message: Any, source: Exception | None = None) -> None:
        self.schema = schema
        self.why = why
        self.message = self.ai_message = message
        self.source = source
        self.correction = f"The answer is not valid: {why}. Answer again."
        super().__init__(f"the model gave no valid {schema!r}: {why}")


class StructuredOutputValidationError(StructuredOutputError):
    """The model's data does not fit the form.

    Attributes:
        tool_name: the name of the form.
    """

    def __init__(self, tool_name: str, why: str, message: Any, source: Exception | None = None) -> None:
        self.tool_name = tool_name
        super().__init__(tool_name, why, message, source)


class MultipleStructuredOutputsError(StructuredOutputError):
    """The model has called tools of the form several times in one message.

    Attributes:
        tool_names: the names of the tools.
    """

    def __init__(self, tool_names: Sequence[str], message: Any) -> None:
        self.tool_names = list(tool_names)
        names = list(dict.fromkeys(tool_names))
        if len(names) == 1:
            why = f"{names[0]} was called {len(tool_names)} times: call it once"
        else:
            why = f"{', '.join(names)} were called: call one of them, once"
        super().__init__(" or ".join(names), why, message)
        self.correction = f"{why}."
