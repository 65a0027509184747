"""Questions about tool calls in the shapes of `langgraph.prebuilt.interrupt`, which older user interfaces read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypedDict

from ..errors import GraphValidationError

__all__ = ["HumanInterrupt", "HumanInterruptAction", "HumanInterruptConfig", "HumanResponse"]

QuestionShape: TypeAlias = Literal["human_interrupt"]
"""A shape of questions other than the usual one."""


class HumanInterruptAction(TypedDict):
    """A tool call. LangGraph's name of it is `ActionRequest`.

    Keys:
        action: the tool's name.
        args: the arguments.
    """

    action: str
    args: dict[str, Any]


class HumanInterruptConfig(TypedDict):
    """Which answers are allowed.

    Keys:
        allow_ignore: the call may be refused.
        allow_respond: the call may be answered in place of the tool.
        allow_edit: the call may be changed.
        allow_accept: the call may run as it is.
    """

    allow_ignore: bool
    allow_respond: bool
    allow_edit: bool
    allow_accept: bool


class HumanInterrupt(TypedDict):
    """The question about a tool call. A question is a list of them, and its answer a list of `HumanResponse`.

    Keys:
        action_request: the call.
        config: the answers that are allowed.
        description: a text for the person.
    """

    action_request: HumanInterruptAction
    config: HumanInterruptConfig
    description: str | None


class HumanResponse(TypedDict):
    """The answer to a `HumanInterrupt`.

    Keys:
        type: "accept" runs the call, "edit" another one, "ignore" refuses it, and "response" answers it.
        args: the other call for "edit", the text for "response", and else None.
    """

    type: Literal["accept", "ignore", "response", "edit"]
    args: str | HumanInterruptAction | None


_DECISIONS: Final = {"accept": "approve", "ignore": "reject", "response": "respond", "edit": "edit"}


def check_shape(parameter: str, shape: Any) -> None:
    """Refuse an unknown shape.

    Args:
        parameter: the name of the parameter.
        shape: its value.

    Raises:
        GraphValidationError: it is neither None nor "human_interrupt".
    """
    if shape not in (None, "human_interrupt"):
        raise GraphValidationError(f"{parameter} is 'human_interrupt' or None, not {shape!r}")


def make_human_interrupt(call: Mapping[str, Any], description: str, allowed: Collection[str]) -> HumanInterrupt:
    """Return the question about a call.

    Args:
        call: the tool call.
        description: the text for the person.
        allowed: the types of decisions that are allowed: "approve", "edit", "reject", "respond".
    """
    return {
        "action_request": {
            "action": call["name"],
            "args": dict(call["args"]) if isinstance(call["args"], Mapping) else {},
        },
        "config": {
            "allow_ignore": "reject" in allowed,
            "allow_respond": "respond" in allowed,
            "allow_edit": "edit" in allowed,
            "allow_accept": "approve" in allowed,
        },
        "description": description,
    }


def read_responses(answer: Any) -> Sequence[dict[str, Any] | None]:
    """Return the answers to a question as decisions; None for each that is none.

    Args:
        answer: a list of `HumanResponse`, or one of them.
    """
    return [_read_response(each) for each in (answer if isinstance(answer, (list, tuple)) else [answer])]


def _read_response(given: Any) -> dict[str, Any] | None:
    kind = _DECISIONS.get(given["type"]) if isinstance(given, Mapping) and isinstance(given.get("type"), str) else None
    args = given.get("args") if kind is not None else None
    match kind:
        case "approve" | "reject":
            return {"type": kind}
        case "respond" if isinstance(args, str):
            return {"type": kind, "message": args}
        case "edit" if isinstance(args, Mapping) and isinstance(args.get("action"), str) and "args" in args:
            return {"type": kind, "edited_action": {"name": args["action"], "args": args["args"]}}
        case _:
            return None
