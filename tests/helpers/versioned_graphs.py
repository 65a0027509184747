"""Versions of one graph. Each asks, in a node of another name, and says which version was answered."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from pregel_async import START, StateGraph, interrupt
from pregel_async.versions import Versions


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


ran: list[int] = []


def graph(version: int, saver: Any = None, node: str | None = None) -> Any:
    """A graph that asks, and says which version was answered. Each version has a node of another name."""

    def ask(state: Log) -> Log:
        ran.append(version)
        answer = interrupt(f"{version}?")
        return {"log": [f"{version}: {answer}"]}

    name = node or f"ask{version}"
    return StateGraph(Log).add_node(name, ask).add_edge(START, name).compile(saver, version=version, blocking=False)


def versions(saver: Any, *numbers: int, **options: Any) -> Any:
    return Versions({number: graph(number, saver) for number in numbers}, **options)
