"""The graph: take what the user says, answer, and use the tools that the user allows.

hear --> answer --> use_tool (one task for each call; each asks first) --> answer ...
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict
from uuid import uuid4

from pregel_async import END, START, Send, StateGraph, interrupt
from pregel_async.adapters import ToolCall, stream_message
from pregel_async.messages import MessagesState

from . import model


class Said(TypedDict):
    """The input of a run: text, and no messages, so that a client cannot make up messages of the model."""

    text: str


class Chat(MessagesState, Said):
    pass


def send_email(to: str, subject: str, body: str) -> str:
    """Send an email, as a tool of the model. This one has no mail server."""
    return f"Sent to {to}: {subject}"


TOOLS = {"send_email": send_email}


async def hear(chat: Chat) -> dict[str, Any]:
    """Add the user's message. A user who writes instead of answering a question has refused the open tool calls."""
    refused = [result(call, "Not done: the user went on to something else.") for call in open_calls(chat["messages"])]
    return {"messages": [*refused, {"role": "user", "id": str(uuid4()), "content": chat["text"]}]}


async def answer(chat: Chat) -> dict[str, Any]:
    """Let the model answer. Each token is streamed as it comes."""
    return {"messages": [await stream_message(model.reply(chat["messages"]))]}


def use_the_tools(chat: Chat) -> list[Send] | Literal["__end__"]:
    """Start one task for each tool call of the model; without any, end: it is the user's turn."""
    return [Send("use_tool", call) for call in open_calls(chat["messages"])] or END


def use_tool(call: ToolCall) -> dict[str, Any]:
    """Ask the user, then use the tool. The run is stored while it waits, for minutes or days.

    A resume runs this node from its start. So everything that needs permission, or must happen once, is after the
    question.
    """
    allowed = interrupt({"tool": call["name"], "args": call["args"]})
    if allowed is not True:
        return {"messages": [result(call, "Not done: the user refused.")]}
    try:
        return {"messages": [result(call, TOOLS[call["name"]](**call["args"]))]}
    # The model has made up a tool or an argument, or the tool has failed. The model gets the error and can react; a
    # failed node would end the run.
    except Exception as error:
        return {"messages": [result(call, f"Failed: {error!r}")]}


def open_calls(messages: list[Any]) -> list[ToolCall]:
    """Return the tool calls that have no result yet. Models insist on one result for each call."""
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
