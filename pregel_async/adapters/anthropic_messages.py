"""Read Anthropic's messages: events about a message's content blocks.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from .draft import make_usage
from .errors import StreamFailedError
from .fields import get_field, get_text, to_builtins
from .reader import DraftReader
from .shapes import Usage

_CACHED: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")
_COUNTS: Final = frozenset(("input_tokens", "output_tokens"))

_GROWS: Final = {"text_delta": ("text", "content"), "thinking_delta": ("thinking", "reasoning")}
"""Type of a delta -> the field of delta and block that holds the text, and the text's kind in `MessageDraft`."""

_SERVER_INPUTS: Final = frozenset(("server_tool_use", "mcp_tool_use"))


class AnthropicReader(DraftReader):
    """Read the events of `client.messages.create(stream=True)`, or of `client.messages.stream()`.

    The latter adds events that the SDK derives from those of the API (`text`, `input_json` ...). The reader ignores
    them: they repeat text that other events have already delivered.
    """

    provider: str | None = "anthropic"

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        super().__init__(id, name, make_id)
        self._ended = False
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, dict[str, list[str]]] = {}

    def consume(self, item: Any) -> None:
        """Add one event to the draft.

        Args:
            item: an event of Anthropic's API, as the SDK's model or as a dict. Events of unknown types are ignored.

        Raises:
            StreamFailedError: the event is an error of the provider.
        """
        kind = get_text(item, "type")
        if kind == "content_block_delta":
            self._delta(get_field(item, "index"), get_field(item, "delta"))
        elif kind == "content_block_start":
            self._start(get_field(item, "index"), to_builtins(get_field(item, "content_block")))
        elif kind == "message_start":
            message = get_field(item, "message")
            self.model = get_text(message, "model") or None
            self.draft.set_provider_id(get_text(message, "id"))
            self._count(get_field(message, "usage"))
        elif kind == "message_delta":
            self.draft.finish_reason = get_field(get_field(item, "delta"), "stop_reason") or self.draft.finish_reason
            self._count(get_field(item, "usage"))
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            error = get_field(item, "error")
            raise StreamFailedError(
                "anthropic", get_field(error, "type"), get_text(error, "message") or "no reason given"
            )

    def _start(self, index: int, block: dict[str, Any]) -> None:
        self._blocks[index] = block
        self._parts[index] = {}
        if block.get("type") == "tool_use":
            # Anthropic sends {} here and the input in deltas. Compatible servers may send all of the input at once.
            given = json.dumps(block["input"]) if block.get("input") else ""
            self.draft.add_call_piece(index, id=block.get("id", ""), name=block.get("name", ""), args=given)
        for field, kind in _GROWS.values():
            if block.get("type") == field:
                self._grow(index, field, block.pop(field, ""), kind)

    def _delta(self, index: int, delta: Any) -> None:
        kind = get_text(delta, "type")
        if kind in _GROWS:
            field, called = _GROWS[kind]
            self._grow(index, field, get_text(delta, field), called)
        elif kind == "input_json_delta":
            text = get_text(delta, "partial_json")
            if self.draft.has_call(index):
                self.draft.add_call_piece(index, args=text)
            else:
                self._parts[index].setdefault("input", []).append(text)
        elif kind == "signature_delta":
            self._parts[index].setdefault("signature", []).append(get_text(delta, "signature"))
        elif kind == "citations_delta":
            self._blocks[index].setdefault("citations", []).append(to_builtins(get_field(delta, "citation")))

    def _grow(self, index: int, field: str, text: str, kind: str) -> None:
        self._parts[index].setdefault(field, []).append(text)
        self.draft.add_text(text, kind)

    def _count(self, usage: Any) -> None:
        # Later counts are totals, not increments: they replace earlier ones. Counts that are not repeated stay.
        self._usage.update(to_builtins(usage) if usage is not None else {})

    def end(self) -> Iterable[Any]:
        """Return the last chunk, with the finish reason and the usage.

        Returns:
            No chunk or one.

        Raises:
            StreamFailedError: no `message_stop` event has arrived: the message is incomplete.
        """
        if not self._ended:
            raise StreamFailedError("anthropic", None, "the stream ended before `message_stop`")
        self.draft.usage = self.usage()
        if not all(_is_covered(block) for block in self._blocks.values()):
            self.draft.blocks = [self._block(index) for index in sorted(self._blocks)]
        return super().end()

    def usage(self) -> Usage | None:
        """Return what the provider has reported about tokens so far: the input at the message's start.

        Returns:
            The usage; None if the provider has reported nothing.
        """
        counted = self._usage
        if not counted:
            return None
        whole = counted.get("input_tokens", 0) + sum(counted.get(name, 0) for name in _CACHED)
        return make_usage(counted, whole, counted.get("output_tokens", 0), None, _COUNTS)

    def _block(self, index: int) -> dict[str, Any]:
        """Return a block in the form in which Anthropic accepts it in the next request."""
        block = {**self._blocks[index]}
        for field, parts in self._parts[index].items():
            block[field] = "".join(parts)
        if block.get("type") == "tool_use":
            block["input"] = _json(self.draft.args(index))
        elif block.get("type") in _SERVER_INPUTS and "input" in self._parts[index]:
            block["input"] = _json(block["input"])
        return block


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError:
        return text  # cut off: `invalid_tool_calls` has the error


def _is_covered(block: dict[str, Any]) -> bool:
    """Return True if `content` and `tool_calls` hold everything that a block holds."""
    return block.get("type") == "tool_use" or (block.get("type") == "text" and not block.get("citations"))
