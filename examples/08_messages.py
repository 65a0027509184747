"""A list of messages: added, corrected and removed by id.

`MessagesState` has one key, `messages`; add more in a subclass. Messages are plain dicts here; dataclasses,
Structs, pydantic models and langchain-core's messages work too. A message without an id gets one derived from the task
that wrote it and its position. So the same conversation has the same ids in every run, and the same text twice gives
two messages.

python examples/08_messages.py
"""

from __future__ import annotations

from typing import Any

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph
from pregel_async.messages import MessagesState, RemoveMessage

KEEP = 4


class Chat(MessagesState, total=False):
    forgotten: int


def answer(chat: Chat) -> dict[str, Any]:
    asked = chat["messages"][-1]["content"]
    return {"messages": ("assistant", f"You said {asked!r}.")}  # a pair of role and content becomes a dict


def tidy(chat: Chat) -> dict[str, Any]:
    """Remove all but the last messages, and correct a word in one. Messages that it does not name stay."""
    old, kept = chat["messages"][:-KEEP], chat["messages"][-KEEP:]
    corrected = [
        {
            **message,
            "content": message["content"].replace("helo", "hello"),
        }  # a message with the same id is replaced
        for message in kept
        if "helo" in message["content"]
    ]
    return {
        "messages": [*(RemoveMessage(message["id"]) for message in old), *corrected],
        "forgotten": chat.get("forgotten", 0) + len(old),
    }


builder = (
    StateGraph(Chat)
    .add_node("answer", answer)
    .add_node("tidy", tidy)
    .add_edge(START, "answer")
    .add_edge("answer", "tidy")
)


async def main() -> None:
    graph = builder.compile(InMemorySaver())
    for said in ("good morning", "helo again", "bye"):
        chat = await graph.ainvoke({"messages": [{"role": "user", "content": said}]}, "chat")
    print(f"{chat.get('forgotten')} messages are forgotten, {len(chat['messages'])} are left:")
    for message in chat["messages"]:
        print(f"    {message['role']}: {message['content']}")


if __name__ == "__main__":
    anyio.run(main)
