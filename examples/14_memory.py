"""Long-term memory: facts from one conversation are available in the next, and in other graphs.

A store keeps items under namespaces. Every node with a `store` parameter gets it, also in subgraphs. It is not part of
a thread: a put takes effect at once, and stays when the thread is deleted.

python examples/14_memory.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import anyio

from checkpoint_savers import BaseStore, SqliteSaver, SqliteStore
from pregel_async import START, Runtime, StateGraph


class Chat(TypedDict):
    says: str
    answer: NotRequired[str]


class Learned(TypedDict, total=False):
    answer: str


class Context(TypedDict):
    user: str


async def remember(chat: Chat, runtime: Runtime[Context], store: BaseStore) -> Learned:
    if chat["says"].startswith("I like "):
        food = chat["says"].removeprefix("I like ")
        # The key is the subject: the same statement twice gives one item.
        await store.aput(("users", runtime.context["user"], "food"), food, {"food": food, "likes": True})
    return {}


async def answer(chat: Chat, runtime: Runtime[Context], store: BaseStore) -> Learned:
    known = await store.asearch(("users", runtime.context["user"]), filter={"likes": True})
    liked = sorted(item.value["food"] for item in known)
    return {"answer": f"I know that you like {' and '.join(liked)}." if liked else "I know nothing of you."}


builder = StateGraph(Chat, Context).add_node(remember).add_node(answer)
builder.add_edge(START, "remember").add_edge("remember", "answer")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chat.db"  # threads and memory in one file

        async with SqliteSaver(file) as saver, SqliteStore(file) as store:
            graph = builder.compile(saver, store=store)
            for thread, says in (("monday", "hello"), ("monday", "I like soup"), ("tuesday", "I like figs")):
                chat: Any = await graph.ainvoke({"says": says}, thread, context={"user": "ann"})
                print(f"    ann, {thread}: {says!r} -> {chat['answer']}")

        print("another process, another day:")
        async with SqliteSaver(file) as saver, SqliteStore(file) as store:
            graph = builder.compile(saver, store=store)
            for user in ("ann", "bob"):
                chat = await graph.ainvoke({"says": "hello"}, f"{user}-friday", context={"user": user})
                print(f"    {user}, friday: 'hello' -> {chat['answer']}")

            await store.aput(("users", "bob", "food"), "cake", {"food": "cake", "likes": False})
            print(f"known are {[user for _, user in await store.alist_namespaces(max_depth=2)]}")
            pleased = {item.namespace[1] for item in await store.asearch(("users",), filter={"likes": True})}
            print(f"of whom {sorted(pleased)} likes something")


if __name__ == "__main__":
    anyio.run(main)
