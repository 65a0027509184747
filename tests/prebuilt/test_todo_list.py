"""`TodoListMiddleware`: a list of tasks that the model writes."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async.prebuilt import Todo, TodoListMiddleware, create_agent
from pregel_async.testing import Crash
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.recording import ReportingSaver
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}
FIRST: list[Todo] = [{"content": "look", "status": "in_progress"}, {"content": "write", "status": "pending"}]
LAST: list[Todo] = [{"content": "look", "status": "completed"}, {"content": "write", "status": "in_progress"}]


def find(q: str) -> str:
    return f"found {q}"


async def test_the_list_is_state(saver: BaseCheckpointSaver) -> None:
    """Each call replaces the list, which is in the output, and in the thread for its next turn."""
    model = Script(
        asking(call("write_todos", "1", todos=FIRST), call("find", "2", q="a")),
        asking(call("write_todos", "3", todos=LAST)),
        "done",
    )
    middleware = TodoListMiddleware(system_prompt="Plan.", tool_description="Write the plan.")
    agent = create_agent(model, [find], system_prompt="Be short.", middleware=[middleware], checkpointer=saver)
    done = await agent.ainvoke(HI, "t")
    assert done["todos"] == LAST
    assert contents(done)[2:] == [
        "The list has 2 tasks: 1 pending, 1 in_progress, 0 completed.",
        "found a",
        "",
        "The list has 2 tasks: 0 pending, 1 in_progress, 1 completed.",
        "done",
    ]
    assert model.seen[0][0] == {"role": "system", "content": "Be short.\n\nPlan."}
    (tool,) = (each for each in model.tools[0] if each["name"] == "write_todos")
    assert tool["description"] == "Write the plan."
    status = tool["parameters"]["$defs"]["Todo"]["properties"]["status"]
    assert sorted(status["enum"]) == ["completed", "in_progress", "pending"]
    assert (await create_agent(model, [find], middleware=[middleware], checkpointer=saver).ainvoke(HI, "t"))[
        "todos"
    ] == LAST


async def test_a_crash_after_the_list_is_written(saver: BaseCheckpointSaver) -> None:
    """The next process has the list, and runs neither the model nor the call again."""
    dying = ReportingSaver(saver)
    ran: list[str] = []

    async def slow() -> str:
        ran.append("slow")
        if len(ran) == 1:
            await dying.recorded()
            dying.crash()
        return "slow"

    model = Script(asking(call("write_todos", "1", todos=FIRST), call("slow", "2")), "done")
    agent = create_agent(model, [slow], middleware=[TodoListMiddleware()], checkpointer=dying)
    with pytest.raises(Crash):
        await agent.ainvoke(HI, "t")
    await dying.restart()
    done = await agent.ainvoke(None, "t")
    assert done["todos"] == FIRST
    assert (len(model.seen), ran) == (2, ["slow", "slow"])


@pytest.mark.one_loop
async def test_several_lists_in_one_message_are_refused() -> None:
    """The model is shown errors, and other calls of the message run."""
    calls = [call("write_todos", str(at), todos=FIRST) for at in range(2)]
    model = Script(asking(*calls, call("find", "2", q="a")), asking(call("write_todos", "3", todos=LAST)), "done")
    done = await create_agent(model, [find], middleware=[TodoListMiddleware()]).ainvoke(HI)
    said = "write_todos replaces the whole list, so call it once in a message. None of the 2 calls has run."
    assert contents(done)[2:5] == [said, said, "found a"]
    assert [done["messages"][at]["status"] for at in (2, 3)] == ["error", "error"]
    assert done["todos"] == LAST


@pytest.mark.one_loop
async def test_invalid_lists() -> None:
    wrong = [{"content": "look", "status": "maybe"}]
    model = Script(asking(call("write_todos", todos=wrong)), "done")
    done = await create_agent(model, middleware=[TodoListMiddleware()]).ainvoke(HI)
    assert "Invalid enum value 'maybe'" in contents(done)[2]
    assert "todos" not in done


@pytest.mark.one_loop
async def test_system_messages_of_blocks() -> None:
    blocks = {"role": "system", "content": [{"type": "text", "text": "Be short."}]}
    model = Script("done")
    await create_agent(model, system_prompt=blocks, middleware=[TodoListMiddleware(system_prompt="Plan.")]).ainvoke(HI)
    await create_agent(model, middleware=[TodoListMiddleware(system_prompt="Plan.")]).ainvoke(HI)
    assert [messages[0]["content"] for messages in model.seen] == [
        [{"type": "text", "text": "Be short."}, {"type": "text", "text": "\n\nPlan."}],
        "Plan.",
    ]


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="needs langchain-core")
async def test_messages_of_langchain() -> None:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    seen: list[Any] = []

    async def model(messages: Any, tools: Any) -> Any:
        seen.append(messages[0])
        calls: Any = [call("write_todos", "1", todos=FIRST)]
        return AIMessage("done") if isinstance(messages[-1], ToolMessage) else AIMessage("", tool_calls=calls)

    done = await create_agent(model, system_prompt="s", middleware=[TodoListMiddleware()]).ainvoke(
        {"messages": [HumanMessage("hi")]}
    )
    assert isinstance(seen[0], SystemMessage)
    assert isinstance(done["messages"][2], ToolMessage)
    assert done["todos"] == FIRST
