"""Tools of langchain-core: their schema, and a call of one. langchain-core is never imported here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from ..types import Command
from .conversation import is_tool_message
from .errors import ToolInvocationError
from .function_schema import explain, json_schema_of


def is_langchain_tool(given: Any) -> bool:
    """Return True for a tool object of langchain-core."""
    base: Any = sys.modules.get("langchain_core.tools.base")
    return base is not None and isinstance(given, base.BaseTool)


def schema_of_langchain_tool(tool: Any, hidden: set[str]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, without some of them.

    Args:
        tool: the tool.
        hidden: names of parameters that models must not see.
    """
    given = tool.tool_call_schema
    schema = dict(given) if isinstance(given, dict) else json_schema_of(given, tool.name)
    schema["properties"] = {name: each for name, each in schema.get("properties", {}).items() if name not in hidden}
    schema.pop("description", None)
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in hidden]
    return schema


def validate_langchain_args(tool: Any, args: dict[str, Any]) -> Any:
    """Return the arguments that a model has set, converted by the schema of a tool. Raises `ValueError`."""
    schema = tool.tool_call_schema
    return args if isinstance(schema, dict) else schema.model_validate(args)


def prepare_langchain_tool(tool: Any) -> Any:
    """Return a copy of a tool that passes on commands and lists of messages.

    langchain-core makes a text of every result that is not of one of its own classes. The copy runs the code of the
    original, with the original's attributes.

    Args:
        tool: the tool.
    """
    base: Any = sys.modules["langchain_core.tools.base"]
    messages: Any = sys.modules["langchain_core.messages.tool"]
    carrier: Any = type("CarriedResult", (messages.ToolOutputMixin,), {})

    def carry(result: Any) -> Any:
        parts = result if isinstance(result, list) else [result]
        if not any(isinstance(part, Command) or (isinstance(part, dict) and is_tool_message(part)) for part in parts):
            return result
        made = carrier()
        made.result = result
        return made

    @functools.wraps(tool._run)
    def run(*args: Any, **kwargs: Any) -> Any:
        return carry(tool._run(*args, **kwargs))

    @functools.wraps(tool._arun)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        return carry(await tool._arun(*args, **kwargs))

    copied = tool.model_copy()
    object.__setattr__(copied, "_run", run)
    if type(tool)._arun is not base.BaseTool._arun:  # otherwise langchain-core calls `_run` in a thread
        object.__setattr__(copied, "_arun", arun)
    return copied


async def run_langchain_tool(tool: Any, call: Mapping[str, Any], injected: dict[str, Any], config: Any) -> Any:
    """Run a tool, and return what its `ainvoke` returns for a tool call: a tool message, or what the function returned.

    Args:
        tool: the result of `prepare_langchain_tool`.
        call: the tool call.
        injected: the values of the parameters that the run fills in.
        config: the config of the node.

    Raises:
        ToolInvocationError: the arguments do not fit.
    """
    args = {key: value for key, value in call["args"].items() if key not in injected}
    request = {"type": "tool_call", "name": call["name"], "id": call["id"], "args": {**args, **injected}}
    try:
        returned = await tool.ainvoke(request, config)
    except ValueError as error:
        if not _is_of_arguments(error, tool):
            raise
        raise ToolInvocationError(call["name"], explain(error), args, error) from error
    return returned.result if type(returned).__name__ == "CarriedResult" else returned


def _is_of_arguments(error: ValueError, tool: Any) -> bool:
    """Return True if pydantic has refused the arguments, and not a value that the tool's own code validates."""
    schema = tool.get_input_schema()
    return type(error).__name__ == "ValidationError" and getattr(error, "title", None) in (
        schema.__name__,
        getattr(schema, "model_config", {}).get("title"),
    )
