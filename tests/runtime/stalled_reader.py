"""A program whose node writes chunks of 100 KB to a reader that stops after ten; it prints the outcome.

python stalled_reader.py BACKEND WRITER POLICY CHUNKS
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any, TypedDict

import anyio
import anyio.lowlevel

from pregel_async import START, StateGraph, StreamWriter, get_stream_writer, task

SIZE = 100_000


class State(TypedDict, total=False):
    x: int


def chunk(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


def graph_of(writer: str, count: int) -> tuple[Any, list[int]]:
    """Return a graph that writes the given number of chunks, and a counter of written chunks."""
    written = [0]

    def put(number: int) -> Any:
        written[0] += 1
        return get_stream_writer()(chunk(number))

    def plain(state: State) -> None:
        for number in range(count):
            put(number)

    async def awaits_the_writer(state: State) -> None:
        for number in range(count):
            await put(number)

    async def awaits_something_else(state: State) -> None:
        for number in range(count):
            put(number)
            await anyio.sleep(0)

    async def never_waits(state: State) -> None:
        for number in range(count):
            put(number)

    @task
    async def called() -> None:
        await awaits_something_else({})

    async def calls(state: State) -> None:
        await called()

    async def message(state: State, writer: StreamWriter) -> None:
        for number in range(count):
            written[0] += 1
            await writer.message({"role": "ai", "content": chunk(number), "id": "1"})

    nodes = {
        "plain": plain,
        "awaits the writer": awaits_the_writer,
        "awaits something else": awaits_something_else,
        "never waits": never_waits,
        "task": calls,
        "message": message,
    }
    inner = StateGraph(State).add_node("n", nodes.get(writer, awaits_something_else)).add_edge(START, "n").compile()
    if writer != "graph inside":
        return inner, written
    return StateGraph(State).add_node("sub", inner).add_edge(START, "sub").compile(), written


async def main(writer: str, policy: Any, count: int) -> dict[str, Any]:
    graph, written = graph_of(writer, count)
    mode: Any = "messages" if writer == "message" else "custom"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with graph.astream({}, stream_mode=mode, subgraphs=writer == "graph inside", overflow=policy) as stream:
        for _ in range(10):
            await anext(stream, None)  # chunks that the policy has dropped meanwhile do not arrive
        same = 0
        while same < 200 and not stream._buffer.ended:  # the reader stalls until all activity has stopped
            now = written[0]
            await anyio.lowlevel.checkpoint()
            if writer == "plain":
                await anyio.sleep(0.0005)
            same = same + 1 if written[0] == now else 0
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        stopped, unread, failure = written[0], len(stream._buffer.parts), None
        if policy == "block" and writer != "never waits":
            return {"written": stopped, "unread": unread, "grown": grown, "failure": None}
        read = 0
        try:
            async for _ in stream:
                read += 1
        except Exception as error:
            failure = type(error).__name__
        return {"written": stopped, "unread": unread, "grown": grown, "failure": failure, "read": read}


if __name__ == "__main__":
    backend, writer, policy, count = sys.argv[1:]
    print(json.dumps(anyio.run(main, writer, policy, int(count), backend=backend)))
