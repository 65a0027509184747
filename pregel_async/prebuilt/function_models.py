"""A function of messages and tools as a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .._runtime.tasks.injection import name_of_call
from ..adapters import read_message, stream_message
from ..adapters.conversation import is_langchain
from ..adapters.whole import is_whole_answer
from .models import InvalidModelError, ModelCall
from .tools import Tool

ModelFunction: TypeAlias = Callable[..., Any]
"""A coroutine function of messages and tools, which returns a message; see `as_model`."""

_OPTIONS: Final = ("tool_choice", "parallel_tool_calls", "response_schema", "settings", "config")


class FunctionModel:
    """A function as a model.

    Args:
        call: the function.

    Attributes:
        name, follows_schemas: as in `ChatModel`.

    Raises:
        InvalidModelError: the function does not take messages and tools.
    """

    def __init__(self, call: ModelFunction) -> None:
        self.name = name_of_call(call)
        self._call = call
        try:
            parameters = inspect.signature(call).parameters
            inspect.signature(call).bind([], [], **{name: None for name in _OPTIONS if name in parameters})
        except (TypeError, ValueError) as error:
            raise InvalidModelError(
                self.name,
                f"{error}. A function is a model if it takes (messages, tools), and what it wants of "
                f"{', '.join(_OPTIONS)} as keyword arguments",
            ) from error
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._options = _OPTIONS if takes_all else tuple([name for name in _OPTIONS if name in parameters])
        self.follows_schemas = "response_schema" in self._options

    async def answer(self, call: ModelCall) -> Any:
        tools = [tool.definition() if isinstance(tool, Tool) else tool for tool in call.tools]
        returned = self._call(list(call.messages), tools, **{name: getattr(call, name) for name in self._options})
        if inspect.isawaitable(returned):
            returned = await returned
        return await as_message(returned, self.name)


async def as_message(returned: Any, name: str) -> Any:
    """Return what a model's function returned as a message.

    Args:
        returned: a message, a text, a provider's whole answer, or a stream that `stream_message` reads.
        name: the model's name, for error messages.

    Raises:
        InvalidModelError: it is none of these.
    """
    if isinstance(returned, str):
        return {"role": "assistant", "content": returned}
    if type(returned) is dict and returned.get("role") == "assistant" and "type" not in returned:
        return returned if "content" in returned else {"content": "", **returned}
    if is_langchain(returned):
        return returned
    if is_whole_answer(returned):
        return read_message(returned)
    if isinstance(returned, dict) and returned.get("role", "assistant") in ("assistant", "ai"):
        return {"content": "", **returned, "role": "assistant"}
    if any(hasattr(returned, method) for method in ("__aiter__", "__aenter__", "__next__")):
        return await stream_message(returned)
    raise InvalidModelError(
        name, f"it returned {type(returned).__name__}, and neither a message of an assistant, a text nor a stream"
    )
