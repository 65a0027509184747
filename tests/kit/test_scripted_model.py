"""`ScriptedModel`: answers by position in the conversation."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async.prebuilt import create_agent
from pregel_async.testing import ScriptedModel, calls

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


def add(a: int, b: int) -> int:
    return a + b


async def test_an_agent_with_a_script() -> None:
    """Several calls at once, a function of the conversation, and each thread from the beginning."""

    def total(messages: list[Any]) -> str:
        return f"{messages[-2]['content']} and {messages[-1]['content']}"

    model = ScriptedModel(calls("add", a=1, b=2) & calls("add", a=3, b=4), total)
    agent = create_agent(model, [add], checkpointer=InMemorySaver())
    for thread in ("t", "u"):
        done = await agent.ainvoke({"messages": ["add"]}, thread)
        assert done["messages"][-1]["content"] == "3 and 7"
        ids = [call["id"] for call in done["messages"][1]["tool_calls"]]
        assert ids == ["call-1-1", "call-1-2"]
    assert [len(messages) for messages in model.seen] == [1, 4, 1, 4]
    assert [tool["name"] for tool in model.tools[0]] == ["add"]


async def test_the_last_answer_is_repeated() -> None:
    agent = create_agent(ScriptedModel("hello", "again"), checkpointer=InMemorySaver())
    said = [(await agent.ainvoke({"messages": ["hi"]}, "t"))["messages"][-1]["content"] for _ in range(3)]
    assert said == ["hello", "again", "again"]


async def test_a_script_without_answers() -> None:
    with pytest.raises(ValueError, match="needs an answer"):
        ScriptedModel()
