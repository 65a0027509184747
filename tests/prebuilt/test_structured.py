"""`response_format`: strategies, unions, forms of schemas, and errors that the model is shown."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async.errors import GraphValidationError
from pregel_async.prebuilt import (
    AutoStrategy,
    InvalidModelError,
    ModelRequest,
    MultipleStructuredOutputsError,
    ProviderStrategy,
    StructuredOutputError,
    StructuredOutputValidationError,
    ToolStrategy,
    create_agent,
    wrap_model_call,
)
from pregel_async.testing import Crash, FaultySaver
from tests.prebuilt.calls import asking, call, contents
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HI = {"messages": [{"role": "user", "content": "hi"}]}


class Model(pydantic.BaseModel):
    """A mood."""

    mood: str
    score: int


class Record(msgspec.Struct):
    mood: str
    score: int


@dataclasses.dataclass
class Data:
    mood: str
    score: int


class Dict(TypedDict):
    mood: str
    score: int


JSON = {
    "title": "Json",
    "description": "A mood.",
    "type": "object",
    "properties": {"mood": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["mood", "score"],
}
GOOD: Any = {"mood": "good", "score": 3}
FORMS = [Model, Record, Data, Dict, JSON]
VALUES = [Model(**GOOD), Record(**GOOD), Data(**GOOD), GOOD, GOOD]
NAMES = ["Model", "Record", "Data", "Dict", "Json"]


def following(*texts: str) -> Any:
    """A model that follows schemas, and answers with texts."""

    async def model(messages: list[Any], tools: list[Any], *, response_schema: Any) -> Any:
        model.seen.append((messages, tools, response_schema))
        return texts[min(len(model.seen), len(texts)) - 1]

    model.seen = []
    return model


@pytest.mark.parametrize(("form", "value", "name"), list(zip(FORMS, VALUES, NAMES, strict=True)), ids=NAMES)
@pytest.mark.parametrize("strategy", ["tool", "provider"])
async def test_forms(saver: BaseCheckpointSaver, form: Any, value: Any, name: str, strategy: str) -> None:
    """Each kind of schema, by a tool and by the provider's means; the object is stored as what it is."""
    if strategy == "tool":
        model: Any = Script(asking(call(name, **GOOD)))
        agent = create_agent(model, response_format=ToolStrategy(form), checkpointer=saver)
    else:
        model = following('{"mood": "good", "score": 3}')
        agent = create_agent(model, response_format=ProviderStrategy(form), checkpointer=saver)
    assert (await agent.ainvoke(HI, "t"))["structured_response"] == value
    assert (await agent.aget_state("t")).values["structured_response"] == value
    if strategy == "tool":
        assert model.tools[0][0]["name"] == name
        assert sorted(model.tools[0][0]["parameters"]["required"]) == ["mood", "score"]
    else:
        (_, tools, schema), *_ = model.seen
        assert (tools, sorted(schema["required"])) == ([], ["mood", "score"])


async def test_a_crash_after_the_answer(saver: BaseCheckpointSaver) -> None:
    """The object is recorded with the model's answer, and the model is not called again."""
    dying = FaultySaver(saver)
    died: list[int] = []

    async def find() -> str:
        if not died:
            died.append(1)
            dying.crash()
        return "found"

    model = Script(asking(call("find", "1"), call("Model", "2", **GOOD)))
    agent = create_agent(model, [find], response_format=ToolStrategy(Model), checkpointer=dying)
    with pytest.raises(Crash):
        await agent.ainvoke(HI, "t", durability="sync")
    await dying.restart()
    done = await agent.ainvoke(None, "t")
    assert (done["structured_response"], len(model.seen)) == (Model(**GOOD), 1)
    assert contents(done)[2:] == ["The answer is complete.", "found"]


class Error(pydantic.BaseModel):
    """Why there is no mood."""

    reason: str


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "union", [Model | Error, Model | (Error | Record), AutoStrategy(Model | Error)], ids=["two", "three", "auto"]
)
async def test_unions(union: Any) -> None:
    """Each schema is a tool, also for a model that follows schemas; the model calls one of them."""
    model = Script(
        asking(call("Model", "1", **GOOD), call("Error", "2", reason="none")), asking(call("Error", "3", reason="none"))
    )
    agent = create_agent(model, response_format=union, checkpointer=InMemorySaver())
    done = await agent.ainvoke(HI, "t")
    assert done["structured_response"] == Error(reason="none")
    assert (await agent.aget_state("t")).values["structured_response"] == Error(reason="none")
    assert {tool["name"] for tool in model.tools[0]} >= {"Model", "Error"}
    assert contents(done)[2:4] == ["Model, Error were called: call one of them, once."] * 2

    async def follows(messages: list[Any], tools: list[Any], *, response_schema: Any = None) -> Any:
        assert response_schema is None
        return asking(call("Error", reason="none"))

    assert (await create_agent(follows, response_format=union).ainvoke(HI))["structured_response"].reason == "none"


@pytest.mark.one_loop
async def test_json_schemas_with_one_of() -> None:
    other = {**JSON, "title": "Other"}
    model = Script(asking(call("Other", **GOOD)))
    done = await create_agent(model, response_format={"oneOf": [JSON, other]}).ainvoke(HI)
    assert done["structured_response"] == GOOD
    assert [tool["name"] for tool in model.tools[0]] == ["Json", "Other"]


BAD = asking(call("Model", "1", mood="good", score="many"))
TWICE = asking(call("Model", "1", **GOOD), call("Model", "2", **GOOD))


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("handle", "bad", "shown"),
    [
        (True, BAD, "The answer is not valid: score: Input should be a valid integer"),
        (True, TWICE, "Model was called 2 times: call it once."),
        ("Try again.", BAD, "Try again."),
        (StructuredOutputValidationError, BAD, "The answer is not valid: score"),
        (ValueError, TWICE, "Model was called 2 times"),
        (pydantic.ValidationError, BAD, "The answer is not valid: score"),
        ((KeyError, MultipleStructuredOutputsError), TWICE, "Model was called 2 times"),
        (lambda error: f"No: {error.tool_name}", BAD, "No: Model"),
        (False, BAD, None),
        (MultipleStructuredOutputsError, BAD, None),
        ((KeyError,), TWICE, None),
    ],
    ids=[
        *(
            "all",
            "all-twice",
            "text",
            "class",
            "base",
            "cause",
            "tuple",
            "function",
            "none",
            "other-class",
            "other-tuple",
        ),
    ],
)
async def test_errors_that_the_model_is_shown(handle: Any, bad: Any, shown: str | None) -> None:
    """Those that `handle_errors` names. Other errors are raised, with the model's message."""
    model = Script(bad, asking(call("Model", "3", **GOOD)))
    strategy = ToolStrategy(Model, handle_errors=handle, tool_message_content="Thanks.")
    agent = create_agent(model, response_format=strategy)
    if shown is None:
        with pytest.raises(StructuredOutputError) as caught:
            await agent.ainvoke(HI)
        assert caught.value.ai_message["tool_calls"] == bad["tool_calls"]
        return
    done = await agent.ainvoke(HI)
    assert done["structured_response"] == Model(**GOOD)
    assert contents(done)[2].startswith(shown)
    assert contents(done)[-1] == "Thanks."
    assert done["messages"][2]["status"] == "error"


@pytest.mark.one_loop
async def test_a_model_that_calls_no_tool() -> None:
    """A text in the form is the answer; the model is asked again for any other text, and then the run fails."""
    done = await create_agent(Script('{"mood": "good", "score": 3}'), response_format=ToolStrategy(Model)).ainvoke(HI)
    assert done["structured_response"] == Model(**GOOD)
    model = Script("fine", asking(call("Model", **GOOD)))
    done = await create_agent(model, response_format=ToolStrategy(Model), name="a").ainvoke(HI)
    assert "the answer is no JSON" in model.seen[1][-1]["content"]
    assert contents(done) == ["hi", "", "The answer is complete."]
    assert done["messages"][1]["name"] == "a"
    model = Script("fine")
    with pytest.raises(StructuredOutputValidationError, match="no tool was called"):
        await create_agent(model, response_format=Model | Error).ainvoke(HI)
    assert len(model.seen) == 3
    with pytest.raises(StructuredOutputValidationError):
        await create_agent(Script("fine"), response_format=ToolStrategy(Model, handle_errors=False)).ainvoke(HI)


@pytest.mark.one_loop
async def test_the_provider_makes_a_mistake() -> None:
    model = following('{"mood": "good"}', '{"mood": "good", "score": 3}')
    done = await create_agent(model, response_format=ProviderStrategy(Model)).ainvoke(HI)
    assert done["structured_response"] == Model(**GOOD)
    assert "score: Field required" in model.seen[1][0][-1]["content"]
    with pytest.raises(StructuredOutputValidationError) as caught:
        await create_agent(following("no"), response_format=ProviderStrategy(Model)).ainvoke(HI)
    assert (caught.value.tool_name, caught.value.message["content"]) == ("Model", "no")


@pytest.mark.one_loop
async def test_an_object_of_an_earlier_turn_is_cleared() -> None:
    """A turn that ends without an object does not show that of the turn before."""
    model = Script(asking(call("Model", **GOOD)), asking(call("find", "2"), content="more"))

    async def find() -> str:
        return "found"

    agent = create_agent(model, [find], response_format=Model, checkpointer=InMemorySaver(), interrupt_before=["tools"])
    assert (await agent.ainvoke(HI, "t"))["structured_response"] == Model(**GOOD)
    assert (await agent.ainvoke(HI, "t"))["structured_response"] is None


@pytest.mark.one_loop
async def test_wrappers_choose_the_form() -> None:
    """A wrapper may narrow a union, or choose the means; a form that the agent does not have is refused."""

    def choosing(form: Any) -> Any:
        @wrap_model_call
        async def choose(request: ModelRequest, handler: Any) -> Any:
            assert isinstance(request.response_format, AutoStrategy)
            return await handler(request.override(response_format=form))

        return choose

    model = Script(asking(call("Error", reason="none")))
    done = await create_agent(model, response_format=Model | Error, middleware=[choosing(ToolStrategy(Error))]).ainvoke(
        HI
    )
    assert [tool["name"] for tool in model.tools[0]] == ["Error"]
    assert done["structured_response"] == Error(reason="none")
    follows = following('{"reason": "none"}')
    both = create_agent(follows, response_format=Model | Error, middleware=[choosing(ProviderStrategy(Error))])
    assert (await both.ainvoke(HI))["structured_response"] == Error(reason="none")
    with pytest.raises(GraphValidationError, match="Error, which response_format"):
        await create_agent(model, response_format=Model, middleware=[choosing(Error)]).ainvoke(HI)


def test_bad_arguments() -> None:
    """What can never work is refused before anything runs."""
    for wrong in (3, (KeyError, 3), int):
        with pytest.raises(GraphValidationError, match="handle_errors"):
            ToolStrategy(Model, handle_errors=wrong)
    for kind in (ToolStrategy, ProviderStrategy, AutoStrategy):
        with pytest.raises(GraphValidationError, match="response_format is"):
            kind(Model | int)
    with pytest.raises(GraphValidationError, match="use ToolStrategy"):
        ProviderStrategy(Model | Error)
    with pytest.raises(GraphValidationError, match="a name of its own"):
        ToolStrategy({"oneOf": [JSON, JSON]})
    with pytest.raises(InvalidModelError, match="use ToolStrategy"):
        create_agent(Script("hi"), response_format=ProviderStrategy(Model))


@pytest.mark.one_loop
@pytest.mark.parametrize("strict", [None, True, False], ids=str)
async def test_strict_schemas(strict: bool | None) -> None:
    """The provider is asked to enforce the schema as `strict` says."""
    from pregel_async.prebuilt import openai_chat

    asked: list[Any] = []

    class Completions:
        async def create(self, **given: Any) -> Any:
            asked.append(given["response_format"]["json_schema"])
            raise ConnectionError

    class Client:
        chat = type("Chat", (), {"completions": Completions()})

    agent = create_agent(openai_chat(Client(), "m"), response_format=ProviderStrategy(JSON, strict=strict))
    with pytest.raises(ConnectionError):
        await agent.ainvoke(HI)
    assert asked == [{"name": "Json", "schema": JSON, "strict": bool(strict)}]


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="needs langchain-core")
async def test_models_of_langchain() -> None:
    """The schema is bound as `response_format`, also if the model has no profile; errors are its kind of messages."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Chat(BaseChatModel):
        seen: list[Any] = []
        answers: list[Any] = []

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            self.seen.append((messages, kwargs))
            return ChatResult(generations=[ChatGeneration(message=self.answers[len(self.seen) - 1])])

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self.bind(tools=tools, **kwargs)

    provider = Chat(answers=[AIMessage("no"), AIMessage('{"mood": "good", "score": 3}')])
    done = await create_agent(provider, response_format=ProviderStrategy(JSON, strict=True)).ainvoke(HI)
    assert done["structured_response"] == GOOD
    assert provider.seen[0][1]["response_format"]["json_schema"] == {"name": "Json", "schema": JSON, "strict": True}
    assert isinstance(provider.seen[1][0][-1], HumanMessage)
    by_tool = Chat(
        answers=[
            AIMessage("", tool_calls=[call("Model", mood="x")]),
            AIMessage("", tool_calls=[call("Model", "2", **GOOD)]),
        ]
    )
    done = await create_agent(by_tool, response_format=Model).ainvoke(HI)
    assert done["structured_response"] == Model(**GOOD)
    assert isinstance(done["messages"][2], ToolMessage) and done["messages"][2].status == "error"


@pytest.mark.one_loop
async def test_a_model_that_never_corrects_itself() -> None:
    """It is shown its error twice, in each turn anew, and not until the step limit."""
    model = Script(BAD)
    agent = create_agent(
        model, response_format=ToolStrategy(Model, handle_errors="again"), checkpointer=InMemorySaver()
    )
    for turn in (1, 2):
        with pytest.raises(StructuredOutputError):
            await agent.ainvoke(HI, f"t{turn}")
        assert len(model.seen) == 3 * turn
