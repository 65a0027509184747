"""`ContextEditingMiddleware`: send the model a long conversation without old tool results. The state keeps them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from ..._runtime.tasks.worker_threads import run_in_thread
from ...adapters.conversation import calls_of, is_langchain, role_of
from ...adapters.fields import get_field
from ...errors import GraphValidationError
from ..conversation import with_fields
from ..models import InvalidModelError
from .base import AgentMiddleware, ModelRequest, ModelResponse
from .token_counts import TokenCounter, count_tokens_approximately, counter_of_model

__all__ = ["ClearToolUsesEdit", "ContextEdit", "ContextEditingMiddleware"]


class ContextEdit(Protocol):
    """An edit of the conversation that a model gets."""

    def apply(self, messages: list[Any], *, count_tokens: TokenCounter) -> None:
        """Edit the list in place.

        Args:
            messages: the conversation, without the system message. The list is a copy.
            count_tokens: a function that counts the tokens of a list of messages.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ClearToolUsesEdit:
    """Replace the oldest tool results by a placeholder, if the conversation is too long.

    Attributes:
        trigger: the number of tokens above which results are cleared.
        clear_at_least: the number of tokens after which clearing stops; 0 to clear all results that may be.
        keep: the number of newest results that stay.
        clear_tool_inputs: True to clear the arguments of the calls as well.
        exclude_tools: names of tools whose results stay.
        placeholder: the text in the place of a result.

    Raises:
        GraphValidationError: a number is negative.
    """

    trigger: int = 100_000
    clear_at_least: int = 0
    keep: int = 3
    clear_tool_inputs: bool = False
    exclude_tools: Sequence[str] = ()
    placeholder: str = "[cleared]"

    def __post_init__(self) -> None:
        for name in ("trigger", "clear_at_least", "keep"):
            if getattr(self, name) < 0:
                raise GraphValidationError(f"{name} of ClearToolUsesEdit is not negative, and {getattr(self, name)} is")

    def apply(self, messages: list[Any], *, count_tokens: TokenCounter) -> None:
        """Clear results in a list of messages.

        Args:
            messages: the list, whose elements are replaced by copies.
            count_tokens: a function that counts the tokens of a list of messages.
        """
        tokens = count_tokens(messages)
        if tokens <= self.trigger:
            return
        asked_at = {
            call["id"]: (index, call["name"])
            for index, message in enumerate(messages)
            if role_of(message) == "assistant"
            for call in calls_of(message)
        }
        results = [index for index, message in enumerate(messages) if role_of(message) == "tool"]
        for index in results[: max(0, len(results) - self.keep)]:
            message = messages[index]
            id = get_field(message, "tool_call_id")
            asked, name = asked_at.get(id, (-1, ""))
            named = get_field(message, "name") or name
            if asked < 0 or named in self.exclude_tools:
                continue
            messages[index] = _cleared(message, self.placeholder)
            if self.clear_tool_inputs:
                messages[asked] = _without_inputs(messages[asked], id)
            if self.clear_at_least and tokens - count_tokens(messages) >= self.clear_at_least:
                return


class ContextEditingMiddleware(AgentMiddleware):
    """Edit the conversation that the model gets. The state is not changed, so tools and later edits see all of it.

    Args:
        edits: applied one after the other; by default a `ClearToolUsesEdit`. An edit of your own has a method
            `apply(messages, *, count_tokens)`, which changes the list in place.
        token_count_method: "approximate" estimates the tokens by the length of texts, "model" asks the model's own
            counter, which chat models of langchain-core have.
        token_counter: a function that counts the tokens of a list of messages, in place of both methods.

    Raises:
        GraphValidationError: there is no such method, or an edit has no `apply`.
    """

    def __init__(
        self,
        *,
        edits: Iterable[ContextEdit] | None = None,
        token_count_method: Literal["approximate", "model"] = "approximate",
        token_counter: TokenCounter | None = None,
    ) -> None:
        if token_count_method not in ("approximate", "model"):
            raise GraphValidationError(f"token_count_method is 'approximate' or 'model', not {token_count_method!r}")
        self.edits = [ClearToolUsesEdit()] if edits is None else list(edits)
        for edit in self.edits:
            if not callable(getattr(edit, "apply", None)):
                raise GraphValidationError(
                    f"an edit has a method apply(messages, *, count_tokens), and {edit!r} has none"
                )
        self.token_count_method = token_count_method
        self.token_counter = token_counter

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> Any:
        """Edit the conversation, and call the model.

        Args:
            request: the call.
            handler: calls the model.

        Returns:
            The response.

        Raises:
            InvalidModelError: the model cannot count tokens, and is asked to.
        """
        count = self.token_counter or count_tokens_approximately
        by_model = self.token_counter is None and self.token_count_method == "model"
        if by_model:
            found = counter_of_model(request.model, request.system_message, request.tools)
            if found is None:
                raise InvalidModelError(
                    getattr(request.model, "name", type(request.model).__name__),
                    "it has no get_num_tokens_from_messages(): pass token_count_method='approximate' to "
                    "ContextEditingMiddleware, or a token_counter",
                )
            count = found

        def edit(messages: list[Any]) -> list[Any]:
            for each in self.edits:
                each.apply(messages, count_tokens=count)
            return messages

        # A wrapper outside of this one may call again with the same request. Own edits replace messages of the list,
        # and those of users may change the messages.
        own = all(type(each) is ClearToolUsesEdit for each in self.edits)
        messages = list(request.messages) if own else copy.deepcopy(list(request.messages))
        # A model's counter may ask its provider, and blocks.
        edited = await run_in_thread(edit, messages) if by_model else edit(messages)
        return await handler(request.override(messages=edited))


def _cleared(message: Any, placeholder: str) -> Any:
    marked = {"cleared": True, "strategy": "clear_tool_uses"}
    if not is_langchain(message):
        kept = {key: value for key, value in message.items() if key != "artifact"}
        return {**kept, "content": placeholder}
    metadata = {**message.response_metadata, "context_editing": marked}
    return with_fields(message, content=placeholder, artifact=None, response_metadata=metadata)


def _without_inputs(message: Any, id: Any) -> Any:
    calls = [_without_args(call) if call.get("id") == id else call for call in get_field(message, "tool_calls") or ()]
    return with_fields(message, tool_calls=calls)


def _without_args(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")  # of a call in the form of OpenAI's API
    if isinstance(function, Mapping):
        return {**call, "function": {**function, "arguments": "{}"}}
    return {**call, "args": {}}
