"""Prebuilt parts of agents: agents, any model, any tool, and the node that runs tools."""

from __future__ import annotations

from .agent import create_agent
from .agent_state import AgentState
from .any_model import as_model
from .approval import ToolApprovalRequest
from .errors import (
    InvalidToolError,
    StructuredOutputError,
    ToolInjectionError,
    ToolInvocationError,
    UnansweredCallsError,
)
from .injection import InjectedState, InjectedStore, InjectedToolArg, InjectedToolCallId, ToolRuntime
from .middleware import (
    Action,
    ActionRequest,
    AgentMiddleware,
    ApproveDecision,
    EditDecision,
    ExtendedModelResponse,
    HITLRequest,
    HITLResponse,
    HumanInTheLoopMiddleware,
    InterruptOnConfig,
    ModelCallLimitExceededError,
    ModelCallLimitMiddleware,
    ModelRequest,
    ModelResponse,
    RejectDecision,
    RespondDecision,
    ReviewConfig,
    ToolCallLimitExceededError,
    ToolCallLimitMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    hook_config,
    wrap_model_call,
    wrap_tool_call,
)
from .models import ChatModel, InvalidModelError, ModelCall
from .react import create_react_agent
from .sdk_models import anthropic_messages, openai_chat, openai_responses
from .tool_call import AsyncToolCallWrapper, ToolCallRequest, ToolCallWrapper
from .tool_node import ToolCallWithContext, ToolNode, tools_condition
from .tools import Tool, as_tool, tool

__all__ = [
    "Action",
    "ActionRequest",
    "AgentMiddleware",
    "AgentState",
    "ApproveDecision",
    "AsyncToolCallWrapper",
    "ChatModel",
    "EditDecision",
    "ExtendedModelResponse",
    "HITLRequest",
    "HITLResponse",
    "HumanInTheLoopMiddleware",
    "InjectedState",
    "InjectedStore",
    "InjectedToolArg",
    "InjectedToolCallId",
    "InterruptOnConfig",
    "InvalidModelError",
    "InvalidToolError",
    "ModelCall",
    "ModelCallLimitExceededError",
    "ModelCallLimitMiddleware",
    "ModelRequest",
    "ModelResponse",
    "RejectDecision",
    "RespondDecision",
    "ReviewConfig",
    "StructuredOutputError",
    "Tool",
    "ToolApprovalRequest",
    "ToolCallLimitExceededError",
    "ToolCallLimitMiddleware",
    "ToolCallRequest",
    "ToolCallWithContext",
    "ToolCallWrapper",
    "ToolInjectionError",
    "ToolInvocationError",
    "ToolNode",
    "ToolRuntime",
    "UnansweredCallsError",
    "after_agent",
    "after_model",
    "anthropic_messages",
    "as_model",
    "as_tool",
    "before_agent",
    "before_model",
    "create_agent",
    "create_react_agent",
    "dynamic_prompt",
    "hook_config",
    "openai_chat",
    "openai_responses",
    "tool",
    "tools_condition",
    "wrap_model_call",
    "wrap_tool_call",
]
