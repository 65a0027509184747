"""The graph: hear what the user says, answer, and use the tools that the user allows.

hear --> answer --> use_tool (once for each call; each asks first) --> answer ...
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict
from uuid import uuid4

from pregel_async import END, START, Send, StateGraph, interrupt
from pregel_async.adapters import ToolCall, stream_message
from pregel_async.messages import MessagesState

from . import model


class Said(TypedDict):
    """What a run takes: text, and no messages, so that nobody puts words into the model's mouth."""

    text: str


class Chat(MessagesState, Said):
    pass


def send_email(to: str, subject: str, body: str) -> str:
    """A tool. This one has no mail server."""
    return f"Sent to {to}: {subject}"


TOOLS = {"send_email": send_email}


async def hear(chat: Chat) -> dict[str, Any]:
    """Who says something new instead of answering a question has refused."""
    refused = [result(call, "Not done: the user went on to something else.") for call in open_calls(chat["messages"])]
    return {"messages": [*refused, {"role": "user", "id": str(uuid4()), "content": chat["text"]}]}


async def answer(chat: Chat) -> dict[str, Any]:
    """Let the model speak. Each token is shown as it comes."""
    return {"messages": [await stream_message(model.reply(chat["messages"]))]}


def use_the_tools(chat: Chat) -> list[Send] | Literal["__end__"]:
    """One task for each tool that the model wants to use; none, and it is the user's turn."""
    return [Send("use_tool", call) for call in open_calls(chat["messages"])] or END


def use_tool(call: ToolCall) -> dict[str, Any]:
    """Ask, and wait: for minutes or days. What must not be done unasked, or twice, comes after the question."""
    allowed = interrupt({"tool": call["name"], "args": call["args"]})
    if allowed is not True:
        return {"messages": [result(call, "Not done: the user refused.")]}
    try:
        return {"messages": [result(call, TOOLS[call["name"]](**call["args"]))]}
    except Exception as error:  # the model has made up a tool or an argument, or the tool has failed: the model is told
        return {"messages": [result(call, f"Failed: {error!r}")]}


def open_calls(messages: list[Any]) -> list[ToolCall]:
    """The calls that have no result yet. Models insist on one for each."""
    done = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    return [call for message in messages for call in message.get("tool_calls", ()) if call["id"] not in done]


def result(call: ToolCall, content: str) -> dict[str, str]:
    return {
        "role": "tool",
        "id": f"{call['id']}-result",
        "tool_call_id": call["id"],
        "name": call["name"],
        "content": content,
    }


graph = (
    StateGraph(Chat, input_schema=Said)
    .add_node("hear", hear)
    .add_node("answer", answer)
    .add_node("use_tool", use_tool)
    .add_edge(START, "hear")
    .add_edge("hear", "answer")
    .add_conditional_edges("answer", use_the_tools, ["use_tool", END])
    .add_edge("use_tool", "answer")
    .compile(name="chat")
)
