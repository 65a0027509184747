"""Inputs and edits are checked in depth before anything is stored, and never converted."""

from __future__ import annotations

import enum
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, Protocol, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, MessagesState, StateGraph, add_messages, entrypoint, set_defaults
from pregel_async._checks.value_columns import all_fit
from pregel_async._checks.values import Check, compile_check, path_of
from pregel_async.channels import DeltaChannel
from pregel_async.errors import GraphValidationError, InvalidInputError, InvalidUpdateError
from pregel_async.types import Command, Overwrite

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"


class Line(TypedDict):
    amount: int
    note: str | None


class Tree(TypedDict, total=False):
    value: int
    children: list[Tree]


@dataclass
class Order:
    lines: list[Line]
    paid: bool = False
    unset: int = field(init=False, repr=False, compare=False)


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class User(pydantic.BaseModel):
    name: str
    age: int = 18


class Box(Generic[T]):
    pass


class Reads(Protocol):
    def read(self) -> str: ...


@dataclass
class Page(Generic[T]):
    items: list[T]


UserId = NewType("UserId", int)


def where(hint: Any, value: Any) -> str | None:
    """Return the path of a value that does not fit; None if all fit."""
    check: Check | None = compile_check(hint)
    wrong = None if check is None else check(value)
    return None if wrong is None else path_of(wrong.path)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, object()),
        (list, [1, object()]),
        (list[Any], [object()]),
        (dict[str, Any], {"a": object()}),
        (Box[int], Box()),
        (Reads, object()),
        ("Unresolved", 1),
        (T, 1),
        (type[int], int),
        (float, 1),
        (complex, 1),
        (list[float], [1, 1.5]),
        (UserId, 7),
        (list[int | None], [1, None]),
        (Sequence[int], (1, 2)),
        (Sequence[str], "text"),
        (Mapping[str, int], {"a": 1}),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[int, str], (1, "a")),
        (tuple[()], ()),
        (deque[int], deque([1])),
        (Literal["a", None], None),
        (tuple[int, *tuple[str, ...]], ("x", 1)),
        (Color, Color.RED),
        (Line, {"amount": 1, "note": None, "more": object()}),
        (Tree, {"value": 1, "children": [{"value": 2, "children": []}]}),
        (Order, Order([{"amount": 1, "note": None}])),
        (Order, {"lines": []}),
        (Page[int], Page([1])),
        (Point, Point(1, 2)),
        (User, User.model_construct(name=7)),
        (User, {"name": "ann", "age": "7"}),
        (list[Line] | str, "text"),
        (Annotated[list[int], "a note"], [1]),
    ],
)
def test_what_fits(hint: Any, value: Any) -> None:
    """A value that the annotation allows, or does not describe, or that stands for an object, is accepted."""
    assert where(hint, value) is None


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (int, "1", ""),
        (int, None, ""),
        (None, 0, ""),
        (date, "2026-01-01", ""),
        (Color, "red", ""),
        (float, True, ""),
        (list[int], [1, "2"], "[1]"),
        (list[int], (1,), ""),
        (Sequence[int], [1, "2"], "[1]"),
        (set[int], {"a"}, "[0]"),
        (tuple[int, ...], (1, "2"), "[1]"),
        (tuple[int, str], (1,), ""),
        (tuple[int, str], (1, 2), "[1]"),
        (dict[str, list[int]], {"a": [1, None]}, "a[1]"),
        (dict[str, int], {1: 1}, "[1]"),
        (Line, {"amount": "1", "note": None}, "amount"),
        (Line, {"amount": 1}, "note"),
        (list[Line], [{"amount": 1, "note": "n"}, {"amount": "1", "note": "n"}], "[1].amount"),
        (list[Line], [{"amount": 1, "note": "n"}, {"amount": 1}], "[1].note"),
        (Tree, {"children": [{"children": [{"value": "x"}]}]}, "children[0].children[0].value"),
        (Order, {}, "lines"),
        (Order, Order([{"amount": "1", "note": None}]), "lines[0].amount"),
        (list[Order], [Order([]), {"lines": [], "paid": 7}], "[1].paid"),
        (Page[int], Page(["1"]), "items[0]"),
        (Point, Point("1"), "x"),
        (list[Point], [Point(1.0), Point("1")], "[1].x"),
        (User, {"age": 1}, "name"),
        (User, 7, ""),
        (str | list[Line], [{"amount": 1, "note": 7}], "[0].note"),
        (Literal["a", 1], "b", ""),
        (Literal["a", 1], None, ""),
        (list[Literal[1]], [1, True], "[1]"),
        (tuple[int, *tuple[str, ...]], [1], ""),
        (UserId, "7", ""),
    ],
)
def test_what_does_not_fit(hint: Any, value: Any, path: str) -> None:
    """A mismatch is found at any depth and reported with its path. The check of many values at once agrees."""
    assert where(hint, value) == path
    fit = all_fit(hint)
    assert fit is None or not fit([value])


class Talk(TypedDict):
    role: Literal["user", "assistant"]
    content: Any
    id: NotRequired[str | None]


class Guest(User):
    room: int = 0


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int | None, None),
        (float, 1),
        (date, date(2026, 1, 1)),
        (str | dict, {}),
        (Line, {"amount": 1, "note": None, "more": object()}),
        (Talk, {"role": "user", "content": "hi", "id": None}),
        (Talk, {"role": "assistant", "content": object()}),
        (Point, Point(1, 2.0)),
        (Page[int], Page([1, 2])),
        (User, Guest(name="ann")),
        (Annotated[Annotated[User, "tag"] | Annotated[Guest, "tag"], "kind"], Guest(name="ann")),
        (dict[str, Any], {"a": object()}),
        (dict[str, str | None], {"a": "b", "c": None}),
        (tuple[str, str], ("user", "hi")),
        (tuple[int, ...], (1, 2)),
        (list[list[Talk]], [[{"role": "user", "content": "hi"}]]),
        (Mapping[str, UserId], {"a": 1}),
    ],
)
def test_many_values_are_compared_at_once(hint: Any, value: Any) -> None:
    """1000 messages of any usual class cost at most 0.1 ms, as they are not checked one by one."""
    fit = all_fit(hint)
    assert fit is not None and fit([value] * 1000)
    assert not fit([value, object()])


def test_values_that_must_be_checked_one_by_one() -> None:
    """Values whose class stores its own kind, equal values of two types, and missing keys are found only by checking
    each value."""
    assert all_fit(Tree) is None
    for hint, value in [(Literal[1, True], True), (Talk, {"role": "user"}), (Talk, {"role": "USER", "content": ""})]:
        fit = all_fit(hint)
        assert fit is not None and not fit([value])


class TypeAliasType:
    """Stands for the object that `type X = ...` creates from Python 3.12 on: its value may name it."""

    __value__: Any


def test_an_alias_that_names_itself() -> None:
    """`type JSON = dict[str, JSON] | list[JSON] | str | None` works as an annotation, and compiling it ends."""
    json = TypeAliasType()
    json.__value__ = dict[str, json] | list[json] | str | None
    assert where(json, {"a": ["b", {"c": None}]}) is None
    assert where(list[json], [{"a": ["b", {"c": 1}]}]) == "[0].a[1].c"
    anything = TypeAliasType()
    anything.__value__ = Any
    assert where(list[anything], [1]) is None


def test_a_literals_mismatch_shows_the_value() -> None:
    """The message for a Literal shows the value, as often the type is right and only the value wrong."""
    check: Any = compile_check(Literal["a", "b"])
    assert check("c").reason == "is 'c', and its annotation says Literal['a', 'b']"
    assert len(check("c" * 1000).reason) < 150


class State(TypedDict, total=False):
    order: Order
    lines: list[Line]
    log: Annotated[list[str], operator.add]


GOOD: Any = {"order": Order([]), "lines": [{"amount": 1, "note": None}], "log": ["x"]}
BAD: Any = {"lines": [{"amount": 1, "note": None}, {"amount": "many", "note": None}]}


def graph(schema: Any, saver: Any = None, node: Any = None, **settings: Any) -> Any:
    made: Any = StateGraph(schema).add_node("n", node or (lambda state: None)).add_edge(START, "n")
    return made.compile(saver, blocking=False, **settings)


async def test_bad_input_is_refused_at_every_entry(saver: BaseCheckpointSaver) -> None:
    """Call, stream, batch, a command's update, `aupdate_state` and a subgraph refuse a bad value with its path and
    store nothing."""
    made = graph(State, saver)
    with pytest.raises(InvalidInputError, match=r"input 'lines\[1\].amount' is of type str.*int") as raised:
        await made.ainvoke(BAD, "t")
    assert raised.value.path == "lines[1].amount"
    with pytest.raises(InvalidInputError, match=r"lines\[1\]"):
        _ = [chunk async for chunk in made.astream(BAD, "t")]
    with pytest.raises(InvalidInputError, match=r"lines\[1\]"):
        await made.abatch([BAD], ["t"])
    with pytest.raises(InvalidUpdateError, match=r"lines\[1\]"):
        await made.ainvoke(Command(update=BAD, goto="n"), "t")
    for as_node, kind in [("n", InvalidUpdateError), ("__input__", InvalidInputError)]:
        with pytest.raises(kind, match=r"lines\[1\]") as refused:
            await made.aupdate_state("t", BAD, as_node)
        assert refused.value.path == "lines[1].amount"
    assert (await made.aget_state("t")).metadata is None
    assert await made.ainvoke(GOOD, "t") == GOOD

    async def calls(state: State) -> Any:
        return await graph(State).ainvoke(BAD)

    with pytest.raises(InvalidInputError):
        await graph(State, node=calls).ainvoke({})


async def test_values_are_not_converted() -> None:
    """Nodes get the checked values with their types unchanged."""
    seen: list[Any] = []
    await graph(State, node=seen.append).ainvoke({"order": {"lines": []}})
    assert seen == [{"order": {"lines": []}, "log": []}]


@dataclass
class DataState:
    amount: int = 0


async def test_a_dataclass_state() -> None:
    """A dataclass state is checked as a mapping and as an object; on an error the thread is not created."""
    made = graph(DataState, saver := InMemorySaver())
    for given in ({"amount": "many"}, DataState(amount="many")):
        with pytest.raises(InvalidInputError, match="'amount'"):
            await made.ainvoke(given, "t")
    assert await saver.read("t", "", None) is None


class ModelState(pydantic.BaseModel):
    amount: int
    day: date = date(2026, 1, 1)
    log: Annotated[list[str], operator.add] = []

    @pydantic.field_validator("amount")
    @classmethod
    def is_positive(cls, amount: int) -> int:
        if amount < 1:
            raise ValueError("too little")
        return amount


async def test_a_pydantic_state_stores_the_models_values(saver: BaseCheckpointSaver) -> None:
    """A pydantic state refuses what the model refuses and stores the model's values, also for some of its fields;
    `aget_state` shows its defaults and types."""
    made = graph(ModelState, saver, lambda state: {"log": ["n"]})
    for given in ({"amount": "many"}, {"amount": 0}, {"day": "never"}):
        with pytest.raises(InvalidInputError, match=next(iter(given))):
            await made.ainvoke(given, "t")
    assert (await made.aget_state("t")).metadata is None
    assert await made.ainvoke({"amount": "7"}, "t") == {"amount": 7, "log": ["n"]}
    assert (await made.aget_state("t")).values == {"amount": 7, "day": date(2026, 1, 1), "log": ["n"]}
    result = await made.ainvoke({"day": "2027-02-03", "log": ["x"]}, "t")
    assert result == {"amount": 7, "day": date(2027, 2, 3), "log": ["n", "x", "n"]}
    await made.aupdate_state("t", {"amount": "9"}, "n")
    with pytest.raises(InvalidUpdateError, match="amount"):
        await made.aupdate_state("t", {"amount": "0"}, "n")
    assert (await made.aget_state("t")).values["amount"] == 9
    assert (await made.ainvoke(ModelState(amount=1), "u"))["amount"] == 1
    history = [state.values async for state in made.aget_state_history("u")]
    assert history[0] == {"amount": 1, "day": date(2026, 1, 1), "log": ["n"]}


def merged(left: list[int], right: int | list[int]) -> list[int]:
    return [*left, *(right if isinstance(right, list) else [right])]


def batch(left: list[int], updates: list[int]) -> list[int]:
    return [*left, *updates]


class Reduced(TypedDict, total=False):
    merged: Annotated[list[int], merged]
    batch: Annotated[list[int], DeltaChannel(batch)]
    messages: Annotated[list[dict[str, Any]], add_messages]
    added: Annotated[list[int], operator.add]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"merged": 1}, None),
        ({"merged": [1]}, None),
        ({"merged": Overwrite([1])}, None),
        ({"merged": {"__overwrite__": [1]}}, None),
        ({"merged": "1"}, "merged"),
        ({"merged": [1, "2"]}, "merged[1]"),
        ({"batch": 1}, None),
        ({"batch": "1"}, "batch"),
        ({"messages": "hi"}, None),
        ({"messages": ("user", "hi")}, None),
        ({"added": ["unchecked"]}, None),
    ],
    ids=repr,
)
async def test_a_reducers_own_annotation_counts(given: Any, path: str | None) -> None:
    """A key with a reducer is checked only by the annotation of the reducer's second parameter."""
    if path is None:
        assert await graph(Reduced).ainvoke(given)
    else:
        with pytest.raises(InvalidInputError) as raised:
            await graph(Reduced).ainvoke(given)
        assert raised.value.path == path


async def test_it_can_be_switched_off() -> None:
    """The check can be switched off for a graph, an entrypoint, or all graphs compiled later; keys are checked
    nevertheless."""
    assert await graph(State, validate_input=False).ainvoke(BAD) == {**BAD, "log": []}
    with pytest.raises(InvalidInputError, match="'lnes'"):
        await graph(State, validate_input=False).ainvoke({"lnes": 1})
    set_defaults(validate_input=False)
    try:
        lax = graph(State, InMemorySaver())
        assert await lax.ainvoke(BAD, "t") == {**BAD, "log": []}
        await lax.aupdate_state("t", BAD, "n")
        assert await graph(int).ainvoke("one") == "one"
        with pytest.raises(InvalidInputError):
            await graph(State, validate_input=True).ainvoke(BAD)
    finally:
        set_defaults(validate_input=True)
    with pytest.raises(GraphValidationError, match="validate_input is True or False"):
        graph(State, validate_input="no")


async def test_the_input_of_an_entrypoint() -> None:
    """An entrypoint's input is checked by the annotation of its first parameter."""

    @entrypoint(checkpointer=InMemorySaver())
    async def total(order: Order) -> int:
        return len(order.lines)

    with pytest.raises(InvalidInputError, match=r"'total', at 'lines\[0\].amount', is of type str"):
        await total.ainvoke(Order([{"amount": "1", "note": None}]), "t")
    assert (await total.aget_state("t")).metadata is None

    @entrypoint(validate_input=False)
    async def lax(count: int) -> int:
        return count

    assert await lax.ainvoke("one") == "one"


def test_a_value_that_holds_itself_is_left_to_what_stores_it() -> None:
    """A value nested without end does not end the check with one of Python's errors."""
    tree: Any = {"value": 1}
    tree["children"] = [tree]
    assert graph(Tree)._definition.program.read_input({"children": [tree]})


@pytest.mark.one_loop
async def test_many_messages_are_checked_without_looking_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 messages cost at most 0.1 ms: a reducer without an annotation is not checked, and for objects with plain
    fields C code compares only the types of each column."""
    looked: list[Any] = []
    monkeypatch.setattr("pregel_async._checks.values._class_check", lambda kind: looked.append)
    messages = [{"role": "user", "content": "x"}] * 1000
    lines = [{"amount": 1, "note": None}] * 1000
    await graph(MessagesState).ainvoke({"messages": messages})
    await graph(State).ainvoke({"lines": lines, "log": ["x"] * 1000})
    assert looked == []


async def test_end_takes_no_values() -> None:
    """An update as END with values is refused."""
    made = graph(State, InMemorySaver())
    await made.ainvoke(GOOD, "t")
    with pytest.raises(InvalidUpdateError, match="has no values"):
        await made.aupdate_state("t", BAD, END)
