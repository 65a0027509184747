"""Read OpenAI's Responses: events about a response's items.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from .draft import openai_usage
from .errors import StreamFailedError
from .fields import get_field, get_text, to_builtins
from .reader import DraftReader

_ENDS: Final = frozenset(("response.completed", "response.incomplete"))

_TEXTS: Final = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}


class ResponsesReader(DraftReader):
    """Read the events of `client.responses.create(stream=True)` or `client.responses.stream()`.

    The message's id is the response's id, so that the next request can continue from it (`previous_response_id`).
    """

    provider: str | None = "openai"

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        super().__init__(id, name, make_id)
        self._ended = False
        self._thought: Any = None

    def consume(self, item: Any) -> None:
        """Add one event to the draft.

        Args:
            item: an event of the Responses API, as the SDK's model or as a dict. Events of other types are ignored.

        Raises:
            StreamFailedError: the event says that the response has failed.
        """
        kind = get_text(item, "type")
        if kind in _TEXTS:
            self._text(item, _TEXTS[kind])
        elif kind == "response.output_item.added":
            self._added(item)
        elif kind == "response.function_call_arguments.delta":
            self.draft.add_call_piece(get_field(item, "output_index"), args=get_text(item, "delta"))
        elif kind == "response.output_item.done":
            self._done(item)
        elif kind in _ENDS:
            self._end(get_field(item, "response"))
        elif kind == "response.failed":
            error = get_field(get_field(item, "response"), "error")
            raise StreamFailedError("openai", get_field(error, "code"), get_text(error, "message") or "no reason given")
        elif kind == "error":
            raise StreamFailedError("openai", get_field(item, "code"), get_text(item, "message") or "no reason given")
        elif kind == "response.created":
            response = get_field(item, "response")
            self.draft.set_provider_id(get_text(response, "id"))
            self.model = get_text(response, "model") or None

    def _text(self, item: Any, kind: str) -> None:
        if kind == "reasoning":
            # A response may have several parts of reasoning: separate them as paragraphs.
            part = (get_field(item, "output_index"), get_field(item, "summary_index"), get_field(item, "content_index"))
            if self._thought not in (None, part):
                self.draft.add_text("\n\n", kind)
            self._thought = part
        self.draft.add_text(get_text(item, "delta"), kind)

    def _added(self, event: Any) -> None:
        item = get_field(event, "item")
        if get_field(item, "type") in ("function_call", "custom_tool_call"):
            self.draft.add_call_piece(
                get_field(event, "output_index"), id=get_text(item, "call_id"), name=get_text(item, "name")
            )

    def _done(self, event: Any) -> None:
        item, index = get_field(event, "item"), get_field(event, "output_index")
        if get_field(item, "type") == "function_call" and not self.draft.args(index):
            self.draft.add_call_piece(
                index, id=get_text(item, "call_id"), name=get_text(item, "name"), args=get_text(item, "arguments")
            )
        elif get_field(item, "type") == "custom_tool_call":
            # The input is plain text. Encode it as JSON only when it is complete: the encoded pieces of a text, joined,
            # are not the JSON of the whole text.
            args = json.dumps({"input": get_text(item, "input")})
            self.draft.add_call_piece(index, id=get_text(item, "call_id"), name=get_text(item, "name"), args=args)

    def _end(self, response: Any) -> None:
        self._ended = True
        self.model = self.model or get_text(response, "model") or None
        why = get_text(get_field(response, "incomplete_details"), "reason")
        self.draft.finish_reason = why or get_text(response, "status") or None
        usage = get_field(response, "usage")
        if usage is not None:
            self.draft.usage = openai_usage(to_builtins(usage), "input_tokens", "output_tokens")
        output: list[dict[str, Any]] = [to_builtins(item) for item in get_field(response, "output") or ()]
        if not all(_is_covered(item) for item in output):
            self.draft.blocks = output

    def end(self) -> Iterable[Any]:
        """Return the last chunk, with the finish reason and the usage.

        Returns:
            No chunk or one.

        Raises:
            StreamFailedError: neither `response.completed` nor `response.incomplete` has arrived.
        """
        if not self._ended:
            raise StreamFailedError("openai", None, "the stream ended before `response.completed`")
        return super().end()


def _is_covered(item: dict[str, Any]) -> bool:
    """Return True if `content` and `tool_calls` hold everything that an item holds."""
    if item.get("type") == "message":
        return not any(part.get("annotations") for part in item.get("content", ()))
    return item.get("type") == "function_call"
