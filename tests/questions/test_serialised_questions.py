"""Questions, commands and sends are serialised by what web services use: FastAPI, pydantic, orjson, dataclasses."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pickle
from copy import deepcopy
from typing import Any, Literal, TypedDict

import httpx
import pydantic
import pytest
from fastapi import FastAPI

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, Interrupt, Send, StateGraph, TimeoutPolicy, interrupt

COMMAND: Any = Command(update={"a": 1}, goto=[Send("w", {"x": Send("v", 2)}), "b"])
LIMITED = Send("w", 1, TimeoutPolicy(run_timeout=2))
SENDS = [{"node": "w", "arg": {"x": {"node": "v", "arg": 2, "timeout": None}}, "timeout": None}, "b"]
AS_JSON = [
    (Interrupt({"draft": "hi"}, "q"), {"value": {"draft": "hi"}, "id": "q", "response_schema": None}),
    (COMMAND, {"graph": None, "update": {"a": 1}, "resume": None, "goto": SENDS}),
    (Command(resume=False), {"graph": None, "update": None, "resume": False, "goto": []}),
    (
        LIMITED,
        {"node": "w", "arg": 1, "timeout": {"run_timeout": 2.0, "idle_timeout": None, "refresh_on": "auto"}},
    ),
]


class State(TypedDict, total=False):
    text: str


def review(state: State) -> State:
    return {"text": interrupt({"draft": state.get("text")})}


async def post(app: FastAPI, path: str, body: Any) -> Any:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service") as client:
        return (await client.post(path, json=body)).json()


@pytest.mark.anyio
async def test_endpoints_return_questions_and_take_commands() -> None:
    """An endpoint returns the questions of a result as they are; another takes a command as its body."""
    graph: Any = StateGraph(State).add_node(review).add_edge(START, "review").compile(InMemorySaver())
    app = FastAPI()

    @app.post("/start")
    async def start(body: dict[str, Any]) -> Any:
        return (await graph.ainvoke(body, {"configurable": {"thread_id": "t"}}))["__interrupt__"]

    async def answer(command: Command) -> Any:
        return await graph.ainvoke(command, {"configurable": {"thread_id": "t"}})

    answer.__annotations__ = {"command": Command, "return": Any}  # FastAPI reads no annotations of local functions
    app.post("/answer")(answer)
    [question] = await post(app, "/start", {"text": "hi"})
    assert question == {"value": {"draft": "hi"}, "id": question["id"], "response_schema": None}
    assert await post(app, "/answer", {"resume": {question["id"]: "hello"}}) == {"text": "hello"}


@pytest.mark.parametrize(("value", "expected"), AS_JSON)
def test_pydantic_serialises_them(value: Any, expected: Any) -> None:
    """Pydantic writes them where any value is expected and by their own schema, and reads them again."""
    assert json.loads(pydantic.TypeAdapter(object).dump_json(value)) == expected
    adapter: Any = pydantic.TypeAdapter(type(value))
    assert adapter.dump_python(value, mode="json") == expected
    read = adapter.validate_json(adapter.dump_json(value))
    assert type(read) is type(value)
    assert adapter.dump_python(read, mode="json") == expected
    assert adapter.validate_python(value) is value
    assert adapter.json_schema()["properties"].keys() == expected.keys()


@pytest.mark.skipif(importlib.util.find_spec("orjson") is None, reason="orjson is not installed: nox -s langchain")
@pytest.mark.parametrize(("value", "expected"), AS_JSON)
def test_orjson_serialises_them(value: Any, expected: Any) -> None:
    """Orjson writes them at any depth, without a default=."""
    import orjson

    assert json.loads(orjson.dumps({"found": [value]})) == {"found": [expected]}


@pytest.mark.parametrize(("value", "expected"), AS_JSON)
def test_dataclass_functions_take_them(value: Any, expected: Any) -> None:
    """`fields`, `asdict` and `replace` of dataclasses take them; copies and pickles are equal."""
    assert [field.name for field in dataclasses.fields(value)] == [*expected]
    assert json.loads(json.dumps(dataclasses.asdict(value))) == expected
    assert dataclasses.replace(value) == value
    assert deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_pydantic_refuses_what_is_no_send() -> None:
    """A send that lacks its node, or has an impossible timeout, is a ValidationError, as a web service expects."""
    adapter = pydantic.TypeAdapter(Send)
    for wrong in ({"arg": 1}, {"node": 1, "arg": 1}, {"node": "w", "arg": 1, "timeout": -1}, 5):
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_python(wrong)


def test_replace_changes_a_copy() -> None:
    """The original stays as it was, and cannot be changed."""
    command = Command(update={"a": 1}, goto="b")
    assert dataclasses.replace(command, goto="c") == Command(update={"a": 1}, goto="c")
    assert dataclasses.replace(Interrupt("?", "q"), value="!") == Interrupt("!", "q")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(command, "goto", "d")
    assert command.goto == "b"


def test_a_command_shows_the_fields_that_were_set() -> None:
    """The repr of a command lists what was passed, also what is false or empty."""
    assert repr(Command()) == "Command()"
    assert repr(Command(goto="b", update={"a": 1})) == "Command(update={'a': 1}, goto='b')"
    assert repr(Command(resume=False, goto=[])) == "Command(resume=False, goto=[])"
    assert repr(Command[Literal["b"]](goto="b", graph=Command.PARENT)) == "Command(graph='__parent__', goto='b')"
