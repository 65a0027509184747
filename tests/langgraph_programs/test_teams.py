"""Supervisors and swarms, compared with those of langgraph-supervisor and langgraph-swarm: the same speakers, calls and order."""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

PACKAGES = ("langgraph_supervisor", "langgraph_swarm")
pytestmark = [
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in PACKAGES),
        reason="langgraph-supervisor or langgraph-swarm is not installed here: nox -s langgraph installs them",
    ),
    pytest.mark.filterwarnings("ignore"),  # LangGraph's own
]

if importlib.util.find_spec("langchain_core") is not None:
    from langchain_core import messages as lc
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.utils.function_calling import convert_to_openai_tool

    class Scripted(BaseChatModel):
        """Gives the answer for the number of answers of its speaker."""

        speaker: str
        answers: list[Any]

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            mine = [each for each in messages if each.type == "ai" and each.name == self.speaker]
            answer = self.answers[min(len(mine), len(self.answers) - 1)].model_copy(update={"id": None})
            return ChatResult(generations=[ChatGeneration(message=answer)])

        def bind_tools(self, tools: Any, *, parallel_tool_calls: bool | None = None, **kwargs: Any) -> Any:
            # LangGraph compares the names of bound tools.
            return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])


def load(name: str) -> Any:
    """The names of one library."""
    theirs = name == "langgraph"
    return SimpleNamespace(
        agents=importlib.import_module("langgraph.prebuilt" if theirs else "pregel_async.prebuilt"),
        supervisor=importlib.import_module("langgraph_supervisor" if theirs else "pregel_async.prebuilt.supervisor"),
        swarm=importlib.import_module("langgraph_swarm" if theirs else "pregel_async.prebuilt.swarm"),
        saver=importlib.import_module("langgraph.checkpoint.memory" if theirs else "checkpoint_savers").InMemorySaver,
    )


def ai(text: str = "", *names: str, **args: Any) -> Any:
    calls: Any = [{"type": "tool_call", "id": f"{name}-{text}", "name": name, "args": args} for name in names]
    return lc.AIMessage(text, tool_calls=calls)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def shape(messages: Any) -> list[Any]:
    """Who speaks, and what is called. (The words of handoffs are each library's own.)"""
    return [(each.type, each.name, [call["name"] for call in getattr(each, "tool_calls", ())]) for each in messages]


def supervised(library: Any, lead: list[tuple[Any, ...]], forward: bool, options: dict[str, Any]) -> list[Any]:
    make = library.agents.create_react_agent
    agents = [
        make(Scripted(speaker="a", answers=[ai("", "add", a=1, b=2), ai("3")]), [add], name="a"),
        make(Scripted(speaker="b", answers=[ai("bee")]), [], name="b"),
    ]
    tools = [library.supervisor.create_forward_message_tool()] if forward else None
    model = Scripted(speaker="supervisor", answers=[ai("", *names, **args) for names, args in lead] + [ai("done")])
    graph = library.supervisor.create_supervisor(agents, model=model, tools=tools, **options).compile(library.saver())
    return shape(graph.invoke({"messages": [lc.HumanMessage("go")]}, CONFIG)["messages"])


CONFIG: dict[str, Any] = {"configurable": {"thread_id": "t"}}
TO_A: tuple[Any, ...] = (("transfer_to_a",), {})
TO_B: tuple[Any, ...] = (("transfer_to_b",), {})


@pytest.mark.parametrize(
    ("lead", "forward", "options"),
    [
        pytest.param([TO_A], False, {}, id="one agent"),
        pytest.param([TO_A, TO_B], False, {}, id="two agents"),
        pytest.param([TO_A], False, {"output_mode": "full_history"}, id="full history"),
        pytest.param([TO_A, TO_B], False, {"add_handoff_back_messages": False}, id="no way back"),
        pytest.param([(("delegate_to_a",), {})], False, {"handoff_tool_prefix": "delegate_to_"}, id="prefix"),
        pytest.param([TO_A, (("forward_message",), {"from_agent": "a"})], True, {}, id="forwarded"),
    ],
)
def test_supervisors(lead: list[tuple[Any, ...]], forward: bool, options: dict[str, Any]) -> None:
    theirs, ours = (supervised(load(name), lead, forward, options) for name in ("langgraph", "pregel_async"))
    assert ours == theirs


def swarmed(library: Any) -> list[Any]:
    make, handoff = library.agents.create_react_agent, library.swarm.create_handoff_tool
    alice = Scripted(speaker="alice", answers=[ai("", "transfer_to_bob")])
    bob = Scripted(speaker="bob", answers=[ai("arr"), ai("arr again")])
    agents = [make(alice, [handoff(agent_name="bob")], name="alice"), make(bob, [], name="bob")]
    graph = library.swarm.create_swarm(agents, default_active_agent="alice").compile(library.saver())
    graph.invoke({"messages": [lc.HumanMessage("go")]}, CONFIG)
    state = graph.invoke({"messages": [lc.HumanMessage("again")]}, CONFIG)
    return [*shape(state["messages"]), state["active_agent"]]


def test_swarms() -> None:
    assert swarmed(load("pregel_async")) == swarmed(load("langgraph"))
