"""Long threads with incremental values, snapshot rows, branches in the middle, questions at the end; and such threads
after upkeep."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, TypedDict

from checkpoint_savers import Codec, Retention
from pregel_async import END, START, RemoveMessage, StateGraph, interrupt
from pregel_async.channels import Topic
from pregel_async.messages import add_messages

later = False
"""Set while the threads are being finished: results are marked as later."""


def codec() -> Codec:
    return Codec()


def token(name: str) -> str:
    """A result that differs each time a node runs, so that a stored result can be recognised."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


def said(number: int) -> dict[str, Any]:
    return {"role": "user", "id": f"m{number}", "content": token(f"said {number}") + " and so on" * 4, "n": number}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**old, **new}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    messages: Annotated[list[Any], add_messages]
    notes: Annotated[dict[str, Any], merged]
    topic: Annotated[list[Any], Topic(Any, accumulate=True)]
    window: list[Any]
    n: int
    asked: str


def growing(saver: Any, **settings: Any) -> Any:
    """A loop in which values grow, change and disappear; it asks a question at the end."""

    async def grow(state: State) -> dict[str, Any]:
        at = len(state.get("log", []))
        messages: list[Any] = [said(at)]
        if at % 7 == 6:
            messages.append({**said(at - 3), "content": "changed " * 12})
        if at % 11 == 10:
            messages.append(RemoveMessage(id=f"m{at - 5}"))
        sections = state.get("notes", {}).get("sections", [])
        return {
            "log": [{"at": at, "by": token("grow"), "text": "long enough " * 3}],
            "messages": messages,
            "notes": {"sections": [*sections, f"section {at} " * 4], f"note {at % 5}": "noted " * at},
            "topic": [f"topic {at} " * 5],
            "window": [*state.get("window", [])[-20:], "seen " * 6 + str(at)],
        }

    async def beside(state: State) -> dict[str, Any]:
        return {"log": [token("beside")]}

    async def ask(state: State) -> dict[str, Any]:
        return {"asked": f"{interrupt('enough?')}: {len(state['log'])}", "log": [token("ask")]}

    graph = StateGraph(State).add_node("grow", grow).add_node("ask", ask).add_node("beside", beside)
    graph.add_edge(START, "grow").add_edge("ask", END).add_edge("beside", END)
    graph.add_conditional_edges(
        "grow",
        lambda state: ["ask", "beside"] if len(state["log"]) >= state["n"] else ["grow"],
        ["grow", "ask", "beside"],
    )
    return graph.compile(saver, **settings)


def graphs(saver: Any) -> dict[str, Any]:
    """Return the graph of each thread."""
    threads = ("one run", "many runs", "branches", "at the end", "pruned", "copied", "pinned")
    return dict.fromkeys(threads, growing(saver))


def call(thread: str, n: int) -> tuple[Any, Any]:
    return {"n": n}, {"configurable": {"thread_id": thread}, "recursion_limit": 1000}


async def fill(saver: Any) -> None:
    graph = growing(saver)
    await graph.ainvoke(*call("one run", 50))
    for turn in range(1, 4):
        await graph.ainvoke(*call("many runs", 12 * turn))
    await graph.ainvoke(*call("branches", 37))
    history = [state async for state in graph.aget_state_history("branches")]
    for place in (3, 30):
        old: Any = {**history[place].config, "recursion_limit": 1000}
        await graph.ainvoke(None, old)
    await graph.ainvoke(*call("at the end", 20), durability="exit")
    await graph.ainvoke(*call("pruned", 40))
    await saver.aprune("pruned", retention=Retention(keep=20))
    await graph.ainvoke(*call("pruned", 50))
    await saver.acopy_thread("one run", "copied")
    await graph.ainvoke(*call("pinned", 24))
    held = [state async for state in graph.aget_state_history("pinned")]
    await saver.apin(held[10].config)
    await saver.aprune("pinned", strategy="keep_latest")


async def finish(saver: Any) -> dict[str, Any]:
    """Answer the open questions."""
    global later
    later = True
    from pregel_async import Command

    made: dict[str, Any] = {}
    for thread, graph in graphs(saver).items():
        made[thread] = await graph.ainvoke(Command(resume="yes"), thread)
    return made
