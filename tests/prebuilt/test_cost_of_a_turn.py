"""What an agent adds to its graph: calls of functions in a turn, which do not depend on the machine's load."""

from __future__ import annotations

import sys
from typing import Any

import pytest

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


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
async def test_calls_of_a_turn(make: Any) -> None:
    """A turn of model and tool costs at most so many calls, two thirds of which are the graph's own; and each earlier
    message at most eight more, where a turn reads the conversation."""
    short, long = [await calls_of_a_run(make(looping(turns), [look])) / turns for turns in (10, 60)]
    assert short <= 1240
    assert long - short <= 8 * (60 - 10)
