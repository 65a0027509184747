"""Middleware of agents: hooks before and after the model and the whole run, and wrappers around calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

from anyio import from_thread

from ..._runtime.tasks.worker_threads import run_in_thread
from ...adapters.conversation import is_langchain, text_of
from ...errors import GraphValidationError, InvalidUpdateError
from ...runtime import Runtime
from ...types import Command
from ..agent_state import AgentState
from ..conversation import is_message
from ..tool_call import AsyncToolCallWrapper, ToolCallRequest

__all__ = [
    "AgentMiddleware",
    "ExtendedModelResponse",
    "ModelRequest",
    "ModelResponse",
    "hook_config",
]

JumpTo: TypeAlias = Literal["tools", "model", "end"]

HOOKS: Final = ("before_agent", "before_model", "after_model", "after_agent")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A call of the model, as a wrapper gets it.

    Attributes:
        model: anything that `as_model` takes.
        messages: the conversation, without the system message.
        system_message: the system message; None for none.
        tool_choice: as in `ModelCall`.
        tools: the tools that the model may call; anything that `as_tool` takes, or dicts for the provider. A tool that
            the agent does not have needs a `wrap_tool_call` that supplies it.
        response_format: the form of the answer; None for none.
        state: the state.
        runtime: the runtime of the node.
        model_settings: further arguments of the provider's call.
    """

    model: Any
    messages: list[Any]
    system_message: Any = None
    tool_choice: Any = None
    tools: list[Any] = dataclasses.field(default_factory=lambda: list[Any]())
    response_format: Any = None
    state: Any = None
    runtime: Runtime[Any] = dataclasses.field(default_factory=lambda: Runtime[Any]())
    model_settings: dict[str, Any] = dataclasses.field(default_factory=lambda: dict[str, Any]())

    @property
    def system_prompt(self) -> str | None:
        """The text of the system message; None for none."""
        return None if self.system_message is None else text_of(self.system_message)

    def override(self, **changes: Any) -> ModelRequest:
        """Return a copy with other values of some fields.

        Args:
            **changes: the values by field; `system_prompt` is a text for `system_message`.

        Returns:
            The copy.

        Raises:
            TypeError: there is no such field.
        """
        if "system_prompt" in changes:
            prompt = changes.pop("system_prompt")
            changes["system_message"] = None if prompt is None else {"role": "system", "content": prompt}
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class ModelResponse:
    """What a call of the model adds to the conversation.

    Attributes:
        result: the messages: the model's answer, and messages that answer its calls already.
        structured_response: the answer in the form of `response_format`; None if there is none yet.
    """

    result: list[Any]
    structured_response: Any = None


@dataclasses.dataclass(frozen=True)
class ExtendedModelResponse:
    """What a wrapper of the model returns to update the state as well.

    Attributes:
        model_response: the response.
        command: an update of further keys; None for none. It has no `goto`.
    """

    model_response: ModelResponse
    command: Command | None = None


ModelHandler: TypeAlias = Callable[[ModelRequest], Awaitable[ExtendedModelResponse]]


class AgentMiddleware:
    """The base of middleware. Override the hooks that you need, each as a plain or as a coroutine method.

    A hook is a node of the agent: what it returns is recorded, and it may ask. Wrappers run within the node of the
    model and the tasks of tool calls. Coroutine methods have the names with `a`, and are used if both are overridden.
    Plain methods run in worker threads.

    Attributes:
        state_schema: further keys of the state: a TypedDict, such as a subclass of `AgentState`.
        tools: further tools of the agent.
        quiet_hooks: names of hooks whose messages and tokens are not on the `messages` stream.
    """

    state_schema: ClassVar[Any] = AgentState
    quiet_hooks: ClassVar[Sequence[str]] = ()
    tools: Sequence[Any] = ()

    @property
    def name(self) -> str:
        """The name in nodes. Each middleware of an agent has its own."""
        return type(self).__name__

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run once, before the first call of the model.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            An update, or None. With the key `jump_to`, it says what runs next; see `hook_config`.
        """

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run `before_agent` as a coroutine method.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `before_agent`.
        """

    def before_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run before each call of the model.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `before_agent`.
        """

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run `before_model` as a coroutine method.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `before_model`.
        """

    def after_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run after each call of the model, before the tools. The last middleware runs first.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `before_agent`.
        """

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run `after_model` as a coroutine method.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `after_model`.
        """

    def after_agent(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run once, after the last answer. The last middleware runs first.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `before_agent`.
        """

    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Run `after_agent` as a coroutine method.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            As `after_agent`.
        """

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> Any:
        """Call the model by `handler`, any number of times. The first middleware is the outermost.

        Args:
            request: the call.
            handler: calls the model, and returns a `ModelResponse`.

        Returns:
            A `ModelResponse`, a message, or an `ExtendedModelResponse`.
        """

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Run `wrap_model_call` as a coroutine method.

        Args:
            request: the call.
            handler: calls the model; await it.

        Returns:
            As `wrap_model_call`.
        """

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Run a tool by `handler`; see `ToolCallWrapper`. The first middleware is the outermost.

        Args:
            request: the call.
            handler: runs the tool.

        Returns:
            What `handler` has returned, or a tool message, a `Command`, or a list of them.
        """

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Run `wrap_tool_call` as a coroutine method.

        Args:
            request: the call.
            handler: runs the tool; await it.

        Returns:
            As `wrap_tool_call`.
        """


def method_of(middleware: AgentMiddleware, name: str) -> Callable[..., Awaitable[Any]] | None:
    """Return a hook or wrapper as a coroutine function; None if the middleware does not override it.

    Args:
        middleware: the middleware.
        name: the plain name, such as "before_model".
    """
    kind = type(middleware)
    if getattr(kind, f"a{name}") is not getattr(AgentMiddleware, f"a{name}"):
        return cast("Callable[..., Awaitable[Any]]", getattr(middleware, f"a{name}"))
    if getattr(kind, name) is getattr(AgentMiddleware, name):
        return None
    plain: Callable[..., Any] = getattr(middleware, name)
    if name in HOOKS:

        async def hook(state: Any, runtime: Runtime[Any]) -> Any:
            return await run_in_thread(lambda _: plain(state, runtime), None)

        return hook

    async def wrapper(request: Any, handler: Any) -> Any:
        return await run_in_thread(lambda _: plain(request, lambda given: from_thread.run(handler, given)), None)

    return wrapper


def jumps_of(middleware: AgentMiddleware, hook: str) -> tuple[JumpTo, ...]:
    """Return what a hook may jump to."""
    for name in (f"a{hook}", hook):
        found = getattr(getattr(type(middleware), name), "__can_jump_to__", None)
        if found:
            return tuple(found)
    return ()


def hook_config(*, can_jump_to: Sequence[JumpTo] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Declare what a hook may jump to, by returning `{"jump_to": ...}`.

    Args:
        can_jump_to: "model" runs the hooks before the model and the model, "tools" the pending tool calls, and "end"
            the hooks after the agent.

    Returns:
        A decorator of the method.

    Raises:
        GraphValidationError: there is no such place.
    """
    for place in can_jump_to or ():
        if place not in ("tools", "model", "end"):
            raise GraphValidationError(f"can_jump_to names 'tools', 'model' and 'end', not {place!r}")

    def decorate(method: Callable[..., Any]) -> Any:
        cast("Any", method).__can_jump_to__ = list(can_jump_to or ())
        return method

    return decorate


def as_hook_update(update: Any, hook: str, allowed: Sequence[JumpTo]) -> Any:
    """Check the result of a hook.

    Args:
        update: what the hook returned.
        hook: the name of its node.
        allowed: what it may jump to.

    Raises:
        InvalidUpdateError: it jumps to a place that it has not declared.
    """
    jump = update.get("jump_to") if isinstance(update, dict) else None
    if jump is not None and jump not in allowed:
        raise InvalidUpdateError(
            f"{hook} jumps to {jump!r}, which it does not declare: add @hook_config(can_jump_to=[{jump!r}])", node=hook
        )
    return update


def as_response(returned: Any, name: str) -> ExtendedModelResponse:
    """Return what a wrapper of the model returned as a response.

    Args:
        returned: a `ModelResponse`, a message, or an `ExtendedModelResponse`.
        name: the name of the middleware.

    Raises:
        InvalidUpdateError: it is none of these, or its command has a `goto`.
    """
    if isinstance(returned, ExtendedModelResponse):
        command = returned.command
        if command is not None and (command.goto or command.graph or command.resume):
            raise InvalidUpdateError(f"{name}.wrap_model_call returned a command with more than an update")
        return returned
    if isinstance(returned, ModelResponse):
        return ExtendedModelResponse(returned)
    if is_message(returned) or is_langchain(returned):
        return ExtendedModelResponse(ModelResponse([returned]))
    raise InvalidUpdateError(
        f"{name}.wrap_model_call returned {type(returned).__name__}, and neither a ModelResponse nor a message"
    )


def chain_model_calls(middleware: Sequence[AgentMiddleware], innermost: ModelHandler) -> ModelHandler:
    """Return a function that calls the model through all wrappers, the first one outermost."""
    handler = innermost
    for each in reversed(middleware):
        wrap = method_of(each, "wrap_model_call")
        if wrap is not None:
            handler = _around_model(each.name, wrap, handler)
    return handler


def _around_model(name: str, wrap: Callable[..., Awaitable[Any]], inner: ModelHandler) -> ModelHandler:
    async def handler(request: ModelRequest) -> ExtendedModelResponse:
        commands: list[Command] = []

        async def call(given: ModelRequest) -> ModelResponse:
            response = await inner(given)
            commands[:] = [] if response.command is None else [response.command]  # of the last call alone
            return response.model_response

        response = as_response(await wrap(request, call), name)
        if response.command is not None:
            commands.append(response.command)
        updates: dict[str, Any] = {}
        for command in commands:
            updates.update(command.update or {})
        return ExtendedModelResponse(response.model_response, Command(update=updates) if updates else None)

    return handler


def chain_tool_calls(wrappers: Sequence[AsyncToolCallWrapper]) -> AsyncToolCallWrapper | None:
    """Return one wrapper of tool calls for several, the first one outermost; None for none."""
    if not wrappers:
        return None
    if len(wrappers) == 1:
        return wrappers[0]
    outer, rest = wrappers[0], cast("AsyncToolCallWrapper", chain_tool_calls(wrappers[1:]))

    async def wrapped(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        return await outer(request, lambda given: rest(given, execute))

    return wrapped
