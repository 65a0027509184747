"""`SummarizationMiddleware`: replace the older part of a long conversation by a summary."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypedDict

from ..._runtime.tasks.worker_threads import run_in_thread
from ...adapters.conversation import calls_of, role_of, text_of
from ...adapters.fields import get_field
from ...errors import GraphValidationError
from ...messages import RemoveMessage
from ...runtime import Runtime, get_config
from ..any_model import as_model
from ..conversation import make_message, messages_of, uses_langchain
from ..models import ChatModel, InvalidModelError, ModelCall
from .base import AgentMiddleware, ModelRequest, ModelResponse
from .retries import ModelRetryMiddleware
from .token_counts import TokenCounter, count_tokens_approximately, reported_tokens

__all__ = ["SummarizationMiddleware", "TriggerClause"]

ContextSize: TypeAlias = (
    tuple[Literal["fraction"], float] | tuple[Literal["tokens"], int] | tuple[Literal["messages"], int]
)
"""A size of a conversation: a number of tokens or messages, or a fraction of the most tokens that the model takes."""


class TriggerClause(TypedDict, total=False):
    """Sizes that a conversation must all have reached.

    Keys:
        tokens: a number of tokens.
        messages: a number of messages.
        fraction: a fraction of the most tokens that the model takes.
    """

    tokens: int
    messages: int
    fraction: float


Trigger: TypeAlias = ContextSize | TriggerClause | list[ContextSize | TriggerClause]

_KINDS: Final = ("fraction", "tokens", "messages")

_SOURCE: Final = {"lc_source": "summarization"}
"""Marks the message with the summary, as langchain marks it."""

_HEADING: Final = "Summary of the conversation so far:"

_PROMPT: Final = """\
A conversation between a user and an assistant with tools has become too long. Its older part, which follows below, is \
about to be removed, and your answer takes its place. The assistant will see nothing else of it.

Write down what the assistant needs in order to continue without asking again and without doing anything twice:

1. Task: what the user wants, with all conditions and preferences.
2. Done: what has been done and found out so far, with exact names, numbers, paths, links and ids; and decisions with \
their reasons, including what was tried and dropped.
3. Changed: files and other things outside of the conversation that were made, changed or read.
4. Open: what remains to be done, beginning with the next step.

Write "none" for a part without content. Do not answer the user, do not call tools, and add no introduction.

<messages>
{messages}
</messages>"""


class SummarizationMiddleware(AgentMiddleware):
    """Replace the older messages of a conversation by a summary, before a call of the model, when it becomes too long.

    The summary takes the place and the id of the first message that it replaces. The messages that are kept are not
    written again: the update consists of the summary and of the ids of removed messages. A tool call and its results
    are kept or summarized together. The summary is stored before the agent's model is called, so a crash afterwards
    does not make it again. Its tokens are not on the `messages` stream. If the summary is empty, all messages are kept.

    Args:
        model: writes summaries; anything that `as_model` takes.
        trigger: when to summarize: a size such as `("tokens", 100_000)`, `("messages", 80)` or `("fraction", 0.8)`; a
            dict of sizes that must all be reached; or a list of both, of which one must be reached. None for never. A
            number of tokens is reached if the counter says so, or the provider's count of the newest answer.
        keep: the size of the newest messages that are kept. It may be exceeded to keep a tool call with its results.
        token_counter: a function that counts the tokens of a list of messages.
        summary_prompt: the prompt, with `{messages}` in the place of the older messages.
        trim_tokens_to_summarize: the most tokens of older messages that are put into the prompt, the newest of them
            and an earlier summary; None for all.
        summarizer: writes summaries in place of `model`: another model, or a function of the older messages that
            returns the text, for which `summary_prompt` is not used.

    Attributes:
        retry: repeats a call of the model that fails; up to three attempts.

    Raises:
        GraphValidationError: a size is invalid, the prompt has no place for the messages, or a fraction is given and
            the model has no `profile` with `max_input_tokens`.
        InvalidModelError: `model` or `summarizer` cannot be a model.
    """

    quiet_hooks: ClassVar[Sequence[str]] = ("before_model",)

    def __init__(
        self,
        model: Any,
        *,
        trigger: Trigger | None = None,
        keep: ContextSize = ("messages", 20),
        token_counter: TokenCounter = count_tokens_approximately,
        summary_prompt: str = _PROMPT,
        trim_tokens_to_summarize: int | None = 4000,
        summarizer: Any = None,
    ) -> None:
        self.model = as_model(model)
        self.trigger = trigger
        self.keep = keep
        self.token_counter = token_counter
        self.summary_prompt = summary_prompt
        self.trim_tokens_to_summarize = trim_tokens_to_summarize
        self.retry = ModelRetryMiddleware(on_failure="error")
        self._clauses = _clauses(trigger)
        _check_size("keep", keep)
        if "{messages}" not in summary_prompt:
            raise GraphValidationError("summary_prompt has no {messages}, where the older messages are put")
        if trim_tokens_to_summarize is not None and trim_tokens_to_summarize <= 0:
            raise GraphValidationError("trim_tokens_to_summarize is a number of tokens above 0, or None")
        self._window = _window_of(model) or _window_of(getattr(self.model, "model", None))
        if self._window is None and (keep[0] == "fraction" or any("fraction" in each for each in self._clauses)):
            raise GraphValidationError(
                f"a fraction needs to know how many tokens {self.model.name!r} takes, and it has no profile with "
                "'max_input_tokens': give numbers of tokens instead"
            )
        self._writer: ChatModel = self.model
        self._summarize: Callable[[list[Any]], Any] | None = None
        if summarizer is not None:
            try:
                self._writer = as_model(summarizer)
            except InvalidModelError:
                if not callable(summarizer):
                    raise
                self._summarize = summarizer

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Replace older messages by a summary if the conversation is too long.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The summary and the removals; None if nothing is to be summarized.
        """
        messages = messages_of(state, "messages")
        if not self._is_reached(messages):
            return None
        older = messages[: self._cutoff(messages)]
        if not older or (len(older) == 1 and _is_summary(older[0])):
            return None  # a summary of nothing but a summary loses text, and gains nothing
        summary = await self._summary_of(older, state, runtime)
        if not summary:
            # A model answers without text after a refusal or at its limit of output tokens. The older messages cannot
            # be read again once they are removed, so they stay; the next call of the model tries again.
            return None
        message = make_message(
            "user",
            f"{_HEADING}\n\n{summary}",
            langchain=uses_langchain(messages),
            id=get_field(older[0], "id"),
            additional_kwargs=dict(_SOURCE),
        )
        # The summary replaces a message in its place: only this keeps it in front of messages that are not written.
        return {"messages": [message, *(RemoveMessage(get_field(each, "id")) for each in older[1:])]}

    def _is_reached(self, messages: Sequence[Any]) -> bool:
        if not any(len(messages) >= clause.get("messages", 0) for clause in self._clauses):
            return False
        tokens: int | None = None
        for clause in self._clauses:
            sizes = [int(clause[kind]) for kind in ("tokens",) if kind in clause]
            if "fraction" in clause:
                sizes.append(self._tokens_of_fraction(clause["fraction"]))
            if len(messages) < clause.get("messages", 0):
                continue
            if sizes and tokens is None:
                tokens = max(self.token_counter(messages), reported_tokens(messages))
            if not sizes or (tokens or 0) >= max(sizes):
                return True
        return False

    def _tokens_of_fraction(self, fraction: float) -> int:
        return max(1, int((self._window or 0) * fraction))

    def _cutoff(self, messages: Sequence[Any]) -> int:
        """Return the index of the first message to keep."""
        kind, size = self.keep
        if kind == "messages":
            at = max(0, len(messages) - int(size))
        else:
            most = int(size) if kind == "tokens" else self._tokens_of_fraction(size)
            low, at = 0, max(0, len(messages) - 1)  # the newest message is kept even if it is longer
            while low < at:
                middle = (low + at) // 2
                if self.token_counter(messages[middle:]) <= most:
                    at = middle
                else:
                    low = middle + 1
        return _whole_turns(messages, at)

    async def _summary_of(self, older: Sequence[Any], state: Any, runtime: Runtime[Any]) -> str:
        shown = self._trimmed(older)
        if self._summarize is not None:
            function = self._summarize
            made = (
                function(shown)
                if inspect.iscoroutinefunction(function)
                else await run_in_thread(lambda _: function(shown), None)
            )
            text = await made if inspect.isawaitable(made) else made
            if not isinstance(text, str):
                raise TypeError(f"summarizer returns the text of the summary, not {type(text).__name__}")
            return text.strip()
        prompt = self.summary_prompt.replace("{messages}", "\n\n".join(_written(each) for each in shown))
        request = ModelRequest(
            model=self._writer,
            messages=[make_message("user", prompt, langchain=uses_langchain(older))],
            state=state,
            runtime=runtime,
        )

        async def call(given: ModelRequest) -> ModelResponse:
            return ModelResponse([await self._writer.answer(ModelCall(messages=given.messages, config=get_config()))])

        response: ModelResponse = await self.retry.awrap_model_call(request, call)
        return text_of(response.result[-1]).strip()

    def _trimmed(self, older: Sequence[Any]) -> list[Any]:
        """Return an earlier summary, and as many of the newest messages as fit."""
        most = self.trim_tokens_to_summarize
        if most is None or self.token_counter(older) <= most:
            return list(older)
        earlier = [each for each in older[:1] if _is_summary(each)]
        rest = older[len(earlier) :]
        low, at = 0, len(rest)
        while low < at:
            middle = (low + at) // 2
            if self.token_counter([*earlier, *rest[middle:]]) <= most:
                at = middle
            else:
                low = middle + 1
        if at < len(rest):
            return [*earlier, *rest[at:]]
        # The newest message alone is too long: its end is what the kept messages follow.
        newest = _written(rest[-1]) if rest else ""
        size = max(1, self.token_counter([make_message("user", newest, langchain=uses_langchain(older))]))
        left = newest[-max(1, len(newest) * most // size) :]
        return [*earlier, make_message("user", f"[...] {left}", langchain=uses_langchain(older))]


def _whole_turns(messages: Sequence[Any], at: int) -> int:
    """Return the index at which to divide messages near `at`, so that tool calls and their results stay together."""
    asked_at: dict[Any, int] = {}
    calls: list[int | None] = []  # for each message: the index of the message with the call that it answers
    for index, message in enumerate(messages):
        role = role_of(message)
        calls.append(asked_at.get(get_field(message, "tool_call_id")) if role == "tool" else None)
        if role == "assistant":
            asked_at.update((call["id"], index) for call in calls_of(message))
    for index in range(len(messages) - 1, -1, -1):
        asked = calls[index]
        if index >= at and asked is not None and asked < at:
            at = asked
    while at < len(messages) and role_of(messages[at]) == "tool":
        at += 1  # a result without a call, which providers refuse
    return at


def _written(message: Any) -> str:
    """Return a message as text for the prompt."""
    parts = [f"{role_of(message)}: {text_of(message)}"]
    parts += [
        f"calls {call['name']} with {json.dumps(call['args'], default=str, ensure_ascii=False)}"
        for call in calls_of(message)
    ]
    return "\n".join(parts)


def _is_summary(message: Any) -> bool:
    return (get_field(message, "additional_kwargs") or {}).get("lc_source") == _SOURCE["lc_source"]


def _window_of(model: Any) -> int | None:
    """Return the most tokens that a model takes; None if that is unknown."""
    profile = getattr(model, "profile", None)
    found = profile.get("max_input_tokens") if isinstance(profile, Mapping) else None
    return found if isinstance(found, int) else None


def _clauses(trigger: Any) -> list[dict[str, Any]]:
    given = [] if trigger is None else trigger if isinstance(trigger, list) else [trigger]
    clauses: list[dict[str, Any]] = []
    for each in given:
        clause: dict[str, Any] = dict(each) if isinstance(each, Mapping) else {}
        sizes: list[Any] = list(clause.items()) or [each]
        for size in sizes:
            _check_size("trigger", size)
        clauses.append(dict(sizes))
    return clauses


def _check_size(parameter: str, size: Any) -> None:
    kind, value = size if isinstance(size, tuple) and len(size) == 2 else ("", 0)
    number = isinstance(value, int) and not isinstance(value, bool)
    valid = kind in _KINDS and (number or (kind == "fraction" and isinstance(value, float))) and value > 0
    if not valid or (kind == "fraction" and value > 1):
        raise GraphValidationError(
            f"{parameter} is ('tokens', n), ('messages', n), or ('fraction', part of the model's input), with n above "
            f"0 and a part above 0 and up to 1, not {size!r}"
        )
