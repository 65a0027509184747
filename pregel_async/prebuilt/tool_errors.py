"""`handle_tool_errors`: which errors of a tool become its tool message, and what that says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

from checkpoint_savers.errors import StorageError

from .._runtime.tasks.injection import hints_of
from ..errors import CallsChangedError, GraphValidationError, InvalidResumeError, OutsideRunError, QuestionChangedError
from .errors import McpToolError, ToolInjectionError, ToolInvocationError

HandleToolErrors: TypeAlias = bool | str | Callable[..., str] | type[Exception] | tuple[type[Exception], ...]

_OF_THE_RUN: Final = (
    StorageError,
    CallsChangedError,
    GraphValidationError,
    InvalidResumeError,
    OutsideRunError,
    QuestionChangedError,
    ToolInjectionError,
)
"""Errors of the run or the program, and not of the call: a model that is shown one would only repeat the call."""


_FOR_THE_MODEL: Final = (ToolInvocationError, McpToolError)
"""Errors that say in their `message` what the model can do about them."""


def is_of_the_run(error: Exception) -> bool:
    """Return True for an error of the run or the program, which another attempt cannot correct."""
    return isinstance(error, _OF_THE_RUN)


def invalid_calls_only(error: Exception) -> str:
    """Handle errors as `ToolNode` does by default: show the model invalid arguments, and errors of MCP servers.

    Other errors are raised.

    Args:
        error: the error of the call.

    Returns:
        The text of the tool message.
    """
    if isinstance(error, _FOR_THE_MODEL):
        return error.message
    raise error


class ToolErrorHandler:
    """Applies a `handle_tool_errors` to errors.

    Args:
        flag: True, False, a text, a function of the error, an exception class or a tuple of them.

    Raises:
        GraphValidationError: `flag` is none of these.
    """

    def __init__(self, flag: HandleToolErrors) -> None:
        self._flag = flag
        self._kinds = _kinds_of(flag)

    def text_of(self, error: Exception) -> str | None:
        """Return what the model is shown of an error; None if the error is to be raised."""
        flag = self._flag
        if isinstance(error, _OF_THE_RUN) or not isinstance(error, self._kinds):
            return None
        if isinstance(flag, str):
            return flag
        if callable(flag) and not isinstance(flag, type):
            return flag(error)
        if isinstance(error, _FOR_THE_MODEL):
            return error.message
        return f"The tool failed: {error!r}. Correct the mistake, or continue without it."


def _kinds_of(flag: Any) -> tuple[type[Exception], ...]:
    if isinstance(flag, bool):
        return (Exception,) if flag else ()
    if isinstance(flag, str):
        return (Exception,)
    if isinstance(flag, type) and issubclass(flag, Exception):
        return (flag,)
    if isinstance(flag, tuple) and all(isinstance(each, type) and issubclass(each, Exception) for each in flag):
        return flag
    if callable(flag):
        return _kinds_of_handler(flag)
    raise GraphValidationError(
        f"handle_tool_errors is True, False, a text, a function, an exception class or a tuple of them, not {flag!r}"
    )


def _kinds_of_handler(handler: Callable[..., Any]) -> tuple[type[Exception], ...]:
    """Return the exception classes that a handler's first parameter is annotated with."""
    parameters = list(inspect.signature(handler).parameters)
    hint = hints_of(handler).get(parameters[0]) if parameters else None
    kinds: tuple[Any, ...] = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if hint is None or hint is Any:
        return (Exception,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise GraphValidationError(
            f"the error handler {handler!r} handles {hint!r}: annotate its first parameter with exception classes"
        )
    return kinds
