"""Answers from documents: an agent that searches, reads, and names its source.

The model is a script. With AGENT_MODEL, such as "openai:gpt-5", and that provider's SDK and key, it is that model. The
vectors are counts of words: put an embedding model into `vector_of`, and a database into `Index`.

python examples/17_rag.py
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from typing import Any

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async.prebuilt import create_agent, tool

DOCUMENTS = {
    "kettle.md": "The kettle boils a litre of water in three minutes. It turns itself off when the water boils.",
    "toaster.md": "The toaster has six levels. The crumb tray is below it, and is emptied once a week.",
    "warranty.md": "The warranty of all devices is two years. It ends if a device was opened.",
}


def vector_of(text: str) -> Counter[str]:
    """The place of a text among texts."""
    return Counter(word for word in re.findall(r"\w+", text.lower()) if len(word) > 3)


def likeness(a: Counter[str], b: Counter[str]) -> float:
    """The cosine of the angle between two vectors."""
    lengths = math.sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))
    return sum(a[word] * b[word] for word in a) / lengths if lengths else 0.0


class Index:
    """Sentences of documents, by their vectors."""

    def __init__(self, documents: dict[str, str]) -> None:
        self._parts = [
            (name, sentence, vector_of(sentence))
            for name, text in documents.items()
            for sentence in re.split(r"(?<=\.) ", text)
        ]

    def search(self, query: str, count: int) -> list[tuple[str, str]]:
        wanted = vector_of(query)
        ranked = sorted(self._parts, key=lambda part: -likeness(wanted, part[2]))
        return [(name, sentence) for name, sentence, _ in ranked[:count]]


INDEX = Index(DOCUMENTS)


@tool(response_format="content_and_artifact")
async def search(query: str) -> tuple[str, list[str]]:
    """Search the manuals of our devices."""
    found = INDEX.search(query, count=2)
    print(f"    searching {query!r}: {[name for name, _ in found]}")
    # The model reads the text. The names of the documents are the message's artifact, for the program.
    return "\n".join(f"[{name}] {sentence}" for name, sentence in found), [name for name, _ in found]


async def script(messages: list[Any], tools: list[Any]) -> Any:
    """Search for what the user asks, then answer with the best sentence."""
    newest = messages[-1]
    if newest["role"] == "tool":
        source, _, sentence = newest["content"].splitlines()[0].partition("] ")
        return f"{sentence} ({source[1:]})"
    args = {"query": newest["content"]}
    return {"role": "assistant", "tool_calls": [{"id": f"search {len(messages)}", "name": "search", "args": args}]}


async def main() -> None:
    agent = create_agent(
        os.environ.get("AGENT_MODEL", script),
        [search],
        system_prompt="Answer from the manuals, in one sentence, and name the document in parentheses.",
        checkpointer=InMemorySaver(),
    )
    for question in ("How fast does the kettle boil water?", "How long is the warranty?"):
        state: Any = await agent.ainvoke({"messages": [question]}, "chat-1")
        print(f"{question} {state['messages'][-1]['content']}")
    used = [name for message in state["messages"] for name in message.get("artifact", ())]
    print(f"read so far: {sorted(set(used))}")


if __name__ == "__main__":
    anyio.run(main)
