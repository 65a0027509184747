"""Supervisors and swarms of langchain-core's chat models: messages are langchain-core's, also those of handoffs."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async.prebuilt import create_agent, create_react_agent
from pregel_async.prebuilt.supervisor import create_forward_message_tool, create_supervisor
from pregel_async.prebuilt.swarm import create_handoff_tool, create_swarm

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    pytest.mark.skipif(
        importlib.util.find_spec("langchain_core") is None,
        reason="langchain-core is not installed here: nox -s langchain installs it",
    ),
]

if importlib.util.find_spec("langchain_core") is not None:
    from langchain_core import messages as lc
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Scripted(BaseChatModel):
        """Gives the answer for the number of answers of its speaker, and records what it gets."""

        speaker: str
        answers: list[Any]
        seen: list[Any] = []

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            self.seen.append((messages, kwargs))
            mine = [each for each in messages if each.type == "ai" and each.name == self.speaker]
            answer = self.answers[min(len(mine), len(self.answers) - 1)].model_copy(update={"id": None})
            return ChatResult(generations=[ChatGeneration(message=answer)])

        def bind_tools(self, tools: Any, *, parallel_tool_calls: bool | None = None, **kwargs: Any) -> Any:
            return self.bind(tools=tools, parallel=parallel_tool_calls, **kwargs)

    def ai(text: str = "", *names: str, **args: Any) -> Any:
        calls: Any = [{"type": "tool_call", "id": f"{name}-{text}", "name": name, "args": args} for name in names]
        return lc.AIMessage(text, tool_calls=calls)


async def test_a_supervisor() -> None:
    """Agents of both kinds, calls at once, blocks of a provider, and a forwarded message."""
    blocks: Any = [
        {"type": "text", "text": "both"},
        {"type": "tool_use", "id": "transfer_to_a-", "name": "transfer_to_a", "input": {}},
        {"type": "tool_use", "id": "transfer_to_b-", "name": "transfer_to_b", "input": {}},
    ]
    both = ai("", "transfer_to_a", "transfer_to_b").model_copy(update={"content": blocks})
    lead = Scripted(speaker="supervisor", answers=[both, ai("", "forward_message", from_agent="a")])
    b = Scripted(speaker="b", answers=[ai("I am b.")])
    agents = [
        create_agent(Scripted(speaker="a", answers=[ai("I am a.")]), [], name="a"),
        create_react_agent(b, [], name="b"),
    ]
    builder = create_supervisor(agents, model=lead, tools=[create_forward_message_tool()], parallel_tool_calls=True)
    state = await builder.compile(InMemorySaver()).ainvoke({"messages": [lc.HumanMessage("go")]}, "t")
    assert all(isinstance(message, lc.BaseMessage) for message in state["messages"])
    assert state["messages"][-1].content == "I am a." and state["messages"][-1].name == "supervisor"
    (seen, _) = b.seen[0]
    assert [call["name"] for call in seen[1].tool_calls] == ["transfer_to_b"]
    assert seen[1].content == [blocks[0], blocks[2]]  # a provider would refuse the other call without a result
    assert lead.seen[0][1]["parallel"] is True
    called = {call["id"] for message in state["messages"] if message.type == "ai" for call in message.tool_calls}
    assert called == {message.tool_call_id for message in state["messages"] if message.type == "tool"}


async def test_names_in_the_text() -> None:
    answers = [ai("", "transfer_to_a"), ai("<name>supervisor</name><content>done</content>")]
    lead = Scripted(speaker="supervisor", answers=answers)
    agents = [create_agent(Scripted(speaker="a", answers=[ai("I am a.")]), [], name="a")]
    options: Any = {"include_agent_name": "inline", "add_handoff_back_messages": False}
    graph = create_supervisor(agents, model=lead, **options).compile()
    state = await graph.ainvoke({"messages": [lc.HumanMessage("go")]})
    assert lead.seen[1][0][-1].content == "<name>a</name><content>I am a.</content>"
    assert state["messages"][-1].content == "done"


async def test_a_swarm() -> None:
    alice = Scripted(speaker="alice", answers=[ai("", "transfer_to_bob")])
    bob = Scripted(speaker="bob", answers=[ai("Arr.")])
    agents = [
        create_agent(alice, [create_handoff_tool(agent_name="bob")], name="alice"),
        create_agent(bob, [create_handoff_tool(agent_name="alice")], name="bob"),
    ]
    graph = create_swarm(agents, default_active_agent="alice").compile(InMemorySaver())
    state = await graph.ainvoke({"messages": [lc.HumanMessage("go")]}, "t")
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert state["messages"][2].name == "transfer_to_bob" and state["active_agent"] == "bob"
