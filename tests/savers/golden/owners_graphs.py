"""Threads with metadata: set by calls, changed, copied, and on an open thread."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, TypedDict

from checkpoint_savers import Codec
from pregel_async import START, Command, StateGraph, interrupt

later = False
"""Set while the threads are being finished: results are marked as later."""

THREADS = ("plain", "ann", "changed", "copy")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def codec() -> Codec:
    return Codec()


def token(name: str) -> str:
    """A result that differs each time a node runs, so that a stored result can be recognised."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


def asking(saver: Any) -> Any:
    def ask(state: State) -> State:
        return {"log": [f"{token('ask')} {interrupt('go on?')}"]}

    made = StateGraph(State).add_node("first", lambda state: {"log": [token("first")]}).add_node("ask", ask)
    return made.add_edge(START, "first").add_edge("first", "ask").compile(saver)


async def fill(saver: Any) -> None:
    graph = asking(saver)
    own = {"parents": "smith", "step": "review", "user": "ann", "f": 1.0, "yes": True, "text": "日本\u0001'\"\\"}
    await graph.ainvoke({"log": []}, "plain")
    await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "ann"}, "metadata": own})
    await graph.aupdate_state(
        {"configurable": {"thread_id": "ann"}, "metadata": {"user": "eve"}}, {"log": ["edit"]}, as_node="first"
    )
    await graph.ainvoke(None, "ann")
    await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "changed"}, "metadata": {"user": "bob", "n": 1}})
    await saver.aupdate_thread("changed", {"user": "eve", "n": None, "title": "x"})
    await saver.acopy_thread("changed", "copy")


def graphs(saver: Any) -> dict[str, Any]:
    return {thread: asking(saver) for thread in THREADS}


async def more(saver: Any, filled: Any) -> Any:
    return {one.thread_id: one.metadata async for one in saver.alist_threads() if one.thread_id in THREADS}


async def finish(saver: Any) -> dict[str, Any]:
    global later
    later = True
    return {thread: await asking(saver).ainvoke(Command(resume="yes"), thread) for thread in THREADS}
