"""Chat models of langchain-core, which is never imported here: a model object proves that it is loaded."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from ..adapters.conversation import calls_of, content_of, is_langchain, role_of
from ..adapters.fields import get_field
from .conversation import make_message, make_tool_message
from .langchain_tools import is_langchain_tool
from .models import InvalidModelError, ModelCall
from .tools import Tool


def is_langchain_model(given: Any) -> bool:
    """Return True for a Runnable of langchain-core, which a chat model is."""
    base: Any = sys.modules.get("langchain_core.runnables")
    return base is not None and isinstance(given, base.Runnable)


class LangchainModel:
    """A chat model of langchain-core, or another Runnable of messages, such as a model with bound tools.

    Args:
        model: the Runnable.

    Attributes:
        name, follows_schemas: as in `ChatModel`.
        model: the Runnable.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        named = getattr(model, "model_name", None) or getattr(model, "model", None)
        self.name = named if isinstance(named, str) else type(model).__name__
        profile = getattr(model, "profile", None)
        self.follows_schemas = bool(profile.get("structured_output")) if isinstance(profile, dict) else False

    async def answer(self, call: ModelCall) -> Any:
        model = self._bound(call)
        config = {key: value for key, value in (call.config or {}).items() if key not in ("run_id", "run_name")}
        answer = await model.ainvoke([to_langchain(message) for message in call.messages], config)
        if not is_langchain(answer) or answer.type != "ai":
            raise InvalidModelError(type(self.model).__name__, f"it returned {type(answer).__name__}, and no AIMessage")
        return answer

    def _bound(self, call: ModelCall) -> Any:
        """Return the model with the tools and options of a call."""
        options = dict(call.settings)
        if call.response_schema is not None:
            name = call.response_schema.get("title") or "response"
            schema: dict[str, Any] = {"name": name, "schema": call.response_schema}
            if call.strict_schema is not None:
                schema["strict"] = call.strict_schema
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.tools and "tools" not in (getattr(self.model, "kwargs", None) or {}):
            if not hasattr(self.model, "bind_tools"):
                raise InvalidModelError(
                    type(self.model).__name__, "it has no bind_tools(): bind the tools to the model"
                )
            if call.tool_choice is not None:
                options["tool_choice"] = call.tool_choice
            if call.parallel_tool_calls is not None and _takes(self.model.bind_tools, "parallel_tool_calls"):
                options["parallel_tool_calls"] = call.parallel_tool_calls
            return self.model.bind_tools([definition_of(tool) for tool in call.tools], **options)
        return self.model.bind(**options) if options else self.model


def _takes(call: Any, name: str) -> bool:
    """Return True if a function has a parameter of this name. Not enough: one that takes any keyword arguments."""
    return name in inspect.signature(call).parameters


def definition_of(tool: Tool | dict[str, Any]) -> Any:
    """Return a tool in a form that models of langchain-core bind."""
    if not isinstance(tool, Tool):
        return tool
    # A tool of langchain-core may have options for certain providers in its `extras`.
    hidden = any(injection.wanted != "default" for injection in tool.injections)
    if is_langchain_tool(tool.source) and not hidden:
        return tool.source
    return {"type": "function", "function": tool.definition()}


def to_langchain(message: Any) -> Any:
    """Return a message as an object of langchain-core."""
    if is_langchain(message):
        return message
    role, content = role_of(message), content_of(message)
    id = get_field(message, "id") if not isinstance(message, (str, tuple, list)) else None
    if role == "tool":
        call = {"name": get_field(message, "name") or "", "id": get_field(message, "tool_call_id")}
        failed = get_field(message, "status") == "error"
        made = make_tool_message(call, content, langchain=True, failed=failed, artifact=get_field(message, "artifact"))
        return made if id is None else made.model_copy(update={"id": id})
    if role not in ("user", "assistant", "system"):
        raise InvalidModelError("of langchain-core", f"a message of the role {role!r} cannot be sent to it")
    calls = calls_of(message) if role == "assistant" else []
    more: dict[str, Any] = {"tool_calls": [call for call in calls if call["type"] == "tool_call"]} if calls else {}
    if invalid := [call for call in calls if call["type"] == "invalid_tool_call"]:
        more["invalid_tool_calls"] = invalid
    return make_message(role, content or "", langchain=True, id=id, **more)
