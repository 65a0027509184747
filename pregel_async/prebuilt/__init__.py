"""Prebuilt parts of agents: any model, any tool, and the node that runs tools."""

from __future__ import annotations

from .any_model import as_model
from .errors import InvalidToolError, ToolInjectionError, ToolInvocationError
from .injection import InjectedState, InjectedStore, InjectedToolArg, InjectedToolCallId, ToolRuntime
from .models import ChatModel, InvalidModelError, ModelCall
from .sdk_models import anthropic_messages, openai_chat, openai_responses
from .tool_call import AsyncToolCallWrapper, ToolCallRequest, ToolCallWrapper
from .tool_node import ToolCallWithContext, ToolNode, tools_condition
from .tools import Tool, as_tool, tool

__all__ = [
    "AsyncToolCallWrapper",
    "ChatModel",
    "InjectedState",
    "InjectedStore",
    "InjectedToolArg",
    "InjectedToolCallId",
    "InvalidModelError",
    "InvalidToolError",
    "ModelCall",
    "Tool",
    "ToolCallRequest",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolInjectionError",
    "ToolInvocationError",
    "ToolNode",
    "ToolRuntime",
    "anthropic_messages",
    "as_model",
    "as_tool",
    "openai_chat",
    "openai_responses",
    "tool",
    "tools_condition",
]
