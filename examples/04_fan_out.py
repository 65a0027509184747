"""Fan out: a router sends one task for each item, and a reducer folds their results.

The tasks run concurrently, here at most four, and end in any order. The runtime folds their results in the order
of the sends, so the same input always gives the same state.

python examples/04_fan_out.py
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio

from pregel_async import START, Send, StateGraph


class Input(TypedDict):
    upto: int


class State(Input):
    primes: Annotated[list[int], operator.add]
    total: int


class Candidate(TypedDict):
    number: int


def plan(state: State) -> None:
    """Do nothing: the router after this node does the work."""


def one_task_per_number(state: State) -> list[Send]:
    return [Send("test", Candidate(number=number)) for number in range(2, state["upto"])]


async def test(candidate: Candidate) -> dict[str, Any]:
    number = candidate["number"]
    await anyio.sleep(0.01 / number)  # small numbers take longest
    is_prime = all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return {"primes": [number] if is_prime else []}


def add_up(state: State) -> dict[str, Any]:
    return {"total": sum(state["primes"])}


graph = (
    StateGraph(State, input_schema=Input)
    .add_node("plan", plan)
    .add_node("test", test)
    .add_node("add_up", add_up)
    .add_edge(START, "plan")
    .add_conditional_edges("plan", one_task_per_number, ["test"])
    .add_edge("test", "add_up")  # runs once, when all tasks have ended
    .compile()
)


async def main() -> None:
    result = await graph.ainvoke({"upto": 50}, {"max_concurrency": 4})
    print(f"primes: {result['primes']}")
    print(f"their sum: {result['total']}")
    print(graph.get_graph().draw_mermaid())


if __name__ == "__main__":
    anyio.run(main)
