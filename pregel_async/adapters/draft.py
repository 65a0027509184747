"""A message while it arrives: what has come so far, and what has not been streamed of it yet."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Final, cast

from .shapes import InvalidToolCall, Message, MessageChunk, ToolCall, ToolCallChunk, Usage

TEXTS: Final = ("content", "reasoning", "refusal")


class _ToolCallDraft:
    __slots__ = ("args", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.args: list[str] = []


class MessageDraft:
    """Collects a message. Readers of providers call it with what an event says; it knows nothing of events.

    Attributes:
        finish_reason, usage, blocks: as in `Message`; readers set them.
    """

    def __init__(self, id: str | None, name: str | None, make_id: Callable[[], str]) -> None:
        self._id = id
        self._name = name
        self._make_id = make_id
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.blocks: list[dict[str, Any]] | None = None
        # Parts, and not strings that grow: a long message would be copied once for each of its tokens.
        self._texts: dict[str, list[str]] = {kind: [] for kind in TEXTS}
        self._calls: dict[int, _ToolCallDraft] = {}
        self._unsent: dict[str, Any] = {}

    @property
    def id(self) -> str:
        """The message's. Whoever asks first settles it: from then on, no other is taken."""
        if not self._id:
            self._id = self._make_id()
        return self._id

    def set_provider_id(self, id: str) -> None:
        """What the provider calls the message: that is its id, if it has none yet."""
        self._id = self._id or id

    def add_text(self, text: str, kind: str = "content") -> None:
        """The next piece of text, or of another of `TEXTS`."""
        if text:
            self._texts[kind].append(text)
            self._unsent[kind] = self._unsent.get(kind, "") + text

    def add_call_piece(self, index: int, *, id: str = "", name: str = "", args: str = "") -> None:
        """The next piece of a tool call. Id and name are those of its first piece that has any."""
        call = self._calls.setdefault(index, _ToolCallDraft())
        piece: ToolCallChunk = {"index": index, "args": args}
        if id and not call.id:
            call.id = piece["id"] = id
        if name and not call.name:
            call.name = piece["name"] = name
        if len(piece) > 2 or args:
            call.args.append(args)
            self._unsent.setdefault("tool_call_chunks", []).append(piece)

    def has_call(self, index: int) -> bool:
        return index in self._calls

    def call_id(self, index: int) -> str:
        return self._calls[index].id

    def args(self, index: int) -> str:
        """What has come of a call's arguments."""
        return "".join(self._calls[index].args) if index in self._calls else ""

    @property
    def last_index(self) -> int:
        """The highest index; -1 before the first call."""
        return max(self._calls, default=-1)

    def has_text(self, kind: str) -> bool:
        """Whether there is any text of a kind."""
        return bool(self._texts[kind])

    def take_chunk(self) -> MessageChunk | None:
        """What has arrived since the last call; None when that is nothing."""
        if not self._unsent:
            return None
        new, self._unsent = self._unsent, {}
        return self._chunk(new)

    def final_chunk(self) -> MessageChunk | None:
        """How it ended and what it cost; None when nobody has told."""
        said: dict[str, Any] = {}
        if self.finish_reason:
            said["finish_reason"] = self.finish_reason
        if self.usage is not None:
            said["usage"] = copy.deepcopy(self.usage)  # the other one is the message's
        return self._chunk(said) if said else None

    def _chunk(self, added: dict[str, Any]) -> MessageChunk:
        chunk: dict[str, Any] = {"role": "assistant", "type": "AIMessageChunk", "id": self.id, "content": ""}
        if self._name is not None:
            chunk["name"] = self._name
        return cast("MessageChunk", chunk | added)

    def message(self) -> Message:
        """All of it."""
        content, reasoning, refusal = ("".join(self._texts[kind]) for kind in TEXTS)
        calls, invalid = self._read_calls()
        message: dict[str, Any] = {"role": "assistant", "id": self.id, "content": content}
        others = {
            "name": self._name,
            "reasoning": reasoning,
            "refusal": refusal,
            "tool_calls": calls,
            "invalid_tool_calls": invalid,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "blocks": self.blocks,
        }
        message.update((key, value) for key, value in others.items() if value)
        return cast("Message", message)

    def _read_calls(self) -> tuple[list[ToolCall], list[InvalidToolCall]]:
        calls: list[ToolCall] = []
        invalid: list[InvalidToolCall] = []
        for index in sorted(self._calls):
            call, text = self._calls[index], self.args(index)
            try:
                # A call without arguments has none to stream.
                args = json.loads(text) if text.strip() else {}
                wrong = "" if isinstance(args, dict) else "the arguments are no JSON object"
            except ValueError as error:
                args, wrong = {}, f"the arguments are no JSON: {error}"
            if wrong:
                invalid.append(
                    {"type": "invalid_tool_call", "id": call.id, "name": call.name, "args": text, "error": wrong}
                )
            else:
                calls.append({"type": "tool_call", "id": call.id, "name": call.name, "args": args})
        return calls, invalid


def make_usage(counted: dict[str, Any], input: int, output: int, total: int | None, counts: frozenset[str]) -> Usage:
    """A provider's usage in our words; what it counted besides goes under `details`, as it is.

    Args:
        counts: the provider's names of what the other arguments say.
    """
    usage: Usage = {
        "input_tokens": input,
        "output_tokens": output,
        "total_tokens": input + output if total is None else total,
    }
    details = {key: value for key, value in counted.items() if key not in counts}
    if details:
        usage["details"] = details
    return usage


def openai_usage(counted: dict[str, Any], input: str, output: str) -> Usage:
    """Of one of OpenAI's APIs, which differ in their names of what went in and out."""
    whole = counted.get("total_tokens")
    return make_usage(
        counted, counted.get(input, 0), counted.get(output, 0), whole, frozenset((input, output, "total_tokens"))
    )
