"""`create_swarm`: who answers, what a handoff carries over, and what a crash or a question repeats."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async import Command, MessagesState, StateGraph, interrupt, open_sync
from pregel_async.errors import GraphValidationError, InvalidInputError
from pregel_async.prebuilt import AgentState, ToolRuntime, create_agent, create_react_agent
from pregel_async.prebuilt.swarm import SwarmState, add_active_agent_router, create_handoff_tool, create_swarm
from pregel_async.testing import Crash
from tests.prebuilt.calls import asking, call
from tests.prebuilt.recording import ReportingSaver
from tests.prebuilt.team import Speaker, agent, newest, said, to

pytestmark = pytest.mark.anyio


def member(name: str, other: str, *answers: Any, tools: Any = (), **options: Any) -> Any:
    return agent(name, *answers, tools=[create_handoff_tool(agent_name=other), *tools], **options)


def asks_for_pirate(messages: list[Any]) -> Any:
    return to("bob") if "pirate" in messages[-1]["content"] else "I am Alice."


def pair() -> list[Any]:
    return [member("alice", "bob", asks_for_pirate), member("bob", "alice", "Arr.")]


OVER = [("alice", ["transfer_to_bob"]), ("transfer_to_bob", "The conversation is now with bob.")]


async def test_the_active_agent_answers_the_next_input(saver: BaseCheckpointSaver) -> None:
    graph = create_swarm(pair(), default_active_agent="alice").compile(saver)
    state = await graph.ainvoke({"messages": ["hello"]}, "t")
    assert "active_agent" not in state
    await graph.ainvoke({"messages": ["a pirate!"]}, "t")
    state = await graph.ainvoke({"messages": ["again"]}, "t")
    assert state["active_agent"] == "bob"
    assert said(state) == [
        ("user", "hello"),
        ("alice", "I am Alice."),
        ("user", "a pirate!"),
        *OVER,
        ("bob", "Arr."),
        ("user", "again"),
        ("bob", "Arr."),
    ]
    state = await graph.ainvoke({"messages": ["hello"], "active_agent": "alice"}, "t")
    assert said(state)[-1] == ("alice", "I am Alice.")


@pytest.mark.parametrize("calls", [["note", "transfer_to_bob"], ["transfer_to_bob", "note"]])
async def test_a_handoff_loses_no_result_of_another_tool(saver: BaseCheckpointSaver, calls: list[str]) -> None:
    async def note() -> str:
        return "noted"

    turn = asking(*(call(name, str(index)) for index, name in enumerate(calls)))
    alice = member("alice", "bob", turn, to("bob"), tools=[note])
    bob = Speaker("bob", "Arr.")
    swarm = create_swarm([alice, create_agent(bob, [], name="bob")], default_active_agent="alice").compile(saver)
    state = await swarm.ainvoke({"messages": ["go"]}, "t")
    assert ("note", "noted") in said({"messages": bob.seen[0]}) and said(state)[-1] == ("bob", "Arr.")


async def test_of_several_handoffs_the_first_counts(saver: BaseCheckpointSaver) -> None:
    """No call is left without an answer, which providers would refuse."""
    tools = [create_handoff_tool(agent_name="bob"), create_handoff_tool(agent_name="eve")]
    agents = [agent("alice", to("eve", "bob"), tools=tools), agent("bob", "Arr."), agent("eve", "I am Eve.")]
    graph = create_swarm(agents, default_active_agent="alice").compile(saver)
    state = await graph.ainvoke({"messages": ["go"]}, "t")
    assert state["active_agent"] == "eve"
    assert said(state)[1:] == [
        ("alice", ["transfer_to_eve"]),
        ("transfer_to_eve", "The conversation is now with eve."),
        ("eve", "I am Eve."),
    ]


async def test_shared_and_private_keys(saver: BaseCheckpointSaver) -> None:
    """A handoff carries the keys over that both schemas have. Other keys last where the agent has its own memory."""

    class Shared(SwarmState, total=False):
        city: str

    class Own(AgentState, total=False):
        city: str
        mood: str

    async def move(runtime: ToolRuntime) -> Command:
        mood = runtime.state.get("mood", "none")
        done = {"role": "tool", "tool_call_id": runtime.tool_call_id, "content": mood}
        return Command(update={"city": "Rome", "mood": "glad", "messages": [done]})

    turns = [asking(call("move", "1")), to("bob"), asking(call("move", "2")), to("bob")]
    alice = member("alice", "bob", *turns, tools=[move], state_schema=Own, checkpointer=True)
    bob = agent("bob", "Arr.", state_schema=Own)
    graph = create_swarm([alice, bob], default_active_agent="alice", state_schema=Shared).compile(saver)
    state = await graph.ainvoke({"messages": ["go"]}, "t")
    assert state["city"] == "Rome" and "mood" not in state
    state = await graph.ainvoke({"messages": ["again"], "active_agent": "alice"}, "t")
    assert [text for who, text in said(state) if who == "move"] == ["none", "glad"]


async def test_a_crash_between_two_handoffs(saver: BaseCheckpointSaver) -> None:
    """Alice hands to Bob, who dies before he hands to Eve: the next process asks neither Alice nor her tools again."""
    dying = ReportingSaver(saver)
    ran: list[str] = []

    async def work(what: str) -> str:
        ran.append(what)
        if what == "b" and ran.count("b") == 1:
            dying.crash()
        return what

    alice = member("alice", "bob", asking(call("work", "a", what="a")), to("bob"), tools=[work])
    bob = member("bob", "eve", asking(call("work", "b", what="b")), to("eve"), tools=[work])
    graph = create_swarm([alice, bob, agent("eve", "done")], default_active_agent="alice").compile(dying)
    with pytest.raises(Crash):
        await graph.ainvoke({"messages": ["go"]}, "t")
    await dying.restart()
    state = await graph.ainvoke(None, "t")
    assert ran == ["a", "b", "b"]
    assert state["active_agent"] == "eve" and said(state)[-1] == ("eve", "done")


def asks(what: str) -> str:
    return f"{what}: {interrupt(what)}"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_question_is_answered_at_the_root_without_async(tmp_path: Path, kind: str) -> None:
    """Bob's tool asks after a handoff; the answer reaches it, and Alice is not asked again."""
    opening = nullcontext(InMemorySaver()) if kind == "memory" else open_sync(SqliteSaver(tmp_path / "threads.db"))
    first = Speaker("alice", to("bob"))
    alice = create_agent(first, [create_handoff_tool(agent_name="bob")], name="alice")
    bob = member("bob", "alice", asking(call("asks", what="pay")), newest("{}"), tools=[asks])
    with opening as saver:
        graph = create_swarm([alice, bob], default_active_agent="alice").compile(saver)
        asked: Any = graph.invoke({"messages": ["go"]}, "t")
        assert [question.value for question in asked["__interrupt__"]] == ["pay"]
        done = graph.invoke(Command(resume="yes"), "t")
        assert said(done)[-1] == ("bob", "pay: yes") and len(first.seen) == 1


@pytest.mark.one_loop
async def test_a_graph_of_your_own() -> None:
    """`add_active_agent_router` serves any graph with the key; an agent may be of `create_react_agent`."""
    tools = [create_handoff_tool(agent_name="bob")]
    alice = create_react_agent(Speaker("alice", to("bob")), tools, name="alice")
    builder: Any = StateGraph(SwarmState).add_node(alice, destinations=("bob",)).add_node(agent("bob", "Arr."))
    graph = add_active_agent_router(builder, route_to=["alice", "bob"], default_active_agent="alice").compile()
    assert said(await graph.ainvoke({"messages": ["go"]}))[1:] == [*OVER, ("bob", "Arr.")]
    with pytest.raises(InvalidInputError, match="the active agent is 'eve', and the agents are alice, bob"):
        await graph.ainvoke({"messages": ["go"], "active_agent": "eve"})


@pytest.mark.one_loop
async def test_the_names_of_the_agents_are_known() -> None:
    graph = create_swarm(pair(), default_active_agent="alice").compile()
    with pytest.raises(InvalidInputError, match=r"Literal\['alice', 'bob'\]"):
        await graph.ainvoke({"messages": ["go"], "active_agent": "eve"})
    names = graph.get_input_jsonschema()["properties"]["active_agent"]
    assert "alice" in str(names) and "bob" in str(names)
    assert [(edge.source, edge.target) for edge in graph.get_graph().edges if edge.source != "__start__"] == [
        ("alice", "bob"),
        ("bob", "alice"),
    ]


@pytest.mark.one_loop
async def test_bad_input_is_refused() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ([], {}, "agents is empty"),
        (pair(), {"default_active_agent": "eve"}, "default_active_agent is 'eve'"),
        (pair()[:1], {}, "a tool of 'alice' hands over to 'bob'"),
        (pair(), {"state_schema": MessagesState}, "the state has no key 'active_agent'"),
    ]
    for agents, options, why in cases:
        with pytest.raises(GraphValidationError, match=why):
            given: Any = {"default_active_agent": "alice", **options}
            create_swarm(agents, **given)
