"""`create_agent`: the loop of model and tools, middleware, approval, and answers in a form."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import Command, Runtime
from pregel_async.errors import GraphRecursionError, GraphValidationError, InvalidInputError, InvalidUpdateError
from pregel_async.prebuilt import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    InjectedState,
    InvalidModelError,
    InvalidToolError,
    ModelRequest,
    ModelResponse,
    StructuredOutputError,
    ToolCallRequest,
    UnansweredCallsError,
    after_agent,
    after_model,
    before_agent,
    before_model,
    create_agent,
    dynamic_prompt,
    hook_config,
    tool,
    wrap_model_call,
    wrap_tool_call,
)
from pregel_async.testing import Crash
from tests.helpers.code_blocks import ROOT, blocks
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.recording import ReportingSaver
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city} is sunny"


async def test_a_turn() -> None:
    model = Script(asking(call("weather", "1", city="Oslo"), call("weather", "2", city="Rome")), "Sunny in both.")
    agent = create_agent(model, [weather], system_prompt="Be short.", name="helper")
    done = await agent.ainvoke(HI)
    assert contents(done) == ["hi", "", "Oslo is sunny", "Rome is sunny", "Sunny in both."]
    assert (done["messages"][-1]["name"], agent.name) == ("helper", "helper")
    assert model.seen[0][0] == {"role": "system", "content": "Be short."}
    assert contents(await create_agent(Script("hello")).ainvoke(HI)) == ["hi", "hello"]


async def test_a_crash_between_two_calls_of_a_turn(saver: BaseCheckpointSaver) -> None:
    """The next process runs the call that is not recorded, and neither the model nor the other call."""
    dying = ReportingSaver(saver)
    ran: list[str] = []

    async def pay() -> str:
        ran.append("pay")
        return "paid"

    async def ship() -> str:
        ran.append("ship")
        if ran.count("ship") == 1:
            await dying.recorded()
            dying.crash()
        return "shipped"

    model = Script(asking(call("pay", "1"), call("ship", "2")), "done")
    agent = create_agent(model, [pay, ship], checkpointer=dying)
    with pytest.raises(Crash):
        await agent.ainvoke(HI, "t")
    await dying.restart()
    assert contents(await agent.ainvoke(None, "t"))[2:] == ["paid", "shipped", "done"]
    assert sorted(ran) == ["pay", "ship", "ship"]
    assert len(model.seen) == 2


sent: list[str] = []


def send_email(to: str) -> str:
    """Send an email."""
    sent.append(to)
    return f"sent to {to}"


async def test_approval(saver: BaseCheckpointSaver) -> None:
    """Each call that needs approval asks for itself; answers come in any order, and other calls do not wait."""
    sent.clear()
    people = ["ada", "bob", "eve", "mallory", "joe"]
    calls = [call("send_email", to, to=to) for to in people]
    agent = create_agent(
        Script(asking(*calls, call("weather", "w", city="Oslo")), "done"),
        [send_email, weather],
        approve={"send_email": lambda request: request.tool_call["args"]["to"] != "joe", "weather": False},
        checkpointer=saver,
    )
    asked: Any = await agent.ainvoke(HI, "t")
    questions = {question.value["args"]["to"]: question for question in asked["__interrupt__"]}
    assert list(questions) == ["ada", "bob", "eve", "mallory"]
    assert questions["ada"].value == {
        "type": "tool_approval",
        "tool_call_id": "ada",
        "name": "send_email",
        "args": {"to": "ada"},
        "description": "May the tool 'send_email' run?",
    }
    assert sent == ["joe"]
    edited = {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bobby"}}}
    answers: dict[str, Any] = {"mallory": {"type": "reject", "message": "spam"}, "bob": edited}
    await agent.ainvoke(Command(resume={questions[to].id: answer for to, answer in answers.items()}), "t")
    assert sent == ["joe", "bobby"]
    answers = {"ada": {"type": "approve"}, "eve": {"type": "respond", "message": "she knows"}}
    done = await agent.ainvoke(Command(resume={questions[to].id: answer for to, answer in answers.items()}), "t")
    assert contents(done)[2:] == [
        "sent to ada",
        "sent to bobby",
        "she knows",
        "The user refused the call of 'send_email', and it has not run: spam",
        "sent to joe",
        "Oslo is sunny",
        "done",
    ]
    assert sent == ["joe", "bobby", "ada"]


@pytest.mark.one_loop
async def test_forms_of_approval() -> None:
    """A function for all tools; True and False as answers; an answer that is no decision is asked again."""
    sent.clear()
    agent = create_agent(
        Script(asking(call("send_email", to="ada")), "done"),
        [send_email],
        approve=lambda request: True,
        checkpointer=InMemorySaver(),
    )
    await agent.ainvoke(HI, "t")
    again: Any = await agent.ainvoke(Command(resume="maybe"), "t")
    (question,) = again["__interrupt__"]
    assert question.value["description"] == "That was no decision. May the tool 'send_email' run?"
    assert contents(await agent.ainvoke(Command(resume=True), "t"))[2] == "sent to ada"
    await agent.ainvoke(HI, "u")
    done = await agent.ainvoke(Command(resume=False), "u")
    assert "it has not run. Do not repeat it" in contents(done)[2]
    assert sent == ["ada"]
    for wrong in (3, True, {"send_email": "yes"}):
        with pytest.raises(GraphValidationError, match="approve is a function"):
            create_agent(Script("done"), [send_email], approve=wrong)
    with pytest.raises(GraphValidationError, match="approve names send_mail, and the tools are send_email"):
        create_agent(Script("done"), [send_email], approve={"send_mail": True})


async def test_hooks_run_in_their_order() -> None:
    """Before hooks from the first middleware on, after hooks from the last; each round runs those of the model."""
    ran: list[str] = []

    class Both(AgentMiddleware):
        def before_agent(self, state: Any, runtime: Runtime[Any]) -> Any:
            ran.append(f"{self.name} before agent")

        async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> Any:
            ran.append(f"{self.name} before model")

        def after_model(self, state: Any, runtime: Runtime[Any]) -> Any:
            ran.append(f"{self.name} after model")

        async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> Any:
            ran.append(f"{self.name} after agent")
            return {"messages": [{"role": "assistant", "content": self.name}]}

    class One(Both):
        pass

    class Two(Both):
        pass

    agent = create_agent(Script(asking(call("weather", city="Oslo")), "done"), [weather], middleware=[One(), Two()])
    done = await agent.ainvoke(HI)
    turn = ["One before model", "Two before model", "Two after model", "One after model"]
    assert ran == [
        "One before agent",
        "Two before agent",
        *turn,
        *turn,
        "Two after agent",
        "One after agent",
    ]
    assert contents(done)[-3:] == ["done", "Two", "One"]


@pytest.mark.one_loop
async def test_decorators() -> None:
    """A function is a middleware, with keys of the state and tools of its own."""

    class Counted(AgentState, total=False):
        rounds: int

    @before_agent
    def start(state: Any, runtime: Any) -> Any:
        return {"rounds": 0}

    @before_model(state_schema=Counted, tools=[weather], name="counter")
    async def count(state: Any, runtime: Any) -> Any:
        return {"rounds": state["rounds"] + 1}

    @after_model
    def look(state: Any, runtime: Any) -> Any:
        return None

    @after_agent
    def end(state: Any, runtime: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": f"{state['rounds']} rounds"}]}

    agent = create_agent(Script(asking(call("weather", city="Oslo")), "done"), middleware=[start, count, look, end])
    done = await agent.ainvoke(HI)
    assert (contents(done)[-1], done["rounds"]) == ("2 rounds", 2)
    assert {"start.before_agent", "counter.before_model", "look.after_model", "end.after_agent"} <= {
        *agent.get_graph().nodes
    }


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("place", "expected"),
    [("end", ["hi", "blocked"]), ("model", ["hi", "blocked", "done"]), ("tools", ["hi", "blocked", "done"])],
)
async def test_jumps(place: Any, expected: list[str]) -> None:
    """A hook may end the run, or lead to the model or the tools, if it declares that."""

    @before_agent(can_jump_to=[place])
    def guard(state: Any, runtime: Any) -> Any:
        return {"jump_to": place, "messages": [{"role": "user", "content": "blocked"}]}

    model = Script("done")
    done = await create_agent(model, [weather], middleware=[guard]).ainvoke(HI)
    assert contents(done) == expected
    assert "jump_to" not in done


@pytest.mark.one_loop
@pytest.mark.parametrize("hook", [before_model, after_agent], ids=["before_model", "after_agent"])
async def test_jumps_to_tools_without_calls(hook: Any) -> None:
    """Nothing is to be run, so the model is next, from each hook."""

    def jump(state: Any, runtime: Any) -> Any:
        return {"jump_to": "tools", "tries": 1} if not state.get("tries") else None

    class Tries(AgentState, total=False):
        tries: int

    again = hook(jump, state_schema=Tries, can_jump_to=["tools"])
    done = await create_agent(Script("first", "second"), [weather], middleware=[again]).ainvoke(HI)
    assert contents(done) == (["hi", "first"] if hook is before_model else ["hi", "first", "second"])


@pytest.mark.one_loop
async def test_a_hook_that_always_jumps_ends_at_the_step_limit() -> None:
    """The hook leads to itself, so the model never runs."""

    @before_model(can_jump_to=["tools"])
    def jump(state: Any, runtime: Any) -> Any:
        return {"jump_to": "tools"}

    model = Script("done")
    agent = create_agent(model, [weather], middleware=[jump])
    with pytest.raises(GraphRecursionError):
        await agent.ainvoke(HI, {"recursion_limit": 8})
    assert model.seen == []


@pytest.mark.one_loop
async def test_jumps_after_the_model() -> None:
    class Guard(AgentMiddleware):
        @hook_config(can_jump_to=["end", "model"])
        def after_model(self, state: Any, runtime: Runtime[Any]) -> Any:
            last = state["messages"][-1]
            if last["content"] == "bad":
                return {"jump_to": "model"}
            return {"jump_to": "end"} if last.get("tool_calls") else None

    model = Script("bad", asking(call("weather", city="Oslo"), content="calls"))
    done = await create_agent(model, [weather], middleware=[Guard()]).ainvoke(HI)
    assert contents(done) == ["hi", "bad", "calls"]

    @before_model
    def undeclared(state: Any, runtime: Any) -> Any:
        return {"jump_to": "end"}

    with pytest.raises(InvalidUpdateError, match="which it does not declare"):
        await create_agent(model, middleware=[undeclared]).ainvoke(HI)
    with pytest.raises(GraphValidationError, match="can_jump_to names"):
        hook_config(can_jump_to=["start"])


async def test_wrappers_of_the_model() -> None:
    """The first one is outermost; each may change the request, call again, answer itself, or update the state."""
    ran: list[str] = []

    @wrap_model_call
    async def outer(request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]) -> Any:
        ran.append("outer")
        response = await handler(request.override(system_prompt="outer", tools=[]))
        return ExtendedModelResponse(response, Command(update={"note": "noted"}))

    @wrap_model_call
    def retry(request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> Any:
        ran.append("inner")
        assert request.system_prompt == "outer"
        try:
            return handler(request)
        except ConnectionError:
            return handler(request.override(messages=[*request.messages, {"role": "user", "content": "again"}]))

    class Noted(AgentState, total=False):
        note: str

    failed: list[int] = []

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        if not failed:
            failed.append(1)
            raise ConnectionError("no line")
        assert tools == []
        return ", ".join(message["content"] for message in messages)

    agent = create_agent(model, [weather], middleware=[outer, retry], state_schema=Noted)
    done = await agent.ainvoke(HI)
    assert contents(done)[-1] == "outer, hi, again"
    assert (done["note"], ran) == ("noted", ["outer", "inner"])

    @wrap_model_call
    def answers(request: ModelRequest, handler: Any) -> Any:
        return {"role": "assistant", "content": "cached"}

    @wrap_model_call
    def wrong(request: ModelRequest, handler: Any) -> Any:
        return 3

    assert contents(await create_agent(model, middleware=[answers]).ainvoke(HI))[-1] == "cached"
    with pytest.raises(InvalidUpdateError, match=r"wrong.wrap_model_call returned int"):
        await create_agent(model, middleware=[wrong]).ainvoke(HI)


@pytest.mark.one_loop
async def test_dynamic_prompts() -> None:
    @dynamic_prompt
    def plain(request: ModelRequest) -> str:
        return f"for {request.runtime.context}"

    @dynamic_prompt
    async def message(request: ModelRequest) -> Any:
        return {"role": "system", "content": "from a message"}

    model = Script("done")
    await create_agent(model, middleware=[plain]).ainvoke(HI, context="ada")
    await create_agent(model, middleware=[message]).ainvoke(HI)
    assert [messages[0]["content"] for messages in model.seen] == ["for ada", "from a message"]


async def test_wrappers_of_tools() -> None:
    ran: list[str] = []

    @wrap_tool_call
    def outer(request: ToolCallRequest, handler: Any) -> Any:
        ran.append(f"outer {request.tool_call['args']['city']}")
        return handler(request)

    @wrap_tool_call
    async def inner(request: ToolCallRequest, handler: Any) -> Any:
        changed = {**request.tool_call, "args": {"city": "Rome"}}
        return await handler(request.override(tool_call=changed))

    model = Script(asking(call("weather", city="Oslo")), "done")
    done = await create_agent(model, [weather], middleware=[outer, inner]).ainvoke(HI)
    assert (contents(done)[2], ran) == ("Rome is sunny", ["outer Oslo"])


class Mood(pydantic.BaseModel):
    """The mood."""

    mood: str
    score: int


GOOD = {"mood": "good", "score": 3}


async def test_an_answer_in_a_form_by_a_tool() -> None:
    """Other tools run first; the model is shown its error; the object is stored, and the next turn asks anew."""
    model = Script(
        asking(call("weather", "1", city="Oslo")),
        asking(call("Mood", "2", mood="good", score="many")),
        asking(call("Mood", "3", **GOOD), call("Mood", "4", **GOOD)),
        asking(call("Mood", "5", **GOOD)),
        asking(call("Mood", "6", mood="bad", score=1)),
    )
    agent = create_agent(model, [weather], response_format=Mood, checkpointer=InMemorySaver())
    done = await agent.ainvoke(HI, "t")
    assert done["structured_response"] == Mood(**GOOD)
    said = contents(done)
    assert said[2] == "Oslo is sunny"
    assert "score: Input should be a valid integer" in said[4]
    assert said[6:8] == ["Mood was called 2 times: call it once."] * 2
    assert (await agent.aget_state("t")).values["structured_response"] == Mood(**GOOD)
    assert (await agent.ainvoke(HI, "t"))["structured_response"] == Mood(mood="bad", score=1)
    assert [each["name"] for each in model.tools[0]] == ["weather", "Mood"]


@pytest.mark.one_loop
async def test_an_answer_in_a_form_by_the_provider() -> None:
    seen: list[Any] = []

    async def model(messages: list[Any], tools: list[Any], *, response_schema: Any) -> Any:
        seen.append((response_schema["required"], messages[-1]["content"]))
        if len(seen) == 1:
            return asking(call("weather", city="Oslo"))
        return '{"mood": "good"}' if len(seen) == 2 else '{"mood": "good", "score": 3}'

    done = await create_agent(model, [weather], response_format=Mood).ainvoke(HI)
    assert done["structured_response"] == Mood(**GOOD)
    assert contents(done)[-1] == '{"mood": "good", "score": 3}'
    assert "score: Field required" in seen[2][1]

    async def never(messages: list[Any], tools: list[Any], *, response_schema: Any) -> Any:
        return "no"

    with pytest.raises(StructuredOutputError, match="the answer is no JSON"):
        await create_agent(never, response_format=Mood).ainvoke(HI)


@pytest.mark.one_loop
async def test_return_direct() -> None:
    """The agent ends if all tools of the turn are direct."""
    final = tool("final", return_direct=True)(weather)
    model = Script(asking(call("final", "1", city="Oslo")), "more")
    assert contents(await create_agent(model, [final]).ainvoke(HI))[-1] == "Oslo is sunny"
    model = Script(asking(call("final", "1", city="Oslo"), call("weather", "2", city="Oslo")), "more")
    assert contents(await create_agent(model, [final, weather]).ainvoke(HI))[-1] == "more"


@pytest.mark.one_loop
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("limit", range(4, 14))
async def test_the_step_limit_ends_an_agent_gracefully(limit: int, hooked: bool) -> None:
    async def endless(messages: list[Any], tools: list[Any]) -> Any:
        return asking(call("weather", str(len(messages)), city="Oslo"))

    @before_model
    def before(state: Any, runtime: Any) -> Any:
        return None

    @after_model
    def after(state: Any, runtime: Any) -> Any:
        return None

    @after_agent
    def end(state: Any, runtime: Any) -> Any:
        return None

    agent = create_agent(endless, [weather], middleware=[before, after, end] if hooked else [])
    done = await agent.ainvoke(HI, {"recursion_limit": limit})
    assert contents(done)[-1] == "The step limit ends this run before the request is done."


@pytest.mark.one_loop
async def test_keys_of_the_state() -> None:
    """Tools and hooks read keys of the agent's state and of the middleware's."""

    class State(AgentState, total=False):
        user: str

    class Limits(AgentState, total=False):
        limit: int

    class Limited(AgentMiddleware):
        state_schema = Limits

    def whoami(user: Annotated[str, InjectedState("user")], limit: Annotated[int, InjectedState("limit")]) -> str:
        return f"{user} {limit}"

    agent = create_agent(Script(asking(call("whoami")), "done"), [whoami], state_schema=State, middleware=[Limited()])
    assert contents(await agent.ainvoke({**HI, "user": "ada", "limit": 3}))[2] == "ada 3"


@pytest.mark.one_loop
async def test_bad_input() -> None:
    """What can never work is refused before anything runs."""
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (InvalidModelError, {"model": 3}, "a model is"),
        (InvalidToolError, {"tools": [3]}, "a tool is"),
        (GraphValidationError, {"middleware": [3]}, "is no middleware"),
        (GraphValidationError, {"middleware": [AgentMiddleware(), AgentMiddleware()]}, "a name of its own"),
        (GraphValidationError, {"system_prompt": 3}, "system_prompt is"),
        (GraphValidationError, {"response_format": 3}, "response_format is"),
        (GraphValidationError, {"tools": [tool("Mood")(weather)], "response_format": Mood}, "has the name"),
    ]
    for error, wrong, why in refused:
        with pytest.raises(error, match=why):
            create_agent(**{"model": Script("done"), **wrong})
    agent = create_agent(Script("done"))
    with pytest.raises(UnansweredCallsError):
        await agent.ainvoke({"messages": [asking(call("weather", "7")), "hi"]})
    with pytest.raises(InvalidInputError, match="needs a message"):
        await agent.ainvoke({"messages": []})


@pytest.mark.one_loop
async def test_an_agent_takes_ten_lines() -> None:
    """The page about agents begins with one: imports, a tool, a saver, a call and its result."""
    (_, program), *_ = blocks(ROOT / "docs" / "agents.md")
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) == 10
    ran = await anyio.run_process([sys.executable, "-c", program], cwd=ROOT)
    assert ran.stdout.decode() == "Sunny.\n"


@pytest.mark.parametrize("decorator", [before_model, wrap_model_call], ids=["hook", "wrapper"])
def test_an_unknown_option_of_a_decorator_is_refused(decorator: Any) -> None:
    with pytest.raises(TypeError, match="can_jump"):
        decorator(can_jump=["end"])
