"""Stream tokens from any model: read an SDK's stream in a node, and show it on the `messages` stream.

No SDK is imported or needed: each stream is recognised by the shape of its items.

    from pregel_async.adapters import as_openai, stream_message

    async def answer(chat):
        messages = as_openai(chat["messages"])
        stream = client.chat.completions.create(model="...", messages=messages, stream=True)
        return {"messages": [await stream_message(stream)]}

`as_openai`, `as_openai_responses` and `as_anthropic` convert a conversation to what the provider's API takes, and
`read_message` converts an answer that was not streamed. `as_pydantic_ai` and `from_pydantic_ai` are for agents of
pydantic-ai.
"""

from __future__ import annotations

from .errors import InvalidSourceError, StreamFailedError
from .outgoing import AnthropicConversation, as_anthropic, as_openai, as_openai_responses
from .pydantic_ai import as_pydantic_ai, from_pydantic_ai
from .shapes import InvalidToolCall, Message, MessageChunk, MessageWriter, ToolCall, ToolCallChunk, Usage
from .streaming import stream_message, stream_message_sync
from .whole import read_message

__all__ = [
    "AnthropicConversation",
    "InvalidSourceError",
    "InvalidToolCall",
    "Message",
    "MessageChunk",
    "MessageWriter",
    "StreamFailedError",
    "ToolCall",
    "ToolCallChunk",
    "Usage",
    "as_anthropic",
    "as_openai",
    "as_openai_responses",
    "as_pydantic_ai",
    "from_pydantic_ai",
    "read_message",
    "stream_message",
    "stream_message_sync",
]
