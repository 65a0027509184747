"""`ValidationNode`: tool calls are validated, and not run."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, StateGraph
from pregel_async.errors import GraphValidationError, InvalidInputError
from pregel_async.messages import MessagesState
from pregel_async.prebuilt import InjectedToolCallId, InvalidToolError, ValidationNode, tool
from pregel_async.types import END
from tests.prebuilt.calls import asking, call
from tests.prebuilt.scripted import Script

pytestmark = pytest.mark.anyio

HAS_LANGCHAIN = importlib.util.find_spec("langchain_core") is not None
if HAS_LANGCHAIN:
    from langchain_core.tools import InjectedToolArg


class Pick(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def is_known(cls, value: int) -> int:
        if value != 37:
            raise ValueError("only 37 is allowed")
        return value

    def __call__(self) -> str:
        raise AssertionError("no tool runs")


class Record(msgspec.Struct):
    number: int


@dataclasses.dataclass
class Data:
    number: int


class Dict(TypedDict):
    number: int


def function(number: int, id: Annotated[str, InjectedToolCallId], unit: str = "m") -> str:
    raise AssertionError("no tool runs")


def other(number: int) -> str:
    raise AssertionError("no tool runs")


SCHEMAS = [Pick, Record, Data, Dict, function, tool("named", args_schema=Pick)(other)]


@pytest.mark.parametrize("name", ["Pick", "Record", "Data", "Dict", "function", "named"])
def test_schemas(name: str) -> None:
    """The result is the validated arguments as JSON; errors name what is wrong."""
    node = ValidationNode(SCHEMAS)
    asked = asking(call(name, "1", number="37"), call(name, "2", number="many"))
    valid, wrong = node.invoke({"messages": [asked]})["messages"]
    assert valid == {"role": "tool", "tool_call_id": "1", "name": name, "content": '{"number":37}'}
    assert (wrong["status"], wrong["additional_kwargs"], wrong["tool_call_id"]) == ("error", {"is_error": True}, "2")
    assert wrong["content"].startswith(f"The call of {name!r} is invalid: ")
    assert "number" in wrong["content"] or "Expected `int`" in wrong["content"]


def test_calls_that_have_no_schema() -> None:
    """Unknown tools and arguments that are no JSON are answered with errors, too."""
    broken = {"id": "2", "type": "function", "function": {"name": "Pick", "arguments": "{"}}
    unknown, invalid = ValidationNode([Pick]).invoke([asking(call("Guess", "1"), broken)])
    assert unknown["content"] == "There is no tool 'Guess'. The tools are: Pick."
    assert "the arguments are no JSON" in invalid["content"]
    assert [each["status"] for each in (unknown, invalid)] == ["error", "error"]


async def test_own_errors() -> None:
    """`format_error` gets the error of the validation, the call and the schema."""
    seen: list[Any] = []

    def explain(error: BaseException, call: Any, schema: Any) -> str:
        seen.append((type(error), call["id"], schema))
        return "Wrong."

    node = ValidationNode([Pick, other], format_error=explain, name="check", tags=["a"])
    answers = await node.ainvoke([asking(call("Pick", "1", number=3), call("other", "2"))])
    assert [each["content"] for each in answers] == ["Wrong.", "Wrong."]
    assert seen == [(pydantic.ValidationError, "1", Pick), (msgspec.ValidationError, "2", other)]
    assert (node.name, node.tags, node.schemas_by_name) == ("check", ["a"], {"Pick": Pick, "other": other})


async def test_a_graph_that_asks_again(saver: BaseCheckpointSaver) -> None:
    """The loop that LangGraph's users write: the model answers until its calls are valid."""
    model = Script(asking(call("Pick", "1", number=3)), asking(call("Pick", "2", number=37)))

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await model(state["messages"], [])]}

    def again(state: MessagesState) -> str:
        return "model" if state["messages"][-1].get("additional_kwargs", {}).get("is_error") else END

    builder = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node(ValidationNode([Pick]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "validation")
    builder.add_conditional_edges("validation", again, ["model", END])
    done = await builder.compile(saver).ainvoke({"messages": ["pick"]}, "t")
    assert "only 37 is allowed" in done["messages"][2]["content"]
    assert done["messages"][-1]["content"] == '{"number":37}'


def test_bad_input() -> None:
    node = ValidationNode([Pick])
    assert node.invoke([{"role": "assistant", "content": "hi"}]) == []
    for wrong in ({"messages": []}, [], {"messages": [{"role": "user", "content": "hi"}]}):
        with pytest.raises(InvalidInputError, match="run it after the model"):
            node.invoke(wrong)
    with pytest.raises(InvalidToolError):
        ValidationNode([3])
    with pytest.raises(GraphValidationError, match="format_error"):
        ValidationNode([Pick], format_error="no")


@pytest.mark.skipif(not HAS_LANGCHAIN, reason="needs langchain-core")
def test_tools_and_messages_of_langchain() -> None:
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.tools import tool as langchain_tool

    @langchain_tool
    def theirs(number: int, user: Annotated[str, InjectedToolArg]) -> str:
        """Pick a number."""
        raise AssertionError("no tool runs")

    calls: Any = [call("theirs", "1", number="3"), call("theirs", "2", number="many")]
    invalid: Any = [{"type": "invalid_tool_call", "id": "3", "name": "theirs", "args": "{", "error": "broken"}]
    answers = ValidationNode([theirs]).invoke([AIMessage("", tool_calls=calls, invalid_tool_calls=invalid)])
    assert all(isinstance(each, ToolMessage) for each in answers)
    assert [each.status for each in answers] == ["success", "error", "error"]
    assert answers[0].content == '{"number":3}'
    assert answers[1].additional_kwargs == {"is_error": True}
