"""Threads with metadata that the user gave, of version 3, which stored them with checkpoints only."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, TypedDict

from checkpoint_savers import Codec
from pregel_async import START, Command, StateGraph, interrupt

later = False
"""Whether the threads are being finished: what runs then says so."""


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def codec() -> Codec:
    return Codec()


def token(name: str) -> str:
    """What a node returns: another text each time that it runs. So a result that was stored is known again."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


def asking(saver: Any) -> Any:
    def ask(state: State) -> State:
        return {"log": [f"{token('ask')} {interrupt('go on?')}"]}

    made = StateGraph(State).add_node("first", lambda state: {"log": [token("first")]}).add_node("ask", ask)
    return made.add_edge(START, "first").add_edge("first", "ask").compile(saver)


GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "ann": {"user": "ann", "n": 1, "f": 1.0, "yes": True, "text": "日本\u0001'\"\\"},
    "own": {"graph": "mine", "attempt": "b"},
    "served": {
        "graph": "chat",
        "attempt": 1,
        "stream_mode": "values",
        "stream_subgraphs": False,
        "has_context": False,
        "user": "bob",
    },
}


async def fill(saver: Any) -> None:
    for thread, metadata in GIVEN.items():
        await asking(saver).ainvoke({"log": []}, {"configurable": {"thread_id": thread}, "metadata": metadata})


def graphs(saver: Any) -> dict[str, Any]:
    return {thread: asking(saver) for thread in GIVEN}


async def finish(saver: Any) -> dict[str, Any]:
    global later
    later = True
    return {thread: await asking(saver).ainvoke(Command(resume="yes"), thread) for thread in GIVEN}
