"""`HumanInTheLoopMiddleware`: a person reviews tool calls, all calls of a turn at once or each call for itself."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, NotRequired, TypedDict, cast

from ...adapters.conversation import content_of
from ...adapters.fields import get_field
from ...errors import GraphValidationError
from ...runtime import Runtime, get_config, interrupt
from ...types import Command
from ..agent_state import PRIVATE, AgentState
from ..approval import DECISIONS, DecisionType, answer_to, ask_about, carry_out, edited, read_decision
from ..conversation import as_langchain, is_tool_message, messages_of, pending_calls, uses_langchain, with_fields
from ..human_interrupt import QuestionShape, check_shape, make_human_interrupt, read_responses
from ..injection import ToolRuntime
from ..tool_call import ToolCallRequest
from .base import AgentMiddleware

__all__ = [
    "Action",
    "ActionRequest",
    "ApproveDecision",
    "EditDecision",
    "HITLRequest",
    "HITLResponse",
    "HumanInTheLoopMiddleware",
    "InterruptOnConfig",
    "RejectDecision",
    "RespondDecision",
    "ReviewConfig",
]

_NOTICE: Final = (
    "A person has changed this call before it ran, and is entitled to do so. Do not repeat the call that you wrote."
)


class Action(TypedDict):
    """A tool call.

    Keys:
        name: the tool's name.
        args: the arguments.
    """

    name: str
    args: dict[str, Any]


class ActionRequest(TypedDict):
    """A tool call that needs a decision.

    Keys:
        name: the tool's name.
        args: the arguments.
        description: a text for the person.
    """

    name: str
    args: dict[str, Any]
    description: NotRequired[str]


class ReviewConfig(TypedDict):
    """How a tool call may be decided.

    Keys:
        action_name: the tool's name.
        allowed_decisions: the types of decisions.
    """

    action_name: str
    allowed_decisions: list[DecisionType]


class HITLRequest(TypedDict):
    """The question about all tool calls of a turn that need a decision. The answer is an `HITLResponse`.

    Keys:
        action_requests: the calls, in their order.
        review_configs: for each of them, how it may be decided.
    """

    action_requests: list[ActionRequest]
    review_configs: list[ReviewConfig]


class ApproveDecision(TypedDict):
    """Run the call.

    Keys:
        type: "approve".
    """

    type: Literal["approve"]


class EditDecision(TypedDict):
    """Run another call in place of this one.

    Keys:
        type: "edit".
        edited_action: the call to run.
    """

    type: Literal["edit"]
    edited_action: Action


class RejectDecision(TypedDict):
    """Do not run the call.

    Keys:
        type: "reject".
        message: the reason, for the model.
    """

    type: Literal["reject"]
    message: NotRequired[str]


class RespondDecision(TypedDict):
    """Answer the call in place of the tool.

    Keys:
        type: "respond".
        message: the result of the call.
    """

    type: Literal["respond"]
    message: str


class HITLResponse(TypedDict):
    """The answer to an `HITLRequest`.

    Keys:
        decisions: one for each of the calls, in their order.
    """

    decisions: list[ApproveDecision | EditDecision | RejectDecision | RespondDecision]


class InterruptOnConfig(TypedDict):
    """Which calls of a tool need a decision, and which decisions are allowed.

    Keys:
        allowed_decisions: the types of decisions.
        description: a text for the person, or a function of the call, the state and the runtime that returns it.
        when: a function of the `ToolCallRequest` that returns False for calls that need no decision. It runs again
            after the answer, so it returns the same for the same call.
    """

    allowed_decisions: list[DecisionType]
    description: NotRequired[str | Callable[[Any, Any, Any], str]]
    when: NotRequired[Callable[[ToolCallRequest], bool]]


class ReviewState(AgentState):
    """The state of an agent whose tool calls are reviewed.

    Keys:
        hitl_edited_tool_calls: the calls that run in place of the model's, by the ids of those.
    """

    hitl_edited_tool_calls: NotRequired[Annotated[dict[str, Action], PRIVATE]]


class HumanInTheLoopMiddleware(AgentMiddleware):
    """Ask a person before tools run. Needs a checkpointer.

    In the mode "batched", one question after the model's turn lists all calls that need a decision, and no tool runs
    before it is answered. In the mode "per_call", each call asks for itself with a `ToolApprovalRequest` as it starts:
    calls that need no decision do not wait, and answers come in any order. The mode "per_call" asks as `approve=` of
    `create_agent`.

    An answer that is no decision, or one that is not allowed, is asked again.

    Args:
        interrupt_on: by the tool's name True to allow every decision, False for none, or an `InterruptOnConfig`.
            Other tools run at once.
        description_prefix: begins the text for the person, if there is no `description`.
        edit_notice: begins the result of an edited call, so that the model is not surprised; None for no notice.
        interrupt_mode: "batched" or "per_call".
        shape: "human_interrupt" for questions that are a list of `HumanInterrupt`, whose answer is a list of
            `HumanResponse`; None for those above.

    Raises:
        GraphValidationError: a tool has no allowed decision, or one that does not exist, or there is no such mode or
            shape.
    """

    state_schema: ClassVar[Any] = ReviewState

    def __init__(
        self,
        interrupt_on: Mapping[str, bool | InterruptOnConfig],
        *,
        description_prefix: str = "Tool execution requires approval",
        edit_notice: str | None = _NOTICE,
        interrupt_mode: Literal["batched", "per_call"] = "batched",
        shape: QuestionShape | None = None,
    ) -> None:
        check_shape("shape", shape)
        if interrupt_mode not in ("batched", "per_call"):
            raise GraphValidationError(f"interrupt_mode is 'batched' or 'per_call', not {interrupt_mode!r}")
        self.interrupt_on = {name: _config(name, given) for name, given in interrupt_on.items() if given is not False}
        self.description_prefix = description_prefix
        self.edit_notice = edit_notice
        self.interrupt_mode = interrupt_mode
        self.shape: QuestionShape | None = shape

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Ask about all calls of the turn, in the mode "batched".

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The messages that answer calls, and the edits of others.
        """
        if self.interrupt_mode == "per_call":
            return None
        messages = messages_of(state, "messages")
        calls = [call for call in pending_calls(messages) if self._asks(_request(call, state, runtime))]
        if not calls:
            return {"hitl_edited_tool_calls": {}} if get_field(state, "hitl_edited_tool_calls") else None
        decisions = self._ask(calls, state, runtime)
        answers = [
            answer_to(decision, call)
            for call, decision in zip(calls, decisions, strict=True)
            if decision["type"] in ("reject", "respond")
        ]
        return {
            "messages": [as_langchain(each) for each in answers] if uses_langchain(messages) else answers,
            "hitl_edited_tool_calls": {
                call["id"]: decision["edited_action"]
                for call, decision in zip(calls, decisions, strict=True)
                if decision["type"] == "edit"
            },
        }

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run a call, or what a person has put in its place. In the mode "per_call", ask about it first.

        Args:
            request: the call.
            handler: runs the tool.

        Returns:
            The result. That of an edited call begins with the notice.
        """
        call = request.tool_call
        if self.interrupt_mode == "batched":
            action = (get_field(request.state, "hitl_edited_tool_calls") or {}).get(call["id"])
            return await handler(request) if action is None else await self._run_edited(request, action, handler)
        if not self._asks(request):
            return await handler(request)
        allowed = self.interrupt_on[call["name"]]["allowed_decisions"]

        def accepts(decision: Mapping[str, Any]) -> bool:
            return decision["type"] in allowed

        text = self._description(call, request.state, request.runtime)
        decision = ask_about(call, text, accepts, _answers(allowed, request), allowed=allowed, shape=self.shape)
        if decision["type"] == "edit":
            return await self._run_edited(request, decision["edited_action"], handler)
        return await carry_out(decision, request, handler)

    def _asks(self, request: ToolCallRequest) -> bool:
        config = self.interrupt_on.get(request.tool_call["name"])
        if config is None or request.tool_call.get("type") == "invalid_tool_call":
            return False
        when = config.get("when")
        return when is None or bool(when(request))

    def _description(self, call: Any, state: Any, runtime: Any) -> str:
        given = self.interrupt_on[call["name"]].get("description")
        if given is None:
            return f"{self.description_prefix}\n\nTool: {call['name']}\nArgs: {call['args']}"
        return given(call, state, runtime) if callable(given) else given

    def _ask(self, calls: Sequence[Any], state: Any, runtime: Runtime[Any]) -> list[dict[str, Any]]:
        allowed = [self.interrupt_on[call["name"]]["allowed_decisions"] for call in calls]
        texts = [self._description(call, state, runtime) for call in calls]
        configs: list[ReviewConfig] = [
            {"action_name": call["name"], "allowed_decisions": list(types)}
            for call, types in zip(calls, allowed, strict=True)
        ]
        prefix = ""
        while True:
            shown = [prefix + text for text in texts]
            if self.shape is not None:
                every = zip(calls, shown, allowed, strict=True)
                answer = interrupt([make_human_interrupt(call, text, types) for call, text, types in every])
                decisions = _allowed(read_responses(answer), allowed)
            else:
                question: HITLRequest = {
                    "action_requests": [
                        {"name": call["name"], "args": call["args"], "description": text}
                        for call, text in zip(calls, shown, strict=True)
                    ],
                    "review_configs": configs,
                }
                decisions = _decisions(interrupt(question), allowed)
            if decisions is not None:
                return decisions
            # As for a single call: an answer is recorded once, and raising an error would end the thread for good.
            prefix = f"The answer needs {len(calls)} allowed decisions. "

    async def _run_edited(
        self, request: ToolCallRequest, action: Any, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        result = await handler(edited(request, action))
        if not self.edit_notice:
            return result
        ran = f"{action['name']} with arguments {json.dumps(action['args'], default=str)}"
        notice = f"{self.edit_notice} The call that ran: {ran}."
        return [_noticed(each, notice) for each in result] if isinstance(result, list) else _noticed(result, notice)


def _config(name: str, given: Any) -> InterruptOnConfig:
    if given is True:
        return {"allowed_decisions": list(DECISIONS)}
    allowed = given.get("allowed_decisions") if isinstance(given, Mapping) else None
    if not allowed or not set(allowed) <= set(DECISIONS):
        raise GraphValidationError(
            f"interrupt_on[{name!r}] is True, False, or a dict whose 'allowed_decisions' lists some of "
            f"{', '.join(DECISIONS)}, not {given!r}"
        )
    return cast("InterruptOnConfig", given)


def _request(call: Any, state: Any, runtime: Runtime[Any]) -> ToolCallRequest:
    """Return the request of a call before it has a task."""
    made: ToolRuntime[Any, Any] = ToolRuntime(
        state=state,
        context=runtime.context,
        config=get_config(),
        stream_writer=runtime.stream_writer,
        tool_call_id=call["id"],
        store=runtime.store,
        execution_info=cast("Any", runtime.execution_info),
    )
    return ToolCallRequest(tool_call=call, tool=None, state=state, runtime=made)


def _decisions(answer: Any, allowed: Sequence[Sequence[str]]) -> list[dict[str, Any]] | None:
    """Return the decisions of an answer; None if they are not one allowed decision for each call."""
    given = answer.get("decisions") if isinstance(answer, Mapping) else None
    if not isinstance(given, (list, tuple)):
        return None
    return _allowed([read_decision(each) for each in given], allowed)


def _allowed(found: Sequence[dict[str, Any] | None], allowed: Sequence[Sequence[str]]) -> list[dict[str, Any]] | None:
    """Return decisions; None if they are not one allowed decision for each call."""
    if len(found) != len(allowed):
        return None
    valid = [each for each, types in zip(found, allowed, strict=True) if each is not None and each["type"] in types]
    return valid if len(valid) == len(allowed) else None


def _answers(allowed: Sequence[str], request: ToolCallRequest) -> dict[str, Any]:
    """Return the JSON Schema of the decisions about a call."""
    args = {"type": "object"} if request.tool is None else request.tool.args_schema
    name = {"const": request.tool_call["name"]}
    # The person may name another tool, as in the mode "batched": its arguments are checked when it runs.
    actions = [{"name": name, "args": args}, {"name": {"type": "string", "not": name}, "args": {"type": "object"}}]
    action = {"anyOf": [{"type": "object", "properties": each, "required": ["name", "args"]} for each in actions]}
    more: dict[str, dict[str, Any]] = {
        "approve": {},
        "edit": {"edited_action": action},
        "reject": {"message": {"type": "string"}},
        "respond": {"message": {"type": "string"}},
    }
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"type": {"const": each}, **more[each]},
                "required": ["type", *(more[each] if each != "reject" else ())],
            }
            for each in allowed
        ]
    }


def _noticed(result: Any, notice: str) -> Any:
    """Return a tool message, or a command that writes one, with a notice at its beginning; anything else as it is."""
    if isinstance(result, Command) and isinstance(result.update, Mapping):
        messages = result.update.get("messages")
        written = [_noticed(each, notice) for each in messages] if isinstance(messages, list) else messages
        return replace(result, update={**result.update, **({} if messages is None else {"messages": written})})
    if not is_tool_message(result):
        return result
    content = content_of(result)
    if isinstance(content, list):
        return with_fields(result, content=[{"type": "text", "text": notice}, *content])
    return with_fields(result, content=f"{notice}\n{content}" if content else notice)
