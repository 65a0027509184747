"""Stream tokens: `stream_message` in a node, and a reader of `stream_mode="messages"`.

The model is a script that streams like OpenAI's SDK: to use a real client, replace `say(...)` with the client's call.
`stream_message` also reads Anthropic's SDK, langchain-core's `model.astream()` and plain strings.

python examples/13_tokens.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio

from pregel_async import START, StateGraph
from pregel_async.adapters import stream_message
from pregel_async.messages import MessagesState


async def say(id: str, text: str) -> AsyncIterator[dict[str, Any]]:
    """What `client.chat.completions.create(..., stream=True)` streams."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {"id": id, "object": "chat.completion.chunk", "model": "scripted-1", "choices": [choice]}

    for token in text.split(" "):
        await anyio.lowlevel.checkpoint()  # the network
        yield chunk({"content": token + " "})
    yield chunk({}, "stop")


async def think(chat: MessagesState) -> dict[str, Any]:
    # The tag hides these tokens from the stream; the node still gets the message.
    await stream_message(say("chatcmpl-1", "They want a haiku."), tags=["nostream"])
    return {}


async def answer(chat: MessagesState) -> dict[str, Any]:
    said = await stream_message(say("chatcmpl-2", "An old silent pond"))
    return {"messages": [said]}  # its id was streamed, so the message is not shown again


graph = (
    StateGraph(MessagesState)
    .add_node("think", think)
    .add_node("answer", answer)
    .add_edge(START, "think")
    .add_edge("think", "answer")
    .compile()
)


async def main() -> None:
    given: MessagesState = {"messages": [{"role": "user", "content": "A haiku, please."}]}

    async with graph.astream(given, stream_mode="messages") as stream:
        async for chunk, metadata in stream:
            if chunk["content"]:
                print(f"    {metadata['langgraph_node']}, by {metadata['ls_model_name']}: {chunk['content']!r}")
            else:
                print(f"    it ends: {chunk['finish_reason']}")

    chat = await graph.ainvoke(given)
    print(f"the message: {chat['messages'][-1]['content']!r}")


if __name__ == "__main__":
    anyio.run(main)
