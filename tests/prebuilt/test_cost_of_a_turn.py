"""What an agent adds to its graph: calls of functions in a turn, which do not depend on the machine's load."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pregel_async import END, START, MessagesState, Send, StateGraph
from pregel_async.prebuilt import create_agent, create_react_agent
from tests.prebuilt.calls import asking, call

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


async def calls_of_a_run(agent: Any) -> int:
    """Count the calls of Python and C functions in a run."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    given = {"messages": [{"role": "user", "content": "hi"}]}
    await agent.ainvoke(given, {"recursion_limit": 1000})  # the first run makes what later ones share
    sys.setprofile(note)
    try:
        await agent.ainvoke(given, {"recursion_limit": 1000})
    finally:
        sys.setprofile(None)
    return count


def looping(turns: int) -> Any:
    """A model that calls a tool in so many turns."""

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        number = len(messages)
        if number > 2 * turns:
            return {"role": "assistant", "content": "done", "id": f"m{number}"}
        return {**asking(call("look", f"c{number}", what="a")), "id": f"m{number}"}

    return model


def by_hand(turns: int) -> Any:
    """The same agent as a graph of two nodes and a router."""
    model = looping(turns)

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await model(state["messages"], [])]}

    async def run(calls: list[Any]) -> Any:
        (asked,) = calls
        content = await look(**asked["args"])
        return {"messages": [{"role": "tool", "tool_call_id": asked["id"], "name": "look", "content": content}]}

    def route(state: MessagesState) -> Any:
        return [Send("run", [each]) for each in state["messages"][-1].get("tool_calls", ())] or END

    builder = StateGraph(MessagesState).add_node(ask).add_node(run).add_edge(START, "ask").add_edge("run", "ask")
    return builder.add_conditional_edges("ask", route, ["run", END]).compile()


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
async def test_calls_of_a_turn(make: Any) -> None:
    """A turn of a prebuilt agent costs little more than half as much again as one by hand, and each earlier message at
    most six calls more, where a turn reads the conversation."""
    short, long = [await calls_of_a_run(make(looping(turns), [look])) / turns for turns in (10, 60)]
    short_by_hand, long_by_hand = [await calls_of_a_run(by_hand(turns)) / turns for turns in (10, 60)]
    assert short <= 1.56 * short_by_hand
    assert (long - short) - (long_by_hand - short_by_hand) <= 6 * (60 - 10)
