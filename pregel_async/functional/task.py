"""`@task`: a step of a workflow, whose result is stored."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_args, overload

from .._api.sync_verbs import run_blocking
from .._checks.node_policies import (
    NodePolicies,
    RetryPolicies,
    TimeoutOption,
    abandons,
    check_abandonable,
    check_on_timeout,
    node_policies,
)
from .._checks.options import takes_deprecated
from .._core.program import RETURN, Node
from .._runtime.platform.environment import SystemEnvironment
from .._runtime.tasks.calls import TaskFuture, call_task
from .._runtime.tasks.context import current
from .._runtime.tasks.injection import hints_of, injections_of, is_generator, name_of_call
from .._runtime.tasks.result_cache import namespace_of
from ..errors import ConfigError, GraphValidationError
from ..policies import CachePolicy, OnTimeout
from ..types import OnChange
from .importable import call_with_arguments, picklable_call

if TYPE_CHECKING:
    from checkpoint_savers.caches.abc import BaseCache

__all__ = ["TaskFunction", "TaskFuture", "task"]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class TaskFunction(Generic[P, T_co]):
    """A function whose calls run as tasks of the calling node. Made by `task`.

    Args:
        call: the function.
        name: its name in messages and streams.
        policies: retries, timeout and cache.
        abandon_on_cancel: as in `task`.
        on_change: as in `task`.

    Attributes:
        name: the name in messages and streams.
        func: the decorated function.
    """

    def __init__(
        self,
        call: Callable[P, Awaitable[T_co] | T_co],
        name: str,
        policies: NodePolicies,
        *,
        abandon_on_cancel: bool = False,
        on_change: OnChange = "error",
    ) -> None:
        # Before our own attributes are set: `call` may be an object with attributes of the same names.
        functools.update_wrapper(self, call)
        self.name = name
        self.func = call
        self._on_change: OnChange = on_change
        self._hints = tuple(hints_of(call).values())
        injects = injections_of(call, after=0)
        check_on_timeout(call, policies.on_timeout, f"task {name!r}")
        flavour = policies.flavour(call, blocking=True)
        policies.check(call, flavour, f"task {name!r}", injects=injects, abandons=abandon_on_cancel, decorated=True)
        self._node = Node(
            name=name,
            triggers=(),
            reads=(),
            call=picklable_call(call_with_arguments, call) if flavour == "process" else _unpack_arguments(call),
            flavour=flavour,
            writes=lambda result: [(RETURN, result)],
            injects=injects,
            abandons=abandons(flavour, policies, abandon_on_cancel),
            retry=policies.retry,
            timeout=policies.timeout,
            cache=policies.cache,
            spread=True,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T_co]:
        """Start the task and return its future at once.

        The result is stored before it can be awaited. If the node runs again, after a crash, a question or a failure,
        the same call returns the stored result without running the function. Calls are identified by their order in
        the node; `named` identifies a call by a name.

        Args:
            args: positional arguments of the function.
            kwargs: keyword arguments of the function.

        Returns:
            A future: await it in coroutines, call its `result()` in plain functions.

        Raises:
            CallsChangedError: the stored call at this position has other arguments or is of another task, or the code
                has changed and an equal call is stored at another position; see `on_change` of `task`.
            OutsideRunError: called outside of a node, a task or an entrypoint.
        """
        return self._start(None, args, kwargs)

    def named(self, key: str) -> Callable[P, TaskFuture[T_co]]:
        """Identify a call by a name instead of its position: `charge.named(invoice.id)(invoice)`.

        Use this in nodes that may make other calls, or the same calls in another order, when they run again: for
        example if a model or the content of a folder determines the calls. To name a call that open threads have
        stored without a name, ask `patched` first.

        Args:
            key: the name. It must be unique among the node's calls of this task, and the same when the node runs again.

        Returns:
            A function of the task's arguments. It raises what calling the task raises, and `InvalidUpdateError` if the
            node has already made a call with this key.

        Raises:
            TypeError: the key is not a string.
        """
        if not isinstance(key, str):
            raise TypeError(f"a call of task {self.name!r} is named by a string, not by a {type(key).__name__}")

        def start(*args: P.args, **kwargs: P.kwargs) -> TaskFuture[T_co]:
            return self._start(key, args, kwargs)

        return start

    def _start(self, key: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskFuture[T_co]:
        caller = current(f"task {self.name!r}")
        return call_task(caller, self._node, args, kwargs, self._hints, key=key, on_change=self._on_change)

    async def aclear_cache(self, cache: BaseCache) -> None:
        """Delete all cached results of the task, so that its next calls run the function.

        Args:
            cache: the cache with which the graph or entrypoint is compiled.

        Raises:
            ConfigError: `cache` is not a cache.
            StorageError: the cache has failed.
        """
        if not callable(getattr(cache, "aclear", None)):
            raise ConfigError(f"aclear_cache of task {self.name!r} takes the cache to clear, not {cache!r}")
        await cache.aclear([namespace_of(self._node)])

    def clear_cache(self, cache: BaseCache) -> None:
        """Delete all cached results of the task: the blocking form of `aclear_cache`.

        Args:
            cache: the cache with which the graph or entrypoint is compiled.

        Raises:
            ConfigError: `cache` is not a cache.
            StorageError: the cache has failed.
            SyncCallError: called in a thread whose event loop must not be blocked.
        """
        run_blocking(f"task {self.name!r}", SystemEnvironment(), self.aclear_cache, cache)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


def _unpack_arguments(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function of a task's node, whose single input is a call's arguments."""

    @functools.wraps(call)
    def with_arguments(given: tuple[tuple[Any, ...], dict[str, Any]], **injected: Any) -> Any:
        args, kwargs = given
        # An argument that the caller passes prevails over an injected one of the same parameter.
        names = _positional_names(call, len(args)) if injected else ()
        rest = {name: value for name, value in injected.items() if name not in kwargs and name not in names}
        return call(*args, **kwargs, **rest)

    return with_arguments


def _positional_names(call: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Return the names of the parameters that a number of positional arguments fills."""
    parameters = inspect.signature(call).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple([parameter.name for parameter in parameters if parameter.kind in positional])[:count]


@overload
def task(call: Callable[P, Awaitable[T]], /) -> TaskFunction[P, T]: ...
@overload
def task(call: Callable[P, T], /) -> TaskFunction[P, T]: ...
@overload
def task(
    *,
    name: str | None = None,
    abandon_on_cancel: bool = False,
    retry_policy: RetryPolicies | None = None,
    timeout: TimeoutOption | None = None,
    on_timeout: OnTimeout | None = None,
    cache_policy: CachePolicy | None = None,
    on_change: OnChange = "error",
) -> _TaskDecorator: ...
@takes_deprecated("retry")
def task(
    call: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    abandon_on_cancel: bool = False,
    retry_policy: RetryPolicies | None = None,
    timeout: TimeoutOption | None = None,
    on_timeout: OnTimeout | None = None,
    cache_policy: CachePolicy | None = None,
    on_change: OnChange = "error",
) -> Any:
    """Make a function a task: `@task`, or `@task(name=...)`.

    Args:
        call: a plain function, which runs in a worker thread, or a coroutine function. Besides the caller's arguments
            it gets the keyword arguments that its signature names, as a node does, unless the caller passes them.
        name: the name in messages and streams; the function's name by default.
        abandon_on_cancel: True does not wait for the function if the task is cancelled. Only for plain functions; see
            `StateGraph.add_node`.
        retry_policy: as for a node; see `StateGraph.add_node`.
        timeout: as for a node.
        on_timeout: as for a node.
        cache_policy: as for a node.
        on_change: what happens if the node runs again and calls this task where another call is stored: one with other
            arguments, or of another task. "error" raises `CallsChangedError` and runs nothing. "run" makes the new
            call, and keeps the record of the other one.

    Returns:
        The `TaskFunction`, or a decorator that makes it if `call` is not passed.

    Raises:
        GraphValidationError: `call` is a generator or not callable, `abandon_on_cancel` is used with a coroutine
            function, or a policy does not fit the function.
    """
    policies = node_policies(
        "the task", retry_policy=retry_policy, timeout=timeout, cache_policy=cache_policy, on_timeout=on_timeout
    )
    if on_change not in get_args(OnChange):
        raise GraphValidationError(f"on_change is 'error' or 'run', not {on_change!r}")
    decorate = _TaskDecorator(name, policies, abandon_on_cancel=abandon_on_cancel, on_change=on_change)
    return decorate if call is None else decorate(call)


class _TaskDecorator:
    """Makes a function a task, with the options that `task` received."""

    def __init__(
        self, name: str | None, policies: NodePolicies, *, abandon_on_cancel: bool, on_change: OnChange
    ) -> None:
        self._name = name
        self._policies = policies
        self._abandon_on_cancel = abandon_on_cancel
        self._on_change: OnChange = on_change

    @overload
    def __call__(self, call: Callable[P, Awaitable[T]], /) -> TaskFunction[P, T]: ...
    @overload
    def __call__(self, call: Callable[P, T], /) -> TaskFunction[P, T]: ...
    def __call__(self, call: Callable[..., Any], /) -> TaskFunction[..., Any]:
        if not callable(call):
            raise GraphValidationError(f"a task is a function, and {call!r} is not callable")
        name = self._name or name_of_call(call)
        if is_generator(call):
            raise GraphValidationError(f"task {name!r} is a generator: return a value instead of yielding")
        if self._abandon_on_cancel:
            check_abandonable(call, f"task {name!r}")
        return TaskFunction(
            call, name, self._policies, abandon_on_cancel=self._abandon_on_cancel, on_change=self._on_change
        )
