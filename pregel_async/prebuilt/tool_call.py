"""One tool call: what a wrapper gets, and how it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

from anyio import from_thread

from .._runtime.tasks.worker_threads import run_in_thread
from ..runtime import Runtime
from .conversation import make_tool_message
from .errors import InvalidToolError, ToolInvocationError
from .injection import ToolRuntime, fill
from .tool_errors import ToolErrorHandler
from .tool_results import Result, as_results
from .tools import Tool, as_tool

__all__ = ["AsyncToolCallWrapper", "ToolCallRequest", "ToolCallWrapper"]


@dataclasses.dataclass(frozen=True)
class ToolCallRequest:
    """A tool call before it runs, as a wrapper gets it.

    Attributes:
        tool_call: the call: `name`, `args` and `id`.
        tool: the tool; None if there is none of that name, so that a wrapper may supply one.
        state: the state of the graph.
        runtime: the runtime of the call.
    """

    tool_call: Mapping[str, Any]
    tool: Tool | None
    state: Any
    runtime: ToolRuntime

    def override(self, **changes: Any) -> ToolCallRequest:
        """Return a copy with other values of some fields.

        Args:
            **changes: `tool_call`, `tool` (anything that `as_tool` takes), `state` or `runtime`.

        Returns:
            The copy. With another state, its runtime has that state, too.

        Raises:
            InvalidToolError: the tool cannot be one.
            TypeError: there is no such field.
        """
        if changes.get("tool") is not None:
            changes["tool"] = as_tool(changes["tool"])
        made = dataclasses.replace(self, **changes)
        if "state" in changes:
            made = dataclasses.replace(made, runtime=dataclasses.replace(made.runtime, state=made.state))
        return made


ToolCallWrapper: TypeAlias = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Any]], Any]
"""A plain function of a request and of `execute`, which it may call any number of times. It returns what `execute` has
returned, or a tool message, a `Command`, or a list of them. It runs in a worker thread."""

AsyncToolCallWrapper: TypeAlias = Callable[
    [ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Any]]], Awaitable[Any]
]
"""As `ToolCallWrapper`, for coroutine functions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallRunner:
    """Runs the calls of one input of a `ToolNode`.

    Attributes:
        tools: all tools by name.
        errors: decides which errors become tool messages.
        messages_key: the state key of the messages.
        wrap, awrap: the wrappers; None for none.
        langchain: True if messages are made as objects of langchain-core.
        in_list: True if the state is a list of messages.
        state: the state.
        config: returns the config of the node.
    """

    tools: Mapping[str, Tool]
    errors: ToolErrorHandler
    messages_key: str
    wrap: ToolCallWrapper | None
    awrap: AsyncToolCallWrapper | None
    langchain: bool
    in_list: bool
    state: Any
    config: Callable[[], Any]

    async def run(self, call: Mapping[str, Any], runtime_of_task: Callable[[], Runtime[Any]]) -> Result:
        """Run one call.

        Args:
            call: the tool call, valid or not.
            runtime_of_task: returns the runtime of the task that runs the call.

        Returns:
            The messages and commands that answer the call. Errors of the tool are among them if they are handled.
        """
        tool = self.tools.get(call["name"])
        wraps = self.wrap is not None or self.awrap is not None
        if not wraps and tool is not None and not tool.needs_runtime and call.get("type") != "invalid_tool_call":
            # Most tools. The runtime and the config take longer to make than all else that a call needs.
            return await self._run_tool(tool, call, {}, None)
        base, config = runtime_of_task(), self.config()
        runtime: ToolRuntime[Any, Any] = ToolRuntime(
            state=self.state,
            context=base.context,
            config=config,
            stream_writer=base.stream_writer,
            tool_call_id=call["id"],
            store=base.store,
            tools=list(self.tools.values()),
            execution_info=cast("Any", base.execution_info),
        )
        request = ToolCallRequest(tool_call=call, tool=tool, state=self.state, runtime=runtime)
        if not wraps:
            return await self._execute(request, base)
        try:
            returned = await self._wrapped(request, base)
            return self._results(returned, None, call)
        except Exception as error:
            return self._failed(call, error)

    async def _wrapped(self, request: ToolCallRequest, base: Runtime[Any]) -> Any:
        async def execute(given: ToolCallRequest) -> Any:
            results = await self._execute(given, base)
            return results[0] if len(results) == 1 else results

        if self.awrap is not None:
            return await self.awrap(request, execute)
        wrap = cast("ToolCallWrapper", self.wrap)
        return await run_in_thread(lambda _: wrap(request, lambda given: from_thread.run(execute, given)), None)

    async def _execute(self, request: ToolCallRequest, base: Runtime[Any]) -> Result:
        call, tool = request.tool_call, request.tool
        if call.get("type") == "invalid_tool_call":
            return self._failed(call, ToolInvocationError(call["name"], call["error"], {"text": call["args"]}))
        if tool is None:
            names = ", ".join(self.tools) or "none"
            content = f"There is no tool {call['name']!r}. The tools are: {names}."
            return [make_tool_message(call, content, langchain=self.langchain, failed=True)]
        injected = fill(tool.name, tool.injections, request.runtime, base, self.messages_key)
        return await self._run_tool(tool, call, injected, request.runtime.config)

    async def _run_tool(self, tool: Tool, call: Mapping[str, Any], injected: dict[str, Any], config: Any) -> Result:
        try:
            returned = await tool.arun(call, injected, config)
            return self._results(returned, tool, call)
        except Exception as error:
            return self._failed(call, error)

    def _results(self, returned: Any, tool: Tool | None, call: Mapping[str, Any]) -> Result:
        return as_results(
            returned,
            tool,
            call,
            langchain=self.langchain,
            messages_key=self.messages_key,
            in_list=self.in_list,
        )

    def _failed(self, call: Mapping[str, Any], error: Exception) -> Result:
        """Return the message of a failed call. Raises the error if it is not handled."""
        text = self.errors.text_of(error)
        if text is None:
            raise error
        return [make_tool_message(call, text, langchain=self.langchain, failed=True)]


def check_wrapper(wrapper: Any, name: str) -> None:
    """Refuse a wrapper that is not callable.

    Args:
        wrapper: the wrapper; None for none.
        name: the name of its parameter.

    Raises:
        InvalidToolError: it is not callable.
    """
    if wrapper is not None and not callable(wrapper):
        raise InvalidToolError(name, f"it is a function of a request and of execute, not {wrapper!r}")
