"""What a graph does when things fail, take long, or have been done before: policies, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias, cast

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
]

RetryOn: TypeAlias = type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool]
"""Which exceptions are tried again: of these classes, or those of which a function says so."""

OnTimeout: TypeAlias = Literal["abandon", "process"]
"""What becomes of a plain function whose time is up: its thread is left behind; or it runs in a worker process, which
is killed."""


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, at any depth; one that is no group is its own."""
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
    """Whether a failure may pass when the same is tried again. Of a group, whether each in it may.

    Connections that failed, servers' own failures (HTTP 5xx), an HTTP 429 that says when to come again
    (`Retry-After`), a node's timeout (`NodeTimeoutError`), and exceptions of classes that Python does not know. Not:
    other answers of HTTP servers (4xx), what is most often a mistake in the program (`ValueError`, `TypeError`,
    `LookupError`, `RuntimeError` and their like), other `OSError`s, and what the runtime itself raises.
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
    """Whether it is an HTTP client's, which says that it got no answer. (requests' exceptions are OSErrors.)"""
    return hasattr(error, "request") and _attribute(error, "response") is None


def _attribute(holder: object, name: str) -> Any:
    """What an object of somebody else's has under a name; None if it has nothing, or says so in its own way.

    (httpx's exceptions without a request raise `RuntimeError` when they are asked for it.)
    """
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception carries, of whatever client (httpx, requests, aiohttp, the SDKs on them)."""
    for holder in (_attribute(error, "response"), error):
        for name in ("status_code", "status"):
            status = _attribute(holder, name)  # a requests.Response is false when it is an error's: no `if holder`
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def retry_after_of(error: BaseException) -> str | None:
    """The `Retry-After` header that an exception carries, as it stands there."""
    for holder in (_attribute(error, "response"), error):
        get = _attribute(_attribute(holder, "headers"), "get")
        if callable(get):
            found = get("retry-after") or get("Retry-After")  # a plain dict minds the case
            if found is not None:
                return str(found)
    return None


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, after how long, and after which failures a node is tried again.

    Before the second attempt the run waits `initial_interval`, before each further one `backoff_factor` times as
    long, and with `jitter` up to a second more. Where the exception carries a server's `Retry-After`, it waits at
    least that long; if that is longer than `max_interval`, it does not try again.

    Attributes:
        initial_interval: seconds before the second attempt.
        backoff_factor: by which the wait grows, at least 1.
        max_interval: seconds that the wait grows to at most, without the jitter.
        max_attempts: the first one included.
        jitter: add a random part of a second, so that many that failed together do not come back together.
        retry_on: which exceptions; see `default_retry_on` for the default. A group is tried again when each in it is.

    Raises:
        ValueError, TypeError: a value out of range, or of the wrong type.
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
        """The classes that it is for; None when a function says."""
        given: Any = self.retry_on
        if isinstance(given, type):
            return (given,)
        return None if callable(given) else tuple(given)

    def applies_to(self, error: Exception) -> bool:
        """Whether this policy is for such a failure."""
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
        """Seconds to wait after so many failed attempts, without the jitter."""
        try:
            grown = self.initial_interval * self.backoff_factor ** (failed - 1)
        except OverflowError:
            return self.max_interval
        return min(self.max_interval, grown)


def retry_policies(given: object) -> tuple[RetryPolicy, ...]:
    """One policy, several, or none. Raises `TypeError`."""
    if given is None:
        return ()
    policies = (given,) if isinstance(given, RetryPolicy) else given
    if not isinstance(policies, (list, tuple)) or not all(isinstance(policy, RetryPolicy) for policy in policies):
        raise TypeError(f"a retry policy is a RetryPolicy, or a list of them, not {given!r}")
    return tuple(policies)


class TimeoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long one attempt at a node may take. Times of waiting (for a place among those that run at once, for the
    reader of a stream) do not count.

    Attributes:
        run_timeout: seconds from the attempt's beginning, or a timedelta. What is kept of it is seconds.
        idle_timeout: seconds without a sign of life, or a timedelta. What is kept of it is seconds.
        refresh_on: what a sign of life is: "auto": a chunk or message that the node writes to the stream, a task or a
            graph that it calls, whatever those show in turn, a node that begins in such a graph, and
            `runtime.heartbeat()`; "heartbeat": that alone.

    Raises:
        ValueError, TypeError: a time that is not positive and finite, or no time; or neither is given.
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
        return cast("float | None", self.run_timeout)

    @property
    def idle_seconds(self) -> float | None:
        return cast("float | None", self.idle_timeout)


def timeout_policy(given: object) -> TimeoutPolicy | None:
    """A policy, seconds, a timedelta, or none. Raises `ValueError`, `TypeError`."""
    if given is None or isinstance(given, TimeoutPolicy):
        return given
    if isinstance(given, (int, float, timedelta)):
        return TimeoutPolicy(run_timeout=given)
    raise TypeError(f"a timeout is a number of seconds, a timedelta or a TimeoutPolicy, not {given!r}")


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Keep what a node makes of an input, and use it again for an equal one. The graph is compiled with a `cache=`.

    Attributes:
        key_func: makes of the input (of a task: of its arguments) what it is known by: text, bytes, or any value that
            could be stored; by default the input itself, in a canonical encoding. What the node looks at besides, its
            context say, is not in the key.
        ttl: seconds for which it is kept, or a timedelta; None for ever. What is kept of it is seconds.

    Raises:
        ValueError, TypeError: a ttl that is not positive and finite, or no time; or a key_func that cannot be called.
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
        return cast("float | None", self.ttl)


class Collect(msgspec.Struct, frozen=True):
    """A failed task does not fail its superstep: its update is a `NodeError`, appended to this channel.

    Attributes:
        channel: a key of the state that takes several values in a superstep: a list with `operator.add` as its reducer,
            say, or a `Topic`.
    """

    channel: str

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.channel), str) or not self.channel:
            raise TypeError(f"Collect takes a channel's name, not {self.channel!r}")


OnFailure: TypeAlias = Literal["fail_fast", "finish"] | Collect
"""What the others of a superstep do when a task has failed: they are cancelled; they finish first; or they finish,
and the failure is an update like theirs."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much of something may be spent (`spend(name, amount)` in a node) before a run stops at its next barrier.

    Attributes:
        run: in one call; None for any amount.
        thread: in all calls of a thread together; None for any amount.

    Raises:
        ValueError, TypeError: an amount that is negative, or neither an int nor a Decimal.
    """

    run: int | Decimal | None = None
    thread: int | Decimal | None = None

    def __post_init__(self) -> None:
        for name in ("run", "thread"):
            limit = getattr(self, name)
            if limit is not None:
                check_amount(f"a budget's limit per {name}", limit)


def check_amount(what: str, amount: object) -> int | Decimal:
    """Raises `TypeError` for what is no amount, `ValueError` for one below zero."""
    if isinstance(amount, bool) or not isinstance(amount, (int, Decimal)):
        raise TypeError(f"{what} is an int or a Decimal, which add up exactly, not {amount!r}")
    if not (isinstance(amount, int) or amount.is_finite()) or amount < 0:
        raise ValueError(f"{what} is not below zero, and finite, not {amount!r}")
    return amount
