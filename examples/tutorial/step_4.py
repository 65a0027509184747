"""Ask a person first: the run stops at the question, and continues when the answer comes, whenever that is."""

import asyncio
import re
from typing import Any

from checkpoint_savers import SqliteSaver
from pregel_async import END, START, Command, MessagesState, Send, StateGraph, interrupt


async def model(messages: list[Any]) -> dict[str, Any]:
    """A script in place of a language model."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"About your order: {last['content']}."}
    if order := re.search(r"\d+", last["content"]):
        tool = "refund" if "broken" in last["content"] else "look_up"
        call = {"id": f"call-{len(messages)}", "name": tool, "args": {"order": order[0]}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": "Which order?"}


async def look_up(order: str) -> str:
    return f"a kettle, number {order}, sent on Monday"


async def refund(order: str) -> str:
    print(f"    (40 euros are paid for order {order})")
    return "we pay you 40 euros"


TOOLS = {"look_up": look_up, "refund": refund}
ASK_FIRST = {"refund"}


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model(state["messages"])]}


def route(state: MessagesState) -> list[Send] | str:
    calls = state["messages"][-1].get("tool_calls", [])
    return [Send("use_tool", call) for call in calls] or END


async def use_tool(call: dict[str, Any]) -> dict[str, Any]:
    # The node runs again from its start when the answer comes: what must happen once is after the question.
    if call["name"] in ASK_FIRST and interrupt({"tool": call["name"], **call["args"]}) is not True:
        content = "a colleague has refused that"
    else:
        content = await TOOLS[call["name"]](**call["args"])
    return {"messages": [{"role": "tool", "tool_call_id": call["id"], "content": content}]}


builder = StateGraph(MessagesState).add_node(answer).add_node(use_tool)
builder.add_edge(START, "answer").add_conditional_edges("answer", route, ["use_tool", END])
builder.add_edge("use_tool", "answer")


async def main() -> None:
    async with SqliteSaver.from_conn_string("shop.db") as saver:
        graph = builder.compile(saver)
        await graph.ainvoke({"messages": [{"role": "user", "content": "The kettle of order 17 is broken."}]}, "bob")

    async with SqliteSaver.from_conn_string("shop.db") as saver:  # another process, another day
        graph = builder.compile(saver)
        for question in (await graph.aget_state("bob")).interrupts:
            print(f"allow? {question.value}")
            state = await graph.ainvoke(Command(resume={question.id: True}), "bob")
            print(state["messages"][-1]["content"])


if __name__ == "__main__":
    asyncio.run(main())
