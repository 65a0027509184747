"""Threads as the first engine stored them: values of many types, channels of several kinds, failures, open joins."""

from __future__ import annotations

import contextlib
import operator
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict

import msgspec

from checkpoint_savers import Codec
from pregel_async import END, START, Send, StateGraph
from pregel_async.channels import Topic

later = False
"""Set while the threads are being finished: failing nodes succeed then, and results are marked as later."""


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Invoice:
    number: int
    total: Decimal
    lines: list[str]


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float


def codec() -> Codec:
    return Codec().with_types(Invoice, tag="invoice").with_types(Point, tag="point").with_types(Color, tag="color")


def token(name: str) -> str:
    """A result that differs each time a node runs, so that a stored result can be recognised."""
    return f"{name} later" if later else f"{name} {uuid.uuid4().hex[:8]}"


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**80,
    1.5,
    -0.0,
    float("inf"),
    "",
    "日本語 🧵 \x00",
    b"",
    bytes(range(256)),
    [1, [2, [3]]],
    (1, (2, ()), [3]),
    {"a": 1, "b": {"c": (1, 2)}},
    {1: "int", (1, 2): "tuple", None: "none"},
    {1, 2, 3},
    frozenset({4, 5}),
    datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
    datetime(2024, 2, 29),
    date(1999, 12, 31),
    timedelta(days=3, microseconds=7),
    Decimal("1.10"),
    uuid.UUID(int=5),
    1 + 2j,
    Color.RED,
    Invoice(7, Decimal("99.95"), ["one", "two"]),
    Point(1.0, -2.5),
]


class Values(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    value: Any
    step: int
    total: Annotated[Decimal, operator.add]
    seen: Annotated[list[str], Topic]
    everything: list[Any]


def values(saver: Any, count: int) -> Any:
    async def work(state: Values) -> dict[str, Any]:
        step = state.get("step", 0)
        return {
            "log": [token(f"work {step}")],
            "value": VALUES[step % count],
            "step": step + 1,
            "total": Decimal("0.1"),
            "seen": [f"seen {step}"],
        }

    async def end(state: Values) -> dict[str, Any]:
        return {"log": ["end"], "everything": VALUES}

    def more(state: Values) -> str:
        return "work" if state["step"] % count else "end"

    graph = StateGraph(Values).add_node("work", work).add_node("end", end).add_edge(START, "work")
    return graph.add_conditional_edges("work", more, ["work", "end"]).compile(saver)


class Fan(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    items: Annotated[list[Any], operator.add]


def fan(saver: Any) -> Any:
    """Five sends; the third fails at first, when the others have finished."""

    async def start(state: Fan) -> dict[str, Any]:
        return {"log": [token("start")]}

    async def work(item: Any) -> dict[str, Any]:
        if item["i"] == 3 and not later:
            import anyio

            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            raise RuntimeError("the third is not ready")
        return {"items": [token(f"item {item['i']}")]}

    async def join(state: Fan) -> dict[str, Any]:
        return {"log": [token("join")]}

    graph = StateGraph(Fan).add_node("start", start).add_node("work", work).add_node("join", join)
    graph.add_edge(START, "start")
    graph.add_conditional_edges("start", lambda state: [Send("work", {"i": i}) for i in range(5)], ["work"])
    return graph.add_edge("work", "join").compile(saver)


def routed(saver: Any) -> Any:
    """A router that fails after its node's result was recorded."""

    async def first(state: Fan) -> dict[str, Any]:
        return {"log": [token("first")]}

    async def second(state: Fan) -> dict[str, Any]:
        return {"log": [token("second")]}

    def route(state: Fan) -> str:
        if not later:
            raise LookupError("no route yet")
        return "second"

    graph = StateGraph(Fan).add_node("first", first).add_node("second", second).add_edge(START, "first")
    return graph.add_conditional_edges("first", route, ["second", END]).compile(saver)


def joined(saver: Any) -> Any:
    """A join of two nodes, one of which has finished when the other fails; and a deferred node."""

    async def node(name: str) -> dict[str, Any]:
        return {"log": [token(name)]}

    async def fails(state: Fan) -> dict[str, Any]:
        if not later:
            raise ValueError("not yet")
        return await node("late")

    graph = StateGraph(Fan)
    for name in ("early", "before", "join"):
        graph.add_node(name, _named(node, name))
    graph.add_node("late", fails).add_node("last", _named(node, "last"), defer=True)
    graph.add_edge(START, "early").add_edge(START, "before").add_edge("before", "late")
    graph.add_edge(["early", "late"], "join").add_edge("early", "last").add_edge("join", END)
    return graph.compile(saver)


def _named(node: Any, name: str) -> Any:
    async def run(state: Fan) -> dict[str, Any]:
        made: dict[str, Any] = await node(name)
        return made

    return run


def graphs(saver: Any) -> dict[str, Any]:
    """Return the graph of each thread."""
    return {
        "values": values(saver, 8),
        "values twice": values(saver, 3),
        "fan done": fan(saver),
        "fan failed": fan(saver),
        "router failed": routed(saver),
        "join open": joined(saver),
        'it\'s "odd" 日本語': values(saver, 1),
    }


OPEN = ("fan failed", "router failed", "join open")


async def fill(saver: Any) -> None:
    global later
    for thread, graph in graphs(saver).items():
        config = {"configurable": {"thread_id": thread}, "metadata": {"user": "Ada", "n": 1}}
        later = thread == "fan done"
        for _ in range(2 if thread == "values twice" else 1):
            with contextlib.suppress(*((RuntimeError, LookupError, ValueError) if thread in OPEN else ())):
                await graph.ainvoke({"log": [f"input of {thread}"]}, config)


async def finish(saver: Any) -> dict[str, Any]:
    """Resume the open threads."""
    global later
    later = True
    return {thread: await graph.ainvoke(None, thread) for thread, graph in graphs(saver).items() if thread in OPEN}
