"""Threads with stored events, of runs that ended, asked, failed, were drained or interrupted."""

from __future__ import annotations

import contextlib
import operator
import uuid
from typing import Annotated, Any, TypedDict

from checkpoint_savers import Codec
from pregel_async import START, GraphDrained, RunControl, StateGraph, get_stream_writer, interrupt
from tests.savers.golden.readable import describe, digest

later = False
"""Set while the threads are being finished: failing nodes succeed then, and results are marked as later."""

control: Any = None
"""The control of the run that is drained."""

MODES = ["values", "updates", "custom", "tasks", "checkpoints", "messages"]


def codec() -> Codec:
    return Codec()


def token(name: str) -> str:
    """A result that differs each time a node runs, so that a stored result can be recognised."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def spoken(saver: Any, how: str) -> Any:
    """A chain whose nodes write to the stream; the third of it fails, asks or is drained, as asked."""

    def speaks(name: str) -> Any:
        async def speak(state: State) -> dict[str, Any]:
            writer = get_stream_writer()
            for number in range(3):
                writer({"from": name, "number": number, "bytes": bytes([number]), "tuple": (number,)})
            if name == "c" and how == "fails" and not later:
                raise RuntimeError("not yet")
            if name == "c" and how == "asks":
                return {"log": [f"c {interrupt('well?')}"]}
            if name == "b" and how == "drained" and not later:
                control.request_drain("deploy")
            return {"log": [token(name)]}

        return speak

    inner = StateGraph(State).add_node("inside", speaks("inside")).add_edge(START, "inside")
    graph = StateGraph(State).add_node("a", speaks("a")).add_node("b", inner.compile())
    graph.add_node("b2", speaks("b")).add_node("c", speaks("c")).add_node("d", speaks("d"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "b2").add_edge("b2", "c").add_edge("c", "d")
    return graph.compile(saver)


HOW = ("ends", "asks", "fails", "drained")


def graphs(saver: Any) -> dict[str, Any]:
    """Return the graph of each thread."""
    return {how: spoken(saver, how) for how in HOW}


async def fill(saver: Any) -> Any:
    """Return the cursor of every seventh part, by thread."""
    global control
    cursors: dict[str, list[str]] = {}
    for thread, graph in graphs(saver).items():
        control = RunControl()
        settings: dict[str, Any] = {"control": control} if thread == "drained" else {}
        cursors[thread] = []
        parts = graph.astream(
            {"log": ["in"]}, thread, stream_mode=MODES, version="v2", subgraphs=True, keep_events=True, **settings
        )
        with contextlib.suppress(RuntimeError, GraphDrained):
            async for part in parts:
                cursors[thread].append(part["cursor"])
    return {thread: one[::7] for thread, one in cursors.items()}


async def more(saver: Any, cursors: Any) -> dict[str, Any]:
    """Return the stored parts that reconnecting readers get, for the threads without work left."""
    found: dict[str, Any] = {}
    for thread in ("ends", "asks"):
        graph = graphs(saver)[thread]
        found[thread] = []
        for cursor in cursors[thread]:
            parts = graph.astream(None, thread, after=cursor, stream_mode=MODES, version="v2", subgraphs=True)
            shown = [describe((one["type"], list(one["ns"]), one["data"])) async for one in parts]
            # In full for the first cursor only: the parts after the other cursors are a suffix of these.
            found[thread].append([len(shown), digest(shown)] if found[thread] else shown)
    return found


async def finish(saver: Any) -> dict[str, Any]:
    """Resume the open threads."""
    from pregel_async import Command

    global later
    later = True
    made = graphs(saver)
    return {
        "asks": await made["asks"].ainvoke(Command(resume="yes"), "asks"),
        "fails": await made["fails"].ainvoke(None, "fails"),
        "drained": await made["drained"].ainvoke(None, "drained"),
    }
