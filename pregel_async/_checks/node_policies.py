"""What a node, a task or an entrypoint says of failures, time and repetition: read from users, and checked."""

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
"""One policy, or several: the first that is for a failure counts."""

AttemptTimeout = TimeoutPolicy | float | timedelta
"""A policy, or how long one attempt may take: seconds, or a timedelta."""


class NodePolicies(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of failures, time and repetition, checked.

    Attributes:
        retry: when and how often it is tried again.
        timeout: how long one attempt may take; None for as long as it likes.
        cache: keep its result for equal inputs; None does not.
        on_timeout: what becomes of a plain function whose time is up; None: it cannot have a timeout.
    """

    retry: tuple[RetryPolicy, ...] = ()
    timeout: TimeoutPolicy | None = None
    cache: CachePolicy | None = None
    on_timeout: OnTimeout | None = None

    def with_defaults(self, defaults: NodePolicies) -> NodePolicies:
        """These, and what they leave open as the defaults say."""
        return NodePolicies(
            retry=self.retry or defaults.retry,
            timeout=self.timeout or defaults.timeout,
            cache=self.cache or defaults.cache,
            on_timeout=self.on_timeout or defaults.on_timeout,
        )

    def flavour(self, call: Callable[..., Any], *, blocking: bool) -> Flavour:
        """How the node's function is to be run."""
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
        """Refuse what a function cannot have.

        Args:
            injects: what it gets besides its input.
            abandons: a cancellation may leave its thread behind.
            by_default: its timeout is that of `set_node_defaults`.
            decorated: the function is being decorated: its name is yet to be given, to what becomes of it.

        Raises:
            GraphValidationError
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
    timeout: AttemptTimeout | None = None,
    cache_policy: CachePolicy | None = None,
    on_timeout: OnTimeout | None = None,
) -> NodePolicies:
    """The policies of a node. Raises `GraphValidationError` for what is none, or out of range."""

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
    """Return a length of time in seconds; None for None. Raises `refusal` for what is none."""
    try:
        return None if given is None else read_seconds(name, given)
    except (TypeError, ValueError) as error:
        raise refusal(str(error)) from error


def _check_importable(call: Callable[..., Any], what: str, *, decorated: bool) -> None:
    """Refuse what a worker process could not find."""
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
    """Whether a worker thread may be left behind."""
    return flavour == "sync" and (on_cancel or policies.on_timeout == "abandon")


def flavour_of(call: Callable[..., Any], *, blocking: bool) -> Flavour:
    """How a callable is to be run."""
    if iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004  # an instance's
        return "async"
    return "sync" if blocking else "inline"


def check_on_timeout(call: Callable[..., Any], on_timeout: OnTimeout | None, what: str) -> None:
    """Refuse `on_timeout` for what runs on the event loop. Raises `GraphValidationError`."""
    if on_timeout is not None and flavour_of(call, blocking=True) == "async":
        raise GraphValidationError(
            f"{what} is async, and on_timeout is for plain functions: what is async is cancelled where it awaits"
        )


def check_abandonable(call: Callable[..., Any], what: str) -> None:
    """Refuse to leave behind what runs on the event loop. Raises `GraphValidationError`."""
    if flavour_of(call, blocking=True) == "async":
        raise GraphValidationError(
            f"{what} is async, and abandon_on_cancel is for plain functions, whose threads cannot be cancelled: leave "
            "it out, what is async is cancelled where it awaits"
        )
