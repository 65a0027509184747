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


def _decorator(
    kind: str,
    call: Callable[..., Any] | None,
    *,
    state_schema: Any = None,
    tools: Sequence[Any] | None = None,
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
        members["tools"] = list(tools or ())
        made = type(name or function.__name__, (AgentMiddleware,), members)
        return cast("AgentMiddleware", made())

    return decorate if call is None else decorate(call)


@overload
def before_agent(call: Callable[..., Any], /, **options: Unpack[HookOptions]) -> AgentMiddleware: ...


@overload
def before_agent(call: None = None, /, **options: Unpack[HookOptions]) -> Decorator: ...


def before_agent(
    call: Callable[..., Any] | None = None, /, **options: Unpack[HookOptions]
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of `(state, runtime)` that runs before the agent.

    Args:
        call: a plain or a coroutine function.
        **options: `state_schema`, `tools`, `can_jump_to` and `name`, as of `AgentMiddleware` and `hook_config`.

    Returns:
        The middleware, or a decorator that makes it.
    """
    return _decorator("before_agent", call, **options)


@overload
def before_model(call: Callable[..., Any], /, **options: Unpack[HookOptions]) -> AgentMiddleware: ...


@overload
def before_model(call: None = None, /, **options: Unpack[HookOptions]) -> Decorator: ...


def before_model(
    call: Callable[..., Any] | None = None, /, **options: Unpack[HookOptions]
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of `(state, runtime)` that runs before each call of the model.

    Args:
        call: a plain or a coroutine function.
        **options: as of `before_agent`.

    Returns:
        The middleware, or a decorator that makes it.
    """
    return _decorator("before_model", call, **options)


@overload
def after_model(call: Callable[..., Any], /, **options: Unpack[HookOptions]) -> AgentMiddleware: ...


@overload
def after_model(call: None = None, /, **options: Unpack[HookOptions]) -> Decorator: ...


def after_model(
    call: Callable[..., Any] | None = None, /, **options: Unpack[HookOptions]
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of `(state, runtime)` that runs after each call of the model.

    Args:
        call: a plain or a coroutine function.
        **options: as of `before_agent`.

    Returns:
        The middleware, or a decorator that makes it.
    """
    return _decorator("after_model", call, **options)


@overload
def after_agent(call: Callable[..., Any], /, **options: Unpack[HookOptions]) -> AgentMiddleware: ...


@overload
def after_agent(call: None = None, /, **options: Unpack[HookOptions]) -> Decorator: ...


def after_agent(
    call: Callable[..., Any] | None = None, /, **options: Unpack[HookOptions]
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of `(state, runtime)` that runs after the agent.

    Args:
        call: a plain or a coroutine function.
        **options: as of `before_agent`.

    Returns:
        The middleware, or a decorator that makes it.
    """
    return _decorator("after_agent", call, **options)


@overload
def wrap_model_call(call: Callable[..., Any], /, **options: Unpack[WrapperOptions]) -> AgentMiddleware: ...


@overload
def wrap_model_call(call: None = None, /, **options: Unpack[WrapperOptions]) -> Decorator: ...


def wrap_model_call(
    call: Callable[..., Any] | None = None, /, **options: Unpack[WrapperOptions]
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of `(request, handler)` around each call of the model.

    Args:
        call: a plain or a coroutine function.
        **options: `state_schema`, `tools` and `name`.

    Returns:
        The middleware, or a decorator that makes it.
    """
    return _decorator("wrap_model_call", call, **options)


@overload
def wrap_tool_call(call: Callable[..., Any], /, **options: Unpack[WrapperOptions]) -> AgentMiddleware: ...


@overload
def wrap_tool_call(call: None = None, /, **options: Unpack[WrapperOptions]) -> Decorator: ...


def wrap_tool_call(
    call: Callable[..., Any] | None = None, /, **options: Unpack[WrapperOptions]
) -> AgentMiddleware | Decorator:
    """Make a middleware of a function of `(request, handler)` around each tool call.

    Args:
        call: a plain or a coroutine function.
        **options: `state_schema`, `tools` and `name`.

    Returns:
        The middleware, or a decorator that makes it.
    """
    return _decorator("wrap_tool_call", call, **options)


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

        return cast("AgentMiddleware", _decorator("wrap_model_call", wrap, name=function.__name__))

    return decorate if call is None else decorate(call)
