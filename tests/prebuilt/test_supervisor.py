"""`create_supervisor`: what agents see, what the conversation keeps, and what a crash or a question repeats."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async import Command, entrypoint, interrupt, open_sync
from pregel_async.errors import GraphValidationError, InvalidInputError, InvalidUpdateError
from pregel_async.prebuilt import AgentState, ToolNode, ToolRuntime, create_agent, tool
from pregel_async.prebuilt.supervisor import create_forward_message_tool, create_handoff_tool, create_supervisor
from pregel_async.testing import Crash
from tests.prebuilt.calls import asking, call
from tests.prebuilt.recording import ReportingSaver
from tests.prebuilt.team import Speaker, agent, newest, said, to

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    return a + b


def adder(**options: Any) -> Any:
    return agent("adder", asking(call("add", "sum", a=1, b=2)), newest("The sum is {}."), tools=[add], **options)


def back(name: str) -> list[tuple[str, Any]]:
    return [
        (name, ["transfer_back_to_supervisor"]),
        ("transfer_back_to_supervisor", "The conversation is with supervisor again."),
    ]


OVER = ("transfer_to_adder", "The conversation is now with adder.")


@pytest.mark.parametrize("mode", ["last_message", "full_history"])
async def test_an_agent_works_and_hands_back(saver: BaseCheckpointSaver, mode: Any) -> None:
    """The agent sees the conversation, and its last message, or all of them, are added to it."""
    model = Speaker("supervisor", to("adder"), newest("{}"))
    graph = create_supervisor([adder()], model=model, output_mode=mode).compile(saver)
    state = await graph.ainvoke({"messages": ["1 + 2?"]}, "t")
    work = [("adder", ["add"]), ("add", "3")] if mode == "full_history" else []
    assert said(state) == [
        ("user", "1 + 2?"),
        ("supervisor", ["transfer_to_adder"]),
        OVER,
        *work,
        ("adder", "The sum is 3."),
        *back("adder"),
        ("supervisor", "The conversation is with supervisor again."),
    ]
    assert [message["content"] for message in model.seen[1]] == [
        message["content"] for message in state["messages"][:-1]
    ]


@pytest.mark.one_loop
@pytest.mark.parametrize("backward", [None, True, False])
async def test_messages_of_handoffs_can_be_left_out(backward: bool | None) -> None:
    model = Speaker("supervisor", lambda messages: newest("{}")(messages) if len(messages) > 1 else to("adder"))
    options: Any = {"add_handoff_messages": False, "add_handoff_back_messages": backward}
    graph = create_supervisor([adder()], model=model, **options).compile()
    state = await graph.ainvoke({"messages": ["1 + 2?"]})
    assert said(state)[1:-1] == [("adder", "The sum is 3."), *(back("adder") if backward else [])]


@pytest.mark.parametrize("mode", ["last_message", "full_history"])
async def test_several_agents_at_once(saver: BaseCheckpointSaver, mode: Any) -> None:
    """Each agent sees its own handoff only; the conversation has each message once, and an answer to each call."""
    poet = Speaker("poet", "A rose.")
    model = Speaker("supervisor", to("adder", "poet"), "done")
    agents = [adder(), create_agent(poet, name="poet")]
    graph = create_supervisor(agents, model=model, parallel_tool_calls=True, output_mode=mode).compile(saver)
    state = await graph.ainvoke({"messages": ["go"]}, "t")
    assert said({"messages": poet.seen[0]}) == [
        ("user", "go"),
        ("supervisor", ["transfer_to_poet"]),
        ("transfer_to_poet", "The conversation is now with poet."),
    ]
    assert said(state) == [
        ("user", "go"),
        ("supervisor", ["transfer_to_adder"]),
        OVER,
        ("supervisor", ["transfer_to_poet"]),
        ("transfer_to_poet", "The conversation is now with poet."),
        *([("adder", ["add"]), ("add", "3")] if mode == "full_history" else []),
        ("adder", "The sum is 3."),
        *back("adder"),
        ("poet", "A rose."),
        *back("poet"),
        ("supervisor", "done"),
    ]


async def test_a_handoff_loses_no_result_of_another_tool(saver: BaseCheckpointSaver) -> None:
    """With calls of other tools in the message the model is asked to call again: their results stay."""
    model = Speaker(
        "supervisor", asking(call("add", "1", a=2, b=2), call("transfer_to_adder", "2")), to("adder"), "done"
    )
    graph = create_supervisor([adder()], model=model, tools=[add]).compile(saver)
    state = await graph.ainvoke({"messages": ["go"]}, "t")
    assert said(state)[1:6] == [
        ("supervisor", ["add", "transfer_to_adder"]),
        ("add", "4"),
        (
            "transfer_to_adder",
            "transfer_to_adder was not carried out, because other tools were called in the same message. Read their "
            "results, then call it alone.",
        ),
        ("supervisor", ["transfer_to_adder"]),
        OVER,
    ]
    assert said(state)[-1] == ("supervisor", "done")


async def test_a_message_is_forwarded_word_for_word(saver: BaseCheckpointSaver) -> None:
    """The run ends with a copy of the agent's answer, and not of the message in which it hands back."""
    forward = asking(call("forward_message", from_agent="ADDER"))
    model = Speaker(
        "supervisor", to("adder"), asking(call("forward_message", from_agent="poet")), forward, "not reached"
    )
    graph = create_supervisor([adder()], model=model, tools=[create_forward_message_tool()]).compile(saver)
    state = await graph.ainvoke({"messages": ["1 + 2?"]}, "t")
    assert said(state)[-3:] == [
        ("supervisor", ["forward_message"]),
        ("forward_message", "There is no message of 'poet'. Messages are of: adder."),
        ("supervisor", "The sum is 3."),
    ]
    assert len({message["id"] for message in state["messages"]}) == len(state["messages"])


class Shared(AgentState, total=False):
    notes: Annotated[list[str], operator.add]
    city: str


async def test_agents_share_keys_and_keep_others_private(saver: BaseCheckpointSaver) -> None:
    """A handoff and the end of an agent update the keys that both schemas have; other keys stay with the agent."""

    class Private(AgentState, total=False):
        city: str
        secret: str

    async def move(runtime: ToolRuntime) -> Command:
        """Move."""
        done = {"role": "tool", "tool_call_id": runtime.tool_call_id, "content": f"from {runtime.state['city']}"}
        return Command(update={"city": "Rome", "secret": "s", "messages": [done]})

    async def choose(runtime: ToolRuntime) -> Command:
        """Choose."""
        done = {"role": "tool", "tool_call_id": runtime.tool_call_id, "content": "chosen"}
        return Command(update={"city": "Oslo", "messages": [done]})

    mover = agent("mover", asking(call("move")), newest("{}"), tools=[move], state_schema=Private)
    model = Speaker("supervisor", asking(call("choose")), to("mover"), "done")
    graph = create_supervisor([mover], model=model, tools=[choose], state_schema=Shared).compile(saver)
    stream = graph.astream({"messages": ["go"], "notes": ["n"]}, "t", stream_mode="updates")
    chunks: list[Any] = [chunk async for chunk in stream]
    assert sorted(chunks[0]["supervisor"]) == ["city", "messages"]  # not "notes", which would be added a second time
    state = (await graph.aget_state("t")).values
    assert state["city"] == "Rome" and "secret" not in state
    assert ("mover", "from Oslo") in said(state)


async def test_an_agent_may_remember_its_calls(saver: BaseCheckpointSaver) -> None:
    """With `checkpointer=True` the agent's own messages last, whatever the conversation gets of them."""
    poet = Speaker("poet", "first", "second")
    one = create_agent(poet, [], name="poet", checkpointer=True)
    graph = create_supervisor([one], model=Speaker("supervisor", to("poet"), to("poet"), "done")).compile(saver)
    await graph.ainvoke({"messages": ["go"]}, "t")
    assert [len(seen) for seen in poet.seen] == [3, 8]


async def test_a_crash_between_two_handoffs(saver: BaseCheckpointSaver) -> None:
    """The process dies in the second agent: the next process runs neither the first agent nor the supervisor again."""
    dying = ReportingSaver(saver)
    ran: list[str] = []

    async def work(what: str) -> str:
        ran.append(what)
        if ran.count("b") == 1 and what == "b":
            dying.crash()
        return f"did {what}"

    def worker(name: str) -> Any:
        return agent(name, asking(call("work", what=name)), newest("{}"), tools=[work])

    model = Speaker("supervisor", to("a"), to("b"), "done")
    graph = create_supervisor([worker("a"), worker("b")], model=model).compile(dying)
    with pytest.raises(Crash):
        await graph.ainvoke({"messages": ["go"]}, "t")
    calls = len(model.seen)
    await dying.restart()
    state = await graph.ainvoke(None, "t")
    assert ran == ["a", "b", "b"]
    assert calls == 2 and len(model.seen) == 3
    assert [text for who, text in said(state) if who in ("a", "b") and isinstance(text, str)] == ["did a", "did b"]


def asks(what: str) -> str:
    return f"{what}: {interrupt({'may I': what})}"


def asking_agent(ran: list[str]) -> Any:
    async def look() -> str:
        ran.append("look")
        return "seen"

    turn = asking(call("asks", "1", what="pay"), call("look", "2"))
    return agent("clerk", turn, lambda messages: messages[-2]["content"], tools=[asks, look])


async def test_a_question_of_an_agent_is_answered_at_the_root(saver: BaseCheckpointSaver) -> None:
    """The thread asks; the answer reaches the tool, and no other call runs again."""
    ran: list[str] = []
    model = Speaker("supervisor", to("clerk"), "done")
    graph = create_supervisor([asking_agent(ran)], model=model).compile(saver)
    asked = await graph.ainvoke({"messages": ["go"]}, "t")
    assert [question.value for question in asked["__interrupt__"]] == [{"may I": "pay"}]
    state = await graph.aget_state("t", subgraphs=True)
    assert state.next == ("clerk",) and state.tasks[0].state is not None
    done = await graph.ainvoke(Command(resume="yes"), "t")
    assert ("clerk", "pay: yes") in said(done) and said(done)[-1] == ("supervisor", "done")
    assert ran == ["look"] and len(model.seen) == 2


async def test_a_question_of_one_of_two_agents(saver: BaseCheckpointSaver) -> None:
    """The other agent ends, and does not run again when the question is answered."""
    ran: list[str] = []
    poet = Speaker("poet", "A rose.")
    model = Speaker("supervisor", to("clerk", "poet"), "done")
    agents = [asking_agent(ran), create_agent(poet, [], name="poet")]
    graph = create_supervisor(agents, model=model, parallel_tool_calls=True).compile(saver)
    asked = await graph.ainvoke({"messages": ["go"]}, "t")
    assert [question.value for question in asked["__interrupt__"]] == [{"may I": "pay"}]
    done = await graph.ainvoke(Command(resume="yes"), "t")
    assert ("clerk", "pay: yes") in said(done) and ("poet", "A rose.") in said(done)
    assert ran == ["look"] and len(poet.seen) == 1 and len(model.seen) == 2


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_without_async(tmp_path: Path, kind: str) -> None:
    """The blocking methods do the same: handoffs, a question at the root, and its answer."""
    opening = nullcontext(InMemorySaver()) if kind == "memory" else open_sync(SqliteSaver(tmp_path / "threads.db"))
    ran: list[str] = []
    model = Speaker("supervisor", to("adder"), to("clerk"), "done")
    with opening as saver:
        graph = create_supervisor([adder(), asking_agent(ran)], model=model).compile(saver)
        asked: Any = graph.invoke({"messages": ["go"]}, "t")
        assert [question.value for question in asked["__interrupt__"]] == [{"may I": "pay"}]
        done = graph.invoke(Command(resume="yes"), "t")
        assert ("adder", "The sum is 3.") in said(done) and ("clerk", "pay: yes") in said(done)
        assert ran == ["look"]


@pytest.mark.one_loop
async def test_a_supervisor_of_supervisors() -> None:
    inner = create_supervisor([adder()], model=Speaker("lead", to("adder"), "It is 3."), supervisor_name="lead")
    model = Speaker("supervisor", to("team"), "done")
    graph = create_supervisor([inner.compile(name="team")], model=model).compile()
    state = await graph.ainvoke({"messages": ["1 + 2?"]})
    assert said(state)[3] == ("lead", "It is 3.") and said(state)[-1] == ("supervisor", "done")


@pytest.mark.one_loop
async def test_an_entrypoint_is_an_agent() -> None:
    @entrypoint()
    async def joker(state: Any) -> Any:
        return {"messages": [*state["messages"], {"role": "assistant", "content": "ha", "name": "joker"}], "x": 1}

    @entrypoint()
    async def silent(state: Any) -> Any:
        return {"joke": "ha"}

    graph = create_supervisor([joker], model=Speaker("supervisor", to("joker"), "done")).compile()
    state: Any = await graph.ainvoke({"messages": ["go"]})
    assert ("joker", "ha") in said(state) and "x" not in state
    graph = create_supervisor([silent], model=Speaker("supervisor", to("silent"), "done")).compile()
    with pytest.raises(InvalidUpdateError, match="agent 'silent' returned no 'messages'"):
        await graph.ainvoke({"messages": ["go"]})


@pytest.mark.one_loop
async def test_handoff_tools_of_your_own() -> None:
    """By the name of the tool, by a prefix, or by any tool whose metadata names an agent."""

    @tool("ask", description="Ask with a task.", metadata={"__handoff_destination": "adder"})
    def ask(task: str, runtime: ToolRuntime) -> Command:
        done = {"role": "tool", "tool_call_id": runtime.tool_call_id, "content": task, "name": "ask"}
        messages = [*runtime.state["messages"], done]
        return Command(goto="adder", graph=Command.PARENT, update={"messages": messages})

    for tools, prefix, name, args in (
        ([create_handoff_tool(agent_name="adder", name="assign", description="Assign.")], None, "assign", {}),
        ([], "delegate_to_", "delegate_to_adder", {}),
        ([ask], None, "ask", {"task": "add"}),
        (ToolNode([add], handle_tool_errors="no"), None, "transfer_to_adder", {}),
    ):
        model = Speaker("supervisor", asking(call(name, **args)), "done")
        graph = create_supervisor([adder()], model=model, tools=tools, handoff_tool_prefix=prefix).compile()
        state = await graph.ainvoke({"messages": ["go"]})
        assert said(state)[2][0] == name and ("adder", "The sum is 3.") in said(state)


@pytest.mark.one_loop
async def test_settings_of_the_supervisors_model() -> None:
    """Calls at once are off by default; names are in the text if asked for, and leave the answer again."""
    seen: list[Any] = []

    async def model(messages: list[Any], tools: list[Any], *, parallel_tool_calls: bool | None) -> Any:
        seen.append((parallel_tool_calls, [message["content"] for message in messages]))
        done = "<name>supervisor</name><content>It is 3.</content>"
        return to("adder") if len(messages) == 1 else done

    graph = create_supervisor(
        [adder()], model=model, include_agent_name="inline", add_handoff_back_messages=False
    ).compile()
    state = await graph.ainvoke({"messages": ["1 + 2?"]})
    assert seen[0] == (False, ["1 + 2?"])
    assert seen[1][1][-1] == "<name>adder</name><content>The sum is 3.</content>"
    assert said(state)[-1] == ("supervisor", "It is 3.")


@pytest.mark.one_loop
async def test_a_structured_answer() -> None:
    """`response_format` needs no schema of the caller's."""

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        return asking(call("report", "r", sum=3)) if tools and tools[0]["name"] == "report" else "done"

    form = {"title": "report", "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    graph = create_supervisor([adder()], model=model, response_format=form).compile()
    state = await graph.ainvoke({"messages": ["go"]})
    assert state["structured_response"] == {"sum": 3}


@pytest.mark.one_loop
async def test_a_handoff_writes_what_is_new(saver: BaseCheckpointSaver) -> None:
    """A conversation of 480 messages is not written again by each handoff."""
    graph = create_supervisor([adder()], model=Speaker("supervisor", to("adder"), "done")).compile(saver)
    long = [{"role": "user", "content": str(index)} for index in range(480)]
    chunks: list[Any] = [chunk async for chunk in graph.astream({"messages": long}, "t", stream_mode="updates")]
    assert said(chunks[0]["supervisor"]) == [("supervisor", ["transfer_to_adder"]), OVER]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"agents": []}, "agents is empty"),
        ({"agents": [object()]}, "an agent is a compiled graph"),
        ({"agents": [adder(), adder()]}, "two agents have the name 'adder'"),
        ({"agents": [create_agent(Speaker("a"), [])]}, "an agent has no name"),
        ({"supervisor_name": "adder"}, "the supervisor and an agent have one name"),
        ({"output_mode": "all"}, "output_mode is"),
        ({"include_agent_name": "xml"}, "include_agent_name is"),
        ({"tools": [create_handoff_tool(agent_name="poet")]}, "none leads to adder"),
        (
            {"tools": [create_handoff_tool(agent_name="adder"), create_handoff_tool(agent_name="poet")]},
            "there is no agent poet",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.one_loop
async def test_bad_input_is_refused(change: dict[str, Any], why: str) -> None:
    options: dict[str, Any] = {"agents": [adder()], "model": Speaker("supervisor", "x"), **change}
    with pytest.raises(GraphValidationError, match=why):
        create_supervisor(options.pop("agents"), **options)


@pytest.mark.one_loop
async def test_a_handoff_tool_needs_a_parent_graph() -> None:
    with pytest.raises(GraphValidationError, match="agent_name is empty"):
        create_handoff_tool(agent_name=" ")
    handoff = ToolNode([create_handoff_tool(agent_name="poet")])
    with pytest.raises(InvalidInputError, match="a handoff needs a state with the message that calls it"):
        await handoff.ainvoke([call("transfer_to_poet")])
    command: Any = await handoff.ainvoke({"messages": ["go", to("poet")]})  # as in a unit test
    assert command[0].goto == "poet" and len(command[0].update["messages"]) == 3
    alone = agent("alone", to("poet"), tools=[create_handoff_tool(agent_name="poet")])
    with pytest.raises(InvalidUpdateError, match="not run by a node of another one"):
        await alone.ainvoke({"messages": ["go"]})
