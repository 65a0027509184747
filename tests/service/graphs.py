"""Graphs for tests of services: each node appends its name to a log, and a gate holds a node until the test opens it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio

from pregel_async import START, StateGraph
from pregel_async.runtime import get_stream_writer, interrupt


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Gate:
    """Lets a test see that a node has begun, and decide when it ends."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.opened = anyio.Event()
        self.cancelled = 0
        self.left = anyio.Event()  # set when a wait was cancelled

    async def wait(self) -> None:
        self.begun.set()
        try:
            await self.opened.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            self.left.set()
            raise


def steps(*names: str) -> Any:
    """A graph whose nodes run one after the other."""
    builder = StateGraph(Log)
    for name in names:
        builder.add_node(name, lambda state, name=name: {"log": [name]})
    builder.add_edge(START, names[0])
    for first, second in zip(names, names[1:], strict=False):
        builder.add_edge(first, second)
    return builder.compile(blocking=False)


def gated(gate: Gate) -> Any:
    """A graph of the nodes `before`, `wait` (which waits at the gate) and `after`."""

    async def wait(state: Log) -> dict[str, Any]:
        await gate.wait()
        return {"log": ["wait"]}

    return (
        StateGraph(Log)
        .add_node("before", lambda state: {"log": ["before"]})
        .add_node("wait", wait)
        .add_node("after", lambda state: {"log": ["after"]})
        .add_edge(START, "before")
        .add_edge("before", "wait")
        .add_edge("wait", "after")
        .compile(blocking=False)
    )


TOKENS = 40
"""Parts that `talking` publishes before and after its gate: fewer than are stored because they need much memory."""


def talking(gate: Gate) -> Any:
    """A graph whose only node publishes parts of the mode "custom", waits at the gate, and publishes more."""

    async def talk(state: Log) -> dict[str, Any]:
        write = get_stream_writer()
        for at in range(TOKENS):
            write(at)
        await gate.wait()
        for at in range(TOKENS, 2 * TOKENS):
            write(at)
        return {"log": ["talk"]}

    return StateGraph(Log).add_node("talk", talk).add_edge(START, "talk").compile()


def asking() -> Any:
    """A graph that asks a person, and logs the answer."""

    def ask(state: Log) -> dict[str, Any]:
        return {"log": [interrupt("sure?")]}

    return StateGraph(Log).add_node("ask", ask).add_edge(START, "ask").compile(blocking=False)


def failing(*errors: Exception) -> Any:
    """A graph whose only node fails with each of these errors, and then succeeds."""
    left = list(errors)

    def work(state: Log) -> dict[str, Any]:
        if left:
            raise left.pop(0)
        return {"log": ["work"]}

    return StateGraph(Log).add_node("work", work).add_edge(START, "work").compile(blocking=False)
