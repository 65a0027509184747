"""P15: stored objects are read by rules that code declares, or as data without their classes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import pickle
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers import Codec, StoredObject, StoredTypeChangedError, TypeVersionError, UpcastError, stored_type
from checkpoint_savers.codec import TypeRegistrationError, seal, unseal
from checkpoint_savers.errors import PregelError, UnknownTypeError


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: Any = ()


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    one: int
    two: int


class Words(list[str]):
    pass


class Card(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = "n"


class Line(msgspec.Struct, frozen=True):
    points: list[Point]


def test_values_are_read_without_their_classes() -> None:
    """`decode_plain` reads each object as its tag and its fields, also if the codec has its class, at any depth, in
    sets and as keys of dicts."""
    codec = Codec().with_types(Words, Pair, Card, Line, Color)
    codec = codec.with_types(Point, tag="point").with_types(Color, tag="color").with_types(Line, tag="line")
    value = [
        Line([Point(1)]),
        {Color.RED, Point(2)},
        {Point(3): "key"},
        Pair(1, 2),
        Words(["a"]),
        Card(name="m", more=1),
        (1, None),
    ]
    data = codec.encode(value, channel="k")
    name = __name__
    for reader in (codec, Codec()):
        assert reader.decode_plain(data, channel="k") == [
            StoredObject("line", {"points": [StoredObject("point", {"x": 1, "tags": ()})]}),
            {StoredObject("color", {"value": "RED"}), StoredObject("point", {"x": 2, "tags": ()})},
            {StoredObject("point", {"x": 3, "tags": ()}): "key"},
            StoredObject(f"{name}.Pair", {"one": 1, "two": 2}),
            StoredObject(f"{name}.Words", {"value": ["a"]}),
            StoredObject(f"{name}.Card", {"name": "m", "more": 1}),
            (1, None),
        ]


def test_equal_stored_objects_have_equal_hashes() -> None:
    """An object that was a member of a set or a key can be read as data, with fields of any kind."""
    for part in ({"a": [1]}, [{"b": {1}}], deque([1]), frozenset({1}), {1}, StoredObject("t", {"x": []})):
        one, two = StoredObject("T", {"a": part, "b": 1}), StoredObject("T", {"b": 1, "a": part})
        assert one == two and hash(one) == hash(two)
    assert hash(StoredObject("T", {"a": {1}})) == hash(StoredObject("T", {"a": frozenset({1})}))
    many = {StoredObject("T", {"a": [number]}) for number in range(2000)}
    assert len(set(map(hash, many))) > 1990


KINDS: dict[str, Callable[..., Any]] = {
    "dataclass": lambda fields: dataclasses.make_dataclass("Item", fields.items()),
    "slots": lambda fields: dataclasses.make_dataclass("Item", fields.items(), slots=True, frozen=True),
    "struct": lambda fields: msgspec.defstruct("Item", list(fields.items())),
    "pydantic": lambda fields: pydantic.create_model("Item", **{name: (kind, ...) for name, kind in fields.items()}),
    "named tuple": lambda fields: collections.namedtuple("Item", fields),
}


def there(value: Any, writer: Codec, reader: Codec) -> Any:
    """Encode a value with one codec, and decode it with another."""
    return reader.decode(writer.encode(value, channel="k"), channel="k")


def add_vat(fields: dict[str, Any]) -> dict[str, Any]:
    fields["vat"] = 19
    return fields


def to_price(fields: dict[str, Any]) -> dict[str, Any]:
    return {"price": fields["cents"] / 100, "vat": fields["vat"], "inner": fields["inner"], "gone": 1}


UPCAST = {1: add_vat, 2: to_price}


@pytest.mark.parametrize("kind", KINDS)
def test_upcasters_turn_stored_fields_into_those_of_the_class(kind: str) -> None:
    """Objects of all earlier versions are read in the newest form, and written under the newest version. An upcaster
    gets nested objects in their newest form."""
    first = KINDS[kind]({"cents": int, "inner": Any})
    second = KINDS[kind]({"cents": int, "inner": Any, "vat": int})
    third = KINDS[kind]({"price": float, "inner": Any, "vat": int})
    one = Codec().with_types(first, tag="Item")
    two = Codec().with_types(second, tag="Item", version=2, upcast={1: add_vat})
    three = Codec().with_types(third, tag="Item", version=3, upcast=UPCAST)

    def now(price: float, inner: Any = None) -> Any:
        return third(price=price, inner=inner, vat=19)

    old = [first(cents=100, inner=first(cents=200, inner=None))]
    assert there(old, one, three) == [now(1.0, now(2.0))]
    assert there(second(cents=300, inner=None, vat=19), two, three) == now(3.0)
    assert there(there(old, one, two), two, three) == [now(1.0, now(2.0))]
    data = three.encode(now(4.0), channel="k")
    assert b"Item@3" in data and three.decode(data, channel="k") == now(4.0)
    assert b"Item@2" in two.encode(there(old, one, two), channel="k")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_class_may_become_another_kind_of_class(kind: str, other: str) -> None:
    """What one kind of class stored is read by another under the same tag, with and without an upcaster."""
    one, two = KINDS[kind]({"a": int, "b": Any}), KINDS[other]({"a": int, "b": Any})
    writer = Codec().with_types(one, tag="Item")
    found = there(one(a=1, b=[2]), writer, Codec().with_types(two, tag="Item"))
    assert found == two(a=1, b=[2]) and type(found) is two
    three = KINDS[other]({"a": int, "c": Any})
    upcast = {1: lambda fields: {"a": fields["a"], "c": fields["b"]}}
    reader = Codec().with_types(three, tag="Item", version=2, upcast=upcast)
    assert there(one(a=1, b=[2]), writer, reader) == three(a=1, c=[2])


def test_a_model_knows_which_fields_were_set() -> None:
    """Upcasters and renames keep the set fields of a pydantic model, its extra values and its private ones. A field
    that an upcaster adds counts as set."""

    class Old(pydantic.BaseModel, extra="allow"):
        a: int = 0
        b: int = 0
        _private: int = pydantic.PrivateAttr(default=1)

    class New(pydantic.BaseModel, extra="allow"):
        a: int = 0
        c: int = 0
        d: int = 0
        e: int = 7
        _private: int = pydantic.PrivateAttr(default=2)

    upcast = {1: lambda fields: fields | {"d": fields["a"] + fields["more"], "also": 9}}
    reader = Codec().with_types(New, tag="M", version=2, upcast=upcast, renamed={"b": "c"})
    writer = Codec().with_types(Old, tag="M")
    value = Old.model_validate({"b": 5, "more": 3})  # `more` is an extra value
    found = there(value, writer, reader)
    assert (found.a, found.c, found.d, found.e, found._private) == (0, 5, 3, 7, 1)
    assert found.model_extra == {"more": 3, "also": 9}
    assert found.model_fields_set == {"c", "d", "more", "also"}
    assert there(Old.model_construct({"a"}, more=3), writer, reader).model_fields_set == {"a", "d", "also"}


class Status(enum.Enum):
    OPEN = 1
    PAID = 2


def test_members_are_renamed_and_upcast() -> None:
    """An enum's members are stored by name: renamed ones are found, and an upcaster gets and returns the name."""
    old: Any = enum.Enum("Status", ["NEW", "PAYED"])
    writer = Codec().with_types(old, tag="Status")
    renamed = Codec().with_types(Status, tag="Status", renamed={"PAYED": "PAID", "NEW": "FRESH", "FRESH": "OPEN"})
    assert there([old.PAYED, old.NEW], writer, renamed) == [Status.PAID, Status.OPEN]
    assert there(Status.PAID, renamed, renamed) is Status.PAID
    assert b"Status@" not in renamed.encode(Status.PAID, channel="k")
    upcast = {1: lambda name: "OPEN" if name == "NEW" else name}
    both = Codec().with_types(Status, tag="Status", version=2, upcast=upcast, renamed={"PAYED": "PAID"})
    assert there([old.PAYED, old.NEW], writer, both) == [Status.PAID, Status.OPEN]
    with pytest.raises(
        StoredTypeChangedError, match=r"is member 'NEW'.*renamed=\{'NEW': \.\.\.\}, or return from upcast\[1\]"
    ):
        identity = {1: lambda name: name}
        there(old.NEW, writer, Codec().with_types(Status, tag="Status", version=2, upcast=identity))


def test_values_that_are_not_stored_by_fields() -> None:
    """An upcaster of a subclass of list gets the plain list, and that of a class with functions what `encode`
    returned."""
    words = Codec().with_types(Words, tag="W", version=2, upcast={1: lambda each: [*each, "b"]})
    assert there(Words(["a"]), Codec().with_types(Words, tag="W"), words) == Words(["a", "b"])
    model = [{}, [], {}, {}]  # looks as a pydantic model does
    assert there(Words(model), Codec().with_types(Words, tag="W"), words) == Words([*model, "b"])
    how: Any = {"tag": "P", "encode": lambda point: [point.x], "decode": lambda state: Point(*state)}
    old = Codec().with_type(Point, **how)
    new = old.with_types(Point, version=2, upcast={1: lambda state: [*state, "t"]})
    assert there(Point(1), old, new) == Point(1, "t") and b"P@2" in new.encode(Point(1), channel="k")


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_renamed(kind: str) -> None:
    """A renamed field keeps its value, also if it was renamed twice, and after upcasters, which use the names of their
    time."""
    old, new = KINDS[kind]({"name": str, "cents": int}), KINDS[kind]({"title": str, "price": int})
    writer = Codec().with_types(old, tag="Item")
    renamed = {"cents": "cost", "cost": "price", "name": "title"}
    reader = Codec().with_types(new, tag="Item", renamed=renamed)
    assert there(old(name="pen", cents=5), writer, reader) == new(title="pen", price=5)
    assert there(new(title="pen", price=6), reader, reader) == new(title="pen", price=6)
    upcast = {1: lambda fields: {"name": fields["name"].upper(), "cost": fields["cents"]}}
    reader = Codec().with_types(new, tag="Item", version=2, upcast=upcast, renamed=renamed)
    assert there(old(name="pen", cents=5), writer, reader) == new(title="PEN", price=5)


def test_attributes_besides_the_fields_are_kept() -> None:
    """Attributes that are no fields stay with the object."""
    old, new = KINDS["dataclass"]({"a": int}), KINDS["dataclass"]({"b": int})
    value = old(1)
    value.note = "n"
    reader = Codec().with_types(new, tag="Item", renamed={"a": "b"})
    found = there(value, Codec().with_types(old, tag="Item"), reader)
    assert (found.b, found.note) == (1, "n")


Now = KINDS["dataclass"]({"b": int})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"version": 3, "upcast": {2: add_vat}}, "version 3, and no upcaster from version 1.*upcast={1: ...}"),
        ({"version": 2}, "no upcaster from version 1"),
        ({"version": 2, "upcast": {1: add_vat, 2: add_vat}}, "leads from no version before version 2"),
        ({"version": 2, "upcast": {1: add_vat, "2": add_vat}}, "leads from no version"),
        ({"upcast": {1: add_vat}}, "upcast= needs version="),
        ({"version": 0}, "version=0 is no version"),
        ({"version": True}, "version=True is no version"),
        ({"version": 2, "upcast": {1: "f"}}, "is no function"),
        ({"renamed": {"a": "c"}}, "has no 'c'"),
        ({"renamed": {"b": "b"}}, "'b' is declared as renamed, and is still there"),
        ({"renamed": {"a": "z", "z": "a"}}, "has no '[az]'"),
        ({"tag": "Item@2", "version": 1}, "its tag 'Item@2' ends as the names of later versions"),
    ],
)
def test_mistakes_of_declarations_are_refused(given: Any, reason: str) -> None:
    """A mistake is reported when the class is registered, and not when the first old object is read."""
    with pytest.raises(TypeRegistrationError, match=reason):
        Codec().with_types(Now, **given)
    with pytest.raises(TypeRegistrationError, match=reason):
        Codec().with_annotations(stored_type(**given)(KINDS["dataclass"]({"b": int})))


async def waits(fields: Any) -> Any:
    """An upcaster that cannot be awaited."""


def test_other_types_and_functions_are_refused() -> None:
    """A declaration for several types, a type without a tag, a type without names, or an async upcaster."""
    keys: Any = TypedDict("keys", {"a": int})
    for register, reason in [
        (lambda: Codec().with_types(Now, Point, version=1), "one type at a time"),
        (lambda: Codec().with_types(int, version=1), "stored without registration"),
        (lambda: Codec().with_types(keys, renamed={}), "stored without registration"),
        (lambda: stored_type("keys", version=1)(keys), "a TypedDict is stored as a dict"),
        (lambda: Codec().with_types(Words, renamed={"a": "b"}), "without names of fields or members"),
        (lambda: Codec().with_types(Now, version=2, upcast={1: waits}), "is no function that returns fields"),
        (lambda: Codec().with_types(Point, tag="I@2").with_types(Now, tag="I", version=2, upcast=UPCAST), "leads from"),
        (
            lambda: Codec().with_types(Point, tag="I@2").with_types(Now, tag="I", version=2, upcast={1: add_vat}),
            "is the tag of another class already",
        ),
    ]:
        with pytest.raises(TypeRegistrationError, match=reason):
            register()


def test_a_class_is_declared_in_several_calls() -> None:
    """A later call keeps what it does not give, and what was registered under a default tag is upcast too."""
    old, new = KINDS["dataclass"]({"a": int}), KINDS["dataclass"]({"b": int})
    default = Codec().with_annotations(new)
    known = default.with_types(new, tag="Item", version=2, upcast={1: lambda fields: {"b": fields["a"]}})
    further = known.with_types(new, aliases=["older"]).with_types(new, tag="Next", renamed={"z": "b"})
    assert known.with_types(new) is known
    for tag in ("types.Item", "Item", "older", "Next"):
        writer = Codec().with_types(old, tag=tag)
        assert there(old(1), writer, further) == new(1)
    assert b"Next@2" in further.encode(new(1), channel="k")
    for codec in (known, further):
        assert there(new(1), codec, further) == new(1)


def test_a_failing_upcaster_is_reported() -> None:
    """What an upcaster raises, or returns instead of fields, is an `UpcastError` that names class, version, place and
    cause; the object is intact, and code that corrects the upcaster reads it."""
    old, new = KINDS["dataclass"]({"a": int}), KINDS["dataclass"]({"b": int})
    data = Codec().with_types(old, tag="Item").encode([old(1)], channel="k")

    def forever(fields: Any) -> Any:
        return forever(fields)

    def read(upcaster: Any) -> Any:
        steps = {1: lambda fields: fields, 2: upcaster}
        return Codec().with_types(new, tag="Item", version=3, upcast=steps).decode(data, channel="k")

    for upcaster, kind in [
        (lambda fields: {"b": fields["net"]}, KeyError),
        (lambda fields: fields.update(b=1), TypeError),
        (lambda fields: list(fields), TypeError),
        (forever, RecursionError),
        (lambda fields: Codec().decode(b"", channel="x"), PregelError),
    ]:
        with pytest.raises(UpcastError) as raised:
            read(upcaster)
        error = raised.value
        assert isinstance(error.__cause__, kind) and isinstance(error, StoredTypeChangedError)
        facts = (error.where, error.tag, error.version, error.upcast, error.type_name, error.field)
        assert facts == ("channel 'k'", "Item", 1, 2, "types.Item", None)
    with pytest.raises(UpcastError) as raised:
        read(lambda fields: {"b": fields["net"]})
    assert str(raised.value) == (
        "channel 'k': a stored object of type 'Item' (version 1) was not upcast, since upcast[2] of types.Item failed "
        "(KeyError: 'net'): an upcaster has to accept all that its version stored. Nothing is damaged: correct the upcaster."
    )
    with pytest.raises(MemoryError):
        read(lambda fields: (_ for _ in ()).throw(MemoryError()))
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.upcast) == (str(raised.value), 2)
    assert read(lambda fields: {"b": fields["a"]}) == [new(1)]


def test_the_advice_fits_the_version() -> None:
    """A class that does not accept an object says which upcaster to write: the next one, or one that there is."""
    old, new = KINDS["dataclass"]({"a": int}), KINDS["dataclass"]({"b": int})
    one = Codec().with_types(old, tag="Item")
    two = Codec().with_types(old, tag="Item", version=2, upcast={1: dict})
    now = Codec().with_types(new, tag="Item", version=2, upcast={1: dict})
    with pytest.raises(
        StoredTypeChangedError, match=r"\(version 1\) lacks field 'b'.*a default, or return from upcast\[1\]"
    ):
        there(old(1), one, now)
    with pytest.raises(StoredTypeChangedError, match=r"version=3, upcast=\{\.\.\., 2: \.\.\.\}") as raised:
        there(old(1), two, now)
    assert (raised.value.version, raised.value.field) == (2, "b")
    both = KINDS["dataclass"]({"a": int, "b": int})
    with pytest.raises(StoredTypeChangedError, match="has both 'a' and 'b'") as raised:
        there(both(1, 2), Codec().with_types(both, tag="I"), Codec().with_types(new, tag="I", renamed={"a": "b"}))
    assert raised.value.field == "b"


def test_code_of_an_earlier_version_refuses_newer_objects() -> None:
    """Code that knows the class at an earlier version says to deploy the newer code; code that does not know the class
    says how to register it. Both can show the fields."""
    codec = Codec().with_types(Now, tag="Item", version=3, upcast={1: dict, 2: dict})
    data = codec.encode([Now(1)], channel="k")
    for old, newest in [
        (Codec().with_types(Now, tag="Item"), 1),
        (Codec().with_types(Now, tag="Other", aliases=["Item"]), 1),
        (Codec().with_types(Now, tag="Item", version=2, upcast={1: dict}), 2),
    ]:
        with pytest.raises(
            TypeVersionError, match="newer than this code.*Nothing is damaged: deploy the newer code"
        ) as raised:
            old.decode(data, channel="k")
        error = raised.value
        assert (error.version, error.newest, error.type_name) == (3, newest, "types.Item")
        assert isinstance(error, StoredTypeChangedError)
        assert old.decode_stored(data, channel="k") == [StoredObject("Item@3", {"b": 1})]
    with pytest.raises(UnknownTypeError, match="tag='Item', version=3, upcast=...") as unknown:
        Codec().decode(data, channel="k")
    assert unknown.value.tag == "Item@3"
    for tag in ("a@x", "a@\u0663", "a@" + "9" * 5000, "@3", "a@"):
        data = Codec().with_types(Now, tag=tag).encode(Now(1), channel="k")
        with pytest.raises(UnknownTypeError):
            Codec().with_types(Point, tag="a").decode(data, channel="k")


def test_stored_values_are_shown_with_and_without_upcasters() -> None:
    """`decode_stored` shows what the class makes of an object, and its stored fields if it makes nothing of them;
    `decode_plain` shows the stored fields, under the stored name."""
    old, new = KINDS["dataclass"]({"a": Any}), KINDS["dataclass"]({"b": Any})

    def upcaster(fields: Any) -> Any:
        return {"b": fields.pop("a"), "c": fields.pop("more", None) or 1 // len(fields)}

    data = Codec().with_types(old, tag="Item").encode([old([1])], channel="k")
    fine = Codec().with_types(new, tag="Item", version=2, upcast={1: lambda fields: {"b": fields["a"]}})
    broken = Codec().with_types(new, tag="Item", version=2, upcast={1: upcaster})
    assert fine.decode_stored(data, channel="k") == [new([1])]
    assert broken.decode_stored(data, channel="k") == [StoredObject("Item", {"a": [1]})]
    assert fine.decode_plain(data, channel="k") == [StoredObject("Item", {"a": [1]})]
    written = fine.encode(new(1), channel="k")
    assert fine.decode_plain(written, channel="k") == StoredObject("Item@2", {"b": 1})


def test_a_class_declares_its_own_stored_form() -> None:
    """`stored_type` declares tag, version and upcasters where the class is: annotations and codecs follow it. Arguments
    of `with_types` take precedence; subclasses are types of their own."""
    old = KINDS["dataclass"]({"a": int})
    upcast = {1: lambda fields: {"b": fields["a"]}}

    @stored_type("Item", version=2, upcast=upcast, aliases=["older"])
    @dataclasses.dataclass(slots=True)
    class Item:
        b: int

    @dataclasses.dataclass
    class Special(Item):
        pass

    @stored_type(renamed={"PAYED": "PAID"})
    class State(enum.Enum):
        PAID = 1

    @stored_type("names")
    class Names(list[str]):
        pass

    for codec in (Codec().with_annotations(list[Item]), Codec().with_types(Item)):
        for tag in ("Item", "older"):
            assert there(old(1), Codec().with_types(old, tag=tag), codec) == Item(1)
        assert b"Item@2" in codec.encode(Item(1), channel="k")
    other = Codec().with_types(Item, tag="Other", version=1)
    assert b"Other\x81" in other.encode(Item(1), channel="k")
    assert b"Special\x81" in Codec().with_types(Special).encode(Special(1), channel="k")
    name = f"{__name__}.{State.__qualname__}"
    payed: Any = enum.Enum("State", ["PAYED"])
    assert there(payed.PAYED, Codec().with_types(payed, tag=name), Codec().with_annotations(State)) is State.PAID
    assert b"names" in Codec().with_annotations(Names).encode(Names(), channel="k")


def test_damage_is_still_damage() -> None:
    """P11: no change of a byte of a frame, and no missing end of it, makes damage look like another version."""
    old, new = KINDS["dataclass"]({"a": int}), KINDS["dataclass"]({"b": int})
    one = Codec().with_types(old, tag="I")
    three = Codec().with_types(new, tag="I", version=3, upcast={1: lambda fields: {"b": fields["a"]}, 2: dict})
    model = Codec().with_types(Card, tag="I")
    cases = [
        (one, old(1), three),  # is upcast
        (three, new(1), three),
        (three, new(1), one),  # a newer version
        (one, old(1), Codec().with_types(new, tag="I", version=2, upcast={1: dict})),  # lacks a field
        (model, Card(name="a"), three),  # the upcaster fails
    ]
    for writer, value, reader in cases:
        frame = seal(writer.encode([value], channel="k"))
        for place in range(len(frame)):
            for bit in (1, 8, 64, 255):
                damaged = bytearray(frame)
                damaged[place] ^= bit
                with pytest.raises(PregelError) as raised:
                    reader.decode(unseal(bytes(damaged), "it"), channel="k")
                assert not isinstance(raised.value, StoredTypeChangedError)
            with pytest.raises(PregelError) as raised:
                reader.decode(unseal(frame[:place], "it"), channel="k")
            assert not isinstance(raised.value, StoredTypeChangedError)


VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.builds(Point, st.integers(0, 3)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[tuple[str, ...], Callable[[dict[str, Any]], dict[str, Any]] | None]]:
    """The fields of a class in each of its versions, and the upcaster from the version before."""
    names = ("a", "b", "c", "d")
    versions: list[Any] = [(draw(st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple)), None)]
    for _ in range(draw(st.integers(1, 3))):
        fields = draw(st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple))
        sources = draw(st.lists(st.sampled_from(versions[-1][0]), min_size=len(fields), max_size=len(fields)))
        versions.append((fields, _moves(dict(zip(fields, sources)))))
    return versions


def _moves(sources: Mapping[str, str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda fields: {name: [fields[source]] for name, source in sources.items()}


@given(programs(), st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(KINDS)), st.data())
def test_laws_of_upcasting(versions: Any, kind: str, other: str, data: st.DataObject) -> None:
    """What old code stored is read as what new code stores of the upcast fields, at once or version by version; reading
    changes nothing and can be repeated; what is written again is of the newest version, with the same bytes."""
    upcast: dict[int, Any] = {}
    codecs, classes = list[Codec](), list[Any]()
    for number, (fields, step) in enumerate(versions, 1):
        if step is not None:
            upcast[number - 1] = step
        cls = KINDS[kind if number % 2 else other](dict.fromkeys(fields, Any))
        classes.append(cls)
        base = Codec().with_types(Point)
        codecs.append(base.with_types(cls, tag="Item", version=number, upcast=dict(upcast)))
    fields: Any = {name: data.draw(VALUES) for name in versions[0][0]}
    written = codecs[0].encode([classes[0](**fields)], channel="k")
    found = codecs[-1].decode(written, channel="k")
    stepwise = written
    for codec in codecs[1:]:
        stepwise = codec.encode(codec.decode(stepwise, channel="k"), channel="k")
    for step in upcast.values():
        fields = step(fields)
    expected = codecs[-1].encode([classes[-1](**fields)], channel="k")
    again = codecs[-1].encode(found, channel="k")
    assert again == expected == stepwise and f"Item@{len(versions)}".encode() in again
    assert codecs[-1].encode(codecs[-1].decode(written, channel="k"), channel="k") == again
    assert codecs[-1].decode(again, channel="k") == found


@given(VALUES)
def test_types_without_a_version_have_the_same_bytes(value: Any) -> None:
    """Versions of other classes change neither the bytes nor the identity of a value."""
    one = Codec().with_types(Point, tag="point")
    two = one.with_types(Now, tag="Item", version=2, upcast={1: dict}).with_types(Status, renamed={"A": "PAID"})
    three = Codec().with_types(Point, tag="point", version=1, renamed={"y": "x"})
    for codec in (two, three):
        for method in ("encode", "canonical", "digestible"):
            assert getattr(codec, method)(value, channel="k") == getattr(one, method)(value, channel="k")


def test_types_without_a_declaration_pay_nothing() -> None:
    """Reading an object of a class without a version calls four functions, none of them of the module of versions."""
    other = Codec().with_types(Now, tag="Item", version=2, upcast={1: dict}).with_types(Point, tag="P")
    data = other.encode([Point(number, None) for number in range(10)], channel="k")
    called = list[str]()

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            called.append(f"{frame.f_code.co_filename.rpartition('/')[2]} {frame.f_code.co_name}")

    sys.setprofile(note)
    other.decode(data, channel="k")
    sys.setprofile(None)
    per_object = ["reading.py _hook", "registered.py make", "fielded.py make", "shape.py filled"]
    assert collections.Counter(called) == dict.fromkeys(per_object, 10) | {
        "codec.py decode": 1,
        "codec.py _decoded": 1,
    }
