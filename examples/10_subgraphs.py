"""Graphs in graphs: a compiled graph is a node. It shares the keys that both states have.

Its state is stored with the graph around it: a question inside is a question of the whole thread, and what had run
before it does not run again. A node inside can end its graph and send the one around it somewhere, with
`Command(graph=Command.PARENT)`.

python examples/10_subgraphs.py
"""

from __future__ import annotations

from typing import Any, TypedDict

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt


class Input(TypedDict):
    text: str


class Call(Input):
    answer: str


class Support(Call):
    notes: str  # this key is the inner graph's own: the graph around it never sees it


def look_up(call: Support) -> dict[str, Any]:
    print("    looking it up")
    return {"notes": f"what we know of {call['text']!r}"}


def reply(call: Support) -> Command[Any]:
    said = interrupt(f"{call['notes']}. What do I say?")
    if said == "not mine":
        return Command(graph=Command.PARENT, goto="sales")  # this graph ends here
    return Command(update={"answer": said})


support = (
    StateGraph(Support, input_schema=Input)
    .add_node("look_up", look_up)
    .add_node("reply", reply)
    .add_edge(START, "look_up")
    .add_edge("look_up", "reply")
    .compile(name="support")
)


def sales(call: Call) -> dict[str, Any]:
    return {"answer": "sales will call you back"}


builder = StateGraph(Call, input_schema=Input).add_node(support).add_node("sales", sales).add_edge(START, "support")


async def main() -> None:
    graph = builder.compile(InMemorySaver())
    for thread, answer in (("call-1", "turn it off and on"), ("call-2", "not mine")):
        print(f"{thread}:")
        await graph.ainvoke({"text": "a kettle"}, thread)
        state = await graph.aget_state(thread, subgraphs=True)
        inner: Any = state.tasks[0].state  # the state of the graph that this task runs
        print(f"    {state.next[0]} is at {inner.next[0]}, which asks: {state.interrupts[0].value}")
        result = await graph.ainvoke(Command(resume=answer), thread)
        print(f"    {result['answer']}")


if __name__ == "__main__":
    anyio.run(main)
