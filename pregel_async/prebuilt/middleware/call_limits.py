"""`ModelCallLimitMiddleware` and `ToolCallLimitMiddleware`: end an agent that calls too often."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from ...adapters.fields import get_field
from ...channels import UntrackedValue
from ...errors import GraphValidationError, PregelError
from ...runtime import Runtime
from ..agent_state import PRIVATE, AgentState
from ..conversation import make_message, make_tool_message, messages_of, pending_calls, uses_langchain
from .base import AgentMiddleware, hook_config

__all__ = [
    "ModelCallLimitExceededError",
    "ModelCallLimitMiddleware",
    "ToolCallLimitExceededError",
    "ToolCallLimitMiddleware",
]


class _CallLimitError(PregelError, RuntimeError):
    """The base of both errors."""

    def __init__(
        self, what: str, thread_count: int, run_count: int, thread_limit: int | None, run_limit: int | None
    ) -> None:
        self.thread_count = thread_count
        self.run_count = run_count
        self.thread_limit = thread_limit
        self.run_limit = run_limit
        super().__init__(_reached(what, thread_count, run_count, thread_limit, run_limit))


class ModelCallLimitExceededError(_CallLimitError):
    """An agent would call its model more often than `ModelCallLimitMiddleware` allows.

    Attributes:
        thread_count: the calls of the thread so far.
        run_count: the calls of the run so far.
        thread_limit: the limit of a thread; None for none.
        run_limit: the limit of a run; None for none.
    """

    def __init__(self, thread_count: int, run_count: int, thread_limit: int | None, run_limit: int | None) -> None:
        super().__init__("model", thread_count, run_count, thread_limit, run_limit)


class ToolCallLimitExceededError(_CallLimitError):
    """A model asked for more tool calls than `ToolCallLimitMiddleware` allows.

    Attributes:
        thread_count: the calls of the thread, with those that are asked for.
        run_count: the calls of the run, with those that are asked for.
        thread_limit: the limit of a thread; None for none.
        run_limit: the limit of a run; None for none.
        tool_name: the tool; None for all tools.
    """

    def __init__(
        self,
        thread_count: int,
        run_count: int,
        thread_limit: int | None,
        run_limit: int | None,
        tool_name: str | None = None,
    ) -> None:
        self.tool_name = tool_name
        super().__init__(_what(tool_name), thread_count, run_count, thread_limit, run_limit)


class ModelCallLimitState(AgentState):
    """The state of an agent whose model calls are counted.

    Keys:
        thread_model_call_count: the calls of the thread.
        run_model_call_count: the calls of the run.
    """

    thread_model_call_count: NotRequired[Annotated[int, PRIVATE]]
    run_model_call_count: NotRequired[Annotated[int, UntrackedValue, PRIVATE]]


class ToolCallLimitState(AgentState):
    """The state of an agent whose tool calls are counted.

    Keys:
        thread_tool_call_count: the calls of the thread, by the tool's name; "__all__" for all tools.
        run_tool_call_count: the calls of the run, in the same form.
    """

    thread_tool_call_count: NotRequired[Annotated[dict[str, int], PRIVATE]]
    run_tool_call_count: NotRequired[Annotated[dict[str, int], UntrackedValue, PRIVATE]]


class ModelCallLimitMiddleware(AgentMiddleware):
    """Limit the calls of the model, in a thread and in a run.

    A run that is resumed after a question counts from zero again; the count of the thread is stored.

    Args:
        thread_limit: the most calls of a thread; None for no limit.
        run_limit: the most calls of a run; None for no limit.
        exit_behavior: "end" ends the agent with a message that says so, "error" raises `ModelCallLimitExceededError`.

    Raises:
        GraphValidationError: there is no limit, one is negative, or `exit_behavior` is unknown.
    """

    state_schema: ClassVar[Any] = ModelCallLimitState

    def __init__(
        self,
        *,
        thread_limit: int | None = None,
        run_limit: int | None = None,
        exit_behavior: Literal["end", "error"] = "end",
    ) -> None:
        _check(thread_limit, run_limit, exit_behavior, ("end", "error"))
        self.thread_limit = thread_limit
        self.run_limit = run_limit
        self.exit_behavior = exit_behavior

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """End the agent if a limit is reached.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The message that ends the agent; None if no limit is reached.

        Raises:
            ModelCallLimitExceededError: a limit is reached, and `exit_behavior` is "error".
        """
        thread, run = self._counts(state)
        if not (_is_over(thread + 1, self.thread_limit) or _is_over(run + 1, self.run_limit)):
            return None
        counts = (thread, run, self.thread_limit, self.run_limit)
        if self.exit_behavior == "error":
            raise ModelCallLimitExceededError(*counts)
        langchain = uses_langchain(messages_of(state, "messages"))
        return {
            "jump_to": "end",
            "messages": [make_message("assistant", _reached("model", *counts), langchain=langchain)],
        }

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Count the call.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The new counts.
        """
        thread, run = self._counts(state)
        return {"thread_model_call_count": thread + 1, "run_model_call_count": run + 1}

    def _counts(self, state: Any) -> tuple[int, int]:
        return (get_field(state, "thread_model_call_count") or 0, get_field(state, "run_model_call_count") or 0)


class ToolCallLimitMiddleware(AgentMiddleware):
    """Limit the tool calls, in a thread and in a run. An agent may have one for each tool, and one for all.

    Calls that are refused count for the run, and not for the thread. A run that is resumed after a question counts from
    zero again; the count of the thread is stored.

    Args:
        tool_name: the tool to limit; None for all tools together.
        thread_limit: the most calls of a thread; None for no limit.
        run_limit: the most calls of a run; None for no limit.
        exit_behavior: "continue" answers calls over the limit with an error message, and runs the others; "end" runs
            none of the turn, and ends the agent with a message that says so; "error" raises
            `ToolCallLimitExceededError`.

    Raises:
        GraphValidationError: there is no limit, one is negative, that of a run is above that of the thread, or
            `exit_behavior` is unknown.
    """

    state_schema: ClassVar[Any] = ToolCallLimitState

    def __init__(
        self,
        *,
        tool_name: str | None = None,
        thread_limit: int | None = None,
        run_limit: int | None = None,
        exit_behavior: Literal["continue", "error", "end"] = "continue",
    ) -> None:
        _check(thread_limit, run_limit, exit_behavior, ("continue", "error", "end"))
        if thread_limit is not None and run_limit is not None and run_limit > thread_limit:
            raise GraphValidationError(f"run_limit, {run_limit}, is above thread_limit, {thread_limit}")
        self.tool_name = tool_name
        self.thread_limit = thread_limit
        self.run_limit = run_limit
        self.exit_behavior = exit_behavior

    @property
    def name(self) -> str:
        """The name in nodes, with the tool's name in it."""
        kind = type(self).__name__
        return kind if self.tool_name is None else f"{kind}[{self.tool_name}]"

    @hook_config(can_jump_to=["end"])
    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Count the calls that the model asks for, and answer those over the limit.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The new counts, and the messages that answer refused calls; None if there are no calls.

        Raises:
            ToolCallLimitExceededError: a limit is exceeded, and `exit_behavior` is "error".
        """
        messages = messages_of(state, "messages")
        pending = pending_calls(messages)
        calls = [call for call in pending if self.tool_name in (None, call["name"])]
        if not calls:
            return None
        key = self.tool_name or "__all__"
        of_thread: dict[str, int] = dict(get_field(state, "thread_tool_call_count") or {})
        of_run: dict[str, int] = dict(get_field(state, "run_tool_call_count") or {})
        thread, run = of_thread.get(key, 0), of_run.get(key, 0)
        limits = [
            limit - count for limit, count in ((self.thread_limit, thread), (self.run_limit, run)) if limit is not None
        ]
        allowed = min(len(calls), max(0, min(limits)))
        of_run[key] = run + len(calls)
        refused = calls[allowed:]
        counts = (thread + len(calls), run + len(calls), self.thread_limit, self.run_limit)
        if refused and self.exit_behavior == "error":
            raise ToolCallLimitExceededError(*counts, self.tool_name)
        langchain = uses_langchain(messages)
        again = f"Do not call {self.tool_name!r} again." if self.tool_name else "Do not call tools again."
        said: dict[str, str] = {call["id"]: f"The limit of calls is reached. {again}" for call in refused}
        ends = bool(refused) and self.exit_behavior == "end"
        if ends:
            skipped = "This call has not run, because another call of the same turn exceeded its limit."
            said = {call["id"]: said.get(call["id"], skipped) for call in pending}
        else:
            of_thread[key] = thread + allowed
        answers = [
            make_tool_message(call, said[call["id"]], langchain=langchain, failed=True)
            for call in pending
            if call["id"] in said
        ]
        update: dict[str, Any] = {"thread_tool_call_count": of_thread, "run_tool_call_count": of_run}
        if ends:
            answers.append(make_message("assistant", _reached(_what(self.tool_name), *counts), langchain=langchain))
            update["jump_to"] = "end"
        return {**update, "messages": answers} if answers else update


def _check(thread_limit: int | None, run_limit: int | None, behavior: str, known: tuple[str, ...]) -> None:
    limits = [limit for limit in (thread_limit, run_limit) if limit is not None]
    if not limits or min(limits) < 0:
        raise GraphValidationError("pass thread_limit or run_limit, or both: numbers of calls that are not negative")
    if behavior not in known:
        raise GraphValidationError(f"exit_behavior is one of {', '.join(map(repr, known))}, not {behavior!r}")


def _is_over(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit


def _what(tool_name: str | None) -> str:
    return "tool" if tool_name is None else f"{tool_name!r} tool"


def _reached(what: str, thread: int, run: int, thread_limit: int | None, run_limit: int | None) -> str:
    found = [
        f"{place} limit ({count}/{limit})"
        for place, count, limit in (("thread", thread, thread_limit), ("run", run, run_limit))
        if limit is not None and count >= limit
    ]
    return f"The limit of {what} calls is reached: {', '.join(found)}."
