"""The workloads as graphs, written once for both engines with `StateGraph`, `START`, `END` and `Send`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypedDict

import anyio

from ..workloads import (
    READS,
    SUBJECT,
    UNLIMITED,
    WIDE,
    Case,
    Chat,
    Counter,
    Fan,
    Gauge,
    Joke,
    Jokes,
    Laps,
    MessageReader,
    Reading,
    Show,
    Subject,
    Talk,
    agent,
    asks,
    bump,
    conversation,
    database,
    edit,
    ends_with_bumps,
    file_size,
    generate,
    increment,
    question,
    say,
    tool,
    total,
    waiting,
    wide_keys,
    wide_node,
    work,
    work_later,
)


class StateGraphDriver:
    """Every workload. A subclass names the library's classes and opens its savers."""

    graph: Any
    start: str
    end: str
    send: Any

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack

    def memory(self) -> Any:
        """Return a saver that stores threads in memory."""
        raise NotImplementedError

    async def sqlite(self, path: str) -> Any:
        """Return a saver on a file, with an fsync for each commit."""
        raise NotImplementedError

    async def postgres(self) -> Any:
        """Return a saver in a schema of its own."""
        raise NotImplementedError

    async def saver(self, kind: str | None) -> Any:
        if kind == "memory":
            return self.memory()
        if kind == "sqlite":
            return await self.sqlite(database(self.stack))
        return await self.postgres() if kind == "postgres" else None

    def react_agent(self, turns: int, saver: Any) -> Any:
        """Return the library's prebuilt agent, with a scripted model of the library's own kind."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Return the config of a new thread."""
        return {"recursion_limit": UNLIMITED, "configurable": {"thread_id": uuid.uuid4().hex}}

    def _chain(self, n: int, node: Any = increment) -> Any:
        builder = self.graph(Counter)
        before = self.start
        for place in range(n):
            builder.add_node(f"n{place}", node)
            builder.add_edge(before, f"n{place}")
            before = f"n{place}"
        builder.add_edge(before, self.end)
        return builder

    def _loop(self, schema: Any, node: Any, done: Callable[[Any], bool], kept: Any = None) -> Any:
        """A node that runs again until the work is done."""

        async def route(state: Any) -> str:  # async, as LangGraph runs a plain router in a worker thread
            return self.end if done(state) else "node"

        builder = self.graph(schema)
        builder.add_node("node", node)
        builder.add_edge(self.start, "node")
        builder.add_conditional_edges("node", route, ["node", self.end])
        return builder.compile(checkpointer=kept)

    async def chain(self, n: int, saver: str | None = None, durability: str = "sync", pause: float = 0) -> Case:
        node = waiting(pause) if pause else increment
        graph = self._chain(n, node).compile(checkpointer=await self.saver(saver))
        how = {"durability": durability} if saver else {}
        return Case(
            run=lambda: graph.ainvoke({"x": 0}, self.config(), **how), units=n, right=lambda result: result["x"] == n
        )

    async def loop(self, n: int) -> Case:
        graph = self._loop(Counter, increment, lambda state: state["x"] >= n)
        return Case(run=lambda: graph.ainvoke({"x": 0}, self.config()), units=n, right=lambda result: result["x"] == n)

    async def flat(self, n: int, early: int) -> Case:
        gauge = Gauge(early, n)
        graph = self._loop(Counter, gauge, lambda state: state["x"] >= n)
        return Case(
            run=lambda: graph.ainvoke({"x": 0}, self.config()),
            units=n,
            right=lambda result: result["x"] == n,
            figures=lambda result: gauge.seen,
        )

    async def wide(self, keys: int, turns: int) -> Case:
        names = wide_keys(keys)
        make: Any = TypedDict  # of keys that no checker can know
        builder = self.graph(make("Wide", {**dict.fromkeys(names, int), "round": int}))
        for place, name in enumerate(WIDE):
            builder.add_node(name, wide_node(place, names))

        async def route(state: Any) -> str:
            return self.end if state["round"] >= turns else "one"

        for start, end in ((self.start, "one"), ("one", "two"), ("two", "three"), ("two", "four"), ("five", "six")):
            builder.add_edge(start, end)
        builder.add_edge(["three", "four"], "five")
        builder.add_conditional_edges("six", route, ["one", self.end])
        graph = builder.compile()
        given = {**dict.fromkeys(names, 0), "round": 0}
        return Case(
            run=lambda: graph.ainvoke(given, self.config()),
            units=turns * 5,
            right=lambda result: result["round"] == turns and result[names[2]] == 1,
        )

    async def subgraph(self, calls: int) -> Case:
        async def again(state: Any) -> str:
            return self.end if ends_with_bumps(state) else "bump"

        async def spread(state: Any) -> list[Any]:
            return [self.send("joke", {"subject": subject}) for subject in state["subjects"]]

        inner = self.graph(Joke, input_schema=Subject, output_schema=Jokes)
        for name, node in (("edit", edit), ("generate", generate), ("bump", bump)):
            inner.add_node(name, node)
        for start, end in ((self.start, "edit"), ("edit", "generate"), ("generate", "bump")):
            inner.add_edge(start, end)
        inner.add_conditional_edges("bump", again, ["bump", self.end])
        builder = self.graph(Show)
        builder.add_node("joke", inner.compile())
        builder.add_conditional_edges(self.start, spread, ["joke"])
        builder.add_edge("joke", self.end)
        graph = builder.compile()
        given = {"subjects": [SUBJECT] * calls, "jokes": []}
        return Case(
            run=lambda: graph.ainvoke(given, self.config()),
            units=calls,
            right=lambda result: len(result["jokes"]) == calls and ends_with_bumps(result),
        )

    async def prebuilt(self, turns: int, saver: str | None = None) -> Case:
        graph = self.react_agent(turns, await self.saver(saver))
        how = {"durability": "sync"} if saver else {}
        return Case(
            run=lambda: graph.ainvoke({"messages": question(turns)["messages"]}, self.config(), **how),
            units=turns,
            right=lambda result: len(result["messages"]) == 2 * turns + 2,
        )

    async def agent(self, turns: int, saver: str | None = None) -> Case:
        async def route(state: Any) -> str:
            return "tool" if asks(state) else self.end

        builder = self.graph(Chat)
        builder.add_node("agent", agent)
        builder.add_node("tool", tool)
        builder.add_edge(self.start, "agent")
        builder.add_conditional_edges("agent", route, ["tool", self.end])
        builder.add_edge("tool", "agent")
        graph = builder.compile(checkpointer=await self.saver(saver))
        how = {"durability": "sync"} if saver else {}
        return Case(
            run=lambda: graph.ainvoke(question(turns), self.config(), **how),
            units=2 * turns + 1,
            right=lambda result: len(result["messages"]) == 2 * turns + 2,
        )

    async def reads(self, messages: int, how: str, flat: bool = False, supersteps: int = 20) -> Case:
        reader = MessageReader(how)
        graph = self._loop(Reading, reader, lambda state: state["x"] >= supersteps)
        given = {"messages": conversation(messages, flat=flat), "x": 0}
        return Case(
            run=lambda: graph.ainvoke(given, self.config()),
            units=supersteps,
            right=lambda result: result["x"] == supersteps,
            figures=reader.figures,
        )

    async def fanout(self, n: int, waits: bool = False) -> Case:
        async def spread(state: Any) -> list[Any]:
            return [self.send("work", {"i": i}) for i in range(state["n"])]

        builder = self.graph(Fan)
        builder.add_node("work", work_later if waits else work)
        builder.add_node("reduce", total)
        builder.add_conditional_edges(self.start, spread, ["work"])
        builder.add_edge("work", "reduce")
        builder.add_edge("reduce", self.end)
        graph = builder.compile()
        return Case(
            run=lambda: graph.ainvoke({"n": n, "out": []}, self.config()),
            units=n,
            right=lambda result: result["total"] == n * (n - 1) // 2,
        )

    async def stream(self, n: int, mode: str) -> Case:
        graph = self._loop(Counter, increment, lambda state: state["x"] >= n)

        async def run() -> tuple[int, float]:
            begun, first, count = time.perf_counter(), 0.0, 0
            async for _ in graph.astream({"x": 0}, self.config(), stream_mode=mode):
                first = first or time.perf_counter() - begun
                count += 1
            return count, first

        return Case(
            run=run,
            units=n,
            right=lambda result: result[0] >= n,
            figures=lambda result: {"first_ms": result[1] * 1e3},
        )

    async def many(
        self, threads: int, saver: str, durability: str = "sync", steps: int = 10, pause: float = 0.01
    ) -> Case:
        graph = self._chain(steps, waiting(pause)).compile(checkpointer=await self.saver(saver))

        async def run() -> int:
            found: list[int] = []

            async def one() -> None:
                result = await graph.ainvoke({"x": 0}, self.config(), durability=durability)
                found.append(result["x"])

            async with anyio.create_task_group() as group:
                for _ in range(threads):
                    group.start_soon(one)
            return sum(found)

        return Case(run=run, units=threads, right=lambda result: result == threads * steps)

    async def thread(self, n: int) -> Case:
        path = database(self.stack)
        graph = self._loop(Talk, say, lambda state: len(state["messages"]) >= n, await self.sqlite(path))
        runs = 0

        async def run() -> dict[str, float]:
            nonlocal runs
            runs += 1
            config, lap = self.config(), Laps()
            await graph.ainvoke({"messages": []}, config, durability="sync")
            lap("say")
            size = file_size(path) / runs
            await graph.aget_state(config)  # the first one may open a connection
            lap("size")
            read = [len((await graph.aget_state(config)).values["messages"]) for _ in range(READS)]
            lap("read")
            count = len([state async for state in graph.aget_state_history(config)])
            lap("list")
            listed = [len(state.values.get("messages", ())) async for state in graph.aget_state_history(config)]
            lap("look")
            again = await graph.ainvoke({"messages": []}, config, durability="sync")
            lap("resume")
            assert set(read) == {max(listed)} == {n} and n <= count and len(again["messages"]) == n + 1
            figures = lap.milliseconds("read", "list", "look", "resume")
            figures["read_ms"] /= READS
            return {"us": lap.seconds["say"] / n * 1e6, "file_mb": size / 1e6, **figures}

        return Case(run=run, units=n, right=bool, figures=lambda result: result)

    async def compiling(self, nodes: int) -> Case:
        async def run() -> Any:
            return self._chain(nodes).compile()

        return Case(run=run, units=1, right=lambda result: hasattr(result, "ainvoke"))
