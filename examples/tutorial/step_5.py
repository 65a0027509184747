"""Show each token: the model's stream goes through `stream_message`, and a reader gets the pieces as they come."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from checkpoint_savers import SqliteSaver
from pregel_async import END, START, Command, MessagesState, Send, StateGraph, interrupt
from pregel_async.adapters import stream_message


async def model(messages: list[Any]) -> AsyncIterator[dict[str, Any]]:
    """A script in place of `client.chat.completions.create(..., stream=True)`, with the same chunks."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {
            "id": f"said-{len(messages)}",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }

    last = messages[-1]
    order = re.search(r"\d+", last["content"])
    if last["role"] == "user" and order:
        tool = "refund" if "broken" in last["content"] else "look_up"
        function = {"name": tool, "arguments": json.dumps({"order": order[0]})}
        yield chunk({"tool_calls": [{"index": 0, "id": f"call-{len(messages)}", "function": function}]})
        yield chunk({}, "tool_calls")
        return
    text = f"About your order: {last['content']}." if last["role"] == "tool" else "Which order?"
    for token in re.findall(r"\S+\s*", text):
        await asyncio.sleep(0.01)  # the network
        yield chunk({"content": token})
    yield chunk({}, "stop")


async def look_up(order: str) -> str:
    return f"a kettle, number {order}, sent on Monday"


async def refund(order: str) -> str:
    return "we pay you 40 euros"


TOOLS = {"look_up": look_up, "refund": refund}
ASK_FIRST = {"refund"}


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await stream_message(model(state["messages"]))]}


def route(state: MessagesState) -> list[Send] | str:
    calls = state["messages"][-1].get("tool_calls", [])
    return [Send("use_tool", call) for call in calls] or END


async def use_tool(call: dict[str, Any]) -> dict[str, Any]:
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
        given: Any = {"messages": [{"role": "user", "content": "The kettle of order 17 is broken."}]}
        while given is not None:
            async with graph.astream(given, "eve", stream_mode="messages") as pieces:
                async for piece, _ in pieces:
                    if piece["role"] == "assistant" and piece["content"]:
                        print(piece["content"], end="|")
            questions = (await graph.aget_state("eve")).interrupts
            given = Command(resume={question.id: True for question in questions}) if questions else None
        print()


if __name__ == "__main__":
    asyncio.run(main())
