"""A message while it arrives: its content so far, and the part of it that has not been streamed yet."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Final, cast

from .shapes import InvalidToolCall, Message, MessageChunk, ToolCall, ToolCallChunk, Usage

TEXTS: Final = ("content", "reasoning", "refusal")


class _ToolCallDraft:
    """One tool call while its pieces arrive."""

    __slots__ = ("args", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.args: list[str] = []


class MessageDraft:
    """Collect one message from pieces.

    The readers of providers call this class with the contents of events; the draft itself knows no provider's events.

    Args:
        id: the message's id; None to take the provider's, or else a made one.
        name: the speaker's name, in chunks and message; None for none.
        make_id: makes an id if the provider has sent none when the first chunk is due.

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
        # Lists of parts, not growing strings, which would be copied once for each token of a long message.
        self._texts: dict[str, list[str]] = {kind: [] for kind in TEXTS}
        self._calls: dict[int, _ToolCallDraft] = {}
        self._unsent: dict[str, Any] = {}

    @property
    def id(self) -> str:
        """The message's id. The first read fixes it: ids that the provider sends later are ignored."""
        if not self._id:
            self._id = self._make_id()
        return self._id

    def set_provider_id(self, id: str) -> None:
        """Set the provider's id for the message, unless the message already has one.

        Args:
            id: the provider's id; "" is ignored.
        """
        self._id = self._id or id

    def add_text(self, text: str, kind: str = "content") -> None:
        """Append text to the message.

        Args:
            text: the next piece; "" adds nothing.
            kind: which text of the message it belongs to, one of `TEXTS`.
        """
        if text:
            self._texts[kind].append(text)
            self._unsent[kind] = self._unsent.get(kind, "") + text

    def add_call_piece(self, index: int, *, id: str = "", name: str = "", args: str = "") -> None:
        """Append a piece of a tool call. The first `id` and the first `name` that are not empty are those of the call.

        Args:
            index: which call of the message, from 0; gaps are allowed.
            id: the call's id, if this piece has it.
            name: the tool's name, if this piece has it.
            args: the next piece of the arguments' JSON.
        """
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
        """Return True if a piece of the tool call has arrived.

        Args:
            index: which call of the message.

        Returns:
            Whether the draft has a call with this index.
        """
        return index in self._calls

    def call_id(self, index: int) -> str:
        """Return a tool call's id.

        Args:
            index: which call of the message.

        Returns:
            The id, or "" if no piece has had one yet.

        Raises:
            KeyError: the draft has no call with this index.
        """
        return self._calls[index].id

    def args(self, index: int) -> str:
        """Return the arguments of a tool call that have arrived so far.

        Args:
            index: which call of the message.

        Returns:
            The start of a JSON text, or "" if the draft has no such call.
        """
        return "".join(self._calls[index].args) if index in self._calls else ""

    @property
    def last_index(self) -> int:
        """The highest index of a tool call; -1 before the first call."""
        return max(self._calls, default=-1)

    def take_chunk(self) -> MessageChunk | None:
        """Take the pieces that have arrived since the last call, as a chunk.

        Returns:
            The chunk, or None if nothing has arrived.
        """
        if not self._unsent:
            return None
        new, self._unsent = self._unsent, {}
        return self._chunk(new)

    def final_chunk(self) -> MessageChunk | None:
        """Return the chunk that ends the message, with the finish reason and the usage.

        Returns:
            The chunk, or None if the provider has sent neither.
        """
        said: dict[str, Any] = {}
        if self.finish_reason:
            said["finish_reason"] = self.finish_reason
        if self.usage is not None:
            said["usage"] = copy.deepcopy(self.usage)  # the reader of a chunk must not share it with the message
        return self._chunk(said) if said else None

    def _chunk(self, added: dict[str, Any]) -> MessageChunk:
        chunk: dict[str, Any] = {"role": "assistant", "type": "AIMessageChunk", "id": self.id, "content": ""}
        if self._name is not None:
            chunk["name"] = self._name
        return cast("MessageChunk", chunk | added)

    def message(self) -> Message:
        """Return the whole message.

        Returns:
            The message. Tool calls whose arguments are not a JSON object are under `invalid_tool_calls`.
        """
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
        """Parse the arguments of all tool calls, and separate the valid calls from the invalid ones."""
        calls: list[ToolCall] = []
        invalid: list[InvalidToolCall] = []
        for index in sorted(self._calls):
            call, text = self._calls[index], self.args(index)
            try:
                # Providers stream no JSON at all for a call without arguments.
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
    """Convert a provider's usage to `Usage`. Counts without a key of their own go under `details`, unchanged.

    Args:
        counted: the provider's counts, by its names.
        input: number of input tokens.
        output: number of output tokens.
        total: number of all tokens; None for the sum of both.
        counts: the names in `counted` whose values `input`, `output` and `total` hold; they stay out of `details`.

    Returns:
        The usage.
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
    """Convert the usage of one of OpenAI's APIs, which name the counts differently.

    Args:
        counted: the provider's counts, by its names.
        input: this API's name for the number of input tokens.
        output: this API's name for the number of output tokens.

    Returns:
        The usage.
    """
    whole = counted.get("total_tokens")
    return make_usage(
        counted, counted.get(input, 0), counted.get(output, 0), whole, frozenset((input, output, "total_tokens"))
    )
