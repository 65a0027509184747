"""Types of chunks and messages, the same for every provider.

Messages are plain dicts of strings, numbers, lists and dicts: they can be stored, sent as JSON, and passed to
`add_messages`. Keys without a value are absent. langchain-core's objects are not converted: its own chunks are
streamed, and its own message is returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Literal, NotRequired, Protocol, TypedDict

__all__ = ["InvalidToolCall", "Message", "MessageChunk", "MessageWriter", "ToolCall", "ToolCallChunk", "Usage"]


class MessageWriter(Protocol):
    """The interface that chunks are written with: the writer that a node gets, or a stand-in for it.

    Calling `message` puts the chunk on the stream; awaiting the result waits until there is capacity for the next
    chunk. In a worker thread the call itself waits, and its result need not be awaited.
    """

    def message(self, chunk: Any, /, metadata: Mapping[str, Any] | None = None) -> Awaitable[None]:
        """Put a chunk on the `messages` stream.

        Args:
            chunk: a `MessageChunk`, or a message or chunk of langchain-core.
            metadata: added to the runtime's metadata of the chunk.

        Returns:
            An awaitable that waits until there is capacity for the next chunk.
        """
        ...


class ToolCallChunk(TypedDict):
    """A piece of a tool call.

    Keys:
        index: distinguishes the calls of one message. Indexes ascend, and may have gaps.
        id, name: present in the call's first piece.
        args: the next piece of the arguments. All pieces joined are JSON.
    """

    index: int
    args: str
    id: NotRequired[str]
    name: NotRequired[str]


class ToolCall(TypedDict):
    """A call that the model asks for. The answer is a message with `tool_call_id` equal to `id`.

    Keys:
        args: the arguments, parsed from JSON.
    """

    type: Literal["tool_call"]
    id: str
    name: str
    args: dict[str, Any]


class InvalidToolCall(TypedDict):
    """A call whose arguments are not a JSON object: the model was cut off, or made a mistake.

    Keys:
        args: the arguments' text, unparsed.
        error: why the text is not valid.
    """

    type: Literal["invalid_tool_call"]
    id: str
    name: str
    args: str
    error: str


class Usage(TypedDict):
    """The number of tokens that a message has used.

    Keys:
        input_tokens: all input tokens, cached or not.
        output_tokens: all output tokens, including reasoning.
        total_tokens: the sum of both.
        details: the provider's other counts, under its own names.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    details: NotRequired[dict[str, Any]]


class MessageChunk(TypedDict):
    """The part that one piece of the stream adds to its message.

    The chunks of one id, joined in order, are the message. Provider events that add nothing are not streamed. The last
    chunk holds the finish reason and the usage, if the provider sends them.

    Keys:
        type: "AIMessageChunk", the type name that readers know from langchain-core.
        id: the message's id, the same in all of its chunks.
        content: the next piece of the text; "" if the chunk adds something else.
        name: the speaker, if `stream_message` was given a `name`.
        reasoning: the next piece of the model's reasoning, or of its summary.
        refusal: the next piece of the model's reason for not answering.
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
        id: the provider's id, if it gives one.
        content: the whole text; "" if there is none.
        name, reasoning, refusal: as in `MessageChunk`, whole.
        tool_calls: the valid calls, in order.
        invalid_tool_calls: the calls whose arguments cannot be parsed.
        finish_reason: why the message ended, in the provider's word: "stop", "end_turn", "completed", "length" ...
        usage: the number of tokens used.
        blocks: the message in the provider's own parts, if these hold more than the keys above (a signature of its
            reasoning, citations, tools that the provider itself ran). Some providers need them in the next request.
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
