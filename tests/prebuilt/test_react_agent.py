"""`create_react_agent`: the loop of model and tools, with LangGraph's parameters."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import Command, Runtime, interrupt
from pregel_async.errors import GraphValidationError, InvalidInputError
from pregel_async.prebuilt import (
    AgentState,
    InjectedState,
    InvalidModelError,
    InvalidToolError,
    StructuredOutputError,
    ToolNode,
    ToolRuntime,
    UnansweredCallsError,
    create_react_agent,
    tool,
)
from pregel_async.testing import Crash
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.recording import ReportingSaver
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city} is sunny"


def two_calls(*names: str) -> dict[str, Any]:
    return asking(*(call(name, str(index), city=name) for index, name in enumerate(names)))


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_turn(version: Any) -> None:
    """The model calls tools, sees their results in the order of the calls, and answers."""
    model = Script(asking(call("weather", "1", city="Oslo"), call("weather", "2", city="Rome")), "Sunny in both.")
    agent = create_react_agent(model, [weather], prompt="Be short.", version=version, name="helper")
    done = await agent.ainvoke(HI)
    assert contents(done) == ["hi", "", "Oslo is sunny", "Rome is sunny", "Sunny in both."]
    assert done["messages"][-1]["name"] == "helper"
    assert model.seen[0][0] == {"role": "system", "content": "Be short."}
    assert [tool["name"] for tool in model.tools[0]] == ["weather"]
    assert agent.name == "helper"


@pytest.mark.one_loop
async def test_a_send_carries_the_call_alone() -> None:
    """The state is not in the task's input, and tools get it nevertheless."""

    def count(runtime: ToolRuntime) -> str:
        return str(len(runtime.state["messages"]))

    agent = create_react_agent(Script(asking(call("count")), "done"), [count])
    inputs = []
    async for chunk in agent.astream(HI, stream_mode="tasks"):
        if chunk["name"] == "tools" and "input" in chunk:
            inputs.append(chunk["input"])
    assert inputs == [[call("count")]]
    assert contents(await agent.ainvoke(HI))[2] == "2"


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_crash_between_two_calls_of_a_turn(saver: BaseCheckpointSaver, version: Any) -> None:
    """The next process runs the call that is not recorded, and neither the model nor the other call."""
    dying = ReportingSaver(saver)
    ran: list[str] = []

    async def pay(city: str) -> str:
        ran.append("pay")
        return "paid"

    async def ship(city: str) -> str:
        ran.append("ship")
        if ran.count("ship") == 1:
            await dying.recorded()
            dying.crash()
        return "shipped"

    model = Script(two_calls("pay", "ship"), "done")
    agent = create_react_agent(model, [pay, ship], checkpointer=dying, version=version)
    with pytest.raises(Crash):
        await agent.ainvoke(HI, "t")
    await dying.restart()
    assert contents(await agent.ainvoke(None, "t"))[2:] == ["paid", "shipped", "done"]
    assert sorted(ran) == ["pay", "ship", "ship"]
    assert len(model.seen) == 2


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_question_in_one_of_three_calls(saver: BaseCheckpointSaver, version: Any) -> None:
    ran: list[str] = []

    def look(city: str) -> str:
        ran.append("look")
        return "seen"

    def ask(city: str) -> str:
        answer = interrupt("really?")
        ran.append("ask")
        return str(answer)

    model = Script(two_calls("look", "ask", "look"), "done")
    agent = create_react_agent(model, [look, ask], checkpointer=saver, version=version)
    asked: Any = await agent.ainvoke(HI, "t")
    assert [question.value for question in asked["__interrupt__"]] == ["really?"]
    assert contents(await agent.ainvoke(Command(resume="yes"), "t"))[2:] == ["seen", "yes", "seen", "done"]
    assert ran == ["look", "look", "ask"]
    assert len(model.seen) == 2


@pytest.mark.one_loop
async def test_prompts() -> None:
    """A text, a message, or a function of the state, plain or async."""

    async def later(state: AgentState) -> list[Any]:
        return [{"role": "system", "content": "c"}, *state["messages"]]

    prompts: list[Any] = [
        "c",
        {"role": "system", "content": "c"},
        lambda state: [{"role": "system", "content": "c"}, *state["messages"]],
        later,
    ]
    for prompt in prompts:
        model = Script("done")
        await create_react_agent(model, [], prompt=prompt).ainvoke(HI)
        assert [message["content"] for message in model.seen[0]] == ["c", "hi"]
    with pytest.raises(GraphValidationError, match="prompt is a text"):
        create_react_agent(Script("done"), [], prompt=3)


@pytest.mark.one_loop
async def test_a_model_for_each_call() -> None:
    """A function of state and runtime chooses the model."""

    @dataclasses.dataclass
    class Context:
        model: str

    models = {"big": Script("big"), "small": Script("small")}

    def choose(state: AgentState, runtime: Runtime[Context]) -> Any:
        return models[runtime.context.model]

    async def choose_later(state: AgentState, chosen_by: Runtime[Context]) -> Any:
        return models[chosen_by.context.model]

    for chooser in (choose, choose_later):
        agent = create_react_agent(chooser, [], context_schema=Context)
        assert contents(await agent.ainvoke(HI, context=Context("big")))[-1] == "big"
        assert contents(await agent.ainvoke(HI, context=Context("small")))[-1] == "small"


@pytest.mark.one_loop
async def test_hooks() -> None:
    """The pre hook may give the model other messages, and the post hook may answer calls itself."""

    def trim(state: AgentState) -> dict[str, Any]:
        return {"llm_input_messages": [message for message in state["messages"] if message["content"] != "secret"]}

    def guard(state: AgentState) -> dict[str, Any]:
        refused = [each for each in state["messages"][-1].get("tool_calls", ()) if each["args"]["city"] == "Rome"]
        return {"messages": [{"role": "tool", "tool_call_id": each["id"], "content": "refused"} for each in refused]}

    model = Script(asking(call("weather", "1", city="Rome"), call("weather", "2", city="Oslo")), "done")
    agent = create_react_agent(model, [weather], pre_model_hook=trim, post_model_hook=guard)
    done = await agent.ainvoke({"messages": ["secret", "hi"]})
    assert contents(done)[2:] == ["", "refused", "Oslo is sunny", "done"]
    assert [message["content"] for message in model.seen[0]] == ["hi"]
    model = Script(asking(call("weather", "1", city="Rome")), "done")
    done = await create_react_agent(model, [weather], post_model_hook=guard).ainvoke(HI)
    assert contents(done)[1:] == ["", "refused", "done"]


class Mood(pydantic.BaseModel):
    """The mood."""

    mood: str
    score: int


class StructMood(msgspec.Struct):
    mood: str
    score: int


JSON = {"title": "Mood", "type": "object", "properties": {"mood": {}, "score": {}}}
GOOD = {"mood": "good", "score": 3}


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", [Mood, StructMood, JSON], ids=["pydantic", "struct", "json schema"])
async def test_structured_response_by_a_tool(kind: Any) -> None:
    """The model is asked once more; it is shown its error, and the object is stored."""
    wrong = asking(call("Mood", "a", mood="good", score="many"))
    answers: list[Any] = ["fine", asking(call("StructMood" if kind is StructMood else "Mood", "b", **GOOD))]
    if kind is Mood:
        answers.insert(1, wrong)
    model = Script(*answers)
    agent = create_react_agent(model, [], response_format=("Judge.", kind), checkpointer=InMemorySaver())
    done = await agent.ainvoke(HI, "t")
    expected = GOOD if kind is JSON else kind(**GOOD)
    assert done["structured_response"] == expected
    assert (await agent.aget_state("t")).values["structured_response"] == expected
    assert contents(done) == ["hi", "fine"]
    assert model.seen[1][0] == {"role": "system", "content": "Judge."}
    if kind is Mood:
        assert "score: Input should be a valid integer" in model.seen[2][-1]["content"]
        assert model.tools[1][0]["parameters"]["required"] == ["mood", "score"]


@pytest.mark.one_loop
async def test_structured_response_by_the_provider() -> None:
    """A model that follows schemas is given the schema, and answers in JSON."""
    seen: list[Any] = []

    async def model(messages: list[Any], tools: list[Any], *, response_schema: Any = None) -> Any:
        seen.append(response_schema)
        if response_schema is None:
            return "fine"
        return "no" if len(seen) == 2 else '{"mood": "good", "score": 3}'

    done = await create_react_agent(model, [], response_format=Mood).ainvoke(HI)
    assert done["structured_response"] == Mood(**GOOD)
    assert seen[0] is None
    assert seen[1]["required"] == ["mood", "score"]


@pytest.mark.one_loop
async def test_a_model_that_never_gives_the_form() -> None:
    with pytest.raises(StructuredOutputError, match="'Mood': the answer is no JSON") as failed:
        await create_react_agent(Script("fine"), [], response_format=Mood).ainvoke(HI)
    assert failed.value.message["content"] == "fine"
    with pytest.raises(GraphValidationError, match="response_format is"):
        create_react_agent(Script("fine"), [], response_format=3)


@pytest.mark.one_loop
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_return_direct(version: Any) -> None:
    """The agent ends with the tool's result, without another call of the model."""
    final = tool("final", return_direct=True)(weather)
    model = Script(asking(call("final", city="Oslo")), "unused")
    done = await create_react_agent(model, [final, weather], version=version).ainvoke(HI)
    assert contents(done)[-1] == "Oslo is sunny"
    assert len(model.seen) == 1
    model = Script(asking(call("weather", city="Oslo")), "used")
    assert contents(await create_react_agent(model, [final, weather]).ainvoke(HI))[-1] == "used"


@pytest.mark.one_loop
@pytest.mark.parametrize("hooks", [{}, {"pre_model_hook": lambda state: {}, "post_model_hook": lambda state: {}}])
@pytest.mark.parametrize("limit", range(3, 12))
async def test_the_step_limit_ends_an_agent_gracefully(limit: int, hooks: Any) -> None:
    """An agent that would go on for ever ends with a message; no call stays unanswered, and nothing is raised."""

    async def endless(messages: list[Any], tools: list[Any]) -> Any:
        return asking(call("weather", str(len(messages)), city="Oslo"))

    agent = create_react_agent(endless, [weather], **hooks)
    done = await agent.ainvoke(HI, {"recursion_limit": limit})
    assert done["messages"][-1]["content"] == "The step limit ends this run before the request is done."
    assert not any(each.get("tool_calls") for each in done["messages"][-1:])


@pytest.mark.one_loop
async def test_the_step_limit_leaves_time_for_a_direct_tool() -> None:
    final = tool("final", return_direct=True)(weather)
    agent = create_react_agent(Script(asking(call("final", city="Oslo"))), [final])
    assert contents(await agent.ainvoke(HI, {"recursion_limit": 2}))[-1] == "Oslo is sunny"


@pytest.mark.one_loop
async def test_a_state_of_ones_own() -> None:
    class State(AgentState, total=False):
        user: str

    def whoami(user: Annotated[str, InjectedState("user")]) -> str:
        return user

    agent = create_react_agent(Script(asking(call("whoami")), "done"), [whoami], state_schema=State)
    done = await agent.ainvoke({**HI, "user": "ada"})
    assert (contents(done)[2], done["user"]) == ("ada", "ada")

    class Model(pydantic.BaseModel):
        messages: Annotated[list[Any], lambda old, new: [*old, *new]]
        user: str = "eve"

    agent = create_react_agent(Script(asking(call("whoami")), "done"), [whoami], state_schema=Model)
    assert contents(await agent.ainvoke(HI))[2] == "eve"
    with pytest.raises(GraphValidationError, match="'Model' lacks 'structured_response'"):
        create_react_agent(Script("done"), [], state_schema=Model, response_format=Mood)


@pytest.mark.one_loop
async def test_a_tool_node_of_ones_own_and_tools_of_the_provider() -> None:
    def broken(city: str) -> str:
        raise ValueError("no")

    model = Script(asking(call("broken", city="Oslo")), "done")
    agent = create_react_agent(model, ToolNode([broken], handle_tool_errors="It failed."))
    assert contents(await agent.ainvoke(HI))[2] == "It failed."
    model = Script("done")
    await create_react_agent(model, [{"type": "web_search"}, weather]).ainvoke(HI)
    assert model.tools[0][1] == {"type": "web_search"}


@pytest.mark.one_loop
async def test_bad_input() -> None:
    """What can never work is refused before anything runs; a call without an answer before the model is asked."""
    with pytest.raises(InvalidModelError):
        create_react_agent(3, [])
    with pytest.raises(InvalidToolError):
        create_react_agent(Script("done"), [3])
    with pytest.raises(GraphValidationError, match="version is"):
        create_react_agent(Script("done"), [], version="v3")
    model = Script("done")
    with pytest.raises(UnansweredCallsError, match="'7'"):
        await create_react_agent(model, []).ainvoke({"messages": [asking(call("weather", "7")), "hi"]})
    with pytest.raises(InvalidInputError, match="needs a message"):
        await create_react_agent(model, []).ainvoke({"messages": []})
    assert model.seen == []
