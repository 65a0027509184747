"""Tools and messages of langchain-core in a `ToolNode`."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Any

import pydantic
import pytest

from checkpoint_savers import InMemorySaver, InMemoryStore
from pregel_async import START, Command, MessagesState, Send, StateGraph, interrupt
from pregel_async.prebuilt import (
    InjectedState,
    InjectedStore,
    InjectedToolCallId,
    ToolInvocationError,
    ToolNode,
    ToolRuntime,
    as_tool,
    tools_condition,
)
from tests.prebuilt.calls import asking, call, contents

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
    from langchain_core.tools import InjectedToolArg, ToolException, tool

    @tool
    def add(a: int, b: int) -> int:
        """Add numbers."""
        return a + b

    @tool
    async def lookup(
        word: str,
        state: Annotated[dict, InjectedState],
        store: Annotated[Any, InjectedStore()],
        id: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
        secret: Annotated[str, InjectedToolArg] = "s",
    ) -> str:
        """Look a word up."""
        return f"{word} {len(state['messages'])} {store is not None} {id} {runtime.tool_call_id} {secret}"

    @tool(return_direct=True, response_format="content_and_artifact")
    def pair(a: int) -> Any:
        """Return a pair."""
        return str(a), {"a": a}

    @tool
    def ask(text: str) -> Any:
        """Ask."""
        return interrupt(text)

    @tool
    def go(id: Annotated[str, InjectedToolCallId]) -> Command:
        """Go on."""
        return Command(update={"messages": [lc.ToolMessage("went", tool_call_id=id)]})

    @tool
    def inner(a: int) -> str:
        """Validate something of its own."""
        return str(pydantic.TypeAdapter(int).validate_python("x"))

    @tool
    def careful(a: int) -> str:
        """Fail."""
        raise ToolException("not today")

    careful.handle_tool_error = True


if importlib.util.find_spec("langgraph") is not None:
    from langgraph import prebuilt


def ai(*calls: dict[str, Any]) -> Any:
    return lc.AIMessage("", tool_calls=list(calls))


async def test_messages_of_langchain_are_answered_with_messages_of_langchain() -> None:
    """The answer of a call has the kind of the message with the call, whatever the tool is."""

    def double(x: int) -> int:
        return 2 * x

    node = ToolNode([add, double])
    update = await node.ainvoke(
        {"messages": [ai(call("add", "1", a=1, b=2), call("double", "2", x=2), call("no", "3"))]}
    )
    assert [type(message) for message in update["messages"]] == [lc.ToolMessage] * 3
    assert contents(update)[:2] == ["3", "4"]
    assert [message.status for message in update["messages"]] == ["success", "success", "error"]
    update = await node.ainvoke({"messages": [asking(call("add", "1", a=1, b=2), call("double", "2", x=2))]})
    assert [message["content"] for message in update["messages"]] == ["3", "4"]
    assert tools_condition({"messages": [ai(call("add"))]}) == "tools"
    assert tools_condition({"messages": [lc.AIMessage("hi")]}) == "__end__"


async def test_what_models_see() -> None:
    """Injected parameters are not in the schema, with the marks of either library."""
    made = as_tool(lookup)
    assert (made.name, made.description) == ("lookup", "Look a word up.")
    assert made.args_schema["properties"].keys() == {"word"}
    assert made.args_schema["required"] == ["word"]
    assert as_tool(pair).return_direct


@pytest.mark.parametrize("send", [False, True])
async def test_injection(send: bool) -> None:
    builder = StateGraph(MessagesState).add_node("tools", ToolNode([lookup]))
    if send:
        builder.add_conditional_edges(
            START, lambda state: [Send("tools", [each]) for each in state["messages"][-1].tool_calls], ["tools"]
        )
    else:
        builder.add_edge(START, "tools")
    graph = builder.compile(store=InMemoryStore())
    done = await graph.ainvoke({"messages": [ai(call("lookup", "a", word="x"), call("lookup", "b", word="y"))]})
    assert contents(done)[1:] == ["x 1 True a a s", "y 1 True b b s"]
    assert isinstance(done["messages"][-1], lc.ToolMessage)


async def test_invalid_arguments_are_those_of_the_call_alone() -> None:
    """A validation error in the tool's own code is an error of the tool."""
    (text,) = contents(await ToolNode([add]).ainvoke([call("add", a="x", b=2)]))
    assert "a: Input should be a valid integer" in text
    with pytest.raises(ToolInvocationError):
        await ToolNode([add], handle_tool_errors=False).ainvoke([call("add", a=1)])
    with pytest.raises(pydantic.ValidationError):
        await ToolNode([inner]).ainvoke([call("inner", a=1)])


async def test_artifacts_exceptions_and_commands() -> None:
    update = await ToolNode([pair, careful, go]).ainvoke(
        {"messages": [asking(call("pair", "1", a=1), call("careful", "2", a=1), call("go", "3"))]}
    )
    first, command = update
    assert first["messages"][0]["artifact"] == {"a": 1}
    assert (first["messages"][1]["content"], first["messages"][1]["status"]) == ("not today", "error")
    assert command.update["messages"][0].name == "go"


async def test_questions() -> None:
    builder = StateGraph(MessagesState).add_node(ToolNode([ask, add])).add_edge(START, "tools")
    graph = builder.compile(InMemorySaver())
    asked = await graph.ainvoke({"messages": [ai(call("ask", "1", text="sure?"), call("add", "2", a=1, b=1))]}, "t")
    assert [question.value for question in asked["__interrupt__"]] == ["sure?"]
    done = await graph.ainvoke(Command(resume="yes"), "t")
    assert contents(done)[1:] == ["yes", "2"]


@pytest.mark.skipif(importlib.util.find_spec("langgraph") is None, reason="langgraph is not installed here")
async def test_marks_of_langgraph() -> None:
    """A tool that was written for LangGraph runs as it is."""

    @tool
    def about(
        word: str,
        runtime: prebuilt.ToolRuntime,
        state: Annotated[dict, prebuilt.InjectedState],
        user: Annotated[str, prebuilt.InjectedState("user")],
    ) -> str:
        """Describe a word."""
        return f"{word} {runtime.tool_call_id} {runtime.state['user']} {state['user']} {user}"

    assert as_tool(about).args_schema["properties"].keys() == {"word"}
    update = await ToolNode([about]).ainvoke({"messages": [asking(call("about", word="x"))], "user": "ada"})
    assert contents(update) == ["x 1 ada ada ada"]
