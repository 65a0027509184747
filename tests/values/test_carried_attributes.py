"""Attributes of values in addition to their fields or elements: they are isolated and stored like those (P1, P11)."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.codec import Codec
from pregel_async import START, StateGraph
from pregel_async._core.isolation import isolate
from pregel_async._core.ownership import own
from pregel_async.errors import UnstorableValueError

pytestmark = pytest.mark.anyio


class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass
class Made:
    x: int = 0

    def __post_init__(self) -> None:
        self.notes: list[Any] = []


@dataclasses.dataclass(frozen=True)
class FrozenMade:
    x: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", [])


class Loose(msgspec.Struct, dict=True):
    x: int = 0


class FrozenLoose(msgspec.Struct, frozen=True, dict=True):
    x: int = 0


class Names(list[Any]):
    pass


class Table(dict[Any, Any]):
    pass


class Members(set[Any]):
    pass


class Fixed(frozenset[Any]):
    pass


class Row(tuple[Any, ...]):
    pass


class Named(Pair):
    pass


class Slotted(list[Any]):
    __slots__ = ("notes",)


class Started(deque[Any]):
    """Counts its initializations."""

    made = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).made += 1


class Groups(defaultdict[Any, Any]):
    def __init__(self, name: str) -> None:
        super().__init__(list)
        self.name = name


class Sorted(OrderedDict[Any, Any]):
    def __init__(self, *, given: Any) -> None:
        super().__init__(given)


class Tally(Counter[Any]):
    pass


def noted(value: Any, notes: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        value.__dict__["notes"] = notes
    else:
        object.__setattr__(value, "notes", notes)
    return value


STORED: list[Any] = [
    Made,
    FrozenMade,
    Loose,
    FrozenLoose,
    Names,
    Table,
    Members,
    Fixed,
    Row,
    lambda: Named(1, 2),
    Slotted,
    Tally,
]
OTHERS: list[Any] = [Started, lambda: Groups("g"), lambda: Sorted(given={1: 2}), OrderedDict, Counter]
TYPES = (Made, FrozenMade, Loose, FrozenLoose, Names, Table, Members, Fixed, Row, Named, Slotted, Tally)


class State(TypedDict, total=False):
    value: Any
    seen: list[Any]


def graph_of(seen: list[Any]) -> Any:
    """Return a graph of two parallel nodes that change the attribute in place, and one that reads it after them."""

    def spoil(state: State) -> Any:
        seen.append(copy.deepcopy(state["value"].notes))
        state["value"].notes.append("spoiled")
        state["value"].notes[0].append("spoiled")
        return {}

    def look(state: State) -> Any:
        return {"seen": state["value"].notes}

    builder = StateGraph(State).add_node("a", spoil).add_node("b", spoil).add_node("look", look)
    return builder.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "look")


def codec() -> Codec:
    known = Codec()
    for kind in TYPES:
        known = known.with_types(kind, tag=kind.__name__)
    return known


@pytest.mark.parametrize("make", STORED)
async def test_attributes_are_isolated_and_stored(make: Any) -> None:
    """P1, P11: a node's change to a list in an attribute affects no other node, and the stored value equals the one
    that nodes get."""
    seen: list[Any] = []
    graph = graph_of(seen).compile(InMemorySaver(codec=codec()))
    mine = noted(make(), [[1]])
    result = await graph.ainvoke({"value": mine}, "t")
    assert seen == [[[1]], [[1]]] and result["seen"] == [[1]]
    assert mine.notes == [[1]] and result["value"].notes == [[1]]
    result["value"].notes[0].append("spoiled")
    stored = (await graph.aget_state("t")).values["value"]
    assert type(stored) is type(mine) and stored == mine and stored.notes == [[1]]


@pytest.mark.parametrize("make", OTHERS)
async def test_attributes_that_are_not_stored_are_refused(make: Any) -> None:
    """P11: a value that cannot be stored with its attributes is refused by name, and never stored without them."""
    seen: list[Any] = []
    result = await graph_of(seen).compile().ainvoke({"value": noted(make(), [[1]])})
    assert seen == [[[1]], [[1]]] and result["seen"] == [[1]]
    with pytest.raises(UnstorableValueError, match="Started|Groups|Sorted|OrderedDict|Counter") as caught:
        await graph_of(seen).compile(InMemorySaver(codec=codec())).ainvoke({"value": noted(make(), [[1]])}, "t")
    assert "'value'" in str(caught.value)


async def test_attributes_in_a_file(tmp_path: Path) -> None:
    """P11: a value read from a file has its attributes."""
    mine = [noted(make(), [[1]]) for make in STORED]
    async with SqliteSaver.from_conn_string(tmp_path / "t.db", codec=codec(), synchronous="NORMAL") as saver:
        graph = StateGraph(State).add_node("n", lambda _: {"seen": mine}).add_edge(START, "n").compile(saver)
        await graph.ainvoke({}, "t")
        back = (await graph.aget_state("t")).values["seen"]
    assert [(type(each), each.notes) for each in back] == [(type(each), [[1]]) for each in mine]


def test_a_copy_runs_no_code_of_the_class() -> None:
    """P1: copying does not call `__init__`, which would repeat its effects or need unknown arguments."""
    mine, made = noted(Started([[1]]), [1]), Started.made
    got = isolate(own(mine))
    assert (type(got), [*got], got.notes, got.maxlen) == (Started, [[1]], [1], None)
    assert Started.made == made
    groups = Groups("g")
    groups["a"].append(1)
    got = isolate(own(groups))
    got["b"].append(2)
    assert (got.name, dict(got), dict(groups)) == ("g", {"a": [1], "b": [2]}, {"a": [1]})
    ordered = Sorted(given={1: [1], 2: [2]})
    ordered.move_to_end(1)
    assert list(isolate(own(ordered)).items()) == [(2, [2]), (1, [1])]


class Copied(dict[Any, Any]):
    """A class with its own `__copy__`."""

    def __copy__(self) -> Copied:
        return noted(Copied(self), [*self.notes, "copied"])


def test_a_class_that_copies_itself() -> None:
    """The class's own `__copy__` is used, and the content of the copy is isolated."""
    mine = noted(Copied(a=[1]), [[1]])
    got = own(mine)
    got["a"].append(2)
    got.notes[0].append(2)
    assert (mine, mine.notes) == ({"a": [1]}, [[1]])
    assert got.notes == [[1, 2], "copied"]


@dataclasses.dataclass(frozen=True)
class Indexed:
    x: tuple[int, ...] = (1,)

    @cached_property
    def index(self) -> list[int]:
        return list(self.x)


class IndexedModel(pydantic.BaseModel):
    x: tuple[int, ...] = (1,)

    @cached_property
    def index(self) -> list[int]:
        return list(self.x)


@pytest.mark.parametrize("kind", [Indexed, IndexedModel])
def test_a_cached_property_is_computed_again(kind: Any) -> None:
    """P1, P11: a cached property is neither passed to another node nor stored, and reading it changes no sibling's
    object."""
    owned = own(kind())
    one, two = isolate(owned), isolate(owned)
    one.index.append(2)
    assert two.index == [1] and isolate(owned).index == [1]
    assert isolate(own(one)).index == [1]


class Label(str):
    __slots__ = ()


def notes_in(members: Any) -> list[Any]:
    """Return the lists that the members of a set carry, also inside tuples."""
    inside = [each[0] if isinstance(each, tuple) else each for each in members]
    return [each.notes for each in inside if not isinstance(each, str)]


@pytest.mark.parametrize("kind", [set, frozenset, Members, Fixed])
def test_members_of_sets_are_isolated(kind: Any) -> None:
    """P1: members of a set that compare by identity or are frozen may carry a list, and are copied like elements of a
    list; a set of immutable members is not copied."""
    given = kind([noted(FrozenMade(), [1]), (noted(FrozenMade(1), [1]), 2), Label("a")])
    owned = own(given)
    mine = isolate(owned)
    assert type(owned) is type(mine) is kind and mine == owned == given
    assert {type(each) for each in mine} == {FrozenMade, tuple, str}
    for notes in notes_in(mine):
        notes.append("spoiled by a node")
    assert notes_in(owned) == [[1], [1]]
    for notes in notes_in(owned):
        notes.append("spoiled")
    assert notes_in(given) == [[1], [1]]
    plain = frozenset([1, "a", (2, 3)])
    assert own(plain) is plain is isolate(plain)
