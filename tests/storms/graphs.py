"""The graphs of a storm, and what their runs must leave in a thread's log.

Each request has a mark of its own. The input appends `MARK.in` to the log, each node `MARK.NODE`. So the log shows which
inputs were applied, how often, and in which order. Each node also notes that it began, in a file of its own (`Effects`),
which no rollback and no lost worker takes back.
"""

from __future__ import annotations

import json
import operator
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio

from pregel_async import START, StateGraph
from pregel_async.runtime import Runtime, interrupt
from pregel_async.service import Run

EXPECTED: dict[str, list[list[str]]] = {
    "chain": [["in"], ["a"], ["b"], ["c"]],
    "wide": [["in"], ["plan"], ["p0", "p1", "p2"], ["join"]],
    "ask": [["in"], ["a"]],
    "answer": [["ask"], ["c"]],
}
"""What a run that is not cancelled appends to the log, by kind of request: the names of each superstep."""

SUPERSTEP = {"plan": 1, "p0": 2, "p1": 2, "p2": 2, "join": 3, "a": 1, "b": 2, "ask": 2, "c": 3}
"""The number of the superstep in which a node runs."""


class State(TypedDict, total=False):
    mark: str
    log: Annotated[list[str], operator.add]


@dataclass
class Attempt:
    """The context of nodes: which run executes them, and its how manieth attempt it is."""

    run_id: str
    number: int


def attempt_of(run: Run) -> Attempt:
    """Make the context of a run's nodes."""
    return Attempt(run.run_id, run.attempt)


class Effects:
    """A file to which nodes append, in many processes at once.

    Args:
        file: its descriptor, opened with `O_APPEND`; None to write nothing.
    """

    def __init__(self, file: int | None) -> None:
        self._file = file

    def write(self, attempt: Attempt, node: str) -> None:
        """Note that a node begins. One short write: the lines of several processes do not mix."""
        if self._file is not None:
            os.write(self._file, json.dumps([attempt.run_id, attempt.number, node]).encode() + b"\n")


@contextmanager
def opened_effects(path: Path) -> Iterator[Effects]:
    """Open the file of effects for appending."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        yield Effects(file)
    finally:
        os.close(file)


def graphs(effects: Effects, longest: float = 0.02) -> dict[str, Any]:
    """The graphs by name.

    Args:
        effects: where nodes note that they began.
        longest: seconds that a node takes at most.
    """

    def node(name: str) -> Any:
        async def run(state: State, runtime: Runtime[Attempt]) -> dict[str, Any]:
            effects.write(runtime.context, name)
            await anyio.sleep(random.random() * longest)
            return {"log": [f"{state['mark']}.{name}"]}

        return run

    def ask(state: State, runtime: Runtime[Attempt]) -> dict[str, Any]:
        effects.write(runtime.context, "ask")
        mark = interrupt("what is the mark?")
        return {"mark": mark, "log": [f"{mark}.ask"]}

    def built(*edges: tuple[str, str]) -> Any:
        builder = StateGraph(State, context_schema=Attempt)
        for name in sorted({name for edge in edges for name in edge} - {START}):
            builder.add_node(name, ask if name == "ask" else node(name))
        for first, second in edges:
            builder.add_edge(first, second)
        return builder.compile(blocking=False)

    middle = ("p0", "p1", "p2")
    wide = [(START, "plan"), *(("plan", name) for name in middle), *((name, "join") for name in middle)]
    return {
        "chain": built((START, "a"), ("a", "b"), ("b", "c")),
        "wide": built(*wide),
        "ask": built((START, "a"), ("a", "ask"), ("ask", "c")),
    }
