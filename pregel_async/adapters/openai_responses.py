"""OpenAI's Responses: events about a response's items.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from .draft import openai_usage
from .errors import StreamFailedError
from .fields import of, plain, text_of
from .reader import Drafting

_ENDS: Final = frozenset(("response.completed", "response.incomplete"))

_TEXTS: Final = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}


class Response(Drafting):
    """Events of `client.responses.create(stream=True)` or `client.responses.stream()`.

    The message's id is the response's: with it the next request can go on from here (`previous_response_id`).
    """

    provider: str | None = "openai"

    def __init__(self, id: str | None, name: str | None, make: Callable[[], str]) -> None:
        super().__init__(id, name, make)
        self._ended = False
        self._thought: Any = None

    def take_in(self, item: Any) -> None:
        kind = text_of(item, "type")
        if kind in _TEXTS:
            self._text(item, _TEXTS[kind])
        elif kind == "response.output_item.added":
            self._added(item)
        elif kind == "response.function_call_arguments.delta":
            self.draft.call(of(item, "output_index"), args=text_of(item, "delta"))
        elif kind == "response.output_item.done":
            self._done(item)
        elif kind in _ENDS:
            self._end(of(item, "response"))
        elif kind == "response.failed":
            error = of(of(item, "response"), "error")
            raise StreamFailedError("openai", of(error, "code"), text_of(error, "message") or "no reason given")
        elif kind == "error":
            raise StreamFailedError("openai", of(item, "code"), text_of(item, "message") or "no reason given")
        elif kind == "response.created":
            response = of(item, "response")
            self.draft.called(text_of(response, "id"))
            self.model = text_of(response, "model") or None

    def _text(self, item: Any, kind: str) -> None:
        if kind == "reasoning":
            # A response may think in several parts, which are paragraphs.
            part = (of(item, "output_index"), of(item, "summary_index"), of(item, "content_index"))
            if self._thought not in (None, part):
                self.draft.text("\n\n", kind)
            self._thought = part
        self.draft.text(text_of(item, "delta"), kind)

    def _added(self, event: Any) -> None:
        item = of(event, "item")
        if of(item, "type") in ("function_call", "custom_tool_call"):
            self.draft.call(of(event, "output_index"), id=text_of(item, "call_id"), name=text_of(item, "name"))

    def _done(self, event: Any) -> None:
        item, index = of(event, "item"), of(event, "output_index")
        if of(item, "type") == "function_call" and not self.draft.args(index):
            self.draft.call(
                index, id=text_of(item, "call_id"), name=text_of(item, "name"), args=text_of(item, "arguments")
            )
        elif of(item, "type") == "custom_tool_call":
            # Its input is text and no JSON. Made so here, when it is whole: pieces of it could not be joined.
            args = json.dumps({"input": text_of(item, "input")})
            self.draft.call(index, id=text_of(item, "call_id"), name=text_of(item, "name"), args=args)

    def _end(self, response: Any) -> None:
        self._ended = True
        self.model = self.model or text_of(response, "model") or None
        why = text_of(of(response, "incomplete_details"), "reason")
        self.draft.finish_reason = why or text_of(response, "status") or None
        usage = of(response, "usage")
        if usage is not None:
            self.draft.usage = openai_usage(plain(usage), "input_tokens", "output_tokens")
        output: list[dict[str, Any]] = [plain(item) for item in of(response, "output") or ()]
        if not all(_is_said(item) for item in output):
            self.draft.blocks = output

    def end(self) -> Iterable[Any]:
        if not self._ended:
            raise StreamFailedError("openai", None, "the stream ended before `response.completed`")
        return super().end()


def _is_said(item: dict[str, Any]) -> bool:
    """Whether content and tool calls say all that an item says."""
    if item.get("type") == "message":
        return not any(part.get("annotations") for part in item.get("content", ()))
    return item.get("type") == "function_call"
