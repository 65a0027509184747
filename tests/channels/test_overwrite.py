"""`Overwrite`: what takes the place of a fold, and what is merely data."""

from __future__ import annotations

import operator as _operator
from collections import OrderedDict
from typing import Any

import msgspec
import pytest

from pregel_async._core.isolation import own
from pregel_async.channels import (
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from pregel_async.errors import ErrorCode, InvalidUpdateError
from pregel_async.types import Overwrite

operator: Any = _operator  # typeshed leaves its parameters without types

Channel = BaseChannel[Any, Any, Any]


def joined(current: Any, updates: list[Any]) -> Any:
    for update in updates:
        current = current + update
    return current


FOLDING: dict[str, Any] = {
    "BinaryOperatorAggregate": lambda typ: BinaryOperatorAggregate(typ, operator.add),
    "DeltaChannel": lambda typ: DeltaChannel(joined, typ),
}
SINGLE: list[Any] = [AnyValue, EphemeralValue, LastValue, UntrackedValue]

SPELLINGS: dict[str, Any] = {
    "Overwrite": Overwrite,
    "short": lambda value: {"__overwrite__": value},
    "long": lambda value: {"value": value, "type": "__overwrite__"},
    "ordered": lambda value: OrderedDict(type="__overwrite__", value=value),
}


@pytest.fixture(params=FOLDING)
def folding(request: pytest.FixtureRequest) -> Any:
    """Makes a channel of a type that folds by adding."""
    return FOLDING[request.param]


@pytest.fixture(params=SPELLINGS)
def spelled(request: pytest.FixtureRequest) -> Any:
    """Makes an overwrite."""
    return SPELLINGS[request.param]


def test_bypasses_the_reducer(folding: Any, spelled: Any) -> None:
    """The overwritten value wins wherever it stands, and the other writes of the superstep are dropped; the next
    superstep folds into it."""
    for place in range(3):
        channel = folding(list)
        channel.update([[1]])
        writes: list[Any] = [[2], [3]]
        writes.insert(place, spelled([9]))
        assert channel.update(writes) is True
        assert channel.get() == channel.checkpoint() == [9]
        channel.update([[4]])
        assert channel.get() == [9, 4]


def test_as_the_first_write(folding: Any, spelled: Any) -> None:
    """To a type with an empty value and to one without; the wrapper is never what is held."""
    for typ in (int, int | None, Any):
        channel = folding(typ)
        channel.update([spelled(5)])
        assert channel.checkpoint() == 5
        channel = folding(typ)
        channel.update([1, spelled(5), 2])
        assert channel.checkpoint() == 5


@pytest.mark.parametrize("nothing", [None, 0, [], {}], ids=repr)
def test_with_a_value_that_is_false(folding: Any, spelled: Any, nothing: Any) -> None:
    """A reset is the ordinary use of it."""
    channel = folding(list)
    channel.update([[1]])
    assert channel.update([spelled(nothing)]) is True
    assert channel.get() == channel.checkpoint() == nothing


def test_two_are_refused(folding: Any, spelled: Any) -> None:
    """By name, with the code; in equal and in different spellings; the channel is as it was."""
    channel = folding(list)
    channel.key = "log"
    channel.update([[1]])
    for other in SPELLINGS.values():
        with pytest.raises(InvalidUpdateError, match="'log' was overwritten twice") as caught:
            channel.update([spelled([2]), [3], other([2])])
        assert caught.value.channel == "log"
        assert caught.value.code is ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE
        assert channel.get() == [1]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"__overwrite__": 1, "more": 2},
        {"value": 1},
        {"type": "__overwrite__"},
        {"value": 1, "type": "other"},
        {"value": 1, "type": None},
        {"value": 1, "type": "__overwrite__", "more": 2},
        {"other": 1, "type": "__overwrite__"},
        {"a": {"__overwrite__": 1}},
    ],
    ids=repr,
)
def test_dicts_that_only_look_like_one(data: dict[str, Any]) -> None:
    """A dict that says anything else is folded as any other."""
    channel = BinaryOperatorAggregate(dict[str, Any], operator.or_)
    channel.update([{"before": 0}])
    channel.update([data])
    assert channel.get() == {"before": 0, **data}


class Array:
    """What compares element by element, and has no truth of its own, as arrays do."""

    __hash__ = None

    def __eq__(self, other: object) -> Any:
        return Array()

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_a_dict_of_arrays_is_data() -> None:
    """Nothing is asked of a value that is no string."""
    channel = BinaryOperatorAggregate(dict[str, Any], operator.or_)
    array = Array()
    channel.update([{"value": 1, "type": array}])
    assert channel.get()["type"] is array


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.__name__)
def test_a_key_without_a_reducer_takes_what_is_in_it(kind: Any) -> None:
    """The wrapper is never stored, and a falsy value is one."""
    channel = kind()
    for value in ([1], None, 0):
        assert channel.update([Overwrite(value)]) is True
        assert channel.get() == value


def test_a_deferred_trigger_takes_what_is_in_it() -> None:
    """The same of `LastValueAfterFinish`."""
    channel = LastValueAfterFinish[Any]()
    channel.update([Overwrite([1])])
    assert channel.checkpoint() == ([1], False)


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("spelling", ["short", "long"])
def test_dicts_are_data_to_a_key_without_a_reducer(kind: Any, spelling: str) -> None:
    """They count only where a fold could be bypassed."""
    channel = kind()
    data = SPELLINGS[spelling]([1])
    channel.update([data])
    assert channel.get() is data


@pytest.mark.parametrize("kind", [EphemeralValue, LastValue, UntrackedValue], ids=lambda kind: kind.__name__)
def test_beside_another_write_to_a_key_without_a_reducer(kind: Any) -> None:
    """It is a write like any other: which of two stays would be left to chance."""
    channel = kind()
    channel.key = "answer"
    for writes in ([Overwrite(1), 2], [2, Overwrite(1)], [Overwrite(1), Overwrite(1)]):
        with pytest.raises(InvalidUpdateError, match="'answer' was written 2 times"):
            channel.update(writes)
    assert not channel.is_available()


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_topic_starts_anew(accumulate: bool) -> None:
    """It takes the place of what was gathered and of what the superstep brings; dicts are elements."""
    channel: Channel = Topic(Any, accumulate=accumulate)
    channel.update(["a", "b"])
    channel.update(["c", Overwrite(["d", ["e"]]), "f"])
    assert channel.get() == ["d", ["e"]]
    channel.update([Overwrite("g")])
    assert channel.get() == ["g"]
    channel.update([Overwrite([])])
    assert not channel.is_available()
    channel.update([{"__overwrite__": ["h"]}])
    assert channel.get() == [{"__overwrite__": ["h"]}]
    with pytest.raises(InvalidUpdateError, match="overwritten twice"):
        channel.update([Overwrite([]), Overwrite([])])


def test_a_topic_does_not_keep_the_list_that_it_was_given() -> None:
    """Or changes it, at least: it stays as it is, whatever is written afterwards."""
    channel: Channel = Topic(Any, accumulate=True)
    given = ["a"]
    channel.update([Overwrite(given)])
    channel.update(["b"])
    assert given == ["a"]


def test_a_barrier_refuses_it() -> None:
    """It is none of the names."""
    channel = NamedBarrierValue(str, ["a", "b"])
    for value in ("a", ["a"]):
        with pytest.raises(InvalidUpdateError, match="was written Overwrite"):
            channel.update([Overwrite(value)])


def test_what_it_holds_is_owned_like_any_write() -> None:
    """P1: neither the wrapper's value nor what is inside it is the writer's own object any more."""
    inner = {"n": 1}
    given = Overwrite([inner])
    taken = own(given)
    inner["n"] = 2
    given.value.append("more")
    assert taken == Overwrite([{"n": 1}])
    for spelling in ("short", "long", "ordered"):
        inner = {"n": 1}
        taken = own(SPELLINGS[spelling]([inner]))
        inner["n"] = 2
        assert taken == SPELLINGS[spelling]([{"n": 1}])


def test_as_json() -> None:
    """What msgspec makes of one is a spelling of it, and can be read back."""
    text = msgspec.json.encode(Overwrite([1]))
    assert msgspec.json.decode(text) == {"type": "__overwrite__", "value": [1]}
    assert msgspec.json.decode(text, type=Overwrite) == Overwrite([1])
    channel = BinaryOperatorAggregate(list[int], operator.add)
    channel.update([[1]])
    channel.update([msgspec.json.decode(text)])
    assert channel.get() == [1]


def test_is_a_value() -> None:
    """It cannot be changed, prints what it is, and equals its equal."""
    one = Overwrite([1])
    assert one == Overwrite([1]) != Overwrite([2])
    assert repr(one) == "Overwrite(value=[1])"
    with pytest.raises(AttributeError):
        one.value = [2]
