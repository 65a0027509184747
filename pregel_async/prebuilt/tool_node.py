"""`ToolNode`: run the tool calls of the newest message, and `tools_condition`, which leads to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import anyio

from checkpoint_savers import ports
from checkpoint_savers.children import start_soon

from .._api.sync_verbs import run_blocking
from .._runtime.platform.environment import SystemEnvironment
from .._runtime.tasks.context import CURRENT, current
from ..adapters.conversation import calls_of
from ..errors import InvalidInputError
from ..functional import task
from ..runtime import Runtime, get_runtime
from ..types import END, Command, RunnableConfig
from .conversation import last_answer, messages_of, uses_langchain
from .tool_call import AsyncToolCallWrapper, CallRunner, ToolCallRequest, ToolCallWrapper, check_wrapper
from .tool_errors import HandleToolErrors, ToolErrorHandler, invalid_calls_only
from .tool_results import Result
from .tools import Tool, tools_by_name

__all__ = ["ToolCallRequest", "ToolCallWithContext", "ToolNode", "tools_condition"]

_WITH_CONTEXT = "tool_call_with_context"

ToolCallWithContext = TypedDict(
    "ToolCallWithContext", {"tool_call": Any, "__type": Literal["tool_call_with_context"], "state": Any}
)
"""An input of `ToolNode` that carries a call and the state, for `Send("tools", ...)`.

A send need not carry the state: `Send("tools", [call])` reads it where the tool runs.
"""


class ToolNode:
    """A node that runs tool calls, all at the same time, and returns their results as tool messages.

    Its input is one of these:

    - a state with messages, or a list of messages: the calls of the newest message that a model wrote are run. Each
      call is a task: its result is stored when it ends, and it does not run again after a crash, a question or a
      failure of another one;
    - a list of tool calls, as `Send("tools", [call])` passes it. Tools that want the state get it from the graph.

    Results come in the order of the calls. A call of a tool that does not exist is answered with an error message.
    Messages are dicts, or langchain-core's messages if the message with the calls is one.

    Args:
        tools: functions, tools of langchain-core, or classes with fields; see `as_tool`.
        name: the node's name, if `add_node` is given none.
        tags: kept for tracing.
        handle_tool_errors: which errors are shown to the model as the result of the call, instead of being raised. By
            default only calls with invalid arguments, and those that an MCP server refuses or does not answer. True for
            all errors of tools; a text, which is shown for all; an exception class or a tuple of them; a function of
            the error, for the exceptions that its first parameter is annotated with, which returns the text, or raises.
            False raises all errors. Errors of the run itself (storage, missing stores) are always raised.
        messages_key: the state key of the messages.
        wrap_tool_call: a plain function around each call; see `ToolCallWrapper`.
        awrap_tool_call: a coroutine function around each call, which is used instead of `wrap_tool_call` if both are
            given.

    Attributes:
        name, tags: as the arguments.
        tools_by_name: the tools by name.

    Raises:
        InvalidToolError: a tool or a wrapper cannot be one, or two tools have the same name.
        GraphValidationError: `handle_tool_errors` has another type.
    """

    def __init__(
        self,
        tools: Sequence[Any],
        *,
        name: str = "tools",
        tags: Sequence[str] | None = None,
        handle_tool_errors: HandleToolErrors = invalid_calls_only,
        messages_key: str = "messages",
        wrap_tool_call: ToolCallWrapper | None = None,
        awrap_tool_call: AsyncToolCallWrapper | None = None,
    ) -> None:
        self.name = self.__name__ = name
        self.tags = list(tags or ())
        self.tools_by_name: dict[str, Tool] = tools_by_name(tools)
        self._errors = ToolErrorHandler(handle_tool_errors)
        self._messages_key = messages_key
        check_wrapper(wrap_tool_call, "wrap_tool_call")
        check_wrapper(awrap_tool_call, "awrap_tool_call")
        self._wrap = wrap_tool_call
        self._awrap = awrap_tool_call

    async def __call__(self, input: Any) -> Any:
        """Run the calls as a node of a graph.

        Args:
            input: as described above.

        Returns:
            An update: messages under `messages_key`, or a list of messages if the input is one. With commands among the
            results, a list of updates and commands.

        Raises:
            InvalidInputError: the input has no calls.
            OutsideRunError: called outside of a run: use `ainvoke` there.
        """
        # Without parameters for runtime and config, which the run would make for each call: few tools need them.
        attempt = current("ToolNode")
        calls, runner = self._read(input, lambda: attempt.config)
        # A node with one call is its own task, so a record of the call would be a second one of the same result.
        results = [await runner.run(calls[0], get_runtime)] if len(calls) == 1 else await _run_as_tasks(runner, calls)
        return self._update(results, in_list=runner.in_list)

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        runtime: Runtime[Any] | None = None,
        store: ports.BaseStore | None = None,
    ) -> Any:
        """Run the calls without a graph, in a unit test for example, or in the code of a node.

        Args:
            input: as described above.
            config: passed to tools that want the config; in the code of a node, the node's own by default.
            runtime: passed to tools; in the code of a node, the node's own by default.
            store: passed to tools instead of the runtime's store.

        Returns:
            As if the node ran in a graph.

        Raises:
            InvalidInputError: the input has no calls.
        """
        attempt = CURRENT.get()
        if attempt is not None:
            runtime, config = runtime or attempt.runtime, config or attempt.config
        base: Runtime[Any] = runtime or Runtime()
        if store is not None:
            base = base.override(store=store)
        given = config or RunnableConfig()
        calls, runner = self._read(input, lambda: given)
        if attempt is not None:
            results = await _run_as_tasks(runner, calls)
        else:
            results = await _run_together(runner, calls, base)
        return self._update(results, in_list=runner.in_list)

    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        runtime: Runtime[Any] | None = None,
        store: ports.BaseStore | None = None,
    ) -> Any:
        """Run the calls without a graph: the blocking form of `ainvoke`.

        Args:
            input: as in `ainvoke`.
            config: as in `ainvoke`.
            runtime: as in `ainvoke`.
            store: as in `ainvoke`.

        Returns:
            As `ainvoke`.

        Raises:
            SyncCallError: called in a thread whose event loop must not be blocked.
        """

        async def run() -> Any:
            return await self.ainvoke(input, config, runtime=runtime, store=store)

        return run_blocking("ToolNode.invoke()", SystemEnvironment(), run)

    def with_tools(self, tools: Sequence[Any]) -> ToolNode:
        """Return a copy of this node that has more tools.

        Args:
            tools: the tools to add.

        Raises:
            InvalidToolError: one cannot be a tool, or has the name of another.
        """
        copied = copy.copy(self)
        copied.tools_by_name = tools_by_name([*self.tools_by_name.values(), *tools])
        return copied

    def _read(self, input: Any, config: Callable[[], RunnableConfig]) -> tuple[list[Any], CallRunner]:
        """Return the calls of an input, and what runs them."""
        in_list = False
        if isinstance(input, Mapping) and input.get("__type") == _WITH_CONTEXT:
            calls, state = [input["tool_call"]], input["state"]
        elif isinstance(input, list) and input and all(map(_is_call, input)):
            calls, state = list(input), state_of_graph()
        else:
            in_list, state = isinstance(input, list), input
            answer = last_answer(messages_of(state, self._messages_key))
            calls = [] if answer is None else list(calls_of(answer))
        if not calls:
            raise InvalidInputError(
                f"ToolNode {self.name!r} has nothing to run: its input is a state whose {self._messages_key!r} end "
                "with a message with tool calls, a list of such messages, or a list of tool calls"
            )
        runner = CallRunner(
            tools=self.tools_by_name,
            errors=self._errors,
            messages_key=self._messages_key,
            wrap=self._wrap,
            awrap=self._awrap,
            langchain=uses_langchain(messages_of(state, self._messages_key)),
            in_list=in_list,
            state=state,
            config=config,
        )
        return calls, runner

    def _update(self, results: Sequence[Result], *, in_list: bool) -> Any:
        """Return the results of all calls as one update, or as a list of updates if there are commands among them."""
        flat = [each for result in results for each in result]
        if not any(isinstance(each, Command) for each in flat):
            return flat if in_list else {self._messages_key: flat}
        updates: list[Any] = []
        messages: list[Any] = []
        for each in flat:
            if isinstance(each, Command):
                if messages:
                    updates.append(messages if in_list else {self._messages_key: messages})
                    messages = []
                updates.append(each)
            else:
                messages.append(each)
        if messages:
            updates.append(messages if in_list else {self._messages_key: messages})
        return updates


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, (dict, Mapping))
        and value.get("type") in ("tool_call", "invalid_tool_call")
        and "name" in value
    )


def state_of_graph() -> Any:
    """Return the state that the running node would get if it were not sent an input of its own.

    So a send carries a call and no state. The state is that of the superstep's start, also when the node runs again.

    Returns:
        The state in the form of the node's schema; an empty dict outside of a run.
    """
    attempt = CURRENT.get()
    if attempt is None:
        return {}
    node = attempt.task.node
    if node.reads == ():  # a task that a node has called: the state is that of the node
        return {}
    source = attempt.board.source_of(node)
    return source if node.shape is None else node.shape(source)


async def _run_as_tasks(runner: CallRunner, calls: Sequence[Any]) -> list[Result]:
    """Run each call as a task of the running node, so that its result is stored when it ends."""

    async def run(call: Any) -> Result:
        return await runner.run(call, get_runtime)

    # Named, so that a node that runs again finds the results whatever else it calls. The position distinguishes calls
    # of models that give several calls the same id.
    call_task = task(name="tool call")(run)
    futures = [call_task.named(f"{index}:{call['id']}")(call) for index, call in enumerate(calls)]
    return [await future for future in futures]


async def _run_together(runner: CallRunner, calls: Sequence[Any], base: Runtime[Any]) -> list[Result]:
    """Run the calls outside of a run. The first error cancels the others."""
    results: list[Result] = [[] for _ in calls]

    async def run(index: int) -> None:
        results[index] = await runner.run(calls[index], lambda: base)

    try:
        async with anyio.create_task_group() as group:
            for index in range(len(calls)):
                start_soon(group, run, index)
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) == 1:
            raise errors.exceptions[0] from None
        raise
    return results


def tools_condition(state: Any, messages_key: str = "messages") -> Literal["tools", "__end__"]:
    """Route to the node "tools" if the newest message has tool calls, and to the end otherwise.

    Use it as a router: `add_conditional_edges("model", tools_condition)`.

    Args:
        state: a state with messages, or a list of messages.
        messages_key: the state key of the messages.

    Returns:
        "tools" or END.

    Raises:
        InvalidInputError: the state has no messages.
    """
    messages = messages_of(state, messages_key)
    if not messages:
        raise InvalidInputError(f"tools_condition reads the newest message, and the state has none in {messages_key!r}")
    return "tools" if calls_of(messages[-1]) else END
