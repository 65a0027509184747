"""Use a compiled graph as a node. Parent and subgraph share the keys that both states have.

The subgraph's state is stored on the parent's thread: its question is a question of the whole thread, and nodes that
ran before the question do not run again. With `Command(graph=Command.PARENT)`, a node of the subgraph ends its graph
and chooses the parent's next node.

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
    notes: str  # a key of the subgraph only: the parent never sees it


def look_up(call: Support) -> dict[str, Any]:
    print("    looking it up")
    return {"notes": f"what we know of {call['text']!r}"}


def reply(call: Support) -> Command[Any]:
    said = interrupt(f"{call['notes']}. What do I say?")
    if said == "not mine":
        return Command(graph=Command.PARENT, goto="sales")  # the subgraph ends here
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
        inner: Any = state.tasks[0].state  # the state of the subgraph that this task runs
        print(f"    {state.next[0]} is at {inner.next[0]}, which asks: {state.interrupts[0].value}")
        result = await graph.ainvoke(Command(resume=answer), thread)
        print(f"    {result['answer']}")


if __name__ == "__main__":
    anyio.run(main)
