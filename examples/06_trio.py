"""Run a graph on trio: a cancelled run has ended and cleaned up when control returns, and its thread can be resumed.

Graphs, streams and savers are the same objects on asyncio and on trio. Needs the extra `trio`.

python examples/06_trio.py
"""

from __future__ import annotations

import operator
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

import trio

from checkpoint_savers import SqliteSaver
from pregel_async import START, StateGraph


class Input(TypedDict):
    name: str


class State(Input):
    steps: Annotated[list[str], operator.add]


begun = trio.Event()


async def quick(state: State) -> dict[str, Any]:
    return {"steps": [f"hello, {state['name']}"]}


async def slow(state: State) -> dict[str, Any]:
    """Wait for ever in the first run, and return at once in the second."""
    if not begun.is_set():
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            print("    slow cleans up")
    return {"steps": [f"goodbye, {state['name']}"]}


builder = StateGraph(State, input_schema=Input).add_node("quick", quick).add_node("slow", slow)
builder.add_edge(START, "quick").add_edge("quick", "slow")


async def main(db: Path) -> None:
    async with SqliteSaver.from_conn_string(db) as saver:
        graph = builder.compile(saver)

        print("a run that is cancelled:")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(graph.ainvoke, Input(name="trio"), "thread-1")
            await begun.wait()
            nursery.cancel_scope.cancel()
        state = await graph.aget_state("thread-1")
        print(f"    stored: {state.values['steps']}, next: {state.next[0]}")

        print("the same thread, later:")
        result = await graph.ainvoke(None, "thread-1")
        print(f"    result: {result['steps']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder, "trio.db"))
