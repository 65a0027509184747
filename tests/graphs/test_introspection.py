"""What a graph takes and returns, described for forms, servers and documents: JSON schemas and pydantic models."""

from __future__ import annotations

import operator
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from pregel_async import START, IsLastStep, NodeBuilder, Pregel, StateGraph, entrypoint
from pregel_async.channels import EphemeralValue, LastValue


class Line(TypedDict):
    item: str
    count: NotRequired[int]


class Invoice(msgspec.Struct):
    """An invoice."""

    number: int
    lines: list[Line]
    previous: Invoice | None = None


class Opaque:
    pass


class State(TypedDict):
    x: int
    log: Annotated[list[str], operator.add]
    last: IsLastStep


class Question(TypedDict):
    x: int


class Answer(TypedDict):
    log: list[str]


@dataclass
class Settings:
    user: str
    retries: int = 3


class Model(pydantic.BaseModel):
    """A model."""

    x: int
    y: str = "yes"


def graph(state: Any, **options: Any) -> Any:
    context = options.pop("context", None)
    schemas = {name: options.pop(name) for name in ("input_schema", "output_schema") if name in options}
    builder: Any = StateGraph(state, context, **schemas)
    return builder.add_node("node", lambda state: None).add_edge(START, "node").compile(**options)


X = {"title": "X", "type": "integer"}
LOG = {"title": "Log", "type": "array", "items": {"type": "string"}}


def test_json_schemas_of_a_typed_dict() -> None:
    """The schema's properties are at its top level. Managed values are omitted, as no caller passes them."""
    made = graph(State)
    expected = {"properties": {"x": X, "log": LOG}, "required": ["x", "log"], "title": "State", "type": "object"}
    assert made.get_input_jsonschema() == made.get_output_jsonschema() == expected
    made = graph(State, input_schema=Question, output_schema=Answer)
    assert made.get_input_jsonschema()["properties"] == {"x": X}
    assert made.get_output_jsonschema()["properties"] == {"log": LOG}
    assert (made.InputType, made.OutputType) == (Question, Answer)


def test_models_of_input_and_output() -> None:
    """The input's model validates inputs. In the output's model each key may be missing."""
    made = graph(State, input_schema=Question, name="flow")
    assert made.get_input_schema().model_validate({"x": 1}).root == {"x": 1}
    with pytest.raises(pydantic.ValidationError):
        made.input_schema.model_validate({"x": "one"})
    assert made.get_output_schema().model_validate({"x": 1}).model_dump() == {"x": 1, "log": None}
    assert (made.input_schema.__name__, made.output_schema.__name__) == ("flow_input", "flow_output")
    assert graph(Model).get_input_schema() is Model


def test_json_schemas_of_models_and_dataclasses() -> None:
    """Descriptions and defaults are those of the class."""
    assert graph(Model).get_input_jsonschema() == Model.model_json_schema()
    assert graph(Settings).get_input_jsonschema() == {
        "properties": {
            "user": {"title": "User", "type": "string"},
            "retries": {"title": "Retries", "type": "integer", "default": 3},
        },
        "required": ["user"],
        "title": "Settings",
        "type": "object",
    }


def test_json_schemas_of_structs_at_any_depth() -> None:
    """Structs, and TypedDicts inside of other types, are described; a class that pydantic does not know is any value."""

    class Deep(TypedDict):
        invoices: dict[str, list[Invoice]]
        opaque: Opaque

    made = graph(Deep).get_input_jsonschema()
    assert made["properties"]["opaque"] in ({}, {"title": "Opaque"})
    line, invoice = made["$defs"]["Line"], made["$defs"]["Invoice"]
    assert line["required"] == ["item"] and line["properties"].keys() == {"item", "count"}
    assert invoice["required"] == ["number", "lines"] and invoice["description"] == "An invoice."
    assert made["properties"]["invoices"]["additionalProperties"]["items"] == {"$ref": "#/$defs/Invoice"}
    assert graph(Invoice).get_input_jsonschema()["properties"].keys() == {"number", "lines", "previous"}


def test_json_schema_of_a_state_without_keys() -> None:
    """A state of one plain type is described by the type."""
    made = graph(Annotated[list[int], operator.add])
    assert made.get_input_jsonschema() == {"title": "StateGraph_input", "type": "array", "items": {"type": "integer"}}
    assert made.get_output_schema().model_validate([1]).root == [1]


def test_entrypoints() -> None:
    """The first parameter's annotation is the input, the return annotation the output."""

    @entrypoint(context_schema=Settings)
    def flow(x: int) -> list[str]:
        return []

    @entrypoint()
    def saves(question: Question) -> entrypoint.final[int, str]:
        return entrypoint.final(value=1, save="a")

    assert flow.get_input_jsonschema() == {"title": "flow_input", "type": "integer"}
    assert flow.get_output_jsonschema()["items"] == {"type": "string"}
    assert flow.get_input_schema().model_validate(3).root == 3
    assert saves.get_input_jsonschema()["properties"] == {"x": X}
    assert (saves.InputType, saves.OutputType) == (Question, int)


def test_graphs_of_channels() -> None:
    """Several channels are described by their names, one by its type."""
    node = NodeBuilder().subscribe_only("a").do(str).write_to("b")
    channels: Any = {"a": EphemeralValue(str), "b": LastValue(str), "c": LastValue(int)}
    several = Pregel(nodes={"n": node}, channels=channels, input_channels=["a"], output_channels=["b", "c"])
    assert several.get_input_jsonschema()["properties"] == {"a": {"title": "A", "type": "string"}}
    assert several.get_output_schema().model_validate({"c": 1}).model_dump() == {"b": None, "c": 1}
    one = Pregel(nodes={"n": node}, channels=channels, input_channels="a", output_channels="b")
    assert one.get_output_jsonschema() == {"title": "Pregel_output", "type": "string"}


def test_context_and_config() -> None:
    """The context has a schema of its own; the deprecated config schema has it as `configurable`."""
    made = graph(State, context=Settings)
    assert made.context_schema is Settings
    assert made.get_context_jsonschema()["required"] == ["user"]
    assert graph(State).context_schema is None and graph(State).get_context_jsonschema() is None
    with pytest.warns(DeprecationWarning, match="get_context_jsonschema"):
        config = made.get_config_jsonschema(include=["tags"])
    assert config["properties"].keys() == {"configurable", "tags"}
    with pytest.warns(DeprecationWarning, match="get_context_jsonschema"):
        assert made.config_schema().model_validate({"configurable": {"user": "me"}}).configurable == Settings("me")


def test_copies_keep_their_schemas() -> None:
    """A copy with bound settings describes the same graph."""
    assert graph(State, context=Settings).with_config(tags=["a"]).get_context_jsonschema()["title"] == "Settings"


def test_without_pydantic() -> None:
    """The error says what to install; nothing else of a graph needs pydantic."""
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from pregel_async import StateGraph, START\n"
        "graph = StateGraph(int).add_node('n', lambda state: state + 1).add_edge(START, 'n').compile()\n"
        "print(graph.invoke(1), graph.InputType)\n"
        "try: graph.get_input_jsonschema()\n"
        "except ImportError as error: print(error.name, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 <class 'int'>\npydantic schemas of graphs are made by pydantic: pip install pydantic\n"
