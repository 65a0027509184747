"""Build two versions of a graph on one saver, and leave threads of the first one in each state that a thread can have."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import pytest

from pregel_async import START, StateGraph, interrupt


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int


ran: list[str] = []
"""The names of the nodes that ran."""

failing: set[str] = set()
"""The names of the nodes that fail."""


class Stopped(Exception):
    """A node fails because the test says so."""


def says(name: str, update: Mapping[str, Any] | None = None) -> Callable[[Any], Any]:
    """Return a node's function that writes its name, and fails while its name is in `failing`."""

    def call(state: Any) -> Any:
        ran.append(name)
        if name in failing:
            raise Stopped(name)
        return {"log": [name]} if update is None else dict(update)

    return call


def asks(name: str) -> Callable[[Any], Any]:
    def call(state: Any) -> Any:
        ran.append(name)
        return {"log": [f"{name}: {interrupt(f'{name}?')}"]}

    return call


def built(schema: Any, nodes: Mapping[str, Any], edges: Sequence[tuple[Any, str]], saver: Any, **options: Any) -> Any:
    """Compile a graph. A node is a function, or a pair of a function and options of `add_node`."""
    builder = StateGraph(schema)
    for name, node in nodes.items():
        call, given = node if isinstance(node, tuple) else (node, {})
        builder.add_node(name, call, **given)
    for start, end in edges:
        builder.add_edge(start, end)
    return builder.compile(saver, blocking=False, **options)


def line(schema: Any, *names: str, saver: Any, **options: Any) -> Any:
    """Compile a graph of nodes in a line."""
    edges = list(zip((START, *names), names, strict=False))
    return built(schema, {name: says(name) for name in names}, edges, saver, **options)


async def failed(graph: Any, *names: str, given: Any = None, thread: str = "t") -> None:
    """Run a graph whose named nodes fail, so that the superstep stays open with the results of the others."""
    failing.update(names)
    try:
        with pytest.raises((Stopped, ExceptionGroup)):
            await graph.ainvoke(given, thread)
    finally:
        failing.clear()
        ran.clear()


async def states(graph: Any, thread: str = "t") -> list[Any]:
    """Return the history of a thread."""
    return [state async for state in graph.aget_state_history(thread)]


def of(state: Any) -> list[tuple[str, str, str]]:
    """Return what of a thread has changed: kind, name, and what it blocks."""
    return [(each.kind, each.name, each.blocks) for each in state.changed]
