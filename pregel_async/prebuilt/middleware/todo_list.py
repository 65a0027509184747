"""`TodoListMiddleware`: a list of tasks that the model writes, and that is part of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Literal, NotRequired, TypedDict

from ...adapters.conversation import content_of
from ...runtime import Runtime
from ...types import Command
from ..agent_state import AgentState
from ..conversation import make_message, make_tool_message, messages_of, pending_calls, uses_langchain, with_fields
from ..injection import ToolRuntime
from ..tools import tool
from .base import AgentMiddleware, ModelRequest, ModelResponse

__all__ = ["Todo", "TodoListMiddleware"]

_TOOL: Final = "write_todos"

_TOOL_DESCRIPTION: Final = """\
Write the list of tasks of this request. Each call replaces the whole list, so repeat the tasks that stay.

Use it if the request takes three or more steps, if the user gives several tasks or asks for a list, or if later steps \
depend on what earlier ones find out. Do not use it for one step, or to answer a question.

Each task has a content, one sentence that says what is to be done, and a status:
- pending: not begun;
- in_progress: being worked on; set it before you begin, for at least one task until all are completed;
- completed: done in full. A task that failed, or is blocked, or is done in part, stays in_progress; add a task that \
says what is missing.

Update the list as soon as a task is completed. Add tasks that you find, and remove those that are no longer needed. \
The list is no answer: what the user asked for belongs into a message of its own, after the last call."""

_SYSTEM_PROMPT: Final = """\
You have a tool write_todos, which keeps a list of tasks for you and shows it to the user. Use it for requests of \
several steps: write the list first, mark each task as completed when it is done, and change the list when you learn \
something new. Do without it if a request takes one or two steps. Call it at most once in a message. When all tasks \
are completed, give the user the result itself in a message without a call."""


class Todo(TypedDict):
    """A task of the list.

    Keys:
        content: what is to be done.
        status: "pending", "in_progress" or "completed".
    """

    content: str
    status: Literal["pending", "in_progress", "completed"]


class PlanningState(AgentState):
    """The state of an agent with a list of tasks.

    Keys:
        todos: the tasks.
    """

    todos: NotRequired[list[Todo]]


class TodoListMiddleware(AgentMiddleware):
    """Give the model a tool `write_todos`, whose list is under `todos` in the state and in the output.

    A message with several calls of the tool is refused with errors for the model, because each call replaces the list.

    Args:
        system_prompt: added to the system message of each call of the model.
        tool_description: the description of the tool, for the model.
    """

    state_schema: ClassVar[Any] = PlanningState

    def __init__(self, *, system_prompt: str = _SYSTEM_PROMPT, tool_description: str = _TOOL_DESCRIPTION) -> None:
        self.system_prompt = system_prompt
        self.tool_description = tool_description
        self.tools = [tool(_TOOL, description=tool_description)(_write_todos)]

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Add the system prompt, and call the model.

        Args:
            request: the call.
            handler: calls the model.

        Returns:
            The response.
        """
        message = request.system_message
        if message is None:
            message = make_message("system", self.system_prompt, langchain=uses_langchain(request.messages))
        else:
            content = content_of(message)
            if isinstance(content, list):
                added: Any = [*content, {"type": "text", "text": f"\n\n{self.system_prompt}"}]
            else:
                added = f"{content}\n\n{self.system_prompt}"
            message = with_fields(message, content=added)
        return await handler(request.override(system_message=message))

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Refuse several calls of the tool in one message.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The messages that answer the calls; None if there is at most one.
        """
        messages = messages_of(state, "messages")
        calls = [call for call in pending_calls(messages) if call["name"] == _TOOL]
        if len(calls) < 2:
            return None
        said = f"{_TOOL} replaces the whole list, so call it once in a message. None of the {len(calls)} calls has run."
        langchain = uses_langchain(messages)
        return {"messages": [make_tool_message(call, said, langchain=langchain, failed=True) for call in calls]}


async def _write_todos(todos: list[Todo], runtime: ToolRuntime) -> Command:
    counts = Counter(each["status"] for each in todos)
    listed = ", ".join(f"{counts[status]} {status}" for status in ("pending", "in_progress", "completed"))
    said = f"The list has {len(todos)} tasks: {listed}."
    langchain = uses_langchain(messages_of(runtime.state, "messages"))
    message = make_tool_message({"id": runtime.tool_call_id, "name": _TOOL}, said, langchain=langchain)
    return Command(update={"todos": todos, "messages": [message]})
