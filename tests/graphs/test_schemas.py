"""Reading schemas: keys, generic classes, fields that `__init__` does not take, states of one bare value."""

from __future__ import annotations

import dataclasses
import operator
import re
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from pregel_async._checks.annotations import named
from pregel_async.channels import (
    MISSING,
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
)
from pregel_async.errors import EmptyChannelError, GraphValidationError, InvalidInputError
from pregel_async.graph.schema import (
    ROOT,
    AnyChannel,
    Schema,
    as_mapping,
    input_reader,
    is_schema,
    merge_channels,
    read_schema,
    start_writes,
)
from pregel_async.types import Overwrite

T = TypeVar("T")
U = TypeVar("U")


def gather(current: list[Any], updates: list[Any]) -> list[Any]:
    return [*current, *updates]


def reader(kind: Any, *, ignore: bool = False) -> Callable[[Any], Any]:
    return input_reader(read_schema(kind, "input schema"), "__start__", ignore_unknown=ignore)


def merged(*kinds: Any) -> dict[str, AnyChannel]:
    channels: dict[str, AnyChannel] = {}
    for role, kind in zip(("first schema", "second schema"), kinds, strict=True):
        merge_channels(channels, read_schema(kind, role))
    return channels


class DictPage(TypedDict, Generic[T]):
    first: T
    rest: Annotated[list[T], operator.add]
    perhaps: NotRequired[T | None]


class DictBook(DictPage[int], Generic[T]):
    title: T


class DictShelf(DictBook[str]):
    height: float


class DictNested(DictPage[list[U]], Generic[U]):
    pass


class DictAnew(DictPage[int]):
    extra: str


@dataclasses.dataclass
class DataPage(Generic[T]):
    first: T
    rest: Annotated[list[T], operator.add]


@dataclasses.dataclass
class DataBook(DataPage[int]):
    first: str


@dataclasses.dataclass
class DataShelf(DataBook):
    height: float


class StructPage(msgspec.Struct, Generic[T]):
    first: T
    rest: Annotated[list[T], operator.add]


class ModelPage(pydantic.BaseModel, Generic[T]):
    first: T
    rest: Annotated[list[T], operator.add]


class ModelBook(ModelPage[int]):
    pass


@pytest.mark.parametrize("kind", [DictPage[int], DataPage[int], StructPage[int], ModelPage[int]])
def test_a_generic_class_with_its_arguments(kind: Any) -> None:
    """`Page[int]` is a schema, and its arguments determine its keys for checks and folds."""
    assert is_schema(kind)
    schema = read_schema(kind, "state schema")
    assert schema.hints["first"] is int
    assert schema.channels["first"].typ is int
    assert schema.channels["rest"].typ == list[int]
    assert isinstance(schema.channels["rest"], BinaryOperatorAggregate)
    assert schema.channels["rest"].get() == []


@pytest.mark.parametrize(
    ("kind", "hints"),
    [
        (DictPage[int], {"first": int, "perhaps": int | None}),
        (DictBook[str], {"first": int, "perhaps": int | None, "title": str}),
        (DictShelf, {"first": int, "perhaps": int | None, "title": str, "height": float}),
        (DictNested[bool], {"first": list[bool], "perhaps": list[bool] | None}),
        (DataBook, {"first": str}),
        (DataShelf, {"first": str, "height": float}),
        (ModelBook, {"first": int}),
    ],
)
def test_arguments_reach_inherited_keys(kind: Any, hints: dict[str, Any]) -> None:
    """The arguments of a generic base apply to the base's keys, except those declared anew; one type parameter may mean
    two things in two classes."""
    found = read_schema(kind, "state schema").hints
    assert {name: hint for name, hint in found.items() if name != "rest"} == hints


def test_a_type_parameter_without_an_argument() -> None:
    """A generic class without arguments accepts any value."""
    assert reader(DictPage)({"first": object})
    with pytest.raises(InvalidInputError, match="'first'"):
        reader(DictPage[int])({"first": "one"})


def test_one_state_with_and_without_arguments() -> None:
    """The schema is identified by its class: a node annotated with the class gets the state."""
    assert read_schema(DictPage[int], "state schema").type is DictPage
    assert read_schema(DataPage[int], "state schema").shape is not None
    made = read_schema(DataPage[int], "state schema").shape({"first": 1, "rest": []})
    assert made == DataPage(1, [])


Alias = TypeAliasType("Alias", DictPage[int])
Deep = TypeAliasType("Deep", Alias)
Numbers = TypeAliasType("Numbers", list[int])


def test_an_alias_is_what_it_stands_for() -> None:
    """An alias of a class with keys, or of a plain type, is resolved."""
    assert read_schema(Deep, "state schema").hints["first"] is int
    assert is_schema(Alias)
    assert read_schema(Numbers, "state schema").root


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_an_alias_that_cannot_be_resolved() -> None:
    """The alias is evaluated when the graph is built, and the error says so."""
    scope: dict[str, Any] = {}
    exec("type Lost = Unheard", scope)  # 3.11 cannot parse it
    with pytest.raises(GraphValidationError, match="Lost cannot be resolved"):
        read_schema(scope["Lost"], "state schema")


@dataclasses.dataclass
class Later:
    given: int = 0
    later: int = dataclasses.field(init=False)
    computed: int = dataclasses.field(init=False, default=1)

    def __post_init__(self) -> None:
        self.computed = self.given + 1


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenLater:
    given: int = 0
    later: int = dataclasses.field(init=False, default=5)


def shaped(kind: Any, values: dict[str, Any]) -> Any:
    shape = read_schema(kind, "state schema").shape
    assert shape is not None
    return shape(values)


def test_fields_that_init_does_not_take() -> None:
    """A node's object has the written values of such fields; others are as the class initializes them."""
    made = shaped(Later, {"given": 1, "later": 2, "computed": 9})
    assert (made.given, made.later, made.computed) == (1, 2, 9)
    made = shaped(Later, {"given": 1})
    assert (made.given, made.computed) == (1, 2)
    assert not hasattr(made, "later")
    made = shaped(FrozenLater, {"later": 2})
    assert (made.given, made.later) == (0, 2)
    assert shaped(FrozenLater, {}).later == 5


def test_a_field_that_was_never_set_is_no_update() -> None:
    """An instance as an update writes only the fields that are set."""
    schema = read_schema(Later, "state schema")
    assert as_mapping(schema, Later(3)) == {"given": 3, "computed": 4}


class Batched(TypedDict):
    log: Annotated[list[str], DeltaChannel(gather)]
    typed: Annotated[list[str], DeltaChannel(gather, dict)]
    maybe: NotRequired[Annotated[list[str], "words", DeltaChannel(gather, snapshot_frequency=2), "more"]]


def test_a_delta_channel_in_an_annotation() -> None:
    """A DeltaChannel folds from an empty value of the annotation's type, unless it has a type of its own."""
    channels = read_schema(Batched, "state schema").channels
    assert {name: type(channel) for name, channel in channels.items()} == dict.fromkeys(channels, DeltaChannel)
    assert channels["log"].get() == channels["maybe"].get() == []
    assert channels["typed"].get() == {}
    channels["log"].update(["a", "b"])
    assert channels["log"].get() == ["a", "b"]
    assert read_schema(Batched, "state schema").channels["log"].checkpoint() is MISSING


def one_argument(value: Any) -> Any:
    return value


def test_mistakes_with_channels_in_annotations() -> None:
    """Each error names the key and says what to write."""
    forgotten: Any = TypedDict("forgotten", {"log": Annotated[list, DeltaChannel]})
    with pytest.raises(GraphValidationError, match=r"forgotten\.log needs its reducer.*DeltaChannel\(reducer\)"):
        read_schema(forgotten, "state schema")
    arity: Any = TypedDict("arity", {"log": Annotated[list, DeltaChannel(one_argument)]})
    with pytest.raises(GraphValidationError, match=r"arity\.log takes two arguments.*list of updates"):
        read_schema(arity, "state schema")
    for kind in (BinaryOperatorAggregate, NamedBarrierValue):
        short: Any = TypedDict("short", {"log": Annotated[list, kind]})
        with pytest.raises(GraphValidationError, match=rf"short\.log.*{kind.__name__}"):
            read_schema(short, "state schema")


class Plain(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


def test_an_overwrite_in_the_input() -> None:
    """An overwrite in the input is passed on unchanged; for a plain key its value is checked as any other."""
    given = {"n": Overwrite(1), "log": Overwrite(["a"])}
    assert reader(Plain)(given) == [("__start__", given)]
    with pytest.raises(InvalidInputError, match="'n'"):
        reader(Plain)({"n": Overwrite("one")})
    with pytest.raises(InvalidInputError, match="'n' is of type dict"):
        reader(Plain)({"n": {"__overwrite__": 1}})


class Pair(NamedTuple):
    left: int
    right: int


class Colour(Enum):
    RED = 1


class Engine:
    """A class without annotated fields."""

    KNOWN: ClassVar[int] = 1


class Undecorated:
    n: int
    log: list[str]


Count = NewType("Count", int)

ROOTS: list[Any] = [
    *(int, str, list, dict, object, Pair, Colour, Engine, Any, Count, Sequence),
    *(list[int], dict[str, int], int | None, Literal["a", "b"], Callable[[int], int]),
    *(Annotated[list, operator.add], Annotated[int, "of apples"], Annotated[Undecorated, LastValue]),
]


@pytest.mark.parametrize("kind", ROOTS, ids=str)
def test_a_root_is_one_bare_value(kind: Any) -> None:
    """Any other type is a state of one value, in one channel, and is shown bare."""
    schema = read_schema(kind, "state schema")
    assert schema.root
    assert schema.keys == (ROOT,)
    assert schema.shown == ROOT
    assert list(schema.channels) == [ROOT]
    assert not is_schema(kind)


@pytest.mark.parametrize("kind", [Plain, DataPage[int], StructPage, ModelPage])
def test_a_class_with_keys_is_no_root(kind: Any) -> None:
    """A class with keys is shown as a mapping."""
    schema = read_schema(kind, "state schema")
    assert not schema.root
    assert schema.shown == schema.keys


@pytest.mark.parametrize(
    ("kind", "channel"),
    [
        (int, LastValue),
        (Annotated[int, "of apples"], LastValue),
        (Annotated[list, operator.add], BinaryOperatorAggregate),
        (Annotated[list, DeltaChannel(gather)], DeltaChannel),
        (Annotated[str, Topic], Topic),
    ],
)
def test_a_root_folds_as_a_key_does(kind: Any, channel: Any) -> None:
    """A root may be plain, have a reducer, or be a channel, as a key may."""
    assert type(read_schema(kind, "state schema").channels[ROOT]) is channel


@pytest.mark.parametrize(
    "kind", ["State", None, 1, [int], {"x": int}, (int, str), Plain(n=1), print, FrozenLater()], ids=str
)
def test_what_is_no_type_at_all(kind: Any) -> None:
    """Bad input: a schema that is no type is refused by name and purpose."""
    with pytest.raises(GraphValidationError, match="state schema.*is none of them"):
        read_schema(kind, "state schema")


def test_a_class_whose_decorator_was_forgotten() -> None:
    """A class that annotates fields but has no decorator is refused, as it would be one opaque value; the user can ask
    for that explicitly."""
    with pytest.raises(
        GraphValidationError, match=r"Undecorated annotates fields.*Annotated\[Undecorated, LastValue\]"
    ):
        read_schema(Undecorated, "state schema")


def test_mistakes_with_a_root() -> None:
    """A reducer of the wrong arity and a key with the root's name are refused."""
    with pytest.raises(GraphValidationError, match="the reducer of state schema takes two arguments"):
        read_schema(Annotated[list, one_argument], "state schema")
    reserved: Any = TypedDict("reserved", {"__root__": int})
    with pytest.raises(GraphValidationError, match="'__root__'.*reserved"):
        read_schema(reserved, "state schema")


def test_roots_and_keys_do_not_mix() -> None:
    """Either all schemas of a graph have keys or none has; two roots are one channel, under the rules for keys."""
    for kinds in ((int, Plain), (Plain, int), (Annotated[list, operator.add], DataPage)):
        with pytest.raises(
            GraphValidationError,
            match=f"the second schema is {re.escape(named(kinds[1]))}.*all schemas of a graph have keys, or none has",
        ):
            merged(*kinds)
    assert isinstance(merged(list, Annotated[list, operator.add])[ROOT], BinaryOperatorAggregate)
    assert isinstance(merged(Annotated[list, operator.add], list)[ROOT], BinaryOperatorAggregate)
    with pytest.raises(GraphValidationError, match="'__root__' is declared twice"):
        merged(Annotated[list, operator.add], Annotated[list, operator.mul])
    with pytest.raises(GraphValidationError, match="'__root__' is declared twice"):
        merged(Annotated[list[int], operator.add], Annotated[list[int], operator.mul])


def test_input_of_a_root() -> None:
    """The input goes to the start channel unchanged, mapping or not; a plain type is checked, a reducer accepts any
    value."""
    assert reader(int)(3) == [("__start__", 3)]
    assert reader(dict)({"a": 1}) == [("__start__", {"a": 1})]
    assert reader(Annotated[list, operator.add])("any") == [("__start__", "any")]
    for kind, given in ((int, "three"), (list[int], {"a": 1}), (int, Overwrite("three"))):
        with pytest.raises(InvalidInputError, match=f"the graph takes {kind.__name__}"):
            reader(kind)(given)


def through_the_start(kind: Any, given: Any) -> Any:
    """Return the value of a root after an input: via the start channel, then written to the key."""
    schema = read_schema(kind, "state schema")
    start: EphemeralValue[Any] = EphemeralValue()
    ((_, value),) = reader(kind)(given)
    start.update([value])
    root = schema.channels[ROOT]
    root.update([["before"]])
    for name, written in start_writes(schema)(start.get()):
        assert name == ROOT
        root.update([written])
    return root.get()


def test_an_overwrite_as_the_input_of_a_root() -> None:
    """An overwrite passes through the start channel, and replaces the value instead of being folded."""
    kind = Annotated[list, operator.add]
    assert through_the_start(kind, ["a"]) == ["before", "a"]
    assert through_the_start(kind, Overwrite(["a"])) == ["a"]
    assert through_the_start(kind, {"__overwrite__": ["a"]}) == ["a"]
    assert through_the_start(list, Overwrite(["a"])) == ["a"]


def test_what_the_start_writes_of_keys() -> None:
    """The start node writes each key of the mapping."""
    assert start_writes(read_schema(Plain, "state schema"))({"n": 1, "log": ["a"]}) == [("n", 1), ("log", ["a"])]


def test_what_a_node_of_a_root_gets() -> None:
    """A node gets the bare value; an empty root raises an error that names the channel."""
    assert shaped(int, {ROOT: 3}) == 3
    assert shaped(int, {ROOT: None}) is None
    with pytest.raises(EmptyChannelError, match=ROOT):
        shaped(int, {})


async def forgotten() -> int:
    return 1


def test_what_an_update_of_a_root_is() -> None:
    """A node's result is the update, even if it is a mapping; a forgotten awaitable is refused."""
    schema: Schema = read_schema(dict, "state schema")
    for value in ({"a": 1}, 3, [1], Overwrite({})):
        assert as_mapping(schema, value) == {ROOT: value}
    coroutine = forgotten()
    assert as_mapping(schema, coroutine) is None
    coroutine.close()
