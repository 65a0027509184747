"""A web service: the agent behind FastAPI. Kill it in the middle of an answer, start it, and the answer continues."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.routing import Route

from checkpoint_savers import SqliteSaver
from pregel_async import END, START, MessagesState, Send, StateGraph, interrupt
from pregel_async.adapters import stream_message
from pregel_async.serve import graph_endpoint, graph_lifespan, service_of


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
        await asyncio.sleep(0.1)  # the network
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
graph = builder.compile(name="shop")


def whose_thread(request: Request) -> str | None:
    return request.cookies.get("user")  # None refuses; replace this with your login


run = graph_endpoint(graph, thread=whose_thread, stream_mode="messages", on_disconnect="continue")
lifespan = graph_lifespan(graph, saver=lambda: SqliteSaver.from_conn_string("shop.db"), pick_up=True)
app = FastAPI(routes=[Route("/chat", run)], lifespan=lifespan)


@app.get("/chat/state")
async def state(request: Request) -> dict[str, Any]:
    """What a page loads first: the conversation so far, and the open questions."""
    thread = whose_thread(request)
    if thread is None:
        return {"messages": [], "questions": []}
    snapshot = await service_of(request).graph(graph).aget_state(thread)
    questions = [{"id": question.id, "value": question.value} for question in snapshot.interrupts]
    return {"messages": snapshot.values.get("messages", []), "questions": questions}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=60)
