"""Agents of pydantic-ai as nodes: conversations there and back."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, MessagesState, StateGraph, task
from pregel_async.adapters import as_pydantic_ai, from_pydantic_ai

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    pytest.mark.skipif(
        importlib.util.find_spec("pydantic_ai") is None,
        reason="pydantic-ai is not installed here: nox -s adapters installs it",
    ),
]

CHAT: list[Any] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "hi"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"type": "tool_call", "id": "c1", "name": "find", "args": {"q": "a"}}],
        "invalid_tool_calls": [{"type": "invalid_tool_call", "id": "c2", "name": "find", "args": '{"q', "error": "x"}],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "found"},
    {"role": "tool", "tool_call_id": "c2", "name": "find", "content": "no", "status": "error"},
    {"role": "assistant", "content": "done"},
]


def test_there_and_back() -> None:
    """Roles alternate there; calls keep their ids, their answers and the text of broken arguments."""
    there = as_pydantic_ai(CHAT)
    assert [(each.kind, [part.part_kind for part in each.parts]) for each in there] == [
        ("request", ["system-prompt", "user-prompt", "user-prompt"]),
        ("response", ["text", "tool-call", "tool-call"]),
        ("request", ["tool-return", "tool-return"]),
        ("response", ["text"]),
    ]
    back = from_pydantic_ai(there)
    assert [each["role"] for each in back] == [each["role"] for each in CHAT[1:]]
    assert [each["content"] for each in back[:2]] == [each["content"] for each in CHAT[1:3]]
    assert back[2]["tool_calls"] == CHAT[3]["tool_calls"]
    assert [(each["id"], each["args"]) for each in back[2]["invalid_tool_calls"]] == [("c2", '{"q')]
    assert back[3] == CHAT[4] and back[4]["status"] == "error" and "no" in back[4]["content"]
    assert back[5] == CHAT[6]


async def test_an_agent_is_a_node() -> None:
    """The thread has its tool calls. A tool that is a task does not run again after a failure of the agent."""
    ai: Any = import_module("pydantic_ai")
    models: Any = import_module("pydantic_ai.models.function")
    ran: list[str] = []
    seen: list[int] = []

    def script(messages: list[Any], info: Any) -> Any:
        seen.append(len(messages))
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt":
            return ai.ModelResponse(parts=[ai.ToolCallPart("pay", {"euros": 0}, tool_call_id="c1")])
        if "at least" in str(last.content):
            return ai.ModelResponse(parts=[ai.ToolCallPart("pay", {"euros": 3}, tool_call_id="c2")])
        if ran.count("fails") == 0:
            ran.append("fails")
            raise ConnectionError("no line")
        return ai.ModelResponse(parts=[ai.TextPart(f"{last.content}.")])

    @task
    async def transfer(euros: int) -> str:
        ran.append(f"{euros} euros")
        return f"paid {euros}"

    agent: Any = ai.Agent(models.FunctionModel(script), name="clerk")

    @agent.tool_plain
    async def pay(euros: int) -> str:
        if euros < 1:
            raise ai.ModelRetry("at least 1")
        return await transfer(euros)

    async def clerk(state: MessagesState) -> MessagesState:
        result = await agent.run(message_history=as_pydantic_ai(state["messages"]))
        return {"messages": from_pydantic_ai(result.new_messages(), name="clerk")}

    graph = StateGraph(MessagesState).add_node(clerk).add_edge(START, "clerk").compile(InMemorySaver())
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"messages": ["pay"]}, "t")
    state = await graph.ainvoke(None, "t")
    assert ran == ["3 euros", "fails"]
    shown = [
        (each["role"], each.get("status"), [one["id"] for one in each.get("tool_calls", ())])
        for each in state["messages"]
    ]
    assert shown == [
        ("user", None, []),
        ("assistant", None, ["c1"]),
        ("tool", "error", []),
        ("assistant", None, ["c2"]),
        ("tool", None, []),
        ("assistant", None, []),
    ]
    assert state["messages"][-1]["content"] == "paid 3." and state["messages"][-1]["name"] == "clerk"
    assert state["messages"][-1]["usage"]["total_tokens"] > 0
    seen.clear()
    await graph.ainvoke({"messages": ["pay"]}, "t")
    assert seen[0] == 7  # the conversation so far, and the new message
