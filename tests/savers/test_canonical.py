"""The canonical form: two values have the same bytes exactly when they are equal in value and type, however they
were built."""

from __future__ import annotations

import math
import random
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_savers import Codec, UnstorableValueError
from checkpoint_savers.codec.writing import MAX_DEPTH
from pregel_async._core.isolation import isolate
from tests.savers.sqlite_tools import ENV
from tests.savers.test_codec import CODEC, Child, Color, Level, Model, Opaque, Perm, Plain, Point, Stack, Table, values


def canonical(value: object, codec: Codec = CODEC) -> bytes:
    return codec.canonical(value, channel="c")


def shuffled(value: Any, by: random.Random) -> Any:
    """Return an equal value whose dicts, sets and attributes were filled in another order."""
    if type(value) in (dict, Counter):
        items = [(shuffled(key, by), shuffled(item, by)) for key, item in value.items()]
        by.shuffle(items)
        made = type(value)()
        dict.update(made, items)
        return made
    if type(value) in (set, frozenset):
        items = [shuffled(item, by) for item in value]
        by.shuffle(items)
        return type(value)(items)
    if type(value) in (list, tuple):
        return type(value)(shuffled(item, by) for item in value)
    if type(value) is OrderedDict:
        return OrderedDict((key, shuffled(item, by)) for key, item in value.items())
    if type(value) is deque:
        return deque((shuffled(item, by) for item in value), value.maxlen)
    if type(value) is Plain:
        items = [(name, shuffled(item, by)) for name, item in vars(value).items()]
        by.shuffle(items)
        made = object.__new__(Plain)
        vars(made).update(items)
        return made
    return value


@settings(max_examples=300, deadline=None)
@given(values, st.randoms(use_true_random=False))
def test_the_order_of_construction_does_not_count(value: object, by: random.Random) -> None:
    """Dicts, sets and objects filled in another order have the same bytes, at any depth, and keep them when stored."""
    assert canonical(shuffled(value, by)) == canonical(value)
    assert canonical(CODEC.decode(CODEC.encode(value, channel="c"), channel="c")) == canonical(value)


def hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


small = st.recursive(
    st.sampled_from([None, False, True, 0, 1, 2, 2**64, -(2**70), 0.0, -0.0, 1.0, math.nan, -math.nan])
    | st.sampled_from(["", "a", "b", "\ud800", b"", b"a", Decimal("1"), Decimal("1.0"), 1j, complex(math.nan, 1)]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.lists(inner.filter(hashable), max_size=3).map(set),
        st.lists(inner.filter(hashable), max_size=3).map(frozenset),
        st.dictionaries(st.sampled_from(["a", "b", "ab", "\ud800"]), inner, max_size=3),
        st.dictionaries(inner.filter(hashable), inner, max_size=2),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2).map(OrderedDict),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2).map(Counter),
        st.lists(inner, max_size=2).map(deque),
        st.builds(Point, inner, inner),
        st.builds(Plain, inner, inner),
    ),
    max_leaves=6,
)


def known(value: Any) -> object:
    """Return an object of plain types that is equal for two values exactly when their canonical forms should be."""
    kind = type(value)
    if kind is float:
        return kind, "nan" if math.isnan(value) else struct.pack("d", value)
    if kind is complex:
        return kind, known(value.real), known(value.imag)
    if kind is Decimal:
        return kind, str(value)
    if kind in (dict, Counter):
        return kind, frozenset(Counter((known(key), known(item)) for key, item in value.items()).items())
    if kind in (set, frozenset):
        return kind, frozenset(Counter(known(item) for item in value).items())
    if kind is OrderedDict:
        return kind, tuple((known(key), known(item)) for key, item in value.items())
    if kind in (list, tuple, Point, deque):
        return kind, tuple(known(item) for item in value)
    if kind is Plain:
        return kind, known(value.a), known(value.b)
    return kind, value


@settings(max_examples=1500, deadline=None)
@given(small, small)
def test_two_values_have_the_same_bytes_exactly_when_they_are_the_same(one: object, other: object) -> None:
    """Equal values, types included, have equal bytes; all others have different bytes."""
    assert (canonical(one) == canonical(other)) == (known(one) == known(other))


@settings(max_examples=300, deadline=None)
@given(small)
def test_isolated_copies_have_the_bytes_of_their_originals(value: object) -> None:
    """The mutable copies of containers that nodes get have the bytes of the originals."""
    given = isolate(value)
    assert canonical(given) == canonical(value)
    if isinstance(given, dict):
        [*given.values()]  # elements that are read are copied from now on
    if isinstance(given, list):
        [*given]
    assert canonical(given) == canonical(value)


def test_a_changed_copy_is_another_value() -> None:
    """The bytes are those of what the copy holds now."""
    given = isolate({"messages": [{"text": "hi"}]})
    given["messages"][0]["text"] = "bye"
    assert canonical(given) == canonical({"messages": [{"text": "bye"}]})
    given["messages"].append(1)
    assert canonical(given) == canonical({"messages": [{"text": "bye"}, 1]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0, None),
        ("1", 1),
        ("a", b"a"),
        (b"a", bytearray(b"a")),
        ([1], (1,)),
        ({1}, frozenset({1})),
        ({"a": 1}, [["a", 1]]),
        ({"a": 1}, [("a", 1)]),
        ({1: "a"}, {1.0: "a"}),
        ({True: "a"}, {1: "a"}),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ({"ab": 1}, {"a": "b"}),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        ({}, []),
        ({}, set()),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (OrderedDict(a=1), {"a": 1}),
        (Counter(a=1), {"a": 1}),
        (Counter(a=0), Counter()),
        (0.0, -0.0),
        (Decimal("1.0"), Decimal("1.00")),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        (Point(1, 2), (1, 2)),
        (Plain(1), {"a": 1, "b": []}),
        (Plain(1), Plain(2)),
        (Level.LOW, 1),
        (Level.LOW, Perm.R),
        (Color.GREEN, "GREEN"),
        (Model(name="n"), Model(name="n", size=1)),
        (Stack([1]), [1]),
        (Table(), {}),
        ("é", "e\u0301"),
    ],
    ids=repr,
)
def test_values_that_code_can_distinguish_differ(one: object, other: object) -> None:
    """Where Python's `==` or another encoding sees no difference, the bytes differ: no caller gets the result of
    another value."""
    assert canonical(one) != canonical(other)
    assert canonical([one]) != canonical([other])
    assert canonical({"k": (one,)}) != canonical({"k": (other,)})


def test_nan_is_one_value() -> None:
    """NaN has one canonical form, whatever its bits; otherwise a value with NaN could never be found again."""
    bits = [struct.unpack(">d", bytes.fromhex(text))[0] for text in ("7ff8000000000000", "fff8000000000001")]
    assert len({canonical(nan) for nan in bits}) == 1
    assert len({canonical({"a": [nan, {nan}, complex(0, nan)]}) for nan in bits}) == 1
    first, second = bits
    assert canonical({first: 1, second: 2}) == canonical({second: 2, first: 1}) == canonical({first: 2, second: 1})
    assert canonical({first: 1, second: 1}) != canonical({first: 1})


def test_objects_whose_attributes_were_set_in_another_order() -> None:
    """Attributes in addition to the fields are sorted, too, and so is what the functions of `with_type` return."""
    one, other = Child(1, seed=1), Child(1, seed=1)
    one.first, one.second = 1, 2
    other.second, other.first = 2, 1
    assert canonical(one) == canonical(other)
    codec = Codec().with_type(Opaque, encode=lambda opaque: opaque.value, decode=Opaque)
    assert canonical(Opaque({"a": 1, "b": 2}), codec) == canonical(Opaque({"b": 2, "a": 1}), codec)
    assert canonical(Opaque({"a": 1}), codec) != canonical({"a": 1}, codec)


def test_a_type_is_identified_by_its_tag() -> None:
    """A renamed class that keeps its tag is the same type."""

    class Renamed:
        def __init__(self, value: int) -> None:
            self.value = value

    old = Codec().with_type(Opaque, encode=lambda one: one.value, decode=Opaque, tag="it")
    new = Codec().with_type(Renamed, encode=lambda one: one.value, decode=Renamed, tag="it")
    other = Codec().with_type(Renamed, encode=lambda one: one.value, decode=Renamed, tag="other")
    assert canonical(Opaque(1), old) == canonical(Renamed(1), new) != canonical(Renamed(1), other)


class Unpicklable(dict[Any, Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("not to be copied")


class Odd(list[Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return Odd, ([],)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), ""),
        ({"a": [1, object()]}, "['a'][1]"),
        ({"a": {2: object()}}, "['a'][2]"),
        ({(1, object): 1}, "<key (1, <class 'object'>)>[1]"),
        ({"a": {object: 1}}, "['a']<key <class 'object'>>"),
        (Counter({"a": object()}), "['a']"),
        (Plain(1, [object()]), ".b[0]"),
        ({"a": defaultdict(list)}, "['a']"),
        ([Unpicklable()], "[0]"),
        ([Odd()], "[0]"),
        ({"a": isolate({"b": [object]})}, "['a']['b'][0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_unstorable_value_has_no_canonical_form(value: object, path: str) -> None:
    """Such a value is refused with its path, in the same words as when it is stored."""
    with pytest.raises(UnstorableValueError) as caught:
        canonical(value)
    assert caught.value.path == path
    assert caught.value.channel == "c"


def test_cycles_and_depth_limits_are_those_of_storing() -> None:
    """A value that contains itself is refused; the deepest value that can be stored has a canonical form."""
    cycle: dict[str, Any] = {}
    cycle["a"] = [cycle]
    with pytest.raises(UnstorableValueError, match="contains itself"):
        canonical(cycle)
    for wrap in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: {1: inner}):
        deep: Any = 0
        for _ in range(MAX_DEPTH):
            deep = wrap(deep)
        CODEC.encode(deep, channel="c")
        canonical(deep)
        with pytest.raises(UnstorableValueError, match="levels deep"):
            canonical(wrap(deep))


def test_an_error_of_a_users_function_is_annotated() -> None:
    """An exception of a function given to `with_type` reaches the caller unchanged."""
    codec = Codec().with_type(Opaque, encode=lambda one: 1 // one.value, decode=Opaque)
    with pytest.raises(ZeroDivisionError) as caught:
        canonical([Opaque(0)], codec)
    assert caught.value.__notes__ == ["While storing a value of channel 'c'."]


PROCESS = """if True:
    import enum, hashlib
    from dataclasses import dataclass, field
    from checkpoint_savers import Codec

    class Color(enum.Enum):
        RED = 1

    @dataclass
    class Item:
        tags: set = field(default_factory=set)
        more: dict = field(default_factory=dict)

    words = [f"w{number}" for number in range(100)]
    value = {
        "set": set(words),
        "frozen": {frozenset(words[:50]): {1, 1.5, "x", None, (1, "y")}},
        "item": Item(set(words), {Color.RED: 1, "b": set(words)}),
        1: words,
        None: {word: number for number, word in enumerate(set(words[:1]))},
        "dict": dict.fromkeys(set(words)),
    }
    codec = Codec().with_types(Color, tag="color").with_types(Item, tag="item")
    data = codec.canonical(value, channel="c")
    print(list(set(words))[:5], hashlib.sha256(data).hexdigest())
"""


def test_every_process_makes_the_same_bytes() -> None:
    """Processes with different string hashes and different orders of sets compute the same bytes."""
    ran = [
        subprocess.run(
            [sys.executable, "-c", PROCESS],
            env={**ENV, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.rsplit(" ", 1)
        for seed in ("0", "1", "4294967295", "random")
    ]
    assert len({order for order, _ in ran}) > 1  # the orders do differ
    assert len({digest for _, digest in ran}) == 1


def test_the_bytes_of_this_version() -> None:
    """A change of these bytes invalidates all values that are cached by them, so it must not happen by accident."""
    value = {"b": [1, 1.0, True, None, -0.0, math.nan], "a": {2: {"y", "x"}, "k": (b"\0", 2**70)}}
    assert canonical(value).hex() == (
        "82"
        "a161"
        "c71e23"
        "94"
        "02"
        "c70521"
        "92a178a179"
        "a16b"
        "d820"
        "92c40100"
        "c70901"
        "400000000000000000"
        "a162"
        "96"
        "01"
        "cb3ff0000000000000"
        "c3"
        "c0"
        "cb8000000000000000"
        "cb7ff8000000000000"
    )


class Client:
    """A type that cannot be stored."""


def test_digestible_is_canonical_where_possible() -> None:
    """P2: a value that cannot be stored counts by its type, at any depth, and does not affect what is around it."""
    codec = Codec()
    for value in (1, [1.0, float("nan")], {"b": {2, 3}, "a": (1,)}, 2**80, "\ud800"):
        assert codec.digestible(value, channel="c") == codec.canonical(value, channel="c")
    made = [codec.digestible({"b": [Client(), number], "a": Client()}, channel="c") for number in (1, 2, 2**80)]
    assert len(set(made)) == 3
    assert made[0] == codec.digestible({"a": Client(), "b": [Client(), 1]}, channel="c")
    assert made[0] != codec.digestible({"a": object(), "b": [Client(), 1]}, channel="c")


def test_a_digest_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: a digest does not compute why a type cannot be stored: that takes 0.3 ms, and a list may hold thousands of
    such objects."""

    def explain(kind: type) -> str:
        raise AssertionError(kind)

    monkeypatch.setattr("checkpoint_savers.codec.codec.explain", explain)
    Codec().digestible([Client()], channel="c")
