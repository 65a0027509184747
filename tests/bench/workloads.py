"""The workloads, written once: the same graphs for every engine that has the peer's names, and bare code for the limit.

A workload is built outside the clock and returns a `Case`.
"""

from __future__ import annotations

import operator
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

UNLIMITED = 10_000_000


@dataclass
class Case:
    """What is timed.

    Attributes:
        run: one operation.
        units: supersteps, tasks or chunks that it does.
        right: whether its result is right.
        figures: more figures made of its result.
    """

    run: Callable[[], Awaitable[Any]]
    units: int
    right: Callable[[Any], bool]
    figures: Callable[[Any], dict[str, float]] = field(default=lambda result: {})


class Counter(TypedDict):
    x: int


class Fan(TypedDict):
    n: int
    out: Annotated[list[int], operator.add]
    total: int


async def increment(state: Any) -> dict[str, int]:
    return {"x": state["x"] + 1}


async def work(item: Any) -> dict[str, list[int]]:
    return {"out": [item["i"]]}


async def total(state: Any) -> dict[str, int]:
    return {"total": sum(state["out"])}


WIDE = ("one", "two", "three", "four", "five", "six")


def wide_node(place: int, keys: list[str]) -> Callable[[Any], Awaitable[dict[str, int]]]:
    first, second, third, fourth = keys[place * 4 : place * 4 + 4]

    async def node(state: Any) -> dict[str, int]:
        return {third: (state[first] or 0) + 1, fourth: (state[second] or 0) + 1}

    return node


class Engine:
    """An engine with the peer's names: `StateGraph`, `START`, `END`, `Send`, and an async SQLite saver."""

    def __init__(self, name: str, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.sync: dict[str, Any]
        if name == "langgraph":
            from langgraph.graph import END, START, StateGraph
            from langgraph.types import Send

            self.sync = {"durability": "sync"}
        else:
            from pregel_async import END, START, Send, StateGraph  # the same names

            self.sync = {}
        self.name, self.end, self.start, self.graph, self.send = name, END, START, StateGraph, Send

    async def saver(self, kind: str | None) -> Any:
        if kind is None:
            return None
        if kind == "memory":
            if self.name == "langgraph":
                from langgraph.checkpoint.memory import InMemorySaver
            else:
                from checkpoint_savers import InMemorySaver  # the same name
            return InMemorySaver()
        path = str(Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))) / "threads.db")
        if self.name == "langgraph":
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            saver = await self.stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
            await saver.conn.execute("PRAGMA synchronous=FULL")
            return saver
        from checkpoint_savers import SqliteSaver

        return await self.stack.enter_async_context(SqliteSaver.from_conn_string(path))

    def config(self) -> dict[str, Any]:
        return {"recursion_limit": UNLIMITED, "configurable": {"thread_id": uuid.uuid4().hex}}

    async def chain(self, n: int, saver: str | None = None) -> Case:
        builder = self.graph(Counter)
        before = self.start
        for place in range(n):
            builder.add_node(f"n{place}", increment)
            builder.add_edge(before, f"n{place}")
            before = f"n{place}"
        builder.add_edge(before, self.end)
        kept = await self.saver(saver)
        graph = builder.compile(checkpointer=kept)
        extra = self.sync if saver else {}
        return Case(lambda: graph.ainvoke({"x": 0}, self.config(), **extra), n, lambda result: result["x"] == n)

    def _loop(self, n: int) -> Any:
        async def route(state: Any) -> str:  # async, as the peer runs a plain router in a worker thread
            return self.end if state["x"] >= n else "node"

        builder = self.graph(Counter)
        builder.add_node("node", increment)
        builder.add_edge(self.start, "node")
        builder.add_conditional_edges("node", route, ["node", self.end])
        return builder.compile()

    async def loop(self, n: int) -> Case:
        graph = self._loop(n)
        return Case(lambda: graph.ainvoke({"x": 0}, self.config()), n, lambda result: result["x"] == n)

    async def stream(self, n: int, mode: str) -> Case:
        graph = self._loop(n)

        async def run() -> tuple[int, float]:
            begun, first, count = time.perf_counter(), 0.0, 0
            async for _ in graph.astream({"x": 0}, self.config(), stream_mode=mode):
                first = first or time.perf_counter() - begun
                count += 1
            return count, first

        return Case(run, n, lambda result: result[0] >= n, lambda result: {"first chunk, ms": result[1] * 1e3})

    async def fanout(self, n: int) -> Case:
        async def spread(state: Any) -> list[Any]:
            return [self.send("work", {"i": i}) for i in range(state["n"])]

        builder = self.graph(Fan)
        builder.add_node("work", work)
        builder.add_node("reduce", total)
        builder.add_conditional_edges(self.start, spread, ["work"])
        builder.add_edge("work", "reduce")
        builder.add_edge("reduce", self.end)
        graph = builder.compile()
        expected = n * (n - 1) // 2
        return Case(
            lambda: graph.ainvoke({"n": n, "out": []}, self.config()), n, lambda result: result["total"] == expected
        )

    async def wide(self, keys: int, rounds: int) -> Case:
        names = [f"k{place:03d}" for place in range(keys)]
        schema: Any = TypedDict("Wide", {**dict.fromkeys(names, int), "round": int})  # made here
        builder = self.graph(schema)
        for place, name in enumerate(WIDE):
            node = wide_node(place, names)
            if name == "six":

                async def last(state: Any, inner: Any = node) -> dict[str, int]:
                    return {**await inner(state), "round": state["round"] + 1}

                node = last
            builder.add_node(name, node)

        async def route(state: Any) -> str:
            return self.end if state["round"] >= rounds else "one"

        for start, end in ((self.start, "one"), ("one", "two"), ("two", "three"), ("two", "four"), ("five", "six")):
            builder.add_edge(start, end)
        builder.add_edge(["three", "four"], "five")
        builder.add_conditional_edges("six", route, ["one", self.end])
        graph = builder.compile()
        given = {**dict.fromkeys(names, 0), "round": 0}
        return Case(lambda: graph.ainvoke(given, self.config()), rounds * 5, lambda result: result["round"] == rounds)
