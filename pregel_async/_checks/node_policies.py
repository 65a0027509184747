"""Read and check the policies of a node, task or entrypoint: retries, timeouts, and the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, TypeVar, get_args

import msgspec

from checkpoint_savers.durations import read_seconds

from .._core.program import Flavour
from ..errors import GraphValidationError
from ..policies import CachePolicy, OnTimeout, RetryPolicy, TimeoutPolicy, retry_policies, timeout_policy

T = TypeVar("T")

RetryPolicies = RetryPolicy | Sequence[RetryPolicy]
"""One retry policy, or several, of which the first that selects a failure applies."""

TimeoutOption = TimeoutPolicy | float | timedelta
"""The time limit of one attempt: a policy, a number of seconds, or a timedelta."""


class NodePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The checked policies of a node.

    Attributes:
        retry: the retry policies; empty for no retries.
        timeout: the time limit of one attempt; None for no limit.
        cache: the cache policy; None if results are not cached.
        on_timeout: what happens to a plain function at its timeout; None if a plain function may have no timeout.
    """

    retry: tuple[RetryPolicy, ...] = ()
    timeout: TimeoutPolicy | None = None
    cache: CachePolicy | None = None
    on_timeout: OnTimeout | None = None

    def with_defaults(self, defaults: NodePolicies) -> NodePolicies:
        """Return these policies, with defaults where a policy is not set."""
        return NodePolicies(
            retry=self.retry or defaults.retry,
            timeout=self.timeout or defaults.timeout,
            cache=self.cache or defaults.cache,
            on_timeout=self.on_timeout or defaults.on_timeout,
        )

    def flavour(self, call: Callable[..., Any], *, blocking: bool) -> Flavour:
        """Return how to run the node's function: on the event loop, in a worker thread, or in a worker process."""
        found = flavour_of(call, blocking=blocking or self.on_timeout is not None)
        return "process" if found == "sync" and self.on_timeout == "process" else found

    def check(
        self,
        call: Callable[..., Any],
        flavour: Flavour,
        what: str,
        *,
        injects: Sequence[object],
        abandons: bool,
        decorated: bool = False,
        by_default: bool = False,
    ) -> None:
        """Refuse policies that a function cannot have.

        Args:
            call: the function.
            flavour: how the function runs.
            what: the node's name, for error messages.
            injects: the parameters that the function gets besides its input.
            abandons: True if a cancellation may abandon the function's worker thread.
            decorated: True if `call` is being decorated: its name in its module will be that of the decorator's result.
            by_default: True if the timeout comes from `set_node_defaults`.

        Raises:
            GraphValidationError: a policy does not fit the function.
        """
        if flavour == "process":
            _check_importable(call, what, decorated=decorated)
            if injects:
                raise GraphValidationError(
                    f"{what} has on_timeout='process', and in a process of its own it gets its input alone: no writer, "
                    "runtime, config or store"
                )
            if abandons:
                raise GraphValidationError(f"{what} has on_timeout='process' and abandon_on_cancel: say one of them")
        interruptible = flavour in ("async", "process") or abandons or self.on_timeout == "abandon"
        if self.timeout is not None and not interruptible:
            whose = " (that of set_node_defaults)" if by_default else ""
            instead = "; or give timeouts to the nodes that are to have them, and none by default" if by_default else ""
            raise GraphValidationError(
                f"{what} has a timeout{whose} and is a plain function, which nothing can stop in its thread: make it "
                "async, or say on_timeout='abandon' (the thread is left behind) or on_timeout='process' (it runs in a "
                f"worker process, which is killed){instead}"
            )


def node_policies(
    what: str,
    *,
    retry_policy: RetryPolicies | None = None,
    timeout: TimeoutOption | None = None,
    cache_policy: CachePolicy | None = None,
    on_timeout: OnTimeout | None = None,
) -> NodePolicies:
    """Read the policies of a node. `what` names it in errors. Raises `GraphValidationError` for an invalid policy."""

    def read(reader: Callable[[], T]) -> T:
        try:
            return reader()
        except (TypeError, ValueError) as error:
            raise GraphValidationError(f"{what}: {error}") from error

    if cache_policy is not None and type(cache_policy) is not CachePolicy:
        raise GraphValidationError(f"{what}: a cache policy is a CachePolicy, not {cache_policy!r}")
    if on_timeout is not None and on_timeout not in get_args(OnTimeout):
        raise GraphValidationError(f"{what}: on_timeout is 'abandon' or 'process', not {on_timeout!r}")
    return NodePolicies(
        retry=read(lambda: retry_policies(retry_policy)),
        timeout=read(lambda: timeout_policy(timeout)),
        cache=cache_policy,
        on_timeout=on_timeout,
    )


def seconds_of(
    name: str, given: float | timedelta | None, refusal: type[Exception] = GraphValidationError
) -> float | None:
    """Return a duration in seconds; None for None. Raises `refusal` for a duration that is not positive and finite."""
    try:
        return None if given is None else read_seconds(name, given)
    except (TypeError, ValueError) as error:
        raise refusal(str(error)) from error


def _check_importable(call: Callable[..., Any], what: str, *, decorated: bool) -> None:
    """Refuse a function that a worker process cannot import."""
    name = getattr(call, "__qualname__", "<nowhere>")
    found: Any = sys.modules.get(getattr(call, "__module__", None) or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    if "<" in name or (found is not call and not decorated):
        raise GraphValidationError(
            f"{what} has on_timeout='process', and a worker process cannot import {call!r}: use a function that is "
            "defined at the top of a module"
        )


def abandons(flavour: Flavour, policies: NodePolicies, on_cancel: bool) -> bool:
    """Return True if a node's worker thread may be abandoned."""
    return flavour == "sync" and (on_cancel or policies.on_timeout == "abandon")


def flavour_of(call: Callable[..., Any], *, blocking: bool) -> Flavour:
    """Return how to run a callable: "async", in a worker thread ("sync"), or "inline" if it does not block."""
    if iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004  # an instance's
        return "async"
    return "sync" if blocking else "inline"


def check_on_timeout(call: Callable[..., Any], on_timeout: OnTimeout | None, what: str) -> None:
    """Refuse `on_timeout` for an async function. Raises `GraphValidationError`."""
    if on_timeout is not None and flavour_of(call, blocking=True) == "async":
        raise GraphValidationError(
            f"{what} is async, and on_timeout is for plain functions: what is async is cancelled where it awaits"
        )


def check_abandonable(call: Callable[..., Any], what: str) -> None:
    """Refuse `abandon_on_cancel` for an async function. Raises `GraphValidationError`."""
    if flavour_of(call, blocking=True) == "async":
        raise GraphValidationError(
            f"{what} is async, and abandon_on_cancel is for plain functions, whose threads cannot be cancelled: leave "
            "it out, what is async is cancelled where it awaits"
        )
