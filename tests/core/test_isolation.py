"""Isolation (P1), case by case: a value handed to a node behaves like the plain data, and changing it affects no other
object."""

# ruff: noqa: RUF005, RUF015, RUF017, C416, C417, SIM202  # each way to do a thing is one of the things to try

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import operator
import pickle
import random
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from enum import Enum
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest
from hypothesis import given, settings

from pregel_async._core.isolation import Copies, isolate
from pregel_async._core.ownership import own, own_fold
from pregel_async.errors import InvalidUpdateError
from tests.core.mutations import (
    Frozen,
    FrozenRecord,
    Model,
    Names,
    OldPair,
    Pair,
    Point,
    Record,
    Slotted,
    Table,
    plain_values,
    shape,
)

Way = Callable[[Any], Any]


def _unpacked(given: Any) -> Any:
    one, *_ = given
    return one


def _many_unpacked(given: Any) -> Any:
    *_, one = given
    return one


def _starred(*args: Any) -> Any:
    return args[0]


def _matched_list(given: Any) -> Any:
    match given:
        case [one, *_]:
            return one
    raise AssertionError


def _rest_matched(given: Any) -> Any:
    match given:
        case [*rest]:
            return rest[0]
    raise AssertionError


def _assigned(given: Any) -> Any:
    mine: list[Any] = []
    mine[:] = given
    return mine[0]


def _extended(given: Any) -> Any:
    mine: list[Any] = []
    mine.extend(given)
    return mine[0]


def _added_in_place(given: Any) -> Any:
    mine: list[Any] = []
    mine += given
    return mine[0]


def _popped_while_iterating(given: Any) -> Any:
    for _ in given:
        return given.pop(0)
    raise AssertionError


def _sort_key(given: Any) -> Any:
    seen: list[Any] = []
    given.sort(key=lambda item: seen.append(item) or 0)
    return seen[0]


def _removed_key(given: Any) -> Any:
    seen: list[Any] = []
    sorted(given, key=lambda item: seen.append(item) or 0)
    return seen[0]


FROM_LIST: dict[str, Way] = {
    "x[0]": lambda x: x[0],
    "x[-1]": lambda x: x[-1],
    "x[:][0]": lambda x: x[:][0],
    "x[::-1][0]": lambda x: x[::-1][0],
    "x[0:1][0]": lambda x: x[0:1][0],
    "pop": lambda x: x.pop(),
    "pop(0)": lambda x: x.pop(0),
    "next(iter)": lambda x: next(iter(x)),
    "next(reversed)": lambda x: next(reversed(x)),
    "for": lambda x: [item for item in x][0],
    "enumerate": lambda x: next(enumerate(x))[1],
    "zip": lambda x: next(zip(x, x, strict=True))[0],
    "map": lambda x: next(map(lambda item: item, x)),
    "filter": lambda x: next(filter(None, x)),
    "list(x)": lambda x: list(x)[0],
    "tuple(x)": lambda x: tuple(x)[0],
    "deque(x)": lambda x: deque(x)[0],
    "[*x]": lambda x: [*x][0],
    "(*x,)": lambda x: (*x,)[0],
    "sorted": lambda x: sorted(x, key=repr)[0],
    "sorted key": _removed_key,
    "min": lambda x: min(x, key=repr),
    "max": lambda x: max(x, key=repr),
    "copy()": lambda x: x.copy()[0],
    "copy.copy": lambda x: copy.copy(x)[0],
    "copy.deepcopy": lambda x: copy.deepcopy(x)[0],
    "x + y": lambda x: (x + [1])[0],
    "y + x": lambda x: ([] + x)[0],
    "x * 2": lambda x: (x * 2)[0],
    "2 * x": lambda x: (2 * x)[0],
    "sum": lambda x: sum([x], [])[0],
    "a, *b": _unpacked,
    "*a, b": _many_unpacked,
    "f(*x)": lambda x: _starred(*x),
    "match": _matched_list,
    "match rest": _rest_matched,
    "y[:] = x": _assigned,
    "y.extend(x)": _extended,
    "y += x": _added_in_place,
    "sort key": _sort_key,
    "pop while iterating": _popped_while_iterating,
    "itemgetter": lambda x: operator.itemgetter(0)(x),
    "random.choice": lambda x: random.Random(1).choice(x),
    "pickle": lambda x: pickle.loads(pickle.dumps(x))[0],
    "x[0] after reverse": lambda x: (x.reverse(), x[0])[1],
    "x[0] after sort": lambda x: (x.sort(key=repr), x[0])[1],
    "x[0] after insert": lambda x: (x.insert(0, 1), x[1])[1],
    "x[0] after x *= 2": lambda x: (operator.imul(x, 2), x[0])[1],
    "x[2] after x.extend(x)": lambda x: (x.extend(x), x[len(x) // 2])[1],
    "x[1] after x[0] was put there": lambda x: (x.append(x[0]), x[-1])[1],
}


@pytest.mark.parametrize("way", FROM_LIST.values(), ids=FROM_LIST.keys())
def test_ways_out_of_a_list(way: Way) -> None:
    """P1: every way to take an element out of a list in Python code gives a copy, so changing it affects no other
    object."""
    owned = own([{"n": [1]}, {"n": [1]}])
    got = way(isolate(owned))
    assert got == {"n": [1]}
    got["n"].append("changed")
    got["new"] = 1
    assert owned == [{"n": [1]}, {"n": [1]}]


def _matched_dict(given: Any) -> Any:
    match given:
        case {"k": found}:
            return found
    raise AssertionError


def _rest_of_match(given: Any) -> Any:
    match given:
        case {"other": _, **rest}:
            return rest["k"]
    raise AssertionError


def _updated(given: Any) -> Any:
    mine: dict[str, Any] = {}
    mine.update(given)
    return mine["k"]


def _ored(given: Any) -> Any:
    mine: dict[str, Any] = {}
    mine |= given
    return mine["k"]


def _while_changing(given: Any) -> Any:
    for key in list(given):
        if key == "k":
            return given.pop(key)
    raise AssertionError


FROM_DICT: dict[str, Way] = {
    "d[k]": lambda d: d["k"],
    "get": lambda d: d.get("k"),
    "get default": lambda d: d.get("k", 1),
    "pop": lambda d: d.pop("k"),
    "pop default": lambda d: d.pop("k", 1),
    "popitem": lambda d: d.popitem()[1],
    "setdefault": lambda d: d.setdefault("k", 1),
    "items": lambda d: dict(d.items())["k"],
    "next(items)": lambda d: next(iter(d.items()))[1],
    "reversed(items)": lambda d: next(reversed(d.items()))[1],
    "values": lambda d: list(d.values())[0],
    "reversed(values)": lambda d: next(reversed(d.values())),
    "for": lambda d: [d[key] for key in d][0],
    "comprehension": lambda d: {key: item for key, item in d.items()}["k"],
    "dict(d)": lambda d: dict(d)["k"],
    "dict(d, x=1)": lambda d: dict(d, x=1)["k"],
    "{**d}": lambda d: {**d}["k"],
    "f(**d)": lambda d: (lambda **given: given)(**d)["k"],
    "f(k)": lambda d: (lambda k, other: k)(**d),
    "copy()": lambda d: d.copy()["k"],
    "copy.copy": lambda d: copy.copy(d)["k"],
    "copy.deepcopy": lambda d: copy.deepcopy(d)["k"],
    "d | e": lambda d: (d | {"x": 1})["k"],
    "e | d": lambda d: ({"x": 1} | d)["k"],
    "e |= d": _ored,
    "e.update(d)": _updated,
    "match": _matched_dict,
    "match rest": _rest_of_match,
    "pop while iterating": _while_changing,
    "itemgetter": lambda d: operator.itemgetter("k")(d),
    "OrderedDict": lambda d: OrderedDict(d)["k"],
    "defaultdict": lambda d: defaultdict(list, d)["k"],
    "ChainMap": lambda d: collections.ChainMap(d)["k"],
    "UserDict": lambda d: UserDict(d)["k"],
    "MappingProxyType": lambda d: MappingProxyType(d)["k"],
    "SimpleNamespace": lambda d: SimpleNamespace(**d).k,
    "pickle": lambda d: pickle.loads(pickle.dumps(d))["k"],
    "live view": lambda d: (view := d.values(), list(view)[0])[1],
    "Mapping.get": lambda d: Mapping.get(d, "k"),
}


@pytest.mark.parametrize("way", FROM_DICT.values(), ids=FROM_DICT.keys())
def test_ways_out_of_a_dict(way: Way) -> None:
    """P1: every way to take a value out of a dict in Python code gives a copy, so changing it affects no other
    object."""
    owned = own({"other": {"n": [1]}, "k": {"n": [1]}})
    got = way(isolate(owned))
    assert got == {"n": [1]}
    got["n"].append("changed")
    got["new"] = 1
    assert owned == {"other": {"n": [1]}, "k": {"n": [1]}}


WRAPPED: dict[str, tuple[Callable[[Any], Any], Way]] = {
    "tuple": (lambda inner: (inner,), lambda held: held[0]),
    "named tuple": (lambda inner: Pair(inner, 1), lambda held: held.left),
    "collections.namedtuple": (lambda inner: OldPair(inner, 1), lambda held: held.left),
    "deque": (lambda inner: deque([inner]), lambda held: held.popleft()),
    "list subclass": (lambda inner: Names([inner]), lambda held: held[0]),
    "dict subclass": (lambda inner: Table(k=inner), lambda held: held["k"]),
    "OrderedDict": (lambda inner: OrderedDict(k=inner), lambda held: held["k"]),
    "defaultdict": (lambda inner: defaultdict(list, k=inner), lambda held: held["k"]),
    "dataclass": (lambda inner: Point(inner), lambda held: held.x),
    "frozen dataclass": (lambda inner: Frozen(inner), lambda held: held.x),
    "slotted dataclass": (lambda inner: Slotted(inner), lambda held: held.x),
    "Struct": (lambda inner: Record(inner), lambda held: held.x),
    "frozen Struct": (lambda inner: FrozenRecord(inner), lambda held: held.x),
    "model": (lambda inner: Model(x=inner), lambda held: held.x),
    "list in tuple in dict": (lambda inner: {"t": ([inner],)}, lambda held: held["t"][0][0]),
    "dataclass in list in model": (lambda inner: Model(x=[Point(inner)]), lambda held: held.x[0].x),
}


@pytest.mark.parametrize(("wrap", "unwrap"), WRAPPED.values(), ids=WRAPPED.keys())
def test_ways_out_of_other_data(wrap: Callable[[Any], Any], unwrap: Way) -> None:
    """P1: built-in containers are isolated at any depth, inside every kind of data."""
    mine = wrap({"n": [1]})
    owned = own({"s": mine})
    unwrap(mine)["n"].append("the caller's own change")
    for reader in (isolate(owned), isolate(owned)):
        got = unwrap(copy.copy(reader)["s"])
        assert got == {"n": [1]}
        got["n"].append("changed")
        unwrap(copy.copy(isolate(owned)["s"]))["new"] = 1
    assert shape(owned) == shape({"s": wrap({"n": [1]})})


class Words(tuple[Any, ...]):
    """A user-defined subclass of tuple."""

    __slots__ = ()


def test_a_tuple_subclass_is_data() -> None:
    """`isolation`: list, dict, set, deque, tuple *and their subclasses* are isolated at any depth."""
    mine = Words(([1],))
    owned = own(mine)
    assert type(owned) is Words
    mine[0].append("changed")
    isolate(owned)[0].append("changed")
    assert owned == Words(([1],))


class Secretive(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    shown: list[int] = []
    _hidden: list[int] = pydantic.PrivateAttr(default_factory=list)


def test_a_models_extras_and_private_attributes_are_data() -> None:
    """`isolation`: pydantic models are isolated, including extra fields and private attributes."""
    mine = Secretive(shown=[1], more=[1])
    mine._hidden.append(1)
    owned = own(mine)
    for part in (mine.shown, mine.more, mine._hidden):
        part.append(2)
    got = isolate(owned)
    for part in (got.shown, got.more, got._hidden):
        part.append(2)
    assert (owned.shown, owned.more, owned._hidden) == ([1], [1], [1])
    assert owned.model_fields_set == {"shown", "more"}


@dataclasses.dataclass
class Rich:
    """A dataclass that uses all features of dataclasses."""

    shared: ClassVar[list[int]] = []
    given: list[int]
    made: list[int] = dataclasses.field(init=False)
    flag: dataclasses.InitVar[int] = 0

    def __post_init__(self, flag: int) -> None:
        self.made = [flag]


def test_a_dataclass_is_copied_without_running_its_code() -> None:
    """`isolation`: copying a dataclass calls neither `__init__` nor `__post_init__`."""
    mine = Rich([1], flag=7)
    mine.made.append(8)
    owned = own(mine)
    got = isolate(owned)
    got.given.append(2)
    got.made.append(9)
    assert (owned.given, owned.made) == ([1], [7, 8])


def test_subclasses_come_back_as_they_are() -> None:
    """`isolation`: an instance of a subclass keeps its class and behaviour."""
    counts = own(Counter("aab"))
    assert isolate(counts).most_common(1) == [("a", 2)]
    table = isolate(own(defaultdict(list, a=[1])))
    table["b"].append(1)
    assert table == {"a": [1], "b": [1]}
    assert isinstance(isolate(own(Names([1]))), Names)
    ordered = isolate(own(OrderedDict(a=1, b=2)))
    ordered.move_to_end("a")
    assert list(ordered) == ["b", "a"]
    assert isolate(own(deque([1, 2], maxlen=2))).maxlen == 2


class Colour(Enum):
    RED = 1


class Opaque:
    """A class that isolation does not know."""


def test_opaque_objects_are_shared() -> None:
    """P1: instances of unknown classes are shared and not copied, as documented."""
    thing = Opaque()
    owned = own({"o": thing, "e": Colour.RED, "f": len, "t": Opaque})
    got = isolate(owned)
    assert got["o"] is thing
    assert got["e"] is Colour.RED
    assert got["f"] is len
    assert got["t"] is Opaque


@settings(deadline=None)
@given(value=plain_values)
def test_an_isolated_value_equals_the_original(value: Any) -> None:
    """P1, `isolation`: `==`, `len`, `bool`, `repr` and `in` work on the whole value, from both sides."""
    got = isolate(own(value))
    assert got == value
    assert value == got
    assert not got != value
    assert repr(got) == repr(value)
    assert bool(got) == bool(value)
    if isinstance(value, (list, dict)):
        assert len(got) == len(value)
        assert all(item in got for item in value)
        assert isinstance(got, type(value))


class Encoded(msgspec.Struct):
    value: Any


json_values = plain_values.filter(
    lambda value: not any(map(lambda kind: kind in repr(value), ("b'", 'b"', "(1, 't')")))
)


def _keys_of_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _keys_of_text(item) for key, item in value.items()}
    return [_keys_of_text(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(value=json_values.map(_keys_of_text))
def test_an_isolated_value_is_encoded_like_the_original(value: Any) -> None:
    """json, msgspec and pydantic encode the whole value, even before any element was taken out."""
    owned = own(value)
    assert json.dumps(isolate(owned)) == json.dumps(value)
    assert json.dumps(isolate(owned), indent=1) == json.dumps(value, indent=1)
    assert msgspec.json.encode(isolate(owned)) == msgspec.json.encode(value)
    assert msgspec.msgpack.encode(isolate(owned)) == msgspec.msgpack.encode(value)
    assert msgspec.json.encode(Encoded(isolate(owned))) == msgspec.json.encode(Encoded(value))
    assert msgspec.to_builtins(isolate(owned)) == value
    assert pydantic.TypeAdapter(Any).dump_json(isolate(owned)) == pydantic.TypeAdapter(Any).dump_json(value)


@settings(deadline=None)
@given(value=plain_values)
def test_copies_of_an_isolated_value(value: Any) -> None:
    """`isolation`: copy, deepcopy and pickle give equal values; deepcopy and pickle give plain ones."""
    owned = own(value)
    assert copy.copy(isolate(owned)) == value
    deep = copy.deepcopy(isolate(owned))
    back = pickle.loads(pickle.dumps(isolate(owned)))
    assert shape(deep) == shape(back) == shape(value)
    assert type(deep) is type(back) is type(value)


def test_json_and_msgspec_encode_changes_in_place() -> None:
    """json and msgspec encode the changes that a node made in place."""
    got = isolate(own({"a": [{"b": 1}]}))
    got["a"][0]["b"] = 2
    got["a"].append(3)
    assert json.loads(json.dumps(got)) == {"a": [{"b": 2}, 3]}
    assert msgspec.json.decode(msgspec.json.encode(got)) == {"a": [{"b": 2}, 3]}


def test_an_isolated_value_is_a_real_container() -> None:
    """`isolation`: isolated values are real lists, dicts and sets for `isinstance` and the abstract classes."""
    assert isinstance(isolate([1]), list)
    assert isinstance(isolate([1]), (MutableSequence, Sequence))
    assert isinstance(isolate({"a": 1}), dict)
    assert isinstance(isolate({"a": 1}), (MutableMapping, Mapping))
    assert isinstance(isolate({1}), set)
    assert type(isolate((1,))) is tuple


def test_match_statements() -> None:
    """`match` matches isolated lists, dicts, tuples and classes."""
    got = isolate(own({"kind": "add", "args": [1, {"deep": Pair(2, [3])}]}))
    match got:
        case {"kind": "add", "args": [int(one), {"deep": Pair(two, [three])}], **rest}:
            assert (one, two, three, rest) == (1, 2, 3, {})
        case _:
            raise AssertionError


def test_operators_on_dicts() -> None:
    """`isolation`: `|`, `|=` and `{**d}` give the same result and order as on dicts, on either side."""
    got, other = isolate(own({"a": [1], "b": 2})), {"b": 3, "c": 4}
    assert list((got | other).items()) == [("a", [1]), ("b", 3), ("c", 4)]
    assert list((other | got).items()) == [("b", 2), ("c", 4), ("a", [1])]
    assert (got | isolate(own(other))) == {"a": [1], "b": 3, "c": 4}
    got |= other
    assert got == {"a": [1], "b": 3, "c": 4}
    with pytest.raises(TypeError):
        got | 1
    with pytest.raises(TypeError):
        1 | got
    assert OrderedDict(z=1) | isolate({"a": 1}) == {"z": 1, "a": 1}


def test_operators_on_lists() -> None:
    """`isolation`: `+`, `*`, `+=`, `*=`, comparison and slicing give the same result as on lists, on either side."""
    got = isolate(own([1, [2]]))
    assert got + [3] == [1, [2], 3]
    assert [0] + got == [0, 1, [2]]
    assert got + isolate([9]) == [1, [2], 9]
    assert got * 2 == 2 * got == [1, [2], 1, [2]]
    assert got[1:] == [[2]]
    assert got[::-1] == [[2], 1]
    assert got < [2]
    assert got.index([2]) == 1
    assert got.count([2]) == 1
    got += (5,)
    got *= 2
    got[0:2] = ["x"]
    assert got == ["x", 5, 1, [2], 5]
    del got[0:2]
    assert got == [1, [2], 5]
    for wrong in (lambda: got + (1,), lambda: (1,) + got, lambda: got + 1, lambda: got * "x"):
        with pytest.raises(TypeError):
            wrong()


def test_errors_are_those_of_lists_and_dicts() -> None:
    """`isolation`: a missing key or index, or an unhashable key, raises the same error as on lists and dicts."""
    for wrong, error in (
        (lambda: isolate([])[0], IndexError),
        (lambda: isolate([]).pop(), IndexError),
        (lambda: isolate([1]).remove(2), ValueError),
        (lambda: isolate([1])["a"], TypeError),
        (lambda: isolate({})["a"], KeyError),
        (lambda: isolate({}).pop("a"), KeyError),
        (lambda: isolate({}).popitem(), KeyError),
        (lambda: isolate({})[[]], TypeError),
        (lambda: isolate({}).get([]), TypeError),
        (lambda: isolate({}).setdefault([]), TypeError),
        (lambda: isolate([1, "a"]).sort(), TypeError),
        (lambda: hash(isolate([])), TypeError),
        (lambda: hash(isolate({})), TypeError),
    ):
        with pytest.raises(error):
            wrong()


def test_a_dict_that_changes_while_it_is_iterated() -> None:
    """`isolation`: iteration detects a changed size, as on a dict; taking elements out meanwhile is no change."""
    got = isolate(own({"a": [1], "b": [2]}))
    for key in got:
        got[key].append(0)
        assert got[key] is got[key]
    for key, item in got.items():
        item.append(key)
        got[key] = item
    assert got == {"a": [1, 0, "a"], "b": [2, 0, "b"]}
    with pytest.raises(RuntimeError, match="changed size"):
        for key in got:
            got[key + key] = 1


def test_a_list_that_grows_while_it_is_iterated() -> None:
    """`isolation`: iteration over a list reaches elements that are appended meanwhile, as on a list."""
    got = isolate(own([[2]]))
    met = []
    for item in got:
        met.append(item)
        if item[0]:
            got.append([item[0] - 1])
    assert met == [[2], [1], [0]]
    assert all(one is other for one, other in zip(met, got, strict=True))


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1], lambda it: it.append(2)),
    "dict": (lambda: {"n": 1}, lambda it: it.update(n=2)),
    "set": (lambda: {1}, lambda it: it.add(2)),
    "deque": (lambda: deque([1]), lambda it: it.append(2)),
    "bytearray": (lambda: bytearray(b"1"), lambda it: it.append(2)),
    "dict subclass": (lambda: Table(n=1), lambda it: it.update(n=2)),
    "list subclass": (lambda: Names([1]), lambda it: it.append(2)),
    "dataclass": (lambda: Point(1), lambda it: setattr(it, "x", 2)),
    "Struct": (lambda: Record(1), lambda it: setattr(it, "x", 2)),
    "model": (lambda: Model(x=1), lambda it: setattr(it, "x", 2)),
    "list in tuple": (lambda: ([1],), lambda it: it[0].append(2)),
    "list in named tuple": (lambda: Pair([1], 0), lambda it: it.left.append(2)),
    "list in frozen dataclass": (lambda: Frozen([1]), lambda it: it.x.append(2)),
    "list in frozen Struct": (lambda: FrozenRecord([1]), lambda it: it.x.append(2)),
}
each_kind = pytest.mark.parametrize(("make", "change"), KINDS.values(), ids=KINDS.keys())


@each_kind
def test_an_element_taken_twice_is_the_same_object(make: Callable[[], Any], change: Callable[[Any], Any]) -> None:
    """`isolation`: an element taken twice from one copy is the same object."""
    in_dict, in_list = isolate(own({"k": make()})), isolate(own([make()]))
    assert in_dict["k"] is in_dict["k"]
    assert in_list[0] is in_list[0]
    assert next(iter(in_list)) is in_list[0]
    assert next(iter(in_dict.values())) is in_dict["k"]


@each_kind
def test_a_change_through_an_earlier_reference_counts(make: Callable[[], Any], change: Callable[[Any], Any]) -> None:
    """P1: a node's result contains changes made through a reference that the node took earlier."""
    changed = make()
    change(changed)
    state = isolate(own({"k": make(), "items": [make()]}))
    first, item = state["k"], state["items"][0]
    assert state["k"] == first  # a look in between
    assert list(state.values())
    assert [*state["items"]] == [item]
    change(first)
    change(item)
    assert shape(own(state)) == shape({"k": changed, "items": [changed]})


@each_kind
def test_an_object_that_a_node_inserts_keeps_its_identity(
    make: Callable[[], Any], change: Callable[[Any], Any]
) -> None:
    """P1, `isolation`: an object that a node inserts stays that object, and changes with it."""
    changed = make()
    change(changed)
    state = isolate(own({"k": 0, "items": [0]}))
    for put in (
        lambda thing: state.__setitem__("new", thing),
        lambda thing: state.update(new=thing),
        lambda thing: state.update({"new": thing}),
        lambda thing: (state.pop("new", None), state.setdefault("new", thing)),
        lambda thing: operator.ior(state, {"new": thing}),
    ):
        thing = make()
        put(thing)
        assert state["new"] is thing
        assert state.get("new") is thing
        change(state["new"])
        assert shape(thing) == shape(changed)
    items = state["items"]
    for put in (
        items.append,
        lambda thing: items.insert(len(items), thing),
        lambda thing: items.extend([thing]),
        lambda thing: items.__setitem__(-1, thing),
        lambda thing: operator.iadd(items, [thing]),
        lambda thing: items.__setitem__(slice(len(items), None), [thing]),
    ):
        thing = make()
        put(thing)
        assert items[-1] is thing
        change(items[-1])
        assert shape(thing) == shape(changed)
    assert state.get("missing", thing) is thing
    assert state.pop("missing", thing) is thing


@pytest.mark.parametrize(
    "derive",
    [
        lambda items: items[-1:],
        lambda items: items.copy(),
        copy.copy,
        lambda items: items + [0],
        lambda items: [0] + items,
        lambda items: [*items],
        lambda items: list(reversed(items)),
    ],
    ids=["slice", "copy()", "copy.copy", "x + y", "y + x", "[*x]", "reversed"],
)
def test_an_element_belongs_to_slices_and_copies_too(derive: Callable[[Any], Any]) -> None:
    """P1: slices, shallow copies and sums hold the same elements: marking those of `items[-2:]` marks the list's
    own."""
    items = isolate(own([{"seen": False}]))
    for item in derive(items):
        if item:
            item["seen"] = True
    assert own(items) == [{"seen": True}]


@pytest.mark.parametrize(
    "derive",
    [lambda d: d.copy(), copy.copy, lambda d: d | {"x": 1}, lambda d: {"x": 1} | d, dict],
    ids=["copy()", "copy.copy", "d | e", "e | d", "dict"],
)
def test_a_value_belongs_to_merged_dicts_too(derive: Callable[[Any], Any]) -> None:
    """P1: shallow copies and merges of dicts hold the same values."""
    state = isolate(own({"k": {"seen": False}}))
    derive(state)["k"]["seen"] = True
    assert own(state) == {"k": {"seen": True}}


def test_one_object_in_two_places_of_a_node() -> None:
    """P1: an object that a node puts into two places is one object there, and two values after it was written."""
    state = isolate(own({"a": [1], "b": 0}))
    state["b"] = state["a"]
    state["b"].append(2)
    assert state["a"] == [1, 2]
    owned = own(state)
    assert owned == {"a": [1, 2], "b": [1, 2]}
    isolate(owned)["a"].append(3)
    assert owned["b"] == [1, 2]


@pytest.mark.parametrize("deep", [10, 200])
def test_isolation_at_any_depth(deep: int) -> None:
    """P1: values are isolated at any depth."""
    value: Any = "bottom"
    for _ in range(deep):
        value = [value]
    owned = own(value)
    got = isolate(owned)
    for _ in range(deep - 1):
        got = got[0]
    got[0] = "changed"
    assert owned == value


def test_a_value_that_contains_itself_is_refused() -> None:
    """A value that contains itself is refused; the error says why, and what to do."""
    for make in (list, dict, lambda: Point(), lambda: deque()):
        loop: Any = make()
        if isinstance(loop, dict):
            loop["self"] = loop
        elif isinstance(loop, Point):
            loop.x = loop
        else:
            loop.append([loop])
        with pytest.raises(InvalidUpdateError, match="contains itself"):
            own(loop)


def test_a_node_that_makes_a_cycle_of_its_input() -> None:
    """A cycle that a node builds from its input is refused."""
    got = isolate(own({"a": [1]}))
    got["a"].append(got["a"])
    with pytest.raises(InvalidUpdateError, match="contains itself"):
        own(got)


def test_owning_twice_copies_twice() -> None:
    """P1: `own` copies a plain container each time, as the writer may still hold it."""
    mine = [[1]]
    one, other = own(mine), own(mine)
    assert one is not other
    assert one[0] is not other[0] is not mine[0]


def test_elements_that_a_reducer_keeps_are_not_copied() -> None:
    """`isolation`: elements that a fold takes from its operands keep their identity and are not copied again."""
    current, update = own([{"a": 1}, {"b": 2}]), own([{"c": 3}])
    made = own_fold([*current, *update], Copies(), current, update)
    assert [made[0] is current[0], made[1] is current[1], made[2] is update[0]] == [True, True, True]


def test_objects_that_a_reducer_adds_are_copied() -> None:
    """P1: an object in the fold's result that comes from neither operand may belong to the reducer, and is copied."""
    kept: list[Any] = [{"kept": 1}]
    made = own_fold([{"old": 1}, kept[0]], Copies(), own([{"old": 1}]), [])
    kept[0]["kept"] = 2
    assert made == [{"old": 1}, {"kept": 1}]
    table = own_fold({"k": kept[0]}, Copies(), {}, {})
    kept[0]["kept"] = 3
    assert table == {"k": {"kept": 2}}
