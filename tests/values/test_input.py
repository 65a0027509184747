"""Inputs of runs and results of nodes: which are accepted, and which are refused."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any, Literal, TypedDict

import anyio
import msgspec
import pydantic
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, Send, StateGraph
from pregel_async.errors import EmptyInputError, ErrorCode, InvalidInputError, InvalidUpdateError, PregelError
from tests.helpers.schema_kinds import KINDS, DataState, DictState, ModelState, StructState

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    count: int
    ratio: float
    name: str
    tags: list[str]
    mode: Literal["fast", "slow"]
    maybe: int | None
    log: Annotated[list[str], operator.add]


def graph(node: Any = None, saver: Any = None, **settings: Any) -> Any:
    made = StateGraph(State).add_node("n", node or (lambda state: {"log": ["n"]})).add_edge(START, "n")
    return made.compile(saver, blocking=False, **settings)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"count": "1"}, "'count'"),
        ({"count": 1.5}, "'count'"),
        ({"ratio": "x"}, "'ratio'"),
        ({"name": 1}, "'name'"),
        ({"name": b"x"}, "'name'"),
        ({"tags": "abc"}, "'tags'"),
        ({"tags": {"a": 1}}, "'tags'"),
        ({"mode": "medium"}, "'mode'"),
        ({"maybe": "x"}, "'maybe'"),
        ({"unknown": 1}, "'unknown'"),
        ({"count": 1, "cuont": 2}, "'cuont'"),
        ({1: 2}, "1"),
        (1, "mapping"),
        ("text", "mapping"),
        ([("count", 1)], "mapping"),
        (Ellipsis, "mapping"),
    ],
    ids=repr,
)
async def test_inputs_that_are_refused(given: Any, says: str) -> None:
    """Bad input: an input of the wrong type, or with a key that no schema has, is refused before anything is stored."""
    saver = InMemorySaver()
    ran: list[int] = []
    made = graph(lambda state: ran.append(1), saver)
    with pytest.raises(InvalidInputError, match=says) as caught:
        await made.ainvoke(given, "t")
    assert isinstance(caught.value, PregelError)
    assert isinstance(caught.value, TypeError)
    with anyio.fail_after(30), pytest.raises(InvalidInputError):
        async for _ in made.astream(given, "t"):
            raise AssertionError
    assert (ran, (await made.aget_state("t")).metadata) == ([], None)
    assert [state async for state in made.aget_state_history("t")] == []


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"count": 1},
        {"count": True},
        {"count": None},
        {"ratio": 1},
        {"tags": []},
        {"mode": "slow"},
        {"maybe": None},
        {"log": ["x"]},
    ],
    ids=repr,
)
async def test_inputs_that_are_taken(given: Any) -> None:
    """An input may be `{}`, any value that an annotation allows, and None, which many programs use for "not yet"."""
    assert await graph().ainvoke(given) == {**given, "log": [*given.get("log", []), "n"]}


async def test_unknown_keys_can_be_ignored() -> None:
    """`unknown_keys="ignore"` ignores unknown keys in inputs and node results, as LangGraph does."""
    made = graph(lambda state: {"log": ["n"], "cuont": 1}, unknown_keys="ignore")
    assert await made.ainvoke({"count": 1, "unknown": 2}) == {"count": 1, "log": ["n"]}


async def test_a_reducer_accepts_any_input() -> None:
    """The input of a key with a reducer is not checked, as the reducer decides what it accepts."""
    assert await graph().ainvoke({"log": []}) == {"log": ["n"]}
    with pytest.raises(TypeError) as caught:
        await graph().ainvoke({"log": 5})
    assert any("'log'" in note for note in getattr(caught.value, "__notes__", [])) or isinstance(
        caught.value, InvalidInputError
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_an_input_may_be_an_instance(kind: Any) -> None:
    """An instance of the schema is an input like a mapping; only its set fields are written."""
    made = StateGraph(kind).add_node("n", lambda state: {"log": ["n"]}).add_edge(START, "n").compile(blocking=False)
    expected = {"items": [1], "table": {}, "log": ["in", "n"], "note": "x"}
    assert await made.ainvoke(kind(items=[1], log=["in"], note="x", table={})) == expected
    assert await made.ainvoke({"items": [1], "log": ["in"], "note": "x", "table": {}}) == expected


async def test_an_instance_of_another_class() -> None:
    """Bad input: an instance of another schema is refused."""
    made = StateGraph(DataState).add_node("n", lambda state: None).add_edge(START, "n").compile()
    for wrong in (StructState(), ModelState(), object()):
        with pytest.raises(InvalidInputError):
            await made.ainvoke(wrong)


class Partial(pydantic.BaseModel):
    a: int | None = None
    b: int | None = 5
    c: int = 1


async def test_which_fields_of_a_model_count() -> None:
    """A field is written if its value is not None, or its default is not None, or it was explicitly set."""

    def result(given: Any) -> Any:
        made = StateGraph(Partial).add_node("n", lambda state: given).add_edge(START, "n")
        return made.compile(blocking=False).ainvoke({})

    assert await result(Partial()) == {"b": 5, "c": 1}
    assert await result(Partial(a=None)) == {"a": None, "b": 5, "c": 1}
    assert await result(Partial(b=None)) == {"b": None, "c": 1}
    assert await result(Partial(a=3)) == {"a": 3, "b": 5, "c": 1}


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    by_alias: list[int] = pydantic.Field(default_factory=list, alias="byAlias")
    by_validation: list[int] = pydantic.Field(default_factory=list, validation_alias="byValidation")
    by_choice: int = pydantic.Field(0, validation_alias=pydantic.AliasChoices("byChoice", "byOther"))
    by_path: int = pydantic.Field(0, validation_alias=pydantic.AliasPath("nested", "byPath"))
    shown: int = pydantic.Field(0, serialization_alias="isShown")


async def test_a_models_aliases() -> None:
    """State keys are a model's field names; a node's object has the values of its keys, whatever aliases its fields
    have."""
    seen: list[Any] = []
    made = StateGraph(Aliased).add_node("n", lambda state: seen.append(state) or {"by_choice": state.by_choice + 1})
    graph = made.add_node("m", seen.append).add_edge(START, "n").add_edge("n", "m").compile(blocking=False)
    given = {"by_alias": [1], "by_validation": [2], "by_choice": 3, "by_path": 4, "shown": 5}
    assert await graph.ainvoke(given) == {**given, "by_choice": 4}
    assert [{name: getattr(state, name) for name in given} for state in seen] == [given, {**given, "by_choice": 4}]


class Validated(pydantic.BaseModel):
    count: int = 0


async def test_a_model_validates_what_nodes_read() -> None:
    """A model does not validate updates when they are written; the next node that reads them fails with an error that
    names it."""
    made = StateGraph(Validated).add_node("bad", lambda state: {"count": "many"}).add_node("next", lambda state: None)
    compiled = made.add_edge(START, "bad").add_edge("bad", "next").compile(blocking=False)
    with pytest.raises(pydantic.ValidationError) as caught:
        await compiled.ainvoke({})
    assert any("'next'" in note for note in caught.value.__notes__)


async def test_no_input() -> None:
    """`None` without a thread, or on a thread without checkpoints, raises an EmptyInputError."""
    with pytest.raises(EmptyInputError):
        await graph().ainvoke(None)
    saver = InMemorySaver()
    made = graph(saver=saver)
    with pytest.raises(EmptyInputError, match="'t'"):
        await made.ainvoke(None, "t")
    with anyio.fail_after(30), pytest.raises(EmptyInputError, match="'t'"):
        _ = [chunk async for chunk in made.astream(None, "t")]
    assert [header async for header in saver.alist(None)] == []
    assert await made.ainvoke({}, "t") == {"log": ["n"]}, "the thread was not left leased"


async def test_no_input_on_a_finished_thread() -> None:
    """`None` on a finished thread returns its state and runs nothing."""
    ran: list[int] = []
    made = graph(lambda state: ran.append(1) or {"log": ["n"]}, InMemorySaver())
    await made.ainvoke({"count": 1}, "t")
    before = [state.config async for state in made.aget_state_history("t")]
    assert await made.ainvoke(None, "t") == {"count": 1, "log": ["n"]}
    assert [chunk async for chunk in made.astream(None, "t")] == []
    assert [chunk async for chunk in made.astream(None, "t", stream_mode="values")] == [{"count": 1, "log": ["n"]}]
    assert ran == [1]
    assert [state.config async for state in made.aget_state_history("t")] == before


async def test_a_second_input() -> None:
    """A second input on a thread starts another run on the current state."""
    made = graph(saver=InMemorySaver())
    await made.ainvoke({"count": 1}, "t")
    assert await made.ainvoke({"name": "x"}, "t") == {"count": 1, "name": "x", "log": ["n", "n"]}


@pytest.mark.parametrize(
    "result", [1, "text", ["a"], [{"log": ["x"]}, 1], Ellipsis, True, {"log"}, ("log", ["x"])], ids=repr
)
async def test_results_that_are_no_update(result: Any) -> None:
    """A node returns a mapping, an instance of a schema, or None; another result raises an error that names the
    node."""
    kind = "a list that holds" if isinstance(result, (list, tuple)) else type(result).__name__
    with pytest.raises(InvalidUpdateError, match=f"'n'.*{kind}") as caught:
        await graph(lambda state: result).ainvoke({})
    assert (caught.value.node, caught.value.code) == ("n", ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE)
    assert any("'n'" in note and "superstep 1" in note for note in caught.value.__notes__)


async def test_a_result_with_an_unknown_key() -> None:
    """Bad input: a key that no schema has in a node's result raises an error that names node and key."""
    with pytest.raises(InvalidUpdateError, match="'n'.*'cuont'") as caught:
        await graph(lambda state: {"cuont": 1}).ainvoke({})
    assert (caught.value.node, caught.value.channel) == ("n", "cuont")
    with pytest.raises(InvalidUpdateError, match="1"):
        await graph(lambda state: {1: 1}).ainvoke({})


@pytest.mark.parametrize("result", [None, {}], ids=repr)
async def test_results_that_write_nothing(result: Any) -> None:
    """A node that returns None or {} still triggers its edges; the stream shows None for it."""
    made = StateGraph(State).add_node("n", lambda state: result).add_node("after", lambda state: {"log": ["after"]})
    compiled = made.add_edge(START, "n").add_edge("n", "after").compile(blocking=False)
    assert [chunk async for chunk in compiled.astream({})] == [{"n": None}, {"after": {"log": ["after"]}}]


async def test_unknown_keys_alone_write_nothing() -> None:
    """With `unknown_keys="ignore"`, a result with only unknown keys is shown as None."""
    compiled = graph(lambda state: {"cuont": 1}, unknown_keys="ignore")
    assert [chunk async for chunk in compiled.astream({})] == [{"n": None}]


@dataclasses.dataclass
class PartUpdate:
    count: int


class Other(msgspec.Struct):
    count: int


class UserMapping(dict[str, Any]):
    """A user-defined mapping."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_may_be_an_instance(kind: Any) -> None:
    """A node may return an instance of its schema."""
    made = StateGraph(kind).add_node("n", lambda state: kind(items=[1], log=["n"])).add_edge(START, "n")
    result = await made.compile(blocking=False).ainvoke({"note": "x"})
    assert (result["items"], result["log"]) == ([1], ["n"])


async def test_which_instances_are_updates() -> None:
    """An instance of a class that is no schema of the graph is refused; a mapping of any class is an update."""
    for wrong in (PartUpdate(1), Other(1)):
        with pytest.raises(InvalidUpdateError):
            await graph(lambda state, wrong=wrong: wrong).ainvoke({})
    assert await graph(lambda state: UserMapping(count=1)).ainvoke({}) == {"count": 1, "log": []}


async def test_a_node_may_return_its_whole_state() -> None:
    """`return state` writes every key of the node's input."""

    def node(state: State) -> State:
        state["count"] += 1
        state["tags"].append("new")
        return state

    assert await graph(node).ainvoke({"count": 1, "tags": []}) == {"count": 2, "tags": ["new"], "log": []}


def routed(answer: Any, path_map: Any = None) -> Any:
    def router(state: Any) -> Any:
        return answer

    made = StateGraph(State).add_node("n", lambda state: {"log": ["n"]}).add_node("b", lambda state: None)
    return made.add_edge(START, "n").add_conditional_edges("n", router, path_map).compile(blocking=False)


@pytest.mark.parametrize(
    ("answer", "path_map"),
    [
        (None, None),
        ("zz", None),
        (START, None),
        (1, None),
        (True, None),
        (["b", "zz"], None),
        ({"a": 1}, None),
        ({"b"}, None),
        ([["b"]], None),
        (Send("zz", {}), None),
        (Send(END, {}), None),
        (Send(START, {}), None),
        (["b", Send("zz", {})], None),
        ("b", {"x": "b"}),
        ({"a": 1}, {"x": "b"}),
        ("zz", ["b"]),
        (None, ["b"]),
    ],
    ids=repr,
)
async def test_router_results_that_are_refused(answer: Any, path_map: Any) -> None:
    """A router's invalid result (an unknown node, None, a Send to END, a key that path_map lacks) fails the node's task
    with an error that names the router, the node and the result."""
    with pytest.raises(InvalidUpdateError, match="router 'router' of node 'n'") as caught:
        await routed(answer, path_map).ainvoke({})
    assert caught.value.node == "n"
    assert any("superstep 1" in note for note in caught.value.__notes__)


async def test_a_send_to_an_unknown_node() -> None:
    """Bad input: the error of a node's send to an unknown node names that node."""
    for wrong in ("zz", END, START):
        with pytest.raises(InvalidUpdateError, match=f"'n' returned.*{wrong}"):
            await graph(lambda state, wrong=wrong: Send(wrong, {})).ainvoke({})


async def test_two_writers_of_a_last_value() -> None:
    """Bad input: two writes to a LastValue in one superstep raise an error with the channel's name and a code."""
    made = StateGraph(State)
    for name in "ab":
        made.add_node(name, lambda state: {"count": 1}).add_edge(START, name)
    with pytest.raises(InvalidUpdateError, match="'count'") as caught:
        await made.compile(blocking=False).ainvoke({})
    assert (caught.value.channel, caught.value.code) == ("count", ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE)
    assert any("superstep 1" in note for note in caught.value.__notes__)


def refusing(current: int, update: int) -> int:
    raise OverflowError("too much")


class Refusing(TypedDict):
    total: Annotated[int, refusing]


async def test_a_reducer_that_raises() -> None:
    """A reducer's own exception is raised, with a note that names channel and superstep."""
    made = StateGraph(Refusing).add_node("n", lambda state: {"total": 1}).add_edge(START, "n").compile(blocking=False)
    with pytest.raises(OverflowError, match="too much") as caught:
        await made.ainvoke({})
    assert any("'total'" in note and "superstep 1" in note for note in caught.value.__notes__)


class Dict(DictState):
    pass


async def test_a_value_that_contains_itself() -> None:
    """A value that contains itself is refused when it is written; the error names the node."""

    def node(state: Any) -> dict[str, Any]:
        loop: list[Any] = []
        loop.append(loop)
        return {"items": loop}

    made = StateGraph(Dict).add_node("n", node).add_edge(START, "n").compile(blocking=False)
    with pytest.raises(InvalidUpdateError, match="contains itself") as caught:
        await made.ainvoke({})
    assert any("'n'" in note for note in caught.value.__notes__)
