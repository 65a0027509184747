"""Approval: a person decides whether a tool call runs. Each call asks for itself, and answers come in any order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict

from ..errors import GraphValidationError
from ..runtime import interrupt
from .human_interrupt import QuestionShape, check_shape, make_human_interrupt, read_responses
from .tool_call import AsyncToolCallWrapper, ToolCallRequest

__all__ = ["ToolApprovalRequest"]

Approve: TypeAlias = Mapping[str, bool | Callable[[ToolCallRequest], bool]] | Callable[[ToolCallRequest], bool]
"""Which tool calls ask: by the tool's name True, or a function of the request; or one function for all tools."""


DecisionType: TypeAlias = Literal["approve", "edit", "reject", "respond"]

DECISIONS: Final[tuple[DecisionType, ...]] = ("approve", "edit", "reject", "respond")


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


def approval_wrapper(approve: Approve, shape: QuestionShape | None = None) -> AsyncToolCallWrapper:
    """Return a wrapper of tool calls that asks for approval.

    Args:
        approve: which calls ask.
        shape: "human_interrupt" for questions that are a list of a `HumanInterrupt`; None for `ToolApprovalRequest`.

    Raises:
        GraphValidationError: `approve` is neither a function nor a mapping of names to functions, True or False; or
            there is no such shape.
    """
    check_shape("approve_shape", shape)
    rules: Any = approve.values() if isinstance(approve, Mapping) else [approve]
    if not all(callable(rule) or (isinstance(rule, bool) and isinstance(approve, Mapping)) for rule in rules):
        raise GraphValidationError(
            f"approve is a function of the request, or maps names of tools to True or such a function, not {approve!r}"
        )

    async def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        rule = approve if callable(approve) else approve.get(request.tool_call["name"], False)
        if not (rule(request) if callable(rule) else rule):
            return await execute(request)
        decision = ask_about(request.tool_call, f"May the tool {request.tool_call['name']!r} run?", shape=shape)
        return await carry_out(decision, request, execute)

    return wrap


def ask_about(
    call: Mapping[str, Any],
    description: str,
    accepts: Callable[[dict[str, Any]], bool] = lambda decision: True,
    response_schema: dict[str, Any] | None = None,
    *,
    allowed: Collection[str] = DECISIONS,
    shape: QuestionShape | None = None,
) -> dict[str, Any]:
    """Ask a person about a tool call until the answer is a decision.

    Args:
        call: the tool call.
        description: the text for the person.
        accepts: returns False for a decision that is not allowed.
        response_schema: the JSON Schema of answers; None to show none. Only for the usual shape.
        allowed: the types of decisions to offer. Only for the shape "human_interrupt".
        shape: as in `approval_wrapper`.

    Returns:
        The decision.
    """

    def ask(text: str) -> dict[str, Any] | None:
        if shape is not None:
            found = read_responses(interrupt([make_human_interrupt(call, text, allowed)]))
            return found[0] if len(found) == 1 else None
        question: ToolApprovalRequest = {
            "type": "tool_approval",
            "tool_call_id": call["id"],
            "name": call["name"],
            "args": dict(call["args"]) if isinstance(call["args"], Mapping) else {},
            "description": text,
        }
        return read_decision(interrupt(question, response_schema=response_schema))

    decision = ask(description)
    while decision is None or not accepts(decision):
        # Asked again, because an answer is recorded once: raising an error would end the thread for good.
        decision = ask(f"That was no decision. {description}")
    return decision


async def carry_out(
    decision: Mapping[str, Any], request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
) -> Any:
    """Run a tool call, or answer it, as a person has decided.

    Args:
        decision: the decision.
        request: the call.
        execute: runs the tool.

    Returns:
        What the tool has returned, or the message that answers the call.
    """
    match decision["type"]:
        case "approve":
            return await execute(request)
        case "edit":
            return await execute(edited(request, decision["edited_action"]))
        case _:
            return answer_to(decision, request.tool_call)


def edited(request: ToolCallRequest, action: Mapping[str, Any]) -> ToolCallRequest:
    """Return the request with the name and the arguments of an edit."""
    changed = {**request.tool_call, "name": action["name"], "args": action["args"]}
    tools = {tool.name: tool for tool in request.runtime.tools}
    return request.override(tool_call=changed, tool=tools.get(action["name"]))


def answer_to(decision: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool message of a call that is rejected, or that the person has answered."""
    message = {"role": "tool", "tool_call_id": call["id"], "name": call["name"]}
    if decision["type"] == "respond":
        return {**message, "content": decision["message"]}
    why = decision.get("message")
    said = f"The user refused the call of {call['name']!r}, and it has not run"
    said += f": {why}" if why else ". Do not repeat it unless the user asks for it."
    return {**message, "content": said, "status": "error"}


def read_decision(answer: Any) -> dict[str, Any] | None:
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
