"""Graphs that create threads for the tests of upkeep, and the savers that store them."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from pregel_async import START, StateGraph, interrupt, task
from pregel_async.testing import FaultySaver
from tests.helpers.postgres_tools import reused_schema, unsynced

KINDS = ("memory", "sqlite", "postgres", "passing")


@asynccontextmanager
async def opened(kind: str, path: Path, name: str = "threads.db") -> AsyncIterator[BaseCheckpointSaver]:
    if kind == "sqlite":
        async with SqliteSaver(path / name, synchronous="NORMAL") as saver:
            yield saver
    elif kind == "postgres":
        with reused_schema() as schema:
            async with PostgresSaver(unsynced(), schema=schema) as saver:
                yield saver
    elif kind == "passing":
        yield FaultySaver(InMemorySaver())
    else:
        yield InMemorySaver()


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    large: str


class Ran:
    """The nodes that have run, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ids: list[str] = []

    def take(self) -> list[str]:
        names, self.names = self.names, []
        return names


def steps(saver: BaseCheckpointSaver | None, ran: Ran | None = None, **settings: Any) -> Any:
    """Two nodes, one after the other."""
    ran = ran or Ran()

    def one(state: State) -> State:
        ran.names.append("one")
        return {"log": ["one"]}

    def two(state: State) -> State:
        ran.names.append("two")
        return {"log": ["two"]}

    made = StateGraph(State).add_node("one", one).add_node("two", two).add_edge(START, "one").add_edge("one", "two")
    return made.compile(saver, **settings)


def asking(saver: BaseCheckpointSaver | None, ran: Ran, **settings: Any) -> Any:
    """`ask` asks two questions in one superstep with `work`, which finishes; `end` follows."""

    @task
    async def look(what: str) -> str:
        ran.names.append(f"look {what}")
        return what

    async def ask(state: State) -> State:
        ran.names.append("ask")
        found = await look("first")
        return {"log": [found, interrupt("one?"), interrupt("two?")]}

    def work(state: State) -> State:
        ran.names.append("work")
        return {"log": ["work"]}

    def end(state: State) -> State:
        ran.names.append("end")
        return {"log": ["end"]}

    made = StateGraph(State).add_node("ask", ask).add_node("work", work).add_node("end", end)
    made.add_edge(START, "ask").add_edge(START, "work").add_edge(["ask", "work"], "end")
    return made.compile(saver, **settings)


def nested(saver: BaseCheckpointSaver | None, ran: Ran, *, keeps: bool | None = None, asks: bool = True) -> Any:
    """A subgraph that works, asks and ends; with `keeps` it keeps its state between calls."""

    def work(state: State) -> State:
        ran.names.append("inner work")
        return {"log": [f"inner {len(state.get('log', []))}"]}

    def ask(state: State) -> State:
        ran.names.append("inner ask")
        return {"log": [interrupt("inside?")]} if asks else {"log": ["said"]}

    inner = (
        StateGraph(State).add_node("work", work).add_node("ask", ask).add_edge(START, "work").add_edge("work", "ask")
    )

    def after(state: State) -> State:
        ran.names.append("after")
        return {"log": ["after"]}

    made = StateGraph(State).add_node("inner", inner.compile(keeps)).add_node("after", after)
    return made.add_edge(START, "inner").add_edge("inner", "after").compile(saver)


def at(thread_id: str, checkpoint_id: str | None, ns: str = "") -> dict[str, Any]:
    known: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ns}
    return {"configurable": known if checkpoint_id is None else {**known, "checkpoint_id": checkpoint_id}}


async def ids_of(saver: BaseCheckpointSaver, thread_id: str, ns: str | None = "") -> list[str]:
    """The ids of a thread's checkpoints, oldest first."""
    return [header.checkpoint_id for header in reversed(await saver.scan(thread_id, ns, limit=10_000))]
