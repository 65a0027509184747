"""`context_reader`: it converts a call's context to an object of the graph's context schema, or raises an error that
gives the reason."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Generic, NotRequired, Optional, Required, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from pregel_async._checks.context_schema import context_reader
from pregel_async.errors import ConfigError, GraphValidationError, InvalidContextError

T = TypeVar("T")


class DictContext(TypedDict):
    user: str
    limit: NotRequired[int]


@dataclasses.dataclass
class DataContext:
    user: str
    limit: int = 10


class StructContext(msgspec.Struct):
    user: str
    limit: int = 10


class ModelContext(pydantic.BaseModel):
    user: str
    limit: int = 10


KINDS: list[Any] = [DictContext, DataContext, StructContext, ModelContext]
CLASSES: list[Any] = KINDS[1:]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_dict_becomes_the_classes_object(kind: Any) -> None:
    """Any mapping becomes an object of the class, with its defaults."""
    read = context_reader(kind)
    assert read({"user": "u"}) == kind(user="u", limit=10)
    assert read(types.MappingProxyType({"user": "u", "limit": 3})) == kind(user="u", limit=3)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_instance_is_passed_as_it_is(kind: Any) -> None:
    """An instance is passed on unchanged, with its connections and the like."""
    given = kind(user="u")
    assert context_reader(kind)(given) is given


@pytest.mark.parametrize("kind", [int, *KINDS])
def test_none_needs_a_default(kind: Any) -> None:
    """A call without context is refused if a field of the schema has no default."""
    with pytest.raises(InvalidContextError, match="no context was given"):
        context_reader(kind)(None)
    assert context_reader(None)(None) is None


def test_without_a_schema_anything_goes() -> None:
    """Without a schema any context is passed on unchanged."""
    given = object()
    assert context_reader(None)(given) is given


def test_a_typed_dict_stays_a_dict() -> None:
    """A TypedDict context equals the mapping that was passed."""
    assert context_reader(DictContext)({"user": "u"}) == {"user": "u"}
    assert type(context_reader(DictContext)(types.MappingProxyType({"user": "u"}))) is dict


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_is_refused(kind: Any) -> None:
    """A missing field raises a ConfigError that names it; nothing was run."""
    with pytest.raises(InvalidContextError, match="user") as caught:
        context_reader(kind)({"limit": 1})
    assert isinstance(caught.value, (ConfigError, TypeError))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_what_is_unknown_is_refused(kind: Any) -> None:
    """An unknown field raises an error that names it and the known ones. (A pydantic model's own settings decide for
    it.)"""
    with pytest.raises(
        InvalidContextError, match=f"'colour', which {kind.__name__} does not know.*user, limit"
    ) as caught:
        context_reader(kind)({"user": "u", "colour": "red"})
    assert caught.value.path == "colour"


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_refused(kind: Any) -> None:
    """A value of the wrong type is refused, and so is a context that is neither a mapping nor an instance."""
    with pytest.raises(InvalidContextError, match="limit"):
        context_reader(kind)({"user": "u", "limit": "many"})
    for given in (3, "u", ["user"], object()):
        with pytest.raises(InvalidContextError, match=f"the context is of type .*{kind.__name__}"):
            context_reader(kind)(given)


class Postponed(TypedDict, total=False):
    """This module's annotations are strings, from which the class itself cannot read Required."""

    user: Required[str]
    limit: Annotated[Required[int], "of calls"]
    rest: int


class Inherited(Postponed):
    more: str
    perhaps: NotRequired[str]


def test_required_keys_of_a_typed_dict() -> None:
    """`Required`, `NotRequired` and `total=False` are honoured, also in postponed annotations and inherited."""
    read = context_reader(Inherited)
    assert read({"user": "u", "limit": 1, "more": "m"})
    for key in ("user", "limit", "more"):
        given = {"user": "u", "limit": 1, "more": "m"}
        del given[key]
        with pytest.raises(InvalidContextError, match=f"lacks '{key}'"):
            read(given)


@dataclasses.dataclass
class Inner:
    n: int


class InnerDict(TypedDict):
    n: int


@dataclasses.dataclass
class Outer:
    inner: Inner
    perhaps: Inner | None = None
    optional: Optional[InnerDict] = None  # noqa: UP045  # users of older code write it
    either: Inner | dict[str, Any] | None = None
    several: Inner | DataContext | None = None


def test_nested_classes() -> None:
    """If only one class is possible, a mapping becomes its object at any depth; errors name the path."""
    read = context_reader(Outer)
    made = read({"inner": {"n": 1}, "perhaps": {"n": 2}, "optional": {"n": 3}, "either": {"n": 4}})
    assert made == Outer(Inner(1), Inner(2), {"n": 3}, {"n": 4})
    assert read({"inner": Inner(1), "perhaps": None}) == Outer(Inner(1))
    with pytest.raises(InvalidContextError, match=r"at 'inner\.n', is of type str") as caught:
        read({"inner": {"n": "one"}})
    assert caught.value.path == "inner.n"
    with pytest.raises(InvalidContextError, match=r"lacks 'perhaps\.n'"):
        read({"inner": Inner(1), "perhaps": {}})
    with pytest.raises(InvalidContextError, match=r"'optional\.m'"):
        read({"inner": Inner(1), "optional": {"n": 1, "m": 1}})


@dataclasses.dataclass
class Strict:
    n: int
    made: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.n < 0:
            raise LookupError("below zero")


def test_a_class_that_refuses() -> None:
    """An exception raised by the class is the cause of the error."""
    with pytest.raises(InvalidContextError, match="cannot be converted to Strict: below zero") as caught:
        context_reader(Strict)({"n": -1})
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(InvalidContextError, match="'made'"):
        context_reader(Strict)({"n": 1, "made": 1})


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


def test_a_generic_class_with_its_arguments() -> None:
    """Values are checked against the arguments of a generic class."""
    assert context_reader(Box[int])({"item": 1}) == Box(1)
    given = Box(1)
    assert context_reader(Box[int])(given) is given
    with pytest.raises(InvalidContextError, match="'item'"):
        context_reader(Box[int])({"item": "one"})


class Client:
    pass


def test_other_types() -> None:
    """A class without fields accepts its instances; a plain type accepts values that fit it."""
    client = Client()
    assert context_reader(Client)(client) is client
    assert context_reader(dict[str, int])({"a": 1}) == {"a": 1}
    assert context_reader(Annotated[Inner, "words"])({"n": 1}) == Inner(1)
    for kind, given in ((Client, {}), (int, "one"), (dict[str, int], 1)):
        with pytest.raises(InvalidContextError, match="the context is of type"):
            context_reader(kind)(given)


@dataclasses.dataclass
class Lost:
    n: Unheard  # noqa: F821  # no such name, on purpose


@pytest.mark.parametrize("schema", ["Context", 3, {"user": str}, Lost, Client()])
def test_a_schema_that_is_none(schema: Any) -> None:
    """An invalid context schema is refused when the graph is built, and not at the first call."""
    with pytest.raises(GraphValidationError, match="context schema|cannot be resolved"):
        context_reader(schema)
