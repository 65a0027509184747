"""Watch a run: each task's update as it finishes, the state after each superstep, or both in one stream.

Two nodes of one superstep run concurrently, and neither sees the other's update before both have ended.

python examples/02_streaming.py
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio

from pregel_async import START, StateGraph


class Input(TypedDict):
    text: str


class State(Input):
    findings: Annotated[list[str], operator.add]
    verdict: str


async def count_words(state: State) -> dict[str, Any]:
    return {"findings": [f"{len(state['text'].split())} words"]}


async def look_for_questions(state: State) -> dict[str, Any]:
    return {"findings": ["a question" if "?" in state["text"] else "no question"]}


async def conclude(state: State) -> dict[str, Any]:
    return {"verdict": ", ".join(state["findings"])}


graph = (
    StateGraph(State, input_schema=Input)
    .add_node("count_words", count_words)
    .add_node("look_for_questions", look_for_questions)
    .add_node("conclude", conclude)
    .add_edge(START, "count_words")
    .add_edge(START, "look_for_questions")
    .add_edge(["count_words", "look_for_questions"], "conclude")  # an edge from a list waits for all of its nodes
    .compile()
)


async def main() -> None:
    given: Input = {"text": "What runs when?"}

    print("updates, as the tasks finish:")
    async with graph.astream(given) as updates:  # leaving the block ends the run, also after an exception
        async for update in updates:
            print("   ", update)

    print("the state after each superstep:")
    async with graph.astream(given, stream_mode="values") as states:
        async for state in states:
            print("   ", state)

    print("several modes at once, each chunk with its mode:")
    async with graph.astream(given, stream_mode=["updates", "tasks"]) as chunks:
        async for mode, chunk in chunks:
            if mode == "tasks":
                print("   ", "planned" if "input" in chunk else "ended  ", chunk["name"])
            else:
                print("   ", "update ", chunk)


if __name__ == "__main__":
    anyio.run(main)
