"""`@task`: a step of a workflow, whose result is kept."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_args, overload

from .._api.sync_verbs import run_blocking
from .._checks.node_policies import (
    AttemptTimeout,
    NodePolicies,
    RetryPolicies,
    abandons,
    check_abandonable,
    check_on_timeout,
    node_policies,
)
from .._core.program import RETURN, Node
from .._runtime.platform.environment import SystemWorld
from .._runtime.tasks.calls import TaskFuture, call_task
from .._runtime.tasks.context import current
from .._runtime.tasks.injection import hints_of, injections_of, is_generator
from .._runtime.tasks.kept_results import namespace_of
from ..errors import ConfigError, GraphValidationError
from ..policies import CachePolicy, OnTimeout
from ..types import OnChange
from .by_name import elsewhere, with_several

if TYPE_CHECKING:
    from checkpoint_savers.caches.abc import BaseCache

__all__ = ["TaskFunction", "TaskFuture", "task"]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class TaskFunction(Generic[P, T_co]):
    """A function whose calls are tasks of the node that makes them. Made by `task`."""

    def __init__(
        self,
        call: Callable[P, Awaitable[T_co] | T_co],
        name: str,
        policies: NodePolicies,
        *,
        abandon_on_cancel: bool = False,
        on_change: OnChange = "error",
    ) -> None:
        functools.update_wrapper(self, call)  # first: a callable object has attributes of its own
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
            call=elsewhere(with_several, call) if flavour == "process" else _with_arguments(call),
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
        """Start the task, and return at once.

        Its result is recorded before it can be awaited. When the node runs again, after a crash, a question or a
        failure, the same call gives that result and runs nothing. Calls are identified by their order in the node;
        `named` identifies one by a name.

        Raises:
            CallsChangedError: the call that is recorded in this place has other arguments, or is of another task. See
                `task`'s `on_change`.
            OutsideRunError: called outside of a node, a task or an entrypoint.
        """
        return self._start(None, args, kwargs)

    def named(self, key: str) -> Callable[P, TaskFuture[T_co]]:
        """Identify a call by a name instead of its position: `charge.named(invoice.id)(invoice)`.

        For nodes that may make other calls, or make them in another order, when they run again: where a model chooses
        the calls, or a folder's content does.

        Args:
            key: unique among the calls of this task that one node makes. The same when the node runs again.

        Returns:
            What to call with the task's arguments. It raises what calling the task raises, and `InvalidUpdateError` if
            the node has made a call with this key.

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
        """Forget the kept results of the task, of whatever arguments, so that it runs again.

        Args:
            cache: the one that the graph or entrypoint is compiled with.

        Raises:
            ConfigError: it is no cache.
            StorageError: the cache's.
        """
        if not callable(getattr(cache, "aclear", None)):
            raise ConfigError(f"aclear_cache of task {self.name!r} takes the cache to clear, not {cache!r}")
        await cache.aclear([namespace_of(self._node)])

    def clear_cache(self, cache: BaseCache) -> None:
        """Forget the kept results of the task: `aclear_cache`, waited for.

        Raises:
            SyncCallError: called in a thread whose event loop must not be blocked.
        """
        run_blocking(f"task {self.name!r}", SystemWorld(), self.aclear_cache, cache)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


def _with_arguments(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def with_arguments(given: tuple[tuple[Any, ...], dict[str, Any]], **injected: Any) -> Any:
        args, kwargs = given
        names = _positional(call, len(args)) if injected else ()
        rest = {name: value for name, value in injected.items() if name not in kwargs and name not in names}
        return call(*args, **kwargs, **rest)

    return with_arguments


def _positional(call: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the parameters that so many positional arguments fill."""
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
    timeout: AttemptTimeout | None = None,
    on_timeout: OnTimeout | None = None,
    cache_policy: CachePolicy | None = None,
    on_change: OnChange = "error",
) -> _TaskDecorator: ...
def task(
    call: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    abandon_on_cancel: bool = False,
    retry_policy: RetryPolicies | None = None,
    timeout: AttemptTimeout | None = None,
    on_timeout: OnTimeout | None = None,
    cache_policy: CachePolicy | None = None,
    on_change: OnChange = "error",
) -> Any:
    """Make a function a task: `@task`, or `@task(name=...)`.

    Args:
        call: a function, which runs in a worker thread, or a coroutine function. Besides its arguments it gets what its
            signature asks for, as a node does, where the caller does not pass it.
        name: for messages and streams; the function's own by default.
        abandon_on_cancel: when the task is cancelled, with its caller or by itself, do not wait for the function, which
            must be a plain one. See `StateGraph.add_node`.
        retry_policy, timeout, on_timeout, cache_policy: as of a node; see there.
        on_change: what happens when the node runs again and calls this task where another call is recorded: one with
            other arguments, or of another task. "error" raises `CallsChangedError`, and calls nothing. "run" makes the
            new call, and keeps the record of the other.

    Raises:
        GraphValidationError: it is no function, or a generator; or it is to be abandoned, and is async; or a policy is
            none that it can have.
    """
    policies = node_policies(
        "the task", retry_policy=retry_policy, timeout=timeout, cache_policy=cache_policy, on_timeout=on_timeout
    )
    if on_change not in get_args(OnChange):
        raise GraphValidationError(f"on_change is 'error' or 'run', not {on_change!r}")
    decorate = _TaskDecorator(name, policies, abandon_on_cancel=abandon_on_cancel, on_change=on_change)
    return decorate if call is None else decorate(call)


class _TaskDecorator:
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
        name = self._name or getattr(call, "__name__", None) or type(call).__name__
        if is_generator(call):
            raise GraphValidationError(f"task {name!r} is a generator: return a value instead of yielding")
        if self._abandon_on_cancel:
            check_abandonable(call, f"task {name!r}")
        return TaskFunction(
            call, name, self._policies, abandon_on_cancel=self._abandon_on_cancel, on_change=self._on_change
        )
