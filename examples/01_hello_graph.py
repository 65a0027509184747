"""A graph in twenty lines: a state, two nodes, and the edges between them.

python examples/01_hello_graph.py
"""

import operator
from typing import Annotated, Any, TypedDict

import anyio

from pregel_async import END, START, StateGraph


class Input(TypedDict):
    name: str


class State(Input):
    words: Annotated[list[str], operator.add]  # the reducer appends each update; `name` keeps the last value


def greet(state: State) -> dict[str, Any]:
    return {"words": ["hello"]}


async def address(state: State) -> dict[str, Any]:
    return {"words": [state["name"]]}


builder = StateGraph(State, input_schema=Input)
builder.add_node("greet", greet).add_node("address", address)
builder.add_edge(START, "greet").add_edge("greet", "address").add_edge("address", END)
graph = builder.compile()


async def main() -> None:
    result = await graph.ainvoke({"name": "graph"})
    print(" ".join(result["words"]))


if __name__ == "__main__":
    anyio.run(main)
