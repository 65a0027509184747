"""Approval: a person decides whether a tool call runs. Each call asks for itself, and answers come in any order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from ..errors import GraphValidationError
from ..runtime import interrupt
from .tool_call import AsyncToolCallWrapper, ToolCallRequest

__all__ = ["ToolApprovalRequest"]

Approve: TypeAlias = Mapping[str, bool | Callable[[ToolCallRequest], bool]] | Callable[[ToolCallRequest], bool]
"""Which tool calls ask: by the tool's name True, or a function of the request; or one function for all tools."""


class ToolApprovalRequest(TypedDict):
    """The question of a tool call that needs approval.

    Answer it with `{"type": "approve"}`; `{"type": "edit", "edited_action": {"name": ..., "args": ...}}`;
    `{"type": "reject", "message": ...}`, whose message is optional; or `{"type": "respond", "message": ...}`, which
    answers in place of the tool. True approves, and False rejects.

    Keys:
        type: "tool_approval".
        tool_call_id: the id of the call.
        name: the tool's name.
        args: the arguments.
        description: a text for the person.
    """

    type: Literal["tool_approval"]
    tool_call_id: str
    name: str
    args: dict[str, Any]
    description: str


def approval_wrapper(approve: Approve) -> AsyncToolCallWrapper:
    """Return a wrapper of tool calls that asks for approval.

    Args:
        approve: which calls ask.

    Raises:
        GraphValidationError: it is neither a function nor a mapping of names to functions, True or False.
    """
    rules: Any = approve.values() if isinstance(approve, Mapping) else [approve]
    if not all(callable(rule) or (isinstance(rule, bool) and isinstance(approve, Mapping)) for rule in rules):
        raise GraphValidationError(
            f"approve is a function of the request, or maps names of tools to True or such a function, not {approve!r}"
        )

    async def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        rule = approve if callable(approve) else approve.get(request.tool_call["name"], False)
        if not (rule(request) if callable(rule) else rule):
            return await execute(request)
        call = request.tool_call
        args = dict(call["args"]) if isinstance(call["args"], Mapping) else {}
        question: ToolApprovalRequest = {
            "type": "tool_approval",
            "tool_call_id": call["id"],
            "name": call["name"],
            "args": args,
            "description": f"May the tool {call['name']!r} run?",
        }
        decision = _decision(interrupt(question))
        while decision is None:
            # Asked again, because an answer is recorded once: raising an error would end the thread for good.
            question = {**question, "description": f"That was no decision. {question['description']}"}
            decision = _decision(interrupt(question))
        match decision["type"]:
            case "approve":
                return await execute(request)
            case "edit":
                action = decision["edited_action"]
                changed = {**call, "name": action["name"], "args": action["args"]}
                tools = {tool.name: tool for tool in request.runtime.tools}
                return await execute(request.override(tool_call=changed, tool=tools.get(action["name"])))
            case "respond":
                return _message(call, decision["message"], failed=False)
            case _:
                why = decision.get("message")
                said = f"The user refused the call of {call['name']!r}, and it has not run"
                said += f": {why}" if why else ". Do not repeat it unless the user asks for it."
                return _message(call, said, failed=True)

    return wrap


def _decision(answer: Any) -> dict[str, Any] | None:
    """Return an answer as a decision; None if it is none."""
    if isinstance(answer, bool):
        return {"type": "approve" if answer else "reject"}
    kind = answer.get("type") if isinstance(answer, Mapping) else None
    if kind == "edit":
        action = answer.get("edited_action")
        valid = isinstance(action, Mapping) and isinstance(action.get("name"), str) and "args" in action
    else:
        valid = kind in ("approve", "reject") or (kind == "respond" and isinstance(answer.get("message"), str))
    return dict(answer) if valid else None


def _message(call: Mapping[str, Any], content: str, *, failed: bool) -> dict[str, Any]:
    message = {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": content}
    return {**message, "status": "error"} if failed else message
