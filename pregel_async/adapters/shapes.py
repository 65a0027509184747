"""What is streamed and what is returned, whoever the provider is.

Messages are plain dicts of strings, numbers, lists and dicts: they can be stored, sent as JSON, and given to
`add_messages`. A key that has nothing to say is absent. What comes from langchain-core stays what it is: its own chunks
are streamed, and its own message is returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Literal, NotRequired, Protocol, TypedDict

__all__ = ["InvalidToolCall", "Message", "MessageChunk", "MessageWriter", "ToolCall", "ToolCallChunk", "Usage"]


class MessageWriter(Protocol):
    """What chunks are written with: the writer that a node gets, or a stand-in.

    The call itself puts the chunk on the stream; the awaitable ends when there is room for the next one. In a thread
    the call waits for that itself, and what it gives need not be awaited.
    """

    def message(self, chunk: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]: ...


class ToolCallChunk(TypedDict):
    """A piece of a tool call.

    Keys:
        index: tells the calls of one message apart. They ascend, and may leave gaps.
        id, name: in the call's first piece.
        args: the next piece of the arguments, which are JSON when all pieces are joined.
    """

    index: int
    args: str
    id: NotRequired[str]
    name: NotRequired[str]


class ToolCall(TypedDict):
    """A call that the model wants made. The answer is a message with `tool_call_id` equal to `id`.

    Keys:
        args: read from JSON.
    """

    type: Literal["tool_call"]
    id: str
    name: str
    args: dict[str, Any]


class InvalidToolCall(TypedDict):
    """A call whose arguments are no JSON object: the model was cut off, or made a mistake.

    Keys:
        args: as they came.
        error: what is wrong with them.
    """

    type: Literal["invalid_tool_call"]
    id: str
    name: str
    args: str
    error: str


class Usage(TypedDict):
    """What the message has cost.

    Keys:
        input_tokens: all of them, cached or not.
        output_tokens: all of them, reasoning included.
        total_tokens: the sum.
        details: whatever else the provider counted, in its own words.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    details: NotRequired[dict[str, Any]]


class MessageChunk(TypedDict):
    """What one piece of the stream adds to its message.

    Joined in order, the chunks of an id are the message. What a provider sends that adds nothing is not streamed. The
    last chunk says how the message ended and what it cost, where the provider tells.

    Keys:
        type: "AIMessageChunk", as readers know it from langchain-core.
        id: the message's; the same in all of its chunks.
        content: the next piece of the text; "" when the chunk adds something else.
        name: who speaks, if `stream_message` was told.
        reasoning: the next piece of what the model thinks (or of its summary).
        refusal: the next piece of why it does not answer.
        tool_call_chunks: the next pieces of tool calls.
        finish_reason, usage: as in `Message`.
    """

    role: Literal["assistant"]
    type: Literal["AIMessageChunk"]
    id: str
    content: str
    name: NotRequired[str]
    reasoning: NotRequired[str]
    refusal: NotRequired[str]
    tool_call_chunks: NotRequired[list[ToolCallChunk]]
    finish_reason: NotRequired[str]
    usage: NotRequired[Usage]


class Message(TypedDict):
    """The whole message.

    Keys:
        id: the provider's, if it gives one.
        content: the text, all of it; "" when there is none.
        name, reasoning, refusal: as in `MessageChunk`, whole.
        tool_calls: the calls, in order.
        invalid_tool_calls: those that cannot be made.
        finish_reason: why it ended, in the provider's word: "stop", "end_turn", "completed", "length" ...
        usage: what it has cost.
        blocks: the message in the provider's own parts, when these say more than the keys above do (a signature of
            what it thought, citations, tools that the provider itself ran). Some want them back in the next request.
    """

    role: Literal["assistant"]
    id: str
    content: str
    name: NotRequired[str]
    reasoning: NotRequired[str]
    refusal: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    invalid_tool_calls: NotRequired[list[InvalidToolCall]]
    finish_reason: NotRequired[str]
    usage: NotRequired[Usage]
    blocks: NotRequired[list[dict[str, Any]]]
