"""An agent with a tool: the model asks for a tool, the tool runs, and the model reads the result and answers."""

import asyncio
import re
from typing import Any

from pregel_async import END, START, MessagesState, Send, StateGraph


async def model(messages: list[Any]) -> dict[str, Any]:
    """A script in place of a language model."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"Your order: {last['content']}."}
    if order := re.search(r"\d+", last["content"]):
        call = {"id": f"call-{len(messages)}", "name": "look_up", "args": {"order": order[0]}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": "Which order?"}


async def look_up(order: str) -> str:
    return f"a kettle, number {order}, sent on Monday"


TOOLS = {"look_up": look_up}


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model(state["messages"])]}


def route(state: MessagesState) -> list[Send] | str:
    calls = state["messages"][-1].get("tool_calls", [])
    return [Send("use_tool", call) for call in calls] or END  # one task for each call, all at once


async def use_tool(call: dict[str, Any]) -> dict[str, Any]:
    content = await TOOLS[call["name"]](**call["args"])
    return {"messages": [{"role": "tool", "tool_call_id": call["id"], "content": content}]}


builder = StateGraph(MessagesState).add_node(answer).add_node(use_tool)
builder.add_edge(START, "answer").add_conditional_edges("answer", route, ["use_tool", END])
builder.add_edge("use_tool", "answer")


async def main() -> None:
    graph = builder.compile()
    state = await graph.ainvoke({"messages": [{"role": "user", "content": "Where is order 17?"}]})
    for message in state["messages"]:
        print(f"{message['role']}: {message['content'] or message['tool_calls'][0]['args']}")


if __name__ == "__main__":
    asyncio.run(main())
