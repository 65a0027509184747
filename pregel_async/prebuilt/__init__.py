"""Prebuilt parts of agents: tools, and the node that runs them."""

from __future__ import annotations

from .errors import InvalidToolError, ToolInjectionError, ToolInvocationError
from .injection import InjectedState, InjectedStore, InjectedToolArg, InjectedToolCallId, ToolRuntime
from .tool_call import AsyncToolCallWrapper, ToolCallRequest, ToolCallWrapper
from .tool_node import ToolCallWithContext, ToolNode, tools_condition
from .tools import Tool, as_tool, tool

__all__ = [
    "AsyncToolCallWrapper",
    "InjectedState",
    "InjectedStore",
    "InjectedToolArg",
    "InjectedToolCallId",
    "InvalidToolError",
    "Tool",
    "ToolCallRequest",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolInjectionError",
    "ToolInvocationError",
    "ToolNode",
    "ToolRuntime",
    "as_tool",
    "tool",
    "tools_condition",
]
