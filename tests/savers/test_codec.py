"""The codec: a stored value comes back equal in value and exact type, or is refused with its path (P11)."""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import io
import math
import os
import pickle
import re
import struct
import subprocess
import sys
import threading
import typing
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from unittest.mock import patch
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from typing_extensions import TypeAliasType

import checkpoint_savers.codec as package
from checkpoint_savers import errors
from checkpoint_savers.codec import Codec, TypeRegistrationError, codes, scalars, writing
from checkpoint_savers.codec.writing import MAX_DEPTH
from pregel_async._core.isolation import isolate

T = TypeVar("T")


class Color(enum.Enum):
    RED = object()  # a value that cannot be stored
    GREEN = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Perm(enum.Flag):
    R = 1
    W = 2


class Bits(enum.IntFlag):
    A = 1
    HUGE = 1 << 70


class Point(NamedTuple):
    x: int
    y: float = 0.5


OldPair = collections.namedtuple("OldPair", ["left", "right"])


class Tagged(Point):
    """Has a __dict__ in addition to its slots."""


@dataclass
class Plain:
    a: int
    b: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Plain
    b: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Child(Plain):
    seed: InitVar[int] = 3
    shared: ClassVar[int] = 9
    c: set[int] = field(default_factory=set, compare=False)
    doubled: int = field(init=False)
    never: int = field(init=False, repr=False)

    def __post_init__(self, seed: int) -> None:
        self.doubled = seed * 2
        self.note = "in addition to the fields"

    @functools.cached_property
    def expensive(self) -> object:
        return object()


@dataclass
class Box(Generic[T]):
    item: T


class Cell(Struct):
    a: int
    b: list[int] = []
    c: Point | msgspec.UnsetType = msgspec.UNSET


class Row(Struct, frozen=True, tag=True, rename="camel", array_like=True, kw_only=True, gc=False):
    row_id: int
    row_name: str = "n"

    def __post_init__(self) -> None:
        assert not DECODING, "decoding must not call __post_init__"


class Mixed(Struct, kw_only=True):
    a: int = 1
    b: int
    c: object = msgspec.field(default_factory=dict)


class Loose(Struct, dict=True, weakref=True, cache_hash=True, frozen=True):
    a: int


class Model(pydantic.BaseModel):
    name: str
    size: int = 1
    inner: Plain | None = None
    _secret: int = pydantic.PrivateAttr(default=5)
    _unset: int = pydantic.PrivateAttr()

    @pydantic.field_validator("name")
    @classmethod
    def never_on_decode(cls, value: str) -> str:
        assert not DECODING, "decoding must not validate"
        return value

    @functools.cached_property
    def cached(self) -> object:
        return object()


class Open(pydantic.BaseModel, extra="allow", frozen=True):
    name: str


class Listing(pydantic.RootModel[list[int]]):
    pass


class Amount(int):
    pass


class Ratio(float):
    pass


class Name(str):
    __slots__ = ("origin",)

    def __new__(cls, *args: object) -> typing.NoReturn:
        raise AssertionError("decoding must not come here")

    @classmethod
    def of(cls, text: str, origin: str) -> Name:
        name = str.__new__(cls, text)
        name.origin = origin
        return name


class Blob(bytes):
    pass


class Stack(list[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("not the way to read it")


class Table(dict[Any, Any]):
    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError("not the way to fill it")


class Bag(set[Any]):
    pass


class Ice(frozenset[Any]):
    pass


class Trio(tuple[Any, ...]):
    __slots__ = ()


class Opaque:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.value == other.value

    __hash__ = None


class Moon(tzinfo):
    """A time zone class of a user's own."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(minutes=7)

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta()


DECODING = False

TYPES: tuple[type, ...] = (
    *(
        Color,
        Level,
        Word,
        Perm,
        Bits,
        Point,
        OldPair,
        Tagged,
        Plain,
        Frozen,
        Child,
        Box,
        Cell,
        Row,
        Mixed,
        Loose,
        Model,
    ),
    *(Open, Listing, Amount, Ratio, Name, Blob, Stack, Table, Bag, Ice, Trio),
)
CODEC = (
    Codec()
    .with_types(*TYPES)
    .with_type(Opaque, encode=lambda opaque: {"v": (opaque.value,)}, decode=lambda stored: Opaque(stored["v"][0]))
)


def there_and_back(value: object, codec: Codec = CODEC) -> Any:
    global DECODING
    data = codec.encode(value, channel="c")
    assert type(data) is bytes
    DECODING = True
    try:
        return codec.decode(data, channel="c")
    finally:
        DECODING = False


def same(a: Any, b: Any) -> bool:
    """Return True if both are equal in value and exact type at every depth. NaN equals NaN, and the sign of zero
    counts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex)):
        parts = (a,) if isinstance(a, float) else (a.real, a.imag)
        others = (b,) if isinstance(a, float) else (b.real, b.imag)
        return struct.pack(f"{len(parts)}d", *parts) == struct.pack(f"{len(parts)}d", *others) and same_rest(a, b)
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, (list, tuple, deque)):
        read = type(a).__mro__[-2].__iter__ if type(a) is Stack else type(a).__iter__
        x, y = ([*list.__iter__(v)] if isinstance(v, list) else [*read(v)] for v in (a, b))
        lengths = not isinstance(a, deque) or a.maxlen == b.maxlen
        return lengths and len(x) == len(y) and all(map(same, x, y)) and same_rest(a, b)
    if isinstance(a, dict):
        return same([*a.items()], [*b.items()]) and same_rest(a, b)
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a) and same_rest(a, b)
    if isinstance(a, (datetime, time)):
        return a.replace(tzinfo=None) == b.replace(tzinfo=None) and a.fold == b.fold and same(a.tzinfo, b.tzinfo)
    if isinstance(a, timezone):
        return a.__getinitargs__() == b.__getinitargs__()
    if isinstance(a, uuid.UUID):
        return a == b and a.is_safe is b.is_safe
    if isinstance(a, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if dataclasses.is_dataclass(a):
        return same_rest(a, b) and all(
            same(getattr(a, f.name, None), getattr(b, f.name, None)) for f in dataclasses.fields(a)
        )
    if isinstance(a, Struct):
        return same([getattr(a, n) for n in a.__struct_fields__], [getattr(b, n) for n in b.__struct_fields__])
    if isinstance(a, pydantic.BaseModel):
        names = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        return same_rest(a, b) and all(same(getattr(a, name), getattr(b, name)) for name in names)
    return bool(a == b) and same_rest(a, b)


def same_rest(a: object, b: object) -> bool:
    left_out = {"expensive", "cached", "__orig_class__"}  # cached properties, and what typing adds
    x, y = ({k: v for k, v in getattr(o, "__dict__", {}).items() if k not in left_out} for o in (a, b))
    return isinstance(a, enum.Enum) or (x.keys() == y.keys() and all(same(x[k], y[k]) for k in x))


numbers = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**200), max_value=2**200),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 255, -128, 0]),
    st.floats(),
    st.complex_numbers(),
    st.fractions(),
    st.decimals(allow_nan=False),
    st.sampled_from([Decimal("-NaN7"), Decimal("1E+999999999999"), Decimal("-0.000"), Decimal("1e5")]),
)
texts = st.one_of(st.text(), st.text(st.characters(exclude_categories=[])))
zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.timezones(),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), texts),
)
times = st.one_of(
    st.dates(),
    st.datetimes(timezones=zones),
    st.datetimes().map(lambda at: at.replace(fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
    st.times(timezones=zones),
    st.timedeltas(),
    zones,
)
others = st.one_of(
    st.none(),
    st.binary(),
    st.uuids(),
    st.sampled_from(list(uuid.SafeUUID)).map(lambda safe: uuid.UUID(int=5, is_safe=safe)),
    st.ip_addresses(),
    st.ip_addresses().map(lambda ip: ip_interface(f"{ip}/7")),
    st.ip_addresses().map(lambda ip: ip_network(f"{ip}/9", strict=False)),
    st.text(st.characters(exclude_characters="\0", exclude_categories=[])).flatmap(
        lambda text: st.sampled_from([Path(text), PurePosixPath(text), PureWindowsPath(text)])
    ),
    st.sampled_from(
        [*Level, *Word, *Perm, Perm(0), Perm(3), Bits.A, Bits.HUGE, Bits(1 << 71 | 1), Color.RED, Color.GREEN]
    ),
    st.builds(range, st.integers(), st.integers(), st.integers().filter(bool)),
    st.just(msgspec.UNSET),
)
hashable = st.one_of(numbers, texts, times, others)
leaves = st.one_of(hashable, st.binary().map(bytearray), st.decimals(allow_nan=True), st.just(Decimal("sNaN12")))
keys = st.recursive(
    hashable,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3) | st.builds(Point, inner),
    max_leaves=5,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    return st.one_of(
        lists,
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=4).map(Counter),
        lists.map(tuple),
        st.lists(keys, max_size=4).map(set),
        st.lists(keys, max_size=4).map(frozenset),
        st.builds(deque, lists, st.none() | st.integers(0, 6)),
        st.builds(slice, inner, inner, inner),
        st.builds(Point, inner, inner),
        st.builds(OldPair, inner, inner),
        st.builds(Plain, inner, lists),
        st.builds(Frozen, inner, lists.map(tuple)),
        st.builds(Box, inner),
        st.builds(Cell, inner, lists, inner),
        st.builds(Stack, lists.map(tuple)),
        st.builds(Trio, lists),
        st.builds(Open.model_construct, name=inner, more=inner),
    )


values = st.recursive(leaves, containers, max_leaves=20)


@settings(max_examples=400, deadline=None)
@given(values)
def test_a_value_comes_back_equal_in_value_and_exact_type(value: object) -> None:
    back = there_and_back(value)
    assert same(back, value), (back, value)
    assert CODEC.encode(back, channel="c") == CODEC.encode(value, channel="c")


def test_the_comparison_of_these_tests_is_strict() -> None:
    different: list[tuple[object, object]] = [
        *((1, True), (1, 1.0), (0.0, -0.0), ((1,), [1]), ([(1,)], [[1]]), ({1: 2}, {True: 2}), ({1}, {True})),
        *((Plain(1), Plain(2)), (Plain(1, []), Plain(1, ())), (Cell(1), Cell(True)), (Open(name="a"), Open(name="b"))),
        *((timezone(timedelta(0), "x"), UTC), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (Decimal("1.0"), Decimal(1))),
        (deque([1], 3), deque([1])),
    ]
    assert not any(same(a, b) for a, b in different)
    assert same(math.nan, math.nan)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-9, 9) | st.booleans() | st.none(), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(JSON)
def test_plain_data_is_plain_messagepack(value: object) -> None:
    """It takes one call of msgspec each way, and any MessagePack reader can read it."""
    assert writing.is_plain(value)
    assert CODEC.encode(value, channel="c") == msgspec.msgpack.encode(value)
    assert same(there_and_back(value), value)


def child() -> Child:
    made = Child(1, ["x"], c={1, 2}, seed=7)
    assert made.expensive
    return made


def named() -> Tagged:
    made = Tagged(1, 2.0)
    made.mood = (1, "fine")
    return made


def stack() -> Stack:
    made = Stack([1, (2, {3})])
    made.label = Level.HIGH
    return made


def model() -> Model:
    made = Model(name="n", inner=Plain(1))
    made._secret = 77
    assert made.cached
    return made


def loose() -> Loose:
    made = Loose(1)
    made.__dict__["extra"] = (1,)
    return made


REGISTERED: list[object] = [
    *(Color.RED, Color.GREEN, Level.LOW, Word.YES, Perm.R | Perm.W, Bits.A | Bits.HUGE, Bits(1 << 100)),
    *(Point(1), OldPair([1], (2,)), named(), Plain(1, ["a"]), Frozen(Plain(2), (1, 2)), child(), Box[int](3)),
    *(Cell(1, [2]), Cell(1, [], Point(2)), Row(row_id=1), Mixed(b=2), loose(), model(), Model(name="m", size=3)),
    *(Open(name="o", more=(1, 2)), Open(name="o"), Listing([1, 2]), Amount(2**80), Amount(3), Ratio("nan")),
    *(Name.of("abc\ud800", "here"), Blob(b"x"), stack(), Table({(1,): Table()}), Bag({1, (2,)}), Ice({Ice()})),
    *(Trio((1, [2])), Opaque(4)),
]


def is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("value", REGISTERED, ids=lambda value: type(value).__name__)
def test_each_registered_kind_comes_back(value: Any) -> None:
    for holder in (value, [value], {"k": (value,)}, {("k",): value}, Box(value)):
        assert same(there_and_back(holder), holder)
    if is_hashable(value):
        assert same(there_and_back({value: {value}}), {value: {value}})


def test_decoding_runs_no_code_of_the_class() -> None:
    """Decoding calls no __init__, __post_init__ or validator: they ran when the object was created."""
    made = there_and_back(child())
    assert (made.doubled, made.note, made.c) == (14, "in addition to the fields", {1, 2})
    assert "expensive" not in vars(made)
    assert not hasattr(made, "never")
    assert there_and_back(Model.model_construct(name=5)).name == 5
    assert type(there_and_back(Row(row_id=1))) is Row
    back = there_and_back(model())
    assert (back._secret, back.model_fields_set) == (77, {"name", "inner"})
    assert "cached" not in vars(back)


def test_singletons_come_back_as_themselves() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    for value in (UTC, berlin, Color.RED, msgspec.UNSET, Perm.R, None):
        assert there_and_back(value) is value
    assert there_and_back(datetime(2020, 1, 1, tzinfo=UTC)).tzinfo is UTC
    assert there_and_back(datetime(2020, 1, 1, tzinfo=berlin)).tzinfo is berlin


def test_values_are_fresh() -> None:
    value = [Plain(1, ["x"])]
    back = there_and_back(value)
    back[0].b.append("y")
    assert value == [Plain(1, ["x"])]


def test_a_users_own_time_zone() -> None:
    codec = Codec().with_type(Moon, encode=lambda moon: None, decode=lambda stored: Moon())
    assert type(there_and_back(datetime(2020, 1, 1, tzinfo=Moon()), codec).tzinfo) is Moon


def test_equal_sets_give_equal_bytes_in_every_process() -> None:
    script = (
        "from checkpoint_savers.codec import Codec; import sys;"
        "value = {'s': {str(i) for i in range(99)}, 'f': frozenset(map(str, range(20)))};"
        "print(Codec().encode(value, channel='c').hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


@pytest.mark.parametrize("size", [0, 15, 16, 65_535, 65_536])
def test_sets_of_any_size(size: int) -> None:
    assert there_and_back(set(range(size))) == set(range(size))


def test_one_codec_serves_many_threads() -> None:
    wrong = list[object]()
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for i in range(100):
            value = [Frozen(Plain(number, [str(i)]), (i,)), {(number, i): {i, 2**70 + i}}, Model(name=str(number))]
            if not same(CODEC.decode(CODEC.encode(value, channel="c"), channel="c"), value):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Unregistered(Struct):
    a: int = 1


class Undecorated(Plain):
    """A subclass of a registered class, itself not registered."""


class Broken(Exception):
    pass


def unset_field() -> Plain:
    made = Plain(1)
    del made.a
    return made


def from_file() -> ZoneInfo:
    """A zone without a name."""
    utc = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    return ZoneInfo.from_file(io.BytesIO(utc))


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def deep(levels: int, wrap: Callable[[object], object] = lambda inner: [inner]) -> object:
    value: object = 1
    for _ in range(levels):
        value = wrap(value)
    return value


REFUSED: list[tuple[object, str, str]] = [
    (object(), "", "type object cannot be stored"),
    ({"user": [{"born": object()}]}, "['user'][0]['born']", "type object"),
    ({"user": [Plain(object())]}, "['user'][0].a", "type object"),
    ((1, {2: {3: deque([lambda: 0])}}), "[1][2][3][0]", "type function"),
    ([Plain], "[0]", "type type cannot be stored"),
    ([ValueError("x")], "[0]", "builtins.ValueError is an exception, which is no value: store its text"),
    ([Broken("x")], "[0]", "Broken is an exception"),
    ([Unregistered()], "[0]", "Unregistered is not registered. Register it: Codec().with_types(Unregistered, tag=...)"),
    ([Undecorated(1)], "[0]", "Undecorated is not registered"),
    (
        [defaultdict(int)],
        "[0]",
        "collections.defaultdict cannot be stored as it is. Say how: Codec().with_type(default",
    ),
    ([re.compile("a")], "[0]", "re.Pattern cannot be stored"),
    ({(1, Unprintable()): 2}, "<key (1, <Unprintable instance at", "Unprintable cannot be stored"),
    ({(1, 2): Unprintable()}, "[(1, 2)]", "Unprintable"),
    ({1, (2, Unprintable())}, "<member (2, <Unprintable instance at", "Unprintable"),
    (OrderedDict(a=object()), "['a']", "type object"),
    (Counter({"a": object()}), "['a']", "type object"),
    (slice(0, [object()]), ".stop[0]", "type object"),
    (Point(1, object()), ".y", "type object"),
    (Cell(1, c=Point(1, object())), ".c.y", "type object"),
    (Model.model_construct(name=object()), ".name", "type object"),
    (Open(name="x", more=[object()]), ".more[0]", "type object"),
    (Stack([1, object()]), "[1]", "type object"),
    (Opaque(object()), "<encoded>['v'][0]", "type object"),
    (datetime(2020, 1, 1, tzinfo=Moon()), ".tzinfo", "Moon cannot be stored as it is"),
    (
        [ZoneInfo.no_cache("Europe/Berlin"), from_file()],
        "[1]",
        "the time zone None is not one of this machine's database",
    ),
    (unset_field(), ".a", "this field is not set"),
    (Model.model_construct(), ".name", "this field is not set"),
    (Bits(1 << 5000), "", "a flag of more than 1024 bits"),
    (Fraction(1, 2**70_000), "", "a fraction of numbers of more than 65536 bits"),
    (deep(MAX_DEPTH + 1), "[0]" * MAX_DEPTH, f"nested more than {MAX_DEPTH} levels deep"),
    ({"a" * 500: object()}, "['" + "a" * 27, "type object"),
]


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_unstorable_values_are_refused_with_their_path(value: object, path: str, reason: str) -> None:
    with pytest.raises(errors.UnstorableValueError) as caught:
        CODEC.encode(value, channel="inbox")
    error = caught.value
    assert error.channel == "inbox"
    assert error.path == path or (len(path) > 20 and error.path.startswith(path))
    assert reason in error.reason
    assert "channel 'inbox', at value" in str(error)
    assert isinstance(error, TypeError)


def cyclic_list() -> object:
    value: list[object] = [1, 2]
    value.append({"again": value})
    return value


def cyclic_object() -> object:
    holder = Box[Any](None)
    holder.item = (Box(holder),)
    return holder


def cyclic_counter() -> object:
    counter = Counter[str]()
    counter["me"] = counter
    return counter


def cyclic_wide() -> object:
    value: list[object] = []
    value += [value] * 100
    return value


CYCLES = [
    (cyclic_list(), "[2]['again']"),
    (cyclic_object(), ".item[0].item"),
    (cyclic_counter(), "['me']"),
    (cyclic_wide(), "[0]"),
]


@pytest.mark.parametrize(("value", "path"), CYCLES, ids=["list", "object", "counter", "wide"])
def test_a_cycle_is_refused_where_it_closes(value: object, path: str) -> None:
    with pytest.raises(errors.UnstorableValueError, match="contains itself") as caught:
        CODEC.encode(value, channel="c")
    assert caught.value.path == path


def test_a_shared_object_is_not_a_cycle() -> None:
    shared = [1]
    value = [shared, {"k": shared}, (shared, shared), Plain(1, shared), Plain(2, shared)]
    assert same(there_and_back(value), value)


WRAPS: list[Callable[[Any], object]] = [
    lambda inner: [inner],
    lambda inner: {"k": inner},
    lambda inner: {(): inner},
    lambda inner: (inner,),
    lambda inner: frozenset({inner}),
    lambda inner: deque([inner]),
    Point,
    Box,
    Cell,
    lambda inner: Model.model_construct(name=inner),
    lambda inner: Trio((inner,)),
]


@pytest.mark.parametrize("wrap", WRAPS, ids=range(len(WRAPS)))
def test_a_value_that_was_written_can_be_read_at_any_stack_depth(wrap: Callable[[object], object]) -> None:
    """A value is readable with half of Python's stack already used; one level more is refused when written, instead
    of becoming unreadable."""
    levels = (MAX_DEPTH - 1) // (
        2 if isinstance(wrap(1), Trio) else 1
    )  # a Trio counts twice: as itself and as its tuple
    data = CODEC.encode(deep(levels, wrap), channel="c")

    def down(frames: int) -> object:
        return down(frames - 1) if frames else CODEC.decode(data, channel="c")

    assert CODEC.encode(down(450), channel="c") == data
    with pytest.raises(errors.UnstorableValueError, match="levels deep"):
        CODEC.encode(deep(levels + 2, wrap), channel="c")


def test_hardly_any_stack_left_raises_an_error_of_the_codec() -> None:
    value = deep(90)
    data = CODEC.encode(value, channel="c")

    def at_the_end(action: Callable[[], object]) -> object:
        try:
            return at_the_end(action)
        except RecursionError:
            return action()

    with pytest.raises(errors.UnstorableValueError, match="too little of Python's stack"):
        at_the_end(lambda: CODEC.encode(value, channel="c"))
    ext = CODEC.encode(deep(90, lambda inner: (inner,)), channel="c")
    with pytest.raises(errors.CorruptCheckpointError, match="nested deeper"):
        at_the_end(lambda: CODEC.decode(ext, channel="c"))
    assert CODEC.decode(data, channel="c") == value


def test_more_bytes_than_messagepack_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is set to 100 bytes here instead of 4 GB."""
    for module in (writing, scalars):
        monkeypatch.setattr(module, "MAX_BYTES", 100)
    overflow = 2**64  # takes the slow path for the whole value, as msgspec's own refusal does
    for value, path, reason in (
        ([overflow, "x" * 101], "[1]", "a str of 101 bytes, and one value may take 100"),
        ([overflow, "\u20ac" * 34], "[1]", "a str of 102 bytes, and one value may take 100"),
        ([overflow, b"x" * 101], "[1]", "101 bytes, and one value may take 100"),
        ([bytearray(101)], "[0]", "it takes 101 bytes, and one value may take 100"),
        ({"a": ("y" * 60, "z" * 60)}, "['a']", "it takes 125 bytes, and one value may take 100"),
    ):
        with pytest.raises(errors.UnstorableValueError) as caught:
            CODEC.encode(value, channel="c")
        assert (caught.value.path, caught.value.reason) == (path, reason)
    assert there_and_back([overflow, "x" * 100, b"x" * 100]) == [overflow, "x" * 100, b"x" * 100]


def test_an_exception_of_a_users_function_is_not_wrapped() -> None:
    def encode(value: Opaque) -> object:
        raise KeyError("mine")

    codec = Codec().with_type(Opaque, encode=encode, decode=lambda stored: Opaque(0))
    with pytest.raises(KeyError, match="mine") as caught:
        codec.encode([Opaque(1)], channel="inbox")
    assert caught.value.__notes__ == ["While storing a value of channel 'inbox'."]


def test_a_renamed_class_reads_under_its_tag() -> None:
    @dataclass
    class Bill:
        total: int

    @dataclass
    class Invoice:
        total: int

    data = Codec().with_types(Bill, tag="invoice").encode([Bill(3)], channel="c")
    assert Codec().with_types(Invoice, tag="invoice").decode(data, channel="c") == [Invoice(3)]
    with pytest.raises(errors.UnknownTypeError) as caught:
        Codec().with_types(Invoice).decode(data, channel="inbox")
    assert (caught.value.tag, caught.value.where) == ("invoice", "channel 'inbox'")
    assert "with_types(TheClass, tag='invoice')" in str(caught.value)


def test_a_class_reads_under_all_its_former_tags() -> None:
    old = Codec().with_types(Plain)
    new = old.with_types(Plain, tag="plain", aliases=["v0"])
    assert b"plain" in new.encode(Plain(1), channel="c")
    assert b"Plain" not in new.encode(Plain(1), channel="c")
    for codec in (old, new, Codec().with_types(Plain, tag="v0")):
        assert new.decode(codec.encode(Plain(1), channel="c"), channel="c") == Plain(1)
    assert new.with_types(Plain) is new
    assert b"plain" in new.with_types(Plain, aliases=["more"]).encode(Plain(1), channel="c")


def test_default_tags_are_module_and_qualified_name() -> None:
    assert repr(Codec().with_types(Level)) == f"<Codec with {__name__}.Level>"
    assert repr(Codec()) == "<Codec with no registered types>"


def test_a_class_of_a_script_has_the_tag_of_the_imported_module(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(
        "import enum\nfrom checkpoint_savers.codec import Codec\n"
        "class Kind(enum.Enum):\n    A = 1\n"
        "print(Codec().with_types(Kind))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    for command in (["app.py"], ["-m", "app"], ["-c", "import app"]):
        found = subprocess.run(
            [sys.executable, *command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert found.stdout == "<Codec with app.Kind>\n"
    piped = subprocess.run(
        [sys.executable, "-"], input=script.read_text(), env=environment, capture_output=True, text=True, check=True
    )
    assert piped.stdout == "<Codec with __main__.Kind>\n"


def test_the_default_tag_of_a_class_of_the_main_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind(enum.Enum):
        A = 1

    for name, main, module in (
        ("__main__", SimpleNamespace(__spec__=SimpleNamespace(name="app.jobs"), __file__="/x/app/jobs.py"), "app.jobs"),
        ("__main__", SimpleNamespace(__spec__=None, __file__="/x/jobs.py"), "jobs"),
        ("__mp_main__", SimpleNamespace(__spec__=None, __file__="/x/jobs.py"), "jobs"),
        ("__main__", SimpleNamespace(__spec__=None, __file__="<stdin>"), "__main__"),
        ("__main__", SimpleNamespace(), "__main__"),
    ):
        monkeypatch.setattr(Kind, "__module__", name)
        with patch.dict(sys.modules, {name: main}):
            assert repr(Codec().with_types(Kind)) == f"<Codec with {module}.{Kind.__qualname__}>"


def local(value: int) -> type:
    @dataclass
    class Local:
        a: int = value

    return Local


def test_two_types_never_share_a_tag() -> None:
    one, two = local(1), local(2)
    for register in (
        lambda: Codec().with_types(one, two),
        lambda: Codec().with_annotations(one, list[two]),
        lambda: Codec().with_types(one).with_type(two, encode=vars, decode=two),
        lambda: Codec().with_types(Plain, tag="a").with_types(Frozen, tag="a"),
        lambda: Codec().with_types(Plain, tag="a").with_types(Frozen, aliases=["a"]),
    ):
        with pytest.raises(TypeRegistrationError, match="is the tag of another class already") as caught:
            register()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, errors.CheckpointError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    both = Codec().with_types(one).with_types(two, tag="two")
    assert both.knows(one)
    assert both.knows(two)


def test_classes_that_cannot_be_registered() -> None:
    class Fussy(Struct):
        def __init_subclass__(cls, **options: object) -> None:
            raise TypeError("no subclasses")

        def __post_init__(self) -> None: ...

    class Nothing(enum.Enum):
        pass

    @dataclass
    class Failure(Exception):
        code: int

    for cls in (object, Any, Opaque, Nothing, enum.Enum, Struct, defaultdict, Failure, Fussy, typing.Protocol):
        with pytest.raises(TypeRegistrationError):
            Codec().with_types(cls)
        assert not Codec().with_annotations(cls).knows(cls)
    for register in (
        lambda: Codec().with_types(Plain, Frozen, tag="x"),
        lambda: Codec().with_types(tag="x"),
        lambda: Codec().with_types(int, tag="x"),
        lambda: Codec().with_type(int, encode=str, decode=int),
    ):
        with pytest.raises(TypeRegistrationError):
            register()
    assert Codec().with_types(int, datetime, list).knows(int)
    assert Codec().with_types() is not None


def test_functions_may_replace_how_a_class_is_stored() -> None:
    old = Codec().with_types(Plain, tag="plain")
    new = old.with_type(Plain, encode=lambda plain: plain.a, decode=lambda a: Plain(a), tag="plain2")
    assert same(there_and_back([Plain(3)], new), [Plain(3)])
    assert new.decode(old.encode(Plain(1, ["x"]), channel="c"), channel="c") == Plain(1, ["x"])
    assert new.with_types(Plain, tag="plain3").encode(Plain(1), channel="c").endswith(b"plain3\x01")


class Address(TypedDict, total=False):
    city: Annotated[City, "why"]
    codes: dict[str, Code | None]


class City(Struct):
    name: str
    twin: City | None = None


class Code(enum.Enum):
    A = 1


class Kind(enum.Enum):
    X = 1
    Y = 2


@dataclass
class Person:
    address: Address
    kind: Literal[Kind.X]
    missing: NoSuchThing  # noqa: F821  # that is the point
    boxed: list[Box[Level]]
    limit: ClassVar[Word] = Word.YES


class Account(pydantic.BaseModel):
    owner: Optional[Owner] = None  # noqa: UP045  # people write it in every way
    point: Union[Point, None] = None  # noqa: UP007  # people write it in every way


class Owner(pydantic.BaseModel):
    perm: Perm


PersonId = NewType("PersonId", Amount)


def test_types_are_found_through_annotations() -> None:
    codec = Codec().with_types(Person)
    for cls in (Person, City, Code, Kind, Box, Level):
        assert codec.knows(cls), cls
    for cls in (Address, Word, Amount):
        assert not codec.knows(cls), cls
    codec = Codec().with_annotations(Annotated[list[Account] | None, Opaque], Address)
    for cls in (Account, Owner, Perm, Point, City, Code):
        assert codec.knows(cls), cls
    assert not codec.knows(Opaque)
    assert Codec().with_types(Address).knows(City)
    assert Codec().with_types(Frozen).knows(Plain)
    assert Codec().with_annotations(typing.List[Frozen]).knows(Plain)  # noqa: UP006  # people write it in every way


def test_annotations_without_types_to_register_are_skipped() -> None:
    empty = Codec()
    for hint in (
        *(Any, None, int, object, Opaque, T, Callable[[Plain], Frozen], type[Plain], ClassVar[Plain], "Plain", ..., 3),
        *(
            typing.Protocol,
            typing.Hashable,
            list,
            dict[str, Any],
            Literal["a", 1],
            typing.Self,
            typing.Never,
            Generic[T],
        ),
        *(collections.abc.Mapping[str, int], tuple[int, ...], tuple[()], PersonId, typing.ForwardRef("Plain")),
        *(TypedDict, NamedTuple, enum.Enum, Struct, Exception, re.Pattern[str], threading.Lock, [], {"a": Plain}),
    ):
        assert empty.with_annotations(hint) is empty, hint


def test_invalid_annotations_are_skipped() -> None:
    @dataclass
    class Odd:
        a: NoSuchThing  # noqa: F821  # that is the point
        b: int

    Odd.__annotations__ = ["not", "a", "mapping"]
    assert Codec().with_types(Odd).knows(Odd)


def test_registering_what_annotations_name_is_idempotent() -> None:
    codec = Codec().with_types(Plain, tag="mine")
    more = codec.with_annotations(list[Frozen])
    assert more is not codec
    assert more.with_annotations(Frozen, dict[str, Plain]) is more
    assert b"mine" in more.encode(Plain(1), channel="c")
    assert not codec.knows(Frozen)


def test_types_are_found_through_type_aliases() -> None:
    alias = TypeAliasType("alias", "list[Plain]")
    assert not Codec().with_annotations(alias).knows(Plain)
    lazy = type("TypeAliasType", (), {"__value__": property(lambda alias: 1 / 0)})()  # as a `type` statement may do
    assert not Codec().with_annotations(lazy).knows(Plain)
    of = TypeAliasType("of", dict[str, T], type_params=(T,))
    codec = Codec().with_annotations(TypeAliasType("other", list[Plain]), of[Point])
    assert codec.knows(Plain)
    assert codec.knows(Point)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in 3.12")
def test_types_are_found_through_type_statements() -> None:
    namespace: dict[str, Any] = {"Plain": Plain, "Point": Point}
    exec("type Deep = list[Plain | Deep]\ntype Wrong = list[Missing]\ntype Of[X] = dict[str, X]", namespace)
    codec = Codec().with_annotations(namespace["Deep"], namespace["Wrong"], namespace["Of"][Point])
    assert codec.knows(Plain)
    assert codec.knows(Point)


def test_what_a_codec_has_registered() -> None:
    assert all(map(CODEC.knows, [*TYPES, Opaque, int, type(None), datetime, ZoneInfo, type(Path()), deque, slice]))
    assert not any(map(CODEC.knows, [object, type, Unregistered, defaultdict, ValueError, Undecorated, BaseException]))


def evolve(old: type, new: type, value: object) -> Any:
    data = Codec().with_types(old, tag="t").encode(value, channel="c")
    return Codec().with_types(new, tag="t").decode(data, channel="c")


def versions(kind: str) -> tuple[type, type, type]:
    """A class with a field `a`; one with `b` and `c` instead, which have defaults; one with `d`, which has none."""
    if kind == "dataclass":
        made = [
            dataclasses.make_dataclass("V1", ["a", "k"]),
            dataclasses.make_dataclass(
                "V2", ["k", ("b", int, field(default=5)), ("c", list, field(default_factory=list))]
            ),
            dataclasses.make_dataclass("V3", ["k", "d"]),
        ]
    elif kind == "struct":
        factory = msgspec.field(default_factory=list)
        made = [
            msgspec.defstruct("V1", ["a", "k"]),
            msgspec.defstruct("V2", ["k", ("b", int, 5), ("c", list, factory)], kw_only=True, frozen=True),
            msgspec.defstruct("V3", ["k", "d"]),
        ]
    elif kind == "named tuple":
        made = [
            collections.namedtuple("V1", ["a", "k"]),
            collections.namedtuple("V2", ["k", "b", "c"], defaults=[5, []]),
            collections.namedtuple("V3", ["d", "k"]),
        ]
    else:
        made = [
            pydantic.create_model("V1", a=(int, ...), k=(int, ...)),
            pydantic.create_model("V2", k=(int, ...), b=(int, 5), c=(list[int], pydantic.Field(default_factory=list))),
            pydantic.create_model("V3", k=(int, ...), d=(int, ...)),
        ]
    return made[0], made[1], made[2]


@pytest.mark.parametrize("kind", ["dataclass", "struct", "named tuple", "model"])
def test_a_class_may_get_and_lose_fields(kind: str) -> None:
    one, two, three = versions(kind)
    back = evolve(one, two, one(a=1, k=2))
    assert type(back) is two
    assert (back.k, back.b, back.c) == (2, 5, [])
    assert not hasattr(back, "a")
    with pytest.raises(errors.StoredTypeChangedError, match="lacks field 'd', which V3 needs now"):
        evolve(one, three, one(a=1, k=2))


def test_a_missing_member_is_named() -> None:
    renamed = enum.Enum("Kind", ["Y", "Z"])
    assert evolve(Kind, renamed, Kind.Y) is renamed.Y
    with pytest.raises(errors.StoredTypeChangedError, match="member 'X', which Kind does not have"):
        evolve(Kind, renamed, Kind.X)


def test_models_that_change_their_settings() -> None:
    class Extra(pydantic.BaseModel, extra="allow"):
        a: int

    class Strict(pydantic.BaseModel):
        a: int
        b: int = 0
        _hidden: list[int] = pydantic.PrivateAttr(default_factory=lambda: [1])

    back = evolve(Extra, Strict, Extra(a=1, b=2, c=3))
    assert (back.a, back.b, back.model_extra, back._hidden) == (1, 2, None, [1])
    assert back.model_fields_set == {"a", "b"}
    again = evolve(Strict, Extra, Strict(a=1))
    assert (again.a, again.model_extra, again.__pydantic_private__) == (1, {"b": 0}, None)

    class Computed(pydantic.BaseModel):
        a: int
        b: int = pydantic.Field(default_factory=lambda data: data["a"])

    with pytest.raises(errors.StoredTypeChangedError, match="lacks field 'b'"):
        evolve(Extra, Computed, Extra(a=1))


def test_extra_attributes_are_dropped_with_their_slot() -> None:
    slotted = dataclasses.make_dataclass("S", ["a"], slots=True)
    open_ = dataclasses.make_dataclass("S", ["a"])
    value = open_(1)
    value.more = 5
    assert evolve(open_, open_, value).more == 5
    assert not hasattr(evolve(open_, slotted, value), "more")


class Touched(BaseException):
    """A BaseException, so that no `except Exception` hides it."""


@contextlib.contextmanager
def forbidden() -> Iterator[None]:
    """Make every import raise."""

    def touched(*args: object, **kwargs: object) -> typing.NoReturn:
        raise Touched(args[0])

    with patch.object(builtins, "__import__", touched), patch.object(importlib, "import_module", touched):
        yield


def registered(tag: str, *parts: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(codes.REGISTERED, msgspec.msgpack.encode([tag, *parts])))


def ext(code: int, payload: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, payload))


def test_decoding_never_imports() -> None:
    everything = [
        [*REGISTERED[:-6]],
        {(1,): Decimal(1)},
        Fraction(1, 2),
        datetime.now(ZoneInfo("Asia/Tokyo")),
        Path("x"),
    ]
    data = CODEC.encode(everything, channel="c")
    scalars._listed()  # reads the list of zones once, with the standard library's own imports
    assert "wsgiref.simple_server" not in sys.modules
    with forbidden():
        CODEC.decode(data, channel="c")
        for tag in ("os.system", "wsgiref.simple_server", "wsgiref.simple_server.WSGIServer", "builtins.eval", ""):
            for state in ("id", ["id"], {"args": ["id"]}, None):
                with pytest.raises(errors.UnknownTypeError):
                    CODEC.decode(registered(tag, state), channel="c")
        for zone in (
            "wsgiref.simple_server",
            "wsgiref/simple_server",
            "../../etc/passwd",
            "Europe",
            "",
            "zone1970.tab",
        ):
            with pytest.raises(errors.CorruptCheckpointError):
                CODEC.decode(ext(codes.ZONE, zone.encode()), channel="c")
    assert "wsgiref.simple_server" not in sys.modules


def test_bytes_cannot_replace_what_belongs_to_the_class() -> None:
    state = {"a": 1, "b": [], "__class__": 1, "__dict__": 2, "c": 3}
    data = registered(f"{__name__}.Plain", state, {"__class__": 5, "__dict__": {}, "a": 9, "expensive": 1, "new": 4})
    back: Any = CODEC.decode(data, channel="c")
    assert type(back) is Plain
    assert vars(back) == {"a": 1, "b": [], "expensive": 1, "new": 4}


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "more than one value": b"\x01\x01",
    "a byte that no value starts with": b"\xc1",
    "an array that is too long": b"\xdd\xff\xff\xff\xff",
    "a map that is too long": b"\xdf\xff\xff\xff\xff",
    "bytes that are too long": b"\xc6\xff\xff\xff\xff",
    "text that is none": b"\xa1\xff",
    "an unhashable key": b"\x81\x81\x01\x02\x03",
    "an unhashable key, of ours": b"\x81" + ext(codes.BYTEARRAY, b"x") + b"\x01",
    "endless nesting": b"\x91" * 100_000,
    "endless nesting of ours": functools.reduce(
        lambda inner, _: ext(codes.TUPLE, b"\x91" + inner), range(1500), b"\x01"
    ),
    "an unknown kind": ext(99, b""),
    "a kind of MessagePack's own": ext(-1, b"xx"),
    "registered, empty": ext(codes.REGISTERED, b""),
    "registered, no array": ext(codes.REGISTERED, b"\x01"),
    "registered, too short": ext(codes.REGISTERED, b"\x91\xa1x"),
    "registered, too long": registered("x", 1, 2, 3),
    "registered, no tag": ext(codes.REGISTERED, b"\x92\x01\x02"),
    "no mapping besides": registered(f"{__name__}.Plain", {"a": 1, "b": []}, [1]),
    "tuple: no array": ext(codes.TUPLE, b"\xa3abc"),
    "set: unhashable": ext(codes.SET, b"\x91" + ext(codes.BYTEARRAY, b"")),
    "dict: a key without a value": ext(codes.DICT, b"\x91\x01"),
    "deque: empty": ext(codes.DEQUE, b"\x90"),
    "deque: a length that is none": ext(codes.DEQUE, b"\x92\xa1x\x01"),
    "deque: a negative length": ext(codes.DEQUE, b"\x92\xff\x01"),
    "slice": ext(codes.SLICE, b"\x91\x01"),
    "complex": ext(codes.COMPLEX, b"x"),
    "decimal: no number": ext(codes.DECIMAL, b"abc"),
    "decimal: no ASCII": ext(codes.DECIMAL, "\u0661".encode()),
    "decimal: spelled another way": ext(codes.DECIMAL, b"1_000"),
    "decimal: an exponent without end": ext(codes.DECIMAL, b"1E+" + b"9" * 1000),
    "fraction: of zero": ext(codes.FRACTION, b"\x92\x01\x00"),
    "fraction: one number": ext(codes.FRACTION, b"\x91\x01"),
    "fraction: of huge numbers": ext(codes.FRACTION, b"\x92" + 2 * ext(codes.BIG_INT, b"\x7f" * 10_000)),
    "range: no step": ext(codes.RANGE, b"\x93\x01\x02\x00"),
    "range: no numbers": ext(codes.RANGE, b"\x93\x01\x02\xc3"),
    "uuid": ext(codes.UUID, b"x" * 15),
    "uuid: no safety": ext(codes.UUID, b"x" * 16 + b"\x09"),
    "date": ext(codes.DATE, b"\x00\x00\x01\x01"),
    "datetime: too short": ext(codes.DATETIME, b"\x07"),
    "datetime: a zone that is none": ext(codes.DATETIME, struct.pack(">HBBBBBIB", 2020, 1, 1, 0, 0, 0, 0, 0) + b"\x01"),
    "time": ext(codes.TIME, struct.pack(">BBBIB", 25, 0, 0, 0, 0)),
    "timedelta": ext(codes.TIMEDELTA, struct.pack(">iii", 2**31 - 1, 0, 0)),
    "timezone": ext(codes.TIMEZONE, struct.pack(">iii", 3, 0, 0)),
    "zone: no such": ext(codes.ZONE, b"Nowhere/Land"),
    "zone: no name": ext(codes.ZONE, b"../UTC"),
    "path: empty": ext(codes.PATH, b""),
    "path: no such class": ext(codes.PATH, b"\x09x"),
    "path: of another system": ext(codes.PATH, bytes((3 if os.name == "posix" else 2,)) + b"x"),
    "address": ext(codes.IP, b"\x00nonsense"),
    "network: with a host": ext(codes.IP, b"\x0210.0.0.1/8"),
}


OF_ANOTHER_CLASS: dict[str, bytes] = {
    "no mapping": registered(f"{__name__}.Plain", [1]),
    "fields are missing": registered(f"{__name__}.Plain", {"b": []}),
    "struct: fields are missing": registered(f"{__name__}.Cell", {}),
    "model: not four parts": registered(f"{__name__}.Model", [{}]),
    "model: names that are none": registered(f"{__name__}.Model", [{"name": 1}, 7, {}, {}]),
    "enum: no member": registered(f"{__name__}.Level", "NONE"),
    "enum: unhashable": registered(f"{__name__}.Level", ["LOW"]),
    "flag: bits that there are not": registered(f"{__name__}.Perm", 1024),
    "flag: no number": registered(f"{__name__}.Perm", "R"),
    "flag: a million bits": registered(f"{__name__}.Bits", msgspec.msgpack.Ext(codes.BIG_INT, b"\x7f" * 125_000)),
    "subclass: another value": registered(f"{__name__}.Amount", "1"),
    "custom: its function raises": registered(f"{__name__}.Opaque", []),
}


@pytest.mark.parametrize("data", OF_ANOTHER_CLASS.values(), ids=OF_ANOTHER_CLASS.keys())
def test_bytes_that_a_class_refuses_are_not_damage(data: bytes) -> None:
    """P15: a codec gets undamaged bytes, as frames are checked before. If a class refuses them, they were stored by
    another version of the class, and a backup would not help."""
    for view in (data, memoryview(data)):
        with pytest.raises(errors.StoredTypeChangedError) as caught:
            CODEC.decode(view, channel="inbox")
        assert caught.value.where == "channel 'inbox'"


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_damaged_bytes_are_reported_as_damage(data: bytes) -> None:
    for view in (data, memoryview(data)):
        with pytest.raises(errors.CorruptCheckpointError) as caught:
            CODEC.decode(view, channel="inbox")
        assert type(caught.value) is errors.CorruptCheckpointError
        assert caught.value.where == "channel 'inbox'"


def test_damage_is_found_in_any_decimal_context() -> None:
    """In this decimal context, text that is not a number gives NaN, and numbers may lose digits."""
    with localcontext(Context(prec=3, traps=[])):
        with pytest.raises(errors.CorruptCheckpointError):
            CODEC.decode(HOSTILE["decimal: no number"], channel="c")
        exact = Decimal("1.234567890123456789012345678901234567890")
        assert str(there_and_back(exact)) == str(exact)


def test_running_out_of_memory_is_not_damage() -> None:
    def decode(stored: object) -> Opaque:
        raise MemoryError

    codec = Codec().with_type(Opaque, encode=lambda opaque: 1, decode=decode)
    with pytest.raises(MemoryError):
        codec.decode(codec.encode(Opaque(1), channel="c"), channel="c")


def test_a_decode_function_that_returns_another_type() -> None:
    codec = Codec().with_type(Opaque, encode=lambda opaque: 1, decode=lambda stored: 5)
    with pytest.raises(errors.StoredTypeChangedError, match="decode function of Opaque made a int"):
        codec.decode(codec.encode(Opaque(1), channel="c"), channel="c")


def test_a_missing_time_zone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode(ZoneInfo("Europe/Paris"), channel="c")
    monkeypatch.setattr("zoneinfo.TZPATH", ())
    monkeypatch.setattr(scalars, "_listed", frozenset[str])
    scalars._zone.cache_clear()
    with pytest.raises(errors.CorruptCheckpointError, match=r"'Europe/Paris' is not in this machine's database"):
        CODEC.decode(data, channel="c")
    monkeypatch.setattr(scalars, "_listed", lambda: frozenset({"Europe/Paris"}))
    assert CODEC.decode(data, channel="c") is ZoneInfo("Europe/Paris")


def test_each_code_is_used_once_and_can_be_read() -> None:
    given = {name: code for name, code in vars(codes).items() if name.isupper()}
    assert len(set(given.values())) == len(given)
    assert " ".join(f"{name}={code}" for name, code in given.items()) == (
        "REGISTERED=0 BIG_INT=1 SURROGATES=2 BYTEARRAY=3 COMPLEX=4 DECIMAL=5 FRACTION=6 RANGE=7 UUID=8 DATE=9 "
        "DATETIME=10 TIME=11 TIMEDELTA=12 TIMEZONE=13 ZONE=14 PATH=15 IP=16 UNSET=17 "
        "TUPLE=32 SET=33 FROZENSET=34 DICT=35 DEQUE=36 ORDERED_DICT=37 COUNTER=38 SLICE=39"
    )
    unread = [code for code in given.values() if code and code not in package.codec._READERS]
    assert not unread


def golden_codec() -> Codec:
    codec = Codec().with_type(Opaque, tag="opaque", encode=lambda o: o.value, decode=lambda stored: Opaque(stored))
    for cls in (Level, Perm, Point, Plain, Cell, Model, Open, Amount, Name, Stack):
        codec = codec.with_types(cls, tag=cls.__name__.lower())
    return codec


def golden_name() -> Name:
    return Name.of("n", "o")


GOLDEN: list[tuple[object, str]] = [
    (
        {"a": [None, True, -1, 2**64 - 1, 0.5, "ä", b"x"], 2: {}},
        "82a16197c0c3ffcfffffffffffffffffcb3fe0000000000000a2c3a4c401780280",
    ),
    ([2**64, -(2**63) - 1], "92c70901010000000000000000c70901ff7fffffffffffffff"),
    ("\ud800", "c70302eda080"),
    (bytearray(b"ab"), "d5036162"),
    (1.5 - 2j, "d8043ff8000000000000c000000000000000"),
    (Decimal("-1.50"), "c705052d312e3530"),
    (Decimal("sNaN"), "d605734e614e"),
    (Fraction(-3, 2**65), "c70e0692fdc70901020000000000000000"),
    (range(1, 2**65, 3), "c70f079301c7090102000000000000000003"),
    (uuid.UUID(int=7), "d80800000000000000000000000000000007"),
    (uuid.UUID(int=7, is_safe=uuid.SafeUUID.unsafe), "c7110800000000000000000000000000000007ff"),
    (date(2024, 2, 29), "d60907e8021d"),
    (datetime(2024, 2, 29, 23, 59, 58, 999999), "c70c0a07e8021d173b3a000f423f00"),
    (datetime(2024, 2, 29, tzinfo=UTC), "c70d0a07e8021d0000000000000000c0"),
    (
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        "c71c0a07e80a1b021e000000000001c70d0e4575726f70652f4265726c696e",
    ),
    (
        time(1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-3), "x"), fold=1),
        "c7190b0102030000000401c70e0dffffffff00012750000000003d78",
    ),
    (timedelta(-1, 1, 1), "c70c0cffffffff0000000100000001"),
    (timezone(timedelta(seconds=1)), "c70c0d000000000000000100000000"),
    (ZoneInfo("Asia/Tokyo"), "c70a0e417369612f546f6b796f"),
    ([PurePosixPath("a/b"), PureWindowsPath("c:/d")], "92d60f00612f62c7050f01633a5c64"),
    (
        [ip_address("1.2.3.4"), ip_interface("::1/8"), ip_network("10.0.0.0/8")],
        "93d71000312e322e332e34c70610053a3a312f38c70b100231302e302e302e302f38",
    ),
    (msgspec.UNSET, "c70011"),
    ((1, ("x",)), "d7209201c7032091a178"),
    ({3, "b", None}, "c705219303a162c0"),
    (frozenset({(1,)}), "c7052291d5209101"),
    ({(1, 2): "x", None: []}, "c70b2394c70320920102a178c090"),
    (deque([1, 2], 3), "d62493030102"),
    (OrderedDict(b=1, a=2), "c7072594a16201a16102"),
    (Counter("aab"), "c7072694a16102a16201"),
    (slice(1, None, 2), "d6279301c002"),
    (Level.HIGH, "c70c0092a56c6576656ca448494748"),
    (Perm.R | Perm.W, "c7070092a47065726d03"),
    (Point(1), "c7160092a5706f696e7482a17801a179cb3fe0000000000000"),
    (Plain(1, ["x"]), "d80092a5706c61696e82a16101a16291a178"),
    (Cell(1), "c7120092a463656c6c83a16101a16290a163c70011"),
    (
        Model(name="n"),
        "c72e0092a56d6f64656c9483a46e616d65a16ea473697a6501a5696e6e6572c091a46e616d658081a75f73656372657405",
    ),
    (Open(name="n", more=1), "c7220092a46f70656e9481a46e616d65a16e92a46d6f7265a46e616d6581a46d6f72650180"),
    (Amount(3), "c7090092a6616d6f756e7403"),
    (golden_name(), "c7120093a46e616d65a16e81a66f726967696ea16f"),
    (stack(), "c7280093a5737461636b9201c706209202d521910381a56c6162656cc70c0092a56c6576656ca448494748"),
    (Opaque(5), "c7090092a66f706171756505"),
]


@pytest.mark.parametrize(("value", "stored"), GOLDEN, ids=lambda part: part if isinstance(part, str) else "")
def test_bytes_of_format_1_decode_forever(value: object, stored: str) -> None:
    codec = golden_codec()
    assert same(codec.decode(bytes.fromhex(stored), channel="c"), value)
    assert codec.encode(value, channel="c").hex() == stored


def test_pydantic_is_not_imported() -> None:
    script = "import sys, checkpoint_savers.codec; print('pydantic' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_the_public_names() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert package.__all__ == ["Codec", "TypeRegistrationError", "seal", "unseal"]
    assert all(hasattr(package, name) for name in package.__all__)


@dataclasses.dataclass
class UpkeepLease:
    parts: list[int]


def test_isolated_copies_are_encoded_as_plain_containers() -> None:
    """P1: the copies of containers that nodes get are stored as the plain containers, at any depth."""
    codec = Codec().with_types(UpkeepLease)
    value = {"list": [1, {"a": [2]}], "point": UpkeepLease([1]), "big": 2**70, "parts": ([3], {4})}
    held = isolate(value)
    assert type(held["point"].parts) is not list
    held["list"][1]["a"].append(5)
    wanted = {**value, "list": [1, {"a": [2, 5]}]}
    for one in (held, [held], {"in": held}):
        data = codec.encode_held(one, channel="c")
        plain = wanted if one is held else [wanted] if isinstance(one, list) else {"in": wanted}
        assert data == codec.encode(plain, channel="c") == codec.encode_held(plain, channel="c")
    with pytest.raises(errors.UnstorableValueError, match="IsolatedDict is not registered"):
        codec.encode(held, channel="c")
    with pytest.raises(errors.UnstorableValueError, match=r"at value\['a'\]\[0\]"):
        codec.encode_held(isolate({"a": [object]}), channel="c")
    with pytest.raises(errors.UnstorableValueError, match="is not registered"):
        codec.encode_held(type("Mine", (dict,), {})(), channel="c")


MERSENNE = 2**61 - 1
"""The hash of a whole number is its remainder modulo this prime."""


@dataclass(frozen=True)
class Number:
    x: int


class Numbers(frozenset[Any]):
    pass


def colliding(count: int) -> dict[str, list[Any]]:
    """Different values with one hash, by family."""
    signs = [tuple(-1 - (number >> bit & 1) for bit in range(13)) for number in range(count)]
    return {
        "multiples": [MERSENNE * number for number in range(count)],
        "powers": [2 ** (61 * number) for number in range(count)],
        "signs in tuples": signs,
        "sets of tuples": [frozenset([one]) for one in signs],
        "objects": [Number(MERSENNE * number) for number in range(count)],
    }


FAMILIES = list(colliding(1))
COLLIDING_CODEC = Codec().with_types(Number, Numbers)


@pytest.mark.parametrize("family", FAMILIES)
def test_colliding_hashes_are_refused_when_written(family: str) -> None:
    """P11: such values are refused when they are written, so that all written data can be read in time linear in its
    size."""
    some = colliding(300)[family]
    assert len(set(map(hash, some))) == 1
    for value in (set(some), Numbers(some), dict.fromkeys(some), OrderedDict.fromkeys(some), Counter(some)):
        assert COLLIDING_CODEC.decode(COLLIDING_CODEC.encode(value, channel="x"), channel="x") == value
    many = colliding(600)[family]
    for value in (set(many), frozenset(many), Numbers(many), {many[0]: dict.fromkeys(many)}, Counter(many)):
        with pytest.raises(errors.UnstorableValueError, match="the same hash"):
            COLLIDING_CODEC.encode(value, channel="x")
    assert COLLIDING_CODEC.decode(COLLIDING_CODEC.encode(many, channel="x"), channel="x") == many


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("code", [codes.SET, codes.FROZENSET, codes.DICT, codes.ORDERED_DICT, codes.COUNTER])
def test_colliding_hashes_are_refused_when_read(family: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """P11: in bytes that no saver wrote, such keys are refused before a dict is built of them, as that would take
    quadratic time."""
    monkeypatch.setattr("checkpoint_savers.codec.containers.collide", lambda members: False)
    many = colliding(600)[family]
    value: Any = {codes.SET: set, codes.FROZENSET: frozenset}.get(code, dict.fromkeys)(many)
    kind = {codes.ORDERED_DICT: OrderedDict, codes.COUNTER: Counter}.get(code)
    data = COLLIDING_CODEC.encode(kind(value) if kind else value, channel="x")
    monkeypatch.undo()
    for bytes_ in (data, COLLIDING_CODEC.encode([1], channel="x")[:1] + data):
        with pytest.raises(errors.CorruptCheckpointError, match="the same hash"):
            COLLIDING_CODEC.decode(bytes_, channel="x")


def _map(keys: list[bytes]) -> bytes:
    return b"\xde" + len(keys).to_bytes(2, "big") + b"".join(key + b"\x00" for key in keys)


@pytest.mark.parametrize("inside", ["", "list", "dict", "tuple", "object", "many", "time"])
@pytest.mark.parametrize("key", ["array", "extension"])
def test_dict_keys_that_no_saver_writes(key: str, inside: str) -> None:
    """P11: msgspec reads arrays and extensions as dict keys, and these may have colliding hashes; texts and numbers
    cannot."""
    signs = [bytes([0x90 | 11, *(0xFF - (number >> bit & 1) for bit in range(11))]) for number in range(1000)]
    tuples = [msgspec.msgpack.encode(msgspec.msgpack.Ext(codes.TUPLE, one)) for one in signs]
    keys = signs if key == "array" else tuples
    for one, fits in ((_map(keys), False), (_map([b"\xcd" + n.to_bytes(2, "big") for n in range(256, 1256)]), True)):
        wrapped = {
            "": one,
            "list": b"\x92\x01" + one,
            "dict": b"\x81\xa1k" + one,
            "tuple": msgspec.msgpack.encode(msgspec.msgpack.Ext(codes.TUPLE, b"\x91" + one)),
            "object": msgspec.msgpack.encode(
                msgspec.msgpack.Ext(codes.REGISTERED, b"\x92" + msgspec.msgpack.encode("stranger") + one)
            ),
            "many": msgspec.msgpack.encode([*range(1000), msgspec.Raw(one)]),
            "time": msgspec.msgpack.encode(msgspec.msgpack.Ext(codes.TIME, bytes(9) + one)),
        }[inside]
        try:
            made = Codec().decode(wrapped, channel="x")
        except errors.UnknownTypeError:
            assert fits and inside == "object"
        except errors.CorruptCheckpointError as error:
            assert not fits or inside == "time"
            assert "Damaged" in str(error)
        else:
            assert fits and made is not None


def test_bytes_that_look_like_a_large_dict_are_read() -> None:
    """P11: bytes inside strings, floats and numbers may look like the header of a dict. They are read as what they
    are."""
    looks = b"\xde\x03\x00" * 1000
    for value in (
        looks,
        [looks, 1.5, "\u0783" * 2000],
        {"a": [struct.unpack(">d", looks[:8])[0]] * 2000},
        {number: {"key": looks} for number in range(2000)},
        ({1: looks}, {(1, 2): looks}),
        [[[(number, looks)] for number in range(30)]],
        bytearray(looks),
        2**20000 + int.from_bytes(looks, "big"),
    ):
        assert Codec().decode(Codec().encode(value, channel="x"), channel="x") == value
