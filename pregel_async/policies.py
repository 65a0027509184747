"""Policies for retries, timeouts, caching, failures and budgets. Each checks its values when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import make_dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from checkpoint_savers.durations import read_number, read_seconds
from checkpoint_savers.errors import PregelError

__all__ = [
    "Budget",
    "CachePolicy",
    "Collect",
    "OnFailure",
    "OnTimeout",
    "RetryOn",
    "RetryPolicy",
    "TimeoutPolicy",
    "default_retry_on",
    "leaves_of",
    "retry_policies",
    "timeout_policy",
    "with_dataclass_fields",
]

StructT = TypeVar("StructT", bound=msgspec.Struct)

RetryOn: TypeAlias = type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool]
"""Which exceptions are retried: those of a class, of several classes, or those for which a function returns True."""

OnTimeout: TypeAlias = Literal["abandon", "process"]
"""What happens to a plain function at its timeout: "abandon" leaves its worker thread running; "process" runs the
function in a worker process, which is killed."""


def with_dataclass_fields(kind: type[StructT]) -> type[StructT]:
    """Let orjson, pydantic and `dataclasses.asdict` handle objects of a Struct class as they do dataclasses.

    Args:
        kind: the class.

    Returns:
        The class.
    """
    # They recognise a dataclass by this attribute alone. The class stays a Struct, because making a frozen dataclass
    # takes five times as long, and a fan-out makes thousands of sends.
    made: Any = make_dataclass(kind.__name__, kind.__struct_fields__, init=False, repr=False, eq=False)
    cast("Any", kind).__dataclass_fields__ = made.__dataclass_fields__
    return kind


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in an exception group, at any depth.

    Args:
        error: an exception or exception group.

    Yields:
        Each exception that is no group; `error` itself if it is none.
    """
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves_of(each)
    else:
        yield error


_PERMANENT_FAILURES = (
    ValueError,
    TypeError,
    ArithmeticError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    RuntimeError,
    ReferenceError,
    StopIteration,
    StopAsyncIteration,
    OSError,
)


def default_retry_on(error: Exception) -> bool:
    """Return True if a failure is likely to be transient, so that a retry may succeed.

    Retried: failed connections, server errors (HTTP 5xx), HTTP 429 with a `Retry-After` header, node timeouts
    (`NodeTimeoutError`), and all exceptions that are not listed next. Not retried: other HTTP errors (4xx), other
    errors of the runtime, other `OSError`s, and exceptions that mostly are mistakes in the program (`ValueError`,
    `TypeError`, `ArithmeticError`, `LookupError`, `NameError`, `RuntimeError`, `ImportError`, `SyntaxError`,
    `ReferenceError`, `StopIteration`, `StopAsyncIteration`).

    Args:
        error: the failure. For an exception group, every exception in the group must be transient.

    Returns:
        True to retry.
    """
    return all(_is_transient(leaf) for leaf in leaves_of(error))


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, PregelError):
        return error.retryable
    if not isinstance(error, Exception):
        return False
    status = status_of(error)
    if status is not None:
        return status >= 500 or (status == 429 and retry_after_of(error) is not None)
    if isinstance(error, ConnectionError) or (isinstance(error, OSError) and _has_no_response(error)):
        return True
    return not isinstance(error, _PERMANENT_FAILURES)


def _has_no_response(error: OSError) -> bool:
    """Return True for the exception of an HTTP client that got no response. (requests' exceptions are OSErrors.)"""
    return hasattr(error, "request") and _attribute(error, "response") is None


def _attribute(holder: object, name: str) -> Any:
    """Return an attribute of a third party's object; None if there is none or reading it raises."""
    # Not only AttributeError: httpx's exceptions raise RuntimeError for `request` if they have none.
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an exception carries.

    Args:
        error: an exception of any HTTP client: httpx, requests, aiohttp, or an SDK that uses one of them.

    Returns:
        The status code; None if the exception carries none.
    """
    for holder in (_attribute(error, "response"), error):
        for name in ("status_code", "status"):
            # No `if holder` before: a requests.Response with an error status is falsy.
            status = _attribute(holder, name)
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def retry_after_of(error: BaseException) -> str | None:
    """Return the `Retry-After` header that an exception carries.

    Args:
        error: an exception of any HTTP client.

    Returns:
        The value of the header, unparsed: seconds or a date; None if there is none.
    """
    for holder in (_attribute(error, "response"), error):
        get = _attribute(_attribute(holder, "headers"), "get")
        if callable(get):
            found = get("retry-after") or get("Retry-After")  # both: a plain dict is case-sensitive
            if found is not None:
                return str(found)
    return None


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, after how long, and after which failures a node is retried.

    The run waits `initial_interval` before the second attempt, and `backoff_factor` times as long before each further
    one; with `jitter` up to a second more. If the exception carries a `Retry-After` header, the run waits at least that
    long; if that is longer than `max_interval`, the node is not retried.

    Attributes:
        initial_interval: the wait before the second attempt, in seconds, at least 0.
        backoff_factor: the factor by which the wait grows, at least 1.
        max_interval: the longest wait, in seconds, without the jitter.
        max_attempts: the number of attempts, the first one included, at least 1.
        jitter: True to add a random fraction of a second, so that nodes that failed together are not retried together.
        retry_on: the exceptions to retry; by default those of `default_retry_on`. An exception group is retried if
            every exception in it is.

    Raises:
        ValueError: a value is out of range.
        TypeError: a value has the wrong type.
    """

    initial_interval: float = 0.5
    backoff_factor: float = 2.0
    max_interval: float = 128.0
    max_attempts: int = 3
    jitter: bool = True
    retry_on: RetryOn = default_retry_on

    def __post_init__(self) -> None:
        seconds = "a number of seconds"
        for name, kind, least in (
            ("initial_interval", seconds, 0),
            ("backoff_factor", "a number", 1),
            ("max_interval", seconds, 0),
        ):
            number = read_number(name, getattr(self, name), kind)
            if number < least:
                raise ValueError(f"{name} is at least {least}, not {number!r}")
        if type(self.max_attempts) is not int:
            raise TypeError(f"max_attempts is a whole number, not {self.max_attempts!r}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is at least 1 (the first attempt counts), not {self.max_attempts}")
        if not isinstance(self.jitter, bool):
            raise TypeError(f"jitter is True or False, not {self.jitter!r}")
        given: Any = self.retry_on
        if not callable(given) and not isinstance(given, (Sequence, Set)):
            raise TypeError(
                f"retry_on is an exception class, several of them, or a function of an exception, not {given!r}"
            )
        for kind in self._kinds() or ():
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                raise TypeError(
                    f"retry_on is an exception class, several of them, or a function of an exception, and {kind!r} is "
                    "no class of exceptions that can be tried again"
                )

    def _kinds(self) -> tuple[Any, ...] | None:
        """Return the classes of `retry_on`; None if it is a function."""
        given: Any = self.retry_on
        if isinstance(given, type):
            return (given,)
        return None if callable(given) else tuple(given)

    def applies_to(self, error: Exception) -> bool:
        """Return True if `retry_on` selects a failure.

        Args:
            error: the failure of an attempt. A group is selected by itself, or by all exceptions in it.

        Returns:
            True if this policy applies.
        """
        kinds = self._kinds()
        if kinds is None:
            says: Any = self.retry_on
            return bool(says(error)) or (
                isinstance(error, BaseExceptionGroup)
                and all(isinstance(leaf, Exception) and bool(says(leaf)) for leaf in leaves_of(error))
            )
        return isinstance(error, kinds) or (
            isinstance(error, BaseExceptionGroup) and all(isinstance(leaf, kinds) for leaf in leaves_of(error))
        )

    def wait(self, failed: int) -> float:
        """Return the wait before the next attempt, without the jitter.

        Args:
            failed: the number of failed attempts so far, at least 1.

        Returns:
            The wait in seconds.
        """
        try:
            grown = self.initial_interval * self.backoff_factor ** (failed - 1)
        except OverflowError:
            return self.max_interval
        return min(self.max_interval, grown)


def retry_policies(given: object) -> tuple[RetryPolicy, ...]:
    """Read the value of a `retry_policy=` parameter.

    Args:
        given: a policy, a list or tuple of policies, or None.

    Returns:
        The policies, as a tuple.

    Raises:
        TypeError: `given` is something else.
    """
    if given is None:
        return ()
    policies = (given,) if isinstance(given, RetryPolicy) else given
    if not isinstance(policies, (list, tuple)) or not all(isinstance(policy, RetryPolicy) for policy in policies):
        raise TypeError(f"a retry policy is a RetryPolicy, or a list of them, not {given!r}")
    return tuple(policies)


@with_dataclass_fields
class TimeoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long one attempt at a node may take.

    Waiting for a slot of `max_concurrency` and for the reader of a stream does not count.

    Attributes:
        run_timeout: the time limit from the attempt's start, in seconds, or a timedelta; stored as seconds. None for
            no limit.
        idle_timeout: the time limit without a sign of life, in seconds, or a timedelta; stored as seconds. None for no
            limit.
        refresh_on: the signs of life. "auto": the node writes a chunk or message to the stream, calls a task or a
            graph, or calls `runtime.heartbeat()`; or such a task or graph streams something, or starts a node.
            "heartbeat": `runtime.heartbeat()` alone.

    Raises:
        ValueError: a time is not positive and finite, or neither timeout is given, or `refresh_on` is unknown.
        TypeError: a timeout is neither a number of seconds nor a timedelta.
    """

    run_timeout: float | timedelta | None = None
    idle_timeout: float | timedelta | None = None
    refresh_on: Literal["auto", "heartbeat"] = "auto"

    def __post_init__(self) -> None:
        for name in ("run_timeout", "idle_timeout"):
            given = getattr(self, name)
            if given is not None:
                force_setattr(self, name, read_seconds(name, given))
        if self.run_timeout is None and self.idle_timeout is None:
            raise ValueError("a TimeoutPolicy has a run_timeout, an idle_timeout, or both")
        if self.refresh_on not in ("auto", "heartbeat"):
            raise ValueError(f"refresh_on is 'auto' or 'heartbeat', not {self.refresh_on!r}")

    @property
    def run_seconds(self) -> float | None:
        """The `run_timeout` in seconds; None for no limit."""
        return cast("float | None", self.run_timeout)

    @property
    def idle_seconds(self) -> float | None:
        """The `idle_timeout` in seconds; None for no limit."""
        return cast("float | None", self.idle_timeout)


def timeout_policy(given: object) -> TimeoutPolicy | None:
    """Read the value of a `timeout=` parameter.

    Args:
        given: a policy, a number of seconds, a timedelta, or None.

    Returns:
        The policy; None for None.

    Raises:
        ValueError: the time is not positive and finite.
        TypeError: `given` is something else.
    """
    if given is None or isinstance(given, TimeoutPolicy):
        return given
    if isinstance(given, (int, float, timedelta)):
        return TimeoutPolicy(run_timeout=given)
    raise TypeError(f"a timeout is a number of seconds, a timedelta or a TimeoutPolicy, not {given!r}")


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Cache a node's results, and use a result again for an equal input. The graph must be compiled with a `cache=`.

    Attributes:
        key_func: a function of the node's input, or of a task's arguments, that returns the cache key: text, bytes, or
            any value that can be stored. By default the key is the input itself, in a canonical encoding. Other data
            that the node reads, such as its context, is not part of the key.
        ttl: how long a result stays in the cache, in seconds, or a timedelta; stored as seconds. None for ever.

    Raises:
        ValueError: the ttl is not positive and finite.
        TypeError: the ttl is no time, or `key_func` is not callable.
    """

    key_func: Callable[..., Any] | None = None
    ttl: float | timedelta | None = None

    def __post_init__(self) -> None:
        if self.key_func is not None and not callable(self.key_func):
            raise TypeError(f"key_func is a function of the node's input, not {self.key_func!r}")
        if self.ttl is not None:
            force_setattr(self, "ttl", read_seconds("ttl", self.ttl))

    @property
    def ttl_seconds(self) -> float | None:
        """The `ttl` in seconds; None for ever."""
        return cast("float | None", self.ttl)


class Collect(msgspec.Struct, frozen=True):
    """Collect failures in the state: a failed task writes a `NodeError` to a channel and does not fail its superstep.

    Attributes:
        channel: a key of the state that takes several values in one superstep, for example a list with the reducer
            `operator.add`, or a `Topic`.

    Raises:
        TypeError: `channel` is not a non-empty string.
    """

    channel: str

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.channel), str) or not self.channel:
            raise TypeError(f"Collect takes a channel's name, not {self.channel!r}")


OnFailure: TypeAlias = Literal["fail_fast", "finish"] | Collect
"""What happens to the other tasks of a superstep when a task fails: "fail_fast" cancels them; "finish" lets them finish
before the failure is raised; `Collect` lets them finish and makes the failure an update."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the amounts that nodes count with `spend(name, amount)`. A run over a limit stops at its next barrier.

    Attributes:
        run: the limit for one call, in the unit of the amounts; None for no limit.
        thread: the limit for all calls of a thread together; None for no limit.

    Raises:
        ValueError: a limit is negative or not finite.
        TypeError: a limit is neither an int nor a Decimal.
    """

    run: int | Decimal | None = None
    thread: int | Decimal | None = None

    def __post_init__(self) -> None:
        for name in ("run", "thread"):
            limit = getattr(self, name)
            if limit is not None:
                check_amount(f"a budget's limit per {name}", limit)


def check_amount(what: str, amount: object) -> int | Decimal:
    """Check an amount of a budget.

    Args:
        what: the amount's name in error messages.
        amount: an int or a Decimal, at least 0.

    Returns:
        The amount.

    Raises:
        TypeError: the amount is neither an int nor a Decimal.
        ValueError: the amount is negative or not finite.
    """
    if isinstance(amount, bool) or not isinstance(amount, (int, Decimal)):
        raise TypeError(f"{what} is an int or a Decimal, which add up exactly, not {amount!r}")
    if not (isinstance(amount, int) or amount.is_finite()) or amount < 0:
        raise ValueError(f"{what} is not below zero, and finite, not {amount!r}")
    return amount
