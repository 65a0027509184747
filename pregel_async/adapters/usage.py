"""Read how many tokens a model has used, from messages of every form and from streams that end early."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

import msgspec
from msgspec import structs

from .fields import get_field, get_text


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a call of a model, in one meaning for all providers.

    Attributes:
        input: all input tokens, cached or not.
        output: all output tokens, including reasoning.
        cache_read: the input tokens that the provider has read from its cache.
        cache_write: the input tokens that the provider has written to its cache.
        reasoning: the output tokens of the model's reasoning.
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one message.

    Attributes:
        usage: the tokens.
        model: the model that the provider names in its answer; None if it names none.
        provider: the provider, such as "openai"; None if it is not known.
        message_id: the id of the message; None if it is not known.
        is_counted: True if a call of a model within this one has counted the tokens.
    """

    usage: TokenUsage
    model: str | None = None
    provider: str | None = None
    message_id: str | None = None
    is_counted: bool = False

    def may_be_of_same_message(self, other: UsageReport) -> bool:
        """Return True if two reports have the same usage, and no ids that say that they are of two messages.

        Args:
            other: another report.
        """
        # A function may return a copy without the id, so a missing id does not distinguish messages.
        known = self.message_id is not None and other.message_id is not None
        return self.usage == other.usage and (not known or self.message_id == other.message_id)


class UsageCollector:
    """Collects the usage of the messages that the body of its `with` reads, also of streams that fail.

    Attributes:
        reports: the usage of each message.
        is_nested: True if the body has called a model that counts its own usage.
    """

    # Not made by `contextmanager`: an agent enters one in each turn, and a generator takes three times as long.

    __slots__ = ("_token", "is_nested", "reports")

    def __init__(self) -> None:
        self.reports: list[UsageReport] = []
        self.is_nested = False

    def __enter__(self) -> UsageCollector:
        self._token = _COLLECTOR.set(self)
        return self

    def __exit__(self, *raised: object) -> None:
        _COLLECTOR.reset(self._token)


_COLLECTOR: Final[ContextVar[UsageCollector | None]] = ContextVar("pregel_async.adapters.usage", default=None)
"""Where streams report their usage, within a call of a model that counts it."""


def report_usage(
    usage: TokenUsage | None, model: str | None, provider: str | None, message_id: str | None = None
) -> None:
    """Report the usage of a message to the call of a model that the running code belongs to, if there is one.

    Args:
        usage: the tokens; None if the provider has not reported any.
        model, provider, message_id: as in `UsageReport`.
    """
    collector = _COLLECTOR.get()
    if collector is not None and usage is not None:
        collector.reports.append(UsageReport(usage=usage, model=model, provider=provider, message_id=message_id))


def report_counted(reports: Iterable[UsageReport]) -> None:
    """Report that a model has counted a call, to the call of a model that it is a part of, if there is one.

    Args:
        reports: the usage that it has counted.
    """
    collector = _COLLECTOR.get()
    if collector is not None:
        collector.is_nested = True
        collector.reports += [structs.replace(each, is_counted=True) for each in reports]


def report_of(message: Any) -> UsageReport | None:
    """Return the usage that a message has.

    Args:
        message: a message with `usage` or `usage_metadata`: of `stream_message`, of langchain-core, of a provider, or a
            dict of the user's own.

    Returns:
        The usage; None if the message has none.
    """
    given = get_field(message, "usage")
    if given is None:
        given = get_field(message, "usage_metadata")
    usage = None if given is None else read_usage(given)
    if usage is None:
        return None
    about = get_field(message, "response_metadata") or {}
    model = get_text(message, "model") or get_text(about, "model_name") or get_text(about, "model")
    return UsageReport(
        usage=usage,
        model=model or None,
        provider=get_text(about, "model_provider") or None,
        message_id=get_text(message, "id") or None,
    )


def read_usage(given: Any) -> TokenUsage | None:
    """Read a usage in any provider's form.

    Args:
        given: a `Usage`, `usage_metadata` of langchain-core, or the usage of a provider's answer.

    Returns:
        The tokens; None if there are no counts of input or output.
    """
    input, output = _count(given, "input_tokens", "prompt_tokens"), _count(given, "output_tokens", "completion_tokens")
    if input is None and output is None:
        return None
    details = get_field(given, "details")
    counts: Any = given if details is None else details
    of_input = _first(counts, "input_tokens_details", "prompt_tokens_details", "input_token_details")
    of_output = _first(counts, "output_tokens_details", "completion_tokens_details", "output_token_details")
    read, written = _count(counts, "cache_read_input_tokens"), _count(counts, "cache_creation_input_tokens")
    if details is None:
        # Anthropic's own form, of which a function has returned the usage as it was: its input is without the cache.
        input = (input or 0) + (read or 0) + (written or 0)
    return TokenUsage(
        input=input or 0,
        output=output or 0,
        cache_read=read or _count(of_input, "cached_tokens", "cache_read") or 0,
        cache_write=written or _count(of_input, "cache_write_tokens", "cache_creation") or 0,
        reasoning=_count(of_output, "reasoning_tokens", "reasoning") or 0,
    )


def _first(given: Any, *names: str) -> Any:
    """Return the first field that is there; None if none is."""
    return next((found for name in names if (found := get_field(given, name)) is not None), None)


def _count(given: Any, *names: str) -> int | None:
    """Return the first field that is a number of tokens; None if none is."""
    found = [get_field(given, name) for name in names]
    return next((count for count in found if isinstance(count, int) and count >= 0), None)
