"""`ModelCallLimitMiddleware` and `ToolCallLimitMiddleware`."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import (
    ModelCallLimitExceededError,
    ModelCallLimitMiddleware,
    ToolCallLimitExceededError,
    ToolCallLimitMiddleware,
    create_agent,
)
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

HI = {"messages": [{"role": "user", "content": "hi"}]}


def find(q: str) -> str:
    return f"found {q}"


def save(q: str) -> str:
    return f"saved {q}"


def agent_of(*middleware: Any, answers: Any = None) -> Any:
    model = Script(*(answers or [asking(call("find", q="a"))]))
    return create_agent(model, [find, save], middleware=middleware, checkpointer=InMemorySaver())


def test_model_calls_of_a_run() -> None:
    """A loop ends with a message, and the next run of the thread counts from zero."""
    agent = agent_of(ModelCallLimitMiddleware(run_limit=2))
    done = agent.invoke(HI, "t")
    assert contents(done)[-1] == "The limit of model calls is reached: run limit (2/2)."
    assert set(done) == {"messages"}
    assert contents(agent.invoke(HI, "t")).count("found a") == 4


async def test_model_calls_of_a_thread() -> None:
    """The thread counts on; "error" raises."""
    agent = agent_of(ModelCallLimitMiddleware(thread_limit=2, exit_behavior="error"), answers=["hello"])
    await agent.ainvoke(HI, "t")
    await agent.ainvoke(HI, "t")
    with pytest.raises(ModelCallLimitExceededError, match=r"thread limit \(2/2\)") as caught:
        await agent.ainvoke(HI, "t")
    assert (caught.value.thread_count, caught.value.run_count) == (2, 0)
    await agent.ainvoke(HI, "u")


THREE = asking(*(call("find", id, q=id) for id in "abc"), call("save", "d", q="d"))


async def test_calls_over_the_limit_are_answered() -> None:
    """By default other calls run, and the model continues. Refused calls do not count for the thread."""
    agent = agent_of(ToolCallLimitMiddleware(tool_name="find", thread_limit=3, run_limit=2), answers=[THREE, "done"])
    done = await agent.ainvoke(HI, "t")
    answers = {each["tool_call_id"]: each for each in done["messages"] if each["role"] == "tool"}
    assert [answers[id]["content"] for id in "abd"] == ["found a", "found b", "saved d"]
    assert answers["c"]["content"] == "The limit of calls is reached. Do not call 'find' again."
    assert answers["c"]["status"] == "error"
    assert contents(done)[-1] == "done"
    assert set(done) == {"messages"}
    state = await agent.aget_state({"configurable": {"thread_id": "t"}})
    assert state.values["thread_tool_call_count"] == {"find": 2}


def test_the_limit_ends_the_agent() -> None:
    agent = agent_of(ToolCallLimitMiddleware(run_limit=2, exit_behavior="end"), answers=[THREE, "done"])
    done = contents(agent.invoke(HI, "t"))
    assert done[2:] == [
        *["This call has not run, because another call of the same turn exceeded its limit."] * 2,
        *["The limit of calls is reached. Do not call tools again."] * 2,
        "The limit of tool calls is reached: run limit (4/2).",
    ]


async def test_the_limit_is_an_error() -> None:
    agent = agent_of(ToolCallLimitMiddleware(tool_name="find", thread_limit=2, exit_behavior="error"), answers=[THREE])
    with pytest.raises(
        ToolCallLimitExceededError, match=r"'find' tool calls is reached: thread limit \(3/2\)"
    ) as caught:
        await agent.ainvoke(HI, "t")
    assert caught.value.tool_name == "find"


async def test_limits_of_several_tools() -> None:
    """One for each tool and one for all; each counts for itself."""
    agent = agent_of(
        ToolCallLimitMiddleware(run_limit=3),
        ToolCallLimitMiddleware(tool_name="find", run_limit=1),
        ToolCallLimitMiddleware(tool_name="save", run_limit=1),
        answers=[THREE, "done"],
    )
    done = await agent.ainvoke(HI, "t")
    assert sorted(each for each in contents(done) if each.startswith(("found", "saved"))) == ["found a", "saved d"]


def test_bad_limits() -> None:
    for kind in (ModelCallLimitMiddleware, ToolCallLimitMiddleware):
        for wrong in ({}, {"run_limit": -1}, {"run_limit": 1, "exit_behavior": "stop"}):
            with pytest.raises(GraphValidationError):
                kind(**wrong)
    with pytest.raises(GraphValidationError, match="above thread_limit"):
        ToolCallLimitMiddleware(thread_limit=1, run_limit=2)
