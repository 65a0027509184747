"""Make middleware of functions, by decorators.

@before_model
async def log(state, runtime):
    print(len(state["messages"]), "messages")

agent = create_agent(model, tools, middleware=[log])
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack, cast, overload

from ..._runtime.tasks.worker_threads import run_in_thread
from .base import AgentMiddleware, JumpTo, ModelRequest, ModelResponse, hook_config

__all__ = [
    "after_agent",
    "after_model",
    "before_agent",
    "before_model",
    "dynamic_prompt",
    "wrap_model_call",
    "wrap_tool_call",
]

Decorator: TypeAlias = Callable[[Callable[..., Any]], AgentMiddleware]


class WrapperOptions(TypedDict, total=False):
    """Options of `wrap_model_call` and `wrap_tool_call`.

    Keys:
        state_schema: further keys of the state, as of `AgentMiddleware`.
        tools: tools that the agent gets, as of `AgentMiddleware`.
        name: the name of the middleware; by default that of the function.
    """

    state_schema: type[Any]
    tools: Sequence[Any]
    name: str


class HookOptions(WrapperOptions, total=False):
    """Options of the decorators for hooks.

    Keys:
        can_jump_to: what the hook may jump to, as of `hook_config`.
    """

    can_jump_to: Sequence[JumpTo]


class HookDecorator:
    """Makes a middleware of a function that runs as a hook: `@before_model`, or `@before_model(can_jump_to=["end"])`.

    Args:
        kind: the hook.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @overload
    def __call__(self, call: Callable[..., Any], /, **options: Unpack[HookOptions]) -> AgentMiddleware: ...
    @overload
    def __call__(self, call: None = None, /, **options: Unpack[HookOptions]) -> Decorator: ...
    def __call__(
        self, call: Callable[..., Any] | None = None, /, **options: Unpack[HookOptions]
    ) -> AgentMiddleware | Decorator:
        """Make the middleware.

        Args:
            call: a plain or a coroutine function of `(state, runtime)`.
            **options: see `HookOptions`.

        Returns:
            The middleware, or a decorator that makes it.

        Raises:
            GraphValidationError: `can_jump_to` names an unknown place.
        """
        return _made(self._kind, call, **options)


class WrapperDecorator:
    """Makes a middleware of a function that is called around calls: `@wrap_model_call`, `@wrap_tool_call(name="log")`.

    Args:
        kind: the wrapper.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @overload
    def __call__(self, call: Callable[..., Any], /, **options: Unpack[WrapperOptions]) -> AgentMiddleware: ...
    @overload
    def __call__(self, call: None = None, /, **options: Unpack[WrapperOptions]) -> Decorator: ...
    def __call__(
        self, call: Callable[..., Any] | None = None, /, **options: Unpack[WrapperOptions]
    ) -> AgentMiddleware | Decorator:
        """Make the middleware.

        Args:
            call: a plain or a coroutine function of `(request, handler)`.
            **options: see `WrapperOptions`.

        Returns:
            The middleware, or a decorator that makes it.
        """
        return _made(self._kind, call, **options)


before_agent = HookDecorator("before_agent")
"""Makes a middleware of a function that runs before the agent."""

before_model = HookDecorator("before_model")
"""Makes a middleware of a function that runs before each call of the model."""

after_model = HookDecorator("after_model")
"""Makes a middleware of a function that runs after each call of the model."""

after_agent = HookDecorator("after_agent")
"""Makes a middleware of a function that runs after the agent."""

wrap_model_call = WrapperDecorator("wrap_model_call")
"""Makes a middleware of a function around each call of the model."""

wrap_tool_call = WrapperDecorator("wrap_tool_call")
"""Makes a middleware of a function around each tool call."""


@overload
def dynamic_prompt(call: Callable[..., Any], /) -> AgentMiddleware: ...


@overload
def dynamic_prompt(call: None = None, /) -> Decorator: ...


def dynamic_prompt(call: Callable[..., Any] | None = None, /) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of the request that returns the system prompt of each call of the model.

    Args:
        call: a plain or a coroutine function, which returns a text or a system message.

    Returns:
        The middleware, or a decorator that makes it.
    """

    def decorate(function: Callable[..., Any]) -> AgentMiddleware:
        async def wrap(request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]) -> Any:
            if inspect.iscoroutinefunction(function):
                prompt = await function(request)
            else:
                prompt = await run_in_thread(lambda _: function(request), None)
            key = "system_prompt" if isinstance(prompt, str) else "system_message"
            return await handler(request.override(**{key: prompt}))

        return wrap_model_call(wrap, name=function.__name__)

    return decorate if call is None else decorate(call)


def _made(
    kind: str,
    call: Callable[..., Any] | None,
    *,
    state_schema: type[Any] | None = None,
    tools: Sequence[Any] = (),
    can_jump_to: Sequence[JumpTo] | None = None,
    name: str | None = None,
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function, or a decorator that does."""

    def decorate(function: Callable[..., Any]) -> AgentMiddleware:
        async def amethod(self: Any, *args: Any) -> Any:
            return await function(*args)

        def method(self: Any, *args: Any) -> Any:
            return function(*args)

        is_async = inspect.iscoroutinefunction(function)
        jumps = can_jump_to or getattr(function, "__can_jump_to__", None)
        members: dict[str, Any] = {
            f"a{kind}" if is_async else kind: hook_config(can_jump_to=jumps)(amethod if is_async else method)
        }
        if state_schema is not None:
            members["state_schema"] = state_schema
        members["tools"] = list(tools)
        made = type(name or function.__name__, (AgentMiddleware,), members)
        return cast("AgentMiddleware", made())

    return decorate if call is None else decorate(call)
