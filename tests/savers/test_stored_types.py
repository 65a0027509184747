"""P15: stored objects are read by rules that code declares, or as data without their classes."""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from typing import Any, NamedTuple

import msgspec
import pydantic

from checkpoint_savers import Codec, StoredObject


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
    """An object that was a member of a set or a key can be read as data, whatever its fields hold."""
    for part in ({"a": [1]}, [{"b": {1}}], deque([1]), frozenset({1}), {1}, StoredObject("t", {"x": []})):
        one, two = StoredObject("T", {"a": part, "b": 1}), StoredObject("T", {"b": 1, "a": part})
        assert one == two and hash(one) == hash(two)
    assert hash(StoredObject("T", {"a": {1}})) == hash(StoredObject("T", {"a": frozenset({1})}))
    many = {StoredObject("T", {"a": [number]}) for number in range(2000)}
    assert len(set(map(hash, many))) > 1990
