"""Errors of tools, models and agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import GraphValidationError, PregelError

__all__ = ["InvalidToolError", "ToolInjectionError", "ToolInvocationError"]


class InvalidToolError(GraphValidationError, TypeError):
    """A value that was given as a tool cannot be one. Nothing has run.

    Attributes:
        given: the tool's name, or `repr()` of the value if it has none.
    """

    def __init__(self, given: str, why: str) -> None:
        self.given = given
        super().__init__(f"tool {given}: {why}")


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
