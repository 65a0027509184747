"""An agent with a chat model and tools of langchain-core: its loop, its tokens, its approval by a human, its memory."""

import importlib.util
from typing import Annotated, Any, TypedDict

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("langchain_core") is None,
        reason="langchain-core is not installed here: nox -s langgraph installs it",
    ),
    pytest.mark.anyio,
    pytest.mark.one_loop,
]

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


def scripted(*answers: Any) -> Any:
    """Return a chat model that gives these messages one after another."""
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Scripted(BaseChatModel):
        left: list[Any]

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **more: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> Any:
            return ChatResult(generations=[ChatGeneration(message=self.left.pop(0))])

    return Scripted(left=list(answers))


def build(library: Any, sent: list[str], *, asks: bool = False) -> Any:
    from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
    from langchain_core.tools import tool

    # docs/from-langgraph.md: this reducer makes objects of pairs and dicts, as LangGraph's does.
    add = library.add_messages
    if not library.is_langgraph:
        from pregel_async.langchain import add_messages as add

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add]

    @tool
    def send_mail(to: str) -> str:
        """Send a mail."""
        if asks and not library.interrupt({"send to": to}):
            return "not sent"
        sent.append(to)
        return f"sent to {to}"

    call = {"name": "send_mail", "args": {"to": "ann"}, "id": "call-1"}
    model = scripted(
        AIMessage("", tool_calls=[call], id="m1"), AIMessage("it is done", id="m2"), AIMessage("bye", id="m3")
    )
    with_tools = model.bind_tools([send_mail])

    async def call_model(state: State) -> dict[str, Any]:
        return {"messages": [await with_tools.ainvoke(state["messages"])]}

    async def tool_node(state: State) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls
        return {
            "messages": [
                ToolMessage(content=await send_mail.ainvoke(each["args"]), tool_call_id=each["id"], id="t1")
                for each in calls
            ]
        }

    def should_continue(state: State) -> str:
        return "tools" if state["messages"][-1].tool_calls else library.END

    builder = library.StateGraph(State).add_node("agent", call_model).add_node("tools", tool_node)
    builder.add_edge(library.START, "agent").add_edge("tools", "agent")
    builder.add_conditional_edges("agent", should_continue, ["tools", library.END])
    return builder.compile(checkpointer=library.InMemorySaver())


async def test_the_loop(library: Any) -> None:
    """A pair becomes a message, the model's call reaches the tool, and a later call finds all of it."""
    sent: list[str] = []
    graph = build(library, sent)
    result = await graph.ainvoke({"messages": [("user", "write to ann")]}, CONFIG)
    assert [(each.type, each.content) for each in result["messages"]] == [
        ("human", "write to ann"),
        ("ai", ""),
        ("tool", "sent to ann"),
        ("ai", "it is done"),
    ]
    assert sent == ["ann"]
    result = await graph.ainvoke({"messages": {"role": "user", "content": "thanks"}}, CONFIG)
    assert [each.content for each in result["messages"]][-2:] == ["thanks", "bye"] and len(result["messages"]) == 6


async def test_messages_as_they_come(library: Any) -> None:
    """The messages of the model and of the tools, each once, with the node that they come from."""
    graph = build(library, [])
    given = {"messages": [("user", "write to ann")]}
    shown = [
        (message.content, metadata["langgraph_node"], metadata["langgraph_step"])
        async for message, metadata in graph.astream(given, CONFIG, stream_mode="messages")
    ]
    assert shown == [("", "agent", 1), ("sent to ann", "tools", 2), ("it is done", "agent", 3)]


async def test_tokens(library: Any) -> None:
    """A model that streams is streamed, though its node awaits the whole answer."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    model = GenericFakeChatModel(messages=iter([AIMessage("owls hunt at night")]))

    async def answer(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("when do owls hunt?")]}

    builder = library.StateGraph(library.MessagesState).add_node("answer", answer).add_edge(library.START, "answer")
    stream = builder.compile().astream({"messages": []}, stream_mode="messages")
    tokens = [message.content async for message, _ in stream]
    assert [token for token in tokens if token] == ["owls", " ", "hunt", " ", "at", " ", "night"]


async def test_a_human_approves_a_tool(library: Any) -> None:
    """The tool asks, and the answer decides whether it acts."""
    for answer, expected, mails in ((True, "sent to ann", ["ann"]), (False, "not sent", [])):
        sent: list[str] = []
        graph = build(library, sent, asks=True)
        asked = await graph.ainvoke({"messages": [("user", "write to ann")]}, CONFIG)
        assert [each.value for each in asked["__interrupt__"]] == [{"send to": "ann"}]
        result = await graph.ainvoke(library.Command(resume=answer), CONFIG)
        assert [each.content for each in result["messages"]][-2:] == [expected, "it is done"]
        assert sent == mails
