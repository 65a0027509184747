"""Stream tokens from any model: read an SDK's stream in a node, and show it on the `messages` stream.

No SDK is imported or needed: each stream is recognised by the shape of its items.

    from pregel_async.adapters import stream_message

    async def answer(chat):
        stream = client.chat.completions.create(model="...", messages=chat["messages"], stream=True)
        return {"messages": [await stream_message(stream)]}
"""

from __future__ import annotations

from .errors import InvalidSourceError, StreamFailedError
from .shapes import InvalidToolCall, Message, MessageChunk, MessageWriter, ToolCall, ToolCallChunk, Usage
from .streaming import stream_message, stream_message_sync

__all__ = [
    "InvalidSourceError",
    "InvalidToolCall",
    "Message",
    "MessageChunk",
    "MessageWriter",
    "StreamFailedError",
    "ToolCall",
    "ToolCallChunk",
    "Usage",
    "stream_message",
    "stream_message_sync",
]
