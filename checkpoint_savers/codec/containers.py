"""Encodes and decodes containers. Each pair of functions is adjacent; one-line pairs are in the tables at the end.

Lists, and dicts with plain keys, are MessagePack's own types. All others are extensions whose payload is an array.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import Final, cast

from . import codes
from .collisions import FEW, REASON, collide
from .reading import Damaged, Loader, ReadFunction
from .writing import SCALARS, Refused, ValueWriter, WriteFunction, enter, ext, pack, short_repr


def _write_list(value: list[object], writer: ValueWriter, enclosing: set[int]) -> object:
    enter(value, enclosing)
    out = writer.items(value, enclosing)
    enclosing.discard(id(value))
    return out


def _write_dict(value: dict[object, object], writer: ValueWriter, enclosing: set[int]) -> object:
    if not plain_keys(value, writer, enclosing):
        return ext(codes.DICT, _pairs(value, writer, enclosing))
    enter(value, enclosing)
    safe, out, key = writer.safe, dict[object, object](), object()
    try:
        for key, item in value.items():
            out[key] = item if type(item) in safe else writer.prepare(item, enclosing)
    except Refused as refused:
        refused.parts.append(f"[{short_repr(key)}]")
        raise
    enclosing.discard(id(value))
    return out


def plain_keys(value: dict[object, object], writer: ValueWriter, enclosing: set[int]) -> bool:
    """Return True if all keys of a dict are scalars that MessagePack has.

    Args:
        value: the dict.
        writer: prepares the keys.
        enclosing: ids of the enclosing containers.
    """
    if writer.safe.issuperset(map(type, value)):
        return True
    # The careful writer checks ints, strs and bytes too: a key that it returns unchanged is plain.
    return all(type(key) in SCALARS and writer.prepare(key, enclosing) is key for key in value)


def _pairs(value: dict[object, object], writer: ValueWriter, enclosing: set[int]) -> bytes:
    """Return the payload: key, value, key, value."""
    if collide(value):
        raise Refused(f"{REASON}. Store a list of pairs")
    enter(value, enclosing)
    out = list[object]()
    for key, item in value.items():
        try:
            out.append(writer.prepare(key, enclosing))
        except Refused as refused:
            refused.parts.append(f"<key {short_repr(key)}>")
            raise
        try:
            out.append(writer.prepare(item, enclosing))
        except Refused as refused:
            refused.parts.append(f"[{short_repr(key)}]")
            raise
    enclosing.discard(id(value))
    return pack(out)


def _read_pairs(data: memoryview, loader: Loader) -> Iterable[tuple[object, object]]:
    flat = loader.list(data)
    if len(flat) % 2:
        raise Damaged("a dict with a key and no value")
    if collide(flat[::2]):
        raise Damaged(REASON)
    each = iter(flat)
    return zip(each, each, strict=True)


def _without_attributes(value: object) -> None:
    """Refuse attributes of a dict of `collections`: the stored form has no place for them, and they would be lost.

    Raises:
        Refused: the dict has an attribute.
    """
    attributes: dict[str, object] = getattr(value, "__dict__", {})
    for name in attributes:
        if not name.startswith("__"):  # `__orig_class__`, of `Counter[str]()`, is no data
            kind = type(value).__name__
            what = f"{kind}s are stored without attributes: put this one into a class of your own that is registered"
            raise Refused(what, f".{name}")


def _write_ordered(value: OrderedDict[object, object], writer: ValueWriter, enclosing: set[int]) -> object:
    _without_attributes(value)
    return ext(codes.ORDERED_DICT, _pairs(value, writer, enclosing))


def _write_counter(value: Counter[object], writer: ValueWriter, enclosing: set[int]) -> object:
    _without_attributes(value)
    return ext(codes.COUNTER, _pairs(cast("dict[object, object]", value), writer, enclosing))


def _read_counter(data: memoryview, loader: Loader) -> object:
    counter = Counter[object]()
    # dict.update, since Counter.update would add counts.
    dict[object, object].update(cast("dict[object, object]", counter), _read_pairs(data, loader))
    return counter


def _write_tuple(value: tuple[object, ...], writer: ValueWriter, enclosing: set[int]) -> object:
    enter(value, enclosing)
    out = writer.items(value, enclosing)
    enclosing.discard(id(value))
    return ext(codes.TUPLE, pack(out))


def _members(value: Collection[object], writer: ValueWriter, enclosing: set[int]) -> bytes:
    """Return the payload of a set, sorted by the members' bytes: equal sets give equal bytes in every process."""
    if collide(value):
        raise Refused(f"{REASON}. Store a list")
    enter(value, enclosing)
    out = list[bytes]()
    for member in value:
        try:
            out.append(pack(writer.prepare(member, enclosing)))
        except Refused as refused:
            refused.parts.append(f"<member {short_repr(member)}>")
            raise
    enclosing.discard(id(value))
    out.sort()
    return array_header(len(out)) + b"".join(out)


def array_header(length: int) -> bytes:
    """Return the header of an encoded list.

    Args:
        length: its number of elements.
    """
    if length < 16:
        return bytes((0x90 | length,))
    if length < 2**16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


def _read_members(data: memoryview, loader: Loader) -> list[object]:
    members = loader.list(data)
    if collide(members):
        raise Damaged(REASON)
    return members


def _write_deque(value: deque[object], writer: ValueWriter, enclosing: set[int]) -> object:
    enter(value, enclosing)
    out = writer.items(value, enclosing)
    enclosing.discard(id(value))
    return ext(codes.DEQUE, pack([value.maxlen, *out]))


def _read_deque(data: memoryview, loader: Loader) -> object:
    maxlen, *items = loader.list(data)
    if maxlen is not None and type(maxlen) is not int:
        raise Damaged("a deque whose length is no number")
    return deque(items, maxlen)


def _write_slice(value: slice, writer: ValueWriter, enclosing: set[int]) -> object:
    enter(value, enclosing)
    out = writer.fields({"start": value.start, "stop": value.stop, "step": value.step}, enclosing)
    enclosing.discard(id(value))
    return ext(codes.SLICE, pack(list(out.values())))


def _read_slice(data: memoryview, loader: Loader) -> object:
    start, stop, step = loader.list(data)
    return slice(start, stop, step)


WRITERS: Final[dict[type, WriteFunction]] = {
    list: _write_list,
    dict: _write_dict,
    tuple: _write_tuple,
    set: lambda value, writer, enclosing: ext(codes.SET, _members(value, writer, enclosing)),
    frozenset: lambda value, writer, enclosing: ext(codes.FROZENSET, _members(value, writer, enclosing)),
    deque: _write_deque,
    OrderedDict: _write_ordered,
    Counter: _write_counter,
    slice: _write_slice,
}

READERS: Final[dict[int, ReadFunction]] = {
    codes.TUPLE: lambda data, loader: loader.tuple(data),
    codes.SET: lambda data, loader: loader.set(data) if len(data) <= FEW else set(_read_members(data, loader)),
    codes.FROZENSET: lambda data, loader: (
        loader.frozenset(data) if len(data) <= FEW else frozenset(_read_members(data, loader))
    ),
    codes.DICT: lambda data, loader: dict(_read_pairs(data, loader)),
    codes.DEQUE: _read_deque,
    codes.ORDERED_DICT: lambda data, loader: OrderedDict(_read_pairs(data, loader)),
    codes.COUNTER: _read_counter,
    codes.SLICE: _read_slice,
}
