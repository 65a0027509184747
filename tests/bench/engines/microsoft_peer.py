"""Microsoft Agent Framework: executors that send messages to each other, in supersteps of a workflow.

A state is a message, or is stored by executors with `set_state`. The framework has no Send: executors get one message
for each task, and their messages are counted on arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from agent_framework import (  # pyright: ignore[reportMissingImports]  # in nox's bench session
    FunctionExecutor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
)

from ..workloads import (
    SUBJECT,
    UNLIMITED,
    WIDE,
    CannotError,
    Case,
    Gauge,
    MessageReader,
    agent,
    asks,
    bump,
    conversation,
    edit,
    ends_with_bumps,
    generate,
    increment,
    question,
    tool,
    total,
    wide_keys,
    wide_node,
    work,
    work_later,
)

NO_SQLITE = "it keeps checkpoints in memory and in files, and not in a database"


def executor(name: str, call: Any, takes: Any = dict) -> Any:
    """An executor that may send and yield any value."""

    async def run(  # the framework reads the annotation
        given: Any,
        ctx: WorkflowContext[Any, Any],  # pyright: ignore[reportUnknownParameterType]  # its class is known in nox's bench session only
    ) -> None:
        await call(given, ctx)

    return FunctionExecutor(run, id=name, input=takes, output=dict, workflow_output=dict)


def passing(name: str, node: Any, last: Callable[[Any], bool] = lambda update: False) -> Any:
    """An executor that sends the node's result on; the last one yields the workflow's output."""

    async def call(given: Any, ctx: Any) -> None:
        update = await node(given)
        await (ctx.yield_output(update) if last(update) else ctx.send_message(update))

    return executor(name, call)


def counting(name: str, key: str, expected: int, node: Any) -> Any:
    """An executor that joins the lists that it gets, and yields the node's result for all of them."""
    found: list[Any] = []

    async def call(given: Any, ctx: Any) -> None:
        found.extend(given[key])
        if len(found) == expected:
            joined = list(found)
            found.clear()
            await ctx.yield_output(await node({key: joined}))

    return executor(name, call)


class Shared:
    """The state as a node sees it: each key that the node reads is copied by the framework, once."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx
        self.taken: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self.taken:
            self.taken[key] = self.ctx.get_state(key)
        return self.taken[key]


def sharing(name: str, node: Any, done: Callable[[Any], bool] = lambda seen: False, takes: Any = dict) -> Any:
    """An executor that stores the node's update with `set_state`, its messages after the existing ones. It sends only
    counts, and whether the agent has called a tool.

    What it sends is small: counts, and whether the agent has called a tool.
    """

    async def call(given: Any, ctx: Any) -> None:
        state = Shared(ctx)
        update = await node(state)
        if "messages" in update:
            update = {**update, "messages": state["messages"] + update["messages"]}
        for key, value in update.items():
            ctx.set_state(key, value)
        seen = {key: update[key] for key in ("round", "x") if key in update}
        if "messages" in update:
            seen = {"said": len(update["messages"]), "asks": asks(update)}
        await (ctx.yield_output(seen) if done(seen) else ctx.send_message(seen))

    return executor(name, call, takes)


async def keep(given: Any, ctx: Any) -> None:
    """The input becomes the state."""
    for key, value in given.items():
        ctx.set_state(key, value)
    await ctx.send_message({})


async def same(given: Any) -> Any:
    return given


def build(first: Any, *edges: tuple[Any, Any], storage: Any = None) -> Any:
    """Build a workflow of plain edges."""
    builder = WorkflowBuilder(max_iterations=UNLIMITED, start_executor=first, checkpoint_storage=storage)
    for before, after in edges:
        builder.add_edge(before, after)
    return builder.build()


async def output(workflow: Any, given: Any) -> Any:
    (found,) = (await workflow.run(given)).get_outputs()
    return found


class Driver:
    """The workloads that need no database."""

    def __init__(self, stack: AsyncExitStack) -> None:
        pass

    def _chain(self, n: int, storage: Any = None) -> Any:
        chain = [passing(f"n{place}", increment, lambda update: update["x"] >= n) for place in range(n)]
        return build(chain[0], *zip(chain, chain[1:], strict=False), storage=storage)

    async def chain(self, n: int, saver: str | None = None, durability: str = "sync", pause: float = 0) -> Case:
        if saver not in (None, "memory"):
            raise CannotError(NO_SQLITE)
        workflow = self._chain(n)

        async def run() -> Any:
            storage = InMemoryCheckpointStorage() if saver else None
            (found,) = (await workflow.run({"x": 0}, checkpoint_storage=storage)).get_outputs()
            return found

        return Case(run=run, units=n, right=lambda result: result["x"] == n)

    def _loop(self, node: Any, n: int) -> Any:
        only = passing("node", node, lambda update: update["x"] >= n)
        return build(only, (only, only))

    async def loop(self, n: int) -> Case:
        workflow = self._loop(increment, n)
        return Case(run=lambda: output(workflow, {"x": 0}), units=n, right=lambda result: result["x"] == n)

    async def flat(self, n: int, early: int) -> Case:
        gauge = Gauge(early, n)
        workflow = self._loop(gauge, n)
        return Case(
            run=lambda: output(workflow, {"x": 0}),
            units=n,
            right=lambda result: result["x"] == n,
            figures=lambda result: gauge.seen,
        )

    async def wide(self, keys: int, turns: int) -> Case:
        names = wide_keys(keys)
        first = executor("keep", keep)
        one, two, three, four, five, six = (
            sharing(
                name,
                wide_node(place, names),
                lambda seen: seen.get("round", 0) >= turns,
                list[Any] if name == "five" else dict,
            )
            for place, name in enumerate(WIDE)
        )
        builder = WorkflowBuilder(max_iterations=UNLIMITED, start_executor=first)
        for before, after in ((first, one), (one, two), (five, six), (six, one)):
            builder.add_edge(before, after)
        workflow = builder.add_fan_out_edges(two, [three, four]).add_fan_in_edges([three, four], five).build()
        given = {**dict.fromkeys(names, 0), "round": 0}
        return Case(run=lambda: output(workflow, given), units=turns * 5, right=lambda result: result["round"] == turns)

    async def subgraph(self, calls: int) -> Case:
        first, second = passing("edit", edit), passing("generate", generate)
        third = passing("bump", bump, lambda update: "jokes" in update and ends_with_bumps(update))
        inner = build(first, (first, second), (second, third), (third, third))

        async def spread(given: Any, ctx: Any) -> None:
            for subject in given["subjects"]:
                await ctx.send_message({"subject": subject})

        start, each = executor("spread", spread), WorkflowExecutor(inner, id="joke")
        end = counting("collect", "jokes", calls, same)
        workflow = build(start, (start, each), (each, end))
        given = {"subjects": [SUBJECT] * calls}
        return Case(
            run=lambda: output(workflow, given),
            units=calls,
            right=lambda result: len(result["jokes"]) == calls and ends_with_bumps(result),
        )

    async def fanout(self, n: int, waits: bool = False) -> Case:
        async def spread(given: Any, ctx: Any) -> None:
            for i in range(given["n"]):
                await ctx.send_message({"i": i})

        start, each = executor("spread", spread), passing("work", work_later if waits else work)
        end = counting("reduce", "out", n, total)
        workflow = build(start, (start, each), (each, end))
        return Case(
            run=lambda: output(workflow, {"n": n}), units=n, right=lambda result: result["total"] == n * (n - 1) // 2
        )

    async def agent(self, turns: int, saver: str | None = None) -> Case:
        if saver is not None:
            raise CannotError(NO_SQLITE)
        start = executor("keep", keep)
        first = sharing("agent", agent, lambda seen: not seen["asks"])
        second = sharing("tool", tool)
        workflow = build(start, (start, first), (first, second), (second, first))
        return Case(
            run=lambda: output(workflow, question(turns)),
            units=2 * turns + 1,
            right=lambda result: result == {"said": 2 * turns + 2, "asks": False},
        )

    async def reads(self, messages: int, how: str, flat: bool = False, supersteps: int = 20) -> Case:
        reader = MessageReader(how)
        start, only = executor("keep", keep), sharing("node", reader, lambda seen: seen["x"] >= supersteps)
        workflow = build(start, (start, only), (only, only))
        given = {"messages": conversation(messages, flat=flat), "x": 0}
        return Case(
            run=lambda: output(workflow, given),
            units=supersteps,
            right=lambda result: result["x"] == supersteps,
            figures=reader.figures,
        )

    async def stream(self, n: int, mode: str) -> Case:
        if mode != "updates":
            raise CannotError("its streams show messages, and no state")
        workflow = self._loop(increment, n)

        async def run() -> tuple[int, float]:
            begun, first, count = time.perf_counter(), 0.0, 0
            async for _ in workflow.run({"x": 0}, stream=True):
                first = first or time.perf_counter() - begun
                count += 1
            return count, first

        return Case(
            run=run,
            units=n,
            right=lambda result: result[0] >= n,
            figures=lambda result: {"first_ms": result[1] * 1e3},
        )

    async def many(self, threads: int, saver: str, **rest: Any) -> Case:
        raise CannotError(NO_SQLITE)

    async def thread(self, n: int) -> Case:
        raise CannotError(NO_SQLITE)

    async def compiling(self, nodes: int) -> Case:
        async def run() -> Any:
            return self._chain(nodes)

        return Case(run=run, units=1, right=lambda result: hasattr(result, "run"))
