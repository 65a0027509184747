"""Channels with a reducer: the first value, the fold, and the state after an error."""

from __future__ import annotations

import collections.abc
import operator as _operator
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Generic, NewType, NotRequired, Required, TypedDict, TypeVar

import pytest
from typing_extensions import TypeAliasType

from pregel_async.channels import MISSING, BaseChannel, BinaryOperatorAggregate, LastValue
from pregel_async.errors import EmptyChannelError

operator: Any = _operator  # typeshed leaves its parameters without types

T = TypeVar("T")
Names = TypeAliasType("Names", list[str])
Again = TypeAliasType("Again", Names)
Pairs = TypeAliasType("Pairs", dict[str, T], type_params=(T,))


@dataclass
class Tally:
    votes: list[str] = field(default_factory=list[str])


class Bag(list[T], Generic[T]):
    pass


class Delta(TypedDict):
    name: str


class Abstract(collections.abc.Sequence[int]):
    pass


class Failing:
    def __init__(self) -> None:
        raise RuntimeError("not without a database")


def noted(current: Any, update: Any, mark: str = "") -> str:
    return f"({current}{mark}{update})"


EMPTY: list[tuple[object, object]] = [
    (list, []),
    (list[int], []),
    (typing.List[int], []),  # noqa: UP006  # users of older code write it
    (typing.Sequence, []),
    (collections.abc.Sequence[int], []),
    (collections.abc.MutableSequence[int], []),
    (set[str], set[str]()),
    (collections.abc.Set[str], set[str]()),
    (collections.abc.MutableSet[str], set[str]()),
    (typing.AbstractSet[str], set[str]()),
    (dict[str, int], {}),
    (collections.abc.Mapping[str, int], {}),
    (collections.abc.MutableMapping[str, int], {}),
    (frozenset[int], frozenset[int]()),
    (tuple[int, ...], ()),
    (int, 0),
    (float, 0.0),
    (bool, False),
    (str, ""),
    (Annotated[list[int], "of primes"], []),
    (Required[Annotated[list[int], "of primes"]], []),
    (NotRequired[dict[str, int]], {}),
    (Tally, Tally()),
    (Bag[int], Bag[int]()),
    (Delta, {}),
]


@pytest.mark.parametrize(("typ", "start"), EMPTY)
def test_starts_with_an_empty_value(typ: object, start: object) -> None:
    """A type that can be created without arguments is readable before the first write; nothing is stored yet."""
    channel = BinaryOperatorAggregate(typ, operator.add)
    for empty in (channel, channel.fresh(), channel.copy(), channel.from_checkpoint(MISSING)):
        assert empty.is_available()
        assert empty.get() == start
        assert type(empty.get()) is type(start)
        assert empty.checkpoint() is MISSING


@pytest.mark.parametrize(
    "typ",
    [
        int | None,
        typing.Optional[list[int]],  # noqa: UP045  # users of older code write it
        Any,
        object,
        None,
        datetime,
        Abstract,
        Failing,
        typing.Literal["a"],
        collections.abc.Iterable[int],
        collections.abc.Callable[[], int],
        NewType("Ids", list[int]),
        T,
        "list",
    ],
)
def test_the_first_write_becomes_the_value_where_a_type_has_no_empty_one(typ: object) -> None:
    """If the type has no empty value, the first write becomes the value without a call of the reducer."""
    channel = BinaryOperatorAggregate(typ, noted)
    assert not channel.is_available()
    with pytest.raises(EmptyChannelError):
        channel.get()
    channel.update(["a"])
    assert channel.get() == "a"
    channel.update(["b", "c"])
    assert channel.get() == "((ab)c)"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_an_alias_is_what_it_stands_for() -> None:
    """`type Names = list[str]` starts with an empty list; an alias that cannot be resolved has no empty value."""
    scope: dict[str, Any] = {}
    exec("type Names = list[str]\ntype Pairs[T] = dict[str, T]\ntype Lost = Unheard", scope)  # 3.11 cannot parse it
    assert BinaryOperatorAggregate(scope["Names"], operator.add).get() == []
    assert BinaryOperatorAggregate(scope["Pairs"][int], operator.or_).get() == {}
    assert not BinaryOperatorAggregate(scope["Lost"], operator.add).is_available()


def test_an_alias_before_the_type_statement_too() -> None:
    """An alias made by typing_extensions for Python 3.11 is resolved, nested and with parameters too."""
    assert BinaryOperatorAggregate(Names, operator.add).get() == []
    assert BinaryOperatorAggregate(Again, operator.add).get() == []
    assert BinaryOperatorAggregate(Pairs[int], operator.or_).get() == {}


def test_folds_from_the_left() -> None:
    """Writes are folded from the left, within a superstep and across supersteps; a superstep without a write changes
    nothing."""
    channel = BinaryOperatorAggregate(str, noted)
    assert channel.update(["a", "b"])
    assert not channel.update([])
    assert channel.update(["c"])
    assert channel.get() == "(((a)b)c)"


def test_a_write_of_an_empty_value_is_held() -> None:
    """A written value is stored, even if it equals the empty value."""
    channel = BinaryOperatorAggregate(list[int], operator.add)
    assert channel.update([[]])
    assert channel.checkpoint() == []


def test_the_empty_value_is_not_shared() -> None:
    """P1: changing the empty value that was read changes no other."""
    channel = BinaryOperatorAggregate(list[int], operator.add)
    channel.get().append(1)
    assert channel.get() == []
    assert channel.fresh().get() == []


def test_a_reducer_that_raises_leaves_the_value() -> None:
    """A reducer's own exception is raised, and the value stays as it was, in the middle of a fold too."""
    channel = BinaryOperatorAggregate(list[int], operator.add)
    channel.update([[1]])
    value = channel.get()
    with pytest.raises(TypeError):
        channel.update([[2], [3], None, [4]])
    assert channel.get() is value
    assert value == [1]


def test_extending_in_place_does_not_reach_what_was_read() -> None:
    """P1: an in-place reducer such as `operator.iadd` gets a copy; the writes stay as they were, too."""
    channel = BinaryOperatorAggregate(list[int], operator.iadd)
    channel.update([first := [1]])
    read = channel.get()
    with pytest.raises(TypeError):
        channel.update([[2], None])
    channel.update([[2], (3,)])
    assert channel.get() == [1, 2, 3]
    assert read == first == [1]


class TestSameDeclaration:
    """Whether one key may be declared in two ways."""

    def test_of_reducers(self) -> None:
        """Reducers agree if they are the same function, equal methods or equal partials; two lambdas never do."""

        def same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
            return BinaryOperatorAggregate(list, one).same_declaration(BinaryOperatorAggregate(list, other))

        def made() -> Callable[[Any, Any], Any]:
            return lambda a, b: a + b

        first, second = made(), made()
        assert same(first, first)
        assert not same(first, second)
        assert same(operator.add, operator.add)
        assert not same(operator.add, operator.or_)
        bag = Bag[int]()
        assert same(bag.__add__, bag.__add__)
        assert same(partial(noted, 1, mark="2"), partial(noted, 1, mark="2"))
        assert not same(partial(noted, 1), partial(noted, 2))
        assert not same(partial(noted, mark="1"), partial(noted, mark="2"))
        assert not same(partial(noted), partial(first))
        assert not same(partial(noted), noted)

    def test_of_types(self) -> None:
        """Two spellings of a type agree if they have the same empty value."""

        def same(one: object, other: object) -> bool:
            return BinaryOperatorAggregate(one, noted).same_declaration(BinaryOperatorAggregate(other, noted))

        assert same(list, list[str])
        assert same(list[str], collections.abc.Sequence[str])
        assert same(int | None, str | None)
        assert not same(list, set)
        assert not same(list, list | None)

    def test_of_kinds(self) -> None:
        """A reducer and a plain value never agree."""
        plain: BaseChannel[Any, Any, Any] = LastValue(list)
        assert not plain.same_declaration(BinaryOperatorAggregate(list, noted))
        assert not BinaryOperatorAggregate(list, noted).same_declaration(plain)
