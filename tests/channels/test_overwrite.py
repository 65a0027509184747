"""`Overwrite`: which values replace a fold, and which are data."""

from __future__ import annotations

import operator as _operator
from collections import OrderedDict
from typing import Any

import msgspec
import pytest

from pregel_async._core.ownership import own
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
    """Return a channel of a type that folds by adding."""
    return FOLDING[request.param]


@pytest.fixture(params=SPELLINGS)
def spelled(request: pytest.FixtureRequest) -> Any:
    """Return an overwrite in the given spelling."""
    return SPELLINGS[request.param]


def test_bypasses_the_reducer(folding: Any, spelled: Any) -> None:
    """The overwriting value wins at any position, and the superstep's other writes are dropped; the next superstep
    folds into it."""
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
    """An overwrite may be the first write of a type with or without an empty value; the wrapper is never stored."""
    for typ in (int, int | None, Any):
        channel = folding(typ)
        channel.update([spelled(5)])
        assert channel.checkpoint() == 5
        channel = folding(typ)
        channel.update([1, spelled(5), 2])
        assert channel.checkpoint() == 5


@pytest.mark.parametrize("nothing", [None, 0, [], {}], ids=repr)
def test_with_a_value_that_is_false(folding: Any, spelled: Any, nothing: Any) -> None:
    """An overwrite with a falsy value resets the key."""
    channel = folding(list)
    channel.update([[1]])
    assert channel.update([spelled(nothing)]) is True
    assert channel.get() == channel.checkpoint() == nothing


def test_two_are_refused(folding: Any, spelled: Any) -> None:
    """Two overwrites in one superstep, in any spelling, raise an error with key and code; the channel is unchanged."""
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
    """A dict with any other content is folded as an ordinary dict."""
    channel = BinaryOperatorAggregate(dict[str, Any], operator.or_)
    channel.update([{"before": 0}])
    channel.update([data])
    assert channel.get() == {"before": 0, **data}


class Array:
    """A value that compares element by element and has no truth value, as arrays do."""

    __hash__ = None

    def __eq__(self, other: object) -> Any:
        return Array()

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_a_dict_of_arrays_is_data() -> None:
    """Only string values of a dict are compared."""
    channel = BinaryOperatorAggregate(dict[str, Any], operator.or_)
    array = Array()
    channel.update([{"value": 1, "type": array}])
    assert channel.get()["type"] is array


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.__name__)
def test_a_key_without_a_reducer_stores_its_value(kind: Any) -> None:
    """A key without a reducer stores the overwrite's value, falsy ones too, never the wrapper."""
    channel = kind()
    for value in ([1], None, 0):
        assert channel.update([Overwrite(value)]) is True
        assert channel.get() == value


def test_a_deferred_trigger_stores_its_value() -> None:
    """A `LastValueAfterFinish` stores the overwrite's value."""
    channel = LastValueAfterFinish[Any]()
    channel.update([Overwrite([1])])
    assert channel.checkpoint() == ([1], False)


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("spelling", ["short", "long"])
def test_dicts_are_data_to_a_key_without_a_reducer(kind: Any, spelling: str) -> None:
    """A dict in the spelling of an overwrite is data for a key without a reducer."""
    channel = kind()
    data = SPELLINGS[spelling]([1])
    channel.update([data])
    assert channel.get() is data


@pytest.mark.parametrize("kind", [EphemeralValue, LastValue, UntrackedValue], ids=lambda kind: kind.__name__)
def test_with_another_write_to_a_key_without_a_reducer(kind: Any) -> None:
    """For a key without a reducer, an overwrite together with another write is refused, as the winner would be
    undefined."""
    channel = kind()
    channel.key = "answer"
    for writes in ([Overwrite(1), 2], [2, Overwrite(1)], [Overwrite(1), Overwrite(1)]):
        with pytest.raises(InvalidUpdateError, match="'answer' was written 2 times"):
            channel.update(writes)
    assert not channel.is_available()


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_topic_starts_anew(accumulate: bool) -> None:
    """An overwrite replaces a topic's values and the superstep's other writes; dicts are elements."""
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
    """Later writes to a topic do not change the list in the overwrite."""
    channel: Channel = Topic(Any, accumulate=True)
    given = ["a"]
    channel.update([Overwrite(given)])
    channel.update(["b"])
    assert given == ["a"]


def test_a_barrier_refuses_it() -> None:
    """A barrier refuses an overwrite, as it is not one of its names."""
    channel = NamedBarrierValue(str, ["a", "b"])
    for value in ("a", ["a"]):
        with pytest.raises(InvalidUpdateError, match="was written Overwrite"):
            channel.update([Overwrite(value)])


def test_what_it_holds_is_owned_like_any_write() -> None:
    """P1: the overwrite's value is copied, so it shares no object with the writer."""
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
    """An overwrite encoded by msgspec is one of its spellings, and can be decoded."""
    text = msgspec.json.encode(Overwrite([1]))
    assert msgspec.json.decode(text) == {"type": "__overwrite__", "value": [1]}
    assert msgspec.json.decode(text, type=Overwrite) == Overwrite([1])
    channel = BinaryOperatorAggregate(list[int], operator.add)
    channel.update([[1]])
    channel.update([msgspec.json.decode(text)])
    assert channel.get() == [1]


def test_is_a_value() -> None:
    """An overwrite is immutable, has a readable repr, and compares by value."""
    one = Overwrite([1])
    assert one == Overwrite([1]) != Overwrite([2])
    assert repr(one) == "Overwrite(value=[1])"
    with pytest.raises(AttributeError):
        one.value = [2]
