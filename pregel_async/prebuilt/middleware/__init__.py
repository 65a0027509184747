"""Middleware of agents: the base class and its decorators, and middleware for common needs, under langchain's names."""

from __future__ import annotations

from .base import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse, hook_config
from .call_limits import (
    ModelCallLimitExceededError,
    ModelCallLimitMiddleware,
    ToolCallLimitExceededError,
    ToolCallLimitMiddleware,
)
from .context_editing import ClearToolUsesEdit, ContextEdit, ContextEditingMiddleware
from .decorators import (
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from .detectors import PIIMatch, detect_credit_card, detect_email, detect_ip, detect_mac_address, detect_url
from .human_review import (
    Action,
    ActionRequest,
    ApproveDecision,
    EditDecision,
    HITLRequest,
    HITLResponse,
    HumanInTheLoopMiddleware,
    InterruptOnConfig,
    RejectDecision,
    RespondDecision,
    ReviewConfig,
)
from .pii import PIIDetectionError, PIIMiddleware
from .retries import ModelFallbackMiddleware, ModelRetryMiddleware, ToolRetryMiddleware
from .summarization import SummarizationMiddleware, TriggerClause
from .todo_list import Todo, TodoListMiddleware

__all__ = [
    "Action",
    "ActionRequest",
    "AgentMiddleware",
    "ApproveDecision",
    "ClearToolUsesEdit",
    "ContextEdit",
    "ContextEditingMiddleware",
    "EditDecision",
    "ExtendedModelResponse",
    "HITLRequest",
    "HITLResponse",
    "HumanInTheLoopMiddleware",
    "InterruptOnConfig",
    "ModelCallLimitExceededError",
    "ModelCallLimitMiddleware",
    "ModelFallbackMiddleware",
    "ModelRequest",
    "ModelResponse",
    "ModelRetryMiddleware",
    "PIIDetectionError",
    "PIIMatch",
    "PIIMiddleware",
    "RejectDecision",
    "RespondDecision",
    "ReviewConfig",
    "SummarizationMiddleware",
    "Todo",
    "TodoListMiddleware",
    "ToolCallLimitExceededError",
    "ToolCallLimitMiddleware",
    "ToolRetryMiddleware",
    "TriggerClause",
    "after_agent",
    "after_model",
    "before_agent",
    "before_model",
    "detect_credit_card",
    "detect_email",
    "detect_ip",
    "detect_mac_address",
    "detect_url",
    "dynamic_prompt",
    "hook_config",
    "wrap_model_call",
    "wrap_tool_call",
]
