"""pydantic-graph: steps, decisions, maps and joins of its GraphBuilder.

It stores no threads, so rows with a saver are empty. Data are the steps' outputs, or one state that all steps of a run
share without isolation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from pydantic_graph import (  # pyright: ignore[reportMissingImports]  # in nox's bench session
    GraphBuilder,
    TypeExpression,
    reduce_list_extend,
    reduce_null,
)

from ..workloads import (
    SUBJECT,
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

NO_THREADS = "it keeps no threads"


def piped(node: Any) -> Any:
    """A step that passes on the node's result for its input."""

    async def call(ctx: Any) -> Any:
        return await node(ctx.inputs)

    return call


def stateful(node: Any, route: Callable[[Any], Any] = lambda state: None) -> Any:
    """A step that merges the node's update into the state, its messages after the existing ones, and passes on the next
    step."""

    async def call(ctx: Any) -> Any:
        update = await node(ctx.state)
        if "messages" in update:
            ctx.state["messages"].extend(update.pop("messages"))
        ctx.state.update(update)
        return route(ctx.state)

    return call


async def whole(ctx: Any) -> Any:
    return ctx.state


class Driver:
    """The workloads that need no saver."""

    def __init__(self, stack: AsyncExitStack) -> None:
        pass

    def _builder(self) -> Any:
        return GraphBuilder(state_type=dict, input_type=dict, output_type=dict)

    def _chain(self, n: int) -> Any:
        g = self._builder()
        steps = [g.step(piped(increment), node_id=f"n{place}") for place in range(n)]
        for before, after in zip([g.start_node, *steps], [*steps, g.end_node], strict=True):
            g.add(g.edge_from(before).to(after))
        return g

    def _branch(self, g: Any, done: Callable[[Any], bool], end: Any, again: Any) -> Any:
        first = g.match(TypeExpression[dict], matches=done).to(end)
        return g.decision().branch(first).branch(g.match(TypeExpression[dict]).to(again))

    def _loop(self, node: Any, n: int) -> Any:
        g = self._builder()
        only = g.step(piped(node), node_id="node")
        g.add(g.edge_from(g.start_node).to(only))
        g.add(g.edge_from(only).to(self._branch(g, lambda state: state["x"] >= n, g.end_node, only)))
        return g.build()

    def _shared_loop(self, nodes: dict[str, tuple[Any, Callable[[Any], Any]]]) -> Any:
        """Steps on one state, each of which names the next step, or None at the end."""
        g = self._builder()
        steps = {name: g.step(stateful(node, route), node_id=name) for name, (node, route) in nodes.items()}
        end = g.step(whole, node_id="whole")
        g.add(g.edge_from(g.start_node).to(next(iter(steps.values()))), g.edge_from(end).to(g.end_node))
        for only in steps.values():
            decision = g.decision()
            for other, target in steps.items():
                branch = g.match(TypeExpression[str], matches=lambda said, other=other: said == other)  # bound now
                decision = decision.branch(branch.to(target))
            g.add(g.edge_from(only).to(decision.branch(g.match(TypeExpression[Any]).to(end))))
        return g.build()

    async def chain(self, n: int, saver: str | None = None, durability: str = "sync", pause: float = 0) -> Case:
        if saver is not None:
            raise CannotError(NO_THREADS)
        graph = self._chain(n).build()
        return Case(run=lambda: graph.run(inputs={"x": 0}), units=n, right=lambda result: result["x"] == n)

    async def loop(self, n: int) -> Case:
        graph = self._loop(increment, n)
        return Case(run=lambda: graph.run(inputs={"x": 0}), units=n, right=lambda result: result["x"] == n)

    async def flat(self, n: int, early: int) -> Case:
        gauge = Gauge(early, n)
        graph = self._loop(gauge, n)
        return Case(
            run=lambda: graph.run(inputs={"x": 0}),
            units=n,
            right=lambda result: result["x"] == n,
            figures=lambda result: gauge.seen,
        )

    async def wide(self, keys: int, turns: int) -> Case:
        names = wide_keys(keys)
        g = self._builder()

        def done(state: Any) -> dict[str, bool]:
            return {"done": state["round"] >= turns}

        one, two, three, four, five, six = (
            g.step(stateful(wide_node(place, names), done), node_id=name) for place, name in enumerate(WIDE)
        )
        end = g.step(whole, node_id="whole")
        both = g.join(reduce_null, initial=None)
        g.add(
            g.edge_from(g.start_node).to(one),
            g.edge_from(one).to(two),
            g.edge_from(two).to(three, four),
            g.edge_from(three, four).to(both),
            g.edge_from(both).to(five),
            g.edge_from(five).to(six),
            g.edge_from(six).to(self._branch(g, lambda said: said["done"], end, one)),
            g.edge_from(end).to(g.end_node),
        )
        graph = g.build()
        return Case(
            run=lambda: graph.run(state={**dict.fromkeys(names, 0), "round": 0}, inputs={}),
            units=turns * 5,
            right=lambda result: result["round"] == turns and result[names[2]] == 1,
        )

    async def subgraph(self, calls: int) -> Case:
        g = self._builder()
        first, second, third = (g.step(piped(node), node_id=node.__name__) for node in (edit, generate, bump))
        g.add(
            g.edge_from(g.start_node).to(first),
            g.edge_from(first).to(second),
            g.edge_from(second).to(third),
            g.edge_from(third).to(self._branch(g, ends_with_bumps, g.end_node, third)),
        )
        inner = g.build()

        async def joke(item: Any) -> list[str]:
            found: list[str] = (await inner.run(inputs=item))["jokes"]
            return found

        async def spread(given: Any) -> list[Any]:
            return [{"subject": subject} for subject in given["subjects"]]

        async def collect(jokes: Any) -> Any:
            return {"jokes": jokes}

        graph = self._map(spread, joke, collect)
        return Case(
            run=lambda: graph.run(inputs={"subjects": [SUBJECT] * calls}),
            units=calls,
            right=lambda result: len(result["jokes"]) == calls and ends_with_bumps(result),
        )

    def _map(self, spread: Any, each: Any, end: Any) -> Any:
        """A list, a step for each of its items, and a step that gets their joined lists."""
        g = self._builder()
        first, second, third = (g.step(piped(node), node_id=node.__name__) for node in (spread, each, end))
        joined = g.join(reduce_list_extend, initial_factory=list)
        g.add(
            g.edge_from(g.start_node).to(first),
            g.edge_from(first).map().to(second),
            g.edge_from(second).to(joined),
            g.edge_from(joined).to(third),
            g.edge_from(third).to(g.end_node),
        )
        return g.build()

    async def fanout(self, n: int, waits: bool = False) -> Case:
        each = work_later if waits else work

        async def spread(given: Any) -> list[Any]:
            return [{"i": i} for i in range(given["n"])]

        async def one(item: Any) -> list[int]:
            return (await each(item))["out"]

        async def reduce(out: Any) -> dict[str, int]:
            return await total({"out": out})

        graph = self._map(spread, one, reduce)
        return Case(
            run=lambda: graph.run(inputs={"n": n}),
            units=n,
            right=lambda result: result["total"] == n * (n - 1) // 2,
        )

    async def agent(self, turns: int, saver: str | None = None) -> Case:
        if saver is not None:
            raise CannotError(NO_THREADS)
        graph = self._shared_loop(
            {
                "agent": (agent, lambda state: "tool" if asks(state) else None),
                "tool": (tool, lambda state: "agent"),
            }
        )
        return Case(
            run=lambda: graph.run(state=question(turns), inputs={}),
            units=2 * turns + 1,
            right=lambda result: len(result["messages"]) == 2 * turns + 2,
        )

    async def reads(self, messages: int, how: str, flat: bool = False, supersteps: int = 20) -> Case:
        reader = MessageReader(how)
        graph = self._shared_loop({"node": (reader, lambda state: "node" if state["x"] < supersteps else None)})
        said = conversation(messages, flat=flat)
        return Case(
            run=lambda: graph.run(state={"messages": said, "x": 0}, inputs={}),
            units=supersteps,
            right=lambda result: result["x"] == supersteps,
            figures=reader.figures,
        )

    async def stream(self, n: int, mode: str) -> Case:
        if mode != "updates":
            raise CannotError("its runs show tasks, and no state")
        graph = self._loop(increment, n)

        async def run() -> tuple[int, float]:
            begun, first, count = time.perf_counter(), 0.0, 0
            async with graph.iter(inputs={"x": 0}) as steps:
                async for _ in steps:
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
        raise CannotError(NO_THREADS)

    async def thread(self, n: int) -> Case:
        raise CannotError(NO_THREADS)

    async def compiling(self, nodes: int) -> Case:
        async def run() -> Any:
            return self._chain(nodes).build()

        return Case(run=run, units=1, right=lambda result: hasattr(result, "run"))
