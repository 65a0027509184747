"""A process that writes a thread concurrently with others: python durable_writer.py DATABASE ACTION TIMES.

It prints "ready", waits for a line and acts: "reject" and "wait" count up in TIMES concurrent runs; "hold" starts a run
that never ends.
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

import anyio
import msgspec

from checkpoint_savers import SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, CompiledStateGraph, StateGraph
from pregel_async.errors import ThreadBusyError


class Counted(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


class WriterReport(msgspec.Struct):
    """The final report of a writer process: how many runs succeeded, how many were refused, how many nodes ran."""

    done: int = 0
    refused: int = 0
    ran: int = 0


def counter(saver: BaseCheckpointSaver, report: WriterReport, **settings: Any) -> CompiledStateGraph[Any]:
    """Return a graph that counts in two supersteps, reading in one and writing in the next, so that two writers would
    overwrite each other."""

    async def look(state: Counted) -> dict[str, Any]:
        report.ran += 1
        await anyio.lowlevel.checkpoint()
        return {"log": ["look"]}

    async def write(state: Counted) -> dict[str, Any]:
        n = state.get("n", 0)
        await anyio.lowlevel.checkpoint()
        return {"n": n + 1}

    graph = StateGraph(Counted).add_node("look", look).add_node("write", write)
    return graph.add_edge(START, "look").add_edge("look", "write").compile(saver, **settings)


async def main(database: str, action: str, times: int) -> None:
    report = WriterReport()

    async def once() -> None:
        try:
            await graph.ainvoke({}, "t", on_conflict="reject" if action == "reject" else "wait")
            report.done += 1
        except ThreadBusyError as error:
            assert not error.lost
            report.refused += 1

    async def lease(state: Counted) -> None:
        print("holding", flush=True)
        await anyio.sleep_forever()

    async with SqliteSaver.from_conn_string(database, busy_timeout=60) as saver:
        if action == "lease":
            graph = StateGraph(Counted).add_node("look", lease).add_edge(START, "look").compile(saver)
        else:
            graph = counter(saver, report)
        print("ready", flush=True)
        sys.stdin.readline()
        async with anyio.create_task_group() as group:
            for _ in range(times):
                group.start_soon(once)
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
