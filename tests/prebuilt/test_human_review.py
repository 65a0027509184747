"""`HumanInTheLoopMiddleware`: one question for a turn, or one for each call."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import Command
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import HITLResponse, HumanInTheLoopMiddleware, ToolCallRequest, ToolRuntime, create_agent
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}
NOTICE = HumanInTheLoopMiddleware({}).edit_notice


def agent_of(saver: BaseCheckpointSaver, sent: list[str], answer: Any, middleware: HumanInTheLoopMiddleware) -> Any:
    def send_email(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    def weather(city: str) -> str:
        return f"{city} is sunny"

    def note(text: str, runtime: ToolRuntime) -> Any:
        message = {"role": "tool", "tool_call_id": runtime.tool_call_id, "content": text}
        return Command(update={"messages": [message]})

    return create_agent(
        Script(answer, "done"), [send_email, weather, note], middleware=[middleware], checkpointer=saver
    )


async def test_one_question_for_a_turn(saver: BaseCheckpointSaver) -> None:
    """The question lists the calls that need a decision, and no tool runs before the answer."""
    sent: list[str] = []
    calls = [call("send_email", to, to=to) for to in ("ada", "bob", "eve", "joe")]
    agent = agent_of(
        saver,
        sent,
        asking(*calls, call("weather", "w", city="Oslo")),
        HumanInTheLoopMiddleware({"send_email": True, "weather": False}),
    )
    asked = await agent.ainvoke(HI, "t")
    (question,) = asked["__interrupt__"]
    assert [each["args"]["to"] for each in question.value["action_requests"]] == ["ada", "bob", "eve", "joe"]
    assert question.value["action_requests"][0] == {
        "name": "send_email",
        "args": {"to": "ada"},
        "description": "Tool execution requires approval\n\nTool: send_email\nArgs: {'to': 'ada'}",
    }
    assert question.value["review_configs"][0] == {
        "action_name": "send_email",
        "allowed_decisions": ["approve", "edit", "reject", "respond"],
    }
    assert sent == []
    answer: HITLResponse = {
        "decisions": [
            {"type": "approve"},
            {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bobby"}}},
            {"type": "reject", "message": "spam"},
            {"type": "respond", "message": "he knows"},
        ]
    }
    done = await agent.ainvoke(Command(resume=answer), "t")
    assert sorted(sent) == ["ada", "bobby"]
    by_call = {each["tool_call_id"]: each["content"] for each in done["messages"] if each["role"] == "tool"}
    assert by_call == {
        "ada": "sent to ada",
        "bob": f'{NOTICE} The call that ran: send_email with arguments {{"to": "bobby"}}.\nsent to bobby',
        "eve": "The user refused the call of 'send_email', and it has not run: spam",
        "joe": "he knows",
        "w": "Oslo is sunny",
    }
    assert contents(done)[-1] == "done"
    assert "hitl_edited_tool_calls" not in done


def test_a_sync_agent_asks() -> None:
    sent: list[str] = []
    agent = agent_of(
        InMemorySaver(),
        sent,
        asking(call("send_email", to="ada")),
        HumanInTheLoopMiddleware({"send_email": {"allowed_decisions": ["approve", "reject"], "description": "Mail?"}}),
    )
    (question,) = agent.invoke(HI, "t")["__interrupt__"]
    assert question.value["action_requests"][0]["description"] == "Mail?"
    for wrong in ("yes", {"decisions": []}, {"decisions": [{"type": "respond", "message": "no"}]}):
        (question,) = agent.invoke(Command(resume=wrong), "t")["__interrupt__"]
        assert question.value["action_requests"][0]["description"] == "The answer needs 1 allowed decisions. Mail?"
    assert contents(agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), "t"))[2] == "sent to ada"
    assert sent == ["ada"]


@pytest.mark.one_loop
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_conditions_and_descriptions(mode: Any) -> None:
    """`when` decides by the request; a function describes the call."""
    sent: list[str] = []

    def describe(call: Any, state: Any, runtime: Any) -> str:
        return f"{call['name']} after {len(state['messages'])} for {runtime.context}"

    def is_boss(request: ToolCallRequest) -> bool:
        return bool(request.tool_call["args"]["to"] == "boss" and request.runtime.context == "me")

    middleware = HumanInTheLoopMiddleware(
        {"send_email": {"allowed_decisions": ["approve"], "when": is_boss, "description": describe}},
        interrupt_mode=mode,
    )
    calls = [call("send_email", to, to=to) for to in ("boss", "ada")]
    agent = agent_of(InMemorySaver(), sent, asking(*calls), middleware)
    (question,) = (await agent.ainvoke(HI, "t", context="me"))["__interrupt__"]
    asked = question.value if mode == "per_call" else question.value["action_requests"][0]
    assert (asked["args"], asked["description"]) == ({"to": "boss"}, "send_email after 2 for me")
    assert sent == (["ada"] if mode == "per_call" else [])
    decision: Any = {"type": "approve"}
    answer = decision if mode == "per_call" else {"decisions": [decision]}
    await agent.ainvoke(Command(resume=answer), "t", context="me")
    assert sorted(sent) == ["ada", "boss"]


async def test_a_question_for_each_call(saver: BaseCheckpointSaver) -> None:
    """Answers come in any order, and show what is allowed. What is not allowed is asked again."""
    sent: list[str] = []
    calls = [call("send_email", to, to=to) for to in ("ada", "bob")]
    agent = agent_of(
        saver,
        sent,
        asking(*calls, call("weather", "w", city="Oslo")),
        HumanInTheLoopMiddleware(
            {"send_email": {"allowed_decisions": ["edit", "reject"]}}, interrupt_mode="per_call", edit_notice=None
        ),
    )
    ada, bob = (await agent.ainvoke(HI, "t"))["__interrupt__"]
    assert (ada.value["type"], ada.value["tool_call_id"]) == ("tool_approval", "ada")
    shown = [each["properties"]["type"]["const"] for each in ada.response_schema["oneOf"]]
    assert shown == ["edit", "reject"]
    edit = {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bobby"}}}
    await agent.ainvoke(Command(resume={bob.id: edit}), "t")
    (ada,) = (await agent.ainvoke(Command(resume={ada.id: {"type": "approve"}}), "t"))["__interrupt__"]
    assert ada.value["description"].startswith("That was no decision.")
    done = await agent.ainvoke(Command(resume={ada.id: {"type": "reject"}}), "t")
    assert contents(done)[2:] == [
        "The user refused the call of 'send_email', and it has not run. Do not repeat it unless the user asks for it.",
        "sent to bobby",
        "Oslo is sunny",
        "done",
    ]
    assert sent == ["bobby"]


@pytest.mark.one_loop
@pytest.mark.parametrize("way", ["batched", "per_call", "approve"])
async def test_an_edit_may_name_another_tool(way: Any) -> None:
    """The edited action replaces the call, however the question was asked."""
    ran: list[str] = []

    def send_email(to: str) -> str:
        ran.append(f"email to {to}")
        return "sent"

    def weather(city: str) -> str:
        ran.append(f"weather of {city}")
        return f"{city} is sunny"

    review = {"send_email": True}
    options: dict[str, Any] = (
        {"approve": review}
        if way == "approve"
        else {"middleware": [HumanInTheLoopMiddleware(review, interrupt_mode=way, edit_notice=None)]}
    )
    script = Script(asking(call("send_email", to="ada")), "done")
    agent = create_agent(script, [send_email, weather], checkpointer=InMemorySaver(), **options)
    await agent.ainvoke(HI, "t")
    edit: Any = {"type": "edit", "edited_action": {"name": "weather", "args": {"city": "Rome"}}}
    done = await agent.ainvoke(Command(resume={"decisions": [edit]} if way == "batched" else edit), "t")
    assert (ran, contents(done)[2:]) == (["weather of Rome"], ["Rome is sunny", "done"])


@pytest.mark.one_loop
async def test_an_edit_belongs_to_its_turn() -> None:
    """The same id in a later turn is another call; a tool that returns a command has its message noticed, too."""
    agent = agent_of(
        InMemorySaver(),
        [],
        asking(call("note", "1", text="a")),
        HumanInTheLoopMiddleware(
            {"note": {"allowed_decisions": ["edit"], "when": lambda request: request.tool_call["args"]["text"] == "a"}},
            edit_notice="Changed.",
        ),
    )
    await agent.ainvoke(HI, "t")
    edit = {"type": "edit", "edited_action": {"name": "note", "args": {"text": "b"}}}
    done = await agent.ainvoke(Command(resume={"decisions": [edit]}), "t")
    assert contents(done)[2] == 'Changed. The call that ran: note with arguments {"text": "b"}.\nb'
    asked = [{"role": "user", "content": "again"}, asking(call("note", "1", text="c"))]
    await agent.aupdate_state({"configurable": {"thread_id": "t"}}, {"messages": asked}, as_node="model")
    assert "c" in contents(await agent.ainvoke(None, "t"))


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="needs langchain-core")
async def test_messages_of_langchain() -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    def send_email(to: str) -> str:
        return f"sent to {to}"

    calls: Any = [call("send_email", to, to=to) for to in ("ada", "bob")]

    async def model(messages: Any, tools: Any) -> Any:
        return AIMessage("done") if len(messages) > 1 else AIMessage("", tool_calls=calls)

    agent = create_agent(
        model, [send_email], middleware=[HumanInTheLoopMiddleware({"send_email": True})], checkpointer=InMemorySaver()
    )
    await agent.ainvoke({"messages": [HumanMessage("hi")]}, "t")
    edit = {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "adam"}}}
    done = await agent.ainvoke(Command(resume={"decisions": [edit, {"type": "reject"}]}), "t")
    answers = {each.tool_call_id: each for each in done["messages"] if isinstance(each, ToolMessage)}
    assert answers["ada"].content.endswith("sent to adam")
    assert answers["bob"].status == "error"


@pytest.mark.one_loop
async def test_bad_configurations() -> None:
    for wrong in ("yes", {}, {"allowed_decisions": []}, {"allowed_decisions": ["maybe"]}):
        with pytest.raises(GraphValidationError, match="allowed_decisions"):
            HumanInTheLoopMiddleware({"send_email": wrong})
    with pytest.raises(GraphValidationError, match="interrupt_mode"):
        HumanInTheLoopMiddleware({}, interrupt_mode="all")


@pytest.mark.one_loop
async def test_middleware_of_langchain_is_refused() -> None:
    """The error names the class to use."""
    for base, own in (
        ("HumanInTheLoopMiddleware", "HumanInTheLoopMiddleware"),
        ("ShellToolMiddleware", "AgentMiddleware"),
    ):
        theirs = type(base, (), {"__module__": "langchain.agents.middleware.some"})
        with pytest.raises(GraphValidationError, match=f"Use {own} of pregel_async.prebuilt"):
            create_agent(Script("done"), middleware=[theirs()])
