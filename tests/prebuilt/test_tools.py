"""What a model is shown of a tool, and which arguments a tool accepts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from pregel_async import RunnableConfig, Runtime
from pregel_async.prebuilt import (
    InjectedState,
    InjectedStore,
    InjectedToolArg,
    InjectedToolCallId,
    InvalidToolError,
    Tool,
    ToolInvocationError,
    ToolNode,
    ToolRuntime,
    as_tool,
    tool,
)
from tests.prebuilt.calls import asking, call, contents

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


@dataclasses.dataclass
class Place:
    city: str
    country: str = "no"


class Opaque:
    pass


async def forecast(
    place: Place, days: int = 3, unit: Unit = Unit.METRIC, kind: Literal["wind", "rain"] = "rain", note: Any = None
) -> str:
    """Forecast the weather.

    More about it.

    Args:
        place: where,
            and in which country.
        days (int): how many days.

    Returns:
        A text.
    """
    return f"{place!r} {days!r} {unit!r} {kind!r} {note!r}"


def test_the_schema_of_a_function() -> None:
    """Name, description, types, defaults and the descriptions of parameters come from the function."""
    made = as_tool(forecast)
    assert (made.name, made.description) == ("forecast", "Forecast the weather.\n\nMore about it.")
    schema = made.args_schema
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["place"], False)
    assert schema["properties"]["place"]["description"] == "where, and in which country."
    assert schema["properties"]["days"] == {"type": "integer", "default": 3, "description": "how many days."}
    assert schema["properties"]["kind"] == {"enum": ["rain", "wind"], "default": "rain"}
    assert schema["properties"]["note"] == {"default": None}
    assert schema["$defs"]["Place"]["required"] == ["city"]
    assert made.definition() == {"name": "forecast", "description": made.description, "parameters": schema}


async def test_arguments_are_converted() -> None:
    """A tool gets objects of its annotations, and its own defaults for what the model leaves out."""
    assert await as_tool(forecast).arun(call("forecast", place={"city": "Oslo"}, days="4", unit="imperial")) == (
        "Place(city='Oslo', country='no') 4 <Unit.IMPERIAL: 'imperial'> 'rain' None"
    )


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "missing required field `place`"),
        ({"place": {"city": 1}}, "Expected `str`, got `int` - at `$.place.city`"),
        ({"place": {"city": "Oslo"}, "dayz": 1}, "unknown field `dayz`"),
    ],
)
async def test_invalid_arguments(args: dict[str, Any], why: str) -> None:
    """Missing, wrong and unknown arguments are refused, with the place."""
    with pytest.raises(ToolInvocationError) as refused:
        await as_tool(forecast).arun(call("forecast", **args))
    assert why in refused.value.message
    assert (refused.value.tool_name, refused.value.tool_kwargs) == ("forecast", args)
    assert isinstance(refused.value.source, msgspec.ValidationError)


class City(pydantic.BaseModel):
    name: str


def visit(city: City, days: Annotated[int, pydantic.Field(gt=0, description="how long")] = 2) -> str:
    """Visit a city."""
    return f"{city!r} {days}"


async def test_annotations_of_pydantic() -> None:
    """If an annotation is a model or has a `Field`, pydantic makes the schema and checks arguments."""
    made = as_tool(visit)
    assert made.args_schema["properties"]["days"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "how long",
        "default": 2,
    }
    assert made.args_schema["required"] == ["city"]
    assert await made.arun(call("visit", city={"name": "Rome"})) == "City(name='Rome') 2"
    with pytest.raises(ToolInvocationError, match="days: Input should be greater than 0"):
        await made.arun(call("visit", city={"name": "Rome"}, days=0))
    with pytest.raises(ToolInvocationError, match="extra: Extra inputs"):
        await made.arun(call("visit", city={"name": "Rome"}, extra=0))


async def test_descriptions_in_annotations() -> None:
    def find(text: Annotated[str, "what to find"], limit: Annotated[int, msgspec.Meta(ge=1)]) -> str:
        return text * limit

    made = as_tool(find)
    assert made.args_schema["properties"] == {
        "text": {"type": "string", "description": "what to find"},
        "limit": {"type": "integer", "minimum": 1},
    }
    with pytest.raises(ToolInvocationError, match=">= 1"):
        await made.arun(call("find", text="a", limit=0))


def hidden(
    query: str,
    runtime: ToolRuntime,
    state: Annotated[dict[str, Any], InjectedState],
    user: Annotated[str, InjectedState("user")],
    store: Annotated[Any, InjectedStore()],
    id: Annotated[str, InjectedToolCallId],
    config: RunnableConfig,
    node: Runtime[Any],
    secret: Annotated[str, InjectedToolArg()] = "s",
) -> str:
    return query


def test_models_do_not_see_what_the_run_fills_in() -> None:
    assert list(as_tool(hidden).args_schema["properties"]) == ["query"]


def test_a_parameter_named_runtime_is_an_argument_if_its_annotation_says_so() -> None:
    def film(runtime: int) -> str:
        return str(runtime)

    def other(runtime: Any, *, x: int) -> str:
        return str(runtime)

    def bare(runtime, x: int) -> str:
        return str(runtime)

    assert list(as_tool(film).args_schema["properties"]) == ["runtime"]
    assert list(as_tool(other).args_schema["properties"]) == ["runtime", "x"]
    assert list(as_tool(bare).args_schema["properties"]) == ["x"]


async def test_the_decorator() -> None:
    """`@tool`, `@tool("name")` and `@tool(...)`; the tool can still be called as a function."""

    @tool
    def plain(x: int) -> int:
        """Plain."""
        return x

    @tool("renamed", return_direct=True, description="Another text.")
    async def options(x: int) -> int:
        return x

    class Given(TypedDict):
        x: int

    @tool(args_schema=Given)
    def typed(x: Any) -> Any:
        return x

    @tool(args_schema={"type": "object", "properties": {"x": {}}})
    def free(**given: Any) -> Any:
        return given

    assert (plain.name, plain.description, plain(2)) == ("plain", "Plain.", 2)
    assert (options.name, options.description, options.return_direct) == ("renamed", "Another text.", True)
    assert await typed.arun(call("typed", x="3")) == 3
    assert await free.arun(call("free", x=1, y=2)) == {"x": 1, "y": 2}
    assert isinstance(as_tool(plain), Tool)
    assert as_tool(plain) is plain


async def test_a_class_is_a_tool() -> None:
    """A class with fields answers with its validated arguments; with `__call__`, it runs."""

    class Answer(pydantic.BaseModel):
        """Give the answer."""

        text: str
        score: int = 1

    class Add(msgspec.Struct):
        """Add numbers."""

        a: int
        b: int

        def __call__(self, runtime: ToolRuntime) -> str:
            return f"{self.a + self.b} {runtime.tool_call_id}"

    node = ToolNode([Answer, Add])
    assert as_tool(Answer).description == "Give the answer."
    assert as_tool(Answer).args_schema["required"] == ["text"]
    update = await node.ainvoke([call("Answer", "1", text="yes"), call("Add", "2", a=1, b="2"), call("Add", "3", a=1)])
    first, second, third = contents(update)
    assert (first, second) == ('{"text":"yes","score":1}', "3 2")
    assert "missing required field `b`" in third


async def test_partials_and_callable_objects() -> None:
    def scaled(x: int, factor: int) -> int:
        """Scale."""
        return x * factor

    class Counter:
        """Count."""

        __name__ = "counter"

        async def __call__(self, step: int) -> int:
            return step + 1

    triple = partial(scaled, factor=3)
    assert list(as_tool(triple).args_schema["properties"]) == ["x"]
    assert await as_tool(triple).arun(call("scaled", x=2)) == 6
    assert await as_tool(Counter()).arun(call("counter", step=2)) == 3


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (3, "a tool is a function"),
        (Opaque, "a tool is a function"),
        (numbers, "it is a generator"),
        (lambda *args: 1, "models cannot set"),
        (lambda **given: 1, "pass args_schema="),
    ],
)
def test_what_cannot_be_a_tool(given: Any, why: str) -> None:
    """It is refused when the node is made, before anything runs."""
    with pytest.raises(InvalidToolError, match=why.replace("(", r"\(")):
        ToolNode([given])


def test_a_parameter_without_a_schema_is_refused() -> None:
    def use(thing: Opaque) -> str:
        return ""

    with pytest.raises(InvalidToolError, match="tool 'use': its arguments have no JSON Schema"):
        as_tool(use)


def test_annotations_that_cannot_be_resolved() -> None:
    """A class of a function is unknown when the annotation is read: the model would be shown no type at all."""

    class Local:
        pass

    def use(thing: Local) -> str:
        return ""

    def inject(rt: ToolRuntime[Local, Any], node: Runtime[Local]) -> str:
        return ""

    with pytest.raises(InvalidToolError, match="the annotation 'Local' of 'thing' cannot be resolved"):
        as_tool(use)
    assert as_tool(inject).args_schema["properties"] == {}


def test_two_tools_of_one_name_are_refused() -> None:
    def find(x: int) -> int:
        return x

    @tool("find")
    def other(x: int) -> int:
        return x

    with pytest.raises(InvalidToolError, match="another tool has the same name"):
        ToolNode([find, other])
    assert list(ToolNode([find, find]).tools_by_name) == ["find"]


async def test_calls_in_the_form_of_openai() -> None:
    """A hand-written message may have the calls as OpenAI's API gives them."""

    def double(x: int) -> int:
        return 2 * x

    raw = [
        {"id": "1", "type": "function", "function": {"name": "double", "arguments": '{"x": 4}'}},
        {"id": "2", "type": "function", "function": {"name": "double", "arguments": '{"x": '}},
    ]
    first, second = contents(await ToolNode([double]).ainvoke({"messages": [asking(*raw)]}))
    assert first == "8"
    assert "the arguments are no JSON" in second


async def test_positional_only_parameters_keep_their_places() -> None:
    """A default that the model leaves out does not move the next argument into its place."""

    def place(row: int = 1, column: int = 2, /) -> str:
        return f"{row}, {column}"

    assert contents(await ToolNode([place]).ainvoke([call("place", column=9)])) == ["1, 9"]


async def test_a_plain_function_that_returns_a_coroutine() -> None:
    """As a decorator around a coroutine function does that is written as a plain one."""

    async def fetch() -> str:
        return "fetched"

    def find() -> Any:
        return fetch()

    assert contents(await ToolNode([find]).ainvoke([call("find")])) == ["fetched"]
