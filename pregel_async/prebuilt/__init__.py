"""Prebuilt parts of agents: agents, any model, any tool, and the node that runs tools."""

from __future__ import annotations

from .agent_state import AgentState
from .any_model import as_model
from .errors import (
    InvalidToolError,
    StructuredOutputError,
    ToolInjectionError,
    ToolInvocationError,
    UnansweredCallsError,
)
from .injection import InjectedState, InjectedStore, InjectedToolArg, InjectedToolCallId, ToolRuntime
from .models import ChatModel, InvalidModelError, ModelCall
from .react import create_react_agent
from .sdk_models import anthropic_messages, openai_chat, openai_responses
from .tool_call import AsyncToolCallWrapper, ToolCallRequest, ToolCallWrapper
from .tool_node import ToolCallWithContext, ToolNode, tools_condition
from .tools import Tool, as_tool, tool

__all__ = [
    "AgentState",
    "AsyncToolCallWrapper",
    "ChatModel",
    "InjectedState",
    "InjectedStore",
    "InjectedToolArg",
    "InjectedToolCallId",
    "InvalidModelError",
    "InvalidToolError",
    "ModelCall",
    "StructuredOutputError",
    "Tool",
    "ToolCallRequest",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolInjectionError",
    "ToolInvocationError",
    "ToolNode",
    "ToolRuntime",
    "UnansweredCallsError",
    "anthropic_messages",
    "as_model",
    "as_tool",
    "create_react_agent",
    "openai_chat",
    "openai_responses",
    "tool",
    "tools_condition",
]
